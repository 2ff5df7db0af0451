/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost_run.c: a whole run behind one call, for embedders.
 */
#include "attnhost.h"

#include <stdlib.h>

#include "host/base/error.h"
#include "host/cmd/exit_codes.h"
#include "host/run/session.h"

/* The session tells by exit codes, as the command does. What failed while running keeps the status
 * that the first detector wrote. */
static attn_status status_of(int code, const attn_error *error)
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
        return error->code > ATTN_OK && error->code < ATTN_STATUS_COUNT ? error->code
                                                                        : ATTN_INTERNAL;
    }
}

/* The error of the run into the caller's, with the code that is returned. */
static attn_status give_error(attn_status status, const host_error *said, attn_error *error)
{
    return status == ATTN_OK ? ATTN_OK : host_fail(error, status, "%s", host_error_text(said));
}

attn_status attnhost_run(const char *path, const char *const *sets, uint32_t num_sets,
                         uint32_t *passed, char **json, attn_error *error)
{
    struct config *config;
    attn_status status = config_load(path, sets, num_sets, &config, error);
    if (status != ATTN_OK)
        return status;
    host_error said;
    struct report report;
    host_error_init(&said);
    report_init(&report);
    struct session_params params = {.config = config};
    int code = session_run(&params, &report, &said.base);
    status = status_of(code, &said.base);
    char *text = status == ATTN_OK ? report_json(&report) : NULL;
    if (status == ATTN_OK && !text)
        status = host_fail(&said.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for the report");
    if (status == ATTN_OK) {
        *passed = code == EXIT_GOOD;
        *json = text;
    }
    report_finish(&report);
    config_destroy(config);
    return give_error(status, &said, error);
}

void attnhost_free_text(char *text)
{
    free(text);
}
