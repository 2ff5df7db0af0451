/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_rows.cuh: what a warpgroup of prefill.cuh that multiplies holds of an item, in registers:
 *
 *   warpgroup 0: rows 0 to 63, warpgroup 1: rows 64 to 127; a warp has 16 of them, and of these a
 *   thread rows lane / 4 and that + 8, two columns of every eight
 */
#ifndef FI_PREFILL_ROWS_CUH
#define FI_PREFILL_ROWS_CUH

#include "plugins/common/cuda/warpgroup_softmax.cuh"
#include "plugins/flashinfer_like/kernels/prefill_stages.cuh"

#define BARRIER_CONSUMERS 1 /* named barrier of those who multiply */
#define BARRIER_GROUP     2 /* 2, 3: a warpgroup's own */

/* Of rows whose logits fall with the distance of a key (prefill_slopes.cuh). `fall`: of a score, from
 * a key to the one before it; `parts`: the same as operand a of a product. */
template <bool sloped> struct row_slopes {
};
template <> struct row_slopes<true> {
    float fall[2];
    int position[2];
    u32 parts[2];
};

/* What a warpgroup holds of an item. A thread has rows lane / 4 and that + 8 of its warp's 16. */
template <typename S> struct rows {
    u32 q;              /* its queries in shared memory */
    int all_lo, all_hi; /* keys that every row of the item sees; none, if there is more to a logit
                           than a product and a cap */
    float scale;        /* of what the softmax gets, to units of log 2 */
    int add;            /* 0: o holds nothing yet */
    struct softmax x;
    row_slopes<S::sloped> slopes;
    float o[S::dim_v / 2];
};

/* Where those who multiply are in the stages. */
template <typename S> struct place {
    ring<S::stages> k, v;
};

DEVICE int consumer_thread(void)
{
    return thread_here() - GROUP_THREADS;
}

/* The thread's first row of the item; the other is 8 further on. */
DEVICE int first_row(void)
{
    int thread = consumer_thread();
    return thread / 32 * 16 + thread % 32 / 4;
}

/* The warpgroup whose queries this one multiplies: its own, or the first's, where it has none. */
template <typename S> DEVICE int queries_of(const fi_call &c, const struct work &w)
{
    const int group = uniform(consumer_thread() / GROUP_THREADS);
    return group * GROUP_ROWS < item_rows(c, w.q, w.at.tile, S::rows) ? group : 0;
}

/* Of products, with that of keys that are codes. */
template <typename S> DEVICE float scale_of(const fi_call &c, int head)
{
    return S::codes ? c.scale * k_scale_of(c, head) : c.scale;
}

/* Do products and the softmax apply the slopes? */
template <typename S> DEVICE bool by_slopes(const fi_call &c, int head)
{
    return is_sloped(c) && scale_of<S>(c, head) > 1e-6f;
}

/* Is there more to a logit than a product and a cap? Then scores become logits before the softmax.
 */
template <typename S> DEVICE bool is_special(const fi_call &c, int head)
{
    if constexpr (S::sloped)
        if (by_slopes<S>(c, head))
            return false;
    return c.operands.slopes || (c.cap == 0 && !(scale_of<S>(c, head) > 0));
}

template <typename S>
DEVICE void rows_begin(const fi_call &c, const struct work &w, u32 queries, rows<S> &r)
{
    const mask_rule rule = rule_of(c);
    const fi_tile tile = w.at.tile;
    int first = tile.row0 / c.ratio;
    int last = (tile.row0 + item_rows(c, w.q, tile, S::rows) - 1) / c.ratio, ignored;
    const bool special = is_special<S>(c, w.at.head);
    r.q = queries + queries_of<S>(c, w) * (S::panels * GROUP_ROWS * ROW_BYTES);
    mask_positions(&rule, w.q.prefix_len + last, &r.all_lo, &ignored);
    mask_positions(&rule, w.q.prefix_len + first, &ignored, &r.all_hi);
    r.all_lo = uniform(r.all_lo);
    r.all_hi = min(r.all_hi, end_of_all(c, w.q, tile.seq, first));
    r.all_hi = uniform(special || c.custom ? -0x7fffffff : min(r.all_hi, tile.hi));
    r.scale = special ? 1.0f : c.cap != 0 ? c.cap * SOFTMAX_LOG2E : scale_of<S>(c, w.at.head);
    r.add = 0;
    softmax_begin(&r.x);
}

#endif /* FI_PREFILL_ROWS_CUH */
