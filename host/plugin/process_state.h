/* SPDX-License-Identifier: Apache-2.0
 *
 * process_state.h: process state that a plugin must not change (rule ERR-03): saved before a case,
 * compared after it, restored.
 */
#ifndef HOST_PLUGIN_PROCESS_STATE_H
#define HOST_PLUGIN_PROCESS_STATE_H

#include <fenv.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* In the order of the checks from CORE_FPU on. */
enum process_state_kind {
    PROCESS_STATE_FPU,
    PROCESS_STATE_LOCALE,
    PROCESS_STATE_SIGNALS,
    PROCESS_STATE_CWD,
    PROCESS_STATE_KINDS
};

struct process_state {
    fenv_t environment; /* to put back */
    int rounding;       /* as fegetround() returns it */
    uint64_t control;   /* control bits of the FPU that rounding does not show */
    locale_t thread_locale;
    char locale[1024];
    sigset_t mask;
    struct sigaction handlers[NSIG];
    mode_t creation_mask;
    char directory[PATH_MAX];
    struct rlimit limits[RLIM_NLIMITS];
};

void process_state_take(struct process_state *state);

/* Describe each change, by kind ("" = none), and undo it. */
void process_state_restore(const struct process_state *before,
                           char changes[PROCESS_STATE_KINDS][256]);

#endif /* HOST_PLUGIN_PROCESS_STATE_H */
