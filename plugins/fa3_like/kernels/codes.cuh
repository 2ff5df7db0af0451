/* SPDX-License-Identifier: Apache-2.0
 *
 * codes.cuh: fp8 elements with their scales, C and CUDA alike: queries and new keys for kernels
 * other than the forward kernel, and new keys as an fp8 cache stores them.
 */
#ifndef FA3_LIKE_CODES_CUH
#define FA3_LIKE_CODES_CUH

#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/work.cuh"
#include "plugins/fa3_like/kernels/batch.h"

/* The value of an fp8 code. e4m3fn has no infinity; an e5m2 code is the upper byte of an f16. */
PORTABLE float code_value(int dtype, u8 code)
{
    if (dtype == ELEMENT_E5M2)
        return element_from_f16((u16)(code << 8));
    u32 sign = (u32)(code & 0x80) << 24, rest = code & 0x7f;
    if (rest == 0x7f)
        return bits_f32(sign | 0x7fc00000);
    if (rest >= 8)
        return bits_f32(sign | ((rest << 20) + (120u << 23)));
    return bits_f32(sign | f32_bits(f32_multiply((float)rest, 0.001953125f)));
}

/* Element `index` of an array of fp8, or of a type of element_load(). */
PORTABLE float code_load(int dtype, const void *array, i64 index)
{
    return element_is_fp8(dtype) ? code_value(dtype, *PORTABLE_AT((const u8 *)array + index))
                                 : element_load(dtype, array, index);
}

PORTABLE float input_scale(const fa3_input *input, int sequence, int head)
{
    return input->scale
               ? *PORTABLE_AT(input->scale + (i64)sequence * input->sequence + head * input->head)
               : 1.0f;
}

/* Scales of an fp8 cache. */
PORTABLE float cache_k_scale(const call_operands *o, int stride, int head)
{
    return o->k_scale_device ? *PORTABLE_AT(o->k_scale_device + head * stride)
                             : o->k_scales[head * stride];
}

PORTABLE float cache_v_scale(const call_operands *o, int stride, int head)
{
    return o->v_scale_device ? *PORTABLE_AT(o->v_scale_device + head * stride)
                             : o->v_scales[head * stride];
}

/* Element d of a new key or value, as the cache's fp8. */
PORTABLE u8 code_of_new(int dtype, const void *from, i64 d, float scale, int kv_dtype,
                        float cache_scale)
{
    return save_kv_quantise(kv_dtype, f32_multiply(code_load(dtype, from, d), scale), cache_scale);
}

/* ---- fa3_widen: element d of row `row` of a head --------------------------------------------- */

PORTABLE void widen_query(const fa3_widen_call *p, int sequence, i64 row, int head, int d)
{
    const call_operands *o = &p->operands;
    const char *from = (const char *)o->q + row * o->q_row + head * o->q_head;
    float scale = input_scale(&p->q_input, sequence, head / p->heads_per_kv);
    float x = f32_multiply(code_load(ELEMENT_E4M3, from, d), scale);
    *PORTABLE_AT((any16 *)(void *)p->q + (row * p->heads_q + head) * p->dim + d) =
        element_to_bf16(x);
}

/* The value that the cache would store. bf16 represents it: neighbouring fp8 values differ by at
 * least 2^-4 of their magnitude. */
PORTABLE u16 widen_new(const char *from, int d, float scale, float cache_scale)
{
    u8 code = code_of_new(ELEMENT_E4M3, from, d, scale, ELEMENT_E4M3, cache_scale);
    return element_to_bf16(f32_multiply(code_value(ELEMENT_E4M3, code), cache_scale));
}

PORTABLE void widen_key(const fa3_widen_call *p, int sequence, i64 row, int head, int d)
{
    const call_operands *o = &p->operands;
    const char *from = (const char *)o->k + row * o->k_row + head * o->k_head;
    i64 at = row * (p->heads_q / p->heads_per_kv) + head;
    float cache = cache_k_scale(o, p->scale_stride, head);
    *PORTABLE_AT((any16 *)(void *)p->k + at * p->dim + d) =
        widen_new(from, d, input_scale(&p->k_input, sequence, head), cache);
}

PORTABLE void widen_value(const fa3_widen_call *p, int sequence, i64 row, int head, int d)
{
    const call_operands *o = &p->operands;
    const char *from = (const char *)o->v + row * o->v_row + head * o->v_head;
    i64 at = row * (p->heads_q / p->heads_per_kv) + head;
    float cache = cache_v_scale(o, p->scale_stride, head);
    *PORTABLE_AT((any16 *)(void *)p->v + at * p->dim_v + d) =
        widen_new(from, d, input_scale(&p->v_input, sequence, head), cache);
}

/* Rows [*first, *end) of sequences, in q or in k and v. */
PORTABLE void widen_find_rows(const fa3_widen_call *p, const int *rows, i64 *first, i64 *end)
{
    int seqs = index_num_seqs(&p->batch);
    *first = rows ? index_int(rows, 0) : 0;
    *end = rows ? index_int(rows, seqs) : seqs;
    if (*end > p->most_rows)
        *end = p->most_rows;
}

PORTABLE const int *widen_new_rows(const fa3_widen_call *p)
{
    return p->batch.new_indptr ? p->batch.new_indptr : p->batch.q_indptr;
}

#endif
