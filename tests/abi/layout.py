#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layout.py INCLUDE_DIR: print the layout of every struct of the public headers.

The compiler is asked for nothing but macro expansion ($CC -E); sizes and offsets follow from the
rules of the x86-64 and AArch64 LP64 ABIs as they are written down here, so that what compilers do
is held against a second source. The output is tests/abi/layout.golden:

    const NAME VALUE                        an enumeration constant
    macro NAME VALUE                        a macro without arguments, expanded: a number or a text
    type NAME TYPE                          a typedef; of a function its result and arguments
    struct NAME SIZE                        starts with struct_size, may grow at its end
    value NAME SIZE                         lies in other structs by value, can never grow
    member STRUCT NAME OFFSET SIZE TYPE     in order

Rules that a struct breaks are errors: struct_size first, members of fixed width alone, no padding
that is not a member, no growing struct by value inside another.
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
from headers import (HeaderError, evaluate, preprocess, read_bodies, read_constants,  # noqa: E402
                     read_macros, read_typedefs, split_members)

SCALARS = {"char": 1, "float": 4, "double": 8}
for bits in (8, 16, 32, 64):
    SCALARS[f"int{bits}_t"] = SCALARS[f"uint{bits}_t"] = bits // 8
POINTER = 8


class Layout:
    def __init__(self, text, macros):
        self.constants = read_constants(text)
        self.macros = macros
        self.typedefs = read_typedefs(text)
        self.structs = {}  # name -> (size, alignment, sized, [(member, offset, size, type)])
        for name, body in read_bodies(text):
            try:
                self.structs[name] = self.lay_out(body)
            except HeaderError as error:
                raise HeaderError(f"struct {name}: {error}")

    def measure(self, kind):
        """(size, alignment) of a member's element type."""
        if "*" in kind:
            return POINTER, POINTER
        word = re.sub(r"\b(const|volatile|struct)\b", "", kind).strip()
        for _ in range(8):
            word = self.typedefs.get(word, word)
        if "*" in word:
            return POINTER, POINTER
        if word in SCALARS:
            return SCALARS[word], SCALARS[word]
        if word in self.structs:
            size, alignment, sized, _ = self.structs[word]
            if sized:
                raise HeaderError(f"{word} may grow and cannot be a member by value")
            return size, alignment
        raise HeaderError(f"{kind} is no type of fixed width")

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
                raise HeaderError(f"{align - offset % align} bytes of padding before {name}")
            members.append((name, offset, size, kind))
            offset += size
            alignment = max(alignment, align)
        if offset % alignment:
            raise HeaderError(f"{alignment - offset % alignment} bytes of padding at the end")
        sized = bool(members) and members[0][0] == "struct_size" and members[0][3] == "uint32_t"
        return offset, alignment, sized, members

    def check_values(self):
        """A struct without struct_size is for use by value: it must be a member somewhere."""
        used = {kind.split("[")[0] for _, _, _, members in self.structs.values()
                for _, _, _, kind in members}
        for name, (_, _, sized, _) in self.structs.items():
            if not sized and name not in used:
                raise HeaderError(f"struct {name}: the first member is not uint32_t struct_size")

    def macro_value(self, text):
        try:
            return evaluate(text, self.constants)
        except HeaderError:
            return text

    def print(self):
        print("# SPDX-License-Identifier: Apache-2.0")
        print("# The stored layout of the ABI. Written by `make abi-update`, explained in layout.py.")
        for name, value in self.constants.items():
            print(f"const {name} {value}")
        for name, value in self.macros.items():
            print(f"macro {name} {self.macro_value(value)}")
        for name, kind in self.typedefs.items():
            print(f"type {name} {kind}")
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
    except HeaderError as error:
        sys.exit(f"layout.py: {error}")
    layout.print()


main()
