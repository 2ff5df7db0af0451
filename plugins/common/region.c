/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/region.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/plugin_error.h"

#include <inttypes.h>
#include <string.h>

attn_status region_read_bounds(uint32_t kind, const attn_bounds *given, attn_bounds *bounds,
                               attn_error *error)
{
    if (kind > ATTN_METADATA_GRAPH)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "metadata kind %u: accepted 0, 1", kind);
    if (!given)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "bounds are NULL");
    COPY_SIZED(bounds, given);
    return ATTN_OK;
}

attn_status region_read_eager_bounds(uint32_t kind, const attn_bounds *given, attn_bounds *bounds,
                                     attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH)
        return plugin_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                 "graph metadata: nothing can be captured on a processor");
    return region_read_bounds(kind, given, bounds, error);
}

void region_clear_size(attn_memory_size *size)
{
    memset((char *)size + sizeof size->struct_size, 0,
           size->struct_size - sizeof size->struct_size);
}

void region_tell_size(attn_memory_size *size, uint64_t scratch, uint64_t metadata,
                      uint64_t alignment)
{
    region_clear_size(size);
    size->size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)] = scratch;
    size->alignment[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)] = alignment;
    size->size[ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)] = metadata;
    size->alignment[ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)] = alignment;
}

attn_status region_check(const attn_memory *memory, uint32_t region, const char *name,
                         uint64_t needed, uint64_t alignment, attn_error *error)
{
    if (memory->size[region] < needed || !memory->base[region]) {
        if (error && ATTN_HAS(error, attn_error, needed))
            error->needed = needed;
        return plugin_fail_field(error, ATTN_BUFFER_TOO_SMALL, ATTN_FIELD_MEMORY,
                                 "%s is %" PRIu64 " bytes: accepted %" PRIu64 " and more", name,
                                 memory->size[region], needed);
    }
    if ((uintptr_t)memory->base[region] % alignment != 0)
        return plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MEMORY,
                                 "%s is not aligned to %" PRIu64 " bytes", name, alignment);
    return ATTN_OK;
}

attn_status region_check_told(const attn_memory *memory, uint64_t scratch, uint64_t metadata,
                              uint64_t alignment, attn_error *error)
{
    attn_status status = region_check(memory, ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
                                      "device scratch", scratch, alignment, error);
    if (status == ATTN_OK)
        status = region_check(memory, ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA),
                              "host metadata", metadata, alignment, error);
    return status;
}
