/* SPDX-License-Identifier: Apache-2.0
 *
 * open_host.c: loading of plugins and definition of backends.
 */
#include "host/select/open_host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/base/data_files.h"
#include "host/base/error.h"
#include "host/embed/embed.h"
#include "host/plugin/scan.h"
#include "host/select/routes.h"
#include "host/base/configured.h"

/* ---- Plugins --------------------------------------------------------------------------------- */

/* "module:Class", which the ini's reader took for a file of its folder; NULL = it is a file. */
static const char *module_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    return loader_is_module(name) ? name : NULL;
}

/* A path of [plugins] is a folder, a file, or a class of a Python module. A file that is refused
 * stays on record. */
static attn_status load_path(attnhost *host, const struct config *config, const char *path,
                             attn_error *error)
{
    struct stat info;
    const char *module = module_of(path);
    bool exists = stat(path, &info) == 0;
    if (!exists && !module)
        return config_fail(config, "plugins.path", error,
                           "%s: %s; accepted: a folder of plugins, or a plugin's file", path,
                           strerror(errno));
    path = exists ? path : module;
    if (!exists || !S_ISDIR(info.st_mode)) {
        attn_status status = attnhost_load_plugin(host, path, NULL);
        return status == ATTN_OUT_OF_HOST_MEMORY
                   ? host_fail(error, status, "%s: out of memory", path)
                   : ATTN_OK;
    }
    host_error said;
    host_error_init(&said);
    attn_status status = attnhost_load_directory(host, path, &said.base);
    if (status == ATTN_CONFIG_ERROR)
        return config_fail(config, "plugins.path", error, "%s", host_error_text(&said));
    return status == ATTN_OK ? status : host_fail(error, status, "%s", host_error_text(&said));
}

attn_status open_host_load_plugins(attnhost *host, const struct config *config, attn_error *error)
{
    const struct config_plugins *plugins = &config->plugins;
    attn_status status = ATTN_OK;
    scan_set_limit(plugins->scan_seconds);
    for (size_t p = 0; p < plugins->pins.count && status == ATTN_OK; p++) {
        const struct config_pin *pin = &plugins->pins.items[p];
        host_error said;
        host_error_init(&said);
        if (registry_pin(&host->registry, pin->file, pin->sha256, &said.base) != ATTN_OK)
            status = host_fail(error, ATTN_CONFIG_ERROR, "%s: plugins.pin.%lld: %s", pin->place,
                               (long long)pin->number, host_error_text(&said));
    }
    for (size_t p = 0; p < plugins->path.count && status == ATTN_OK; p++)
        status = load_path(host, config, plugins->path.items[p], error);
    return status;
}

/* The first plugin marked critical that is refused (its status and reason) or was not found
 * (DEPENDENCY_MISSING); ATTN_OK if there is none. */
static attn_status check_critical(const attnhost *host, const struct config *config,
                                  attn_error *error)
{
    const struct config_texts *critical = &config->plugins.critical;
    for (size_t c = 0; c < critical->count; c++) {
        const struct loader_plugin *plugin =
            registry_find_plugin(&host->registry, critical->items[c]);
        if (!plugin)
            return host_fail(
                error, ATTN_DEPENDENCY_MISSING,
                "%s: critical plugin '%s' is not in any of the paths; accepted: the name "
                "of a plugin, or of its file",
                config_place(config, "plugins.critical"), critical->items[c]);
        if (plugin->status != ATTN_OK)
            return host_fail(error, plugin->status, "critical plugin: %s", plugin->reason);
    }
    return ATTN_OK;
}

/* ---- Backends -------------------------------------------------------------------------------- */

static attn_status define_section(attnhost *host, const struct config_backend *section,
                                  attn_error *error)
{
    struct options_text *texts = calloc(section->num_options + 1, sizeof *texts);
    if (!texts)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "attnhost: out of memory");
    for (size_t o = 0; o < section->num_options; o++) {
        const struct config_option *option = &section->options[o];
        texts[o] = (struct options_text){option->key, option->value, option->place, option->base};
    }
    attn_status status = composer_define(&host->composer, section->name, section->type,
                                         section->place, texts, section->num_options, error);
    free(texts);
    return status;
}

attn_status open_host_define_backends(attnhost *host, const struct config *config,
                                      attn_error *error)
{
    attn_status status = ATTN_OK;
    for (size_t b = 0; b < config->backends.count && status == ATTN_OK; b++)
        status = define_section(host, &config->backends.items[b], error);
    return status == ATTN_OK ? routes_define(&host->composer, config, error) : status;
}

/* ---- A host ---------------------------------------------------------------------------------- */

/* The command of a build folder loads the plugins built with it; a prefix that was moved loads its
 * own plugins. */
void open_host_plugin_folder(char folder[PATH_MAX])
{
    static const char *const places[] = {"plugins/.libs", "../lib/attnhost/plugins",
                                         ATTNHOST_PLUGIN_DIR};
    data_file_find(places, sizeof places / sizeof *places, folder);
}

static attn_status load_found(attnhost *host, attn_error *error)
{
    char folder[PATH_MAX];
    open_host_plugin_folder(folder);
    return embed_load_found(host, folder, error);
}

static attn_status load(attnhost *host, const struct config *config, attn_error *error)
{
    attn_status status = open_host_load_plugins(host, config, error);
    if (status == ATTN_OK)
        status = load_found(host, error);
    if (status != ATTN_OK)
        return status;
    if (check_critical(host, config, error) != ATTN_OK)
        return OPEN_HOST_REFUSED;
    return open_host_define_backends(host, config, error);
}

attn_status open_host(const struct config *config, attnhost **out, attn_error *error)
{
    attnhost *host = NULL;
    attnhost_params params = {.struct_size = sizeof params, .log_level = ATTN_LOG_WARNING};
    params.num_threads = (uint32_t)config->workload.num_threads;
    attn_status status = attnhost_create(&params, &host, error);
    if (status == ATTN_OK)
        status = load(host, config, error);
    if (status != ATTN_OK)
        attnhost_destroy(host);
    else
        *out = host;
    return status;
}

void open_host_print_refused(const attnhost *host, const char *command, FILE *file)
{
    for (uint32_t p = 0; p < attnhost_num_plugins(host); p++) {
        attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
        if (attnhost_plugin(host, p, &plugin, NULL) == ATTN_OK && plugin.status != ATTN_OK &&
            !host->registry.plugins[p]->shadowed_by)
            fprintf(file, "attnhost %s: refused %s\n", command, plugin.reason);
    }
}

/* ---- attnhost.h ------------------------------------------------------------------------------ */

static attn_status configure(attnhost *host, struct config *config, attn_error *error)
{
    attn_status status = open_host_load_plugins(host, config, error);
    if (status == ATTN_OK)
        status = check_critical(host, config, error);
    if (status == ATTN_OK)
        status = open_host_define_backends(host, config, error);
    config_destroy(config);
    return status;
}

attn_status attnhost_configure_file(attnhost *host, const char *path, attn_error *error)
{
    struct config *config;
    attn_status status = config_load(path, NULL, 0, &config, error);
    return status == ATTN_OK ? configure(host, config, error) : status;
}

attn_status attnhost_configure_text(attnhost *host, const char *text, uint64_t length,
                                    const char *name, const char *base, attn_error *error)
{
    struct config *config;
    attn_status status =
        config_load_text(text, (size_t)length, name, base, NULL, 0, &config, error);
    return status == ATTN_OK ? configure(host, config, error) : status;
}
