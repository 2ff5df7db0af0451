# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flex_attention, not compiled: windows as a mask, logit caps and ALiBi as changes of the scores.

    attnhost check flex.py
"""
import logging

from attnhost.backend import need
from sdpa import Sdpa, torch

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it prints that there is no Triton
flex = need("torch.nn.attention.flex_attention", "torch")
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # as it is, not through torch.compile


class Flex(Sdpa):
    name = "flex"
    doc = "PyTorch's flex_attention, not compiled, a sequence at a time"
    flags = "alibi, logit_cap"
    uses = "lse, " + Sdpa.uses
    cost_hint = 16

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, alibi_slopes):
        padding = slice(plan["first row"], plan["first row"] + batch.num_tokens)
        out[padding] = 0  # also rows that see no key
        if lse is not None:
            lse[padding] = float("-inf")
        for rows, key, value, i, j, seen in self.pieces(layer, plan, batch, keys, k, v, k_cache, v_cache):
            mask = flex.create_block_mask(lambda b, h, m, n: seen[m, n], None, None, *seen.shape, device=q.device)
            result, more = flex.flex_attention(
                q[rows].transpose(0, 1)[None], key, value, self.change(layer, alibi_slopes, i[0, 0], j[0]), mask,
                layer.sm_scale, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
            some = seen.any(1)[:, None]
            out[rows] = result[0].transpose(0, 1).masked_fill(~some[..., None], 0)
            if lse is not None:
                lse[rows] = more.lse[0].transpose(0, 1).masked_fill(~some, float("-inf"))

    @staticmethod
    def change(layer, slopes, first_query, first_key):
        """What is done to the scaled score of query m and key n of head h."""
        def score(given, b, h, m, n):
            if layer.has_alibi:
                given = given - slopes[h] * (first_query + m - first_key - n).abs()
            if layer.logit_cap > 0:
                given = layer.logit_cap * torch.tanh(given / layer.logit_cap)
            return given
        return score if layer.logit_cap > 0 or layer.has_alibi else None
