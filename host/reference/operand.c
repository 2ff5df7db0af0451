/* SPDX-License-Identifier: Apache-2.0
 *
 * operand.c: a call's tensors, scales and KV group, looked up and checked. Errors name missing or
 * malformed parts; nothing is guessed.
 */
#include "host/reference/call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/operand_roles.h"
#include "host/base/bit_names.h"

#include <math.h>
#include <string.h>

char *reference_element(const attn_tensor *tensor, const int64_t *index, uint32_t ndim)
{
    int64_t offset = 0;
    for (uint32_t d = 0; d < ndim; d++)
        offset += index[d] * tensor->strides[d];
    return (char *)tensor->data + tensor->byte_offset +
           offset * (int64_t)attn_dtype_size(tensor->dtype);
}

static const float *scale_values(const attn_scale *scale)
{
    return scale->device ? scale->device : scale->host;
}

float reference_scale(const reference_call *call, const attn_scale *scale, int32_t s, int64_t slot,
                      int32_t kv_head)
{
    if (!scale)
        return 1;
    const int64_t heads = call->group->num_kv_heads;
    const int64_t places[ATTN_SCALE_COUNT] = {[ATTN_SCALE_PER_HEAD] = kv_head,
                                              [ATTN_SCALE_PER_SEQ_HEAD] = s * heads + kv_head,
                                              [ATTN_SCALE_PER_TOKEN_HEAD] = slot * heads + kv_head};
    return scale_values(scale)[places[scale->granularity]];
}

const int32_t *reference_i32(const attn_i32_array *array)
{
    return array->device ? array->device : array->host;
}

const int64_t *reference_i64(const attn_i64_array *array)
{
    return array->device ? array->device : array->host;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

attn_status reference_check_tensor(const attn_tensor *tensor, uint32_t role, attn_dtype dtype,
                                   uint32_t ndim, const int64_t *shape, attn_error *error)
{
    const char *name = role_name(role);
    if (!tensor)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "operand %s is missing", name);
    if (tensor->dtype != dtype)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "operand %s has dtype %s: accepted %s", name,
                         dtype_name(tensor->dtype), dtype_name(dtype));
    if (tensor->ndim != ndim)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "operand %s has %u dimensions: accepted %u",
                         name, tensor->ndim, ndim);
    for (uint32_t d = 0; d < ndim; d++)
        if (shape[d] >= 0 && tensor->shape[d] != shape[d])
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "operand %s is %lld long in dimension %u: accepted %lld", name,
                             (long long)tensor->shape[d], d, (long long)shape[d]);
    if (tensor->shape[ndim - 1] > 1 && tensor->strides[ndim - 1] != 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "operand %s has innermost stride %lld: accepted 1", name,
                         (long long)tensor->strides[ndim - 1]);
    return ATTN_OK;
}

static attn_status find_queries_and_new_keys(reference_call *call, const attn_forward_args *args,
                                             attn_error *error)
{
    const attn_layer_group *group = call->group;
    attn_dtype dtype = call->problem->q_dtype, new_dtype = attn_new_kv_dtype(call->problem);
    call->dim = group->head_dim;
    call->v_dim = group->v_head_dim;
    call->kv_heads = group->num_kv_heads;
    call->q = attn_operand(args, ATTN_ROLE_Q);
    call->k = attn_operand(args, ATTN_ROLE_K);
    call->v = attn_operand(args, ATTN_ROLE_V);
    int64_t q_shape[] = {-1, group->num_q_heads, group->head_dim};
    attn_status status = reference_check_tensor(call->q, ATTN_ROLE_Q, dtype, 3, q_shape, error);
    if (status != ATTN_OK)
        return status;
    call->num_rows = call->q->shape[0];
    if (!call->k && !call->v && group->attn_type != ATTN_TYPE_ENCODER_ONLY && !call->expanded)
        return ATTN_OK;
    int64_t k_shape[] = {-1, group->num_kv_heads, group->head_dim};
    status = reference_check_tensor(call->k, ATTN_ROLE_K, new_dtype, 3, k_shape, error);
    if (status != ATTN_OK)
        return status;
    call->has_new = 1;
    call->num_new = call->k->shape[0];
    int64_t v_shape[] = {call->num_new, group->num_kv_heads, group->v_head_dim};
    return reference_check_tensor(call->v, ATTN_ROLE_V, new_dtype, 3, v_shape, error);
}

static attn_status find_caches(reference_call *call, const attn_forward_args *args,
                               attn_error *error)
{
    const attn_layer_group *group = call->group;
    const char *layout = call->problem->kv_layout;
    int64_t page_size = call->problem->page_size, heads = group->num_kv_heads;
    if (!layout ||
        (strcmp(layout, ATTN_LAYOUT_KV_NHD) != 0 && strcmp(layout, ATTN_LAYOUT_KV_HND) != 0))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_layout %s: accepted " ATTN_LAYOUT_KV_NHD ", " ATTN_LAYOUT_KV_HND,
                         layout ? layout : "is missing");
    call->hnd = strcmp(layout, ATTN_LAYOUT_KV_HND) == 0;
    call->k_cache = attn_operand(args, ATTN_ROLE_K_CACHE);
    call->v_cache = attn_operand(args, ATTN_ROLE_V_CACHE);
    int64_t shape[] = {-1, call->hnd ? heads : page_size, call->hnd ? page_size : heads,
                       group->head_dim};
    attn_dtype dtype = call->problem->kv_dtype;
    attn_status status =
        reference_check_tensor(call->k_cache, ATTN_ROLE_K_CACHE, dtype, 4, shape, error);
    if (status != ATTN_OK)
        return status;
    shape[0] = call->k_cache->shape[0];
    shape[3] = group->v_head_dim;
    call->num_slots = shape[0] * page_size;
    return reference_check_tensor(call->v_cache, ATTN_ROLE_V_CACHE, dtype, 4, shape, error);
}

/* An fp32 vector with an entry for each query head; innermost stride 1 was checked. */
static attn_status find_per_head(const float **values, const reference_call *call,
                                 const attn_forward_args *args, uint32_t role, attn_error *error)
{
    const attn_tensor *tensor = attn_operand(args, role);
    int64_t shape[] = {call->group->num_q_heads}, zero[] = {0};
    attn_status status = reference_check_tensor(tensor, role, ATTN_F32, 1, shape, error);
    if (status == ATTN_OK)
        *values = (const float *)(const void *)reference_element(tensor, zero, 1);
    return status;
}

/* ---- Scales ---------------------------------------------------------------------------------- */

attn_status reference_find_scale(const attn_scale **scale, const reference_call *call,
                                 const attn_forward_args *args, uint32_t role, uint32_t accepted,
                                 attn_error *error)
{
    *scale = attn_operand_scale(args, role);
    if (!*scale || (!(*scale)->host && !(*scale)->device))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "the scale of %s is missing",
                         role_name(role));
    uint32_t granularity = (*scale)->granularity;
    if (granularity != accepted || granularity == ATTN_SCALE_NONE ||
        granularity >= ATTN_SCALE_COUNT)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "the scale of %s has granularity %u: accepted %u", role_name(role),
                         granularity, accepted);
    const int64_t heads = call->group->num_kv_heads;
    const int64_t counts[ATTN_SCALE_COUNT] = {1, 1, heads, call->batch->num_seqs * heads,
                                              call->num_slots * heads};
    uint32_t count = (uint32_t)counts[granularity];
    if ((*scale)->count != count)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "the scale of %s has %u values: accepted %u",
                         role_name(role), (*scale)->count, count);
    if (granularity == ATTN_SCALE_PER_TOKEN_HEAD) /* slots that are not in use have none */
        return ATTN_OK;
    for (uint32_t n = 0; n < count; n++) {
        float value = scale_values(*scale)[n];
        if (!(value > 0) || isinf(value))
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "the scale of %s has the value %g: accepted finite and above 0",
                             role_name(role), (double)value);
    }
    return ATTN_OK;
}

/* q_nope and q_pe have a scale each. */
static attn_status find_latent_query_scales(reference_call *call, const attn_forward_args *args,
                                            attn_error *error)
{
    const uint32_t granularity = call->group->input_scale_granularity;
    if (dtype_is_fp8(attn_new_kv_dtype(call->problem)) || !call->absorbed ||
        granularity != ATTN_SCALE_PER_TENSOR)
        return host_fail(error, ATTN_UNSUPPORTED,
                         "latent attention of fp8 inputs has an oracle only for queries of the "
                         "absorbed form with a scale per tensor");
    attn_status status =
        reference_find_scale(&call->q_scale, call, args, ATTN_ROLE_Q_NOPE, granularity, error);
    return status == ATTN_OK ? reference_find_scale(&call->q_pe_scale, call, args, ATTN_ROLE_Q_PE,
                                                    granularity, error)
                             : status;
}

/* Of what is fp8 and no cache. */
static attn_status find_input_scales(reference_call *call, const attn_forward_args *args,
                                     attn_error *error)
{
    const attn_problem *problem = call->problem;
    uint32_t granularity = call->group->input_scale_granularity;
    int q = dtype_is_fp8(problem->q_dtype), new_kv = dtype_is_fp8(attn_new_kv_dtype(problem));
    attn_status status = ATTN_OK;
    if ((granularity != ATTN_SCALE_NONE) != (q || new_kv) ||
        granularity >= ATTN_SCALE_PER_TOKEN_HEAD)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "input_scale_granularity %u with q in %s and new k, v in %s", granularity,
                         dtype_name(problem->q_dtype), dtype_name(attn_new_kv_dtype(problem)));
    if ((q || new_kv) && call->group->mla)
        return find_latent_query_scales(call, args, error);
    if (q)
        status = reference_find_scale(&call->q_scale, call, args, ATTN_ROLE_Q, granularity, error);
    if (status == ATTN_OK && new_kv && call->has_new)
        status =
            reference_find_scale(&call->new_k_scale, call, args, ATTN_ROLE_K, granularity, error);
    if (status == ATTN_OK && new_kv && call->has_new)
        status =
            reference_find_scale(&call->new_v_scale, call, args, ATTN_ROLE_V, granularity, error);
    return status;
}

static attn_status find_out_scale(reference_call *call, const attn_forward_args *args,
                                  attn_error *error)
{
    const attn_scale *scale = NULL;
    call->out_scale = 1;
    if (!dtype_is_fp8(call->problem->out_dtype))
        return ATTN_OK;
    attn_status status =
        reference_find_scale(&scale, call, args, ATTN_ROLE_OUT, ATTN_SCALE_PER_TENSOR, error);
    if (status == ATTN_OK)
        call->out_scale = (double)reference_scale(call, scale, 0, 0, 0);
    return status;
}

/* ---- KV group and batch ---------------------------------------------------------------------- */

static attn_status find_kv_group(reference_call *call, const reference_options *options,
                                 attn_error *error)
{
    int32_t index = call->group->kv_group;
    if (index < 0 || (uint32_t)index >= call->batch->num_kv_groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "kv_group %d: the batch has %u of them",
                         index, call->batch->num_kv_groups);
    call->kv = attn_at(call->batch->kv_groups, (uint32_t)index);
    if (call->kv->page_size != call->problem->page_size || call->kv->page_size < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "page_size of the batch's KV group %d is %d: accepted %d", index,
                         call->kv->page_size, call->problem->page_size);
    if (call->expanded) /* no key is looked up in the cache */
        return ATTN_OK;
    uint32_t forms = call->kv->index_forms;
    if (options && options->index_form)
        forms &= options->index_form;
    call->index_form = forms & -forms; /* in the order of the bits */
    if (call->index_form)
        return ATTN_OK;
    uint32_t accepted = options && options->index_form ? options->index_form : ATTN_INDEX_ALL;
    char got[64], wanted[64];
    bit_names_text(ATTN_FIELD_INDEX_FORMS, call->kv->index_forms, got, sizeof got);
    bit_names_text(ATTN_FIELD_INDEX_FORMS, accepted, wanted, sizeof wanted);
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "KV group %d has index forms %s: accepted one of %s", index, got, wanted);
}

static attn_status check_cross(const reference_call *call, attn_error *error)
{
    const attn_layer_group *group = call->group;
    if (group->window_left != -1 || group->window_right != -1 || group->attention_chunk != 0 ||
        group->flags & ATTN_GROUP_HAS_ALIBI)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "cross attention has no query position: window_left %d, window_right %d, "
                         "attention_chunk %d, ALiBi %s: accepted -1, -1, 0, no",
                         group->window_left, group->window_right, group->attention_chunk,
                         group->flags & ATTN_GROUP_HAS_ALIBI ? "yes" : "no");
    if (call->mask_kind == ATTN_MASK_QLEN || call->batch->multi_item ||
        reference_i32(&call->batch->positions))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "cross attention has no new tokens of its own: accepted no QLEN mask, no "
                         "multi_item, no positions");
    return ATTN_OK;
}

static attn_status check_mask(const reference_call *call, attn_error *error)
{
    const attn_mask *mask = call->batch->mask;
    int custom = call->mask_kind == ATTN_MASK_FULL || call->mask_kind == ATTN_MASK_QLEN;
    if (call->mask_kind >= ATTN_MASK_COUNT)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "mask kind %u: accepted 0..%d",
                         call->mask_kind, ATTN_MASK_COUNT - 1);
    if (custom && (!mask->bits || !reference_i64(&mask->indptr)))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "a custom mask needs bits and indptr");
    if (!custom && reference_i32(&call->batch->positions))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "positions are given without a custom mask");
    if (call->batch->multi_item && call->mask_kind != ATTN_MASK_LAYER)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "multi_item is given with mask kind %u: accepted %d", call->mask_kind,
                         ATTN_MASK_LAYER);
    return ATTN_OK;
}

static attn_status check_layer(const reference_call *call, int32_t layer_id, attn_error *error)
{
    for (uint32_t n = 0; n < call->group->num_layers; n++) {
        const attn_layer *layer = attn_at(call->group->layers, n);
        if (layer->layer_id != layer_id)
            continue;
        if (layer->flags & ATTN_LAYER_KV_READ_ONLY &&
            (call->expanded ? call->save_kv : call->has_new))
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "layer %d only reads its KV buffer: accepted no %s", layer_id,
                             call->expanded   ? "SAVE_KV"
                             : call->absorbed ? "c_kv and k_pe"
                                              : "k and v");
        return ATTN_OK;
    }
    return host_fail(error, ATTN_INVALID_ARGUMENT, "layer_id %d: not of this layer group",
                     layer_id);
}

static attn_status check_group(const reference_call *call, attn_error *error)
{
    const attn_layer_group *group = call->group;
    /* What rows of a sparse layer choose of keys and values is a mask here. */
    int is_unchosen =
        group->kind == ATTN_KIND_SPARSE && !group->mla && call->mask_kind != ATTN_MASK_FULL;
    if (group->kind >= ATTN_KIND_COUNT || group->kind == ATTN_KIND_LINEAR || is_unchosen)
        return host_fail(error, ATTN_UNSUPPORTED,
                         "layer kind %u has no oracle here: accepted layers that attend to keys",
                         group->kind);
    if (group->num_kv_heads < 1 || group->num_q_heads < 1 ||
        group->num_q_heads % group->num_kv_heads != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "num_q_heads %d: accepted a multiple of num_kv_heads, %d",
                         group->num_q_heads, group->num_kv_heads);
    if (group->head_dim < 1 || group->v_head_dim < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "head_dim %d, v_head_dim %d: accepted 1 and more", group->head_dim,
                         group->v_head_dim);
    if (!isfinite(group->sm_scale) || !isfinite(group->logit_cap) || group->logit_cap < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sm_scale %g, logit_cap %g: accepted finite, finite and at least 0",
                         (double)group->sm_scale, (double)group->logit_cap);
    return call->absorbed || call->expanded ? reference_mla_check(call, error) : ATTN_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static attn_status find_kv_caches(reference_call *call, const attn_forward_args *args,
                                  attn_error *error)
{
    attn_status status = find_caches(call, args, error);
    if (status == ATTN_OK && dtype_is_fp8(call->problem->kv_dtype))
        status = reference_find_scale(&call->k_scale, call, args, ATTN_ROLE_K_CACHE,
                                      call->group->kv_scale_granularity, error);
    if (status == ATTN_OK && dtype_is_fp8(call->problem->kv_dtype))
        status = reference_find_scale(&call->v_scale, call, args, ATTN_ROLE_V_CACHE,
                                      call->group->kv_scale_granularity, error);
    return status;
}

static attn_status find_cache_side(reference_call *call, const attn_forward_args *args,
                                   const reference_options *options, attn_error *error)
{
    attn_status status = find_kv_group(call, options, error);
    if (status == ATTN_OK)
        status = call->absorbed || call->expanded ? reference_mla_find_cache(call, args, error)
                                                  : find_kv_caches(call, args, error);
    if (status != ATTN_OK)
        return status;
    uint32_t unquantised = options ? options->reads_new_unquantised : 0;
    call->as_stored = !call->expanded && !(unquantised & ATTN_MODE_BIT(call->batch->mode)) &&
                      call->group->kv_scale_granularity != ATTN_SCALE_PER_TOKEN_HEAD;
    if (call->save_kv && !reference_i64(&call->kv->out_cache_loc))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "SAVE_KV without out_cache_loc of KV group %d", call->group->kv_group);
    return ATTN_OK;
}

attn_status reference_call_init(reference_call *call, const attn_problem *problem,
                                const attn_batch *batch, int32_t layer_id,
                                const attn_forward_args *args, const reference_options *options,
                                attn_error *error)
{
    *call = (reference_call){.problem = problem, .group = problem->group, .batch = batch};
    call->mask_kind = batch->mask ? batch->mask->kind : ATTN_MASK_LAYER;
    call->absorbed = reference_is_absorbed(problem, batch->mode);
    call->expanded = problem->group->kind == ATTN_KIND_MLA && !call->absorbed;
    call->index_only = problem->group->kind == ATTN_KIND_SPARSE && reference_is_index_only(args);
    attn_status status = check_group(call, error);
    if (status == ATTN_OK)
        status = call->absorbed ? reference_mla_find_absorbed(call, args, error)
                                : find_queries_and_new_keys(call, args, error);
    if (status == ATTN_OK && problem->group->kind == ATTN_KIND_SPARSE && problem->group->mla)
        status = reference_sparse_find(call, args, error);
    call->save_kv = call->has_new && args->flags & ATTN_FORWARD_SAVE_KV;
    if (status == ATTN_OK)
        status = find_input_scales(call, args, error);
    if (status == ATTN_OK)
        status = find_out_scale(call, args, error);
    if (status == ATTN_OK)
        status = check_layer(call, layer_id, error);
    if (status == ATTN_OK)
        status = check_mask(call, error);
    if (status == ATTN_OK && call->group->attn_type == ATTN_TYPE_CROSS)
        status = check_cross(call, error);
    if (status == ATTN_OK && call->group->attn_type != ATTN_TYPE_ENCODER_ONLY)
        status = find_cache_side(call, args, options, error);
    if (status == ATTN_OK && call->group->flags & ATTN_GROUP_HAS_SINKS &&
        !(args->flags & ATTN_FORWARD_OMIT_SINK))
        status = find_per_head(&call->sinks, call, args, ATTN_ROLE_SINKS, error);
    if (status == ATTN_OK && call->group->flags & ATTN_GROUP_HAS_ALIBI)
        status = find_per_head(&call->slopes, call, args, ATTN_ROLE_ALIBI_SLOPES, error);
    return status;
}
