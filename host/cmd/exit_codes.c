/* SPDX-License-Identifier: Apache-2.0
 *
 * exit_codes.c: statuses and outcomes to exit codes.
 */
#include "host/cmd/exit_codes.h"

#include "host/select/open_host.h"

/* Anything else has failed while running. */
static const struct {
    attn_status status;
    int code;
} of_status[] = {
    {ATTN_OK, EXIT_GOOD},
    {ATTN_CONFIG_ERROR, EXIT_USAGE},
    {OPEN_HOST_REFUSED, EXIT_PLUGIN},
    {ATTN_UNSUPPORTED, EXIT_NO_BACKEND},
    {ATTN_DEPENDENCY_MISSING, EXIT_NO_BACKEND},
};

static const int of_outcome[] = {
    [CHECK_GOOD] = EXIT_GOOD,
    [CHECK_FAILURES] = EXIT_CHECK_FAILED,
    [CHECK_USAGE] = EXIT_USAGE,
    [CHECK_REFUSED] = EXIT_PLUGIN,
    [CHECK_NO_BACKEND] = EXIT_NO_BACKEND,
    [CHECK_BROKEN] = EXIT_RUN_TIME,
    [CHECK_NOTHING] = EXIT_NOTHING,
};

int exit_code_of(attn_status status)
{
    for (size_t r = 0; r < sizeof of_status / sizeof *of_status; r++)
        if (of_status[r].status == status)
            return of_status[r].code;
    return EXIT_RUN_TIME;
}

int exit_code_of_run(attn_status status, const struct session_result *result, int interrupted)
{
    if (interrupted)
        return 128 + interrupted;
    if (status == ATTN_OK)
        return result->passed ? EXIT_GOOD : EXIT_CHECK_FAILED;
    return result->began ? EXIT_RUN_TIME : exit_code_of(status);
}

int exit_code_of_check(enum check_outcome outcome, int interrupted)
{
    return interrupted ? 128 + interrupted : of_outcome[outcome];
}
