/* SPDX-License-Identifier: Apache-2.0
 *
 * exits.c: exit(), _exit(), _Exit(), pthread_exit(), kill(), raise() and exec*() of the program.
 * They stand before the C library's for every object of the process, and ask the warden first
 * (warden.h). What the C library itself calls does not come here, but to the warden's exit handler.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/cmd/exit_codes.h"
#include "host/cmd/warden.h"
#include "host/plugin/guard.h"

static _Noreturn void end_now(int code)
{
    for (;;)
        syscall(SYS_exit_group, code);
}

/* The C library's; ISO C has no cast from data to function. */
static void find_next(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_NEXT, name);
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
    if (guard_current)
        warden_on_exit("pthread_exit()", __builtin_return_address(0));
    void (*next)(void *);
    find_next("pthread_exit", &next);
    if (next)
        next(value);
    end_now(EXIT_RUN_TIME);
}

/* ---- A signal -------------------------------------------------------------------------------- */

/* Is the process, or the group, one that this process is in? */
static int is_own(pid_t target)
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

/* ---- Another program --------------------------------------------------------------------------
 */

/* In a child, between fork() and exec*(), dlsym() may not be called: so they are found before. */
static struct {
    int (*execve)(const char *, char *const[], char *const[]);
    int (*execvpe)(const char *, char *const[], char *const[]);
    int (*fexecve)(int, char *const[], char *const[]);
    int (*execveat)(int, const char *, char *const[], char *const[], int);
} next_exec;

__attribute__((constructor)) static void find_execs(void)
{
    find_next("execve", &next_exec.execve);
    find_next("execvpe", &next_exec.execvpe);
    find_next("fexecve", &next_exec.fexecve);
    find_next("execveat", &next_exec.execveat);
}

int execve(const char *path, char *const arguments[], char *const environment[])
{
    warden_on_exit("execve()", __builtin_return_address(0));
    return next_exec.execve(path, arguments, environment);
}

int execv(const char *path, char *const arguments[])
{
    warden_on_exit("execv()", __builtin_return_address(0));
    return next_exec.execve(path, arguments, environ);
}

int execvpe(const char *file, char *const arguments[], char *const environment[])
{
    warden_on_exit("execvpe()", __builtin_return_address(0));
    return next_exec.execvpe(file, arguments, environment);
}

int execvp(const char *file, char *const arguments[])
{
    warden_on_exit("execvp()", __builtin_return_address(0));
    return next_exec.execvpe(file, arguments, environ);
}

int fexecve(int descriptor, char *const arguments[], char *const environment[])
{
    warden_on_exit("fexecve()", __builtin_return_address(0));
    return next_exec.fexecve(descriptor, arguments, environment);
}

int execveat(int folder, const char *path, char *const arguments[], char *const environment[],
             int flags)
{
    warden_on_exit("execveat()", __builtin_return_address(0));
    if (next_exec.execveat) /* glibc 2.34 */
        return next_exec.execveat(folder, path, arguments, environment, flags);
    errno = ENOSYS;
    return -1;
}

enum { MAX_WORDS = 1024 };

/* Words until NULL, which is one of them; the list stands behind it. false: too many. */
static int take_words(const char *first, va_list list, char *words[MAX_WORDS])
{
    int count = 0;
    const char *word = first;
    for (; word && count < MAX_WORDS - 1; word = va_arg(list, const char *))
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
    int taken = take_words(first, list, words);
    va_end(list);
    return taken ? next_exec.execve(path, words, environ) : -1;
}

int execlp(const char *file, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list list;
    warden_on_exit("execlp()", __builtin_return_address(0));
    va_start(list, first);
    int taken = take_words(first, list, words);
    va_end(list);
    return taken ? next_exec.execvpe(file, words, environ) : -1;
}

int execle(const char *path, const char *first, ...)
{
    char *words[MAX_WORDS];
    va_list list;
    warden_on_exit("execle()", __builtin_return_address(0));
    va_start(list, first);
    int taken = take_words(first, list, words);
    char *const *environment = taken ? va_arg(list, char *const *) : NULL;
    va_end(list);
    return taken ? next_exec.execve(path, words, environment) : -1;
}
