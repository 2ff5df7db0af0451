/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost.c: the handle `attnhost`: creation, plugins, backends, queries.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* secure_getenv */
#endif
#include "host/embed/embed.h"

#include "host/plugin/answer.h"
#include "host/base/configured.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void embed_give(void *to, const void *from, size_t size)
{
    const size_t head = sizeof(uint32_t);
    uint32_t room = *(const uint32_t *)to;
    size_t end = room < size ? room : size;
    if (end > head)
        memcpy((char *)to + head, (const char *)from + head, end - head);
}

/* ---- Host ------------------------------------------------------------------------------------ */

const char *attnhost_version(void)
{
    return ATTNHOST_VERSION;
}

const char *attnhost_status_name(attn_status status)
{
    return host_status_name(status);
}

attn_status attnhost_create(const attnhost_params *params, attnhost **host, attn_error *error)
{
    attnhost_params given = {.struct_size = sizeof given};
    if (params)
        memcpy(&given, params,
               params->struct_size < sizeof given ? params->struct_size : sizeof given);
    if (!given.allocate != !given.release)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "attnhost_params: %s is NULL; accepted: allocate and release, or neither",
                         given.allocate ? "release" : "allocate");
    attnhost *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "attnhost: out of memory");
    attn_status status = given.parallel_for
                             ? threads_borrow(given.num_threads, given.parallel_for,
                                              given.parallel_ctx, &made->threads, error)
                             : threads_create(given.num_threads, &made->threads, error);
    if (status != ATTN_OK) {
        free(made);
        return status;
    }
    host_log_init(&made->log, given.log, given.log_ctx, given.log_level);
    registry_init(&made->registry);
    composer_init(&made->composer, &made->registry, made->threads, &made->log);
    made->allocator = (struct device_allocator){given.allocate, given.release, given.memory_ctx};
    made->composer.allocator = given.allocate ? &made->allocator : NULL;
    *host = made;
    return ATTN_OK;
}

void attnhost_destroy(attnhost *host)
{
    if (!host)
        return;
    composer_finish(&host->composer);
    registry_finish(&host->registry);
    threads_destroy(host->threads);
    host_log_finish(&host->log);
    free(host);
}

/* ---- Plugins --------------------------------------------------------------------------------- */

attn_status attnhost_load_plugin(attnhost *host, const char *file, attn_error *error)
{
    return registry_load_file(&host->registry, file, error);
}

attn_status attnhost_load_directory(attnhost *host, const char *directory, attn_error *error)
{
    return registry_load_directory(&host->registry, directory, error);
}

static int exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* Load a folder of the search path. Plugins loaded before, such as files that an ini names, take
 * precedence without a message. */
static attn_status search_folder(attnhost *host, const char *folder, attn_error *error)
{
    host->registry.num_shadowing = host->registry.num_plugins;
    attn_status status = attnhost_load_directory(host, folder, error);
    host->registry.num_shadowing = 0;
    return status;
}

/* Every folder of a list separated by colons. */
static attn_status load_folders(attnhost *host, const char *list, attn_error *error)
{
    char *copy = strdup(list), *rest = copy, *folder;
    attn_status status =
        copy ? ATTN_OK : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "attnhost: out of memory");
    while (status == ATTN_OK && (folder = strsep(&rest, ":"))) {
        if (!*folder)
            continue;
        if (*folder != '/')
            status = host_fail(error, ATTN_CONFIG_ERROR,
                               "ATTNHOST_PLUGIN_PATH: '%s' is relative; accepted: absolute folders",
                               folder);
        else if ((status = search_folder(host, folder, error)) != ATTN_OK)
            host_fail_prefix(error, "ATTNHOST_PLUGIN_PATH");
    }
    free(copy);
    return status;
}

attn_status embed_load_found(attnhost *host, const char *folder, attn_error *error)
{
    const char *list = secure_getenv("ATTNHOST_PLUGIN_PATH");
    attn_status status = list ? load_folders(host, list, error) : ATTN_OK;
    if (status == ATTN_OK && exists(folder))
        status = search_folder(host, folder, error);
    return status;
}

attn_status attnhost_load_installed(attnhost *host, attn_error *error)
{
    return embed_load_found(host, ATTNHOST_PLUGIN_DIR, error);
}

/* The value of a hexadecimal digit, or -1. */
static int hex_value(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return found ? (int)(found - digits) : -1;
}

attn_status attnhost_pin_plugin(attnhost *host, const char *file, const char *sha256,
                                attn_error *error)
{
    uint8_t bytes[32];
    int good = strlen(sha256) == 64;
    for (int i = 0; i < 32 && good; i++) {
        int high = hex_value(sha256[2 * i]), low = hex_value(sha256[2 * i + 1]);
        good = high >= 0 && low >= 0;
        bytes[i] = (uint8_t)(good ? high << 4 | low : 0);
    }
    if (!good)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: '%.80s' is not a SHA-256; accepted: 64 hexadecimal digits", file,
                         sha256);
    return registry_pin(&host->registry, file, bytes, error);
}

uint32_t attnhost_num_plugins(const attnhost *host)
{
    return host->registry.num_plugins;
}

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

static uint32_t first_type_of(const struct registry *registry, uint32_t plugin)
{
    uint32_t t = 0;
    while (t < registry->num_types && registry->types[t].plugin_index < plugin)
        t++;
    return t;
}

attn_status attnhost_plugin(const attnhost *host, uint32_t index, attnhost_plugin_info *info,
                            attn_error *error)
{
    if (index >= host->registry.num_plugins)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "plugin %u: only %u plugins are loaded",
                         index, host->registry.num_plugins);
    const struct loader_plugin *plugin = host->registry.plugins[index];
    attnhost_plugin_info known = {
        .struct_size = sizeof known,
        .status = plugin->status,
        .reason = plugin->reason,
        .file = plugin->file,
        .name = text_or_empty(plugin->table.name),
        .version = text_or_empty(plugin->table.version),
        .vendor = text_or_empty(plugin->table.vendor),
        .doc = text_or_empty(plugin->table.doc),
        .build = plugin->table.build,
        .abi_major = plugin->table.abi_major,
        .abi_minor = plugin->table.abi_minor,
        .num_backends = plugin->num_types,
        .first_backend = first_type_of(&host->registry, index),
    };
    embed_give(info, &known, sizeof known);
    return ATTN_OK;
}

uint32_t attnhost_num_types(const attnhost *host)
{
    return host->registry.num_types;
}

attn_status attnhost_type(const attnhost *host, uint32_t index, attnhost_type_info *info,
                          attn_error *error)
{
    if (index >= host->registry.num_types)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "backend type %u: only %u types are loaded",
                         index, host->registry.num_types);
    const struct registry_type *type = &host->registry.types[index];
    attnhost_type_info known = {
        .struct_size = sizeof known, .plugin = type->plugin_index, .type = type->type};
    embed_give(info, &known, sizeof known);
    return ATTN_OK;
}

/* ---- Backends -------------------------------------------------------------------------------- */

attn_status attnhost_define_backend(attnhost *host, const char *name, const char *type,
                                    const char *const *pairs, uint32_t num_options,
                                    attn_error *error)
{
    char *base = realpath(".", NULL);
    int why = base ? 0 : errno;
    struct options_text *texts = calloc((size_t)num_options + 1, sizeof *texts);
    attn_status status = ATTN_OK;
    if (!texts || why == ENOMEM)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "attnhost: out of memory");
    else if (!base && num_options > 0)
        status = host_fail(error, ATTN_BAD_STATE,
                           "attnhost_define_backend: %s: the working directory, which relative "
                           "paths start from, cannot be found: %s",
                           name, strerror(why));
    for (uint32_t o = 0; o < num_options && status == ATTN_OK; o++) {
        const char *key = pairs[2 * o], *value = pairs[2 * o + 1];
        texts[o] = (struct options_text){key, value, "attnhost_define_backend", base};
        if (!key || !value)
            status = host_fail(error, ATTN_INVALID_ARGUMENT,
                               "attnhost_define_backend: %s: option %u has no %s", name, o,
                               key ? "value" : "key");
    }
    if (status == ATTN_OK)
        status = composer_define(&host->composer, name, type, "attnhost_define_backend", texts,
                                 num_options, error);
    free(texts);
    free(base);
    return status;
}

/* ---- Questions ------------------------------------------------------------------------------- */

attn_status attnhost_device_init(attn_device *device, int32_t type, int32_t id, attn_error *error)
{
    attn_device info;
    attn_status status = device_describe(type, id, &info, error);
    if (status == ATTN_OK)
        embed_give(device, &info, sizeof info);
    return status;
}

attn_status attnhost_query(const attnhost *host, const char *name, const attn_problem *problem,
                           attn_verdict *verdict, attn_error *error)
{
    struct compose_node *root;
    attn_status status = embed_check_problems(problem, 1, error);
    if (status == ATTN_OK)
        status = compose_resolve(&host->composer, name, NULL, &root, error);
    if (status != ATTN_OK)
        return status;
    status = compose_query(root, problem, verdict, error);
    if (status != ATTN_OK)
        compose_explain(root, error);
    compose_destroy(root);
    return status;
}
