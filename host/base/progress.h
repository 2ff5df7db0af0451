/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h: one line on stderr that shows how far a long job is; on a terminal only.
 */
#ifndef HOST_BASE_PROGRESS_H
#define HOST_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* static */
    int64_t total;
    int64_t next_ns; /* the line is redrawn at most ten times a second */
    int64_t start_ns;
    bool shown; /* stderr is a terminal, and a line stands there */
    bool enabled;
};

/* Begin a job of `total` units, called `what`. Nothing is ever shown unless stderr is a terminal.
 */
void progress_begin(struct progress *progress, const char *what, int64_t total);

/* `done` of the total so far, with a word on what is at work (may be NULL). */
void progress_update(struct progress *progress, int64_t done, const char *note);

/* Wipe the line, so that what is printed next stands on a clean one. */
void progress_end(struct progress *progress);

#endif /* HOST_BASE_PROGRESS_H */
