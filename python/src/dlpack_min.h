/* SPDX-License-Identifier: Apache-2.0
 *
 * dlpack_min.h: as much of DLPack 1.3 as is read here. Its structs are fixed within major
 * version 1.
 */
#ifndef ATTNHOST_DLPACK_MIN_H
#define ATTNHOST_DLPACK_MIN_H

#include <stdint.h>

typedef struct DLTensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code; /* DLDataType; attn_dtype is the same four bytes */
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* elements; NULL = dense */
    uint64_t byte_offset;
} DLTensor;

/* In a capsule "dltensor". */
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

#define DLPACK_FLAG_READ_ONLY 1u

/* In a capsule "dltensor_versioned". */
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* In a capsule "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of a tensor's type:
 * the same without a call of Python, a capsule or an allocation. */
typedef struct DLPackExchangeAPI {
    DLPackVersion version;
    struct DLPackExchangeAPI *prev_api;
    void (*managed_tensor_allocator)(void);
    void (*managed_tensor_from_py_object_no_sync)(void);
    void (*managed_tensor_to_py_object_no_sync)(void);
    int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out); /* may be NULL */
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **stream);
} DLPackExchangeAPI;

#endif /* ATTNHOST_DLPACK_MIN_H */
