/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cuh: row by row computations, C and CUDA alike: the score of a key, padding rows.
 *
 * The forward kernel reads keys from one place, as boxes of aligned rows. This slow path in fp32
 * serves the rest: sequences with a new key without a slot, sequences that see some of their keys
 * through a window or chunk (parts of a prefix), and operands that are not aligned to 16 bytes.
 */
#ifndef FA3_LIKE_ROWS_CUH
#define FA3_LIKE_ROWS_CUH

#include "plugins/common/cuda/mask.cuh"
#include "plugins/fa3_like/kernels/codes.cuh"
#include "plugins/fa3_like/kernels/plan.cuh"

#ifndef __CUDACC__
#include <math.h>
#endif

/* Key j of a KV head of sequence s, and its value. */
PORTABLE index_place row_find_key(const fa3_rows_call *p, const index_sequence *q, int head, int j)
{
    const int *entry = index_entry(&p->batch, q, p->page_size, j);
    return index_find_key(&p->operands, &p->batch, q, p->page_size, head, j,
                          entry ? index_int(entry, 0) : 0);
}

/* The keys [*low, *high) that query t of a sequence sees. */
PORTABLE void row_find_keys(const fa3_rows_call *p, const index_sequence *q, int t, int *low,
                            int *high)
{
    const mask_rule rule = {p->window_left, p->batch.window_right, p->chunk, 0, 0};
    mask_positions(&rule, q->prefix_len + t, low, high);
    *low = int_max(*low, 0);
    *high = int_min(*high, q->kv_len);
}

/* The scales of a sequence's queries, keys and values. */
typedef struct row_scales {
    float q, k, v;          /* of the inputs */
    float k_cache, v_cache; /* of the cache */
} row_scales;

PORTABLE row_scales row_find_scales(const fa3_rows_call *p, int sequence, int kv_head)
{
    row_scales s = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    if (p->has_codes) {
        s.q = input_scale(&p->q_input, sequence, kv_head);
        s.k = input_scale(&p->k_input, sequence, kv_head);
        s.v = input_scale(&p->v_input, sequence, kv_head);
        s.k_cache = cache_k_scale(&p->operands, p->scale_stride, kv_head);
        s.v_cache = cache_v_scale(&p->operands, p->scale_stride, kv_head);
    }
    return s;
}

/* Element d of a key or value; a new one is rounded as in the cache. */
PORTABLE float row_element(const fa3_rows_call *p, int is_new, const char *at, int d, float scale,
                           float cache_scale)
{
    if (!p->has_codes)
        return element_load(p->dtype, at, d);
    u8 code = is_new ? code_of_new(p->new_dtype, at, d, scale, p->kv_dtype, cache_scale)
                     : *PORTABLE_AT((const u8 *)at + d);
    return f32_multiply(code_value(p->kv_dtype, code), cache_scale);
}

PORTABLE float row_score(const fa3_rows_call *p, const row_scales *s, const char *query,
                         const char *key, int is_new)
{
    float sum = 0.0f;
    for (int d = 0; d < p->dim; d++)
        sum += code_load(p->dtype, query, d) * row_element(p, is_new, key, d, s->k, s->k_cache);
    sum *= p->scale * s->q;
    return p->cap > 0.0f ? p->cap * tanhf(sum / p->cap) : sum;
}

/* Writes a new row of a head to its slot. */
PORTABLE void row_save_code(const fa3_rows_call *p, const char *from, char *to, int dim,
                            float scale, float cache_scale, int lane, int lanes)
{
    for (int d = lane; d < dim; d += lanes)
        *PORTABLE_AT((u8 *)to + d) =
            code_of_new(p->new_dtype, from, d, scale, p->kv_dtype, cache_scale);
}

PORTABLE const char *row_query(const fa3_rows_call *p, i64 row, int head)
{
    return (const char *)p->operands.q + row * p->operands.q_row + head * p->operands.q_head;
}

PORTABLE char *row_out(const fa3_rows_call *p, i64 row, int head)
{
    return (char *)p->operands.out + row * p->operands.out_row + head * p->operands.out_head;
}

PORTABLE void row_store_lse(const fa3_rows_call *p, i64 row, int head, float lse)
{
    const call_operands *o = &p->operands;
    if (o->lse)
        *PORTABLE_AT((float *)(void *)((char *)o->lse + row * o->lse_row + head * o->lse_head)) =
            lse;
}

/* Clears a padding row: its output must be finite. */
PORTABLE void row_clear(const fa3_rows_call *p, i64 row, int head, int lane, int lanes)
{
    char *out = row_out(p, row, head);
    for (int d = lane; d < p->dim_v; d += lanes)
        element_store(p->out_dtype, out, d, 0.0f);
    if (lane == 0)
        row_store_lse(p, row, head, bits_f32(0xff800000));
}

/* The padding rows [*first, *end), after those of the sequences. */
PORTABLE void rows_find_padding(const fa3_rows_call *p, i64 *first, i64 *end)
{
    const int *rows = p->batch.q_indptr;
    int seqs = index_num_seqs(&p->batch);
    *first = rows ? index_int(rows, seqs) : seqs;
    *end = (rows ? index_int(rows, 0) : 0) + (i64)index_num_tokens(&p->batch);
}

#endif
