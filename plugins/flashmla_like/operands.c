/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: tensors of the absorbed form: q_nope and q_pe, c_kv and k_pe, one cache of latents.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"

#include <math.h>

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* A role's tensor of at least `rows` rows, of which dimension 0 of `form` is. */
static attn_status get(const attn_forward_args *args, uint32_t role, attn_util_form form,
                       int64_t rows, const attn_tensor **operand, attn_error *error)
{
    form.device_type = ATTN_DEVICE_CUDA;
    form.shape[0] = -1;
    attn_status status = attn_util_operand(args, role, &form, operand, error);
    if (status == ATTN_OK && (*operand)->shape[0] < rows)
        status = FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %lld rows: accepted %lld and more",
                      attn_util_role_name(role), (long long)(*operand)->shape[0], (long long)rows);
    return status;
}

static long long stride_bytes(const attn_tensor *tensor, int dimension)
{
    return tensor->strides[dimension] * (long long)attn_dtype_size(tensor->dtype);
}

/* Do all vectors begin at a multiple of `bytes`? */
static int is_aligned(const attn_tensor *tensor, int64_t bytes)
{
    if ((uintptr_t)attn_util_data(tensor) % (uintptr_t)bytes != 0)
        return 0;
    for (uint32_t d = 0; d + 1 < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && stride_bytes(tensor, (int)d) % bytes != 0)
            return 0;
    return 1;
}

static attn_status take_queries(const cuda_group *group, const attn_forward_args *args,
                                int64_t rows, mla_call *call, attn_error *error)
{
    const attn_tensor *nope = NULL, *pe = NULL;
    attn_util_form form = {.dtype = ATTN_BF16, .ndim = 3, .shape = {0, group->ratio, group->v_dim}};
    attn_status status = get(args, ATTN_ROLE_Q_NOPE, form, rows, &nope, error);
    form.shape[2] = group->dim - group->v_dim;
    if (status == ATTN_OK)
        status = get(args, ATTN_ROLE_Q_PE, form, rows, &pe, error);
    if (status != ATTN_OK)
        return status;
    call->operands.q = attn_util_data(nope);
    call->operands.q_row = stride_bytes(nope, 0);
    call->operands.q_head = stride_bytes(nope, 1);
    call->q_pe = attn_util_data(pe);
    call->q_pe_row = stride_bytes(pe, 0);
    call->q_pe_head = stride_bytes(pe, 1);
    if (is_aligned(nope, 16) && is_aligned(pe, 16))
        call->operands.aligned |= CALL_ALIGNED_Q;
    return ATTN_OK;
}

static attn_status take_outputs(const cuda_group *group, const attn_forward_args *args,
                                int64_t rows, call_operands *to, attn_error *error)
{
    const attn_tensor *out = NULL, *lse = NULL;
    attn_util_form form = {.dtype = group->out_dtype,
                           .ndim = 3,
                           .shape = {0, group->ratio, group->v_dim},
                           .written = 1};
    attn_util_form lse_form = {
        .dtype = ATTN_F32, .ndim = 2, .shape = {0, group->ratio}, .written = 1};
    attn_status status = get(args, ATTN_ROLE_OUT, form, rows, &out, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_LSE))
        status = get(args, ATTN_ROLE_LSE, lse_form, rows, &lse, error);
    if (status != ATTN_OK)
        return status;
    to->out = attn_util_data(out);
    to->out_row = stride_bytes(out, 0);
    to->out_head = stride_bytes(out, 1);
    if (is_aligned(out, 2 * (int64_t)attn_dtype_size(group->out_dtype)))
        to->aligned |= CALL_ALIGNED_OUT;
    if (is_aligned(out, 16))
        to->aligned |= CALL_ALIGNED_OUT_16;
    if (lse) {
        to->lse = (float *)(void *)attn_util_data(lse);
        to->lse_row = stride_bytes(lse, 0);
        to->lse_head = stride_bytes(lse, 1);
    }
    return ATTN_OK;
}

static attn_status take_latents(const cuda_group *group, const attn_util_layer *layer,
                                const attn_kv_batch *kv, const attn_forward_args *args,
                                int64_t rows, call_operands *to, attn_error *error)
{
    const attn_tensor *c_kv = NULL, *k_pe = NULL;
    attn_util_form form = {.dtype = ATTN_BF16, .ndim = 2, .shape = {0, group->v_dim}};
    to->aligned |= CALL_ALIGNED_NEW;
    if (!attn_operand(args, ATTN_ROLE_C_KV) && !attn_operand(args, ATTN_ROLE_K_PE))
        return ATTN_OK;
    if (layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the latents of another layer: accepted no operands c_kv and "
                    "k_pe",
                    layer->layer_id);
    attn_status status = get(args, ATTN_ROLE_C_KV, form, rows, &c_kv, error);
    form.shape[1] = group->dim - group->v_dim;
    if (status == ATTN_OK)
        status = get(args, ATTN_ROLE_K_PE, form, rows, &k_pe, error);
    to->save = (args->flags & ATTN_FORWARD_SAVE_KV) != 0;
    if (status == ATTN_OK && to->save && !kv->out_cache_loc.device)
        status = FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    if (status != ATTN_OK)
        return status;
    to->k = attn_util_data(c_kv);
    to->k_row = stride_bytes(c_kv, 0);
    to->v = attn_util_data(k_pe);
    to->v_row = stride_bytes(k_pe, 0);
    if (!is_aligned(c_kv, 16) || !is_aligned(k_pe, 16))
        to->aligned &= ~CALL_ALIGNED_NEW;
    return ATTN_OK;
}

/* Keys are rows of the cache; what is v_dim elements further on is their position-encoded part. */
static attn_status take_cache(const cuda_group *group, const attn_forward_args *args,
                              call_operands *to, attn_error *error)
{
    const attn_tensor *cache = NULL;
    attn_util_form form = {.dtype = group->kv_dtype,
                           .ndim = 3,
                           .shape = {0, group->page_size, group->dim},
                           .written = to->save};
    attn_status status = get(args, ATTN_ROLE_LATENT_CACHE, form, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    to->k_cache = attn_util_data(cache);
    to->v_cache = (char *)attn_util_data(cache) + group->v_dim * (int)attn_dtype_size(cache->dtype);
    to->k_page = to->v_page = stride_bytes(cache, 0);
    to->k_token = to->v_token = stride_bytes(cache, 1);
    if (is_aligned(cache, 16))
        to->aligned |= CALL_ALIGNED_CACHE;
    return ATTN_OK;
}

/* The scale of quantised latents: on the device it is read there, else it travels in the argument.
 */
static attn_status take_scale(const cuda_group *group, const attn_forward_args *args,
                              call_operands *to, attn_error *error)
{
    const attn_scale *scale =
        args->scales ? attn_operand_scale(args, ATTN_ROLE_LATENT_CACHE) : NULL;
    const char *name = attn_util_role_name(ATTN_ROLE_LATENT_CACHE);
    if (!cuda_is_fp8(group->kv_dtype))
        return ATTN_OK;
    if (!scale || (!scale->device && !scale->host))
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is missing", name);
    if (scale->granularity != ATTN_SCALE_PER_TENSOR || scale->count != 1)
        return FAIL(error, ATTN_FIELD_SCALE,
                    "scale of %s: granularity %u, count %u: accepted per_tensor, 1", name,
                    scale->granularity, scale->count);
    to->k_scale_device = scale->device;
    if (scale->device)
        return ATTN_OK;
    if (!(scale->host[0] > 0) || !isfinite(scale->host[0]))
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is %s: accepted finite, above 0", name,
                    attn_util_number((double)scale->host[0]).text);
    to->k_scales[0] = scale->host[0];
    return ATTN_OK;
}

static attn_status take_sinks(const cuda_group *group, const attn_forward_args *args,
                              call_operands *to, attn_error *error)
{
    const attn_tensor *sinks = NULL;
    attn_util_form form = {
        .dtype = ATTN_F32, .ndim = 1, .device_type = ATTN_DEVICE_CUDA, .shape = {group->ratio}};
    if (!(group->flags & ATTN_GROUP_HAS_SINKS) || args->flags & ATTN_FORWARD_OMIT_SINK)
        return ATTN_OK;
    attn_status status = attn_util_operand(args, ATTN_ROLE_SINKS, &form, &sinks, error);
    if (status == ATTN_OK)
        to->sinks = (const float *)(const void *)attn_util_data(sinks);
    return status;
}

attn_status fm_take_operands(const attn_metadata *metadata, uint32_t index,
                             const attn_util_layer *layer, const attn_forward_args *args,
                             mla_call *call, attn_error *error)
{
    const cuda_group *group = &metadata->instance->groups[index];
    const attn_kv_batch *kv = &metadata->plan.kv[index];
    int64_t rows = metadata->plan.batch.num_tokens;
    if (args->num_operands > 0 && !args->operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    attn_status status = take_queries(group, args, rows, call, error);
    if (status == ATTN_OK)
        status = take_outputs(group, args, rows, &call->operands, error);
    if (status == ATTN_OK)
        status = take_latents(group, layer, kv, args, kv->kv_new_indptr.device ? 0 : rows,
                              &call->operands, error);
    if (status == ATTN_OK)
        status = take_cache(group, args, &call->operands, error);
    if (status == ATTN_OK)
        status = take_scale(group, args, &call->operands, error);
    return status == ATTN_OK ? take_sinks(group, args, &call->operands, error) : status;
}
