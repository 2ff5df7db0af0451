/* SPDX-License-Identifier: Apache-2.0
 *
 * spy_cuda_calls.h: the driver's calls that the spy records.
 *
 *   X(symbol, since, per_thread, parameters, arguments, record)
 *
 * `symbol` is exported; cuGetProcAddress() calls it the same without suffixes, from the CUDA
 * version `since` on (cudaTypedefs.h). `record` initialises what a spy_record says besides the call
 * and its result. A call that takes NULL for a stream exists twice: the second one, for programs
 * with a default stream for each thread, has a suffix; the macros S and D make both.
 *
 * To add a call: a line here; take its name out of spy_cuda_names.h. */
#ifndef HOST_CHECK_SPY_SPY_CUDA_CALLS_H
#define HOST_CHECK_SPY_SPY_CUDA_CALLS_H

#include "host/device/cuda_driver.h"

#define S(X, symbol, since, parameters, arguments, ...)                                            \
    X(symbol, since, 0, parameters, arguments, __VA_ARGS__)                                        \
    X(symbol##_ptsz, since, 1, parameters, arguments, __VA_ARGS__)
#define D(X, symbol, since, parameters, arguments, ...)                                            \
    X(symbol, since, 0, parameters, arguments, __VA_ARGS__)                                        \
    X(symbol##_ptds, since, 1, parameters, arguments, __VA_ARGS__)

#define KIND(name)      .kind = SPY_##name
#define ON_STREAM(name) KIND(name), .stream = stream

/* ---- Memory ---------------------------------------------------------------------------------- */

#define SPY_ALLOCATING_CALLS(X)                                                                    \
    X(cuMemAlloc_v2, 3020, 0, (cuda_pointer * to, size_t bytes), (to, bytes), KIND(ALLOCATE))      \
    X(cuMemAllocPitch_v2, 3020, 0,                                                                 \
      (cuda_pointer * to, size_t * pitch, size_t width, size_t height, unsigned int element),      \
      (to, pitch, width, height, element), KIND(ALLOCATE))                                         \
    X(cuMemAllocHost_v2, 3020, 0, (void **to, size_t bytes), (to, bytes), KIND(ALLOCATE))          \
    X(cuMemHostAlloc, 2020, 0, (void **to, size_t bytes, unsigned int flags), (to, bytes, flags),  \
      KIND(ALLOCATE))                                                                              \
    X(cuMemAllocManaged, 6000, 0, (cuda_pointer * to, size_t bytes, unsigned int flags),           \
      (to, bytes, flags), KIND(ALLOCATE))                                                          \
    X(cuMemHostRegister_v2, 6050, 0, (void *memory, size_t bytes, unsigned int flags),             \
      (memory, bytes, flags), KIND(ALLOCATE))                                                      \
    X(cuMemCreate, 10020, 0,                                                                       \
      (unsigned long long *to, size_t bytes, const void *properties, unsigned long long flags),    \
      (to, bytes, properties, flags), KIND(ALLOCATE))                                              \
    X(cuMemPoolCreate, 11020, 0, (void **pool, const void *properties), (pool, properties),        \
      KIND(ALLOCATE))                                                                              \
    S(X, cuMemAllocAsync, 11020, (cuda_pointer * to, size_t bytes, cuda_stream stream),            \
      (to, bytes, stream), KIND(ALLOCATE))                                                         \
    S(X, cuMemAllocFromPoolAsync, 11020,                                                           \
      (cuda_pointer * to, size_t bytes, void *pool, cuda_stream stream),                           \
      (to, bytes, pool, stream), KIND(ALLOCATE))                                                   \
    X(cuMemFree_v2, 3020, 0, (cuda_pointer memory), (memory), KIND(FREE))                          \
    X(cuMemFreeHost, 2000, 0, (void *memory), (memory), KIND(FREE))                                \
    X(cuMemHostUnregister, 4000, 0, (void *memory), (memory), KIND(FREE))                          \
    X(cuMemRelease, 10020, 0, (unsigned long long memory), (memory), KIND(FREE))                   \
    X(cuMemPoolDestroy, 11020, 0, (void *pool), (pool), KIND(FREE))                                \
    S(X, cuMemFreeAsync, 11020, (cuda_pointer memory, cuda_stream stream), (memory, stream),       \
      KIND(FREE))

/* ---- What waits ------------------------------------------------------------------------------ */

#define SPY_WAITING_CALLS(X)                                                                       \
    X(cuCtxSynchronize, 2000, 0, (void), (), KIND(SYNCHRONIZE))                                    \
    X(cuCtxSynchronize_v2, 13000, 0, (cuda_context context), (context), KIND(SYNCHRONIZE))         \
    S(X, cuStreamSynchronize, 2000, (cuda_stream stream), (stream), ON_STREAM(SYNCHRONIZE))        \
    X(cuEventSynchronize, 2000, 0, (cuda_event event), (event), KIND(SYNCHRONIZE), .event = event) \
    S(X, cuStreamQuery, 2000, (cuda_stream stream), (stream), ON_STREAM(ASK))                      \
    X(cuEventQuery, 2000, 0, (cuda_event event), (event), KIND(ASK), .event = event)               \
    D(X, cuMemcpy, 4000, (cuda_pointer to, cuda_pointer from, size_t bytes), (to, from, bytes),    \
      KIND(COPY))                                                                                  \
    D(X, cuMemcpyPeer, 4000,                                                                       \
      (cuda_pointer to, cuda_context to_context, cuda_pointer from, cuda_context from_context,     \
       size_t bytes),                                                                              \
      (to, to_context, from, from_context, bytes), KIND(COPY))                                     \
    D(X, cuMemcpyHtoD_v2, 3020, (cuda_pointer to, const void *from, size_t bytes),                 \
      (to, from, bytes), KIND(COPY))                                                               \
    D(X, cuMemcpyDtoH_v2, 3020, (void *to, cuda_pointer from, size_t bytes), (to, from, bytes),    \
      KIND(COPY))                                                                                  \
    D(X, cuMemcpyDtoD_v2, 3020, (cuda_pointer to, cuda_pointer from, size_t bytes),                \
      (to, from, bytes), KIND(COPY))                                                               \
    D(X, cuMemcpy2D_v2, 3020, (const void *copy), (copy), KIND(COPY))                              \
    D(X, cuMemcpy2DUnaligned_v2, 3020, (const void *copy), (copy), KIND(COPY))                     \
    D(X, cuMemcpy3D_v2, 3020, (const void *copy), (copy), KIND(COPY))                              \
    D(X, cuMemsetD8_v2, 3020, (cuda_pointer to, unsigned char value, size_t count),                \
      (to, value, count), KIND(COPY))                                                              \
    D(X, cuMemsetD16_v2, 3020, (cuda_pointer to, unsigned short value, size_t count),              \
      (to, value, count), KIND(COPY))                                                              \
    D(X, cuMemsetD32_v2, 3020, (cuda_pointer to, unsigned int value, size_t count),                \
      (to, value, count), KIND(COPY))

/* ---- Objects, code, contexts, captures ------------------------------------------------------- */

#define SPY_OBJECT_CALLS(X)                                                                        \
    X(cuStreamCreate, 2000, 0, (cuda_stream * stream, unsigned int flags), (stream, flags),        \
      KIND(OBJECT))                                                                                \
    X(cuStreamCreateWithPriority, 5050, 0,                                                         \
      (cuda_stream * stream, unsigned int flags, int priority), (stream, flags, priority),         \
      KIND(OBJECT))                                                                                \
    X(cuStreamDestroy_v2, 4000, 0, (cuda_stream stream), (stream), KIND(OBJECT))                   \
    X(cuEventCreate, 2000, 0, (cuda_event * event, unsigned int flags), (event, flags),            \
      KIND(OBJECT))                                                                                \
    X(cuEventDestroy_v2, 4000, 0, (cuda_event event), (event), KIND(OBJECT))                       \
    X(cuGraphInstantiateWithFlags, 11040, 0,                                                       \
      (cuda_exec * exec, cuda_graph graph, unsigned long long flags), (exec, graph, flags),        \
      KIND(OBJECT))                                                                                \
    X(cuGraphExecDestroy, 10000, 0, (cuda_exec exec), (exec), KIND(OBJECT))                        \
    X(cuGraphCreate, 10000, 0, (cuda_graph * graph, unsigned int flags), (graph, flags),           \
      KIND(OBJECT))                                                                                \
    X(cuGraphDestroy, 10000, 0, (cuda_graph graph), (graph), KIND(OBJECT))                         \
    X(cuModuleLoad, 2000, 0, (cuda_module * module, const char *file), (module, file),             \
      KIND(MODULE))                                                                                \
    X(cuModuleLoadData, 2000, 0, (cuda_module * module, const void *image), (module, image),       \
      KIND(MODULE))                                                                                \
    X(cuModuleLoadDataEx, 2010, 0,                                                                 \
      (cuda_module * module, const void *image, unsigned int count, unsigned int *options,         \
       void **values),                                                                             \
      (module, image, count, options, values), KIND(MODULE))                                       \
    X(cuModuleLoadFatBinary, 2000, 0, (cuda_module * module, const void *image), (module, image),  \
      KIND(MODULE))                                                                                \
    X(cuModuleUnload, 2000, 0, (cuda_module module), (module), KIND(MODULE))                       \
    X(cuLibraryLoadData, 12000, 0,                                                                 \
      (void **library, const void *image, void *jit_options, void *jit_values,                     \
       unsigned int num_jit, void *options, void *values, unsigned int num_options),               \
      (library, image, jit_options, jit_values, num_jit, options, values, num_options),            \
      KIND(MODULE))                                                                                \
    X(cuLibraryLoadFromFile, 12000, 0,                                                             \
      (void **library, const char *file, void *jit_options, void *jit_values,                      \
       unsigned int num_jit, void *options, void *values, unsigned int num_options),               \
      (library, file, jit_options, jit_values, num_jit, options, values, num_options),             \
      KIND(MODULE))                                                                                \
    X(cuLibraryUnload, 12000, 0, (void *library), (library), KIND(MODULE))                         \
    X(cuLinkCreate_v2, 6050, 0,                                                                    \
      (unsigned int count, unsigned int *options, void **values, void **state),                    \
      (count, options, values, state), KIND(MODULE))                                               \
    X(cuCtxSetCurrent, 4000, 0, (cuda_context context), (context), KIND(CONTEXT))                  \
    X(cuCtxPushCurrent_v2, 4000, 0, (cuda_context context), (context), KIND(CONTEXT), .depth = 1)  \
    X(cuCtxPopCurrent_v2, 4000, 0, (cuda_context * context), (context), KIND(CONTEXT),             \
      .depth = -1)                                                                                 \
    X(cuCtxDestroy_v2, 4000, 0, (cuda_context context), (context), KIND(CONTEXT))                  \
    X(cuDevicePrimaryCtxRetain, 7000, 0, (cuda_context * context, cuda_device device),             \
      (context, device), KIND(CONTEXT))                                                            \
    X(cuDevicePrimaryCtxRelease_v2, 11000, 0, (cuda_device device), (device), KIND(CONTEXT))       \
    X(cuDevicePrimaryCtxReset_v2, 11000, 0, (cuda_device device), (device), KIND(CONTEXT))         \
    S(X, cuStreamBeginCapture_v2, 10010, (cuda_stream stream, unsigned int mode), (stream, mode),  \
      ON_STREAM(CAPTURE))                                                                          \
    S(X, cuStreamEndCapture, 10000, (cuda_stream stream, cuda_graph * graph), (stream, graph),     \
      ON_STREAM(CAPTURE))                                                                          \
    X(cuThreadExchangeStreamCaptureMode, 10010, 0, (unsigned int *mode), (mode), KIND(CAPTURE))

/* ---- Work for streams ------------------------------------------------------------------------ */

#define LAUNCH_PARAMETERS                                                                          \
    cuda_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
        unsigned int block_x, unsigned int block_y, unsigned int block_z,                          \
        unsigned int shared_bytes, cuda_stream stream
#define LAUNCH_ARGUMENTS                                                                           \
    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream
#define LAUNCHED(of)                                                                               \
    .function = function, .grid = {of grid_x, of grid_y, of grid_z},                               \
    .block = {of block_x, of block_y, of block_z}, .shared_bytes = of shared_bytes

#define SPY_ENQUEUEING_CALLS(X)                                                                    \
    S(X, cuLaunchKernel, 4000, (LAUNCH_PARAMETERS, void **parameters, void **extra),               \
      (LAUNCH_ARGUMENTS, parameters, extra), ON_STREAM(ENQUEUE), LAUNCHED())                       \
    S(X, cuLaunchCooperativeKernel, 9000, (LAUNCH_PARAMETERS, void **parameters),                  \
      (LAUNCH_ARGUMENTS, parameters), ON_STREAM(ENQUEUE), LAUNCHED())                              \
    S(X, cuLaunchKernelEx, 11060,                                                                  \
      (const cuda_launch_config *config, cuda_function function, void **parameters, void **extra), \
      (config, function, parameters, extra), KIND(ENQUEUE), .stream = config->stream,              \
      LAUNCHED(config->))                                                                          \
    S(X, cuLaunchHostFunc, 10000,                                                                  \
      (cuda_stream stream, cuda_host_function function, void *argument),                           \
      (stream, function, argument), ON_STREAM(ENQUEUE))                                            \
    S(X, cuStreamAddCallback, 5000,                                                                \
      (cuda_stream stream, void *function, void *argument, unsigned int flags),                    \
      (stream, function, argument, flags), ON_STREAM(ENQUEUE))                                     \
    S(X, cuGraphLaunch, 10000, (cuda_exec exec, cuda_stream stream), (exec, stream),               \
      ON_STREAM(ENQUEUE))                                                                          \
    S(X, cuMemcpyAsync, 4000,                                                                      \
      (cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream),                      \
      (to, from, bytes, stream), .kind = kind_of_copy(to), .stream = stream, .bytes = bytes)       \
    S(X, cuMemcpyPeerAsync, 4000,                                                                  \
      (cuda_pointer to, cuda_context to_context, cuda_pointer from, cuda_context from_context,     \
       size_t bytes, cuda_stream stream),                                                          \
      (to, to_context, from, from_context, bytes, stream), ON_STREAM(ENQUEUE), .bytes = bytes)     \
    S(X, cuMemcpyHtoDAsync_v2, 3020,                                                               \
      (cuda_pointer to, const void *from, size_t bytes, cuda_stream stream),                       \
      (to, from, bytes, stream), ON_STREAM(ENQUEUE), .bytes = bytes)                               \
    S(X, cuMemcpyDtoHAsync_v2, 3020,                                                               \
      (void *to, cuda_pointer from, size_t bytes, cuda_stream stream), (to, from, bytes, stream),  \
      .kind = kind_of_copy((cuda_pointer)(uintptr_t)to), .stream = stream, .bytes = bytes)         \
    S(X, cuMemcpyDtoDAsync_v2, 3020,                                                               \
      (cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream),                      \
      (to, from, bytes, stream), ON_STREAM(ENQUEUE), .bytes = bytes)                               \
    S(X, cuMemcpy2DAsync_v2, 3020, (const void *copy, cuda_stream stream), (copy, stream),         \
      ON_STREAM(ENQUEUE))                                                                          \
    S(X, cuMemcpy3DAsync_v2, 3020, (const void *copy, cuda_stream stream), (copy, stream),         \
      ON_STREAM(ENQUEUE))                                                                          \
    S(X, cuMemsetD8Async, 3020,                                                                    \
      (cuda_pointer to, unsigned char value, size_t count, cuda_stream stream),                    \
      (to, value, count, stream), ON_STREAM(ENQUEUE), .bytes = count)                              \
    S(X, cuMemsetD16Async, 3020,                                                                   \
      (cuda_pointer to, unsigned short value, size_t count, cuda_stream stream),                   \
      (to, value, count, stream), ON_STREAM(ENQUEUE), .bytes = 2 * count)                          \
    S(X, cuMemsetD32Async, 3020,                                                                   \
      (cuda_pointer to, unsigned int value, size_t count, cuda_stream stream),                     \
      (to, value, count, stream), ON_STREAM(ENQUEUE), .bytes = 4 * count)                          \
    S(X, cuMemsetD2D8Async, 3020,                                                                  \
      (cuda_pointer to, size_t pitch, unsigned char value, size_t width, size_t height,            \
       cuda_stream stream),                                                                        \
      (to, pitch, value, width, height, stream), ON_STREAM(ENQUEUE), .bytes = width * height)      \
    S(X, cuMemsetD2D32Async, 3020,                                                                 \
      (cuda_pointer to, size_t pitch, unsigned int value, size_t width, size_t height,             \
       cuda_stream stream),                                                                        \
      (to, pitch, value, width, height, stream), ON_STREAM(ENQUEUE), .bytes = 4 * width * height)  \
    S(X, cuStreamWriteValue32_v2, 11070,                                                           \
      (cuda_stream stream, cuda_pointer to, uint32_t value, unsigned int flags),                   \
      (stream, to, value, flags), ON_STREAM(ENQUEUE))                                              \
    S(X, cuStreamWaitValue32_v2, 11070,                                                            \
      (cuda_stream stream, cuda_pointer at, uint32_t value, unsigned int flags),                   \
      (stream, at, value, flags), ON_STREAM(ENQUEUE))                                              \
    S(X, cuEventRecord, 2000, (cuda_event event, cuda_stream stream), (event, stream),             \
      ON_STREAM(RECORD), .event = event)                                                           \
    S(X, cuEventRecordWithFlags, 11010,                                                            \
      (cuda_event event, cuda_stream stream, unsigned int flags), (event, stream, flags),          \
      ON_STREAM(RECORD), .event = event)                                                           \
    S(X, cuStreamWaitEvent, 3020, (cuda_stream stream, cuda_event event, unsigned int flags),      \
      (stream, event, flags), ON_STREAM(WAIT), .event = event)

#define SPY_CUDA_CALLS(X)                                                                          \
    SPY_ALLOCATING_CALLS(X)                                                                        \
    SPY_WAITING_CALLS(X)                                                                           \
    SPY_OBJECT_CALLS(X)                                                                            \
    SPY_ENQUEUEING_CALLS(X)

#endif /* HOST_CHECK_SPY_SPY_CUDA_CALLS_H */
