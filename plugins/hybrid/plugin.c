/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: composites that are ordinary plugins. Children come from the host through backend-ref
 * options; nothing here opens a file or knows another plugin's name.
 */
#include "hybrid.h"

#include "plugins/common/plugin_error.h"

static const attn_backend_type *const types[] = {
    &hybrid_phase_type,
    &hybrid_linear_type,
    &route_type,
    &autotune_type,
};

#define NUM_TYPES ((uint32_t)(sizeof types / sizeof types[0]))

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    if (index >= NUM_TYPES)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0..%u", index,
                           NUM_TYPES - 1);
    *type = types[index];
    return ATTN_OK;
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    if (!attn_host_speaks(host, ATTN_ABI_MAJOR))
        return plugin_fail(error, ATTN_INCOMPATIBLE_VERSION, "ABI major %u..%u: accepted %u",
                           host->abi_major_min, host->abi_major_max, ATTN_ABI_MAJOR);
    attn_plugin mine = {
        .struct_size = plugin->struct_size,
        .abi_major = ATTN_ABI_MAJOR,
        .abi_minor = ATTN_ABI_MINOR,
        .num_backends = NUM_TYPES,
        .name = "hybrid",
        .version = "0.1.0",
        .vendor = "attnhost",
        .doc = "composites: several backends as one",
        .build = __VERSION__,
        .describe = describe,
    };
    __builtin_memcpy(plugin, &mine,
                     plugin->struct_size < sizeof mine ? plugin->struct_size : sizeof mine);
    return ATTN_OK;
}
