# SPDX-License-Identifier: Apache-2.0
"""bindgen.py GOLDEN RUST: is all that layout.golden lists in what bindgen wrote, and the same?

Sizes and offsets are those of the layout tests that bindgen writes beside the structs; before 0.70
an assertion each, then an array index that does not compile if it is wrong.
"""
import re
import sys

SIZE = (r'(\d+)usize,\s*concat!\(\s*"Size of: ",\s*stringify!\((\w+)\)',
        r'\["Size of (?P<s>\w+)"\]\s*\[[^;]*?-\s*(?P<n>\d+)usize\]')
OFFSET = (r'(\d+)usize,\s*concat!\(\s*"Offset of field: ",\s*stringify!\((\w+)\),\s*"::",'
          r'\s*stringify!\((\w+)\)',
          r'\["Offset of field: (?P<s>\w+)::(?P<m>\w+)"\]\s*\[[^;]*?-\s*(?P<n>\d+)usize\]')


def read_golden(path):
    """{"const NAME": value, "struct NAME": size, "member STRUCT NAME": offset}"""
    found = {}
    with open(path, encoding="utf-8") as file:
        for words in map(str.split, file):
            if words[0] == "member":
                found[f"member {words[1]} {words[2]}"] = int(words[3])
            elif words[0] == "struct":
                found[f"struct {words[1]}"] = int(words[2])
            elif words[0] in ("const", "macro") and words[2].isdigit():
                found[f"const {words[1]}"] = int(words[2])
    return found


def read_rust(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = {f"const {name}": int(value) for name, value in
             re.findall(r"pub const (\w+): \w+ = (\d+);", text)}
    found.update((f"struct {name}", int(size)) for size, name in re.findall(SIZE[0], text))
    found.update((f"struct {name}", int(size)) for name, size in re.findall(SIZE[1], text))
    members = [(struct, name, at) for at, struct, name in re.findall(OFFSET[0], text)]
    for struct, name, at in members + re.findall(OFFSET[1], text):
        found[f"member {struct} {name.rstrip('_')}"] = int(at)  # a member `type` is `type_` in Rust
    return found


def main():
    golden, rust = read_golden(sys.argv[1]), read_rust(sys.argv[2])
    wrong = [f"{what}: {rust.get(what, 'absent')}, accepted: {value}"
             for what, value in golden.items() if rust.get(what) != value]
    print("\n".join(wrong) if wrong else f"{len(golden)} sizes, offsets and constants")
    return 1 if wrong or not golden else 0


sys.exit(main())
