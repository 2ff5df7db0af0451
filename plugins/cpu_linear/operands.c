/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: from attn_forward_args to a linear_call: finds every fault of a call. */
#include "cpu_linear.h"

#include "attn_plugin_util.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

static attn_status find_layer(linear_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->instance;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++)
            if (instance->groups[i].layers[n] == layer_id) {
                call->group = &instance->groups[i];
                return ATTN_OK;
            }
    return FAIL(error, ATTN_FIELD_LAYER_ID, "layer_id %d is not of this instance", layer_id);
}

/* ---- One operand ----------------------------------------------------------------------------- */

static attn_status get(const attn_forward_args *args, uint32_t role, attn_util_form form,
                       const attn_tensor **operand, attn_error *error)
{
    form.device_type = ATTN_DEVICE_CPU;
    return attn_util_operand(args, role, &form, operand, error);
}

/* An operand of `rows` rows or more. */
static attn_status get_rows(const linear_call *call, const attn_forward_args *args, uint32_t role,
                            attn_util_form form, const attn_tensor **operand, attn_error *error)
{
    const attn_metadata *metadata = call->metadata;
    int64_t rows = metadata->row_end > metadata->first_row ? metadata->row_end : 0;
    form.shape[0] = -1;
    attn_status status = get(args, role, form, operand, error);
    if (status == ATTN_OK && (*operand)->shape[0] < rows)
        status = FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %lld rows: accepted %lld and more",
                      attn_util_role_name(role), (long long)(*operand)->shape[0], (long long)rows);
    return status;
}

/* A pool that has all slots of the batch. */
static attn_status get_pool(const linear_call *call, const attn_forward_args *args, uint32_t role,
                            attn_util_form form, const attn_tensor **operand, attn_error *error)
{
    form.shape[0] = -1;
    form.written = 1;
    attn_status status = get(args, role, form, operand, error);
    if (status == ATTN_OK && call->slots->most_slot >= (*operand)->shape[0])
        status = FAIL(error, ATTN_FIELD_BATCH, "state slot %d: accepted 0..%lld, the slots of %s",
                      call->slots->most_slot, (long long)(*operand)->shape[0] - 1,
                      attn_util_role_name(role));
    return status;
}

/* ---- Groups of them -------------------------------------------------------------------------- */

static attn_status get_tokens(linear_call *call, const attn_forward_args *args, attn_error *error)
{
    const linear_group *g = call->group;
    attn_util_form mixed = {.dtype = g->q_dtype, .ndim = 2, .shape = {0, g->channels}};
    attn_util_form z = {.dtype = g->q_dtype, .ndim = 3, .shape = {0, g->v_heads, g->v_dim}};
    attn_util_form out = z;
    out.dtype = g->out_dtype;
    out.written = 1;
    attn_status status = get_rows(call, args, ATTN_ROLE_MIXED_QKV, mixed, &call->mixed, error);
    if (status == ATTN_OK)
        status = get_rows(call, args, ATTN_ROLE_OUT, out, &call->out, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_GATE_Z))
        status = get_rows(call, args, ATTN_ROLE_GATE_Z, z, &call->z, error);
    return status;
}

static attn_status get_convolution(linear_call *call, const attn_forward_args *args,
                                   attn_error *error)
{
    const linear_group *g = call->group;
    attn_util_form weight = {.dtype = g->q_dtype, .ndim = 2, .shape = {g->channels, g->width}};
    attn_util_form bias = {.dtype = g->q_dtype, .ndim = 1, .shape = {g->channels}};
    attn_util_form pool = {
        .dtype = g->conv_dtype, .ndim = 3, .shape = {0, g->channels, g->width - 1}};
    const attn_tensor *biases = NULL;
    if (g->width == 0)
        return ATTN_OK;
    attn_status status = get(args, ATTN_ROLE_CONV_WEIGHT, weight, &call->weight, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_CONV_BIAS))
        status = get(args, ATTN_ROLE_CONV_BIAS, bias, &biases, error);
    if (status == ATTN_OK && g->width > 1)
        status = get_pool(call, args, ATTN_ROLE_CONV_STATE, pool, &call->conv_state, error);
    call->bias = biases ? attn_util_data(biases) : NULL;
    return status;
}

/* fp32 values of a head: `dim` each, flat or not; or, where that is 0, one each, flat. */
static attn_status get_values(const linear_call *call, const attn_forward_args *args, uint32_t role,
                              int64_t dim, const float **values, int64_t *stride, attn_error *error)
{
    int64_t heads = call->group->v_heads, each = dim > 0 ? dim : 1;
    const attn_tensor *given = attn_operand(args, role), *operand = NULL;
    attn_util_form form = {.dtype = ATTN_F32, .ndim = 1, .shape = {heads * each}};
    if (dim > 0 && given && given->ndim == 2)
        form = (attn_util_form){.dtype = ATTN_F32, .ndim = 2, .shape = {heads, dim}};
    attn_status status = get(args, role, form, &operand, error);
    if (status == ATTN_OK) {
        *values = (const float *)(const void *)attn_util_data(operand);
        *stride = form.ndim == 2 ? operand->strides[0] : each;
    }
    return status;
}

static attn_status get_gates(linear_call *call, const attn_forward_args *args, attn_error *error)
{
    const linear_group *g = call->group;
    attn_status status = ATTN_OK;
    int64_t one = 0;
    int lightning = g->family == ATTN_LINEAR_LIGHTNING, mamba2 = g->family == ATTN_LINEAR_MAMBA2;
    attn_util_form gate = {.dtype = g->raw ? g->q_dtype : ATTN_F32,
                           .ndim = g->vector ? 3 : 2,
                           .shape = {0, g->v_heads, g->k_dim}};
    if (g->raw || lightning)
        status = get_values(call, args, ATTN_ROLE_A_LOG, 0, &call->a_log, &one, error);
    if (status != ATTN_OK || lightning)
        return status;
    status = get_rows(call, args, ATTN_ROLE_GATE_A, gate, &call->a, error);
    gate.ndim = 2;
    if (status == ATTN_OK && (!g->raw || !mamba2))
        status = get_rows(call, args, ATTN_ROLE_GATE_B, gate, &call->b, error);
    if (status == ATTN_OK && g->raw)
        status = get_values(call, args, ATTN_ROLE_DT_BIAS, g->vector ? g->k_dim : 0, &call->dt_bias,
                            &call->dt_bias_stride, error);
    const attn_tensor *skip = attn_operand(args, ATTN_ROLE_D_SKIP);
    if (status != ATTN_OK || !mamba2 || !skip)
        return status;
    call->skip_step = skip->ndim == 2;
    return get_values(call, args, ATTN_ROLE_D_SKIP, skip->ndim == 2 ? g->v_dim : 0, &call->skip,
                      &call->skip_stride, error);
}

static attn_status get_state(linear_call *call, const attn_forward_args *args, attn_error *error)
{
    const linear_group *g = call->group;
    attn_util_form form = {
        .dtype = g->state_dtype,
        .ndim = 4,
        .shape = {0, g->v_heads, g->vk ? g->v_dim : g->k_dim, g->vk ? g->k_dim : g->v_dim}};
    attn_status status = get_pool(call, args, ATTN_ROLE_STATE, form, &call->state, error);
    return status == ATTN_OK ? get_gates(call, args, error) : status;
}

attn_status linear_call_init(linear_call *call, attn_metadata *metadata, int32_t layer_id,
                             const attn_forward_args *given, attn_error *error)
{
    attn_forward_args args;
    *call = (linear_call){.instance = metadata->instance, .metadata = metadata};
    attn_status status = attn_util_read_args(given, &args, error);
    if (status == ATTN_OK)
        status = find_layer(call, layer_id, error);
    if (status == ATTN_OK) {
        call->slots = &metadata->slots[call->group->slots];
        status = get_tokens(call, &args, error);
    }
    if (status == ATTN_OK)
        status = get_convolution(call, &args, error);
    if (status == ATTN_OK && call->group->family != ATTN_LINEAR_SHORT_CONV)
        status = get_state(call, &args, error);
    return status;
}
