/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler.c: creation of the scheduler with its pools and steps.
 */
#include "host/schedule/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/round.h"
#include "host/schedule/private.h"

#include <stdio.h>

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status check_params(const struct scheduler_params *params, attn_error *error)
{
    if (params->prefix_cache && (params->share_unit < 1 || !params->keys))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "prefix cache: share_unit %" PRId64
                         ": accepted 1 and more, with a function that gives the keys",
                         params->share_unit);
    const struct scheduler_window *window = &params->window;
    if (window->num_pages != 0 && window->left < 0 && window->chunk <= 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "pool of windows: window of %" PRId32 " and chunk of %" PRId32
                         ": accepted 0 and more, or a chunk of 1 and more",
                         window->left, window->chunk);
    if (params->num_cached_states < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "prefix cache: num_cached_states %" PRId64 ": accepted 0 and more",
                         params->num_cached_states);
    if (params->drafts.tokens > 0 && params->mixed)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "drafts: mixed steps: accepted prompts and verifications in steps of "
                         "their own");
    if (params->cross_len > 0 && (params->prefix_cache || params->drafts.tokens > 0 ||
                                  params->cross_len > params->max_context_len))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "cross attention: cross_len %" PRId32 ": accepted up to %" PRId32
                         " without a prefix cache and without drafts",
                         params->cross_len, params->max_context_len);
    if (params->max_in_flight < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "steps in flight: max_in_flight %" PRId32 ": accepted 0 and more",
                         params->max_in_flight);
    return ATTN_OK;
}

/* The records of steps in flight; calloc() checks the products. */
static bool init_flights(struct scheduler *scheduler)
{
    size_t depth = (size_t)scheduler->params.max_in_flight;
    size_t seqs = (size_t)scheduler->params.max_running_requests;
    scheduler->flights = calloc(depth, sizeof *scheduler->flights);
    scheduler->flight_seqs = calloc(depth * seqs, sizeof *scheduler->flight_seqs);
    if (!scheduler->flights || !scheduler->flight_seqs)
        return false;
    for (size_t i = 0; i < depth; i++)
        scheduler->flights[i].seqs = scheduler->flight_seqs + i * seqs;
    return true;
}

/* What steps with drafts list in addition, but for the moves. */
static bool init_drafts(struct scheduler *scheduler)
{
    size_t seqs = (size_t)scheduler->params.max_running_requests;
    if (scheduler->params.drafts.tokens == 0)
        return true;
    scheduler->trees = calloc(seqs, sizeof *scheduler->trees);
    scheduler->moves_indptr = calloc(seqs + 1, sizeof *scheduler->moves_indptr);
    return scheduler->trees && scheduler->moves_indptr;
}

/* A pool's part of steps. */
static bool init_pool_steps(const struct scheduler *scheduler, struct pool *pool)
{
    size_t tokens = (size_t)scheduler_max_tokens(scheduler);
    size_t drafts = (size_t)scheduler->params.drafts.tokens;
    size_t moves = (size_t)scheduler->params.max_running_requests * drafts;
    pool->out_cache_loc = malloc(tokens * sizeof *pool->out_cache_loc);
    pool->moves = moves > 0 ? calloc(moves, sizeof *pool->moves) : NULL;
    return pool->out_cache_loc && (pool->moves || moves == 0);
}

static bool caches_states(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    return params->has_state && params->prefix_cache && params->num_cached_states > 0;
}

static attn_status init_pool(const struct scheduler_params *params, int64_t num_pages,
                             struct pool *pool, attn_error *error)
{
    attn_status status = slots_init(&pool->slots, params->page_size, num_pages, error);
    return status == ATTN_OK ? request_table_init(&pool->table, params->max_running_requests,
                                                  params->max_context_len, error)
                             : status;
}

static attn_status init_pools(struct scheduler *scheduler, attn_error *error)
{
    const struct scheduler_params *params = &scheduler->params;
    struct pool *pools = scheduler->pools;
    attn_status status = check_params(params, error);
    scheduler->num_pools = params->window.num_pages != 0 ? SCHEDULER_ROW_POOLS : 1;
    if (status == ATTN_OK && caches_states(scheduler))
        status = slots_init(&scheduler->states, 1, params->num_cached_states + 1, error);
    if (status == ATTN_OK)
        status = init_pool(params, params->num_pages, &pools[SCHEDULER_ALL], error);
    if (status == ATTN_OK && scheduler->num_pools > 1)
        status = init_pool(params, params->window.num_pages, &pools[SCHEDULER_WINDOW], error);
    if (status == ATTN_OK && params->cross_len > 0)
        status = init_pool(params, params->num_encoder_pages, &pools[SCHEDULER_ENCODER], error);
    if (status == ATTN_OK)
        status = radix_cache_create(
            &pools[SCHEDULER_ALL].slots,
            scheduler->num_pools > 1 ? &pools[SCHEDULER_WINDOW].slots : NULL,
            caches_states(scheduler) ? &scheduler->states : NULL, &scheduler->cache, error);
    return status;
}

/* The lists of a step. */
static bool init_steps(struct scheduler *scheduler)
{
    size_t seqs = (size_t)scheduler->params.max_running_requests;
    size_t snapshots = seqs * (size_t)scheduler_snapshots_per_seq(&scheduler->params.drafts);
    scheduler->running = malloc(seqs * sizeof *scheduler->running);
    scheduler->decoding = malloc(seqs * sizeof *scheduler->decoding);
    scheduler->seqs = malloc(seqs * sizeof *scheduler->seqs);
    scheduler->snapshots = malloc(snapshots * sizeof *scheduler->snapshots);
    for (int p = 0; p < SCHEDULER_POOLS; p++)
        if (scheduler_has_pool(scheduler, p) && !init_pool_steps(scheduler, &scheduler->pools[p]))
            return false;
    return scheduler->running && scheduler->decoding && scheduler->seqs && scheduler->snapshots &&
           init_flights(scheduler) && init_drafts(scheduler);
}

attn_status scheduler_create(const struct scheduler_params *params, struct scheduler **scheduler,
                             attn_error *error)
{
    struct scheduler *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "scheduler: no memory");
    made->params = *params;
    if (params->max_in_flight == 0)
        made->params.max_in_flight = 1;
    attn_status status = init_pools(made, error);
    if (status != ATTN_OK)
        goto err_destroy;
    if (!init_steps(made)) {
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                           "scheduler: no memory for steps of %" PRId32 " sequences and %" PRId64
                           " rows, %" PRId32 " in flight",
                           params->max_running_requests, scheduler_max_tokens(made),
                           made->params.max_in_flight);
        goto err_destroy;
    }
    *scheduler = made;
    return ATTN_OK;

err_destroy:
    scheduler_destroy(made);
    return status;
}

void scheduler_destroy(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    radix_cache_destroy(scheduler->cache);
    for (int p = 0; p < SCHEDULER_POOLS; p++) {
        request_table_finish(&scheduler->pools[p].table);
        slots_finish(&scheduler->pools[p].slots);
        free(scheduler->pools[p].out_cache_loc);
        free(scheduler->pools[p].moves);
        free(scheduler->pages[p]);
    }
    slots_finish(&scheduler->states);
    free(scheduler->requests);
    free(scheduler->running);
    free(scheduler->decoding);
    free(scheduler->seqs);
    free(scheduler->snapshots);
    free(scheduler->trees);
    free(scheduler->moves_indptr);
    free(scheduler->keys);
    free(scheduler->flights);
    free(scheduler->flight_seqs);
    free(scheduler);
}

const struct request_table *scheduler_request_table(const struct scheduler *scheduler, int pool)
{
    return &scheduler->pools[pool].table;
}

int scheduler_num_pools(const struct scheduler *scheduler)
{
    return scheduler->num_pools;
}

bool scheduler_has_pool(const struct scheduler *scheduler, int pool)
{
    return pool == SCHEDULER_ENCODER ? scheduler->params.cross_len > 0
                                     : pool < scheduler->num_pools;
}

int64_t scheduler_row_states(const struct scheduler_params *params)
{
    return (int64_t)params->max_running_requests * (params->drafts.tokens + 1);
}

int64_t scheduler_max_tokens(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    int64_t most = slots_capacity(
        &scheduler->pools[SCHEDULER_ALL].slots); /* the rows of a step have distinct slots */
    int64_t chunk = params->chunked_prefill_size;
    int64_t decodes = (int64_t)params->max_running_requests * drafts_rows(&params->drafts);
    int64_t encoded = scheduler_encoder_rows(scheduler);
    most = chunk > 0 && chunk + decodes < most ? chunk + decodes : most;
    return encoded > most ? encoded : most;
}

/* ---- Queue ----------------------------------------------------------------------------------- */

/* Drafts of a request's last verification, beyond its own rows. */
static int64_t drafts_beyond(const struct drafts *drafts, int64_t output_length)
{
    return output_length > 1 ? drafts_rows(drafts) - 1 : 0;
}

int64_t scheduler_rows_at_most(const struct drafts *drafts, int64_t input_length,
                               int64_t output_length)
{
    int64_t decode_rows = output_length > 0 ? output_length - 1 : 0;
    return input_length + decode_rows + drafts_beyond(drafts, output_length);
}

/* Pages of each pool that a request takes at most; 0 of those that there are not. */
static void most_pages(const struct scheduler_params *params,
                       const struct scheduler_request *request, int64_t pages[SCHEDULER_POOLS])
{
    int64_t rows =
        scheduler_rows_at_most(&params->drafts, request->input_length, request->output_length);
    int64_t seen = scheduler_window_pages(params, drafts_rows(&params->drafts));
    int64_t all = units_for(rows, params->page_size);
    pages[SCHEDULER_ALL] = all;
    pages[SCHEDULER_WINDOW] = params->window.num_pages == 0 ? 0 : all < seen ? all : seen;
    pages[SCHEDULER_ENCODER] = units_for(params->cross_len, params->page_size);
}

attn_status scheduler_check_pools(const struct scheduler_params *params, int64_t number,
                                  const struct scheduler_request *request, attn_error *error)
{
    static const char *const names[SCHEDULER_POOLS] = {"KV cache", "KV cache of windows",
                                                       "KV cache of encoders"};
    const int64_t has[SCHEDULER_POOLS] = {params->num_pages - 1, params->window.num_pages - 1,
                                          params->num_encoder_pages - 1};
    int64_t pages[SCHEDULER_POOLS],
        drafted = drafts_beyond(&params->drafts, request->output_length);
    char beyond[64] = "";
    int p = 0;
    most_pages(params, request, pages);
    while (p < SCHEDULER_POOLS && (pages[p] == 0 || pages[p] <= has[p]))
        p++;
    if (p == SCHEDULER_POOLS)
        return ATTN_OK;
    if (drafted > 0)
        snprintf(beyond, sizeof beyond, ", and %" PRId64 " drafts beyond them,", drafted);
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "request %" PRId64 ": input of %" PRId64 " and output of %" PRId64
                     " tokens%s take %" PRId64 " pages of %" PRId32 " tokens; the %s has "
                     "%" PRId64 " (%" PRId64 " tokens), so it could never finish",
                     number, request->input_length, request->output_length, beyond, pages[p],
                     params->page_size, names[p], has[p], has[p] * params->page_size);
}

attn_status scheduler_check_whole(int64_t request, int64_t input_length, int64_t chunk,
                                  attn_error *error)
{
    if (chunk <= 0 || input_length <= chunk)
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "request %" PRId64 ": input of %" PRId64
                     " tokens, which is not cut: accepted up to chunked_prefill_size = %" PRId64
                     ", or a step without that limit (0)",
                     request, input_length, chunk);
}

static attn_status check_request(const struct scheduler *scheduler,
                                 const struct scheduler_request *request, attn_error *error)
{
    int64_t input = request->input_length, output = request->output_length;
    int64_t shareable = request->shareable_length;
    if (input < 1 || output < 0 || shareable < 0 || shareable > input)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "request %" PRId64 ": input_length %" PRId64 ", output_length %" PRId64
                         ", shareable_length %" PRId64
                         ": accepted are an input of 1 and more, an output of 0 and more, and no "
                         "more shareable tokens than input",
                         scheduler->num_requests, input, output, shareable);
    attn_status status = ATTN_OK;
    if (scheduler->params.whole_prompts)
        status = scheduler_check_whole(scheduler->num_requests, input,
                                       scheduler->params.chunked_prefill_size, error);
    if (status != ATTN_OK)
        return status;
    int64_t drafted = drafts_rows(&scheduler->params.drafts) - 1;
    int64_t max_rows = scheduler->params.max_context_len - drafted;
    int64_t decode_rows = output > 0 ? output - 1 : 0;
    if (input > max_rows || decode_rows > max_rows - input)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "request %" PRId64 ": input of %" PRId64 " and output of %" PRId64
                         " tokens: accepted is what fits max_context_len = %" PRId64,
                         scheduler->num_requests, input, output, max_rows);
    return scheduler_check_pools(&scheduler->params, scheduler->num_requests, request, error);
}

/* Room for one more request, and for the keys of `pages` pages; growing by half keeps additions
 * linear. */
static bool make_room(struct scheduler *scheduler, int64_t pages)
{
    if (scheduler->num_requests == scheduler->max_requests) {
        int64_t more = scheduler->max_requests + scheduler->max_requests / 2 + 16;
        struct request *requests =
            realloc(scheduler->requests, (size_t)more * sizeof *scheduler->requests);
        if (!requests)
            return false;
        scheduler->requests = requests;
        scheduler->max_requests = more;
    }
    if (pages <= scheduler->scratch_pages)
        return true;
    size_t tokens = (size_t)pages * (size_t)scheduler->params.page_size;
    int32_t *numbers[SCHEDULER_POOLS] = {NULL};
    token_key *keys = malloc(tokens * sizeof *keys);
    bool there = keys != NULL;
    for (int p = 0; p < scheduler->num_pools; p++) {
        numbers[p] = malloc((size_t)pages * sizeof *numbers[p]);
        there = there && numbers[p];
    }
    free(there ? scheduler->keys : keys);
    scheduler->keys = there ? keys : scheduler->keys;
    for (int p = 0; p < scheduler->num_pools; p++) {
        free(there ? scheduler->pages[p] : numbers[p]);
        scheduler->pages[p] = there ? numbers[p] : scheduler->pages[p];
    }
    scheduler->scratch_pages = there ? pages : scheduler->scratch_pages;
    return there;
}

attn_status scheduler_add(struct scheduler *scheduler, const struct scheduler_request *request,
                          attn_error *error)
{
    assert(!scheduler->step_is_out);
    attn_status status = check_request(scheduler, request, error);
    if (status != ATTN_OK)
        return status;
    bool shares = scheduler->params.prefix_cache &&
                  (!scheduler->params.has_state || caches_states(scheduler));
    int32_t shareable = shares ? (int32_t)request->shareable_length : 0;
    if (!make_room(scheduler, shareable / scheduler->params.page_size))
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "request %" PRId64 ": no memory to queue it", scheduler->num_requests);
    int32_t decode_rows = request->output_length > 0 ? (int32_t)request->output_length - 1 : 0;
    scheduler->requests[scheduler->num_requests++] = (struct request){
        .arrival_us = request->arrival_us,
        .input_length = (int32_t)request->input_length,
        .shareable = shareable,
        .num_rows = (int32_t)request->input_length + decode_rows,
        .state = REQUEST_WAITING,
    };
    scheduler->counts.requests++;
    return ATTN_OK;
}

struct request *scheduler_find_waiting(struct scheduler *scheduler)
{
    while (scheduler->first_waiting < scheduler->num_requests) {
        struct request *request = &scheduler->requests[scheduler->first_waiting];
        if (request->state == REQUEST_WAITING)
            return request;
        scheduler->first_waiting++;
    }
    return NULL;
}

/* ---- What a running request holds ------------------------------------------------------------ */

void scheduler_write_pages(struct scheduler *scheduler, int pool, const struct request *request,
                           int32_t first, int32_t count, const int32_t *pages)
{
    int32_t page_size = scheduler->params.page_size;
    int32_t *slots = row_in(scheduler, pool, request) + (size_t)first * (size_t)page_size;
    for (int32_t i = 0; i < count; i++)
        for (int32_t offset = 0; offset < page_size; offset++)
            *slots++ = pages[i] * page_size + offset;
}

/* The state in the slot of its row needs nothing: the next request in the row starts from another.
 */
static void release_states(struct scheduler *scheduler, struct request *request)
{
    if (request->state_node)
        radix_cache_unpin_state(scheduler->cache, request->state_node);
    request->state_node = NULL;
    for (int32_t i = 0; i < request->num_snapshots; i++)
        slots_free_page(&scheduler->states, request->snapshots[i].slot);
    request->num_snapshots = 0;
}

/* The pages of a pool that are the request's own, from number `first` on, and its row there. */
static void release_pool(struct scheduler *scheduler, int pool, struct request *request,
                         int32_t first)
{
    int32_t length = request->computed + request->num_new;
    for (int32_t i = first; i < pages_of(scheduler, length); i++)
        slots_free_page(&scheduler->pools[pool].slots, page_at(scheduler, pool, request, i));
    request_table_release(&scheduler->pools[pool].table, request->row, length);
}

void scheduler_release(struct scheduler *scheduler, struct request *request)
{
    scheduler_leave_decodes(scheduler, request);
    release_pool(scheduler, SCHEDULER_ALL, request, request->cached_pages);
    if (scheduler->num_pools > SCHEDULER_WINDOW)
        release_pool(scheduler, SCHEDULER_WINDOW, request,
                     max_i32(request->cached_pages, request->passed));
    scheduler_encoder_give_back(scheduler, request);
    release_states(scheduler, request);
    scheduler_window_let_go(scheduler, request);
    radix_cache_unlock(scheduler->cache, request->node);
    request->row = request->computed = request->num_new = request->cached_pages = 0;
    request->undrafted = request->state_turn = request->passed = 0;
    request->encoded = false;
    request->node = NULL;
}

void scheduler_retract_last(struct scheduler *scheduler)
{
    struct request *request = running_at(scheduler, --scheduler->num_running);
    scheduler_release(scheduler, request);
    request->state = REQUEST_WAITING;
    scheduler->first_waiting = number_of(scheduler, request);
    scheduler->counts.retractions++;
}

/* ---- The next step --------------------------------------------------------------------------- */

/* What the requests that run hold while the step is out. */
static void note_held(struct scheduler *scheduler)
{
    for (int p = 0; p < SCHEDULER_POOLS; p++) {
        struct pool *pool = &scheduler->pools[p];
        if (!scheduler_has_pool(scheduler, p))
            continue;
        int64_t held = slots_capacity(&pool->slots) -
                       scheduler_available(scheduler, p) * scheduler->params.page_size;
        pool->held = held > pool->held ? held : pool->held;
    }
}

enum scheduler_state scheduler_next(struct scheduler *scheduler, const struct scheduler_step **step,
                                    int64_t *wake_us)
{
    assert(!scheduler->step_is_out);
    const struct scheduler_params *params = &scheduler->params;
    if (scheduler->num_flights == params->max_in_flight)
        return SCHEDULER_DRAIN;
    scheduler_plan(scheduler, params->now_us ? params->now_us(params->clock_context) : INT64_MAX);
    note_held(scheduler);
    if (scheduler->step.num_seqs > 0) {
        scheduler->step_is_out = true;
        *step = &scheduler->step;
        return SCHEDULER_STEP;
    }
    assert(scheduler->num_running == 0);
    if (scheduler->num_flights > 0)
        return SCHEDULER_DRAIN;
    const struct request *request = scheduler_find_waiting(scheduler);
    if (!request)
        return SCHEDULER_DONE;
    *wake_us = request->arrival_us;
    return SCHEDULER_WAIT;
}

/* ---- Figures --------------------------------------------------------------------------------- */

void scheduler_count(const struct scheduler *scheduler, struct scheduler_counts *counts)
{
    *counts = scheduler->counts;
    for (int p = 0; p < SCHEDULER_POOLS; p++) {
        const struct slots *slots = &scheduler->pools[p].slots;
        if (!scheduler_has_pool(scheduler, p))
            continue;
        counts->pools[p] = (struct scheduler_pool_counts){
            .capacity = slots_capacity(slots),
            .used = slots_capacity(slots) - slots_free_tokens(slots),
            .peak = slots_peak(slots),
            .held = scheduler->pools[p].held,
        };
    }
    if (caches_states(scheduler)) {
        counts->state_capacity = slots_capacity(&scheduler->states);
        counts->state_peak = slots_peak(&scheduler->states);
    }
}

int32_t scheduler_next_freed(struct scheduler *scheduler, int pool)
{
    return scheduler_has_pool(scheduler, pool) ? slots_next_freed(&scheduler->pools[pool].slots)
                                               : 0;
}

int32_t scheduler_next_freed_state(struct scheduler *scheduler)
{
    int32_t slot = caches_states(scheduler) ? slots_next_freed(&scheduler->states) : 0;
    return slot > 0 ? (int32_t)scheduler_row_states(&scheduler->params) + slot : 0;
}

int64_t scheduler_leaked(struct scheduler *scheduler, int pool)
{
    const struct slots *slots = &scheduler->pools[pool].slots;
    radix_cache_flush(scheduler->cache);
    return slots_capacity(slots) - slots_free_tokens(slots);
}

int64_t scheduler_leaked_states(struct scheduler *scheduler)
{
    radix_cache_flush(scheduler->cache);
    return caches_states(scheduler)
               ? slots_capacity(&scheduler->states) - slots_free_tokens(&scheduler->states)
               : 0;
}
