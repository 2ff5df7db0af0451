/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.cuh: reads and adds rows of the parts of an item, for the merges of both kernels. Either a
 * warp adds a row, and a lane has every 32nd piece of four columns; or threads add pieces. The
 * loads of several parts are in flight together, as each wait costs as much as a unit of keys.
 */
#ifndef FI_GATHER_CUH
#define FI_GATHER_CUH

#include "plugins/flashinfer_like/kernels/arrivals.cuh"
#include "plugins/flashinfer_like/kernels/item.cuh"

/* x += weight * y. */
static __device__ __forceinline__ void add_weighted(float4 &x, float weight, const float4 &y)
{
    x.x += weight * y.x;
    x.y += weight * y.y;
    x.z += weight * y.z;
    x.w += weight * y.w;
}

/* A warp's row of v_dim sums, from parts of `rows` rows. It loads `batch` parts at a time; with
 * `few`, the last batch stops at a multiple of four. */
template <int v_dim, int rows, int batch, bool few> struct gathered {
    static constexpr int pieces = (v_dim + 127) / 128; /* of a lane, at most */
    static constexpr int group = few ? 4 : batch;

    float top, total; /* the same in all lanes */
    float4 x[pieces];

    /* Adds row r of parts first, first + step ..., in this order. */
    __device__ __forceinline__ void take(const fi_call &c, const parts &p, int r, int first,
                                         int step)
    {
        int lane = thread_here() & 31;
        top = SOFTMAX_EMPTY, total = 0.0f;
#pragma unroll
        for (int n = 0; n < pieces; n++)
            x[n] = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int begin = first; begin < p.count; begin += step * batch)
            take_batch(c, p, r, begin, step, lane);
        total = softmax_warp_sum(total);
    }

    __device__ __forceinline__ void take_batch(const fi_call &c, const parts &p, int r, int begin,
                                               int step, int lane)
    {
        float4 y[batch][pieces];
        float2 numbers = {SOFTMAX_EMPTY, 0.0f};
        int mine = begin + lane * step;
        if (lane < batch && mine < p.count)
            numbers = __ldcg((const float2 *)c.partial_row + part_slot(p, mine) * rows + r);
#pragma unroll
        for (int i = 0; i < batch; i += group)
            if (begin + i * step < p.count)
                fetch(c, p, r, begin + i * step, step, lane, y + i);
        float higher = fmaxf(top, softmax_warp_max(numbers.x)), base = softmax_base(higher);
        float shrink = softmax_exp2(top - base), share = softmax_exp2(numbers.x - base);
        top = higher;
        total = total * shrink + share * numbers.y;
#pragma unroll
        for (int n = 0; n < pieces; n++)
            x[n] = make_float4(x[n].x * shrink, x[n].y * shrink, x[n].z * shrink, x[n].w * shrink);
#pragma unroll
        for (int i = 0; i < batch; i += group)
            if (begin + i * step < p.count)
                add(share, i, y + i);
    }

    __device__ __forceinline__ void fetch(const fi_call &c, const parts &p, int r, int first,
                                          int step, int lane, float4 (*y)[pieces])
    {
#pragma unroll
        for (int i = 0; i < group; i++) {
            int part = first + i * step;
            const float4 *from =
                (const float4 *)(c.partial + (part_slot(p, part) * rows + r) * v_dim);
#pragma unroll
            for (int n = 0; n < pieces; n++)
                y[i][n] = part < p.count ? __ldcg(from + min(n * 32 + lane, v_dim / 4 - 1))
                                         : make_float4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void add(float share, int first, const float4 (*y)[pieces])
    {
#pragma unroll
        for (int i = 0; i < group; i++) {
            float weight = __shfl_sync(~0u, share, first + i);
#pragma unroll
            for (int n = 0; n < pieces; n++)
                add_weighted(x[n], weight, y[i][n]);
        }
    }

    /* Writes the sums to shared memory. */
    __device__ __forceinline__ void leave(float *to) const
    {
        int lane = thread_here() & 31;
#pragma unroll
        for (int n = 0; n < pieces; n++)
            if (n * 32 + lane < v_dim / 4)
                *(float4 *)(to + (n * 32 + lane) * 4) = x[n];
    }
};

/* ---- By pieces ------------------------------------------------------------------------------- */

/* A piece of a row: four columns from d on, and their sums so far. */
struct row_piece {
    int r, d;
    float top, total;
    float4 x;

    __device__ __forceinline__ void begin(int row, int column)
    {
        r = row, d = column;
        top = SOFTMAX_EMPTY, total = 0.0f;
        x = make_float4(0, 0, 0, 0);
    }

    /* Adds a part of the row: its largest logit, denominator and sums. */
    __device__ __forceinline__ void add(float other_top, float other_total, const float4 &y)
    {
        float both = fmaxf(top, other_top), base = softmax_base(both);
        float weight = softmax_exp2(top - base), other = softmax_exp2(other_top - base);
        total = total * weight + other_total * other;
        x = make_float4(x.x * weight, x.y * weight, x.z * weight, x.w * weight);
        add_weighted(x, other, y);
        top = both;
    }

    /* The same for several parts. */
    template <int count>
    __device__ __forceinline__ void add_all(const float2 (&numbers)[count],
                                            const float4 (&y)[count])
    {
        float all = top;
#pragma unroll
        for (int i = 0; i < count; i++)
            all = fmaxf(all, numbers[i].x);
        float base = softmax_base(all), weight = softmax_exp2(top - base);
        total *= weight;
        x = make_float4(x.x * weight, x.y * weight, x.z * weight, x.w * weight);
#pragma unroll
        for (int i = 0; i < count; i++) {
            float other = softmax_exp2(numbers[i].x - base);
            total += other * numbers[i].y;
            add_weighted(x, other, y[i]);
        }
        top = all;
    }

    /* Adds the sums of the upper half of the lanes to the lower half. */
    __device__ __forceinline__ void add_half(void)
    {
        const float other_top = __shfl_down_sync(~0u, top, 16);
        const float other_total = __shfl_down_sync(~0u, total, 16);
        const float4 y =
            make_float4(__shfl_down_sync(~0u, x.x, 16), __shfl_down_sync(~0u, x.y, 16),
                        __shfl_down_sync(~0u, x.z, 16), __shfl_down_sync(~0u, x.w, 16));
        add(other_top, other_total, y);
    }
};

/* Merges rows [first, end) of an item from parts of `rows` rows, by pieces: each of `threads`
 * threads has `mine` pieces at a time, and loads `together` parts of each at once. With short rows
 * half of the lanes suffice, so the other half takes every second batch of parts. */
template <int v_dim, int rows, int threads, int mine, int together, int halves, typename F>
static __device__ __forceinline__ void gather_pieces(const fi_call &c, const parts &p, int thread,
                                                     int first, int end, F finish)
{
    constexpr int of_row = v_dim / 4;
    constexpr int step = threads / halves;
    static_assert(halves == 1 || (mine == 1 && of_row == 16), "a warp has one row");
    const int half = halves == 1 ? 0 : thread / 16 % 2;
    const int begins = halves == 1 ? thread : thread / 32 * 16 + thread % 16;
#pragma unroll 1
    for (int i = begins; i < (end - first) * of_row; i += mine * step) {
        row_piece pieces[mine];
#pragma unroll
        for (int k = 0; k < mine; k++) {
            int here = i + k * step;
            pieces[k].begin(first + here / of_row, here % of_row * 4);
        }
#pragma unroll 1
        for (int begin = half * together; begin < p.count; begin += halves * together) {
            float2 numbers[mine][together];
            float4 y[mine][together];
#pragma unroll
            for (int k = 0; k < mine; k++)
#pragma unroll
                for (int n = 0; n < together; n++) {
                    const bool is_there = pieces[k].r < end && begin + n < p.count;
                    const i64 slot = part_slot(p, begin + n) * rows + pieces[k].r;
                    const float2 *numbers_at = (const float2 *)c.partial_row + slot;
                    const float *sums = c.partial + slot * v_dim + pieces[k].d;
                    numbers[k][n] =
                        is_there ? __ldcg(numbers_at) : make_float2(SOFTMAX_EMPTY, 0.0f);
                    y[k][n] = is_there ? __ldcg((const float4 *)sums) : make_float4(0, 0, 0, 0);
                }
#pragma unroll
            for (int k = 0; k < mine; k++)
                pieces[k].add_all(numbers[k], y[k]);
        }
        if (halves == 2)
            pieces[0].add_half();
#pragma unroll
        for (int k = 0; k < mine; k++)
            if (pieces[k].r < end && half == 0)
                finish(pieces[k]);
    }
}

#endif /* FI_GATHER_CUH */
