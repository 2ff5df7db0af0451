/* SPDX-License-Identifier: Apache-2.0
 *
 * trace_blocks.c: the number of tokens per hash id. Traces do not state it; usually it follows from
 * the number of ids of a prompt: the prompt's length over the block's, rounded up.
 */
#include "host/base/error.h"
#include "host/workload/trace_row.h"

static int64_t count_blocks(int64_t length, int64_t block_tokens)
{
    return (length + block_tokens - 1) / block_tokens;
}

int64_t trace_blocks_size(const trace_blocks *blocks)
{
    const uint32_t known[] = {blocks->preferred, TRACE_MOONCAKE_BLOCK, TRACE_BAILIAN_BLOCK};
    if (blocks->given > 0)
        return blocks->given;
    for (int i = 0; i < 3; i++)
        if (blocks->possible >> known[i] & 1)
            return INT64_C(1) << known[i];
    return INT64_C(1) << __builtin_ctz(blocks->possible);
}

attn_status trace_blocks_add(trace_blocks *blocks, const trace_place *place, int64_t length,
                             int64_t num_ids, attn_error *error)
{
    int64_t before = trace_blocks_size(blocks);
    uint32_t possible = 0;
    for (int bit = 0; bit < 32; bit++)
        if (count_blocks(length, INT64_C(1) << bit) == num_ids)
            possible |= UINT32_C(1) << bit;
    possible &= blocks->possible;
    if (blocks->given > 0 ? count_blocks(length, blocks->given) == num_ids : possible != 0) {
        blocks->possible = possible;
        return ATTN_OK;
    }
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s:%lld: hash_ids: got %lld ids for input_length %lld, accepted: %lld, one "
                     "per block of %lld tokens (workload.block_tokens says how many they are)",
                     place->path, (long long)place->line, (long long)num_ids, (long long)length,
                     (long long)count_blocks(length, before), (long long)before);
}
