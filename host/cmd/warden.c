/* SPDX-License-Identifier: Apache-2.0
 *
 * warden.c: handlers for exits, signals and forks that plugins cause.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* on_exit, _dl_find_object */
#endif
#include "host/cmd/warden.h"

#include <dlfcn.h> /* _dl_find_object */
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "host/plugin/process_state.h"
#include "host/base/interrupt.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/results.h"
#include "host/cmd/syscall_gate.h"
#include "host/plugin/guard.h"

static struct {
    bool armed;
    volatile sig_atomic_t ended; /* the command has its exit code */
    int code;
    pid_t process;
    pthread_t thread;
    char command[64];
    struct process_state state;
    void (*_Atomic will)(const char *how);
} warden;

/* ---- The last words -------------------------------------------------------------------------- */

/* Volatile, since syscall() is declared here as a function that does not return, but does
 * (exits.c). */
static _Thread_local volatile sig_atomic_t is_leaving;

/* The process at once, without exit handlers: they may be a plugin's. */
static _Noreturn void end_now(int code)
{
    is_leaving = 1;
    for (;;)
        syscall(SYS_exit_group, code);
}

/* Texts until NULL, cut where there is no room. */
static size_t join(const char *const *texts, char *line, size_t size)
{
    size_t length = 0;
    for (; *texts; texts++)
        for (const char *c = *texts; *c && length + 1 < size; c++)
            line[length++] = *c;
    line[length] = '\0';
    return length;
}

/* In one write, so that no other thread's output comes between. */
static void write_texts(const char *const *texts)
{
    char line[2048];
    size_t length = join(texts, line, sizeof line);
    if (write(STDERR_FILENO, line, length) < 0)
        return; /* there is no other place to report it to */
}

/* The first thread that comes here speaks; another one that ends the process waits for that. */
static void speak_alone(void)
{
    static atomic_flag speaking = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&speaking))
        pause();
}

/* The file that the code at `address` is of, or NULL. In a signal handler dladdr() may not be
 * called. */
static const char *find_object(const void *address)
{
    struct dl_find_object found;
    void *at = (void *)(uintptr_t)address;
    if (!address || _dl_find_object(at, &found) != 0 || !found.dlfo_link_map)
        return NULL;
    const char *name = found.dlfo_link_map->l_name;
    return *name ? name : NULL; /* "" is the program */
}

/* ---- What there is to be reported ------------------------------------------------------------ */

void warden_set_will(void (*will)(const char *how))
{
    warden.will = will;
}

/* In the child: nothing of a plugin's is left but the memory. */
static _Noreturn void speak_will(void (*will)(const char *how), const char *how)
{
    char changes[PROCESS_STATE_KINDS][256];
    process_state_restore(&warden.state, changes);
    results_adopt();
    will(how);
    end_now(results_end() == 0 ? EXIT_GOOD : EXIT_RUN_TIME);
}

/* False when the time is over. */
static bool wait_for(pid_t child, int *status)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int i = 0; i < WARDEN_WILL_SECONDS * 200; i++) {
        pid_t gone = waitpid(child, status, WNOHANG);
        if (gone != 0)
            return gone == child;
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, status, 0);
    return false;
}

static void execute_will(const char *how)
{
    int status = 0;
    void (*will)(const char *) = atomic_exchange(&warden.will, NULL);
    pid_t child = will ? _Fork() : -1;
    if (child == 0)
        speak_will(will, how);
    if (!will || (child > 0 && wait_for(child, &status) && status == 0))
        return;
    const char *const texts[] = {warden.command,
                                 ": the report of the run so far could not be written\n", NULL};
    write_texts(texts);
}

/* "attnhost run: the process was ended by HOW in bad: forward_decode of layer 3 (/path/bad.so)". A
 * thread that a plugin has made is in no call: its code, at `address`, says whose it is. */
static void name_culprit(const char *how, const void *address)
{
    char where[1024] = "";
    const char *file = guard_current ? NULL : find_object(address);
    if (guard_current)
        guard_describe(guard_copied(), where, sizeof where);
    const char *when = guard_current  ? ""
                       : warden.ended ? " after the command had ended"
                                      : ", outside of any call of a plugin";
    const char *in = guard_current || file ? " in " : "";
    const char *const said[] = {how, in, file ? file : where, when, NULL};
    char whole[1200];
    join(said, whole, sizeof whole);
    const char *const texts[] = {warden.command, ": the process was ended by ", whole, "\n", NULL};
    speak_alone();
    write_texts(texts);
    execute_will(whole);
}

/* ---- exit() ---------------------------------------------------------------------------------- */

/* A child that a plugin has forked is not this process. */
static bool is_watching(void)
{
    return warden.armed && !is_leaving && getpid() == warden.process;
}

static _Noreturn void refuse_exit(const char *function, const void *caller)
{
    if (warden.ended)
        end_now(warden.code);
    name_culprit(function, caller);
    end_now(EXIT_RUN_TIME);
}

static void at_exit(int status, void *unused)
{
    (void)unused;
    if (is_watching() && (!warden.ended || status != warden.code))
        refuse_exit("exit()", NULL);
}

static void at_quick_exit_handler(void)
{
    if (is_watching())
        refuse_exit("quick_exit()", NULL);
}

void warden_on_exit(const char *function, const void *caller)
{
    if (is_watching())
        refuse_exit(function, caller);
}

void warden_on_thread_end(pthread_t thread, const char *function, const void *caller)
{
    bool here = pthread_equal(thread, pthread_self());
    if (is_watching() && ((here && guard_current) || pthread_equal(thread, warden.thread)))
        refuse_exit(function, caller);
}

static bool lies_in(const void *address, const void *begin, size_t length)
{
    return (uintptr_t)address - (uintptr_t)begin < length;
}

/* The call is described on the stack that it was made on, above where it is now. */
void warden_on_unmap(const void *begin, size_t length, const void *caller)
{
    bool is_stack = guard_current && (lies_in(guard_current, begin, length) ||
                                      lies_in(__builtin_frame_address(0), begin, length));
    if (is_stack && is_watching())
        refuse_exit("munmap() of the stack it runs on", caller);
}

/* ---- kill() --------------------------------------------------------------------------------- */

/* Would the process end if this thread were sent the signal? */
static bool is_deadly(int number)
{
    struct sigaction action;
    sigset_t blocked;
    switch (number) {
    case SIGKILL:
        return true; /* neither handled nor blocked */
    case SIGCHLD:
    case SIGCONT:
    case SIGSTOP:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGURG:
    case SIGWINCH:
        return false;
    default:
        return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL &&
               pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 && !sigismember(&blocked, number);
    }
}

void warden_on_signal(int number, const void *caller)
{
    char how[32];
    const char *name = sigabbrev_np(number);
    if (!name || !is_watching() || !is_deadly(number))
        return;
    snprintf(how, sizeof how, "SIG%s", name);
    name_culprit(how, caller);
}

/* ---- Crashes --------------------------------------------------------------------------------- */

static const struct {
    int number;
    const char *name;
    bool comes_again; /* when the instruction that made it is run again */
} fatal[] = {{SIGSEGV, "SIGSEGV", true},  {SIGBUS, "SIGBUS", true},    {SIGILL, "SIGILL", true},
             {SIGFPE, "SIGFPE", true},    {SIGABRT, "SIGABRT", false}, {SIGSYS, "SIGSYS", false},
             {SIGTRAP, "SIGTRAP", false}, {SIGXFSZ, "SIGXFSZ", false}, {SIGXCPU, "SIGXCPU", false}};

enum { NUM_FATAL = sizeof fatal / sizeof *fatal };

static struct sigaction fatal_before[NUM_FATAL];

/* The instruction that a signal came at. */
static const void *instruction_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (const void *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void *)(uintptr_t)context->uc_mcontext.pc;
#else
    return (void)context, NULL;
#endif
}

/* The stack pointer there. */
static uintptr_t stack_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    return (uintptr_t)context->uc_mcontext.sp;
#else
    return (void)context, 0;
#endif
}

/* A crash in the C library, as abort() makes one, is its caller's. */
static bool is_c_library(const void *address)
{
    const char *name = find_object(address);
    const char *slash = name ? strrchr(name, '/') : NULL;
    return slash && strncmp(slash, "/libc.so", strlen("/libc.so")) == 0;
}

/* The instruction that a signal came at. In the C library it is the caller that counts: the first
 * address on the stack that belongs to neither the C library nor the program. The stack may be
 * shorter than what is read. */
static const void *culprit_of(const ucontext_t *context)
{
    enum { PIECES = 16, WORDS = 64 }; /* no piece is read in part */
    uintptr_t words[PIECES * WORDS];
    struct iovec to = {words, sizeof words}, from[PIECES];
    const void *at = instruction_of(context);
    if (guard_current || !is_c_library(at))
        return at;
    for (size_t p = 0; p < PIECES; p++)
        from[p] = (struct iovec){(uintptr_t *)stack_of(context) + p * WORDS, WORDS * sizeof *words};
    ssize_t size = process_vm_readv(getpid(), &to, 1, from, PIECES, 0);
    for (ssize_t w = 0; w < size / (ssize_t)sizeof *words; w++) {
        const void *address = (const void *)words[w];
        if (find_object(address) && !is_c_library(address))
            return address;
    }
    return at;
}

/* Was it a system call of a plugin's own code? One that ends this thread would end the run. */
static bool is_plugins_call(const siginfo_t *info, void *context)
{
    bool handed_over;
    if (syscall_gate_ends(info, context, &handed_over) && is_watching())
        refuse_exit(info->si_syscall == SYS_exit ? "a system call that ends a thread"
                                                 : "a system call that ends the process",
                    info->si_call_addr);
    return handed_over;
}

/* A plugin may have left the check of alignment on, by which the handler itself would fault. */
static void check_no_alignment(void)
{
#if defined(__x86_64__)
    enum { ALIGNMENT_CHECK = 1 << 18 };
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() &
                                   ~(unsigned long long)ALIGNMENT_CHECK);
#endif
}

static void on_fatal(int number, siginfo_t *info, void *context)
{
    check_no_alignment();
    if (number == SIGSYS && is_plugins_call(info, context))
        return;
    size_t f = 0;
    while (f + 1 < NUM_FATAL && fatal[f].number != number)
        f++;
    if (number == SIGXFSZ && !guard_current)
        return; /* write() fails with EFBIG, which is reported where the command writes */
    if (is_watching())
        name_culprit(fatal[f].name, culprit_of(context));
    sigaction(number, &fatal_before[f], NULL);
    if (!fatal[f].comes_again || info->si_code <= 0)
        raise(number); /* when this handler has returned */
}

/* A second SIGINT, SIGTERM or SIGHUP: name the call that hangs, and keep the results so far. */
static void on_impatience(int number)
{
    char how[32];
    snprintf(how, sizeof how, "a second SIG%s", sigabbrev_np(number));
    if (is_watching() && guard_current)
        name_culprit(how, NULL);
    else if (is_watching())
        execute_will(how);
}

static void take_fatal(void)
{
    static char stack[1 << 19]; /* enough for a report */
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t before;
    sigemptyset(&action.sa_mask);
    if (sigaltstack(NULL, &before) == 0 && before.ss_flags & SS_DISABLE)
        sigaltstack(&alternate, NULL); /* a sanitizer has its own */
    for (size_t f = 0; f < NUM_FATAL; f++)
        sigaction(fatal[f].number, &action, &fatal_before[f]);
}

/* ---- Surroundings ---------------------------------------------------------------------------- */

static void look_around(const struct guard_call *call)
{
    char changes[PROCESS_STATE_KINDS][256], left[PROCESS_STATE_KINDS][256];
    if (!pthread_equal(pthread_self(), warden.thread))
        return; /* masks and locales are a thread's */
    syscall_gate_close();
    process_state_restore(&warden.state, changes);
    for (unsigned int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        if (changes[kind][0]) {
            process_state_restore(&warden.state, left);
            guard_report(call, GUARD_KINDS_OF_OTHERS + kind, changes[kind], !left[kind][0]);
        }
}

/* ---- Children -------------------------------------------------------------------------------- */

/* The child would continue the run and keep our output pipe open. */
static void end_child(const struct guard_call *call)
{
    char where[1024];
    const char *const texts[] = {warden.command, ": a process that was forked in ",
                                 guard_describe(call, where, sizeof where),
                                 " returned from it, and was ended\n", NULL};
    write_texts(texts);
    end_now(EXIT_RUN_TIME);
}

/* ---- Begin and end --------------------------------------------------------------------------- */

void warden_begin(const char *command)
{
    snprintf(warden.command, sizeof warden.command, "%s", command);
    warden.process = getpid();
    warden.thread = pthread_self();
    results_begin();
    take_fatal();
    interrupt_set_second(on_impatience);
    on_exit(at_exit, NULL);
    at_quick_exit(at_quick_exit_handler);
    guard_watch_children(end_child);
    process_state_take(&warden.state);
    guard_watch = look_around;
    guard_before_task = syscall_gate_close;
    warden.armed = true;
    syscall_gate_close();
}

int warden_end(const char *command, int code)
{
    /* Incomplete output must not look like a complete answer. */
    if (results_end() != 0) {
        fprintf(stderr, "%s: stdout cannot be written: %s\n", command, strerror(errno));
        code = code == EXIT_GOOD ? EXIT_RUN_TIME : code;
    }
    warden.code = code;
    warden.ended = 1;
    return code;
}
