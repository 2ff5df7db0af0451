/* SPDX-License-Identifier: Apache-2.0
 *
 * check_paged.c: attnhost_paged_batch_init(), and what it makes given to a real backend.
 */
#include "tests/host/embed/batch_fixture.h"

enum { REQS = 3, STRIDE = 7 };

static int32_t starts[REQS + 1], totals[REQS], computed[REQS], room[REQS];
static int32_t blocks[REQS * STRIDE];
static int64_t slots[8];
static attnhost_paged_group paged_groups[2];
static attnhost_paged_batch step;
static attn_batch made;
static attn_kv_batch made_kv[2];

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){array, array};
}

/* Requests with 2, 0 and 3 queries after 5, 4 and 0 tokens. */
static void make_step(void)
{
    static const int32_t some_starts[] = {0, 2, 2, 5}, some_totals[] = {7, 4, 3};
    memcpy(starts, some_starts, sizeof starts);
    memcpy(totals, some_totals, sizeof totals);
    memset(room, 0x55, sizeof room);
    for (int g = 0; g < 2; g++)
        paged_groups[g] = (attnhost_paged_group){.struct_size = sizeof paged_groups[g],
                                                 .block_size = 16,
                                                 .block_table_stride = STRIDE,
                                                 .block_table = both(blocks + g),
                                                 .slot_mapping = {slots + g, slots + g}};
    step = (attnhost_paged_batch){.struct_size = sizeof step,
                                  .num_groups = 2,
                                  .num_reqs = REQS,
                                  .num_actual_tokens = 5,
                                  .query_start_loc = both(starts),
                                  .seq_lens = both(totals),
                                  .room = room,
                                  .groups = paged_groups};
    host_error_init(&error);
}

static attn_status make(void)
{
    return attnhost_paged_batch_init(&made, made_kv, &step, &error.base);
}

TEST_OF(paged, an_extend_step)
{
    make_step();
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_uint_eq(made.mode, ATTN_MODE_EXTEND);
    ck_assert_int_eq(made.num_seqs, 3);
    ck_assert_int_eq(made.num_real_tokens, 5);
    ck_assert_int_eq(made.max_q_len, 3);
    ck_assert_int_eq(made.max_kv_len, 7);
    ck_assert_ptr_eq(made.prefix_lens.host, room);
    ck_assert_ptr_eq(made.prefix_lens.device, room);
    static const int32_t before[] = {5, 4, 0};
    ck_assert_mem_eq(room, before, sizeof before);
    ck_assert_ptr_eq(made.q_indptr.device, starts);
    ck_assert_uint_eq(made.num_kv_groups, 2);
    ck_assert_ptr_eq(made.kv_groups, made_kv);
    for (int g = 0; g < 2; g++) {
        ck_assert_uint_eq(made_kv[g].struct_size, sizeof made_kv[g]);
        ck_assert_uint_eq(made_kv[g].index_forms, ATTN_INDEX_BLOCK_TABLE);
        ck_assert_int_eq(made_kv[g].page_size, 16);
        ck_assert_int_eq(made_kv[g].block_table_stride, STRIDE);
        ck_assert_ptr_eq(made_kv[g].block_table.device, blocks + g);
        ck_assert_ptr_eq(made_kv[g].out_cache_loc.host, slots + g);
    }
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &made, NULL, &error.base), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

TEST_OF(paged, modes)
{
    make_step();
    for (int32_t r = 0; r <= REQS; r++)
        starts[r] = r;
    step.num_actual_tokens = 3;
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_uint_eq(made.mode, ATTN_MODE_DECODE);
    step.num_actual_tokens = 4; /* a row of no sequence */
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_uint_eq(made.mode, ATTN_MODE_EXTEND);
    starts[1] = 0; /* one has none, the next two */
    step.num_actual_tokens = 3;
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_uint_eq(made.mode, ATTN_MODE_EXTEND);
    step.num_reqs = step.num_actual_tokens = 0;
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_uint_eq(made.mode, ATTN_MODE_IDLE);
}

/* On a GPU the host's room is not the device's array; without host arrays the numbers are given. */
TEST_OF(paged, arrays_on_a_device)
{
    static int32_t device_starts[REQS + 1], device_totals[REQS];
    make_step();
    step.query_start_loc.device = device_starts;
    step.seq_lens.device = device_totals;
    ck_assert_int_eq(make(), ATTN_INVALID_ARGUMENT);
    assert_says("step.num_computed_tokens.device is absent");
    step.num_computed_tokens.device = computed;
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_ptr_eq(made.prefix_lens.host, room);
    ck_assert_ptr_eq(made.prefix_lens.device, computed);
    step.query_start_loc.host = step.seq_lens.host = NULL;
    ck_assert_int_eq(make(), ATTN_INVALID_ARGUMENT);
    assert_says("step.max_query_len is 0, max_seq_len 0; accepted: more than 0, or host arrays");
    step.max_query_len = 3;
    step.max_seq_len = 9;
    ck_assert_int_eq(make(), ATTN_OK);
    ck_assert_ptr_null(made.prefix_lens.host);
    ck_assert_int_eq(made.max_q_len, 3);
    ck_assert_int_eq(made.max_kv_len, 9);
}

static void refused(const char *says)
{
    attn_batch before = made;
    host_error_init(&error);
    ck_assert_int_eq(make(), ATTN_INVALID_ARGUMENT);
    assert_says(says);
    ck_assert_mem_eq(&made, &before, sizeof made);
    make_step();
}

TEST_OF(paged, wrong_steps)
{
    make_step();
    starts[2] = 1;
    refused("step.query_start_loc[2] is 1 after 2");
    totals[2] = 2;
    refused("step.seq_lens[2] is 2; accepted: 3, the number of its queries, or more");
    step.num_actual_tokens = 4;
    refused("step.num_actual_tokens is 4; accepted: 5, as in query_start_loc, or more");
    step.seq_lens.device = NULL;
    refused("step.seq_lens is absent");
    step.query_start_loc.device = NULL;
    refused("step.query_start_loc is absent");
    step.groups = NULL;
    refused("step.groups is absent");
    paged_groups[0].struct_size = 4;
    refused("step.groups[0]: struct_size is 4");
    step.struct_size = 0;
    refused("step: struct_size is 0");
    step.num_reqs = -1;
    refused("step.num_reqs is -1");
}

GROUP(paged, .set_up = setup, .tear_down = teardown);
TESTS("paged");
