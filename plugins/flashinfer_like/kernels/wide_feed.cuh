/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_feed.cuh: the copying warpgroup of wide.cuh. As in prefill_feed.cuh, but a warp copies half
 * of the columns of all keys or of all values, not both for a quarter of the keys:
 *
 *   warps 0, 1: Q, half by half | K | K | ... | K | Q, half by half | K ...
 *   warps 2, 3: V | V | ...                             | V | V ...
 *
 * So boxes have up to 32 keys and are few, and keys do not wait for room for values.
 */
#ifndef FI_WIDE_FEED_CUH
#define FI_WIDE_FEED_CUH

#include "plugins/flashinfer_like/kernels/prefill_feed.cuh"
#include "plugins/flashinfer_like/kernels/wide_stages.cuh"

/* What a warp copies, and its position in the stages. */
struct wide_feed {
    bool values;
    int column; /* the first one */
    char *to;   /* of the first stage */
    u32 full, empty;
    const fi_tensor_map *cache, *fresh;
    int stages, slot;
    unsigned phase;
};

template <typename S> DEVICE char *feed_slot(const wide_feed &f)
{
    static_assert(S::k_bytes == S::v_bytes, "one number for both");
    return f.to + f.slot * S::k_bytes;
}

DEVICE void feed_wait(const wide_feed &f)
{
    barrier_wait(f.empty + 8 * f.slot, f.phase ^ 1);
}

DEVICE void feed_advance(wide_feed &f)
{
    if (++f.slot == f.stages) {
        f.slot = 0;
        f.phase ^= 1;
    }
}

/* ---- Queries ------------------------------------------------------------------------------- */

/* Copies some panels of an item's queries, from `column` on, 16 rows at a time, whose addresses
 * lanes 0 to 15 compute. Rows after the last are copies of it up to the next 16, and keep their old
 * contents after that; their results are not stored. */
template <typename S, int panels>
DEVICE void copy_panels(const fi_call &c, const struct work &w, int column, char *to)
{
    constexpr int panel_bytes = S::rows * ROW_BYTES;
    const int last = item_rows(c, w.q, w.at.tile, S::rows) - 1;
    const row_finder finder = find_rows(c, w);
#pragma unroll 1
    for (int r = 0; r <= last; r += GROUP_KEYS, to += GROUP_KEYS * ROW_BYTES) {
        i64 row;
        int head;
        find_row(finder, min(r + (int)(threadIdx.x & 15), last), &row, &head);
        const u64 mine = (u64)((const char *)c.operands.q + row * c.operands.q_row +
                               head * c.operands.q_head + column * 2);
        if (c.operands.aligned & CALL_ALIGNED_Q)
            copy_rows<panels * ROW_BYTES, panel_bytes>(mine, 0, shared_address(to));
        else
            copy_rows_slow<panels * PANEL, panel_bytes>(mine, 0, to);
    }
}

/* Arrives for this warp, once its copies so far have completed. */
DEVICE void copies_end(u32 full)
{
    barrier_expect_copies(full);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(full);
}

/* The same by boxes, for more rows, if a box has whole queries. Rows after the last have any
 * contents. */
template <typename S, int panels>
DEVICE void load_panels(const fi_call &c, const struct work &w, int column, u32 to, u32 full)
{
    constexpr int bytes = S::rows * ROW_BYTES;
    const int lane = (int)threadIdx.x & 31;
    if (lane == 0)
        barrier_arrive_expect(full, panels * bytes);
    __syncwarp();
    if (lane < panels)
        tensor_load(to + lane * bytes, &c.out_map, full, column + lane * PANEL, w.at.head * c.ratio,
                    w.q.first_row + w.at.tile.row0 / c.ratio, 0);
}

template <typename S>
DEVICE void feed_queries(const fi_call &c, const struct work &w, int column, char *to, u32 full)
{
    constexpr int panels = S::held / S::copiers;
    column += warp_part() * panels * PANEL;
    to += warp_part() * panels * S::rows * ROW_BYTES;
    if (c.has_out_map && item_rows(c, w.q, w.at.tile, S::rows) > GROUP_KEYS) {
        load_panels<S, panels>(c, w, column, shared_address(to), full);
        return;
    }
    copy_panels<S, panels>(c, w, column, to);
    copies_end(full);
}

/* Publishes the item, and starts the copies of its queries. */
template <typename S>
DEVICE void wide_start(const fi_call &c, const struct work &w, char *shared,
                       struct control *control, int place, wide_feed &f)
{
    const u32 full = shared_address(&control->q_full[0]);
    static_assert(2 * S::held == S::panels, "both halves alike");
    if (threadIdx.x == 0)
        control->work[place] = w;
    if (w.units == 0) {
        copies_end(full);
        return;
    }
    feed_queries<S>(c, w, 0, shared, full);
    feed_wait(f);
    feed_queries<S>(c, w, S::dim / 2, shared + S::k_at + f.slot * S::k_bytes, f.full + 8 * f.slot);
    feed_advance(f);
}

/* ---- A unit -------------------------------------------------------------------------------- */

/* Copies groups of 16 keys row by row. */
template <typename S>
DEVICE void feed_rows(const fi_call &c, const index_sequence &q, const unit_feed &u,
                      const wide_feed &f)
{
    constexpr int bytes = S::warp_panels * ROW_BYTES;
    const index_place place = find_key(c, q, u.head, min(u.key, u.hi - 1), u.entry);
    const u64 mine = (u64)(f.values ? place.v : place.k) + f.column * 2;
#pragma unroll 1
    for (int part = 0; part < S::parts; part++) {
        const int first = __shfl_sync(~0u, u.key, part * GROUP_KEYS);
        const bool aligned = has_aligned(c, q, first);
        if (!(u.rows >> part * GROUP_KEYS & 1))
            continue;
        char *group = feed_slot<S>(f) + part * GROUP_KEYS * ROW_BYTES;
        if (aligned)
            copy_rows<bytes, S::panel_bytes>(mine, part * GROUP_KEYS, shared_address(group));
        else
            copy_rows_slow<bytes / 2, S::panel_bytes>(mine, part * GROUP_KEYS, group);
    }
    barrier_expect_copies(f.full + 8 * f.slot);
    __syncwarp(); /* before the warp's arrival */
}

/* Copies a unit of any kind: boxes, one per lane, and rows. */
template <typename S>
DEVICE void feed_any(const fi_call &c, const struct work &w, int first, wide_feed &f)
{
    const int lane = (int)threadIdx.x & 31, panel = lane % S::warp_panels;
    unit_feed u;
    u.key = first + lane;
    u.hi = w.hi;
    u.head = w.at.head;
    u.entry = look_up(c, w.q, u.key, u.hi);
    unit_begin<S>(c, w.q, u);
    const int mine = lane / S::warp_panels * u.box;
    const int key = __shfl_sync(~0u, u.key, mine & 31), page = __shfl_sync(~0u, u.entry, mine & 31);
    const bool is_new = key >= w.q.first_new;
    feed_wait(f);
    if (u.rows)
        feed_rows<S>(c, w.q, u, f);
    if (lane == 0)
        barrier_arrive_expect(f.full + 8 * f.slot, __popc(u.boxes) * S::warp_panels * ROW_BYTES);
    __syncwarp();
    if (mine < S::keys && u.boxes >> mine & 1)
        tensor_load(shared_address(feed_slot<S>(f)) + panel * S::panel_bytes + mine * ROW_BYTES,
                    is_new ? f.fresh : f.cache, f.full + 8 * f.slot, f.column + panel * PANEL,
                    is_new ? w.q.new_row + key - w.q.new_key : box_offset(c, key), u.head,
                    is_new ? 0 : page);
    feed_advance(f);
}

/* ---- Units --------------------------------------------------------------------------------- */

/* Copies units whose keys are all in boxes. */
template <typename S, bool is_new>
DEVICE void feed_run(const fi_call &c, const struct work &w, int first, int units, wide_feed &f)
{
    static_assert(32 / S::warp_panels * FI_GROUP >= S::keys, "lanes for the boxes");
    const int lane = (int)threadIdx.x & 31, panel = lane % S::warp_panels;
    const int part = (is_new ? S::keys : min(c.box_keys, S::keys)) * (lane / S::warp_panels);
    const fi_tensor_map *map = is_new ? f.fresh : f.cache;
    const u32 to = shared_address(f.to) + panel * S::panel_bytes + part * ROW_BYTES;
    const int head = w.at.head, column = f.column + panel * PANEL, last = w.hi - 1;
    const int *table = is_new ? 0 : w.q.table;
    int key = first + part, at = is_new ? w.q.new_row + key - w.q.new_key : 0;
    int page = is_new ? 0 : table[min(key, last) >> c.page_shift];
#pragma unroll 1
    for (; units > 0; units--) {
        const u32 full = f.full + 8 * f.slot;
        int next = 0;
        if (!is_new) {
            at = key & ((1 << c.page_shift) - 1);
            key += S::keys;
            next = table[min(key, last) >> c.page_shift];
        }
        feed_wait(f);
        if (lane == 0)
            barrier_arrive_expect(full, S::keys * S::warp_panels * ROW_BYTES);
        __syncwarp();
        if (part < S::keys)
            tensor_load(to + f.slot * S::k_bytes, map, full, column, at, head, page);
        __syncwarp();
        if (is_new)
            at += S::keys;
        else
            page = next;
        feed_advance(f);
    }
}

/* Copies units from key `first` on. */
template <typename S>
DEVICE void feed_keys(const fi_call &c, const struct work &w, int first, int units, wide_feed &f)
{
#pragma unroll 1
    while (units > 0) {
        int count = 1;
        const int cached = w.q.first_new - S::keys - first;
        if (first >= w.q.first_new && c.has_new_maps) {
            feed_run<S, true>(c, w, first, units, f);
            return;
        }
        if (cached >= 0 && c.has_maps && c.page_shift >= 0 && w.hi > 0) {
            count = min(units, cached / S::keys + 1);
            feed_run<S, false>(c, w, first, count, f);
        } else {
            feed_any<S>(c, w, first, f);
        }
        first += count * S::keys;
        units -= count;
    }
}

/* ---- Items --------------------------------------------------------------------------------- */

template <typename S>
DEVICE wide_feed find_feed(const fi_call &c, char *shared, struct control *control)
{
    const int half = warp_part() % S::copiers, panel = half * S::warp_panels;
    wide_feed f = {warp_part() >= S::copiers, panel * PANEL};
    f.to = shared + (f.values ? S::v_at : S::k_at) + panel * S::panel_bytes;
    f.full = shared_address(f.values ? control->v_full : control->k_full);
    f.empty = shared_address(f.values ? control->v_empty : control->k_empty);
    f.cache = f.values ? &c.v_map : &c.k_map;
    f.fresh = f.values ? &c.v_new_map : &c.k_new_map;
    f.stages = f.values ? S::stages : S::k_stages;
    return f;
}

/* The loop of a copying warp. It looks the next item up once some units of this one are in flight.
 * The next item's queries are copied after this one's scores. */
template <typename S>
DEVICE void wide_produce(const fi_call &c, const cursor &at, char *shared, struct control *control)
{
    struct work *w = control->feeds[warp_part()], *next = w + 1;
    wide_feed f = find_feed<S>(c, shared, control);
    ring<1> item;
    auto start = [&](const struct work &of) {
        if (f.values)
            return;
        barrier_wait(shared_address(&control->q_empty[0]), item.phase ^ 1);
        wide_start<S>(c, of, shared, control, item.phase, f);
        item.advance();
    };
    find_work<S>(c, at, true, w);
    pdl_wait();
    start(*w);
#pragma unroll 1
    while (w->units > 0) {
#pragma unroll 1
        for (int begin = 0, count; begin < w->units; begin += count) {
            count = count_units<S>(*w, begin);
            feed_keys<S>(c, *w, plan_unit_key(&w->at.tile, S::keys, w->at.unit + begin), count, f);
            if (begin == 0)
                find_work<S>(c, after<S>(c, *w), false, next);
        }
        start(*next);
        struct work *done = w;
        w = next;
        next = done;
    }
}

#endif /* FI_WIDE_FEED_CUH */
