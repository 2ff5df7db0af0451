/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_types.h: status codes, errors, data types, devices and tensors.
 *
 * Every other ABI header uses these types. Nothing here needs linking; both sides use the inline
 * helpers at the end.
 *
 * Rules that hold for every struct of the ABI (docs/ABI.md, group STRUCT):
 *   - the first member is `struct_size`: the side that allocates the struct sets it to its own
 *     sizeof, and the other side accesses no byte at or beyond it;
 *   - members are only ever appended; zero in an appended member means the behaviour before it
 *     existed;
 *   - integers have a fixed width, padding is explicit, there is no bool, enum, long or bit-field;
 *   - an array of structs is walked by the struct_size of its first element (attn_at()); the side
 *     that allocates the array sets struct_size in every element.
 *
 * Thread tags, as in CLAP: the last line of a function's comment says who may call it and when.
 *   [any-thread]       any thread, at any time, concurrently with everything
 *   [main-thread]      one thread at a time in the whole plugin
 *   [instance-thread]  one thread at a time for one instance (and all that was made from it)
 *   & !capturing       not while the stream is being captured into a graph
 */
#ifndef ATTN_TYPES_H
#define ATTN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version --------------------------------------------------------------------------------- */

/* The ABI may change until 1.0; CHANGELOG.md lists each change. A host accepts only plugins of its
 * own 0.x. */
#define ATTN_ABI_MAJOR 0u
#define ATTN_ABI_MINOR 2u

/* ---- Status ---------------------------------------------------------------------------------- */

/* Coarse, stable result codes. Negative values are internal to the host and never cross the ABI; a
 * value not listed is treated as ATTN_INTERNAL. */
typedef int32_t attn_status;

/* X(name, value, meaning) */
#define ATTN_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(INVALID_ARGUMENT, 1, "an argument is missing, malformed or inconsistent")                    \
    X(UNSUPPORTED, 2, "well formed, but not supported by this backend")                            \
    X(INCOMPATIBLE_VERSION, 3, "no ABI major that both sides support")                             \
    X(BAD_STATE, 4, "the current state does not allow this call")                                  \
    X(OUT_OF_HOST_MEMORY, 5, "host memory is exhausted")                                           \
    X(OUT_OF_DEVICE_MEMORY, 6, "device memory is exhausted")                                       \
    X(BUFFER_TOO_SMALL, 7, "a caller's buffer is too small; attn_error.needed holds the size")     \
    X(CAPTURE_UNSUPPORTED, 8, "this cannot be captured into a graph")                              \
    X(CONFIG_ERROR, 9, "an option's value is unknown, mistyped or out of range")                   \
    X(DEPENDENCY_MISSING, 10, "a driver, library, kernel or device generation is missing")         \
    X(CHILD_FAILED, 11, "a child backend failed; the message names it")                            \
    X(DEVICE_LOST, 12, "the device or its context is beyond repair; nothing on it can be used")    \
    X(TIMEOUT, 13, "a time limit was reached")                                                     \
    X(INTERNAL, 14, "a defect of the callee")

enum attn_status_code {
#define ATTN_STATUS_ENUM(name, value, meaning) ATTN_##name = value,
    ATTN_STATUS_MAP(ATTN_STATUS_ENUM)
#undef ATTN_STATUS_ENUM
        ATTN_STATUS_COUNT = 15
};

/* Receives the reason of a failure. The caller owns the struct and the text buffer.
 *
 * A callee that fails sets `code` to its return value and writes a NUL-terminated UTF-8 message,
 * truncated to `capacity` bytes at a character boundary; with capacity 0 or message NULL it writes
 * no text. On success it does not touch the struct. Every function that takes an attn_error accepts
 * NULL. */
typedef struct attn_error {
    uint32_t struct_size;
    int32_t code;      /* attn_status */
    uint32_t field;    /* ATTN_FIELD_* of the offending field, 0 = none (attn_problem.h) */
    uint32_t capacity; /* bytes of `message`, the NUL included */
    char *message;     /* caller's; NULL = no text wanted */
    uint64_t needed;   /* with BUFFER_TOO_SMALL: bytes required */
} attn_error;

/* ---- Data types ------------------------------------------------------------------------------ */

/* A DLPack data type in one word: code, bits and lanes as DLDataType holds them on a little-endian
 * machine. Source: DLPack 1.1, dlpack.h. */
typedef uint32_t attn_dtype;

#define ATTN_DTYPE(code, bits) ((attn_dtype)(code) | (attn_dtype)(bits) << 8 | (attn_dtype)1u << 16)

/* The values of ATTN_DTYPE(), written as numbers so that binding generators for other languages can
 * read them without expanding casts or macros. */
#define ATTN_DTYPE_NONE 0u
#define ATTN_I32        0x12000u
#define ATTN_I64        0x14000u
#define ATTN_U8         0x10801u
#define ATTN_U16        0x11001u
#define ATTN_F16        0x11002u
#define ATTN_F32        0x12002u
#define ATTN_F64        0x14002u
#define ATTN_BF16       0x11004u
#define ATTN_FP8_E4M3   0x1080au /* OCP FP8 e4m3fn: no infinity, largest finite 448 */
#define ATTN_FP8_E5M2   0x1080cu /* OCP FP8 e5m2: infinities, largest finite 57344 */

/* ---- Devices --------------------------------------------------------------------------------- */

/* All DLPack device types, and the meaning of an attn_stream on each. A host may support fewer than
 * a backend does; it names those it supports. "Memory only" types are not devices that a backend
 * can run on. Source: DLPack 1.1, dlpack.h. X(NAME, value, "name in texts") */
#define ATTN_DEVICE_MAP(X)                                                                         \
    X(CPU, 1, "cpu")   /* NULL: a call is complete when it returns */                              \
    X(CUDA, 2, "cuda") /* CUstream of the instance's device; NULL (the legacy stream) is */        \
                       /* allowed, but the host never passes it */                                 \
    X(CUDA_HOST, 3, "cuda_host")        /* memory alone: pinned */                                 \
    X(OPENCL, 4, "opencl")              /* cl_command_queue, in order */                           \
    X(VULKAN, 7, "vulkan")              /* VkQueue */                                              \
    X(METAL, 8, "metal")                /* id<MTLCommandQueue>, bridged without ownership */       \
    X(VPI, 9, "vpi")                    /* NULL, as on the CPU: a simulator */                     \
    X(ROCM, 10, "rocm")                 /* hipStream_t of the instance's device, as CUDA's */      \
    X(ROCM_HOST, 11, "rocm_host")       /* memory alone: pinned */                                 \
    X(EXT_DEV, 12, "ext_dev")           /* the stream of its runtime; on Ascend aclrtStream */     \
    X(CUDA_MANAGED, 13, "cuda_managed") /* memory alone: managed */                                \
    X(ONEAPI, 14, "oneapi")             /* sycl::queue *, in order */                              \
    X(WEBGPU, 15, "webgpu")             /* WGPUQueue */                                            \
    X(HEXAGON, 16, "hexagon")           /* NULL, as on the CPU */                                  \
    X(MAIA, 17, "maia")                 /* the stream of its runtime */                            \
    X(TRN, 18, "trn")                   /* the stream of its runtime: Trainium */

enum attn_device_type {
#define ATTN_DEVICE_ENUM(name, value, text) ATTN_DEVICE_##name = value,
    ATTN_DEVICE_MAP(ATTN_DEVICE_ENUM)
#undef ATTN_DEVICE_ENUM
        ATTN_DEVICE_COUNT = 19
};

/* The stream that work is enqueued on: see ATTN_DEVICE_MAP. Borrowed; valid until it has completed
 * the last call that received it. */
typedef void *attn_stream;

/* ---- Tensors --------------------------------------------------------------------------------- */

#define ATTN_MAX_DIMS 6u

/* attn_tensor.flags */
enum attn_tensor_flag { ATTN_TENSOR_READ_ONLY = 1 << 0 };

/* A borrowed, strided view modelled on DLPack's DLTensor. Element (i0, i1, ...) lies at
 * (char *)data + byte_offset + sizeof(dtype) * (i0 * strides[0] + i1 * strides[1] + ...).
 *
 * Shape and strides are always present for the first `ndim` dimensions. A stride is the distance
 * between neighbours in elements; it may be 0 only where the dimension is 0 or 1 long, and is never
 * negative. The innermost stride is 1 wherever this ABI names a layout. The memory belongs to the
 * side that made the view, and stays valid until the stream has completed the last call that
 * received it. */
typedef struct attn_tensor {
    uint32_t struct_size;
    uint32_t flags;       /* ATTN_TENSOR_* */
    void *data;           /* NULL only if an extent is 0 */
    uint64_t byte_offset; /* added to `data` */
    int32_t device_type;  /* ATTN_DEVICE_* */
    int32_t device_id;    /* CUDA ordinal, 0 on the CPU */
    attn_dtype dtype;
    uint32_t ndim;                  /* 1..ATTN_MAX_DIMS */
    uint32_t alignment;             /* data + byte_offset is a multiple of this; a power of two; */
                                    /* at least what STRUCT-10 of docs/ABI.md says */
    uint32_t reserved;              /* 0 */
    int64_t shape[ATTN_MAX_DIMS];   /* elements, each >= 0 */
    int64_t strides[ATTN_MAX_DIMS]; /* elements */
} attn_tensor;

/* ---- Inline helpers -------------------------------------------------------------------------- */

/* Bytes of one element; 0 for a type narrower than a byte. [any-thread] */
static inline uint32_t attn_dtype_size(attn_dtype dtype)
{
    return (dtype >> 8 & 0xffu) / 8u;
}

/* "cuda" for ATTN_DEVICE_CUDA; "unknown" for a number that is no device type. [any-thread] */
static inline const char *attn_device_name(int32_t type)
{
    switch (type) {
#define ATTN_DEVICE_CASE(name, value, text)                                                        \
    case value:                                                                                    \
        return text;
        ATTN_DEVICE_MAP(ATTN_DEVICE_CASE)
#undef ATTN_DEVICE_CASE
    default:
        return "unknown";
    }
}

/* Is it a kind of memory, not a device that a backend can run on? [any-thread] */
static inline int attn_device_is_memory(int32_t type)
{
    return type == ATTN_DEVICE_CUDA_HOST || type == ATTN_DEVICE_ROCM_HOST ||
           type == ATTN_DEVICE_CUDA_MANAGED;
}

/* Element `index` of an array of sized structs; the stride is the first element's struct_size.
 * [any-thread] */
static inline const void *attn_at(const void *array, uint32_t index)
{
    return (const char *)array + (size_t)index * *(const uint32_t *)array;
}

/* Does a struct of `struct_size` bytes hold the whole member? Test this before reading it. */
#define ATTN_HAS(pointer, type, member)                                                            \
    ((pointer)->struct_size >= offsetof(type, member) + sizeof(((type *)0)->member))

#ifdef __cplusplus
}
#endif

#endif /* ATTN_TYPES_H */
