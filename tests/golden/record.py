# SPDX-License-Identifier: Apache-2.0
"""How the scripts beside this one write a record: its fields one after another, as many in a line as fit."""

WIDTH = 120


def record(fields):
    lines = fields[:1]
    for field in fields[1:]:
        if len(lines[-1]) + 1 + len(field) <= WIDTH:
            lines[-1] += " " + field
        else:
            lines.append(field)
    return "\n".join(lines + ["end"])
