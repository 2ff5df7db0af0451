/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.c: the scheduler's steps through the executor.
 *
 *   plan -> submit -> advance ... finish -> confirm
 *
 * On a GPU a few steps are in flight: the host plans and submits the next ones while the device
 * works on the first. If the device is lost, what was not confirmed is undone, everything on the
 * device is made again, and all requests that ran are prefilled again.
 */
#include "host/run/session_private.h"

#include <time.h>

#include "host/base/clock.h"
#include "host/base/interrupt.h"
#include "host/base/progress.h"
#include "host/run/timeline.h"

struct serve {
    struct session *s;
    struct timeline *timeline;
    struct progress progress;
};

/* ---- Failures -------------------------------------------------------------------------------- */

/* A failed step fails its requests, not the run; the first failure is remembered. */
static void note_failure(struct session *s, const host_error *said)
{
    if (s->failed_steps++ == 0)
        host_fail(&s->failure.base, said->base.code, "%s", host_error_text(said));
}

/* Undo what was not confirmed, and make everything on the device again. `said` names the loss;
 * an error is the run's. */
static attn_status recover(struct serve *serve, host_error *said, attn_error *error)
{
    struct session *s = serve->s;
    host_error why;
    host_error_init(&why);
    scheduler_device_lost(s->scheduler);
    timeline_forget(serve->timeline);
    attn_status status = executor_report(s->executor, &why.base);
    if (status == ATTN_OK)
        status = session_reset_device(s, &why.base);
    if (status != ATTN_OK) /* the loss first: the message may be a plugin's */
        return host_fail(error, status, "%s%s%s", host_error_text(said),
                         *host_error_text(&why) ? "; " : "", host_error_text(&why));
    return session_make_device_side(s, error);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Convert the scheduler's step for the executor: only pointers to its arrays are copied. */
static struct batch_step batch_step_of(const struct scheduler *scheduler,
                                       const struct scheduler_step *planned)
{
    struct batch_step step = {
        .mode =
            planned->mode == SCHEDULER_MODE_ENCODE ? (uint32_t)MODEL_MODE_ENCODE : planned->mode,
        .num_sequences = planned->num_seqs,
        .num_decode = planned->num_decode_seqs,
        .sequences = planned->seqs,
        .num_snapshots = planned->num_snapshots,
        .snapshots = planned->snapshots,
        .trees = planned->trees,
        .moves_indptr = planned->moves_indptr,
    };
    for (int p = 0; p < SCHEDULER_POOLS; p++) {
        if (!scheduler_has_pool(scheduler, p))
            continue;
        const struct request_table *table = scheduler_request_table(scheduler, p);
        step.pools[p] = (struct batch_pool){
            .slots = planned->pools[p].out_cache_loc,
            .req_to_token = table->slots,
            .moves = planned->pools[p].moves,
        };
        step.req_to_token_stride = table->max_context_len;
    }
    return step;
}

static void show_progress(struct serve *serve, uint32_t mode, const struct scheduler_counts *counts)
{
    static const char *const modes[MODEL_MODE_ENCODE + 1] = {
        [MODEL_MODE_ENCODE] = "encode",       [ATTN_MODE_EXTEND] = "prefill",
        [ATTN_MODE_DECODE] = "decode",        [ATTN_MODE_MIXED] = "mixed",
        [ATTN_MODE_TARGET_VERIFY] = "verify", [ATTN_MODE_DRAFT_EXTEND] = "draft"};
    progress_update(&serve->progress,
                    counts->prefill + counts->prefix_hit - counts->recomputed + counts->decode,
                    modes[mode]);
}

/* Where rows are verified: nothing may read what was given back. On a processor alone, where a step has ended when it is
 * submitted: who owns a page is decided in the same way everywhere, and on a GPU the fills would be measured, too. */
static attn_status spoil_freed(struct session *s, attn_error *error)
{
    static const uint32_t holds[SCHEDULER_POOLS] = {[SCHEDULER_ALL] = MODEL_KV_DECODER,
                                                    [SCHEDULER_WINDOW] = MODEL_KV_WINDOW,
                                                    [SCHEDULER_ENCODER] = MODEL_KV_ENCODER};
    attn_status status = ATTN_OK;
    int32_t freed;
    if (s->config->verify.rate <= 0 || s->device->type != ATTN_DEVICE_CPU)
        return ATTN_OK;
    for (int p = 0; p < SCHEDULER_POOLS; p++)
        while (status == ATTN_OK && (freed = scheduler_next_freed(s->scheduler, p)) > 0)
            status = kv_pool_spoil_page(s->pool, s->model, holds[p], freed, error);
    while (status == ATTN_OK && (freed = scheduler_next_freed_state(s->scheduler)) > 0)
        status = kv_pool_spoil_state(s->pool, s->model, freed, error);
    return status;
}

/* Submit a planned step; an error is the run's. */
static attn_status submit(struct serve *serve, const struct scheduler_step *planned,
                          attn_error *error)
{
    struct session *s = serve->s;
    const struct batch_step step = batch_step_of(s->scheduler, planned);
    struct scheduler_counts counts;
    host_error said;
    host_error_init(&said);
    scheduler_count(s->scheduler, &counts);
    show_progress(serve, step.mode, &counts);
    attn_status status = spoil_freed(s, error);
    if (status != ATTN_OK)
        return status;
    int64_t begin_ns = clock_now_ns();
    status = executor_submit(s->executor, &step, &said.base);
    if (status == ATTN_DEVICE_LOST)
        return recover(serve, &said, error);
    if (status == ATTN_OK) {
        timeline_submit(serve->timeline, planned, counts.pools[SCHEDULER_ALL].used, begin_ns);
        scheduler_advance(s->scheduler);
    } else {
        note_failure(s, &said);
        scheduler_drop(s->scheduler);
    }
    return ATTN_OK;
}

/* Records of a request are dropped when it is over. */
static void pass(struct serve *serve)
{
    int64_t first = scheduler_first_unfinished(serve->s->scheduler);
    row_check_pass(serve->s->check, first);
    timeline_pass(serve->timeline, first);
}

/* Wait for the oldest step in flight; an error is the run's. */
static attn_status finish(struct serve *serve, attn_error *error)
{
    struct session *s = serve->s;
    host_error said;
    host_error_init(&said);
    int64_t step_ns;
    attn_status status = executor_finish(s->executor, &step_ns, &said.base);
    if (status == ATTN_DEVICE_LOST)
        return recover(serve, &said, error);
    if (status == ATTN_OK) {
        scheduler_confirm(s->scheduler);
        s->losses = 0;
        status = timeline_confirm(serve->timeline, step_ns, clock_now_ns(), error);
        pass(serve);
        return status;
    }
    /* The results of this step, and of the steps that build on it, are unknown. */
    note_failure(s, &said);
    while (executor_in_flight(s->executor) > 0)
        executor_finish(s->executor, NULL, NULL);
    scheduler_drop_flight(s->scheduler);
    timeline_forget(serve->timeline);
    return ATTN_OK;
}

static void sleep_until(const struct session *s, int64_t wake_us)
{
    int64_t us = wake_us - (clock_now_ns() - s->start_ns) / 1000;
    if (us <= 0)
        return;
    struct timespec wait = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&wait, NULL);
}

/* ---- The run --------------------------------------------------------------------------------- */

static bool failed_fast(const struct session *s)
{
    return s->config->verify.fail_fast && row_check_has_failed(s->check);
}

static attn_status serve_all(struct serve *serve, attn_error *error)
{
    struct session *s = serve->s;
    attn_status status = ATTN_OK;
    while (status == ATTN_OK && !interrupt_seen() && !failed_fast(s)) {
        const struct scheduler_step *planned;
        int64_t wake_us;
        switch (scheduler_next(s->scheduler, &planned, &wake_us)) {
        case SCHEDULER_STEP:
            status = submit(serve, planned, error);
            break;
        case SCHEDULER_DRAIN:
            status = finish(serve, error);
            break;
        case SCHEDULER_WAIT:
            sleep_until(s, wake_us);
            break;
        case SCHEDULER_DONE:
            return ATTN_OK;
        }
    }
    while (status == ATTN_OK && executor_in_flight(s->executor) > 0)
        status = finish(serve, error);
    s->report->interrupted = status == ATTN_OK && interrupt_seen();
    if (status == ATTN_OK && !s->report->interrupted)
        snprintf(s->report->ended_by, sizeof s->report->ended_by,
                 "the first failed verification (verify.fail_fast = yes)");
    return status;
}

attn_status session_serve(struct session *s, attn_error *error)
{
    struct serve serve = {.s = s};
    s->start_ns = clock_now_ns();
    struct timeline_params params = {
        .workload = &s->workload,
        .report = s->report,
        .arrivals = s->config->workload.clock == CONFIG_CLOCK_WALL,
        .max_seqs = (int32_t)s->config->workload.max_running_requests,
        .max_in_flight = EXECUTOR_MAX_IN_FLIGHT,
        .start_ns = s->start_ns,
    };
    attn_status status = timeline_create(&params, &serve.timeline, error);
    if (status != ATTN_OK)
        return status;
    progress_begin(&serve.progress, "tokens", s->workload.input_tokens + s->workload.decode_tokens);
    s->result->began = true;
    status = serve_all(&serve, error);
    if (status == ATTN_OK)
        status = row_check_wait(s->check, error);
    s->report->wall_s = (double)(clock_now_ns() - s->start_ns) * 1e-9;
    progress_end(&serve.progress);
    timeline_destroy(serve.timeline);
    return status;
}
