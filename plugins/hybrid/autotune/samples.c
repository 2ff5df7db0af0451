/* SPDX-License-Identifier: Apache-2.0
 *
 * samples.c: statistics of samples.
 */
#include "autotune.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

double tune_median(const int64_t *ns, int count)
{
    int64_t sorted[TUNE_MAX_ROUNDS];
    memcpy(sorted, ns, (size_t)count * sizeof *ns);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return ((double)sorted[(count - 1) / 2] + (double)sorted[count / 2]) / 2;
}

static int64_t best(const int64_t *ns, int count)
{
    int64_t least = ns[0];
    for (int r = 1; r < count; r++)
        least = ns[r] < least ? ns[r] : least;
    return least;
}

int tune_is_faster(const int64_t *challenger, const int64_t *holder, int count, double margin)
{
    int lower = 0;
    for (int r = 0; r < count; r++)
        lower += challenger[r] < holder[r];
    return 5 * lower >= 4 * count &&
           tune_median(challenger, count) < (1 - margin) * tune_median(holder, count) &&
           (double)best(challenger, count) < (1 - margin) * (double)best(holder, count);
}
