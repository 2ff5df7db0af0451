/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: the plan of a batch, and the parameters of the kernels that prepare the forward kernel's
 * work. Plain C, the same for the host and for the device.
 *
 *   fa3_plan_batch   once per batch and layer group: lists the tiles, and the sequences that the
 *                    forward kernel cannot serve (slow sequences)
 *   fa3_rows         once per layer: writes new keys to the cache, except those that tiles save;
 *                    clears padding; computes slow sequences
 *   fa3_turn_values  once per layer over e4m3: transposes the cache's values (params.h)
 *   fa3_gather       once per layer whose cache tiles cannot read: copies its keys and values to
 *                    dense rows, and new ones to the cache
 *   forward_*        once per layer: the tiles (params.h)
 *   fa3_join         once per layer of few tiles, whose keys are split: merges the splits
 *   fa3_store_scales, fa3_widen   once per layer over fp8: copy the host's scales to the device;
 *                    convert queries and new keys for flashinfer_like, if it serves the batch
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

/* The plan, in device memory; its lists have memory of their own. */
typedef struct fa3_plan {
    int tile_count;
    int slow_count;
    int rest[2];   /* new rows that tiles do not save are in [rest[0], rest[1]) */
    int starts[2]; /* rows of the only sequence, if tiles serve it; else empty */
} fa3_plan;

/* Expanded latents: a sequence's last keys are given as k and v, and it sees no others. */
typedef struct fa3_given {
    const int *kv_lens;     /* [seqs] of the batch; call_batch has `keys` in their place */
    const int *prefix_lens; /* [seqs] of the batch; call_batch has `positions` in their place; NULL
                             * = 0 */
    int *keys;              /* [seqs] written: number of given keys; NULL = keys are in a cache */
    int *rows;              /* [seqs] written: row of the first given key in k and v */
    int *positions;         /* [seqs] written: position of query 0; the first given key is at 0 */
} fa3_given;

typedef struct fa3_plan_call {
    call_batch batch;
    fa3_given given;
    fa3_plan *plan;
    struct fa3_entry *tiles; /* [most_tiles] in descending order of keys */
    int *slow;               /* [max_seqs] slow sequences */
    int *first_tile;         /* [max_seqs + 1] scratch for sums */
    int *marks;              /* [max_seqs] scratch: does a visible new key have no slot? */
    int window_left;         /* -1 = no limit */
    int chunk;               /* 0 = off */
    int tile_queries;
    int tile_keys;
    int bucket_keys;  /* tiles of keys per step, when tiles are sorted */
    int only_new;     /* all keys are new, and read from k and v: slots do not matter */
    int others_first; /* flashinfer_like serves sequences [others_first, others_end) */
    int others_end;
    int *ahead_first; /* [max_seqs + 1] each sequence's first unit of data made by an earlier
                       * kernel, and the end of the last; NULL: none */
    int ahead_keys;   /* of a unit: a tile of transposed values, or one gathered key */
} fa3_plan_call;

/* Scales of an fp8 operand; a stride of 0 means shared by all sequences or KV heads. */
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
    int dtype;     /* ELEMENT_* of all operands; over fp8, of q */
    int new_dtype; /* of k and v */
    int kv_dtype;  /* of the cache */
    int out_dtype;
    int all_slow;     /* every sequence is slow: the layer has no tiles */
    int saves_rest;   /* save only the plan's `rest` of new rows: tiles save the others */
    int window_left;  /* -1 = no limit */
    int chunk;        /* 0 = off */
    float scale;      /* of the scores */
    float cap;        /* 0 = none */
    int has_codes;    /* the cache is fp8, and q may be; all members below */
    int scale_stride; /* of the cache's scales: 1 = one per KV head */
    fa3_input q_input, k_input, v_input;
    float *cache_scales; /* written: [2][kv heads] scales of k_cache, v_cache; NULL = not needed */
} fa3_rows_call;

/* Copies scales from the host to the device. */
typedef struct fa3_scales_call {
    float *to;
    int count;
    float values[FA3_STORED_SCALES];
} fa3_scales_call;

/* Converts queries to bf16, and new keys and values to bf16 numbers with the rounding of the
 * cache's fp8; rows are dense. */
typedef struct fa3_widen_call {
    call_operands operands;
    call_batch batch;
    unsigned short *q, *k, *v; /* written; k NULL: no new keys */
    fa3_input q_input, k_input, v_input;
    int heads_q, heads_per_kv, dim, dim_v;
    int scale_stride; /* as above */
    int most_rows;    /* capacity */
} fa3_widen_call;

/* Copies the keys and values of all sequences to dense rows: [row][kv head][dim]. fp8 values are
 * converted, without their scale. */
typedef struct fa3_gather_call {
    call_operands operands;
    call_batch batch;
    const int *first; /* [seqs + 1] row of each sequence's first key, and the end of the last */
    unsigned short *k, *v; /* written */
    int heads, dim, dim_v, page_size;
    int dtype;        /* ELEMENT_* of what is written */
    int new_dtype;    /* of new k and v */
    int kv_dtype;     /* of the cache: dtype, or fp8 */
    int scale_stride; /* of the cache's scales: 1 = one per KV head */
    int most_rows;    /* capacity */
    int window_left;  /* -1 = no limit; keys that no query sees are left out */
    int chunk;        /* 0 = off */
} fa3_gather_call;

/* Merges the parts of rows that forward kernels wrote: values relative to their own LSE. */
typedef struct fa3_join_call {
    call_operands operands;
    call_batch batch;
    const fa3_plan *plan;
    const int *slow;     /* their rows have no parts */
    const float *values; /* [splits][rows][query heads][dim_v] */
    const float *lse;    /* [splits][rows][query heads] */
    int splits, rows, heads_q, dim_v;
    int out_dtype;
} fa3_join_call;

#endif
