/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h: memory of the devices that the host drives, behind one small table.
 *
 * A kind of device is one `struct device_ops` in a file device_<kind>.c and one row in device.c.
 * Spaces are the ABI's ATTN_SPACE_*; on the CPU all three are host memory.
 */
#ifndef HOST_DEVICE_H
#define HOST_DEVICE_H

#include "attn_plugin.h"

struct device;

/* What a kind of device can do. `device` is an open one of that kind. */
struct device_ops {
    int32_t type; /* ATTN_DEVICE_* */

    /* Make device->info and device->state; the rest of *device is set already. */
    attn_status (*open)(struct device *device, attn_error *error);
    void (*close)(struct device *device);

    /* NULL when exhausted. `alignment` is a power of two; size 0 gives a unique address. */
    void *(*allocate)(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment);
    void (*release)(const struct device *device, uint32_t space, void *memory);

    /* In order with the stream's other work; memory is the device's or the host's. */
    attn_status (*fill)(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error);
    attn_status (*copy)(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error);

    /* Wait for all work of the stream. */
    attn_status (*synchronize)(const struct device *device, attn_stream stream, attn_error *error);
};

/* An open device. */
struct device {
    int32_t type; /* ATTN_DEVICE_* */
    int32_t id;   /* CUDA ordinal, 0 on the CPU */
    const struct device_ops *ops;
    attn_device info; /* as for attn_problem.device */
    void *state;      /* of the kind's own */
};

/* Open a device of this machine. DEPENDENCY_MISSING if there is no driver for its type in this
 * host, or no such device. The caller closes it. */
attn_status device_open(int32_t type, int32_t id, struct device **device, attn_error *error);

/* All its memory has been released. NULL is accepted. */
void device_close(struct device *device);

/* The table's slots; `release` accepts NULL. */
void *device_allocate(const struct device *device, uint32_t space, uint64_t size,
                      uint64_t alignment);
void device_release(const struct device *device, uint32_t space, void *memory);
attn_status device_fill(const struct device *device, void *memory, int byte, uint64_t size,
                        attn_stream stream, attn_error *error);
attn_status device_copy(const struct device *device, void *to, const void *from, uint64_t size,
                        attn_stream stream, attn_error *error);
attn_status device_synchronize(const struct device *device, attn_stream stream, attn_error *error);

/* The code for memory of this space that is exhausted. */
attn_status device_exhausted(const struct device *device, uint32_t space);

/* device_cpu.c */
extern const struct device_ops device_cpu;

#endif /* HOST_DEVICE_H */
