/* SPDX-License-Identifier: Apache-2.0
 *
 * merge_kernels.cu: the kernels of attnhost_merge(), in fp32. They are C that a test compiles for
 * the processor as well (portable.h).
 */
#include "host/embed/kernels/merge_launch.h"
#include "host/base/portable.h"

#include <math.h>

/* ---- Elements -------------------------------------------------------------------------------- */

union merge_pun {
    float value;
    uint32_t bits;
};

PORTABLE float merge_from_bits(uint32_t bits)
{
    union merge_pun pun;
    pun.bits = bits;
    return pun.value;
}

PORTABLE uint32_t merge_bits(float value)
{
    union merge_pun pun;
    pun.value = value;
    return pun.bits;
}

PORTABLE float merge_from_f16(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) { /* subnormal: units of 2^-24 */
        float magnitude = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    return merge_from_bits(sign | exponent << 23 | fraction << 13);
}

/* To nearest, ties to even, as all of these. */
PORTABLE uint16_t merge_to_f16(float value)
{
    uint32_t bits = merge_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* subnormal: the sum's last place is 2^-24 */
        return (uint16_t)(sign | (merge_bits(merge_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    magnitude += 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - (112u << 23)) >> 13);
}

PORTABLE uint16_t merge_to_bf16(float value)
{
    uint32_t bits = merge_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

PORTABLE float merge_load(const struct merge_tensor *tensor, int64_t index)
{
    if (tensor->dtype == ATTN_F32)
        return *DEVICE_AT((const float *)tensor->data + index);
    uint32_t bits = *DEVICE_AT((const uint16_t *)tensor->data + index);
    return tensor->dtype == ATTN_F16 ? merge_from_f16(bits) : merge_from_bits(bits << 16);
}

PORTABLE void merge_store(const struct merge_tensor *tensor, int64_t index, float value)
{
    if (tensor->dtype == ATTN_F32)
        *DEVICE_AT((float *)tensor->data + index) = value;
    else
        *DEVICE_AT((uint16_t *)tensor->data + index) =
            tensor->dtype == ATTN_F16 ? merge_to_f16(value) : merge_to_bf16(value);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Where a row's first element is. */
PORTABLE int64_t merge_place(const struct merge_launch *work, const struct merge_tensor *tensor,
                             int64_t row)
{
    int64_t token = row / work->num_heads, head = row - token * work->num_heads;
    return token * tensor->strides[0] + head * tensor->strides[1];
}

/* The weight of each part of a row, and the LSE of all of them. A NaN makes all of it NaN. */
PORTABLE float merge_weigh(const struct merge_launch *work, int64_t row, float *weights)
{
    float largest = -INFINITY, total = 0;
    for (uint32_t p = 0; p < work->num_parts; p++) {
        const struct merge_tensor *lse = &work->lses[p];
        weights[p] = merge_load(lse, merge_place(work, lse, row));
        largest = weights[p] > largest ? weights[p] : largest;
        total += weights[p] != weights[p] ? weights[p] : 0;
    }
    for (uint32_t p = 0; p < work->num_parts; p++) {
        weights[p] = largest > -INFINITY ? expf(weights[p] - largest) : total;
        total += weights[p];
    }
    for (uint32_t p = 0; p < work->num_parts; p++)
        weights[p] = total > 0 ? weights[p] / total : total;
    return largest > -INFINITY ? largest + logf(total) : total != total ? total : -INFINITY;
}

KERNEL merge_out(struct merge_launch work)
{
    int64_t row = blockIdx.x;
    float weights[MERGE_MAX_PARTS];
    merge_weigh(&work, row, weights);
    for (int64_t d = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; d < work.dim;
         d += (int64_t)gridDim.y * blockDim.x) {
        float sum = 0;
        for (uint32_t p = 0; p < work.num_parts; p++) {
            const struct merge_tensor *out = &work.outs[p];
            if (weights[p] != 0) /* a part that saw no key may hold anything */
                sum += weights[p] *
                       merge_load(out, merge_place(&work, out, row) + d * out->strides[2]);
        }
        merge_store(&work.out, merge_place(&work, &work.out, row) + d * work.out.strides[2], sum);
    }
}

KERNEL merge_lse(struct merge_launch work)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float weights[MERGE_MAX_PARTS];
    if (row < work.num_rows)
        merge_store(&work.lse, merge_place(&work, &work.lse, row),
                    merge_weigh(&work, row, weights));
}
