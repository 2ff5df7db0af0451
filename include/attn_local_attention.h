/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_local_attention.h: local attention (attention_chunk) for kernels without chunk support. Each
 * chunk of a sequence becomes a virtual sequence, which the kernel computes as causal attention.
 * Engines call this LocalAttentionMetadata; the members have the same names here. Like
 * attn_plugin_util.h, this header is not part of the ABI.
 *
 *   chunk of 4, pages of 2, 3 tokens in the cache and 6 new ones:
 *
 *   keys     0 1 2 3 | 4 5 6 7 | 8        queries  - - - 3 | 4 5 6 7 | 8
 *   pages    a   b   | c   d   | e
 *
 *   local_query_start_loc 0 1 5 6; local_seqused_k 4 4 1; local_block_table {a b} {c d} {e 0}
 *
 * The last query of a virtual sequence is at its last key, as in FlashAttention's causal mask. C11
 * or C++17; [any-thread].
 */
#ifndef ATTN_LOCAL_ATTENTION_H
#define ATTN_LOCAL_ATTENTION_H

#include "attn_plugin_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host arrays, owned by the caller. */
typedef struct attn_local_attention {
    int32_t num_seqs; /* virtual sequences with at least one query */
    int32_t local_max_query_len;
    int32_t local_max_seq_len;
    int32_t local_block_table_stride; /* pages of a chunk */
    int32_t *local_query_start_loc; /* [num_seqs + 1] rows of q, in order: virtual sequence v has */
                                    /* rows [v] to [v + 1] */
    int32_t *local_seqused_k;       /* [num_seqs] keys, from the chunk's first one on */
    int32_t *local_block_table;     /* [num_seqs, local_block_table_stride] pages; 0 after the */
                                    /* page of the last key */
} attn_local_attention;

/* Sequence s of a batch: its queries are at positions [first, end), the first in row `row`. A
 * sequence that decodes always has one query; without keys it is at -1. */
static inline void attn_local_find_queries(const attn_batch *batch, int32_t s, int32_t *row,
                                           int32_t *first, int32_t *end)
{
    const int32_t *rows = attn_util_i32(&batch->q_indptr);
    int decode = batch->mode == ATTN_MODE_DECODE;
    *row = decode ? s : rows[s];
    *first =
        decode ? attn_util_i32(&batch->seq_lens)[s] - 1 : attn_util_i32(&batch->prefix_lens)[s];
    *end = *first + (decode ? 1 : rows[s + 1] - rows[s]);
}

/* Writes virtual sequence `number`: the queries of sequence s at positions [first, end) of a chunk
 * that begins at key `begin`; the first query is in row `row`. */
static inline void attn_local_store(const attn_kv_batch *kv, int32_t s, int32_t begin, int32_t row,
                                    int32_t first, int32_t end, int32_t number,
                                    attn_local_attention *local)
{
    int32_t pages = (end - begin + kv->page_size - 1) / kv->page_size;
    int32_t *table = local->local_block_table + (int64_t)number * local->local_block_table_stride;
    local->local_query_start_loc[number] = row;
    local->local_query_start_loc[number + 1] = row + end - first;
    local->local_seqused_k[number] = end - begin;
    for (int32_t i = 0; i < local->local_block_table_stride; i++)
        table[i] = i < pages ? attn_util_find_page(kv, s, begin + (int64_t)i * kv->page_size) : 0;
}

/* Makes the virtual sequences of a batch that attn_util_check_batch() accepted, in a KV group with
 * a block table. If an array of *local is NULL, only the numbers are set; call it first to size the
 * arrays, then again to fill them. Masks are the layer's (no custom mask), and queries are the last
 * tokens of their sequence.
 *
 * INVALID_ARGUMENT: attention_chunk is not a multiple of the page size, there is no block table, or
 * the queries of a sequence are not its last tokens. */
static inline attn_status
attn_util_make_local_attention_virtual_batches(const attn_batch *batch, const attn_kv_batch *kv,
                                               int32_t attention_chunk, attn_local_attention *local,
                                               attn_error *error)
{
    const int32_t *lens = attn_util_kv_lens(batch, kv);
    int stores = local->local_query_start_loc && local->local_seqused_k && local->local_block_table;
    if (kv->page_size < 1 || attention_chunk < 1 || attention_chunk % kv->page_size != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ATTENTION_CHUNK,
                                    "attention_chunk %d: accepted multiples of the page size %d",
                                    attention_chunk, kv->page_size);
    if (!attn_util_i32(&kv->block_table))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_INDEX_FORMS,
                                    "the batch has no block_table");
    local->num_seqs = local->local_max_query_len = local->local_max_seq_len = 0;
    local->local_block_table_stride = attention_chunk / kv->page_size;
    if (stores)
        local->local_query_start_loc[0] = attn_util_first_row(batch);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t row, first, end;
        attn_local_find_queries(batch, s, &row, &first, &end);
        if (first < end && end != lens[s])
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                        "sequence %d of %d keys has queries up to position %d: "
                                        "accepted where the last is at the last key",
                                        s, lens[s], end - 1);
        while (first < end) {
            int32_t begin = first < 0 ? 0 : first / attention_chunk * attention_chunk;
            int32_t last = end - begin < attention_chunk ? end : begin + attention_chunk;
            if (stores)
                attn_local_store(kv, s, begin, row, first, last, local->num_seqs, local);
            if (last - first > local->local_max_query_len)
                local->local_max_query_len = last - first;
            if (last - begin > local->local_max_seq_len)
                local->local_max_seq_len = last - begin;
            local->num_seqs++;
            row += last - first;
            first = last;
        }
    }
    return ATTN_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_LOCAL_ATTENTION_H */
