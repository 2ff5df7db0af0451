# SPDX-License-Identifier: Apache-2.0
"""Errors of the library, as exceptions."""
import re

from . import _abi

_STATUS = {int(value): name for name, value, _ in _abi.MAPS["ATTN_STATUS_MAP"]}
_FIELD = {int(value): text for _, value, text in _abi.MAPS["ATTN_FIELD_MAP"]}


class AttnhostError(Exception):
    """A call of the library failed.

    status    "INVALID_ARGUMENT", "UNSUPPORTED" ... (ATTN_STATUS_MAP of attn_types.h)
    field     what is wrong, "operand", "batch", "head_dim"; "" where the library names none
    got       the value that was given, accepted: what would do; "" where the message has neither
    needed    with BUFFER_TOO_SMALL: bytes that would have been enough
    """

    def __init__(self, message: str, status: str = "INTERNAL", field: str = "", got: str = "",
                 accepted: str = "", needed: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        before, mark, after = message.partition("accepted")
        found = re.search(r"'([^']*)'", before) or re.search(r"(\S+?)[:;,]? $", before)
        self.got = got or (found.group(1) if mark and found else "")
        self.accepted = accepted or after.lstrip(": ")
        self.needed = needed


class InvalidArgument(AttnhostError, ValueError):
    """An argument is missing, malformed or inconsistent."""


class ConfigError(AttnhostError, ValueError):
    """An ini, an option or a setting is wrong; the message names the place."""


class Unsupported(AttnhostError):
    """Well formed, but not what the backend can do. `reasons` holds all reasons where it was asked
    before (Host.query, Host.explain)."""

    reasons: tuple = ()


class OutOfMemory(AttnhostError, MemoryError):
    """Memory of the host or of the device is exhausted."""


_CLASSES = {
    "INVALID_ARGUMENT": InvalidArgument,
    "BAD_STATE": InvalidArgument,
    "CONFIG_ERROR": ConfigError,
    "UNSUPPORTED": Unsupported,
    "OUT_OF_HOST_MEMORY": OutOfMemory,
    "OUT_OF_DEVICE_MEMORY": OutOfMemory,
}


def raise_status(status: int, field: int, message: str, needed: int = 0, what: str = "") -> None:
    """Raise the exception for a status other than ATTN_OK."""
    name = _STATUS.get(status, str(status))
    text = f"{what}: {message or name}" if what else message or name
    raise _CLASSES.get(name, AttnhostError)(
        text, name, _FIELD.get(field, ""), needed=needed)
