/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.h: the tensors and scales of a forward pass, checked and converted to kernels'
 * arguments.
 */
#ifndef PLUGINS_CUDA_OPERANDS_H
#define PLUGINS_CUDA_OPERANDS_H

#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/plan.h"

/* A role's tensor on the device. INVALID_ARGUMENT with role, actual and accepted value. */
attn_status cuda_operand(const attn_forward_args *args, uint32_t role, attn_util_form form,
                         const attn_tensor **operand, attn_error *error);
/* The same, with at least `rows` rows in dimension 0, whatever `form` says there. */
attn_status cuda_operand_rows(const attn_forward_args *args, uint32_t role, attn_util_form form,
                              int64_t rows, const attn_tensor **operand, attn_error *error);

/* Bytes from one element of a dimension to the next. */
long long cuda_stride_bytes(const attn_tensor *tensor, uint32_t dimension);

/* Do all vectors of the last dimension begin at a multiple of `bytes`? */
int cuda_is_aligned(const attn_tensor *tensor, int64_t bytes);

/* All of a layer's operands for a planned batch, in `to`: q, out and (if given) lse of the batch's
 * rows; k and v, both or neither, unless the group has no cache; the caches; scales of an fp8
 * cache; sinks and slopes that the group has. INVALID_ARGUMENT with role, place, actual and
 * accepted value: dtype, device, shape, stride, too few rows, k and v for a layer that reads
 * another's KV, SAVE_KV without slots, a scale that is missing or not above 0. */
attn_status cuda_operands_take(const cuda_group *group, const attn_util_layer *layer,
                               const cuda_plan *plan, const attn_kv_batch *kv,
                               const attn_forward_args *args, call_operands *to, attn_error *error);

/* New latents and their cache, mla.latent/1 or mla.latent_fp8/1, as k, v, the caches and `save` of
 * `to`: a group of one KV head whose keys are latents, `dim` wide, and whose values are their first
 * v_dim elements. c_kv and k_pe, of the batch's rows, may both be absent. The scale of an fp8 cache
 * is that of k and of v. INVALID_ARGUMENT as above. */
attn_status cuda_latents_take(const cuda_group *group, const attn_util_layer *layer,
                              const cuda_plan *plan, const attn_kv_batch *kv,
                              const attn_forward_args *args, call_operands *to, attn_error *error);

/* The `count` scales of a role: *device is their address on the device or, if they are on the host,
 * NULL with the scales in `values`. INVALID_ARGUMENT as above. */
attn_status cuda_scales_take(const attn_forward_args *args, uint32_t role, uint32_t granularity,
                             uint32_t count, float *values, const float **device,
                             attn_error *error);

#endif /* PLUGINS_CUDA_OPERANDS_H */
