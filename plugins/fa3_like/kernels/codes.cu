/* SPDX-License-Identifier: Apache-2.0
 *
 * codes.cu: the kernels beside a forward kernel of codes (codes.cuh, turn_values.cuh).
 *
 *   fa3_store_scales  scales of the host, which travel in the argument
 *   fa3_widen         a warp has a row and head of q, then of k and v
 *   fa3_turn_values   a block has a tile of 128 keys of a KV head
 */
#include "plugins/fa3_like/kernels/codes.cuh"
#include "plugins/fa3_like/kernels/turn_values.cuh"

extern "C" __global__ void __launch_bounds__(FA3_STORED_SCALES)
    fa3_store_scales(const __grid_constant__ fa3_scales_call p)
{
    if ((int)threadIdx.x < p.count)
        p.to[threadIdx.x] = p.values[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(FA3_WIDEN_THREADS)
    fa3_widen(const __grid_constant__ fa3_widen_call p)
{
    int lane = (int)threadIdx.x % 32, seqs = index_num_seqs(&p.batch);
    int kv_heads = p.heads_q / p.heads_per_kv;
    i64 warps = (i64)gridDim.x * (FA3_WIDEN_THREADS / 32), first, end;
    i64 warp = (i64)blockIdx.x * (FA3_WIDEN_THREADS / 32) + threadIdx.x / 32;
    widen_find_rows(&p, p.batch.q_indptr, &first, &end);
    for (i64 i = warp; i < (end - first) * p.heads_q; i += warps) {
        i64 row = first + i / p.heads_q;
        int s = p.q_input.sequence ? work_find_row(p.batch.q_indptr, seqs, (int)row) : 0;
        for (int d = lane; d < p.dim; d += 32)
            widen_query(&p, s, row, (int)(i % p.heads_q), d);
    }
    if (!p.k)
        return;
    widen_find_rows(&p, widen_new_rows(&p), &first, &end);
    for (i64 i = warp; i < (end - first) * kv_heads; i += warps) {
        i64 row = first + i / kv_heads;
        int s = p.k_input.sequence ? work_find_row(widen_new_rows(&p), seqs, (int)row) : 0;
        for (int d = lane; d < p.dim; d += 32)
            widen_key(&p, s, row, (int)(i % kv_heads), d);
        for (int d = lane; d < p.dim_v; d += 32)
            widen_value(&p, s, row, (int)(i % kv_heads), d);
    }
}
