/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_scores.cuh: a unit's scores to logits of what is seen, between the products of
 * prefill.cuh. A unit that every row sees passes by, or gets the cap and no more. Others:
 *
 *   scores -> scores_cap(), or scores_weigh() where slopes come before it, or the scale is not
 *             positive
 *          -> seen or not: a range of keys; by a custom mask, or of items, a bit for each
 *          -> values_clear(): values of keys that no row sees become 0, before they are multiplied
 */
#ifndef FI_PREFILL_SCORES_CUH
#define FI_PREFILL_SCORES_CUH

/* A function of its own: the loop of products is not to find its registers taken. wide.cuh has it in
 * line, as a call would take more. */
#ifndef BITS_BY_CALL
#define BITS_BY_CALL __noinline__
#endif

#include "plugins/flashinfer_like/kernels/prefill_slopes.cuh"

/* ---- Logits -------------------------------------------------------------------------------- */

/* A scaled product, biased already, under the cap. (1 - 2 / (e^2x + 1) is off by 2^-23 of the cap
 * however small x is, which the LSE of a row of one small score shows.) */
DEVICE float capped(float x, float cap)
{
    return cap * SOFTMAX_LOG2E * tanh_fast(x * __fdividef(1.0f, cap));
}

/* Products to logits where there is more to them: slopes, and the cap after those, or a scale that
 * is not positive. */
template <typename S>
DEVICE void scores_weigh(const fi_call &c, const struct work &w, const mask_view (&view)[2],
                         int from, float (&s)[S::keys / 2])
{
    const mask_rule rule = rule_of(c);
    const float scale = scale_of<S>(c, w.at.head);
#pragma unroll
    for (int i = 0; i < S::keys / 2; i++)
        s[i] *= scale;
    if (c.operands.slopes) {
        float slope[2];
        for (int h = 0; h < 2; h++) {
            int row = min(w.at.tile.row0 + first_row() + 8 * h, w.q.q_len * c.ratio - 1);
            slope[h] = c.operands.slopes[w.at.head * c.ratio + row % c.ratio];
        }
#pragma unroll
        for (int i = 0; i < S::keys / 2; i += 4)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int key = from + i * 2 + thread_here() % 4 * 2 + e;
                int at = mask_key_position(&rule, &c.batch, &w.q, key);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    s[i + h * 2 + e] -= slope[h] * fabsf((float)(view[h].position - at));
            }
    }
    if (c.cap != 0) {
#pragma unroll
        for (int i = 0; i < S::keys / 2; i++)
            s[i] = capped(s[i], c.cap);
    } else if (c.operands.slopes) {
#pragma unroll
        for (int i = 0; i < S::keys / 2; i++)
            s[i] *= SOFTMAX_LOG2E;
    }
}

/* ---- What is seen -------------------------------------------------------------------------- */

/* Does more than a range of keys tell what a row sees? */
DEVICE bool thins_out(const fi_call &c)
{
    return c.custom || c.batch.item_prefix_lens;
}

/* Which of this thread's keys row `row` of the sequence sees by a custom mask, or of items: bit 2i
 * + e for key 8i + e of its. */
template <typename S>
static __device__ BITS_BY_CALL u32 custom_bits(const fi_call &c, const struct work &w, int row,
                                               int from)
{
    const mask_rule rule = rule_of(c);
    mask_view view;
    u32 seen = 0;
    mask_find_view(&rule, &c.batch, &w.q, w.at.tile.seq,
                   row < w.q.q_len * c.ratio ? row / c.ratio : -1, &view);
#pragma unroll 1
    for (int i = 0; i < S::keys / 4; i++) {
        int key = from + i / 2 * 8 + thread_here() % 4 * 2 + i % 2;
        seen |= (u32)mask_sees(&rule, &c.batch, &w.q, &view, key, w.at.tile.hi) << i;
    }
    return seen;
}

/* Values that no query of the sequence sees become 0: probabilities there are 0, but 0 times what
 * lies there need not be. Under a custom mask, and of items, those that no row of the tile sees.
 * All who multiply take part. */
template <typename S>
DEVICE void values_clear(const fi_call &c, const struct work &w, struct control *control,
                         const ring<S::stages> &at, int from, u32 seen, u32 base)
{
    if (!thins_out(c) && from >= w.lo && from + S::keys <= w.hi)
        return;
    int thread = consumer_thread();
    u32 v = base + S::v_at + at.slot * S::v_bytes;
    if (thins_out(c)) {
        for (int step = 4; step < 32; step *= 2)
            seen |= __shfl_xor_sync(~0u, seen, step);
        if (thread % 32 < 4)
            control->seen[thread / 32][thread % 4] = seen;
        named_sync(BARRIER_CONSUMERS, S::consumers);
    }
    barrier_wait(shared_address(&control->v_full[at.slot]), at.phase);
#pragma unroll 1
    for (int i = thread; i < S::keys * 8; i += S::consumers) {
        int key = i / 8;
        bool is_seen = from + key >= w.lo && from + key < w.hi;
        if (thins_out(c)) {
            u32 any = 0;
            for (int warp = 0; warp < S::consumers / 32; warp++)
                any |= control->seen[warp][key % 8 / 2];
            is_seen = any >> (key / 8 * 2 + key % 2) & 1;
        }
        for (int panel = 0; panel < S::panels_v && !is_seen; panel++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                             v + panel * S::panel_bytes + i * 16),
                         "r"(0)
                         : "memory");
    }
    fence_async_shared();
    named_sync(BARRIER_CONSUMERS, S::consumers);
}

/* Scores of a unit to logits of what is seen. `at`: where its values come. */
template <typename S>
DEVICE void scores_finish(const fi_call &c, const struct work &w, struct control *control,
                          const rows<S> &r, const ring<S::stages> &at, int from, u32 base,
                          float (&s)[S::keys / 2])
{
    const bool is_whole = from >= r.all_lo && from + S::keys <= r.all_hi;
    if (is_whole && c.cap == 0)
        return;
    if (c.cap != 0 && !c.operands.slopes)
        scores_cap(s, __fdividef(scale_of<S>(c, w.at.head), c.cap));
    if (is_whole)
        return;
    mask_rule rule = rule_of(c);
    mask_view view[2];
    u32 seen = 0;
    rule.items = 0; /* where there are any, custom_bits() tells */
    for (int h = 0; h < 2; h++) {
        int row = w.at.tile.row0 + first_row() + 8 * h;
        mask_find_view(&rule, &c.batch, &w.q, w.at.tile.seq,
                       row < w.q.q_len * c.ratio ? row / c.ratio : -1, &view[h]);
    }
    if constexpr (S::sloped)
        scores_fall<S>(r, from, s);
    if (is_special<S>(c, w.at.head))
        scores_weigh<S>(c, w, view, from, s);
    if (thins_out(c)) {
        int row = w.at.tile.row0 + first_row();
        u32 bits[2] = {custom_bits<S>(c, w, row, from), custom_bits<S>(c, w, row + 8, from)};
        seen = bits[0] | bits[1];
#pragma unroll
        for (int i = 0; i < S::keys / 2; i++)
            s[i] = bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1 ? s[i] : SOFTMAX_EMPTY;
    } else {
        int end = w.at.tile.hi;
        scores_mask(s, max(view[0].lo, 0) - from, min(view[0].hi, end) - from,
                    max(view[1].lo, 0) - from, min(view[1].hi, end) - from);
    }
    values_clear<S>(c, w, control, at, from, seen, base);
}

#endif /* FI_PREFILL_SCORES_CUH */
