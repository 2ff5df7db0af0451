/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_feed.cuh: the copying warpgroup of prefill.cuh. A warp copies a quarter of each unit's
 * keys and their values. For half tiles over fp8, one warpgroup copies keys and another copies
 * values:
 *
 *   Q 0 | K V | K V | ... all stages filled | look up item 1, Q 1 | K V | K V | ... | K V ...
 *
 * It looks keys up one unit ahead, continues with the next item while the math warps process this
 * one, and describes each item to them. New keys are read from k and v, others from the cache:
 *
 *   boxes   runs of units whose keys are all in boxes: feed_boxes()
 *   rows    the same for pages without whole boxes, if rows are aligned: feed_rows()
 *   any     other units: cached and new keys, the end, unaligned rows: feed_unit()
 *   codes   fp8 keys, converted to the queries' type while copied: prefill_codes.cuh
 */
#ifndef FI_PREFILL_FEED_CUH
#define FI_PREFILL_FEED_CUH

#include "plugins/flashinfer_like/kernels/prefill_half_codes.cuh"
#include "plugins/flashinfer_like/kernels/prefill_queries.cuh"

/* ---- A unit -------------------------------------------------------------------------------- */

/* A warp's keys of a unit. `key`, `entry`: this lane's key and its table entry; `hi`: the end of
 * the keys to copy; `boxes`, `rows`: lanes whose key is copied in a box of `box` keys, or row by
 * row. */
struct unit_feed {
    int key, entry, hi, head, box;
    u32 boxes, rows;
};

/* New keys are copied in one box, cached keys in one or two. A box that would have keys of both
 * kinds, or end after them, is copied row by row. */
template <typename S>
DEVICE void unit_begin(const fi_call &c, const index_sequence &q, unit_feed &f)
{
    int lane = (int)threadIdx.x & 31, mine = lane % S::warp_keys;
    bool is_new = f.key - mine >= q.first_new, is_mine = lane < S::warp_keys;
    f.box = is_new ? S::warp_keys : min(c.box_keys, S::warp_keys);
    int first = f.key - mine % f.box;
    bool is_box =
        first < f.hi && (is_new ? c.has_new_maps : c.has_maps && first + f.box <= q.first_new);
    bool is_row = !is_box && f.key - mine % FI_GROUP < f.hi;
    f.boxes = __ballot_sync(~0u, is_box && is_mine);
    f.rows = __ballot_sync(~0u, is_row && is_mine);
}

/* Starts the copies of groups row by row. */
template <typename S, int dim>
DEVICE void start_rows(const fi_call &c, const index_sequence &q, const unit_feed &f, bool values,
                       char *to, u32 barrier)
{
    index_place place = find_key(c, q, f.head, min(f.key, f.hi - 1), f.entry);
    u64 mine = (u64)(values ? place.v : place.k);
#pragma unroll 1
    for (int part = 0; part < S::parts; part++) {
        int first = __shfl_sync(~0u, f.key, part * FI_GROUP);
        bool aligned = has_aligned(c, q, first);
        if (!(f.rows >> part * FI_GROUP & 1))
            continue;
        char *group = to + part * FI_GROUP * ROW_BYTES;
        if (aligned)
            copy_rows<dim * 2, S::panel_bytes>(mine, part * FI_GROUP, shared_address(group));
        else
            copy_rows_slow<dim, S::panel_bytes>(mine, part * FI_GROUP, group);
    }
    barrier_expect_copies(barrier);
}

/* Starts the boxes, one per lane. */
template <typename S, int panels>
DEVICE void start_boxes(const fi_call &c, const index_sequence &q, const unit_feed &f,
                        const fi_tensor_map *cache, const fi_tensor_map *fresh, u32 to, u32 barrier)
{
    int lane = (int)threadIdx.x & 31, panel = lane % panels;
    int mine = lane / panels * f.box; /* the box's first key among this warp's keys */
    int first = __shfl_sync(~0u, f.key, mine & 31), page = __shfl_sync(~0u, f.entry, mine & 31);
    bool is_new = first >= q.first_new;
    if (lane == 0)
        barrier_arrive_expect(barrier, __popc(f.boxes) * panels * ROW_BYTES);
    __syncwarp();
    if (mine < S::warp_keys && f.boxes >> mine & 1)
        tensor_load(to + panel * S::panel_bytes + mine * ROW_BYTES, is_new ? fresh : cache, barrier,
                    panel * PANEL, is_new ? q.new_row + first - q.new_key : box_offset(c, first),
                    f.head, is_new ? 0 : page);
}

/* Copies a unit of any kind. */
template <typename S>
DEVICE void feed_unit(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                      ring<S::stages> &stage)
{
    unit_feed f;
    f.key = first + (int)(threadIdx.x & 31) % S::warp_keys;
    f.hi = w.hi;
    f.head = w.at.head;
    f.entry = look_up(c, w.q, f.key, f.hi);
    unit_begin<S>(c, w.q, f);
    barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
    char *to = m.keys + stage.slot * S::k_bytes;
    if (f.rows)
        start_rows<S, S::dim>(c, w.q, f, false, to, m.k_full + 8 * stage.slot);
    start_boxes<S, S::panels>(c, w.q, f, &c.k_map, &c.k_new_map, shared_address(to),
                              m.k_full + 8 * stage.slot);
    barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
    to = m.values + stage.slot * S::v_bytes;
    if (f.rows)
        start_rows<S, S::dim_v>(c, w.q, f, true, to, m.v_full + 8 * stage.slot);
    start_boxes<S, S::panels_v>(c, w.q, f, &c.v_map, &c.v_new_map, shared_address(to),
                                m.v_full + 8 * stage.slot);
    stage.advance();
}

/* ---- Units --------------------------------------------------------------------------------- */

/* Copies units whose keys are all in boxes: lanes 0 to 15 start boxes of keys, the others boxes of
 * values. The loop is short because a warp takes some five cycles per instruction, even without
 * waits. Boxes may extend after the sequence's end: no row sees these keys. */
template <typename S, bool is_new>
DEVICE void feed_boxes(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                       int units, ring<S::stages> &stage)
{
    const int lane = (int)threadIdx.x & 31, i = lane % 16;
    const bool is_value = lane >= 16;
    const int box = is_new ? S::warp_keys : min(c.box_keys, S::warp_keys);
    const int part = box * (is_value ? i / S::panels_v : i / S::panels);
    const int panel = is_value ? i % S::panels_v : i % S::panels;
    const bool is_key_box = !is_value && part < S::warp_keys;
    const bool is_value_box = is_value && part < S::warp_keys;
    const fi_tensor_map *map = is_value ? is_new ? &c.v_new_map : &c.v_map
                               : is_new ? &c.k_new_map
                                        : &c.k_map;
    const u32 to =
        shared_address(is_value ? m.values : m.keys) + panel * S::panel_bytes + part * ROW_BYTES;
    const int head = w.at.head, column = panel * PANEL, last = w.hi - 1;
    const int *table = is_new ? 0 : w.q.table;
    int key = first + part, at = is_new ? w.q.new_row + key - w.q.new_key : 0;
    auto find_page = [&]() {
        return table[min(S::backwards ? max(key, 0) : key, last) >> c.page_shift];
    };
    int page = is_new ? 0 : find_page();
#pragma unroll 1
    for (; units > 0; units--) {
        int next = 0;
        if (!is_new) {
            at = key & ((1 << c.page_shift) - 1);
            key += S::step;
            next = find_page();
        }
        barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
        if (lane == 0)
            barrier_arrive_expect(m.k_full + 8 * stage.slot, S::warp_keys * S::panels * ROW_BYTES);
        __syncwarp();
        if (is_key_box)
            tensor_load(to + stage.slot * S::k_bytes, map, m.k_full + 8 * stage.slot, column, at,
                        head, page);
        __syncwarp();
        barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
        if (lane == 0)
            barrier_arrive_expect(m.v_full + 8 * stage.slot,
                                  S::warp_keys * S::panels_v * ROW_BYTES);
        __syncwarp();
        if (is_value_box)
            tensor_load(to + stage.slot * S::v_bytes, map, m.v_full + 8 * stage.slot, column, at,
                        head, page);
        __syncwarp();
        if (is_new)
            at += S::step;
        else
            page = next;
        stage.advance();
    }
}

/* Copies a warp's part of a unit's keys, or of its values. `mine`: the address of this lane's
 * row. */
template <typename S, int dim> DEVICE void copy_part(u64 mine, u32 to, u32 barrier)
{
#pragma unroll
    for (int part = 0; part < S::parts; part++)
        copy_rows<dim * 2, S::panel_bytes>(mine, part * FI_GROUP, to + part * FI_GROUP * ROW_BYTES);
    barrier_expect_copies(barrier);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(barrier);
}

/* Copies cached units row by row. Table entries are read one unit ahead. */
template <typename S>
DEVICE void feed_rows(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                      int units, ring<S::stages> &stage)
{
    const int last = min(w.hi, w.q.first_new) - 1;
    int key = first + (int)(threadIdx.x & 31) % S::warp_keys;
    auto here = [&]() { return min(S::backwards ? max(key, 0) : key, last); };
    int entry = *find_entry(c, w.q, here());
#pragma unroll 1
    for (; units > 0; units--) {
        const index_place place = find_key(c, w.q, w.at.head, here(), entry);
        key += S::step;
        entry = *find_entry(c, w.q, here());
        barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
        copy_part<S, S::dim>((u64)place.k, shared_address(m.keys) + stage.slot * S::k_bytes,
                             m.k_full + 8 * stage.slot);
        barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
        copy_part<S, S::dim_v>((u64)place.v, shared_address(m.values) + stage.slot * S::v_bytes,
                               m.v_full + 8 * stage.slot);
        stage.advance();
    }
}

/* Copies units from the warp's key `first` on. */
template <typename S>
DEVICE void feed_elements(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                          int units, ring<S::stages> &stage)
{
#pragma unroll 1
    while (units > 0) {
        int count = 1, cached = w.q.first_new - S::warp_keys - first;
        if (first >= w.q.first_new && c.has_new_maps) {
            if constexpr (S::backwards)
                count = min(units, (first - w.q.first_new) / S::keys + 1);
            feed_boxes<S, true>(c, w, m, first, S::backwards ? count : units, stage);
            if constexpr (!S::backwards)
                return;
        } else if (cached >= 0 && c.has_maps && c.page_shift >= 0 && w.hi > 0) {
            count = S::backwards ? units : min(units, cached / S::keys + 1);
            feed_boxes<S, false>(c, w, m, first, count, stage);
        } else if (cached >= 0 && !c.has_maps && w.hi > 0 &&
                   c.operands.aligned & CALL_ALIGNED_CACHE) {
            count = S::backwards ? units : min(units, cached / S::keys + 1);
            feed_rows<S>(c, w, m, first, count, stage);
        } else {
            feed_unit<S>(c, w, m, first, stage);
        }
        first += count * S::step;
        units -= count;
    }
}

/* The number of units to copy from the `begin`th on. The first count fills the stages, before the
 * next item is looked up. A count never crosses the tile's gap. */
template <typename S> DEVICE int count_units(const struct work &w, int begin)
{
    const int left = w.units - begin, before = S::backwards
                                                   ? unit_at<S>(w, begin) - w.at.tile.gap + 1
                                                   : w.at.tile.gap - w.at.unit - begin;
    const int count = begin > 0 ? left : min(left, S::stages);
    return before > 0 ? min(before, count) : count;
}

template <typename S>
DEVICE void feed_units(const fi_call &c, const struct work &w, const feed_memory &m, bool is_value,
                       int begin, int units, ring<S::stages> &stage, code_ring<S> &codes)
{
    int first =
        plan_unit_key(&w.at.tile, S::keys, unit_at<S>(w, begin)) + warp_part() * S::warp_keys;
    if constexpr (S::feeders > 1) {
        feed_side<S>(c, w, m, is_value, first, units, stage, codes);
    } else if constexpr (S::codes) {
        feed_codes<S>(c, w, m, first, units, stage, codes);
    } else {
        feed_elements<S>(c, w, m, first, units, stage);
    }
}

/* ---- Items --------------------------------------------------------------------------------- */

DEVICE int units_here(const cursor &at)
{
    return min(at.units - at.unit, at.left);
}

/* Describes the cursor's item. Values that other queries of the sequence see are copied even if no
 * row of the tile sees them, as they may be multiplied by 0. For a tile without keys, nothing is
 * copied. */
template <typename S>
DEVICE void find_work(const fi_call &c, const cursor &at, bool is_first, struct work *to)
{
    const mask_rule rule = rule_of(c);
    struct work w = {at};
    w.units = max(units_here(at), 0);
    w.is_whole = w.units == at.units;
    w.is_first = is_first;
    if (w.units > 0)
        index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &w.q);
    if (w.units > 0 && at.tile.hi > at.tile.lo)
        mask_outline(&rule, &c.batch, &w.q, 0, w.q.q_len - 1, &w.lo, &w.hi);
    w.has_rows = !S::codes && !c.has_new_maps;
    if (!S::codes && w.units > 0 && w.q.first_new > at.tile.lo)
        w.has_rows |= !c.has_maps || (w.q.first_new - at.tile.lo) % S::warp_keys;
    w.new_from = w.q.first_new;
    w.gap_key = at.tile.lo + at.tile.gap * S::keys + (S::backwards ? at.tile.skip - S::keys : 0);
    if (S::codes && c.saved)
        w.q.first_new = w.q.kv_len;
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        *to = w;
    __syncwarp();
}

/* The cursor of the next item. */
template <typename S> DEVICE cursor after(const fi_call &c, const struct work &w)
{
    cursor at = w.at;
    at.unit += w.units - 1;
    at.left -= w.units - 1;
    walk_next(&c, block_in_line(c), &at, S::keys);
    return at;
}

/* The loop of a copying warp. Once the stages are full, it looks the next item up and, if there is
 * room, fetches its queries. For the first item it reads the plan and the batch before the previous
 * kernel ends. `is_value`: what this warpgroup copies, if two copy. */
template <typename S>
DEVICE void produce(const fi_call &c, const cursor &at, char *shared, struct control *control,
                    bool is_value)
{
    struct work *w = control->feeds[warp_part()];
    if (S::feeders > 1 && is_value)
        w = ((struct two_feeds *)control)->value_feeds[warp_part()];
    struct work *next = w + 1;
    const int mine = warp_part() * S::warp_keys * ROW_BYTES;
    const feed_memory m = {
        shared + S::k_at + mine,
        shared + S::v_at + mine,
        shared_address(control->k_full),
        shared_address(control->k_empty),
        shared_address(control->v_full),
        shared_address(control->v_empty),
        shared_address(shared) + S::k_codes_at + warp_part() * S::warp_code_bytes,
        shared_address(shared) + S::v_codes_at + warp_part() * S::warp_code_v_bytes,
        shared_address(control->k_codes[warp_part()]),
        shared_address(control->v_codes[warp_part()])};
    ring<S::stages> stage;
    code_ring<S> codes;
    ring<S::q_slots> slot;
    auto start = [&](const struct work &item) {
        if (S::feeders > 1 && !is_value)
            return; /* the warpgroup for keys copies the queries */
        barrier_wait(shared_address(&control->q_empty[slot.slot]), slot.phase ^ 1);
        start_item<S>(c, item, shared, control, slot.slot);
        slot.advance();
    };
    find_work<S>(c, at, true, w);
    pdl_wait();
    start(*w);
#pragma unroll 1
    while (w->units > 0) {
#pragma unroll 1
        for (int begin = 0, count; begin < w->units; begin += count) {
            count = count_units<S>(*w, begin);
            feed_units<S>(c, *w, m, is_value, begin, count, stage, codes);
            if (begin > 0)
                continue;
            find_work<S>(c, after<S>(c, *w), false, next);
            if (S::q_slots > 1)
                start(*next);
        }
        if (S::q_slots == 1)
            start(*next);
        struct work *done = w;
        w = next;
        next = done;
    }
}

#endif /* FI_PREFILL_FEED_CUH */
