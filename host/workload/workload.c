/* SPDX-License-Identifier: Apache-2.0 */
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

static attn_status check_arguments(double length_scale, int64_t max_requests, attn_error *error)
{
    if (!(length_scale > 0 && length_scale <= WORKLOAD_MAX_LENGTH_SCALE))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "workload.length_scale: got %g, accepted: above 0, at most %g",
                         length_scale, WORKLOAD_MAX_LENGTH_SCALE);
    if (max_requests < 0)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "max_requests: got %lld, accepted: 0 (all) or more",
                         (long long)max_requests);
    return ATTN_OK;
}

static workload_request scale_request(const trace_request *source, int64_t block_size,
                                      double length_scale)
{
    workload_request request = {
        .arrival_us = source->arrival_us,
        .input_length = scale_length(source->input_length, length_scale),
        .output_length = scale_length(source->output_length, length_scale),
        .hash_ids = source->hash_ids,
    };
    int64_t fitting = request.input_length / block_size;
    request.num_whole = fitting < source->num_hash_ids ? fitting : source->num_hash_ids;
    return request;
}

static attn_status add_request(struct workload *workload, const struct trace *trace,
                               double length_scale, int64_t max_context_len, attn_error *error)
{
    int64_t number = workload->num_requests;
    const trace_request *source = &trace->requests[number];
    workload_request request = scale_request(source, workload->block_size, length_scale);
    if (request.input_length + request.output_length > max_context_len)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: request %lld: got %lld input + %lld output tokens at "
                         "length_scale %g, accepted: max_context_len = %lld in total",
                         trace->path, (long long)source->line, (long long)number,
                         (long long)request.input_length, (long long)request.output_length,
                         length_scale, (long long)max_context_len);
    workload->requests[workload->num_requests++] = request;
    workload->input_tokens += request.input_length;
    if (request.output_length > 0)
        workload->decode_tokens += request.output_length - 1;
    return ATTN_OK;
}

attn_status workload_init(struct workload *workload, const struct trace *trace, double length_scale,
                          int64_t max_requests, int64_t max_context_len, attn_error *error)
{
    memset(workload, 0, sizeof *workload);
    attn_status status = check_arguments(length_scale, max_requests, error);
    if (status != ATTN_OK)
        return status;
    int64_t count = trace->num_requests;
    if (max_requests > 0 && max_requests < count)
        count = max_requests;
    workload->block_size = scale_length(TRACE_BLOCK_TOKENS, length_scale);
    workload->requests = calloc((size_t)(count > 0 ? count : 1), sizeof *workload->requests);
    if (!workload->requests)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "workload: no memory for %lld requests",
                         (long long)count);
    while (status == ATTN_OK && workload->num_requests < count)
        status = add_request(workload, trace, length_scale, max_context_len, error);
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

int64_t workload_whole_blocks(const struct workload *workload, int64_t request)
{
    return workload->requests[request].num_whole;
}

struct request_tokens workload_tokens(const struct workload *workload, int64_t request)
{
    int64_t own = request % workload->num_requests;
    const workload_request *r = &workload->requests[own];
    const struct request_tokens tokens = {
        .request = own,
        .input_length = r->input_length,
        .block_size = workload->block_size,
        .num_whole = r->num_whole,
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
