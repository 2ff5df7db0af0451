/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_producer.cuh: the warps of attend.cuh that copy. Where there are two teams, they take
 * units in turn:
 *
 *   team 0   look up 2 | wait for stage 0, start 0 | look up 4 | wait for stage 2, start 2 | ...
 *   team 1   look up 3 | wait for stage 1, start 1 | look up 5 | wait for stage 3, start 3 | ...
 *
 * Runs of units whose groups are boxes of the cache have a loop of their own, with one look-up for
 * every 32 of them; so have runs of rows of codes, where pages have no whole boxes. At the ends of items nothing changes: a block's units are one list.
 */
#ifndef FI_ATTEND_PRODUCER_CUH
#define FI_ATTEND_PRODUCER_CUH

#include "plugins/flashinfer_like/kernels/profile.cuh"
#include "plugins/flashinfer_like/kernels/attend_feed.cuh"

/* How many of this team's units of the item, from the one at hand on, are of the cache alone. */
template <typename S>
static __device__ __forceinline__ int count_cached(const fi_call &c, const feed &f)
{
    int units = min(f.at.left, f.at.units - f.at.unit);
    int room =
        f.q.first_new - GROUP_KEYS - cursor_key(f.at); /* keys that a group may begin after */
    if (room < 0)
        return 0;
    return (min(units, room / FI_KEYS + 1) + S::producers - 1) / S::producers;
}

/* Do groups of the cache come row by row, and each row as pieces of 16 bytes? */
template <typename S> static __device__ __forceinline__ bool are_rows(const fi_call &c)
{
    return S::quantised && S::dim == S::v_dim && !c.has_maps && c.page_shift >= 0 &&
           !c.batch.req_to_token && c.operands.aligned & CALL_ALIGNED_CACHE;
}

/* Past a run of units. */
template <typename S>
static __device__ __forceinline__ void feed_past(const fi_call &c, feed &f, int run)
{
    f.at.unit += (run - 1) * S::producers;
    f.at.left -= (run - 1) * S::producers;
    for (int team = 0; team < S::producers; team++)
        feed_next(c, f);
}

/* A run of them. Nothing is asked for each that is the same for all: a warp takes some five cycles
 * an instruction, and those who multiply want to issue theirs. A lane looks up one of 32 units. */
template <typename S>
static __device__ __forceinline__ void copy_boxes(const fi_call &c, feed &f, int run, ring &r,
                                                  char *shared)
{
    int lane = (int)threadIdx.x & 31, head = f.at.head;
    int key = cursor_key(f.at) + lane * S::producers * FI_KEYS;
    u32 keys = shared_address(shared) + warp_part() * S::k_bytes;
    u32 values = shared_address(shared) + WARPS * S::k_bytes + warp_part() * S::v_bytes;
#pragma unroll 1
    for (int first = 0; first < run; first += 32, key += 32 * S::producers * FI_KEYS) {
        int entry = first + lane < run ? *find_entry(c, f.q, key) : 0;
        int offset = box_offset(c, key);
#pragma unroll 1
        for (int i = 0; i < min(32, run - first); i++) {
            int page = __shfl_sync(~0u, entry, i), at = __shfl_sync(~0u, offset, i);
            u32 full = full_barrier<S>(shared, r.stage), stage = r.stage * S::stage_bytes;
            barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
            if (lane == 0) {
                barrier_arrive_expect(full, S::k_bytes + S::v_bytes);
#pragma unroll
                for (int d = 0; d < S::dim; d += S::panel)
                    tensor_load(keys + stage + d / S::panel * PANEL_BYTES, &c.k_map, full, d, at,
                                head, page);
#pragma unroll
                for (int d = 0; d < S::v_dim; d += S::panel)
                    tensor_load(values + stage + d / S::panel * PANEL_BYTES, &c.v_map, full, d, at,
                                head, page);
            }
            __syncwarp();
            for (int team = 0; team < S::producers; team++)
                ring_next<S>(r);
        }
    }
    feed_past<S>(c, f, run);
}

/* The same of rows of codes: a lane has the same piece of `mine` rows of keys and of values, and looks
 * them up ROWS_AHEAD units at a time, as many before they are copied. */
#define ROWS_AHEAD 2
template <typename S>
static __device__ __forceinline__ void copy_code_rows(const fi_call &c, feed &f, int run, ring &r,
                                                      char *shared)
{
    constexpr int pieces = S::dim / 16, mine = GROUP_KEYS * pieces / 32;
    const call_operands &o = c.operands;
    const int lane = (int)threadIdx.x & 31, first = cursor_key(f.at), low = (1 << c.page_shift) - 1;
    const int *table = f.q.table;
    const char *keys = (const char *)o.k_cache + f.at.head * o.k_cache_head;
    const char *values = (const char *)o.v_cache + f.at.head * o.v_cache_head;
    const u32 k_to = shared_address(shared) + warp_part() * S::k_bytes;
    const u32 v_to = shared_address(shared) + WARPS * S::k_bytes + warp_part() * S::v_bytes;
    int page[ROWS_AHEAD][mine], next[ROWS_AHEAD][mine];
    auto look_up = [&](int unit, int(&to)[ROWS_AHEAD][mine]) {
#pragma unroll
        for (int u = 0; u < ROWS_AHEAD; u++)
#pragma unroll
            for (int n = 0; n < mine; n++) {
                const int key =
                    first + (unit + u) * S::producers * FI_KEYS + (n * 32 + lane) / pieces;
                to[u][n] = unit + u < run ? table[key >> c.page_shift] : 0;
            }
    };
    look_up(0, page);
#pragma unroll 1
    for (int unit = 0; unit < run; unit += ROWS_AHEAD) {
        look_up(unit + ROWS_AHEAD, next);
#pragma unroll
        for (int u = 0; u < ROWS_AHEAD; u++) {
            if (unit + u >= run)
                break;
            const u32 full = full_barrier<S>(shared, r.stage), stage = r.stage * S::stage_bytes;
            barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
#pragma unroll
            for (int n = 0; n < mine; n++) {
                const int row = (n * 32 + lane) / pieces, piece = (n * 32 + lane) % pieces;
                const int at = (first + row + (unit + u) * S::producers * FI_KEYS) & low;
                const u32 to = stage + piece_at<PANEL_BYTES>(row, piece);
                copy16(k_to + to, keys + page[u][n] * o.k_page + at * o.k_token + piece * 16);
                copy16(v_to + to, values + page[u][n] * o.v_page + at * o.v_token + piece * 16);
            }
            barrier_expect_copies(full);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(full);
            for (int team = 0; team < S::producers; team++)
                ring_next<S>(r);
        }
#pragma unroll
        for (int i = 0; i < ROWS_AHEAD * mine; i++)
            page[i / mine][i % mine] = next[i / mine][i % mine];
    }
    feed_past<S>(c, f, run);
}

/* Those who multiply will begin this item later: its queries are brought to the L1, a line by a
 * lane. What the plan and the batch tell of it is there already, as this warp has looked it up. */
template <typename S>
static __device__ __forceinline__ void touch_queries(const fi_call &c, const feed &f)
{
    constexpr int lines = (S::dim * 2 + 127) / 128; /* of a row */
    int lane = (int)threadIdx.x & 31, r = warp_part() + lane / lines * WARPS;
    if (r >= item_rows(c, f.q, f.at.tile, FI_ROWS))
        return;
    i64 row;
    int head;
    find_short_row(c, f.q, f.at, r, &row, &head);
    touch((const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head +
          lane % lines * 128);
}

/* All that a warp copies. Pages are looked up a unit before they are needed. */
template <typename S>
static __device__ __forceinline__ void produce(const fi_call &c, const cursor &at, char *shared)
{
    ring r = {0, 1}; /* the first round finds all stages free */
    feed f = {at};
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &f.q);
    for (int team = (int)threadIdx.x / (WARPS * 32) - S::teams; team > 0; team--) {
        feed_next(c, f);
        ring_next<S>(r);
    }
    feed_look_up<S>(c, f);
    feed_prefetch<S>(c, f);
    pdl_wait();
    PROFILE_BEGIN;
#pragma unroll 1
    while (f.at.left > 0) {
        PROFILE_UNIT;
        const bool has_rows = are_rows<S>(c);
        int run = c.has_maps || has_rows ? count_cached<S>(c, f) : 0;
        if (f.at.unit < S::producers && (f.at.at != at.at || f.at.head != at.head))
            touch_queries<S>(c, f);
        if (run > 0) {
            if constexpr (S::quantised && S::dim == S::v_dim)
                if (has_rows) {
                    copy_code_rows<S>(c, f, run, r, shared);
                    feed_look_up<S>(c, f);
                    continue;
                }
            copy_boxes<S>(c, f, run, r, shared);
            feed_look_up<S>(c, f);
            continue;
        }
        feed next = f;
        for (int team = 0; team < S::producers; team++)
            feed_next(c, next);
        feed_look_up<S>(c, next);
        PROFILE(0);
        barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
        PROFILE(1);
        feed_start<S>(c, f, shared + r.stage * S::stage_bytes, full_barrier<S>(shared, r.stage));
        PROFILE(2);
        for (int team = 0; team < S::producers; team++)
            ring_next<S>(r);
        f = next;
    }
    PROFILE_END("producers");
}

#endif /* FI_ATTEND_PRODUCER_CUH */
