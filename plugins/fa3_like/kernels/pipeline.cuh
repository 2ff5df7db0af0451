/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.cuh: how tiles come into shared memory. One producer warpgroup, two of its warps at work:
 *
 *   warp 0   work to do -> Q, K(last), K(last - 1), ..., K(first)
 *   warp 1                    V(last), V(last - 1), ..., V(first)
 *
 * A tile of keys is one box for each 64 columns; of a paged cache one for each run of box_rows slots,
 * each lane looks up and fetches its own. Slots after the sequence's end are never read: what lies in
 * their rows is hidden (keys) or cleared (values) by those who read it.
 */
#ifndef FA3_LIKE_PIPELINE_CUH
#define FA3_LIKE_PIPELINE_CUH

#include "plugins/common/cuda/ptx.cuh"
#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/tiles.cuh"

#define DEVICE static __device__ __forceinline__

#define WORK_SLOTS 2

/* A tile of queries and what it is multiplied with. queries == 0: there is no more work. */
struct work {
    int tile, head, sequence, q_start; /* q_start: the first query's place in ragged queries */
    int queries, keys, k_start, k_end; /* of the sequence; tiles of keys [k_start, k_end) */
};

/* Barriers and work, after the tiles. */
struct control {
    unsigned long long q_full, q_empty;
    unsigned long long k_full[4], k_empty[4], v_full[4], v_empty[4];
    unsigned long long work_full[WORK_SLOTS], work_empty[WORK_SLOTS];
    struct work work[WORK_SLOTS];
};

/* A place in a ring of `count` slots; the phase turns with each round. */
template <int count> struct ring {
    int slot = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void advance()
    {
        if (++slot == count) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* Called by one thread, before the block's first barrier. */
template <typename T> DEVICE void control_init(struct control *control)
{
    const int warps = T::groups * 4;
    barrier_init(shared_address(&control->q_full), 1);
    barrier_init(shared_address(&control->q_empty), warps);
    for (int i = 0; i < T::stages; i++) {
        barrier_init(shared_address(&control->k_full[i]), 1);
        barrier_init(shared_address(&control->v_full[i]), 1);
        barrier_init(shared_address(&control->k_empty[i]), warps);
        barrier_init(shared_address(&control->v_empty[i]), warps);
    }
    for (int i = 0; i < WORK_SLOTS; i++) {
        barrier_init(shared_address(&control->work_full[i]), 1);
        barrier_init(shared_address(&control->work_empty[i]), warps + 1);
    }
    fence_barrier_init();
}

/* Boxes of tile `n` that hold keys of the sequence. */
template <typename T>
DEVICE int boxes_needed(const struct fa3_forward_params &p, const struct work &w, int n)
{
    int rows = min(w.keys - n * T::keys, T::keys);
    return p.block_table ? (rows + p.box_rows - 1) / p.box_rows : 1;
}

/* A whole warp: tile `n` of keys or values into `to`; its bytes count on `full`. */
template <typename T, int panels>
DEVICE void load_tile(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                      const struct work &w, int n, unsigned to, unsigned full)
{
    const int lane = threadIdx.x % 32;
    const int head = w.head / p.heads_per_kv;
    const int boxes = boxes_needed<T>(p, w, n);
    const int rows = p.box_rows;
    if (lane == 0)
        barrier_arrive_expect(full, boxes * rows * panels * ROW_BYTES);
    __syncwarp();
#pragma unroll 1
    for (int box = lane; box < boxes; box += 32) {
        int key = n * T::keys + box * rows;
        int outer = w.sequence;
        if (p.block_table) {
            const int *table = (const int *)p.block_table + w.sequence * p.table_stride;
            outer = table[key / p.page_size];
            key %= p.page_size;
        } else if (p.k_starts) {
            key += ((const int *)p.k_starts)[w.sequence];
            outer = 0;
        }
        for (int panel = 0; panel < panels; panel++)
            tensor_load(to + (panel * T::keys + box * rows) * ROW_BYTES, &map, full, panel * PANEL,
                        key, head, outer);
    }
    __syncwarp();
}

template <typename T>
DEVICE void load_queries(const struct fa3_forward_params &p, const struct work &w, unsigned to,
                         unsigned full)
{
    if (threadIdx.x % 32 == 0) {
        barrier_arrive_expect(full, T::q_bytes);
#pragma unroll 1
        for (int group = 0; group < T::groups; group++)
            for (int panel = 0; panel < T::panels; panel++)
                tensor_load(to + (group * T::panels + panel) * GROUP_ROWS * ROW_BYTES, &p.q, full,
                            panel * PANEL, w.q_start + w.tile * T::queries + group * GROUP_ROWS,
                            w.head, p.q_starts ? 0 : w.sequence);
    }
    __syncwarp();
}

#endif
