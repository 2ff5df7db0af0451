/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_entry.h: identification of our plugins. plugin_entry.c has their common data: version and
 * vendor.
 */
#ifndef PLUGINS_PLUGIN_ENTRY_H
#define PLUGINS_PLUGIN_ENTRY_H

#include "attn_plugin_util.h"

/* attn_util_entry() with version and vendor filled in where they are not ours: `mine` has set name,
 * doc, num_backends and the calls. INCOMPATIBLE_VERSION. */
attn_status plugin_answer(const attn_host_info *host, const attn_plugin *mine, attn_plugin *plugin,
                          attn_error *error);

#endif /* PLUGINS_PLUGIN_ENTRY_H */
