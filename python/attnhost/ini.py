# SPDX-License-Identifier: Apache-2.0
"""Settings as the library takes them. The library reads, checks and judges an ini (with file and
line); here only the texts "section.key=value" are taken out of one that it has accepted."""
import re
from typing import Any, Dict, List, Mapping

# What attnhost_select() takes; the other sections are for `attnhost run`.
SECTIONS = ("platform", "attention", "kv_cache", "workload", "cuda_graph")
MODEL_KEYS = ("dtype", "max_context_len")


def word(value: Any) -> str:
    """True is "yes"; a list is its items with blanks between them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(word, value))
    return str(value)


def quote(value: str) -> str:
    """The value as written in an ini."""
    if value == value.strip() and not value.startswith('"') and ";" not in value:
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def unquote(value: str) -> str:
    """The meaning of a value of an ini."""
    quoted = re.match(r'"((?:[^"\\]|\\.)*)"', value)
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted.group(1))
    return re.split(r"\s;", value)[0].strip()


def write(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The ini of {"attention": {"attention_backend": "auto"}, ...}; a list in [plugins] or
    [backend.NAME] is a key that is given several times."""
    lines: List[str] = []
    for section, keys in sections.items():
        if not isinstance(keys, Mapping):
            raise TypeError(f"[{section}]: {keys!r}: accepted a dict of its keys")
        lines.append(f"[{section}]")
        for key, value in keys.items():
            repeated = section == "plugins" or section.startswith("backend.")
            values = value if repeated and isinstance(value, (list, tuple)) else [value]
            lines += [f"{key} = {quote(word(item))}" for item in values]
    return "\n".join(lines + [""])


def read(text: str) -> Dict[str, str]:
    """{"section.key": value}; of a key that is given several times the last value."""
    found: Dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line[1:line.index("]")].strip()
        elif line and line[0] not in ";#":
            key, _, value = line.partition("=" if "=" in line else ":")
            found[f"{section}.{key.strip()}"] = unquote(value.strip())
    return found


def settings(values: Mapping[str, str]) -> List[str]:
    """Those of them that selection reads. Routes are a backend that the host knows as "routes"."""
    made = []
    for name, value in values.items():
        section, _, key = name.partition(".")
        if section == "attention" and key.startswith("route."):
            continue
        if section in SECTIONS or (section == "model" and key in MODEL_KEYS):
            made.append(f"{name}={value}")
    if any(name.startswith("attention.route.") for name in values):
        made.append("attention.attention_backend=routes")
    return made
