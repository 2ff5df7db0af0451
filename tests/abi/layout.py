#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layout.py INCLUDE_DIR: print the layout of every struct of the public headers.

The compiler is asked for nothing but macro expansion ($CC -E); sizes and offsets follow from the
rules of the x86-64 and AArch64 LP64 ABIs as they are written down here, so that what compilers do
is held against a second source. The output is tests/abi/layout.golden:

    const NAME VALUE                        an enumeration constant
    macro NAME VALUE                        a macro without arguments, expanded: a number or a text
    struct NAME SIZE                        starts with struct_size, may grow at its end
    value NAME SIZE                         lies in other structs by value, can never grow
    member STRUCT NAME OFFSET SIZE TYPE     in order

Rules that a struct breaks are errors: struct_size first, members of fixed width alone, no padding
that is not a member, no growing struct by value inside another.
"""
import ast
import os
import re
import subprocess
import sys

SCALARS = {"char": 1, "float": 4, "double": 8}
for bits in (8, 16, 32, 64):
    SCALARS[f"int{bits}_t"] = SCALARS[f"uint{bits}_t"] = bits // 8
POINTER = 8


class LayoutError(Exception):
    pass


def list_headers(include_dir):
    """Those of the ABI; attn_plugin_util.h is compiled into plugins and never crosses it."""
    return sorted(n for n in os.listdir(include_dir)
                  if re.fullmatch(r"attn_\w+\.h", n) and n != "attn_plugin_util.h")


def expand(include_dir, more=""):
    """What the preprocessor makes of all the headers, and of the lines `more` after them."""
    source = "".join(f'#include "{name}"\n' for name in list_headers(include_dir)) + more
    command = os.environ.get("CC", "cc").split() + ["-E", "-x", "c", "-I", include_dir, "-"]
    output = subprocess.run(command, input=source, capture_output=True, text=True)
    if output.returncode != 0:
        raise LayoutError(output.stderr)
    return output.stdout


def preprocess(include_dir):
    """The text of the headers themselves, macros expanded, without what they include from outside."""
    kept, ours, root = [], False, os.path.realpath(include_dir) + os.sep
    for line in expand(include_dir).splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = os.path.realpath(marker.group(1)).startswith(root)
        elif ours:
            kept.append(line)
    return "\n".join(kept)


def read_macros(include_dir):
    """{name: expansion} of the macros without arguments that have a value, in the headers' order."""
    names = []
    for header in list_headers(include_dir):
        with open(os.path.join(include_dir, header), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", " ", file.read().replace("\\\n", " "), flags=re.DOTALL)
        for name, value in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(ATTN_\w+)\b(?!\()(.*)$", text,
                                      flags=re.MULTILINE):
            if value.strip() and name not in names:
                names.append(name)
    text = expand(include_dir, "".join(f'"@{name}" {name}\n' for name in names))
    found = re.findall(r'^"@(\w+)" (.*)$', text, flags=re.MULTILINE)
    if [name for name, _ in found] != names:
        raise LayoutError("cannot read the macros")
    return {name: " ".join(value.split()) for name, value in found}


def evaluate(expression, constants):
    """An integer constant expression: numbers, known constants, casts, arithmetic."""
    text = re.sub(r"\(\s*(u?int\d+_t|attn_dtype)\s*\)", "", expression)
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", text)
    text = re.sub(r"[A-Za-z_]\w*", lambda m: str(constants.get(m.group(0), m.group(0))), text)
    operators = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if not all(isinstance(node, operators) for node in ast.walk(tree)):
            raise ValueError
        return int(eval(compile(tree, "constant", "eval"), {"__builtins__": {}}))
    except (SyntaxError, ValueError, TypeError, NameError):
        raise LayoutError(f"no integer constant: {expression.strip()}")


def read_constants(text):
    constants = {}
    for body in re.findall(r"\benum\b\s*\w*\s*\{([^{}]*)\}", text):
        following = 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = item.partition("=")
            following = evaluate(value, constants) if value else following
            constants[name.strip()] = following
            following += 1
    return constants


def read_typedefs(text):
    """Names of one type for another, and of function pointers."""
    typedefs = {}
    for target, name in re.findall(r"\btypedef\s+([\w\s]+?[\s*]+)(\w+)\s*;", text):
        words = target.replace("*", " *").split()
        if words[0] in ("struct", "enum") and "*" not in words:
            continue
        typedefs[name] = "pointer" if "*" in words else " ".join(words)
    for name in re.findall(r"\btypedef\s[^;{}]*?\(\s*\*\s*(\w+)\s*\)\s*\(", text):
        typedefs[name] = "pointer"
    return typedefs


def read_bodies(text):
    """(name, body) of each struct that is defined, in order."""
    bodies = re.findall(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}", text)
    opened = len(re.findall(r"\b(?:struct|union)\b\s*\w*\s*\{", text))
    if opened != len(bodies):
        raise LayoutError("unnamed or nested structs and unions are not allowed in the ABI")
    return bodies


def split_members(declaration):
    """'const char *name[4]' -> [(type, name, [dimension, ...])]; 'double min, max' -> two."""
    if "," in declaration and "(" not in declaration and "*" not in declaration:
        first, *others = (part.strip() for part in declaration.split(","))
        kind = split_member(first)[0]
        return [split_member(first)] + [split_member(f"{kind} {other}") for other in others]
    return [split_member(declaration)]


def split_member(declaration):
    function = re.match(r"(.*?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)$", declaration)
    if function:
        return "function *", function.group(2), []
    if re.search(r":\s*\d+$", declaration):
        raise LayoutError(f"bit-field: {declaration}")
    match = re.match(r"(.*?[\s*])(\w+)\s*((?:\[[^\]]*\]\s*)*)$", declaration)
    if not match or "," in declaration:
        raise LayoutError(f"cannot read this member: {declaration}")
    kind = re.sub(r"\s*\*\s*", " *", match.group(1)).strip()
    return kind, match.group(2), re.findall(r"\[([^\]]*)\]", match.group(3))


class Layout:
    def __init__(self, text, macros):
        self.constants = read_constants(text)
        self.macros = macros
        self.typedefs = read_typedefs(text)
        self.structs = {}  # name -> (size, alignment, sized, [(member, offset, size, type)])
        for name, body in read_bodies(text):
            try:
                self.structs[name] = self.lay_out(body)
            except LayoutError as error:
                raise LayoutError(f"struct {name}: {error}")

    def measure(self, kind):
        """(size, alignment) of a member's element type."""
        if "*" in kind:
            return POINTER, POINTER
        word = re.sub(r"\b(const|volatile|struct)\b", "", kind).strip()
        for _ in range(8):
            word = self.typedefs.get(word, word)
        if word == "pointer":
            return POINTER, POINTER
        if word in SCALARS:
            return SCALARS[word], SCALARS[word]
        if word in self.structs:
            size, alignment, sized, _ = self.structs[word]
            if sized:
                raise LayoutError(f"{word} may grow and cannot be a member by value")
            return size, alignment
        raise LayoutError(f"{kind} is no type of fixed width")

    def lay_out(self, body):
        offset, alignment, members = 0, 1, []
        declarations = filter(None, (" ".join(part.split()) for part in body.split(";")))
        for kind, name, dimensions in (m for d in declarations for m in split_members(d)):
            size, align = self.measure(kind)
            for dimension in dimensions:
                count = evaluate(dimension, self.constants)
                size *= count
                kind += f"[{count}]"
            if offset % align:
                raise LayoutError(f"{align - offset % align} bytes of padding before {name}")
            members.append((name, offset, size, kind))
            offset += size
            alignment = max(alignment, align)
        if offset % alignment:
            raise LayoutError(f"{alignment - offset % alignment} bytes of padding at the end")
        sized = bool(members) and members[0][0] == "struct_size" and members[0][3] == "uint32_t"
        return offset, alignment, sized, members

    def check_values(self):
        """A struct without struct_size is for use by value: it must be a member somewhere."""
        used = {kind.split("[")[0] for _, _, _, members in self.structs.values()
                for _, _, _, kind in members}
        for name, (_, _, sized, _) in self.structs.items():
            if not sized and name not in used:
                raise LayoutError(f"struct {name}: the first member is not uint32_t struct_size")

    def macro_value(self, text):
        try:
            return evaluate(text, self.constants)
        except LayoutError:
            return text

    def print(self):
        print("# SPDX-License-Identifier: Apache-2.0")
        print("# The stored layout of the ABI. Written by `make abi-update`, explained in layout.py.")
        for name, value in self.constants.items():
            print(f"const {name} {value}")
        for name, value in self.macros.items():
            print(f"macro {name} {self.macro_value(value)}")
        for name, (size, _, sized, members) in self.structs.items():
            print(f"{'struct' if sized else 'value'} {name} {size}")
            for member, offset, length, kind in members:
                print(f"member {name} {member} {offset} {length} {kind}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: layout.py INCLUDE_DIR")
    try:
        layout = Layout(preprocess(sys.argv[1]), read_macros(sys.argv[1]))
        layout.check_values()
    except LayoutError as error:
        sys.exit(f"layout.py: {error}")
    layout.print()


main()
