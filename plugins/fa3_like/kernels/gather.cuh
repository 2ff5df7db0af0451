/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.cuh: the rows of gathered keys, C and CUDA alike (batch.h).
 *
 * Tiles read keys of the queries' type, at least 8 adjacent ones of a page. Other keys are gathered
 * first: fp8, pages of any size, lists of slots, keys in no page. This happens once per layer;
 * otherwise each tile of queries would read and convert them again.
 */
#ifndef FA3_LIKE_GATHER_CUH
#define FA3_LIKE_GATHER_CUH

#include "plugins/common/cuda/mask.cuh"
#include "plugins/fa3_like/kernels/codes.cuh"

/* A key of a head and its value, and their destinations. */
typedef struct gather_row {
    const char *k, *v;
    i64 row;                 /* gathered row; negative: none */
    char *k_cache, *v_cache; /* addresses of their slot; NULL: not saved */
} gather_row;

PORTABLE const int *gather_new_rows(const fa3_gather_call *p)
{
    return p->batch.new_indptr ? p->batch.new_indptr : p->batch.q_indptr;
}

/* The gathered row of a sequence's key. */
PORTABLE i64 gather_place(const fa3_gather_call *p, int sequence, int key)
{
    int first = index_int(p->first, sequence), end = index_int(p->first, sequence + 1);
    return key >= 0 && key < end - first && first + key < p->most_rows ? first + key : -1;
}

/* The gathered row `row`, if its key is in the cache and a query sees it. */
PORTABLE gather_row gather_find_cached(const fa3_gather_call *p, int row, int head)
{
    gather_row r = {0, 0, -1, 0, 0};
    index_sequence q;
    int s = work_find_row(p->first, index_num_seqs(&p->batch), row);
    if (s < 0)
        return r;
    index_find_sequence(&p->batch, p->operands.k != 0, s, &q);
    const mask_rule rule = {p->window_left, p->batch.window_right, p->chunk, 0, 0};
    int key = row - index_int(p->first, s), low, high;
    mask_positions(&rule, q.prefix_len, &low, &high); /* query 0 sees the first visible key */
    if (key < low || key >= q.first_new)
        return r;
    int entry = index_int(index_entry(&p->batch, &q, p->page_size, key), 0);
    index_place place = index_find_key(&p->operands, &p->batch, &q, p->page_size, head, key, entry);
    r.k = place.k;
    r.v = place.v;
    r.row = row;
    return r;
}

/* The key of row `row` of k and v. */
PORTABLE gather_row gather_find_new(const fa3_gather_call *p, i64 row, int head)
{
    const call_operands *o = &p->operands;
    const int *rows = gather_new_rows(p);
    int s = work_find_row(rows, index_num_seqs(&p->batch), (int)row);
    gather_row r = {(const char *)o->k + row * o->k_row + head * o->k_head,
                    (const char *)o->v + row * o->v_row + head * o->v_head, -1, 0, 0};
    i64 slot = o->save ? *PORTABLE_AT(p->batch.out_cache_loc + row) : -1;
    if (s >= 0) {
        index_sequence q;
        index_find_sequence(&p->batch, 1, s, &q);
        r.row = gather_place(p, s, q.new_key + (int)(row - q.new_row));
    }
    if (slot >= 0) {
        i64 page = slot / p->page_size, at = slot % p->page_size;
        r.k_cache =
            (char *)o->k_cache + page * o->k_page + at * o->k_token + head * o->k_cache_head;
        r.v_cache =
            (char *)o->v_cache + page * o->v_page + at * o->v_token + head * o->v_cache_head;
    }
    return r;
}

/* Rows [*first, *end) of sequences in k and v. */
PORTABLE void gather_find_new_rows(const fa3_gather_call *p, i64 *first, i64 *end)
{
    const int *rows = gather_new_rows(p);
    int seqs = index_num_seqs(&p->batch);
    *first = rows ? index_int(rows, 0) : 0;
    *end = !p->operands.k ? *first : rows ? index_int(rows, seqs) : seqs;
}

PORTABLE u16 gather_narrow(const fa3_gather_call *p, float x)
{
    return p->dtype == ELEMENT_F16 ? element_to_f16(x) : element_to_bf16(x);
}

/* Element d of a new key or value, rounded as in the cache. */
PORTABLE u16 gather_new_element(const fa3_gather_call *p, const char *from, i64 d, float scale)
{
    return gather_narrow(p, element_is_fp8(p->kv_dtype)
                                ? code_value(p->kv_dtype, code_of_new(p->new_dtype, from, d, 1.0f,
                                                                      p->kv_dtype, scale))
                                : element_load(p->new_dtype, from, d));
}

PORTABLE u16 gather_cached_element(const fa3_gather_call *p, const char *from, i64 d)
{
    return gather_narrow(p, code_load(p->kv_dtype, from, d));
}

#endif
