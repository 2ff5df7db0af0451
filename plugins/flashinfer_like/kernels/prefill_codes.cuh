/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_codes.cuh: keys and values of a cache of fp8 for prefill.cuh, whose products are of
 * 16-bit elements: the warps that copy make keys and values of the codes.
 *
 *   cache --copy engine--> codes --registers--> stage    runs of boxes, one or two units ahead
 *   cache ----cp.async---> codes --registers--> stage    the same of aligned rows, without boxes
 *   cache ----------------------registers-----> stage    other rows
 *   k, v  --rounded to codes, and back--------> stage    new keys that are not in the cache
 *
 * A key is what its code says: the scale of keys is in that of the scores, the scale of values in
 * the last division. Half a tile has loops of its own: prefill_half_codes.cuh.
 */
#ifndef FI_PREFILL_CODES_CUH
#define FI_PREFILL_CODES_CUH

#include "plugins/flashinfer_like/kernels/new_rows.cuh"
#include "plugins/flashinfer_like/kernels/prefill_stages.cuh"

/* Units that are looked over for new keys without a slot before they are read from the cache. */
#define LOOK_OVER 8

template <typename S> using code_ring = ring<S::codes ? S::code_slots : 1>;

/* ---- Codes to elements --------------------------------------------------------------------- */

/* Four codes as elements of the queries' type, which has all of their values. */
template <typename S> DEVICE uint2 codes_to_elements(u32 codes)
{
    uint2 x;
    widen_codes<S::codes>(codes, x.x, x.y);
    if (!S::is_f16) {
        float2 low = unpack_half(x.x), high = unpack_half(x.y);
        x = make_uint2(pack_pair<false>(low.x, low.y), pack_pair<false>(high.x, high.y));
    }
    return x;
}

/* 16 codes as elements. */
struct piece_elements {
    uint4 first, second;
};

template <typename S> DEVICE piece_elements make_elements(uint4 codes)
{
    const uint2 a = codes_to_elements<S>(codes.x), b = codes_to_elements<S>(codes.y);
    const uint2 c = codes_to_elements<S>(codes.z), d = codes_to_elements<S>(codes.w);
    piece_elements e = {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
    return e;
}

/* A piece of row `row` to where its elements go. */
template <typename S> DEVICE void put_piece(uint4 codes, char *to, int row, int piece)
{
    const piece_elements e = make_elements<S>(codes);
    *(uint4 *)(to + piece_at<S::panel_bytes>(row, 2 * piece)) = e.first;
    *(uint4 *)(to + piece_at<S::panel_bytes>(row, 2 * piece + 1)) = e.second;
}

/* Does f(row, piece, is_there) for each piece of a warp's rows, all lanes together, eight rows at a
 * time, of which so many times are unrolled. With piece_row() neither what they read nor what they write
 * of swizzled rows shares banks. */
template <typename S, int dim, int unrolled = 1, typename F> DEVICE void each_piece(F f)
{
    constexpr int pieces = dim / 16;
    const int lane = (int)threadIdx.x & 31, row = lane / 8 * 2 ^ (lane & 4 ? 5 : 0);
#pragma unroll unrolled
    for (int above = 0; above < S::warp_keys; above += 8)
#pragma unroll
        for (int n = 0; n < pieces; n += 4)
            f(above + row, n + lane % 4, pieces % 4 == 0 || n + lane % 4 < pieces);
}

/* A warp's rows from codes in shared memory, eight rows at a time. Addresses are those of
 * each_piece(), written so that but four are constants: of eight rows the next differ by a
 * distance, of a row's pieces by a bit of the swizzled place. Pieces are read ahead of what is
 * made of those before, since a warp alone waits for each of its instructions. */
template <typename S, int dim> DEVICE void take_codes(u32 codes, u32 to)
{
    constexpr int pieces = dim / 16, columns = (pieces + 3) / 4,
                  batch = (4 + columns - 1) / columns;
    constexpr int blocks = S::warp_keys / 8, step = batch < blocks ? batch : blocks;
    const int lane = (int)threadIdx.x & 31, p = lane % 4, row = lane / 8 * 2 ^ (lane & 4 ? 5 : 0);
    const u32 from = codes + swizzled(row, p), out = to + swizzled(row, 2 * p & 7);
    const u32 from_next = from ^ 4 * 16, out_next = out ^ 16;
#pragma unroll
    for (int first = 0; first < blocks; first += step) {
        uint4 x[step][columns];
#pragma unroll
        for (int b = 0; b < step; b++)
#pragma unroll
            for (int n = 0; n < columns; n++)
                if (pieces % 4 == 0 || n * 4 + p < pieces)
                    x[b][n] =
                        shared_load((n % 2 ? from_next : from) + n / 2 * S::warp_keys * ROW_BYTES +
                                    (first + b) * 8 * ROW_BYTES);
#pragma unroll
        for (int b = 0; b < step; b++)
#pragma unroll
            for (int n = 0; n < columns; n++) {
                const u32 at = n * S::panel_bytes + (first + b) * 8 * ROW_BYTES;
                const piece_elements e = make_elements<S>(x[b][n]);
                if (pieces % 4 != 0 && n * 4 + p >= pieces)
                    continue;
                shared_store(out + at, e.first);
                shared_store(out_next + at, e.second);
            }
    }
}

/* What was stored is there for products before `barrier` hears of it. */
DEVICE void tell_stored(u32 barrier)
{
    fence_async_shared();
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(barrier);
}

/* ---- Row by row ---------------------------------------------------------------------------- */

/* 16 codes from anywhere. */
DEVICE uint4 load_codes(const char *from, bool aligned)
{
    if (aligned)
        return __ldg((const uint4 *)from);
    u32 x[4];
    for (int n = 0; n < 4; n++)
        x[n] = (u8)from[4 * n] | (u32)(u8)from[4 * n + 1] << 8 | (u32)(u8)from[4 * n + 2] << 16 |
               (u32)(u8)from[4 * n + 3] << 24;
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* A warp's rows from the cache, but for those that `fresh` has a bit for; `mine`: this lane's. */
template <typename S, int dim>
DEVICE void take_rows(const fi_call &c, u64 mine, u32 fresh, char *to)
{
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    each_piece<S, dim>([&](int row, int piece, bool is_there) {
        const char *from = (const char *)__shfl_sync(~0u, mine, row);
        if (is_there && !(fresh >> row & 1))
            put_piece<S>(load_codes(from + piece * 16, aligned), to, row, piece);
    });
}

/* New rows, as they would be stored. */
template <typename S, int dim>
static __device__ __noinline__ void take_fresh(const fi_call &c, u64 mine, u32 fresh, float scale,
                                               char *to)
{
#pragma unroll 1
    for (int row = 0; row < S::warp_keys; row++) {
        const char *from = (const char *)__shfl_sync(~0u, mine, row);
        for (int d = (int)threadIdx.x & 31; d < dim && fresh >> row & 1; d += 32) {
            u8 code = save_kv_quantise(S::codes, element_load(c.dtype, from, d), scale);
            *(u16 *)(to + piece_at<S::panel_bytes>(row, d / 8) + d % 8 * 2) =
                (u16)codes_to_elements<S>(code).x;
        }
    }
}

/* Is this lane's key one that is read from k and v? */
DEVICE bool is_fresh(const fi_call &c, const struct work &w, int key)
{
    if (key < w.new_from || key >= w.hi)
        return false;
    return !c.saved || c.batch.out_cache_loc[w.q.new_row + key - w.q.new_key] < 0;
}

/* A lane's key of a warp's part of a unit, and what the table has for it. */
struct code_key {
    int key, entry;
    bool is_here, is_new; /* new: it is read from k and v */
};

/* The sequence as it is for that key, which may be new and in the cache. */
DEVICE index_sequence sequence_for(const struct work &w, const code_key &k)
{
    index_sequence q = w.q;
    q.first_new = k.is_new ? k.key : k.key + 1;
    return q;
}

template <typename S>
DEVICE code_key look_up_code(const fi_call &c, const struct work &w, int first)
{
    const int row = (int)(threadIdx.x & 31) % S::warp_keys;
    code_key k = {min(first + row, w.hi - 1), 0, first < w.hi, false};
    if (!k.is_here)
        return k;
    k.is_new = is_fresh(c, w, k.key);
    const int *entry = find_entry(c, sequence_for(w, k), k.key);
    k.entry = entry ? *entry : 0;
    return k;
}

DEVICE index_place find_code(const fi_call &c, const struct work &w, const code_key &k)
{
    index_place place = {0, 0};
    return k.is_here ? find_key(c, sequence_for(w, k), w.at.head, k.key, k.entry) : place;
}

/* A unit whose keys come in any way; a function of its own, so that its registers are. */
template <typename S>
static __device__ __noinline__ void feed_any_codes(const fi_call &c, const struct work &w,
                                                   const feed_memory &m, int first,
                                                   ring<S::stages> stage)
{
    const int head = w.at.head;
    const code_key k = look_up_code<S>(c, w, first);
    const index_place place = find_code(c, w, k);
    const u32 fresh = __ballot_sync(~0u, k.is_new);
    barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
    char *to = m.keys + stage.slot * S::k_bytes;
    if (k.is_here)
        take_rows<S, S::dim>(c, (u64)place.k, fresh, to);
    if (fresh)
        take_fresh<S, S::dim>(c, (u64)place.k, fresh, k_scale_of(c, head), to);
    tell_stored(m.k_full + 8 * stage.slot);
    barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
    to = m.values + stage.slot * S::v_bytes;
    if (k.is_here)
        take_rows<S, S::dim_v>(c, (u64)place.v, fresh, to);
    if (fresh)
        take_fresh<S, S::dim_v>(c, (u64)place.v, fresh, v_scale_of(c, head), to);
    tell_stored(m.v_full + 8 * stage.slot);
}

/* ---- Ahead --------------------------------------------------------------------------------- */

/* A lane's next codes, `page` being what the table has for them. Of boxes, those of keys are lanes 0 to
 * 15's, those of values the others'; of rows, a lane has a row's key and value. */
struct codes_ahead {
    const fi_tensor_map *map;
    u32 to;
    int slot_bytes, key, page, column;
    bool is_value, is_box;
};

/* The key whose row a lane reads next: none after those in the cache. */
DEVICE int row_key(const struct work &w, const codes_ahead &b)
{
    return min(b.key, min(w.hi, w.q.first_new) - 1);
}

template <typename S, bool boxes>
DEVICE void ahead_begin(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                        codes_ahead &b)
{
    if constexpr (!boxes) {
        b.key = first + (int)(threadIdx.x & 31) % S::warp_keys;
        b.page = *find_entry(c, w.q, row_key(w, b));
        return;
    }
    const int i = (int)threadIdx.x % 16, box = min(c.box_keys, S::warp_keys);
    b.is_value = threadIdx.x & 16;
    const int panels = ((b.is_value ? S::dim_v : S::dim) + CODE_PANEL - 1) / CODE_PANEL;
    const int part = box * (i / panels), panel = i % panels;
    b.is_box = part < S::warp_keys;
    b.map = b.is_value ? &c.v_map : &c.k_map;
    b.to = (b.is_value ? m.v_codes : m.k_codes) + (panel * S::warp_keys + part) * ROW_BYTES;
    b.slot_bytes = WARPS * (b.is_value ? S::warp_code_v_bytes : S::warp_code_bytes);
    b.column = panel * CODE_PANEL;
    b.key = first + part;
    b.page = w.q.table[min(b.key, w.hi - 1) >> c.page_shift];
}

/* Starts the next unit's keys, or its values; the page of those after it is looked up. */
template <typename S, bool values>
DEVICE void boxes_start(const fi_call &c, const struct work &w, const feed_memory &m, int slot,
                        codes_ahead &b)
{
    const u32 full = (values ? m.v_codes_full : m.k_codes_full) + 8 * slot;
    if ((threadIdx.x & 31) == 0)
        barrier_arrive_expect(full, values ? S::warp_code_v_bytes : S::warp_code_bytes);
    __syncwarp();
    if (b.is_value == values) {
        if (b.is_box)
            tensor_load(b.to + slot * b.slot_bytes, b.map, full, b.column,
                        b.key & ((1 << c.page_shift) - 1), w.at.head, b.page);
        b.key += S::keys;
        b.page = w.q.table[min(b.key, w.hi - 1) >> c.page_shift];
    }
    __syncwarp();
}

/* A warp's rows of codes. `mine`: where this lane's lies. */
template <typename S, int dim> DEVICE void copy_code_rows(u64 mine, u32 to, u32 full)
{
#pragma unroll
    for (int part = 0; part < S::parts; part++)
        copy_rows<dim, S::warp_keys * ROW_BYTES>(mine, part * FI_GROUP,
                                                 to + part * FI_GROUP * ROW_BYTES);
    barrier_expect_copies(full);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(full);
}

/* The same row by row. Values come after keys, so the next unit is looked up with them. */
template <typename S, bool values>
DEVICE void rows_start(const fi_call &c, const struct work &w, const feed_memory &m, int slot,
                       codes_ahead &b)
{
    constexpr int slot_bytes = WARPS * (values ? S::warp_code_v_bytes : S::warp_code_bytes);
    const index_place place = find_key(c, w.q, w.at.head, row_key(w, b), b.page);
    copy_code_rows<S, values ? S::dim_v : S::dim>(
        (u64)(values ? place.v : place.k), (values ? m.v_codes : m.k_codes) + slot * slot_bytes,
        (values ? m.v_codes_full : m.k_codes_full) + 8 * slot);
    if (values) {
        b.key += S::keys;
        b.page = *find_entry(c, w.q, row_key(w, b));
    }
}

template <typename S, bool boxes, bool values>
DEVICE void ahead_start(const fi_call &c, const struct work &w, const feed_memory &m, int slot,
                        codes_ahead &b)
{
    if constexpr (boxes)
        boxes_start<S, values>(c, w, m, slot, b);
    else
        rows_start<S, values>(c, w, m, slot, b);
}

/* Units whose keys all come in boxes, or as rows. Boxes after the sequence's end are copied too,
 * whatever is there: no row sees it. */
template <typename S, bool boxes>
DEVICE void feed_ahead(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                       int units, ring<S::stages> &stage, code_ring<S> &codes)
{
    codes_ahead b;
    ahead_begin<S, boxes>(c, w, m, first, b);
    code_ring<S> ahead = codes;
    for (int n = 0; n < min(units, S::code_slots); n++) {
        ahead_start<S, boxes, false>(c, w, m, ahead.slot, b);
        ahead_start<S, boxes, true>(c, w, m, ahead.slot, b);
        ahead.advance();
    }
#pragma unroll 1
    for (; units > 0; units--) {
        barrier_wait(m.k_codes_full + 8 * codes.slot, codes.phase);
        barrier_wait(m.k_empty + 8 * stage.slot, stage.phase ^ 1);
        take_codes<S, S::dim>(m.k_codes + codes.slot * (WARPS * S::warp_code_bytes),
                              shared_address(m.keys) + stage.slot * S::k_bytes);
        tell_stored(m.k_full + 8 * stage.slot);
        if (units > S::code_slots)
            ahead_start<S, boxes, false>(c, w, m, codes.slot, b);
        barrier_wait(m.v_codes_full + 8 * codes.slot, codes.phase);
        barrier_wait(m.v_empty + 8 * stage.slot, stage.phase ^ 1);
        take_codes<S, S::dim_v>(m.v_codes + codes.slot * (WARPS * S::warp_code_v_bytes),
                                shared_address(m.values) + stage.slot * S::v_bytes);
        tell_stored(m.v_full + 8 * stage.slot);
        if (units > S::code_slots)
            ahead_start<S, boxes, true>(c, w, m, codes.slot, b);
        codes.advance();
        stage.advance();
    }
}

/* How many units from `first` on have no key that is read from k and v; new ones are looked over
 * for LOOK_OVER units at most. */
template <typename S>
DEVICE int count_cached(const fi_call &c, const struct work &w, int first, int units)
{
    if (first + S::warp_keys <= w.new_from)
        return min(units, (w.new_from - S::warp_keys - first) / S::keys + 1);
    if (!c.saved)
        return 0;
    u32 fresh = 0;
    const int key = first + (int)(threadIdx.x & 31) % S::warp_keys;
#pragma unroll
    for (int n = 0; n < LOOK_OVER; n++)
        fresh |= (u32)is_fresh(c, w, key + n * S::keys) << n;
    fresh = __reduce_or_sync(~0u, fresh);
    return min(min(units, LOOK_OVER), __ffs((int)(fresh | 1u << LOOK_OVER)) - 1);
}

/* Do keys of the cache come ahead, in boxes or as rows? */
DEVICE bool is_ahead(const fi_call &c, const struct work &w)
{
    return w.hi > 0 &&
           (c.has_maps ? c.page_shift >= 0 : (c.operands.aligned & CALL_ALIGNED_CACHE) != 0);
}

/* Units from the warp's key `first` on. */
template <typename S>
DEVICE void feed_codes(const fi_call &c, const struct work &w, const feed_memory &m, int first,
                       int units, ring<S::stages> &stage, code_ring<S> &codes)
{
    const bool ahead = is_ahead(c, w);
#pragma unroll 1
    while (units > 0) {
        int count = ahead ? count_cached<S>(c, w, first, units) : 0;
        if (count > 0 && c.has_maps) {
            feed_ahead<S, true>(c, w, m, first, count, stage, codes);
        } else if (count > 0) {
            feed_ahead<S, false>(c, w, m, first, count, stage, codes);
        } else {
            feed_any_codes<S>(c, w, m, first, stage);
            stage.advance();
            count = 1;
        }
        first += count * S::keys;
        units -= count;
    }
}

#endif /* FI_PREFILL_CODES_CUH */
