/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.c: see registry.h. Lists are short (tens of entries), so they are searched in order.
 */
#include "host/plugin/registry.h"

#include "host/base/error.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_status out_of_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "registry: out of memory");
}

void registry_init(struct registry *registry)
{
    memset(registry, 0, sizeof *registry);
}

void registry_finish(struct registry *registry)
{
    for (uint32_t p = 0; p < registry->num_plugins; p++)
        loader_close(registry->plugins[p]);
    for (uint32_t p = 0; p < registry->num_pins; p++)
        free(registry->pins[p].file);
    free(registry->plugins);
    free(registry->types);
    free(registry->pins);
    registry_init(registry);
}

/* ---- Find ------------------------------------------------------------------------------------ */

const struct registry_type *registry_find(const struct registry *registry, const char *name)
{
    for (uint32_t t = 0; t < registry->num_types; t++)
        if (strcmp(registry->types[t].type->name, name) == 0)
            return &registry->types[t];
    return NULL;
}

const struct loader_plugin *registry_find_file(const struct registry *registry, const char *file)
{
    const struct loader_plugin *found = NULL;
    char *resolved = realpath(file, NULL);
    const char *wanted = resolved ? resolved : file;
    for (uint32_t p = 0; p < registry->num_plugins && !found; p++)
        if (strcmp(registry->plugins[p]->file, wanted) == 0)
            found = registry->plugins[p];
    free(resolved);
    return found;
}

/* Is `name` the last part of `file`, with or without ".so"? */
static bool is_base_name(const char *file, const char *name)
{
    const char *slash = strrchr(file, '/');
    const char *base = slash ? slash + 1 : file;
    size_t length = strlen(name);
    return strncmp(base, name, length) == 0 &&
           (base[length] == '\0' || strcmp(base + length, ".so") == 0);
}

const struct loader_plugin *registry_find_plugin(const struct registry *registry, const char *name)
{
    for (uint32_t p = 0; p < registry->num_plugins; p++) {
        const struct loader_plugin *plugin = registry->plugins[p];
        if (plugin->table.name && strcmp(plugin->table.name, name) == 0)
            return plugin;
    }
    for (uint32_t p = 0; p < registry->num_plugins; p++)
        if (is_base_name(registry->plugins[p]->file, name))
            return registry->plugins[p];
    return strchr(name, '/') ? registry_find_file(registry, name) : NULL;
}

/* ---- Pins ------------------------------------------------------------------------------------ */

static const uint8_t *find_pin(const struct registry *registry, const char *file)
{
    for (uint32_t p = 0; p < registry->num_pins; p++)
        if (strcmp(registry->pins[p].file, file) == 0)
            return registry->pins[p].sha256;
    return NULL;
}

attn_status registry_pin(struct registry *registry, const char *file, const uint8_t sha256[32],
                         attn_error *error)
{
    if (registry_find_file(registry, file))
        return host_fail(error, ATTN_BAD_STATE, "%s: is already loaded; pin it before loading it",
                         file);
    char *resolved = realpath(file, NULL);
    if (!resolved)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: cannot be pinned: %s; accepted: a plugin's file", file,
                         strerror(errno));
    struct registry_pin *pins =
        realloc(registry->pins, (registry->num_pins + 1) * sizeof *registry->pins);
    if (!pins) {
        free(resolved);
        return out_of_memory(error);
    }
    registry->pins = pins;
    pins[registry->num_pins].file = resolved;
    memcpy(pins[registry->num_pins].sha256, sha256, 32);
    registry->num_pins++;
    return ATTN_OK;
}

/* ---- Load ------------------------------------------------------------------------------------ */

/* The file that has the plugin's backends by its place in the search path, or NULL. */
static const char *find_shadow(const struct registry *registry, const struct loader_plugin *plugin)
{
    const char *file = NULL;
    for (uint32_t t = 0; t < plugin->num_types; t++) {
        const struct registry_type *taken = registry_find(registry, plugin->types[t]->name);
        if (!taken || taken->plugin_index >= registry->num_shadowing)
            return NULL;
        file = file ? file : taken->plugin->file;
    }
    return file;
}

/* A name that is taken makes the later plugin a refused one. */
static attn_status refuse_duplicates(const struct registry *registry, struct loader_plugin *plugin)
{
    plugin->shadowed_by = find_shadow(registry, plugin);
    if (plugin->shadowed_by)
        return loader_refuse(plugin, ATTN_CONFIG_ERROR,
                             "%s: shadowed by %s, which already provides its backends",
                             plugin->file, plugin->shadowed_by);
    for (uint32_t t = 0; t < plugin->num_types; t++) {
        const char *name = plugin->types[t]->name;
        const struct registry_type *taken = registry_find(registry, name);
        if (taken)
            return loader_refuse(plugin, ATTN_CONFIG_ERROR,
                                 "%s: backend type %s is already provided by %s; accepted: one "
                                 "backend type per name",
                                 plugin->file, name, taken->plugin->file);
        for (uint32_t before = 0; before < t; before++)
            if (strcmp(plugin->types[before]->name, name) == 0)
                return loader_refuse(plugin, ATTN_CONFIG_ERROR,
                                     "%s: backend types %u and %u are both named %s; accepted: one "
                                     "backend type per name",
                                     plugin->file, before, t, name);
    }
    return ATTN_OK;
}

/* Room for one more plugin and all its types, so that adding cannot fail half-way. */
static attn_status reserve(struct registry *registry, uint32_t num_types, attn_error *error)
{
    struct loader_plugin **plugins =
        realloc(registry->plugins, (registry->num_plugins + 1) * sizeof *plugins);
    if (plugins)
        registry->plugins = plugins;
    struct registry_type *types =
        realloc(registry->types, (registry->num_types + num_types + 1) * sizeof *types);
    if (types)
        registry->types = types;
    return plugins && types ? ATTN_OK : out_of_memory(error);
}

static void add(struct registry *registry, struct loader_plugin *plugin)
{
    uint32_t index = registry->num_plugins++;
    registry->plugins[index] = plugin;
    for (uint32_t t = 0; t < plugin->num_types; t++)
        registry->types[registry->num_types++] =
            (struct registry_type){plugin->types[t], plugin, index};
}

static attn_status report(const struct loader_plugin *plugin, attn_error *error)
{
    if (plugin->status == ATTN_OK)
        return ATTN_OK;
    return host_fail(error, plugin->status, "%s", plugin->reason);
}

attn_status registry_load_file(struct registry *registry, const char *file, attn_error *error)
{
    const struct loader_plugin *known = registry_find_file(registry, file);
    if (known)
        return report(known, error);
    char *resolved = realpath(file, NULL);
    const uint8_t *pin = resolved ? find_pin(registry, resolved) : NULL;
    free(resolved);
    struct loader_plugin *plugin;
    attn_status status = loader_open(file, pin, &plugin, error);
    if (status != ATTN_OK)
        return status;
    if (refuse_duplicates(registry, plugin) == ATTN_OUT_OF_HOST_MEMORY)
        status = out_of_memory(error);
    if (status == ATTN_OK)
        status = reserve(registry, plugin->num_types, error);
    if (status != ATTN_OK) {
        loader_close(plugin);
        return status;
    }
    add(registry, plugin);
    return report(plugin, error);
}

static int is_shared_object(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 3 && entry->d_name[0] != '.' && strcmp(entry->d_name + length - 3, ".so") == 0;
}

/* Byte order, so that the order of plugins does not depend on the locale. */
static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static attn_status load_entry(struct registry *registry, const char *directory, const char *name,
                              attn_error *error)
{
    size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    if (!path)
        return out_of_memory(error);
    snprintf(path, size, "%s/%s", directory, name);
    attn_status status = registry_load_file(registry, path, error);
    free(path);
    return status;
}

/* Refused plugins stay on record, and the others are loaded. */
static attn_status load_entries(struct registry *registry, const char *directory,
                                struct dirent **entries, int count, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int e = 0; e < count; e++) {
        if (status != ATTN_OUT_OF_HOST_MEMORY)
            status = load_entry(registry, directory, entries[e]->d_name, NULL);
        free(entries[e]);
    }
    free(entries);
    return status == ATTN_OUT_OF_HOST_MEMORY ? out_of_memory(error) : ATTN_OK;
}

attn_status registry_load_directory(struct registry *registry, const char *directory,
                                    attn_error *error)
{
    struct dirent **entries;
    char *resolved = realpath(directory, NULL);
    if (!resolved)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: a folder of plugins",
                         directory, strerror(errno));
    attn_status status = loader_check_folder(resolved, error);
    if (status == ATTN_OK) {
        int count = scandir(resolved, &entries, is_shared_object, compare_names);
        status = count < 0
                     ? host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: a folder of plugins",
                                 resolved, strerror(errno))
                     : load_entries(registry, resolved, entries, count, error);
    } else {
        status = ATTN_CONFIG_ERROR; /* the user named a folder that will not do */
        if (error)
            error->code = status;
    }
    free(resolved);
    return status;
}
