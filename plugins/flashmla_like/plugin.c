/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: flashmla_like, latent attention on Hopper: its names, and the one exported function.
 */
#include "plugins/flashmla_like/type.h"

#include "attn_plugin_util.h"
#include "plugins/common/plugin_entry.h"

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&flashmla_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "flashmla_like",
        .doc = "latent attention by kernels compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
