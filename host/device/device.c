/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: the table of kinds of devices, and the calls through it.
 */
#include "host/device/device.h"

#include "host/base/error.h"
#include "host/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct device_ops *const kinds[] = {&device_cpu, &device_cuda};

#define NUM_KINDS (sizeof kinds / sizeof *kinds)

static const struct device_ops *find_kind(int32_t type)
{
    for (size_t k = 0; k < NUM_KINDS; k++)
        if (kinds[k]->type == type)
            return kinds[k];
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status device_describe(int32_t type, int32_t id, attn_device *info, attn_error *error)
{
    const struct device_ops *ops = find_kind(type);
    if (!ops)
        return host_fail(error, ATTN_DEPENDENCY_MISSING,
                         "device: %s (type %d) %s; accepted: %s (%d), %s (%d)",
                         attn_device_name(type), type,
                         attn_device_is_memory(type) ? "is memory, not a device"
                                                     : "cannot be driven by this host",
                         attn_device_name(kinds[0]->type), kinds[0]->type,
                         attn_device_name(kinds[1]->type), kinds[1]->type);
    attn_device made = {.struct_size = sizeof made, .type = type, .id = id};
    attn_status status = ops->describe(&made, error);
    if (status == ATTN_OK)
        *info = made;
    return status;
}

void device_identify(const attn_device *info, struct device_names *names)
{
    const struct device_ops *ops = find_kind(info->type);
    memset(names, 0, sizeof *names);
    if (ops)
        ops->identify(info, names);
}

attn_status device_open(int32_t type, int32_t id, struct device **device, attn_error *error)
{
    attn_device info;
    attn_status status = device_describe(type, id, &info, error);
    if (status != ATTN_OK)
        return status;
    struct device *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "device: out of memory");
    made->type = type;
    made->id = id;
    made->ops = find_kind(type);
    made->info = info;
    status = made->ops->open(made, error);
    if (status != ATTN_OK)
        free(made);
    else
        *device = made;
    return status;
}

void device_close(struct device *device)
{
    if (!device)
        return;
    device->ops->close(device);
    free(device);
}

attn_status device_enter(const struct device *device, attn_error *error)
{
    return device->ops->enter(device, error);
}

void device_leave(const struct device *device)
{
    device->ops->leave(device);
}

int device_is_entered(const struct device *device)
{
    return device->ops->is_entered(device);
}

int device_is_lost(const struct device *device)
{
    return device->ops->is_lost(device);
}

attn_status device_reset(struct device *device, attn_error *error)
{
    return device->ops->reset(device, error);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

void *device_allocate(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment)
{
    const struct device_allocator *other = device->allocator;
    if (!other)
        return device->ops->allocate(device, space, size, alignment);
    void *memory =
        other->allocate(other->ctx, device->type, device->id, space, size ? size : 1, alignment);
    if ((uintptr_t)memory % alignment == 0)
        return memory;
    device_release(device, space, memory);
    return NULL;
}

void device_release(const struct device *device, uint32_t space, void *memory)
{
    const struct device_allocator *other = device->allocator;
    if (memory && other)
        other->release(other->ctx, device->type, device->id, space, memory);
    else if (memory)
        device->ops->release(device, space, memory);
}

attn_status device_exhausted(const struct device *device, uint32_t space)
{
    if (device_is_lost(device))
        return ATTN_DEVICE_LOST;
    return device->type == ATTN_DEVICE_CPU || space != ATTN_SPACE_DEVICE
               ? ATTN_OUT_OF_HOST_MEMORY
               : ATTN_OUT_OF_DEVICE_MEMORY;
}

attn_status device_no_memory(const struct device *device, uint32_t space, attn_error *error,
                             const char *format, ...)
{
    char text[256];
    va_list args;
    attn_status status = device_exhausted(device, space);
    if (status == ATTN_DEVICE_LOST)
        return host_fail(error, status, "the device was lost before memory was allocated on it");
    va_start(args, format);
    text_vformat(text, sizeof text, format, args);
    va_end(args);
    return host_fail(error, status, "%s%s", text,
                     device->allocator ? ": attnhost_params.allocate returned no aligned memory"
                                       : "");
}

attn_status device_memory(const struct device *device, uint64_t *free_bytes, uint64_t *total_bytes,
                          attn_error *error)
{
    return device->ops->memory(device, free_bytes, total_bytes, error);
}

attn_status device_fill(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error)
{
    return size ? device->ops->fill(device, memory, byte, size, stream, error) : ATTN_OK;
}

attn_status device_fill_now(const struct device *device, void *memory, int byte, uint64_t size,
                            attn_error *error)
{
    attn_stream stream = NULL;
    attn_status status = device_stream_create(device, &stream, error);
    if (status != ATTN_OK)
        return status;
    status = device_fill(device, memory, byte, size, stream, error);
    attn_status waited = device_synchronize(device, stream, status ? NULL : error);
    device_stream_destroy(device, stream);
    return status == ATTN_OK ? waited : status;
}

attn_status device_copy(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error)
{
    return size ? device->ops->copy(device, to, from, size, stream, error) : ATTN_OK;
}

attn_status device_copy_wait(const struct device *device, void *to, const void *from, uint64_t size,
                             attn_stream stream, attn_error *error)
{
    attn_status status = device_copy(device, to, from, size, stream, error);
    return status == ATTN_OK ? device_synchronize(device, stream, error) : status;
}

/* ---- Streams and events ---------------------------------------------------------------------- */

attn_status device_synchronize(const struct device *device, attn_stream stream, attn_error *error)
{
    return device->ops->synchronize(device, stream, error);
}

attn_status device_stream_create(const struct device *device, attn_stream *stream,
                                 attn_error *error)
{
    return device->ops->stream_create(device, stream, error);
}

void device_stream_destroy(const struct device *device, attn_stream stream)
{
    if (stream)
        device->ops->stream_destroy(device, stream);
}

attn_status device_event_create(const struct device *device, int timed, struct device_event **event,
                                attn_error *error)
{
    return device->ops->event_create(device, timed, event, error);
}

void device_event_destroy(const struct device *device, struct device_event *event)
{
    if (event)
        device->ops->event_destroy(device, event);
}

attn_status device_event_record(const struct device *device, struct device_event *event,
                                attn_stream stream, attn_error *error)
{
    return device->ops->event_record(device, event, stream, error);
}

attn_status device_event_query(const struct device *device, struct device_event *event, int *done,
                               attn_error *error)
{
    return device->ops->event_query(device, event, done, error);
}

attn_status device_event_synchronize(const struct device *device, struct device_event *event,
                                     attn_error *error)
{
    return device->ops->event_synchronize(device, event, error);
}

attn_status device_event_elapsed(const struct device *device, struct device_event *start,
                                 struct device_event *end, double *microseconds, attn_error *error)
{
    return device->ops->event_elapsed(device, start, end, microseconds, error);
}

attn_status device_stream_wait(const struct device *device, attn_stream stream,
                               struct device_event *event, attn_error *error)
{
    return device->ops->stream_wait(device, stream, event, error);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

attn_status device_capture_begin(const struct device *device, attn_stream stream, attn_error *error)
{
    return device->ops->capture_begin(device, stream, error);
}

attn_status device_capture_end(const struct device *device, attn_stream stream,
                               struct device_graph **graph, attn_error *error)
{
    return device->ops->capture_end(device, stream, graph, error);
}

attn_status device_graph_launch(const struct device *device, const struct device_graph *graph,
                                attn_stream stream, attn_error *error)
{
    return device->ops->graph_launch(device, graph, stream, error);
}

uint64_t device_graph_num_nodes(const struct device *device, const struct device_graph *graph)
{
    return device->ops->graph_num_nodes(graph);
}

void device_graph_destroy(const struct device *device, struct device_graph *graph)
{
    if (graph)
        device->ops->graph_destroy(device, graph);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

attn_status device_module_load(const struct device *device, const void *image, uint64_t size,
                               const char *what, struct device_module **module, attn_error *error)
{
    return device->ops->module_load(device, image, size, what, module, error);
}

void device_module_unload(const struct device *device, struct device_module *module)
{
    if (module)
        device->ops->module_unload(device, module);
}

attn_status device_function(const struct device *device, struct device_module *module,
                            const char *name, struct device_function **function, attn_error *error)
{
    return device->ops->function(device, module, name, function, error);
}

attn_status device_launch(const struct device *device, struct device_function *function,
                          const uint32_t grid[3], const uint32_t block[3], void **arguments,
                          attn_stream stream, attn_error *error)
{
    return device->ops->launch(device, function, grid, block, arguments, stream, error);
}
