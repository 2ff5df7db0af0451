/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h: serving traces, in their published formats.
 *
 *   mooncake  JSON Lines, one request a line: {"timestamp": ms, "input_length": tokens,
 *             "output_length": tokens, "hash_ids": [one id per block of the input]}. Equal ids at
 *             the start of two requests mean an equal prefix; a line without hash_ids shares
 *             nothing. A later turn of a conversation may have {"session_id": text or integer,
 *             "delay": ms} in place of a timestamp: it arrives that long after the line before it
 *             that has the same session_id.
 *   bailian   the same with timestamps in seconds; known by the key "chat_id" of its first line.
 *   azure     CSV with a header line; the columns TIMESTAMP (YYYY-MM-DD hh:mm:ss[.fraction][zone]),
 *             ContextTokens and GeneratedTokens are found by name, others are ignored. No hash ids.
 *   burstgpt  the same with the columns Timestamp (seconds), Request tokens and Response tokens.
 *
 * All may be compressed by gzip, whatever the file is called. Blank lines, CRLF and a byte order
 * mark are accepted. Everything else that is not as described is an error that names file, line,
 * field, what was got and what is accepted; no line is skipped.
 */
#ifndef HOST_WORKLOAD_TRACE_H
#define HOST_WORKLOAD_TRACE_H

#include <stdbool.h>

#include "attn_types.h"

typedef enum trace_format {
    TRACE_FORMAT_AUTO, /* by the first line: JSON if it begins with '{', else a CSV header */
    TRACE_FORMAT_MOONCAKE,
    TRACE_FORMAT_AZURE,
    TRACE_FORMAT_BAILIAN,
    TRACE_FORMAT_BURSTGPT
} trace_format;

typedef struct trace_request {
    int64_t arrival_us;      /* since the trace's earliest request, >= 0 */
    int64_t input_length;    /* tokens, 1 .. 2^31-1 */
    int64_t output_length;   /* tokens, 0 .. 2^31-1 */
    int64_t num_hash_ids;    /* ceil(input_length / block_tokens), or 0 */
    const int64_t *hash_ids; /* in the trace's memory, 0 .. 2^53-1 each; NULL if there are none */
    int64_t line;            /* where it stands in the file, from 1 */
} trace_request;

/* All requests in order of arrival; equal times keep the file's order. */
struct trace {
    char *path;
    trace_format format;  /* never AUTO */
    int64_t block_tokens; /* tokens of the block that a hash id names, before length_scale */
    int64_t num_requests;
    trace_request *requests;
    int64_t *hash_ids; /* of all requests, one after the other */
};

/* Read the whole file. `block_tokens` is the size of the blocks that hash ids name; 0 = the power
 * of two that agrees with the number of ids on every line, and of several that do 512 or 16 (in
 * format bailian 16 or 512), or else the smallest. On success the caller owns *trace and releases
 * it by trace_finish(); on failure there is nothing to release. CONFIG_ERROR: the file is missing,
 * unreadable, empty or broken; OUT_OF_HOST_MEMORY. */
attn_status trace_init(struct trace *trace, const char *path, trace_format format,
                       int64_t block_tokens, attn_error *error);

/* Where reading ends before the file does. */
struct trace_limit {
    int64_t requests; /* that count; 0 = all of the file */
    /* Does the request count? NULL: each does. It has no hash_ids yet. */
    bool (*counts)(const void *ctx, const trace_request *request);
    const void *ctx;
};

/* The same of the file's beginning: no line is read after the last request that counts. */
attn_status trace_init_limited(struct trace *trace, const char *path, trace_format format,
                               int64_t block_tokens, const struct trace_limit *limit,
                               attn_error *error);

/* Release the memory; a zeroed or finished trace is fine. */
void trace_finish(struct trace *trace);

#endif /* HOST_WORKLOAD_TRACE_H */
