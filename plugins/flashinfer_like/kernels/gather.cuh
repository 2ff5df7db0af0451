/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.cuh: a row of the parts that blocks left of an item, read by a warp for both kernels'
 * merges: a lane has every 32nd piece of four columns. Numbers and sums of several parts are on
 * their way together, as each wait costs as much as a unit of keys.
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

/* Of a row of v_dim sums, in parts of `rows` rows: `batch` of them at a time, cut short in fours
 * where `few`. */
template <int v_dim, int rows, int batch, bool few> struct gathered {
    static constexpr int pieces = (v_dim + 127) / 128; /* of a lane, at most */
    static constexpr int group = few ? 4 : batch;

    float top, total; /* the same in all lanes */
    float4 x[pieces];

    /* Row r of parts first, first + step ..., in this order. */
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

    /* The sums to shared memory. */
    __device__ __forceinline__ void leave(float *to) const
    {
        int lane = thread_here() & 31;
#pragma unroll
        for (int n = 0; n < pieces; n++)
            if (n * 32 + lane < v_dim / 4)
                *(float4 *)(to + (n * 32 + lane) * 4) = x[n];
    }
};

#endif /* FI_GATHER_CUH */
