/* SPDX-License-Identifier: Apache-2.0
 *
 * report_times.h: durations, and their quantiles, in bounded memory.
 *
 * Up to REPORT_TIMES_EXACT durations are kept as they are, so that the quantiles of a short run are
 * exact. Beyond, they are counted in buckets: a duration of less than 512 ns has one of its own, and
 * from there on each power of two has 256, so a quantile is off by 0.2 % at most. Count, sum,
 * smallest and largest are exact always.
 */
#ifndef HOST_RUN_REPORT_TIMES_H
#define HOST_RUN_REPORT_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn_types.h"

enum { REPORT_TIMES_EXACT = 16384 };

/* Durations of steps, or of what requests waited for. Zeroed: none. */
struct report_times {
    size_t count;
    double sum_ns;
    int64_t least_ns, most_ns;
    int64_t *ns;       /* in the order of addition; NULL once they are counted */
    uint64_t *buckets; /* NULL while `ns` has them all */
};

/* Add a duration; one below 0 counts as 0. OUT_OF_HOST_MEMORY. */
attn_status report_add_time(struct report_times *times, int64_t ns, attn_error *error);

/* The p-quantiles (0 to 1, ascending) in microseconds, by nearest rank; 0 each without any
 * duration. False without memory to sort them in. */
bool report_quantiles_us(const struct report_times *times, const double *p, size_t count,
                         double *us);

/* One of them; 0 without memory, too. */
double report_quantile_us(const struct report_times *times, double p);

/* Release the memory; there are no durations then. */
void report_times_finish(struct report_times *times);

#endif /* HOST_RUN_REPORT_TIMES_H */
