/* SPDX-License-Identifier: Apache-2.0
 *
 * process_state.c: taking, comparing and restoring of process state.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr, uselocale, NSIG */
#endif
#include "host/plugin/process_state.h"

#include "host/base/fpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Take ------------------------------------------------------------------------------------ */

static mode_t creation_mask(void)
{
    mode_t mask = umask(077);
    umask(mask);
    return mask;
}

void process_state_take(struct process_state *state)
{
    memset(state, 0, sizeof *state);
    fegetenv(&state->environment);
    state->rounding = fegetround();
    state->control = fpu_control();
    state->thread_locale = uselocale((locale_t)0);
    const char *locale = setlocale(LC_ALL, NULL);
    snprintf(state->locale, sizeof state->locale, "%s", locale ? locale : "");
    pthread_sigmask(SIG_SETMASK, NULL, &state->mask);
    for (int s = 1; s < NSIG; s++)
        sigaction(s, NULL, &state->handlers[s]); /* those of the C library stay zero */
    state->creation_mask = creation_mask();
    if (!getcwd(state->directory, sizeof state->directory))
        state->directory[0] = '\0';
    for (unsigned int r = 0; r < RLIM_NLIMITS; r++)
        getrlimit(r, &state->limits[r]);
}

/* ---- Compare --------------------------------------------------------------------------------- */

static const char *rounding_name(int rounding)
{
    switch (rounding) {
    case FE_TONEAREST:
        return "to nearest";
    case FE_UPWARD:
        return "upward";
    case FE_DOWNWARD:
        return "downward";
    case FE_TOWARDZERO:
        return "toward zero";
    default:
        return "unknown";
    }
}

static void restore_fpu(const struct process_state *before, const struct process_state *now,
                        char text[256])
{
    if (now->rounding != before->rounding)
        snprintf(text, 256, "rounds %s, before: %s", rounding_name(now->rounding),
                 rounding_name(before->rounding));
    else if (now->control != before->control)
        snprintf(text, 256, "control word of the FPU is 0x%llx, before: 0x%llx",
                 (unsigned long long)now->control, (unsigned long long)before->control);
    else
        return;
    fesetenv(&before->environment);
}

static void restore_locale(const struct process_state *before, const struct process_state *now,
                           char text[256])
{
    if (strcmp(now->locale, before->locale) != 0) {
        snprintf(text, 256, "locale is %.100s, before: %.100s", now->locale, before->locale);
        setlocale(LC_ALL, before->locale);
    }
    if (now->thread_locale != before->thread_locale) {
        snprintf(text, 256, "uselocale() was called");
        uselocale(before->thread_locale);
    }
}

/* The C library has its own flag, which comes with the first sigaction(). */
static int same_handler(const struct sigaction *a, const struct sigaction *b)
{
    const int flags = SA_SIGINFO | SA_RESTART | SA_NODEFER | SA_ONSTACK;
    int is_own = a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN; /* else flags do nothing */
    return a->sa_handler == b->sa_handler &&
           (!is_own || (a->sa_flags & flags) == (b->sa_flags & flags));
}

/* A library that replaces a handler temporarily may restore it by signal(), which loses the flags:
 * only the handler is compared. */
static int came_back_by_signal(const struct sigaction *before, const struct sigaction *now)
{
    const int flags = SA_SIGINFO | SA_RESTART | SA_NODEFER | SA_ONSTACK;
    return now->sa_handler == before->sa_handler && (now->sa_flags & flags) == SA_RESTART;
}

static void describe_handler(const struct sigaction *action, char *text, size_t size)
{
    Dl_info object;
    if (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN)
        snprintf(text, size, "%s", action->sa_handler == SIG_DFL ? "the default" : "to ignore it");
    else if (dladdr((void *)(uintptr_t)action->sa_sigaction, &object) && object.dli_fname)
        snprintf(text, size, "in %s", object.dli_fname);
    else
        snprintf(text, size, "at %p", (void *)(uintptr_t)action->sa_sigaction);
}

static void restore_signals(const struct process_state *before, const struct process_state *now,
                            char text[256])
{
    char where[192];
    for (int s = 1; s < NSIG; s++) {
        if (sigismember(&now->mask, s) != sigismember(&before->mask, s))
            snprintf(text, 256, "signal %d is %s, before: %s", s,
                     sigismember(&now->mask, s) ? "blocked" : "not blocked",
                     sigismember(&before->mask, s) ? "blocked" : "not blocked");
        if (!same_handler(&now->handlers[s], &before->handlers[s])) {
            describe_handler(&now->handlers[s], where, sizeof where);
            if (!came_back_by_signal(&before->handlers[s], &now->handlers[s]))
                snprintf(text, 256, "signal %d has another handler, %s", s, where);
            sigaction(s, &before->handlers[s], NULL);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

static void restore_directory(const struct process_state *before, const struct process_state *now,
                              char text[256])
{
    if (strcmp(now->directory, before->directory) != 0) {
        snprintf(text, 256, "working directory is %.100s, before: %.100s", now->directory,
                 before->directory);
        if (chdir(before->directory) != 0)
            snprintf(text, 256, "working directory is %.100s and cannot be left", now->directory);
    }
    if (now->creation_mask != before->creation_mask) {
        snprintf(text, 256, "umask is %03o, before: %03o", (unsigned)now->creation_mask,
                 (unsigned)before->creation_mask);
        umask(before->creation_mask);
    }
}

static const char *limit_name(unsigned int number)
{
    static const char *const names[RLIM_NLIMITS] = {
        [RLIMIT_AS] = "RLIMIT_AS",         [RLIMIT_CORE] = "RLIMIT_CORE",
        [RLIMIT_CPU] = "RLIMIT_CPU",       [RLIMIT_DATA] = "RLIMIT_DATA",
        [RLIMIT_FSIZE] = "RLIMIT_FSIZE",   [RLIMIT_MEMLOCK] = "RLIMIT_MEMLOCK",
        [RLIMIT_NOFILE] = "RLIMIT_NOFILE", [RLIMIT_NPROC] = "RLIMIT_NPROC",
        [RLIMIT_RTPRIO] = "RLIMIT_RTPRIO", [RLIMIT_STACK] = "RLIMIT_STACK",
        [RLIMIT_RTTIME] = "RLIMIT_RTTIME",
    };
    return names[number] ? names[number] : "a resource limit";
}

/* A raised limit does no harm. Restoring a lowered hard limit needs privileges. */
static void restore_limits(const struct process_state *before, const struct process_state *now,
                           char text[256])
{
    for (unsigned int r = 0; r < RLIM_NLIMITS; r++) {
        struct rlimit was = before->limits[r], is = now->limits[r];
        if (is.rlim_cur >= was.rlim_cur)
            continue;
        snprintf(text, 256, "%s is %llu, before: %s", limit_name(r),
                 (unsigned long long)is.rlim_cur,
                 was.rlim_cur == RLIM_INFINITY ? "unlimited" : "more");
        is.rlim_cur = was.rlim_cur < is.rlim_max ? was.rlim_cur : is.rlim_max;
        if (setrlimit(r, &was) != 0)
            setrlimit(r, &is);
    }
}

void process_state_restore(const struct process_state *before,
                           char changes[PROCESS_STATE_KINDS][256])
{
    struct process_state now;
    process_state_take(&now);
    for (int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        changes[kind][0] = '\0';
    restore_fpu(before, &now, changes[PROCESS_STATE_FPU]);
    restore_locale(before, &now, changes[PROCESS_STATE_LOCALE]);
    restore_signals(before, &now, changes[PROCESS_STATE_SIGNALS]);
    restore_directory(before, &now, changes[PROCESS_STATE_CWD]);
    restore_limits(before, &now, changes[PROCESS_STATE_CWD]);
}
