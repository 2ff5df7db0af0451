/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_sized.h: reading sized structs of the other side, which may have been built with older or
 * newer headers.
 */
#ifndef PLUGINS_COPY_SIZED_H
#define PLUGINS_COPY_SIZED_H

#include <stdint.h>
#include <string.h>

/* Copy a sized struct into one of `size` bytes: the prefix that both have, zero after it. */
static inline void copy_sized(void *to, uint32_t size, const void *from)
{
    uint32_t theirs = *(const uint32_t *)from;
    if (theirs >= size) { /* nearly always, and then of a size that the compiler knows */
        memcpy(to, from, size);
    } else {
        memset(to, 0, size);
        memcpy(to, from, theirs);
    }
    *(uint32_t *)to = size;
}

/* The same with the size of what `to` points to. */
#define COPY_SIZED(to, from) copy_sized((to), (uint32_t)sizeof *(to), (from))

#endif /* PLUGINS_COPY_SIZED_H */
