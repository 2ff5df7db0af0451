/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cuh: a sequence of a batch, and how it is cut into tiles, C and CUDA alike.
 */
#ifndef FA3_LIKE_PLAN_CUH
#define FA3_LIKE_PLAN_CUH

#include "plugins/fa3_like/kernels/batch.h"
#include "plugins/fa3_like/kernels/params.h"

/* Query t is row first_row + t at position + t; key j >= first_new is row new_row + j - first_new of k
 * and v, where these are given. */
typedef struct fa3_sequence {
    int first_row, queries, keys, position;
    int new_row, new_keys, first_new;
} fa3_sequence;

PORTABLE fa3_sequence sequence_of(const fa3_batch *batch, int s)
{
    fa3_sequence q;
    q.first_row = batch->q_indptr ? batch->q_indptr[s] : s;
    q.queries = batch->q_indptr ? batch->q_indptr[s + 1] - q.first_row : 1;
    q.keys = batch->kv_lens ? batch->kv_lens[s] : q.queries;
    q.position = 0;
    if (!batch->q_indptr && batch->kv_lens)
        q.position = batch->seq_lens[s] - 1;
    else if (batch->q_indptr && batch->prefix_lens)
        q.position = batch->prefix_lens[s];
    q.new_row = batch->new_indptr ? batch->new_indptr[s] : q.first_row;
    q.new_keys = batch->new_indptr ? batch->new_indptr[s + 1] - q.new_row : q.queries;
    q.first_new = q.keys - q.new_keys;
    return q;
}

/* The sequence that a new row belongs to. */
PORTABLE int sequence_of_new_row(const fa3_batch *batch, int row)
{
    const int *rows = batch->new_indptr ? batch->new_indptr : batch->q_indptr;
    int low = 0, high = batch->num_seqs;
    if (!rows)
        return row;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (rows[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Marks the sequence of a new row whose key is seen and has no slot. */
PORTABLE void mark_row(const fa3_plan_call *p, int row)
{
    if (p->batch.slots[row] >= 0)
        return;
    int s = sequence_of_new_row(&p->batch, row);
    fa3_sequence q = sequence_of(&p->batch, s);
    if (q.first_new + row - q.new_row >= 0)
        p->marks[s] = 1;
}

/* Does the forward kernel, for which the last query stands at the last key, mistake its place? */
PORTABLE int is_misplaced(const fa3_batch *batch, const fa3_sequence *q)
{
    int bounded = batch->window_left < FA3_UNBOUNDED || batch->window_right < FA3_UNBOUNDED;
    return bounded && q->position != q->keys - q->queries;
}

/* After all rows were marked. */
PORTABLE int is_slow(const fa3_plan_call *p, const fa3_sequence *q, int s)
{
    return q->queries > 0 && q->keys > 0 && (p->marks[s] || is_misplaced(&p->batch, q));
}

PORTABLE int tiles_of(const fa3_plan_call *p, int s)
{
    fa3_sequence q = sequence_of(&p->batch, s);
    return is_slow(p, &q, s) ? 0 : (q.queries + p->tile_queries - 1) / p->tile_queries;
}

/* The bucket of a tile, by how many keys it is multiplied with. */
PORTABLE int bucket_of(const fa3_plan_call *p, int s, int tile)
{
    fa3_sequence q = sequence_of(&p->batch, s);
    int first = q.keys - q.queries + tile * p->tile_queries, last = first + p->tile_queries;
    int end = (last < q.keys ? last : q.keys) + p->batch.window_right;
    int start = first - p->batch.window_left;
    end = end < q.keys ? end : q.keys;
    start = start > 0 ? start : 0;
    int keys = end > start ? end - start : 0, bucket = keys / p->tile_keys / p->bucket_keys;
    return bucket < FA3_PLAN_BUCKETS ? bucket : FA3_PLAN_BUCKETS - 1;
}

/* The plan but for its lists. */
PORTABLE void plan_begin(const fa3_plan_call *p)
{
    const fa3_batch *batch = &p->batch;
    const int *rows = batch->q_indptr;
    fa3_plan *plan = p->plan;
    plan->num_seqs = batch->num_seqs;
    plan->num_tokens = batch->num_tokens;
    plan->first_row = rows ? rows[0] : 0;
    plan->end_row = rows ? rows[batch->num_seqs] : batch->num_seqs;
    plan->starts[0] = plan->starts[1] = plan->first_row;
    if (batch->num_seqs == 1 && tiles_of(p, 0) > 0)
        plan->starts[1] = plan->end_row;
}

#endif
