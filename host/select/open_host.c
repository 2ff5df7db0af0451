/* SPDX-License-Identifier: Apache-2.0
 *
 * open_host.c: from a configuration to a host with its plugins loaded.
 */
#include "host/select/open_host.h"

#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/cmd/exit_codes.h"

int exit_code_of(attn_status status)
{
    switch (status) {
    case ATTN_OK:
        return EXIT_GOOD;
    case ATTN_CONFIG_ERROR:
        return EXIT_USAGE;
    case ATTN_UNSUPPORTED:
    case ATTN_DEPENDENCY_MISSING:
        return EXIT_NO_BACKEND;
    default:
        return EXIT_RUN_TIME;
    }
}

/* Each step's failure is an exit code of its own: what refuses a critical plugin may be any status.
 */
static int load(attnhost *host, const struct config *config, attn_error *error)
{
    attn_status status = embed_load_plugins(host, config, error);
    if (!status)
        status = attnhost_load_installed(host, error);
    if (status)
        return exit_code_of(status);
    if (embed_check_critical(host, config, error))
        return EXIT_PLUGIN;
    return exit_code_of(embed_define_backends(host, config, error));
}

int open_host(const struct config *config, attnhost **out, attn_error *error)
{
    attnhost *host = NULL;
    attnhost_params params = {.struct_size = sizeof params, .log_level = ATTN_LOG_WARNING};
    params.num_threads = (uint32_t)config->workload.num_threads;
    attn_status status = attnhost_create(&params, &host, error);
    int code = status ? exit_code_of(status) : load(host, config, error);
    if (code != EXIT_GOOD)
        attnhost_destroy(host);
    else
        *out = host;
    return code;
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
