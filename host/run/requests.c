/* SPDX-License-Identifier: Apache-2.0 */
#include "host/run/requests.h"

#include "host/base/error.h"
#include "host/schedule/scheduler.h"

/* An encoder's prompts are not cut. */
static attn_status check_whole(const struct config_workload *config, const struct trace *trace,
                               const struct workload *workload, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int64_t r = 0; r < workload->num_requests && status == ATTN_OK; r++) {
        status = scheduler_check_whole(r, workload->requests[r].input_length,
                                       config->chunked_prefill_size, error);
        if (status != ATTN_OK)
            host_fail_prefix(error, "%s:%lld", trace->path, (long long)trace->requests[r].line);
    }
    return status;
}

attn_status requests_read(const struct config *config, const struct model *model,
                          struct trace *trace, struct workload *workload, attn_error *error)
{
    const struct config_workload *keys = &config->workload;
    attn_status status = trace_init(trace, keys->trace, keys->format, error);
    if (status == ATTN_OK)
        status = workload_init(workload, trace, keys->length_scale, keys->max_requests,
                               model->max_context_len, error);
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
        return ATTN_OK;
    attn_status status = requests_read(config, model, &trace, &workload, error);
    workload_finish(&workload);
    trace_finish(&trace);
    return status;
}
