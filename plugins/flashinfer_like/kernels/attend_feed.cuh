/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_feed.cuh: the producers' copies of a unit for attend.cuh: each of four warps copies its
 * group of 16 keys of a head and their values, in one of three ways:
 *
 *   box    keys in one page, or all new: a TMA copy for each panel
 *   rows   others, over 16 bits: pieces of 16 bytes; elements, if rows are not aligned
 *   codes  others, over fp8: the same for keys in the cache; new ones are rounded while copied
 *
 * The entry of the page table is read one unit ahead. Each warp arrives once at the stage's full
 * barrier, whichever way its group is copied.
 *
 * S: dim, v_dim, the cache's element, and the bytes of a group, k_bytes and v_bytes.
 */
#ifndef FI_ATTEND_FEED_CUH
#define FI_ATTEND_FEED_CUH

#include "plugins/flashinfer_like/kernels/attend_new.cuh"

/* ---- The next group ------------------------------------------------------------------------ */

/* The next unit to copy, and the page-table entry of this lane's key. */
struct feed {
    cursor at;
    index_sequence q;
    int entry;
};

/* This lane's key. Keys after the end are read as the last one, and no row sees them there. */
static __device__ __forceinline__ int feed_key(const fi_call &c, const cursor &at)
{
    return min(cursor_key(at) + (int)(threadIdx.x & 15), at.tile.hi - 1);
}

static __device__ __forceinline__ bool feed_is_live(const fi_call &c, const cursor &at)
{
    return at.left > 0 && cursor_key(at) < at.tile.hi;
}

template <typename S> static __device__ __forceinline__ void feed_look_up(const fi_call &c, feed &f)
{
    index_sequence q = f.q;
    if (S::quantised && c.saved)
        q.first_new = q.kv_len;
    const int *entry = feed_is_live(c, f.at) ? find_entry(c, q, feed_key(c, f.at)) : 0;
    f.entry = entry ? *entry : 0;
}

static __device__ __forceinline__ void feed_next(const fi_call &c, feed &f)
{
    int before = f.at.at;
    walk_next(&c, block_here(), &f.at, FI_KEYS);
    if (f.at.at != before && f.at.left > 0)
        index_find_sequence(&c.batch, c.operands.k != 0, f.at.tile.seq, &f.q);
}

/* ---- Boxes --------------------------------------------------------------------------------- */

/* Is the current group a box, of the cache or of the new keys? */
static __device__ __forceinline__ bool feed_is_box(const fi_call &c, const feed &f)
{
    int key = cursor_key(f.at);
    return key >= f.q.first_new ? c.has_new_maps : c.has_maps && key + GROUP_KEYS <= f.q.first_new;
}

/* The tensor maps of a group, and its coordinates after the column. */
struct box_place {
    const fi_tensor_map *k_map, *v_map;
    int at, head, page;
};

template <typename S>
static __device__ __forceinline__ box_place find_box(const fi_call &c, const feed &f)
{
    int key = cursor_key(f.at), head = f.at.head;
    if (!S::quantised && key >= f.q.first_new) {
        box_place box = {&c.k_new_map, &c.v_new_map, f.q.new_row + key - f.q.new_key, head, 0};
        return box;
    }
    box_place box = {&c.k_map, &c.v_map, box_offset(c, key), head, f.entry};
    return box;
}

template <typename S>
static __device__ __forceinline__ void start_boxes(const box_place &box, char *keys, char *values,
                                                   u32 barrier)
{
    int column = -8 * pieces_before<S>(box.head);
    barrier_arrive_expect(barrier, S::k_bytes + S::v_bytes);
#pragma unroll
    for (int d = 0; d < S::dim; d += S::panel)
        tensor_load(shared_address(keys) + d / S::panel * PANEL_BYTES, box.k_map, barrier,
                    column + d, box.at, box.head, box.page);
#pragma unroll
    for (int d = 0; d < S::v_dim; d += S::panel)
        tensor_load(shared_address(values) + d / S::panel * PANEL_BYTES, box.v_map, barrier,
                    column + d, box.at, box.head, box.page);
}

/* ---- Row by row ---------------------------------------------------------------------------- */

template <typename S>
static __device__ __forceinline__ void start_rows(const fi_call &c, const feed &f, char *keys,
                                                  char *values, u32 barrier)
{
    int first = cursor_key(f.at);
    int before = pieces_before<S>(f.at.head);
    index_place place = find_key(c, f.q, f.at.head, feed_key(c, f.at), f.entry);
    if (has_aligned(c, f.q, first)) {
        copy_rows<S::dim * 2, PANEL_BYTES, 256>((u64)place.k, 0, shared_address(keys), 0, before);
        copy_rows<S::v_dim * 2, PANEL_BYTES, 256>((u64)place.v, 0, shared_address(values), 0,
                                                  before);
        barrier_expect_copies(barrier);
    } else {
        copy_rows_slow<S::dim, PANEL_BYTES>((u64)place.k, 0, keys, before);
        copy_rows_slow<S::v_dim, PANEL_BYTES>((u64)place.v, 0, values, before);
    }
}

/* Copies unaligned fp8 rows of the cache. */
template <int dim>
static __device__ __forceinline__ void copy_codes_slow(u64 mine, u32 omitted, char *to)
{
#pragma unroll 1
    for (int row = 0; row < GROUP_KEYS; row++) {
        const u8 *from = (const u8 *)__shfl_sync(~0u, mine, row);
#pragma unroll 1
        for (int d = (int)threadIdx.x & 31; d < dim && !(omitted >> row & 1); d += 32)
            *(u8 *)(to + piece_at<PANEL_BYTES>(row, d / 16) + d % 16) = from[d];
    }
}

/* Rows of the group that are not in the cache: new keys, unless they were saved. */
static __device__ __forceinline__ u32 find_fresh(const fi_call &c, const feed &f)
{
    int key = feed_key(c, f.at);
    bool fresh = key >= f.q.first_new;
    if (fresh && c.saved)
        fresh = c.batch.out_cache_loc[f.q.new_row + key - f.q.new_key] < 0;
    return __ballot_sync(~0u, fresh);
}

/* Copies an fp8 group that is not a box: keys in the cache, and new keys. */
template <typename S>
static __device__ __forceinline__ void start_codes(const fi_call &c, const feed &f, u32 fresh,
                                                   char *keys, char *values, u32 barrier)
{
    int key = feed_key(c, f.at);
    index_sequence q = f.q;
    q.first_new = fresh >> (threadIdx.x & 15) & 1 ? key : key + 1;
    index_place place = find_key(c, q, f.at.head, key, f.entry);
    if (c.operands.aligned & CALL_ALIGNED_CACHE) {
        copy_rows<S::dim, PANEL_BYTES, 256>((u64)place.k, 0, shared_address(keys), fresh);
        copy_rows<S::v_dim, PANEL_BYTES, 256>((u64)place.v, 0, shared_address(values), fresh);
    } else {
        copy_codes_slow<S::dim>((u64)place.k, fresh, keys);
        copy_codes_slow<S::v_dim>((u64)place.v, fresh, values);
    }
    if (fresh) {
        bool saves = (c.save || c.saves) && f.at.tile.row0 == 0 && fresh >> (threadIdx.x & 15) & 1;
        i64 slot = saves ? c.batch.out_cache_loc[f.q.new_row + key - f.q.new_key] : -1;
        /* Lanes after the end have the last key again; no row sees it there. */
        fresh &= (2u << min(f.at.tile.hi - 1 - cursor_key(f.at), GROUP_KEYS - 1)) - 1;
        quantise_new<S>(c, f.at.head, (u64)place.k, (u64)place.v, fresh, slot, keys, values);
    }
    barrier_expect_copies(barrier);
}

/* ---- A group ------------------------------------------------------------------------------- */

/* DECODE: writes the sequence's new key and value to the cache, if this warp has it. All loads are
 * started before the first wait, as the warp copies nothing meanwhile. */
template <typename S> static __device__ void save_new(const fi_call &c, const feed &f)
{
    const call_operands &o = c.operands;
    int from = cursor_key(f.at), key = f.q.kv_len - 1, head = f.at.head;
    if (f.at.tile.row0 != 0 || key < from || key >= from + GROUP_KEYS)
        return;
    bool aligned = o.aligned & CALL_ALIGNED_NEW, aligned_to = o.aligned & CALL_ALIGNED_CACHE;
    u32 k[(S::dim + 63) / 64], v[(S::v_dim + 63) / 64];
    i64 slot = c.batch.out_cache_loc[f.q.new_row];
    load_row<S::dim>((const char *)o.k + f.q.new_row * o.k_row + head * o.k_head, aligned, k);
    load_row<S::v_dim>((const char *)o.v + f.q.new_row * o.v_row + head * o.v_head, aligned, v);
    if (slot < 0)
        return;
    char *k_to, *v_to;
    find_slot(c, slot, head, &k_to, &v_to);
    store_row<S::dim>(k_to, aligned_to, k);
    store_row<S::v_dim>(v_to, aligned_to, v);
}

/* Starts the copy of the current group, if there is one, and arrives at the barrier. */
template <typename S>
static __device__ __forceinline__ void feed_start(const fi_call &c, const feed &f, char *stage,
                                                  u32 barrier)
{
    char *keys = stage + warp_part() * S::k_bytes;
    char *values = stage + WARPS * S::k_bytes + warp_part() * S::v_bytes;
    bool is_live = feed_is_live(c, f.at), is_box = is_live;
    if constexpr (S::quantised) {
        u32 fresh = is_live ? find_fresh(c, f) : 0;
        is_box = is_live && !fresh && c.has_maps;
        if (is_live && !is_box)
            start_codes<S>(c, f, fresh, keys, values, barrier);
    } else {
        is_box = is_live && feed_is_box(c, f);
        if (is_live && !is_box)
            start_rows<S>(c, f, keys, values, barrier);
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
        if (is_box)
            start_boxes<S>(find_box<S>(c, f), keys, values, barrier);
        else
            barrier_arrive(barrier);
    }
    if (!S::quantised && c.save && is_live)
        save_new<S>(c, f);
}

/* Prefetches a group's keys and values into L2. */
template <typename S> static __device__ __forceinline__ void prefetch_group(const box_place &box)
{
    int column = -8 * pieces_before<S>(box.head);
#pragma unroll
    for (int d = 0; d < S::dim; d += S::panel)
        prefetch_box(box.k_map, column + d, box.at, box.head, box.page);
#pragma unroll
    for (int d = 0; d < S::v_dim; d += S::panel)
        prefetch_box(box.v_map, column + d, box.at, box.head, box.page);
}

/* Prefetches the current group. Safe before pdl_wait(), even if the previous kernel still writes
 * it. */
template <typename S>
static __device__ __forceinline__ void feed_prefetch(const fi_call &c, const feed &f)
{
    if (feed_is_live(c, f.at) && feed_is_box(c, f) && (threadIdx.x & 31) == 0)
        prefetch_group<S>(find_box<S>(c, f));
}

#endif /* FI_ATTEND_FEED_CUH */
