# SPDX-License-Identifier: Apache-2.0
"""The arrays of a step on their way to the device, and what a graph of steps reads of them."""
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch


def on_device(pair: Any) -> Any:
    """Of an array on the host and on the device, the latter."""
    return pair[1] if isinstance(pair, tuple) else pair


class Arrays:
    """The arrays of a batch. On a GPU, one copy brings them over, and nothing waits for it: PyTorch
    keeps the pinned side until then. With `memory` they lie there one after another, at the same
    addresses each time if they have the same sizes."""

    ROOM, ALIGNMENT = 1 << 16, 16

    def __init__(self, device: torch.device, memory: Optional[torch.Tensor] = None) -> None:
        self.device, self.memory = device, memory
        self._parts: List[Tuple[torch.Tensor, torch.Tensor]] = []  # on the host, and where they go
        self._used = 0  # bytes of the last part

    def _open(self, room: int) -> None:
        if self.memory is not None:
            assert not self._parts, "a graph's memory is as large as its arrays can be"
        there = self.memory if self.memory is not None else torch.empty(
            room, dtype=torch.uint8, device=self.device)
        here = torch.empty(len(there), dtype=torch.uint8, device="cpu", pin_memory=self.device.type == "cuda")
        self._parts.append((here, there))
        self._used = 0

    def pair(self, values: Any, dtype: torch.dtype = torch.int32) -> Any:
        """An array on the host and on the device, where send() brings it; on the CPU both are one."""
        host = torch.as_tensor(values, dtype=dtype)
        if self.device.type == "cpu" and self.memory is None:
            return host
        size = host.numel() * host.element_size()
        if not self._parts or self._used + size > len(self._parts[-1][0]):
            self._open(max(self.ROOM, size))
        here, there = (part[self._used:self._used + size].view(dtype).view(host.shape)
                       for part in self._parts[-1])
        here.copy_(host)
        self._used += -(-size // self.ALIGNMENT) * self.ALIGNMENT
        return there if self.device.type == "cpu" else (host, there)

    def send(self) -> None:
        for here, there in self._parts:
            there.copy_(here, non_blocking=True)


class GraphStep:
    """Decode steps of up to `size` sequences, padded to as many, at addresses that stay: metadata, the
    batch's arrays, the tokens and their positions. Made by Engine.graph_step()."""

    def __init__(self, device: torch.device, size: int, room: int, metadata: List[Any],
                 layers: Dict[int, Any]) -> None:
        self.size = size
        self.memory = torch.zeros(room, dtype=torch.uint8, device=device)
        self.metadata, self.layers = metadata, layers
        self.capturing = False
        self.ids = self.positions = torch.zeros(0)  # [size, 1], of the step that is planned

    def captured(self, run: Callable[[], Any]) -> Any:
        """The result of run(); `capturing` says whether its forwards go into a graph."""
        self.capturing = self.memory.is_cuda and torch.cuda.is_current_stream_capturing()
        try:
            return run()
        finally:
            self.capturing = False

    def close(self) -> None:
        for metadata in self.metadata:
            metadata.close()
