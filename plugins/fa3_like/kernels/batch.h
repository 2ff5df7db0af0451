/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: what the kernels beside the forward kernel are told of a batch and of a layer, and what a
 * plan is. Plain C, the same for the host and for the device. Strides are in elements.
 *
 *   fa3_plan_batch  once a batch and layer group: which tiles there are, and which sequences are not for tiles
 *   fa3_rows        once a layer: new keys into the cache, padding cleared, the sequences that are not for tiles
 *   forward_*       once a layer: the tiles (params.h)
 */
#ifndef FA3_LIKE_BATCH_H
#define FA3_LIKE_BATCH_H

#include "plugins/common/cuda/portable.h"

/* A batch for one layer group, by its device arrays. */
typedef struct fa3_batch {
    const int *q_indptr;    /* NULL: DECODE, row s belongs to sequence s */
    const int *seq_lens;    /* read in DECODE with a cache */
    const int *prefix_lens; /* NULL: 0 */
    const int *kv_lens;     /* NULL: the keys are the sequence's own rows */
    const int *new_indptr;  /* rows of k and v; NULL: the queries' */
    const i64 *slots;       /* of new rows; NULL: none is looked at */
    int num_seqs;
    int num_tokens;
    int window_left; /* FA3_UNBOUNDED: none */
    int window_right;
} fa3_batch;

/* What was planned, in device memory; the lists follow in memory of their own. */
typedef struct fa3_plan {
    int num_seqs;   /* of the batch that was planned last, as a graph has baked in another */
    int num_tokens;
    int tile_count;
    int slow_count;
    int first_row; /* the sequences' rows; those after them, of num_tokens in all, are padding */
    int end_row;
    int starts[2]; /* rows of the only sequence, if it is for tiles; else none */
} fa3_plan;

enum { FA3_PLAN_BUCKETS = 512, FA3_PLAN_THREADS = 1024, FA3_ROWS_THREADS = 256 };

typedef struct fa3_plan_call {
    fa3_batch batch;
    fa3_plan *plan;
    int *tiles;      /* [most_tiles][2] sequence, tile; those with most keys first */
    int *slow;       /* [max_seqs] sequences that are not for tiles */
    int *first_tile; /* [max_seqs + 1] room for sums */
    int *marks;      /* [max_seqs] room: is there a new key without a slot? */
    int tile_queries;
    int tile_keys;
    int bucket_keys; /* tiles of keys that are counted as one when tiles are put in order */
    int reserved;
} fa3_plan_call;

typedef struct fa3_rows_call {
    fa3_batch batch; /* its counts are those of the plan */
    const fa3_plan *plan;
    const int *slow;
    const void *q, *k, *v; /* k = v = NULL: all keys are in the cache */
    void *out, *k_cache, *v_cache;
    float *lse;            /* NULL: not wanted */
    const float *sinks;    /* NULL: none */
    const int *block_table;
    i64 q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head, lse_row, lse_head;
    i64 k_page, k_token, k_cache_head, v_page, v_token, v_cache_head, table_stride;
    int heads_q, heads_per_kv, dim, dim_v, page_size;
    int dtype;     /* ELEMENT_BF16, ELEMENT_F16, of everything */
    int save;      /* new rows go to the cache */
    int vectors;   /* new rows and the cache can be copied 16 bytes at a time */
    int all_slow;  /* every sequence: nothing of this layer is for tiles */
    float scale;   /* of the scores */
    float cap;     /* 0: none */
    int reserved;
} fa3_rows_call;

#endif
