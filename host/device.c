/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: the table of kinds of devices, and the calls through it.
 */
#include "host/device.h"

#include "host/error.h"

#include <stdlib.h>

static const struct device_ops *const kinds[] = {&device_cpu};

#define NUM_KINDS (sizeof kinds / sizeof *kinds)

static const struct device_ops *find_kind(int32_t type)
{
    for (size_t k = 0; k < NUM_KINDS; k++)
        if (kinds[k]->type == type)
            return kinds[k];
    return NULL;
}

attn_status device_open(int32_t type, int32_t id, struct device **device, attn_error *error)
{
    const struct device_ops *ops = find_kind(type);
    if (!ops)
        return host_fail(error, ATTN_DEPENDENCY_MISSING,
                         "device: %s cannot be driven by this host; accepted is cpu",
                         type == ATTN_DEVICE_CUDA ? "cuda" : "an unknown type");
    struct device *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "device: out of memory");
    made->type = type;
    made->id = id;
    made->ops = ops;
    made->info.struct_size = sizeof made->info;
    made->info.type = type;
    made->info.id = id;
    attn_status status = ops->open(made, error);
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

void *device_allocate(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment)
{
    return device->ops->allocate(device, space, size, alignment);
}

void device_release(const struct device *device, uint32_t space, void *memory)
{
    if (memory)
        device->ops->release(device, space, memory);
}

attn_status device_fill(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error)
{
    return device->ops->fill(device, memory, byte, size, stream, error);
}

attn_status device_copy(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error)
{
    return device->ops->copy(device, to, from, size, stream, error);
}

attn_status device_synchronize(const struct device *device, attn_stream stream, attn_error *error)
{
    return device->ops->synchronize(device, stream, error);
}

attn_status device_exhausted(const struct device *device, uint32_t space)
{
    return device->type == ATTN_DEVICE_CPU || space != ATTN_SPACE_DEVICE
               ? ATTN_OUT_OF_HOST_MEMORY
               : ATTN_OUT_OF_DEVICE_MEMORY;
}
