/* SPDX-License-Identifier: Apache-2.0
 *
 * window.c: the pool of layers with a sliding window: what of it a request still needs.
 *
 * A request has there the pages from number `passed` on. Below cached_pages they are the prefix
 * cache's, and held; the rest are its own. What a step makes visible goes to the prefix cache
 * first, and what the window has passed is let go of after that: so the cache keeps it as long as
 * no request needs the room.
 */
#include <string.h>

#include "host/base/round.h"
#include "host/schedule/private.h"

static bool has_windows(const struct scheduler *scheduler)
{
    return scheduler->num_pools > SCHEDULER_WINDOW;
}

/* The first position that a query at `position` sees. */
static int64_t first_seen(const struct scheduler_window *window, int64_t position)
{
    int64_t first = window->chunk ? position - position % window->chunk : position;
    if (position - window->left < first) /* not without a window: left is -1 */
        first = position - window->left;
    return first > 0 ? first : 0;
}

/* Positions before a query that it sees at most. */
static int64_t span(const struct scheduler_window *window)
{
    return max_i32(window->left, window->chunk - 1);
}

int64_t scheduler_window_pages(const struct scheduler_params *params, int64_t positions)
{
    return units_for(span(&params->window) + positions, params->page_size) + 1;
}

/* radix_first_seen: by the page. */
static int64_t first_page_seen(const void *context, int64_t num_pages)
{
    const struct scheduler_params *params = context;
    return first_seen(&params->window, num_pages * params->page_size) / params->page_size;
}

/* ---- Cached prefixes ------------------------------------------------------------------------- */

void scheduler_window_cut_prefix(struct scheduler *scheduler, struct request *request)
{
    int64_t pages = request->cached_pages;
    if (!has_windows(scheduler))
        return;
    request->node = radix_cache_find_window(scheduler->cache, request->node, first_page_seen,
                                            &scheduler->params, &pages);
    request->cached_pages = (int32_t)pages;
}

void scheduler_window_hold(struct scheduler *scheduler, struct request *request)
{
    if (!has_windows(scheduler))
        return;
    int64_t from = first_page_seen(&scheduler->params, request->cached_pages);
    if (radix_cache_hold_window(scheduler->cache, request->node, request->cached_pages, from,
                                scheduler->pages[SCHEDULER_WINDOW])) {
        request->passed = (int32_t)from;
        return;
    }
    radix_cache_unlock(scheduler->cache, request->node);
    request->node = radix_cache_root(scheduler->cache);
    request->cached_pages = 0;
}

void scheduler_window_let_go(struct scheduler *scheduler, struct request *request)
{
    if (has_windows(scheduler) && request->passed < request->cached_pages)
        radix_cache_pass_window(scheduler->cache, request->node, request->cached_pages,
                                request->passed, request->cached_pages);
}

/* ---- The window moves on --------------------------------------------------------------------- */

/* Mark entries of pages [first, end) as free. */
static void forget(struct scheduler *scheduler, struct request *request, int32_t first, int32_t end)
{
    int32_t page_size = scheduler->params.page_size;
    int32_t *changed = &request->table_changed[SCHEDULER_WINDOW];
    int32_t *row = row_in(scheduler, SCHEDULER_WINDOW, request);
    memset(row + (size_t)first * (size_t)page_size, 0,
           (size_t)(end - first) * (size_t)page_size * sizeof *row);
    *changed = min_i32(*changed, first * page_size);
}

void scheduler_window_pass(struct scheduler *scheduler, struct request *request)
{
    if (!has_windows(scheduler))
        return;
    int32_t next = request->computed - request->undrafted; /* the first row to come */
    int32_t first = request->passed, page_size = scheduler->params.page_size;
    int32_t end = (int32_t)(first_seen(&scheduler->params.window, next) / page_size);
    int32_t shared = min_i32(end, request->cached_pages);
    if (first < shared)
        request->passed = (int32_t)radix_cache_pass_window(scheduler->cache, request->node,
                                                           request->cached_pages, first, shared);
    for (; request->passed >= request->cached_pages && request->passed < end; request->passed++)
        slots_free_page(&scheduler->pools[SCHEDULER_WINDOW].slots,
                        page_at(scheduler, SCHEDULER_WINDOW, request, request->passed));
    if (first < request->passed)
        forget(scheduler, request, first, request->passed);
}

int64_t scheduler_window_need(const struct scheduler *scheduler, const struct request *request)
{
    const struct scheduler_params *params = &scheduler->params;
    int64_t chunk = params->chunked_prefill_size > 0 ? params->chunked_prefill_size : INT32_MAX;
    int64_t pages = pages_of(scheduler, request->target) - request->cached_pages;
    int64_t most = scheduler_window_pages(params, chunk);
    return pages < most ? pages : most;
}
