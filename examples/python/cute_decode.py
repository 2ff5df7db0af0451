# SPDX-License-Identifier: Apache-2.0
"""Paged decode in CuTe DSL: a warp for each sequence and query head, whose lanes share a key's elements. Written to
be read: it uses no tensor cores.

    attnhost check --device cuda:0 cute_decode.py
"""
from math import inf, log, log2, e
from operator import add
from threading import Lock

from attnhost.backend import Backend, need

cutlass = need("cutlass", "nvidia-cutlass-dsl[cu13]")
import cutlass.cute as cute  # noqa: E402
import torch  # noqa: E402
from cuda.bindings.driver import CUstream  # noqa: E402  cutlass needs it
from cutlass.cute.runtime import from_dlpack  # noqa: E402

LANES = 32
one_at_a_time = Lock()  # two threads that load kernels leave one of them without its function


@cute.kernel
def decode(q: cute.Tensor, k_cache: cute.Tensor, v_cache: cute.Tensor, table: cute.Tensor, lens: cute.Tensor,
           out: cute.Tensor, lse: cute.Tensor, scale: cutlass.Float32, group: cutlass.Constexpr,
           page: cutlass.Constexpr, each: cutlass.Constexpr):
    lane, _, _ = cute.arch.thread_idx()
    s, head, _ = cute.arch.block_idx()
    h = head // group
    query = cute.make_rmem_tensor(each, cutlass.Float32)
    sums = cute.make_rmem_tensor(each, cutlass.Float32)
    for i in cutlass.range_constexpr(each):
        query[i] = q[s, head, lane + LANES * i].to(cutlass.Float32) * scale
        sums[i] = cutlass.Float32(0)
    top, total = cutlass.Float32(-inf), cutlass.Float32(0)
    for j in cutlass.range(lens[s]):
        at = table[s, j // page]
        score = cutlass.Float32(0)
        for i in cutlass.range_constexpr(each):
            score += query[i] * k_cache[at, j % page, h, lane + LANES * i].to(cutlass.Float32)
        score = cute.arch.warp_reduction(score, add)
        peak = cutlass.max(top, score)
        shift = peak if peak > -inf else cutlass.Float32(0)  # all scores may be -inf so far
        kept, weight = cute.arch.exp2(top - shift), cute.arch.exp2(score - shift)
        total = total * kept + weight
        for i in cutlass.range_constexpr(each):
            sums[i] = sums[i] * kept + weight * v_cache[at, j % page, h, lane + LANES * i].to(cutlass.Float32)
        top = peak
    for i in cutlass.range_constexpr(each):
        result = sums[i] / total if total > 0 else cutlass.Float32(0)
        out[s, head, lane + LANES * i] = result.to(out.element_type)
    if lane == 0:
        lse[s, head] = (top + cute.math.log2(total)) * log(2)


@cute.jit
def launch(q: cute.Tensor, k_cache: cute.Tensor, v_cache: cute.Tensor, table: cute.Tensor, lens: cute.Tensor,
           out: cute.Tensor, lse: cute.Tensor, scale: cutlass.Float32, stream: CUstream,
           group: cutlass.Constexpr, page: cutlass.Constexpr, each: cutlass.Constexpr):
    decode(q, k_cache, v_cache, table, lens, out, lse, scale, group, page, each).launch(
        grid=(q.shape[0], q.shape[1], 1), block=(LANES, 1, 1), stream=stream)


class CuteDecode(Backend):
    name = "cute_decode"
    doc = "a plain paged decode kernel in CuTe DSL"
    devices = "cuda"
    modes = "decode, idle"
    traits = "first_call_slow"  # compiled for each kind of layer
    dtypes = "f16, bf16"
    uses = "lse, shared_prefix, omit_sink"
    accepts = {"device.sm": "90", "head_dim": "64, 128, 256", "v_head_dim": "head_dim", "window_left": "-1"}

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.compiled = {}

    def forward(self, layer, batch, keys, q, k, v, k_cache, v_cache, out, lse):
        n, table = batch.num_seqs, keys.block_table
        if not n:
            return
        if k is not None:  # not all new keys need have a slot
            k_cache, v_cache = (keys.copies(cache, new, batch.max_kv_len).view(-1, keys.page_size, *cache.shape[2:])
                                for cache, new in ((k_cache, k), (v_cache, v)))
            table = torch.arange(len(k_cache), dtype=torch.int32, device=q.device).view(n, -1)
        lse = torch.empty(n, layer.num_q_heads, device=q.device) if lse is None else lse[:n]
        given = [from_dlpack(array).mark_layout_dynamic(leading_dim=array.ndim - 1) for array in
                 (q[:n], k_cache, v_cache, table, keys.kv_lens[:n], out[:n], lse)]
        scale, stream = cutlass.Float32(layer.sm_scale * log2(e)), CUstream(batch.stream)
        if layer in self.compiled:
            self.compiled[layer](*given, scale, stream)
            return
        with one_at_a_time:
            compiled = cute.compile(launch, *given, scale, stream, layer.num_q_heads // layer.num_kv_heads,
                                    layer.page_size, layer.head_dim // LANES)
            compiled(*given, scale, stream)
        self.compiled[layer] = compiled
