# SPDX-License-Identifier: Apache-2.0
"""Mutants of a C file: one small fault each, found in the text.

The tree's format makes that sound: a binary operator stands between two spaces, a unary one does
not, and a function's body ends with a brace in the first column. Faults are made in function bodies
alone. assert() is left alone: it guards against wrong callers and does nothing for right ones.
"""
import re

# What a token between two spaces becomes.
OPERATORS = {
    "<": ["<=", ">="],
    "<=": ["<", ">"],
    ">": [">=", "<="],
    ">=": [">", "<"],
    "==": ["!="],
    "!=": ["=="],
    "&&": ["||"],
    "||": ["&&"],
    "+": ["-"],
    "-": ["+"],
    "*": ["/"],
    "/": ["*"],
    "%": ["*"],
    "&": ["|"],
    "+=": ["-="],
    "-=": ["+="],
}
OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||\+=|-=|[<>+\-*/%&])(?=[ \n])")
STEP = re.compile(r"\+\+|--")
NUMBER = re.compile(r"(?<![\w.\"%])(\d+)(?![\w.\"])")
WORD = re.compile(r"\b(true|false)\b")
CONDITION = re.compile(r"\b(if|while) \(")
FUNCTION = re.compile(r"^(?!typedef|struct \w+ \{|enum|static const)[a-z][^;={}]*?\b(\w+)"
                      r"\([^;{}]*\)\n\{\n", re.M)
HIDDEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^#[^\n]*",
                    re.S | re.M)
RETURN = re.compile(r"return ([^;]+);", re.S)
NO_STATEMENT = re.compile(r"(if|for|while|else|do|switch|case|default|goto|struct|const|static)\b")
DECLARATION = re.compile(r"[a-z_]\w* \**\w+( =|;|,|\[)|[a-z_]\w*_t \*")


class Mutant:
    def __init__(self, file, function, line, number, start, end, text, change):
        self.file, self.function, self.line, self.number = file, function, line, number
        self.start, self.end, self.text = start, end, text
        self.change = change
        self.key = ""

    def apply(self, source):
        return source[: self.start] + self.text + source[self.end :]


def blank(source):
    """The source with the insides of comments, literals and asserts as spaces: offsets stay."""
    text = HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
    for match in list(re.finditer(r"\bassert\(", text)):
        end = statement_end(text, match.start())
        hidden = re.sub(r"[^\n;]", " ", text[match.start() : end])
        text = text[: match.start()] + hidden + text[end:]
    return text


def closing(text, start):
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return len(text)


def statement_end(text, start):
    """Behind the semicolon that ends the statement."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if text[i] == ";" and depth <= 0:
            return i + 1
    return len(text)


def bodies(text):
    for match in FUNCTION.finditer(text):
        yield match.group(1), match.end(), text.index("\n}\n", match.end() - 1) + 1


def token_faults(text, start, end):
    """(start, end, replacement, what changes) of operators, constants and conditions."""
    for match in OPERATOR.finditer(text, start, end):
        for other in OPERATORS[match.group()]:
            yield match.start(), match.end(), other, "`%s` becomes `%s`" % (match.group(), other)
    for match in STEP.finditer(text, start, end):
        other = "--" if match.group() == "++" else "++"
        yield match.start(), match.end(), other, "`%s` becomes `%s`" % (match.group(), other)
    for match in NUMBER.finditer(text, start, end):
        value = int(match.group())
        for other in [1] if value == 0 else [value - 1, value + 1]:
            yield match.start(), match.end(), str(other), "`%d` becomes `%d`" % (value, other)
    for match in WORD.finditer(text, start, end):
        other = "false" if match.group() == "true" else "true"
        yield match.start(), match.end(), other, "`%s` becomes `%s`" % (match.group(), other)
    for match in CONDITION.finditer(text, start, end):
        inside, last = match.end(), closing(text, match.end() - 1)
        yield inside, last, None, "the condition of `%s` is negated" % match.group(1)


def statement_faults(text, start, end):
    """Statements removed, values returned that are none."""
    for match in re.finditer(r"^ +(?=[a-z*+\-])", text[start:end], re.M):
        at = start + match.end()
        rest = text[at:end]
        if NO_STATEMENT.match(rest) or DECLARATION.match(rest):
            continue
        # A continuation line of a longer statement is no statement.
        before = text[start:at].rstrip()
        if before and before[-1] not in ";{}):" and not before.endswith("else"):
            continue
        if before.endswith(")") and not ends_condition(text, start + len(before) - 1):
            continue
        last = statement_end(text, at)
        if text[at:last].count("{"):
            continue
        result = RETURN.match(rest)
        if result:
            if result.group(1) not in ("0", "NULL", "false"):
                yield at, last, "return 0;", "`return ...` becomes `return 0`"
            continue
        if rest.startswith("return;"):
            yield at, last, ";", "`return` is removed"
            continue
        yield at, last, ";", "the statement is removed"


def ends_condition(text, at):
    """Does the bracket at `at` close the condition of an if, a for or a while?"""
    depth = 0
    for i in range(at, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return re.search(r"\b(if|for|while) $", text[max(0, i - 8) : i]) is not None
    return False


def mutants(file, source):
    text = blank(source)
    made = []
    for function, start, end in bodies(text):
        faults = list(token_faults(text, start, end)) + list(statement_faults(text, start, end))
        for at, last, replacement, change in sorted(faults, key=lambda f: (f[0], f[1], f[3])):
            if replacement is None:
                replacement = "!(%s)" % source[at:last]
            begin = source.rfind("\n", 0, at) + 1
            line = " ".join(source[begin : source.find("\n", at)].split())
            number = source.count("\n", 0, at) + 1
            made.append(Mutant(file, function, line, number, at, last, replacement, change))
    name(made)
    return made


def name(made):
    """Keys that outlive changes elsewhere in the file: function, line of code, change, and a number
    where a line has the same change more than once."""
    seen = {}
    for mutant in made:
        key = "%s | %s | %s | %s" % (mutant.file, mutant.function, mutant.line, mutant.change)
        seen[key] = seen.get(key, 0) + 1
        mutant.key = key if seen[key] == 1 else "%s (%d)" % (key, seen[key])
