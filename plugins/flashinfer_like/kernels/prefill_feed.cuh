/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_feed.cuh: the warpgroup of prefill.cuh that copies. A warp has a quarter of each unit's
 * keys, and their values; of half a tile over fp8, one has keys and another has values:
 *
 *   Q 0 | K V | K V | ... as many as stages hold | what is item 1? Q 1 | K V | K V | ... | K V ...
 *
 * It looks keys up a unit before, goes on to the next item while this one is worked on, and tells
 * those who multiply what the item is. New keys are read from k and v, the others from the cache:
 *
 *   boxes   runs of units whose keys all come in boxes: feed_boxes()
 *   rows    the same of pages that have no whole boxes, if rows are aligned: feed_rows()
 *   any     a unit of old and new keys, an end, rows that are not aligned: feed_unit()
 *   codes   those of a cache of e4m3 become what queries are on their way: prefill_codes.cuh
 */
#ifndef FI_PREFILL_FEED_CUH
#define FI_PREFILL_FEED_CUH

#include "plugins/flashinfer_like/kernels/prefill_half_codes.cuh"
#include "plugins/flashinfer_like/kernels/prefill_queries.cuh"

/* ---- A unit -------------------------------------------------------------------------------- */

/* A warp's keys of a unit. `key`, `entry`: this lane's, and what the table has for it; `hi`: the
 * end of what is copied; `boxes`, `rows`: lanes whose key comes in a box of `box` keys, or row by
 * row. */
struct unit_feed {
    int key, entry, hi, head, box;
    u32 boxes, rows;
};

/* New keys come in one box, those of the cache in one or two; where a box would have keys of both,
 * and after them, row by row. */
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

/* Groups of the unit that come row by row. */
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

/* The boxes, a lane each. */
template <typename S, int panels>
DEVICE void start_boxes(const fi_call &c, const index_sequence &q, const unit_feed &f,
                        const fi_tensor_map *cache, const fi_tensor_map *fresh, u32 to, u32 barrier)
{
    int lane = (int)threadIdx.x & 31, panel = lane % panels;
    int mine = lane / panels * f.box; /* of this warp's keys, the box's first */
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

/* A unit whose keys come in any way. */
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

/* Units whose keys all come in boxes: of keys by lanes 0 to 15, of values by the others. A warp
 * that waits for nothing takes some five cycles an instruction, so there are few here. Boxes after
 * the sequence's end are copied too, whatever is there: no row sees it. */
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

/* The keys of a warp's part of a unit, or its values. `mine`: where this lane's row lies. */
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

/* Units of the cache row by row. The table's entries are read a unit before. */
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

/* Units from the warp's key `first` on. */
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

/* Keys and values of some of an item's units, from the `begin`th on: of those at most that are fed
 * before the next item is looked up, and none on the other side of the gap. */
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

/* The item that the cursor is at. Values that the sequence's other queries see may be multiplied by
 * 0, so they are copied too where they lie in a unit; of a tile without keys nothing is. */
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

/* The item after this one. */
template <typename S> DEVICE cursor after(const fi_call &c, const struct work &w)
{
    cursor at = w.at;
    at.unit += w.units - 1;
    at.left -= w.units - 1;
    walk_next(&c, block_in_line(c), &at, S::keys);
    return at;
}

/* The next item is looked up, and where there is room its queries are fetched, when as much of this
 * one is on its way as the stages hold. What the plan and the batch tell of the first is read before
 * the kernel before ends. `is_value`: what it copies, where two warpgroups do. */
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
            return; /* which come first */
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
