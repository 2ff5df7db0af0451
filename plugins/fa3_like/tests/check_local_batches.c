/* SPDX-License-Identifier: Apache-2.0
 *
 * check_local_batches.c: attention in chunks as virtual batches, held to the definition, key by
 * key.
 */
#include "plugins/fa3_like/local_batches.h"
#include "tests/tools/test_main.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 12, MAX_VIRTUAL = 600, MAX_PAGES = 300 };

static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static int32_t starts[MAX_SEQS + 1], lens[MAX_SEQS], table[MAX_SEQS * MAX_PAGES];
static int32_t local_starts[MAX_VIRTUAL + 1], local_lens[MAX_VIRTUAL],
    local_table[MAX_VIRTUAL * 64];

static local_attention_metadata local = {.local_query_start_loc = local_starts,
                                         .local_seqused_k = local_lens,
                                         .local_block_table = local_table};

static local_batches_source make_source(int32_t chunk, int32_t page, int32_t seqs)
{
    for (int32_t i = 0; i < MAX_SEQS * MAX_PAGES; i++)
        table[i] = 1000 + i;
    return (local_batches_source){.chunk = chunk,
                                  .page_size = page,
                                  .num_seqs = seqs,
                                  .block_table_stride = MAX_PAGES,
                                  .query_start_loc = starts,
                                  .seq_lens = lens,
                                  .block_table = table};
}

static int32_t make(const local_batches_source *source)
{
    int32_t count = -1;
    ck_assert_msg(local_batches_count(source, &count, &error) == ATTN_OK, "%s", message);
    ck_assert_int_le(count, MAX_VIRTUAL);
    memset(local_table, 0xff, sizeof local_table);
    ck_assert_msg(make_local_attention_virtual_batches(source, &local, &error) == ATTN_OK, "%s",
                  message);
    return count;
}

/* Where key `place` of virtual sequence v lies: slot, or -1 = it has no such key. */
static int64_t slot_in(const local_batches_source *source, int32_t v, int32_t place)
{
    int32_t width = source->chunk / source->page_size;
    if (place < 0 || place >= local_lens[v])
        return -1;
    return (int64_t)local_table[v * width + place / source->page_size] * source->page_size +
           place % source->page_size;
}

/* Query t of sequence s sees the keys of its chunk up to its own, in order, and no other. */
static void check_query(const local_batches_source *source, int32_t s, int32_t t, int32_t v)
{
    int32_t queries = starts[s + 1] - starts[s], i = lens[s] - queries + t;
    int32_t row = starts[s] + t, begin = i / source->chunk * source->chunk;
    ck_assert_int_ge(row, local_starts[v]);
    ck_assert_int_lt(row, local_starts[v + 1]);
    /* Causal, aligned to the last key. */
    int32_t position =
        local_lens[v] - (local_starts[v + 1] - local_starts[v]) + row - local_starts[v];
    ck_assert_int_eq(position, i - begin);
    for (int32_t j = begin; j <= i; j++) {
        int64_t slot = (int64_t)table[s * MAX_PAGES + j / source->page_size] * source->page_size +
                       j % source->page_size;
        if (slot_in(source, v, j - begin) != slot) /* asserting each time would take too long */
            ck_abort_msg("sequence %d, query %d, key %d: got slot %lld, accepted %lld", s, t, j,
                         (long long)slot_in(source, v, j - begin), (long long)slot);
    }
}

static void check_all(const local_batches_source *source)
{
    int32_t count = make(source), v = 0, most_queries = 0, most_keys = 0;
    for (int32_t s = 0; s < source->num_seqs; s++)
        for (int32_t t = 0; t < starts[s + 1] - starts[s]; t++) {
            while (v + 1 < count && local_starts[v + 1] <= starts[s] + t)
                v++;
            check_query(source, s, t, v);
        }
    ck_assert_int_eq(local_starts[0], starts[0]);
    ck_assert_int_eq(local_starts[count], starts[source->num_seqs]);
    for (v = 0; v < count; v++) {
        int32_t queries = local_starts[v + 1] - local_starts[v];
        ck_assert_int_gt(queries, 0);
        ck_assert_int_le(queries, local_lens[v]);
        most_queries = queries > most_queries ? queries : most_queries;
        most_keys = local_lens[v] > most_keys ? local_lens[v] : most_keys;
    }
    ck_assert_int_eq(local.local_max_query_len, most_queries);
    ck_assert_int_eq(local.local_max_seq_len, most_keys);
}

/* The example of the header, with pages of two. */
START_TEST(a_prefix_ends_within_a_chunk)
{
    starts[0] = 3;
    starts[1] = 10;
    lens[0] = 13;
    local_batches_source source = make_source(4, 2, 1);
    ck_assert_int_eq(make(&source), 3);
    static const int32_t queries[] = {3, 5, 9, 10}, keys[] = {4, 4, 1};
    static const int32_t pages[] = {1002, 1003, 1004, 1005, 1006, 0};
    ck_assert_mem_eq(local_starts, queries, sizeof queries);
    ck_assert_mem_eq(local_lens, keys, sizeof keys);
    ck_assert_mem_eq(local_table, pages, sizeof pages);
    ck_assert_int_eq(local.local_max_query_len, 4);
    ck_assert_int_eq(local.local_max_seq_len, 4);
    check_all(&source);
}
END_TEST

START_TEST(sequences_without_queries_vanish)
{
    static const int32_t loc[] = {0, 0, 5, 5}, keys[] = {9, 5, 0};
    memcpy(starts, loc, sizeof loc);
    memcpy(lens, keys, sizeof keys);
    local_batches_source source = make_source(8, 8, 3);
    ck_assert_int_eq(make(&source), 1);
    check_all(&source);
    source.num_seqs = 0;
    ck_assert_int_eq(make(&source), 0);
    ck_assert_int_eq(local.local_max_seq_len, 0);
}
END_TEST

START_TEST(random_batches)
{
    srand(20);
    for (int n = 0; n < 200; n++) {
        int32_t page = 1 << rand() % 5, chunk = page * (1 + rand() % 12),
                seqs = 1 + rand() % MAX_SEQS;
        starts[0] = rand() % 4;
        for (int32_t s = 0; s < seqs; s++) {
            int32_t queries = rand() % 3 ? rand() % 60 : 1;
            lens[s] = queries + (rand() % 3 ? rand() % 200 : rand() % 3 * chunk);
            starts[s + 1] = starts[s] + queries;
        }
        local_batches_source source = make_source(chunk, page, seqs);
        check_all(&source);
    }
}
END_TEST

START_TEST(refusals)
{
    int32_t count;
    starts[0] = 0;
    starts[1] = 6;
    lens[0] = 5;
    local_batches_source source = make_source(8, 8, 1);
    ck_assert_int_eq(local_batches_count(&source, &count, &error), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(message, "6 queries"), "%s", message);
    lens[0] = 6;
    source.chunk = 12;
    ck_assert_int_eq(local_batches_count(&source, &count, &error), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(message, "attention_chunk 12"), "%s", message);
    ck_assert_int_eq(make_local_attention_virtual_batches(&source, &local, &error),
                     ATTN_INVALID_ARGUMENT);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("local_batches");
    TCase *tc = tcase_create("chunks");
    tcase_add_test(tc, a_prefix_ends_within_a_chunk);
    tcase_add_test(tc, sequences_without_queries_vanish);
    tcase_add_test(tc, random_batches);
    tcase_add_test(tc, refusals);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return test_main(suite());
}
