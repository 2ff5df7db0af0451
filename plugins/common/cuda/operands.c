/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: tensors and scales of a forward, checked, as kernels read them.
 */
#include "plugins/common/cuda/operands.h"
#include "attn_plugin_util.h"
#include "plugins/common/cuda/save_packed.cuh"

#include <math.h>
#include <string.h>

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* Shared by the functions below. */
typedef struct taking {
    const cuda_group *group;
    const attn_util_layer *layer;
    const cuda_plan *plan;
    const attn_kv_batch *kv;
    const attn_forward_args *args;
    call_operands *to;
} taking;

attn_status cuda_operand(const attn_forward_args *args, uint32_t role, attn_util_form form,
                         const attn_tensor **operand, attn_error *error)
{
    form.device_type = ATTN_DEVICE_CUDA;
    return attn_util_operand(args, role, &form, operand, error);
}

attn_status cuda_operand_rows(const attn_forward_args *args, uint32_t role, attn_util_form form,
                              int64_t rows, const attn_tensor **operand, attn_error *error)
{
    form.shape[0] = -1;
    attn_status status = cuda_operand(args, role, form, operand, error);
    if (status == ATTN_OK && (*operand)->shape[0] < rows)
        status = FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %lld rows: accepted %lld and more",
                      attn_util_role_name(role), (long long)(*operand)->shape[0], (long long)rows);
    return status;
}

long long cuda_stride_bytes(const attn_tensor *tensor, uint32_t dimension)
{
    return tensor->strides[dimension] * (long long)attn_dtype_size(tensor->dtype);
}

int cuda_is_aligned(const attn_tensor *tensor, int64_t bytes)
{
    if ((uintptr_t)attn_util_data(tensor) % (uintptr_t)bytes != 0)
        return 0;
    for (uint32_t d = 0; d + 1 < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && cuda_stride_bytes(tensor, d) % bytes != 0)
            return 0;
    return 1;
}

/* The address of row 0, and the strides of rows and heads in bytes. */
static void *place_rows(const attn_tensor *tensor, long long *row, long long *head)
{
    *row = cuda_stride_bytes(tensor, 0);
    *head = cuda_stride_bytes(tensor, 1);
    return attn_util_data(tensor);
}

static attn_status take_queries(const taking *t, attn_error *error)
{
    const cuda_group *group = t->group;
    call_operands *to = t->to;
    const attn_tensor *q = NULL, *out = NULL, *lse = NULL;
    int64_t rows = t->plan->batch.num_tokens;
    int64_t heads = (int64_t)group->kv_heads * group->ratio;
    attn_util_form q_form = {.dtype = group->q_dtype, .ndim = 3, .shape = {0, heads, group->dim}};
    attn_util_form out_form = {
        .dtype = group->out_dtype, .ndim = 3, .shape = {0, heads, group->v_dim}, .written = 1};
    attn_util_form lse_form = {.dtype = ATTN_F32, .ndim = 2, .shape = {0, heads}, .written = 1};
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_Q, q_form, rows, &q, error);
    if (status == ATTN_OK)
        status = cuda_operand_rows(t->args, ATTN_ROLE_OUT, out_form, rows, &out, error);
    if (status == ATTN_OK && attn_operand(t->args, ATTN_ROLE_LSE))
        status = cuda_operand_rows(t->args, ATTN_ROLE_LSE, lse_form, rows, &lse, error);
    if (status != ATTN_OK)
        return status;
    to->q = place_rows(q, &to->q_row, &to->q_head);
    to->out = place_rows(out, &to->out_row, &to->out_head);
    if (lse)
        to->lse = place_rows(lse, &to->lse_row, &to->lse_head);
    to->aligned |= cuda_is_aligned(q, 16) ? CALL_ALIGNED_Q : 0;
    to->aligned |=
        cuda_is_aligned(out, 2 * (int64_t)attn_dtype_size(group->out_dtype)) ? CALL_ALIGNED_OUT : 0;
    to->aligned |= cuda_is_aligned(out, 16) ? CALL_ALIGNED_OUT_16 : 0;
    return ATTN_OK;
}

static attn_status take_new_keys(const taking *t, attn_error *error)
{
    const cuda_group *group = t->group;
    call_operands *to = t->to;
    const attn_tensor *k = NULL, *v = NULL;
    int cached = cuda_group_has_cache(group);
    int64_t rows = t->kv->kv_new_indptr.device ? 0 : t->plan->batch.num_tokens;
    attn_util_form form = {
        .dtype = group->new_dtype, .ndim = 3, .shape = {0, group->kv_heads, group->dim}};
    to->aligned |= CALL_ALIGNED_NEW;
    if (cached && !attn_operand(t->args, ATTN_ROLE_K) && !attn_operand(t->args, ATTN_ROLE_V))
        return ATTN_OK;
    if (t->layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the KV of another layer: accepted no operands k and v",
                    t->layer->layer_id);
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_K, form, rows, &k, error);
    form.shape[2] = group->v_dim;
    if (status == ATTN_OK)
        status = cuda_operand_rows(t->args, ATTN_ROLE_V, form, rows, &v, error);
    to->save = cached && t->args->flags & ATTN_FORWARD_SAVE_KV;
    if (status == ATTN_OK && to->save && !t->kv->out_cache_loc.device)
        status = FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    if (status != ATTN_OK)
        return status;
    to->k = place_rows(k, &to->k_row, &to->k_head);
    to->v = place_rows(v, &to->v_row, &to->v_head);
    if (!cuda_is_aligned(k, 16) || !cuda_is_aligned(v, 16))
        to->aligned &= ~CALL_ALIGNED_NEW;
    return ATTN_OK;
}

static attn_status get_cache(const taking *t, uint32_t role, int32_t dim, const attn_tensor **cache,
                             attn_error *error)
{
    const cuda_group *group = t->group;
    int64_t page = group->page_size, heads = group->kv_heads;
    attn_util_form form = {.dtype = group->kv_dtype,
                           .ndim = 4,
                           .shape = {0, group->hnd ? heads : page, group->hnd ? page : heads, dim},
                           .written = t->to->save};
    return cuda_operand_rows(t->args, role, form, 0, cache, error);
}

static attn_status take_caches(const taking *t, attn_error *error)
{
    const cuda_group *group = t->group;
    call_operands *to = t->to;
    const attn_tensor *k = NULL, *v = NULL;
    int token = group->hnd ? 2 : 1, head = group->hnd ? 1 : 2;
    to->aligned |= CALL_ALIGNED_CACHE;
    if (!cuda_group_has_cache(group))
        return ATTN_OK;
    attn_status status = get_cache(t, ATTN_ROLE_K_CACHE, group->dim, &k, error);
    if (status == ATTN_OK)
        status = get_cache(t, ATTN_ROLE_V_CACHE, group->v_dim, &v, error);
    if (status == ATTN_OK && k->shape[0] != v->shape[0])
        status = FAIL(error, ATTN_FIELD_OPERAND, "k_cache has %lld pages, v_cache %lld",
                      (long long)k->shape[0], (long long)v->shape[0]);
    if (status != ATTN_OK)
        return status;
    to->k_cache = attn_util_data(k);
    to->k_page = cuda_stride_bytes(k, 0);
    to->k_token = cuda_stride_bytes(k, token);
    to->k_cache_head = cuda_stride_bytes(k, head);
    to->v_cache = attn_util_data(v);
    to->v_page = cuda_stride_bytes(v, 0);
    to->v_token = cuda_stride_bytes(v, token);
    to->v_cache_head = cuda_stride_bytes(v, head);
    if (!cuda_is_aligned(k, 16) || !cuda_is_aligned(v, 16))
        to->aligned &= ~CALL_ALIGNED_CACHE;
    return ATTN_OK;
}

/* Scales on the device are read there; those on the host become part of the argument. */
attn_status cuda_scales_take(const attn_forward_args *args, uint32_t role, uint32_t granularity,
                             uint32_t count, float *values, const float **device, attn_error *error)
{
    const attn_scale *scale = args->scales ? attn_operand_scale(args, role) : NULL;
    if (!scale)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is missing", attn_util_role_name(role));
    if (scale->granularity != granularity || scale->count != count)
        return FAIL(
            error, ATTN_FIELD_SCALE, "scale of %s: granularity %u, count %u: accepted %u, %u",
            attn_util_role_name(role), scale->granularity, scale->count, granularity, count);
    *device = scale->device;
    if (scale->device)
        return ATTN_OK;
    if (!scale->host)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s: both pointers are NULL",
                    attn_util_role_name(role));
    for (uint32_t i = 0; i < count; i++)
        if (!(scale->host[i] > 0) || !isfinite(scale->host[i]))
            return FAIL(
                error, ATTN_FIELD_SCALE, "scale of %s: value %u is %s: accepted finite, above 0",
                attn_util_role_name(role), i, attn_util_number((double)scale->host[i]).text);
    memcpy(values, scale->host, count * sizeof *values);
    return ATTN_OK;
}

/* Of a cache. */
static attn_status take_scale(const taking *t, uint32_t role, float *values, const float **device,
                              attn_error *error)
{
    const uint32_t granularity = t->group->scale_granularity;
    const int per_head = granularity == ATTN_SCALE_PER_HEAD;
    return cuda_scales_take(t->args, role, granularity, per_head ? (uint32_t)t->group->kv_heads : 1,
                            values, device, error);
}

/* An fp32 value for each query head. */
static attn_status take_per_head(const taking *t, uint32_t role, const float **values,
                                 attn_error *error)
{
    const attn_tensor *operand = NULL;
    attn_util_form form = {
        .dtype = ATTN_F32, .ndim = 1, .shape = {(int64_t)t->group->kv_heads * t->group->ratio}};
    attn_status status = cuda_operand(t->args, role, form, &operand, error);
    if (status == ATTN_OK)
        *values = (const float *)(const void *)attn_util_data(operand);
    return status;
}

static attn_status take_constants(const taking *t, attn_error *error)
{
    const cuda_group *group = t->group;
    call_operands *to = t->to;
    attn_status status = ATTN_OK;
    if (cuda_is_fp8(group->kv_dtype)) {
        status = take_scale(t, ATTN_ROLE_K_CACHE, to->k_scales, &to->k_scale_device, error);
        if (status == ATTN_OK)
            status = take_scale(t, ATTN_ROLE_V_CACHE, to->v_scales, &to->v_scale_device, error);
    }
    if (status == ATTN_OK && group->flags & ATTN_GROUP_HAS_SINKS &&
        !(t->args->flags & ATTN_FORWARD_OMIT_SINK))
        status = take_per_head(t, ATTN_ROLE_SINKS, &to->sinks, error);
    if (status == ATTN_OK && group->flags & ATTN_GROUP_HAS_ALIBI)
        status = take_per_head(t, ATTN_ROLE_ALIBI_SLOPES, &to->slopes, error);
    return status;
}

attn_status cuda_operands_take(const cuda_group *group, const attn_util_layer *layer,
                               const cuda_plan *plan, const attn_kv_batch *kv,
                               const attn_forward_args *args, call_operands *to, attn_error *error)
{
    const taking t = {group, layer, plan, kv, args, to};
    memset(to, 0, sizeof *to);
    if (args->num_operands > 0 && !args->operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    attn_status status = take_queries(&t, error);
    if (status == ATTN_OK)
        status = take_new_keys(&t, error);
    if (status == ATTN_OK)
        status = take_caches(&t, error);
    return status == ATTN_OK ? take_constants(&t, error) : status;
}

/* ---- Latents --------------------------------------------------------------------------------- */

static attn_status take_new_latents(const taking *t, attn_error *error)
{
    call_operands *to = t->to;
    const attn_tensor *c_kv = NULL, *k_pe = NULL;
    int64_t rows = t->kv->kv_new_indptr.device ? 0 : t->plan->batch.num_tokens;
    attn_util_form form = {.dtype = t->group->new_dtype, .ndim = 2, .shape = {0, t->group->v_dim}};
    to->aligned |= CALL_ALIGNED_NEW;
    if (!attn_operand(t->args, ATTN_ROLE_C_KV) && !attn_operand(t->args, ATTN_ROLE_K_PE))
        return ATTN_OK;
    if (t->layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the latents of another layer: accepted no operands c_kv and "
                    "k_pe",
                    t->layer->layer_id);
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_C_KV, form, rows, &c_kv, error);
    form.shape[1] = t->group->dim - t->group->v_dim;
    if (status == ATTN_OK)
        status = cuda_operand_rows(t->args, ATTN_ROLE_K_PE, form, rows, &k_pe, error);
    to->save = (t->args->flags & ATTN_FORWARD_SAVE_KV) != 0;
    if (status == ATTN_OK && to->save && !t->kv->out_cache_loc.device)
        status = FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    if (status != ATTN_OK)
        return status;
    to->k = attn_util_data(c_kv);
    to->k_row = cuda_stride_bytes(c_kv, 0);
    to->v = attn_util_data(k_pe);
    to->v_row = cuda_stride_bytes(k_pe, 0);
    if (!cuda_is_aligned(c_kv, 16) || !cuda_is_aligned(k_pe, 16))
        to->aligned &= ~CALL_ALIGNED_NEW;
    return ATTN_OK;
}

/* Keys are rows of the cache. Their position-encoded part starts v_dim elements further; in rows of
 * bytes, after the scales. */
static attn_status take_latent_cache(const taking *t, attn_error *error)
{
    const cuda_group *group = t->group;
    call_operands *to = t->to;
    const attn_tensor *cache = NULL;
    attn_util_form form = {.dtype = group->kv_dtype,
                           .ndim = 3,
                           .shape = {0, group->page_size, group->dim},
                           .written = to->save};
    int rope = group->v_dim * (int)attn_dtype_size(group->kv_dtype);
    if (group->packed) {
        rope = packed_rope_offset(group->v_dim);
        form.dtype = ATTN_U8;
        form.shape[2] = packed_row_bytes(group->v_dim, group->dim - group->v_dim);
    }
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_LATENT_CACHE, form, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    to->k_cache = attn_util_data(cache);
    to->v_cache = (char *)attn_util_data(cache) + rope;
    to->k_page = to->v_page = cuda_stride_bytes(cache, 0);
    to->k_token = to->v_token = cuda_stride_bytes(cache, 1);
    if (cuda_is_aligned(cache, 16))
        to->aligned |= CALL_ALIGNED_CACHE;
    return ATTN_OK;
}

attn_status cuda_latents_take(const cuda_group *group, const attn_util_layer *layer,
                              const cuda_plan *plan, const attn_kv_batch *kv,
                              const attn_forward_args *args, call_operands *to, attn_error *error)
{
    const taking t = {group, layer, plan, kv, args, to};
    attn_status status = take_new_latents(&t, error);
    if (status == ATTN_OK)
        status = take_latent_cache(&t, error);
    if (status == ATTN_OK && cuda_is_fp8(group->kv_dtype) && !group->packed)
        status = take_scale(&t, ATTN_ROLE_LATENT_CACHE, to->k_scales, &to->k_scale_device, error);
    to->v_scales[0] = to->k_scales[0];
    to->v_scale_device = to->k_scale_device;
    return status;
}
