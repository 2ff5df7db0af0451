/* SPDX-License-Identifier: Apache-2.0
 *
 * trail.h: the current step of a case, in memory that the parent shares with its child: a note
 * costs no system call and survives a crash.
 */
#ifndef HOST_CHECK_TRAIL_H
#define HOST_CHECK_TRAIL_H

#include <stdatomic.h>
#include <stdint.h>

enum { CHECK_TRAIL_TEXT = 504 };

struct check_trail {
    _Atomic uint64_t count; /* grows with each note: a sign of life */
    char text[CHECK_TRAIL_TEXT];
};

/* A sign of life. `trail` may be NULL. */
static inline void check_trail_live(struct check_trail *trail)
{
    if (trail)
        atomic_fetch_add_explicit(&trail->count, 1, memory_order_release);
}

#endif /* HOST_CHECK_TRAIL_H */
