/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_entry.c: the version and the vendor of this project's plugins.
 */
#include "plugins/common/plugin_entry.h"

attn_status plugin_answer(const attn_host_info *host, const attn_plugin *mine, attn_plugin *plugin,
                          attn_error *error)
{
    attn_plugin whole = *mine;
    whole.version = mine->version ? mine->version : "0.1.0";
    whole.vendor = mine->vendor ? mine->vendor : "attnhost";
    return attn_util_entry(host, &whole, plugin, error);
}
