/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.cuh: how tiles come into shared memory. One producer warpgroup, last tile first:
 *
 *   stage        0      1        2        ...  last       next work: 0
 *   warps 0, 2   K(n)   K(n-1)   K(n-2)        -          K(m)
 *   warps 1, 3   -      V(n)     V(n-1)        V(first)   -
 *
 * A stage has what one turn of a consumer multiplies: the keys of a tile, and the values of the
 * tile before, whose probabilities are known by then. So one barrier tells of both.
 *
 * A tile of keys is one box for each 64 columns; of a paged cache one for each run of box_rows
 * slots. Each lane looks up its own page before the stage comes free, and fetches it then; two
 * warps share a tile, since one issues a copy in some 65 cycles only. Boxes after the sequence's
 * last key are not fetched, and that key's own box may bring anything after it: what lies in these
 * rows is hidden (keys) or cleared (values) by those who read it.
 *
 * Queries have slots of their own. Of two, one is filled while the other is worked on.
 */
#ifndef FA3_LIKE_PIPELINE_CUH
#define FA3_LIKE_PIPELINE_CUH

#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/tiles.cuh"

#define WORK_SLOTS 2

/* Named barriers of consumers; 0 is that of __syncthreads(). */
#define BARRIER_TURN  1 /* 1 to 4: a warpgroup's turn has come */
#define BARRIER_GROUP 5 /* 5 to 8: a warpgroup's own */
#define BARRIER_CLEAR 9 /* of all: values are cleared */

/* A tile of queries and what it is multiplied with. queries == 0: there is no more work. */
struct work {
    int tile, head, sequence, q_start; /* q_start: the first query's place in ragged queries */
    int queries, keys, k_start, k_end; /* of the sequence; tiles of keys [k_start, k_end) */
};

/* Barriers and work, after the tiles. */
struct control {
    unsigned long long q_full[MOST_SLOTS], q_empty[MOST_SLOTS];
    unsigned long long full[MOST_STAGES], empty[MOST_STAGES]; /* of stages */
    unsigned long long work_full[WORK_SLOTS], work_empty[WORK_SLOTS];
    struct work work[WORK_SLOTS];
};

/* A place in the ring of work, as in any ring (warpgroup.cuh), of which only the count is kept. */
struct work_ring {
    unsigned count = 0;

    __device__ __forceinline__ unsigned slot() const
    {
        return count % WORK_SLOTS;
    }

    __device__ __forceinline__ unsigned phase() const
    {
        return count / WORK_SLOTS % 2;
    }

    __device__ __forceinline__ void advance()
    {
        count++;
    }
};

/* A ring's barriers: all is there; all warps of the consumers have let go. */
DEVICE void ring_init(unsigned long long *full, unsigned long long *empty, int count, int fills,
                      int frees)
{
    for (int i = 0; i < count; i++) {
        barrier_init(shared_address(full + i), fills);
        barrier_init(shared_address(empty + i), frees);
    }
}

/* Called by one thread, before the block's first barrier. A slot is let go by one thread of a
 * warpgroup, the one that has sent its output away. */
template <typename T> DEVICE void control_init(struct control *control)
{
    const int warps = T::groups * 4;
    ring_init(control->q_full, control->q_empty, T::slots, 1, T::groups);
    ring_init(control->full, control->empty, T::stages, 2, warps);
    ring_init(control->work_full, control->work_empty, WORK_SLOTS, 1, warps + 3);
    fence_barrier_init();
}

/* A piece of a tile: one box for one run of slots and 64 columns. Where it comes from, and whether
 * there is one for this lane. */
struct piece {
    int key, outer, box, panel;
    bool any;
};

/* Boxes of tile `n` that hold keys of the sequence. */
template <typename T>
DEVICE int boxes_needed(const struct fa3_forward_params &p, const struct work &w, int n)
{
    const int rows = min(w.keys - n * T::keys, T::keys);
    return p.block_table ? (rows + p.box_rows - 1) / p.box_rows : 1;
}

/* Where a key of the sequence lies, as coordinates of its map: its row, and the page or sequence.
 * The page of one that is not fetched, `any` 0, is not looked up. */
DEVICE void find_key(const struct fa3_forward_params &p, const struct work &w, bool any, int *key,
                     int *outer)
{
    *outer = w.sequence;
    if (p.block_table && any) {
        const int *table = (const int *)p.block_table + w.sequence * p.table_stride;
        *outer = table[*key / p.page_size];
        *key %= p.page_size;
    } else if (p.k_starts) {
        *key += ((const int *)p.k_starts)[w.sequence];
        *outer = 0;
    }
}

/* This lane's piece of tile `n`, two warps sharing them; looked up before the stage is free. */
template <typename T, int panels>
DEVICE struct piece piece_of(const struct fa3_forward_params &p, const struct work &w, int n,
                             int boxes)
{
    static_assert(T::keys / 8 * panels <= 64, "a lane of two warps has one piece at most");
    const int i = threadIdx.x % 32 * 2 + threadIdx.x / 64;
    struct piece it;
    it.box = i / panels;
    it.panel = i % panels;
    it.any = it.box < boxes;
    it.key = n * T::keys + it.box * p.box_rows;
    find_key(p, w, it.any, &it.key, &it.outer);
    return it;
}

/* Two warps: what they have to bring to the stages of a piece of work, into the ring at `to`.
 * behind: 0 for keys; 1 for values, which come one stage after the keys of their tile. */
template <typename T, int panels, int behind>
DEVICE void load_tiles(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                       const struct work &w, unsigned to, struct control *control,
                       ring<T::stages> *stage)
{
    const int bytes = panels * T::keys * ROW_BYTES;
    if (w.k_end == w.k_start)
        return;
#pragma unroll 1
    for (int n = w.k_end - 1 + behind; n >= w.k_start - 1 + behind; n--) {
        const bool any = n < w.k_end && n >= w.k_start;
        const int boxes = any ? boxes_needed<T>(p, w, n) : 0;
        const struct piece it = piece_of<T, panels>(p, w, n, boxes);
        const unsigned full = shared_address(control->full + stage->slot);
        barrier_wait(shared_address(control->empty + stage->slot), stage->phase ^ 1);
        if (threadIdx.x < 64 && threadIdx.x % 32 == 0)
            barrier_arrive_expect(full, boxes * p.box_rows * panels * ROW_BYTES);
        __syncwarp();
        if (it.any)
            tensor_load(to + stage->slot * bytes +
                            (it.panel * T::keys + it.box * p.box_rows) * ROW_BYTES,
                        &map, full, it.panel * PANEL, it.key, w.head / p.heads_per_kv, it.outer);
        __syncwarp();
        stage->advance();
    }
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
