/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/local_batches.h"

#include "attn_plugin_util.h"

#include <string.h>

static attn_status check_source(const local_batches_source *source, attn_error *error)
{
    if (source->page_size < 1 || source->chunk < 1 || source->chunk % source->page_size != 0)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                              "attention_chunk %d: accepted multiples of the page size, %d",
                              source->chunk, source->page_size);
    for (int32_t s = 0; s < source->num_seqs; s++) {
        int32_t queries = source->query_start_loc[s + 1] - source->query_start_loc[s];
        if (queries < 0 || queries > source->seq_lens[s])
            return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                                  "sequence %d has %d queries: accepted 0..%d, its keys", s,
                                  queries, source->seq_lens[s]);
    }
    return ATTN_OK;
}

/* The chunks [first, end) of a sequence that have queries. */
static void find_chunks(const local_batches_source *source, int32_t s, int32_t *first, int32_t *end)
{
    int32_t queries = source->query_start_loc[s + 1] - source->query_start_loc[s];
    int32_t keys = source->seq_lens[s];
    *first = (keys - queries) / source->chunk;
    *end = queries > 0 ? (keys - 1) / source->chunk + 1 : *first;
}

attn_status local_batches_count(const local_batches_source *source, int32_t *count,
                                attn_error *error)
{
    int32_t first, end;
    attn_status status = check_source(source, error);
    if (status != ATTN_OK)
        return status;
    *count = 0;
    for (int32_t s = 0; s < source->num_seqs; s++) {
        find_chunks(source, s, &first, &end);
        *count += end - first;
    }
    return ATTN_OK;
}

/* Chunk n of sequence s as virtual sequence i. */
static void add_chunk(const local_batches_source *source, int32_t s, int32_t n, int32_t i,
                      local_attention_metadata *local)
{
    int32_t keys = source->seq_lens[s], width = source->chunk / source->page_size;
    int32_t queries = source->query_start_loc[s + 1] - source->query_start_loc[s];
    int32_t begin = n * source->chunk, all = keys - begin;
    int32_t used = all < source->chunk ? all : source->chunk;
    int32_t before = keys - queries - begin; /* keys of the chunk before its first query */
    int32_t seen = used - (before > 0 ? before : 0);
    int32_t pages = (used + source->page_size - 1) / source->page_size;
    int32_t *to = &local->local_block_table[(int64_t)i * width];
    memset(to, 0, (size_t)width * sizeof *to);
    memcpy(
        to,
        &source->block_table[(int64_t)s * source->block_table_stride + begin / source->page_size],
        (size_t)pages * sizeof *to);
    local->local_seqused_k[i] = used;
    local->local_query_start_loc[i + 1] = local->local_query_start_loc[i] + seen;
    if (seen > local->local_max_query_len)
        local->local_max_query_len = seen;
    if (used > local->local_max_seq_len)
        local->local_max_seq_len = used;
}

attn_status make_local_attention_virtual_batches(const local_batches_source *source,
                                                 local_attention_metadata *local, attn_error *error)
{
    int32_t first, end, i = 0;
    attn_status status = check_source(source, error);
    if (status != ATTN_OK)
        return status;
    local->local_max_query_len = local->local_max_seq_len = 0;
    local->local_query_start_loc[0] = source->query_start_loc[0];
    for (int32_t s = 0; s < source->num_seqs; s++) {
        find_chunks(source, s, &first, &end);
        for (int32_t n = first; n < end; n++)
            add_chunk(source, s, n, i++, local);
    }
    return ATTN_OK;
}
