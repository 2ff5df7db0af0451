/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs next: all of the scheduler that allocates.
 */
#include <assert.h>

#include "attn_problem.h"
#include "host/schedule/private.h"

/* Decode rows reserved for each request when one starts. SGLang keeps as many steps ahead after a
 * retraction (SGLANG_RETRACT_DECODE_STEPS). */
#define RESERVED_ROWS 20

/* ---- Memory ---------------------------------------------------------------------------------- */

static int64_t available_pages(const struct scheduler *scheduler)
{
    return scheduler->slots.num_free + radix_cache_evictable(scheduler->cache);
}

static void evict_for(struct scheduler *scheduler, int32_t pages)
{
    if (pages > scheduler->slots.num_free)
        radix_cache_evict(scheduler->cache, pages - scheduler->slots.num_free);
}

/* ---- Planning: prompts ----------------------------------------------------------------------- */

/* Slots for up to `wanted` more prompt rows; returns for how many there was room. */
static int32_t extend(struct scheduler *scheduler, struct request *request, int32_t wanted)
{
    struct slots *slots = &scheduler->slots;
    int64_t most =
        (slots_pages(slots, request->computed) + available_pages(scheduler)) * slots->page_size -
        request->computed;
    int32_t count = wanted < most ? wanted : (int32_t)most;
    int32_t *row = request_table_row(&scheduler->table, request->row);
    int32_t last_slot = request->computed > 0 ? row[request->computed - 1] : 0;
    evict_for(scheduler, slots_pages_to_extend(slots, request->computed, count));
    bool done =
        slots_alloc_extend(slots, request->computed, count, last_slot, row + request->computed);
    assert(done);
    request->num_new = done ? count : 0;
    return request->num_new;
}

/* Pages to keep free for the next decode rows of a request that has `length` rows. */
static int32_t reserve_for(const struct scheduler *scheduler, const struct request *request,
                           int32_t length)
{
    int32_t rows = min_i32(RESERVED_ROWS, request->num_rows - length);
    if (rows > 0)
        rows += drafts_rows(&scheduler->params.drafts) - 1;
    return slots_pages_to_extend(&scheduler->slots, length, rows);
}

/* Step back to where the cached prefix has a state, which no request may take until it was read. */
static void pin_state(struct scheduler *scheduler, struct request *request)
{
    int64_t pages = request->cached_pages;
    request->parted_at = request->cached_pages * scheduler->slots.page_size;
    request->node = radix_cache_find_state(scheduler->cache, request->node, &pages);
    request->cached_pages = (int32_t)pages;
    radix_cache_lock(scheduler->cache, request->node);
    if (pages > 0) {
        request->state_node = request->node;
        radix_cache_pin_state(scheduler->cache, request->node);
    }
}

/* Find and lock the cached pages that the request can start after, into scheduler->pages. At
 * least one row is left to compute, as some row has to make the first output token. */
static void lock_prefix(struct scheduler *scheduler, struct request *request)
{
    int32_t page_size = scheduler->slots.page_size;
    int32_t most = min_i32(request->shareable, request->target - 1) / page_size;
    request->node = radix_cache_root(scheduler->cache);
    request->cached_pages = request->parted_at = 0;
    if (most == 0)
        return;
    scheduler->params.keys(scheduler->params.keys_context, number_of(scheduler, request), 0,
                           (int64_t)most * page_size, scheduler->keys);
    request->cached_pages = (int32_t)radix_cache_match(scheduler->cache, scheduler->keys, most,
                                                       scheduler->pages, &request->node);
    if (scheduler->params.has_state)
        pin_state(scheduler, request);
    else
        radix_cache_lock(scheduler->cache, request->node);
}

static void unlock_prefix(struct scheduler *scheduler, struct request *request)
{
    if (request->state_node)
        radix_cache_unpin_state(scheduler->cache, request->state_node);
    request->state_node = NULL;
    radix_cache_unlock(scheduler->cache, request->node);
}

/* Let the oldest waiting request run if its pages fit after *reserved ones, to which its own
 * reserve is added. Where nothing else runs it always fits: all pages but its own can be evicted.
 */
static bool start(struct scheduler *scheduler, struct request *request, int64_t *reserved)
{
    request->target = max_i32(request->input_length, request->mark);
    lock_prefix(scheduler, request);
    int64_t reserve = *reserved + reserve_for(scheduler, request, request->target);
    int64_t pages = slots_pages(&scheduler->slots, request->target) - request->cached_pages;
    if (scheduler->num_running > 0 && pages + reserve > available_pages(scheduler)) {
        unlock_prefix(scheduler, request);
        return false;
    }
    request->row = request_table_acquire(&scheduler->table);
    scheduler_write_pages(scheduler, request, 0, request->cached_pages, scheduler->pages);
    request->computed = request->cached_pages * scheduler->slots.page_size;
    request->num_new = request->table_changed = 0;
    request->undrafted = request->state_turn = 0;
    request->state = REQUEST_RUNNING;
    scheduler->running[scheduler->num_running++] = number_of(scheduler, request);
    *reserved = reserve;
    return true;
}

static int64_t reserve_for_all(const struct scheduler *scheduler)
{
    int64_t pages = 0;
    for (int32_t i = 0; i < scheduler->num_running; i++) {
        const struct request *request = running_at(scheduler, i);
        pages += reserve_for(scheduler, request, request->computed + request->num_new);
    }
    return pages;
}

/* Up to a chunk of prompt rows: first of the prompt that is in pieces, then of those that can
 * start. Returns how many. */
static int32_t plan_prompts(struct scheduler *scheduler, int64_t now_us)
{
    const struct scheduler_params *params = &scheduler->params;
    int32_t chunk = params->chunked_prefill_size > 0 ? params->chunked_prefill_size : INT32_MAX;
    int32_t left = chunk;
    struct request *last =
        scheduler->num_running > 0 ? running_at(scheduler, scheduler->num_running - 1) : NULL;
    if (last && last->computed < last->target) {
        left -= extend(scheduler, last, min_i32(left, last->target - last->computed));
        if (last->computed + last->num_new < last->target)
            return chunk - left;
    }
    int64_t reserved = reserve_for_all(scheduler);
    while (left > 0 && scheduler->num_running < params->max_running_requests) {
        struct request *request = scheduler_find_waiting(scheduler);
        bool cut = request && params->whole_prompts && request->input_length > left;
        if (!request || cut || request->arrival_us > now_us ||
            !start(scheduler, request, &reserved))
            break;
        left -= extend(scheduler, request, min_i32(left, request->target - request->computed));
    }
    return chunk - left;
}

/* ---- Planning: decodes and the step ---------------------------------------------------------- */

/* One row, or those of a verification. */
static bool decode(struct scheduler *scheduler, struct request *request)
{
    int32_t *row = request_table_row(&scheduler->table, request->row);
    int32_t length = request->computed, count = drafts_rows(&scheduler->params.drafts);
    int32_t pages = slots_pages_to_extend(&scheduler->slots, length, count);
    if (pages > available_pages(scheduler))
        return false;
    evict_for(scheduler, pages);
    request->num_new = count;
    return slots_alloc_extend(&scheduler->slots, length, count, row[length - 1], &row[length]);
}

/* Rows for each request whose prompt is through; the oldest are served first, and those that
 * started last make room for them. */
static void plan_decodes(struct scheduler *scheduler)
{
    for (int32_t i = 0; i < scheduler->num_running; i++) {
        struct request *request = running_at(scheduler, i);
        if (!is_decoding(request))
            continue;
        while (request->state == REQUEST_RUNNING && !decode(scheduler, request))
            scheduler_retract_last(scheduler);
    }
}

/* The number of a state slot of the prefix cache. */
static int32_t cached_state(const struct scheduler *scheduler, int32_t slot)
{
    return (int32_t)scheduler_row_states(&scheduler->params) + slot;
}

/* Have the state after the first `rows` rows kept, if its row is in the step and a slot is free. */
static void add_snapshot(struct scheduler *scheduler, struct request *request, int32_t rows)
{
    struct scheduler_step *step = &scheduler->step;
    if (rows <= request->computed || rows > request->computed + request->num_new ||
        request->num_snapshots == SCHEDULER_SNAPSHOTS_OF_PROMPT)
        return;
    int32_t slot = radix_cache_take_state(scheduler->cache);
    if (slot == 0)
        return;
    request->snapshots[request->num_snapshots++] = (struct snapshot){rows, slot};
    scheduler->snapshots[step->num_snapshots++] = (struct scheduler_snapshot){
        .row = step->num_tokens + rows - request->computed - 1,
        .slot = cached_state(scheduler, slot),
    };
}

/* At the last page that this step makes visible, and where the request parted from another. */
static void add_snapshots(struct scheduler *scheduler, struct request *request)
{
    if (scheduler->states.num_pages == 0 || is_decoding(request))
        return;
    int32_t visible = visible_pages(scheduler, request, request->computed + request->num_new);
    int32_t border = visible * scheduler->slots.page_size;
    if (request->parted_at < border)
        add_snapshot(scheduler, request, request->parted_at);
    add_snapshot(scheduler, request, border);
    if (request->parted_at > border)
        add_snapshot(scheduler, request, request->parted_at);
}

static int32_t state_to_read(const struct scheduler *scheduler, const struct request *request)
{
    if (request->state_node)
        return cached_state(scheduler, radix_cache_state(request->state_node));
    return request->computed > 0 ? state_slot(scheduler, request, 0) : 0;
}

/* The state after each row of a verification: that of the last one goes to dst, `drafts` turns on.
 */
static void keep_states(struct scheduler *scheduler, const struct request *request)
{
    struct scheduler_step *step = &scheduler->step;
    for (int32_t row = 0; row + 1 < request->num_new; row++)
        scheduler->snapshots[step->num_snapshots++] = (struct scheduler_snapshot){
            .row = step->num_tokens + row,
            .slot = state_slot(scheduler, request, 1 + row),
        };
}

/* What is accepted, and how it moves together: row path[d] comes to lie where row d was. Rows of a
 * path ascend, so none is overwritten before it has moved. */
static void verify(struct scheduler *scheduler, const struct request *request)
{
    struct scheduler_step *step = &scheduler->step;
    struct draft_tree *tree = &scheduler->trees[step->num_seqs];
    const int32_t *slots = request_table_row(&scheduler->table, request->row) + request->computed;
    drafts_grow(&scheduler->params.drafts, number_of(scheduler, request), request->computed,
                request->num_rows - request->computed, tree);
    int32_t count = scheduler->moves_indptr[step->num_seqs];
    for (int32_t d = 1; d < tree->committed; d++)
        if (tree->path[d] != d)
            scheduler->moves[count++] =
                (struct scheduler_move){.from = slots[tree->path[d]], .to = slots[d]};
    scheduler->moves_indptr[step->num_seqs + 1] = count;
    if (scheduler->params.has_state)
        keep_states(scheduler, request);
}

/* Add a sequence of `count` rows after `prefix_len` others. */
static void emit_rows(struct scheduler *scheduler, struct request *request, int32_t prefix_len,
                      int32_t count, int32_t state_turns)
{
    struct scheduler_step *step = &scheduler->step;
    int32_t length = prefix_len + count;
    const int32_t *row = request_table_row(&scheduler->table, request->row);
    bool has_state = scheduler->params.has_state;
    for (int32_t position = prefix_len; position < length; position++)
        scheduler->out_cache_loc[step->num_tokens++] = row[position];
    scheduler->seqs[step->num_seqs++] = (struct scheduler_seq){
        .request = number_of(scheduler, request),
        .row = request->row,
        .prefix_len = prefix_len,
        .num_new = count,
        .table_changed = request->table_changed,
        .state_slot = has_state ? state_to_read(scheduler, request) : 0,
        .state_dst = has_state ? state_slot(scheduler, request, state_turns) : 0,
    };
    request->table_changed = length;
    step->max_q_len = max_i32(step->max_q_len, count);
    step->max_kv_len = max_i32(step->max_kv_len, length);
}

static void emit_seq(struct scheduler *scheduler, struct request *request)
{
    int32_t turns = 0;
    if (is_decoding(request) && scheduler->params.drafts.tokens > 0) {
        verify(scheduler, request);
        turns = request->num_new;
    } else {
        add_snapshots(scheduler, request);
    }
    emit_rows(scheduler, request, request->computed, request->num_new, turns);
}

/* An empty step. */
static void begin_step(struct scheduler *scheduler)
{
    scheduler->step = (struct scheduler_step){
        .number = scheduler->step.number,
        .seqs = scheduler->seqs,
        .out_cache_loc = scheduler->out_cache_loc,
        .snapshots = scheduler->snapshots,
    };
}

/* List the requests that got rows: prompts first, then decodes. */
static void emit_step(struct scheduler *scheduler)
{
    struct scheduler_step *step = &scheduler->step;
    begin_step(scheduler);
    for (int decodes = 0; decodes < 2; decodes++) {
        int32_t before = step->num_seqs;
        for (int32_t i = 0; i < scheduler->num_running; i++) {
            struct request *request = running_at(scheduler, i);
            if (request->num_new > 0 && is_decoding(request) == decodes)
                emit_seq(scheduler, request);
        }
        step->num_decode_seqs = step->num_seqs - before;
    }
    step->mode = step->num_decode_seqs == 0                ? ATTN_MODE_EXTEND
                 : step->num_decode_seqs == step->num_seqs ? ATTN_MODE_DECODE
                                                           : ATTN_MODE_MIXED;
    if (step->mode == ATTN_MODE_DECODE && scheduler->params.drafts.tokens > 0) {
        step->mode = ATTN_MODE_TARGET_VERIFY;
        step->trees = scheduler->trees;
        step->moves_indptr = scheduler->moves_indptr;
        step->moves = scheduler->moves;
    }
}

/* The rows that the draft model has not seen yet; returns whether there are any. */
static bool plan_draft_extend(struct scheduler *scheduler)
{
    struct scheduler_step *step = &scheduler->step;
    begin_step(scheduler);
    step->mode = ATTN_MODE_DRAFT_EXTEND;
    for (int32_t i = 0; i < scheduler->num_running; i++) {
        struct request *request = running_at(scheduler, i);
        if (request->undrafted > 0)
            emit_rows(scheduler, request, request->computed - request->undrafted,
                      request->undrafted, 0);
    }
    return step->num_seqs > 0;
}

void scheduler_plan(struct scheduler *scheduler, int64_t now_us)
{
    bool mixed = scheduler->params.mixed;
    if (plan_draft_extend(scheduler))
        return;
    if (mixed)
        plan_decodes(scheduler); /* first, as they are the older requests' */
    int32_t num_prompt_rows = plan_prompts(scheduler, now_us);
    if (!mixed && num_prompt_rows == 0)
        plan_decodes(scheduler);
    emit_step(scheduler);
}
