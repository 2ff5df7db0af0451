/* SPDX-License-Identifier: Apache-2.0
 *
 * far_memory.c: reserving of large memory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* MAP_NORESERVE */
#endif
#include "host/check/cases/far_memory.h"

#include <stdbool.h>
#include <sys/mman.h>

enum { GUARD_BYTES = 4096 };

static bool is_cpu(const struct device *device)
{
    return device->type == ATTN_DEVICE_CPU;
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

void *far_map(const struct device *device, uint64_t bytes, uint64_t alignment)
{
    if (!is_cpu(device))
        return device_allocate(device, ATTN_SPACE_DEVICE, bytes, 256);
    uint64_t whole = whole_pages(bytes);
    char *memory = mmap(NULL, whole + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (mprotect(memory + whole, GUARD_BYTES, PROT_NONE) != 0) {
        munmap(memory, whole + GUARD_BYTES);
        return NULL;
    }
    return memory + (whole - bytes) / alignment * alignment;
}

void far_unmap(const struct device *device, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (is_cpu(device))
        munmap((char *)memory - (uintptr_t)memory % GUARD_BYTES, whole_pages(bytes) + GUARD_BYTES);
    else
        device_release(device, ATTN_SPACE_DEVICE, memory);
}

int64_t far_distance(const struct device *device, uint32_t element_size)
{
    bool has_room = is_cpu(device) || element_size == 1;
    int64_t limit = (int64_t)1 << (has_room ? 32 : 31); /* 4 GiB at least */
    return limit + limit / 8;
}
