/* SPDX-License-Identifier: Apache-2.0
 *
 * codes.cu: the kernels around a forward kernel over fp8 (codes.cuh, turn_values.cuh).
 *
 *   fa3_store_scales  stores the host's scales, which are kernel arguments
 *   fa3_widen         one warp per row and head of q, then of k and v
 *   fa3_turn_values   one block per tile of 128 keys of a KV head
 */
#include "plugins/fa3_like/kernels/codes.cuh"
#include "plugins/fa3_like/kernels/turn_values.cuh"

extern "C" __global__ void __launch_bounds__(FA3_STORED_SCALES)
    fa3_store_scales(const __grid_constant__ fa3_scales_call p)
{
    if ((int)threadIdx.x < p.count)
        p.to[threadIdx.x] = p.values[threadIdx.x];
}

/* A warp's rows and heads of [first, end) x heads, in steps of the number of warps. (One division
 * for all of them: 64-bit divisions are calls, which cause spills.) */
struct share {
    i64 row, end;
    int head, heads, rows_on, heads_on;
};

static __device__ __forceinline__ struct share share_begin(i64 first, i64 end, int heads)
{
    const int warps = (int)gridDim.x * (FA3_WIDEN_THREADS / 32);
    const int warp = (int)(blockIdx.x * (FA3_WIDEN_THREADS / 32) + threadIdx.x / 32);
    return {first + warp / heads, end, warp % heads, heads, warps / heads, warps % heads};
}

static __device__ __forceinline__ void share_next(struct share &s)
{
    s.row += s.rows_on;
    s.head += s.heads_on;
    if (s.head >= s.heads) {
        s.head -= s.heads;
        s.row++;
    }
}

extern "C" __global__ void __launch_bounds__(FA3_WIDEN_THREADS)
    fa3_widen(const __grid_constant__ fa3_widen_call p)
{
    int lane = (int)threadIdx.x % 32, seqs = index_num_seqs(&p.batch);
    i64 first, end;
    widen_find_rows(&p, p.batch.q_indptr, &first, &end);
    for (struct share w = share_begin(first, end, p.heads_q); w.row < w.end; share_next(w)) {
        int s = p.q_input.sequence ? work_find_row(p.batch.q_indptr, seqs, (int)w.row) : 0;
        for (int d = lane; d < p.dim; d += 32)
            widen_query(&p, s, w.row, w.head, d);
    }
    if (!p.k)
        return;
    widen_find_rows(&p, widen_new_rows(&p), &first, &end);
    for (struct share w = share_begin(first, end, p.heads_q / p.heads_per_kv); w.row < w.end;
         share_next(w)) {
        int s = p.k_input.sequence ? work_find_row(widen_new_rows(&p), seqs, (int)w.row) : 0;
        for (int d = lane; d < p.dim; d += 32)
            widen_key(&p, s, w.row, w.head, d);
        for (int d = lane; d < p.dim_v; d += 32)
            widen_value(&p, s, w.row, w.head, d);
    }
}
