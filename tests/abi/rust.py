# SPDX-License-Identifier: Apache-2.0
"""rust.py GOLDEN ABI_RS: is all that examples/plugin_rust/abi.rs says as layout.golden has it?

Sizes and members in their order (offsets follow: repr(C)), and the values of constants.
"""
import re
import sys

PREFIX = {"status": "ATTN_", "dtype": "ATTN_", "role": "ATTN_ROLE_", "reason": "ATTN_REASON_",
          "field": "ATTN_FIELD_"}


def read_golden(path):
    sizes, members, constants = {}, {}, {}
    with open(path, encoding="utf-8") as file:
        for words in map(str.split, file):
            if words[0] == "member":
                members.setdefault(words[1], []).append(words[2])
            elif words[0] in ("struct", "value"):
                sizes[words[1]] = int(words[2])
            else:
                constants[words[1]] = words[2]
    return sizes, members, constants


def main():
    sizes, members, constants = read_golden(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        text = re.sub(r"//.*", "", file.read())
    wrong, seen = [], 0
    for name, size, body in re.findall(r"^    (attn_\w+) = (\d+) \{(.*?)\}", text, re.M | re.S):
        fields = [field.removeprefix("r#") for field in re.findall(r"([\w#]+): ", body)]
        seen += 1
        if sizes.get(name) != int(size) or members.get(name) != fields:
            wrong.append(f"{name} {size} {fields}: accepted {sizes.get(name)} {members.get(name)}")
    for module, body in re.findall(r"numbers! \{ (\w+): \w+ \{(.*?)\} \}", text, re.S):
        for name, value in re.findall(r"(\w+) = (\w+)", body):
            seen += 1
            golden = constants.get(PREFIX[module] + name)
            if golden is None or int(golden, 0) != int(value, 0):
                wrong.append(f"{module}::{name} = {value}: accepted {golden}")
    print("\n".join(wrong) if wrong else f"{seen} structs and constants")
    return 1 if wrong or seen < 50 else 0


sys.exit(main())
