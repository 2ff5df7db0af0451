/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_softmax.cuh: turns a warp's scores of its 16 keys into probabilities, between the two
 * products of attend_products.cuh. Each warp has its own largest logits; warps exchange them only
 * at the item's end.
 *
 *   scores -> scores_cap(), scores_slope(): for logits that are a product plus a cap or a slope
 *          -> scores_cut(): masks keys by each row's range, if not every row sees all of the keys
 *          -> scores_mask(): the same for other masks, and for logits with a slope and a cap
 *          -> softmax_update(): 2^(logit - top); rescales the sums if top grows
 *          -> round_probabilities(): f16 or bf16, operand of the product with values
 */
#ifndef FI_ATTEND_SOFTMAX_CUH
#define FI_ATTEND_SOFTMAX_CUH

#include "plugins/flashinfer_like/kernels/attend_products.cuh"

/* Applies the cap to scaled scores. */
static __device__ __forceinline__ void scores_cap(float cap, float (&score)[2][4])
{
    const float inverse = __fdividef(1.0f, cap);
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] = cap * SOFTMAX_LOG2E * tanh_fast(score[n / 4][n % 4] * inverse);
}

/* Adds slope times distance to scaled scores, if is_sloped(). */
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

/* Does a row see all keys of one range, and are its scores already logits? */
static __device__ __forceinline__ bool is_range(const fi_call &c)
{
    return !c.custom && (!c.operands.slopes || is_sloped(c)) && !c.batch.item_prefix_lens;
}

/* ORs over the lanes with the same keys: the keys that any row of the warp sees. */
static __device__ __forceinline__ u32 warp_or(u32 seen)
{
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Masks scaled scores by range. Returns the keys that this lane's rows see: bit 2j + e for key e of
 * this lane's two of the j-th 8. */
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

/* The same for any mask. */
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

/* Turns the logits of `groups` groups of keys into probabilities relative to the largest so far,
 * and rescales the sums if it grows. */
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
    if (__any_sync(~0u, grown)) { /* otherwise shrink is 1, or the sums are still 0 */
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                it.out[d][e] *= shrink[e / 2];
    }
}

/* Does f16 lose less of the warp's lifted probabilities than bf16 would? Yes, if each is 0 or not
 * too small for f16. */
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
