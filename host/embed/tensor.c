/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.c: a helper for engines: views of their memory.
 */
#include "attnhost.h"

#include "host/base/error.h"

#include <stdbool.h>

/* ---- Views ----------------------------------------------------------------------------------- */

static uint32_t alignment_of(const void *data)
{
    uint64_t address = (uintptr_t)data;
    uint64_t lowest_bit = address & (~address + 1);
    return lowest_bit == 0 || lowest_bit > 4096 ? 4096u : (uint32_t)lowest_bit;
}

attn_status attnhost_tensor_init(attn_tensor *tensor, void *data, int32_t device_type,
                                 int32_t device_id, attn_dtype dtype, uint32_t ndim,
                                 const int64_t *shape, const int64_t *strides, attn_error *error)
{
    if (ndim < 1 || ndim > ATTN_MAX_DIMS)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "tensor of %u dimensions: accepted: 1..%u",
                         ndim, ATTN_MAX_DIMS);
    if (attn_dtype_size(dtype) == 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "tensor of type 0x%x: accepted: whole bytes",
                         dtype);
    attn_tensor made = {.struct_size = sizeof made,
                        .data = data,
                        .device_type = device_type,
                        .device_id = device_id,
                        .dtype = dtype,
                        .ndim = ndim,
                        .alignment = alignment_of(data)};
    int64_t dense = 1;
    bool empty = false;
    for (uint32_t d = ndim; d-- > 0;) {
        made.shape[d] = shape[d];
        made.strides[d] = strides ? strides[d] : dense;
        if (shape[d] < 0 || made.strides[d] < 0)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "tensor dimension %u has extent %lld and stride %lld; accepted: 0 or "
                             "more",
                             d, (long long)shape[d], (long long)made.strides[d]);
        empty = empty || shape[d] == 0;
        if (__builtin_mul_overflow(dense, shape[d] ? shape[d] : 1, &dense))
            return host_fail(error, ATTN_INVALID_ARGUMENT, "tensor has more than 2^63 elements");
    }
    if (!data && !empty)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "tensor: data is NULL");
    *tensor = made;
    return ATTN_OK;
}
