/* SPDX-License-Identifier: Apache-2.0
 *
 * check_local_attention.c: attn_local_attention.h alone, against what the ABI says of
 * attention_chunk: query and key see each other in a virtual sequence if and only if they do in the
 * batch.
 */
#include "attn_local_attention.h"
#include "tests/tools/test_main.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 6, MAX_LEN = 70, MAX_TOKENS = MAX_SEQS * MAX_LEN, ROUNDS = 400 };

static struct {
    int32_t rows[MAX_SEQS + 1], prefixes[MAX_SEQS], lens[MAX_SEQS], table[MAX_SEQS * MAX_LEN];
    attn_batch batch;
    attn_kv_batch kv;
} t;
static int32_t loc[MAX_TOKENS + 1], used[MAX_TOKENS], table[MAX_TOKENS * MAX_LEN];
static attn_local_attention local;
static char message[256];
static attn_error error = {
    .struct_size = sizeof error, .message = message, .capacity = sizeof message};

static int32_t below(int32_t count)
{
    return (int32_t)(rand() % count);
}

/* Pages are numbered as they come, from 100 on; so page and place in it tell sequence and key. */
static void make_batch(uint32_t mode, int32_t num_seqs, int32_t page_size)
{
    int32_t pages = 100;
    memset(&t, 0, sizeof t);
    t.rows[0] = mode == ATTN_MODE_DECODE ? 0 : below(9);
    for (int32_t s = 0; s < num_seqs; s++) {
        int32_t queries = mode == ATTN_MODE_DECODE ? below(4) != 0 : below(MAX_LEN / 2);
        t.prefixes[s] = queries == 0 && mode == ATTN_MODE_DECODE ? 0 : below(MAX_LEN / 2);
        t.lens[s] = t.prefixes[s] + queries;
        t.rows[s + 1] = t.rows[s] + queries;
        for (int32_t p = 0; p * page_size < t.lens[s]; p++)
            t.table[s * MAX_LEN + p] = pages++;
    }
    t.batch = (attn_batch){.struct_size = sizeof t.batch,
                           .mode = mode,
                           .num_seqs = num_seqs,
                           .q_indptr.host = mode == ATTN_MODE_DECODE ? NULL : t.rows,
                           .prefix_lens.host = mode == ATTN_MODE_DECODE ? NULL : t.prefixes,
                           .seq_lens.host = t.lens};
    t.kv = (attn_kv_batch){.struct_size = sizeof t.kv,
                           .page_size = page_size,
                           .block_table.host = t.table,
                           .block_table_stride = MAX_LEN};
}

static attn_status make(int32_t chunk)
{
    return attn_util_make_local_attention_virtual_batches(&t.batch, &t.kv, chunk, &local, &error);
}

static void make_both(int32_t chunk)
{
    local = (attn_local_attention){.num_seqs = -1};
    ck_assert_int_eq(make(chunk), ATTN_OK);
    attn_local_attention counted = local;
    local.local_query_start_loc = loc;
    local.local_seqused_k = used;
    local.local_block_table = table;
    memset(loc, -1, sizeof loc);
    memset(used, -1, sizeof used);
    memset(table, -1, sizeof table);
    ck_assert_int_eq(make(chunk), ATTN_OK);
    ck_assert_int_eq(local.num_seqs, counted.num_seqs);
    ck_assert_int_eq(local.local_max_query_len, counted.local_max_query_len);
    ck_assert_int_eq(local.local_max_seq_len, counted.local_max_seq_len);
    ck_assert_int_eq(local.local_block_table_stride, chunk / t.kv.page_size);
}

/* Virtual sequence v, which has the query of this row, and which of its queries that is. */
static int32_t find_virtual(int32_t row, int32_t *query)
{
    for (int32_t v = 0; v < local.num_seqs; v++)
        if (row >= loc[v] && row < loc[v + 1]) {
            *query = row - loc[v];
            return v;
        }
    ck_abort_msg("row %d is in no virtual sequence", row);
    return -1;
}

/* The query at position i of sequence s, in row `row`, sees its keys and no others. */
static void check_query(int32_t s, int32_t i, int32_t row, int32_t chunk)
{
    int32_t query, v = find_virtual(row, &query), page = t.kv.page_size;
    int32_t position = used[v] - (loc[v + 1] - loc[v]) + query, seen = 0;
    for (int32_t j = 0; j <= position; j++, seen++) {
        int32_t at = table[v * local.local_block_table_stride + j / page];
        int32_t key = i / chunk * chunk + j;
        ck_assert_int_eq(at, t.table[s * MAX_LEN + key / page]);
        ck_assert_int_eq(j % page, key % page);
    }
    ck_assert_int_eq(seen, i % chunk + 1);
}

static void check_batch(int32_t chunk)
{
    int32_t most_queries = 0, most_keys = 0, rows = 0;
    make_both(chunk);
    for (int32_t s = 0; s < t.batch.num_seqs; s++)
        for (int32_t i = t.prefixes[s]; i < t.lens[s]; i++, rows++)
            check_query(s, i, t.rows[0] + rows, chunk);
    if (t.batch.num_seqs > 0)
        ck_assert_int_eq(loc[0], t.rows[0]);
    ck_assert_int_eq(loc[local.num_seqs], loc[0] + rows);
    for (int32_t v = 0; v < local.num_seqs; v++) {
        int32_t queries = loc[v + 1] - loc[v], pages = local.local_block_table_stride;
        ck_assert_int_gt(queries, 0);
        most_queries = queries > most_queries ? queries : most_queries;
        most_keys = used[v] > most_keys ? used[v] : most_keys;
        for (int32_t p = (used[v] + t.kv.page_size - 1) / t.kv.page_size; p < pages; p++)
            ck_assert_int_eq(table[v * pages + p], 0);
    }
    ck_assert_int_eq(table[local.num_seqs * local.local_block_table_stride], -1);
    ck_assert_int_eq(local.local_max_query_len, most_queries);
    ck_assert_int_eq(local.local_max_seq_len, most_keys);
}

TEST_OF(virtual_batches, chunks_are_sequences)
{
    static const int32_t pages[] = {1, 2, 5, 16};
    srand(7);
    for (int round = 0; round < random_cases(ROUNDS); round++) {
        int32_t page = pages[below(4)];
        make_batch(ATTN_MODE_EXTEND, below(MAX_SEQS + 1), page);
        check_batch(page * (1 + below(5)));
    }
}

/* One query of each sequence; those of the padding have no keys. */
TEST_OF(virtual_batches, decodes_have_one_query)
{
    srand(8);
    for (int round = 0; round < random_cases(ROUNDS); round++) {
        make_batch(ATTN_MODE_DECODE, below(MAX_SEQS + 1), 4);
        int32_t chunk = 4 * (1 + below(5));
        make_both(chunk);
        ck_assert_int_eq(local.num_seqs, t.batch.num_seqs);
        for (int32_t s = 0; s < t.batch.num_seqs; s++) {
            ck_assert_int_eq(loc[s], s);
            ck_assert_int_eq(loc[s + 1], s + 1);
            ck_assert_int_eq(used[s], t.lens[s] == 0 ? 0 : (t.lens[s] - 1) % chunk + 1);
            for (int32_t j = 0; j < used[s]; j++)
                ck_assert_int_eq(table[s * local.local_block_table_stride + j / 4],
                                 t.table[s * MAX_LEN + (t.lens[s] - used[s] + j) / 4]);
        }
    }
}

static void expect_refused(int32_t chunk, uint32_t field, const char *says)
{
    error.field = ATTN_FIELD_NONE;
    ck_assert_int_eq(make(chunk), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, field);
    ck_assert_str_eq(message, says);
}

TEST_OF(virtual_batches, refusals_say_what_is_accepted)
{
    make_batch(ATTN_MODE_EXTEND, 2, 4);
    expect_refused(6, ATTN_FIELD_ATTENTION_CHUNK,
                   "attention_chunk 6: accepted multiples of the page size 4");
    expect_refused(0, ATTN_FIELD_ATTENTION_CHUNK,
                   "attention_chunk 0: accepted multiples of the page size 4");
    t.prefixes[0] = 3;
    t.rows[1] = t.rows[0] + 2;
    t.lens[0] = 9;
    expect_refused(8, ATTN_FIELD_BATCH,
                   "sequence 0 of 9 keys has queries up to position 4: accepted where the last is "
                   "at the last key");
    t.kv.block_table.host = NULL;
    expect_refused(8, ATTN_FIELD_INDEX_FORMS, "the batch has no block_table");
}

TESTS("local_attention");
