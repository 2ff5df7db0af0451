/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.h: sized structs of the ABI as hosts of other versions pass them: smaller, without their
 * last members, or larger, with unknown members after ours. An inaccessible page follows.
 */
#ifndef HOST_CHECK_CASES_SIZED_H
#define HOST_CHECK_CASES_SIZED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIZED_COPIES = 72, SIZED_EXTRA = 64, SIZED_POISON = 0xA5 };

/* Copies that were made; zeroed = none. */
struct sized {
    struct sized_copy {
        void *map;
        size_t map_bytes;
        char *base;
        size_t stride, size; /* of an element: as it is now, as it was */
        uint32_t count;
    } copies[SIZED_COPIES];
    int num_copies;
};

/* A copy of `count` structs of `size` bytes each. `to` is their size in the copy, struct_size
 * included: smaller than `size`, equal, or up to SIZED_EXTRA more, poison then. NULL: no memory. */
void *sized_copy(struct sized *sized, const void *from, size_t size, uint32_t count, size_t to);

/* Is the poison after the known part still there? With `may_zero`, zeros are accepted. */
bool sized_is_whole(const struct sized *sized, bool may_zero);

void sized_finish(struct sized *sized);

#endif /* HOST_CHECK_CASES_SIZED_H */
