/* SPDX-License-Identifier: Apache-2.0
 *
 * moving_range.h: a record for each number of a range that moves upwards, such as the requests of a
 * run: memory depends on the width of the range, not on its position.
 */
#ifndef HOST_BASE_MOVING_RANGE_H
#define HOST_BASE_MOVING_RANGE_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed but for `size`, it is an empty range that begins at 0. Not thread-safe. */
struct moving_range {
    size_t size;       /* bytes of a record */
    int64_t first;     /* the lowest number that has a record */
    int64_t end;       /* one above the highest that was asked for */
    int64_t capacity;  /* records that there is memory for; a power of two, or 0 */
    unsigned char *at; /* record n lies at n modulo capacity */
};

/* The record of `number` (>= first), zeroed when it is new. It stays valid until the range grows or
 * passes it. NULL without memory. */
void *moving_range_at(struct moving_range *range, int64_t number);

/* Numbers below `first` are over, and their records are gone. A lower `first` than before has no
 * effect. */
void moving_range_pass(struct moving_range *range, int64_t first);

/* Release the memory; the range is empty then. */
void moving_range_finish(struct moving_range *range);

#endif /* HOST_BASE_MOVING_RANGE_H */
