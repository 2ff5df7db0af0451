/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: from attn_forward_args to a layer_call: finds every fault of a call except invalid
 * slots, which are found when they are used. */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

static attn_status find_layer(attn_metadata *metadata, int32_t layer_id, layer_call *call,
                              const cpu_layer **layer, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++) {
            if (instance->groups[i].layers[n].layer_id != layer_id ||
                !(instance->groups[i].modes & ATTN_MODE_BIT(metadata->batch.mode)))
                continue;
            *layer = &instance->groups[i].layers[n];
            call->group = &instance->groups[i];
            call->plan = &metadata->plans[i];
            call->capacity = &metadata->capacities[i];
            return ATTN_OK;
        }
    return FAIL(error, ATTN_FIELD_LAYER_ID, "layer_id %d is not of this instance", layer_id);
}

attn_status cpu_get_rows(const attn_forward_args *args, uint32_t role, attn_util_form form,
                         int64_t rows, const attn_tensor **operand, attn_error *error)
{
    form.device_type = ATTN_DEVICE_CPU;
    form.shape[0] = -1;
    attn_status status = attn_util_operand(args, role, &form, operand, error);
    if (status == ATTN_OK && (*operand)->shape[0] < rows)
        status = FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %lld rows: accepted %lld and more",
                      attn_util_role_name(role), (long long)(*operand)->shape[0], (long long)rows);
    return status;
}

attn_status cpu_get_input_scale(const layer_call *call, const attn_forward_args *args,
                                uint32_t role, attn_dtype dtype, const float **scales,
                                attn_error *error)
{
    const cpu_group *group = call->group;
    const uint32_t granularity = group->input_granularity;
    if (dtype != ATTN_FP8_E4M3 && dtype != ATTN_FP8_E5M2)
        return ATTN_OK;
    uint32_t count =
        attn_util_scale_count(granularity, group->kv_heads, call->metadata->batch.num_seqs, 0);
    return attn_util_scale(args, role, granularity, count, scales, error);
}

static attn_status get_queries(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    attn_util_form q = {.dtype = group->q_dtype,
                        .ndim = 3,
                        .shape = {0, (int64_t)group->kv_heads * group->ratio, group->dim}};
    attn_status status = cpu_get_rows(args, ATTN_ROLE_Q, q, call->plan->row_end, &call->q, error);
    if (status == ATTN_OK)
        status =
            cpu_get_input_scale(call, args, ATTN_ROLE_Q, group->q_dtype, &call->q_scales, error);
    return status;
}

attn_status cpu_get_outputs(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    int64_t rows = call->plan->row_end, heads = (int64_t)group->kv_heads * group->ratio;
    attn_util_form out = {
        .dtype = group->out_dtype, .ndim = 3, .shape = {0, heads, group->v_dim}, .written = 1};
    attn_util_form lse = {.dtype = ATTN_F32, .ndim = 2, .shape = {0, heads}, .written = 1};
    attn_status status = cpu_get_rows(args, ATTN_ROLE_OUT, out, rows, &call->out, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_LSE))
        status = cpu_get_rows(args, ATTN_ROLE_LSE, lse, rows, &call->lse, error);
    if (status == ATTN_OK && group->fp8_out) {
        const float *scale = NULL;
        status = attn_util_scale(args, ATTN_ROLE_OUT, ATTN_SCALE_PER_TENSOR, 1, &scale, error);
        call->out_scale = status == ATTN_OK ? *scale : 0;
    }
    return status;
}

attn_status cpu_check_new_keys(const layer_call *call, attn_error *error)
{
    const group_plan *plan = call->plan;
    if (plan->short_seq >= 0)
        return FAIL(error, ATTN_FIELD_BATCH, "sequence %d has %d keys, %d of them new",
                    plan->short_seq, plan->sequences[plan->short_seq].kv_len,
                    plan->sequences[plan->short_seq].num_new);
    if (call->save && plan->new_end > plan->new_first && !plan->kv.out_cache_loc.device)
        return FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc");
    return ATTN_OK;
}

attn_status cpu_get_new_kv(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    attn_util_form k = {
        .dtype = group->new_dtype, .ndim = 3, .shape = {0, group->kv_heads, group->dim}};
    attn_util_form v = k;
    v.shape[2] = group->v_dim;
    attn_status status = cpu_get_rows(args, ATTN_ROLE_K, k, call->plan->new_end, &call->k, error);
    if (status == ATTN_OK)
        status = cpu_get_rows(args, ATTN_ROLE_V, v, call->plan->new_end, &call->v, error);
    if (status == ATTN_OK)
        status = cpu_get_input_scale(call, args, ATTN_ROLE_K, group->new_dtype, &call->new_k_scales,
                                     error);
    if (status == ATTN_OK)
        status = cpu_get_input_scale(call, args, ATTN_ROLE_V, group->new_dtype, &call->new_v_scales,
                                     error);
    return status;
}

static attn_status get_new_keys(layer_call *call, const cpu_layer *layer,
                                const attn_forward_args *args, attn_error *error)
{
    int own = call->group->attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (!own && !attn_operand(args, ATTN_ROLE_K) && !attn_operand(args, ATTN_ROLE_V))
        return ATTN_OK;
    call->save = !own && (args->flags & ATTN_FORWARD_SAVE_KV) != 0;
    if (layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the KV of another layer: accepted no operands k and v",
                    layer->layer_id);
    attn_status status = cpu_get_new_kv(call, args, error);
    return status == ATTN_OK ? cpu_check_new_keys(call, error) : status;
}

static attn_status get_cache(layer_call *call, const attn_forward_args *args, uint32_t role,
                             int32_t dim, cache_view *view, attn_error *error)
{
    const cpu_group *group = call->group;
    int64_t page = group->page_size, heads = group->kv_heads;
    int64_t element = attn_dtype_size(group->kv_dtype);
    attn_util_form form = {.dtype = group->kv_dtype,
                           .ndim = 4,
                           .shape = {0, group->hnd ? heads : page, group->hnd ? page : heads, dim},
                           .written = call->save};
    const attn_tensor *cache = NULL;
    attn_status status = cpu_get_rows(args, role, form, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    view->data = attn_util_data(cache);
    view->num_pages = cache->shape[0];
    view->page = cache->strides[0] * element;
    view->token = cache->strides[group->hnd ? 2 : 1] * element;
    view->head = cache->strides[group->hnd ? 1 : 2] * element;
    return ATTN_OK;
}

/* A cache that is not there has no slots with scales either. */
static attn_status get_scale(const layer_call *call, const attn_forward_args *args, uint32_t role,
                             cache_view *view, attn_error *error)
{
    const cpu_group *group = call->group;
    uint32_t granularity = group->scale_granularity;
    if (granularity == ATTN_SCALE_PER_TOKEN_HEAD && !view->data)
        return ATTN_OK;
    uint32_t count =
        attn_util_scale_count(granularity, group->kv_heads, call->metadata->batch.num_seqs,
                              view->num_pages * group->page_size);
    return attn_util_scale(args, role, granularity, count, &view->scales, error);
}

static attn_status get_caches(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    attn_status status = ATTN_OK;
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY)
        return ATTN_OK;
    if (!call->k || call->save || call->plan->reads_prefix) {
        status = get_cache(call, args, ATTN_ROLE_K_CACHE, group->dim, &call->k_cache, error);
        if (status == ATTN_OK)
            status = get_cache(call, args, ATTN_ROLE_V_CACHE, group->v_dim, &call->v_cache, error);
    }
    if (status == ATTN_OK && call->k_cache.num_pages != call->v_cache.num_pages)
        status = FAIL(error, ATTN_FIELD_OPERAND, "k_cache has %lld pages, v_cache %lld",
                      (long long)call->k_cache.num_pages, (long long)call->v_cache.num_pages);
    if (status == ATTN_OK && group->fp8)
        status = get_scale(call, args, ATTN_ROLE_K_CACHE, &call->k_cache, error);
    if (status == ATTN_OK && group->fp8)
        status = get_scale(call, args, ATTN_ROLE_V_CACHE, &call->v_cache, error);
    return status;
}

/* An fp32 value for each query head. */
static attn_status get_per_head(const layer_call *call, const attn_forward_args *args,
                                uint32_t role, const float **values, attn_error *error)
{
    const attn_tensor *operand = NULL;
    attn_util_form form = {.dtype = ATTN_F32,
                           .device_type = ATTN_DEVICE_CPU,
                           .ndim = 1,
                           .shape = {(int64_t)call->group->kv_heads * call->group->ratio}};
    attn_status status = attn_util_operand(args, role, &form, &operand, error);
    if (status == ATTN_OK)
        *values = (const float *)(const void *)attn_util_data(operand);
    return status;
}

static attn_status get_operands(layer_call *call, const cpu_layer *layer,
                                const attn_forward_args *args, attn_error *error)
{
    attn_status status = get_queries(call, args, error);
    if (status == ATTN_OK)
        status = cpu_get_outputs(call, args, error);
    if (status == ATTN_OK)
        status = get_new_keys(call, layer, args, error);
    if (status == ATTN_OK)
        status = get_caches(call, args, error);
    return status;
}

attn_status cpu_call_init(layer_call *call, attn_metadata *metadata, int32_t layer_id,
                          const attn_forward_args *given, attn_error *error)
{
    const cpu_layer *layer = NULL;
    attn_forward_args args;
    *call = (layer_call){
        .instance = metadata->instance, .metadata = metadata, .attends = 1, .fault_seq = -1};
    attn_status status = attn_util_read_args(given, &args, error);
    if (status == ATTN_OK)
        status = find_layer(metadata, layer_id, call, &layer, error);
    if (status == ATTN_OK)
        status = call->group->sparse.top_k > 0 ? sparse_get_operands(call, layer, &args, error)
                 : call->group->mla.lora > 0   ? mla_get_operands(call, layer, &args, error)
                                               : get_operands(call, layer, &args, error);
    if (status == ATTN_OK && call->attends && call->group->has_sinks &&
        !(args.flags & ATTN_FORWARD_OMIT_SINK))
        status = get_per_head(call, &args, ATTN_ROLE_SINKS, &call->sinks, error);
    if (status == ATTN_OK && call->group->rule.has_alibi)
        status = get_per_head(call, &args, ATTN_ROLE_ALIBI_SLOPES, &call->slopes, error);
    return status;
}
