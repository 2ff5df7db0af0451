/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_feed.cuh: the warpgroup of wide.cuh that copies. As in prefill_feed.cuh, but a warp has a
 * quarter of the columns of all keys of a unit, not all columns of a quarter of the keys:
 *
 *   warp 0: panels 0, 1 of Q | of K, of V | of K, of V | ... | of Q | ...
 *   warp 1: panels 2, 3, and so on
 *
 * So a box has up to 32 keys, and there are few of them.
 */
#ifndef FI_WIDE_FEED_CUH
#define FI_WIDE_FEED_CUH

#include "plugins/flashinfer_like/kernels/prefill_feed.cuh"
#include "plugins/flashinfer_like/kernels/wide_stages.cuh"

/* ---- Queries ------------------------------------------------------------------------------- */

/* A warp's columns of 16 rows from r on, whose places lanes 0 to 15 find. Rows that are not there
 * are copies of the last. */
template <typename S>
DEVICE void copy_sixteen(const fi_call &c, const row_finder &finder, int r, int last, char *to)
{
    constexpr int bytes = S::warp_panels * ROW_BYTES, panel_bytes = GROUP_ROWS * ROW_BYTES;
    i64 row;
    int head;
    find_row(finder, min(r + (int)(threadIdx.x & 15), last), &row, &head);
    const u64 mine = (u64)((const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + warp_part() * bytes);
    to += warp_part() * S::warp_panels * panel_bytes + r * ROW_BYTES;
    if (c.operands.aligned & CALL_ALIGNED_Q)
        copy_rows<bytes, panel_bytes>(mine, 0, to);
    else
        copy_rows_slow<bytes / 2, panel_bytes>(mine, 0, to);
}

/* Tell the item to the others, and start the copy of its queries. Rows after the last sixteen stay
 * what they were: nothing that comes of them is stored. */
template <typename S>
DEVICE void wide_start(const fi_call &c, const struct work &w, char *shared,
                       struct control *control, int slot)
{
    const u32 full = shared_address(&control->q_full[0]);
    if (threadIdx.x == 0)
        control->work[slot] = w;
    if (w.units > 0) {
        const int last = item_rows(c, w.q, w.at.tile, S::rows) - 1;
        const row_finder finder = find_rows(c, w);
#pragma unroll 1
        for (int r = 0; r <= last; r += GROUP_KEYS)
            copy_sixteen<S>(c, finder, r, last, shared);
    }
    barrier_expect_copies(full);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(full);
}

/* ---- A unit -------------------------------------------------------------------------------- */

/* Groups of 16 keys that come row by row. */
template <typename S, int panels>
DEVICE void wide_rows(const fi_call &c, const index_sequence &q, const unit_feed &f, bool values,
                      char *to, u32 barrier)
{
    constexpr int bytes = panels * ROW_BYTES;
    const index_place place = find_key(c, q, f.head, min(f.key, f.hi - 1), f.entry);
    const u64 mine = (u64)(values ? place.v : place.k) + warp_part() * bytes;
#pragma unroll 1
    for (int part = 0; part < S::parts; part++) {
        const int first = __shfl_sync(~0u, f.key, part * GROUP_KEYS);
        const bool aligned = has_aligned(c, q, first);
        if (!(f.rows >> part * GROUP_KEYS & 1))
            continue;
        char *group = to + part * GROUP_KEYS * ROW_BYTES;
        if (aligned)
            copy_rows<bytes, S::panel_bytes>(mine, part * GROUP_KEYS, group);
        else
            copy_rows_slow<bytes / 2, S::panel_bytes>(mine, part * GROUP_KEYS, group);
    }
    barrier_expect_copies(barrier);
}

/* The boxes, a lane each. */
template <typename S, int panels>
DEVICE void wide_boxes(const fi_call &c, const index_sequence &q, const unit_feed &f,
                       const fi_tensor_map *cache, const fi_tensor_map *fresh, u32 to, u32 barrier)
{
    const int lane = (int)threadIdx.x & 31, panel = lane % panels, mine = lane / panels * f.box;
    const int first = __shfl_sync(~0u, f.key, mine & 31);
    const int page = __shfl_sync(~0u, f.entry, mine & 31);
    const bool is_new = first >= q.first_new;
    if (lane == 0)
        barrier_arrive_expect(barrier, __popc(f.boxes) * panels * ROW_BYTES);
    __syncwarp();
    if (mine < S::warp_keys && f.boxes >> mine & 1)
        tensor_load(to + panel * S::panel_bytes + mine * ROW_BYTES, is_new ? fresh : cache, barrier,
                    (warp_part() * panels + panel) * PANEL,
                    is_new ? q.new_row + first - q.new_key : box_offset(c, first), f.head,
                    is_new ? 0 : page);
}

/* A unit whose keys come in any way. */
template <typename S>
DEVICE void wide_unit(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                      ring<S::stages> &stage)
{
    unit_feed f;
    f.key = first + (int)(threadIdx.x & 31);
    f.hi = w.hi;
    f.head = w.at.head;
    f.entry = look_up(c, w.q, f.key, f.hi);
    unit_begin<S>(c, w.q, f);
    const u32 k_full = m.k_full + 8 * stage.slot, v_full = m.v_full + 8 * stage.slot;
    barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
    char *to = m.keys + stage.slot * S::k_bytes;
    if (f.rows)
        wide_rows<S, S::warp_panels>(c, w.q, f, false, to, k_full);
    wide_boxes<S, S::warp_panels>(c, w.q, f, &c.k_map, &c.k_new_map, shared_address(to), k_full);
    barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
    to = m.values + stage.slot * S::v_bytes;
    if (f.rows)
        wide_rows<S, S::warp_panels_v>(c, w.q, f, true, to, v_full);
    wide_boxes<S, S::warp_panels_v>(c, w.q, f, &c.v_map, &c.v_new_map, shared_address(to), v_full);
    stage.advance();
}

/* ---- Units --------------------------------------------------------------------------------- */

/* Units whose keys all come in boxes: of keys by lanes 0 to 15, of values by the others. */
template <typename S, bool is_new>
DEVICE void wide_run(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                     int units, ring<S::stages> &stage)
{
    constexpr int panels = S::warp_panels;
    static_assert(panels == S::warp_panels_v && 16 / panels * FI_GROUP >= S::keys, "lanes");
    const int lane = (int)threadIdx.x & 31, panel = lane % panels;
    const int box = is_new ? S::keys : min(c.box_keys, S::keys), part = box * (lane % 16 / panels);
    const bool is_value = lane >= 16, is_mine = part < S::keys;
    const fi_tensor_map *map = is_value ? is_new ? &c.v_new_map : &c.v_map
                               : is_new ? &c.k_new_map
                                        : &c.k_map;
    const u32 to =
        shared_address(is_value ? m.values : m.keys) + panel * S::panel_bytes + part * ROW_BYTES;
    const int head = w.at.head, column = (warp_part() * panels + panel) * PANEL, last = w.hi - 1;
    const int *table = is_new ? 0 : w.q.table;
    int key = first + part, at = is_new ? w.q.new_row + key - w.q.new_key : 0;
    int page = is_new ? 0 : table[min(key, last) >> c.page_shift];
#pragma unroll 1
    for (; units > 0; units--) {
        const u32 k_full = m.k_full + 8 * stage.slot, v_full = m.v_full + 8 * stage.slot;
        int next = 0;
        if (!is_new) {
            at = key & ((1 << c.page_shift) - 1);
            key += S::keys;
            next = table[min(key, last) >> c.page_shift];
        }
        barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
        if (lane == 0)
            barrier_arrive_expect(k_full, S::keys * panels * ROW_BYTES);
        __syncwarp();
        if (is_mine && !is_value)
            tensor_load(to + stage.slot * S::k_bytes, map, k_full, column, at, head, page);
        __syncwarp();
        barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
        if (lane == 0)
            barrier_arrive_expect(v_full, S::keys * panels * ROW_BYTES);
        __syncwarp();
        if (is_mine && is_value)
            tensor_load(to + stage.slot * S::v_bytes, map, v_full, column, at, head, page);
        __syncwarp();
        if (is_new)
            at += S::keys;
        else
            page = next;
        stage.advance();
    }
}

/* Units from key `first` on. */
template <typename S>
DEVICE void wide_units(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                       int units, ring<S::stages> &stage)
{
#pragma unroll 1
    while (units > 0) {
        int count = 1;
        const int cached = w.q.first_new - S::keys - first;
        if (first >= w.q.first_new && c.has_new_maps) {
            wide_run<S, true>(c, w, m, first, units, stage);
            return;
        }
        if (cached >= 0 && c.has_maps && c.page_shift >= 0 && w.hi > 0) {
            count = min(units, cached / S::keys + 1);
            wide_run<S, false>(c, w, m, first, count, stage);
        } else {
            wide_unit<S>(c, w, m, first, stage);
        }
        first += count * S::keys;
        units -= count;
    }
}

/* ---- Items --------------------------------------------------------------------------------- */

/* The next item is looked up when as much of this one is on its way as the stages hold; its queries
 * come when this one's scores are done. */
template <typename S>
DEVICE void wide_produce(const fi_call &c, const cursor &at, char *shared, struct control *control)
{
    struct work *w = control->feeds[warp_part()], *next = w + 1;
    const feed_memory m = {shared + S::k_at + warp_part() * S::warp_panels * S::panel_bytes,
                           shared + S::v_at + warp_part() * S::warp_panels_v * S::panel_bytes,
                           shared_address(control->k_full),
                           shared_address(control->k_empty),
                           shared_address(control->v_full),
                           shared_address(control->v_empty)};
    ring<S::stages> stage;
    ring<1> item;
    auto start = [&](const struct work &of) {
        barrier_wait(shared_address(&control->q_empty[0]), item.phase ^ 1);
        wide_start<S>(c, of, shared, control, item.phase);
        item.advance();
    };
    find_work<S>(c, at, true, w);
    grid_wait();
    start(*w);
#pragma unroll 1
    while (w->units > 0) {
#pragma unroll 1
        for (int begin = 0, count; begin < w->units; begin += count) {
            count = count_units<S>(*w, begin);
            wide_units<S>(c, *w, m, plan_unit_key(&w->at.tile, S::keys, w->at.unit + begin), count,
                          stage);
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
