/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_driver.h: the CUDA driver, opened at run time.
 *
 * The host builds without CUDA, so the few types and constants of the driver API that it uses are
 * declared here, as cuda.h documents them; tests/abi/cuda_driver.c compares them with cuda.h
 * where that is installed. Handles have cuda.h's struct tags. Streams without an own default stream
 * per thread are meant: a NULL stream is the legacy one.
 */
#ifndef HOST_DEVICE_CUDA_DRIVER_H
#define HOST_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "attn_types.h"

/* ---- Types of the driver API ----------------------------------------------------------------- */

typedef unsigned int cuda_result;         /* CUresult */
typedef int cuda_device;                  /* CUdevice */
typedef unsigned long long cuda_pointer;  /* CUdeviceptr */
typedef struct CUctx_st *cuda_context;    /* CUcontext */
typedef struct CUstream_st *cuda_stream;  /* CUstream */
typedef struct CUevent_st *cuda_event;    /* CUevent */
typedef struct CUmod_st *cuda_module;     /* CUmodule */
typedef struct CUfunc_st *cuda_function;  /* CUfunction */
typedef struct CUgraph_st *cuda_graph;    /* CUgraph */
typedef struct CUgraphNode_st *cuda_node; /* CUgraphNode */
typedef struct CUgraphExec_st *cuda_exec; /* CUgraphExec */
typedef void (*cuda_host_function)(void *argument);

/* CUlaunchAttribute. The values' union has 64 bytes; those of the attributes below are named. */
typedef struct cuda_launch_attribute {
    unsigned int id; /* CUDA_LAUNCH_ATTRIBUTE_* */
    unsigned int padding;
    union {
        char bytes[64];
        int cooperative;
        struct {
            unsigned int x, y, z;
        } cluster;
        int programmatic_serialization;
    } value;
} cuda_launch_attribute;

/* CUlaunchConfig. */
typedef struct cuda_launch_config {
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    cuda_stream stream;
    cuda_launch_attribute *attributes;
    unsigned int num_attributes;
} cuda_launch_config;

/* CUresult, those the host tells apart. X(name, value, attn_status without its prefix) */
#define CUDA_RESULT_MAP(X)                                                                         \
    X(SUCCESS, 0, OK)                                                                              \
    X(ERROR_INVALID_VALUE, 1, INVALID_ARGUMENT)                                                    \
    X(ERROR_OUT_OF_MEMORY, 2, OUT_OF_DEVICE_MEMORY)                                                \
    X(ERROR_NOT_INITIALIZED, 3, BAD_STATE)                                                         \
    X(ERROR_DEINITIALIZED, 4, DEVICE_LOST)                                                         \
    X(ERROR_STUB_LIBRARY, 34, DEPENDENCY_MISSING)                                                  \
    X(ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, DEPENDENCY_MISSING)                                    \
    X(ERROR_DEVICE_UNAVAILABLE, 46, DEVICE_LOST)                                                   \
    X(ERROR_NO_DEVICE, 100, DEPENDENCY_MISSING)                                                    \
    X(ERROR_INVALID_DEVICE, 101, DEPENDENCY_MISSING)                                               \
    X(ERROR_DEVICE_NOT_LICENSED, 102, DEPENDENCY_MISSING)                                          \
    X(ERROR_INVALID_IMAGE, 200, DEPENDENCY_MISSING)                                                \
    X(ERROR_INVALID_CONTEXT, 201, BAD_STATE)                                                       \
    X(ERROR_NO_BINARY_FOR_GPU, 209, DEPENDENCY_MISSING)                                            \
    X(ERROR_ECC_UNCORRECTABLE, 214, DEVICE_LOST)                                                   \
    X(ERROR_INVALID_PTX, 218, DEPENDENCY_MISSING)                                                  \
    X(ERROR_NVLINK_UNCORRECTABLE, 220, DEVICE_LOST)                                                \
    X(ERROR_JIT_COMPILER_NOT_FOUND, 221, DEPENDENCY_MISSING)                                       \
    X(ERROR_UNSUPPORTED_PTX_VERSION, 222, DEPENDENCY_MISSING)                                      \
    X(ERROR_JIT_COMPILATION_DISABLED, 223, DEPENDENCY_MISSING)                                     \
    X(ERROR_CONTAINED, 226, DEVICE_LOST)                                                           \
    X(ERROR_SHARED_OBJECT_INIT_FAILED, 303, DEPENDENCY_MISSING)                                    \
    X(ERROR_INVALID_HANDLE, 400, INVALID_ARGUMENT)                                                 \
    X(ERROR_ILLEGAL_STATE, 401, BAD_STATE)                                                         \
    X(ERROR_NOT_FOUND, 500, DEPENDENCY_MISSING)                                                    \
    X(ERROR_NOT_READY, 600, BAD_STATE)                                                             \
    X(ERROR_ILLEGAL_ADDRESS, 700, DEVICE_LOST)                                                     \
    X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, INVALID_ARGUMENT)                                        \
    X(ERROR_LAUNCH_TIMEOUT, 702, DEVICE_LOST)                                                      \
    X(ERROR_CONTEXT_IS_DESTROYED, 709, DEVICE_LOST)                                                \
    X(ERROR_ASSERT, 710, DEVICE_LOST)                                                              \
    X(ERROR_HARDWARE_STACK_ERROR, 714, DEVICE_LOST)                                                \
    X(ERROR_ILLEGAL_INSTRUCTION, 715, DEVICE_LOST)                                                 \
    X(ERROR_MISALIGNED_ADDRESS, 716, DEVICE_LOST)                                                  \
    X(ERROR_INVALID_ADDRESS_SPACE, 717, DEVICE_LOST)                                               \
    X(ERROR_INVALID_PC, 718, DEVICE_LOST)                                                          \
    X(ERROR_LAUNCH_FAILED, 719, DEVICE_LOST)                                                       \
    X(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, INVALID_ARGUMENT)                                   \
    X(ERROR_TENSOR_MEMORY_LEAK, 721, DEVICE_LOST)                                                  \
    X(ERROR_NOT_PERMITTED, 800, BAD_STATE)                                                         \
    X(ERROR_NOT_SUPPORTED, 801, UNSUPPORTED)                                                       \
    X(ERROR_SYSTEM_NOT_READY, 802, DEPENDENCY_MISSING)                                             \
    X(ERROR_SYSTEM_DRIVER_MISMATCH, 803, DEPENDENCY_MISSING)                                       \
    X(ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, DEPENDENCY_MISSING)                               \
    X(ERROR_MPS_CONNECTION_FAILED, 805, DEPENDENCY_MISSING)                                        \
    X(ERROR_MPS_RPC_FAILURE, 806, DEVICE_LOST)                                                     \
    X(ERROR_MPS_SERVER_NOT_READY, 807, DEPENDENCY_MISSING)                                         \
    X(ERROR_MPS_MAX_CLIENTS_REACHED, 808, DEPENDENCY_MISSING)                                      \
    X(ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, DEPENDENCY_MISSING)                                  \
    X(ERROR_MPS_CLIENT_TERMINATED, 810, DEVICE_LOST)                                               \
    X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, CAPTURE_UNSUPPORTED)                                  \
    X(ERROR_STREAM_CAPTURE_INVALIDATED, 901, CAPTURE_UNSUPPORTED)                                  \
    X(ERROR_STREAM_CAPTURE_MERGE, 902, CAPTURE_UNSUPPORTED)                                        \
    X(ERROR_STREAM_CAPTURE_UNMATCHED, 903, CAPTURE_UNSUPPORTED)                                    \
    X(ERROR_STREAM_CAPTURE_UNJOINED, 904, CAPTURE_UNSUPPORTED)                                     \
    X(ERROR_STREAM_CAPTURE_ISOLATION, 905, CAPTURE_UNSUPPORTED)                                    \
    X(ERROR_STREAM_CAPTURE_IMPLICIT, 906, CAPTURE_UNSUPPORTED)                                     \
    X(ERROR_CAPTURED_EVENT, 907, CAPTURE_UNSUPPORTED)                                              \
    X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, CAPTURE_UNSUPPORTED)                                 \
    X(ERROR_TIMEOUT, 909, TIMEOUT)                                                                 \
    X(ERROR_EXTERNAL_DEVICE, 911, DEVICE_LOST)                                                     \
    X(ERROR_INVALID_CLUSTER_SIZE, 912, INVALID_ARGUMENT)                                           \
    X(ERROR_UNKNOWN, 999, INTERNAL)

#ifndef CUDA_VERSION /* cuda.h has the same names */
enum {
#define CUDA_RESULT_ENUM(name, value, status) CUDA_##name = value,
    CUDA_RESULT_MAP(CUDA_RESULT_ENUM)
#undef CUDA_RESULT_ENUM
};
#endif

/* Constants of the API. X(name here, name in cuda.h, value) */
#define CUDA_CONSTANT_MAP(X)                                                                       \
    X(CUDA_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                \
    X(CUDA_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38)                              \
    X(CUDA_ATTRIBUTE_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                   \
    X(CUDA_ATTRIBUTE_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                   \
    X(CUDA_ATTRIBUTE_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)      \
    X(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                               \
    X(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST, 1)                                                     \
    X(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE, 2)                                                 \
    X(CUDA_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE, 1)                                       \
    X(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1)                                         \
    X(CUDA_EVENT_DEFAULT, CU_EVENT_DEFAULT, 0)                                                     \
    X(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING, 2)                                       \
    X(CUDA_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                                       \
    X(CUDA_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                           \
    X(CUDA_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                     \
    X(CUDA_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE, 0)                                  \
    X(CUDA_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                              \
    X(CUDA_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                    \
    X(CUDA_FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)        \
    X(CUDA_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER, 5)                                              \
    X(CUDA_JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 6)                             \
    X(CUDA_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 2)                       \
    X(CUDA_LAUNCH_ATTRIBUTE_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 4)                     \
    X(CUDA_LAUNCH_ATTRIBUTE_PROGRAMMATIC, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 6)

enum {
#define CUDA_CONSTANT_ENUM(name, theirs, value) name = value,
    CUDA_CONSTANT_MAP(CUDA_CONSTANT_ENUM)
#undef CUDA_CONSTANT_ENUM
};

/* ---- Calls of the driver API ----------------------------------------------------------------- */

/* X(name, exported symbol, parameters). Where a call has versions, the symbol is the one that
 * cuda.h gives the plain name to (cuEventElapsedTime: the first one, of the same parameters). All
 * are there since the driver of CUDA 11.8. */
#define CUDA_DRIVER_CALLS(X)                                                                       \
    X(cuInit, cuInit, (unsigned int flags))                                                        \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                      \
    X(cuGetErrorName, cuGetErrorName, (cuda_result result, const char **text))                     \
    X(cuGetErrorString, cuGetErrorString, (cuda_result result, const char **text))                 \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                            \
    X(cuDeviceGet, cuDeviceGet, (cuda_device * device, int ordinal))                               \
    X(cuDeviceGetName, cuDeviceGetName, (char *name, int size, cuda_device device))                \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                  \
      (int *value, unsigned int attribute, cuda_device device))                                    \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, cuda_device device))                 \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                                          \
      (cuda_context * context, cuda_device device))                                                \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (cuda_device device))               \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (cuda_device device))                   \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (cuda_context context))                                    \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (cuda_context * context))                                  \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (cuda_context context))                               \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (cuda_context * context))                               \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                  \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                  \
    X(cuMemAlloc, cuMemAlloc_v2, (cuda_pointer * memory, size_t bytes))                            \
    X(cuMemFree, cuMemFree_v2, (cuda_pointer memory))                                              \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned int flags))           \
    X(cuMemFreeHost, cuMemFreeHost, (void *memory))                                                \
    X(cuPointerGetAttributes, cuPointerGetAttributes,                                              \
      (unsigned int count, unsigned int *attributes, void **values, cuda_pointer pointer))         \
    X(cuMemcpyAsync, cuMemcpyAsync,                                                                \
      (cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream))                      \
    X(cuMemsetD8Async, cuMemsetD8Async,                                                            \
      (cuda_pointer memory, unsigned char value, size_t count, cuda_stream stream))                \
    X(cuMemsetD32Async, cuMemsetD32Async,                                                          \
      (cuda_pointer memory, unsigned int value, size_t count, cuda_stream stream))                 \
    X(cuStreamCreate, cuStreamCreate, (cuda_stream * stream, unsigned int flags))                  \
    X(cuStreamDestroy, cuStreamDestroy_v2, (cuda_stream stream))                                   \
    X(cuStreamQuery, cuStreamQuery, (cuda_stream stream))                                          \
    X(cuStreamSynchronize, cuStreamSynchronize, (cuda_stream stream))                              \
    X(cuStreamWaitEvent, cuStreamWaitEvent,                                                        \
      (cuda_stream stream, cuda_event event, unsigned int flags))                                  \
    X(cuEventCreate, cuEventCreate, (cuda_event * event, unsigned int flags))                      \
    X(cuEventDestroy, cuEventDestroy_v2, (cuda_event event))                                       \
    X(cuEventRecord, cuEventRecord, (cuda_event event, cuda_stream stream))                        \
    X(cuEventQuery, cuEventQuery, (cuda_event event))                                              \
    X(cuEventSynchronize, cuEventSynchronize, (cuda_event event))                                  \
    X(cuEventElapsedTime, cuEventElapsedTime,                                                      \
      (float *milliseconds, cuda_event start, cuda_event end))                                     \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (cuda_stream stream, unsigned int mode))      \
    X(cuStreamEndCapture, cuStreamEndCapture, (cuda_stream stream, cuda_graph * graph))            \
    X(cuStreamIsCapturing, cuStreamIsCapturing, (cuda_stream stream, unsigned int *status))        \
    X(cuGraphGetNodes, cuGraphGetNodes, (cuda_graph graph, cuda_node * nodes, size_t * count))     \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags,                                             \
      (cuda_exec * exec, cuda_graph graph, unsigned long long flags))                              \
    X(cuGraphLaunch, cuGraphLaunch, (cuda_exec exec, cuda_stream stream))                          \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (cuda_exec exec))                                    \
    X(cuGraphDestroy, cuGraphDestroy, (cuda_graph graph))                                          \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx,                                                      \
      (cuda_module * module, const void *image, unsigned int num_options, unsigned int *options,   \
       void **values))                                                                             \
    X(cuModuleGetFunction, cuModuleGetFunction,                                                    \
      (cuda_function * function, cuda_module module, const char *name))                            \
    X(cuModuleUnload, cuModuleUnload, (cuda_module module))                                        \
    X(cuFuncSetAttribute, cuFuncSetAttribute,                                                      \
      (cuda_function function, unsigned int attribute, int value))                                 \
    X(cuLaunchKernel, cuLaunchKernel,                                                              \
      (cuda_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,      \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                           \
       unsigned int shared_bytes, cuda_stream stream, void **parameters, void **extra))            \
    X(cuLaunchKernelEx, cuLaunchKernelEx,                                                          \
      (const cuda_launch_config *config, cuda_function function, void **parameters, void **extra)) \
    X(cuLaunchHostFunc, cuLaunchHostFunc,                                                          \
      (cuda_stream stream, cuda_host_function function, void *argument))

/* The driver: `driver->cuMemAlloc(...)`. None of the calls is NULL. */
struct cuda_driver {
    void *library;
    int version; /* as cuDriverGetVersion gives it, 13000 = 13.0 */
#define CUDA_DRIVER_MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    CUDA_DRIVER_CALLS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* Open the driver and initialise it. `path` is an absolute file; NULL is the
 * environment's ATTNHOST_LIBCUDA (absolute; not read when the process has more privileges than its
 * user) or else this machine's libcuda.so.1.
 *
 * DEPENDENCY_MISSING without a library, with one that lacks a call (the message names it), or where
 * the driver finds no device; CONFIG_ERROR for a relative path. */
attn_status cuda_driver_init(struct cuda_driver *driver, const char *path, attn_error *error);

/* The library stays mapped: it may have threads and handlers. A driver that is all zero is
 * accepted. */
void cuda_driver_finish(struct cuda_driver *driver);

/* The class of a result; INTERNAL for one that is not in the map above. */
attn_status cuda_status(cuda_result result);

/* Write "CALL: NAME (number): text" with the formatted `what` in front and return the class; for
 * SUCCESS nothing is written and ATTN_OK returned. */
attn_status cuda_fail(const struct cuda_driver *driver, cuda_result result, const char *call,
                      attn_error *error, const char *what, ...)
    __attribute__((format(printf, 5, 6)));

#endif /* HOST_DEVICE_CUDA_DRIVER_H */
