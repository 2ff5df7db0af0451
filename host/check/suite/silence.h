/* SPDX-License-Identifier: Apache-2.0
 *
 * silence.h: time since a child's last sign of life, in the child's own time: time during which
 * other processes keep it from running does not count; waiting and endless loops do.
 */
#ifndef HOST_CHECK_SUITE_SILENCE_H
#define HOST_CHECK_SUITE_SILENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* On the clock a silence may last so many times as long as in the child's own time: of a child that
 * waits for what never comes, but looks again and again. */
enum { SILENCE_WALL = 10 };

/* All in nanoseconds. */
struct silence {
    int64_t began, own; /* on the clock; of the child's own time, since then */
    int64_t seen, used; /* up to where that is counted: on the clock, of its processor time */
};

void silence_begin(struct silence *silence, pid_t child);

/* Count what has passed since it was counted last. */
void silence_update(struct silence *silence, pid_t child);

/* Of `wall` on the clock so much is the child's own time: what it `used` of the processor; all of
 * it if it used nothing though no other process kept it from it. */
int64_t silence_own(int64_t wall, int64_t used, bool is_runnable);

/* On the clock, how long it may last from now on at least; 0 or less: too long already. */
int64_t silence_left(const struct silence *silence, int64_t inactivity);

#endif /* HOST_CHECK_SUITE_SILENCE_H */
