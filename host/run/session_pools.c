/* SPDX-License-Identifier: Apache-2.0
 *
 * session_pools.c: sizes of a run's pools, and their memory.
 */
#include "host/run/session_private.h"

#include <math.h>
#include <stdlib.h>

#include "host/base/round.h"
#include "host/run/requests.h"
#include "host/select/problem.h"

/* ---- What a run holds ------------------------------------------------------------------------ */

int32_t session_encoder_len(const struct session *s)
{
    return model_has_tower(s->model) ? s->model->max_encoder_len : 0;
}

int32_t session_encoded_len(const struct session *s)
{
    int32_t run = session_encoder_len(s), read = requests_cross_len(s->model);
    return run > read ? run : read;
}

/* Positions beyond a request's last row that drafts are verified at. */
int32_t session_beyond(const struct session *s)
{
    struct drafts drafts = requests_drafts(s->config);
    return drafts_rows(&drafts) - 1;
}

int64_t session_request_rows(const struct session *s, const workload_request *request)
{
    struct drafts drafts = requests_drafts(s->config);
    return scheduler_rows_at_most(&drafts, request->input_length, request->output_length);
}

/* Pages that every request of the workload together would take: more are of no use. */
static int64_t useful_pages(const struct session *s)
{
    int64_t pages = 0;
    for (int64_t r = 0; r < s->workload.num_requests; r++)
        pages += units_for(session_request_rows(s, &s->workload.requests[r]),
                           s->config->kv_cache.page_size);
    return pages;
}

static void pool_groups(const struct session *s, struct kv_pool_group *groups)
{
    for (uint32_t g = 0; g < s->model->num_groups; g++)
        groups[g] = (struct kv_pool_group){
            .kv_layout = s->selection->groups[g].kv_layout,
            .state_layout = s->selection->groups[g].state_layout,
            .kv_dtype = problem_kv_dtype(s->config, s->model, &s->model->groups[g]),
        };
}

/* Slot 0, those of the requests that run, those of the prefix cache. */
int64_t session_num_state_slots(const struct session *s)
{
    const struct scheduler_params params = {
        .max_running_requests = (int32_t)s->config->workload.max_running_requests,
        .drafts = requests_drafts(s->config),
    };
    return s->has_state ? 1 + scheduler_row_states(&params) + s->num_cached_states : 0;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Pages that the pool holds, with so many bytes of memory free now, of which states and encoders'
 * keys take theirs first. */
static int64_t choose_capacity(const struct session *s, uint64_t token_bytes, uint64_t first_bytes,
                               uint64_t free_bytes)
{
    const struct config_kv_cache *cache = &s->config->kv_cache;
    if (model_encodes(s->model)) /* nothing is cached; pages only count what runs */
        return useful_pages(s);
    if (cache->max_total_tokens > 0)
        return cache->max_total_tokens / cache->page_size;
    double bytes = cache->mem_fraction * (double)free_bytes - (double)first_bytes;
    int64_t affordable =
        token_bytes > 0 ? (int64_t)(bytes / (double)token_bytes) / cache->page_size : INT64_MAX;
    int64_t useful = useful_pages(s);
    return useful < affordable ? useful : affordable;
}

/* Check the pages that mem_fraction gives, where it sets their number (requests_read() has checked
 * max_total_tokens): at least one, and no more than an int32 can number slots. */
static attn_status check_capacity(const struct session *s, int64_t pages, uint64_t token_bytes,
                                  attn_error *error)
{
    const struct config_kv_cache *cache = &s->config->kv_cache;
    int64_t most = requests_most_pages(s->config);
    if (pages >= 1 && pages <= most)
        return ATTN_OK;
    return config_fail(s->config, "kv_cache.mem_fraction", error,
                       "%g of the free memory is %lld pages of %lld tokens, %llu bytes per token, "
                       "in addition to %lld recurrent states and %lld pages of encoders' keys: "
                       "accepted 1..%lld pages",
                       cache->mem_fraction, (long long)pages, (long long)cache->page_size,
                       (unsigned long long)token_bytes, (long long)session_num_state_slots(s),
                       (long long)s->num_encoder_pages, (long long)most);
}

/* Bytes that one more token of the pool of all positions takes, with what the pool of windows has
 * for it. */
static uint64_t bytes_per_token(const struct session *s, const struct kv_pool_group *groups)
{
    double ratio = s->config->kv_cache.swa_full_tokens_ratio;
    uint64_t window = kv_pool_bytes_held(s->model, groups, MODEL_KV_WINDOW);
    return kv_pool_bytes_held(s->model, groups, MODEL_KV_DECODER) +
           (uint64_t)ceil((double)window * ratio);
}

/* How many pages the pools shall have. */
attn_status session_size_pool(struct session *s, attn_error *error)
{
    struct kv_pool_group *groups = calloc(s->model->num_groups, sizeof *groups);
    if (!groups)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the KV pool");
    pool_groups(s, groups);
    attn_status status = requests_encoder_pages(s->config, s->model, s->workload.num_requests,
                                                &s->num_encoder_pages, error);
    uint64_t token_bytes = bytes_per_token(s, groups);
    uint64_t encoder_tokens = (uint64_t)(s->num_encoder_pages * s->config->kv_cache.page_size);
    uint64_t first_bytes =
        kv_pool_bytes_per_state(s->model, groups) * (uint64_t)session_num_state_slots(s) +
        kv_pool_bytes_held(s->model, groups, MODEL_KV_ENCODER) * encoder_tokens;
    uint64_t free_bytes = 0, total_bytes;
    free(groups);
    if (status == ATTN_OK)
        status = device_memory(s->device, &free_bytes, &total_bytes, error);
    if (status != ATTN_OK)
        return status;
    int64_t pages = choose_capacity(s, token_bytes, first_bytes, free_bytes);
    s->num_pages = pages + 1;
    s->window = requests_window(s->config, s->model, pages);
    return check_capacity(s, pages, token_bytes, error);
}

/* The key that asks for so much, and its accepted values. */
static void explain_pool(const struct session *s, const struct kv_pool_group *groups,
                         attn_error *error)
{
    const struct config_kv_cache *cache = &s->config->kv_cache;
    uint64_t free_bytes = 0, total_bytes, token = bytes_per_token(s, groups);
    const char *key =
        cache->max_total_tokens > 0 ? "kv_cache.max_total_tokens" : "kv_cache.mem_fraction";
    host_fail_prefix(error, "%s: %s: %lld tokens of %llu bytes", config_place(s->config, key), key,
                     (long long)((s->num_pages - 1) * s->config->kv_cache.page_size),
                     (unsigned long long)token);
    if (device_memory(s->device, &free_bytes, &total_bytes, NULL) == ATTN_OK && token > 0)
        host_fail_suffix(error, "; accepted: at most %llu tokens in the %llu bytes that are free",
                         (unsigned long long)(free_bytes / token), (unsigned long long)free_bytes);
}

attn_status session_allocate_pool(struct session *s, attn_error *error)
{
    struct kv_pool_group *groups = calloc(s->model->num_groups, sizeof *groups);
    if (!groups)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the KV pool");
    pool_groups(s, groups);
    struct kv_pool_params params = {
        .groups = groups,
        .page_size = (int32_t)s->config->kv_cache.page_size,
        .num_pages = s->num_pages,
        .num_window_pages = s->window.num_pages,
        .num_encoder_pages = s->num_encoder_pages,
        .num_state_slots = session_num_state_slots(s),
        .poison = s->config->verify.rate > 0,
    };
    attn_status status = kv_pool_create(s->model, &params, s->device, &s->pool, error);
    if (status == ATTN_OUT_OF_HOST_MEMORY || status == ATTN_OUT_OF_DEVICE_MEMORY)
        explain_pool(s, groups, error);
    free(groups);
    return status;
}

/* ---- Report ---------------------------------------------------------------------------------- */

/* A pool of the scheduler's; what leaked of a run that was cut short is not known. */
static struct report_pool report_pool(struct session *s, const struct kv_pool_group *groups,
                                      int pool, const struct scheduler_pool_counts *counts)
{
    static const struct {
        const char *name;
        uint32_t holds;
    } pools[SCHEDULER_POOLS] = {
        [SCHEDULER_ALL] = {"all", MODEL_KV_DECODER},
        [SCHEDULER_WINDOW] = {"window", MODEL_KV_WINDOW},
        [SCHEDULER_ENCODER] = {"encoder", MODEL_KV_ENCODER},
    };
    uint32_t holds = pools[pool].holds;
    const struct model_kv_group *group = model_kv_group_of(s->model, holds);
    return (struct report_pool){
        .holds = pools[pool].name,
        .layers = group ? (int32_t)group->num_layers : 0,
        .bytes_per_token = (int64_t)kv_pool_bytes_held(s->model, groups, holds),
        .capacity = counts->capacity,
        .peak = counts->peak,
        .held = counts->held,
        .leaked = session_is_whole(s) ? scheduler_leaked(s->scheduler, pool) : 0,
    };
}

attn_status session_report_pools(struct session *s, attn_error *error)
{
    struct report *report = s->report;
    struct kv_pool_group *groups = calloc(s->model->num_groups, sizeof *groups);
    struct scheduler_counts counts;
    if (!groups)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the report");
    pool_groups(s, groups);
    scheduler_count(s->scheduler, &counts);
    for (int p = 0; p < SCHEDULER_POOLS; p++) {
        struct report_pool *pool = &report->kv.pools[report->kv.num_pools];
        if (!scheduler_has_pool(s->scheduler, p))
            continue;
        *pool = report_pool(s, groups, p, &counts.pools[p]);
        report->kv.leaked += pool->leaked;
        report->kv.num_pools++;
    }
    if (model_encodes(s->model))
        report->kv.num_pools = 0;
    report->kv.capacity = report->kv.num_pools > 0 ? counts.pools[SCHEDULER_ALL].capacity : 0;
    report->kv.peak = report->kv.num_pools > 0 ? counts.pools[SCHEDULER_ALL].peak : 0;
    free(groups);
    return ATTN_OK;
}
