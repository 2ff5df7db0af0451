/* SPDX-License-Identifier: Apache-2.0
 *
 * warpgroup_softmax.cuh: turns a warpgroup's scores into probabilities, tile by tile.
 *
 * A thread has two rows, r and r + 8, and in each of them two columns of every eight:
 *
 *   values[4 k + 0], [4 k + 1]   row r,     columns 8 k + 2 (lane % 4) + {0, 1}
 *   values[4 k + 2], [4 k + 3]   row r + 8, the same columns
 *
 * Four adjacent lanes share a row. A row's probabilities are 2^(score * score_log2 - reference).
 * The reference must be near the row's maximum to prevent overflow; its exact value cancels in the
 * last division. So it is the maximum of the first tile, and later tiles compute no maximum: the
 * sum of a tile's probabilities shows whether one of them was large. If so (rarely), the tile is
 * computed again with a new reference, and earlier results are rescaled to it. Numbers up to 2^13
 * lose no precision as 16-bit floats or in fp32 sums.
 */
#ifndef PLUGINS_CUDA_WARPGROUP_SOFTMAX_CUH
#define PLUGINS_CUDA_WARPGROUP_SOFTMAX_CUH

#include "plugins/common/cuda/warpgroup.cuh"

#define NEGATIVE_INFINITY __int_as_float((int)0xff800000)
#define POSITIVE_INFINITY __int_as_float(0x7f800000)
#define SUM_LIMIT         8192.0f

struct softmax {
    float shift[2]; /* minus the reference; +inf: no key so far */
    float sum[2];   /* over this thread's columns */
};

DEVICE void softmax_begin(struct softmax *x)
{
    x->shift[0] = x->shift[1] = POSITIVE_INFINITY;
    x->sum[0] = x->sum[1] = 0.0f;
}

DEVICE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

DEVICE float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* Scores under a cap: tanh(score * scale / cap); the factor cap is in score_log2. */
template <int count> DEVICE void scores_cap(float (&s)[count], float factor)
{
#pragma unroll
    for (int i = 0; i < count; i++)
        s[i] = tanh_fast(s[i] * factor);
}

/* Hide keys of a border tile: those outside of [low, high), positions in the tile, for rows r and r
 * + 8. */
template <int count>
DEVICE void scores_mask(float (&s)[count], int low0, int high0, int low1, int high1)
{
    const int lane = 2 * (thread_here() % 4);
    low0 -= lane, high0 -= lane, low1 -= lane, high1 -= lane;
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int column = i / 4 * 8 + i % 2;
        const bool second = i / 2 % 2;
        if (column >= (second ? high1 : high0) || column < (second ? low1 : low0))
            s[i] = NEGATIVE_INFINITY;
    }
}

/* Exponentials of scores [from, from + count). */
template <int from, int all, int count>
DEVICE void softmax_exp(const struct softmax &x, const float (&s)[all], float scale,
                        float (&e)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        e[i] = exp2_fast(fmaf(s[from + i], scale, x.shift[i / 2 % 2]));
    wgmma_arrived(e);
}

/* Add exponentials to the sums, and round them, once, in the order in which the second product
 * reads them: both share the layout. */
template <bool is_f16, int from, int all, int count>
DEVICE void softmax_join(const float (&e)[count], float (&sum)[2], unsigned (&p)[all])
{
    float part[2][2] = {{sum[0], e[1]}, {sum[1], e[3]}};
#pragma unroll
    for (int i = 0; i < count; i++)
        if (i != 1 && i != 3)
            part[i / 2 % 2][i % 2] += e[i];
#pragma unroll
    for (int i = 0; i < count / 2; i++)
        p[from / 2 + i] = pack_pair<is_f16>(e[2 * i], e[2 * i + 1]);
    sum[0] = part[0][0] + part[0][1];
    sum[1] = part[1][0] + part[1][1];
}

/* Compute a tile's probabilities and add their sums to `sum`, a few scores at a time, so that few
 * registers are live. */
template <bool is_f16, int from = 0, int all, int count>
DEVICE void softmax_tile(const struct softmax &x, const float (&s)[count], float scale,
                         float (&sum)[2], unsigned (&p)[all])
{
    float e[8];
    softmax_exp<from>(x, s, scale, e);
    softmax_join<is_f16, from>(e, sum, p);
    if constexpr (from + 8 < count)
        softmax_tile<is_f16, from + 8>(x, s, scale, sum, p);
}

/* Clear the sums of values of rows without weights: their factor is 0, but the sums may be NaN
 * (MEAN-14). */
template <int count> DEVICE void clear_lost(float (&o)[count], const bool (&is_lost)[2])
{
    if (__builtin_expect(!is_lost[0] && !is_lost[1], 1))
        return;
#pragma unroll
    for (int i = 0; i < count; i++)
        o[i] = is_lost[i / 2 % 2] ? 0.0f : o[i];
}

/* Did some row of the warp have a large probability, or no reference (its sum is inf or NaN)? */
DEVICE bool softmax_grown(const float (&sum)[2])
{
    return __any_sync(0xffffffff,
                      !(fmaxf(sum[0], sum[1]) <= SUM_LIMIT) || sum[0] + sum[1] != sum[0] + sum[1]);
}

/* Compute a tile again with a new reference. `factor` rescales what was computed before: here the
 * sums, in the caller the output. */
template <bool is_f16, int all, int count>
DEVICE void softmax_again(struct softmax *x, const float (&s)[count], float scale, float (&sum)[2],
                          float (&factor)[2], unsigned (&p)[all])
{
    float tops[8];
#pragma unroll
    for (int i = 0; i < count; i++)
        tops[i % 8] = i < 8 ? s[i] : fmaxf(tops[i % 8], s[i]);
    const float top[2] = {fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[4], tops[5])),
                          fmaxf(fmaxf(tops[2], tops[3]), fmaxf(tops[6], tops[7]))};
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float next = fminf(x->shift[r], -quad_max(top[r]) * scale);
        const bool none = next == POSITIVE_INFINITY; /* inf - inf would be NaN */
        factor[r] = none ? 1.0f : exp2_fast(next - x->shift[r]);
        shift[r] = none ? 0.0f : next;
        x->shift[r] = next;
        x->sum[r] *= factor[r];
    }
    float sums[8];
#pragma unroll
    for (int i = 0; i < count; i += 2) {
        const int r = i / 2 % 2;
        const float first = exp2_fast(fmaf(s[i], scale, shift[r]));
        const float second = exp2_fast(fmaf(s[i + 1], scale, shift[r]));
        sums[i % 8] = i < 8 ? first : sums[i % 8] + first;
        sums[i % 8 + 1] = i < 8 ? second : sums[i % 8 + 1] + second;
        p[i / 2] = pack_pair<is_f16>(first, second);
    }
    sum[0] = (sums[0] + sums[1]) + (sums[4] + sums[5]);
    sum[1] = (sums[2] + sums[3]) + (sums[6] + sums[7]);
}

#endif
