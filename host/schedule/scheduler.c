/* SPDX-License-Identifier: Apache-2.0 */
#include "host/schedule/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/schedule/private.h"

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status check_params(const struct scheduler_params *params, attn_error *error)
{
    if (params->prefix_cache && (params->share_unit < 1 || !params->keys))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "prefix cache: share_unit %" PRId64
                         ": accepted 1 and more, with a function that gives the keys",
                         params->share_unit);
    if (params->num_cached_states < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "prefix cache: num_cached_states %" PRId64 ": accepted 0 and more",
                         params->num_cached_states);
    if (params->drafts.tokens > 0 && params->mixed)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "drafts: mixed steps: accepted prompts and verifications in steps of "
                         "their own");
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

/* What steps with drafts list in addition. */
static bool init_drafts(struct scheduler *scheduler)
{
    size_t seqs = (size_t)scheduler->params.max_running_requests;
    size_t rows = (size_t)scheduler->params.drafts.tokens;
    if (rows == 0)
        return true;
    scheduler->trees = calloc(seqs, sizeof *scheduler->trees);
    scheduler->moves_indptr = calloc(seqs + 1, sizeof *scheduler->moves_indptr);
    scheduler->moves = calloc(seqs * rows, sizeof *scheduler->moves);
    return scheduler->trees && scheduler->moves_indptr && scheduler->moves;
}

static bool caches_states(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    return params->has_state && params->prefix_cache && params->num_cached_states > 0;
}

static attn_status init_pools(struct scheduler *scheduler, attn_error *error)
{
    const struct scheduler_params *params = &scheduler->params;
    attn_status status = check_params(params, error);
    if (status == ATTN_OK && caches_states(scheduler))
        status = slots_init(&scheduler->states, 1, params->num_cached_states + 1, error);
    if (status == ATTN_OK)
        status = slots_init(&scheduler->slots, params->page_size, params->num_pages, error);
    if (status == ATTN_OK)
        status = request_table_init(&scheduler->table, params->max_running_requests,
                                    params->max_context_len, error);
    if (status == ATTN_OK)
        status = radix_cache_create(&scheduler->slots,
                                    caches_states(scheduler) ? &scheduler->states : NULL,
                                    &scheduler->cache, error);
    return status;
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
    size_t seqs = (size_t)params->max_running_requests;
    size_t tokens = (size_t)scheduler_max_tokens(made);
    made->running = malloc(seqs * sizeof *made->running);
    made->seqs = malloc(seqs * sizeof *made->seqs);
    made->out_cache_loc = malloc(tokens * sizeof *made->out_cache_loc);
    made->snapshots = malloc((size_t)scheduler_snapshots_per_seq(&params->drafts) * seqs *
                             sizeof *made->snapshots);
    if (!made->running || !made->seqs || !made->out_cache_loc || !made->snapshots ||
        !init_flights(made) || !init_drafts(made)) {
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                           "scheduler: no memory for steps of %zu sequences and %zu rows, %" PRId32
                           " in flight",
                           seqs, tokens, made->params.max_in_flight);
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
    request_table_finish(&scheduler->table);
    slots_finish(&scheduler->slots);
    slots_finish(&scheduler->states);
    free(scheduler->requests);
    free(scheduler->running);
    free(scheduler->seqs);
    free(scheduler->out_cache_loc);
    free(scheduler->snapshots);
    free(scheduler->trees);
    free(scheduler->moves_indptr);
    free(scheduler->moves);
    free(scheduler->keys);
    free(scheduler->pages);
    free(scheduler->flights);
    free(scheduler->flight_seqs);
    free(scheduler);
}

const struct request_table *scheduler_request_table(const struct scheduler *scheduler)
{
    return &scheduler->table;
}

int64_t scheduler_row_states(const struct scheduler_params *params)
{
    return (int64_t)params->max_running_requests * (params->drafts.tokens + 1);
}

int64_t scheduler_max_tokens(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    int64_t most = slots_capacity(&scheduler->slots); /* the rows of a step have distinct slots */
    int64_t chunk = params->chunked_prefill_size;
    int64_t decodes = (int64_t)params->max_running_requests * drafts_rows(&params->drafts);
    return chunk > 0 && chunk + decodes < most ? chunk + decodes : most;
}

/* ---- Queue ----------------------------------------------------------------------------------- */

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
    int64_t chunk = scheduler->params.chunked_prefill_size;
    if (scheduler->params.whole_prompts && chunk > 0 && input > chunk)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "request %" PRId64 ": input of %" PRId64
                         " tokens, which is not cut: accepted up to chunked_prefill_size = %" PRId64
                         ", or a step without that limit (0)",
                         scheduler->num_requests, input, chunk);
    int64_t drafted = drafts_rows(&scheduler->params.drafts) - 1;
    int64_t max_rows = scheduler->table.max_context_len - drafted;
    int64_t decode_rows = output > 0 ? output - 1 : 0;
    if (input > max_rows || decode_rows > max_rows - input)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "request %" PRId64 ": input of %" PRId64 " and output of %" PRId64
                         " tokens: accepted is what fits max_context_len = %" PRId64,
                         scheduler->num_requests, input, output, max_rows);
    int64_t most_drafted = decode_rows > 0 ? drafted : 0;
    int32_t pages = slots_pages(&scheduler->slots, (int32_t)(input + decode_rows + most_drafted));
    if (pages > scheduler->slots.num_pages - 1)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "request %" PRId64 ": input of %" PRId64 " and output of %" PRId64
                         " tokens take %" PRId32 " pages of %" PRId32 " tokens; the KV cache has "
                         "%" PRId32 " (%" PRId64 " tokens), so it could never finish",
                         scheduler->num_requests, input, output, pages, scheduler->slots.page_size,
                         scheduler->slots.num_pages - 1, slots_capacity(&scheduler->slots));
    return ATTN_OK;
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
    size_t tokens = (size_t)pages * (size_t)scheduler->slots.page_size;
    token_key *keys = malloc(tokens * sizeof *keys);
    int32_t *numbers = malloc((size_t)pages * sizeof *numbers);
    if (!keys || !numbers) {
        free(keys);
        free(numbers);
        return false;
    }
    free(scheduler->keys);
    free(scheduler->pages);
    scheduler->keys = keys;
    scheduler->pages = numbers;
    scheduler->scratch_pages = pages;
    return true;
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
    if (!make_room(scheduler, shareable / scheduler->slots.page_size))
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

void scheduler_write_pages(struct scheduler *scheduler, const struct request *request,
                           int32_t first, int32_t count, const int32_t *pages)
{
    int32_t page_size = scheduler->slots.page_size;
    int32_t *slots =
        request_table_row(&scheduler->table, request->row) + (size_t)first * (size_t)page_size;
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

void scheduler_release(struct scheduler *scheduler, struct request *request)
{
    int32_t length = request->computed + request->num_new;
    int32_t page_size = scheduler->slots.page_size;
    const int32_t *slots = request_table_row(&scheduler->table, request->row);
    int32_t num_pages = slots_pages(&scheduler->slots, length);
    for (int32_t i = request->cached_pages; i < num_pages; i++)
        slots_free_page(&scheduler->slots, slots[(size_t)i * (size_t)page_size] / page_size);
    release_states(scheduler, request);
    radix_cache_unlock(scheduler->cache, request->node);
    request_table_release(&scheduler->table, request->row, length);
    request->row = request->computed = request->num_new = request->cached_pages = 0;
    request->undrafted = request->state_turn = 0;
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

enum scheduler_state scheduler_next(struct scheduler *scheduler, const struct scheduler_step **step,
                                    int64_t *wake_us)
{
    assert(!scheduler->step_is_out);
    const struct scheduler_params *params = &scheduler->params;
    if (scheduler->num_flights == params->max_in_flight)
        return SCHEDULER_DRAIN;
    scheduler_plan(scheduler, params->now_us ? params->now_us(params->clock_context) : INT64_MAX);
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
    counts->kv_capacity = slots_capacity(&scheduler->slots);
    counts->kv_used = counts->kv_capacity - slots_free_tokens(&scheduler->slots);
    counts->kv_peak = slots_peak(&scheduler->slots);
    if (caches_states(scheduler)) {
        counts->state_capacity = slots_capacity(&scheduler->states);
        counts->state_peak = slots_peak(&scheduler->states);
    }
}

int64_t scheduler_leaked(struct scheduler *scheduler)
{
    radix_cache_flush(scheduler->cache);
    return slots_capacity(&scheduler->slots) - slots_free_tokens(&scheduler->slots);
}

int64_t scheduler_leaked_states(struct scheduler *scheduler)
{
    radix_cache_flush(scheduler->cache);
    return caches_states(scheduler)
               ? slots_capacity(&scheduler->states) - slots_free_tokens(&scheduler->states)
               : 0;
}
