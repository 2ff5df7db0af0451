# SPDX-License-Identifier: Apache-2.0
"""Decodes over Keys.copies(), which reads new keys that have no slot and clears what lies after a sequence's end."""
import torch

from attnhost.backend import Backend


class Copies(Backend):
    name = "copies"
    modes = "decode, idle"
    dtypes = "f32"
    uses = "unsaved_kv, shared_prefix, omit_sink"
    accepts = {"window_left": "-1"}

    def forward(self, layer, batch, keys, q, k, v, k_cache, v_cache, out):
        if not batch.num_seqs:
            return
        key, value = (keys.copies(cache, new, batch.max_kv_len).repeat_interleave(
            layer.num_q_heads // layer.num_kv_heads, 2) for cache, new in ((k_cache, k), (v_cache, v)))
        scores = layer.sm_scale * torch.einsum("shd,snhd->shn", q[:batch.num_seqs], key)
        after = torch.arange(key.shape[1]) >= keys.kv_lens[:, None, None]
        weights = torch.softmax(scores.masked_fill(after, float("-inf")), 2)
        result = torch.einsum("shn,snhd->shd", weights, value)
        out[:batch.num_seqs] = result.masked_fill((keys.kv_lens == 0)[:, None, None], 0)
