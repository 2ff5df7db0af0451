/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_producer.cuh: the loop of the copying warps of attend.cuh. Two teams alternate on units:
 *
 *   team 0   look up 2 | wait for stage 0, start 0 | look up 4 | wait for stage 2, start 2 | ...
 *   team 1   look up 3 | wait for stage 1, start 1 | look up 5 | wait for stage 3, start 3 | ...
 *
 * Runs of units whose groups are boxes of the cache have a loop of their own, with one look-up for
 * every 32 units. Runs of units of aligned rows have another. The ends of items need no special
 * code, as a block's units are one list.
 */
#ifndef FI_ATTEND_PRODUCER_CUH
#define FI_ATTEND_PRODUCER_CUH

#include "plugins/flashinfer_like/kernels/profile.cuh"
#include "plugins/flashinfer_like/kernels/attend_feed.cuh"

/* The number of this team's units of the item, from the current one on, that are boxes or aligned
 * rows of the cache. */
template <typename S>
static __device__ __forceinline__ int count_cached(const fi_call &c, const feed &f)
{
    int units = min(f.at.left, f.at.units - f.at.unit);
    int room =
        f.q.first_new - GROUP_KEYS - cursor_key(f.at); /* keys after which a group may start */
    if (room < 0 || !(c.has_maps || c.operands.aligned & CALL_ALIGNED_CACHE))
        return 0;
    return (min(units, room / FI_KEYS + 1) + S::producers - 1) / S::producers;
}

/* Skips a run of units. */
template <typename S>
static __device__ __forceinline__ void feed_past(const fi_call &c, feed &f, int run)
{
    f.at.unit += (run - 1) * S::producers;
    f.at.left -= (run - 1) * S::producers;
    for (int team = 0; team < S::producers; team++)
        feed_next(c, f);
}

/* Copies a run of boxes. The loop tests nothing that is the same for all units: a warp takes some
 * five cycles per instruction, and competes with the math warps for issue slots. Each lane looks up
 * one of 32 units. */
template <typename S>
static __device__ __forceinline__ void copy_boxes(const fi_call &c, feed &f, int run, ring &r,
                                                  char *shared)
{
    int lane = (int)threadIdx.x & 31, head = f.at.head, column = -8 * pieces_before<S>(head);
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
                    tensor_load(keys + stage + d / S::panel * PANEL_BYTES, &c.k_map, full,
                                column + d, at, head, page);
#pragma unroll
                for (int d = 0; d < S::v_dim; d += S::panel)
                    tensor_load(values + stage + d / S::panel * PANEL_BYTES, &c.v_map, full,
                                column + d, at, head, page);
            }
            __syncwarp();
            for (int team = 0; team < S::producers; team++)
                ring_next<S>(r);
        }
    }
    feed_past<S>(c, f, run);
}

/* Copies a run of units row by row. A lane has a row of each of two units, and looks them up two
 * units ahead. */
template <typename S>
static __device__ __forceinline__ void copy_row_runs(const fi_call &c, feed &f, int run, ring &r,
                                                     char *shared)
{
    int lane = (int)threadIdx.x & 31, part = lane / GROUP_KEYS, head = f.at.head;
    int before = pieces_before<S>(head);
    int key = cursor_key(f.at) + part * S::producers * FI_KEYS + lane % GROUP_KEYS;
    int entry = part < run ? *find_entry(c, f.q, key) : 0;
    u32 keys = shared_address(shared) + warp_part() * S::k_bytes;
    u32 values = shared_address(shared) + WARPS * S::k_bytes + warp_part() * S::v_bytes;
#pragma unroll 1
    for (int unit = 0; unit < run; unit += 2) {
        index_place place = find_key(c, f.q, head, key, entry);
        key += 2 * S::producers * FI_KEYS;
        entry = unit + 2 + part < run ? *find_entry(c, f.q, key) : 0;
#pragma unroll 1
        for (int u = 0; u < min(2, run - unit); u++) {
            u32 full = full_barrier<S>(shared, r.stage), stage = r.stage * S::stage_bytes;
            barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
            copy_rows<S::dim * S::size, PANEL_BYTES, 256>((u64)place.k, u * GROUP_KEYS,
                                                          keys + stage, 0, before);
            copy_rows<S::v_dim * S::size, PANEL_BYTES, 256>((u64)place.v, u * GROUP_KEYS,
                                                            values + stage, 0, before);
            barrier_expect_copies(full);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(full);
            for (int team = 0; team < S::producers; team++)
                ring_next<S>(r);
        }
    }
    feed_past<S>(c, f, run);
}

/* Prefetches the queries of an item that the math warps will start later into L1, a line by a lane.
 * The item's plan and batch entries are in L1 already, as this warp has read them. */
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

/* The loop of a copying warp. Pages are looked up one unit ahead. */
template <typename S>
static __device__ __forceinline__ void produce(const fi_call &c, const cursor &at, char *shared)
{
    ring r = {0, 1}; /* in the first round all stages are free */
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
        int run = count_cached<S>(c, f);
        if (f.at.unit < S::producers && (f.at.at != at.at || f.at.head != at.head))
            touch_queries<S>(c, f);
        if (run > 0) {
            if (c.has_maps)
                copy_boxes<S>(c, f, run, r, shared);
            else
                copy_row_runs<S>(c, f, run, r, shared);
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
