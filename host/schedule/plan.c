/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: the choice of the next step: all of the scheduler that allocates.
 */
#include <assert.h>
#include <string.h>

#include "attn_problem.h"
#include "host/schedule/private.h"

/* Decode rows reserved for each request when one starts. SGLang keeps as many steps ahead after a
 * retraction (SGLANG_RETRACT_DECODE_STEPS). */
#define RESERVED_ROWS 20

/* ---- Memory ---------------------------------------------------------------------------------- */

int64_t scheduler_available(const struct scheduler *scheduler, int pool)
{
    int64_t evictable = pool == SCHEDULER_ALL      ? radix_cache_evictable(scheduler->cache)
                        : pool == SCHEDULER_WINDOW ? radix_cache_evictable_windows(scheduler->cache)
                                                   : 0;
    return scheduler->pools[pool].slots.num_free + evictable;
}

/* Evicting a page gives back its window page, too, so what is evicted for one pool is never missing
 * in the other. */
static void evict_for(struct scheduler *scheduler, int pool, int32_t pages)
{
    int32_t missing = pages - scheduler->pools[pool].slots.num_free;
    if (missing > 0 && pool == SCHEDULER_ALL)
        radix_cache_evict(scheduler->cache, missing);
    else if (missing > 0)
        radix_cache_evict_windows(scheduler->cache, missing);
}

/* Slots in every pool for `count` more rows, for which there is room. */
static void allocate(struct scheduler *scheduler, struct request *request, int32_t count)
{
    int32_t length = request->computed;
    for (int p = 0; p < scheduler->num_pools; p++) {
        struct slots *slots = &scheduler->pools[p].slots;
        int32_t *row = row_in(scheduler, p, request);
        evict_for(scheduler, p, slots_pages_to_extend(slots, length, count));
        bool done = slots_alloc_extend(slots, length, count, length > 0 ? row[length - 1] : 0,
                                       row + length);
        assert(done);
        (void)done;
    }
    request->num_new = count;
}

/* Additional rows for a request, as far as the pools have room. */
static int64_t room_for(const struct scheduler *scheduler, const struct request *request)
{
    int64_t most = INT32_MAX;
    for (int p = 0; p < scheduler->num_pools; p++) {
        int64_t pages = pages_of(scheduler, request->computed) + scheduler_available(scheduler, p);
        int64_t rows = pages * scheduler->params.page_size - request->computed;
        most = rows < most ? rows : most;
    }
    return most;
}

/* ---- Planning: prompts ----------------------------------------------------------------------- */

/* Slots for up to `wanted` more prompt rows; returns for how many there was room. */
static int32_t extend(struct scheduler *scheduler, struct request *request, int32_t wanted)
{
    int64_t most = room_for(scheduler, request);
    allocate(scheduler, request, wanted < most ? wanted : (int32_t)most);
    return request->num_new;
}

/* Pages to keep free for the next decode rows of a request that has `length` rows. */
static int32_t reserve_for(const struct scheduler *scheduler, const struct request *request,
                           int32_t length)
{
    int32_t rows = min_i32(RESERVED_ROWS, request->num_rows - length);
    if (rows > 0)
        rows += drafts_rows(&scheduler->params.drafts) - 1;
    return pages_of(scheduler, length + rows) - pages_of(scheduler, length);
}

/* The part of the cached prefix after which the request can start: a state was kept there, and the
 * window before it is complete. */
static void cut_prefix(struct scheduler *scheduler, struct request *request)
{
    int32_t before;
    do {
        int64_t pages = before = request->cached_pages;
        if (scheduler->params.has_state)
            request->node = radix_cache_find_state(scheduler->cache, request->node, &pages);
        request->cached_pages = (int32_t)pages;
        scheduler_window_cut_prefix(scheduler, request);
    } while (request->cached_pages != before);
}

/* Pages that the cache may hold for the request. */
static int32_t most_cached(const struct scheduler *scheduler, const struct request *request)
{
    return min_i32(request->shareable, request->target - 1) / scheduler->params.page_size;
}

/* Find and hold the cached pages that the request can start after, into scheduler->pages. At
 * least one row is left to compute, as some row has to make the first output token. The state at
 * their end may not be taken until it was read. */
static void lock_prefix(struct scheduler *scheduler, struct request *request)
{
    int32_t page_size = scheduler->params.page_size;
    int32_t most = most_cached(scheduler, request);
    request->node = radix_cache_root(scheduler->cache);
    request->cached_pages = request->parted_at = request->passed = 0;
    if (most == 0)
        return;
    scheduler->params.keys(scheduler->params.keys_context, number_of(scheduler, request), 0,
                           (int64_t)most * page_size, scheduler->keys);
    request->cached_pages = (int32_t)radix_cache_match(
        scheduler->cache, scheduler->keys, most, scheduler->pages[SCHEDULER_ALL], &request->node);
    request->parted_at = request->cached_pages * page_size;
    cut_prefix(scheduler, request);
    radix_cache_lock(scheduler->cache, request->node);
    scheduler_window_hold(scheduler, request);
    if (scheduler->params.has_state && request->cached_pages > 0) {
        request->state_node = request->node;
        radix_cache_pin_state(scheduler->cache, request->node);
    }
}

static void unlock_prefix(struct scheduler *scheduler, struct request *request)
{
    if (request->state_node)
        radix_cache_unpin_state(scheduler->cache, request->state_node);
    request->state_node = NULL;
    scheduler_window_let_go(scheduler, request);
    radix_cache_unlock(scheduler->cache, request->node);
}

/* ---- Planning: a prefix that is computed right now ------------------------------------------- */

/* Has `other`, at `position`, the token that is at scheduler->keys there? */
static bool same_token(const struct scheduler *scheduler, const struct request *other,
                       int32_t position)
{
    token_key key;
    scheduler->params.keys(scheduler->params.keys_context, number_of(scheduler, other), position, 1,
                           &key);
    return token_key_equal(key, scheduler->keys[position]);
}

/* Tokens that `other` publishes by this step, of which the request, its prefix locked, would find
 * `rows` cached; scheduler->keys has that many. Those beyond its prefix are compared first: mostly
 * the first one differs. */
static int32_t published(const struct scheduler *scheduler, const struct request *request,
                         const struct request *other, int32_t rows)
{
    int32_t page_size = scheduler->params.page_size;
    int32_t first = request->cached_pages * page_size, end = first;
    int32_t visible = visible_pages(scheduler, other, other->computed + other->num_new);
    rows = min_i32(rows, visible * page_size);
    while (end < rows && same_token(scheduler, other, end))
        end++;
    int32_t gain = end / page_size * page_size - first;
    for (int32_t position = 0; gain >= SCHEDULER_AWAITED && position < first; position++)
        if (!same_token(scheduler, other, position))
            return 0;
    return gain;
}

/* Would the request, its prefix locked, find more in the cache when this step was launched? */
static bool awaits_prefix(const struct scheduler *scheduler, const struct request *request)
{
    int32_t rows = most_cached(scheduler, request) * scheduler->params.page_size;
    if (!scheduler->params.await_prefix)
        return false;
    for (int32_t i = 0; i < scheduler->num_running; i++) {
        const struct request *other = running_at(scheduler, i);
        if (!is_decoding(other) && other->num_new > 0 &&
            published(scheduler, request, other, rows) >= SCHEDULER_AWAITED)
            return true;
    }
    return false;
}

/* ---- Planning: starts ------------------------------------------------------------------------ */

/* Is there room for the prompt of a request that is about to start, after `reserve` pages? */
static bool has_room(const struct scheduler *scheduler, const struct request *request,
                     int64_t reserve)
{
    int64_t pages = pages_of(scheduler, request->target) - request->cached_pages;
    if (pages + reserve > scheduler_available(scheduler, SCHEDULER_ALL) ||
        !scheduler_encoder_has_room(scheduler))
        return false;
    return scheduler->num_pools == 1 || scheduler_window_need(scheduler, request) + reserve <=
                                            scheduler_available(scheduler, SCHEDULER_WINDOW);
}

/* Rows of the tables, the prefix in them. */
static void take_rows(struct scheduler *scheduler, struct request *request)
{
    for (int p = 0; p < scheduler->num_pools; p++) {
        int32_t first = p == SCHEDULER_WINDOW ? request->passed : 0;
        request->row = request_table_acquire(&scheduler->pools[p].table);
        request->table_changed[p] = 0;
        scheduler_write_pages(scheduler, p, request, first, request->cached_pages - first,
                              scheduler->pages[p] + first);
    }
    scheduler_encoder_take(scheduler, request);
}

/* Let the oldest waiting request run if this step computes no prefix for it, and its pages fit after *reserved ones, to which its own
 * reserve is added. Where nothing else runs it always fits: all pages but its own can be evicted.
 */
static bool start(struct scheduler *scheduler, struct request *request, int64_t *reserved)
{
    request->target = max_i32(request->input_length, request->mark);
    lock_prefix(scheduler, request);
    int64_t reserve = *reserved + reserve_for(scheduler, request, request->target);
    if (scheduler->num_running > 0 &&
        (awaits_prefix(scheduler, request) || !has_room(scheduler, request, reserve))) {
        unlock_prefix(scheduler, request);
        return false;
    }
    take_rows(scheduler, request);
    request->computed = request->cached_pages * scheduler->params.page_size;
    request->num_new = 0;
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
    int32_t starts = scheduler_encoder_starts(scheduler);
    for (; left > 0 && scheduler->num_running < params->max_running_requests && starts > 0;
         starts--) {
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
    int32_t count = drafts_rows(&scheduler->params.drafts);
    if (room_for(scheduler, request) < count)
        return false;
    allocate(scheduler, request, count);
    return true;
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
    int32_t border = visible * scheduler->params.page_size;
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

/* Compact the accepted rows: row path[d] moves to where row d was. Rows of a path
 * ascend, so none is overwritten before it has moved. */
static void move_together(struct scheduler *scheduler, const struct request *request,
                          const struct draft_tree *tree)
{
    int32_t *indptr = scheduler->moves_indptr + scheduler->step.num_seqs;
    indptr[1] = indptr[0];
    for (int32_t d = 1; d < tree->committed; d++) {
        if (tree->path[d] == d)
            continue;
        for (int p = 0; p < scheduler->num_pools; p++) {
            const int32_t *slots = row_in(scheduler, p, request) + request->computed;
            scheduler->pools[p].moves[indptr[1]] =
                (struct scheduler_move){.from = slots[tree->path[d]], .to = slots[d]};
        }
        indptr[1]++;
    }
}

static void verify(struct scheduler *scheduler, const struct request *request)
{
    struct draft_tree *tree = &scheduler->trees[scheduler->step.num_seqs];
    drafts_grow(&scheduler->params.drafts, number_of(scheduler, request), request->computed,
                request->num_rows - request->computed, tree);
    move_together(scheduler, request, tree);
    if (scheduler->params.has_state)
        keep_states(scheduler, request);
}

/* The slots of `count` rows after prefix_len others in a pool. Returns the first position that has
 * changed since the request's last step. */
static int32_t emit_slots(struct scheduler *scheduler, int p, struct request *request,
                          int32_t prefix_len, int32_t count)
{
    int64_t *to = scheduler->pools[p].out_cache_loc + scheduler->step.num_tokens;
    const int32_t *row = row_in(scheduler, p, request) + prefix_len;
    int32_t changed = request->table_changed[p];
    for (int32_t i = 0; i < count; i++)
        to[i] = row[i];
    request->table_changed[p] = prefix_len + count;
    return changed;
}

/* Add a sequence of `count` rows after `prefix_len` others. */
static void emit_rows(struct scheduler *scheduler, struct request *request, int32_t prefix_len,
                      int32_t count, int32_t state_turns)
{
    struct scheduler_step *step = &scheduler->step;
    struct scheduler_seq *seq = &scheduler->seqs[step->num_seqs++];
    bool has_state = scheduler->params.has_state;
    *seq = (struct scheduler_seq){
        .request = number_of(scheduler, request),
        .row = request->row,
        .prefix_len = prefix_len,
        .num_new = count,
        .state_slot = has_state ? state_to_read(scheduler, request) : 0,
        .state_dst = has_state ? state_slot(scheduler, request, state_turns) : 0,
    };
    for (int p = 0; p < scheduler->num_pools; p++)
        seq->table_changed[p] = emit_slots(scheduler, p, request, prefix_len, count);
    if (scheduler->params.cross_len > 0)
        scheduler_encoder_emit(scheduler, seq);
    step->num_tokens += count;
    step->max_q_len = max_i32(step->max_q_len, count);
    step->max_kv_len = max_i32(step->max_kv_len, prefix_len + count);
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
        .snapshots = scheduler->snapshots,
    };
    for (int p = 0; p < SCHEDULER_POOLS; p++)
        scheduler->step.pools[p].out_cache_loc = scheduler->pools[p].out_cache_loc;
}

/* List the requests that got rows: prompts first, then decodes, of which all have some, or none. */
static void emit_step(struct scheduler *scheduler)
{
    struct scheduler_step *step = &scheduler->step;
    begin_step(scheduler);
    for (int32_t i = 0; i < scheduler->num_running; i++) {
        struct request *request = running_at(scheduler, i);
        if (request->num_new > 0 && !is_decoding(request))
            emit_seq(scheduler, request);
    }
    int32_t num_prompts = step->num_seqs;
    for (int32_t i = 0; i < scheduler->num_decoding; i++) {
        struct request *request = &scheduler->requests[scheduler->decoding[i]];
        if (request->num_new == 0)
            break;
        emit_seq(scheduler, request);
        scheduler->seqs[step->num_seqs - 1].shared_len =
            request->shared_pages * scheduler->params.page_size;
    }
    step->num_decode_seqs = step->num_seqs - num_prompts;
    step->mode = step->num_decode_seqs == 0                ? ATTN_MODE_EXTEND
                 : step->num_decode_seqs == step->num_seqs ? ATTN_MODE_DECODE
                                                           : ATTN_MODE_MIXED;
    if (step->mode == ATTN_MODE_DECODE && scheduler->params.drafts.tokens > 0) {
        step->mode = ATTN_MODE_TARGET_VERIFY;
        step->trees = scheduler->trees;
        step->moves_indptr = scheduler->moves_indptr;
        for (int p = 0; p < scheduler->num_pools; p++)
            step->pools[p].moves = scheduler->pools[p].moves;
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

/* A request's image: nothing of it is cached. */
static void emit_image(struct scheduler *scheduler, const struct request *request)
{
    struct scheduler_step *step = &scheduler->step;
    int32_t length = scheduler->params.encoder_len;
    scheduler->seqs[step->num_seqs++] = (struct scheduler_seq){
        .request = number_of(scheduler, request),
        .num_new = length,
        .table_changed = {length, length},
    };
    for (int p = 0; p < scheduler->num_pools; p++)
        memset(scheduler->pools[p].out_cache_loc + step->num_tokens, 0,
               (size_t)length * sizeof(int64_t));
    step->num_tokens += length;
    step->max_q_len = step->max_kv_len = length;
}

/* Images of requests that got rows and whose image is not encoded yet, as many as there is room
 * for; returns whether there are any. */
static bool plan_encode(struct scheduler *scheduler)
{
    struct scheduler_step *step = &scheduler->step;
    int32_t length = scheduler->params.encoder_len;
    begin_step(scheduler);
    step->mode = SCHEDULER_MODE_ENCODE;
    for (int32_t i = 0; length > 0 && i < scheduler->num_running; i++) {
        const struct request *request = running_at(scheduler, i);
        if (request->num_new > 0 && !request->encoded &&
            step->num_tokens + length <= scheduler_encoder_rows(scheduler))
            emit_image(scheduler, request);
    }
    return step->num_seqs > 0;
}

/* Have rows been planned that wait for images? */
static bool is_planned(const struct scheduler *scheduler)
{
    for (int32_t i = 0; i < scheduler->num_running; i++)
        if (running_at(scheduler, i)->num_new > 0)
            return true;
    return false;
}

static void plan_rows(struct scheduler *scheduler, int64_t now_us)
{
    bool mixed = scheduler->params.mixed;
    if (mixed)
        plan_decodes(scheduler); /* first, as they are the older requests' */
    int32_t num_prompt_rows = plan_prompts(scheduler, now_us);
    if (!mixed && num_prompt_rows == 0)
        plan_decodes(scheduler);
}

void scheduler_plan(struct scheduler *scheduler, int64_t now_us)
{
    if (plan_draft_extend(scheduler))
        return;
    if (!is_planned(scheduler))
        plan_rows(scheduler, now_us);
    if (!plan_encode(scheduler))
        emit_step(scheduler);
}
