/* SPDX-License-Identifier: Apache-2.0
 *
 * exits.c: exit(), _exit(), _Exit(), pthread_exit(), thrd_exit(), pthread_cancel(), kill(),
 * raise(), exec*(), fclose(), munmap() and syscall() of the program. They replace the C library's
 * for every object of the process, and ask the warden first (warden.h). Calls from within the C
 * library do not reach them, only the warden's exit handler. dlsym() returns them, too. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>

#include "host/base/sanitizers.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/warden.h"
#include "host/plugin/guard.h"

static _Noreturn void end_now(int code)
{
    for (;;)
        syscall(SYS_exit_group, code);
}

/* dlsym() of the C library; since 2.34, then of x86-64 and of ARM before. */
static void *(*next_dlsym)(void *, const char *);

static void find_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    void *symbol = NULL;
    for (size_t v = 0; !symbol && v < sizeof versions / sizeof *versions; v++)
        symbol = dlvsym(RTLD_NEXT, "dlsym", versions[v]);
    memcpy(&next_dlsym, &symbol, sizeof symbol); /* ISO C has no cast from data to function */
}

static void *find_in_library(const char *name)
{
    if (!next_dlsym)
        find_dlsym();
    return next_dlsym ? next_dlsym(RTLD_NEXT, name) : NULL;
}

static void find_next(const char *name, void *function)
{
    void *symbol = find_in_library(name);
    memcpy(function, &symbol, sizeof symbol);
}

_Noreturn void exit(int code)
{
    warden_on_exit("exit()", __builtin_return_address(0));
    void (*next)(int);
    find_next("exit", &next);
    if (next)
        next(code);
    end_now(code);
}

_Noreturn void _exit(int code)
{
    warden_on_exit("_exit()", __builtin_return_address(0));
    end_now(code);
}

_Noreturn void _Exit(int code)
{
    warden_on_exit("_Exit()", __builtin_return_address(0));
    end_now(code);
}

/* ---- A thread -------------------------------------------------------------------------------- */

/* A plugin may end threads of its own, but none that is in a call of the host's. */
_Noreturn void pthread_exit(void *value)
{
    warden_on_thread_end(pthread_self(), "pthread_exit()", __builtin_return_address(0));
    void (*next)(void *);
    find_next("pthread_exit", &next);
    if (next)
        next(value);
    end_now(EXIT_RUN_TIME);
}

_Noreturn void thrd_exit(int value)
{
    warden_on_thread_end(pthread_self(), "thrd_exit()", __builtin_return_address(0));
    void (*next)(int);
    find_next("thrd_exit", &next);
    if (next)
        next(value);
    end_now(EXIT_RUN_TIME);
}

int pthread_cancel(pthread_t thread)
{
    warden_on_thread_end(thread, "pthread_cancel()", __builtin_return_address(0));
    int (*next)(pthread_t);
    find_next("pthread_cancel", &next);
    return next ? next(thread) : ENOSYS;
}

/* ---- A signal -------------------------------------------------------------------------------- */

/* Is the process, or the group, one that this process is in? */
static bool is_own(pid_t target)
{
    return target == getpid() || target == 0 || target == -1 || target == -getpgrp();
}

int kill(pid_t target, int number)
{
    if (is_own(target))
        warden_on_signal(number, __builtin_return_address(0));
    return (int)syscall(SYS_kill, target, number);
}

int raise(int number)
{
    warden_on_signal(number, __builtin_return_address(0));
    return (int)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}

/* ---- Another program ------------------------------------------------------------------------- */

/* Found at start: in a child, between fork() and exec*(), dlsym() may not be called. */
static struct {
    long (*syscall)(long, ...);
    int (*execve)(const char *, char *const[], char *const[]);
    int (*execvpe)(const char *, char *const[], char *const[]);
    int (*fexecve)(int, char *const[], char *const[]);
    int (*execveat)(int, const char *, char *const[], char *const[], int);
} next_calls;

__attribute__((constructor)) static void find_all(void)
{
    find_next("syscall", &next_calls.syscall);
    find_next("execve", &next_calls.execve);
    find_next("execvpe", &next_calls.execvpe);
    find_next("fexecve", &next_calls.fexecve);
    find_next("execveat", &next_calls.execveat);
}

int execve(const char *path, char *const arguments[], char *const environment[])
{
    warden_on_exit("execve()", __builtin_return_address(0));
    return next_calls.execve(path, arguments, environment);
}

int execv(const char *path, char *const arguments[])
{
    warden_on_exit("execv()", __builtin_return_address(0));
    return next_calls.execve(path, arguments, environ);
}

int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    warden_on_exit("execvpe()", __builtin_return_address(0));
    return next_calls.execvpe(file, arguments, environment);
}

int execvp(const char *file, char *const arguments[])
{
    warden_on_exit("execvp()", __builtin_return_address(0));
    return next_calls.execvpe(file, arguments, environ);
}

int fexecve(int descriptor, char *const arguments[], char *const environment[])
{
    warden_on_exit("fexecve()", __builtin_return_address(0));
    return next_calls.fexecve(descriptor, arguments, environment);
}

int execveat(int folder, const char *path, char *const arguments[], char *const environment[],
             int flags)
{
    warden_on_exit("execveat()", __builtin_return_address(0));
    if (next_calls.execveat) /* glibc 2.34 */
        return next_calls.execveat(folder, path, arguments, environment, flags);
    errno = ENOSYS;
    return -1;
}

enum { MAX_WORDS = 1024 };

/* Words until NULL, which is one of them; *list is after it then. false: too many. */
static bool take_words(const char *first, va_list *list, char *words[MAX_WORDS])
{
    int count = 0;
    const char *word = first;
    for (; word && count < MAX_WORDS - 1; word = va_arg(*list, const char *))
        words[count++] = (char *)(uintptr_t)word;
    words[count] = NULL;
    errno = E2BIG;
    return !word;
}

int execl(const char *path, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list list;
    warden_on_exit("execl()", __builtin_return_address(0));
    va_start(list, first);
    bool taken = take_words(first, &list, words);
    va_end(list);
    return taken ? next_calls.execve(path, words, environ) : -1;
}

int execlp(const char *file, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list list;
    warden_on_exit("execlp()", __builtin_return_address(0));
    va_start(list, first);
    bool taken = take_words(first, &list, words);
    va_end(list);
    return taken ? next_calls.execvpe(file, words, environ) : -1;
}

int execle(const char *path, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list list;
    warden_on_exit("execle()", __builtin_return_address(0));
    va_start(list, first);
    bool taken = take_words(first, &list, words);
    char *const *environment = taken ? va_arg(list, char *const *) : NULL;
    va_end(list);
    return taken ? next_calls.execve(path, words, environment) : -1;
}

/* ---- A stream -------------------------------------------------------------------------------- */

/* In a call of a plugin, fclose() of one of the program's streams only flushes it: the command
 * prints to it later. */
int fclose(FILE *stream)
{
    bool is_ours = stream == stdin || stream == stdout || stream == stderr;
    int (*next)(FILE *);
    if (is_ours && guard_current)
        return fflush(stream);
    find_next("fclose", &next);
    return next ? next(stream) : EOF;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

int munmap(void *begin, size_t length)
{
    warden_on_unmap(begin, length, __builtin_return_address(0));
    return (int)syscall(SYS_munmap, begin, length);
}

/* ---- A system call --------------------------------------------------------------------------- */

/* Six arguments are passed on, as many as a system call can have. */
long syscall(long number, ...)
{
    enum { NUM_WORDS = 6 };
    long words[NUM_WORDS];
    va_list list;
    if (number == SYS_exit_group)
        warden_on_exit("syscall(SYS_exit_group)", __builtin_return_address(0));
    if (number == SYS_exit)
        warden_on_thread_end(pthread_self(), "syscall(SYS_exit)", __builtin_return_address(0));
    va_start(list, number);
    for (int w = 0; w < NUM_WORDS; w++)
        words[w] = va_arg(list, long);
    va_end(list);
    if (!next_calls.syscall)
        find_next("syscall", &next_calls.syscall);
    return next_calls.syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* ---- By name --------------------------------------------------------------------------------- */

/* The address sanitizer's library calls dlsym() before instrumented code can run, so with it dlsym()
 * stays the C library's. */
#if !HAS_ADDRESS_SANITIZER

/* The function of that name in this file; NULL = there is none. */
static void *find_here(const char *name)
{
    static const struct {
        const char *name;
        uintptr_t function;
    } functions[] = {
        {"exit", (uintptr_t)exit},           {"_exit", (uintptr_t)_exit},
        {"_Exit", (uintptr_t)_Exit},         {"pthread_exit", (uintptr_t)pthread_exit},
        {"thrd_exit", (uintptr_t)thrd_exit}, {"pthread_cancel", (uintptr_t)pthread_cancel},
        {"kill", (uintptr_t)kill},           {"raise", (uintptr_t)raise},
        {"execve", (uintptr_t)execve},       {"execv", (uintptr_t)execv},
        {"execvpe", (uintptr_t)execvpe},     {"execvp", (uintptr_t)execvp},
        {"fexecve", (uintptr_t)fexecve},     {"execveat", (uintptr_t)execveat},
        {"execl", (uintptr_t)execl},         {"execlp", (uintptr_t)execlp},
        {"execle", (uintptr_t)execle},       {"syscall", (uintptr_t)syscall},
        {"fclose", (uintptr_t)fclose},       {"munmap", (uintptr_t)munmap},
    };
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        if (strcmp(functions[f].name, name) == 0)
            return (void *)functions[f].function;
    return NULL;
}

#ifdef __clang__
#define ENDS_IN_JUMP
#define JUMP __attribute__((musttail))
#else
#define ENDS_IN_JUMP __attribute__((optimize("O2")))
#define JUMP
#endif

/* Gives the function of this file where the C library's would be found, whichever object it was
 * looked for in. The last call is a jump, at any level of optimisation, so that RTLD_NEXT still means
 * the object that called. */
ENDS_IN_JUMP void *dlsym(void *restrict object, const char *restrict name)
{
    if (!next_dlsym)
        find_dlsym();
    void *here = find_here(name);
    if (here && next_dlsym(object, name) == find_in_library(name))
        return here;
    JUMP return next_dlsym(object, name);
}

#endif /* !HAS_ADDRESS_SANITIZER */
