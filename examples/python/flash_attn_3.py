# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3. Its own build reads pages; the wheel fa3-fwd was built without them, so there a
sequence's keys are copied out of their pages first.

    attnhost check --device cuda:0 flash_attn_3.py
"""
from importlib.util import find_spec

from attnhost.backend import Backend, need

if find_spec("flash_attn_interface") is None and find_spec("fa3_fwd_interface"):
    ops, config = need("fa3_fwd_interface", "fa3-fwd").fa3_fwd_cuda, need("fa3_fwd_config", "fa3-fwd")
else:
    FROM = '"git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper" (or fa3-fwd, without pages)'
    ops, config = need("flash_attn_interface", FROM).flash_attn_3_cuda, need("flash_attn_config", FROM)
import torch  # noqa: E402  the package above needs it


def has(part):
    """Was it built with this part?"""
    return not config.CONFIG["build_flags"].get("FLASHATTENTION_DISABLE_" + part, False)


class FlashAttn3(Backend):
    name = "flash_attn_3"
    doc = "FlashAttention-3" + ("" if has("PAGEDKV") else ", built without pages")
    devices = "cuda"
    dtypes = "f16, bf16" if has("FP16") else "bf16"
    flags = "logit_cap" if has("SOFTCAP") else ""
    uses = "lse, shared_prefix, omit_sink, decodes_first, decode_drafts"
    host_arrays = "q_indptr, prefix_lens, seq_lens, kv_lens"
    accepts = {"device.sm": "90", "head_dim": "8..256/8", "v_head_dim": "head_dim",
               **({} if has("LOCAL") else {"window_left": "-1", "window_right": "-1, 0"})}
    in_place = False  # flash_attn_3_in_place.py

    def plan(self, batch):
        """Rows of each sequence on the device, the first, the end of the last, and, for KV groups whose rows are
        called one by one, these calls."""
        indptr, prefixes = batch.indptr(), batch.prefixes()
        rows = batch.q_indptr
        if batch.mode == "decode":
            rows = torch.arange(batch.num_seqs + 1, dtype=torch.int32, device=self.device)
        singles = {}
        for group, keys in enumerate(batch.kv_groups):
            if keys is not None and any(indptr[s + 1] > indptr[s] + 1 and count < prefixes[s] + indptr[s + 1] - indptr[s]
                                        for s, count in enumerate(keys.lens())):
                singles[group] = self.single(indptr, prefixes, keys.lens())
        return rows, indptr[0], indptr[-1], singles

    def single(self, rows, prefixes, lens):
        """A sequence for each row: in FlashAttention-3 the last query sees the last key, but here there are fewer
        keys than queries. Returns the start, the number of visible keys and the sequence of each."""
        each = [(min(lens[s], prefixes[s] + 1 + row), s)
                for s in range(len(lens)) for row in range(rows[s + 1] - rows[s])]
        return (torch.arange(rows[0], rows[-1] + 1, dtype=torch.int32, device=self.device),
                *torch.tensor(each, dtype=torch.int32, device=self.device).T.contiguous())

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse):
        rows, first, end, singles = plan
        padding = slice(end, first + batch.num_tokens)  # rows of no sequence
        out[padding] = 0
        if lse is not None:
            lse[padding] = float("-inf")
        if end == first:
            return
        counts, owners = keys.kv_lens, None
        if layer.kv_group in singles and layer.window_right == 0:
            rows, counts, owners = singles[layer.kv_group]
        sign = (layer.sm_scale > 0) - (layer.sm_scale < 0)  # of a scale that is not positive it makes NaN
        base_e = ops.fwd(
            q[:end] if sign > 0 else q[:end] * sign, **self.find(batch, keys, k, v, k_cache, v_cache, owners),
            out=out[:end], cu_seqlens_q=rows, seqused_k=counts,
            max_seqlen_q=max(batch.max_q_len, 1), softmax_scale=abs(layer.sm_scale) if sign else 1.0,
            is_causal=layer.window_right == 0, window_size_left=layer.window_left,
            window_size_right=layer.window_right, softcap=layer.logit_cap)[1].T
        if lse is not None:  # +inf of a row that sees no key
            lse[first:end] = base_e[first:].masked_fill(base_e[first:] == float("inf"), float("-inf"))

    def find(self, batch, keys, k, v, k_cache, v_cache, owners):
        """Keys, values, and the arguments that locate those of a sequence: of sequence owners[s], or s."""
        if has("PAGEDKV"):
            table = keys.block_table if owners is None else keys.block_table[owners]
            return {"k": k_cache, "v": v_cache, "page_table": table}
        if batch.max_kv_len <= keys.page_size and self.in_place:
            pages = keys.block_table[:, 0].clamp(0, len(k_cache) - 1)
            return {"k": k_cache, "v": v_cache,
                    "kv_batch_idx": (pages if owners is None else pages[owners]).contiguous()}
        whole = {"k": keys.copies(k_cache, k, batch.max_kv_len), "v": keys.copies(v_cache, v, batch.max_kv_len)}
        return whole if owners is None else {**whole, "kv_batch_idx": owners}
