/* SPDX-License-Identifier: Apache-2.0
 *
 * neighbours.c: the order of decodes: requests that share pages lie side by side.
 *
 * For every k the requests that share their first k pages are neighbours in `decoding`, and each
 * knows how many pages it shares with the one before it. A newcomer goes after the last one of
 * those with which it shares most, which keeps this so; without a common page it goes to the end,
 * so requests that share nothing are in order of start.
 *
 * Pages of the prefix cache are all that requests share, and a request has those that it will ever
 * have when its prompt is through. So pages are compared once, when it joins; and of three
 * neighbours the outer two share what both share with the one between them.
 */
#include <string.h>

#include "host/schedule/private.h"

static struct request *decoding_at(const struct scheduler *scheduler, int32_t index)
{
    return &scheduler->requests[scheduler->decoding[index]];
}

/* First pages that two requests have in common, of which `known` are known to be. */
static int32_t count_common(const struct scheduler *scheduler, const struct request *a,
                            const struct request *b, int32_t known)
{
    int32_t most = min_i32(a->cached_pages, b->cached_pages);
    while (known < most && page_at(scheduler, SCHEDULER_ALL, a, known) ==
                               page_at(scheduler, SCHEDULER_ALL, b, known))
        known++;
    return known;
}

/* Where a newcomer goes, and how many pages it shares with the one before it there. */
static int32_t find_place(const struct scheduler *scheduler, const struct request *request,
                          int32_t *most)
{
    int32_t place = scheduler->num_decoding, common = 0;
    *most = 0;
    for (int32_t i = 0; i < scheduler->num_decoding; i++) {
        const struct request *other = decoding_at(scheduler, i);
        common = other->shared_pages == common ? count_common(scheduler, request, other, common)
                                               : min_i32(other->shared_pages, common);
        if (common > 0 && common >= *most) {
            *most = common;
            place = i + 1;
        }
    }
    return place;
}

/* The request at `index`, if there is one, has got another one before it, or lost it. */
static void limit_shared(const struct scheduler *scheduler, int32_t index, int32_t pages)
{
    if (index < scheduler->num_decoding) {
        struct request *request = decoding_at(scheduler, index);
        request->shared_pages = min_i32(request->shared_pages, pages);
    }
}

void scheduler_join_decodes(struct scheduler *scheduler, struct request *request)
{
    int64_t *decoding = scheduler->decoding;
    int32_t place = find_place(scheduler, request, &request->shared_pages);
    limit_shared(scheduler, place, request->shared_pages);
    memmove(decoding + place + 1, decoding + place,
            (size_t)(scheduler->num_decoding - place) * sizeof *decoding);
    decoding[place] = number_of(scheduler, request);
    scheduler->num_decoding++;
}

void scheduler_leave_decodes(struct scheduler *scheduler, const struct request *request)
{
    int64_t *decoding = scheduler->decoding;
    int32_t place = 0;
    while (place < scheduler->num_decoding && decoding_at(scheduler, place) != request)
        place++;
    if (place == scheduler->num_decoding)
        return;
    limit_shared(scheduler, place + 1, request->shared_pages);
    scheduler->num_decoding--;
    memmove(decoding + place, decoding + place + 1,
            (size_t)(scheduler->num_decoding - place) * sizeof *decoding);
}
