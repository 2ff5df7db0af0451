/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.cuh: copies tiles into shared memory. One producer warpgroup, last tile first:
 *
 *   stage        0      1        2        ...  last       next work: 0
 *   warps 0, 2   K(n)   K(n-1)   K(n-2)        -          K(m)
 *   warps 1, 3   -      V(n)     V(n-1)        V(first)   -
 *
 * A stage has the operands of one turn of a consumer: the keys of a tile, and the values of the
 * previous tile, whose probabilities are known by then. So one barrier serves both.
 *
 * A tile of keys is one box for each 64 columns; with a paged cache, one for each run of box_rows
 * slots. Each lane looks up its own page before the stage is free, and starts its copy then. Two
 * warps share a tile, since a warp issues only one copy in some 65 cycles. Boxes after the
 * sequence's last key are not copied. The last key's box may contain other rows after it, which
 * readers mask (keys) or clear (values).
 *
 * If all keys of a sequence are new, one warp copies keys and one values, from the call's rows, in
 * whole tiles. The other two save these rows to the cache (has_new): as boxes from the stages, if
 * several tiles share this work and slots are contiguous (save_box); otherwise directly from the
 * operands. A stage is free after they have released it, too.
 *
 * Queries have separate slots: with two, one is filled while the other is in use.
 */
#ifndef FA3_LIKE_PIPELINE_CUH
#define FA3_LIKE_PIPELINE_CUH

#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/tiles.cuh"

#define WORK_SLOTS 2

/* Named barriers of consumers; __syncthreads() uses 0. */
#define BARRIER_TURN  1  /* 1 to 4: it is a warpgroup's turn */
#define BARRIER_GROUP 5  /* 5 to 8: a warpgroup's own */
#define BARRIER_CLEAR 9  /* all consumers: values are cleared */
#define BARRIER_LOAD  10 /* and 11: of the two warps that load keys, or values */

/* A tile of queries and its keys. queries == 0: there is no more work. */
struct work {
    int tile, head, sequence, q_start; /* q_start: the first query's place in ragged queries */
    int queries, keys, k_start, k_end; /* of the sequence; tiles of keys [k_start, k_end) */
    int first_key;                     /* the first key that the tile's first query sees */
    int position;                      /* of the sequence's first query */
    int split;                         /* of the tile's keys */
    int is_new;                        /* keys are read from k_new and v_new */
};

/* Barriers and work, after the tiles. */
struct control {
    unsigned long long q_full[MOST_SLOTS], q_empty[MOST_SLOTS];
    unsigned long long full[MOST_STAGES], empty[MOST_STAGES]; /* of stages */
    unsigned long long work_full[WORK_SLOTS], work_empty[WORK_SLOTS];
    struct work work[WORK_SLOTS];
};

/* A position in the ring of work. As `ring` (warpgroup.cuh), but stores only the count. */
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

/* Initialises a ring's barriers: full, and empty (released by all consumer warps). */
DEVICE void ring_init(unsigned long long *full, unsigned long long *empty, int count, int fills,
                      int frees)
{
    for (int i = 0; i < count; i++) {
        barrier_init(shared_address(full + i), fills);
        barrier_init(shared_address(empty + i), frees);
    }
}

/* Called by one thread, before the block's first barrier. A query slot is released by one thread of
 * each warpgroup, the one that stores its output. */
template <typename T> DEVICE void control_init(struct control *control)
{
    const int warps = T::groups * 4;
    ring_init(control->q_full, control->q_empty, T::slots, 1, T::groups);
    ring_init(control->full, control->empty, T::stages, GROUP_THREADS / 32,
              warps + 2); /* 2: the producer warps that may save */
    ring_init(control->work_full, control->work_empty, WORK_SLOTS, 1, warps + 3);
    fence_barrier_init();
}

/* A lane's copy in each tile: one box, of one run of slots and 64 columns (fp8: 128), and its
 * source. */
struct piece {
    int box, panel;
    int key;         /* the box's first row in its map: a slot of a page, or a key of the
                      * sequence */
    int outer;       /* the map's last coordinate, if it is not a page */
    const int *page; /* this box's entry in the block table; 0: not paged */
};

/* Constants of a step from tile to tile: the distance in the block table, and the boxes of a full
 * tile. Divisions are slow in a producer: its instructions compete with the consumers' at the same
 * schedulers. */
struct tile_step {
    int pages, slots, boxes;
};

template <typename T> DEVICE struct tile_step tile_step_of(const struct fa3_forward_params &p)
{
    return {uniform(T::keys / p.page_size), uniform(T::keys % p.page_size),
            uniform(T::keys / p.box_rows)};
}

/* Boxes of the last tile with keys of the sequence; all boxes of other tiles have keys. */
template <typename T>
DEVICE int last_boxes(const struct fa3_forward_params &p, const struct work &w)
{
    return (min(w.keys - (w.k_end - 1) * T::keys, T::keys) + p.box_rows - 1) / p.box_rows;
}

/* Piece `number` of tile n. */
template <typename T, int panels>
DEVICE struct piece piece_of(const struct fa3_forward_params &p, const struct work &w, int n,
                             int number)
{
    struct piece it;
    it.box = number / panels;
    it.panel = number % panels;
    it.key = n * T::keys + it.box * p.box_rows;
    it.outer = w.sequence;
    it.page = 0;
    if (p.block_table) {
        it.page = (const int *)p.block_table + w.sequence * p.table_stride + it.key / p.page_size;
        it.key %= p.page_size;
    } else if (p.k_starts) {
        it.key += ((const int *)p.k_starts)[w.sequence];
        it.outer = 0;
    }
    return it;
}

/* The same piece of the previous tile. */
DEVICE void piece_back(const struct fa3_forward_params &p, const struct tile_step &step,
                       struct piece *it)
{
    it->key -= step.slots;
    it->page -= step.pages;
    if (it->key < 0) {
        it->key += p.page_size;
        it->page--;
    }
}

/* The same piece of the next tile. */
DEVICE void piece_advance(const struct fa3_forward_params &p, const struct tile_step &step,
                          struct piece *it)
{
    it->key += step.slots;
    it->page += step.pages;
    if (it->key >= p.page_size) {
        it->key -= p.page_size;
        it->page++;
    }
}

/* Two warps copy a work item's tiles into the stages at `to`. lag: 0 for keys; 1 for values, which
 * are one stage after the keys of their tile. */
template <typename T, int panels, int lag>
DEVICE void load_tiles(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                       const struct tile_step &step, const struct work &w, unsigned to,
                       struct control *control, ring<T::stages> *stage)
{
    static_assert(T::keys / 8 * panels <= 64, "a lane of two warps has one piece at most");
    const int count = w.k_end - w.k_start, head = w.head / p.heads_per_kv;
    const int box_bytes = p.box_rows * panels * ROW_BYTES;
    if (count == 0)
        return;
    pdl_wait();
    if (p.has_new) /* the saving warp continues after the loading warp */
        named_sync(BARRIER_LOAD + lag, 2 * 32);
    struct piece it =
        piece_of<T, panels>(p, w, w.k_end - 1, threadIdx.x % 32 * 2 + threadIdx.x / 64);
    int boxes = last_boxes<T>(p, w);
    to += (it.panel * T::keys + it.box * p.box_rows) * ROW_BYTES;
#pragma unroll 1
    for (int turn = 0; turn <= count; turn++) {
        const bool none = turn == (lag ? 0 : count);
        const int wanted = none ? 0 : boxes;
        const unsigned full = shared_address(control->full + stage->slot);
        int outer = it.outer;
        if (it.box < wanted && p.block_table)
            outer = *it.page;
        barrier_wait(shared_address(control->empty + stage->slot), stage->phase ^ 1);
        if (threadIdx.x < 64 && threadIdx.x % 32 == 0)
            barrier_arrive_expect(full, wanted * box_bytes);
        __syncwarp();
        if (it.box < wanted)
            tensor_load(to + stage->slot * panels * T::keys * ROW_BYTES, &map, full,
                        it.panel * PANEL, it.key, head, outer);
        __syncwarp();
        if (threadIdx.x >= 64 && threadIdx.x % 32 == 0) {
            barrier_arrive(full);
            barrier_arrive(shared_address(control->empty + stage->slot));
        }
        stage->advance();
        if (!none) {
            boxes = step.boxes;
            piece_back(p, step, &it);
        }
    }
}

/* Rows of a box that tiles save; 0: rows are copied one by one. Boxes need all keys of a tile, at
 * the stage rows of their numbers, so splits and other positions save by rows. */
template <typename T> DEVICE int save_box(const struct fa3_forward_params &p, const struct work &w)
{
    return !T::boxes || p.splits > 1 || w.position != 0 ? 0 : p.save_box;
}

/* The rows [*first, *end) that this work item saves, relative to the tile's first row. Heads that
 * share keys divide the rows among them, in whole boxes. */
template <typename T>
DEVICE void find_saved(const struct fa3_forward_params &p, const struct work &w, int *first,
                       int *end)
{
    const int splits = max(p.splits, 1), parts = p.heads_per_kv * splits;
    const int part = w.head % p.heads_per_kv * splits + w.split;
    const int rows = min(T::queries, w.queries - w.tile * T::queries),
              box = max(save_box<T>(p, w), 1);
    *first = rows / box * part / parts * box;
    *end = part + 1 == parts ? rows : rows / box * (part + 1) / parts * box;
}

/* One row per lane: the bits of rows whose box has contiguous slots. */
DEVICE unsigned boxed_rows(int box, int slot)
{
    const int lane = threadIdx.x % 32, lead = __shfl_sync(0xffffffff, slot, lane & -box);
    const bool good = lead >= 0 && lead % box == 0 && slot == lead + lane % box;
    unsigned rows = __ballot_sync(0xffffffff, good);
    for (int width = 1; width < box; width *= 2) /* all rows of a box, or none */
        rows &= rows >> width;
    rows &= box == 32 ? 1u : 0x00010001u;
    return rows * ((box == 32 ? 0u : 1u << box) - 1);
}

/* What a lane saves: a box of 64 columns, from a stage of keys or values. */
struct save_piece {
    int turn; /* of keys; negative: nothing */
    int from; /* in the stage */
    int slot;
};

template <typename T, int panels>
DEVICE struct save_piece find_piece(const struct fa3_forward_params &p, const struct work &w)
{
    const int lane = threadIdx.x % 32, box = save_box<T>(p, w), begin = w.tile * T::queries;
    struct save_piece it = {-MOST_STAGES, 0, 0};
    int first, end;
    if (box == 0 || !p.slots)
        return it;
    find_saved<T>(p, w, &first, &end);
    end -= (end - first) % box;
    const int mine = first + lane / panels * box;
    const long long *slots = (const long long *)p.slots + w.q_start + begin;
#pragma unroll 1
    for (; first < end; first += 32) {
        const int slot = first + lane < end ? (int)slots[first + lane] : -1;
        const unsigned rows = boxed_rows(box, slot);
        const int there = __shfl_sync(0xffffffff, slot, mine - first);
        if (mine >= first && mine < first + 32 && (rows >> (mine - first) & 1))
            it.turn = w.k_end - 1 - (begin + mine) / T::keys, it.slot = there;
    }
    it.from = (lane % panels * T::keys + mine % T::keys) * ROW_BYTES;
    return it;
}

/* load_tiles() for a sequence whose keys are all new, by one warp: a box of the call's rows for
 * each 64 columns. Another warp saves them. */
template <typename T, int panels, int lag>
DEVICE void load_new(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                     const struct work &w, unsigned to, struct control *control,
                     ring<T::stages> *stage)
{
    const int count = w.k_end - w.k_start, head = w.head / p.heads_per_kv, panel = threadIdx.x % 32;
    int key = w.q_start + (w.k_end - 1 + lag) * T::keys;
    const bool alone = save_box<T>(p, w) == 0; /* the saving warp skips the stages */
    to += panel * T::keys * ROW_BYTES;
#pragma unroll 1
    for (int turn = 0; turn <= count && count > 0; turn++, key -= T::keys) {
        const bool none = turn == (lag ? 0 : count);
        const unsigned full = shared_address(control->full + stage->slot);
        const unsigned empty = shared_address(control->empty + stage->slot);
        barrier_wait(empty, stage->phase ^ 1);
        if (panel == 0) {
            barrier_arrive_expect(full, none ? 0 : panels * T::keys * ROW_BYTES);
            barrier_arrive(full); /* for a warp that saves */
            if (alone)
                barrier_arrive(empty);
        }
        __syncwarp();
        if (panel < panels && !none)
            tensor_load(to + stage->slot * panels * T::keys * ROW_BYTES, &map, full, panel * PANEL,
                        key, head, 0);
        __syncwarp();
        stage->advance();
    }
}

/* One warp saves boxes of these rows from their stages. */
template <typename T, int panels, int lag>
DEVICE void save_boxes(const struct fa3_forward_params &p, const struct fa3_tensor_map &pages,
                       const struct work &w, unsigned to, struct control *control,
                       ring<T::stages> *stage)
{
    const int count = w.k_end - w.k_start, lane = threadIdx.x % 32;
    const struct save_piece mine = find_piece<T, panels>(p, w);
#pragma unroll 1
    for (int turn = 0; turn <= count; turn++) {
        barrier_wait(shared_address(control->full + stage->slot), stage->phase);
        if (turn == mine.turn + lag) {
            const unsigned page = (unsigned)mine.slot / p.k_save.page_size;
            tensor_store(&pages, to + stage->slot * panels * T::keys * ROW_BYTES + mine.from,
                         lane % panels * PANEL, mine.slot - page * p.k_save.page_size,
                         w.head / p.heads_per_kv, page);
            store_commit();
            store_wait_read();
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(shared_address(control->empty + stage->slot));
        stage->advance();
    }
}

template <typename T> DEVICE void pass_stages(ring<T::stages> *stage, int count)
{
    const int to = stage->slot + count;
    stage->slot = to % T::stages;
    stage->phase ^= to / T::stages & 1;
}

/* One warp saves rows [first, end) of new keys, or of values, except those in boxes. A lane finds
 * the slot of one row, and copies a piece of each row, or of every second or fourth one. */
template <typename T, int dim>
DEVICE void save_rows(const struct fa3_save &save, const long long *slots, int box, int head,
                      int first, int end)
{
    constexpr int pieces = dim / 8, side = 32 / pieces,
                  together = T::groups == 4 ? 1
                             : dim == 64    ? 3
                                            : 3;
    const unsigned none = ~0u, lane = threadIdx.x % 32, piece = lane % pieces;
    const bool idle = lane >= side * pieces;
#pragma unroll 1
    for (; first < end; first += 32) {
        const int slot = first + (int)lane < end ? (int)slots[first + lane] : -1;
        const unsigned boxed = box ? boxed_rows(box, slot) : 0;
        if (!__any_sync(0xffffffff, slot >= 0 && !(boxed >> lane & 1)))
            continue;
        const unsigned page = (unsigned)slot / save.page_size;
        const unsigned offset = (unsigned)slot - page * save.page_size;
        const unsigned place = page * save.page + offset * save.token + head * save.head;
        const unsigned mine = slot < 0 || (boxed >> lane & 1) ? none : place;
#pragma unroll 1
        for (int row = 0; row < min(32, end - first); row += side * together) {
            unsigned to[together];
            uint4 x[together];
#pragma unroll
            for (int n = 0; n < together; n++) {
                const int at = row + n * side + lane / pieces;
                to[n] = __shfl_sync(0xffffffff, mine, at);
                if (idle || at >= 32)
                    to[n] = none;
                if (to[n] != none)
                    x[n] =
                        ((const uint4 *)save
                             .from)[(first + at) * save.from_row + head * save.from_head + piece];
            }
#pragma unroll
            for (int n = 0; n < together; n++)
                if (to[n] != none)
                    ((uint4 *)save.to)[to[n] + piece] = x[n];
        }
    }
}

/* One warp saves this tile's rows, from the stages or directly. */
template <typename T, int dim, int lag>
DEVICE void save_new(const struct fa3_forward_params &p, const struct work &w,
                     const struct fa3_save &save, const struct fa3_tensor_map &pages, unsigned to,
                     struct control *control, ring<T::stages> *stage)
{
    const int from = w.q_start + w.tile * T::queries;
    int first, end;
    if (w.k_end > w.k_start && save_box<T>(p, w) == 0)
        pass_stages<T>(stage, w.k_end - w.k_start + 1);
    else if (w.k_end > w.k_start)
        save_boxes<T, (dim + PANEL - 1) / PANEL, lag>(p, pages, w, to, control, stage);
    if (!p.slots)
        return;
    find_saved<T>(p, w, &first, &end);
    save_rows<T, dim>(save, (const long long *)p.slots, save_box<T>(p, w), w.head / p.heads_per_kv,
                      from + first, from + end);
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
