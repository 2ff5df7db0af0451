/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.h: the CUDA driver and NVRTC for plugins, opened at run time: a plugin loads, and
 * answers queries, on a machine that has neither.
 *
 * The declarations are our own, so that no CUDA header is needed to build; names, types and values
 * are those of the driver API (cuda.h) and of nvrtc.h. A handle is a pointer, a device address an
 * integer.
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

/* Results and attributes that we name. */
enum {
    CUDA_OK = 0,
    CUDA_DEVICE_SHARED_MEMORY_OPTIN = 97, /* bytes one block may opt in to */
    CUDA_DEVICE_MULTIPROCESSORS = 16,
    CUDA_DEVICE_MAJOR = 75, /* of the compute capability */
    CUDA_DEVICE_MINOR = 76,
    CUDA_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    CUDA_FUNCTION_SHARED_CARVEOUT = 9, /* percent of the L1 cache that is to be shared memory */
    CUDA_CAPTURE_RELAXED = 2
};

/* X(result, name, parameters): what every plugin needs. */
#define CUDA_API_CORE(X)                                                                           \
    X(int, cuInit, (unsigned flags))                                                               \
    X(int, cuGetErrorName, (int result, const char **name))                                        \
    X(int, cuCtxGetCurrent, (cuda_context * context))                                              \
    X(int, cuCtxGetDevice, (int *device))                                                          \
    X(int, cuDeviceGetAttribute, (int *value, int attribute, int device))                          \
    X(int, cuModuleLoadData, (cuda_module * module, const void *image))                            \
    X(int, cuModuleUnload, (cuda_module module))                                                   \
    X(int, cuModuleGetFunction, (cuda_function * function, cuda_module module, const char *name))  \
    X(int, cuFuncSetAttribute, (cuda_function function, int attribute, int value))                 \
    X(int, cuMemsetD32Async, (cuda_address to, unsigned value, size_t count, cuda_stream stream))  \
    X(int, cuLaunchKernel,                                                                         \
      (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                  \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, cuda_stream stream,  \
       void **params, void **extra))

/* What programs need that drive a device themselves; NULL where the driver lacks it. */
#define CUDA_API_MORE(X)                                                                           \
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
    X(int, cuStreamBeginCapture_v2, (cuda_stream stream, int mode))                                \
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

/* The driver (libcuda.so.1), opened and initialised once a process; never closed. *api is set on
 * success alone and stays valid. DEPENDENCY_MISSING, with the reason, if there is none or if it
 * finds no device. [any-thread] */
attn_status cuda_api_get(const cuda_api **api, attn_error *error);

/* NVRTC (libnvrtc.so.13, .12, .11.2, or as the CUDA toolkit installs it), likewise. [any-thread] */
attn_status nvrtc_api_get(const nvrtc_api **api, attn_error *error);

/* What a driver's result means to the host. */
attn_status cuda_status(int result);

/* Message "WHO: WHAT failed: CUDA_ERROR_NAME" for a result that is not CUDA_OK; returns its
 * status. */
attn_status cuda_fail(const cuda_api *api, int result, const char *who, const char *what,
                      attn_error *error);

#endif /* PLUGINS_CUDA_API_H */
