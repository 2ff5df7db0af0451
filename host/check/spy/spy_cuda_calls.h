/* SPDX-License-Identifier: Apache-2.0
 *
 * spy_cuda_calls.h: the driver's calls that the spy notes.
 *
 *   X(symbol, name, since, parameters, arguments, record)
 *
 * `symbol` is exported; `name` is what cuGetProcAddress() calls it from the CUDA version `since` on
 * (cudaTypedefs.h). `record` initialises what a spy_record says besides the call and its result.
 * A call that takes NULL for a stream exists twice: the second one, for programs with a default
 * stream for each thread, has a suffix; the macros S and D make both.
 *
 * To add a call: a line here; take its name out of spy_cuda_names.h.
 */
#ifndef HOST_CHECK_SPY_SPY_CUDA_CALLS_H
#define HOST_CHECK_SPY_SPY_CUDA_CALLS_H

#include "host/device/cuda_driver.h"

#define S(X, symbol, name, since, parameters, arguments, ...)                                      \
    X(symbol, name, since, 0, parameters, arguments, __VA_ARGS__)                                  \
    X(symbol##_ptsz, name, since, 1, parameters, arguments, __VA_ARGS__)
#define D(X, symbol, name, since, parameters, arguments, ...)                                      \
    X(symbol, name, since, 0, parameters, arguments, __VA_ARGS__)                                  \
    X(symbol##_ptds, name, since, 1, parameters, arguments, __VA_ARGS__)

/* ---- Memory ---------------------------------------------------------------------------------- */

#define SPY_ALLOCATING_CALLS(X)                                                                    \
    X(cuMemAlloc_v2, cuMemAlloc, 3020, 0, (cuda_pointer * to, size_t bytes), (to, bytes),          \
      .kind = SPY_ALLOCATE)                                                                        \
    X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0,                                                \
      (cuda_pointer * to, size_t * pitch, size_t width, size_t height, unsigned int element),      \
      (to, pitch, width, height, element), .kind = SPY_ALLOCATE)                                   \
    X(cuMemAllocHost_v2, cuMemAllocHost, 3020, 0, (void **to, size_t bytes), (to, bytes),          \
      .kind = SPY_ALLOCATE)                                                                        \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020, 0, (void **to, size_t bytes, unsigned int flags),      \
      (to, bytes, flags), .kind = SPY_ALLOCATE)                                                    \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000, 0,                                               \
      (cuda_pointer * to, size_t bytes, unsigned int flags), (to, bytes, flags),                   \
      .kind = SPY_ALLOCATE)                                                                        \
    X(cuMemHostRegister_v2, cuMemHostRegister, 6050, 0,                                            \
      (void *memory, size_t bytes, unsigned int flags), (memory, bytes, flags),                    \
      .kind = SPY_ALLOCATE)                                                                        \
    X(cuMemCreate, cuMemCreate, 10020, 0,                                                          \
      (unsigned long long *to, size_t bytes, const void *properties, unsigned long long flags),    \
      (to, bytes, properties, flags), .kind = SPY_ALLOCATE)                                        \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020, 0, (void **pool, const void *properties),           \
      (pool, properties), .kind = SPY_ALLOCATE)                                                    \
    S(X, cuMemAllocAsync, cuMemAllocAsync, 11020,                                                  \
      (cuda_pointer * to, size_t bytes, cuda_stream stream), (to, bytes, stream),                  \
      .kind = SPY_ALLOCATE)                                                                        \
    S(X, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020,                                  \
      (cuda_pointer * to, size_t bytes, void *pool, cuda_stream stream),                           \
      (to, bytes, pool, stream), .kind = SPY_ALLOCATE)                                             \
    X(cuMemFree_v2, cuMemFree, 3020, 0, (cuda_pointer memory), (memory), .kind = SPY_FREE)         \
    X(cuMemFreeHost, cuMemFreeHost, 2000, 0, (void *memory), (memory), .kind = SPY_FREE)           \
    X(cuMemHostUnregister, cuMemHostUnregister, 4000, 0, (void *memory), (memory),                 \
      .kind = SPY_FREE)                                                                            \
    X(cuMemRelease, cuMemRelease, 10020, 0, (unsigned long long memory), (memory),                 \
      .kind = SPY_FREE)                                                                            \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, 0, (void *pool), (pool), .kind = SPY_FREE)        \
    S(X, cuMemFreeAsync, cuMemFreeAsync, 11020, (cuda_pointer memory, cuda_stream stream),         \
      (memory, stream), .kind = SPY_FREE)

/* ---- What waits ------------------------------------------------------------------------------ */

#define SPY_WAITING_CALLS(X)                                                                       \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, 0, (void), (), .kind = SPY_SYNCHRONIZE)            \
    X(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, 0, (cuda_context context), (context),          \
      .kind = SPY_SYNCHRONIZE)                                                                     \
    S(X, cuStreamSynchronize, cuStreamSynchronize, 2000, (cuda_stream stream), (stream),           \
      .kind = SPY_SYNCHRONIZE, .stream = stream)                                                   \
    X(cuEventSynchronize, cuEventSynchronize, 2000, 0, (cuda_event event), (event),                \
      .kind = SPY_SYNCHRONIZE, .event = event)                                                     \
    S(X, cuStreamQuery, cuStreamQuery, 2000, (cuda_stream stream), (stream), .kind = SPY_ASK,      \
      .stream = stream)                                                                            \
    X(cuEventQuery, cuEventQuery, 2000, 0, (cuda_event event), (event), .kind = SPY_ASK,           \
      .event = event)                                                                              \
    D(X, cuMemcpy, cuMemcpy, 4000, (cuda_pointer to, cuda_pointer from, size_t bytes),             \
      (to, from, bytes), .kind = SPY_COPY)                                                         \
    D(X, cuMemcpyPeer, cuMemcpyPeer, 4000,                                                         \
      (cuda_pointer to, cuda_context to_context, cuda_pointer from, cuda_context from_context,     \
       size_t bytes),                                                                              \
      (to, to_context, from, from_context, bytes), .kind = SPY_COPY)                               \
    D(X, cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, (cuda_pointer to, const void *from, size_t bytes),   \
      (to, from, bytes), .kind = SPY_COPY)                                                         \
    D(X, cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, (void *to, cuda_pointer from, size_t bytes),         \
      (to, from, bytes), .kind = SPY_COPY)                                                         \
    D(X, cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, (cuda_pointer to, cuda_pointer from, size_t bytes),  \
      (to, from, bytes), .kind = SPY_COPY)                                                         \
    D(X, cuMemcpy2D_v2, cuMemcpy2D, 3020, (const void *copy), (copy), .kind = SPY_COPY)            \
    D(X, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, (const void *copy), (copy),            \
      .kind = SPY_COPY)                                                                            \
    D(X, cuMemcpy3D_v2, cuMemcpy3D, 3020, (const void *copy), (copy), .kind = SPY_COPY)            \
    D(X, cuMemsetD8_v2, cuMemsetD8, 3020, (cuda_pointer to, unsigned char value, size_t count),    \
      (to, value, count), .kind = SPY_COPY)                                                        \
    D(X, cuMemsetD16_v2, cuMemsetD16, 3020, (cuda_pointer to, unsigned short value, size_t count), \
      (to, value, count), .kind = SPY_COPY)                                                        \
    D(X, cuMemsetD32_v2, cuMemsetD32, 3020, (cuda_pointer to, unsigned int value, size_t count),   \
      (to, value, count), .kind = SPY_COPY)

/* ---- Objects, code, contexts, captures ------------------------------------------------------- */

#define SPY_OBJECT_CALLS(X)                                                                        \
    X(cuStreamCreate, cuStreamCreate, 2000, 0, (cuda_stream * stream, unsigned int flags),         \
      (stream, flags), .kind = SPY_OBJECT)                                                         \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 0,                             \
      (cuda_stream * stream, unsigned int flags, int priority), (stream, flags, priority),         \
      .kind = SPY_OBJECT)                                                                          \
    X(cuStreamDestroy_v2, cuStreamDestroy, 4000, 0, (cuda_stream stream), (stream),                \
      .kind = SPY_OBJECT)                                                                          \
    X(cuEventCreate, cuEventCreate, 2000, 0, (cuda_event * event, unsigned int flags),             \
      (event, flags), .kind = SPY_OBJECT)                                                          \
    X(cuEventDestroy_v2, cuEventDestroy, 4000, 0, (cuda_event event), (event), .kind = SPY_OBJECT) \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 0,                          \
      (cuda_exec * exec, cuda_graph graph, unsigned long long flags), (exec, graph, flags),        \
      .kind = SPY_OBJECT)                                                                          \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 0, (cuda_exec exec), (exec),                  \
      .kind = SPY_OBJECT)                                                                          \
    X(cuGraphCreate, cuGraphCreate, 10000, 0, (cuda_graph * graph, unsigned int flags),            \
      (graph, flags), .kind = SPY_OBJECT)                                                          \
    X(cuGraphDestroy, cuGraphDestroy, 10000, 0, (cuda_graph graph), (graph), .kind = SPY_OBJECT)   \
    X(cuModuleLoad, cuModuleLoad, 2000, 0, (cuda_module * module, const char *file),               \
      (module, file), .kind = SPY_MODULE)                                                          \
    X(cuModuleLoadData, cuModuleLoadData, 2000, 0, (cuda_module * module, const void *image),      \
      (module, image), .kind = SPY_MODULE)                                                         \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0,                                             \
      (cuda_module * module, const void *image, unsigned int count, unsigned int *options,         \
       void **values),                                                                             \
      (module, image, count, options, values), .kind = SPY_MODULE)                                 \
    X(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, 0,                                       \
      (cuda_module * module, const void *image), (module, image), .kind = SPY_MODULE)              \
    X(cuModuleUnload, cuModuleUnload, 2000, 0, (cuda_module module), (module), .kind = SPY_MODULE) \
    X(cuLibraryLoadData, cuLibraryLoadData, 12000, 0,                                              \
      (void **library, const void *image, void *jit_options, void *jit_values,                     \
       unsigned int num_jit, void *options, void *values, unsigned int num_options),               \
      (library, image, jit_options, jit_values, num_jit, options, values, num_options),            \
      .kind = SPY_MODULE)                                                                          \
    X(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, 0,                                      \
      (void **library, const char *file, void *jit_options, void *jit_values,                      \
       unsigned int num_jit, void *options, void *values, unsigned int num_options),               \
      (library, file, jit_options, jit_values, num_jit, options, values, num_options),             \
      .kind = SPY_MODULE)                                                                          \
    X(cuLibraryUnload, cuLibraryUnload, 12000, 0, (void *library), (library), .kind = SPY_MODULE)  \
    X(cuLinkCreate_v2, cuLinkCreate, 6050, 0,                                                      \
      (unsigned int count, unsigned int *options, void **values, void **state),                    \
      (count, options, values, state), .kind = SPY_MODULE)                                         \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0, (cuda_context context), (context),                \
      .kind = SPY_CONTEXT)                                                                         \
    X(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, 0, (cuda_context context), (context),           \
      .kind = SPY_CONTEXT, .depth = 1)                                                             \
    X(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, 0, (cuda_context * context), (context),           \
      .kind = SPY_CONTEXT, .depth = -1)                                                            \
    X(cuCtxDestroy_v2, cuCtxDestroy, 4000, 0, (cuda_context context), (context),                   \
      .kind = SPY_CONTEXT)                                                                         \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0,                                 \
      (cuda_context * context, cuda_device device), (context, device), .kind = SPY_CONTEXT)        \
    X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, 0, (cuda_device device),     \
      (device), .kind = SPY_CONTEXT)                                                               \
    X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0, (cuda_device device),         \
      (device), .kind = SPY_CONTEXT)                                                               \
    S(X, cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010,                                     \
      (cuda_stream stream, unsigned int mode), (stream, mode), .kind = SPY_CAPTURE,                \
      .stream = stream)                                                                            \
    S(X, cuStreamEndCapture, cuStreamEndCapture, 10000, (cuda_stream stream, cuda_graph * graph),  \
      (stream, graph), .kind = SPY_CAPTURE, .stream = stream)                                      \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 0,              \
      (unsigned int *mode), (mode), .kind = SPY_CAPTURE)

/* ---- Work for streams ------------------------------------------------------------------------ */

#define SPY_ENQUEUEING_CALLS(X)                                                                    \
    S(X, cuLaunchKernel, cuLaunchKernel, 4000,                                                     \
      (cuda_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,      \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                           \
       unsigned int shared_bytes, cuda_stream stream, void **parameters, void **extra),            \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters, extra),                                                                         \
      .kind = SPY_ENQUEUE, .stream = stream, .function = function,                                 \
      .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z},                      \
      .shared_bytes = shared_bytes)                                                                \
    S(X, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000,                               \
      (cuda_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,      \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                           \
       unsigned int shared_bytes, cuda_stream stream, void **parameters),                          \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,          \
       parameters),                                                                                \
      .kind = SPY_ENQUEUE, .stream = stream, .function = function,                                 \
      .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z},                      \
      .shared_bytes = shared_bytes)                                                                \
    S(X, cuLaunchKernelEx, cuLaunchKernelEx, 11060,                                                \
      (const cuda_launch_config *config, cuda_function function, void **parameters, void **extra), \
      (config, function, parameters, extra), .kind = SPY_ENQUEUE, .stream = config->stream,        \
      .function = function, .grid = {config->grid_x, config->grid_y, config->grid_z},              \
      .block = {config->block_x, config->block_y, config->block_z},                                \
      .shared_bytes = config->shared_bytes)                                                        \
    S(X, cuLaunchHostFunc, cuLaunchHostFunc, 10000,                                                \
      (cuda_stream stream, cuda_host_function function, void *argument),                           \
      (stream, function, argument), .kind = SPY_ENQUEUE, .stream = stream)                         \
    S(X, cuStreamAddCallback, cuStreamAddCallback, 5000,                                           \
      (cuda_stream stream, void *function, void *argument, unsigned int flags),                    \
      (stream, function, argument, flags), .kind = SPY_ENQUEUE, .stream = stream)                  \
    S(X, cuGraphLaunch, cuGraphLaunch, 10000, (cuda_exec exec, cuda_stream stream),                \
      (exec, stream), .kind = SPY_ENQUEUE, .stream = stream)                                       \
    S(X, cuMemcpyAsync, cuMemcpyAsync, 4000,                                                       \
      (cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream),                      \
      (to, from, bytes, stream), .kind = kind_of_copy(to), .stream = stream, .bytes = bytes)       \
    S(X, cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000,                                               \
      (cuda_pointer to, cuda_context to_context, cuda_pointer from, cuda_context from_context,     \
       size_t bytes, cuda_stream stream),                                                          \
      (to, to_context, from, from_context, bytes, stream), .kind = SPY_ENQUEUE, .stream = stream,  \
      .bytes = bytes)                                                                              \
    S(X, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020,                                            \
      (cuda_pointer to, const void *from, size_t bytes, cuda_stream stream),                       \
      (to, from, bytes, stream), .kind = SPY_ENQUEUE, .stream = stream, .bytes = bytes)            \
    S(X, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020,                                            \
      (void *to, cuda_pointer from, size_t bytes, cuda_stream stream), (to, from, bytes, stream),  \
      .kind = kind_of_copy((cuda_pointer)(uintptr_t)to), .stream = stream, .bytes = bytes)         \
    S(X, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020,                                            \
      (cuda_pointer to, cuda_pointer from, size_t bytes, cuda_stream stream),                      \
      (to, from, bytes, stream), .kind = SPY_ENQUEUE, .stream = stream, .bytes = bytes)            \
    S(X, cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, (const void *copy, cuda_stream stream),        \
      (copy, stream), .kind = SPY_ENQUEUE, .stream = stream)                                       \
    S(X, cuMemcpy3DAsync_v2, cuMemcpy3DAsync, 3020, (const void *copy, cuda_stream stream),        \
      (copy, stream), .kind = SPY_ENQUEUE, .stream = stream)                                       \
    S(X, cuMemsetD8Async, cuMemsetD8Async, 3020,                                                   \
      (cuda_pointer to, unsigned char value, size_t count, cuda_stream stream),                    \
      (to, value, count, stream), .kind = SPY_ENQUEUE, .stream = stream, .bytes = count)           \
    S(X, cuMemsetD16Async, cuMemsetD16Async, 3020,                                                 \
      (cuda_pointer to, unsigned short value, size_t count, cuda_stream stream),                   \
      (to, value, count, stream), .kind = SPY_ENQUEUE, .stream = stream, .bytes = 2 * count)       \
    S(X, cuMemsetD32Async, cuMemsetD32Async, 3020,                                                 \
      (cuda_pointer to, unsigned int value, size_t count, cuda_stream stream),                     \
      (to, value, count, stream), .kind = SPY_ENQUEUE, .stream = stream, .bytes = 4 * count)       \
    S(X, cuMemsetD2D8Async, cuMemsetD2D8Async, 3020,                                               \
      (cuda_pointer to, size_t pitch, unsigned char value, size_t width, size_t height,            \
       cuda_stream stream),                                                                        \
      (to, pitch, value, width, height, stream), .kind = SPY_ENQUEUE, .stream = stream,            \
      .bytes = width * height)                                                                     \
    S(X, cuMemsetD2D32Async, cuMemsetD2D32Async, 3020,                                             \
      (cuda_pointer to, size_t pitch, unsigned int value, size_t width, size_t height,             \
       cuda_stream stream),                                                                        \
      (to, pitch, value, width, height, stream), .kind = SPY_ENQUEUE, .stream = stream,            \
      .bytes = 4 * width * height)                                                                 \
    S(X, cuStreamWriteValue32_v2, cuStreamWriteValue32, 11070,                                     \
      (cuda_stream stream, cuda_pointer to, uint32_t value, unsigned int flags),                   \
      (stream, to, value, flags), .kind = SPY_ENQUEUE, .stream = stream)                           \
    S(X, cuStreamWaitValue32_v2, cuStreamWaitValue32, 11070,                                       \
      (cuda_stream stream, cuda_pointer at, uint32_t value, unsigned int flags),                   \
      (stream, at, value, flags), .kind = SPY_ENQUEUE, .stream = stream)                           \
    S(X, cuEventRecord, cuEventRecord, 2000, (cuda_event event, cuda_stream stream),               \
      (event, stream), .kind = SPY_RECORD, .stream = stream, .event = event)                       \
    S(X, cuEventRecordWithFlags, cuEventRecordWithFlags, 11010,                                    \
      (cuda_event event, cuda_stream stream, unsigned int flags), (event, stream, flags),          \
      .kind = SPY_RECORD, .stream = stream, .event = event)                                        \
    S(X, cuStreamWaitEvent, cuStreamWaitEvent, 3020,                                               \
      (cuda_stream stream, cuda_event event, unsigned int flags), (stream, event, flags),          \
      .kind = SPY_WAIT, .stream = stream, .event = event)

#define SPY_CUDA_CALLS(X)                                                                          \
    SPY_ALLOCATING_CALLS(X)                                                                        \
    SPY_WAITING_CALLS(X)                                                                           \
    SPY_OBJECT_CALLS(X)                                                                            \
    SPY_ENQUEUEING_CALLS(X)

#endif /* HOST_CHECK_SPY_SPY_CUDA_CALLS_H */
