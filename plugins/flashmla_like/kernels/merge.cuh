/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.cuh: adds the parts of divided units. A piece of work is 8 rows of a unit and some of its
 * dimensions. Each warp of a block has MLA_MERGE_DIMS dimensions and adds all parts; with few
 * pieces, warps share dimensions and each adds some of the parts.
 */
#ifndef FLASHMLA_LIKE_MERGE_CUH
#define FLASHMLA_LIKE_MERGE_CUH

#include "plugins/flashmla_like/kernels/block.cuh"

#include "plugins/common/cuda/merge_states.cuh"
#include "plugins/common/cuda/ptx.cuh"

#define MLA_MERGE_THREADS (MLA_MERGE_WARPS * 32)
#define MERGE_BLOCKS      4 /* per multiprocessor */
#define MERGE_FETCHED     8 /* parts that a warp loads at once */

/* Logarithms of the latent's dimensions, of a warp's dimensions, and of the fewest pieces per eight
 * rows, with one warp for each MLA_MERGE_DIMS. All divisions here are by powers of two, as an
 * integer division takes a quarter of the latency of a part. */
#define MERGE_LORA   9
#define MERGE_DIMS   4
#define MERGE_CHUNKS 2
static_assert(1 << MERGE_LORA == MLA_LORA && 1 << MERGE_DIMS == MLA_MERGE_DIMS &&
                  MLA_MERGE_WARPS * MLA_MERGE_DIMS << MERGE_CHUNKS == MLA_LORA,
              "logarithms of mla.h's numbers");

struct mla_piece {
    mla_divided unit;
    int number;       /* of the unit */
    int half, n0, d0; /* rows and dimensions */
    int dims_log;     /* of its number of dimensions */
    int sharing_log;  /* of the number of warps that share the parts */
};

/* A warp's parts in flight. */
struct merge_fetched {
    float4 x[MERGE_FETCHED];
};

/* Shared memory of a block. */
struct mla_merging {
    float weights[MLA_MOST_RANGES * 8]; /* [parts][8] */
    float most[MLA_MERGE_WARPS * 8], total[MLA_MERGE_WARPS * 8];
    float4 sums[MLA_MERGE_WARPS * 32]; /* [warp][MLA_MERGE_DIMS][8] */
};

/* The logarithm of the pieces per 8 rows: as many as there are blocks for. */
static __device__ int merge_chunks_log(int groups)
{
    int log = MERGE_CHUNKS;
    while (log < MERGE_LORA - MERGE_DIMS && groups << (log + 1) <= (int)gridDim.x)
        log++;
    return log;
}

/* The same with `fixed`: the order of a sum must not depend on how many units are divided. If
 * sequences may be few, it is the order for one. */
static __device__ int merge_fixed_log(const mla_call &c)
{
    return c.part == MLA_FIXED_SHORT ? MERGE_LORA - MERGE_DIMS : MERGE_CHUNKS;
}

/* Finds piece i; keeps the previous piece's unit if it is the same. */
static __device__ void merge_find(const mla_call &c, int chunks_log, int i, mla_piece &p)
{
    const int pair_log = c.pair - 1, eights_log = 31 - __clz(c.rows / 8);
    const int number = i >> (chunks_log + eights_log + pair_log), group = i >> chunks_log;
    p.dims_log = MERGE_LORA - chunks_log;
    p.sharing_log = chunks_log - MERGE_CHUNKS;
    p.d0 = (i & ((1 << chunks_log) - 1)) << p.dims_log;
    p.n0 = (group & ((1 << eights_log) - 1)) * 8;
    p.half = group >> eights_log & pair_log;
    if (number != p.number)
        p.unit = c.plan->divided[number];
    p.number = number;
}

static __device__ int part_at(const mla_call &c, const mla_piece &p, int part)
{
    return plan_part_place(&c, p.unit.first + part, part == 0) * c.pair + p.half;
}

/* Row n of the piece in its sequence; negative if it does not exist. */
static __device__ int merge_row(const mla_call &c, const mla_piece &p, int n)
{
    int row = p.unit.first_row + p.half * c.rows + p.n0 + n;
    return row < p.unit.rows ? row : -1;
}

/* Row n's maximum and sum of weights, over all warps. */
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

/* Computes the parts' weights, and the maxima and sums of each warp's parts. A sink counts as a
 * part without an output. */
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

/* Loads a warp's parts from `begin` on. Part i is at from + i * stride; part 0 is `ahead`
 * further. */
static __device__ void merge_fetch(merge_fetched &parts, const mla_piece &p, const float *from,
                                   int stride, int ahead, int begin)
{
#pragma unroll
    for (int i = 0; i < MERGE_FETCHED; i++) {
        const int part = begin + (i << p.sharing_log);
        if (part < p.unit.count)
            parts.x[i] = *(const float4 *)(from + part * stride + (part == 0 ? ahead : 0));
    }
}

static __device__ void merge_add(float4 &sum, const merge_fetched &parts, const mla_piece &p,
                                 const float *weights, int begin)
{
#pragma unroll
    for (int i = 0; i < MERGE_FETCHED; i++) {
        const int part = begin + (i << p.sharing_log);
        if (part < p.unit.count)
            merge_take(sum, parts.x[i], weights + part * 8);
    }
}

/* Computes a warp's weighted sums: two lanes have the 8 rows of each dimension. The first parts are
 * loaded before their weights are known. */
static __device__ void merge_sums(const mla_call &c, const mla_piece &p, mla_merging &m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = lane % 2 * 4;
    const int d = p.d0 + (warp >> p.sharing_log) * MLA_MERGE_DIMS + lane / 2;
    const int state = MLA_LORA * c.rows, one = c.pair * state, first = p.unit.first;
    const int ahead = first < c.ranges ? one : 0, stride = one + ahead;
    const float *from = c.parts + (i64)plan_part_place(&c, first, 0) * one + p.half * state +
                        p.n0 / 8 * PART_EIGHT + d * 8 + rows;
    int begin = warp & ((1 << p.sharing_log) - 1);
    merge_fetched parts;
    float4 sum = make_float4(0, 0, 0, 0);
    merge_fetch(parts, p, from, stride, ahead, begin);
    merge_weights(c, p, m);
    __syncthreads();
    merge_add(sum, parts, p, m.weights + rows, begin);
#pragma unroll 1
    while ((begin += MERGE_FETCHED << p.sharing_log) < p.unit.count) {
        merge_fetch(parts, p, from, stride, ahead, begin);
        merge_add(sum, parts, p, m.weights + rows, begin);
    }
    m.sums[warp * 32 + lane] = sum;
}

/* Stores the piece's eight rows and dimensions. */
static __device__ void merge_out(const mla_call &c, const mla_piece &p, const mla_merging &m)
{
    const int dims = 1 << p.dims_log;
    const float *sums = (const float *)m.sums;
    for (int i = threadIdx.x; i < 8 * dims; i += MLA_MERGE_THREADS) {
        const int n = i >> p.dims_log, d = i & (dims - 1), row = merge_row(c, p, n);
        if (row < 0 || p.d0 + d >= c.lora)
            continue;
        float sum = 0;
        for (int w = 0; w < 1 << p.sharing_log; w++) {
            const int warp = (d / MLA_MERGE_DIMS << p.sharing_log) + w;
            sum += sums[(warp * MLA_MERGE_DIMS + d % MLA_MERGE_DIMS) * 8 + n];
        }
        i64 token = p.unit.first_token + row / c.heads;
        int head = row % c.heads;
        char *out =
            (char *)c.operands.out + token * c.operands.out_row + head * c.operands.out_head;
        const float x = merge_element(sum, merge_most(m, n), merge_total(m, n));
        if (c.out_f32)
            element_store(ELEMENT_F32, out, p.d0 + d, x);
        else
            element_store(ELEMENT_BF16, out, p.d0 + d, x);
        if (p.d0 + d == 0 && c.operands.lse)
            *(float *)((char *)c.operands.lse + token * c.operands.lse_row +
                       head * c.operands.lse_head) = merge_lse(merge_most(m, n), merge_total(m, n));
    }
}

extern "C" __global__ void __launch_bounds__(MLA_MERGE_THREADS, MERGE_BLOCKS)
    mla_merge(const __grid_constant__ mla_call c)
{
    __shared__ mla_merging m;
    fetch_arguments(c);
    pdl_launch_dependents();
    pdl_wait();
    mla_piece p;
    p.unit = c.plan->divided[0]; /* loaded together with num_divided */
    p.number = 0;
    const int groups = c.plan->num_divided * c.pair * (c.rows / 8);
    const int chunks_log = c.fixed ? merge_fixed_log(c) : merge_chunks_log(groups);
    for (int i = blockIdx.x; i < groups << chunks_log; i += gridDim.x) {
        merge_find(c, chunks_log, i, p);
        if (merge_row(c, p, 0) < 0) /* the same for all threads: the piece has no row */
            continue;
        merge_sums(c, p, m);
        __syncthreads();
        merge_out(c, p, m);
        __syncthreads();
    }
}

#endif /* FLASHMLA_LIKE_MERGE_CUH */
