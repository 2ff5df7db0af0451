/* SPDX-License-Identifier: Apache-2.0
 *
 * warden.h: protects the process of a command from the plugins that it calls.
 *
 *   exit()     ends the process with EXIT_RUN_TIME after a line that names who called it, never
 *              with what the caller wanted; so do _exit(), a function of the C library that calls
 *              exit(), exec*(), and pthread_exit() in a call
 *   kill()     and raise() of a signal that ends this process are named; then it ends it
 *   a crash    is named the same way, with its signal; then the signal does what it does
 *   fork()     in a call: a child that comes back from it is ended and named
 *   stdout     carries what the command itself prints; what plugins print goes to stderr
 *   locale, signal handlers and mask, working directory, umask, resource limits
 *              are put back after each call, but forwards, and reported (plugin/guard.h)
 *
 * It sees functions that a plugin finds by dlsym(), too. It does not see a system call that is made
 * without the C library.
 */
#ifndef HOST_CMD_WARDEN_H
#define HOST_CMD_WARDEN_H

#include <pthread.h>

/* To be called by the main thread before it loads plugins. `command`, as in "attnhost run", begins
 * the messages. */
void warden_begin(const char *command);

/* When a plugin ends the process, `will` is called with the cause, such as "SIGSEGV in bad: create
 * (bad.so)", to write the report so far. It runs in a child, as the memory may be damaged, for at
 * most WARDEN_WILL_SECONDS. NULL = no report. */
enum { WARDEN_WILL_SECONDS = 10 };
void warden_set_will(void (*will)(const char *how));

/* The command ends with this code, whatever exit handlers of plugins want. Returns `code`, or
 * EXIT_RUN_TIME if it was EXIT_GOOD and what was printed cannot be written. Without
 * warden_begin() it looks after stdout alone. */
int warden_end(const char *command, int code);

/* Code at `caller` calls `function`, which ends the process: returns only if the process may end.
 * For exits.c. */
void warden_on_exit(const char *function, const void *caller);

/* Code at `caller` is about to end `thread`. Returns if the thread is none of the host's: neither
 * the main one nor, as far as is known here, one that is in a call. */
void warden_on_thread_end(pthread_t thread, const char *function, const void *caller);

/* Code at `caller` is about to unmap memory. Returns unless it is the stack of this thread, which is
 * in a call. */
void warden_on_unmap(const void *begin, size_t length, const void *caller);

/* Code at `caller` is about to send a signal to this process or its group. For exits.c. */
void warden_on_signal(int number, const void *caller);

#endif /* HOST_CMD_WARDEN_H */
