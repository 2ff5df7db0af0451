/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/plugin_entry.h"
#include "plugins/common/plugin_error.h"

#include <string.h>

attn_status plugin_answer(const attn_host_info *host, const attn_plugin *mine, attn_plugin *plugin,
                          attn_error *error)
{
    if (!attn_host_speaks(host, ATTN_ABI_MAJOR))
        return plugin_fail(error, ATTN_INCOMPATIBLE_VERSION, "ABI major %u..%u: accepted %u",
                           host->abi_major_min, host->abi_major_max, ATTN_ABI_MAJOR);
    attn_plugin whole = *mine;
    whole.struct_size = plugin->struct_size;
    whole.abi_major = ATTN_ABI_MAJOR;
    whole.abi_minor = ATTN_ABI_MINOR;
    whole.version = mine->version ? mine->version : "0.1.0";
    whole.vendor = mine->vendor ? mine->vendor : "attnhost";
    whole.build = __VERSION__;
    memcpy(plugin, &whole, plugin->struct_size < sizeof whole ? plugin->struct_size : sizeof whole);
    return ATTN_OK;
}

attn_status plugin_describe(const attn_backend_type *const *types, uint32_t count, uint32_t index,
                            const attn_backend_type **type, attn_error *error)
{
    if (index >= count && count == 1)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0", index);
    if (index >= count)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0..%u", index,
                           count - 1);
    *type = types[index];
    return ATTN_OK;
}

const void *plugin_no_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    (void)id;
    return NULL;
}
