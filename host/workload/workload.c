/* SPDX-License-Identifier: Apache-2.0
 *
 * workload.c: scaling, cutting and checking of requests.
 */
#include "host/workload/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

/* A length times length_scale is at most 2^31 * 1e6, so it always fits an int64_t. */
static int64_t scale_length(int64_t length, double length_scale)
{
    if (length == 0)
        return 0;
    int64_t scaled = (int64_t)floor((double)length * length_scale);
    return scaled < 1 ? 1 : scaled;
}

static attn_status check_params(const workload_params *params, attn_error *error)
{
    if (!(params->length_scale > 0 && params->length_scale <= WORKLOAD_MAX_LENGTH_SCALE))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "workload.length_scale: got %g, accepted: above 0, at most %g",
                         params->length_scale, WORKLOAD_MAX_LENGTH_SCALE);
    if (params->max_requests < 0)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "max_requests: got %lld, accepted: 0 (all) or more",
                         (long long)params->max_requests);
    if (params->max_context_len < 1)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "max_context_len: got %lld, accepted: 1 and more",
                         (long long)params->max_context_len);
    return ATTN_OK;
}

static workload_request scale_request(const trace_request *source, double length_scale)
{
    return (workload_request){
        .arrival_us = source->arrival_us,
        .input_length = scale_length(source->input_length, length_scale),
        .output_length = scale_length(source->output_length, length_scale),
        .line = source->line,
        .hash_ids = source->hash_ids,
    };
}

/* Cut a request that is too long: an output token needs one of the input before it. */
static void cut_request(workload_request *request, int64_t max_context_len)
{
    int64_t input = max_context_len - request->output_length;
    request->input_length = input < 1 ? 1 : input;
    if (request->output_length > max_context_len - request->input_length)
        request->output_length = max_context_len - request->input_length;
}

static attn_status fail_too_long(const struct trace *trace, const workload_request *request,
                                 int64_t number, const workload_params *params, attn_error *error)
{
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s:%lld: request %lld: got %lld input + %lld output tokens at "
                     "length_scale %g, accepted: max_context_len = %lld in total "
                     "(workload.too_long = skip or cut takes the trace without it, or cut)",
                     trace->path, (long long)request->line, (long long)number,
                     (long long)request->input_length, (long long)request->output_length,
                     params->length_scale, (long long)params->max_context_len);
}

static bool is_too_long(const workload_request *request, const workload_params *params)
{
    return request->input_length + request->output_length > params->max_context_len;
}

bool workload_takes(const void *params, const trace_request *request)
{
    const workload_params *p = params;
    workload_request scaled = scale_request(request, p->length_scale);
    return p->too_long != WORKLOAD_SKIP || !is_too_long(&scaled, p);
}

static attn_status add_request(struct workload *workload, const struct trace *trace, int64_t number,
                               const workload_params *params, attn_error *error)
{
    const trace_request *source = &trace->requests[number];
    workload_request request = scale_request(source, params->length_scale);
    if (is_too_long(&request, params)) {
        if (params->too_long == WORKLOAD_REFUSE)
            return fail_too_long(trace, &request, number, params, error);
        if (workload->too_long_line == 0)
            workload->too_long_line = request.line;
        if (params->too_long == WORKLOAD_SKIP) {
            workload->skipped++;
            return ATTN_OK;
        }
        cut_request(&request, params->max_context_len);
        workload->cut++;
    }
    int64_t blocks = (request.input_length + workload->block_size - 1) / workload->block_size;
    request.num_blocks = blocks < source->num_hash_ids ? blocks : source->num_hash_ids;
    workload->requests[workload->num_requests++] = request;
    workload->input_tokens += request.input_length;
    if (request.output_length > 0)
        workload->decode_tokens += request.output_length - 1;
    return ATTN_OK;
}

static attn_status add_requests(struct workload *workload, const struct trace *trace,
                                const workload_params *params, attn_error *error)
{
    int64_t most = params->max_requests > 0 ? params->max_requests : trace->num_requests;
    attn_status status = ATTN_OK;
    for (int64_t i = 0; i < trace->num_requests && workload->num_requests < most; i++) {
        status = add_request(workload, trace, i, params, error);
        if (status != ATTN_OK)
            return status;
    }
    if (workload->num_requests > 0)
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s: all %lld requests were left out as longer than max_context_len = %lld, "
                     "accepted: at least one that fits",
                     trace->path, (long long)trace->num_requests,
                     (long long)params->max_context_len);
}

attn_status workload_init(struct workload *workload, const struct trace *trace,
                          const workload_params *params, attn_error *error)
{
    memset(workload, 0, sizeof *workload);
    attn_status status = check_params(params, error);
    if (status != ATTN_OK)
        return status;
    int64_t count = trace->num_requests;
    if (params->max_requests > 0 && params->max_requests < count)
        count = params->max_requests;
    workload->block_size = scale_length(trace->block_tokens, params->length_scale);
    workload->requests = calloc((size_t)(count > 0 ? count : 1), sizeof *workload->requests);
    if (!workload->requests)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "workload: no memory for %lld requests",
                         (long long)count);
    status = add_requests(workload, trace, params, error);
    if (status != ATTN_OK)
        workload_finish(workload);
    return status;
}

void workload_drop_outputs(struct workload *workload)
{
    for (int64_t r = 0; r < workload->num_requests; r++)
        workload->requests[r].output_length = 0;
    workload->decode_tokens = 0;
}

void workload_finish(struct workload *workload)
{
    free(workload->requests);
    memset(workload, 0, sizeof *workload);
}

int64_t workload_shareable_length(const struct workload *workload, int64_t request)
{
    const workload_request *r = &workload->requests[request];
    int64_t covered = r->num_blocks * workload->block_size;
    return covered < r->input_length ? covered : r->input_length;
}

struct request_tokens workload_tokens(const struct workload *workload, int64_t request)
{
    int64_t own = request % workload->num_requests;
    const workload_request *r = &workload->requests[own];
    const struct request_tokens tokens = {
        .request = own,
        .input_length = r->input_length,
        .block_size = workload->block_size,
        .num_blocks = r->num_blocks,
        .hash_ids = r->hash_ids,
    };
    return request_tokens_as(tokens, request);
}

token_key workload_token_key(const struct workload *workload, int64_t request, int64_t position)
{
    struct request_tokens tokens = workload_tokens(workload, request);
    return token_key_at(&tokens, position);
}

void workload_token_keys(const struct workload *workload, int64_t request, int64_t position,
                         int64_t count, token_key *keys)
{
    struct request_tokens tokens = workload_tokens(workload, request);
    for (int64_t i = 0; i < count; i++)
        keys[i] = token_key_at(&tokens, position + i);
}
