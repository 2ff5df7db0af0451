/* SPDX-License-Identifier: Apache-2.0
 *
 * local_batches.h: attention in chunks as batches of its own.
 *
 * With attention_chunk c a query sees keys of its own chunk alone, [n c, (n + 1) c). So a sequence
 * falls into virtual ones, one for each chunk that has queries, and for those attention is plainly
 * causal:
 *
 *   chunk 4, 6 keys before, 7 queries   keys     0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12
 *                                       queries              6 7     8 9 10 11   12
 *   virtual sequences                   2 queries of 4 keys, 4 of 4, 1 of 1
 *
 * The pages of a virtual sequence are some of its sequence's, in the same order.
 */
#ifndef FA3_LIKE_LOCAL_BATCHES_H
#define FA3_LIKE_LOCAL_BATCHES_H

#include "attn_types.h"

/* A batch, by its arrays on the host. */
typedef struct local_batches_source {
    int32_t chunk;     /* keys; a multiple of page_size */
    int32_t page_size; /* tokens */
    int32_t num_seqs;
    int32_t block_table_stride;
    const int32_t *query_start_loc; /* [num_seqs + 1] */
    const int32_t *seq_lens;        /* [num_seqs] keys, the new ones included */
    const int32_t *block_table;     /* [num_seqs, block_table_stride] */
} local_batches_source;

/* What becomes of it. The caller owns the arrays. */
typedef struct local_attention_metadata {
    int32_t *local_query_start_loc; /* [count + 1] */
    int32_t *local_seqused_k;       /* [count] keys */
    int32_t *local_block_table;     /* [count, chunk / page_size]; 0 where there is no key */
    int32_t local_max_query_len;
    int32_t local_max_seq_len;
} local_attention_metadata;

/* How many virtual sequences there are. INVALID_ARGUMENT for a chunk that is no multiple of the
 * page size, and for a sequence with more queries than keys. */
attn_status local_batches_count(const local_batches_source *source, int32_t *count,
                                attn_error *error);

/* Fill in arrays of that many. */
attn_status make_local_attention_virtual_batches(const local_batches_source *source,
                                                 local_attention_metadata *local,
                                                 attn_error *error);

#endif /* FA3_LIKE_LOCAL_BATCHES_H */
