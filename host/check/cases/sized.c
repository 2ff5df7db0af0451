/* SPDX-License-Identifier: Apache-2.0
 *
 * sized.c: structs of other sizes, each against a guard page.
 */
#include "host/check/cases/sized.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *sized_copy(struct sized *sized, const void *from, size_t size, uint32_t count, size_t to)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = to * count;
    size_t pages = (bytes + page - 1) / page * page;
    if (sized->num_copies == SIZED_COPIES)
        return NULL;
    char *map =
        mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    mprotect(map + pages, page, PROT_NONE);
    char *base = map + (pages - bytes) / 8 * 8;
    for (uint32_t i = 0; i < count; i++) {
        memset(base + i * to, SIZED_POISON, to);
        memcpy(base + i * to, (const char *)from + i * size, size < to ? size : to);
        memcpy(base + i * to, &(uint32_t){(uint32_t)to}, sizeof(uint32_t));
    }
    sized->copies[sized->num_copies++] =
        (struct sized_copy){map, pages + page, base, to, size, count};
    return base;
}

static bool tail_is_whole(const unsigned char *tail, size_t bytes, bool may_zero)
{
    unsigned char first = tail[0];
    if (first != SIZED_POISON && !(may_zero && first == 0))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (tail[i] != first)
            return false;
    return true;
}

bool sized_is_whole(const struct sized *sized, bool may_zero)
{
    for (int c = 0; c < sized->num_copies; c++) {
        const struct sized_copy *copy = &sized->copies[c];
        for (uint32_t i = 0; i < copy->count && copy->stride > copy->size; i++)
            if (!tail_is_whole((unsigned char *)copy->base + i * copy->stride + copy->size,
                               copy->stride - copy->size, may_zero))
                return false;
    }
    return true;
}

void sized_finish(struct sized *sized)
{
    for (int c = 0; c < sized->num_copies; c++)
        munmap(sized->copies[c].map, sized->copies[c].map_bytes);
    sized->num_copies = 0;
}
