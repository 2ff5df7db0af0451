/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h: one table per kind of device that the host supports: memory, streams, events, graphs
 * and kernels.
 *
 * A kind of device is one `struct device_ops` in a file device/<kind>.c and one row in device.c.
 * Spaces are the ABI's ATTN_SPACE_*; on the CPU all three are host memory. There a stream is NULL,
 * every call is done when it returns, nothing can be captured into a graph, and there are no
 * modules of kernels.
 *
 * Any thread may call, several at a time; no call depends on or changes the CUDA context that is
 * current in the caller's thread, except device_enter() and device_leave(). */
#ifndef HOST_DEVICE_DEVICE_H
#define HOST_DEVICE_DEVICE_H

#include "attn_plugin.h"

struct device;
struct device_event; /* a place in a stream's work; on CUDA it is the CUevent */
struct device_graph; /* captured work, ready to be launched */
struct device_module;
struct device_function; /* a kernel of a module */

/* A device's names for people; "" where the driver gives none. */
struct device_names {
    char name[128];  /* "NVIDIA H200", or the processor's model */
    char driver[64]; /* of the kernel: "580.95.05"; "" on the CPU */
};

/* What a kind of device can do. `device` is an open one of that kind. The functions device_*()
 * below call these slots and say what each one does. */
struct device_ops {
    int32_t type; /* ATTN_DEVICE_* */

    /* `info` has struct_size, type and id, and is zero else. */
    attn_status (*describe)(attn_device *info, attn_error *error);

    /* Fill in *names, which is empty. */
    void (*identify)(const attn_device *info, struct device_names *names);

    /* Make device->state; the rest of *device is set already. */
    attn_status (*open)(struct device *device, attn_error *error);
    void (*close)(struct device *device);
    int (*is_entered)(const struct device *device);
    attn_status (*enter)(const struct device *device, attn_error *error);
    void (*leave)(const struct device *device);
    int (*is_lost)(const struct device *device);
    attn_status (*reset)(const struct device *device, attn_error *error);

    void *(*allocate)(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment);
    void (*release)(const struct device *device, uint32_t space, void *memory);
    attn_status (*memory)(const struct device *device, uint64_t *free_bytes, uint64_t *total_bytes,
                          attn_error *error);

    attn_status (*fill)(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error);
    attn_status (*copy)(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error);
    attn_status (*synchronize)(const struct device *device, attn_stream stream, attn_error *error);

    attn_status (*stream_create)(const struct device *device, attn_stream *stream,
                                 attn_error *error);
    void (*stream_destroy)(const struct device *device, attn_stream stream);

    attn_status (*event_create)(const struct device *device, int timed, struct device_event **event,
                                attn_error *error);
    void (*event_destroy)(const struct device *device, struct device_event *event);
    attn_status (*event_record)(const struct device *device, struct device_event *event,
                                attn_stream stream, attn_error *error);
    attn_status (*event_query)(const struct device *device, struct device_event *event, int *done,
                               attn_error *error);
    attn_status (*event_synchronize)(const struct device *device, struct device_event *event,
                                     attn_error *error);
    attn_status (*event_elapsed)(const struct device *device, struct device_event *start,
                                 struct device_event *end, double *microseconds, attn_error *error);
    attn_status (*stream_wait)(const struct device *device, attn_stream stream,
                               struct device_event *event, attn_error *error);

    attn_status (*capture_begin)(const struct device *device, attn_stream stream,
                                 attn_error *error);
    attn_status (*capture_end)(const struct device *device, attn_stream stream,
                               struct device_graph **graph, attn_error *error);
    attn_status (*graph_launch)(const struct device *device, const struct device_graph *graph,
                                attn_stream stream, attn_error *error);
    uint64_t (*graph_num_nodes)(const struct device_graph *graph);
    void (*graph_destroy)(const struct device *device, struct device_graph *graph);

    attn_status (*module_load)(const struct device *device, const void *image, uint64_t size,
                               const char *what, struct device_module **module, attn_error *error);
    void (*module_unload)(const struct device *device, struct device_module *module);
    attn_status (*function)(const struct device *device, struct device_module *module,
                            const char *name, struct device_function **function, attn_error *error);
    attn_status (*launch)(const struct device *device, struct device_function *function,
                          const uint32_t grid[3], const uint32_t block[3], void **arguments,
                          attn_stream stream, attn_error *error);
};

/* An engine's allocator, used in place of the kind's own calls (attnhost.h). */
struct device_allocator {
    void *(*allocate)(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                      uint64_t size, uint64_t alignment);
    void (*release)(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                    void *memory);
    void *ctx;
};

/* An open device. */
struct device {
    int32_t type; /* ATTN_DEVICE_* */
    int32_t id;   /* CUDA ordinal, 0 on the CPU */
    const struct device_ops *ops;
    attn_device info;                         /* as for attn_problem.device */
    void *state;                              /* of the kind's own */
    const struct device_allocator *allocator; /* borrowed; NULL = the kind's own */
};

/* ---- Life ------------------------------------------------------------------------------------ */

/* Describe a device of this machine without taking anything of it. DEPENDENCY_MISSING if there is
 * no driver for its type in this host or machine, or no such device. */
attn_status device_describe(int32_t type, int32_t id, attn_device *info, attn_error *error);

/* The names of a device that device_describe() has described. */
void device_identify(const attn_device *info, struct device_names *names);

/* Describe a device and open it: on CUDA this makes its primary context, or shares the one that is
 * there. Errors as above, and DEVICE_LOST if it cannot be used now. The caller closes it. */
attn_status device_open(int32_t type, int32_t id, struct device **device, attn_error *error);

/* All that was made on it has been released. NULL is accepted. */
void device_close(struct device *device);

/* Make the device's primary context current in this thread, for calls into a plugin; `leave` makes
 * the former one current again. They nest. */
attn_status device_enter(const struct device *device, attn_error *error);
void device_leave(const struct device *device);

/* Is the context current already, so that device_enter() is not needed? Always true on the CPU. A
 * cheap test, for code where entering each time would cost too much. */
int device_is_entered(const struct device *device);

/* Has a call reported that the device is beyond repair? From then on all but device_close() and the
 * calls that release fail. */
int device_is_lost(const struct device *device);

/* Start again after a loss: nothing that was made on the device is left, not even to be released,
 * except memory of ATTN_SPACE_HOST. All other users of the device's primary context in this process
 * lose theirs, too, so only a process that owns it alone may call this. DEVICE_LOST if the driver
 * gives this process no new context, as after a fault in a kernel (driver 580): then another
 * process has to continue, and this device can only be closed. */
attn_status device_reset(struct device *device, attn_error *error);

/* ---- Memory ---------------------------------------------------------------------------------- */

/* NULL when exhausted, or where the device's allocator gave memory that is not aligned. `alignment`
 * is a power of two; size 0 gives a unique address. Not while the calling thread captures.
 * `release` accepts NULL; nothing that was enqueued may still use the memory. */
void *device_allocate(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment);
void device_release(const struct device *device, uint32_t space, void *memory);

/* Why an allocation in this space returned NULL: DEVICE_LOST, or the code for exhausted memory. */
attn_status device_exhausted(const struct device *device, uint32_t space);

/* Fail after such a NULL. The format says what the memory was for; the message adds whether the
 * device is lost, and whether the engine's allocator was asked. */
attn_status device_no_memory(const struct device *device, uint32_t space, attn_error *error,
                             const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Bytes of the device's memory that are free, and all of them. */
attn_status device_memory(const struct device *device, uint64_t *free_bytes, uint64_t *total_bytes,
                          attn_error *error);

/* In order with the stream's other work; memory is the device's or the host's. On CUDA, host memory
 * that is not pinned is copied by the time the call returns, and to fill it waits for the stream's
 * earlier work, so neither is for a capture. */
attn_status device_fill(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error);
attn_status device_copy(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error);

/* The same, and wait for all work of the stream. */
attn_status device_copy_wait(const struct device *device, void *to, const void *from, uint64_t size,
                             attn_stream stream, attn_error *error);

/* Fill, and be done when the call returns, on a separate stream: no other stream waits for it. */
attn_status device_fill_now(const struct device *device, void *memory, int byte, uint64_t size,
                            attn_error *error);

/* ---- Streams and events ---------------------------------------------------------------------- */

/* Wait for all work of the stream. */
attn_status device_synchronize(const struct device *device, attn_stream stream, attn_error *error);

/* A stream that does not wait for the legacy one. `destroy` waits for its work; NULL is fine. */
attn_status device_stream_create(const struct device *device, attn_stream *stream,
                                 attn_error *error);
void device_stream_destroy(const struct device *device, attn_stream stream);

/* An event; with `timed` it notes when it is passed. It counts as passed until it is recorded.
 * `destroy` accepts NULL. */
attn_status device_event_create(const struct device *device, int timed, struct device_event **event,
                                attn_error *error);
void device_event_destroy(const struct device *device, struct device_event *event);

/* The event now stands for all work that was put into the stream so far. */
attn_status device_event_record(const struct device *device, struct device_event *event,
                                attn_stream stream, attn_error *error);

/* Is that work done? / Wait until it is. */
attn_status device_event_query(const struct device *device, struct device_event *event, int *done,
                               attn_error *error);
attn_status device_event_synchronize(const struct device *device, struct device_event *event,
                                     attn_error *error);

/* Microseconds between two timed events that were passed; BAD_STATE if one was not. */
attn_status device_event_elapsed(const struct device *device, struct device_event *start,
                                 struct device_event *end, double *microseconds, attn_error *error);

/* The stream's later work begins when the event, as it was recorded last, is passed. */
attn_status device_stream_wait(const struct device *device, attn_stream stream,
                               struct device_event *event, attn_error *error);

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Take what this thread enqueues on the stream into a graph instead of running it. Calls that
 * cannot be captured fail in this thread (other threads are not concerned) and spoil the capture.
 * CAPTURE_UNSUPPORTED on the CPU. */
attn_status device_capture_begin(const struct device *device, attn_stream stream,
                                 attn_error *error);

/* End the capture and make a graph of it that can be launched; the caller destroys it. `graph` NULL
 * drops what was captured, a spoilt capture too. CAPTURE_UNSUPPORTED if the capture was spoilt; the
 * stream is usable again either way. */
attn_status device_capture_end(const struct device *device, attn_stream stream,
                               struct device_graph **graph, attn_error *error);

/* Enqueue all of the graph's work, with the arguments it was captured with. */
attn_status device_graph_launch(const struct device *device, const struct device_graph *graph,
                                attn_stream stream, attn_error *error);

/* Pieces of work in it. */
uint64_t device_graph_num_nodes(const struct device *device, const struct device_graph *graph);

/* Its launches are done. NULL is accepted. */
void device_graph_destroy(const struct device *device, struct device_graph *graph);

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Load the `size` bytes of an image (on CUDA PTX, a cubin or a fatbin) that holds kernels; `what`
 * names it in messages. Not while the calling thread captures. DEPENDENCY_MISSING if the driver
 * cannot use the image on this device; UNSUPPORTED on the CPU. The caller unloads the module. */
attn_status device_module_load(const struct device *device, const void *image, uint64_t size,
                               const char *what, struct device_module **module, attn_error *error);

/* Its functions are gone then; launches of them are done. NULL is accepted. */
void device_module_unload(const struct device *device, struct device_module *module);

/* The kernel of this name; it belongs to the module. DEPENDENCY_MISSING if there is none. */
attn_status device_function(const struct device *device, struct device_module *module,
                            const char *name, struct device_function **function, attn_error *error);

/* Enqueue a kernel: grid[] blocks of block[] threads, x, y, z. arguments[i] points to the kernel's
 * parameter i, which is copied. */
attn_status device_launch(const struct device *device, struct device_function *function,
                          const uint32_t grid[3], const uint32_t block[3], void **arguments,
                          attn_stream stream, attn_error *error);

/* ---- Kinds ----------------------------------------------------------------------------------- */

extern const struct device_ops device_cpu;  /* device/cpu.c */
extern const struct device_ops device_cuda; /* device/cuda.c */

#endif /* HOST_DEVICE_DEVICE_H */
