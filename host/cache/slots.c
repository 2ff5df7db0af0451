/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c: allocation and release of pages.
 */
#include "host/cache/slots.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

attn_status slots_init(struct slots *slots, int32_t page_size, int64_t num_pages, attn_error *error)
{
    memset(slots, 0, sizeof *slots);
    if (page_size < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "KV cache: page_size %" PRId32 ": accepted 1 and more", page_size);
    int64_t most = INT32_MAX / page_size; /* every slot's number is an int32 */
    if (num_pages < 2 || num_pages > most)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "KV cache: %" PRId64 " pages of %" PRId32 " tokens, the padding page "
                         "included: accepted 2 to %" PRId64,
                         num_pages, page_size, most);
    slots->page_size = page_size;
    slots->num_pages = (int32_t)num_pages;
    slots->num_free = slots->min_free = (int32_t)num_pages - 1;
    slots->queue = malloc((size_t)slots->num_free * sizeof *slots->queue);
    slots->allocated = calloc((size_t)num_pages, sizeof *slots->allocated);
    if (!slots->queue || !slots->allocated) {
        slots_finish(slots);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "KV cache: no memory for the list of %" PRId64 " pages", num_pages);
    }
    for (int32_t i = 0; i < slots->num_free; i++)
        slots->queue[i] = i + 1;
    return ATTN_OK;
}

void slots_finish(struct slots *slots)
{
    free(slots->queue);
    free(slots->allocated);
    memset(slots, 0, sizeof *slots);
}

int64_t slots_capacity(const struct slots *slots)
{
    return (int64_t)(slots->num_pages - 1) * slots->page_size;
}

int64_t slots_free_tokens(const struct slots *slots)
{
    return (int64_t)slots->num_free * slots->page_size;
}

int64_t slots_peak(const struct slots *slots)
{
    return (int64_t)(slots->num_pages - 1 - slots->min_free) * slots->page_size;
}

/* The ring has exactly as many places as there are pages to allocate, so it never overflows. */
static int32_t take_page(struct slots *slots)
{
    int32_t page = slots->queue[slots->head];
    slots->head = slots->head + 1 == slots->num_pages - 1 ? 0 : slots->head + 1;
    slots->num_free--;
    if (slots->num_free < slots->num_freed)
        slots->num_freed = slots->num_free;
    if (slots->num_free < slots->min_free)
        slots->min_free = slots->num_free;
    slots->allocated[page] = true;
    return page;
}

/* Place `n` of the queue, counted from its front. */
static int32_t *place(const struct slots *slots, int32_t n)
{
    int64_t places = slots->num_pages - 1, at = (int64_t)slots->head + n;
    return &slots->queue[at < places ? at : at - places];
}

void slots_free_page(struct slots *slots, int32_t page)
{
    assert(page > 0 && page < slots->num_pages && slots->allocated[page]);
    *place(slots, slots->num_free++) = page;
    slots->num_freed++;
    slots->allocated[page] = false;
}

int32_t slots_next_freed(struct slots *slots)
{
    return slots->num_freed > 0 ? *place(slots, slots->num_free - slots->num_freed--) : 0;
}

bool slots_alloc_extend(struct slots *slots, int32_t prefix_len, int32_t num_new, int32_t last_slot,
                        int32_t *new_slots)
{
    if (slots_pages_to_extend(slots, prefix_len, num_new) > slots->num_free)
        return false;
    int32_t slot = last_slot;
    for (int32_t i = 0; i < num_new; i++) {
        bool page_begins = (prefix_len + i) % slots->page_size == 0;
        slot = page_begins ? take_page(slots) * slots->page_size : slot + 1;
        new_slots[i] = slot;
    }
    return true;
}
