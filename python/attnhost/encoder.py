# SPDX-License-Identifier: Apache-2.0
"""Attention among the tokens of a call alone, without a cache: encoders and vision towers."""
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from .engine import Engine
from .host import Host
from .problem import layer_group

_made: Dict[Tuple, "Encoder"] = {}  # by host, layer, dtype, device


class Encoder:
    """Equal layers of encoders. It grows with the batches that it is given."""

    def __init__(self, host: Host, members: Mapping[str, Any], dtype: torch.dtype, device: Any) -> None:
        self.host, self.members, self.dtype, self.device = host, members, dtype, device
        self.engine: Optional[Engine] = None
        self.counts: List[int] = []  # of the batch that is planned

    def _plan(self, counts: List[int]) -> None:
        seqs, tokens = len(counts), sum(counts)
        if not self.engine or seqs > self.engine.max_seqs or tokens > self.engine.max_tokens:
            tokens = 1 << max(tokens - 1, 255).bit_length()
            self.engine = Engine(self.host, [layer_group([0], **self.members)], dtype=self.dtype,
                                 device=self.device, num_tokens=tokens, max_tokens=tokens,
                                 max_seqs=1 << max(seqs - 1, 15).bit_length(), name="encoder")
        self.engine.plan([(self.engine.add(), count) for count in counts])
        self.counts = counts

    def attend(self, counts: List[int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
               **operands: torch.Tensor) -> torch.Tensor:
        """[rows, heads, dim] of sequences of these lengths one after another."""
        if counts != self.counts:
            self._plan(counts)
        out = self.engine.output(0, q.shape[0], v.shape[2])
        self.engine.forward(0, q=q, k=k, v=v, out=out, save_kv=False, **operands)
        return out


def encoder(host: Host, members: Mapping[str, Any], dtype: torch.dtype, device: Any) -> Encoder:
    """The one for such layers."""
    key = (host, repr(members), dtype, device)
    if key not in _made:
        for other in [known for known in _made if known[0] is not host]:
            del _made[other]  # what another use() was for
        _made[key] = Encoder(host, members, dtype, device)
    return _made[key]
