/* SPDX-License-Identifier: Apache-2.0
 *
 * batch_fixture.h: metadata of the fixture's backend, and a small batch for it.
 */
#ifndef BATCH_FIXTURE_H
#define BATCH_FIXTURE_H

#include "tests/host/embed/attnhost_fixture.h"

static inline attnhost_metadata *make_metadata(attnhost_backend *backend, const attn_memory *memory)
{
    attnhost_metadata *metadata = NULL;
    attn_status status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, memory,
                                                  &metadata, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return metadata;
}

/* Three sequences: of 1, 4 and no new rows. None of them decodes in a MIXED batch. */
static const int32_t lens[3] = {1, 9, 4}, prefixes[3] = {0, 5, 4}, indptr[4] = {0, 1, 5, 5};
static const int32_t table[3 * 7];
static attn_kv_batch kv[2];
static attn_batch batch;
static const attn_forward_args args = {.struct_size = sizeof args};

static inline void make_batch(uint32_t mode)
{
    for (int g = 0; g < 2; g++)
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g],
                                .index_forms = ATTN_INDEX_BLOCK_TABLE,
                                .page_size = 16,
                                .block_table_stride = 7,
                                .block_table = {NULL, table}};
    int32_t tokens = mode == ATTN_MODE_DECODE ? 3 : 5;
    bool mixed = mode == ATTN_MODE_MIXED;
    batch = (attn_batch){.struct_size = sizeof batch,
                         .mode = mode,
                         .num_seqs = 3,
                         .num_tokens = tokens,
                         .num_real_seqs = 3,
                         .num_real_tokens = tokens,
                         .first_decode_seq = mixed ? 3 : 0,
                         .decode_q_len = mixed ? 1 : 0,
                         .max_q_len = 4,
                         .max_kv_len = 9,
                         .num_kv_groups = 2,
                         .seq_lens = {NULL, lens},
                         .prefix_lens = {NULL, prefixes},
                         .q_indptr = {NULL, indptr},
                         .kv_groups = kv};
}

static inline attn_status plan(attnhost_metadata *metadata, uint32_t mode)
{
    make_batch(mode);
    return attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
}

static inline attn_status forward(attnhost_metadata *metadata, int32_t layer_id)
{
    host_error_init(&error);
    return attnhost_forward(metadata, layer_id, &args, NULL, &error.base);
}

#endif /* BATCH_FIXTURE_H */
