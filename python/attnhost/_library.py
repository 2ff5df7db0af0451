# SPDX-License-Identifier: Apache-2.0
"""libattnhost by ctypes: all that is not called once for each layer (for that: _call)."""
import ctypes
import threading
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


class Handle(ctypes.c_void_p):
    """What the library made and destroy() frees. Another thread's call with it meanwhile is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def take(self, name: str) -> None:
        """For the function of this name, until the lock is released."""
        if not self.lock.acquire(blocking=False):
            raise InvalidArgument(f"{name}: of what another thread uses; accepted: one thread at a time",
                                  "BAD_STATE")
        if not self:
            self.lock.release()
            _refuse_closed(name)


def _refuse_closed(name: str) -> None:
    raise InvalidArgument(f"{name}: of what is closed; accepted: an open host or backend", "BAD_STATE")


def _run(name: str, *arguments: Any) -> Any:
    """The first argument of functions is a handle, or made by byref(). A closed handle is None."""
    first = arguments[0] if arguments else ()
    if first is None:
        _refuse_closed(name)
    if not isinstance(first, Handle):
        return getattr(_library, name)(*arguments)
    first.take(name)
    try:
        return getattr(_library, name)(*arguments)
    finally:
        first.lock.release()


def call(name: str, *arguments: Any) -> Any:
    """A function that takes no attn_error."""
    return _run(name, *arguments)


def destroy(name: str, handle: Handle) -> None:
    """The function that frees the handle, which is NULL from then on."""
    handle.take(name)
    try:
        getattr(_library, name)(handle)
        handle.value = None
    finally:
        handle.lock.release()


def check(name: str, *arguments: Any) -> None:
    """A function whose last argument is an attn_error: raises what it says."""
    error = new_error()
    status = _run(name, *arguments, ctypes.byref(error))
    if status != _abi.ATTN_OK:
        raise_status(status, error.field, text(error.message), error.needed)


def text(value: Any) -> str:
    return value.decode(errors="replace") if value else ""


def version() -> str:
    """Version of the library, "MAJOR.MINOR.PATCH"."""
    return text(call("attnhost_version"))
