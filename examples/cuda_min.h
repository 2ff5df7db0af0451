/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_min.h: the few calls of the CUDA driver that embed_cuda.c makes, found at run time, so that
 * the example builds on a machine without CUDA. An engine includes <cuda.h> instead and links
 * libcuda, or uses the runtime API, whose streams, graphs and memory are the same.
 */
#ifndef CUDA_MIN_H
#define CUDA_MIN_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CU_STREAM_NON_BLOCKING = 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 };

/* X(name, name in the library, parameters): as cuda.h declares them. */
#define CUDA_CALLS(X)                                                                              \
    X(cuInit, cuInit, (unsigned flags))                                                            \
    X(cuGetErrorName, cuGetErrorName, (int result, const char **name))                             \
    X(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                  \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))  \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                  \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                       \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * memory, size_t bytes))                             \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr memory))                                               \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))               \
    X(cuMemFreeHost, cuMemFreeHost, (void *memory))                                                \
    X(cuMemcpyAsync, cuMemcpyAsync,                                                                \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
    X(cuMemsetD8Async, cuMemsetD8Async,                                                            \
      (CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream))                    \
    X(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))                         \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                      \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                 \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                  \
    X(cuStreamEndCapture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                  \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags,                                             \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                               \
    X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                           \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                  \
    X(cuGraphDestroy, cuGraphDestroy, (CUgraph graph))

#define CUDA_MEMBER(name, symbol, parameters) int(*name) parameters;
static struct {
    CUDA_CALLS(CUDA_MEMBER)
} cuda;
#undef CUDA_MEMBER

/* NULL, or what is missing. The driver is the one that the library has opened. */
static inline const char *cuda_open(void)
{
    const char *file = getenv("ATTNHOST_LIBCUDA");
    void *library = dlopen(file && *file ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return dlerror();
#define CUDA_FIND(name, symbol, parameters)                                                        \
    {                                                                                              \
        void *address = dlsym(library, #symbol);                                                   \
        if (!address)                                                                              \
            return #symbol " is not in the driver";                                                \
        memcpy(&cuda.name, &address, sizeof address);                                              \
    }
    CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
    return cuda.cuInit(0) == 0 ? NULL : "cuInit failed";
}

#endif /* CUDA_MIN_H */
