/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c: creation of all parts, and the loop of steps.
 */
#include "host/run/session_private.h"

#include <stdio.h>
#include <stdlib.h>

#include "host/base/clock.h"
#include "host/base/dtype.h"
#include "host/base/round.h"
#include "host/base/text.h"
#include "host/embed/embed.h"
#include "host/plugin/guard.h"
#include "host/run/requests.h"
#include "host/select/unused_keys.h"
#include "host/select/open_host.h"
#include "host/kinds/mla.h"
#include "host/select/problem.h"

/* ---- Plugins --------------------------------------------------------------------------------- */

static attn_status load_plugins(struct session *s, attn_error *error)
{
    attn_status status = open_host(s->config, &s->host, error);
    if (status == ATTN_OK && s->params->choices)
        open_host_print_refused(s->host, "run", s->params->choices);
    if (status == ATTN_OK)
        status = provenance_take(&s->report->from, s->host, s->params->command, error);
    return status;
}

/* ---- Model ----------------------------------------------------------------------------------- */

/* A sparse layer without an indexer uses the choice of an earlier one. */
static attn_status check_choices(const struct session *s, attn_error *error)
{
    bool chosen = false;
    for (uint32_t l = 0; l < s->model->num_layers; l++) {
        chosen |= operands_choose(s->model, (int32_t)l);
        if (!chosen && operands_choice(s->model, (int32_t)l).dim > 0)
            return config_fail(s->config, "model.index_head_dim", error,
                               "is missing: nothing chooses the keys of layer %u; accepted 1 to "
                               "65536 elements",
                               l);
    }
    return ATTN_OK;
}

static attn_status check_keys(const struct session *s, attn_error *error)
{
    const struct config_attention *attention = &s->config->attention;
    if (attention->speculative_eagle_topk > 0 && s->config->speculative.draft_tokens == 0)
        return config_fail(s->config, "attention.speculative_eagle_topk", error,
                           "%lld without speculative.draft_tokens, which sets the number of "
                           "drafts; accepted: 0 (`attnhost explain` accepts it)",
                           (long long)attention->speculative_eagle_topk);
    if (s->config->platform.simulate)
        return config_fail(s->config, "platform.simulate", error,
                           "a simulated device cannot run; `attnhost explain` takes it");
    return ATTN_OK;
}

static attn_status read_model(struct session *s, attn_error *error)
{
    attn_status status = check_keys(s, error);
    if (status == ATTN_OK)
        status = model_create(s->config, &s->model, error);
    for (uint32_t g = 0; status == ATTN_OK && g < s->model->num_groups; g++)
        s->has_state |= model_group_has_state(&s->model->groups[g]);
    if (s->has_state && s->config->kv_cache.prefix_cache && !model_crosses(s->model))
        s->num_cached_states = s->config->kv_cache.cached_states;
    return status;
}

/* ---- Workload -------------------------------------------------------------------------------- */

static attn_status read_workload(struct session *s, attn_error *error)
{
    if (!s->config->workload.trace)
        return config_fail(s->config, "workload.trace", error,
                           "is missing; accepted: a Mooncake .jsonl or an Azure LLM .csv file");
    return requests_read(s->config, s->model, &s->trace, &s->workload, error);
}

/* ---- Selection ------------------------------------------------------------------------------- */

static void print_choices(const struct session *s)
{
    const char *none = select_shares_none(s->config, s->model);
    strbuf idle;
    strbuf_init(&idle);
    unused_keys_list(&s->host->composer, s->config, s->selection, &idle);
    select_print_choices(s->selection, s->params->choices);
    text_wrap_lines(s->params->choices, strbuf_text(&idle));
    if (none)
        text_wrap_line(s->params->choices, 0, 2, "%s", none);
    strbuf_finish(&idle);
}

static attn_status select_backends(struct session *s, attn_error *error)
{
    attn_status status = select_settle_form(s->host, s->config, s->model, error);
    if (status == ATTN_OK)
        status =
            select_create_here(s->host, s->config, s->model, &s->described, &s->selection, error);
    if (s->selection && s->params->choices)
        print_choices(s);
    if (status == ATTN_OK)
        status = check_choices(s, error);
    return status;
}

/* Record the backend of a phase of a group, by this name. */
static attn_status note_choice(const struct session *s, uint32_t group, uint32_t phase,
                               const char *name, attn_error *error)
{
    char layers[MODEL_LAYERS_TEXT];
    const char *backend = select_backend(s->selection, group, phase);
    if (!backend)
        return ATTN_OK;
    model_layers_text(&s->model->groups[group], layers, sizeof layers);
    return report_add_choice(s->report, layers, name, backend, error);
}

/* The backend of each group and phase, for the report. */
static attn_status note_choices(const struct session *s, attn_error *error)
{
    bool drafts = s->config->speculative.draft_tokens > 0;
    uint32_t verify = select_verify_phase(s->config);
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; g < s->model->num_groups; g++) {
        for (uint32_t phase = 0; phase < SELECT_PHASES && status == ATTN_OK; phase++)
            status = note_choice(s, g, phase, select_phase_name(phase), error);
        if (drafts && status == ATTN_OK)
            status = note_choice(s, g, verify, "verify", error);
    }
    return status;
}

/* ---- Device ---------------------------------------------------------------------------------- */

static attn_status size_device(struct session *s, attn_error *error)
{
    host_error said;
    attn_status status = device_open(s->described.type, s->described.id, &s->device, error);
    if (status != ATTN_OK)
        return status;
    provenance_take_device(&s->report->from, &s->device->info);
    do {
        host_error_init(&said);
        status = session_size_pool(s, &said.base);
    } while (status == ATTN_DEVICE_LOST && session_reset_device(s, &said.base) == ATTN_OK);
    return status == ATTN_OK ? status : host_fail(error, status, "%s", host_error_text(&said));
}

/* ---- Scheduler ------------------------------------------------------------------------------- */

static void token_keys(void *ctx, int64_t request, int64_t position, int64_t count, token_key *keys)
{
    workload_token_keys(ctx, request, position, count, keys);
}

/* Microseconds since the run began: the scale of arrival times. */
static int64_t now_us(void *ctx)
{
    const struct session *s = ctx;
    return (clock_now_ns() - s->start_ns) / 1000;
}

static attn_status add_requests(struct session *s, attn_error *error)
{
    for (int64_t r = 0; r < s->workload.num_requests; r++) {
        const workload_request *request = &s->workload.requests[r];
        struct scheduler_request added = {
            .input_length = request->input_length,
            .output_length = request->output_length,
            .shareable_length = workload_shareable_length(&s->workload, r),
            .arrival_us = request->arrival_us,
        };
        attn_status status = scheduler_add(s->scheduler, &added, error);
        if (status != ATTN_OK)
            return host_fail_prefix(error, "%s:%lld", s->trace.path, (long long)request->line);
    }
    return ATTN_OK;
}

/* Of req_to_token. */
static int32_t table_columns(const struct session *s)
{
    int32_t columns = s->model->max_context_len + session_beyond(s);
    int32_t encoded = session_encoded_len(s);
    return columns > encoded ? columns : encoded;
}

static bool has_draft_layer(const struct model *model)
{
    return model->layers[model->num_layers - 1].is_draft;
}

static attn_status make_scheduler(struct session *s, attn_error *error)
{
    const struct config_workload *workload = &s->config->workload;
    struct scheduler_params params = {
        .page_size = (int32_t)s->config->kv_cache.page_size,
        .num_pages = s->num_pages,
        .window = s->window,
        .max_running_requests = (int32_t)workload->max_running_requests,
        .max_context_len = table_columns(s),
        .drafts = requests_drafts(s->config),
        .draft_model = has_draft_layer(s->model),
        .chunked_prefill_size = (int32_t)workload->chunked_prefill_size,
        .mixed = workload->mixed,
        .whole_prompts = model_encodes(s->model),
        .prefix_cache = s->config->kv_cache.prefix_cache && !model_encodes(s->model) &&
                        !model_crosses(s->model),
        .await_prefix = s->config->kv_cache.await_prefix,
        .has_state = s->has_state,
        .num_cached_states = s->num_cached_states,
        .encoder_len = session_encoder_len(s),
        .cross_len = requests_cross_len(s->model),
        .num_encoder_pages = s->num_encoder_pages,
        .share_unit = s->workload.block_size,
        .keys = token_keys,
        .keys_context = &s->workload,
        .now_us = workload->clock == CONFIG_CLOCK_WALL ? now_us : NULL,
        .clock_context = s,
        .max_in_flight = s->device->type == ATTN_DEVICE_CPU ? 1 : EXECUTOR_MAX_IN_FLIGHT,
    };
    attn_status status = scheduler_create(&params, &s->scheduler, error);
    if (status == ATTN_OK)
        status = add_requests(s, error);
    return status;
}

/* ---- Executor -------------------------------------------------------------------------------- */

static attn_status make_generator(struct session *s, attn_error *error)
{
    int32_t forms = operands_num_forms(s->model);
    s->layers = calloc((size_t)forms, sizeof *s->layers);
    if (!s->layers)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %u layers",
                         s->model->num_layers);
    for (int32_t l = 0; l < forms; l++)
        s->layers[l] = operands_geometry(s->model, l);
    int64_t chunk = s->config->workload.chunked_prefill_size;
    attn_status status = generator_init(&s->generator, s->config->workload.seed, s->layers, forms,
                                        (int32_t)s->config->kv_cache.page_size,
                                        chunk > 0 ? (int32_t)chunk : 0, error);
    s->generator.tp_size = s->model->tp_size;
    s->generator.tp_rank = s->model->tp_rank;
    return status;
}

static int compare_descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Keys of a step at most: those of the longest requests that can run together. */
static attn_status most_kv_tokens(const struct session *s, int64_t *most, attn_error *error)
{
    int64_t count = s->workload.num_requests, page_size = s->config->kv_cache.page_size;
    int64_t *tokens = calloc((size_t)count + 1, sizeof *tokens);
    if (!tokens)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %lld requests",
                         (long long)count);
    for (int64_t r = 0; r < count; r++)
        tokens[r] = round_up(session_request_rows(s, &s->workload.requests[r]), page_size);
    qsort(tokens, (size_t)count, sizeof *tokens, compare_descending);
    *most = 0;
    for (int64_t r = 0; r < count && r < s->config->workload.max_running_requests; r++)
        *most += tokens[r];
    free(tokens);
    return ATTN_OK;
}

/* The problem's bounds, narrowed to what this workload can have. */
static attn_status narrow_bounds(const struct session *s, attn_bounds *bounds, attn_error *error)
{
    int64_t longest = 1 + session_beyond(s), most = 0; /* one of padding has as many */
    attn_status status = most_kv_tokens(s, &most, error);
    for (int64_t r = 0; r < s->workload.num_requests; r++) {
        int64_t rows = session_request_rows(s, &s->workload.requests[r]);
        longest = rows > longest ? rows : longest;
    }
    int64_t encoded = session_encoded_len(s);
    int64_t all_encoded =
        round_up(encoded, s->config->kv_cache.page_size) * s->config->workload.max_running_requests;
    longest = encoded > longest ? encoded : longest;
    most = all_encoded > most ? all_encoded : most;
    problem_bounds(bounds, s->config, s->model, 0);
    bounds->max_tokens = (int32_t)scheduler_max_tokens(s->scheduler);
    bounds->max_kv_len = (int32_t)longest;
    bounds->max_q_len = (int32_t)(longest < bounds->max_tokens ? longest : bounds->max_tokens);
    bounds->max_kv_tokens = most;
    return status;
}

/* Quantisation of each layer group's cache; the same numbers serve all but packed latents. */
static attn_status make_scales(struct session *s, attn_error *error)
{
    const struct config_kv_cache *cache = &s->config->kv_cache;
    uint32_t count = problem_num_scales(s->config);
    s->scales = calloc(s->model->num_groups, sizeof *s->scales);
    s->reads_new_unquantised = calloc(s->model->num_groups, sizeof *s->reads_new_unquantised);
    s->scale_values = calloc((size_t)count * 2, sizeof *s->scale_values);
    if (!s->scales || !s->reads_new_unquantised || !s->scale_values)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for scales");
    for (uint32_t i = 0; i < count; i++) {
        s->scale_values[i] = problem_scale(&cache->k_scale, i);
        s->scale_values[count + i] = problem_scale(&cache->v_scale, i);
    }
    for (uint32_t g = 0; g < s->model->num_groups; g++) {
        bool packed = mla_is_packed(s->selection->groups[g].kv_layout);
        attn_dtype kv_dtype = problem_kv_dtype(s->config, s->model, &s->model->groups[g]);
        const float *k = dtype_is_fp8(kv_dtype) && !packed ? s->scale_values : NULL;
        s->scales[g] = (struct verify_scales){
            .kv_dtype = kv_dtype,
            .packed = packed,
            .k = k,
            .v = k ? k + count : NULL,
            .count = count,
        };
        s->reads_new_unquantised[g] = s->selection->groups[g].verdict.reads_new_kv_unquantised;
    }
    return ATTN_OK;
}

static attn_status make_check(struct session *s, attn_error *error)
{
    struct row_check_params params = {
        .config = s->config,
        .model = s->model,
        .workload = &s->workload,
        .generator = &s->generator,
        .scales = s->scales,
        .reads_new_unquantised = s->reads_new_unquantised,
        .threads = s->host->threads,
        .concurrent = s->device->type != ATTN_DEVICE_CPU && !s->has_state,
        .max_tokens = s->bounds.max_tokens,
        .max_seqs = s->bounds.max_seqs,
        .num_state_slots = (int32_t)session_num_state_slots(s),
        .listener = s->params->listener,
        .listener_ctx = s->params->listener_ctx,
    };
    return row_check_create(&params, &s->check, error);
}

static attn_status compose_executor(struct session *s, attn_error *error)
{
    struct executor_params params = {
        .config = s->config,
        .model = s->model,
        .selection = s->selection,
        .workload = &s->workload,
        .generator = &s->generator,
        .scales = s->scales,
        .pool = s->pool,
        .device = s->device,
        .check = s->check,
        .threads = s->host->threads,
        .host = s->host,
        .report = s->report,
        .notes = s->params->choices,
        .bounds = s->bounds,
        .table_rows = (int32_t)s->config->workload.max_running_requests + 1,
        .table_columns = table_columns(s),
        .drafts = requests_drafts(s->config),
        .probe = s->params->probe,
        .probe_ctx = s->params->probe_ctx,
    };
    return executor_create(&params, &s->executor, error);
}

attn_status session_reset_device(struct session *s, attn_error *error)
{
    executor_destroy(s->executor);
    s->executor = NULL;
    kv_pool_destroy(s->pool);
    s->pool = NULL;
    if (s->losses++ >= SESSION_MAX_LOSSES)
        return ATTN_DEVICE_LOST;
    s->report->device_losses++;
    return device_reset(s->device, error);
}

attn_status session_make_device_side(struct session *s, attn_error *error)
{
    host_error said;
    attn_status status;
    do {
        host_error_init(&said);
        status = session_allocate_pool(s, &said.base);
        if (status == ATTN_OK)
            status = compose_executor(s, &said.base);
    } while (status == ATTN_DEVICE_LOST && session_reset_device(s, &said.base) == ATTN_OK);
    return status == ATTN_OK ? status : host_fail(error, status, "%s", host_error_text(&said));
}

static attn_status make_executor(struct session *s, attn_error *error)
{
    attn_status status = make_generator(s, error);
    if (status == ATTN_OK)
        status = make_scales(s, error);
    if (status == ATTN_OK)
        status = narrow_bounds(s, &s->bounds, error);
    if (status == ATTN_OK)
        status = make_check(s, error);
    if (status == ATTN_OK)
        status = session_make_device_side(s, error);
    return status;
}

/* ---- Report ---------------------------------------------------------------------------------- */

static attn_status conclude(struct session *s, attn_error *error)
{
    struct report *report = s->report;
    struct scheduler_counts counts;
    attn_status status = note_choices(s, error);
    if (s->executor)
        guard_settle();
    if (status == ATTN_OK && s->executor) /* a lost device's has reported */
        status = executor_report(s->executor, error);
    if (status != ATTN_OK)
        return status;
    status = row_check_report(s->check, report, error);
    if (status == ATTN_OK)
        status = session_report_pools(s, error);
    if (status != ATTN_OK)
        return status;
    scheduler_count(s->scheduler, &counts);
    report->requests = counts.finished;
    report->steps = counts.steps;
    report->tokens.prefill = counts.prefill;
    report->tokens.decode = counts.decode;
    report->tokens.prefix_hit = counts.prefix_hit;
    report->tokens.recomputed = counts.recomputed;
    report->tokens.encoded = counts.encoded;
    report->drafts.present = s->config->speculative.draft_tokens > 0;
    report->drafts.verifications = counts.verifications;
    report->drafts.drafted = counts.drafted;
    report->drafts.accepted = counts.accepted;
    report->drafts.draft_extend = counts.draft_extend;
    report->states.present = s->has_state;
    report->states.capacity = counts.state_capacity;
    report->states.peak = counts.state_peak;
    report->states.leaked = session_is_whole(s) ? scheduler_leaked_states(s->scheduler) : 0;
    report->seed = s->config->workload.seed;
    report->skipped = s->workload.skipped;
    report->cut = s->workload.cut;
    report->failed_steps = s->failed_steps;
    report->dropped = counts.dropped;
    s->result->reported = true;
    if (s->failed_steps > 0)
        return host_fail(error, s->failure.base.code,
                         "%lld step%s failed and %lld request%s dropped; the first: %s",
                         (long long)s->failed_steps, s->failed_steps == 1 ? "" : "s",
                         (long long)counts.dropped, counts.dropped == 1 ? " was" : "s were",
                         host_error_text(&s->failure));
    s->result->passed = report->verify.rows_failed == 0 && report->verify.steps_not_finite == 0 &&
                        report->verify.trespasses == 0 && report->kv.leaked == 0 &&
                        report->states.leaked == 0;
    return ATTN_OK;
}

/* The run that goes on, for session_last_words(). */
static struct session *current;

/* The run has ended before its end, but what it has done stands. */
static void conclude_early(struct session *s, const char *how)
{
    snprintf(s->report->ended_by, sizeof s->report->ended_by, "%s", how);
    if (s->report->wall_s <= 0)
        s->report->wall_s = (double)(clock_now_ns() - s->start_ns) * 1e-9;
    conclude(s, NULL);
}

void session_last_words(const char *how)
{
    struct session *s = current;
    if (!s)
        return;
    if (s->result->began && !s->result->reported)
        conclude_early(s, how);
    if (s->params->ready)
        s->params->ready(s->params->ready_ctx, ATTN_INTERNAL);
}

static void close_session(struct session *s)
{
    executor_destroy(s->executor);
    row_check_destroy(s->check);
    scheduler_destroy(s->scheduler);
    free(s->scale_values);
    free(s->reads_new_unquantised);
    free(s->scales);
    free(s->layers);
    kv_pool_destroy(s->pool);
    device_close(s->device);
    select_destroy(s->selection);
    workload_finish(&s->workload);
    trace_finish(&s->trace);
    model_destroy(s->model);
    attnhost_destroy(s->host);
}

static attn_status call_ready(const struct session_params *params, attn_status status)
{
    if (params->ready)
        params->ready(params->ready_ctx, status);
    return status;
}

attn_status session_run(const struct session_params *params, struct report *report,
                        struct session_result *result, attn_error *error)
{
    static attn_status (*const stages[])(struct session *, attn_error *) = {
        load_plugins,   read_model,    read_workload, select_backends, size_device,
        make_scheduler, make_executor, session_serve, conclude,
    };
    *result = (struct session_result){.began = false};
    struct session *s = calloc(1, sizeof *s);
    if (!s) {
        host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a session");
        return call_ready(params, ATTN_OUT_OF_HOST_MEMORY);
    }
    s->params = params;
    s->config = params->config;
    s->report = report;
    s->result = result;
    host_error_init(&s->failure);
    attn_status status = ATTN_OK;
    current = s;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && status == ATTN_OK; i++)
        status = stages[i](s, error);
    if (status != ATTN_OK && result->began && !result->reported)
        conclude_early(s, error && error->message ? error->message : host_status_name(status));
    current = NULL;
    call_ready(params, status);
    close_session(s);
    free(s);
    return status;
}
