/* SPDX-License-Identifier: Apache-2.0
 *
 * operand.h: checks of forward arguments, with the role's name in every message.
 */
#ifndef PLUGINS_OPERAND_H
#define PLUGINS_OPERAND_H

#include "attn_batch.h"

/* What an operand has to look like. An extent of -1 takes any. */
typedef struct operand_form {
    attn_dtype dtype;
    int32_t device_type; /* ATTN_DEVICE_* */
    uint32_t ndim;
    int64_t shape[ATTN_MAX_DIMS];
    int written; /* 1 = must not be READ_ONLY */
} operand_form;

/* The arguments of a forward on a processor, in a struct of ours. CAPTURE_UNSUPPORTED for one that
 * is to be captured, INVALID_ARGUMENT without the operands that are counted. */
attn_status operand_read_args(const attn_forward_args *given, attn_forward_args *args,
                              attn_error *error);

/* The name of a role; "?" beyond those of these headers. */
const char *operand_name(uint32_t role);

/* The operand of `role`, checked against `form`: dtype, device, number of dimensions, extents,
 * innermost stride 1, data present and aligned to its elements. INVALID_ARGUMENT, with the role's
 * name, if it is absent or looks otherwise. *operand is set on success alone. */
attn_status operand_get(const attn_forward_args *args, uint32_t role, const operand_form *form,
                        const attn_tensor **operand, attn_error *error);

/* The scale of a role of `granularity` with `heads` KV heads: its values on the host, each checked
 * to be finite and above 0. INVALID_ARGUMENT if it is missing, of another granularity or count, or
 * has no value that this process can read. */
attn_status operand_get_scale(const attn_forward_args *args, uint32_t role, uint32_t granularity,
                              int32_t heads, const float **values, attn_error *error);

/* Address of the first element. */
static inline char *operand_data(const attn_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

#endif /* PLUGINS_OPERAND_H */
