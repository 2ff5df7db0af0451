/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: operands of latent attention in either form.
 */
#include "mla.h"

#include "attn_plugin_util.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* Absorbed: q_nope as wide as a latent, and q_pe; expanded: q of both parts. */
static attn_status get_queries(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    int64_t rows = call->plan->row_end, heads = (int64_t)group->kv_heads * group->ratio;
    attn_util_form q = {.dtype = group->q_dtype, .ndim = 3, .shape = {0, heads, group->dim}};
    attn_util_form pe = q;
    if (group->mla.expanded)
        return cpu_get_rows(args, ATTN_ROLE_Q, q, rows, &call->q, error);
    q.shape[2] = group->mla.lora;
    pe.shape[2] = group->mla.rope;
    attn_status status = cpu_get_rows(args, ATTN_ROLE_Q_NOPE, q, rows, &call->q, error);
    if (status == ATTN_OK)
        status = cpu_get_rows(args, ATTN_ROLE_Q_PE, pe, rows, &call->mla.q_pe, error);
    if (status == ATTN_OK)
        status = cpu_get_input_scale(call, args, ATTN_ROLE_Q_NOPE, group->q_dtype, &call->q_scales,
                                     error);
    if (status == ATTN_OK)
        status = cpu_get_input_scale(call, args, ATTN_ROLE_Q_PE, group->q_dtype,
                                     &call->mla.q_pe_scales, error);
    return status;
}

/* c_kv and k_pe: the new keys of the absorbed form, and what either form saves. */
static attn_status get_latents(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    attn_util_form c_kv = {.dtype = group->new_dtype, .ndim = 2, .shape = {0, group->mla.lora}};
    attn_util_form k_pe = {.dtype = group->new_dtype, .ndim = 2, .shape = {0, group->mla.rope}};
    attn_status status =
        cpu_get_rows(args, ATTN_ROLE_C_KV, c_kv, call->plan->new_end, &call->mla.c_kv, error);
    if (status == ATTN_OK)
        status =
            cpu_get_rows(args, ATTN_ROLE_K_PE, k_pe, call->plan->new_end, &call->mla.k_pe, error);
    return status;
}

static attn_status get_absorbed_keys(layer_call *call, const cpu_layer *layer,
                                     const attn_forward_args *args, attn_error *error)
{
    if (!attn_operand(args, ATTN_ROLE_C_KV) && !attn_operand(args, ATTN_ROLE_K_PE))
        return ATTN_OK;
    if (layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the latents of another layer: accepted no operands c_kv and "
                    "k_pe",
                    layer->layer_id);
    call->save = (args->flags & ATTN_FORWARD_SAVE_KV) != 0;
    attn_status status = get_latents(call, args, error);
    call->k = call->mla.c_kv;
    call->v = call->mla.k_pe;
    return status == ATTN_OK ? cpu_check_new_keys(call, error) : status;
}

static attn_status get_expanded_keys(layer_call *call, const cpu_layer *layer,
                                     const attn_forward_args *args, attn_error *error)
{
    call->save = (args->flags & ATTN_FORWARD_SAVE_KV) != 0;
    if (layer->kv_read_only && call->save)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the KV of another layer: accepted no SAVE_KV", layer->layer_id);
    attn_status status = cpu_get_new_kv(call, args, error);
    if (status == ATTN_OK && call->save)
        status = get_latents(call, args, error);
    return status == ATTN_OK ? cpu_check_new_keys(call, error) : status;
}

/* It is read in the absorbed form alone. Keys and values lie in the same rows. */
static attn_status get_cache(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const cpu_group *group = call->group;
    attn_util_form form = {.dtype = group->mla.packed ? ATTN_U8 : group->kv_dtype,
                           .ndim = 3,
                           .shape = {0, group->page_size,
                                     group->mla.packed
                                         ? latent_row_bytes(group->mla.lora, group->mla.rope)
                                         : group->mla.lora + group->mla.rope},
                           .written = call->save};
    int64_t element = attn_dtype_size(form.dtype);
    cache_view *view = &call->k_cache;
    const attn_tensor *cache = NULL;
    attn_status status = ATTN_OK;
    int needed = !call->k || call->save || call->plan->reads_prefix;
    if (!call->attends && !call->mla.c_kv) /* nothing is read or written */
        return ATTN_OK;
    if (needed)
        status = cpu_get_rows(args, ATTN_ROLE_LATENT_CACHE, form, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    if (cache)
        *view = (cache_view){.data = attn_util_data(cache),
                             .page = cache->strides[0] * element,
                             .token = cache->strides[1] * element,
                             .num_pages = cache->shape[0]};
    if (group->fp8 && !group->mla.packed && (group->mla.absorbed || needed))
        status = attn_util_scale(args, ATTN_ROLE_LATENT_CACHE, group->scale_granularity, 1u,
                                 &view->scales, error);
    call->v_cache = *view;
    return status;
}

attn_status mla_get_operands(layer_call *call, const cpu_layer *layer,
                             const attn_forward_args *args, attn_error *error)
{
    attn_status status = call->attends ? get_queries(call, args, error) : ATTN_OK;
    if (status == ATTN_OK && call->attends)
        status = cpu_get_outputs(call, args, error);
    if (status == ATTN_OK)
        status = call->group->mla.absorbed ? get_absorbed_keys(call, layer, args, error)
                                           : get_expanded_keys(call, layer, args, error);
    return status == ATTN_OK ? get_cache(call, args, error) : status;
}
