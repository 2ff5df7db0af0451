/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/operand.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/verdict.h"

#include <inttypes.h>
#include <math.h>

#define FAIL(error, field, ...) plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

attn_status operand_read_args(const attn_forward_args *given, attn_forward_args *args,
                              attn_error *error)
{
    COPY_SIZED(args, given);
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return plugin_fail(error, ATTN_CAPTURE_UNSUPPORTED,
                           "nothing can be captured on a processor");
    if (args->num_operands > 0 && !args->operands)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    if (args->num_scales > 0 && !args->scales)
        args->num_scales = 0;
    return ATTN_OK;
}

const char *operand_name(uint32_t role)
{
    static const char *const names[ATTN_ROLE_COUNT] = {
#define ROLE_NAME(name, value, text) [value] = text,
        ATTN_ROLE_MAP(ROLE_NAME)
#undef ROLE_NAME
    };
    return role < ATTN_ROLE_COUNT ? names[role] : "?";
}

static attn_status check_shape(const char *name, const attn_tensor *tensor,
                               const operand_form *form, attn_error *error)
{
    if (tensor->ndim != form->ndim)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %u dimensions: accepted %u", name,
                    tensor->ndim, form->ndim);
    for (uint32_t d = 0; d < form->ndim; d++) {
        if (tensor->shape[d] < 0 || (form->shape[d] >= 0 && tensor->shape[d] != form->shape[d]))
            return FAIL(error, ATTN_FIELD_OPERAND,
                        "operand %s: shape[%u] is %" PRId64 ": accepted %" PRId64, name, d,
                        tensor->shape[d], form->shape[d]);
        if (tensor->strides[d] < 0 || (tensor->strides[d] == 0 && tensor->shape[d] > 1))
            return FAIL(error, ATTN_FIELD_STRIDE,
                        "operand %s: strides[%u] is %" PRId64 ": accepted 1 and more", name, d,
                        tensor->strides[d]);
    }
    uint32_t last = form->ndim - 1;
    if (tensor->strides[last] != 1 && tensor->shape[last] > 1)
        return FAIL(error, ATTN_FIELD_STRIDE,
                    "operand %s: innermost stride is %" PRId64 ": accepted 1", name,
                    tensor->strides[last]);
    return ATTN_OK;
}

static attn_status check_data(const char *name, const attn_tensor *tensor, attn_error *error)
{
    uint32_t size = attn_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return ATTN_OK;
    if (!tensor->data)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s: data is NULL", name);
    if (size > 1 && (uintptr_t)operand_data(tensor) % size != 0)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s: data is not aligned to its %u bytes",
                    name, size);
    return ATTN_OK;
}

attn_status operand_get(const attn_forward_args *args, uint32_t role, const operand_form *form,
                        const attn_tensor **operand, attn_error *error)
{
    const char *name = operand_name(role);
    const attn_tensor *tensor = attn_operand(args, role);
    if (!tensor)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s is missing", name);
    if (tensor->dtype != form->dtype)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s is %s: accepted %s", name,
                    verdict_dtype_name(tensor->dtype), verdict_dtype_name(form->dtype));
    if (tensor->device_type != form->device_type)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s is on device type %d: accepted %d", name,
                    tensor->device_type, form->device_type);
    if (form->written && tensor->flags & ATTN_TENSOR_READ_ONLY)
        return FAIL(error, ATTN_FIELD_OPERAND, "operand %s is read-only", name);
    attn_status status = check_shape(name, tensor, form, error);
    if (status == ATTN_OK)
        status = check_data(name, tensor, error);
    if (status == ATTN_OK)
        *operand = tensor;
    return status;
}

attn_status operand_get_scale(const attn_forward_args *args, uint32_t role, uint32_t granularity,
                              int32_t heads, const float **values, attn_error *error)
{
    const char *name = operand_name(role);
    const attn_scale *scale = attn_operand_scale(args, role);
    uint32_t count = granularity == ATTN_SCALE_PER_HEAD ? (uint32_t)heads : 1;
    if (!scale)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is missing", name);
    if (scale->granularity != granularity)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s: granularity is %u: accepted %u", name,
                    scale->granularity, granularity);
    if (scale->count != count)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s: count is %u: accepted %u", name,
                    scale->count, count);
    const float *given = scale->host ? scale->host : scale->device;
    if (!given)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s: both pointers are NULL", name);
    for (uint32_t i = 0; i < count; i++)
        if (!(given[i] > 0) || !isfinite(given[i]))
            return FAIL(error, ATTN_FIELD_SCALE,
                        "scale of %s: value %u is %g: accepted finite, above 0", name, i,
                        (double)given[i]);
    *values = given;
    return ATTN_OK;
}
