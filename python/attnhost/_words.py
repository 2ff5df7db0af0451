# SPDX-License-Identifier: Apache-2.0
"""Numbers and sets of the ABI as the words of its texts, by the maps of the headers."""
from typing import Any, Iterable

from . import _abi
from ._struct import nearest

DTYPES = {name[5:].lower(): getattr(_abi, name) for name in
          ("ATTN_F32", "ATTN_F16", "ATTN_BF16", "ATTN_F64", "ATTN_FP8_E4M3", "ATTN_FP8_E5M2",
           "ATTN_I32", "ATTN_I64", "ATTN_U8")}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}


def words_of(prefix: str) -> dict:
    """{"decoder": 0, ...} of the constants ATTN_TYPE_*, for one that has no map."""
    return {name[len(prefix):].lower(): value for name, value in vars(_abi).items()
            if name.startswith(prefix) and not name.endswith("_COUNT")}


def map_of(name: str) -> dict:
    """{"extend": 0, ...} of a map of the headers."""
    return {entry[2] if len(entry) > 2 else entry[0].lower(): int(entry[1], 0)
            for entry in _abi.MAPS[name]}


MODES = map_of("ATTN_MODE_MAP")
MASKS = map_of("ATTN_MASK_MAP")
USES = map_of("ATTN_USES_MAP")
TRAITS = map_of("ATTN_TRAIT_MAP")
HOST_ARRAYS = map_of("ATTN_HOST_MAP")
DEVICES = map_of("ATTN_DEVICE_MAP")
FIELDS = map_of("ATTN_FIELD_MAP")
REASONS = map_of("ATTN_REASON_MAP")
KINDS = map_of("ATTN_KIND_MAP")
TYPES = {name: value for name, value in words_of("ATTN_TYPE_").items()}
GRAPH_LEVELS = words_of("ATTN_GRAPH_")


def number(what: str, value: Any, words: dict) -> int:
    """The number that a word stands for; numbers stand for themselves."""
    if isinstance(value, int):
        return value
    if value not in words:
        raise ValueError(f"{what} '{value}': accepted {', '.join(words)}"
                         + nearest(str(value), words))
    return words[value]


def bits(what: str, values: Any, words: dict) -> int:
    """The mask of a set of words; a number stands for itself."""
    if isinstance(values, int):
        return values
    mask = 0
    for value in [values] if isinstance(values, str) else values:
        mask |= 1 << number(what, value, words)
    return mask


def names(mask: int, words: dict) -> tuple:
    """The words of a mask's members."""
    return tuple(word for word, bit in words.items() if mask >> bit & 1)


def name(value: int, words: dict) -> str:
    return next((word for word, known in words.items() if known == value), str(value))


def join(values: Iterable[str]) -> str:
    return ", ".join(values) or "none"
