# SPDX-License-Identifier: Apache-2.0
"""libattnhost by ctypes: all that is not called once for each layer (for that: _call)."""
import ctypes
from typing import Any

from . import _abi, _call
from .errors import raise_status

# The library that the extension is linked with, wherever it lies.
_library = ctypes.CDLL(_call.__file__)
for _name, (_result, _arguments) in _abi.FUNCTIONS.items():
    if _name.startswith("attnhost_"):
        _function = getattr(_library, _name)
        _function.restype, _function.argtypes = _result, _arguments


def new_error() -> _abi.attn_error:
    buffer = ctypes.create_string_buffer(4096)
    error = _abi.attn_error(capacity=4096)
    error.message = ctypes.cast(buffer, ctypes.c_char_p)
    error.kept = buffer
    return error


def call(name: str, *arguments: Any) -> Any:
    """A function that takes no attn_error."""
    return getattr(_library, name)(*arguments)


def check(name: str, *arguments: Any) -> None:
    """A function whose last argument is an attn_error: raises what it says."""
    error = new_error()
    status = getattr(_library, name)(*arguments, ctypes.byref(error))
    if status != _abi.ATTN_OK:
        raise_status(status, error.field, text(error.message), error.needed)


def text(value: Any) -> str:
    return value.decode(errors="replace") if value else ""


def version() -> str:
    """Version of the library, "MAJOR.MINOR.PATCH"."""
    return text(call("attnhost_version"))
