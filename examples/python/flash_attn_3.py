# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3. Its own build reads pages; the wheel fa3-fwd was built without them, so there a
sequence's keys are copied out of their pages first, or read in place where it lies in one page and an option says so.

    attnhost check --device cuda:0 flash_attn_3.py
"""
from importlib.util import find_spec

from attnhost.backend import Backend, Option, need

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
    host_arrays = "q_indptr"
    accepts = {"device.sm": "90", "head_dim": "8..256/8", "v_head_dim": "head_dim",
               **({} if has("LOCAL") else {"window_left": "-1", "window_right": "-1, 0"})}
    options = [] if has("PAGEDKV") else [Option("in_place", "bool", False, "read a sequence that lies in one page there: "
                                                "NaN after its end makes its output NaN")]

    def plan(self, batch):
        """Rows of each sequence on the device, the first, and the end of the last."""
        if batch.mode == "decode":
            rows = torch.arange(batch.num_seqs + 1, dtype=torch.int32, device=self.device)
            return rows, 0, batch.num_seqs
        indptr = batch.indptr()
        return batch.q_indptr, indptr[0], indptr[-1]

    def forward(self, layer, plan, batch, keys, q, k_cache, v_cache, out, lse):
        rows, first, end = plan
        padding = slice(end, first + batch.num_tokens)  # rows of no sequence
        out[padding] = 0
        if lse is not None:
            lse[padding] = float("-inf")
        if end == first:
            return
        k_cache, v_cache, where = self.find(batch, keys, k_cache, v_cache)
        base_e = ops.fwd(
            q[:end], k_cache, v_cache, out=out[:end], cu_seqlens_q=rows, seqused_k=keys.kv_lens,
            max_seqlen_q=max(batch.max_q_len, 1), softmax_scale=layer.sm_scale, is_causal=layer.window_right == 0,
            window_size_left=layer.window_left, window_size_right=layer.window_right, softcap=layer.logit_cap,
            **where)[1].T
        if lse is not None:  # +inf of a row that sees no key
            lse[first:end] = base_e[first:].masked_fill(base_e[first:] == float("inf"), float("-inf"))

    def find(self, batch, keys, k_cache, v_cache):
        """Keys, values, and how a sequence's are found."""
        if has("PAGEDKV"):
            return k_cache, v_cache, {"page_table": keys.block_table}
        count = max(1, (batch.max_kv_len + keys.page_size - 1) // keys.page_size)
        pages = keys.block_table[:, :count].clamp(0, len(k_cache) - 1)  # past a sequence's end there may be anything
        if count == 1 and self.options_given["in_place"]:
            return k_cache, v_cache, {"kv_batch_idx": pages[:, 0].contiguous()}
        after = torch.arange(count * keys.page_size, device=pages.device) >= keys.kv_lens[:, None]
        copies = (cache[pages].flatten(1, 2).masked_fill_(after[..., None, None], 0) for cache in (k_cache, v_cache))
        return *copies, {}
