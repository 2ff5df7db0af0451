/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_half_codes.cuh: keys and values of a cache of fp8 for half a tile (FI_PREFILL_HALF_CODES). A
 * warpgroup has keys and another has values, and both run the same instructions: a loop that a warp
 * enters for the first time waits for each of its instruction lines.
 *
 *   cache --copy engine--> codes --registers--> stage    boxes, two units ahead
 *   cache ----cp.async---> codes --registers--> stage    the same of aligned rows, without boxes
 *   cache ----------------------registers-----> stage    other rows
 *   k, v  --rounded to codes, and back--------> stage    new keys
 *                                 \-----------> cache    which are saved on their way
 */
#ifndef FI_PREFILL_HALF_CODES_CUH
#define FI_PREFILL_HALF_CODES_CUH

#include "plugins/flashinfer_like/kernels/prefill_codes.cuh"

#define BARRIER_FEED 4 /* 4, 5: named barriers of those who copy keys, and values */

/* A warp's keys, or its values, on their way: where they go and come from, and their barriers. */
struct code_side {
    char *to;
    u32 codes, full, empty, codes_full;
    bool is_value;
};

DEVICE code_side side_of(const feed_memory &m, bool is_value)
{
    code_side side = {is_value ? m.values : m.keys,
                      is_value ? m.v_codes : m.k_codes,
                      is_value ? m.v_full : m.k_full,
                      is_value ? m.v_empty : m.k_empty,
                      is_value ? m.v_codes_full : m.k_codes_full,
                      is_value};
    return side;
}

DEVICE float scale_of_side(const fi_call &c, const struct work &w, const code_side &side)
{
    return side.is_value ? v_scale_of(c, w.at.head) : k_scale_of(c, w.at.head);
}

/* ---- Row by row ---------------------------------------------------------------------------- */

/* Units whose keys come in any way. The next unit's are looked up before this one's are read, of which
 * all pieces are on their way together. */
template <typename S>
DEVICE void feed_any_rows(const fi_call &c, const struct work &w, const code_side &side, int first,
                          int units, ring<S::stages> &stage)
{
    constexpr int pieces = (S::dim / 16 + 3) / 4 * S::warp_keys / 8;
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    code_key next = look_up_code<S>(c, w, first);
#pragma unroll 1
    for (; units > 0; units--) {
        const code_key k = next;
        first += S::keys;
        if (units > 1)
            next = look_up_code<S>(c, w, first);
        const index_place place = find_code(c, w, k);
        const u64 mine = (u64)(side.is_value ? place.v : place.k);
        const u32 fresh = __ballot_sync(~0u, k.is_new);
        uint4 x[pieces];
        int n = 0;
        each_piece<S, S::dim, S::warp_keys / 8>([&](int row, int piece, bool is_there) {
            const char *from = (const char *)__shfl_sync(~0u, mine, row);
            if (is_there && k.is_here && !(fresh >> row & 1))
                x[n] = load_codes(from + piece * 16, aligned);
            n++;
        });
        barrier_wait(side.empty + 8 * stage.slot, stage.phase ^ 1);
        char *to = side.to + stage.slot * S::k_bytes;
        n = 0;
        each_piece<S, S::dim, S::warp_keys / 8>([&](int row, int piece, bool is_there) {
            if (is_there && k.is_here && !(fresh >> row & 1))
                put_piece<S>(x[n], to, row, piece);
            n++;
        });
        if (fresh)
            take_fresh<S, S::dim>(c, mine, fresh, scale_of_side(c, w, side), to);
        tell_stored(side.full + 8 * stage.slot);
        stage.advance();
    }
}

/* ---- New keys ------------------------------------------------------------------------------ */

/* Has the unit, of which this warp's keys begin with `first`, new keys that are saved on the way? */
template <typename S> DEVICE bool has_new(const fi_call &c, const struct work &w, int first)
{
    const int unit = first - warp_part() * S::warp_keys;
    return c.saves && unit < w.hi && unit + S::keys > w.new_from;
}

/* They, or their values, over what boxes have brought there, by the warpgroup: a piece of eight
 * elements comes to where what its codes stand for is to lie; the codes go to the key's slot, if it has
 * one. A thread has a piece or two, as what is done once an item is all latency. A function of its own:
 * in line it would part the loop's instructions. `to`: of `first`. */
template <typename S>
static __device__ __noinline__ void feed_new(const fi_call &c, const struct work &w, bool values,
                                             int first, u32 to)
{
    constexpr int pieces = S::dim / 8;
    const call_operands &o = c.operands;
    const int unit = first - warp_part() * S::warp_keys, head = w.at.head;
    const int begin = max(w.new_from, unit), count = min(w.hi, unit + S::keys) - begin;
    const i64 row = w.q.new_row + begin - w.q.new_key, step = values ? o.v_row : o.k_row;
    const char *from =
        (const char *)(values ? o.v : o.k) + row * step + head * (values ? o.v_head : o.k_head);
    const float scale = values ? v_scale_of(c, head) : k_scale_of(c, head);
    named_sync(BARRIER_FEED + values, GROUP_THREADS); /* all boxes have been taken */
#pragma unroll 1
    for (int i = thread_here() % GROUP_THREADS; i < count * pieces; i += GROUP_THREADS) {
        const int r = i / pieces, piece = i % pieces;
        const uint4 x = *(const uint4 *)(from + r * step + piece * 16);
        const i64 slot = c.batch.out_cache_loc[row + r];
        const uint2 codes = quantise_piece(S::codes, S::is_f16, x, scale);
        const uint2 low = codes_to_elements<S>(codes.x), high = codes_to_elements<S>(codes.y);
        if (slot >= 0) {
            char *key, *value;
            find_slot(c, slot, head, &key, &value);
            *(uint2 *)((values ? value : key) + piece * 8) = codes;
        }
        shared_store(to + (unit - first) * ROW_BYTES +
                         piece_at<S::panel_bytes>(begin - unit + r, piece),
                     make_uint4(low.x, low.y, high.x, high.y));
    }
}

/* ---- Boxes --------------------------------------------------------------------------------- */

/* A unit from codes that have arrived; returns where it lies. */
template <typename S>
DEVICE u32 side_take(const code_side &side, const ring<S::stages> &stage, const code_ring<S> &codes)
{
    const u32 to = shared_address(side.to) + stage.slot * S::k_bytes;
    barrier_wait(side.codes_full + 8 * codes.slot, codes.phase);
    barrier_wait(side.empty + 8 * stage.slot, stage.phase ^ 1);
    take_codes<S, S::dim>(side.codes + codes.slot * (WARPS * S::warp_code_bytes), to);
    return to;
}

/* A warp's boxes of a unit, one or two, which its first lane asks for. */
struct side_boxes {
    const fi_tensor_map *map;
    const int *table;
    int key, last, pages[2];
};

template <typename S> DEVICE void side_look_up(const fi_call &c, side_boxes &b)
{
    b.pages[0] = b.table[min(b.key, b.last) >> c.page_shift];
    b.pages[1] = b.table[min(b.key + S::warp_keys / 2, b.last) >> c.page_shift];
}

template <typename S>
DEVICE void side_start(const fi_call &c, const code_side &side, int head, int slot,
                       const side_boxes &b)
{
    const u32 full = side.codes_full + 8 * slot;
    const u32 to = side.codes + slot * (WARPS * S::warp_code_bytes);
    const int in_page = (1 << c.page_shift) - 1;
    barrier_arrive_expect(full, S::warp_code_bytes);
    tensor_load(to, b.map, full, 0, b.key & in_page, head, b.pages[0]);
    if (c.box_keys < S::warp_keys)
        tensor_load(to + S::warp_keys / 2 * ROW_BYTES, b.map, full, 0,
                    (b.key + S::warp_keys / 2) & in_page, head, b.pages[1]);
}

/* Units whose keys all come in boxes, but for new ones that are saved on the way. Boxes after the
 * sequence's end are copied too, whatever is there: no row sees it. Pages are looked up before a unit
 * is converted, so that nothing waits for them. */
template <typename S>
DEVICE void feed_side_boxes(const fi_call &c, const struct work &w, const code_side &side,
                            int first, int units, ring<S::stages> &stage, code_ring<S> &codes)
{
    static_assert(S::dim == S::dim_v && S::dim <= CODE_PANEL && S::parts == 2, "boxes of a warp");
    const bool is_first_lane = (threadIdx.x & 31) == 0;
    const int head = w.at.head;
    const int new_first = c.saves ? w.new_from - S::keys + warp_part() * S::warp_keys : 0x7fffffff;
    side_boxes b = {side.is_value ? &c.v_map : &c.k_map, w.q.table, first, w.hi - 1};
    code_ring<S> ahead = codes;
    for (int n = 0; n < min(units, S::code_slots); n++) {
        side_look_up<S>(c, b);
        if (is_first_lane)
            side_start<S>(c, side, head, ahead.slot, b);
        __syncwarp();
        b.key += S::keys;
        ahead.advance();
    }
#pragma unroll 1
    for (; units > 0; units--) {
        const bool more = units > S::code_slots;
        if (more)
            side_look_up<S>(c, b);
        const u32 to = side_take<S>(side, stage, codes);
        if (__builtin_expect(first > new_first, 0) && has_new<S>(c, w, first))
            feed_new<S>(c, w, side.is_value, first, to);
        fence_async_shared();
        __syncwarp();
        if (is_first_lane) {
            barrier_arrive(side.full + 8 * stage.slot);
            if (more)
                side_start<S>(c, side, head, codes.slot, b);
        }
        __syncwarp();
        b.key += S::keys;
        codes.advance();
        stage.advance();
        first += S::keys;
    }
}

/* ---- Aligned rows -------------------------------------------------------------------------- */

template <typename S>
DEVICE void side_rows_start(const fi_call &c, const struct work &w, const code_side &side, int slot,
                            codes_ahead &b)
{
    const index_place place = find_key(c, w.q, w.at.head, row_key(w, b), b.page);
    copy_code_rows<S, S::dim>((u64)(side.is_value ? place.v : place.k),
                              side.codes + slot * (WARPS * S::warp_code_bytes),
                              side.codes_full + 8 * slot);
    b.key += S::keys;
    b.page = *find_entry(c, w.q, row_key(w, b));
}

template <typename S>
DEVICE void feed_side_rows(const fi_call &c, const struct work &w, const feed_memory &m,
                           const code_side &side, int first, int units, ring<S::stages> &stage,
                           code_ring<S> &codes)
{
    codes_ahead b;
    ahead_begin<S, false>(c, w, m, first, b);
    code_ring<S> ahead = codes;
    for (int n = 0; n < min(units, S::code_slots); n++) {
        side_rows_start<S>(c, w, side, ahead.slot, b);
        ahead.advance();
    }
#pragma unroll 1
    for (; units > 0; units--) {
        side_take<S>(side, stage, codes);
        tell_stored(side.full + 8 * stage.slot);
        if (units > S::code_slots)
            side_rows_start<S>(c, w, side, codes.slot, b);
        codes.advance();
        stage.advance();
    }
}

/* ---- Units --------------------------------------------------------------------------------- */

/* Units from the warp's key `first` on. */
template <typename S>
DEVICE void feed_side(const fi_call &c, const struct work &w, const feed_memory &m, bool is_value,
                      int first, int units, ring<S::stages> &stage, code_ring<S> &codes)
{
    const code_side side = side_of(m, is_value);
    const bool ahead = is_ahead(c, w);
#pragma unroll 1
    while (units > 0) {
        int count = !ahead ? 0 : c.saves ? units : count_cached<S>(c, w, first, units);
        if (count > 0 && c.has_maps) {
            feed_side_boxes<S>(c, w, side, first, count, stage, codes);
        } else if (count > 0) {
            feed_side_rows<S>(c, w, m, side, first, count, stage, codes);
        } else {
            count = ahead ? 1 : units;
            feed_any_rows<S>(c, w, side, first, count, stage);
        }
        first += count * S::keys;
        units -= count;
    }
}

#endif /* FI_PREFILL_HALF_CODES_CUH */
