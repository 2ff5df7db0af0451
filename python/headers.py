# SPDX-License-Identifier: Apache-2.0
"""headers.py: read the public C headers: constants, macros, structs and their members, functions.

The compiler is asked for nothing but macro expansion ($CC -E). What is read here is laid out in two
places that must agree: tests/abi/layout.py by the written rules of the ABI, and ctypes, whose
structs generate.py writes.
"""
import ast
import os
import re
import subprocess


class HeaderError(Exception):
    pass


ABI = r"attn_\w+\.h"
ALL = r"attn(_\w+|host)\.h"
COMPILED_IN = r"attn_(local_attention|plugin_util|util_\w+)\.h"


def list_headers(include_dir, pattern=ABI):
    """The headers of the ABI; a plugin's other headers are compiled into it and never cross the ABI."""
    return sorted(n for n in os.listdir(include_dir)
                  if re.fullmatch(pattern, n) and not re.fullmatch(COMPILED_IN, n))


def expand(include_dir, more="", pattern=ABI):
    """The preprocessor's output for all headers, and for the lines `more` after them."""
    source = "".join(f'#include "{name}"\n' for name in list_headers(include_dir, pattern)) + more
    command = os.environ.get("CC", "cc").split() + ["-E", "-x", "c", "-I", include_dir, "-"]
    output = subprocess.run(command, input=source, capture_output=True, text=True)
    if output.returncode != 0:
        raise HeaderError(output.stderr)
    return output.stdout


def preprocess(include_dir, pattern=ABI):
    """The text of the headers themselves, macros expanded, without system headers."""
    kept, ours, root = [], False, os.path.realpath(include_dir) + os.sep
    for line in expand(include_dir, "", pattern).splitlines():
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
        raise HeaderError("cannot read the macros")
    return {name: " ".join(value.split()) for name, value in found}


def evaluate(expression, constants):
    """An integer constant expression: numbers, known constants, casts, arithmetic."""
    text = re.sub(r"\(\s*(u?int\d+_t|attn_dtype)\s*\)", "", expression)
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", text)
    text = re.sub(r"[A-Za-z_]\w*", lambda m: str(constants.get(m.group(0), m.group(0))), text)
    operators = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
        if not all(isinstance(node, operators) for node in ast.walk(tree)):
            raise ValueError
        return int(eval(compile(tree, "constant", "eval"), {"__builtins__": {}}))
    except (SyntaxError, ValueError, TypeError, NameError):
        raise HeaderError(f"no integer constant: {expression.strip()}")


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
    """{name: type}, of pointers to functions too."""
    typedefs = {}
    for target, name in re.findall(r"\btypedef\s+([\w\s]+?[\s*]+)(\w+)\s*;", text):
        words = target.replace("*", " *").split()
        if words[0] not in ("struct", "enum") or "*" in words:
            typedefs[name] = " ".join(words)
    for declaration in re.findall(r"\btypedef\s([^;{}]*?\(\s*\*\s*\w+\s*\)\s*\([^;{}]*\))\s*;", text):
        kind, name, _ = split_member(" ".join(declaration.split()))
        typedefs[name] = kind
    return typedefs


def read_bodies(text):
    """(name, body) of each struct that is defined, in order."""
    bodies = re.findall(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}", text)
    opened = len(re.findall(r"\b(?:struct|union)\b\s*\w*\s*\{", text))
    if opened != len(bodies):
        raise HeaderError("unnamed or nested structs and unions are not allowed in the ABI")
    return bodies


def split_members(declaration):
    """'const char *name[4]' -> [(type, name, [dimension, ...])]; 'double min, max' -> two."""
    if "," in declaration and "(" not in declaration and "*" not in declaration:
        first, *others = (part.strip() for part in declaration.split(","))
        kind = split_member(first)[0]
        return [split_member(first)] + [split_member(f"{kind} {other}") for other in others]
    return [split_member(declaration)]


def split_member(declaration):
    function = re.match(r"(.*?)\s*\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)$", declaration)
    if function:
        result, name, arguments = function.groups()
        return f"{result} (*)({', '.join(argument_kinds(arguments)) or 'void'})".replace("* (", "*("), name, []
    if re.search(r":\s*\d+$", declaration):
        raise HeaderError(f"bit-field: {declaration}")
    match = re.match(r"(.*?[\s*])(\w+)\s*((?:\[[^\]]*\]\s*)*)$", declaration)
    if not match or "," in declaration:
        raise HeaderError(f"cannot read this member: {declaration}")
    kind = re.sub(r"\s*\*\s*", " *", match.group(1)).replace("* *", "**").strip()
    return kind, match.group(2), re.findall(r"\[([^\]]*)\]", match.group(3))


def argument_kinds(arguments):
    return [split_member(" ".join(part.split()))[0] for part in arguments.split(",")
            if part.strip() != "void"]


def read_functions(text):
    """(name, result, [type of each argument]) of each function that is declared and not defined."""
    functions = []
    for result, name, arguments in re.findall(
            r"(?:^|[;}])\s*((?:const\s+)?\w+[\s*]+)(attn\w+)\(([^(){};]*)\)\s*(?=;)", text):
        functions.append((name, " ".join(result.split()), argument_kinds(arguments)))
    return functions


def read_maps(include_dir):
    """{name: [arguments of each entry]} of the ATTN_*_MAP(X) macros; texts without their quotes."""
    names = []
    for header in list_headers(include_dir):
        with open(os.path.join(include_dir, header), encoding="utf-8") as file:
            names += re.findall(r"^#define (ATTN_\w+_MAP)\(X\)", file.read(), flags=re.MULTILINE)
    text = expand(include_dir, "".join(f'"@{name}" {name}(X)\n' for name in names))
    maps = {}
    for name, entries in re.findall(r'^"@(\w+)" (.*(?:\n[^"].*)*)', text, flags=re.MULTILINE):
        maps[name] = [[text or word for text, word in re.findall(r'"([^"]*)"|([^,"\s]+)', entry)]
                      for entry in re.findall(r"X\(((?:[^()\"]|\"[^\"]*\")*)\)", entries)]
    return maps
