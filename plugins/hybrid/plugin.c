/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: composites that are ordinary plugins. Children come from the host through backend-ref
 * options; nothing here opens a file or knows another plugin's name.
 */
#include "plugins/hybrid/core/hybrid.h"

#include "plugins/common/plugin_entry.h"

static const attn_backend_type *const types[] = {
    &hybrid_phase_type,
    &hybrid_linear_type,
    &route_type,
    &autotune_type,
};

#define NUM_TYPES ((uint32_t)(sizeof types / sizeof types[0]))

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    return attn_util_describe(types, NUM_TYPES, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = NUM_TYPES,
        .name = "hybrid",
        .doc = "composites: several backends as one",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
