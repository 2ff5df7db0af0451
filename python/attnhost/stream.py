# SPDX-License-Identifier: Apache-2.0
"""Streams, and what they may still be reading."""
import ctypes
import sys
from typing import Any, List, Optional, Tuple

from . import _abi
from .errors import AttnhostError


def stream_number(stream: Any, tensor: Any = None) -> Optional[int]:
    """The number of a stream: given as a number, as an object with .cuda_stream (torch.cuda.Stream), or None: the
    current one of torch for tensors of its on a GPU, else none, as on the CPU."""
    if stream is not None:
        number = getattr(stream, "cuda_stream", stream)
        if not isinstance(number, int):
            raise TypeError(f"stream: {stream!r}; accepted: an integer, a torch.cuda.Stream, or None")
        return number
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        return torch.cuda.current_stream(tensor.device).cuda_stream
    return None


class Borrowed:
    """Keeps objects alive that a stream may still be reading, by an event after them in the stream (CUDA driver)."""

    def __init__(self, device_type: int) -> None:
        if device_type != _abi.ATTN_DEVICE_CUDA:
            raise AttnhostError(f"device type {device_type}: accepted cpu, cuda", "UNSUPPORTED")
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._waiting: List[Tuple[ctypes.c_void_p, list]] = []  # oldest first

    def _check(self, name: str, *arguments: Any) -> int:
        result = getattr(self._driver, name)(*arguments)
        if result not in (0, 600):  # CUDA_SUCCESS, CUDA_ERROR_NOT_READY
            raise AttnhostError(f"{name}: CUDA error {result}", "DEVICE_LOST")
        return result

    def release(self, objects: list, stream: Optional[int]) -> None:
        """Release objects whose work has ended, and keep these until the stream has reached this point."""
        while self._waiting and self._check("cuEventQuery", self._waiting[0][0]) == 0:
            event, _ = self._waiting.pop(0)
            self._check("cuEventDestroy_v2", event)
        objects = [thing for thing in objects if thing is not None]
        if objects:
            event = ctypes.c_void_p()
            self._check("cuEventCreate", ctypes.byref(event), 2)  # CU_EVENT_DISABLE_TIMING
            self._check("cuEventRecord", event, ctypes.c_void_p(stream))
            self._waiting.append((event, objects))

    @property
    def count(self) -> int:
        """Objects that are kept for now."""
        return sum(len(objects) for _, objects in self._waiting)
