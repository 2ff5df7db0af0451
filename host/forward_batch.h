/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_batch.h: a step of the scheduler as the attn_batch that backends read.
 *
 * All arrays lie in one block that is allocated once for the largest step, so their addresses are
 * the same for every batch. On the CPU the host and the device pointers of an array are equal.
 */
#ifndef HOST_FORWARD_BATCH_H
#define HOST_FORWARD_BATCH_H

#include "attn_plugin.h"

/* One sequence of a step. */
struct batch_sequence {
    int32_t table_row;  /* row of req_to_token */
    int32_t prefix_len; /* tokens before the first new one */
    int32_t num_new;    /* rows of the step; 1 for a decode */
};

/* A step: extend sequences first, then num_decode sequences of one row each. */
struct batch_step {
    uint32_t mode; /* ATTN_MODE_EXTEND, _DECODE, _MIXED or _IDLE */
    int32_t num_sequences;
    int32_t num_decode; /* MIXED: the last ones; else 0 */
    const struct batch_sequence *sequences;
    const int64_t *slots; /* where the new tokens go, row by row */
    const int32_t
        *req_to_token; /* [rows, stride] slots by position; the step's are in it already */
    int32_t req_to_token_stride; /* elements */
};

/* What the arrays must hold. */
struct forward_batch_params {
    int32_t max_seqs, max_tokens;
    int64_t max_kv_tokens; /* keys of a step, each sequence rounded up to pages */
    int32_t max_kv_len;
    int32_t page_size;
    uint32_t index_forms; /* ATTN_INDEX_* to fill */
};

struct forward_batch {
    struct forward_batch_params params;
    attn_batch batch; /* what is handed to backends */
    attn_kv_batch kv; /* its one KV group */
    void *memory;     /* of the arrays below */
    int32_t *seq_lens, *prefix_lens, *q_indptr, *req_pool_indices;
    int64_t *out_cache_loc;
    int32_t *block_table, *kv_indptr, *kv_indices, *last_page_len;
};

/* Allocate the arrays; released by forward_batch_finish(). OUT_OF_HOST_MEMORY names the bytes. */
attn_status forward_batch_init(struct forward_batch *batch,
                               const struct forward_batch_params *params, attn_error *error);

/* A zeroed one is fine. */
void forward_batch_finish(struct forward_batch *batch);

/* Fill batch->batch from a step within the bounds; INTERNAL if it is not within them. */
attn_status forward_batch_build(struct forward_batch *batch, const struct batch_step *step,
                                attn_error *error);

#endif /* HOST_FORWARD_BATCH_H */
