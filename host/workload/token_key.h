/* SPDX-License-Identifier: Apache-2.0
 *
 * token_key.h: the identity of a token.
 *
 * A trace has no text. Two tokens are equal exactly if their keys are equal; the prefix cache
 * matches keys, and the generator makes a token's keys and values from its key, so that a shared
 * prefix has equal KV wherever it is computed.
 */
#ifndef HOST_WORKLOAD_TOKEN_KEY_H
#define HOST_WORKLOAD_TOKEN_KEY_H

#include <stdint.h>

#include "host/base/portable.h"

/* Two kinds, which the lowest bit of `a` distinguishes:
 *   input token of a block with a hash id   a = hash id * 2 + 1, b = offset within the block
 *   any other token                         a = request * 2,     b = position in the request
 * A draft that is not the token at its position is a token of another request, of a number that no
 * request has: request_of_draft(). */
typedef struct token_key {
    uint64_t a;
    uint64_t b;
} token_key;

PORTABLE token_key token_key_of_block(int64_t hash_id, int64_t offset)
{
    token_key key = {(uint64_t)hash_id * 2 + 1, (uint64_t)offset};
    return key;
}

PORTABLE token_key token_key_of_request(int64_t request, int64_t position)
{
    token_key key = {(uint64_t)request * 2, (uint64_t)position};
    return key;
}

PORTABLE int token_key_equal(token_key x, token_key y)
{
    return x.a == y.a && x.b == y.b;
}

/* The number under which row `row` of a verification of `request` has tokens of its own. */
PORTABLE int64_t request_of_draft(int64_t request, int64_t num_requests, int32_t row)
{
    return request + num_requests * row;
}

/* A request, as far as the identities of its tokens go. */
struct request_tokens {
    int64_t request; /* its number */
    int64_t input_length;
    int64_t block_size;
    int64_t num_blocks;      /* that have a hash id, the first ones */
    const int64_t *hash_ids; /* [num_blocks] */
};

/* The identity of the token at `position` (>= 0; past the input: generated). */
PORTABLE token_key token_key_at(const struct request_tokens *tokens, int64_t position)
{
    int64_t block = position / tokens->block_size;
    if (block >= tokens->num_blocks || position >= tokens->input_length)
        return token_key_of_request(tokens->request, position);
    return token_key_of_block(*DEVICE_AT(&tokens->hash_ids[block]),
                              position - block * tokens->block_size);
}

/* The same request when it is numbered `number`: one that no request has makes all tokens its own.
 */
PORTABLE struct request_tokens request_tokens_as(struct request_tokens tokens, int64_t number)
{
    tokens.num_blocks = number == tokens.request ? tokens.num_blocks : 0;
    tokens.request = number;
    return tokens;
}

#endif /* HOST_WORKLOAD_TOKEN_KEY_H */
