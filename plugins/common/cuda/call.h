/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h: a kernel's arguments for a forward pass: addresses of operands, and the batch. Included
 * by plugins, which fill it in (operands.h, plan.h), and by their kernels; x86-64 and the device
 * have the same layout.
 *
 * Strides are in bytes. Pointers are to device memory; arrays of the batch are read on the device
 * in every launch, so that a graph that is replayed sees their new contents. */
#ifndef PLUGINS_CUDA_CALL_H
#define PLUGINS_CUDA_CALL_H

/* Host scales are part of the argument; at most one for each KV head. */
#define CALL_MAX_SCALES 64

/* call_operands.aligned: all rows of this operand begin at multiples of 16 bytes; those of the
 * output at multiples of two elements, or of 16 bytes. */
#define CALL_ALIGNED_Q      1
#define CALL_ALIGNED_NEW    2
#define CALL_ALIGNED_CACHE  4
#define CALL_ALIGNED_OUT    8
#define CALL_ALIGNED_OUT_16 16

typedef struct call_operands {
    const void *q; /* [tokens, q_heads, dim] */
    const void *k; /* [new rows, kv_heads, dim]; NULL = the cache alone is read */
    const void *v; /* [new rows, kv_heads, v_dim] */
    void *out;     /* [tokens, q_heads, v_dim] */
    float *lse;    /* [tokens, q_heads]; NULL = not wanted */
    void *k_cache; /* pages, in the problem's layout */
    void *v_cache;
    const float *sinks;          /* [q_heads] NULL = none, or left out */
    const float *slopes;         /* [q_heads] of ALiBi; NULL = none */
    const float *k_scale_device; /* of an fp8 cache; NULL = those at the end */
    const float *v_scale_device;

    long long q_row, q_head;
    long long k_row, k_head;
    long long v_row, v_head;
    long long out_row, out_head;
    long long lse_row, lse_head;
    long long k_page, k_token, k_cache_head;
    long long v_page, v_token, v_cache_head;

    int aligned; /* CALL_ALIGNED_* */
    int save;    /* 1 = new keys and values go to their slots */
    float k_scales[CALL_MAX_SCALES];
    float v_scales[CALL_MAX_SCALES];
} call_operands;

/* Indices into call_batch.counts. */
#define CALL_COUNT_SEQS        0
#define CALL_COUNT_TOKENS      1
#define CALL_COUNT_DECODE_SEQS 2
#define CALL_COUNTS            3

typedef struct call_batch {
    const int *seq_lens;         /* [seqs] */
    const int *prefix_lens;      /* [seqs] NULL = 0 */
    const int *q_indptr;         /* [seqs + 1] NULL = row s belongs to sequence s */
    const int *positions;        /* [tokens] NULL = none */
    const int *kv_lens;          /* [seqs] NULL = the keys are the sequence's own rows */
    const int *new_indptr;       /* [seqs + 1] NULL = the query's rows */
    const int *req_pool_indices; /* [seqs] */
    const int *req_to_token;     /* slots; one of these three forms is given */
    const int *block_table;      /* pages */
    const int *kv_indptr;        /* CSR: [seqs + 1] into kv_indices */
    const int *kv_indices;       /* CSR: pages */
    const long long *out_cache_loc;
    const int *table_rows; /* [seqs] rows of the tables that belong to sequences; NULL = the same */
    const int *counts;     /* [CALL_COUNTS] of a graph's batch; NULL = those below */
    const unsigned char *mask_bits;
    const long long *mask_indptr;
    const int *item_prefix_lens;    /* [seqs] of a multi-item batch; NULL = it is none */
    const unsigned short *item_pos; /* [seqs, item_stride] attn_multi_item.token_pos */

    int num_seqs;
    int num_tokens;
    int num_decode_seqs;
    int window_right; /* of this batch: a mask may replace the layer's */
    int mask_qlen;    /* custom mask over the new tokens alone */
    int table_stride; /* of req_to_token or block_table, in elements */
    int item_stride;
} call_batch;

#endif /* PLUGINS_CUDA_CALL_H */
