/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the one argument of every kernel. Included by the plugin and by its kernels; x86-64 and
 * the device lay it out alike.
 *
 * Strides are in bytes. Arrays of the batch are read on the device in every launch, so that a graph
 * that is replayed sees their new contents.
 */
#ifndef TRITON_LIKE_PARAMS_H
#define TRITON_LIKE_PARAMS_H

/* Scales that are given on the host travel in the argument; one for each KV head at most. */
#define PARAMS_MAX_SCALES 64

/* kernel_params.aligned: rows of this operand can be read (out: written) in vectors. */
#define ALIGNED_Q     1
#define ALIGNED_NEW   2
#define ALIGNED_CACHE 4
#define ALIGNED_OUT   8

/* Where in kernel_params.counts what lies. */
#define COUNT_SEQS        0
#define COUNT_TOKENS      1
#define COUNT_DECODE_SEQS 2
#define NUM_COUNTS        3

/* kernel_params.split_part: the sequences that are attn_decode's, the last of the batch; all before
 * are attn_extend's. */
#define SPLIT_NONE   0
#define SPLIT_DECODE 1 /* the last num_decode_seqs */
#define SPLIT_ALL    2

typedef struct kernel_params {
    const void *q;
    const void *k; /* NULL = the cache alone is read */
    const void *v;
    void *out;
    float *lse; /* NULL = not wanted */
    void *k_cache;
    void *v_cache;
    const float *sinks;          /* NULL = none, or left out */
    const float *slopes;         /* of ALiBi; NULL = none */
    const float *k_scale_device; /* NULL = those at the end */
    const float *v_scale_device;
    void *partial;      /* [rows, q_heads, num_splits, v_head_dim]; rows count from the first */
    float *partial_lse; /* [rows, q_heads, num_splits]              row of split sequences */
    int *partial_used;  /* [rows, q_heads] how many of num_splits there are; 1 = none: it is out */

    const int *seq_lens;
    const int *prefix_lens; /* NULL = 0 */
    const int *q_indptr;    /* NULL = row s belongs to sequence s */
    const int *positions;   /* NULL = none */
    const int *kv_lens;     /* NULL = the keys are the sequence's own rows */
    const int *new_indptr;  /* NULL = the query's rows */
    const int *req_pool_indices;
    const int *req_to_token; /* one of these two */
    const int *block_table;
    const long long *out_cache_loc;
    const int *counts; /* [NUM_COUNTS] of a graph's batch; NULL = those below */
    const unsigned char *mask_bits;
    const long long *mask_indptr;

    long long q_row, q_head;
    long long k_row, k_head;
    long long v_row, v_head;
    long long out_row, out_head;
    long long lse_row, lse_head;
    long long k_page, k_token, k_cache_head;
    long long v_page, v_token, v_cache_head;

    int num_seqs;
    int num_tokens;
    int num_decode_seqs;
    int split_part;   /* SPLIT_* */
    int window_right; /* of this batch: a mask may replace the layer's */
    int mask_qlen;    /* custom mask over the new tokens alone */
    int table_stride; /* of req_to_token or block_table, in elements */
    int num_splits;   /* of the grid, and of a row of partial results */
    int split_tile;
    int aligned; /* ALIGNED_* */
    float k_scales[PARAMS_MAX_SCALES];
    float v_scales[PARAMS_MAX_SCALES];
} kernel_params;

#endif /* TRITON_LIKE_PARAMS_H */
