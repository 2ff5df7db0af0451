/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost_run.c: a whole run behind one call, for embedders.
 */
#include "attnhost.h"

#include <stdlib.h>

#include "host/error.h"
#include "host/exit_codes.h"
#include "host/session.h"

/* The session tells by exit codes, as the command does. */
static attn_status status_of(int code)
{
    switch (code) {
    case EXIT_GOOD:
    case EXIT_CHECK_FAILED:
        return ATTN_OK;
    case EXIT_USAGE:
        return ATTN_CONFIG_ERROR;
    case EXIT_PLUGIN:
        return ATTN_DEPENDENCY_MISSING;
    case EXIT_NO_BACKEND:
        return ATTN_UNSUPPORTED;
    default:
        return ATTN_INTERNAL;
    }
}

attn_status attnhost_run(const char *path, const char *const *sets, uint32_t num_sets,
                         uint32_t *passed, char **json, attn_error *error)
{
    struct config *config;
    attn_status status = config_load(path, sets, num_sets, &config, error);
    if (status != ATTN_OK)
        return status;
    struct report report;
    report_init(&report);
    struct session_params params = {.config = config};
    int code = session_run(&params, &report, error);
    status = status_of(code);
    char *text = status == ATTN_OK ? report_json(&report) : NULL;
    if (status == ATTN_OK && !text)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the report");
    if (status == ATTN_OK) {
        *passed = code == EXIT_GOOD;
        *json = text;
    }
    report_finish(&report);
    config_destroy(config);
    return status;
}

void attnhost_free_text(char *text)
{
    free(text);
}
