/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h: the monotonic clock, in nanoseconds.
 */
#ifndef HOST_BASE_CLOCK_H
#define HOST_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of the monotonic clock. */
static inline int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif /* HOST_BASE_CLOCK_H */
