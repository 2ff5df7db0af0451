# SPDX-License-Identifier: Apache-2.0
"""FlashMLA: decode of latent attention in its absorbed form, over pages of 64.

    attnhost check --device cuda:0 flashmla.py
"""
import inspect

from attnhost.backend import Backend, Option, need

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
    options = [Option("in_place", "bool", False, "read pages where they lie: new keys need a slot, and NaN after a "
                      "sequence's end makes its output NaN")]

    def plan(self, batch):
        """FlashMLA's metadata of a batch, for each KV group and number of heads."""
        made = {}
        for layer in self.layers:
            keys = batch.keys(layer)
            if keys is not None and batch.num_seqs:
                made[layer.kv_group, layer.num_q_heads] = flash_mla.get_mla_metadata(
                    keys.kv_lens, layer.num_q_heads, 1)
        return made

    def forward(self, layer, plan, batch, keys, q_nope, q_pe, c_kv, k_pe, latent_cache, out, lse):
        if not batch.num_seqs:
            return
        rows = slice(0, batch.num_seqs)
        queries = torch.cat([q_nope, q_pe], -1)[rows, None]
        sign = (layer.sm_scale > 0) - (layer.sm_scale < 0)  # FlashMLA takes positive scales alone
        made, base_e = flash_mla.flash_mla_with_kvcache(
            queries if sign > 0 else queries * sign, *self.find(batch, keys, c_kv, k_pe, latent_cache), keys.kv_lens,
            layer.kv_lora_rank, *plan[layer.kv_group, layer.num_q_heads], abs(layer.sm_scale) if sign else 1.0, True,
            **DENSE)
        out[rows] = made[:, 0]
        if lse is not None:  # +inf of a row that sees no key; a key of NaN does not show in it
            empty, broken = base_e[..., 0] == float("inf"), made[:, 0].isnan().any(-1)
            lse[rows] = base_e[..., 0].masked_fill(empty, float("-inf")).masked_fill(broken, float("nan"))

    def find(self, batch, keys, c_kv, k_pe, latent_cache):
        """Pages and their table: of copies, or the engine's own."""
        if self.options_given["in_place"]:
            return latent_cache[:, :, None], keys.block_table
        new = None if c_kv is None else torch.cat([c_kv, k_pe], -1)
        pages = keys.copies(latent_cache, new, batch.max_kv_len).unflatten(1, (-1, keys.page_size)).flatten(0, 1)
        table = torch.arange(len(pages), dtype=torch.int32, device=pages.device).view(batch.num_seqs, -1)
        return pages[:, :, None], table
