/* SPDX-License-Identifier: Apache-2.0
 *
 * workload.h: a trace made ready to run: scaled, cut to size, with an identity for every token.
 *
 * For length_scale s, in IEEE double arithmetic:
 *   input   L' = max(1, floor(L * s))
 *   output  likewise, but 0 stays 0
 *   block   b' = max(1, floor(b * s)) tokens, b being the trace's block_tokens
 * Block i covers tokens [i * b', (i + 1) * b') of the input; the last one may cover fewer. Its
 * tokens are (hash id, offset in the block) if the trace has a hash id for it. (Flooring can let
 * more blocks fit into L' than the trace has ids: the tokens beyond the last id belong to the
 * request alone.) All others, generated ones too, are (request, position).
 *
 * What follows for a prefix cache with pages of page_size tokens: a request's hit is
 *   floor(min(k * b', C, L' - 1) / page_size) * page_size,
 * k being the longest run of equal ids from block 0 that one earlier request also has, and C the
 * tokens of that request that its ids cover.
 *
 * A request of output length n computes prompt rows at positions [hit, L') and, as its first output
 * token comes from prefill, n - 1 decode rows at positions [L', L' + n - 1) (none for n = 0).
 */
#ifndef HOST_WORKLOAD_WORKLOAD_H
#define HOST_WORKLOAD_WORKLOAD_H

#include <stdbool.h>

#include "host/workload/token_key.h"
#include "host/workload/trace.h"

/* The largest length_scale; the smallest is anything above 0. */
#define WORKLOAD_MAX_LENGTH_SCALE 1e6

/* Treatment of a request whose input and output together exceed max_context_len. */
typedef enum workload_too_long {
    WORKLOAD_REFUSE, /* an error that names its line */
    WORKLOAD_SKIP,   /* it is left out */
    WORKLOAD_CUT     /* it loses the end of its input, and where that is not enough of its output */
} workload_too_long;

typedef struct workload_params {
    double length_scale;
    int64_t max_requests; /* taken from the trace's beginning; 0 = all */
    int64_t max_context_len;
    workload_too_long too_long;
} workload_params;

typedef struct workload_request {
    int64_t arrival_us;
    int64_t input_length;  /* L', >= 1 */
    int64_t output_length; /* >= 0 */
    int64_t line;          /* of the trace's file */
    int64_t num_blocks; /* that have a hash id; the last one may be cut short by the input's end */
    const int64_t *hash_ids; /* the trace's; the first num_blocks are used */
} workload_request;

struct workload {
    int64_t block_size; /* b' */
    int64_t num_requests;
    workload_request *requests; /* in order of arrival; the index is the request's number */
    int64_t input_tokens;       /* sum of input_length */
    int64_t decode_tokens;      /* sum of max(0, output_length - 1) */
    int64_t skipped;            /* requests of the trace that were too long and left out */
    int64_t cut;                /* requests that were cut */
    int64_t too_long_line;      /* of the trace's file: the first of both; 0 = none */
};

/* The requests of `trace`, which must outlive *workload. CONFIG_ERROR: length_scale is not in
 * (0, WORKLOAD_MAX_LENGTH_SCALE], max_requests is negative, max_context_len is below 1, a request
 * is too long and WORKLOAD_REFUSE (the message names its line), or all are left out. On success the
 * caller releases *workload by workload_finish(). */
attn_status workload_init(struct workload *workload, const struct trace *trace,
                          const workload_params *params, attn_error *error);

/* Does a request of the trace become one of the workload, that max_requests counts? `params` are
 * workload_params: a trace_limit's `counts`. */
bool workload_takes(const void *params, const trace_request *request);

/* Nothing is generated: every output becomes 0 tokens long, as encoders have it. */
void workload_drop_outputs(struct workload *workload);

/* Release the memory; a zeroed or finished workload is fine. */
void workload_finish(struct workload *workload);

/* Tokens of `request` that hash ids cover: those that another request may have too. */
int64_t workload_shareable_length(const struct workload *workload, int64_t request);

/* The request as the source of its tokens' identities; borrows hash_ids. Here and below `request`
 * may be a request_of_draft(). */
struct request_tokens workload_tokens(const struct workload *workload, int64_t request);

/* The identity of the token of `request` at `position` (>= 0; past the input: generated). */
token_key workload_token_key(const struct workload *workload, int64_t request, int64_t position);

/* The identities of `count` tokens from `position` on into keys[0 .. count). */
void workload_token_keys(const struct workload *workload, int64_t request, int64_t position,
                         int64_t count, token_key *keys);

#endif /* HOST_WORKLOAD_WORKLOAD_H */
