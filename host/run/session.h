/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h: a run from its configuration to its report.
 *
 *   plugins -> model -> workload -> selection -> KV pool -> scheduler and executor -> report
 *
 * Each stage is one function in session.c, in this order; errors of a configuration are found
 * before memory is allocated or a backend is created. */
#ifndef HOST_RUN_SESSION_H
#define HOST_RUN_SESSION_H

#include <stdbool.h>
#include <stdio.h>

#include "host/config/config.h"
#include "host/run/executor.h"
#include "host/run/report.h"

struct session_params {
    const struct config *config;
    const char *command;  /* the command line, for the report; NULL = none */
    FILE *choices;        /* receives one line for each chosen backend; NULL = none */
    executor_probe probe; /* NULL = none (executor.h) */
    void *probe_ctx;
    /* Called once, when the report is complete or there is none, before anything is destroyed, so
     * that a plugin's fault there loses nothing. NULL = none. */
    void (*ready)(void *ctx, attn_status status);
    void *ready_ctx;
    row_check_listener listener; /* NULL = none (row_check.h) */
    void *listener_ctx;
};

struct session_result {
    bool began;    /* steps were run: a failure is one while running */
    bool reported; /* the report is whole, though steps may have failed, or the run as such */
    bool passed;   /* with ATTN_OK: no verified row is wrong, and no memory leaked */
};

/* Run to the end, or until the process is interrupted. ATTN_OK comes with a full report, which the
 * caller releases in any case; other statuses, OPEN_HOST_REFUSED (open_host.h) among them, with an
 * error. */
attn_status session_run(const struct session_params *params, struct report *report,
                        struct session_result *result, attn_error *error);

/* In a child of a process that a plugin is ending, `how`: complete the report of the run that goes
 * on with what was done up to its last whole step, and call `ready`. Nothing without such a run. */
void session_last_words(const char *how);

#endif /* HOST_RUN_SESSION_H */
