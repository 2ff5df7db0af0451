/* SPDX-License-Identifier: Apache-2.0
 *
 * exit_codes.h: exit codes of the attnhost command. Only this file turns statuses and outcomes of
 * the rooms below into exit codes.
 */
#ifndef HOST_CMD_EXIT_CODES_H
#define HOST_CMD_EXIT_CODES_H

#include <stdio.h>

#include "host/check/suite/outcome.h"
#include "host/run/session.h"

enum {
    EXIT_GOOD = 0,
    EXIT_CHECK_FAILED = 1, /* a check or a verification failed */
    EXIT_USAGE = 2,        /* usage or configuration; an unknown backend name too */
    EXIT_PLUGIN = 3,       /* a plugin file that was named, or is critical, is refused */
    EXIT_NO_BACKEND = 4,   /* no backend can serve, or the named one cannot */
    EXIT_RUN_TIME = 5,     /* failed while running */
    EXIT_NOTHING = 77      /* nothing could be checked here */
};

/* Of a failure while loading or selecting (open_host.h has its own status). */
int exit_code_of(attn_status status);

/* Of a whole run: what fails once steps were run has failed while running. `interrupted`: the
 * signal, 0 = none. */
int exit_code_of_run(attn_status status, const struct session_result *result, int interrupted);

/* Of `attnhost check` and `attnhost fuzz`; `interrupted`: the signal, 0 = none. */
int exit_code_of_check(enum check_outcome outcome, int interrupted);

#endif /* HOST_CMD_EXIT_CODES_H */
