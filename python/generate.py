# SPDX-License-Identifier: Apache-2.0
"""generate.py INCLUDE_DIR OUT_DIR: what Python has to know of the headers, made from them.

OUT_DIR/_abi.py      constants, ctypes structs, the maps of names, signatures of attnhost.h
OUT_DIR/_layout.h    the same sizes and offsets as assertions, for the compiler of the extension:
                     a struct that ctypes would lay out otherwise does not build

setup.py runs it; nothing of it is kept in the repository.
"""
import importlib.util
import os
import sys

import headers

SCALARS = {"char": "c_char", "float": "c_float", "double": "c_double", "int32_t": "c_int32"}
for bits in (8, 16, 32, 64):
    SCALARS[f"int{bits}_t"], SCALARS[f"uint{bits}_t"] = f"c_int{bits}", f"c_uint{bits}"


class Kinds:
    """C types in the words of ctypes."""

    def __init__(self, text):
        self.typedefs = headers.read_typedefs(text)
        self.known = set()  # structs that are written already

    def resolve(self, word):
        for _ in range(8):
            word = self.typedefs.get(word, word)
        return word

    def of(self, kind):
        stars = kind.count("*")
        words = [w for w in kind.replace("*", " ").split() if w not in ("const", "struct")]
        word = self.resolve(words[0])
        if "*" in word or "(" in kind:
            return "c_void_p"
        if stars == 0:
            return "None" if word == "void" else SCALARS.get(word, word)
        if word == "char":
            return "c_char_p" if stars == 1 else "POINTER(c_char_p)"
        if word in self.known:
            return "POINTER(" * stars + word + ")" * stars
        return "c_void_p"  # numbers, opaque objects


def structs(text, kinds, constants):
    """(name, [(member, ctypes expression)]) of each struct whose members are given."""
    made = []
    for name, body in headers.read_bodies(text):
        members = []
        declarations = filter(None, (" ".join(part.split()) for part in body.split(";")))
        for kind, member, dimensions in (m for d in declarations for m in headers.split_members(d)):
            expression = kinds.of(kind)
            for dimension in dimensions:
                expression = f"{expression} * {headers.evaluate(dimension, constants)}"
            members.append((member, expression))
        kinds.known.add(name)
        made.append((name, members))
    return made


def macros(include_dir, constants):
    """Numbers and texts among the macros without arguments."""
    for name, value in headers.read_macros(include_dir).items():
        if value.startswith('"'):
            yield name, value
        else:
            try:
                yield name, str(headers.evaluate(value, constants))
            except headers.HeaderError:
                pass


def write_abi(include_dir, file):
    text = headers.preprocess(include_dir, headers.ALL)
    constants, kinds = headers.read_constants(text), Kinds(text)
    out = ['"""Written by generate.py from the headers of attnhost."""',
           "# pylint: skip-file", "from ctypes import (POINTER, c_char, c_char_p, c_double, c_float, "
           "c_int8, c_int16, c_int32, c_int64,", "                    c_uint8, c_uint16, c_uint32, "
           "c_uint64, c_void_p)", "", "from ._struct import Struct", ""]
    out += [f"{name} = {value}" for name, value in constants.items()]
    out += [f"{name} = {value}" for name, value in macros(include_dir, constants)]
    names = []
    for name, members in structs(text, kinds, constants):
        names.append(name)
        out += ["", "", f"class {name}(Struct):", "    _fields_ = ["]
        out += [f'        ("{member}", {kind}),' for member, kind in members] + ["    ]"]
    out += ["", "", "STRUCTS = (" + ", ".join(names) + ")", "MAPS = {"]
    out += [f"    {name!r}: {entries!r}," for name, entries in headers.read_maps(include_dir).items()]
    out += ["}", "FUNCTIONS = {"]
    for name, result, arguments in headers.read_functions(text):
        out.append(f"    {name!r}: ({kinds.of(result)}, [{', '.join(map(kinds.of, arguments))}]),")
    file.write("\n".join(out + ["}", ""]))


def write_layout(package, file):
    """From _abi.py itself, as Python sees it."""
    sys.path.insert(0, os.path.dirname(package))
    spec = importlib.util.spec_from_file_location(
        "_generated", os.path.join(package, "_struct.py"))
    struct = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(struct)
    with open(os.path.join(package, "_abi.py"), encoding="utf-8") as source:
        text = source.read().replace("from ._struct import Struct\n", "")
    scope = {"Struct": struct.Struct}
    exec(compile(text, "_abi.py", "exec"), scope)
    file.write("/* Written by generate.py: what ctypes makes of the headers is what C makes. */\n")
    for cls in scope["STRUCTS"]:
        file.write(f"_Static_assert(sizeof({cls.__name__}) == {struct.size_of(cls)}, "
                   f'"{cls.__name__}");\n')
        for member, _ in cls._fields_:
            file.write(f"_Static_assert(offsetof({cls.__name__}, {member}) == "
                       f'{getattr(cls, member).offset}, "{cls.__name__}.{member}");\n')


def generate(include_dir, package):
    with open(os.path.join(package, "_abi.py"), "w", encoding="utf-8") as file:
        write_abi(include_dir, file)
    with open(os.path.join(package, "_layout.h"), "w", encoding="utf-8") as file:
        write_layout(package, file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[0])
    try:
        generate(*sys.argv[1:])
    except headers.HeaderError as error:
        sys.exit(f"generate.py: {error}")
