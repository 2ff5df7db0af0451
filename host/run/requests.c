/* SPDX-License-Identifier: Apache-2.0
 *
 * requests.c: reading and checking of the requests.
 */
#include "host/run/requests.h"

#include <math.h>
#include <stdio.h>

#include "host/base/error.h"
#include "host/base/log.h"
#include "host/base/round.h"

/* ---- Pools ----------------------------------------------------------------------------------- */

struct drafts requests_drafts(const struct config *config)
{
    const struct config_speculative *keys = &config->speculative;
    if (keys->draft_tokens == 0)
        return (struct drafts){0};
    return (struct drafts){
        .tokens = (int32_t)keys->draft_tokens,
        .top_k = (int32_t)keys->topk,
        .rate = keys->acceptance,
        .seed = keys->seed,
    };
}

int32_t requests_cross_len(const struct model *model)
{
    return model_crosses(model) ? model->max_encoder_len : 0;
}

int64_t requests_most_pages(const struct config *config)
{
    return INT32_MAX / config->kv_cache.page_size - 1; /* page 0 is one more */
}

attn_status requests_encoder_pages(const struct config *config, const struct model *model,
                                   int64_t num_requests, int64_t *num_pages, attn_error *error)
{
    int64_t page_size = config->kv_cache.page_size, most = requests_most_pages(config);
    int64_t each = units_for(requests_cross_len(model), page_size);
    int64_t tokens = config->kv_cache.max_encoder_tokens;
    int64_t running = config->workload.max_running_requests;
    *num_pages = 0;
    if (each == 0)
        return ATTN_OK;
    if (running > num_requests)
        running = num_requests > 0 ? num_requests : 1;
    int64_t pages = tokens > 0 ? tokens / page_size : each * running;
    *num_pages = pages + 1;
    if (pages >= each && pages <= most)
        return ATTN_OK;
    return config_fail(config, "kv_cache.max_encoder_tokens", error,
                       "%lld tokens: accepted %lld..%lld, in pages of %lld; a request has %d",
                       (long long)(tokens > 0 ? tokens : pages * page_size),
                       (long long)(each * page_size), (long long)(most * page_size),
                       (long long)page_size, requests_cross_len(model));
}

struct scheduler_window requests_window(const struct config *config, const struct model *model,
                                        int64_t pages)
{
    const struct model_kv_group *group = model_kv_group_of(model, MODEL_KV_WINDOW);
    double share = (double)pages * config->kv_cache.swa_full_tokens_ratio;
    if (!group)
        return (struct scheduler_window){.num_pages = 0};
    return (struct scheduler_window){1 + (int64_t)ceil(share), group->window_left, group->chunk};
}

/* Does max_total_tokens say how large the pool of all positions is? An encoder caches nothing. */
static bool has_total(const struct config *config, const struct model *model)
{
    return config->kv_cache.max_total_tokens > 0 && !model_encodes(model);
}

static attn_status check_total(const struct config *config, const struct model *model,
                               attn_error *error)
{
    int64_t page_size = config->kv_cache.page_size, tokens = config->kv_cache.max_total_tokens;
    int64_t pages = tokens / page_size, most = requests_most_pages(config);
    if (!has_total(config, model) || (pages >= 1 && pages <= most))
        return ATTN_OK;
    return config_fail(config, "kv_cache.max_total_tokens", error,
                       "%lld tokens: accepted %lld..%lld, in pages of %lld", (long long)tokens,
                       (long long)page_size, (long long)(most * page_size), (long long)page_size);
}

/* Does each request fit alone into pools whose size max_total_tokens says? */
static attn_status check_fit(const struct config *config, const struct model *model,
                             const struct trace *trace, const struct workload *workload,
                             attn_error *error)
{
    int64_t pages = config->kv_cache.max_total_tokens / config->kv_cache.page_size;
    struct scheduler_params params = {
        .page_size = (int32_t)config->kv_cache.page_size,
        .num_pages = pages + 1,
        .window = requests_window(config, model, pages),
        .drafts = requests_drafts(config),
        .cross_len = requests_cross_len(model),
    };
    attn_status status = requests_encoder_pages(config, model, workload->num_requests,
                                                &params.num_encoder_pages, error);
    for (int64_t r = 0; r < workload->num_requests && status == ATTN_OK; r++) {
        const workload_request *request = &workload->requests[r];
        struct scheduler_request added = {.input_length = request->input_length,
                                          .output_length = request->output_length};
        if (!has_total(config, model))
            break;
        status = scheduler_check_pools(&params, r, &added, error);
        if (status != ATTN_OK)
            host_fail_prefix(error, "%s:%lld", trace->path, (long long)request->line);
    }
    return status;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* An encoder's prompts are not cut. */
static attn_status check_whole(const struct config_workload *config, const struct trace *trace,
                               const struct workload *workload, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int64_t r = 0; r < workload->num_requests && status == ATTN_OK; r++) {
        status = scheduler_check_whole(r, workload->requests[r].input_length,
                                       config->chunked_prefill_size, error);
        if (status != ATTN_OK)
            host_fail_prefix(error, "%s:%lld", trace->path, (long long)workload->requests[r].line);
    }
    return status;
}

/* A trace is not changed without a word. */
static void warn_too_long(const struct trace *trace, const struct workload *workload,
                          const workload_params *params)
{
    char message[512];
    bool skips = params->too_long == WORKLOAD_SKIP;
    int64_t count = workload->skipped + workload->cut;
    if (count == 0)
        return;
    snprintf(message, sizeof message,
             "%.300s:%lld: the first of %lld request%s longer than max_context_len = %lld: %s "
             "(workload.too_long = %s)",
             trace->path, (long long)workload->too_long_line, (long long)count,
             count == 1 ? "" : "s", (long long)params->max_context_len, skips ? "left out" : "cut",
             skips ? "skip; accepted too: cut, refuse" : "cut; accepted too: skip, refuse");
    host_log_write_newest(ATTN_LOG_WARNING, message);
}

attn_status requests_read(const struct config *config, const struct model *model,
                          struct trace *trace, struct workload *workload, attn_error *error)
{
    const struct config_workload *keys = &config->workload;
    const workload_params params = {.length_scale = keys->length_scale,
                                    .max_requests = keys->max_requests,
                                    .max_context_len = model->max_context_len,
                                    .too_long = keys->too_long};
    const struct trace_limit limit = {keys->max_requests, workload_takes, &params};
    attn_status status =
        trace_init_limited(trace, keys->trace, keys->format, keys->block_tokens, &limit, error);
    if (status != ATTN_OK)
        config_name_file(config, "workload.trace", keys->trace, error);
    if (status == ATTN_OK)
        status = workload_init(workload, trace, &params, error);
    if (status == ATTN_OK)
        warn_too_long(trace, workload, &params);
    if (status == ATTN_OK)
        status = check_total(config, model, error);
    if (status == ATTN_OK)
        status = check_fit(config, model, trace, workload, error);
    if (status != ATTN_OK || !model_encodes(model))
        return status;
    workload_drop_outputs(workload);
    return check_whole(keys, trace, workload, error);
}

attn_status requests_check(const struct config *config, const struct model *model,
                           attn_error *error)
{
    struct trace trace = {.path = NULL};
    struct workload workload = {.requests = NULL};
    if (!config->workload.trace)
        return check_total(config, model, error);
    attn_status status = requests_read(config, model, &trace, &workload, error);
    workload_finish(&workload);
    trace_finish(&trace);
    return status;
}
