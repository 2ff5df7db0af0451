# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 over paged keys. What it returns is copied to the output: its kvcache call has no `out`.

    attnhost check --device cuda:0 flash_attn_3.py
"""
from attnhost.backend import Backend, need

fa3 = need("flash_attn_interface",
           '"git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper"')
import torch  # noqa: E402  the package above needs it


class FlashAttn3(Backend):
    name = "flash_attn_3"
    doc = "FlashAttention-3, flash_attn_with_kvcache"
    devices = "cuda"
    dtypes = "f16, bf16"
    flags = "logit_cap"
    uses = "lse, shared_prefix, omit_sink, decodes_first, decode_drafts"
    host_arrays = "q_indptr"
    accepts = {"device.sm": "90", "head_dim": "8..256/8", "v_head_dim": "head_dim"}

    def plan(self, batch):
        """Rows of each sequence on the device, the first, and the end of the last."""
        if batch.mode == "decode":
            rows = torch.arange(batch.num_seqs + 1, dtype=torch.int32, device=self.device)
            return rows, 0, batch.num_seqs
        indptr = batch.indptr()
        return batch.q_indptr, indptr[0], indptr[-1]

    def forward(self, layer, plan, batch, keys, q, k_cache, v_cache, out, lse):
        rows, first, end = plan
        out[:first] = 0  # rows of no sequence
        out[end:batch.num_tokens] = 0
        if end == first:
            return
        made, base_e, *_ = fa3.flash_attn_with_kvcache(
            q[:end], k_cache, v_cache, cache_seqlens=keys.kv_lens, page_table=keys.block_table, cu_seqlens_q=rows,
            max_seqlen_q=max(batch.max_q_len, 1), softmax_scale=layer.sm_scale, causal=layer.window_right == 0,
            window_size=(layer.window_left, layer.window_right), softcap=layer.logit_cap, return_softmax_lse=True)
        out[first:end] = made[first:]
        if lse is not None:  # +inf of a row that sees no key
            lse[first:end] = base_e.T[first:].masked_fill(base_e.T[first:] == float("inf"), float("-inf"))
