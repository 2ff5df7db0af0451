# SPDX-License-Identifier: Apache-2.0
"""FlashMLA: decode of latent attention in its absorbed form, over pages of 64.

    attnhost check --device cuda:0 flashmla.py
"""
import inspect

from attnhost.backend import Backend, need

flash_mla = need("flash_mla", "sgl-flash-mla")
import torch  # noqa: E402  the package above needs it

# FlashMLA's own releases have no dense decode any more (2026-09-30); SGLang's package keeps it under this name.
DENSE = {"use_legacy": True} if "use_legacy" in inspect.signature(flash_mla.flash_mla_with_kvcache).parameters else {}


class FlashMla(Backend):
    name = "flashmla"
    doc = "FlashMLA, flash_mla_with_kvcache"
    devices = "cuda"
    dtypes = "f16, bf16"
    layouts = "mla.latent/1"
    kinds = "mla"
    modes = "decode, idle"
    uses = "lse, shared_prefix, omit_sink"
    accepts = {"device.sm": "90", "page_size": "64", "mla.kv_lora_rank": "512", "mla.rope_dim": "64",
               "mla.nope_dim": "1..512", "window_left": "-1"}

    def plan(self, batch):
        """What FlashMLA keeps of a batch, for each KV group and number of heads."""
        made = {}
        for layer in self.layers:
            keys = batch.keys(layer)
            if keys is not None and batch.num_seqs:
                made[layer.kv_group, layer.num_q_heads] = flash_mla.get_mla_metadata(
                    keys.kv_lens, layer.num_q_heads, 1)
        return made

    def forward(self, layer, plan, batch, keys, q_nope, q_pe, latent_cache, out, lse):
        if not batch.num_seqs:
            return
        queries = torch.cat([q_nope, q_pe], -1)[:batch.num_seqs, None]
        made, base_e = flash_mla.flash_mla_with_kvcache(
            queries, latent_cache[:, :, None], keys.block_table, keys.kv_lens, layer.kv_lora_rank,
            *plan[layer.kv_group, layer.num_q_heads], layer.sm_scale, True, **DENSE)
        out[:batch.num_seqs] = made[:, 0]
        if lse is not None:  # +inf of a row that sees no key
            lse[:batch.num_seqs] = base_e[..., 0].masked_fill(base_e[..., 0] == float("inf"), float("-inf"))
