# SPDX-License-Identifier: Apache-2.0
"""libattnhost by ctypes: all that is not called once for each layer (for that: _call)."""
import ctypes
from typing import Any

from . import _abi, _call
from .errors import InvalidArgument, raise_status

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


def _refuse_closed(name: str, arguments: tuple) -> None:
    """What functions take first is a handle, or made by byref(). None was a handle until close()."""
    if arguments and arguments[0] is None:
        raise InvalidArgument(f"{name}: of what is closed; accepted: an open host or backend", "BAD_STATE")


def call(name: str, *arguments: Any) -> Any:
    """A function that takes no attn_error."""
    _refuse_closed(name, arguments)
    return getattr(_library, name)(*arguments)


def check(name: str, *arguments: Any) -> None:
    """A function whose last argument is an attn_error: raises what it says."""
    _refuse_closed(name, arguments)
    error = new_error()
    status = getattr(_library, name)(*arguments, ctypes.byref(error))
    if status != _abi.ATTN_OK:
        raise_status(status, error.field, text(error.message), error.needed)


def text(value: Any) -> str:
    return value.decode(errors="replace") if value else ""


def version() -> str:
    """Version of the library, "MAJOR.MINOR.PATCH"."""
    return text(call("attnhost_version"))
