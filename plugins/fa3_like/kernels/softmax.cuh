/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.cuh: scores into probabilities, a tile of keys after the other.
 *
 * A thread has two rows, r and r + 8, and in each of them two columns of every eight:
 *
 *   values[4 k + 0], [4 k + 1]   row r,     columns 8 k + 2 (lane % 4) + {0, 1}
 *   values[4 k + 2], [4 k + 3]   row r + 8, the same columns
 *
 * Four neighbouring lanes share a row. A row's probabilities are 2^(score * score_log2 - reference):
 * the reference is a maximum of the row, so nothing overflows; it need not be the latest one. It is
 * kept while the maximum has grown by less than 2^8 over it, since numbers up to 256 lose nothing in
 * 16-bit floats or in sums of fp32, and the last division cancels the reference whatever it was. So
 * on most tiles the output is not scaled at all.
 */
#ifndef FA3_LIKE_SOFTMAX_CUH
#define FA3_LIKE_SOFTMAX_CUH

#include "plugins/fa3_like/kernels/pipeline.cuh"

#define NEGATIVE_INFINITY __int_as_float((int)0xff800000)
#define GROWTH_LOG2       8.0f

struct softmax {
    float reference[2]; /* score units; -inf: no key so far */
    float sum[2];       /* of this thread's columns */
};

DEVICE void softmax_begin(struct softmax *x)
{
    x->reference[0] = x->reference[1] = NEGATIVE_INFINITY;
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

/* Hides the keys of a border tile that a row does not see: those outside of [low, high), places in
 * the tile, for row r; for row r + 8 both bounds are 8 further on, high at most `end`. */
template <int count> DEVICE void scores_mask(float (&s)[count], int low, int high, int end)
{
    const int lane = 2 * (threadIdx.x % 4);
    const int high0 = min(high, end) - lane, high1 = min(high + 8, end) - lane;
    const int low0 = low - lane, low1 = low + 8 - lane;
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int column = i / 4 * 8 + i % 2;
        const bool second = i / 2 % 2;
        if (column >= (second ? high1 : high0) || column < (second ? low1 : low0))
            s[i] = NEGATIVE_INFINITY;
    }
}

/* Brings the references up to date with a tile's scores. True where some row of the warp has a new
 * one; the sums so far and, by the caller, the output are then to be multiplied by `factor`. */
template <int count>
DEVICE bool softmax_reference(struct softmax *x, const float (&s)[count], float scale,
                              float (&factor)[2])
{
    float top[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < count; i += 4) {
        top[0] = fmaxf(top[0], fmaxf(s[i], s[i + 1]));
        top[1] = fmaxf(top[1], fmaxf(s[i + 2], s[i + 3]));
    }
    bool grown = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        /* -inf - -inf is NaN and compares false: a row still without keys stays as it is. */
        grown |= (top[r] - x->reference[r]) * scale > GROWTH_LOG2;
    }
    if (!__any_sync(0xffffffff, grown))
        return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float next = fmaxf(x->reference[r], top[r]);
        factor[r] = next == NEGATIVE_INFINITY ? 1.0f
                                              : exp2_fast((x->reference[r] - next) * scale);
        x->reference[r] = next;
        x->sum[r] *= factor[r];
    }
    return true;
}

/* Scores become probabilities and join the sums. */
template <int count> DEVICE void softmax_exp(struct softmax *x, float (&s)[count], float scale)
{
    float shift[2], part[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
    for (int r = 0; r < 2; r++)
        shift[r] = x->reference[r] == NEGATIVE_INFINITY ? 0.0f : -x->reference[r] * scale;
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int r = i / 2 % 2;
        s[i] = exp2_fast(fmaf(s[i], scale, shift[r]));
        part[r][i % 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        x->sum[r] += part[r][0] + part[r][1];
    products_arrived(s);
    products_arrived(x->sum);
}

/* Rounded once, in the order in which the second product reads them: both share the layout. */
template <bool half, int count>
DEVICE void softmax_pack(unsigned (&p)[count / 2], const float (&s)[count])
{
#pragma unroll
    for (int i = 0; i < count / 2; i++)
        p[i] = pack_pair<half>(s[2 * i], s[2 * i + 1]);
}

/* The row's whole sum, a sink's share in it, and its logarithm; `factor` is what the output is
 * multiplied by, 0 for a row without keys. */
DEVICE void softmax_finish(struct softmax *x, float scale, const float *sink, float (&factor)[2],
                           float (&lse)[2])
{
    const float ln2 = 0.693147180559945309f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(x->sum[r]), top = x->reference[r] * scale;
        float share = 1.0f;
        if (sink) {
            const float logit = *sink * 1.44269504088896341f;
            const float next = fmaxf(top, logit);
            share = top == NEGATIVE_INFINITY ? 0.0f : exp2_fast(top - next);
            sum = sum * share + exp2_fast(logit - next);
            top = next;
        }
        factor[r] = sum > 0.0f ? share / sum : 0.0f;
        lse[r] = sum > 0.0f ? (top + __log2f(sum)) * ln2 : NEGATIVE_INFINITY;
    }
}

#endif
