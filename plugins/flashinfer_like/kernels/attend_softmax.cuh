/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_softmax.cuh: a warp's scores of its 16 keys into probabilities, between the two products
 * of attend_products.cuh. Each warp has largest logits of its own: warps meet at the item's end
 * only.
 *
 *   scores -> scores_cap(), scores_slope(): if a logit is a product and either a cap or a slope
 *          -> scores_cut(): logits of what is seen, where not every row sees all of the keys
 *          -> scores_mask(): the same where a range does not tell which, or a logit has its slope,
 *             and the cap after it
 *          -> softmax_update(): 2^(logit - top); sums so far follow the largest
 *          -> round_probabilities(): f16 or bf16, the operand of the product with values
 */
#ifndef FI_ATTEND_SOFTMAX_CUH
#define FI_ATTEND_SOFTMAX_CUH

#include "plugins/flashinfer_like/kernels/attend_products.cuh"

/* Scores, already scaled, under the cap. */
static __device__ __forceinline__ void scores_cap(float cap, float (&score)[2][4])
{
    const float inverse = __fdividef(1.0f, cap);
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] = cap * SOFTMAX_LOG2E * tanh_fast(score[n / 4][n % 4] * inverse);
}

/* Logits of scaled scores, where is_sloped(). */
template <typename S>
static __device__ __forceinline__ void scores_slope(const fi_call &c, const cursor &at,
                                                    const item<S> &it, float (&score)[2][4])
{
    const int lane = (int)threadIdx.x & 31, from = cursor_key(at) + (lane & 3) * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min(at.tile.row0 + h * 8 + lane / 4, it.q.q_len * c.ratio - 1);
        int query = short_query(c, row);
        float slope = slope_of(c, at.head, row, query);
        float back = (float)(it.q.prefix_len + query - from);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float &x = score[n / 2][h * 2 + n % 2];
            x = fmaf(x, SOFTMAX_LOG2E, -slope * (back - (float)(n / 2 * 8 + n % 2)));
        }
    }
}

/* Does a row see all keys of a range, and are its scores logits? */
static __device__ __forceinline__ bool is_range(const fi_call &c)
{
    return !c.custom && (!c.operands.slopes || is_sloped(c)) && !c.batch.item_prefix_lens;
}

/* What any lane that has the same keys sees: any row of the warp. */
static __device__ __forceinline__ u32 warp_or(u32 seen)
{
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Scores, already scaled, to logits of what is seen. Returns which: bit 2j + e for key e of this
 * lane's two of the j-th 8. */
template <typename S>
static __device__ __forceinline__ u32 scores_cut(const fi_call &c, const cursor &at,
                                                 const item<S> &it, float (&score)[2][4])
{
    const mask_rule rule = rule_of(c);
    const int lane = (int)threadIdx.x & 31, from = cursor_key(at);
    u32 seen = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = at.tile.row0 + h * 8 + lane / 4, lo, hi;
        mask_positions(&rule, it.q.prefix_len + short_query(c, row), &lo, &hi);
        hi = row < it.q.q_len * c.ratio ? min(hi, at.tile.hi) : lo;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int key = from + n / 2 * 8 + (lane & 3) * 2 + n % 2;
            bool sees = key >= lo && key < hi;
            float &x = score[n / 2][h * 2 + n % 2];
            x = sees ? x : SOFTMAX_EMPTY;
            seen |= sees ? 1u << n : 0;
        }
    }
    return seen;
}

/* The same of any mask. */
template <typename S>
static __device__ u32 scores_mask(const fi_call &c, const cursor &at, const item<S> &it,
                                  float (&score)[2][4])
{
    mask_rule rule = rule_of(c);
    int lane = (int)threadIdx.x & 31, from = cursor_key(at);
    u32 seen = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mask_view view;
        int row = at.tile.row0 + h * 8 + lane / 4;
        int there = row < it.q.q_len * c.ratio, query = short_query(c, row);
        mask_find_view(&rule, &c.batch, &it.q, at.tile.seq, there ? query : -1, &view);
        const float *slopes = there ? c.operands.slopes : 0;
        float slope = slopes ? slopes[at.head * c.ratio + row - query * c.ratio] : 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int key = from + n / 2 * 8 + (lane & 3) * 2 + n % 2;
            bool sees = mask_sees(&rule, &c.batch, &it.q, &view, key, at.tile.hi);
            float &x = score[n / 2][h * 2 + n % 2];
            int position = sees ? mask_key_position(&rule, &c.batch, &it.q, key) : key;
            x = softmax_logit(x, c.operands.slopes ? c.cap : 0, slopes != 0, slope,
                              fabsf((float)(view.position - position)));
            x = sees ? x : SOFTMAX_EMPTY;
            seen |= sees ? 1u << n : 0;
        }
    }
    return seen;
}

/* Logits of so many groups of keys become probabilities by the largest so far; what was summed up
 * follows it. */
template <typename S, int groups>
static __device__ __forceinline__ void softmax_update(float (&score)[groups][2][4], item<S> &it)
{
    float shrink[2];
    bool grown = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float here = SOFTMAX_EMPTY;
#pragma unroll
        for (int g = 0; g < groups; g++)
            here = fmaxf(here, fmaxf(fmaxf(score[g][0][h * 2], score[g][0][h * 2 + 1]),
                                     fmaxf(score[g][1][h * 2], score[g][1][h * 2 + 1])));
        float top = fmaxf(it.top[h], softmax_quad_max(here)), base = softmax_base(top);
        shrink[h] = softmax_exp2(it.top[h] - base);
        grown |= top != it.top[h];
        it.top[h] = top;
        it.sum[h] *= shrink[h];
#pragma unroll
        for (int n = 0; n < 4 * groups; n++) {
            float &x = score[n / 4][n % 4 / 2][h * 2 + n % 2];
            x = softmax_exp2(x - (base - S::lift));
            it.sum[h] += x;
        }
    }
    if (__any_sync(~0u, grown)) { /* else shrink is 1, or there is nothing yet */
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                it.out[d][e] *= shrink[e / 2];
    }
}

/* Does f16 lose less of the warp's probabilities, lifted as they are, than bf16 would? Of those
 * that are not too small for it, or 0. */
static __device__ __forceinline__ bool fit_half(const float (&score)[2][4])
{
    u32 least = ~0u; /* 0 becomes the largest */
#pragma unroll
    for (int n = 0; n < 8; n++)
        least = min(least, f32_bits(score[n / 4][n % 4]) - 1);
    return __all_sync(~0u, least >= 0x38800000u - 1); /* 2^-14 */
}

template <bool is_f16>
static __device__ __forceinline__ probabilities round_probabilities(const float (&score)[2][4],
                                                                    u32 seen)
{
    probabilities w;
#pragma unroll
    for (int e = 0; e < 4; e++)
        w.p[e] = pack_pair<is_f16>(score[e / 2][e % 2 * 2], score[e / 2][e % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < 2; j++)
        w.kept[j] = (seen >> 2 * j & 1 ? 0xffffu : 0) | (seen >> 2 * j & 2 ? 0xffff0000u : 0);
    return w;
}

#endif /* FI_ATTEND_SOFTMAX_CUH */
