/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: the structs that the host and the kernels share: a plan (a batch as tiles) and the
 * parameters of a launch. Plain C, the same for both.
 *
 *   tile    `rows` rows of a KV head: row r of a sequence is query r / ratio of query head
 *           r % ratio of the head's group, so that grouped heads share each key that is read
 *   unit    64 or 128 keys of a tile, depending on the kernel; work is counted in units. A tile
 *           without keys has one unit
 *   item    a tile of one KV head
 *   lane    blocks with the same heads: lane l has the heads l, l + lanes, l + 2 * lanes ... of each
 *           tile; one head, if there are no more heads than blocks
 *   column  the blocks of all lanes that have the same part of the batch
 *
 * The units of a lane are numbered by tile, then item, then key. Column c of `columns` processes
 * units * c / columns to units * (c + 1) / columns, both rounded up, so any two blocks differ by at
 * most one unit. In a batch of many short items the start and end of an item count too: each item
 * has `begin` idle units before its own. All heads of the same keys are read at the same time: if
 * they are adjacent in memory, this gains a tenth of the bandwidth. The last block to finish merges
 * an item that several columns share.
 *
 * If a row's bits must not depend on the rest of its batch, columns cut items only between splits.
 * All splits have the same number of units, counted from the item's first unit. A split's result
 * does not depend on the block that computes it, and splits are merged in order. The column with an
 * item's first split merges its own splits in slot 0 of its scratch memory; other columns write
 * split k to slot k there. Items of many rows have one split.
 *
 * In DECODE, sequences may share their first keys: runs of sequences, in levels
 * (attn_shared_prefix). The runs of a level are planned like a batch of sequences. Each has one
 * query per sequence of the run, and only the keys that the level adds. Its partial results are
 * stored in device memory, one row for each level, query and head. The sequences themselves are
 * planned without these keys, and add these rows at the end of an item.
 */
#ifndef FI_PLAN_H
#define FI_PLAN_H

#include "plugins/common/cuda/call.h"

/* FI_GROUP: keys that are adjacent if page sizes are multiples of it. */
enum {
    FI_ROWS = 16,
    FI_PREFILL_ROWS = 128,
    FI_HALF_ROWS = 64,  /* of a half tile */
    FI_STORE_ROWS = 64, /* of a prefill tile, stored by one copy */
    FI_HANDS = 16,      /* of a prefill plan */
    FI_KEYS = 64,       /* of a unit of few rows */
    FI_GROUP = 16,
    FI_SHORT_ROWS = 32,  /* of a sequence and KV head, at most, for tiles of FI_ROWS */
    FI_SEVERAL = 8,      /* with at least so many parts of an item, several blocks merge them */
    FI_SEVERAL_MANY = 4, /* the same for more than FI_ROWS rows */
    FI_LEVELS = 4,       /* of shared prefixes; keys of deeper levels are read by each sequence */
    FI_PLAN_THREADS = 1024,
    FI_SAVE_THREADS = 256
};

/* The keys [lo, hi) are those that at least one row of the tile sees; its rows start at row0.
 * `levels`: levels that have the shared keys before lo, as bits. With several items per sequence,
 * `skip` keys (whole units) between the prefix and the rows' own items are left out: units from
 * `gap` on begin `skip` keys later. */
typedef struct fi_tile {
    int seq;
    int row0;
    int lo;
    int hi;
    int levels;
    int gap;
    int skip;
} fi_tile;

/* A level of runs of neighbouring sequences that share their first keys. */
typedef struct fi_runs {
    const int *seq_indptr; /* [count + 1] */
    const int *prefix_len; /* [count] keys, from key 0 on */
    int count;
} fi_runs;

typedef struct fi_prefixes {
    fi_runs level[FI_LEVELS];
    int levels;
    int least;       /* keys that a level must add to a run to be used */
    long long worth; /* keys that all runs together must save to be used */
} fi_prefixes;

/* Where a column starts, its number of units, and the items that it shares with other columns: its
 * first one, whose part 0 belongs to column `first_column`, and its last one. */
typedef struct fi_start {
    fi_tile first; /* tiles[tile] */
    int tile;
    int round; /* which of the lane's items of the tile */
    int unit;  /* of the item */
    int count;
    int first_column;
    int in_the_middle; /* the first item starts inside that column, not at its start */
    int first_parts;   /* columns with units of the first item; with splits: the number of its
                        * splits that the first column has */
    int last_parts;    /* of the last item, if it is not the first one */
} fi_start;

/* The plan, in device memory; its lists have memory of their own. */
typedef struct fi_plan {
    long long units; /* of a lane, including `begin` for each item */
    int tiles;
    int columns; /* that share the units: at most the grid's, at most one per unit */
    int begin;   /* fi_plan_call.begin, or 0 with fewer items than columns */
} fi_plan;

/* The sequences that a plan includes. */
enum {
    FI_ALL = 0,
    FI_FEW = 1,  /* sequences of few rows: plan_has_few() */
    FI_MANY = 2, /* the others */
};

/* One per batch and layer group. */
typedef struct fi_plan_call {
    call_batch batch;
    fi_plan *plan;
    int *first_tile;   /* [max_seqs + 1] tiles of earlier sequences */
    long long *before; /* [most_tiles + 1] units of a head in earlier tiles */
    fi_tile *tiles;    /* [most_tiles], in the batch's order or dealt: plan_deal() */
    fi_start *starts;  /* [columns] */
    int window_left;   /* -1 = no limit */
    int chunk;         /* 0 = off */
    int custom;        /* a custom mask, or positions */
    int rows;          /* of a tile */
    int align;         /* tiles start at keys that are multiples of this: fi_call.box_keys */
    int ratio;         /* query heads of a KV head */
    int unit;          /* keys */
    int begin;         /* units that an item counts in addition to its own */
    int split;         /* units of a split; 0 = items are cut anywhere */
    int whose;         /* FI_ALL, FI_FEW, FI_MANY */
    int rounds;        /* items of a lane in a tile */
    int columns;       /* of the attention kernel's grid */
    int merge;         /* time for one block to merge a part of an item, in 64ths of a unit's
                        * time */
    int merge_several; /* the same if several blocks merge */
    int several;       /* with at least so many parts, several blocks merge */
    int merged;        /* so many parts are merged in the time of one */
    int even;          /* additional units that a column may have so that it has parts of one item
                        * only */
    int hands;         /* the tiles are dealt to: plan_deal(). 1 = they are in the batch's order */
    int skips;         /* the kernel skips keys of other items: fi_tile.skip */
    int level; /* of `prefixes`, whose runs this plan has as its sequences; -1 = the batch's own
                * sequences */
    fi_prefixes prefixes;
} fi_plan_call;

/* A tensor map (TMA descriptor) of the driver. */
typedef struct fi_tensor_map {
    unsigned char bytes[128];
} __attribute__((aligned(64))) fi_tensor_map;

/* One per layer. */
typedef struct fi_call {
    fi_tensor_map k_map, v_map; /* of the caches, if has_maps: boxes of box_keys keys of a head */
    fi_tensor_map k_new_map, v_new_map; /* of k and v, if has_new_maps */
    fi_tensor_map out_map; /* if has_out_map: boxes of FI_STORE_ROWS rows, query by head */
    call_operands operands;
    call_batch batch;
    const fi_plan *plan;
    const fi_tile *tiles;
    const fi_start *starts;
    float *partial;     /* [2 * grid][rows][v_dim] sums of blocks that share an item */
    float *partial_row; /* [2 * grid][rows][2] largest logit, in units of log 2; denominator */
    float *prior;       /* [FI_LEVELS][prior_rows][query heads][v_dim] sums of the runs */
    float *prior_row;   /* [FI_LEVELS][prior_rows][query heads][2] as partial_row */
    int *arrived;       /* [grid] blocks that have written their part of the item that starts in
                         * this one; 0 between launches */
    int split;          /* units of a split, a power of two; 0 = items are cut anywhere */
    int most_parts;     /* slots of a block, with splits */
    int prior_rows;
    int level; /* the rows are runs of this level, stored in `prior`; -1 = the batch's own rows */
    int kv_heads;
    int lanes;
    int ratio;
    int page_size;
    int page_shift; /* page_size = 2^page_shift; -1 = it is no power of two */
    int window_left;
    int chunk;
    int custom;
    int has_maps; /* TMA copies whole groups of keys of the cache as boxes */
    int box_keys; /* of such a box; boxes of new keys have a warp's keys of a unit */
    int has_new_maps;
    int has_out_map;
    int saved;        /* the new keys are in the cache already, except those with slots below 0 */
    int save;         /* DECODE: the kernel also writes each sequence's one new key to its slot */
    int saves;        /* the kernel also writes the new rows to their slots: save_new_rows() */
    int dtype;        /* of q, k and v: ELEMENT_F16, ELEMENT_BF16 */
    int kv_dtype;     /* of the cache: the same, or fp8 */
    int scale_stride; /* of an fp8 cache: 0 = one scale for all heads, 1 = one for each */
    int out_dtype;
    float scale;            /* of q.k: into units of log 2, or natural units with cap or slopes */
    float cap;              /* 0 = none */
    unsigned ratio_inverse; /* 2^32 / ratio, rounded up; 0: ratio is 1 */
} fi_call;

#endif /* FI_PLAN_H */
