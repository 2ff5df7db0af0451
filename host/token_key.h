/* SPDX-License-Identifier: Apache-2.0
 *
 * token_key.h: the identity of a token.
 *
 * A trace has no text. Two tokens are equal exactly if their keys are equal; the prefix cache
 * matches keys, and the generator makes a token's keys and values from its key, so that a shared
 * prefix has equal KV wherever it is computed.
 */
#ifndef HOST_TOKEN_KEY_H
#define HOST_TOKEN_KEY_H

#include <stdint.h>

/* Two kinds, told apart by the lowest bit of `a`:
 *   token of a whole block   a = hash id * 2 + 1, b = offset within the block
 *   any other token          a = request * 2,     b = position within the request */
typedef struct token_key {
    uint64_t a;
    uint64_t b;
} token_key;

static inline token_key token_key_of_block(int64_t hash_id, int64_t offset)
{
    return (token_key){(uint64_t)hash_id * 2 + 1, (uint64_t)offset};
}

static inline token_key token_key_of_request(int64_t request, int64_t position)
{
    return (token_key){(uint64_t)request * 2, (uint64_t)position};
}

static inline int token_key_equal(token_key x, token_key y)
{
    return x.a == y.a && x.b == y.b;
}

#endif /* HOST_TOKEN_KEY_H */
