/* SPDX-License-Identifier: Apache-2.0
 *
 * feed.cuh: how keys and values come into shared memory, for both kernels: four warps copy a unit,
 * each its group of 16 keys of a head and their values.
 *
 * Groups that lie side by side, in a page of the cache or among the new keys, come in boxes of the
 * copy engine, 64 columns each; others row by row, in pieces of 16 bytes, and rows that do not
 * begin at multiples of 16 bytes element by element. Either way a group's rows lie in panels of 64
 * columns, 128 bytes a row, their pieces in the copy engine's order: piece p of row r in place p ^
 * r % 8. The 8 rows of a matrix are then in different banks. A stage has the four groups' keys,
 * then their values.
 *
 * S: dim, v_dim, the cache's element, and the bytes of a group, k_bytes and v_bytes.
 */
#ifndef PLANNED_FEED_CUH
#define PLANNED_FEED_CUH

#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/planned/kernels/item.cuh"

/* ---- Profile ----------------------------------------------------------------------------------
 */

/* Built with -DFI_PROFILE, a kernel tells of its 20th launch how many cycles a warp of each kind
 * spent on what. */
#ifdef FI_PROFILE
#include <stdio.h>
static __device__ int fi_launches;
#define PROFILE_BEGIN                                                                              \
    long long profile[6] = {}, profile_last = clock64(), profile_first = profile_last;             \
    int profile_units = 0
#define PROFILE(n)                                                                                 \
    {                                                                                              \
        long long now = clock64();                                                                 \
        profile[n] += now - profile_last;                                                          \
        profile_last = now;                                                                        \
    }
#define PROFILE_END(name)                                                                          \
    if (threadIdx.x % 128 == 0 && blockIdx.x == 3 && blockIdx.y % 4 == 1 && fi_launches == 20)     \
    printf("%s block %d: %d units, %lld cycles a unit: %lld %lld %lld %lld %lld\n", name,          \
           (int)blockIdx.y, profile_units, (clock64() - profile_first) / profile_units,            \
           profile[0] / profile_units, profile[1] / profile_units, profile[2] / profile_units,     \
           profile[3] / profile_units, profile[4] / profile_units)
#define PROFILE_UNIT profile_units++
#else
#define PROFILE_BEGIN
#define PROFILE(n)
#define PROFILE_END(name)
#define PROFILE_UNIT
#endif

#define WARPS       4  /* that copy a unit, and that multiply it in attend.cuh */
#define GROUP_KEYS  16 /* of a unit, that a warp has */
#define PANEL_BYTES (GROUP_KEYS * 128)

/* Of a unit, what this warp copies, or multiplies: 16 keys. */
static __device__ __forceinline__ int warp_part(void)
{
    return (int)(threadIdx.x / 32) % WARPS;
}

static __device__ __forceinline__ int cursor_key(const cursor &at)
{
    return at.tile.lo + at.unit * FI_KEYS + warp_part() * GROUP_KEYS;
}

/* ---- Copies -----------------------------------------------------------------------------------
 */

/* What is copied next, and the page-table entry of this lane's key of it. */
struct feed {
    cursor at;
    index_sequence q;
    int entry;
};

/* This lane's key; keys after the end are read as the last one, and then not seen. */
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

/* Where piece p, of 16 bytes, of row r lies. */
template <int panel_bytes> static __device__ __forceinline__ int piece_at(int r, int p)
{
    return (p >> 3) * panel_bytes + r * 128 + ((p ^ r) & 7) * 16;
}

/* Rows of a group, whose places are those of 16 lanes from the first on; but for those that
 * `omitted` has a bit for. */
template <int row_bytes, int panel_bytes>
static __device__ __forceinline__ void copy_rows(u64 mine, int first, char *to, u32 omitted = 0)
{
    constexpr int pieces = row_bytes / 16; /* of a row */
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < GROUP_KEYS * pieces; i += 32) {
        int row = (i + lane) / pieces, piece = (i + lane) % pieces;
        const char *from = (const char *)__shfl_sync(~0u, mine, first + row);
        if (!(omitted >> row & 1))
            copy16(shared_address(to) + piece_at<panel_bytes>(row, piece), from + piece * 16);
    }
}

/* The same where rows do not begin at multiples of 16 bytes. */
template <int dim, int panel_bytes>
static __device__ __forceinline__ void copy_rows_slow(u64 mine, int first, char *to)
{
#pragma unroll 1
    for (int row = 0; row < GROUP_KEYS; row++) {
        const u16 *from = (const u16 *)__shfl_sync(~0u, mine, first + row);
#pragma unroll 1
        for (int d = (int)threadIdx.x & 31; d < dim; d += 32)
            *(u16 *)(to + piece_at<panel_bytes>(row, d / 8) + d % 8 * 2) = from[d];
    }
}

/* Do all rows of the group that begins with this key begin at multiples of 16 bytes? */
static __device__ __forceinline__ bool has_aligned(const fi_call &c, const index_sequence &q,
                                                   int first)
{
    int needed = (q.first_new > first ? CALL_ALIGNED_CACHE : 0) |
                 (q.first_new < first + GROUP_KEYS ? CALL_ALIGNED_NEW : 0);
    return !(needed & ~c.operands.aligned);
}

/* A group's box coordinates: all of its keys lie in one page. */
static __device__ __forceinline__ int box_offset(const fi_call &c, int key)
{
    return c.page_shift >= 0 ? key & ((1 << c.page_shift) - 1) : key % c.page_size;
}

/* A new key or value by a warp: a lane's pairs of elements, whose numbers differ by 64. */
#define EACH_PAIR(n, d, dim)                                                                       \
    _Pragma("unroll") for (int n = 0, d = ((int)threadIdx.x & 31) * 2; n < ((dim) + 63) / 64;      \
                           n++, d += 64) if (d < (dim))

template <int dim>
static __device__ __forceinline__ void load_row(const char *from, bool aligned,
                                                u32 (&x)[(dim + 63) / 64])
{
    EACH_PAIR(n, d, dim)
    x[n] = load_pair(from + d * 2, aligned);
}

template <int dim>
static __device__ __forceinline__ void store_row(char *to, bool aligned,
                                                 const u32 (&x)[(dim + 63) / 64])
{
    EACH_PAIR(n, d, dim)
    {
        u16 *two = (u16 *)to + d;
        if (aligned)
            *(u32 *)two = x[n];
        else
            two[0] = (u16)x[n], two[1] = (u16)(x[n] >> 16);
    }
}

/* Where a slot lies in the caches. */
static __device__ __forceinline__ void find_slot(const fi_call &c, i64 slot, int head, char **k,
                                                 char **v)
{
    const call_operands &o = c.operands;
    i64 page = c.page_shift >= 0 ? slot >> c.page_shift : slot / c.page_size;
    i64 at = slot - page * c.page_size;
    *k = (char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head;
    *v = (char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head;
}

/* DECODE: the sequence's new key and value, if this warp has it, into the cache. All is on its way
 * before any of it is waited for: meanwhile the warp copies nothing. */
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

/* Is the group at hand a box, of the cache or of the new keys? */
static __device__ __forceinline__ bool feed_is_box(const fi_call &c, const feed &f)
{
    int key = cursor_key(f.at);
    return key >= f.q.first_new ? c.has_new_maps : c.has_maps && key + GROUP_KEYS <= f.q.first_new;
}

/* Where the copy engine finds a group: which maps, and the coordinates after the column. */
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
    barrier_arrive_expect(barrier, S::k_bytes + S::v_bytes);
#pragma unroll
    for (int d = 0; d < S::dim; d += S::panel)
        tensor_load(shared_address(keys) + d / S::panel * PANEL_BYTES, box.k_map, barrier, d,
                    box.at, box.head, box.page);
#pragma unroll
    for (int d = 0; d < S::v_dim; d += S::panel)
        tensor_load(shared_address(values) + d / S::panel * PANEL_BYTES, box.v_map, barrier, d,
                    box.at, box.head, box.page);
}

template <typename S>
static __device__ __forceinline__ void start_rows(const fi_call &c, const feed &f, char *keys,
                                                  char *values, u32 barrier)
{
    int first = cursor_key(f.at);
    index_place place = find_key(c, f.q, f.at.head, feed_key(c, f.at), f.entry);
    if (has_aligned(c, f.q, first)) {
        copy_rows<S::dim * 2, PANEL_BYTES>((u64)place.k, 0, keys);
        copy_rows<S::v_dim * 2, PANEL_BYTES>((u64)place.v, 0, values);
        barrier_expect_copies(barrier);
    } else {
        copy_rows_slow<S::dim, PANEL_BYTES>((u64)place.k, 0, keys);
        copy_rows_slow<S::v_dim, PANEL_BYTES>((u64)place.v, 0, values);
    }
}

/* save_kv_quantise() of two elements, by the instruction that there is for it: which rounds and
 * saturates alike, but drops the sign of NaN. */
template <bool half> static __device__ __forceinline__ u16 quantise_pair(u32 pair, float scale)
{
    float2 x =
        half ? unpack_half(pair) : make_float2(bits_f32(pair << 16), bits_f32(pair & 0xffff0000u));
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;"
        : "=h"(codes)
        : "f"(__fdiv_rn(x.x, scale)), "f"(__fdiv_rn(x.y, scale)));
    return (u16)(codes | (pair >> 8 & 0x80u) | (pair >> 16 & 0x8000u));
}

/* A new key or value as codes: into the group, and to its slot if it has one. */
template <typename S, int dim>
static __device__ __forceinline__ void quantise_row(const u32 (&x)[(dim + 63) / 64], float scale,
                                                    int row, char *group, char *slot, bool aligned)
{
    EACH_PAIR(n, d, dim)
    {
        u16 codes = quantise_pair<S::half>(x[n], scale);
        *(u16 *)(group + piece_at<PANEL_BYTES>(row, d / 16) + d % 16) = codes;
        if (slot && aligned)
            *(u16 *)(slot + d) = codes;
        else if (slot)
            slot[d] = (char)codes, slot[d + 1] = (char)(codes >> 8);
    }
}

/* New keys of a group, rows that `fresh` has a bit for, as they are stored; row `last` goes to
 * `slot` too, if that is one. `k`, `v`: this lane's row. By value, so that nothing of the caller's
 * has an address. */
template <typename S>
static __device__ __noinline__ void quantise_new(const fi_call &c, int head, u64 k, u64 v,
                                                 u32 fresh, int last, i64 slot, char *keys,
                                                 char *values)
{
    float k_scale = k_scale_of(c, head), v_scale = v_scale_of(c, head);
    bool aligned = c.operands.aligned & CALL_ALIGNED_NEW;
    bool aligned_to = c.operands.aligned & CALL_ALIGNED_CACHE;
#pragma unroll 1
    for (; fresh; fresh &= fresh - 1) {
        int row = __ffs((int)fresh) - 1;
        u32 k_row[(S::dim + 63) / 64], v_row[(S::v_dim + 63) / 64];
        load_row<S::dim>((const char *)__shfl_sync(~0u, k, row), aligned, k_row);
        load_row<S::v_dim>((const char *)__shfl_sync(~0u, v, row), aligned, v_row);
        char *k_to = 0, *v_to = 0;
        if (row == last && slot >= 0)
            find_slot(c, slot, head, &k_to, &v_to);
        quantise_row<S, S::dim>(k_row, k_scale, row, keys, k_to, aligned_to);
        quantise_row<S, S::v_dim>(v_row, v_scale, row, values, v_to, aligned_to);
    }
}

/* Codes of the cache that do not begin at multiples of 16 bytes. */
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

/* Rows of the group whose keys are not in the cache: new ones, unless they were saved. */
static __device__ __forceinline__ u32 find_fresh(const fi_call &c, const feed &f)
{
    int key = feed_key(c, f.at);
    bool fresh = key >= f.q.first_new;
    if (fresh && c.saved)
        fresh = c.batch.out_cache_loc[f.q.new_row + key - f.q.new_key] < 0;
    return __ballot_sync(~0u, fresh);
}

/* A group of fp8 that is no box: what is in the cache, and what is new. */
template <typename S>
static __device__ __forceinline__ void start_codes(const fi_call &c, const feed &f, u32 fresh,
                                                   char *keys, char *values, u32 barrier)
{
    int key = feed_key(c, f.at);
    index_sequence q = f.q;
    q.first_new = fresh >> (threadIdx.x & 15) & 1 ? key : key + 1;
    index_place place = find_key(c, q, f.at.head, key, f.entry);
    if (c.operands.aligned & CALL_ALIGNED_CACHE) {
        copy_rows<S::dim, PANEL_BYTES>((u64)place.k, 0, keys, fresh);
        copy_rows<S::v_dim, PANEL_BYTES>((u64)place.v, 0, values, fresh);
    } else {
        copy_codes_slow<S::dim>((u64)place.k, fresh, keys);
        copy_codes_slow<S::v_dim>((u64)place.v, fresh, values);
    }
    if (fresh) {
        i64 slot = c.save && f.at.tile.row0 == 0 ? c.batch.out_cache_loc[f.q.new_row] : -1;
        /* Lanes after the end have the last key again, which nobody sees there. */
        fresh &= (2u << min(f.at.tile.hi - 1 - cursor_key(f.at), GROUP_KEYS - 1)) - 1;
        quantise_new<S>(c, f.at.head, (u64)place.k, (u64)place.v, fresh,
                        f.q.kv_len - 1 - cursor_key(f.at), slot, keys, values);
    }
    barrier_expect_copies(barrier);
}

/* Start the copy of the group at hand, if there is one, and arrive when it is there. */
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

/* Have a group's keys and values brought to the L2. */
template <typename S> static __device__ __forceinline__ void prefetch_group(const box_place &box)
{
#pragma unroll
    for (int d = 0; d < S::dim; d += S::panel)
        prefetch_box(box.k_map, d, box.at, box.head, box.page);
#pragma unroll
    for (int d = 0; d < S::v_dim; d += S::panel)
        prefetch_box(box.v_map, d, box.at, box.head, box.page);
}

/* That of the group at hand, whoever may still write it. */
template <typename S>
static __device__ __forceinline__ void feed_prefetch(const fi_call &c, const feed &f)
{
    if (feed_is_live(c, f.at) && feed_is_box(c, f) && (threadIdx.x & 31) == 0)
        prefetch_group<S>(find_box<S>(c, f));
}

#endif /* PLANNED_FEED_CUH */
