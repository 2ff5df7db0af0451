/* SPDX-License-Identifier: Apache-2.0
 *
 * index.cuh: places of a sequence's rows and keys, in C and CUDA: through a block table,
 * req_to_token, or a CSR list of pages.
 */
#ifndef PLUGINS_CUDA_INDEX_CUH
#define PLUGINS_CUDA_INDEX_CUH

#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/portable.h"

PORTABLE int index_int(const int *array, i64 i)
{
    return *PORTABLE_AT(array + i);
}

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Sequences and query rows of the batch. For a graph these are as the last planning left them. */
PORTABLE int index_num_seqs(const call_batch *b)
{
    return b->counts ? index_int(b->counts, CALL_COUNT_SEQS) : b->num_seqs;
}

PORTABLE int index_num_tokens(const call_batch *b)
{
    return b->counts ? index_int(b->counts, CALL_COUNT_TOKENS) : b->num_tokens;
}

PORTABLE int index_num_decode_seqs(const call_batch *b)
{
    return b->counts ? index_int(b->counts, CALL_COUNT_DECODE_SEQS) : b->num_decode_seqs;
}

/* ---- Sequences ------------------------------------------------------------------------------- */

typedef struct index_sequence {
    int first_row; /* of its queries */
    int q_len;
    int prefix_len; /* position of query 0 */
    int kv_len;
    int new_key; /* key of row new_row of k and v; negative in padding */
    int new_row;
    int first_new;    /* keys from here on are in k and v */
    const int *table; /* its slots or pages; NULL: no cache */
} index_sequence;

/* Sequence s. `has_new`: k and v are given. */
PORTABLE void index_find_sequence(const call_batch *b, int has_new, int s, index_sequence *q)
{
    if (b->q_indptr) {
        q->first_row = index_int(b->q_indptr, s);
        q->q_len = index_int(b->q_indptr, s + 1) - q->first_row;
        q->prefix_len = b->prefix_lens ? index_int(b->prefix_lens, s) : 0;
    } else {
        q->first_row = s;
        q->q_len = 1;
        q->prefix_len = index_int(b->seq_lens, s) - 1;
    }
    q->kv_len = b->kv_lens ? index_int(b->kv_lens, s) : q->q_len;
    int num_new = q->q_len;
    q->new_row = q->first_row;
    if (b->new_indptr) {
        q->new_row = index_int(b->new_indptr, s);
        num_new = index_int(b->new_indptr, s + 1) - q->new_row;
    }
    q->new_key = q->kv_len - num_new;
    q->first_new = has_new ? int_max(q->new_key, 0) : q->kv_len;
    q->table = 0;
    int row = b->table_rows ? index_int(b->table_rows, s) : s;
    if (b->block_table)
        q->table = b->block_table + (i64)row * b->table_stride;
    else if (b->req_to_token)
        q->table = b->req_to_token + (i64)index_int(b->req_pool_indices, row) * b->table_stride;
    else if (b->kv_indices)
        q->table = b->kv_indices + index_int(b->kv_indptr, row);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* The table's entry of key j, its page or its slot; NULL for a new token. A kernel loads it long
 * before its use, so that nothing waits for it. */
PORTABLE const int *index_entry(const call_batch *b, const index_sequence *q, int page_size, int j)
{
    return j < q->first_new ? q->table + (b->req_to_token ? j : j / page_size) : 0;
}

/* The places of a key and its value. */
typedef struct index_place {
    const char *k;
    const char *v;
} index_place;

/* Find key j of KV head `head`. `entry` is the table's entry of it; not read for a new token. */
PORTABLE index_place index_find_key(const call_operands *o, const call_batch *b,
                                    const index_sequence *q, int page_size, int head, int j,
                                    int entry)
{
    index_place place;
    if (j >= q->first_new) {
        i64 row = q->new_row + (j - q->new_key);
        place.k = (const char *)o->k + row * o->k_row + head * o->k_head;
        place.v = (const char *)o->v + row * o->v_row + head * o->v_head;
        return place;
    }
    i64 page = b->req_to_token ? entry / page_size : entry;
    int offset = (b->req_to_token ? entry : j) % page_size;
    place.k =
        (const char *)o->k_cache + page * o->k_page + offset * o->k_token + head * o->k_cache_head;
    place.v =
        (const char *)o->v_cache + page * o->v_page + offset * o->v_token + head * o->v_cache_head;
    return place;
}

#endif /* PLUGINS_CUDA_INDEX_CUH */
