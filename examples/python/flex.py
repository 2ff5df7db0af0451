# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flex_attention: windows as a mask, logit caps and ALiBi as changes of the scores.

    attnhost check flex.py

flex_compiled.py is the same for races.
"""
import logging

from attnhost.backend import need
from sdpa import Sdpa, torch

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it prints that there is no Triton
flex = need("torch.nn.attention.flex_attention", "torch")
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # as it is, not through torch.compile


class Filled:
    """torch as the part of it that is not compiled sees it: there torch.tensor(-inf, device=...) is a copy from pageable
    memory, which waits for the device. A fill does not."""

    tensor = staticmethod(lambda number, **how: torch.full((), number, **how))

    def __getattr__(self, name):
        return getattr(torch, name)


need("torch._higher_order_ops.flex_attention", "torch").torch = Filled()


class Flex(Sdpa):
    name = "flex"
    doc = "PyTorch's flex_attention, a run of like sequences at a time"
    flags = "alibi, logit_cap"
    uses = "lse, " + Sdpa.uses
    cost_hint = 16
    options = []
    call = staticmethod(flex.flex_attention)

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.masks = {}

    def plan(self, batch):
        self.masks.clear()
        return super().plan(batch)

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, alibi_slopes):
        padding = slice(plan["first row"], plan["first row"] + batch.num_tokens)
        out[padding] = 0  # also rows that see no key
        if lse is not None:
            lse[padding] = float("-inf")
        for rows, n, key, value, i, j, (mask, some) in self.pieces(layer, plan, batch, keys, k, v, k_cache, v_cache):
            result, more = self.call(
                q[rows].unflatten(0, (n, -1)).transpose(1, 2), key, value,
                self.change(layer, alibi_slopes, i[0, 0], j[0]), mask, layer.sm_scale, enable_gqa=True,
                return_aux=flex.AuxRequest(lse=True))
            out[rows] = result.transpose(1, 2).masked_fill(~some[..., None], 0).flatten(0, 1)
            if lse is not None:
                lse[rows] = more.lse.transpose(1, 2).masked_fill(~some, float("-inf")).flatten(0, 1)

    def mask(self, i, j, *where):
        """Flex's mask, and which rows see a key; the same for all layers that have these windows."""
        if (len(i), len(j), *where) not in self.masks:
            seen = self.seen(i, j, *where[1:])
            self.masks[len(i), len(j), *where] = flex.create_block_mask(
                lambda b, h, m, n: seen[m, n], None, None, *seen.shape, device=j.device), seen.any(1)[:, None]
        return self.masks[len(i), len(j), *where]

    @staticmethod
    def change(layer, slopes, first_query, first_key):
        """Modify the scaled score of query m and key n of head h."""
        def score(given, b, h, m, n):
            if layer.has_alibi:
                given = given - slopes[h] * (first_query + m - first_key - n).abs()
            if layer.logit_cap > 0:
                given = layer.logit_cap * torch.tanh(given / layer.logit_cap)
            return given
        return score if layer.logit_cap > 0 or layer.has_alibi else None
