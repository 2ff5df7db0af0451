/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h: progress of a long job, on stderr. On a terminal one line is redrawn in place, at
 * most as wide as the terminal; in a pipe or a log a new line appears every 30 s.
 */
#ifndef HOST_BASE_PROGRESS_H
#define HOST_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* static */
    int64_t total;    /* 0 = not known */
    int64_t next_ns;  /* when something is shown again */
    int64_t start_ns;
    bool terminal; /* stderr is one */
    bool shown;    /* a line stands there, to be wiped */
};

/* Begin a job of `total` units (0: unknown), called `what`. */
void progress_begin(struct progress *progress, const char *what, int64_t total);

/* `done` of the total so far, and a word about the current work (may be NULL). Cheap: call it at
 * every change. */
void progress_update(struct progress *progress, int64_t done, const char *note);

/* Clear the line before other output. */
void progress_end(struct progress *progress);

#endif /* HOST_BASE_PROGRESS_H */
