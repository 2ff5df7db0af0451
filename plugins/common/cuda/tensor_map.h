/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_map.h: descriptors with which kernels of sm_90 and later copy boxes of a tensor (TMA).
 *
 * A descriptor is made on the host, without the device, from the tensor's address and the shape of
 * a box; a kernel takes it by value. A launch in a graph cannot change it, so it is for tensors at
 * fixed addresses: KV caches, scratch.
 */
#ifndef PLUGINS_CUDA_TENSOR_MAP_H
#define PLUGINS_CUDA_TENSOR_MAP_H

#include "plugins/common/cuda/cuda_api.h"

enum { CUDA_TENSOR_MAX_DIMS = 5 };

/* Dimension 0 is the innermost, with contiguous elements: the reverse order of attn_tensor. */
typedef struct cuda_tensor_box {
    const char *name;                      /* of the tensor, for messages */
    void *data;                            /* device; a multiple of 16 */
    attn_dtype dtype;                      /* of 1, 2 or 4 bytes; fp8 is copied as bytes */
    uint32_t rank;                         /* 1..5 */
    int64_t shape[CUDA_TENSOR_MAX_DIMS];   /* elements, 1..2^32; what lies beyond reads as 0 */
    int64_t strides[CUDA_TENSOR_MAX_DIMS]; /* bytes, from dimension 1 on; multiples of 16, < 2^40 */
    uint32_t box[CUDA_TENSOR_MAX_DIMS];    /* elements, 1..256; the row of dimension 0 is a multiple
                                            * of 16 bytes */
    uint32_t swizzle; /* bytes: 0 = none, 32, 64, 128, which a row of the box does not exceed */
    uint32_t l2;      /* bytes fetched into the L2 cache at a time: 0 = as needed, 64, 128, 256 */
} cuda_tensor_box;

/* Makes a descriptor. INVALID_ARGUMENT, with name, dimension, value and accepted values;
 * DEPENDENCY_MISSING for a driver older than CUDA 12.0. *map is set only on success. */
attn_status cuda_tensor_map_make(const cuda_api *cuda, const cuda_tensor_box *box,
                                 cuda_tensor_map *map, attn_error *error);

#endif /* PLUGINS_CUDA_TENSOR_MAP_H */
