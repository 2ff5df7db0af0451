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

struct mla_piece {
    int first, count; /* parts: of ranges first on */
    int half, n0, d0; /* rows and dimensions */
    int sharing;      /* warps that share out the parts */
    mla_unit unit;
    index_sequence q;
};

/* Shared memory of a block. */
struct mla_merging {
    float weights[MLA_MOST_RANGES * 8]; /* [parts][8] */
    float most[MLA_MERGE_THREADS];
    float total[8], top[8];
    float4 sums[MLA_MERGE_WARPS * 32]; /* [warp][MLA_MERGE_DIMS][8] */
};

/* Pieces of each divided unit by dimensions. */
static __device__ int merge_chunks(const mla_call &c)
{
    const int all = MLA_LORA / MLA_MERGE_DIMS, few = all / MLA_MERGE_WARPS;
    return c.plan->num_divided * c.pair * (c.rows / 8) * few >= (int)gridDim.x ? few : all;
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
    p.unit = c.units[c.first[c.plan->divided[i / c.pair]]];
    p.first = plan_first_range(&p.unit, c.plan->range);
    p.count = plan_last_range(&p.unit, c.plan->range) - p.first + 1;
    index_find_sequence(&c.batch, 0, p.unit.seq, &p.q);
    return p;
}

static __device__ long long part_at(const mla_call &c, const mla_piece &p, int part)
{
    return (2ll * (p.first + part) + (part == 0)) * c.pair + p.half;
}

/* Row n of the piece in its sequence; below 0: there is none. */
static __device__ int merge_row(const mla_call &c, const mla_piece &p, int n)
{
    int row = p.unit.first_row + p.half * c.rows + p.n0 + n;
    return row < p.q.q_len * c.heads ? row : -1;
}

/* Weights of the parts, and what sums are to be divided by. */
static __device__ void merge_weights(const mla_call &c, const mla_piece &p, mla_merging &m)
{
    const int n = threadIdx.x % 8, begin = threadIdx.x / 8, step = MLA_MERGE_THREADS / 8;
    float top = MERGE_EMPTY, sink = MERGE_EMPTY;
    __syncthreads();
    for (int part = begin; part < p.count; part += step) {
        float lse = c.part_lse[part_at(c, p, part) * c.rows + p.n0 + n];
        m.weights[part * 8 + n] = lse;
        top = merge_top(top, lse);
    }
    m.most[threadIdx.x] = top;
    __syncthreads();
    int row = merge_row(c, p, n);
    if (c.operands.sinks && row >= 0)
        sink = c.operands.sinks[row % c.heads];
    top = sink;
    for (int i = 0; i < step && i < p.count; i++)
        top = merge_top(top, m.most[i * 8 + n]);
    for (int part = begin; part < p.count; part += step)
        m.weights[part * 8 + n] = merge_weight(m.weights[part * 8 + n], top);
    __syncthreads();
    if (threadIdx.x < 8) {
        float sum = merge_weight(sink, top);
        for (int part = 0; part < p.count; part++)
            sum += m.weights[part * 8 + n];
        m.total[n] = sum;
        m.top[n] = top;
    }
}

static __device__ void merge_sums(const mla_call &c, const mla_piece &p, mla_merging &m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int d = p.d0 + warp / p.sharing * MLA_MERGE_DIMS + lane / 2;
    const float *from = c.parts + d * c.rows + p.n0 + lane % 2 * 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int part = warp % p.sharing; part < p.count; part += p.sharing) {
        float4 x = *(const float4 *)(from + part_at(c, p, part) * (MLA_LORA * c.rows));
        const float *weight = m.weights + part * 8 + lane % 2 * 4;
        sum.x += weight[0] * x.x;
        sum.y += weight[1] * x.y;
        sum.z += weight[2] * x.z;
        sum.w += weight[3] * x.w;
    }
    m.sums[warp * 32 + lane] = sum;
}

/* Eight rows of as many dimensions as the piece has. */
static __device__ void merge_out(const mla_call &c, const mla_piece &p, const mla_merging &m)
{
    const int dims = MLA_MERGE_WARPS * MLA_MERGE_DIMS / p.sharing;
    const float *sums = (const float *)m.sums;
    for (int i = threadIdx.x; i < 8 * dims; i += MLA_MERGE_THREADS) {
        int n = i / dims, d = i % dims, row = merge_row(c, p, n);
        if (row < 0)
            continue;
        float sum = 0;
        for (int w = 0; w < p.sharing; w++)
            sum +=
                sums[((d / MLA_MERGE_DIMS * p.sharing + w) * MLA_MERGE_DIMS + d % MLA_MERGE_DIMS) *
                         8 +
                     n];
        i64 token = p.q.first_row + row / c.heads;
        int head = row % c.heads;
        char *out =
            (char *)c.operands.out + token * c.operands.out_row + head * c.operands.out_head;
        element_store(c.out_f32 ? ELEMENT_F32 : ELEMENT_BF16, out, p.d0 + d,
                      merge_element(sum, m.top[n], m.total[n]));
        if (p.d0 + d == 0 && c.operands.lse)
            *(float *)((char *)c.operands.lse + token * c.operands.lse_row +
                       head * c.operands.lse_head) = merge_lse(m.top[n], m.total[n]);
    }
}

extern "C" __global__ void __launch_bounds__(MLA_MERGE_THREADS)
    mla_merge(const __grid_constant__ mla_call c)
{
    __shared__ mla_merging m;
    grid_launch_dependents();
    grid_wait();
    const int chunks = merge_chunks(c);
    const int pieces = c.plan->num_divided * c.pair * (c.rows / 8) * chunks;
    for (int i = blockIdx.x; i < pieces; i += gridDim.x) {
        mla_piece p = merge_piece(c, chunks, i);
        merge_weights(c, p, m);
        __syncthreads();
        merge_sums(c, p, m);
        __syncthreads();
        merge_out(c, p, m);
    }
}

#endif /* FLASHMLA_LIKE_MERGE_CUH */
