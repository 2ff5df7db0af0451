/* SPDX-License-Identifier: Apache-2.0
 *
 * regions.c: memory between red zones.
 */
#include "host/check/cases/regions.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xFF };

static uint32_t space_of(uint32_t region)
{
    return region / ATTN_MEMORY_COUNT;
}

/* Where a region begins in its block: not before the red zone, and aligned to what was asked for but, if `exactly`, to
 * no more. */
static uint64_t begin_of(const char *memory, uint64_t alignment, bool exactly)
{
    uint64_t address = (uint64_t)(uintptr_t)memory, at = address + REGIONS_RED_ZONE;
    at = (at + alignment - 1) / alignment * alignment;
    if (exactly && at / alignment % 2 == 0)
        at += alignment;
    return at - address;
}

static attn_status make_region(struct regions *regions, uint32_t region, uint64_t bytes,
                               uint64_t aligned, attn_error *error)
{
    uint64_t alignment = regions->size.alignment[region];
    struct region_block *block = &regions->blocks[region];
    alignment = alignment > aligned ? alignment : aligned;
    block->bytes = bytes + 2 * alignment + 2 * REGIONS_RED_ZONE;
    block->memory = device_allocate(regions->device, space_of(region), block->bytes, 64);
    if (!block->memory)
        return host_fail(error, device_exhausted(regions->device, space_of(region)),
                         "no memory for region %u of %llu bytes", region,
                         (unsigned long long)bytes);
    block->begin = begin_of(block->memory, alignment, aligned == 1);
    regions->memory.base[region] = block->memory + block->begin;
    regions->memory.size[region] = bytes;
    int byte = region % ATTN_MEMORY_COUNT == ATTN_MEMORY_ZEROED ? 0 : POISON;
    const uint64_t end = block->begin + bytes;
    attn_status status = device_fill(regions->device, block->memory, REGIONS_RED, block->begin,
                                     regions->stream, error);
    if (status == ATTN_OK)
        status = device_fill(regions->device, regions->memory.base[region], byte, bytes,
                             regions->stream, error);
    return status == ATTN_OK ? device_fill(regions->device, block->memory + end, REGIONS_RED,
                                           block->bytes - end, regions->stream, error)
                             : status;
}

attn_status regions_init(struct regions *regions, const struct device *device, attn_stream stream,
                         const attn_memory_size *size, uint64_t extra, uint64_t aligned,
                         attn_error *error)
{
    attn_status status = ATTN_OK;
    *regions = (struct regions){.device = device,
                                .stream = stream,
                                .size = *size,
                                .memory = {.struct_size = sizeof regions->memory}};
    for (uint32_t r = 0; r < ATTN_REGION_COUNT && status == ATTN_OK; r++)
        if (size->size[r] > 0)
            status = make_region(regions, r, size->size[r] + extra, aligned, error);
    return status == ATTN_OK ? device_synchronize(device, stream, error) : status;
}

void regions_finish(struct regions *regions)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        if (regions->blocks[r].memory)
            device_release(regions->device, space_of(r), regions->blocks[r].memory);
    memset(regions->blocks, 0, sizeof regions->blocks);
}

attn_status regions_fill(const struct regions *regions, uint32_t use, int byte, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t r = use; r < ATTN_REGION_COUNT && status == ATTN_OK; r += ATTN_MEMORY_COUNT)
        if (regions->memory.size[r] > 0)
            status = device_fill(regions->device, regions->memory.base[r], byte,
                                 regions->memory.size[r], regions->stream, error);
    return status;
}

/* ---- Red zones ------------------------------------------------------------------------------- */

/* The first byte that is not red; -1 = all are. */
static int64_t find_damage(const char *copy, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if ((uint8_t)copy[i] != REGIONS_RED)
            return (int64_t)i;
    return -1;
}

/* Of the region the zones alone are copied: scratch may have hundreds of megabytes. */
static attn_status check_region(const struct regions *regions, uint32_t region, attn_error *error)
{
    const struct region_block *block = &regions->blocks[region];
    const uint64_t size = regions->memory.size[region], end = block->begin + size;
    char *copy = malloc(block->bytes - size);
    if (!copy)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a copy of a region");
    char *zone = copy + block->begin;
    attn_status status =
        device_copy(regions->device, copy, block->memory, block->begin, regions->stream, error);
    if (status == ATTN_OK)
        status = device_copy_wait(regions->device, zone, block->memory + end, block->bytes - end,
                                  regions->stream, error);
    int64_t before = find_damage(copy, block->begin);
    int64_t behind = find_damage(zone, block->bytes - end);
    free(copy);
    if (status == ATTN_OK && before >= 0)
        return host_fail(error, ATTN_INTERNAL,
                         "region %u of its memory was written to %lld bytes before its beginning",
                         region, (long long)block->begin - before);
    if (status == ATTN_OK && behind >= 0)
        return host_fail(error, ATTN_INTERNAL,
                         "region %u of its memory, %llu bytes, was written to at byte %lld", region,
                         (unsigned long long)size, (long long)(size + (uint64_t)behind));
    return status;
}

uint32_t regions_damage(const struct regions *regions)
{
    uint32_t r = 0;
    while (r < ATTN_REGION_COUNT &&
           (!regions->blocks[r].memory || check_region(regions, r, NULL) == ATTN_OK))
        r++;
    return r;
}

attn_status regions_check(const struct regions *regions, attn_error *error)
{
    uint32_t damaged = regions_damage(regions);
    return damaged < ATTN_REGION_COUNT ? check_region(regions, damaged, error) : ATTN_OK;
}
