/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_trace.c: bytes as a trace, read with settings that the first of them choose.
 */
#include "tests/fuzz/fuzz_trace.h"

#include "host/workload/trace_row.h"

static void check_request(const struct trace *trace, int64_t index)
{
    const trace_request *request = &trace->requests[index];
    int64_t blocks = (request->input_length + trace->block_tokens - 1) / trace->block_tokens;
    int64_t wanted = request->num_hash_ids > 0 ? blocks : 0;
    int64_t before = index ? request[-1].arrival_us : 0;
    if (request->arrival_us < before || request->input_length < 1 ||
        request->input_length > TRACE_MAX_LENGTH || request->output_length < 0 ||
        request->output_length > TRACE_MAX_LENGTH || request->line < 1 ||
        request->num_hash_ids != wanted)
        fuzz_fail("request %lld of line %lld: at %lld us after %lld us, %lld tokens in, %lld out, "
                  "%lld ids",
                  (long long)index, (long long)request->line, (long long)request->arrival_us,
                  (long long)before, (long long)request->input_length,
                  (long long)request->output_length, (long long)request->num_hash_ids);
    for (int64_t i = 0; i < request->num_hash_ids; i++)
        if (request->hash_ids[i] < 0 || request->hash_ids[i] > TRACE_MAX_ID)
            fuzz_fail("hash id %lld", (long long)request->hash_ids[i]);
}

static void read_as(const char *path, trace_format format)
{
    struct trace trace;
    HOST_ERROR(error);
    attn_status status = trace_init(&trace, path, format, 0, &error.base);
    if (status != ATTN_OK) {
        fuzz_check_refusal(status, &error, path);
        return;
    }
    if (trace.num_requests < 1 || trace.requests[0].arrival_us != 0 ||
        trace.format == TRACE_FORMAT_AUTO ||
        (format != TRACE_FORMAT_AUTO && trace.format != format))
        fuzz_fail("%lld requests of format %d", (long long)trace.num_requests, (int)trace.format);
    for (int64_t i = 0; i < trace.num_requests; i++)
        check_request(&trace, i);
    trace_finish(&trace);
}

void fuzz_trace(const uint8_t *data, size_t size, trace_format format)
{
    const char *path = fuzz_file(data, size);
    read_as(path, format);
    read_as(path, TRACE_FORMAT_AUTO);
}
