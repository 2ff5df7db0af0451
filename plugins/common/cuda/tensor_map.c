/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_map.c: descriptors of boxes of a tensor, checked before the driver encodes them.
 */
#include "plugins/common/cuda/tensor_map.h"
#include "attn_plugin_util.h"

#include <inttypes.h>

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

static const int64_t most_elements = INT64_C(1) << 32, most_stride = INT64_C(1) << 40;

static attn_status find_type(const cuda_tensor_box *box, unsigned *type, attn_error *error)
{
    switch (box->dtype) {
    case ATTN_F32:
        *type = CUDA_TENSOR_FLOAT32;
        return ATTN_OK;
    case ATTN_F16:
        *type = CUDA_TENSOR_FLOAT16;
        return ATTN_OK;
    case ATTN_BF16:
        *type = CUDA_TENSOR_BFLOAT16;
        return ATTN_OK;
    case ATTN_FP8_E4M3:
    case ATTN_FP8_E5M2:
        *type = CUDA_TENSOR_UINT8;
        return ATTN_OK;
    default:
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s is %s: accepted f32, f16, bf16, fp8_e4m3, fp8_e5m2", box->name,
                    attn_util_dtype_name(box->dtype));
    }
}

/* Bytes, or their logarithm base 2 from `first` on as the driver numbers them. -1 = not accepted.
 */
static int number_of(uint32_t bytes, uint32_t first, uint32_t last)
{
    int number = 1;
    if (bytes == 0)
        return 0;
    for (uint32_t size = first; size <= last; size *= 2, number++)
        if (size == bytes)
            return number;
    return -1;
}

static attn_status check_dimension(const cuda_tensor_box *box, uint32_t d, attn_error *error)
{
    if (box->shape[d] < 1 || box->shape[d] > most_elements)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s: dimension %u has %" PRId64 " elements: accepted 1..%" PRId64,
                    box->name, d, box->shape[d], most_elements);
    if (d > 0 && (box->strides[d] < 0 || box->strides[d] >= most_stride || box->strides[d] % 16))
        return FAIL(error, ATTN_FIELD_STRIDE,
                    "tensor %s: stride of dimension %u is %" PRId64
                    " bytes: accepted multiples of 16 below %" PRId64,
                    box->name, d, box->strides[d], most_stride);
    if (box->box[d] < 1 || box->box[d] > 256)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s: dimension %u of a box has %u elements: accepted 1..256", box->name,
                    d, box->box[d]);
    return ATTN_OK;
}

static attn_status check_row(const cuda_tensor_box *box, attn_error *error)
{
    uint32_t bytes = box->box[0] * attn_dtype_size(box->dtype);
    if (bytes % 16 != 0)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s: a row of a box is %u bytes: accepted multiples of 16", box->name,
                    bytes);
    if (box->swizzle > 0 && bytes > box->swizzle)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s: a row of a box is %u bytes: accepted up to its swizzle, %u",
                    box->name, bytes, box->swizzle);
    return ATTN_OK;
}

static attn_status check(const cuda_tensor_box *box, attn_error *error)
{
    if (box->rank < 1 || box->rank > CUDA_TENSOR_MAX_DIMS)
        return FAIL(error, ATTN_FIELD_OPERAND, "tensor %s has %u dimensions: accepted 1..5",
                    box->name, box->rank);
    if (!box->data || (uintptr_t)box->data % 16 != 0)
        return FAIL(error, ATTN_FIELD_OPERAND, "tensor %s lies at %p: accepted multiples of 16",
                    box->name, box->data);
    if (number_of(box->swizzle, 32, 128) < 0 || number_of(box->l2, 64, 256) < 0)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "tensor %s: swizzle %u, l2 %u: accepted 0, 32, 64, 128 and 0, 64, 128, 256",
                    box->name, box->swizzle, box->l2);
    attn_status status = ATTN_OK;
    for (uint32_t d = 0; d < box->rank && status == ATTN_OK; d++)
        status = check_dimension(box, d, error);
    return status == ATTN_OK ? check_row(box, error) : status;
}

attn_status cuda_tensor_map_make(const cuda_api *cuda, const cuda_tensor_box *box,
                                 cuda_tensor_map *map, attn_error *error)
{
    static const unsigned dense[CUDA_TENSOR_MAX_DIMS] = {1, 1, 1, 1, 1};
    uint64_t shape[CUDA_TENSOR_MAX_DIMS] = {0}, strides[CUDA_TENSOR_MAX_DIMS] = {0};
    unsigned type = 0;
    cuda_tensor_map made;
    attn_status status = find_type(box, &type, error);
    if (status == ATTN_OK)
        status = check(box, error);
    if (status != ATTN_OK)
        return status;
    if (!cuda->cuTensorMapEncodeTiled)
        return attn_util_fail_field(
            error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_DEVICE_DRIVER,
            "tensor %s: this driver has no cuTensorMapEncodeTiled: accepted one of "
            "CUDA 12.0 and later",
            box->name);
    for (uint32_t d = 0; d < box->rank; d++) {
        shape[d] = (uint64_t)box->shape[d];
        if (d > 0) /* dimension 0 has none */
            strides[d - 1] = (uint64_t)box->strides[d];
    }
    int result = cuda->cuTensorMapEncodeTiled(
        &made, type, box->rank, box->data, shape, strides, box->box, dense,
        CUDA_TENSOR_INTERLEAVE_NONE, (unsigned)number_of(box->swizzle, 32, 128),
        (unsigned)number_of(box->l2, 64, 256), CUDA_TENSOR_FILL_ZERO);
    if (result != CUDA_OK)
        return cuda_fail(cuda, result, box->name, "cuTensorMapEncodeTiled", error);
    *map = made;
    return ATTN_OK;
}
