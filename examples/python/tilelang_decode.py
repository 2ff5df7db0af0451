# SPDX-License-Identifier: Apache-2.0
"""Paged decode in TileLang: a block for each sequence and KV head, an online softmax over tiles of its keys.

    attnhost check --device cuda:0 tilelang_decode.py
"""
from math import log2, e

from attnhost.backend import Backend, Option, need

tilelang = need("tilelang", "tilelang")
import tilelang.language as T  # noqa: E402
import torch  # noqa: E402  the package above needs it

LEAST = -3.4028234e38  # of float32
ROWS = 64  # of a tile of queries: the heads of a group, and what fills it up


@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: True})
def decode(heads, kv_heads, dim, page, block, dtype):
    seqs, pages, columns = T.dynamic("seqs"), T.dynamic("pages"), T.dynamic("columns")
    q_row, q_head, k_page, k_token, k_head, v_page, v_token, v_head, o_row, o_head, l_row, t_row = (
        T.dynamic(name, "int64") for name in "q_row q_head k_page k_token k_head v_page v_token v_head o_row "
        "o_head l_row t_row".split())  # strides may be long
    group = heads // kv_heads

    @T.prim_func
    def kernel(q: T.StridedTensor((seqs, heads, dim), (q_row, q_head, 1), dtype),
               k_cache: T.StridedTensor((pages, page, kv_heads, dim), (k_page, k_token, k_head, 1), dtype),
               v_cache: T.StridedTensor((pages, page, kv_heads, dim), (v_page, v_token, v_head, 1), dtype),
               table: T.StridedTensor((seqs, columns), (t_row, 1), "int32"), lens: T.Tensor((seqs,), "int32"),
               out: T.StridedTensor((seqs, heads, dim), (o_row, o_head, 1), dtype),
               lse: T.StridedTensor((seqs, heads), (l_row, 1), "float32"), scale: T.float32):
        with T.Kernel(seqs, kv_heads, threads=128) as (s, h):
            queries, weights = T.alloc_shared((ROWS, dim), dtype), T.alloc_shared((ROWS, block), dtype)
            keys, values = T.alloc_shared((block, dim), dtype), T.alloc_shared((block, dim), dtype)
            scores, sums = T.alloc_fragment((ROWS, block), "float32"), T.alloc_fragment((ROWS, dim), "float32")
            top, before = T.alloc_fragment((ROWS,), "float32"), T.alloc_fragment((ROWS,), "float32")
            total, part = T.alloc_fragment((ROWS,), "float32"), T.alloc_fragment((ROWS,), "float32")
            for i, d in T.Parallel(ROWS, dim):
                queries[i, d] = T.if_then_else(i < group, q[s, h * group + T.min(i, group - 1), d], 0)
            T.fill(sums, 0)
            T.fill(total, 0)
            T.fill(top, LEAST)  # not -inf: it would be subtracted from itself where scores are
            for tile in T.serial(T.ceildiv(lens[s], block)):
                for j, d in T.Parallel(block, dim):  # past the end there may be anything, NaN too
                    at = T.min(tile * block + j, lens[s] - 1)
                    inside = tile * block + j < lens[s]
                    keys[j, d] = T.if_then_else(inside, k_cache[table[s, at // page], at % page, h, d], 0)
                    values[j, d] = T.if_then_else(inside, v_cache[table[s, at // page], at % page, h, d], 0)
                T.gemm(queries, keys, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(ROWS, block):
                    scores[i, j] = T.if_then_else(tile * block + j < lens[s], scores[i, j] * scale,
                                                  -T.infinity("float32"))
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i, j in T.Parallel(ROWS, block):
                    scores[i, j] = T.exp2(scores[i, j] - top[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = total[i] * T.exp2(before[i] - top[i]) + part[i]
                for i, d in T.Parallel(ROWS, dim):
                    sums[i, d] *= T.exp2(before[i] - top[i])
                T.copy(scores, weights)
                T.gemm(weights, values, sums)
            for i, d in T.Parallel(ROWS, dim):
                if i < group:
                    out[s, h * group + i, d] = T.if_then_else(total[i] > 0, sums[i, d] / total[i], 0)
            for i in T.Parallel(ROWS):
                if i < group:
                    lse[s, h * group + i] = (top[i] + T.log2(total[i])) / log2(e)

    return kernel


class TilelangDecode(Backend):
    name = "tilelang_decode"
    doc = "a plain paged decode kernel in TileLang"
    devices = "cuda"
    modes = "decode, idle"
    traits = "first_call_slow"  # compiled for each kind of layer
    dtypes = "f16, bf16"
    uses = "lse, shared_prefix, omit_sink"
    accepts = {"device.sm": "90", "head_dim": "64, 128", "v_head_dim": "head_dim", "window_left": "-1",
               "num_q_heads/num_kv_heads": f"1..{ROWS}"}
    options = [Option("block", "enum", 64, "keys of a step of the loop", unit="tokens", choices=(32, 64, 128))]

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.kernels = [self.kernel(layer) for layer in layers]

    def kernel(self, layer):
        dtype = "float16" if layer.dtype == "f16" else "bfloat16"
        return decode(layer.num_q_heads, layer.num_kv_heads, layer.head_dim, layer.page_size,
                      int(self.options_given["block"]), dtype)

    def forward(self, layer, batch, keys, q, k, v, k_cache, v_cache, out, lse):
        n, table = batch.num_seqs, keys.block_table
        if n and k is not None:  # not all new keys need have a slot
            k_cache, v_cache = (keys.copies(cache, new, batch.max_kv_len).view(-1, keys.page_size, *cache.shape[2:])
                                for cache, new in ((k_cache, k), (v_cache, v)))
            table = torch.arange(len(k_cache), dtype=torch.int32, device=q.device).view(n, -1)
        if n:
            lse = torch.empty(n, layer.num_q_heads, device=q.device) if lse is None else lse[:n]
            self.kernel(layer)(q[:n], k_cache, v_cache, table, keys.kv_lens, out[:n], lse,
                               layer.sm_scale * log2(e))
