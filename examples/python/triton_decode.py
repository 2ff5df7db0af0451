# SPDX-License-Identifier: Apache-2.0
"""Paged decode in Triton: a program for each sequence and KV head, an online softmax over its pages.

    attnhost check --device cuda:0 triton_decode.py
"""
import triton
import triton.language as tl

from attnhost.backend import Backend, Option


@triton.jit
def decode(q, k_new, v_new, k_cache, v_cache, out, lse, table, lens, new_rows, scale, left,
           q_row, q_head, k_row, k_head, v_row, v_head, kp, kt, kh, vp, vt, vh, o_row, o_head,
           l_row, t_row, HAS_NEW: tl.constexpr, OWN_ROWS: tl.constexpr, HAS_LSE: tl.constexpr,
           GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    s, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)  # strides may be long
    length = tl.load(lens + s)
    row, count = s, 1  # of the new keys
    if OWN_ROWS:
        row = tl.load(new_rows + s).to(tl.int64)
        count = tl.load(new_rows + s + 1) - row
    stop = length - count if HAS_NEW else length  # keys of the cache end here
    d, g = tl.arange(0, DIM), tl.arange(0, HEADS)
    real = g[:, None] < GROUP
    head = h * GROUP + g
    queries = tl.load(q + s * q_row + head[:, None] * q_head + d[None, :], real, 0.0)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, DIM], tl.float32)
    first = tl.maximum(length - 1 - left, 0) if left >= 0 else 0
    for start in range(first // BLOCK * BLOCK, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        seen = (j >= first) & (j < length)
        stored = seen & (j < stop)
        page = tl.load(table + s * t_row + j // PAGE, stored, 0).to(tl.int64)
        k_at = k_cache + page * kp + (j % PAGE).to(tl.int64) * kt + h * kh
        v_at = v_cache + page * vp + (j % PAGE).to(tl.int64) * vt + h * vh
        if HAS_NEW:  # new keys as they are given: their slots may be -1
            at = (row + j - stop).to(tl.int64)
            k_at = tl.where(j >= stop, k_new + at * k_row + h * k_head, k_at)
            v_at = tl.where(j >= stop, v_new + at * v_row + h * v_head, v_at)
        keys = tl.load(k_at[:, None] + d[None, :], seen[:, None], 0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(peak == float("-inf"), 0.0, peak)
        weights, kept = tl.exp(scores - safe[:, None]), tl.exp(top - safe)
        values = tl.load(v_at[:, None] + d[None, :], seen[:, None], 0.0)
        total = total * kept + tl.sum(weights, 1)
        sums = sums * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        top = peak
    rows = tl.where(total[:, None] > 0, sums / total[:, None], 0.0)
    tl.store(out + s * o_row + head[:, None] * o_head + d[None, :], rows, real)
    if HAS_LSE:
        tl.store(lse + s * l_row + head, top + tl.log(total), g < GROUP)


class TritonDecode(Backend):
    name = "triton_decode"
    doc = "a plain paged decode kernel in Triton"
    devices = "cuda"
    modes = "decode, idle"
    traits = "first_call_slow"  # compiled for each kind of layer
    graph_level = "single_token"
    dtypes = "f16, bf16"
    uses = "lse, shared_prefix, unsaved_kv, omit_sink"
    accepts = {"head_dim": "16, 32, 64, 128, 256", "v_head_dim": "head_dim",
               "num_q_heads/num_kv_heads": "1..64"}
    options = [Option("block", "enum", 64, "keys of a step of the loop", unit="tokens",
                      choices=(16, 32, 64, 128, 256))]

    def forward(self, layer, batch, keys, q, k, v, k_cache, v_cache, out, lse):
        group = layer.num_q_heads // layer.num_kv_heads
        new_k, new_v = (q, q) if k is None else (k, v)
        own = keys.kv_new_indptr if k is not None else None
        decode[(batch.num_seqs, layer.num_kv_heads)](
            q, new_k, new_v, k_cache, v_cache, out, out if lse is None else lse, keys.block_table,
            keys.kv_lens, keys.kv_lens if own is None else own, layer.sm_scale, layer.window_left,
            *q.stride()[:2], *new_k.stride()[:2], *new_v.stride()[:2], *k_cache.stride()[:3],
            *v_cache.stride()[:3], *out.stride()[:2], 0 if lse is None else lse.stride(0),
            keys.block_table.stride(0), HAS_NEW=k is not None,
            OWN_ROWS=own is not None, HAS_LSE=lse is not None, GROUP=group,
            DIM=layer.head_dim, PAGE=keys.page_size, BLOCK=int(self.options_given["block"]),
            HEADS=max(16, triton.next_power_of_2(group)))
