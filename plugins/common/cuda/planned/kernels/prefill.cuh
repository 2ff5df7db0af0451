/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill.cuh: tiles of 128 rows against 64 or 128 keys at a time, bound by products, which are
 * wgmma's. One warpgroup copies, two multiply, 64 rows each:
 *
 *   copies      Q | K V | K V | K V | ...          units of keys into stages, as they come free
 *   rows 0      S . [S PV][S PV][S PV] ... PV out  [S PV]: the scores of a unit, then the values of
 *   rows 64         S . [S PV][S PV] ... PV out    the one before among its exponentials
 *
 * Nothing orders the two: while one waits for scores, the other has exponentials to do. A warp that
 * copies has 16 keys of each 64, which it looks up a unit before; it goes on to the next item while
 * this one is worked on, and tells those who multiply what the item is. New keys are read from k
 * and v, the others from the cache: a batch without a prefix reads no page, one with a prefix goes
 * from the one to the other within a tile, without partial results to be merged.
 */
#ifndef PLANNED_PREFILL_CUH
#define PLANNED_PREFILL_CUH

#include "plugins/common/cuda/warpgroup_softmax.cuh"
#include "plugins/common/cuda/planned/kernels/prefill_feed.cuh"

#define BARRIER_CONSUMERS 1 /* named barrier of those who multiply */
#define BARRIER_GROUP     2 /* 2, 3: a warpgroup's own */

/* ---- An item ----------------------------------------------------------------------------------
 */

/* What a warpgroup holds of an item. A thread has rows lane / 4 and that + 8 of its warp's 16. */
template <typename S> struct rows {
    u32 q;              /* its queries in shared memory */
    int all_lo, all_hi; /* keys that every row of the item sees; none, if there is more to a logit
                           than a product */
    bool is_special;    /* there is; then scores become logits before the softmax */
    float scale;        /* of scores, to units of log 2 */
    int add;            /* 0: o holds nothing yet */
    struct softmax x;
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

/* Of products, with that of keys that are codes. */
template <typename S> DEVICE float scale_of(const fi_call &c, int head)
{
    return S::codes ? c.scale * k_scale_of(c, head) : c.scale;
}

template <typename S>
DEVICE void rows_begin(const fi_call &c, const struct work &w, u32 queries, rows<S> &r)
{
    const mask_rule rule = rule_of(c);
    const fi_tile tile = w.at.tile;
    int first = tile.row0 / c.ratio;
    int last = (tile.row0 + item_rows(c, w.q, tile, FI_PREFILL_ROWS) - 1) / c.ratio, ignored;
    float scale = scale_of<S>(c, w.at.head);
    bool is_special = c.custom || c.cap != 0 || c.operands.slopes || !(scale > 0);
    r.q =
        queries + uniform(consumer_thread() / GROUP_THREADS) * (S::panels * GROUP_ROWS * ROW_BYTES);
    mask_positions(&rule, w.q.prefix_len + last, &r.all_lo, &ignored);
    mask_positions(&rule, w.q.prefix_len + first, &ignored, &r.all_hi);
    r.all_lo = uniform(r.all_lo);
    r.all_hi = min(r.all_hi, end_of_all(c, w.q, tile.seq, first));
    r.all_hi = uniform(is_special ? -0x7fffffff : min(r.all_hi, tile.hi));
    r.is_special = is_special;
    r.scale = is_special ? 1.0f : scale;
    r.add = 0;
    softmax_begin(&r.x);
}

/* ---- Scores ------------------------------------------------------------------------------------
 */

/* A scaled product, biased already, under the cap. tanh(x) = 1 - 2 / (e^2x + 1): in absolute terms,
 * which is what a logit needs, as exact as the product. */
DEVICE float capped(float x, float cap)
{
    float e = softmax_exp2(x * __fdividef(2 * SOFTMAX_LOG2E, cap));
    return cap * SOFTMAX_LOG2E * (1.0f - __fdividef(2.0f, e + 1.0f));
}

/* Products to logits where there is more to them: cap, slopes, a scale that is not positive. */
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

/* Does more than a range of keys tell what a row sees? */
DEVICE bool thins_out(const fi_call &c)
{
    return c.custom || c.batch.item_prefix_lens;
}

/* Which of this thread's keys row `row` of the sequence sees by a custom mask, or of items: bit 2i
 * + e for key 8i + e of its. */
template <typename S>
static __device__ __noinline__ u32 custom_bits(const fi_call &c, const struct work &w, int row,
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
    if (from >= r.all_lo && from + S::keys <= r.all_hi)
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
    if (r.is_special)
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

/* ---- Units -------------------------------------------------------------------------------------
 */

/* Copies row by row are ordinary stores, which products see only after a fence. */
template <typename S>
DEVICE void keys_wait(const struct work &w, struct control *control, const place<S> &at)
{
    barrier_wait(shared_address(&control->k_full[at.k.slot]), at.k.phase);
    if (__builtin_expect(w.has_rows, 0))
        fence_async_shared();
}

template <typename S>
DEVICE void values_wait(const struct work &w, struct control *control, const place<S> &at)
{
    barrier_wait(shared_address(&control->v_full[at.v.slot]), at.v.phase);
    if (__builtin_expect(w.has_rows, 0))
        fence_async_shared();
}

/* The scores of the unit that comes next. */
template <typename S>
DEVICE void next_scores(struct control *control, const rows<S> &r, place<S> &at, u32 base,
                        float (&s)[S::keys / 2])
{
    products_fence();
    product_scores<S>(s, r.q, base + S::k_at + at.k.slot * S::k_bytes);
    products_commit();
    products_wait<0>();
    products_arrived(s);
    release(shared_address(&control->k_empty[at.k.slot]));
    at.k.advance();
}

/* From the probabilities `p` of a unit to those of the next one, at `from`. The
 * values' products are issued among the exponentials, and the waits for what comes next stand
 * before the wait for them: fa3_like's step(), which tells why. */
template <typename S>
DEVICE void step(const fi_call &c, const struct work &w, struct control *control, u32 base,
                 rows<S> &r, place<S> &at, int from, bool more, u32 (&p)[S::keys / 4])
{
    constexpr int half = S::keys / 4 / 4 * 4;
    float s[S::keys / 2], factor[2], sum[2] = {0.0f, 0.0f};
    float early[half], late[S::keys / 2 - half];
    u32 packed[S::keys / 4];
    const u32 v = base + S::v_at + at.v.slot * S::v_bytes;
    const u32 v_empty = shared_address(&control->v_empty[at.v.slot]);

    next_scores<S>(control, r, at, base, s);
    at.v.advance();
    scores_finish<S>(c, w, control, r, at.v, from, base, s);

    products_fence();
    product_values<S>(r.o, p, v, r.add);
    products_commit();
    softmax_exp<0>(r.x, s, r.scale, early);
    softmax_exp<half>(r.x, s, r.scale, late);
    softmax_join<S::half, 0>(early, sum, packed);
    softmax_join<S::half, half>(late, sum, packed);
    if (more)
        keys_wait<S>(w, control, at);
    values_wait<S>(w, control, at);
    const bool again = softmax_grown(sum);
    if (__builtin_expect(again, 0))
        softmax_again<S::half>(&r.x, s, r.scale, sum, factor, packed);
    r.x.sum[0] += sum[0];
    r.x.sum[1] += sum[1];

    products_wait<0>();
    products_arrived(r.o);
    release(v_empty);
    if (again) {
#pragma unroll
        for (int i = 0; i < S::dim_v / 2; i++)
            r.o[i] *= factor[i / 2 % 2];
    }
    r.add = 1;
#pragma unroll
    for (int i = 0; i < S::keys / 4; i++)
        asm volatile("mov.b32 %0, %1;" : "=r"(p[i]) : "r"(packed[i]));
}

/* An item's units, of which there is one at least. */
template <typename S>
DEVICE void attend(const fi_call &c, const struct work &w, struct control *control, u32 base,
                   rows<S> &r, place<S> &at)
{
    u32 p[S::keys / 4];
    int left = uniform(w.units) - 1;
    int from = uniform(plan_unit_key(&w.at.tile, S::keys, w.at.unit));
    {
        float s[S::keys / 2], factor[2], sum[2];
        keys_wait<S>(w, control, at);
        next_scores<S>(control, r, at, base, s);
        scores_finish<S>(c, w, control, r, at.v, from, base, s);
        softmax_again<S::half>(&r.x, s, r.scale, sum, factor, p);
        r.x.sum[0] = sum[0];
        r.x.sum[1] = sum[1];
    }
    values_wait<S>(w, control, at);
    if (left > 0)
        keys_wait<S>(w, control, at);
#pragma unroll 1
    for (; left > 0; left--) {
        from += S::keys;
        from += from == w.gap_key ? w.at.tile.skip : 0;
        step<S>(c, w, control, base, r, at, from, left > 1, p);
    }
    products_fence();
    product_values<S>(r.o, p, base + S::v_at + at.v.slot * S::v_bytes, r.add);
    products_commit();
    products_wait<0>();
    products_arrived(r.o);
    release(shared_address(&control->v_empty[at.v.slot]));
    at.v.advance();
}

/* ---- Results ----------------------------------------------------------------------------------
 */

/* What a thread's two rows came to: the largest logit, or a number near it, in units of log 2, and
 * the sum relative to it. */
struct totals {
    float top[2], sum[2];
};

/* A thread's part of the block's part of an item, for the block that merges. */
template <typename S>
DEVICE void leave_part(const fi_call &c, const parts &p, const rows<S> &r, const totals &t)
{
    int lane = thread_here() & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 slot = (i64)p.mine * FI_PREFILL_ROWS + first_row() + h * 8;
        float *to = c.partial + slot * S::dim_v + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            *(float2 *)(to + d * 8) = make_float2(r.o[d * 4 + h * 2], r.o[d * 4 + h * 2 + 1]);
        if ((lane & 3) == 0)
            *(float2 *)(c.partial_row + slot * 2) = make_float2(t.top[h], t.sum[h]);
    }
}

/* A thread's rows of a run, for the sequences that share its keys. */
template <typename S>
DEVICE void leave_prior(const fi_call &c, const struct work &w, const rows<S> &r, const totals &t)
{
    int lane = thread_here() & 31, count = item_rows(c, w.q, w.at.tile, FI_PREFILL_ROWS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, n, &row, &head);
        if (n >= count)
            continue;
        i64 slot = prior_slot(c, c.level, row, head);
        float *to = c.prior + slot * S::dim_v + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            *(float2 *)(to + d * 8) = make_float2(r.o[d * 4 + h * 2], r.o[d * 4 + h * 2 + 1]);
        if ((lane & 3) == 0)
            *(float2 *)(c.prior_row + slot * 2) = make_float2(t.top[h], t.sum[h]);
    }
}

/* All parts of the item, in their order, into this thread's rows. */
template <typename S>
DEVICE void take_parts(const fi_call &c, const parts &p, rows<S> &r, totals &t)
{
    int lane = thread_here() & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = SOFTMAX_EMPTY, total = 0.0f;
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            r.o[d * 4 + h * 2] = r.o[d * 4 + h * 2 + 1] = 0.0f;
#pragma unroll 1
        for (int n = 0; n < p.count; n++) {
            i64 slot = part_slot(p, n) * FI_PREFILL_ROWS + first_row() + h * 8;
            const float *from = c.partial + slot * S::dim_v + (lane & 3) * 2;
            float2 numbers = __ldcg((const float2 *)(c.partial_row + slot * 2));
            float higher = fmaxf(top, numbers.x), zero = softmax_base(higher);
            float shrink = softmax_exp2(top - zero), share = softmax_exp2(numbers.x - zero);
            top = higher;
            total = total * shrink + numbers.y * share;
#pragma unroll
            for (int d = 0; d < S::dim_v / 8; d++) {
                float2 x = __ldcg((const float2 *)(from + d * 8));
                float *o = &r.o[d * 4 + h * 2];
                o[0] = o[0] * shrink + x.x * share;
                o[1] = o[1] * shrink + x.y * share;
            }
        }
        t.top[h] = top;
        t.sum[h] = total;
    }
}

DEVICE void store_two(const fi_call &c, char *row, int d, float x, float y)
{
    if (c.out_dtype != ELEMENT_F32 && c.operands.aligned & CALL_ALIGNED_OUT) {
        ((u32 *)row)[d / 2] =
            c.out_dtype == ELEMENT_F16 ? pack_pair<true>(x, y) : pack_pair<false>(x, y);
        return;
    }
    element_store(c.out_dtype, row, d, x);
    element_store(c.out_dtype, row, d + 1, y);
}

/* Rows as they are stored otherwise: a thread's columns, two at a time. */
template <typename S>
DEVICE void store_columns(const fi_call &c, const struct work &w, const rows<S> &r,
                          const float (&factor)[2], int count)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, n, &row, &head);
        if (n >= count)
            continue;
        char *to = out_row(c, row, head);
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            store_two(c, to, d * 8 + thread_here() % 4 * 2, r.o[d * 4 + h * 2] * factor[h],
                      r.o[d * 4 + h * 2 + 1] * factor[h]);
    }
}

/* A warpgroup's rows in the operands' type to where its queries were. */
template <typename S> DEVICE void stage_rows(const rows<S> &r, const float (&factor)[2])
{
    const int thread = thread_here() % GROUP_THREADS, lane = thread % 32;
    const int mine = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int d = 0; d < S::dim_v / 16; d++) {
        const float *x = r.o + 8 * d;
        store_matrices(r.q + d / 4 * GROUP_ROWS * ROW_BYTES + swizzled(mine, d % 4 * 2 + lane / 16),
                       pack_pair<S::half>(x[0] * factor[0], x[1] * factor[0]),
                       pack_pair<S::half>(x[2] * factor[1], x[3] * factor[1]),
                       pack_pair<S::half>(x[4] * factor[0], x[5] * factor[0]),
                       pack_pair<S::half>(x[6] * factor[1], x[7] * factor[1]));
    }
}

/* All of them are there: the copy engine stores them, a box for each panel. */
template <typename S>
DEVICE void store_boxes(const fi_call &c, const struct work &w, const rows<S> &r, int group)
{
    fence_async_shared();
    named_sync(BARRIER_GROUP + group, GROUP_THREADS);
    if (thread_here() % GROUP_THREADS != 0)
        return;
    const int row = w.q.first_row + (w.at.tile.row0 + group * GROUP_ROWS) / c.ratio;
    for (int panel = 0; panel < S::panels_v; panel++)
        tensor_store(&c.out_map, r.q + panel * GROUP_ROWS * ROW_BYTES, panel * PANEL,
                     w.at.head * c.ratio, row, 0);
    store_commit();
    store_wait_read(); /* before its warp lets the next queries come */
}

/* Those that are there, 16 bytes at a time. */
template <typename S>
DEVICE void store_pieces(const fi_call &c, const struct work &w, const rows<S> &r, int group,
                         int count)
{
    constexpr int pieces = S::dim_v / 8;
    const int thread = thread_here() % GROUP_THREADS;
    const row_finder finder = find_rows(c, w);
    named_sync(BARRIER_GROUP + group, GROUP_THREADS);
#pragma unroll 4
    for (int i = thread; i < GROUP_ROWS * pieces; i += GROUP_THREADS) {
        int n = i / pieces, piece = i % pieces, head;
        i64 row;
        uint4 x;
        if (group * GROUP_ROWS + n >= count)
            break;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(r.q + piece / 8 * GROUP_ROWS * ROW_BYTES + swizzled(n, piece % 8)));
        find_row(finder, group * GROUP_ROWS + n, &row, &head);
        *(uint4 *)(out_row(c, row, head) + piece * 16) = x;
    }
}

template <typename S>
DEVICE void store_rows(const fi_call &c, const struct work &w, const rows<S> &r, const totals &t)
{
    int count = item_rows(c, w.q, w.at.tile, FI_PREFILL_ROWS);
    float factor[2], scale = S::codes ? v_scale_of(c, w.at.head) : 1.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, min(n, count - 1), &row, &head);
        float sink = sink_of(c, head), top = fmaxf(t.top[h], sink);
        float zero = softmax_base(top), shrink = softmax_exp2(t.top[h] - zero);
        softmax_row end = {top, t.sum[h] * shrink + softmax_exp2(sink - zero)};
        factor[h] = end.sum == 0.0f ? 0.0f : __fdividef(shrink, end.sum) * scale;
        if (n < count && thread_here() % 4 == 0)
            store_lse(c, row, head, softmax_lse(&end));
    }
    if (!(c.operands.aligned & CALL_ALIGNED_OUT_16) ||
        c.out_dtype != (S::half ? ELEMENT_F16 : ELEMENT_BF16)) {
        store_columns<S>(c, w, r, factor, count);
        return;
    }
    const int group = uniform(consumer_thread() / GROUP_THREADS);
    stage_rows<S>(r, factor);
    if (c.has_out_map && (group + 1) * GROUP_ROWS <= count)
        store_boxes<S>(c, w, r, group);
    else
        store_pieces<S>(c, w, r, group, count);
}

/* The block's part of an item has ended. */
template <typename S>
DEVICE void rows_end(const fi_call &c, const struct work &w, struct control *control, rows<S> &r)
{
    totals t;
    for (int h = 0; h < 2; h++) {
        t.top[h] = -r.x.shift[h];
        t.sum[h] = quad_sum(r.x.sum[h]);
    }
    if (!w.is_whole) {
        const parts p =
            find_shared(c, block_in_line(c), c.starts[(int)blockIdx.x / c.lanes], w.is_first);
        leave_part<S>(c, p, r, t);
        named_sync(BARRIER_CONSUMERS, S::consumers);
        if (consumer_thread() == 0) {
            control->is_last = add_acq_rel(p.counter, 1) == p.count - 1;
            if (control->is_last)
                *p.counter = 0;
        }
        named_sync(BARRIER_CONSUMERS, S::consumers);
        if (!control->is_last)
            return;
        take_parts<S>(c, p, r, t);
    }
    if (c.level >= 0)
        leave_prior<S>(c, w, r, t);
    else
        store_rows<S>(c, w, r, t);
}

template <typename S> DEVICE void consume(const fi_call &c, struct control *control, u32 base)
{
    place<S> at;
    ring<S::q_slots> slot;
#pragma unroll 1
    for (;;) {
        barrier_wait(shared_address(&control->q_full[slot.slot]), slot.phase);
        const struct work &w = control->work[slot.slot];
        if (w.units == 0)
            break;
        rows<S> r;
        fence_async_shared(); /* the queries */
        rows_begin<S>(c, w, base + slot.slot * S::q_bytes, r);
        attend<S>(c, w, control, base, r, at);
        rows_end<S>(c, w, control, r);
        release(shared_address(&control->q_empty[slot.slot]));
        slot.advance();
    }
}

/* ---- The kernel -------------------------------------------------------------------------------
 */

template <typename S> DEVICE void prefill(const fi_call &c, char *shared)
{
    struct control *control = (struct control *)(shared + S::control_at);
    static_assert(sizeof(struct control) <= S::control_bytes, "room for barriers and work");
    const fi_start start = c.starts[(int)blockIdx.x / c.lanes];
    const cursor at = walk_begin(&c, block_in_line(c), &start, S::keys);
    if (threadIdx.x == 0)
        control_init<S>(control);
    __syncthreads();
    grid_wait();
    grid_launch_dependents();
    clear_padding(c, S::dim_v, (int)blockIdx.x, (int)gridDim.x);
    if (uniform((int)threadIdx.x / GROUP_THREADS) == 0) {
        registers_release<S::producer_registers>();
        produce<S>(c, at, shared, control);
    } else {
        registers_take<S::consumer_registers>();
        consume<S>(c, control, shared_address(shared));
    }
}

#define CHECK_SHAPE(name, dim, v_dim, a, b, c, d, e, f, keys, stages, q_slots, shared, codes_keys, \
                    codes_stages, codes_q_slots, slots, codes_shared)                              \
    static_assert(prefill_shape<dim, v_dim, keys, stages, q_slots, 0, false>::shared_bytes ==      \
                      shared,                                                                      \
                  #name ": the table's bytes of shared memory");                                   \
    static_assert(prefill_shape<dim, v_dim, codes_keys, codes_stages, codes_q_slots, slots,        \
                                false>::shared_bytes == codes_shared,                              \
                  #name ": the table's bytes of shared memory for fp8");
FI_SHAPES(CHECK_SHAPE)
#undef CHECK_SHAPE

/* Kernels; their line in shapes.h has the same numbers. */
#define FI_PREFILL(name, dim, v_dim, keys, stages, q_slots, half)                                  \
    FI_PREFILL_CODES(name, dim, v_dim, keys, stages, q_slots, 0, half)
#define FI_PREFILL_CODES(name, dim, v_dim, keys, stages, q_slots, code_slots, half)                \
    extern "C" __global__ void __launch_bounds__(3 * GROUP_THREADS, 1)                             \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        prefill<prefill_shape<dim, v_dim, keys, stages, q_slots, code_slots, half>>(c, shared);    \
    }

#endif /* PLANNED_PREFILL_CUH */
