/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_call.c: the tensors of a linear layer's call, its rows and its slots. Errors name missing
 * or malformed parts; nothing is guessed.
 */
#include "host/reference/linear_call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

double linear_load(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2)
{
    int64_t index[] = {i0, i1, i2};
    return dtype_load(tensor->dtype,
                      reference_element(tensor, index, tensor->ndim < 3 ? tensor->ndim : 3), 0);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* An operand of a role, checked; one that is optional may be absent. */
static attn_status find(const attn_forward_args *args, uint32_t role, attn_dtype dtype,
                        uint32_t ndim, const int64_t *shape, int optional,
                        const attn_tensor **tensor, attn_error *error)
{
    *tensor = attn_operand(args, role);
    if (!*tensor && optional)
        return ATTN_OK;
    return reference_check_tensor(*tensor, role, dtype, ndim, shape, error);
}

#define FIND(role, dtype, ndim, optional, to, ...)                                                 \
    do {                                                                                           \
        const int64_t shape_[] = {__VA_ARGS__};                                                    \
        attn_status status_ =                                                                      \
            find(args, ATTN_ROLE_##role, dtype, ndim, shape_, optional, &call->to, error);         \
        if (status_ != ATTN_OK)                                                                    \
            return status_;                                                                        \
    } while (0)

static attn_status find_gates(linear_call *call, const attn_forward_args *args, attn_error *error)
{
    uint32_t family = call->dims->family;
    int kda = family == ATTN_LINEAR_KDA;
    int64_t rows = call->num_rows, heads = call->v_heads;
    attn_dtype given = call->raw ? call->problem->q_dtype : ATTN_F32;
    if (family == ATTN_LINEAR_SHORT_CONV)
        return ATTN_OK;
    if (call->raw || family == ATTN_LINEAR_LIGHTNING)
        FIND(A_LOG, ATTN_F32, 1, 0, a_log, heads);
    if (family == ATTN_LINEAR_LIGHTNING)
        return ATTN_OK;
    FIND(GATE_A, given, kda ? 3 : 2, 0, a, rows, heads, call->k_dim);
    if (!call->raw || family != ATTN_LINEAR_MAMBA2)
        FIND(GATE_B, given, 2, 0, b, rows, heads);
    const attn_tensor *bias = attn_operand(args, ATTN_ROLE_DT_BIAS);
    if (call->raw && kda && bias && bias->ndim == 1)
        FIND(DT_BIAS, ATTN_F32, 1, 0, dt_bias, heads * call->k_dim);
    else if (call->raw)
        FIND(DT_BIAS, ATTN_F32, kda ? 2 : 1, 0, dt_bias, heads, call->k_dim);
    const attn_tensor *skip = attn_operand(args, ATTN_ROLE_D_SKIP);
    if (family == ATTN_LINEAR_MAMBA2 && skip)
        FIND(D_SKIP, ATTN_F32, skip->ndim == 2 ? 2 : 1, 0, skip, heads, call->v_dim);
    return ATTN_OK;
}

static attn_status find_operands(linear_call *call, const attn_forward_args *args,
                                 attn_error *error)
{
    const attn_linear_dims *dims = call->dims;
    attn_dtype dtype = call->problem->q_dtype;
    FIND(MIXED_QKV, dtype, 2, 0, mixed, -1, call->layer.channels);
    call->num_rows = call->mixed->shape[0];
    FIND(GATE_Z, dtype, 3, 1, z, call->num_rows, call->v_heads, call->v_dim);
    if (dims->conv_width > 0) {
        FIND(CONV_WEIGHT, dtype, 2, 0, weight, call->layer.channels, dims->conv_width);
        FIND(CONV_BIAS, dtype, 1, 1, bias, call->layer.channels);
    }
    if (call->layer.taps > 0)
        FIND(CONV_STATE, dims->conv_dtype, 3, 0, conv_state, -1, call->layer.channels,
             call->layer.taps);
    if (dims->family != ATTN_LINEAR_SHORT_CONV)
        FIND(STATE, dims->state_dtype, 4, 0, state, -1, call->v_heads,
             call->vk ? call->v_dim : call->k_dim, call->vk ? call->k_dim : call->v_dim);
    return find_gates(call, args, error);
}

static attn_status check_layout(linear_call *call, attn_error *error)
{
    const char *layout = call->problem->state_layout;
    call->vk = layout && strcmp(layout, ATTN_LAYOUT_STATE_SSM_VK) == 0;
    if (!call->vk && (!layout || strcmp(layout, ATTN_LAYOUT_STATE_SSM_KV) != 0) &&
        call->dims->family != ATTN_LINEAR_SHORT_CONV)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "state_layout %s: accepted " ATTN_LAYOUT_STATE_SSM_KV
                         ", " ATTN_LAYOUT_STATE_SSM_VK,
                         layout ? layout : "is missing");
    return ATTN_OK;
}

static int has_layer(const attn_layer_group *group, int32_t layer_id)
{
    for (uint32_t n = 0; n < group->num_layers; n++)
        if (((const attn_layer *)attn_at(group->layers, n))->layer_id == layer_id)
            return 1;
    return 0;
}

static attn_status find_state_group(linear_call *call, attn_error *error)
{
    const attn_batch *batch = call->batch;
    int32_t index = call->group->state_group;
    if (index < 0 || (uint32_t)index >= batch->num_state_groups || !batch->state_groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "state_group %d: the batch has %u of them",
                         index, batch->num_state_groups);
    call->slots = attn_at(batch->state_groups, (uint32_t)index);
    return reference_i32(&call->slots->slot)
               ? ATTN_OK
               : host_fail(error, ATTN_INVALID_ARGUMENT, "state group %d has no slot", index);
}

attn_status linear_call_init(linear_call *call, const attn_problem *problem,
                             const attn_batch *batch, int32_t layer_id,
                             const attn_forward_args *args, attn_error *error)
{
    const attn_linear_dims *dims = problem->group->linear;
    *call = (linear_call){.problem = problem,
                          .group = problem->group,
                          .dims = dims,
                          .batch = batch,
                          .num_seqs = batch->mode == ATTN_MODE_IDLE ? 0 : batch->num_seqs};
    attn_status status = reference_linear_layer_init(&call->layer, problem->group, problem->q_dtype,
                                                     problem->out_dtype, error);
    if (status != ATTN_OK)
        return status;
    status = find_state_group(call, error);
    if (status != ATTN_OK)
        return status;
    if (!has_layer(problem->group, layer_id))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "layer_id %d: not of this layer group",
                         layer_id);
    call->k_heads = dims->num_k_heads;
    call->v_heads = dims->num_v_heads;
    call->k_dim = dims->head_k_dim;
    call->v_dim = dims->head_v_dim;
    call->raw = (dims->flags & ATTN_LINEAR_RAW_GATES) != 0;
    status = check_layout(call, error);
    return status == ATTN_OK ? find_operands(call, args, error) : status;
}

/* ---- Sequences ------------------------------------------------------------------------------- */

static int within_pools(const linear_call *call, int64_t slot)
{
    return slot >= 0 && (!call->state || slot < call->state->shape[0]) &&
           (!call->conv_state || slot < call->conv_state->shape[0]);
}

int32_t linear_snapshot(const linear_call *call, int64_t row)
{
    const int32_t *snapshots = reference_i32(&call->slots->snapshots);
    return snapshots && snapshots[row] > 0 ? snapshots[row] : 0;
}

static attn_status find_rows(linear_sequence *sequence, const linear_call *call, attn_error *error)
{
    const attn_batch *batch = call->batch;
    const int32_t *indptr = reference_i32(&batch->q_indptr);
    int decode = batch->mode == ATTN_MODE_DECODE;
    int32_t s = sequence->index;
    if (!decode && !indptr)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "the batch has no q_indptr");
    sequence->first_row = decode ? s : indptr[s];
    sequence->num_rows = decode ? 1 : (int64_t)indptr[s + 1] - indptr[s];
    if (sequence->first_row < 0 || sequence->num_rows < 0 ||
        sequence->first_row + sequence->num_rows > call->num_rows)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d has row %lld and the %lld after it; mixed_qkv has %lld rows",
                         s, (long long)sequence->first_row, (long long)sequence->num_rows - 1,
                         (long long)call->num_rows);
    return ATTN_OK;
}

attn_status linear_sequence_init(linear_sequence *sequence, const linear_call *call, int32_t s,
                                 attn_error *error)
{
    const int32_t *slot = reference_i32(&call->slots->slot);
    const int32_t *dst = reference_i32(&call->slots->dst_slot);
    const int32_t *initial = reference_i32(&call->slots->has_initial);
    *sequence = (linear_sequence){.index = s, .real = s < reference_num_real_seqs(call->batch)};
    attn_status status = find_rows(sequence, call, error);
    if (status != ATTN_OK || !sequence->real)
        return status;
    sequence->slot = !initial || initial[s] ? slot[s] : 0;
    sequence->dst = dst ? dst[s] : slot[s];
    int good = within_pools(call, sequence->slot) && within_pools(call, sequence->dst);
    for (int64_t t = 0; t < sequence->num_rows; t++)
        good &= within_pools(call, linear_snapshot(call, sequence->first_row + t));
    if (!good)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d: slot %d, dst_slot %d, or a snapshot, is not in the pool", s,
                         sequence->slot, sequence->dst);
    return ATTN_OK;
}

/* ---- Operands in fp64 ------------------------------------------------------------------------ */

/* Elements of a row of a row operand, or of all of a constant; 0 = there is no such operand. */
static int64_t elements_of(const attn_tensor *tensor, uint32_t from)
{
    int64_t count = tensor != NULL;
    for (uint32_t d = from; tensor && d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

/* All elements of rows [first, first + count) of a tensor; returns where the next ones go. */
static double *load_rows(const attn_tensor *tensor, int64_t first, int64_t count, double *to)
{
    int64_t inner[] = {tensor->ndim > 1 ? tensor->shape[1] : 1,
                       tensor->ndim > 2 ? tensor->shape[2] : 1};
    for (int64_t t = first; t < first + count; t++)
        for (int64_t i = 0; i < inner[0]; i++)
            for (int64_t j = 0; j < inner[1]; j++)
                *to++ = linear_load(tensor, t, i, j);
    return to;
}

/* A constant after the others; NULL if there is none. */
static const double *load_constant(const attn_tensor *tensor, double **next)
{
    const double *loaded = *next;
    if (!tensor)
        return NULL;
    *next = load_rows(tensor, 0, tensor->shape[0], *next);
    return loaded;
}

/* One value for a head is one for each of its elements. */
static const double *load_skip(const linear_call *call, double **next)
{
    const double *loaded = *next;
    if (!call->skip)
        return NULL;
    for (int32_t h = 0; h < call->v_heads; h++)
        for (int32_t j = 0; j < call->v_dim; j++)
            *(*next)++ = linear_load(call->skip, h, j, 0);
    return loaded;
}

attn_status linear_constants_init(linear_call *call, double **memory, attn_error *error)
{
    reference_linear_layer *layer = &call->layer;
    int64_t count = elements_of(call->weight, 0) + elements_of(call->bias, 0) +
                    elements_of(call->a_log, 0) + elements_of(call->dt_bias, 0) +
                    (int64_t)call->v_heads * call->v_dim;
    double *next = *memory = malloc((size_t)count * sizeof *next);
    if (!next)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for constants");
    layer->weight = load_constant(call->weight, &next);
    layer->bias = load_constant(call->bias, &next);
    layer->a_log = load_constant(call->a_log, &next);
    layer->dt_bias = load_constant(call->dt_bias, &next);
    layer->skip = load_skip(call, &next);
    return ATTN_OK;
}

int64_t linear_rows_size(const linear_call *call, int64_t count)
{
    return count * (elements_of(call->mixed, 1) + elements_of(call->a, 1) +
                    elements_of(call->b, 1) + elements_of(call->z, 1));
}

reference_linear_rows linear_rows_load(const linear_call *call, const linear_sequence *sequence,
                                       double *memory)
{
    reference_linear_rows rows = {.count = sequence->num_rows};
    const attn_tensor *const tensors[] = {call->mixed, call->a, call->b, call->z};
    const double **const loaded[] = {&rows.mixed, &rows.a, &rows.b, &rows.z};
    for (int n = 0; n < 4; n++) {
        if (!tensors[n])
            continue;
        *loaded[n] = memory;
        memory = load_rows(tensors[n], sequence->first_row, rows.count, memory);
    }
    return rows;
}

void linear_replay_load(reference_linear_replay *replay, const linear_call *call, int32_t slot)
{
    int32_t total = replay->channels.total;
    reference_linear_replay_reset(replay);
    for (int32_t h = 0; slot && call->state && h < replay->num_heads; h++)
        for (int32_t i = 0; i < call->k_dim; i++)
            for (int32_t j = 0; j < call->v_dim; j++) {
                int64_t index[] = {slot, replay->first_head + h, call->vk ? j : i,
                                   call->vk ? i : j};
                int64_t n = ((int64_t)h * call->k_dim + i) * replay->stride + j;
                replay->truth[n] =
                    dtype_load(call->state->dtype, reference_element(call->state, index, 4), 0);
                replay->naive[n] = (float)replay->truth[n];
            }
    for (int32_t n = 0; slot && n < call->layer.taps; n++)
        for (int32_t c = 0; c < total; c++)
            replay->inputs[(int64_t)n * total + c] = linear_load(
                call->conv_state, slot, reference_linear_channel(&replay->channels, c), n);
}

reference_linear_rows linear_rows_part(const linear_call *call, const reference_linear_rows *rows,
                                       int64_t first, int64_t count)
{
    return (reference_linear_rows){.count = count,
                                   .mixed = rows->mixed + first * elements_of(call->mixed, 1),
                                   .a = rows->a ? rows->a + first * elements_of(call->a, 1) : NULL,
                                   .b = rows->b ? rows->b + first * elements_of(call->b, 1) : NULL,
                                   .z = rows->z ? rows->z + first * elements_of(call->z, 1) : NULL};
}
