/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: from attn_forward_args to what kernels are given: everything that can be wrong with a
 * call is found here.
 */
#include "linear_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/operands.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* A call whose operands are being checked. */
typedef struct taking {
    const attn_metadata *metadata;
    const linear_group *group;
    const attn_forward_args *args;
    linear_operands *to;
    int64_t *slots;
} taking;

static void note_slots(const taking *t, const attn_tensor *pool)
{
    if (pool->shape[0] < *t->slots)
        *t->slots = pool->shape[0];
}

static attn_status take_tokens(const taking *t, attn_error *error)
{
    const linear_dims *d = &t->group->dims;
    const int64_t rows = t->metadata->plan.batch.num_tokens;
    const attn_dtype dtype = t->group->q_dtype;
    const attn_tensor *mixed = NULL, *out = NULL, *z = NULL;
    attn_util_form mixed_form = {.dtype = dtype, .ndim = 2, .shape = {0, d->channels}};
    attn_util_form z_form = {.dtype = dtype, .ndim = 3, .shape = {0, d->v_heads, d->v_dim}};
    attn_util_form out_form = z_form;
    out_form.dtype = t->group->out_dtype;
    out_form.written = 1;
    attn_status status =
        cuda_operand_rows(t->args, ATTN_ROLE_MIXED_QKV, mixed_form, rows, &mixed, error);
    if (status == ATTN_OK)
        status = cuda_operand_rows(t->args, ATTN_ROLE_OUT, out_form, rows, &out, error);
    if (status == ATTN_OK && attn_operand(t->args, ATTN_ROLE_GATE_Z))
        status = cuda_operand_rows(t->args, ATTN_ROLE_GATE_Z, z_form, rows, &z, error);
    if (status != ATTN_OK)
        return status;
    t->to->mixed = attn_util_data(mixed);
    t->to->mixed_row = cuda_stride_bytes(mixed, 0);
    t->to->out = attn_util_data(out);
    t->to->out_row = cuda_stride_bytes(out, 0);
    t->to->out_head = cuda_stride_bytes(out, 1);
    if (z) {
        t->to->z = attn_util_data(z);
        t->to->z_row = cuda_stride_bytes(z, 0);
        t->to->z_head = cuda_stride_bytes(z, 1);
    }
    if (cuda_is_aligned(mixed, 16) && cuda_is_aligned(out, 16) && (!z || cuda_is_aligned(z, 16)))
        t->to->aligned |= LINEAR_ALIGNED_ROWS;
    return ATTN_OK;
}

static attn_status take_convolution(const taking *t, attn_error *error)
{
    const linear_dims *d = &t->group->dims;
    const attn_dtype dtype = t->group->q_dtype;
    const attn_tensor *weight = NULL, *bias = NULL, *pool = NULL;
    attn_util_form weight_form = {.dtype = dtype, .ndim = 2, .shape = {d->channels, d->width}};
    attn_util_form bias_form = {.dtype = dtype, .ndim = 1, .shape = {d->channels}};
    attn_util_form pool_form = {.dtype = t->group->conv_dtype,
                                .ndim = 3,
                                .shape = {0, d->channels, d->width - 1},
                                .written = 1};
    if (d->width == 0)
        return ATTN_OK;
    attn_status status = cuda_operand(t->args, ATTN_ROLE_CONV_WEIGHT, weight_form, &weight, error);
    if (status == ATTN_OK && attn_operand(t->args, ATTN_ROLE_CONV_BIAS))
        status = cuda_operand(t->args, ATTN_ROLE_CONV_BIAS, bias_form, &bias, error);
    if (status == ATTN_OK && d->width > 1)
        status = cuda_operand_rows(t->args, ATTN_ROLE_CONV_STATE, pool_form, 1, &pool, error);
    if (status != ATTN_OK)
        return status;
    t->to->weight = attn_util_data(weight);
    t->to->weight_row = cuda_stride_bytes(weight, 0);
    t->to->bias = bias ? attn_util_data(bias) : NULL;
    if (pool) {
        note_slots(t, pool);
        t->to->conv = attn_util_data(pool);
        t->to->conv_slot = cuda_stride_bytes(pool, 0);
        t->to->conv_channel = cuda_stride_bytes(pool, 1);
    }
    return ATTN_OK;
}

/* fp32 values per head: `dim` each, in one or two dimensions; or, if `dim` is 0, one each. */
static attn_status take_values(const taking *t, uint32_t role, int64_t dim, const float **values,
                               long long *stride, attn_error *error)
{
    int64_t heads = t->group->dims.v_heads, each = dim > 0 ? dim : 1;
    const attn_tensor *given = attn_operand(t->args, role), *operand = NULL;
    attn_util_form form = {.dtype = ATTN_F32, .ndim = 1, .shape = {heads * each}};
    if (dim > 0 && given && given->ndim == 2)
        form = (attn_util_form){.dtype = ATTN_F32, .ndim = 2, .shape = {heads, dim}};
    attn_status status = cuda_operand(t->args, role, form, &operand, error);
    if (status == ATTN_OK) {
        *values = (const float *)(const void *)attn_util_data(operand);
        *stride = form.ndim == 2 ? operand->strides[0] : each;
    }
    return status;
}

static attn_status take_rows_of_gates(const taking *t, attn_error *error)
{
    const linear_dims *d = &t->group->dims;
    const int64_t rows = t->metadata->plan.batch.num_tokens;
    const int channels = d->family == LINEAR_FAMILY_KDA;
    const attn_tensor *a = NULL, *b = NULL;
    attn_util_form form = {.dtype = d->raw ? t->group->q_dtype : ATTN_F32,
                           .ndim = channels ? 3 : 2,
                           .shape = {0, d->v_heads, d->k_dim}};
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_GATE_A, form, rows, &a, error);
    form.ndim = 2;
    if (status == ATTN_OK && (!d->raw || d->family != LINEAR_FAMILY_MAMBA2))
        status = cuda_operand_rows(t->args, ATTN_ROLE_GATE_B, form, rows, &b, error);
    if (status != ATTN_OK)
        return status;
    t->to->a = attn_util_data(a);
    t->to->a_row = cuda_stride_bytes(a, 0);
    t->to->a_head = cuda_stride_bytes(a, 1);
    if (b) {
        t->to->b = attn_util_data(b);
        t->to->b_row = cuda_stride_bytes(b, 0);
    }
    return ATTN_OK;
}

static attn_status take_gates(const taking *t, attn_error *error)
{
    const linear_dims *d = &t->group->dims;
    const attn_tensor *skip = attn_operand(t->args, ATTN_ROLE_D_SKIP);
    const int lightning = d->family == LINEAR_FAMILY_LIGHTNING;
    attn_status status = ATTN_OK;
    long long one = 0;
    if (d->raw || lightning)
        status = take_values(t, ATTN_ROLE_A_LOG, 0, &t->to->a_log, &one, error);
    if (status == ATTN_OK && !lightning)
        status = take_rows_of_gates(t, error);
    if (status == ATTN_OK && !lightning && d->raw)
        status = take_values(t, ATTN_ROLE_DT_BIAS, d->family == LINEAR_FAMILY_KDA ? d->k_dim : 0,
                             &t->to->dt_bias, &t->to->dt_bias_stride, error);
    if (status != ATTN_OK || d->family != LINEAR_FAMILY_MAMBA2 || !skip)
        return status;
    t->to->skip_step = skip->ndim == 2;
    return take_values(t, ATTN_ROLE_D_SKIP, skip->ndim == 2 ? d->v_dim : 0, &t->to->skip,
                       &t->to->skip_stride, error);
}

static attn_status take_state(const taking *t, attn_error *error)
{
    const linear_dims *d = &t->group->dims;
    const attn_tensor *state = NULL;
    const int columns = d->vk ? d->k_dim : d->v_dim;
    attn_util_form form = {.dtype = t->group->state_dtype,
                           .ndim = 4,
                           .shape = {0, d->v_heads, d->vk ? d->v_dim : d->k_dim, columns},
                           .written = 1};
    attn_status status = cuda_operand_rows(t->args, ATTN_ROLE_STATE, form, 1, &state, error);
    if (status != ATTN_OK)
        return status;
    t->to->state = attn_util_data(state);
    note_slots(t, state);
    t->to->state_slot = cuda_stride_bytes(state, 0);
    t->to->state_head = cuda_stride_bytes(state, 1);
    t->to->state_row = cuda_stride_bytes(state, 2);
    const int64_t size = (int64_t)attn_dtype_size(state->dtype);
    if (columns % 4 == 0 && cuda_is_aligned(state, 4 * size))
        t->to->aligned |= LINEAR_ALIGNED_STATE;
    if (columns * size % 16 == 0 && cuda_is_aligned(state, 16))
        t->to->aligned |= LINEAR_ALIGNED_STATE_16;
    if (t->to->state_row == columns * size && cuda_is_aligned(state, 16))
        t->to->aligned |= LINEAR_ALIGNED_HEADS;
    return take_gates(t, error);
}

/* Can kernels read four channels of each operand as 8 bytes? */
static void find_fours(const taking *t)
{
    const linear_dims *d = &t->group->dims;
    linear_operands *to = t->to;
    const uint64_t rows = (uint64_t)(uintptr_t)to->mixed | (uint64_t)to->mixed_row;
    const uint64_t pool = (uint64_t)(uintptr_t)to->weight | (uint64_t)(uintptr_t)to->conv |
                          (uint64_t)(uintptr_t)to->bias | (uint64_t)to->conv_slot;
    const int taps = d->width == 4 && t->group->conv_dtype == ATTN_BF16 && to->weight_row == 8 &&
                     to->conv_channel == 6 && pool % 8 == 0;
    if (t->group->q_dtype == ATTN_BF16 && (d->k_dim | d->v_dim) % 4 == 0 && rows % 8 == 0 &&
        (d->width == 0 || taps))
        to->aligned |= LINEAR_ALIGNED_FOURS;
}

static void take_batch(const attn_metadata *metadata, const linear_group *group, linear_batch *to)
{
    const attn_batch *batch = &metadata->plan.batch;
    const attn_state_batch *slots = &metadata->slots[group->slots];
    *to =
        (linear_batch){.q_indptr = batch->mode == ATTN_MODE_DECODE ? NULL : batch->q_indptr.device,
                       .slot = slots->slot.device,
                       .dst_slot = slots->dst_slot.device,
                       .has_initial = slots->has_initial.device,
                       .snapshots = slots->snapshots.device,
                       .num_real = batch->num_real_seqs_device,
                       .counts = (const int *)(uintptr_t)metadata->plan.counts,
                       .num_seqs = batch->num_seqs,
                       .num_tokens = batch->num_tokens,
                       .num_real_seqs = batch->num_real_seqs};
}

attn_status linear_take_operands(const attn_metadata *metadata, const linear_group *group,
                                 const attn_forward_args *given, linear_call *call, int64_t *slots,
                                 attn_error *error)
{
    attn_forward_args args;
    ATTN_UTIL_READ(&args, given);
    *call = (linear_call){.dims = group->dims};
    *slots = INT32_MAX;
    const taking t = {metadata, group, &args, &call->operands, slots};
    if (args.num_operands > 0 && !args.operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    attn_status status = take_tokens(&t, error);
    if (status == ATTN_OK)
        status = take_convolution(&t, error);
    if (status == ATTN_OK && group->dims.family != LINEAR_FAMILY_SHORT_CONV)
        status = take_state(&t, error);
    take_batch(metadata, group, &call->batch);
    find_fours(&t);
    return status;
}
