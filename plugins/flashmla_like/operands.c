/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: tensors of the absorbed form: q_nope and q_pe, sinks, outputs; latents are
 * cuda_latents_take()'s.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/operands.h"

/* e4m3 queries have one scale for q_nope and one for q_pe. */
static attn_status take_query_scales(const attn_forward_args *args, mla_call *call,
                                     attn_error *error)
{
    attn_status status = cuda_scales_take(args, ATTN_ROLE_Q_NOPE, ATTN_SCALE_PER_TENSOR, 1,
                                          &call->q_scale, &call->q_scale_device, error);
    return status == ATTN_OK ? cuda_scales_take(args, ATTN_ROLE_Q_PE, ATTN_SCALE_PER_TENSOR, 1,
                                                &call->q_pe_scale, &call->q_pe_scale_device, error)
                             : status;
}

static attn_status take_queries(const cuda_group *group, const attn_forward_args *args,
                                int64_t rows, mla_call *call, attn_error *error)
{
    const attn_tensor *nope = NULL, *pe = NULL;
    attn_util_form form = {
        .dtype = group->q_dtype, .ndim = 3, .shape = {0, group->ratio, group->v_dim}};
    attn_status status = cuda_operand_rows(args, ATTN_ROLE_Q_NOPE, form, rows, &nope, error);
    form.shape[2] = group->dim - group->v_dim;
    if (status == ATTN_OK)
        status = cuda_operand_rows(args, ATTN_ROLE_Q_PE, form, rows, &pe, error);
    if (status != ATTN_OK)
        return status;
    call->operands.q = attn_util_data(nope);
    call->operands.q_row = cuda_stride_bytes(nope, 0);
    call->operands.q_head = cuda_stride_bytes(nope, 1);
    call->q_pe = attn_util_data(pe);
    call->q_pe_row = cuda_stride_bytes(pe, 0);
    call->q_pe_head = cuda_stride_bytes(pe, 1);
    if (cuda_is_aligned(nope, 16) && cuda_is_aligned(pe, 16))
        call->operands.aligned |= CALL_ALIGNED_Q;
    return cuda_is_fp8(group->q_dtype) ? take_query_scales(args, call, error) : ATTN_OK;
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
    attn_status status = cuda_operand_rows(args, ATTN_ROLE_OUT, form, rows, &out, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_LSE))
        status = cuda_operand_rows(args, ATTN_ROLE_LSE, lse_form, rows, &lse, error);
    if (status != ATTN_OK)
        return status;
    to->out = attn_util_data(out);
    to->out_row = cuda_stride_bytes(out, 0);
    to->out_head = cuda_stride_bytes(out, 1);
    if (cuda_is_aligned(out, 2 * (int64_t)attn_dtype_size(group->out_dtype)))
        to->aligned |= CALL_ALIGNED_OUT;
    if (cuda_is_aligned(out, 16))
        to->aligned |= CALL_ALIGNED_OUT_16;
    if (lse) {
        to->lse = (float *)(void *)attn_util_data(lse);
        to->lse_row = cuda_stride_bytes(lse, 0);
        to->lse_head = cuda_stride_bytes(lse, 1);
    }
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
        status = cuda_latents_take(group, layer, &metadata->plan, kv, args, &call->operands, error);
    return status == ATTN_OK ? take_sinks(group, args, &call->operands, error) : status;
}
