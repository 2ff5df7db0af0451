/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.h: all plugins on record, and all backend types by name.
 */
#ifndef HOST_PLUGIN_REGISTRY_H
#define HOST_PLUGIN_REGISTRY_H

#include "host/plugin/loader.h"

#include <stddef.h>

/* A backend type of a usable plugin. */
struct registry_type {
    const attn_backend_type *type;
    const struct loader_plugin *plugin;
    uint32_t plugin_index;
};

/* A file that is loaded only with this content. */
struct registry_pin {
    char *file; /* absolute */
    uint8_t sha256[32];
};

/* Read by everyone, written by the functions below. Zeroed = empty. */
struct registry {
    struct loader_plugin **plugins; /* in the order of loading, refused ones too */
    uint32_t num_plugins;
    struct registry_type *types; /* in the order of loading */
    uint32_t num_types;
    struct registry_pin *pins;
    uint32_t num_pins;
    uint32_t num_shadowing; /* plugins [0, num_shadowing) come before what is loaded now in a search
                             * path: a file whose backends they all provide is shadowed, a refusal
                             * that is not reported */
};

void registry_init(struct registry *registry);
void registry_finish(struct registry *registry);

/* Load `file` only with this content from now on. BAD_STATE if it is loaded already. */
attn_status registry_pin(struct registry *registry, const char *file, const uint8_t sha256[32],
                         attn_error *error);

/* Load a file and put it on record, unless it is there. Returns the record's status and writes its
 * reason; or OUT_OF_HOST_MEMORY. A plugin with a backend of a name that is taken is refused. */
attn_status registry_load_file(struct registry *registry, const char *file, attn_error *error);

/* Load every *.so of a folder, by name. A plugin that is refused is no error. CONFIG_ERROR if the
 * folder cannot be read or trusted. */
attn_status registry_load_directory(struct registry *registry, const char *directory,
                                    attn_error *error);

/* The backend type of this name, or NULL. */
const struct registry_type *registry_find(const struct registry *registry, const char *name);

/* The plugin of this name or file, or NULL: an absolute or relative path, the file's own name with
 * or without ".so", or the name it gives itself. */
const struct loader_plugin *registry_find_plugin(const struct registry *registry, const char *name);

/* The plugin whose file this is, or NULL. `file` is resolved first. */
const struct loader_plugin *registry_find_file(const struct registry *registry, const char *file);

#endif /* HOST_PLUGIN_REGISTRY_H */
