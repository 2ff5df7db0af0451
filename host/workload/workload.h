/* SPDX-License-Identifier: Apache-2.0
 *
 * workload.h: a trace made ready to run: scaled, cut to size, with an identity for every token.
 *
 * For length_scale s, in IEEE double arithmetic:
 *   input   L' = max(1, floor(L * s))
 *   output  likewise, but 0 stays 0
 *   block   b' = max(1, floor(512 * s)) tokens
 * Block i covers tokens [i * b', (i + 1) * b') and is whole iff (i + 1) * b' <= L' and the trace
 * has a hash id for it. (Flooring can let more blocks fit into L' than the trace has ids: the
 * tokens beyond the last id belong to the request alone.) The tokens of a whole block are (hash id,
 * offset in the block); all others, generated ones too, are (request, position).
 *
 * What follows for a prefix cache with pages of page_size tokens: a request's hit is
 *   floor(min(k * b', L' - 1) / page_size) * page_size,
 * k being the longest run of whole blocks from block 0 that one earlier request also had whole.
 *
 * A request of output length n computes prompt rows at positions [hit, L') and, as its first output
 * token comes from prefill, n - 1 decode rows at positions [L', L' + n - 1) (none for n = 0).
 */
#ifndef HOST_WORKLOAD_WORKLOAD_H
#define HOST_WORKLOAD_WORKLOAD_H

#include "host/workload/token_key.h"
#include "host/workload/trace.h"

/* The largest length_scale; the smallest is anything above 0. */
#define WORKLOAD_MAX_LENGTH_SCALE 1e6

typedef struct workload_request {
    int64_t arrival_us;
    int64_t input_length;    /* L', >= 1 */
    int64_t output_length;   /* >= 0 */
    int64_t num_whole;       /* whole blocks */
    const int64_t *hash_ids; /* the trace's; the first num_whole are used */
} workload_request;

struct workload {
    int64_t block_size; /* b' */
    int64_t num_requests;
    workload_request *requests; /* in order of arrival; the index is the request's number */
    int64_t input_tokens;       /* sum of input_length */
    int64_t decode_tokens;      /* sum of max(0, output_length - 1) */
};

/* The first max_requests (0 = all) requests of `trace`, which must outlive *workload, scaled by
 * length_scale. CONFIG_ERROR: length_scale is not in (0, WORKLOAD_MAX_LENGTH_SCALE], max_requests
 * is negative, or a request's input and output together are more than max_context_len tokens (the
 * message names its line). On success the caller releases *workload by workload_finish(). */
attn_status workload_init(struct workload *workload, const struct trace *trace, double length_scale,
                          int64_t max_requests, int64_t max_context_len, attn_error *error);

/* Nothing is generated: every output becomes 0 tokens long, as encoders have it. */
void workload_drop_outputs(struct workload *workload);

/* Release the memory; a zeroed or finished workload is fine. */
void workload_finish(struct workload *workload);

/* Number of whole blocks of `request`. */
int64_t workload_whole_blocks(const struct workload *workload, int64_t request);

/* What the identities of the request's tokens are made from; borrows hash_ids. Here and below
 * `request` may be a request_of_draft(). */
struct request_tokens workload_tokens(const struct workload *workload, int64_t request);

/* The identity of the token of `request` at `position` (>= 0; past the input: generated). */
token_key workload_token_key(const struct workload *workload, int64_t request, int64_t position);

/* The identities of `count` tokens from `position` on into keys[0 .. count). */
void workload_token_keys(const struct workload *workload, int64_t request, int64_t position,
                         int64_t count, token_key *keys);

#endif /* HOST_WORKLOAD_WORKLOAD_H */
