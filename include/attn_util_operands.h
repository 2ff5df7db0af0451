/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_util_operands.h: operands by role, each checked against a form; scales; copies of new keys
 * to their slots. Part of attn_plugin_util.h, which states common rules.
 */
#ifndef ATTN_UTIL_OPERANDS_H
#define ATTN_UTIL_OPERANDS_H

#include "attn_util_batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Operands -------------------------------------------------------------------------------- */

/* Required form of an operand. An extent of -1 accepts any. */
typedef struct attn_util_form {
    attn_dtype dtype;
    int32_t device_type; /* ATTN_DEVICE_* */
    uint32_t ndim;
    int64_t shape[ATTN_MAX_DIMS];
    int32_t written; /* 1 = must not be READ_ONLY */
} attn_util_form;

/* Copy the arguments of a forward on a CPU into a struct of full size. CAPTURE_UNSUPPORTED during
 * capture, INVALID_ARGUMENT if num_operands is not 0 and `operands` is NULL. */
static inline attn_status attn_util_read_args(const attn_forward_args *given,
                                              attn_forward_args *args, attn_error *error)
{
    ATTN_UTIL_READ(args, given);
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return attn_util_fail(error, ATTN_CAPTURE_UNSUPPORTED,
                              "nothing can be captured on a processor");
    if (args->num_operands > 0 && !args->operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    if (args->num_scales > 0 && !args->scales)
        args->num_scales = 0;
    return ATTN_OK;
}

/* Address of the first element. */
static inline char *attn_util_data(const attn_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* Address of element [i][j][0]. */
static inline void *attn_util_at(const attn_tensor *tensor, int64_t i, int64_t j)
{
    return attn_util_data(tensor) +
           (i * tensor->strides[0] + j * tensor->strides[1]) * attn_dtype_size(tensor->dtype);
}

/* Address of element [i][j][k][0]. */
static inline void *attn_util_at4(const attn_tensor *tensor, int64_t i, int64_t j, int64_t k)
{
    return (char *)attn_util_at(tensor, i, j) +
           k * tensor->strides[2] * attn_dtype_size(tensor->dtype);
}

/* Check dimensions, extents and strides of an operand. Used by attn_util_operand(). */
static inline attn_status attn_util_check_shape(const char *name, const attn_tensor *tensor,
                                                const attn_util_form *form, attn_error *error)
{
    if (tensor->ndim != form->ndim)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s has %u dimensions: accepted %u", name, tensor->ndim,
                                    form->ndim);
    int is_empty = 0; /* strides of an empty tensor are ignored */
    for (uint32_t d = 0; d < tensor->ndim; d++)
        is_empty |= tensor->shape[d] == 0;
    for (uint32_t d = 0; d < form->ndim; d++) {
        if (tensor->shape[d] < 0 || (form->shape[d] >= 0 && tensor->shape[d] != form->shape[d]))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                        "operand %s: shape[%u] is %" PRId64 ": accepted %" PRId64,
                                        name, d, tensor->shape[d], form->shape[d]);
        if (tensor->strides[d] < 0 ||
            (tensor->strides[d] == 0 && tensor->shape[d] > 1 && !is_empty))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_STRIDE,
                                        "operand %s: strides[%u] is %" PRId64
                                        ": accepted 1 and more",
                                        name, d, tensor->strides[d]);
    }
    uint32_t last = form->ndim - 1;
    if (tensor->strides[last] != 1 && tensor->shape[last] > 1 && !is_empty)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_STRIDE,
                                    "operand %s: innermost stride is %" PRId64 ": accepted 1", name,
                                    tensor->strides[last]);
    return ATTN_OK;
}

/* Check that data is present and aligned to its element size. Used by attn_util_operand(). */
static inline attn_status attn_util_check_data(const char *name, const attn_tensor *tensor,
                                               attn_error *error)
{
    uint32_t size = attn_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return ATTN_OK;
    if (!tensor->data)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s: data is NULL", name);
    if (size > 1 && (uintptr_t)attn_util_data(tensor) % size != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s: data is not aligned to its %u bytes", name, size);
    return ATTN_OK;
}

/* The operand of `role`, checked against `form`: dtype, device, number of dimensions, extents,
 * innermost stride 1, data present and aligned to its element size. INVALID_ARGUMENT, with the
 * role's name, if it is absent or differs. *operand is set only on success. */
static inline attn_status attn_util_operand(const attn_forward_args *args, uint32_t role,
                                            const attn_util_form *form, const attn_tensor **operand,
                                            attn_error *error)
{
    const char *name = attn_util_role_name(role);
    const attn_tensor *tensor = attn_operand(args, role);
    if (!tensor)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is missing", name);
    if (tensor->dtype != form->dtype)
        return attn_util_fail_field(
            error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND, "operand %s is %s: accepted %s", name,
            attn_util_dtype_name(tensor->dtype), attn_util_dtype_name(form->dtype));
    if (tensor->device_type != form->device_type)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is on device type %s: accepted %s", name,
                                    attn_device_name(tensor->device_type),
                                    attn_device_name(form->device_type));
    if (form->written && tensor->flags & ATTN_TENSOR_READ_ONLY)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is read-only", name);
    attn_status status = attn_util_check_shape(name, tensor, form, error);
    if (status == ATTN_OK)
        status = attn_util_check_data(name, tensor, error);
    if (status == ATTN_OK)
        *operand = tensor;
    return status;
}

/* The private operand with this name, or NULL. */
static inline const attn_tensor *attn_util_named(const attn_forward_args *args, const char *name)
{
    uint32_t count = ATTN_HAS(args, attn_forward_args, named) ? args->num_named : 0;
    for (uint32_t i = 0; i < count; i++) {
        const attn_named_operand *named = (const attn_named_operand *)attn_at(args->named, i);
        if (strcmp(named->name, name) == 0)
            return named->tensor;
    }
    return NULL;
}

/* Operands of softmax attention over a cache in layout kv.nhd/1; NULL = absent. */
typedef struct attn_util_operands {
    const attn_tensor *q, *k, *v, *out, *lse, *k_cache, *v_cache;
    int32_t saves; /* 1 = write new keys and values to the cache */
} attn_util_operands;

/* Read and check the operands of a call on a CPU. q, out and the caches are required; k and v come
 * as a pair or not at all; written operands must not be READ_ONLY; all have type `dtype`.
 * CAPTURE_UNSUPPORTED, INVALID_ARGUMENT. */
static inline attn_status attn_util_read_operands(const attn_forward_args *given,
                                                  const attn_layer_group *group, attn_dtype dtype,
                                                  attn_util_operands *operands, attn_error *error)
{
    attn_forward_args args;
    attn_status status = attn_util_read_args(given, &args, error);
    if (status != ATTN_OK)
        return status;
    int32_t is_new = attn_operand(&args, ATTN_ROLE_K) || attn_operand(&args, ATTN_ROLE_V);
    int32_t is_lse = attn_operand(&args, ATTN_ROLE_LSE) != NULL;
    memset(operands, 0, sizeof *operands);
    operands->saves = is_new && args.flags & ATTN_FORWARD_SAVE_KV;
    const int32_t q_heads = group->num_q_heads, kv_heads = group->num_kv_heads;
    const int32_t dim = group->head_dim, v_dim = group->v_head_dim, cpu = ATTN_DEVICE_CPU;
    const struct {
        uint32_t role;
        int32_t is_there;
        const attn_tensor **to;
        attn_util_form form;
    } wanted[] = {
        {ATTN_ROLE_Q, 1, &operands->q, {dtype, cpu, 3, {-1, q_heads, dim}, 0}},
        {ATTN_ROLE_OUT, 1, &operands->out, {dtype, cpu, 3, {-1, q_heads, v_dim}, 1}},
        {ATTN_ROLE_K, is_new, &operands->k, {dtype, cpu, 3, {-1, kv_heads, dim}, 0}},
        {ATTN_ROLE_V, is_new, &operands->v, {dtype, cpu, 3, {-1, kv_heads, v_dim}, 0}},
        {ATTN_ROLE_LSE, is_lse, &operands->lse, {ATTN_F32, cpu, 2, {-1, q_heads}, 1}},
        {ATTN_ROLE_K_CACHE,
         1,
         &operands->k_cache,
         {dtype, cpu, 4, {-1, -1, kv_heads, dim}, operands->saves}},
        {ATTN_ROLE_V_CACHE,
         1,
         &operands->v_cache,
         {dtype, cpu, 4, {-1, -1, kv_heads, v_dim}, operands->saves}},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == ATTN_OK; i++)
        if (wanted[i].is_there)
            status = attn_util_operand(&args, wanted[i].role, &wanted[i].form, wanted[i].to, error);
    return status;
}

/* Copy the new keys and values of a batch to their slots, if the call has SAVE_KV; row by row, in
 * the calling thread. */
static inline void attn_util_save_kv(const attn_util_operands *operands, const attn_batch *batch,
                                     const attn_kv_batch *kv, const attn_layer_group *group)
{
    int64_t first, count;
    if (!operands->saves)
        return;
    size_t size = attn_dtype_size(operands->k->dtype);
    attn_util_new_rows(batch, kv, 0, batch->num_seqs, &first, &count);
    for (int64_t row = first; row < first + count; row++) {
        int64_t slot =
            (kv->out_cache_loc.device ? kv->out_cache_loc.device : kv->out_cache_loc.host)[row];
        int64_t page = slot / kv->page_size, offset = slot % kv->page_size;
        for (int32_t h = 0; h < group->num_kv_heads && slot >= 0; h++) {
            memcpy(attn_util_at4(operands->k_cache, page, offset, h),
                   attn_util_at(operands->k, row, h), (size_t)group->head_dim * size);
            memcpy(attn_util_at4(operands->v_cache, page, offset, h),
                   attn_util_at(operands->v, row, h), (size_t)group->v_head_dim * size);
        }
    }
}

/* Number of values of a scale with this granularity, for `heads` KV heads, a batch of `seqs`
 * sequences and a cache of `slots`. */
static inline uint32_t attn_util_scale_count(uint32_t granularity, int32_t heads, int32_t seqs,
                                             int64_t slots)
{
    switch (granularity) {
    case ATTN_SCALE_PER_HEAD:
        return (uint32_t)heads;
    case ATTN_SCALE_PER_SEQ_HEAD:
        return (uint32_t)seqs * (uint32_t)heads;
    case ATTN_SCALE_PER_TOKEN_HEAD:
        return (uint32_t)slots * (uint32_t)heads;
    default:
        return 1;
    }
}

/* Index of the scale for KV head `head` of `heads`, sequence `seq`, slot `slot`; the granularity
 * decides which of these it depends on. */
static inline int64_t attn_util_scale_at(uint32_t granularity, int32_t heads, int64_t seq,
                                         int64_t slot, int64_t head)
{
    switch (granularity) {
    case ATTN_SCALE_PER_HEAD:
        return head;
    case ATTN_SCALE_PER_SEQ_HEAD:
        return seq * heads + head;
    case ATTN_SCALE_PER_TOKEN_HEAD:
        return slot * heads + head;
    default:
        return 0;
    }
}

/* The values, on a CPU, of a role's scale with `granularity` and `count` values. Each is checked to
 * be finite and above 0, except for scales per slot, as slots may be unused. INVALID_ARGUMENT if
 * the scale is missing, has another granularity or count, or both its pointers are NULL. */
static inline attn_status attn_util_scale(const attn_forward_args *args, uint32_t role,
                                          uint32_t granularity, uint32_t count,
                                          const float **values, attn_error *error)
{
    const char *name = attn_util_role_name(role);
    const attn_scale *scale = attn_operand_scale(args, role);
    if (!scale)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s is missing", name);
    if (scale->granularity != granularity)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: granularity is %u: accepted %u", name,
                                    scale->granularity, granularity);
    if (scale->count != count)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: count is %u: accepted %u", name, scale->count,
                                    count);
    const float *given = scale->host ? scale->host : scale->device;
    if (!given)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: both pointers are NULL", name);
    for (uint32_t i = 0; i < count && granularity != ATTN_SCALE_PER_TOKEN_HEAD; i++)
        if (!(given[i] > 0) || !isfinite(given[i]))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                        "scale of %s: value %u is %s: accepted finite, above 0",
                                        name, i, attn_util_number((double)given[i]).text);
    *values = given;
    return ATTN_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_UTIL_OPERANDS_H */
