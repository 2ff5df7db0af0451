/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/region.h"
#include "plugins/common/plugin_error.h"

#include <inttypes.h>

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
