/* SPDX-License-Identifier: Apache-2.0
 *
 * dsa.h: what the kernels are launched with, for both sides.
 *
 *   dsa_plan        1 block: how many keys each row may choose, and groups of queries
 *   dsa_save        any grid: new latents and labels to their slots
 *   dsa_label_K     any grid: logits of a wave of rows; K: codes (e4m3 times e4m3) or wide (bf16),
 *                   _group: of groups of more than one query
 *   dsa_choose      a cluster for each row of a wave: the best keys, as slots
 *   dsa_take        a block for each row: the choice of an engine, as slots without gaps; before them blocks that
 *                   save, so that it is one launch
 *
 * Attention to the slots is that of flashmla_like, each row being a sequence whose slots are its list.
 *
 * Rows are counted from the batch's first one, q_indptr[0]: row i of the lists is row first_row + i of
 * operands. A group is at most `queries` queries of a sequence that read labels together; groups lie on
 * a line, as many tiles of 64 labels long each as they see, which is cut evenly among blocks. A wave is
 * as many rows as there is room for their logits; no group crosses from one into the next.
 */
#ifndef DSA_LIKE_DSA_H
#define DSA_LIKE_DSA_H

#include "plugins/common/cuda/call.h"

#define DSA_LABEL          128 /* elements of a label */
#define DSA_HEADS          64  /* at most */
#define DSA_TILE           64  /* labels of a tile */
#define DSA_MOST_QUERIES   4   /* of a group */
#define DSA_PLAN_THREADS   512
#define DSA_SAVE_THREADS   128
#define DSA_LABEL_THREADS  128
#define DSA_CHOOSE_THREADS 512
#define DSA_LABEL_BLOCKS   5 /* of a multiprocessor, at most */
#define DSA_GROUP_BLOCKS   4 /* likewise, of groups of queries */
#define DSA_CHOOSE_BLOCKS  3 /* likewise */
#define DSA_TAKE_THREADS   256
#define DSA_TAKE_SLOTS     8 /* of a thread at a time */

/* Tiles that a block of dsa_label_K has room for; `several`: for groups of more than one query. */
#define DSA_STAGES(several) ((several) ? 2 : 4)

/* Shared memory of dsa_label_K, `width` bytes an element in it, for groups of `queries`. */
#define DSA_SHARED_TILE(width) (DSA_TILE * DSA_LABEL * (width))
#define DSA_LABEL_SHARED(width, queries)                                                           \
    (((queries) + DSA_STAGES((queries) > 1)) * DSA_SHARED_TILE(width) +                            \
     4 * ((queries)*DSA_HEADS + DSA_STAGES((queries) > 1) * DSA_TILE + 2 * DSA_MOST_QUERIES))

/* Of dsa_choose: a histogram, keys of the bucket that is divided, and the logits of parts of rows of
 * at most `keys` keys. */
#define DSA_BUCKETS             2048
#define DSA_CANDIDATES          512
#define DSA_CHOOSE_SHARED(keys) (4 * (2 * DSA_BUCKETS + 2 * DSA_CANDIDATES + 128 + (keys)))
#define DSA_MOST_BLOCKS         8 /* of a row */

/* Keys of a row of `keys` that each of its `blocks` has, at most. */
#define DSA_CHOOSE_PART(keys, blocks) (((keys) + (blocks)-1) / (blocks))

typedef struct dsa_group {
    int seq;
    int query; /* first of `count`, in the sequence */
    int count;
    int row;   /* of the first, in the lists */
    int begin; /* on the line */
    int tiles;
} dsa_group;

typedef struct dsa_header {
    int num_groups;
    int num_tiles;
    int first_row;
    int given_count; /* entries of a row of a choice that an engine gives, without counts */
} dsa_header;

/* A batch, and what dsa_plan makes of it. */
typedef struct dsa_batch {
    call_batch batch;
    dsa_header *header;
    dsa_group *groups; /* [rows] */
    int *most;         /* [rows] keys that a row may choose: 0 in padding */
    int *lens;         /* [rows] keys that it has chosen; after the plan the most */
    int *indptr;       /* [rows + 1] first_row + i */
    int *requests;     /* [rows] i */
    int num_real_seqs;
    int max_count;   /* of a list */
    int given_count; /* dsa_header */
    int queries;     /* of a group, at most */
    int wave;        /* rows */
    int window_left, chunk;
    int page_size;
} dsa_batch;

typedef struct dsa_save_call {
    call_operands
        latents; /* k: c_kv, v: k_pe, with their places in the latent cache; NULL = none */
    call_batch batch;
    const void *label; /* new labels of bf16; NULL = none */
    long long label_row;
    char *label_cache;
    long long label_page, label_token;
    int lora, rope;
    int packed;      /* 1 = latents of mla.latent_fp8/1, whose places are k's; 0 = of bf16 */
    int label_codes; /* 1 = e4m3 and scales, 0 = bf16 */
    int page_size;
} dsa_save_call;

/* Rows [first, end) of the lists. */
typedef struct dsa_label_call {
    call_operands operands; /* q: of the indexer; k_cache: labels, v_cache: their scales */
    dsa_batch planned;
    const float *weights;
    long long weights_row;
    float *logits;
    long long logits_row; /* elements */
    int given;            /* 1 = logits has a row for each of operands, 0 = of this wave */
    int first, end;
    int heads;
    int q_codes, label_codes; /* 1 = e4m3, 0 = bf16 */
} dsa_label_call;

typedef struct dsa_choose_call {
    dsa_batch planned;
    const float *logits;
    long long logits_row; /* elements */
    int given;
    int first, end;
    int top_k;
    int list_row;                      /* entries of a row of lists */
    int cached;                        /* keys of a block that shared memory has room for */
    int *lists;                        /* [rows, list_row] slots; from lens[] on undefined */
    int *indices;                      /* of operands, -1 after the choice; NULL = not wanted */
    int *counts;                       /* likewise */
    long long indices_row, counts_row; /* elements */
} dsa_choose_call;

typedef struct dsa_take_call {
    dsa_batch planned;
    dsa_save_call save;
    int savers; /* blocks that save; 0 = none */
    int list_row;
    int *lists;
    const int *indices;
    const int *counts; /* NULL = all of a row */
    long long indices_row, counts_row;
} dsa_take_call;

#endif /* DSA_LIKE_DSA_H */
