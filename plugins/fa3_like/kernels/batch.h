/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: what the kernels beside the forward kernel are told, and what a plan is. Plain C, the
 * same for the host and for the device.
 *
 *   fa3_plan_batch  once a batch and layer group: which tiles there are, and which sequences are
 * not for tiles fa3_rows        once a layer: new keys into the cache, padding, the sequences that
 * are not for tiles forward_*       once a layer: the tiles (params.h)
 */
#ifndef FA3_LIKE_BATCH_H
#define FA3_LIKE_BATCH_H

#include "plugins/common/cuda/call.h"

enum { FA3_PLAN_BUCKETS = 512, FA3_PLAN_THREADS = 1024, FA3_ROWS_THREADS = 256 };

/* What was planned, in device memory; its lists follow in memory of their own. */
typedef struct fa3_plan {
    int tile_count;
    int slow_count;
    int starts[2]; /* rows of the only sequence, if it is for tiles; else none */
} fa3_plan;

typedef struct fa3_plan_call {
    call_batch batch;
    fa3_plan *plan;
    int *tiles;      /* [most_tiles][2] sequence, tile; those with most keys first */
    int *slow;       /* [max_seqs] sequences that are not for tiles */
    int *first_tile; /* [max_seqs + 1] room for sums */
    int *marks;      /* [max_seqs] room: is there a new key without a slot? */
    int window_left; /* -1 = no limit */
    int tile_queries;
    int tile_keys;
    int bucket_keys;  /* tiles of keys that are counted as one when tiles are put in order */
    int only_new;     /* all keys are new, and read from where they come: slots do not matter */
    int others_first; /* sequences [others_first, others_end) are worked on by others */
    int others_end;
} fa3_plan_call;

typedef struct fa3_rows_call {
    call_operands operands;
    call_batch batch;
    const fa3_plan *plan;
    const int *slow;
    int heads_q, heads_per_kv, dim, dim_v, page_size;
    int dtype;       /* ELEMENT_BF16, ELEMENT_F16, of everything */
    int all_slow;    /* every sequence: nothing of this layer is for tiles */
    int window_left; /* -1 = no limit */
    float scale;     /* of the scores */
    float cap;       /* 0 = none */
} fa3_rows_call;

#endif
