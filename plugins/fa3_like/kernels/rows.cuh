/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cuh: what is done row by row, C and CUDA alike: where a key lies, whether a query sees it, its
 * score; rows of no sequence.
 *
 * The forward kernel takes keys from one place, by boxes of aligned rows. What it cannot take goes
 * this way, slowly, and with all in fp32: sequences with a new key that has no slot in the cache, those
 * that look at some of their keys through a window (parts of a prefix), operands that are not aligned
 * to 16 bytes.
 */
#ifndef FA3_LIKE_ROWS_CUH
#define FA3_LIKE_ROWS_CUH

#include "plugins/common/cuda/elements.cuh"
#include "plugins/fa3_like/kernels/plan.cuh"

#ifndef __CUDACC__
#include <math.h>
#endif

/* Key j, or value j, of a KV head. */
PORTABLE const any16 *row_vector(const fa3_rows_call *p, const fa3_sequence *q, int s, int j, int head,
                                 int values)
{
    const any16 *given = (const any16 *)(values ? p->v : p->k);
    const any16 *cache = (const any16 *)(values ? p->v_cache : p->k_cache);
    if (given && j >= q->first_new) {
        i64 row = (i64)q->new_row + j - q->first_new;
        return given + row * (values ? p->v_row : p->k_row) + head * (values ? p->v_head : p->k_head);
    }
    i64 page = p->block_table[s * p->table_stride + j / p->page_size], at = j % p->page_size;
    if (values)
        return cache + page * p->v_page + at * p->v_token + head * p->v_cache_head;
    return cache + page * p->k_page + at * p->k_token + head * p->k_cache_head;
}

PORTABLE int row_sees(const fa3_rows_call *p, int position, int j)
{
    const fa3_batch *batch = &p->batch;
    return (batch->window_left >= FA3_UNBOUNDED || j >= position - batch->window_left) &&
           (batch->window_right >= FA3_UNBOUNDED || j <= position + batch->window_right);
}

/* The score of key j under the query in `row`. */
PORTABLE float row_score(const fa3_rows_call *p, const any16 *query, const any16 *key)
{
    float sum = 0.0f;
    for (int d = 0; d < p->dim; d++)
        sum += element_load(p->dtype, query, d) * element_load(p->dtype, key, d);
    sum *= p->scale;
    return p->cap > 0.0f ? p->cap * tanhf(sum / p->cap) : sum;
}

PORTABLE const any16 *row_query(const fa3_rows_call *p, i64 row, int head)
{
    return (const any16 *)p->q + row * p->q_row + head * p->q_head;
}

PORTABLE any16 *row_out(const fa3_rows_call *p, i64 row, int head)
{
    return (any16 *)p->out + row * p->out_row + head * p->out_head;
}

/* Row number n of the padding, whose output has to be finite. */
PORTABLE void row_clear(const fa3_rows_call *p, i64 row, int head, int lane, int lanes)
{
    any16 *out = row_out(p, row, head);
    for (int d = lane; d < p->dim_v; d += lanes)
        out[d] = 0;
    if (p->lse && lane == 0)
        p->lse[row * p->lse_row + head * p->lse_head] = bits_f32(0xff800000);
}

#endif
