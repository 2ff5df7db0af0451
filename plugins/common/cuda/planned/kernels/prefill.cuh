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
#ifndef FLASHINFER_LIKE_PREFILL_CUH
#define FLASHINFER_LIKE_PREFILL_CUH

#include "plugins/common/cuda/warpgroup_softmax.cuh"
#include "plugins/common/cuda/planned/kernels/feed.cuh"
#include "plugins/common/cuda/planned/kernels/shapes.h"

#define BARRIER_CONSUMERS 1 /* named barrier of those who multiply */
#define BARRIER_GROUP     2 /* 2, 3: a warpgroup's own */

/* keys: of a unit; stages: units of keys, and of values, in shared memory; q_slots: tiles of
 * queries, of which the next one comes while this one is worked on where there is room for two. */
template <int dim_, int dim_v_, int keys_, int stages_, int q_slots_, bool half_>
struct prefill_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int stages = stages_;
    static constexpr int q_slots = q_slots_;
    static constexpr bool half = half_;

    static constexpr int groups = FI_PREFILL_ROWS / GROUP_ROWS;
    static constexpr int consumers = groups * GROUP_THREADS;
    static constexpr int threads = consumers + GROUP_THREADS;
    static constexpr int panels = (dim + PANEL - 1) / PANEL;
    static constexpr int panels_v = (dim_v + PANEL - 1) / PANEL;
    static constexpr int panel_bytes = keys * ROW_BYTES; /* of a unit */
    static constexpr int k_bytes = panels * panel_bytes;
    static constexpr int v_bytes = panels_v * panel_bytes;
    static constexpr int q_bytes = panels * FI_PREFILL_ROWS * ROW_BYTES;
    static constexpr int warp_keys = keys / WARPS; /* of a unit, that a warp copies */
    static constexpr int parts = warp_keys / FI_GROUP;

    static constexpr int k_at = q_slots * q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int control_at = v_at + stages * v_bytes;
    static constexpr int control_bytes = 1536;
    static constexpr int shared_bytes = control_at + control_bytes;

    /* A thread's. Those who copy need few and hand the others what they were launched with: more
     * is not to be had, and who asks for it waits for ever. */
    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = 56;
    static constexpr int consumer_registers = 224;
    static_assert(producer_registers + groups * consumer_registers <=
                      (groups + 1) * launch_registers,
                  "registers are handed on, not made");

    static_assert(dim % 32 == 0 && dim_v % 32 == 0, "rows are copied by whole warps");
    static_assert(FI_STORE_ROWS == GROUP_ROWS, "a warpgroup's rows leave together");
    static_assert(parts == 1 || parts == 2, "a lane looks up one key");
    static_assert(shared_bytes <= 232448, "a block has at most 227 KiB of shared memory");
};

/* An item, or what the block has of it. units == 0: there is no more work. */
struct work {
    cursor at;
    index_sequence q;
    int units;
    int lo, hi; /* keys that any query of the sequence sees; a custom mask thins them out */
    bool is_whole, is_first;
    bool has_rows; /* some of its keys come row by row */
};

struct control {
    unsigned long long q_full[2], q_empty[2], k_full[3], k_empty[3], v_full[3], v_empty[3];
    struct work work[2];         /* told to those who multiply */
    struct work feeds[WARPS][2]; /* what a warp that copies is at, and what comes next: registers
                                    are few */
    u32 seen[8][4]; /* keys that any row of a warp sees: bit 2i + e of word n: key 8i + 2n + e */
    int is_last;
};

template <typename S> DEVICE void control_init(struct control *control)
{
    const int warps = S::consumers / 32;
    for (int i = 0; i < S::q_slots; i++) {
        barrier_init(shared_address(&control->q_full[i]), WARPS);
        barrier_init(shared_address(&control->q_empty[i]), warps);
    }
    for (int i = 0; i < S::stages; i++) {
        barrier_init(shared_address(&control->k_full[i]), WARPS);
        barrier_init(shared_address(&control->v_full[i]), WARPS);
        barrier_init(shared_address(&control->k_empty[i]), warps);
        barrier_init(shared_address(&control->v_empty[i]), warps);
    }
    fence_barrier_init();
}

/* ---- Copies -----------------------------------------------------------------------------------
 */

/* A warp's keys of a unit. `key`, `entry`: this lane's, and what the table has for it; `hi`: the
 * end of what is copied; `boxes`, `rows`: lanes whose key comes in a box of `box` keys, or row by
 * row. */
struct unit_feed {
    int key, entry, hi, head, box;
    u32 boxes, rows;
};

DEVICE int look_up(const fi_call &c, const index_sequence &q, int key, int hi)
{
    if (key - (int)(threadIdx.x & 15) >= hi)
        return 0;
    const int *entry = find_entry(c, q, min(key, hi - 1));
    return entry ? *entry : 0;
}

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
            copy_rows<dim * 2, S::panel_bytes>(mine, part * FI_GROUP, group);
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

/* Rows of an item without a division for each: (row0 % ratio + r) / ratio is small. */
struct row_finder {
    i64 row; /* of q and out: that of row 0 */
    int head, past, ratio;
    float inverse;
};

DEVICE row_finder find_rows(const fi_call &c, const struct work &w)
{
    int row0 = w.at.tile.row0, before = row0 / c.ratio;
    row_finder f = {w.q.first_row + before, w.at.head * c.ratio, row0 - before * c.ratio, c.ratio,
                    __fdividef(1.0f, (float)c.ratio)};
    return f;
}

DEVICE void find_row(const row_finder &f, int r, i64 *row, int *head)
{
    int n = f.past + r, before = (int)(((float)n + 0.5f) * f.inverse);
    *row = f.row + before;
    *head = f.head + n - before * f.ratio;
}

/* A warp's part of an item's queries: 32 rows. Rows that are not there are copies of the last. */
template <typename S> DEVICE void copy_queries(const fi_call &c, const struct work &w, char *to)
{
    constexpr int pieces = S::dim / 8, rows = FI_PREFILL_ROWS / WARPS;
    int lane = (int)threadIdx.x & 31, last = item_rows(c, w.q, w.at.tile, FI_PREFILL_ROWS) - 1;
    const row_finder finder = find_rows(c, w);
    bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
#pragma unroll 4
    for (int i = lane; i < rows * pieces; i += 32) {
        int r = warp_part() * rows + i / pieces, piece = i % pieces, head;
        i64 row;
        find_row(finder, min(r, last), &row, &head);
        const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + piece * 16;
        char *there = to + r / GROUP_ROWS * (S::panels * GROUP_ROWS * ROW_BYTES) +
                      piece_at<GROUP_ROWS * ROW_BYTES>(r % GROUP_ROWS, piece);
        if (aligned)
            copy16(shared_address(there), from);
        else
            for (int n = 0; n < 8; n++)
                ((u16 *)there)[n] = ((const u16 *)from)[n];
    }
}

DEVICE int units_here(const cursor &at)
{
    return min(at.units - at.unit, at.left);
}

/* Tell the item to those who multiply, and start the copy of its queries. */
template <typename S>
DEVICE void start_item(const fi_call &c, const struct work &w, char *shared,
                       struct control *control, int slot)
{
    u32 full = shared_address(&control->q_full[slot]);
    if (threadIdx.x == 0)
        control->work[slot] = w;
    if (w.units > 0)
        copy_queries<S>(c, w, shared + slot * S::q_bytes);
    barrier_expect_copies(full);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(full);
}

/* Where a warp's keys and values of a unit go, and the barriers of the stages. */
struct feed_memory {
    char *keys, *values;
    u32 k_full, k_empty, v_full, v_empty;
};

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

/* Units whose keys all come in boxes: of keys by lanes 0 to 15, of values by the others. A warp
 * that waits for nothing takes some five cycles an instruction, so there are few here. Boxes after
 * the sequence's end are copied too, whatever is there: nobody sees it. */
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
    int page = is_new ? 0 : table[min(key, last) >> c.page_shift];
#pragma unroll 1
    for (; units > 0; units--) {
        int next = 0;
        if (!is_new) {
            at = key & ((1 << c.page_shift) - 1);
            key += S::keys;
            next = table[min(key, last) >> c.page_shift];
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
            at += S::keys;
        else
            page = next;
        stage.advance();
    }
}

/* Keys and values of some of an item's units, from the `begin`th on. */
template <typename S>
DEVICE void feed_units(const fi_call &c, const struct work &w, const feed_memory &m, int begin,
                       int units, ring<S::stages> &stage)
{
    int first = w.at.tile.lo + (w.at.unit + begin) * S::keys + warp_part() * S::warp_keys;
#pragma unroll 1
    while (units > 0) {
        int count = 1, cached = w.q.first_new - S::warp_keys - first;
        if (first >= w.q.first_new && c.has_new_maps) {
            feed_boxes<S, true>(c, w, m, first, units, stage);
            return;
        }
        if (cached >= 0 && c.has_maps && c.page_shift >= 0) {
            count = min(units, cached / S::keys + 1);
            feed_boxes<S, false>(c, w, m, first, count, stage);
        } else {
            feed_unit<S>(c, w, m, first, stage);
        }
        first += count * S::keys;
        units -= count;
    }
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
    w.has_rows = !c.has_new_maps;
    if (w.units > 0 && w.q.first_new > at.tile.lo)
        w.has_rows |= !c.has_maps || (w.q.first_new - at.tile.lo) % S::warp_keys;
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
    walk_next(&c, (int)blockIdx.x, &at, S::keys);
    return at;
}

/* The next item is looked up, and where there is room its queries are fetched, when as much of this
 * one is on its way as the stages hold. */
template <typename S>
DEVICE void produce(const fi_call &c, const cursor &at, char *shared, struct control *control)
{
    struct work *w = control->feeds[warp_part()], *next = w + 1;
    const int mine = warp_part() * S::warp_keys * ROW_BYTES;
    const feed_memory m = {shared + S::k_at + mine,         shared + S::v_at + mine,
                           shared_address(control->k_full), shared_address(control->k_empty),
                           shared_address(control->v_full), shared_address(control->v_empty)};
    ring<S::stages> stage;
    ring<S::q_slots> slot;
    auto start = [&](const struct work &item) {
        barrier_wait(shared_address(&control->q_empty[slot.slot]), slot.phase ^ 1);
        start_item<S>(c, item, shared, control, slot.slot);
        slot.advance();
    };
    find_work<S>(c, at, true, w);
    start(*w);
#pragma unroll 1
    while (w->units > 0) {
#pragma unroll 1
        for (int begin = 0, count = min(w->units, S::stages); count > 0;
             begin += count, count = w->units - begin) {
            feed_units<S>(c, *w, m, begin, count, stage);
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

template <typename S>
DEVICE void rows_begin(const fi_call &c, const struct work &w, u32 queries, rows<S> &r)
{
    const mask_rule rule = rule_of(c);
    const fi_tile tile = w.at.tile;
    int first = tile.row0 / c.ratio;
    int last = (tile.row0 + item_rows(c, w.q, tile, FI_PREFILL_ROWS) - 1) / c.ratio, ignored;
    bool is_special = c.custom || c.cap != 0 || c.operands.slopes || !(c.scale > 0);
    r.q =
        queries + uniform(consumer_thread() / GROUP_THREADS) * (S::panels * GROUP_ROWS * ROW_BYTES);
    mask_positions(&rule, w.q.prefix_len + last, &r.all_lo, &ignored);
    mask_positions(&rule, w.q.prefix_len + first, &ignored, &r.all_hi);
    r.all_lo = uniform(r.all_lo);
    r.all_hi = uniform(is_special ? -0x7fffffff : min(r.all_hi, tile.hi));
    r.is_special = is_special;
    r.scale = is_special ? 1.0f : c.scale;
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
#pragma unroll
    for (int i = 0; i < S::keys / 2; i++)
        s[i] *= c.scale;
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

/* Which of this thread's keys its rows see by a custom mask: bit 2i + e for key 8i + e of its. */
template <typename S>
DEVICE u32 custom_bits(const fi_call &c, const struct work &w, const mask_view &view, int from)
{
    const mask_rule rule = rule_of(c);
    u32 seen = 0;
#pragma unroll 1
    for (int i = 0; i < S::keys / 4; i++) {
        int key = from + i / 2 * 8 + thread_here() % 4 * 2 + i % 2;
        seen |= (u32)mask_sees(&rule, &c.batch, &w.q, &view, key, w.at.tile.hi) << i;
    }
    return seen;
}

/* Values that no query of the sequence sees become 0: probabilities there are 0, but 0 times what
 * lies there need not be. Under a custom mask, those that no row of the item sees. All who multiply
 * take part. */
template <typename S>
DEVICE void values_clear(const fi_call &c, const struct work &w, struct control *control,
                         const ring<S::stages> &at, int from, u32 seen, u32 base)
{
    if (!c.custom && from >= w.lo && from + S::keys <= w.hi)
        return;
    int thread = consumer_thread();
    u32 v = base + S::v_at + at.slot * S::v_bytes;
    if (c.custom) {
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
        if (c.custom) {
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
    const mask_rule rule = rule_of(c);
    mask_view view[2];
    u32 seen = 0;
    for (int h = 0; h < 2; h++) {
        int row = w.at.tile.row0 + first_row() + 8 * h;
        mask_find_view(&rule, &c.batch, &w.q, w.at.tile.seq,
                       row < w.q.q_len * c.ratio ? row / c.ratio : -1, &view[h]);
    }
    if (r.is_special)
        scores_weigh<S>(c, w, view, from, s);
    if (c.custom) {
        u32 bits[2] = {custom_bits<S>(c, w, view[0], from), custom_bits<S>(c, w, view[1], from)};
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
    int from = uniform(w.at.tile.lo + w.at.unit * S::keys);
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
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, min(n, count - 1), &row, &head);
        float sink = sink_of(c, head), top = fmaxf(t.top[h], sink);
        float zero = softmax_base(top), shrink = softmax_exp2(t.top[h] - zero);
        softmax_row end = {top, t.sum[h] * shrink + softmax_exp2(sink - zero)};
        factor[h] = end.sum == 0.0f ? 0.0f : __fdividef(shrink, end.sum);
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
        const parts p = find_parts(c, c.starts[(int)blockIdx.x / c.lanes], w.is_first);
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
        __threadfence();
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
    const cursor at = walk_begin(&c, (int)blockIdx.x, &start, S::keys);
    if (threadIdx.x == 0)
        control_init<S>(control);
    __syncthreads();
    grid_wait();
    grid_launch_dependents();
    clear_padding(c, S::dim_v);
    if (uniform((int)threadIdx.x / GROUP_THREADS) == 0) {
        registers_release<S::producer_registers>();
        produce<S>(c, at, shared, control);
    } else {
        registers_take<S::consumer_registers>();
        consume<S>(c, control, shared_address(shared));
    }
}

#define CHECK_SHAPE(name, dim, v_dim, a, b, c, d, keys, stages, q_slots, shared)                   \
    static_assert(prefill_shape<dim, v_dim, keys, stages, q_slots, false>::shared_bytes == shared, \
                  #name ": the table's bytes of shared memory");
FI_SHAPES(CHECK_SHAPE)
#undef CHECK_SHAPE

/* A kernel; its line in shapes.h has the same numbers. */
#define FI_PREFILL(name, dim, v_dim, keys, stages, q_slots, half)                                  \
    extern "C" __global__ void __launch_bounds__(3 * GROUP_THREADS, 1)                             \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        prefill<prefill_shape<dim, v_dim, keys, stages, q_slots, half>>(c, shared);                \
    }

#endif /* FLASHINFER_LIKE_PREFILL_CUH */
