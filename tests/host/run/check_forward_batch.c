/* SPDX-License-Identifier: Apache-2.0
 *
 * check_forward_batch.c: batches by hand, and random ones whose index forms must agree.
 */
#include "host/run/forward_batch.h"

#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

enum { ALL_FORMS = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR };

static struct forward_batch made;
static struct device *cpu;
static struct step_kernels *kernels;

/* Page ids are a kernel's work; no vectors are made here. */
static void open_device(void)
{
    static struct generator generator;
    static struct workload workload;
    ck_assert_int_eq(generator_init(&generator, 1, NULL, 0, 1, 0, NULL), ATTN_OK);
    ck_assert_int_eq(device_open(ATTN_DEVICE_CPU, 0, &cpu, NULL), ATTN_OK);
    ck_assert_int_eq(step_kernels_create(cpu, &generator, &workload, NULL, &kernels, NULL),
                     ATTN_OK);
}

static void close_device(void)
{
    step_kernels_destroy(kernels);
    device_close(cpu);
}

/* The batch of a step, complete. */
static attn_status fill(const struct batch_step *step, attn_error *error)
{
    attn_status status = forward_batch_fill(&made, 0, step, error);
    return status == ATTN_OK ? forward_batch_upload(&made, 0, kernels, NULL, error) : status;
}

static struct forward_batch_params params_of(int32_t max_seqs, int32_t max_tokens,
                                             int32_t max_kv_len, int32_t page_size, uint32_t forms)
{
    int64_t pages = (max_kv_len + page_size - 1) / page_size;
    return (struct forward_batch_params){
        .device = cpu,
        .num_staging = 1,
        .max_seqs = max_seqs,
        .max_tokens = max_tokens,
        .max_kv_tokens = max_seqs * pages * page_size,
        .max_kv_len = max_kv_len,
        .page_size = page_size,
        .index_forms = forms,
    };
}

static void begin(const struct forward_batch_params *params)
{
    ck_assert_int_eq(forward_batch_init(&made, params, NULL), ATTN_OK);
}

static void make(int32_t max_seqs, int32_t max_tokens, int32_t max_kv_len, int32_t page_size,
                 uint32_t forms)
{
    const struct forward_batch_params params =
        params_of(max_seqs, max_tokens, max_kv_len, page_size, forms);
    begin(&params);
}

static void build(const struct batch_step *step)
{
    HOST_ERROR(error);
    ck_assert_msg(fill(step, &error.base) == ATTN_OK, "%s", host_error_text(&error));
}

/* An array's both pointers are equal, and its values are these. */
#define ck_assert_array(array, ...)                                                                \
    do {                                                                                           \
        const int32_t wanted_[] = {__VA_ARGS__};                                                   \
        ck_assert_ptr_eq((array).host, (array).device);                                            \
        for (size_t i_ = 0; i_ < sizeof wanted_ / sizeof *wanted_; i_++)                           \
            ck_assert_int_eq((array).host[i_], wanted_[i_]);                                       \
    } while (0)

/* ---- By hand --------------------------------------------------------------------------------- */

enum { STRIDE = 16 };

/* The new keys of the sequences are in these slots, all their keys where the table says; the rest is to be added. */
static struct batch_step step_of(uint32_t mode, const struct scheduler_seq *sequences,
                                 int32_t count, const int64_t *slots, const int32_t *table)
{
    return (struct batch_step){
        .mode = mode,
        .num_sequences = count,
        .sequences = sequences,
        .pools[0].slots = slots,
        .pools[0].req_to_token = table,
        .req_to_token_stride = STRIDE,
    };
}

/* Two requests of 7 tokens on rows 1 and 2, in slots 1..7 and 8..14. */
static void fill_two_rows(int32_t table[3][STRIDE])
{
    memset(table, 0, 3 * STRIDE * sizeof(int32_t));
    for (int32_t j = 0; j < 7; j++) {
        table[1][j] = 1 + j;
        table[2][j] = 8 + j;
    }
}

/* One decode step: slots 15, 16; the first request ends; one more step: slot 17. */
TEST_OF(literal, two_level_pools)
{
    int32_t table[3][STRIDE];
    fill_two_rows(table);
    make(2, 14, 9, 1, ALL_FORMS);
    struct scheduler_seq prefill[] = {{.row = 1, .prefix_len = 0, .num_new = 7},
                                      {.row = 2, .prefix_len = 0, .num_new = 7}},
                         decode[] = {{.row = 1, .prefix_len = 7, .num_new = 1},
                                     {.row = 2, .prefix_len = 7, .num_new = 1}};
    int64_t prefill_slots[14];
    for (int i = 0; i < 14; i++)
        prefill_slots[i] = i + 1;
    struct batch_step step = step_of(ATTN_MODE_EXTEND, prefill, 2, prefill_slots, table[0]);
    build(&step);
    ck_assert_array(made.batch.seq_lens, 7, 7);
    ck_assert_array(made.batch.q_indptr, 0, 7, 14);
    ck_assert_array(made.kv[0].kv_indptr, 0, 7, 14);
    ck_assert_array(made.kv[0].kv_indices, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);

    table[1][7] = 15;
    table[2][7] = 16;
    step = step_of(ATTN_MODE_DECODE, decode, 2, (const int64_t[]){15, 16}, table[0]);
    build(&step);
    ck_assert_array(made.batch.seq_lens, 8, 8);
    ck_assert_array(made.batch.req_pool_indices, 1, 2);
    ck_assert_array(made.kv[0].kv_indptr, 0, 8, 16);
    ck_assert_array(made.kv[0].kv_indices, 1, 2, 3, 4, 5, 6, 7, 15, 8, 9, 10, 11, 12, 13, 14, 16);
    ck_assert_int_eq(made.kv[0].out_cache_loc.host[0], 15);
    ck_assert_int_eq(made.kv[0].out_cache_loc.host[1], 16);

    table[2][8] = 17;
    decode[1].prefix_len = 8;
    step = step_of(ATTN_MODE_DECODE, &decode[1], 1, (const int64_t[]){17}, table[0]);
    build(&step);
    ck_assert_int_eq(made.batch.num_seqs, 1);
    ck_assert_array(made.batch.seq_lens, 9);
    ck_assert_array(made.batch.req_pool_indices, 2);
    ck_assert_array(made.kv[0].kv_indptr, 0, 9);
    ck_assert_array(made.kv[0].kv_indices, 8, 9, 10, 11, 12, 13, 14, 16, 17);
    ck_assert_array(made.kv[0].block_table, 8, 9, 10, 11, 12, 13, 14, 16, 17);
    ck_assert_int_eq(made.kv[0].out_cache_loc.host[0], 17);
    const int32_t *row = made.kv[0].req_to_token.host + 2 * made.kv[0].req_to_token_stride;
    ck_assert_int_eq(row[6], 14);
    ck_assert_int_eq(row[7], 16);
    ck_assert_int_eq(row[8], 17);
    forward_batch_finish(&made);
}

/* Two KV groups, the first in the pool of windows: each has the slots, table and page ids of its
 * pool, and both the sequences' lengths. */
TEST_OF(literal, groups_have_their_pools)
{
    int32_t table[3][STRIDE], window[3][STRIDE] = {{0}};
    fill_two_rows(table);
    for (int32_t j = 4; j < 7; j++)
        window[1][j] = 21 + j;
    const struct scheduler_seq sequences[] = {{.row = 1, .prefix_len = 6, .num_new = 1}};
    struct forward_batch_params params = params_of(1, 1, 7, 1, ALL_FORMS);
    struct batch_step step = {
        .mode = ATTN_MODE_DECODE,
        .num_sequences = 1,
        .sequences = sequences,
        .pools = {{(const int64_t[]){7}, table[0], NULL}, {(const int64_t[]){27}, window[0], NULL}},
        .req_to_token_stride = STRIDE,
    };
    params.num_kv_groups = 2;
    params.kv_pools[0] = SCHEDULER_WINDOW;
    params.kv_pools[1] = SCHEDULER_ALL;
    begin(&params);
    build(&step);
    ck_assert_uint_eq(made.batch.num_kv_groups, 2);
    ck_assert_int_eq(made.kv[0].out_cache_loc.host[0], 27);
    ck_assert_int_eq(made.kv[1].out_cache_loc.host[0], 7);
    ck_assert_array(made.kv[0].kv_indices, 0, 0, 0, 0, 25, 26, 27);
    ck_assert_array(made.kv[1].kv_indices, 1, 2, 3, 4, 5, 6, 7);
    ck_assert_array(made.kv[0].block_table, 0, 0, 0, 0, 25, 26, 27);
    ck_assert_int_eq(made.kv[0].req_to_token.host[STRIDE + 6], 27);
    ck_assert_int_eq(made.kv[1].req_to_token.host[STRIDE + 6], 7);
    for (int g = 0; g < 2; g++)
        ck_assert_array(made.kv[g].kv_lens, 7);
    forward_batch_finish(&made);
}

/* Three sequences with an encoder of 3 keys each, in pages of 2: the first and the last bring them,
 * the one between them has brought them before. */
TEST_OF(literal, an_encoder_has_lengths_and_rows_of_its_own)
{
    int32_t table[4][STRIDE] = {{0}}, encoded[4][STRIDE] = {{0}};
    for (int32_t r = 1; r < 4; r++)
        for (int32_t j = 0; j < 3; j++)
            encoded[r][j] = 4 * r + j;
    for (int32_t j = 0; j < 6; j++)
        table[2][j] = 2 + j;
    table[1][0] = 8;
    table[3][0] = 10;
    const struct scheduler_seq sequences[] = {
        {.request = 5, .row = 1, .num_new = 1, .encoder_len = 3, .encoder_new = 3},
        {.request = 6, .row = 2, .prefix_len = 5, .num_new = 1, .encoder_len = 3},
        {.request = 7, .row = 3, .num_new = 1, .encoder_len = 3, .encoder_new = 3}};
    struct forward_batch_params params = params_of(3, 6, 6, 2, ALL_FORMS);
    struct batch_step step = {
        .mode = ATTN_MODE_EXTEND,
        .num_sequences = 3,
        .sequences = sequences,
        .pools = {[SCHEDULER_ALL] = {(const int64_t[]){8, 7, 10}, table[0], NULL},
                  [SCHEDULER_ENCODER] = {(const int64_t[]){4, 5, 6, 12, 13, 14}, encoded[0], NULL}},
        .req_to_token_stride = STRIDE,
    };
    params.max_kv_tokens = 12;
    params.num_kv_groups = 2;
    params.kv_pools[1] = SCHEDULER_ENCODER;
    begin(&params);
    build(&step);
    const attn_kv_batch *kv = &made.kv[1];
    ck_assert_int_eq(made.batch.max_kv_len, 6);
    ck_assert_array(made.kv[0].kv_lens, 1, 6, 1);
    ck_assert_ptr_null(made.kv[0].kv_new_indptr.host);
    ck_assert_array(kv->kv_lens, 3, 3, 3);
    ck_assert_array(kv->kv_new_indptr, 0, 3, 3, 6);
    ck_assert_array(kv->out_cache_loc, 4, 5, 6, 12, 13, 14);
    ck_assert_array(kv->kv_indptr, 0, 2, 4, 6);
    ck_assert_array(kv->kv_indices, 2, 3, 4, 5, 6, 7);
    ck_assert_array(kv->last_page_len, 1, 1, 1);
    ck_assert_int_eq(made.encoder_rows.count, 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(made.encoder_rows.request[i], i < 3 ? 5 : 7);
        ck_assert_int_eq(made.encoder_rows.position[i], i % 3);
        ck_assert_int_eq(kv->block_table.host[i / 2 * kv->block_table_stride + i % 2], 2 + i);
    }
    forward_batch_finish(&made);
}

/* A step may bring more of an encoder's keys than it has rows, and these are the longest. */
TEST_OF(literal, keys_of_an_encoder_are_within_the_bounds)
{
    int32_t table[2][STRIDE] = {{0}};
    struct scheduler_seq one = {.row = 1, .num_new = 1, .encoder_len = 5, .encoder_new = 5};
    struct forward_batch_params params = params_of(1, 5, 6, 1, ALL_FORMS);
    struct batch_step step = {
        .mode = ATTN_MODE_EXTEND,
        .num_sequences = 1,
        .sequences = &one,
        .pools[SCHEDULER_ENCODER] = {(const int64_t[]){1, 2, 3, 4, 5, 6}, table[0], NULL},
        .req_to_token_stride = STRIDE,
    };
    params.num_kv_groups = 1;
    params.kv_pools[0] = SCHEDULER_ENCODER;
    begin(&params);
    build(&step);
    ck_assert_int_eq(made.batch.max_kv_len, 5);
    one.encoder_len = one.encoder_new = 6;
    ck_assert_int_eq(fill(&step, NULL), ATTN_INTERNAL);
    one.encoder_new = 0;
    build(&step);
    ck_assert_array(made.kv[0].kv_new_indptr, 0, 0);
    ck_assert_int_eq(made.encoder_rows.count, 0);
    forward_batch_finish(&made);
}

/* Pages of 4: slots 8..11, 20..23 and 4 hold request 1's nine tokens. */
TEST_OF(literal, pages_by_hand)
{
    int32_t table[2][STRIDE] = {{0}, {8, 9, 10, 11, 20, 21, 22, 23, 4}};
    static const struct {
        int32_t prefix_len, num_new, num_pages, last_page_len;
    } rows[] = {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 4, 1, 4}, {4, 1, 2, 1}, {7, 1, 2, 4}, {8, 1, 3, 1}};
    make(1, 9, 9, 4, ALL_FORMS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scheduler_seq sequence = {
            .row = 1, .prefix_len = rows[i].prefix_len, .num_new = rows[i].num_new};
        struct batch_step step =
            step_of(ATTN_MODE_EXTEND, &sequence, 1, (const int64_t[9]){0}, table[0]);
        build(&step);
        ck_assert_array(made.kv[0].kv_indptr, 0, rows[i].num_pages);
        ck_assert_array(made.kv[0].last_page_len, rows[i].last_page_len);
    }
    ck_assert_array(made.kv[0].block_table, 2, 5, 1);
    ck_assert_array(made.kv[0].kv_indices, 2, 5, 1);
    ck_assert_int_eq(made.kv[0].block_table_stride, 3);
    ck_assert_int_eq(made.kv[0].page_size, 4);
    forward_batch_finish(&made);
}

/* ---- States ---------------------------------------------------------------------------------- */

static void make_with_states(int32_t max_seqs, int32_t max_tokens)
{
    struct forward_batch_params params = params_of(max_seqs, max_tokens, STRIDE, 1, 0);
    params.has_state = true;
    begin(&params);
}

/* One starts from zero, one from a state that others share, one goes on. */
TEST_OF(literal, states_by_hand)
{
    int32_t table[4][STRIDE] = {{0}};
    struct scheduler_seq sequences[] = {
        {.row = 2, .num_new = 3, .state_dst = 2},
        {.row = 1, .prefix_len = 4, .num_new = 2, .state_slot = 9, .state_dst = 1},
        {.row = 3, .prefix_len = 5, .num_new = 1, .state_slot = 3, .state_dst = 3},
    };
    const struct scheduler_snapshot snapshots[] = {{1, 7}, {4, 8}};
    make_with_states(3, 6);
    struct batch_step step =
        step_of(ATTN_MODE_EXTEND, sequences, 3, (const int64_t[6]){0}, table[0]);
    step.num_snapshots = 2;
    step.snapshots = snapshots;
    build(&step);
    ck_assert_uint_eq(made.batch.num_state_groups, 1);
    ck_assert_ptr_eq(made.batch.state_groups, &made.state);
    ck_assert_uint_eq(made.state.struct_size, sizeof made.state);
    ck_assert_array(made.state.slot, 0, 9, 3);
    ck_assert_array(made.state.dst_slot, 2, 1, 3);
    ck_assert_array(made.state.has_initial, 0, 1, 1);
    ck_assert_array(made.state.snapshots, -1, 7, -1, -1, 8, -1);
    step.num_snapshots = 0;
    build(&step);
    ck_assert_ptr_null(made.state.snapshots.host);
    forward_batch_finish(&made);
}

/* Padding starts from zero and leaves its state in slot 0. */
TEST_OF(literal, padding_has_no_state)
{
    int32_t table[2][STRIDE] = {{0}};
    struct scheduler_seq sequence = {
        .row = 1, .prefix_len = 4, .num_new = 1, .state_slot = 1, .state_dst = 1};
    make_with_states(3, 3);
    for (int32_t n = 3; n > 0; n--) { /* the larger batch leaves the smaller one nothing */
        struct batch_step step =
            step_of(ATTN_MODE_DECODE, &sequence, 1, (const int64_t[1]){0}, table[0]);
        step.padded = n;
        build(&step);
        ck_assert_int_eq(made.batch.num_seqs, n);
        ck_assert_array(made.state.slot, 1, 0, 0);
        ck_assert_array(made.state.dst_slot, 1, 0, 0);
        ck_assert_array(made.state.has_initial, 1, 0, 0);
    }
    forward_batch_finish(&made);
}

/* ---- Drafts ---------------------------------------------------------------------------------- */

/* Two at each depth: 1 and 2 below the root, 3 below 1, 4 below 2; rows 2 and 4 stay. Rows of five
 * bits each, from the lowest on: the root; the root and 1; the root and 2; 0, 1, 3; 0, 2, 4. */
static const struct draft_tree tree = {
    .committed = 3, .parent = {0, 0, 0, 1, 2}, .depth = {0, 1, 1, 2, 2}, .path = {0, 2, 4}};
enum { DRAFTED = 5, MASK_BYTES = 4 };
static const uint8_t tree_bits[MASK_BYTES] = {0x61, 0x94, 0x55, 0x01};

static struct forward_batch_params with_drafts(int32_t top_k)
{
    struct forward_batch_params params = params_of(2, 2 * DRAFTED, STRIDE, 1, 0);
    params.drafts = (struct drafts){.tokens = DRAFTED, .top_k = top_k};
    params.has_positions = true;
    params.num_requests = 100;
    return params;
}

TEST_OF(literal, a_tree_by_hand)
{
    int32_t table[2][STRIDE] = {{0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
    struct scheduler_seq sequence = {.request = 7, .row = 1, .prefix_len = 6, .num_new = DRAFTED};
    const struct scheduler_move moves[] = {{9, 8}, {11, 9}};
    const int32_t moves_indptr[] = {0, 2};
    struct forward_batch_params params = with_drafts(2);
    begin(&params);
    struct batch_step step = step_of(ATTN_MODE_TARGET_VERIFY, &sequence, 1,
                                     (const int64_t[DRAFTED]){7, 8, 9, 10, 11}, table[0]);
    step.trees = &tree;
    step.moves_indptr = moves_indptr;
    step.pools[0].moves = moves;
    step.padded = 2;
    step.seq_len_fill = 1;
    build(&step);
    const attn_batch *batch = &made.batch;
    ck_assert_int_eq(batch->speculation->num_draft_tokens, DRAFTED);
    ck_assert_int_eq(batch->speculation->top_k, 2);
    ck_assert_int_eq(batch->max_q_len, DRAFTED);
    ck_assert_int_eq(batch->num_tokens, 2 * DRAFTED);
    ck_assert_int_eq(batch->num_real_tokens, DRAFTED);
    ck_assert_array(batch->q_indptr, 0, DRAFTED, 2 * DRAFTED);
    ck_assert_array(batch->seq_lens, 11, DRAFTED);
    ck_assert_array(batch->prefix_lens, 6, 0);
    ck_assert_array(batch->positions, 6, 7, 7, 8, 8, 0, 0, 0, 0, 0);
    ck_assert_uint_eq(batch->mask->kind, ATTN_MASK_QLEN);
    for (int s = 0; s <= 2; s++)
        ck_assert_int_eq(batch->mask->indptr.host[s], s * MASK_BYTES);
    ck_assert_mem_eq(batch->mask->bits, tree_bits, MASK_BYTES);
    /* Accepted tokens are the request's; the others have no request. */
    const int32_t requests[] = {7, 207, 7, 407, 7, -1, -1, -1, -1, -1};
    ck_assert_mem_eq(made.rows.request, requests, sizeof requests);
    struct step_moves moved = forward_batch_moves(&made, 0, 0);
    ck_assert_int_eq(moved.num_seqs, 1);
    ck_assert_int_eq(moved.indptr[1], 2);
    ck_assert_int_eq(moved.list[1].from, 11);
    ck_assert_int_eq(moved.list[1].to, 9);
    forward_batch_finish(&made);
}

/* A chain needs no mask, and nothing of it moves. */
TEST_OF(literal, a_chain_by_hand)
{
    static const struct draft_tree chain = {
        .committed = 2, .parent = {0, 0, 1, 2, 3}, .depth = {0, 1, 2, 3, 4}, .path = {0, 1}};
    int32_t table[2][STRIDE] = {{0}};
    struct scheduler_seq sequence = {.request = 3, .row = 1, .prefix_len = 2, .num_new = DRAFTED};
    struct forward_batch_params params = with_drafts(1);
    params.has_positions = false;
    begin(&params);
    struct batch_step step =
        step_of(ATTN_MODE_TARGET_VERIFY, &sequence, 1, (const int64_t[DRAFTED]){0}, table[0]);
    step.trees = &chain;
    step.moves_indptr = (const int32_t[2]){0, 0};
    step.pools[0].moves = &(const struct scheduler_move){0, 0};
    build(&step);
    const int32_t requests[] = {3, 3, 303, 403, 503}, positions[] = {2, 3, 4, 5, 6};
    ck_assert_mem_eq(made.rows.request, requests, sizeof requests);
    ck_assert_mem_eq(made.rows.position, positions, sizeof positions);
    ck_assert_ptr_null(made.batch.mask);
    ck_assert_ptr_null(made.batch.positions.device);
    ck_assert_int_eq(made.batch.speculation->top_k, 1);
    ck_assert_int_eq(forward_batch_moves(&made, 0, 0).num_seqs, 0);
    step.mode = ATTN_MODE_DRAFT_EXTEND;
    step.trees = NULL;
    build(&step);
    ck_assert_ptr_null(made.batch.speculation);
    forward_batch_finish(&made);
}

/* ---- Nothing to do --------------------------------------------------------------------------- */

TEST_OF(limits, idle)
{
    make(3, 5, 7, 2, ALL_FORMS);
    int32_t table[STRIDE] = {0};
    struct scheduler_seq sequence = {.row = 0, .prefix_len = 2, .num_new = 3};
    struct batch_step before =
        step_of(ATTN_MODE_EXTEND, &sequence, 1, (const int64_t[3]){5, 6, 7}, table);
    build(&before);
    struct batch_step step = {.mode = ATTN_MODE_IDLE};
    build(&step);
    ck_assert_uint_eq(made.batch.struct_size, sizeof made.batch);
    ck_assert_uint_eq(made.batch.mode, ATTN_MODE_IDLE);
    ck_assert_int_eq(made.batch.num_seqs, 0);
    ck_assert_int_eq(made.batch.num_tokens, 0);
    ck_assert_int_eq(made.batch.num_real_seqs, 0);
    ck_assert_int_eq(made.batch.num_real_tokens, 0);
    ck_assert_int_eq(made.batch.max_q_len, 0);
    ck_assert_int_eq(made.batch.max_kv_len, 0);
    ck_assert_array(made.batch.q_indptr, 0);
    ck_assert_array(made.kv[0].kv_indptr, 0);
    forward_batch_finish(&made);
    forward_batch_finish(&made);
}

TEST_OF(limits, no_bounds_at_all)
{
    make(0, 0, 0, 1, ALL_FORMS);
    struct batch_step step = {.mode = ATTN_MODE_DECODE};
    build(&step);
    ck_assert_array(made.batch.q_indptr, 0);
    forward_batch_finish(&made);
}

/* What was not asked for is absent, what was asked for is there. */
TEST_OF(limits, only_asked_forms)
{
    int32_t table[STRIDE] = {3, 4, 5};
    struct scheduler_seq sequence = {.row = 0, .prefix_len = 2, .num_new = 1};
    struct batch_step step = step_of(ATTN_MODE_DECODE, &sequence, 1, (const int64_t[1]){5}, table);
    for (uint32_t forms = 0; forms <= ALL_FORMS; forms++) {
        make(2, 2, 3, 1, forms);
        build(&step);
        const attn_kv_batch *kv = made.batch.kv_groups;
        ck_assert_uint_eq(made.batch.num_kv_groups, 1);
        ck_assert_uint_eq(kv->struct_size, sizeof *kv);
        ck_assert_uint_eq(kv->index_forms, forms);
        ck_assert_ptr_eq(kv->req_to_token.host, forms & ATTN_INDEX_REQ_TO_TOKEN ? table : NULL);
        ck_assert_ptr_eq(kv->req_to_token.device, kv->req_to_token.host);
        ck_assert_int_eq(kv->req_to_token_stride, forms & ATTN_INDEX_REQ_TO_TOKEN ? STRIDE : 0);
        ck_assert_int_eq(kv->block_table.host != NULL, !!(forms & ATTN_INDEX_BLOCK_TABLE));
        ck_assert_int_eq(kv->block_table_stride, forms & ATTN_INDEX_BLOCK_TABLE ? 3 : 0);
        ck_assert_int_eq(kv->kv_indptr.host != NULL, !!(forms & ATTN_INDEX_CSR));
        ck_assert_int_eq(kv->kv_indices.host != NULL, !!(forms & ATTN_INDEX_CSR));
        ck_assert_int_eq(kv->last_page_len.host != NULL, !!(forms & ATTN_INDEX_CSR));
        ck_assert_ptr_eq(kv->kv_lens.host, made.batch.seq_lens.host);
        ck_assert_ptr_null(kv->kv_new_indptr.host); /* new keys are the query's rows */
        ck_assert_ptr_null(made.batch.positions.host);
        ck_assert_ptr_null(made.batch.mask);
        ck_assert_ptr_null(made.batch.num_real_seqs_device);
        forward_batch_finish(&made);
    }
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

/* One more than each bound is refused, with the numbers, and the batch before stays. */
TEST_OF(limits, bounds)
{
    static int32_t table[5][STRIDE];
    static const struct {
        struct scheduler_seq sequences[3];
        int32_t num_sequences;
        const char *message; /* NULL = is within them */
    } rows[] = {
        {{{.row = 1, .prefix_len = 4, .num_new = 2}, {.row = 2, .prefix_len = 5, .num_new = 1}},
         2,
         NULL},
        {{{.row = 1, .prefix_len = 0, .num_new = 3}}, 1, NULL},
        {{{.row = 1, .prefix_len = 0, .num_new = 1},
          {.row = 1, .prefix_len = 0, .num_new = 1},
          {.row = 1, .prefix_len = 0, .num_new = 1}},
         3,
         "step of 3 sequences, 3 tokens, 3 pages, 1 keys: the bounds are 2, 3, 3, 6"},
        {{{.row = 1, .prefix_len = 0, .num_new = 4}},
         1,
         "step of 1 sequences, 4 tokens, 1 pages, 4 keys: the bounds are 2, 3, 3, 6"},
        {{{.row = 1, .prefix_len = 6, .num_new = 1}}, 1, "1 tokens, 2 pages, 7 keys"},
        {{{.row = 1, .prefix_len = 4, .num_new = 1}, {.row = 2, .prefix_len = 4, .num_new = 1}},
         2,
         "2 tokens, 4 pages, 5 keys"},
        {{{.row = 1, .prefix_len = INT32_MAX, .num_new = 1}},
         1,
         "1 tokens, 536870912 pages, 2147483648 keys"},
    };
    struct forward_batch_params params = params_of(2, 3, 6, 4, ALL_FORMS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        params.max_kv_tokens = i == 0 ? 16 : 12;
        begin(&params);
        struct batch_step good = {.mode = ATTN_MODE_IDLE};
        build(&good);
        struct batch_step step = step_of(ATTN_MODE_EXTEND, rows[i].sequences, rows[i].num_sequences,
                                         (const int64_t[4]){0}, table[0]);
        HOST_ERROR(error);
        attn_status status = fill(&step, &error.base);
        ck_assert_int_eq(status, rows[i].message ? ATTN_INTERNAL : ATTN_OK);
        if (rows[i].message) {
            ck_assert_msg(strstr(host_error_text(&error), rows[i].message) != NULL, "%s",
                          host_error_text(&error));
            ck_assert_uint_eq(made.batch.mode, ATTN_MODE_IDLE);
        }
        forward_batch_finish(&made);
    }
}

/* ---- Random ---------------------------------------------------------------------------------- */

enum { ROWS = 8, LONGEST = 40, PAGES = ROWS * LONGEST };

struct random_step {
    struct scheduler_seq sequences[ROWS];
    int64_t slots[ROWS * LONGEST];
    int32_t table[ROWS + 1][LONGEST + 3];
    struct batch_step step;
};

static uint64_t random_state;

static int32_t below(int32_t bound)
{
    random_state = mix_absorb(random_state, 1);
    return (int32_t)mix_below((uint32_t)random_state, (uint64_t)bound);
}

/* Pages in random order, so that only the table says where a token is. */
static void make_random_table(struct random_step *r, int32_t page_size)
{
    int32_t pages[PAGES + 1];
    for (int32_t p = 0; p <= PAGES; p++)
        pages[p] = p;
    for (int32_t p = PAGES; p > 1; p--) {
        int32_t other = 1 + below(p), kept = pages[p];
        pages[p] = pages[other];
        pages[other] = kept;
    }
    memset(r->table, 0, sizeof r->table);
    int32_t pages_per_row = (LONGEST + page_size - 1) / page_size;
    for (int32_t row = 1; row <= ROWS; row++)
        for (int32_t j = 0; j < LONGEST; j++) {
            int32_t page = pages[1 + (row - 1) * pages_per_row + j / page_size];
            r->table[row][j] = page * page_size + j % page_size;
        }
}

static void make_random_step(struct random_step *r, uint32_t mode)
{
    int32_t count = mode == ATTN_MODE_IDLE ? 0 : 1 + below(ROWS), tokens = 0;
    int32_t num_decode = mode == ATTN_MODE_MIXED ? below(count + 1) : 0;
    int32_t first_row = below(ROWS);
    for (int32_t s = 0; s < count; s++) {
        int one = mode == ATTN_MODE_DECODE || s >= count - num_decode;
        int32_t length = 1 + below(LONGEST), num_new = one ? 1 : 1 + below(length);
        int32_t row = 1 + (first_row + s) % ROWS;
        r->sequences[s] =
            (struct scheduler_seq){.row = row, .prefix_len = length - num_new, .num_new = num_new};
        for (int32_t t = 0; t < num_new; t++)
            r->slots[tokens++] = r->table[row][length - num_new + t];
    }
    r->step = (struct batch_step){
        .mode = mode,
        .num_sequences = count,
        .num_decode = num_decode,
        .sequences = r->sequences,
        .pools[0].slots = r->slots,
        .pools[0].req_to_token = r->table[0],
        .req_to_token_stride = LONGEST + 3,
    };
}

/* Slots by position, from each form; they are what the table says. */
static void check_forms(const attn_batch *batch, int32_t page_size, const struct random_step *r)
{
    const attn_kv_batch *kv = batch->kv_groups;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        const struct scheduler_seq *sequence = &r->sequences[s];
        int32_t length = sequence->prefix_len + sequence->num_new;
        int32_t pages = kv->kv_indptr.host[s + 1] - kv->kv_indptr.host[s];
        ck_assert_int_eq(kv->kv_lens.host[s], length);
        ck_assert_int_eq((pages - 1) * page_size + kv->last_page_len.host[s], length);
        ck_assert_int_ge(kv->last_page_len.host[s], 1);
        ck_assert_int_le(kv->last_page_len.host[s], page_size);
        for (int32_t j = 0; j < length; j++) {
            int32_t wanted = r->table[sequence->row][j];
            const int32_t *row =
                kv->req_to_token.host + batch->req_pool_indices.host[s] * kv->req_to_token_stride;
            int32_t page = kv->block_table.host[s * kv->block_table_stride + j / page_size];
            int32_t id = kv->kv_indices.host[kv->kv_indptr.host[s] + j / page_size];
            ck_assert_int_eq(row[j], wanted);
            ck_assert_int_eq(page * page_size + j % page_size, wanted);
            ck_assert_int_eq(id * page_size + j % page_size, wanted);
        }
    }
}

static void check_rows(const attn_batch *batch, const struct random_step *r)
{
    int32_t row = 0, longest_q = 0, longest_kv = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        const struct scheduler_seq *sequence = &r->sequences[s];
        int32_t length = sequence->prefix_len + sequence->num_new;
        ck_assert_int_eq(batch->q_indptr.host[s], row);
        ck_assert_int_eq(batch->prefix_lens.host[s], sequence->prefix_len);
        ck_assert_int_eq(batch->seq_lens.host[s], length);
        for (int32_t t = 0; t < sequence->num_new; t++, row++)
            ck_assert_int_eq(batch->kv_groups->out_cache_loc.host[row],
                             r->table[sequence->row][sequence->prefix_len + t]);
        longest_q = sequence->num_new > longest_q ? sequence->num_new : longest_q;
        longest_kv = length > longest_kv ? length : longest_kv;
    }
    ck_assert_int_eq(batch->q_indptr.host[batch->num_seqs], row);
    ck_assert_int_eq(batch->num_tokens, row);
    ck_assert_int_eq(batch->num_real_tokens, row);
    ck_assert_int_eq(batch->num_seqs, r->step.num_sequences);
    ck_assert_int_eq(batch->num_real_seqs, r->step.num_sequences);
    ck_assert_int_eq(batch->num_decode_seqs, r->step.num_decode);
    ck_assert_int_eq(batch->max_q_len, longest_q);
    ck_assert_int_eq(batch->max_kv_len, longest_kv);
    ck_assert_uint_eq(batch->mode, r->step.mode);
}

/* The arrays' addresses, one after the other. */
static void addresses(const attn_batch *batch, const void *all[9])
{
    const attn_kv_batch *kv = batch->kv_groups;
    const void *now[] = {
        batch->seq_lens.device,         batch->prefix_lens.device, batch->q_indptr.device,
        batch->req_pool_indices.device, kv->out_cache_loc.device,  kv->block_table.device,
        kv->kv_indptr.device,           kv->kv_indices.device,     kv->last_page_len.device};
    memcpy(all, now, sizeof now);
}

LOOP_OF(random, forms_agree, 0, 3)
{
    static const int32_t page_sizes[] = {1, 3, 16};
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                     ATTN_MODE_IDLE};
    static struct random_step r;
    const void *first[9], *now[9];
    int32_t page_size = page_sizes[_i];
    random_state = (uint64_t)page_size;
    make(ROWS, ROWS * LONGEST, LONGEST, page_size, ALL_FORMS);
    make_random_table(&r, page_size);
    for (int n = 0; n < 200; n++) {
        make_random_step(&r, modes[n % 4]);
        build(&r.step);
        check_rows(&made.batch, &r);
        check_forms(&made.batch, page_size, &r);
        addresses(&made.batch, n == 0 ? first : now);
        for (int i = 0; i < 9; i++)
            ck_assert_ptr_nonnull(first[i]);
        if (n > 0)
            ck_assert_mem_eq(first, now, sizeof first);
    }
    forward_batch_finish(&made);
}

TESTS("forward_batch", .set_up = open_device, .tear_down = close_device);
