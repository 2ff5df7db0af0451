/* SPDX-License-Identifier: Apache-2.0
 *
 * moving_range.c: records at their number modulo a capacity that grows with the range.
 */
#include "host/base/moving_range.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *record(unsigned char *at, int64_t capacity, size_t size, int64_t number)
{
    return at + (size_t)(number & (capacity - 1)) * size;
}

/* Room for the numbers from first to `end`. */
static int grow(struct moving_range *range, int64_t end)
{
    int64_t capacity = range->capacity ? range->capacity : 64;
    while (capacity < end - range->first)
        capacity *= 2;
    if (capacity == range->capacity)
        return 1;
    unsigned char *grown = calloc((size_t)capacity, range->size);
    if (!grown)
        return 0;
    for (int64_t n = range->first; n < range->end; n++)
        memcpy(record(grown, capacity, range->size, n),
               record(range->at, range->capacity, range->size, n), range->size);
    free(range->at);
    range->at = grown;
    range->capacity = capacity;
    return 1;
}

void *moving_range_at(struct moving_range *range, int64_t number)
{
    assert(number >= range->first);
    if (number >= range->end) {
        if (!grow(range, number + 1))
            return NULL;
        range->end = number + 1;
    }
    return record(range->at, range->capacity, range->size, number);
}

void moving_range_pass(struct moving_range *range, int64_t first)
{
    for (; range->first < first && range->first < range->end; range->first++)
        memset(record(range->at, range->capacity, range->size, range->first), 0, range->size);
    if (range->first < first)
        range->first = range->end = first;
}

void moving_range_finish(struct moving_range *range)
{
    free(range->at);
    *range = (struct moving_range){.size = range->size};
}
