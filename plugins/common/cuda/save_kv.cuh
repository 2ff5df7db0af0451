/* SPDX-License-Identifier: Apache-2.0
 *
 * save_kv.cuh: new keys and values into the KV cache, C and CUDA alike.
 *
 * A row's slot is slots[row] = page * page_size + offset; a slot below 0 is not written. Layouts
 * are a matter of strides (kv.nhd/1, kv.hnd/1, or any other). A cache of the rows' own type gets
 * their bits. An fp8 cache gets x / scale: an IEEE division in fp32, rounded once to nearest even,
 * saturated; NaN stays NaN, with its sign.
 */
#ifndef PLUGINS_CUDA_SAVE_KV_CUH
#define PLUGINS_CUDA_SAVE_KV_CUH

#include "plugins/common/cuda/elements.cuh"

/* Keys or values: the new rows, and the cache. Strides are in bytes, vectors are dense. */
typedef struct save_kv_side {
    const void *from; /* row 0, head 0 */
    void *to;         /* page 0, offset 0, head 0 */
    i64 from_row, from_head;
    i64 to_page, to_token, to_head;
    const float *scales; /* of an fp8 cache */
    int scale_stride;    /* 0: one scale for all heads, 1: one for each */
    int dim;
} save_kv_side;

typedef struct save_kv_call {
    save_kv_side k;
    save_kv_side v;
    const void *slots; /* int64, one for each row */
    int page_size;
    int from_dtype; /* ELEMENT_F32, _F16, _BF16 */
    int to_dtype;   /* the same type, or fp8 */
} save_kv_call;

/* x as a code of an fp8 type. NaN bypasses the division, which would lose its sign. */
PORTABLE u8 save_kv_quantise(int dtype, float x, float scale)
{
    return element_to_fp8(dtype, f32_is_nan(x) ? x : f32_divide(x, scale));
}

/* Elements lane, lane + lanes ... of a vector. */
PORTABLE void save_kv_vector(int from_dtype, int to_dtype, const void *from, void *to, int dim,
                             float scale, int lane, int lanes)
{
    for (int d = lane; d < dim; d += lanes) {
        if (element_is_fp8(to_dtype))
            *PORTABLE_AT((u8 *)to + d) =
                save_kv_quantise(to_dtype, element_load(from_dtype, from, d), scale);
        else if (to_dtype == ELEMENT_F32)
            *PORTABLE_AT((any32 *)to + d) = *PORTABLE_AT((const any32 *)from + d);
        else
            *PORTABLE_AT((any16 *)to + d) = *PORTABLE_AT((const any16 *)from + d);
    }
}

PORTABLE void save_kv_head(const save_kv_call *call, const save_kv_side *side, i64 row, i64 slot,
                           int head, float scale, int lane, int lanes)
{
    i64 page = slot / call->page_size, offset = slot % call->page_size;
    const char *from = (const char *)side->from + row * side->from_row + head * side->from_head;
    char *to =
        (char *)side->to + page * side->to_page + offset * side->to_token + head * side->to_head;
    save_kv_vector(call->from_dtype, call->to_dtype, from, to, side->dim, scale, lane, lanes);
}

PORTABLE float save_kv_scale(const save_kv_call *call, const save_kv_side *side, int head)
{
    return element_is_fp8(call->to_dtype) ? *PORTABLE_AT(side->scales + head * side->scale_stride)
                                          : 1.0f;
}

/* Write rows first, first + step ... below `end` of KV head `head`, by lane `lane` of `lanes`: a
 * block's threads, or 0 of 1. */
PORTABLE void save_kv_rows(const save_kv_call *call, i64 first, i64 end, i64 step, int head,
                           int lane, int lanes)
{
    float k_scale = save_kv_scale(call, &call->k, head);
    float v_scale = save_kv_scale(call, &call->v, head);
    for (i64 row = first; row < end; row += step) {
        i64 slot = *PORTABLE_AT((const any64 *)call->slots + row);
        if (slot < 0)
            continue;
        save_kv_head(call, &call->k, row, slot, head, k_scale, lane, lanes);
        save_kv_head(call, &call->v, row, slot, head, v_scale, lane, lanes);
    }
}

#endif /* PLUGINS_CUDA_SAVE_KV_CUH */
