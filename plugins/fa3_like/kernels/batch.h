/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: the plan of a batch, and the parameters of the kernels that prepare the forward kernel's
 * work. Plain C, the same for the host and for the device.
 *
 *   fa3_plan_batch   once a batch and layer group: which tiles there are, and which sequences are
 *                    not for tiles
 *   fa3_rows         once a layer: new keys into the cache, but for those that tiles save, padding,
 *                    the sequences that are not for tiles
 *   fa3_turn_values  once a layer of codes (e4m3): the cache's values as tiles want them (params.h)
 *   fa3_gather       once a layer whose cache tiles cannot read: its keys and values as rows that
 *                    they can, and new ones into the cache
 *   forward_*        once a layer: the tiles (params.h)
 *   fa3_join         once a layer of few tiles, whose keys are shared out: parts to outputs
 *   fa3_store_scales, fa3_widen   once a layer of codes: scales that the host has, and, where the
 *                    library serves the batch, queries and new keys as it wants them
 */
#ifndef FA3_LIKE_BATCH_H
#define FA3_LIKE_BATCH_H

#include "plugins/common/cuda/call.h"
#include "plugins/fa3_like/kernels/params.h"

enum { FA3_PLAN_BUCKETS = 512, FA3_PLAN_THREADS = 1024, FA3_ROWS_THREADS = 256 };

enum {
    FA3_WIDEN_THREADS = 256,
    FA3_STORED_SCALES = 512,
    FA3_GATHER_THREADS = 256,
    FA3_JOIN_THREADS = 256
};

/* What was planned, in device memory; its lists follow in memory of their own. */
typedef struct fa3_plan {
    int tile_count;
    int slow_count;
    int rest[2]; /* all new rows but of sequences in tiles that have no other keys are in [0, 1) */
    int starts[2]; /* rows of the only sequence, if it is for tiles; else none */
} fa3_plan;

/* Expanded latents: a sequence's last keys are given as k and v, and are the only ones. */
typedef struct fa3_given {
    const int *kv_lens;     /* [seqs] of the batch, whose call_batch has `keys` in their place; */
    const int *prefix_lens; /* [seqs] likewise `positions`; NULL = 0 */
    int *keys;              /* [seqs] written: how many are given; NULL = others are in a cache */
    int *rows;              /* [seqs] written: row of k and v of the first */
    int *positions;         /* [seqs] written: of query 0, where the first given key stands at 0 */
} fa3_given;

typedef struct fa3_plan_call {
    call_batch batch;
    fa3_given given;
    fa3_plan *plan;
    struct fa3_entry *tiles; /* [most_tiles] those with most keys first */
    int *slow;               /* [max_seqs] sequences that are not for tiles */
    int *first_tile;         /* [max_seqs + 1] room for sums */
    int *marks;              /* [max_seqs] room: is there a new key without a slot? */
    int window_left;         /* -1 = no limit */
    int chunk;               /* 0 = off */
    int tile_queries;
    int tile_keys;
    int bucket_keys;  /* tiles of keys that are counted as one when tiles are put in order */
    int only_new;     /* all keys are new, and read from where they come: slots do not matter */
    int others_first; /* sequences [others_first, others_end) are worked on by others */
    int others_end;
    int *ahead_first; /* [max_seqs + 1] of what a kernel before the tiles makes for them, each
                         sequence's first unit, and the end of the last; NULL: nothing is */
    int ahead_keys;   /* of a unit: turned values come in tiles, gathered keys one by one */
} fa3_plan_call;

/* Scales of an operand of codes, of each KV head or sequence too; strides are 0 where they share
 * it. */
typedef struct fa3_input {
    const float *scale;
    int sequence, head;
} fa3_input;

typedef struct fa3_rows_call {
    call_operands operands;
    call_batch batch;
    const fa3_plan *plan;
    const int *slow;
    int heads_q, heads_per_kv, dim, dim_v, page_size;
    int dtype;     /* ELEMENT_*, of everything, or of q where there are codes */
    int new_dtype; /* of k and v */
    int kv_dtype;  /* of the cache */
    int out_dtype;
    int all_slow;     /* every sequence: nothing of this layer is for tiles */
    int saves_rest;   /* only the plan's rest of the new rows: tiles save the others */
    int window_left;  /* -1 = no limit */
    int chunk;        /* 0 = off */
    float scale;      /* of the scores */
    float cap;        /* 0 = none */
    int has_codes;    /* the cache is fp8, and q may be: all below */
    int scale_stride; /* of the cache's scales: 1 = each KV head its own */
    fa3_input q_input, k_input, v_input;
    float *cache_scales; /* written: [2][kv heads] those of k_cache, v_cache; NULL = not wanted */
} fa3_rows_call;

/* Scales of the host to the device. */
typedef struct fa3_scales_call {
    float *to;
    int count;
    float values[FA3_STORED_SCALES];
} fa3_scales_call;

/* Queries as bf16, and new keys and values as bf16 that are rounded to the cache's codes as they
 * would have been; rows are dense. */
typedef struct fa3_widen_call {
    call_operands operands;
    call_batch batch;
    unsigned short *q, *k, *v; /* written; k NULL: new keys are let be */
    fa3_input q_input, k_input, v_input;
    int heads_q, heads_per_kv, dim, dim_v;
    int scale_stride; /* as above */
    int most_rows;    /* that there is room for */
} fa3_widen_call;

/* The keys and values of all sequences, dense: [row][kv head][dim]. Codes become the numbers that
 * they stand for, without their scale. */
typedef struct fa3_gather_call {
    call_operands operands;
    call_batch batch;
    const int *first; /* [seqs + 1] row of each sequence's first key, and the end of the last */
    unsigned short *k, *v; /* written */
    int heads, dim, dim_v, page_size;
    int dtype;        /* ELEMENT_* of what is written */
    int new_dtype;    /* of k and v that are given */
    int kv_dtype;     /* of the cache: dtype, or fp8 */
    int scale_stride; /* of the cache's scales: 1 = each KV head its own */
    int most_rows;    /* that there is room for */
    int window_left;  /* -1 = no limit; keys that no query sees are left out */
    int chunk;        /* 0 = off */
} fa3_gather_call;

/* Parts of rows, as forward kernels leave them: values relative to their own LSE. */
typedef struct fa3_join_call {
    call_operands operands;
    call_batch batch;
    const fa3_plan *plan;
    const int *slow;     /* whose rows have no parts */
    const float *values; /* [splits][rows][query heads][dim_v] */
    const float *lse;    /* [splits][rows][query heads] */
    int splits, rows, heads_q, dim_v;
    int out_dtype;
} fa3_join_call;

#endif
