/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.h: allocation of KV cache pages.
 *
 * A slot holds the keys and values of one token: slot = page * page_size + offset. Memory is handed
 * out by the page, tokens fill a page in order, and a sequence gets a new page only when its last
 * one is full: positions i * page_size to (i + 1) * page_size - 1 lie in the sequence's page i.
 *
 * Page 0 is padding: never allocated. The others wait in a queue, at first in ascending order; an
 * allocation takes the front, a freed page goes to the back. So the order is deterministic, and a
 * page rests as long as possible before it is used again: a stray late access to freed memory
 * meets no live data for longest.
 *
 * Nothing here counts references: what several sequences share belongs to the prefix cache.
 */
#ifndef HOST_CACHE_SLOTS_H
#define HOST_CACHE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "attn_types.h"

struct slots {
    int32_t page_size; /* tokens */
    int32_t num_pages; /* page 0 included */
    int32_t num_free;  /* pages in the queue */
    int32_t num_freed; /* number of pages, at the end of the queue, that slots_next_freed() has not
                        * returned yet */
    int32_t min_free;  /* fewest there ever were */
    int32_t head;      /* where in the queue its front is */
    int32_t *queue;    /* ring of num_pages - 1 page numbers */
    bool *allocated;   /* [num_pages]; catches a page that is freed twice */
};

/* All pages but page 0 free. INVALID_ARGUMENT: page_size < 1, num_pages < 2, or more slots than an
 * int32 numbers. OUT_OF_HOST_MEMORY. On success the caller releases it by slots_finish(). */
attn_status slots_init(struct slots *slots, int32_t page_size, int64_t num_pages,
                       attn_error *error);

/* Release the memory; a zeroed or finished struct is fine. */
void slots_finish(struct slots *slots);

/* Tokens that fit into all pages but page 0, into the free pages, and into the pages in use at the
 * worst moment so far. */
int64_t slots_capacity(const struct slots *slots);
int64_t slots_free_tokens(const struct slots *slots);
int64_t slots_peak(const struct slots *slots);

/* Pages that a sequence of `length` tokens takes. */
static inline int32_t slots_pages(const struct slots *slots, int32_t length)
{
    return length / slots->page_size + (length % slots->page_size != 0);
}

/* Pages that a sequence of prefix_len tokens needs on top for num_new more. */
static inline int32_t slots_pages_to_extend(const struct slots *slots, int32_t prefix_len,
                                            int32_t num_new)
{
    return slots_pages(slots, prefix_len + num_new) - slots_pages(slots, prefix_len);
}

/* Slots for the tokens [prefix_len, prefix_len + num_new) of a sequence into
 * new_slots[0 .. num_new). last_slot is the slot of token prefix_len - 1; it is not read where
 * prefix_len is a multiple of the page size. False, and nothing has changed, if there are fewer
 * free pages than needed. */
bool slots_alloc_extend(struct slots *slots, int32_t prefix_len, int32_t num_new, int32_t last_slot,
                        int32_t *new_slots);

/* Give back one page, which must be allocated. */
void slots_free_page(struct slots *slots, int32_t page);

/* A page that was freed, is still free and was not returned before; 0 = there is none. */
int32_t slots_next_freed(struct slots *slots);

#endif /* HOST_CACHE_SLOTS_H */
