/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.cuh: the parts of divided units into one. A piece of work is 8 rows of a unit and some of
 * its dimensions: MLA_MERGE_DIMS for each warp of a block, which goes over all parts; where there
 * are few pieces, all warps have the same dimensions and share out the parts.
 */
#ifndef FLASHMLA_LIKE_MERGE_CUH
#define FLASHMLA_LIKE_MERGE_CUH

#include "plugins/flashmla_like/kernels/plan.cuh"

#include "plugins/common/cuda/merge_states.cuh"
#include "plugins/common/cuda/ptx.cuh"

#define MLA_MERGE_THREADS (MLA_MERGE_WARPS * 32)
#define MERGE_EARLY       4 /* parts of a warp that are fetched at once */

struct mla_piece {
    mla_divided unit;
    int half, n0, d0; /* rows and dimensions */
    int sharing;      /* warps that share out the parts */
};

/* Shared memory of a block. */
struct mla_merging {
    float weights[MLA_MOST_RANGES * 8]; /* [parts][8] */
    float most[MLA_MERGE_WARPS * 8], total[MLA_MERGE_WARPS * 8];
    float4 sums[MLA_MERGE_WARPS * 32]; /* [warp][MLA_MERGE_DIMS][8] */
};

/* Pieces of each 8 rows by dimensions: as many as there are blocks for. */
static __device__ int merge_chunks(const mla_call &c, int groups)
{
    const int all = MLA_LORA / MLA_MERGE_DIMS;
    int chunks = all / MLA_MERGE_WARPS;
    while (chunks < all && groups * chunks * 2 <= (int)gridDim.x)
        chunks *= 2;
    return chunks;
}

static __device__ mla_piece merge_piece(const mla_call &c, int chunks, int i)
{
    mla_piece p;
    const int dims = MLA_LORA / chunks;
    p.d0 = i % chunks * dims;
    i /= chunks;
    p.n0 = i % (c.rows / 8) * 8;
    i /= c.rows / 8;
    p.half = i % c.pair;
    p.sharing = MLA_MERGE_WARPS * MLA_MERGE_DIMS / dims;
    p.unit = c.plan->divided[i / c.pair];
    return p;
}

static __device__ long long part_at(const mla_call &c, const mla_piece &p, int part)
{
    return (2ll * (p.unit.first + part) + (part == 0)) * c.pair + p.half;
}

/* Row n of the piece in its sequence; below 0: there is none. */
static __device__ int merge_row(const mla_call &c, const mla_piece &p, int n)
{
    int row = p.unit.first_row + p.half * c.rows + p.n0 + n;
    return row < p.unit.rows ? row : -1;
}

/* Row n's maximum and its sum of weights, of the warps' ones. */
static __device__ float merge_most(const mla_merging &m, int n)
{
    float top = MERGE_EMPTY;
    for (int w = 0; w < MLA_MERGE_WARPS; w++)
        top = merge_top(top, m.most[w * 8 + n]);
    return top;
}

static __device__ float merge_total(const mla_merging &m, int n)
{
    float sum = 0;
    for (int w = 0; w < MLA_MERGE_WARPS; w++)
        sum += m.total[w * 8 + n];
    return sum;
}

/* Weights of the parts; the maxima and sums of each warp's share of them. A sink counts as a part
 * without an output. */
static __device__ void merge_weights(const mla_call &c, const mla_piece &p, mla_merging &m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int n = lane % 8, begin = threadIdx.x / 8, step = MLA_MERGE_THREADS / 8;
    const int row = merge_row(c, p, n);
    float sink =
        c.operands.sinks && row >= 0 && begin == 0 ? c.operands.sinks[row % c.heads] : MERGE_EMPTY;
    float top = sink, total = 0;
    for (int part = begin; part < p.unit.count; part += step) {
        float lse = c.part_lse[part_at(c, p, part) * c.rows + p.n0 + n];
        m.weights[part * 8 + n] = lse;
        top = merge_top(top, lse);
    }
    top = merge_top(top, __shfl_xor_sync(~0u, top, 8));
    top = merge_top(top, __shfl_xor_sync(~0u, top, 16));
    if (lane < 8)
        m.most[warp * 8 + n] = top;
    __syncthreads();
    top = merge_most(m, n);
    if (begin == 0)
        total = merge_weight(sink, top);
    for (int part = begin; part < p.unit.count; part += step) {
        float weight = merge_weight(m.weights[part * 8 + n], top);
        m.weights[part * 8 + n] = weight;
        total += weight;
    }
    total += __shfl_xor_sync(~0u, total, 8);
    total += __shfl_xor_sync(~0u, total, 16);
    if (lane < 8)
        m.total[warp * 8 + n] = total;
}

static __device__ void merge_take(float4 &sum, float4 x, const float *weight)
{
    sum.x += weight[0] * x.x;
    sum.y += weight[1] * x.y;
    sum.z += weight[2] * x.z;
    sum.w += weight[3] * x.w;
}

/* A warp's weighted sums: two lanes for the 8 rows of each dimension. The first parts are fetched
 * before their weights are known. */
static __device__ void merge_sums(const mla_call &c, const mla_piece &p, mla_merging &m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int d = p.d0 + warp / p.sharing * MLA_MERGE_DIMS + lane / 2;
    const float *from = c.parts + d * c.rows + p.n0 + lane % 2 * 4;
    const int begin = warp % p.sharing;
    float4 early[MERGE_EARLY], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < MERGE_EARLY; i++) {
        const int part = begin + i * p.sharing;
        if (part < p.unit.count)
            early[i] = *(const float4 *)(from + part_at(c, p, part) * (MLA_LORA * c.rows));
    }
    merge_weights(c, p, m);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MERGE_EARLY; i++) {
        const int part = begin + i * p.sharing;
        if (part < p.unit.count)
            merge_take(sum, early[i], m.weights + part * 8 + lane % 2 * 4);
    }
#pragma unroll 4
    for (int part = begin + MERGE_EARLY * p.sharing; part < p.unit.count; part += p.sharing)
        merge_take(sum, *(const float4 *)(from + part_at(c, p, part) * (MLA_LORA * c.rows)),
                   m.weights + part * 8 + lane % 2 * 4);
    m.sums[warp * 32 + lane] = sum;
}

/* Eight rows of as many dimensions as the piece has. */
static __device__ void merge_out(const mla_call &c, const mla_piece &p, const mla_merging &m)
{
    const int dims = MLA_MERGE_WARPS * MLA_MERGE_DIMS / p.sharing;
    const float *sums = (const float *)m.sums;
    for (int i = threadIdx.x; i < 8 * dims; i += MLA_MERGE_THREADS) {
        int n = i / dims, d = i % dims, row = merge_row(c, p, n);
        if (row < 0 || p.d0 + d >= c.lora)
            continue;
        float sum = 0;
        for (int w = 0; w < p.sharing; w++)
            sum +=
                sums[((d / MLA_MERGE_DIMS * p.sharing + w) * MLA_MERGE_DIMS + d % MLA_MERGE_DIMS) *
                         8 +
                     n];
        i64 token = p.unit.first_token + row / c.heads;
        int head = row % c.heads;
        char *out =
            (char *)c.operands.out + token * c.operands.out_row + head * c.operands.out_head;
        element_store(c.out_f32 ? ELEMENT_F32 : ELEMENT_BF16, out, p.d0 + d,
                      merge_element(sum, merge_most(m, n), merge_total(m, n)));
        if (p.d0 + d == 0 && c.operands.lse)
            *(float *)((char *)c.operands.lse + token * c.operands.lse_row +
                       head * c.operands.lse_head) = merge_lse(merge_most(m, n), merge_total(m, n));
    }
}

extern "C" __global__ void __launch_bounds__(MLA_MERGE_THREADS)
    mla_merge(const __grid_constant__ mla_call c)
{
    __shared__ mla_merging m;
    grid_launch_dependents();
    grid_wait();
    const int groups = c.plan->num_divided * c.pair * (c.rows / 8);
    const int chunks = merge_chunks(c, groups);
    for (int i = blockIdx.x; i < groups * chunks; i += gridDim.x) {
        mla_piece p = merge_piece(c, chunks, i);
        if (merge_row(c, p, 0) < 0) /* of all threads: no row of the piece is there */
            continue;
        merge_sums(c, p, m);
        __syncthreads();
        merge_out(c, p, m);
        __syncthreads();
    }
}

#endif /* FLASHMLA_LIKE_MERGE_CUH */
