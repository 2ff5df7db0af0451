/* SPDX-License-Identifier: Apache-2.0
 *
 * ambient.h: what a plugin leaves alone in the process it is called in (rule ERR-03): taken before
 * a case, compared after it, put back.
 */
#ifndef HOST_BASE_AMBIENT_H
#define HOST_BASE_AMBIENT_H

#include <fenv.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* In the order of the checks from CORE_FPU on. */
enum ambient_kind { AMBIENT_FPU, AMBIENT_LOCALE, AMBIENT_SIGNALS, AMBIENT_CWD, AMBIENT_KINDS };

struct ambient {
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

void ambient_take(struct ambient *ambient);

/* What is not as it was, in words by kind, "" = nothing; and it is as it was again. */
void ambient_restore(const struct ambient *before, char changes[AMBIENT_KINDS][256]);

#endif /* HOST_BASE_AMBIENT_H */
