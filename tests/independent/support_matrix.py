#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The support matrix of docs/MATRIX.md against `attnhost list --matrix`, and that against what is published.

  support_matrix.py PAGE MATRIX FEATURES     TAP: a result for each cell
  support_matrix.py --update PAGE MATRIX     write the matrix into the page

FEATURES is written by hand (its head describes its form). A backend's cell has to agree with what is
published of its namesake, or to say why it does not; a reason that is no longer needed fails too.
"""
import sys

BEGIN, END = "<!-- matrix", "<!-- end of matrix -->"


class Tap:
    """Results in TAP."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def result(self, good, name, why="", skip=""):
        self.count += 1
        self.failed += not good
        directive = f" # SKIP {skip}" if skip else ""
        print(f"{'ok' if good else 'not ok'} {self.count} - {name}{directive}")
        if not good:
            print(f"# {why}")

    def end(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table_of(text):
    """{matter: {backend: cell}} of a Markdown table, and the lines that are none."""
    table, others, head = {}, [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            others += [line] if line.strip() else []
        elif head is None:
            head = [cell.strip("`") for cell in cells_of(line)]
        elif set(line) - set("|-"):
            cells = cells_of(line)
            assert len(cells) == len(head), line
            assert cells[0] not in table, line
            table[cells[0]] = dict(zip(head[1:], cells[1:]))
    return table, others


def split_readme(text):
    """What stands before the matrix, its marker included; the matrix; the rest."""
    begin = text.index("-->\n", text.index(BEGIN)) + len("-->\n")
    end = text.index(END)
    return text[:begin], text[begin:end], text[end:]


def update(readme, matrix):
    with open(readme, encoding="utf-8") as file:
        before, _, after = split_readme(file.read())
    with open(matrix, encoding="utf-8") as file:
        table = file.read()
    with open(readme, "w", encoding="utf-8") as file:
        file.write(f"{before}{table}{after}")
    return 0


def compare(tap, readme, built):
    """Cell by cell; rows, columns and sentences that only one side has fail too."""
    fix = "`make readme-update` writes it"
    shown, shown_others = table_of(readme)
    asked, asked_others = table_of(built)
    for matter in sorted(shown.keys() | asked.keys()):
        row, answers = shown.get(matter, {}), asked.get(matter, {})
        for backend in sorted(row.keys() | answers.keys()):
            here, there = row.get(backend, "nothing"), answers.get(backend, "nothing")
            tap.result(here == there, f"docs/MATRIX.md: {matter} of {backend}",
                       f"the page says {here}, query answers {there}; {fix}")
    tap.result(list(shown) == list(asked), "docs/MATRIX.md: the order of the rows", fix)
    tap.result(shown_others == asked_others, "docs/MATRIX.md: what stands below the table",
               f"{shown_others}, {asked_others}; {fix}")
    return asked


def features_of(path):
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.startswith("#"):
                cells = [cell.strip() for cell in line.split("|")]
                assert len(cells) == 6, f"{path}:{number}: {line}"
                yield cells


def accepts(asked, backend, questions):
    """Does the backend accept all of "matter: value; matter: value"?"""
    for question in questions.split(";"):
        matter, value = (part.strip() for part in question.rsplit(":", 1))
        if value not in asked[matter][backend].split(", "):
            return False
    return True


def judge(can, published, why):
    """What is wrong with a cell, or ""."""
    word = "gap:" if published == "yes" else "more:"
    if published not in ("yes", "no"):
        return f"'{published}' is published: accepted yes, no"
    if can == (published == "yes"):
        return f"it agrees, and yet there is a reason why not: {why}" if why else ""
    if not why.startswith(word) or len(why) < len(word) + 10:
        answer = "yes" if can else "no"
        return f"query says {answer}, published is {published}, the reason is '{why}': accepted " \
               f"one that begins with '{word}'"
    return ""


def compare_published(tap, asked, path):
    backends = set(next(iter(asked.values())))
    named = set()
    for backend, feature, published, source, questions, why in features_of(path):
        named.add(backend)
        if backend in backends:
            wrong = judge(accepts(asked, backend, questions), published, why)
            tap.result(not wrong, f"{backend}: {feature} ({source})", wrong)
    for backend in sorted(named - backends):
        tap.result(True, f"features of {backend}", skip="there is no such backend in this build")
    for backend in sorted(backends):
        if backend.endswith("_like"):
            tap.result(backend in named, f"{backend} is compared with its namesake",
                       f"{path} has no line of it")


def main(arguments):
    if arguments[:1] == ["--update"]:
        return update(*arguments[1:])
    readme, matrix, features = arguments
    tap = Tap()
    with open(readme, encoding="utf-8") as one, open(matrix, encoding="utf-8") as other:
        asked = compare(tap, split_readme(one.read())[1], other.read())
    compare_published(tap, asked, features)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
