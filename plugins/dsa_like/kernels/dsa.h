/* SPDX-License-Identifier: Apache-2.0
 *
 * dsa.h: launch parameters of the kernels, for host and device.
 *
 *   dsa_plan        1 block: the number of keys that each row may choose, and groups of queries
 *   dsa_save        any grid: copies new latents and labels to their slots
 *   dsa_label_K     any grid: logits of a wave of rows; K: codes (e4m3 times e4m3) or wide (bf16);
 *                   _group: for groups of more than one query
 *   dsa_choose      one cluster per row of a wave: the best keys, as slots
 *   dsa_take        one block per row: an engine's choice, as slots without gaps; the first blocks
 *                   save, to need only one launch
 *
 * flashmla_like computes attention to the slots: each row is a sequence whose slots are its list.
 *
 * Rows count from the batch's first one, q_indptr[0]: row i of the lists is row first_row + i of
 * operands. A group is at most `queries` queries of a sequence that share the reads of labels.
 * Groups are placed on a line; a group is as long as the number of its tiles of 64 labels. The line
 * is cut evenly among blocks. A wave is as many rows as there is memory for their logits; a group
 * never spans two waves.
 */
#ifndef DSA_LIKE_DSA_H
#define DSA_LIKE_DSA_H

#include "plugins/common/cuda/call.h"

#define DSA_LABEL               128                    /* elements of a label */
#define DSA_HEADS               64                     /* at most */
#define DSA_TILE                64                     /* labels of a tile */
#define DSA_MOST_QUERIES(width) ((width) == 1 ? 8 : 4) /* of a group */
#define DSA_PLAN_THREADS        512
#define DSA_SAVE_THREADS        128
#define DSA_CHOOSE_THREADS      512
#define DSA_CHOOSE_BLOCKS       2 /* of a multiprocessor, at least */
#define DSA_TAKE_THREADS        256
#define DSA_TAKE_SLOTS          8 /* of a thread at a time */

/* dsa_label_K, with `width` bytes per element of a product; `several`: for groups of more than one
 * query. Warpgroups of a block, which share queries; most blocks per multiprocessor; tiles in
 * flight per warpgroup. `runs`: label.cuh. */
#define DSA_LABEL_WARPGROUPS(width, several) ((several) ? (width) == 1 ? 3 : 2 : 1)
#define DSA_LABEL_THREADS(width, several)    (128 * DSA_LABEL_WARPGROUPS(width, several))
#define DSA_LABEL_BLOCKS(width, several)     ((several) ? 1 : (width) == 1 ? 4 : 3)
#define DSA_AHEAD(several, runs)             ((several) ? 2 : (runs) ? 2 : 1)

/* Shared memory of dsa_label_K, for groups of `queries`. */
#define DSA_WEIGHTS             80 /* of a query: 16 for each of four lanes, in different banks */
#define DSA_SHARED_QUERY(width) (DSA_HEADS * DSA_LABEL * (width))
#define DSA_LABEL_SHARED(width, queries)                                                           \
    ((queries) * (DSA_SHARED_QUERY(width) + 4 * DSA_WEIGHTS + 8))

/* dsa_choose: a histogram, the keys of the bucket in division, and the logits of parts of rows of
 * at most `keys` keys. */
#define DSA_BUCKETS             2048
#define DSA_CANDIDATES          512
#define DSA_CHOOSE_SHARED(keys) (4 * (2 * DSA_BUCKETS + 2 * DSA_CANDIDATES + 128 + (keys)))
#define DSA_MOST_BLOCKS         8 /* of a row */

/* The most keys that may pass the sieve; the sizes of rows that use it; its memory, in numbers. */
#define DSA_PASSED           4096
#define DSA_SIEVE_KEYS       (1 << 20)
#define DSA_SIEVE_LEAST      1024
#define DSA_SIEVE_ROOM(keys) (2 * DSA_PASSED + ((keys) + 31) / 32)

/* The most keys of each of `blocks` blocks, in a row of `keys`: whole words of a mask. */
#define DSA_CHOOSE_PART(keys, blocks) ((((keys) + (blocks)-1) / (blocks) + 31) / 32 * 32)

typedef struct dsa_group {
    int seq;
    int query; /* first of `count`, in the sequence */
    int count;
    int row;   /* of the first query, in the lists */
    int begin; /* on the line */
    int tiles;
    int lo, hi; /* keys that at least one of its queries sees */
} dsa_group;

/* A row of the lists: query `query` of sequence `seq` sees keys [lo, hi). */
typedef struct dsa_row {
    int seq;
    int query;
    int lo, hi;
} dsa_row;

typedef struct dsa_header {
    int num_groups;
    int num_tiles;
    int first_row;
    int given_count; /* entries of a row of an engine's choice without counts */
} dsa_header;

/* A batch and its plan. Kernels read the plan after pdl_wait(). */
typedef struct dsa_batch {
    call_batch batch;
    dsa_header *header;
    dsa_group *groups; /* [rows] */
    dsa_row *rows;     /* [rows] */
    int *most;         /* [rows] keys that a row may choose: 0 in padding */
    int *lens;         /* [rows] number of chosen keys; after dsa_plan, `most` */
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
    call_operands latents; /* k: c_kv, v: k_pe, with the strides of the latent cache; NULL = none */
    call_batch batch;
    const void *label; /* new labels of bf16; NULL = none */
    long long label_row;
    char *label_cache;
    long long label_page, label_token;
    int lora, rope;
    int packed;      /* 1 = latents of mla.latent_fp8/1, at the addresses of k; 0 = bf16 */
    int label_codes; /* 1 = e4m3 and scales, 0 = bf16 */
    int page_size;
} dsa_save_call;

/* Rows [first, end) of the lists. */
typedef struct dsa_label_call {
    call_operands operands; /* q: the indexer's queries; k_cache: labels; v_cache: their scales */
    dsa_batch planned;
    const float *weights;
    long long weights_row;
    float *logits;
    long long logits_row; /* elements */
    int given;            /* 1 = logits has one row per row of operands, 0 = per row of this wave */
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
    int cached;                        /* keys of a block that fit in shared memory */
    int *lists;                        /* [rows, list_row] slots; from lens[] on undefined */
    int *indices;                      /* of operands, -1 after the chosen keys; NULL = not
                                        * needed */
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
    const int *counts; /* NULL = all entries of a row */
    long long indices_row, counts_row;
} dsa_take_call;

#endif /* DSA_LIKE_DSA_H */
