/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.h: the CUDA driver and NVRTC for plugins, opened at run time: a plugin loads, and
 * answers queries, on a machine that has neither.
 *
 * The declarations are our own, so that no CUDA header is needed to build; names, types and values
 * are those of the driver API (cuda.h; tests/abi/cuda_api.c compares them) and of nvrtc.h. A handle
 * is a pointer, a device address an integer.
 */
#ifndef PLUGINS_CUDA_API_H
#define PLUGINS_CUDA_API_H

#include "attn_types.h"

typedef void *cuda_context;
typedef void *cuda_module;
typedef void *cuda_function;
typedef void *cuda_stream;
typedef void *cuda_event;
typedef void *cuda_graph;
typedef void *cuda_graph_exec;
typedef uint64_t cuda_address;
typedef void *nvrtc_program;

/* CUlaunchAttribute. The values' union has 64 bytes; those of the attributes below are named. */
typedef struct cuda_launch_attribute {
    unsigned id; /* CUDA_LAUNCH_* */
    unsigned padding;
    union {
        char bytes[64];
        int cooperative;
        struct {
            unsigned x, y, z;
        } cluster;
        int programmatic;
        uint64_t whole; /* for its alignment */
    } value;
} cuda_launch_attribute;

/* CUlaunchConfig. */
typedef struct cuda_launch_config {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared;
    cuda_stream stream;
    cuda_launch_attribute *attributes;
    unsigned num_attributes;
} cuda_launch_config;

/* CUtensorMap: passed to a kernel by value, as a separate __grid_constant__ parameter: CUDA 12
 * aligns it to 64 bytes, CUDA 13 to 128. */
typedef struct cuda_tensor_map {
    uint64_t opaque[16];
} __attribute__((aligned(128))) cuda_tensor_map;

/* The constants of the API that are used. X(name here, name in cuda.h, value) */
#define CUDA_API_CONSTANTS(X)                                                                      \
    X(CUDA_OK, CUDA_SUCCESS, 0)                                                                    \
    X(CUDA_DEVICE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                   \
    X(CUDA_DEVICE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                         \
    X(CUDA_DEVICE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                         \
    X(CUDA_DEVICE_SHARED_MEMORY_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)  \
    X(CUDA_FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)        \
    X(CUDA_FUNCTION_SHARED_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 9)        \
    X(CUDA_FUNCTION_LARGE_CLUSTERS, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 14)       \
    X(CUDA_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                     \
    X(CUDA_LAUNCH_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 2)                                 \
    X(CUDA_LAUNCH_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 4)                               \
    X(CUDA_LAUNCH_PROGRAMMATIC, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 6)          \
    X(CUDA_TENSOR_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8, 0)                                         \
    X(CUDA_TENSOR_INT32, CU_TENSOR_MAP_DATA_TYPE_INT32, 3)                                         \
    X(CUDA_TENSOR_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 6)                                     \
    X(CUDA_TENSOR_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 7)                                     \
    X(CUDA_TENSOR_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 9)                                   \
    X(CUDA_TENSOR_INTERLEAVE_NONE, CU_TENSOR_MAP_INTERLEAVE_NONE, 0)                               \
    X(CUDA_TENSOR_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, 0)                                     \
    X(CUDA_TENSOR_SWIZZLE_32, CU_TENSOR_MAP_SWIZZLE_32B, 1)                                        \
    X(CUDA_TENSOR_SWIZZLE_64, CU_TENSOR_MAP_SWIZZLE_64B, 2)                                        \
    X(CUDA_TENSOR_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B, 3)                                      \
    X(CUDA_TENSOR_L2_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, 0)                                     \
    X(CUDA_TENSOR_L2_64, CU_TENSOR_MAP_L2_PROMOTION_L2_64B, 1)                                     \
    X(CUDA_TENSOR_L2_128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, 2)                                   \
    X(CUDA_TENSOR_L2_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, 3)                                   \
    X(CUDA_TENSOR_FILL_ZERO, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, 0)

enum {
#define CUDA_API_ENUM(name, theirs, value) name = value,
    CUDA_API_CONSTANTS(CUDA_API_ENUM)
#undef CUDA_API_ENUM
};

/* X(result, name, parameters): calls that every plugin needs. */
#define CUDA_API_CORE(X)                                                                           \
    X(int, cuInit, (unsigned flags))                                                               \
    X(int, cuGetErrorName, (unsigned result, const char **name))                                   \
    X(int, cuCtxGetCurrent, (cuda_context * context))                                              \
    X(int, cuCtxGetDevice, (int *device))                                                          \
    X(int, cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                     \
    X(int, cuModuleLoadData, (cuda_module * module, const void *image))                            \
    X(int, cuModuleUnload, (cuda_module module))                                                   \
    X(int, cuModuleGetFunction, (cuda_function * function, cuda_module module, const char *name))  \
    X(int, cuFuncSetAttribute, (cuda_function function, unsigned attribute, int value))            \
    X(int, cuMemsetD32Async, (cuda_address to, unsigned value, size_t count, cuda_stream stream))  \
    X(int, cuLaunchKernel,                                                                         \
      (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                  \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, cuda_stream stream,  \
       void **params, void **extra))

/* Calls that some drivers lack (cuLaunchKernelEx: since CUDA 11.8, cuTensorMapEncodeTiled: 12.0),
 * and calls for programs that manage a device themselves. NULL if the driver lacks it. */
#define CUDA_API_MORE(X)                                                                           \
    X(int, cuLaunchKernelEx,                                                                       \
      (const cuda_launch_config *config, cuda_function function, void **params, void **extra))     \
    X(int, cuTensorMapEncodeTiled,                                                                 \
      (cuda_tensor_map * map, unsigned type, unsigned rank, void *address, const uint64_t *shape,  \
       const uint64_t *strides, const unsigned *box, const unsigned *element_strides,              \
       unsigned interleave, unsigned swizzle, unsigned l2_promotion, unsigned fill))               \
    X(int, cuDeviceGet, (int *device, int ordinal))                                                \
    X(int, cuDevicePrimaryCtxRetain, (cuda_context * context, int device))                         \
    X(int, cuDevicePrimaryCtxRelease_v2, (int device))                                             \
    X(int, cuCtxSetCurrent, (cuda_context context))                                                \
    X(int, cuMemAlloc_v2, (cuda_address * address, size_t size))                                   \
    X(int, cuMemFree_v2, (cuda_address address))                                                   \
    X(int, cuMemcpyHtoD_v2, (cuda_address to, const void *from, size_t size))                      \
    X(int, cuMemcpyDtoH_v2, (void *to, cuda_address from, size_t size))                            \
    X(int, cuMemsetD8_v2, (cuda_address to, unsigned char value, size_t size))                     \
    X(int, cuStreamCreate, (cuda_stream * stream, unsigned flags))                                 \
    X(int, cuStreamDestroy_v2, (cuda_stream stream))                                               \
    X(int, cuStreamSynchronize, (cuda_stream stream))                                              \
    X(int, cuEventCreate, (cuda_event * event, unsigned flags))                                    \
    X(int, cuEventDestroy_v2, (cuda_event event))                                                  \
    X(int, cuEventRecord, (cuda_event event, cuda_stream stream))                                  \
    X(int, cuEventSynchronize, (cuda_event event))                                                 \
    X(int, cuEventElapsedTime, (float *milliseconds, cuda_event from, cuda_event to))              \
    X(int, cuStreamBeginCapture_v2, (cuda_stream stream, unsigned mode))                           \
    X(int, cuStreamEndCapture, (cuda_stream stream, cuda_graph * graph))                           \
    X(int, cuGraphInstantiateWithFlags,                                                            \
      (cuda_graph_exec * exec, cuda_graph graph, unsigned long long flags))                        \
    X(int, cuGraphLaunch, (cuda_graph_exec exec, cuda_stream stream))                              \
    X(int, cuGraphExecDestroy, (cuda_graph_exec exec))                                             \
    X(int, cuGraphDestroy, (cuda_graph graph))

#define NVRTC_API(X)                                                                               \
    X(int, nvrtcVersion, (int *major, int *minor))                                                 \
    X(const char *, nvrtcGetErrorString, (int result))                                             \
    X(int, nvrtcCreateProgram,                                                                     \
      (nvrtc_program * program, const char *source, const char *name, int num_headers,             \
       const char *const *headers, const char *const *header_names))                               \
    X(int, nvrtcDestroyProgram, (nvrtc_program * program))                                         \
    X(int, nvrtcCompileProgram,                                                                    \
      (nvrtc_program program, int num_options, const char *const *options))                        \
    X(int, nvrtcGetProgramLogSize, (nvrtc_program program, size_t * size))                         \
    X(int, nvrtcGetProgramLog, (nvrtc_program program, char *log))                                 \
    X(int, nvrtcGetCUBINSize, (nvrtc_program program, size_t * size))                              \
    X(int, nvrtcGetCUBIN, (nvrtc_program program, char *cubin))

#define CUDA_API_MEMBER(result, name, parameters) result(*name) parameters;

typedef struct cuda_api {
    CUDA_API_CORE(CUDA_API_MEMBER)
    CUDA_API_MORE(CUDA_API_MEMBER)
} cuda_api;

typedef struct nvrtc_api {
    NVRTC_API(CUDA_API_MEMBER)
} nvrtc_api;

/* The driver (libcuda.so.1), opened and initialised once per process; never closed. *api is set
 * only on success and stays valid. DEPENDENCY_MISSING, with the reason, if there is no driver or no
 * device. [any-thread] */
attn_status cuda_api_get(const cuda_api **api, attn_error *error);

/* NVRTC (libnvrtc.so.13, .12, .11.2, or as the CUDA toolkit installs it), likewise. [any-thread] */
attn_status nvrtc_api_get(const nvrtc_api **api, attn_error *error);

/* The status for a driver's result. */
attn_status cuda_status(int result);

/* Message "WHO: WHAT failed: CUDA_ERROR_NAME" for a result that is not CUDA_OK; returns its
 * status. */
attn_status cuda_fail(const cuda_api *api, int result, const char *who, const char *what,
                      attn_error *error);

#endif /* PLUGINS_CUDA_API_H */
