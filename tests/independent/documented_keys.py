# SPDX-License-Identifier: Apache-2.0
"""The keys of JSON reports, and those that the tables of docs/RUN.md explain.

A key is written as a path, `device.name`, with [] after a list and * for any name. In the tables
{a,b} stands for either; a row whose meaning begins with "only" is of keys that need not be there.
"""
import itertools
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/RUN.md"


def expand(text):
    parts = [part.split(",") for part in re.split(r"[{}]", text)]
    return {"".join(chosen) for chosen in itertools.product(*parts)}


def rows():
    """(line, keys, meaning) of each row of a table that has a column JSON."""
    columns = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if not cells:
            columns = None
        elif "JSON" in cells:
            columns = cells
        elif columns and cells[0] != "---":
            row = dict(zip(columns, cells))
            keys = set().union(*(expand(key) for key in re.findall(r"`([^`]+)`", row["JSON"])))
            yield row.get("line"), keys, row["meaning"]


def documented(lines):
    """Keys, and those of them that are always there: of the table of run if `lines`, else of bench."""
    every, always = set(), set()
    where = None
    for line, keys, meaning in rows():
        where = "run" if line is not None else "bench" if "regime.name" in keys else \
            "both" if "commit" in keys else "bench" if where == "bench" else "both"
        if where not in ("both", "run" if lines else "bench"):
            continue
        every |= keys
        if not meaning.startswith("only"):
            always |= keys
    return every, always


def keys_of(value, path=""):
    """The paths of all leaves; a list has those of its items, or none."""
    if isinstance(value, dict):
        dot = path + "." if path else ""
        return set().union(*(keys_of(item, dot + key) for key, item in value.items()))
    if isinstance(value, list):
        return {path + "[]"}.union(*(keys_of(item, path + "[]") for item in value
                                     if isinstance(item, dict)))
    return {path}


def problems(report, lines, named=(), there=()):
    """What is not as documented. `named`: objects whose keys are names, as "paths"; `there`: those
    that need not be there, but are."""
    every, always = documented(lines)
    always |= {key for key in every if key.partition(".")[0] in there}
    got = keys_of(report)
    for name in named:
        got = {name + ".*" if key.startswith(name + ".") else key for key in got}
    # A list of objects is no leaf in the tables.
    lists = {key for key in got if any(other.startswith(key + ".") for other in every)}
    return ([f"not documented: {key}" for key in sorted(got - every - lists)]
            + [f"not in the report: {key}" for key in sorted(always - got)])


def line_problems(text):
    """What is not as documented in the lines for people: words at their beginning, and in the tables."""
    lines = [(line.strip("`"), meaning) for line, _, meaning in rows() if line]
    words = [(word, meaning) for line, meaning in lines for word in re.split(r"`, `", line)]
    starts = [line[:13].strip() for line in text.splitlines() if line[:1].strip()]
    return ([f"not documented: {start}" for start in starts
             if not any(word.startswith(start) for word, _ in words)]
            + [f"not printed: {word}" for word, meaning in words if not meaning.startswith("only")
               and re.match(r"[A-Za-z/]+( [a-z]+)?", word).group(0).split()[0] not in text])
