/* SPDX-License-Identifier: Apache-2.0
 *
 * flight.c: a step after it was planned: launched, confirmed, dropped, or lost with the device.
 *
 * A launch moves requests on as if the step had ended, which is what the plan of the next one
 * needs, and leaves a record of what the end will add. Records are confirmed in order, so the mark
 * that rows are counted against at launch is the one that will be confirmed before them.
 */
#include <assert.h>
#include <string.h>

#include "attn_problem.h"

#include "host/schedule/private.h"

static struct flight *flight_at(const struct scheduler *scheduler, int32_t index)
{
    return &scheduler
                ->flights[(scheduler->oldest_flight + index) % scheduler->params.max_in_flight];
}

int32_t scheduler_in_flight(const struct scheduler *scheduler)
{
    return scheduler->num_flights;
}

int64_t scheduler_first_unfinished(struct scheduler *scheduler)
{
    while (scheduler->first_unfinished < scheduler->num_requests &&
           scheduler->requests[scheduler->first_unfinished].state >= REQUEST_FINISHED)
        scheduler->first_unfinished++;
    int64_t first = scheduler->first_unfinished;
    for (int32_t f = 0; f < scheduler->num_flights; f++) {
        const struct flight *flight = flight_at(scheduler, f);
        for (int32_t i = 0; i < flight->num_seqs; i++) /* dropped ones have rows there still */
            first = flight->seqs[i].request < first ? flight->seqs[i].request : first;
    }
    return first;
}

/* ---- Launched -------------------------------------------------------------------------------- */

/* Each row is counted; nothing is derived from the sums that the counts must equal. */
static void count_prompt_rows(struct flight *flight, struct request *request)
{
    if (request->computed > request->mark) { /* only a hit can have moved it past the mark */
        flight->prefix_hit += request->computed - request->mark;
        request->mark = request->computed;
    }
    for (int32_t i = 0; i < request->num_new; i++) {
        flight->prefill++;
        flight->recomputed += request->computed + i < request->mark;
    }
}

/* Where the tree has such pages already, those of the request become the tree's. */
static void adopt(struct scheduler *scheduler, int pool, struct request *request, int32_t first,
                  int32_t count)
{
    const int32_t *pages = scheduler->pages[pool];
    for (int32_t i = 0; i < count; i++) {
        if (page_at(scheduler, pool, request, first + i) == pages[i])
            continue;
        scheduler_write_pages(scheduler, pool, request, first + i, 1, &pages[i]);
        request->table_changed[pool] =
            min_i32(request->table_changed[pool], (first + i) * scheduler->params.page_size);
    }
}

/* The request's next `count` pages become the tree's; those of the first `pools` pools. */
static void insert(struct scheduler *scheduler, struct request *request, int32_t count, int pools)
{
    int32_t first = request->cached_pages, page_size = scheduler->params.page_size;
    if (count <= 0)
        return;
    scheduler->params.keys(scheduler->params.keys_context, number_of(scheduler, request),
                           (int64_t)first * page_size, (int64_t)count * page_size, scheduler->keys);
    for (int p = 0; p < pools; p++)
        for (int32_t i = 0; i < count; i++)
            scheduler->pages[p][i] = page_at(scheduler, p, request, first + i);
    int32_t **pages = scheduler->pages;
    int64_t taken = pools == 1
                        ? radix_cache_insert(scheduler->cache, scheduler->keys, count,
                                             pages[SCHEDULER_ALL], &request->node)
                        : radix_cache_insert_windows(scheduler->cache, scheduler->keys, count,
                                                     pages[SCHEDULER_ALL], pages[SCHEDULER_WINDOW],
                                                     &request->node);
    request->cached_pages += (int32_t)taken;
    for (int p = 0; p < pools; p++)
        adopt(scheduler, p, request, first, (int32_t)taken);
}

/* Let later requests see the pages that hold nothing but complete units of shareable tokens: first
 * those that the window has passed. */
static void publish(struct scheduler *scheduler, struct request *request)
{
    int32_t visible = visible_pages(scheduler, request, request->computed);
    insert(scheduler, request, min_i32(visible, request->passed) - request->cached_pages, 1);
    if (request->cached_pages >= request->passed)
        insert(scheduler, request, visible - request->cached_pages, scheduler->num_pools);
}

/* The states after pages that are published now; the others wait. */
static void publish_states(struct scheduler *scheduler, struct request *request)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < request->num_snapshots; i++) {
        struct snapshot *snapshot = &request->snapshots[i];
        int32_t pages_back = request->cached_pages - snapshot->rows / scheduler->params.page_size;
        if (pages_back >= 0)
            radix_cache_put_state(scheduler->cache, request->node, pages_back, snapshot->slot);
        else
            request->snapshots[kept++] = *snapshot;
    }
    request->num_snapshots = kept;
    if (request->state_node) /* the step that read it was launched */
        radix_cache_unpin_state(scheduler->cache, request->state_node);
    request->state_node = NULL;
}

static void advance_prompt(struct scheduler *scheduler, struct flight *flight,
                           struct request *request)
{
    count_prompt_rows(flight, request);
    request->computed += request->num_new;
    request->mark = max_i32(request->mark, request->computed);
    publish(scheduler, request);
    publish_states(scheduler, request);
    if (is_decoding(request))
        scheduler_join_decodes(scheduler, request);
}

/* Give back the pages beyond `length` rows, of those that the step's rows took. */
static void give_back(struct scheduler *scheduler, struct request *request, int32_t length)
{
    int32_t end = request->computed + request->num_new;
    for (int p = 0; p < scheduler->num_pools; p++) {
        int32_t *row = row_in(scheduler, p, request);
        for (int32_t page = pages_of(scheduler, end); page-- > pages_of(scheduler, length);)
            slots_free_page(&scheduler->pools[p].slots, page_at(scheduler, p, request, page));
        memset(row + length, 0, (size_t)(end - length) * sizeof *row);
        request->table_changed[p] = request->computed;
    }
}

/* The rows that stay are computed; the others might never have been. */
static void advance_verified(struct scheduler *scheduler, struct flight *flight,
                             struct request *request, int32_t committed)
{
    flight->decode += committed;
    flight->verifications++;
    flight->drafted += request->num_new - 1;
    flight->accepted += committed - 1;
    give_back(scheduler, request, request->computed + committed);
    request->computed += committed;
    request->mark = max_i32(request->mark, request->computed);
    request->state_turn = (request->state_turn + committed) % (scheduler->params.drafts.tokens + 1);
    request->undrafted = scheduler->params.draft_model ? committed : 0;
}

static void note_mark(const struct scheduler *scheduler, struct flight *flight,
                      const struct request *request)
{
    flight->seqs[flight->num_seqs++] =
        (struct flight_seq){number_of(scheduler, request), request->mark};
}

/* A sequence of the step that is out. */
static void advance(struct scheduler *scheduler, struct flight *flight, int32_t s)
{
    const struct scheduler_step *step = &scheduler->step;
    struct request *request = &scheduler->requests[scheduler->seqs[s].request];
    if (step->mode == SCHEDULER_MODE_ENCODE) {
        flight->encoded += scheduler->params.encoder_len;
        request->encoded = true;
        note_mark(scheduler, flight, request);
        return;
    }
    if (step->mode == ATTN_MODE_DRAFT_EXTEND) {
        flight->draft_extend += request->undrafted;
        request->undrafted = 0;
    } else if (step->mode == ATTN_MODE_TARGET_VERIFY) {
        advance_verified(scheduler, flight, request, step->trees[s].committed);
    } else if (!is_decoding(request)) {
        advance_prompt(scheduler, flight, request);
    } else {
        flight->decode++;
        request->computed += request->num_new;
        request->mark = max_i32(request->mark, request->computed);
    }
    request->num_new = 0;
    scheduler_window_pass(scheduler, request);
    note_mark(scheduler, flight, request);
}

/* No step is out any more; `running` loses the requests that no longer run. */
static void end_step(struct scheduler *scheduler)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < scheduler->num_running; i++)
        if (running_at(scheduler, i)->state == REQUEST_RUNNING)
            scheduler->running[kept++] = scheduler->running[i];
    scheduler->num_running = kept;
    scheduler->step.number += scheduler->step_is_out;
    scheduler->step_is_out = false;
}

void scheduler_advance(struct scheduler *scheduler)
{
    assert(scheduler->step_is_out);
    struct flight *flight = flight_at(scheduler, scheduler->num_flights++);
    *flight = (struct flight){.seqs = flight->seqs};
    for (int32_t i = 0; i < scheduler->step.num_seqs; i++) {
        struct request *request = &scheduler->requests[scheduler->seqs[i].request];
        advance(scheduler, flight, i);
        if (request->computed < request->num_rows)
            continue;
        scheduler_release(scheduler, request);
        request->state = REQUEST_THROUGH;
    }
    end_step(scheduler);
}

/* ---- Confirmed ------------------------------------------------------------------------------- */

void scheduler_confirm(struct scheduler *scheduler)
{
    assert(scheduler->num_flights > 0);
    const struct flight *flight = flight_at(scheduler, 0);
    struct scheduler_counts *counts = &scheduler->counts;
    counts->prefill += flight->prefill;
    counts->decode += flight->decode;
    counts->prefix_hit += flight->prefix_hit;
    counts->recomputed += flight->recomputed;
    counts->verifications += flight->verifications;
    counts->drafted += flight->drafted;
    counts->accepted += flight->accepted;
    counts->draft_extend += flight->draft_extend;
    counts->encoded += flight->encoded;
    counts->steps++;
    for (int32_t i = 0; i < flight->num_seqs; i++) {
        struct request *request = &scheduler->requests[flight->seqs[i].request];
        request->confirmed = flight->seqs[i].mark;
        if (request->confirmed < request->num_rows)
            continue;
        assert(request->state == REQUEST_THROUGH);
        request->state = REQUEST_FINISHED;
        counts->finished++;
    }
    scheduler->oldest_flight++;
    scheduler->num_flights--;
}

void scheduler_complete(struct scheduler *scheduler)
{
    assert(scheduler->num_flights == 0);
    scheduler_advance(scheduler);
    scheduler_confirm(scheduler);
}

/* ---- Dropped --------------------------------------------------------------------------------- */

/* It may hold memory, wait after a retraction, be through, or have been dropped before. */
static void drop(struct scheduler *scheduler, int64_t number)
{
    struct request *request = &scheduler->requests[number];
    if (request->state == REQUEST_DROPPED)
        return;
    if (request->state == REQUEST_RUNNING)
        scheduler_release(scheduler, request);
    request->state = REQUEST_DROPPED;
    scheduler->counts.dropped++;
}

void scheduler_drop(struct scheduler *scheduler)
{
    assert(scheduler->step_is_out);
    for (int32_t i = 0; i < scheduler->step.num_seqs; i++)
        drop(scheduler, scheduler->seqs[i].request);
    end_step(scheduler);
}

/* A request that reads what an unconfirmed step published took it over in that step or a later one,
 * so it is in an unconfirmed step itself and dropped here. Then no request locks such a page, and
 * flushing what is not locked removes them all. A state may have been put after a page that
 * another request locks, so all states go; a request that pinned one is in the step that is out.
 * A window page may be in the same state; after the drop no remaining request holds it. */
void scheduler_drop_flight(struct scheduler *scheduler)
{
    for (int32_t i = 0; scheduler->step_is_out && i < scheduler->step.num_seqs; i++)
        drop(scheduler, scheduler->seqs[i].request);
    for (; scheduler->num_flights > 0; scheduler->num_flights--) {
        const struct flight *flight = flight_at(scheduler, scheduler->num_flights - 1);
        for (int32_t i = 0; i < flight->num_seqs; i++)
            drop(scheduler, flight->seqs[i].request);
    }
    end_step(scheduler);
    radix_cache_drop_states(scheduler->cache);
    radix_cache_evict_windows(scheduler->cache, INT64_MAX);
    radix_cache_flush(scheduler->cache);
}

/* ---- Lost ------------------------------------------------------------------------------------ */

/* What the steps in flight did to marks and states. Their requests hold nothing any more. */
static void undo_flights(struct scheduler *scheduler)
{
    for (; scheduler->num_flights > 0; scheduler->num_flights--) {
        const struct flight *flight = flight_at(scheduler, scheduler->num_flights - 1);
        for (int32_t i = 0; i < flight->num_seqs; i++) {
            struct request *request = &scheduler->requests[flight->seqs[i].request];
            request->mark = request->confirmed;
            if (request->state != REQUEST_THROUGH)
                continue;
            request->state = REQUEST_WAITING;
            if (flight->seqs[i].request < scheduler->first_waiting)
                scheduler->first_waiting = flight->seqs[i].request;
        }
    }
}

void scheduler_device_lost(struct scheduler *scheduler)
{
    while (scheduler->num_running > 0)
        scheduler_retract_last(scheduler);
    undo_flights(scheduler);
    end_step(scheduler);
    radix_cache_flush(scheduler->cache);
}
