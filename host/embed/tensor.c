/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.c: helpers for engines: views, and merging partial results on the host.
 */
#include "attnhost.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

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

/* ---- Merge ----------------------------------------------------------------------------------- */

static bool is_mergeable(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* NULL, or what does not fit. `like` has the shape to compare with in its first `ndim` extents. */
static const char *find_misfit(const attn_tensor *tensor, const attn_tensor *like, uint32_t ndim)
{
    if (tensor->device_type != ATTN_DEVICE_CPU)
        return "not in host memory";
    if (tensor->ndim != ndim || memcmp(tensor->shape, like->shape, ndim * sizeof(int64_t)) != 0)
        return "of another shape than out_a";
    if (ndim == 3 ? !is_mergeable(tensor->dtype) : tensor->dtype != ATTN_F32)
        return ndim == 3 ? "neither fp32 nor fp16 nor bf16" : "not fp32";
    return NULL;
}

static void *element(const attn_tensor *tensor, int64_t token, int64_t head)
{
    int64_t offset = token * tensor->strides[0] + head * tensor->strides[1];
    return (char *)tensor->data + tensor->byte_offset +
           offset * (int64_t)attn_dtype_size(tensor->dtype);
}

/* Weights of two partial results, and the LSE of both together. */
static void weigh(double lse_a, double lse_b, double *weight_a, double *weight_b, double *lse)
{
    double largest = lse_a > lse_b ? lse_a : lse_b;
    *weight_a = *weight_b = 0;
    *lse = -(double)INFINITY;
    if (isnan(lse_a) || isnan(lse_b)) {
        *weight_a = *weight_b = *lse = (double)NAN;
    } else if (largest != -(double)INFINITY) {
        *lse = largest + log(exp(lse_a - largest) + exp(lse_b - largest));
        *weight_a = exp(lse_a - *lse);
        *weight_b = exp(lse_b - *lse);
    }
}

/* A part that saw no key has weight 0, and may hold anything in its output. */
static double scaled(double weight, double value)
{
    return weight == 0 ? 0 : weight * value;
}

static void merge_row(const attn_tensor *const out[3], const attn_tensor *const lse[3],
                      int64_t token, int64_t head)
{
    double weight_a, weight_b, merged;
    double lse_a = dtype_load(ATTN_F32, element(lse[0], token, head), 0);
    double lse_b = dtype_load(ATTN_F32, element(lse[1], token, head), 0);
    weigh(lse_a, lse_b, &weight_a, &weight_b, &merged);
    for (int64_t d = 0; d < out[0]->shape[2]; d++) {
        double a = dtype_load(out[0]->dtype, element(out[0], token, head), d * out[0]->strides[2]);
        double b = dtype_load(out[1]->dtype, element(out[1], token, head), d * out[1]->strides[2]);
        dtype_store(out[2]->dtype, element(out[2], token, head), d * out[2]->strides[2],
                    scaled(weight_a, a) + scaled(weight_b, b));
    }
    dtype_store(ATTN_F32, element(lse[2], token, head), 0, merged);
}

attn_status attnhost_merge_states(const attn_tensor *out_a, const attn_tensor *lse_a,
                                  const attn_tensor *out_b, const attn_tensor *lse_b,
                                  const attn_tensor *out, const attn_tensor *lse, attn_error *error)
{
    static const char *const names[] = {"out_a", "out_b", "out", "lse_a", "lse_b", "lse"};
    const attn_tensor *const all[] = {out_a, out_b, out, lse_a, lse_b, lse};
    for (uint32_t t = 0; t < 6; t++) {
        const char *misfit = find_misfit(all[t], out_a, t < 3 ? 3 : 2);
        if (misfit)
            return host_fail(error, ATTN_INVALID_ARGUMENT, "merge: %s is %s", names[t], misfit);
    }
    for (int64_t token = 0; token < out_a->shape[0]; token++)
        for (int64_t head = 0; head < out_a->shape[1]; head++)
            merge_row(all, all + 3, token, head);
    return ATTN_OK;
}
