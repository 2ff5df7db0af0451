# SPDX-License-Identifier: Apache-2.0
"""The base of the structs that are made from the headers (_abi.py)."""
import ctypes
import difflib
from typing import Any, Iterable


def size_of(cls: type) -> int:
    return ctypes.sizeof(cls)


def nearest(word: str, words: Iterable[str]) -> str:
    """", did you mean 'x'?", or nothing."""
    found = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean '{found[0]}'?" if found else ""


class Struct(ctypes.Structure):
    """A struct of the ABI: made with its struct_size set, its members as keywords.

    A member that is a pointer takes a struct, a list of structs, a text, a list of texts or None;
    what it points to is kept alive.
    """

    _fields_: Any = []

    def __init__(self, **members: Any) -> None:
        super().__init__()
        names = dict(self._fields_)
        if "struct_size" in names:
            self.struct_size = ctypes.sizeof(self)
        for name, value in members.items():
            if name not in names:
                raise TypeError(f"{type(self).__name__} has no member '{name}'"
                                + nearest(name, names))
            try:
                setattr(self, name, convert(names[name], value))
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}.{name}: {value!r}: {error}") from None
            kept = getattr(self, name)
            if isinstance(value, int) and isinstance(kept, int) and kept != value:  # ctypes cuts bits off
                raise ValueError(f"{type(self).__name__}.{name}: {value}: accepted what fits "
                                 f"{names[name].__name__}")
        self.kept = list(members.values())

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name, _ in self._fields_)
        return f"{type(self).__name__}(" + ", ".join(f"{n}={v!r}" for n, v in shown) + ")"


def convert(kind: Any, value: Any) -> Any:
    """A Python value converted for ctypes, for a member of this kind."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Struct) and issubclass(kind, ctypes._Pointer):
        return ctypes.pointer(value)
    if isinstance(value, (list, tuple)) and issubclass(kind, ctypes._Pointer):
        return ctypes.cast(make_array(kind._type_, value), kind) if value else None
    return value


def make_array(kind: Any, values: Any) -> Any:
    """An array of structs, pointers or texts that keeps what its elements point to."""
    array = (kind * len(values))(*(convert(kind, value) for value in values))
    array.kept = list(values)
    return array


def elements(pointer: Any, count: int) -> list:
    """The first `count` elements of an array of structs, each as large as the library made them."""
    if not pointer or not count:
        return []
    kind = type(pointer)._type_
    step = pointer.contents.struct_size
    start = ctypes.addressof(pointer.contents)
    return [kind.from_address(start + i * step) for i in range(count)]
