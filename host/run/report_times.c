/* SPDX-License-Identifier: Apache-2.0
 *
 * report_times.c: exact durations, then buckets.
 */
#include "host/run/report_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

/* ---- Buckets --------------------------------------------------------------------------------- */

/* The lowest SUB_BITS + 1 bits of a duration have a bucket each; of a longer one the highest
 * SUB_BITS + 1 bits choose it. */
enum { SUB_BITS = 8, SUBS = 1 << SUB_BITS, BUCKETS = (63 - SUB_BITS) * SUBS + SUBS };

static size_t bucket_of(int64_t ns)
{
    if (ns < 2 * SUBS)
        return (size_t)ns;
    int shift = 63 - SUB_BITS - __builtin_clzll((unsigned long long)ns);
    return (size_t)(shift * SUBS + (ns >> shift));
}

/* The middle of a bucket, in nanoseconds. */
static double bucket_middle(size_t bucket)
{
    if (bucket < 2 * SUBS)
        return (double)bucket;
    int shift = (int)(bucket / SUBS) - 1;
    double low = ldexp((double)(bucket - (size_t)shift * SUBS), shift);
    return low + (ldexp(1, shift) - 1) / 2;
}

/* ---- Gathering ------------------------------------------------------------------------------- */

static attn_status fail_memory(const struct report_times *times, attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "durations of %zu steps or requests",
                     times->count + 1);
}

/* What has been kept so far is counted. */
static bool begin_buckets(struct report_times *times)
{
    uint64_t *buckets = calloc(BUCKETS, sizeof *buckets);
    if (!buckets)
        return false;
    for (size_t i = 0; i < times->count; i++)
        buckets[bucket_of(times->ns[i])]++;
    free(times->ns);
    times->ns = NULL;
    times->buckets = buckets;
    return true;
}

/* Room for one more that is kept as it is; the array doubles. */
static bool make_room(struct report_times *times)
{
    enum { FIRST = 1024 };
    bool is_full =
        times->count == 0 || (times->count >= FIRST && !(times->count & (times->count - 1)));
    if (!is_full)
        return true;
    size_t capacity = times->count ? 2 * times->count : FIRST;
    int64_t *grown = realloc(times->ns, capacity * sizeof *grown);
    times->ns = grown ? grown : times->ns;
    return grown != NULL;
}

attn_status report_add_time(struct report_times *times, int64_t ns, attn_error *error)
{
    ns = ns > 0 ? ns : 0;
    if (times->count == REPORT_TIMES_EXACT && !times->buckets && !begin_buckets(times))
        return fail_memory(times, error);
    if (!times->buckets && !make_room(times))
        return fail_memory(times, error);
    if (times->buckets)
        times->buckets[bucket_of(ns)]++;
    else
        times->ns[times->count] = ns;
    times->least_ns = times->count == 0 || ns < times->least_ns ? ns : times->least_ns;
    times->most_ns = ns > times->most_ns ? ns : times->most_ns;
    times->sum_ns += (double)ns;
    times->count++;
    return ATTN_OK;
}

void report_times_finish(struct report_times *times)
{
    free(times->ns);
    free(times->buckets);
    memset(times, 0, sizeof *times);
}

/* ---- Quantiles ------------------------------------------------------------------------------- */

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Nearest rank, from 0. */
static size_t rank_of(const struct report_times *times, double p)
{
    size_t rank = (size_t)ceil(p * (double)times->count - 1e-9); /* 0.07 * 100 is more than 7 */
    return rank > 0 ? rank - 1 : 0;
}

static bool exact_quantiles(const struct report_times *times, const double *p, size_t count,
                            double *us)
{
    int64_t *sorted = malloc(times->count * sizeof *sorted);
    if (!sorted)
        return false;
    memcpy(sorted, times->ns, times->count * sizeof *sorted);
    qsort(sorted, times->count, sizeof *sorted, compare_ns);
    for (size_t q = 0; q < count; q++)
        us[q] = (double)sorted[rank_of(times, p[q])] * 1e-3;
    free(sorted);
    return true;
}

/* The first and the last rank are known exactly; every other one lies between them. */
static void bucket_quantiles(const struct report_times *times, const double *p, size_t count,
                             double *us)
{
    size_t bucket = 0;
    uint64_t below = 0; /* durations in lower buckets */
    for (size_t q = 0; q < count; q++) {
        size_t rank = rank_of(times, p[q]);
        while (below + times->buckets[bucket] <= rank)
            below += times->buckets[bucket++];
        double ns = bucket_middle(bucket);
        if (rank == 0 || ns < (double)times->least_ns)
            ns = (double)times->least_ns;
        if (rank + 1 == times->count || ns > (double)times->most_ns)
            ns = (double)times->most_ns;
        us[q] = ns * 1e-3;
    }
}

bool report_quantiles_us(const struct report_times *times, const double *p, size_t count,
                         double *us)
{
    memset(us, 0, count * sizeof *us);
    if (times->count == 0)
        return true;
    if (!times->buckets)
        return exact_quantiles(times, p, count, us);
    bucket_quantiles(times, p, count, us);
    return true;
}

double report_quantile_us(const struct report_times *times, double p)
{
    double us;
    report_quantiles_us(times, &p, 1, &us);
    return us;
}
