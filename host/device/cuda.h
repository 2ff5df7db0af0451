/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h: private to device/cuda*.c: the state of an open GPU, driver calls on it, and the slots of
 * the table that are not in device/cuda.c. */
#ifndef HOST_DEVICE_CUDA_H
#define HOST_DEVICE_CUDA_H

#include "host/device/cuda_driver.h"
#include "host/device/device.h"

#include <pthread.h>
#include <stdatomic.h>

struct cuda {
    struct cuda_driver driver;
    cuda_device device;
    cuda_context context;
    int32_t id;
    atomic_int lost;
    pthread_mutex_t lock; /* of `rounded` */
    struct rounded *rounded;
};

static inline struct cuda *cuda_of(const struct device *device)
{
    return device->state;
}

/* Record that the device is lost if the result says so; returns the result. */
cuda_result cuda_note(struct cuda *cuda, cuda_result result);

/* The class of a result, after cuda_note(), with a message that names the device and the call. */
attn_status cuda_check(struct cuda *cuda, cuda_result result, const char *call, attn_error *error);

/* Make the context current, and what was current before. */
cuda_result cuda_push(struct cuda *cuda);
void cuda_pop(struct cuda *cuda);

/* Make a driver call in the context; the value is its cuda_result. The call's arguments are not
 * evaluated if the context is beyond use. */
#define IN_CONTEXT(cuda, result, call)                                                             \
    do {                                                                                           \
        result = cuda_push(cuda);                                                                  \
        if (result == CUDA_SUCCESS) {                                                              \
            result = cuda_note(cuda, (cuda)->driver.call);                                         \
            cuda_pop(cuda);                                                                        \
        }                                                                                          \
    } while (0)

/* ---- device/cuda_stream.c: streams, events, graphs ------------------------------------------- */

attn_status cuda_stream_create(const struct device *device, attn_stream *stream, attn_error *error);
void cuda_stream_destroy(const struct device *device, attn_stream stream);
attn_status cuda_event_create(const struct device *device, int timed, struct device_event **event,
                              attn_error *error);
void cuda_event_destroy(const struct device *device, struct device_event *event);
attn_status cuda_event_record(const struct device *device, struct device_event *event,
                              attn_stream stream, attn_error *error);
attn_status cuda_event_query(const struct device *device, struct device_event *event, int *done,
                             attn_error *error);
attn_status cuda_event_synchronize(const struct device *device, struct device_event *event,
                                   attn_error *error);
attn_status cuda_event_elapsed(const struct device *device, struct device_event *start,
                               struct device_event *end, double *microseconds, attn_error *error);
attn_status cuda_stream_wait(const struct device *device, attn_stream stream,
                             struct device_event *event, attn_error *error);
attn_status cuda_capture_begin(const struct device *device, attn_stream stream, attn_error *error);
void cuda_graph_destroy(const struct device *device, struct device_graph *graph);
attn_status cuda_capture_end(const struct device *device, attn_stream stream,
                             struct device_graph **graph, attn_error *error);
attn_status cuda_graph_launch(const struct device *device, const struct device_graph *graph,
                              attn_stream stream, attn_error *error);
uint64_t cuda_graph_num_nodes(const struct device_graph *graph);

/* ---- device/cuda_module.c: kernels ----------------------------------------------------------- */

attn_status cuda_module_load(const struct device *device, const void *image, uint64_t size,
                             const char *what, struct device_module **module, attn_error *error);
void cuda_module_unload(const struct device *device, struct device_module *module);
attn_status cuda_function_of(const struct device *device, struct device_module *module,
                             const char *name, struct device_function **function,
                             attn_error *error);
attn_status cuda_launch(const struct device *device, struct device_function *function,
                        const uint32_t grid[3], const uint32_t block[3], void **arguments,
                        attn_stream stream, attn_error *error);

#endif /* HOST_DEVICE_CUDA_H */
