/* SPDX-License-Identifier: Apache-2.0
 *
 * load_watch.h: effects of a shared object's constructors (rule LOAD-04): a new process opens the
 * libraries that it needs, records its state, opens the object, and compares. */
#ifndef HOST_CHECK_CONTRACT_LOAD_WATCH_H
#define HOST_CHECK_CONTRACT_LOAD_WATCH_H

#include <stddef.h>

enum load_watch_result {
    LOAD_WATCH_NOTHING, /* nothing was changed */
    LOAD_WATCH_EFFECT,  /* there is an effect, described in `text`: "left an open file" */
    LOAD_WATCH_FAILED   /* the process died or could not be started, `text` says why */
};

/* Starts `attnhost check-load FILE` from the program that is running. */
enum load_watch_result load_watch(const char *file, char *text, size_t size);

/* The main function of that process: open the file, report the effects, end. */
_Noreturn void load_watch_open(const char *file);

#endif /* HOST_CHECK_CONTRACT_LOAD_WATCH_H */
