/* SPDX-License-Identifier: Apache-2.0
 *
 * join.cu: fa3_join, after tiles whose keys are shared out (join.cuh): a warp has a row and head, a
 * lane four columns of it at a time.
 */
#include "plugins/common/cuda/ptx.cuh"
#include "plugins/fa3_like/kernels/join.cuh"

enum { JOIN_COLUMNS = 4 };

static __device__ __forceinline__ void store_columns(const fa3_join_call &p, char *out, float4 x)
{
    if (p.out_dtype == ELEMENT_F16)
        *(uint2 *)out = make_uint2(pack_pair<true>(x.x, x.y), pack_pair<true>(x.z, x.w));
    else
        *(uint2 *)out = make_uint2(pack_pair<false>(x.x, x.y), pack_pair<false>(x.z, x.w));
}

static __device__ __forceinline__ float4 join_columns(const fa3_join_call &p, const join_row &r,
                                                      int d)
{
    const i64 all = (i64)p.rows * p.heads_q * p.dim_v;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int n = 0; n < JOIN_MOST; n++) {
        if (n >= p.splits)
            continue;
        const float4 x = *(const float4 *)(p.values + n * all + r.part * p.dim_v + d);
        sum.x += x.x * r.share[n];
        sum.y += x.y * r.share[n];
        sum.z += x.z * r.share[n];
        sum.w += x.w * r.share[n];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(FA3_JOIN_THREADS)
    fa3_join(const __grid_constant__ fa3_join_call p)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)gridDim.x * (FA3_JOIN_THREADS / 32);
    int index = (int)(blockIdx.x * FA3_JOIN_THREADS + threadIdx.x) / 32;
    pdl_wait();
    pdl_launch_dependents();
    for (; index < p.rows * p.heads_q; index += warps) {
        const join_row r = join_find(&p, index);
        if (r.row < 0)
            continue;
        char *out =
            (char *)p.operands.out + r.row * p.operands.out_row + r.head * p.operands.out_head;
        for (int d = lane * JOIN_COLUMNS; d < p.dim_v; d += 32 * JOIN_COLUMNS)
            store_columns(p, out + d * 2, join_columns(p, r, d));
        if (lane == 0 && p.operands.lse)
            *(float *)((char *)p.operands.lse + r.row * p.operands.lse_row +
                       r.head * p.operands.lse_head) = r.lse;
    }
}
