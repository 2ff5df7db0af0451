/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h: serving traces, read as they were published.
 *
 *   mooncake  JSON Lines, one request a line: {"timestamp": ms, "input_length": tokens,
 *             "output_length": tokens, "hash_ids": [one id per 512-token block of the input]}.
 *             Equal ids at the start of two requests mean an equal prefix.
 *   azure     CSV with a header line; the columns TIMESTAMP (YYYY-MM-DD hh:mm:ss[.fraction][zone]),
 *             ContextTokens and GeneratedTokens are found by name, others are ignored. No hash ids.
 *
 * Either may be compressed by gzip, whatever it is called. Blank lines, CRLF and a byte order mark
 * are accepted in both. Everything else that is not as described is an error that names file, line,
 * field, what was got and what is accepted; nothing is guessed or skipped.
 */
#ifndef HOST_WORKLOAD_TRACE_H
#define HOST_WORKLOAD_TRACE_H

#include "attn_types.h"

/* Tokens of one block of a Mooncake trace, before length_scale. */
#define TRACE_BLOCK_TOKENS 512

typedef enum trace_format {
    TRACE_FORMAT_AUTO, /* by the first byte that is not blank: '{' is mooncake, else azure */
    TRACE_FORMAT_MOONCAKE,
    TRACE_FORMAT_AZURE
} trace_format;

typedef struct trace_request {
    int64_t arrival_us;      /* since the trace's earliest request, >= 0 */
    int64_t input_length;    /* tokens, 1 .. 2^31-1 */
    int64_t output_length;   /* tokens, 0 .. 2^31-1 */
    int64_t num_hash_ids;    /* ceil(input_length / TRACE_BLOCK_TOKENS), or 0 for azure */
    const int64_t *hash_ids; /* in the trace's memory, 0 .. 2^53-1 each; NULL if there are none */
    int64_t line;            /* where it stands in the file, from 1 */
} trace_request;

/* All requests in order of arrival; equal times keep the file's order. */
struct trace {
    char *path;
    trace_format format; /* never AUTO */
    int64_t num_requests;
    trace_request *requests;
    int64_t *hash_ids; /* of all requests, one after the other */
};

/* Read the whole file. On success the caller owns *trace and releases it by trace_finish(); on
 * failure there is nothing to release. CONFIG_ERROR: the file is missing, unreadable, empty or
 * broken; OUT_OF_HOST_MEMORY. */
attn_status trace_init(struct trace *trace, const char *path, trace_format format,
                       attn_error *error);

/* Release the memory; a zeroed or finished trace is fine. */
void trace_finish(struct trace *trace);

#endif /* HOST_WORKLOAD_TRACE_H */
