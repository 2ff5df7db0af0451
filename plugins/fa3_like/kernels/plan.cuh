/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cuh: how sequences are cut into tiles, and which ones are slow, C and CUDA alike.
 */
#ifndef FA3_LIKE_PLAN_CUH
#define FA3_LIKE_PLAN_CUH

#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/work.cuh"
#include "plugins/fa3_like/kernels/batch.h"

/* Rows of k and v of the sequences; NULL: row s belongs to sequence s. */
PORTABLE const int *plan_new_rows(const call_batch *b)
{
    return b->new_indptr ? b->new_indptr : b->q_indptr;
}

/* Marks the sequence of a new row whose key is visible and has no slot. */
PORTABLE void plan_mark_row(const fa3_plan_call *p, int row)
{
    index_sequence q;
    if (*PORTABLE_AT(p->batch.out_cache_loc + row) >= 0)
        return;
    int s = work_find_row(plan_new_rows(&p->batch), p->batch.num_seqs, row);
    index_find_sequence(&p->batch, 1, s, &q);
    if (q.new_key + row - q.new_row >= 0)
        *PORTABLE_AT(p->marks + s) = 1;
}

/* Finds a sequence's given keys, and the position of its queries among them. Rows before its first
 * key are not its own. Positions are clamped against overflow. */
PORTABLE void plan_find_given(const fa3_plan_call *p, int s)
{
    const fa3_given *given = &p->given;
    const int *rows = plan_new_rows(&p->batch);
    const int far = 1 << 29;
    int end = index_int(rows, s + 1), kv_len = index_int(given->kv_lens, s);
    int prefix_len = given->prefix_lens ? index_int(given->prefix_lens, s) : 0;
    int keys = int_max(int_min(end - index_int(rows, s), kv_len), 0);
    *PORTABLE_AT(given->keys + s) = keys;
    *PORTABLE_AT(given->rows + s) = end - keys;
    *PORTABLE_AT(given->positions + s) = int_max(int_min(prefix_len - (kv_len - keys), far), -far);
}

/* Would the forward kernel assume a wrong position? It places the last query at the last key. */
PORTABLE int plan_is_misplaced(const fa3_plan_call *p, const index_sequence *q)
{
    int bounded = p->window_left >= 0 || p->batch.window_right >= 0 || p->chunk > 0;
    return bounded && !p->given.keys && q->prefix_len != q->kv_len - q->q_len;
}

PORTABLE int plan_is_of_others(const fa3_plan_call *p, int s)
{
    return s >= p->others_first && s < p->others_end;
}

/* Is a sequence slow? Called after all rows are marked. */
PORTABLE int plan_is_slow(const fa3_plan_call *p, int s)
{
    index_sequence q;
    if (plan_is_of_others(p, s))
        return 0;
    index_find_sequence(&p->batch, 1, s, &q);
    return q.q_len > 0 && q.kv_len > 0 && (*PORTABLE_AT(p->marks + s) || plan_is_misplaced(p, &q));
}

PORTABLE int plan_count_tiles(const fa3_plan_call *p, int s)
{
    index_sequence q;
    index_find_sequence(&p->batch, 1, s, &q);
    return plan_is_of_others(p, s) || plan_is_slow(p, s)
               ? 0
               : (q.q_len + p->tile_queries - 1) / p->tile_queries;
}

/* Are all keys of a sequence new, so that its tiles save them? */
PORTABLE int plan_is_whole(const fa3_plan_call *p, int s)
{
    index_sequence q;
    index_find_sequence(&p->batch, 1, s, &q);
    return q.q_len == q.kv_len && !p->batch.new_indptr && plan_count_tiles(p, s) > 0;
}

/* Extends [*first, *end) by the rows of a sequence that its tiles do not save. */
PORTABLE void plan_add_rest(const fa3_plan_call *p, int s, int *first, int *end)
{
    const int *rows = plan_new_rows(&p->batch);
    int from = rows ? index_int(rows, s) : s, to = rows ? index_int(rows, s + 1) : s + 1;
    if (from == to || plan_is_whole(p, s))
        return;
    *first = int_min(*first, from);
    *end = int_max(*end, to);
}

/* Units of a sequence that an earlier kernel makes: for all its keys, whatever its tiles see. */
PORTABLE int plan_count_ahead(const fa3_plan_call *p, int s)
{
    index_sequence q;
    if (!p->ahead_first || plan_is_of_others(p, s))
        return 0;
    index_find_sequence(&p->batch, 1, s, &q);
    return (int_max(q.kv_len, 0) + p->ahead_keys - 1) / p->ahead_keys;
}

/* The bucket of a tile, by its number of keys. */
PORTABLE int plan_find_bucket(const fa3_plan_call *p, int s, int tile)
{
    index_sequence q;
    index_find_sequence(&p->batch, 1, s, &q);
    const mask_rule rule = {p->window_left, p->batch.window_right, p->chunk, 0, 0};
    int position = p->given.keys ? q.prefix_len : q.kv_len - q.q_len;
    int first = tile * p->tile_queries, start, end, ignored;
    int last = int_min(first + p->tile_queries, q.q_len) - 1;
    mask_positions(&rule, position + first, &start, &ignored);
    mask_positions(&rule, position + last, &ignored, &end);
    start = int_max(start, 0);
    end = int_min(end, q.kv_len);
    return int_min(int_max(end - start, 0) / p->tile_keys / p->bucket_keys, FA3_PLAN_BUCKETS - 1);
}

/* Stores tile `tile` of a sequence in its place in the list. */
PORTABLE void plan_store_tile(const fa3_plan_call *p, int place, int s, int tile)
{
    index_sequence q;
    index_find_sequence(&p->batch, 1, s, &q);
    int position = p->given.keys ? q.prefix_len : q.kv_len - q.q_len;
    *PORTABLE_AT(p->tiles + place) =
        (struct fa3_entry){s, tile, q.first_row, q.q_len, q.kv_len, position, {0, 0}};
}

/* Stores the plan without its lists, whose lengths are given. */
PORTABLE void plan_store(const fa3_plan_call *p, int tile_count, int slow_count)
{
    fa3_plan *plan = PORTABLE_AT(p->plan);
    const int *rows = p->batch.q_indptr;
    plan->tile_count = tile_count;
    plan->slow_count = slow_count;
    plan->starts[0] = rows ? index_int(rows, 0) : 0;
    plan->starts[1] = plan->starts[0];
    if (p->batch.num_seqs == 1 && tile_count > 0)
        plan->starts[1] = rows ? index_int(rows, 1) : 1;
}

#endif
