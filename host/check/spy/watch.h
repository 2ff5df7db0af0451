/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.h: calls into the C library that a forward must not make (rule PURE-01), counted by a small
 * library that is preloaded into the process (watch_preload.c, installed as attnhost_watch.so).
 *
 * What it sees: calls through the dynamic linker, from any thread, between begin and end:
 * allocation, files, sockets, memory maps, threads, sleeping. What it does not see: system calls
 * made by hand, calls within the C library itself (what printf() writes), locks.
 */
#ifndef HOST_CHECK_SPY_WATCH_H
#define HOST_CHECK_SPY_WATCH_H

#include <stdint.h>

/* What was called. */
struct watch_report {
    uint64_t count;
    const char *first; /* name of the first function; static */
    void *caller;      /* where it was called from */
};

/* Symbols of the library. */
#define WATCH_BEGIN "attnhost_watch_begin"
#define WATCH_END   "attnhost_watch_end"
typedef void (*watch_begin_fn)(void);
typedef void (*watch_end_fn)(struct watch_report *report);

/* The file, next to the plugins' folder: pkglibdir. */
#define WATCH_FILE "attnhost_watch.so"

#endif /* HOST_CHECK_SPY_WATCH_H */
