/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_entry.h: how our plugins say who they are. What they have in common stands in
 * plugin_entry.c alone: the ABI, the version, who made them.
 */
#ifndef PLUGINS_PLUGIN_ENTRY_H
#define PLUGINS_PLUGIN_ENTRY_H

#include "attn_plugin.h"

/* attn_plugin_entry(): `mine` with the rest filled in, as far as the caller's struct goes. It has
 * set name, doc, num_backends and the calls, and version and vendor where they are not ours.
 * INCOMPATIBLE_VERSION. */
attn_status plugin_answer(const attn_host_info *host, const attn_plugin *mine, attn_plugin *plugin,
                          attn_error *error);

/* attn_plugin.describe over all of the plugin's types. INVALID_ARGUMENT past them. */
attn_status plugin_describe(const attn_backend_type *const *types, uint32_t count, uint32_t index,
                            const attn_backend_type **type, attn_error *error);

/* attn_backend_ops.get_extension of a backend that has none. */
const void *plugin_no_extension(attn_instance *instance, const char *id);

#endif /* PLUGINS_PLUGIN_ENTRY_H */
