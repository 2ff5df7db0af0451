/* SPDX-License-Identifier: Apache-2.0
 *
 * regions.h: the regions of a metadata, each between red zones.
 */
#ifndef HOST_CHECK_CASES_REGIONS_H
#define HOST_CHECK_CASES_REGIONS_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/device/device.h"

enum { REGIONS_RED = 0xA5 /* contents of red zones */, REGIONS_RED_ZONE = 64 /* bytes */ };

struct regions {
    const struct device *device;
    attn_stream stream;
    attn_memory_size size; /* that was asked for */
    attn_memory memory;    /* that is given */
    struct region_block {
        char *memory;
        uint64_t bytes;
        uint64_t begin; /* of the region itself */
    } blocks[ATTN_REGION_COUNT];
};

/* Regions of a size and `extra` bytes more. With `aligned` 1 they are aligned as asked for and no better, else to so
 * many bytes at least. ZEROED ones are zero, the others poison. OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY; they are
 * finished in either case. */
attn_status regions_init(struct regions *regions, const struct device *device, attn_stream stream,
                         const attn_memory_size *size, uint64_t extra, uint64_t aligned,
                         attn_error *error);
void regions_finish(struct regions *regions);

/* Fill the regions of a use with a byte. */
attn_status regions_fill(const struct regions *regions, uint32_t use, int byte, attn_error *error);

/* The first region whose red zones are damaged, or ATTN_REGION_COUNT; INTERNAL with the place. */
uint32_t regions_damage(const struct regions *regions);
attn_status regions_check(const struct regions *regions, attn_error *error);

#endif /* HOST_CHECK_CASES_REGIONS_H */
