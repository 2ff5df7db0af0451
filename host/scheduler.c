/* SPDX-License-Identifier: Apache-2.0 */
#include "host/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/error.h"
#include "host/scheduler_private.h"

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status check_params(const struct scheduler_params *params, attn_error *error)
{
    if (params->prefix_cache && (params->share_unit < 1 || !params->keys))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "prefix cache: share_unit %" PRId64
                         ": accepted 1 and more, with a function that tells the keys",
                         params->share_unit);
    return ATTN_OK;
}

static attn_status init_pools(struct scheduler *scheduler, attn_error *error)
{
    const struct scheduler_params *params = &scheduler->params;
    attn_status status = check_params(params, error);
    if (status == ATTN_OK)
        status = slots_init(&scheduler->slots, params->page_size, params->num_pages, error);
    if (status == ATTN_OK)
        status = request_table_init(&scheduler->table, params->max_running_requests,
                                    params->max_context_len, error);
    if (status == ATTN_OK)
        status = radix_cache_create(&scheduler->slots, &scheduler->cache, error);
    return status;
}

attn_status scheduler_create(const struct scheduler_params *params, struct scheduler **scheduler,
                             attn_error *error)
{
    struct scheduler *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "scheduler: no memory");
    made->params = *params;
    attn_status status = init_pools(made, error);
    if (status != ATTN_OK)
        goto err_destroy;
    size_t seqs = (size_t)params->max_running_requests;
    size_t tokens = (size_t)scheduler_max_tokens(made);
    made->running = malloc(seqs * sizeof *made->running);
    made->seqs = malloc(seqs * sizeof *made->seqs);
    made->out_cache_loc = malloc(tokens * sizeof *made->out_cache_loc);
    if (!made->running || !made->seqs || !made->out_cache_loc) {
        status =
            host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                      "scheduler: no memory for steps of %zu sequences and %zu rows", seqs, tokens);
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
    free(scheduler->requests);
    free(scheduler->running);
    free(scheduler->seqs);
    free(scheduler->out_cache_loc);
    free(scheduler->keys);
    free(scheduler->pages);
    free(scheduler);
}

const struct request_table *scheduler_request_table(const struct scheduler *scheduler)
{
    return &scheduler->table;
}

int64_t scheduler_max_tokens(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    int64_t most = slots_capacity(&scheduler->slots); /* the rows of a step have distinct slots */
    int64_t chunk = params->chunked_prefill_size;
    int64_t decodes = params->max_running_requests;
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
    int64_t max_rows = scheduler->table.max_context_len;
    int64_t decode_rows = output > 0 ? output - 1 : 0;
    if (input > max_rows || decode_rows > max_rows - input)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "request %" PRId64 ": input of %" PRId64 " and output of %" PRId64
                         " tokens: accepted is what fits max_context_len = %" PRId64,
                         scheduler->num_requests, input, output, max_rows);
    int32_t pages = slots_pages(&scheduler->slots, (int32_t)(input + decode_rows));
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
    bool shares = scheduler->params.prefix_cache;
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

/* Give back all that a running request holds, rows of the step that is out included. */
static void release(struct scheduler *scheduler, struct request *request)
{
    int32_t length = request->computed + request->num_new;
    int32_t page_size = scheduler->slots.page_size;
    const int32_t *slots = request_table_row(&scheduler->table, request->row);
    int32_t num_pages = slots_pages(&scheduler->slots, length);
    for (int32_t i = request->cached_pages; i < num_pages; i++)
        slots_free_page(&scheduler->slots, slots[(size_t)i * (size_t)page_size] / page_size);
    radix_cache_unlock(scheduler->cache, request->node);
    request_table_release(&scheduler->table, request->row, length);
    request->row = request->computed = request->num_new = request->cached_pages = 0;
    request->node = NULL;
}

void scheduler_retract_last(struct scheduler *scheduler)
{
    struct request *request = running_at(scheduler, --scheduler->num_running);
    release(scheduler, request);
    request->state = REQUEST_WAITING;
    scheduler->first_waiting = number_of(scheduler, request);
    scheduler->counts.retractions++;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

enum scheduler_state scheduler_next(struct scheduler *scheduler, const struct scheduler_step **step,
                                    int64_t *wake_us)
{
    assert(!scheduler->step_is_out);
    const struct scheduler_params *params = &scheduler->params;
    scheduler_plan(scheduler, params->now_us ? params->now_us(params->clock_context) : INT64_MAX);
    if (scheduler->step.num_seqs > 0) {
        scheduler->step_is_out = true;
        *step = &scheduler->step;
        return SCHEDULER_STEP;
    }
    assert(scheduler->num_running == 0);
    const struct request *request = scheduler_find_waiting(scheduler);
    if (!request)
        return SCHEDULER_DONE;
    *wake_us = request->arrival_us;
    return SCHEDULER_WAIT;
}

/* Each row is looked at; nothing is derived from the sums that are to be checked. */
static void count_prompt_rows(struct scheduler *scheduler, struct request *request)
{
    struct scheduler_counts *counts = &scheduler->counts;
    if (request->computed > request->mark) { /* only a hit can have moved it past the mark */
        counts->prefix_hit += request->computed - request->mark;
        request->mark = request->computed;
    }
    for (int32_t i = 0; i < request->num_new; i++) {
        counts->prefill++;
        counts->recomputed += request->computed + i < request->mark;
    }
}

/* Let later requests see the pages that hold nothing but complete units of shareable tokens. */
static void publish(struct scheduler *scheduler, struct request *request)
{
    int32_t page_size = scheduler->slots.page_size;
    int64_t visible = min_i32(request->computed, request->shareable);
    visible -= request->shareable > 0 ? visible % scheduler->params.share_unit : 0;
    int32_t first = request->cached_pages;
    int32_t count = (int32_t)(visible / page_size) - first;
    if (count <= 0)
        return;
    const int32_t *row = request_table_row(&scheduler->table, request->row);
    scheduler->params.keys(scheduler->params.keys_context, number_of(scheduler, request),
                           (int64_t)first * page_size, (int64_t)count * page_size, scheduler->keys);
    for (int32_t i = 0; i < count; i++)
        scheduler->pages[i] = row[(size_t)(first + i) * (size_t)page_size] / page_size;
    int32_t taken = (int32_t)radix_cache_insert(scheduler->cache, scheduler->keys, count,
                                                scheduler->pages, &request->node);
    request->cached_pages += taken;
    for (int32_t i = 0; i < taken; i++) {
        int32_t position = (first + i) * page_size;
        if (row[position] == scheduler->pages[i] * page_size)
            continue;
        scheduler_write_pages(scheduler, request, first + i, 1, &scheduler->pages[i]);
        request->table_changed = min_i32(request->table_changed, position);
    }
}

static void advance(struct scheduler *scheduler, struct request *request)
{
    bool is_prompt = request->computed < request->target;
    if (is_prompt)
        count_prompt_rows(scheduler, request);
    else
        scheduler->counts.decode++;
    request->computed += request->num_new;
    request->num_new = 0;
    request->mark = max_i32(request->mark, request->computed);
    if (is_prompt)
        publish(scheduler, request);
}

/* Take out of `running` whoever does not run any more. */
static void compact_running(struct scheduler *scheduler)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < scheduler->num_running; i++)
        if (running_at(scheduler, i)->state == REQUEST_RUNNING)
            scheduler->running[kept++] = scheduler->running[i];
    scheduler->num_running = kept;
}

/* The step is over: its requests advance, and end if all their rows are computed; if it failed,
 * they end where they are. */
static void end_step(struct scheduler *scheduler, bool failed)
{
    assert(scheduler->step_is_out);
    for (int32_t i = 0; i < scheduler->step.num_seqs; i++) {
        struct request *request = &scheduler->requests[scheduler->seqs[i].request];
        if (!failed)
            advance(scheduler, request);
        if (!failed && request->computed < request->num_rows)
            continue;
        release(scheduler, request);
        request->state = failed ? REQUEST_DROPPED : REQUEST_FINISHED;
        ++*(failed ? &scheduler->counts.dropped : &scheduler->counts.finished);
    }
    compact_running(scheduler);
    scheduler->counts.steps += !failed;
    scheduler->step.number++;
    scheduler->step_is_out = false;
}

void scheduler_complete(struct scheduler *scheduler)
{
    end_step(scheduler, false);
}

void scheduler_drop(struct scheduler *scheduler)
{
    end_step(scheduler, true);
}

void scheduler_device_lost(struct scheduler *scheduler)
{
    while (scheduler->num_running > 0)
        scheduler_retract_last(scheduler);
    radix_cache_flush(scheduler->cache);
    scheduler->step.number += scheduler->step_is_out;
    scheduler->step_is_out = false;
}

/* ---- Figures --------------------------------------------------------------------------------- */

void scheduler_count(const struct scheduler *scheduler, struct scheduler_counts *counts)
{
    *counts = scheduler->counts;
    counts->kv_capacity = slots_capacity(&scheduler->slots);
    counts->kv_peak = slots_peak(&scheduler->slots);
}

int64_t scheduler_leaked(struct scheduler *scheduler)
{
    radix_cache_flush(scheduler->cache);
    return slots_capacity(&scheduler->slots) - slots_free_tokens(&scheduler->slots);
}
