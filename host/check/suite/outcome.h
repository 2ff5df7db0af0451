/* SPDX-License-Identifier: Apache-2.0
 *
 * outcome.h: outcomes of a request to the process that opens the plugin, and of a whole run of the
 * suite. The command derives its exit code from them (cmd/exit_codes.h).
 */
#ifndef HOST_CHECK_SUITE_OUTCOME_H
#define HOST_CHECK_SUITE_OUTCOME_H

enum check_outcome {
    CHECK_GOOD,       /* of a question: answered; of a run: look at the report */
    CHECK_FAILURES,   /* a check failed */
    CHECK_USAGE,      /* the command line asks for what cannot be */
    CHECK_REFUSED,    /* the plugin file is refused */
    CHECK_NO_BACKEND, /* options or devices that the backend does not serve */
    CHECK_BROKEN,     /* the tool, or the machine, failed */
    CHECK_NOTHING     /* nothing could be checked here */
};

#endif /* HOST_CHECK_SUITE_OUTCOME_H */
