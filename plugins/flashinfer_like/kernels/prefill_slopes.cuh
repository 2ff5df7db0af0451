/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_slopes.cuh: logits that fall with the distance of a key (ALiBi), in separate kernels.
 *
 * In a unit whose keys all rows see, let d be the distance of its last key from a row:
 *
 *   logit = scale * (score - fall * (keys from this one to the unit's last)) - scale * fall * d
 *
 * One more product adds the inner term to the scores: the rows' falls times a ramp of columns in
 * shared memory. A fall is the sum of three bf16 numbers, and columns are exact. The last term is
 * the same for all of the row's unit, and is part of the shift before the exponential. So the
 * nearest key has the smallest rounding error. Other units compute each key's distance.
 *
 * A block starts with an item's last unit (unit_at()). Logits then fall from unit to unit, and the
 * first unit's reference remains valid.
 */
#ifndef FI_PREFILL_SLOPES_CUH
#define FI_PREFILL_SLOPES_CUH

#include "plugins/flashinfer_like/kernels/prefill_rows.cuh"

/* Do all rows see the unit's keys? */
template <typename S> DEVICE bool is_far(const rows<S> &r, int from)
{
    return from >= r.all_lo && from + S::keys <= r.all_hi;
}

/* ---- Products ------------------------------------------------------------------------------ */

/* Writes the ramp: row n has n minus the unit's last column, three times. */
template <typename S> DEVICE void ramp_fill(u32 ramp)
{
    for (int i = consumer_thread(); i < S::keys * 2; i += S::consumers) {
        const int row = i / 2, piece = i % 2;
        const float column = piece ? 0.0f : (float)(row - (S::keys - 1));
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %3};" ::"r"(ramp + swizzled(row, piece)),
                     "r"(pack_pair<false>(column, column)), "r"(pack_pair<false>(column, 0.0f)),
                     "r"(0)
                     : "memory");
    }
    fence_async_shared();
    named_sync(BARRIER_CONSUMERS, S::consumers);
}

DEVICE float bf16_part(float x)
{
    return __uint_as_float(pack_pair<false>(0.0f, x) & 0xffff0000);
}

/* A thread's two numbers of a row of operand a: the three parts of the fall are in columns 0 to
 * 2. */
DEVICE u32 slope_parts(float fall)
{
    const float high = bf16_part(fall), middle = bf16_part(fall - high);
    const int pair = thread_here() % 4;
    return pair == 0   ? pack_pair<false>(high, middle)
           : pair == 1 ? pack_pair<false>(fall - high - middle, 0.0f)
                       : 0;
}

/* Adds the fall to a far unit's scores, after gemm_qk(). */
template <typename S>
DEVICE void gemm_ramp(float (&s)[S::keys / 2], const u32 (&parts)[4], u32 base)
{
#if HAS_HOPPER
    wgmma_rs<S::keys, false, 0>(s, parts, matrix_descriptor(base + S::ramp_at, 16, 8 * ROW_BYTES),
                                1);
#endif
}

/* ---- Rows ---------------------------------------------------------------------------------- */

template <typename S> DEVICE void slopes_begin(const fi_call &c, const struct work &w, rows<S> &r)
{
    const bool is_on = by_slopes<S>(c, w.at.head);
    if (is_on)
        r.scale = scale_of<S>(c, w.at.head) * SOFTMAX_LOG2E;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = min(w.at.tile.row0 + first_row() + 8 * h, w.q.q_len * c.ratio - 1);
        const int query = row / c.ratio;
        r.slopes.fall[h] = is_on ? __fdividef(slope_of(c, w.at.head, row, query), r.scale) : 0.0f;
        r.slopes.parts[h] = slope_parts(r.slopes.fall[h]);
        r.slopes.position[h] = w.q.prefix_len + query;
    }
}

/* Adds the fall to the scores of a unit that is not far, key by key. */
template <typename S> DEVICE void scores_fall(const rows<S> &r, int from, float (&s)[S::keys / 2])
{
#pragma unroll
    for (int i = 0; i < S::keys / 2; i++) {
        const int h = i / 2 % 2;
        const float back = (float)(r.slopes.position[h] - from - thread_here() % 4 * 2);
        s[i] = fmaf(-r.slopes.fall[h], back - (float)(i / 4 * 8 + i % 2), s[i]);
    }
}

/* ---- The softmax --------------------------------------------------------------------------- */

/* The decrease from the row's own key to the last key of the unit at `from`, in units of log 2; 0
 * if the unit is not far. */
template <typename S> DEVICE float down_of(const rows<S> &r, int from, int h)
{
    const float back = (float)(r.slopes.position[h] - from - (S::keys - 1));
    return is_far<S>(r, from) ? r.slopes.fall[h] * r.scale * back : 0.0f;
}

/* The softmax state, with the shift of this unit. */
template <typename S> DEVICE struct softmax slopes_softmax(const rows<S> &r, int from)
{
    struct softmax x;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x.shift[h] = r.x.shift[h] - down_of<S>(r, from, h);
        x.sum[h] = r.x.sum[h];
    }
    return x;
}

/* softmax_again() for this unit. */
template <typename S>
DEVICE void slopes_again(rows<S> &r, int from, const float (&s)[S::keys / 2], float (&sum)[2],
                         float (&factor)[2], u32 (&p)[S::keys / 4])
{
    const struct softmax before = slopes_softmax<S>(r, from);
    struct softmax x = before;
    softmax_again<S::is_f16>(&x, s, r.scale, sum, factor, p);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (x.shift[h] != before.shift[h])
            r.x.shift[h] = x.shift[h] + down_of<S>(r, from, h);
        r.x.sum[h] = x.sum[h];
    }
}

#endif /* FI_PREFILL_SLOPES_CUH */
