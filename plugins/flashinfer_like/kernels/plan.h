/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: what the host and the kernels agree on: a batch as tiles, and a layer's call. Plain C,
 * the same for both.
 *
 *   tile    `rows` rows of a KV head: row r of a sequence is query r / ratio of query head
 *           r % ratio of the head's group, so that grouped heads share each key that is read
 *   unit    64 or 128 keys of a tile, by the kernel: what work is counted in. A tile without keys
 *           has one
 *   item    a tile of one KV head
 *   lane    blocks that have the same heads: those that have the items of that number, that + lanes
 *           ...; where there are no more of them than blocks, one
 *   column  blocks of all lanes that have the same part of the batch
 *
 * The units of a lane are numbered: by tile, then item, then key. Column c of `columns` does those
 * from units * c / columns to units * (c + 1) / columns, both rounded up, so that no two blocks
 * differ by more than one, whatever the lengths. In a batch of many short items their begins and ends count as well:
 * each has `begin` units more, before its own, without work. All heads of the same keys
 * are read at the same time: where they lie side by side in memory, that is worth a tenth of its
 * bandwidth. An item that several columns share is merged by the last of their blocks to end.
 *
 * Where a row's bits must not depend on the rest of its batch, no column cuts an item but between
 * splits: as many units each, counted from the item's first. What comes of a split is the same
 * whoever does it, and splits are merged one after the other. The column with an item's first split
 * does that as it goes, in slot 0 of its memory; what others do of the item is left there, split k
 * in slot k. Items of many rows are one split.
 *
 * In DECODE sequences may share their first keys: runs of them, in levels (attn_shared_prefix). The
 * runs of a level are planned like a batch of sequences, each of which has a query for every
 * sequence of the run, and no other keys than those that the level adds; what comes of them is left
 * in device memory, a row for each level, query and head. The sequences themselves are planned
 * without these keys, and take their rows up at an item's end.
 */
#ifndef FI_PLAN_H
#define FI_PLAN_H

#include "plugins/common/cuda/call.h"

/* FI_GROUP: keys that lie side by side in a page, where pages are multiples of it. */
enum {
    FI_ROWS = 16,
    FI_PREFILL_ROWS = 128,
    FI_HALF_ROWS = 64,  /* of half a tile */
    FI_STORE_ROWS = 64, /* of a prefill tile, that leave together */
    FI_HANDS = 16,      /* of a prefill plan */
    FI_KEYS = 64,       /* of a unit of few rows */
    FI_GROUP = 16,
    FI_SHORT_ROWS = 32,  /* of a sequence and KV head, at most, for tiles of FI_ROWS */
    FI_SEVERAL = 8,      /* parts of an item from which on several blocks merge them */
    FI_SEVERAL_MANY = 4, /* the same of more than FI_ROWS rows */
    FI_LEVELS = 4,       /* of shared prefixes; those of more levels are read by each sequence */
    FI_PLAN_THREADS = 1024,
    FI_SAVE_THREADS = 256
};

/* The keys [lo, hi) that any row of a tile sees; its rows begin with row0. Keys before lo that its
 * sequence shares are those of `levels`: bit l = level l. Of several items, `skip` keys, whole
 * units, between the prefix and the rows' own items are idle: its units from the `gap`th on are
 * of keys so much further on. */
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
    int least;       /* keys that a level has to add for a run, to be worth its place */
    long long worth; /* keys that all runs together have to save, to be worth their launches */
} fi_prefixes;

/* Where a column begins, how many units it does, and which of its items others have parts of: the
 * first, of which column `first_column` has part 0, and the last. */
typedef struct fi_start {
    fi_tile first; /* tiles[tile] */
    int tile;
    int round; /* which of the lane's items of the tile */
    int unit;  /* of the item */
    int count;
    int first_column;
    int in_the_middle; /* the first item begins within that column, not with it */
    int first_parts;   /* columns that have units of the first item; of splits, how many of it the
                          first column has */
    int last_parts;    /* of the last item, if it is another */
} fi_start;

/* What was planned, in device memory; its lists follow in memory of their own. */
typedef struct fi_plan {
    long long units; /* of a lane, `begin` more for each item */
    int tiles;
    int columns; /* that share them: at most those of the grid, at most the units */
    int begin;   /* of fi_plan_call, where there are items enough to be shared out by it */
} fi_plan;

/* Whose tiles a plan has. */
enum {
    FI_ALL = 0,
    FI_FEW = 1,  /* sequences of few rows: plan_has_few() */
    FI_MANY = 2, /* the others */
};

/* Once a batch and layer group. */
typedef struct fi_plan_call {
    call_batch batch;
    fi_plan *plan;
    int *first_tile;   /* [max_seqs + 1] tiles of the sequences before */
    long long *before; /* [most_tiles + 1] units of a head in the tiles before */
    fi_tile *tiles;    /* [most_tiles], in the batch's order or dealt */
    fi_start *starts;  /* [columns] */
    int window_left;   /* -1 = no limit */
    int chunk;         /* 0 = off */
    int custom;        /* a custom mask, or positions */
    int rows;          /* of a tile */
    int align;         /* tiles begin with keys that are multiples of this: fi_call.box_keys */
    int ratio;         /* query heads of a KV head */
    int unit;          /* keys */
    int begin;         /* units that an item counts for besides its own */
    int split;         /* units; 0 = items are cut anywhere */
    int whose;         /* FI_ALL, FI_FEW, FI_MANY */
    int rounds;        /* items that a lane has of a tile */
    int columns;       /* of the attention kernel's grid */
    int merge;         /* what merging a part of an item takes a block, in 64ths of a unit's time */
    int merge_several; /* the same where several blocks do */
    int several;       /* parts of an item from which on several do */
    int merged;        /* parts of an item that take no longer than one to merge */
    int even;          /* units more that a column may have to have a part of one item alone */
    int hands; /* that the tiles are dealt to: plan_deal(). 1 = they lie in the batch's order */
    int skips; /* the kernel passes over keys of other items: fi_tile.skip */
    int level; /* of `prefixes`, whose runs are the batch's sequences; -1 = they are its own */
    fi_prefixes prefixes;
} fi_plan_call;

/* A descriptor of the copy engine's, as the driver makes it. */
typedef struct fi_tensor_map {
    unsigned char bytes[128];
} __attribute__((aligned(64))) fi_tensor_map;

/* Once a layer. */
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
    float *partial_row; /* [2 * grid][rows][2] largest logit, in units of log 2, and
                           denominator */
    float *prior;       /* [FI_LEVELS][prior_rows][query heads][v_dim] what runs left: sums */
    float *prior_row;   /* [FI_LEVELS][prior_rows][query heads][2] as partial_row */
    int *arrived;       /* [grid] blocks that have left their part of the item that begins in this
                           one; 0 between launches */
    int split;          /* units of a split, a power of two; 0 = items are cut anywhere */
    int most_parts;     /* slots of a block where items are cut into splits */
    int prior_rows;
    int level; /* whose runs these are: rows are left in `prior`; -1 = they are the batch's own */
    int kv_heads;
    int lanes;
    int ratio;
    int page_size;
    int page_shift; /* page_size = 2^page_shift; -1 = it is no power of two */
    int window_left;
    int chunk;
    int custom;
    int has_maps; /* whole groups of keys in the cache come in boxes */
    int box_keys; /* of such a box; those of new keys have what a warp of the kernel copies */
    int has_new_maps;
    int has_out_map;
    int saved;        /* the new keys are in the cache, but for those of slots below 0 */
    int save;         /* each sequence's one new key goes to its slot on the way (DECODE) */
    int saves;        /* the new rows go to their slots on the way: save_new_rows() */
    int dtype;        /* of q, k and v: ELEMENT_F16, ELEMENT_BF16 */
    int kv_dtype;     /* of the cache: the same, or fp8 */
    int scale_stride; /* of an fp8 cache: 0 = one scale for all heads, 1 = one for each */
    int out_dtype;
    float scale; /* of q.k: to units of log 2, or natural where cap or slopes are given */
    float cap;   /* 0 = none */
    unsigned ratio_inverse; /* 2^32 / ratio, rounded up; 0: ratio is 1 */
} fi_call;

#endif /* FI_PLAN_H */
