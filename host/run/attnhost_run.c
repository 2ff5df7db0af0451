/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost_run.c: a whole run in one call, for embedders.
 */
#include "attnhost.h"

#include <stdlib.h>

#include "host/base/error.h"
#include "host/run/session.h"
#include "host/select/open_host.h"

/* What failed while running keeps the status that the first detector wrote; what kept a run from
 * beginning is one of three. */
static attn_status status_of(attn_status status, const struct session_result *result)
{
    if (status == OPEN_HOST_REFUSED)
        return ATTN_DEPENDENCY_MISSING;
    if (!result->began && status == ATTN_DEPENDENCY_MISSING)
        return ATTN_UNSUPPORTED;
    return status;
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
    struct session_result result;
    status = status_of(session_run(&params, &report, &result, &said.base), &result);
    char *text = status == ATTN_OK ? report_json(&report) : NULL;
    if (status == ATTN_OK && !text)
        status = host_fail(&said.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for the report");
    if (status == ATTN_OK) {
        *passed = result.passed;
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
