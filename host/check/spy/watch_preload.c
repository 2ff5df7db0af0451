/* SPDX-License-Identifier: Apache-2.0
 *
 * watch_preload.c: to be preloaded (watch.h). Each function counts its calls while watching is on,
 * and calls the original.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "host/check/spy/watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* glibc's own; dlsym() would itself allocate. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static atomic_bool watching;
static _Atomic uint64_t count;
static _Atomic(const char *) first;
static _Atomic(void *) first_caller;

#define SHOWN  __attribute__((visibility("default")))
#define NOTE() note(__func__, __builtin_return_address(0))

static void note(const char *name, void *caller)
{
    if (!atomic_load_explicit(&watching, memory_order_relaxed))
        return;
    if (atomic_fetch_add(&count, 1) == 0) {
        atomic_store(&first_caller, caller);
        atomic_store(&first, name);
    }
}

SHOWN void attnhost_watch_begin(void);
SHOWN void attnhost_watch_begin(void)
{
    atomic_store(&count, 0);
    atomic_store(&first, NULL);
    atomic_store(&watching, 1);
}

SHOWN void attnhost_watch_end(struct watch_report *report);
SHOWN void attnhost_watch_end(struct watch_report *report)
{
    atomic_store(&watching, 0);
    report->count = atomic_load(&count);
    report->first = atomic_load(&first);
    report->caller = atomic_load(&first_caller);
}

/* ---- Allocation ------------------------------------------------------------------------------ */

SHOWN void *malloc(size_t size)
{
    NOTE();
    return __libc_malloc(size);
}

SHOWN void *calloc(size_t number, size_t size)
{
    NOTE();
    return __libc_calloc(number, size);
}

SHOWN void *realloc(void *memory, size_t size)
{
    NOTE();
    return __libc_realloc(memory, size);
}

SHOWN void free(void *memory)
{
    if (memory)
        NOTE();
    __libc_free(memory);
}

SHOWN void *aligned_alloc(size_t alignment, size_t size)
{
    NOTE();
    return __libc_memalign(alignment, size);
}

SHOWN int posix_memalign(void **memory, size_t alignment, size_t size)
{
    NOTE();
    void *made = __libc_memalign(alignment, size);
    if (!made)
        return ENOMEM;
    *memory = made;
    return 0;
}

/* ---- Everything else, found at the first call ------------------------------------------------ */

/* X(result, name, parameters, arguments) */
#define WATCHED(X)                                                                                 \
    X(void *, mmap, (void *a, size_t n, int p, int f, int d, off_t o), (a, n, p, f, d, o))         \
    X(int, munmap, (void *a, size_t n), (a, n))                                                    \
    X(ssize_t, read, (int d, void *b, size_t n), (d, b, n))                                        \
    X(ssize_t, write, (int d, const void *b, size_t n), (d, b, n))                                 \
    X(int, close, (int d), (d))                                                                    \
    X(FILE *, fopen, (const char *p, const char *m), (p, m))                                       \
    X(size_t, fwrite, (const void *b, size_t s, size_t n, FILE *f), (b, s, n, f))                  \
    X(int, puts, (const char *t), (t))                                                             \
    X(int, fputs, (const char *t, FILE *f), (t, f))                                                \
    X(int, fflush, (FILE * f), (f))                                                                \
    X(int, nanosleep, (const struct timespec *t, struct timespec *r), (t, r))                      \
    X(int, usleep, (useconds_t t), (t))                                                            \
    X(unsigned int, sleep, (unsigned int t), (t))                                                  \
    X(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *p),  \
      (t, a, f, p))                                                                                \
    X(int, pthread_join, (pthread_t t, void **r), (t, r))

/* The function of this name after this library. */
static void find_next(const char *name, void *function)
{
    void *found = dlsym(RTLD_NEXT, name);
    memcpy(function, &found, sizeof found);
}

#define DEFINE(result, name, parameters, arguments)                                                \
    SHOWN result name parameters                                                                   \
    {                                                                                              \
        static result(*next) parameters;                                                           \
        NOTE();                                                                                    \
        if (!next)                                                                                 \
            find_next(#name, &next);                                                               \
        return next arguments;                                                                     \
    }

WATCHED(DEFINE)

/* The mode is there if a file may be made. */
#define DEFINE_OPEN(name)                                                                          \
    SHOWN int name(const char *path, int flags, ...)                                               \
    {                                                                                              \
        static int (*next)(const char *, int, ...);                                                \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                    \
        va_end(rest);                                                                              \
        NOTE();                                                                                    \
        if (!next)                                                                                 \
            find_next(#name, &next);                                                               \
        return next(path, flags, mode);                                                            \
    }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
