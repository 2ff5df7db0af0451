/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid_batch: hybrid_phase between a mock host and mock children (hybrid_mock.h): how
 * batches and forwards reach them, split or whole.
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <string.h>

/* ---- Slices of a MIXED batch ----------------------------------------------------------------- */

static void check_shift(attn_i32_array got, int a, int64_t by)
{
    ck_assert_ptr_eq(got.host, host_array[a] + by);
    ck_assert_ptr_eq(got.device, device_array[a] + by);
}

static void check_extend_slice(void)
{
    const attn_batch *b = &PRE->batch;
    ck_assert_uint_eq(b->mode, ATTN_MODE_EXTEND);
    ck_assert_int_eq(b->num_seqs, EXTENDS);
    ck_assert_int_eq(b->num_tokens, EXTEND_ROWS);
    ck_assert_int_eq(b->num_real_seqs, EXTENDS);
    ck_assert_int_eq(b->num_real_tokens, EXTEND_ROWS);
    ck_assert_int_eq(b->num_decode_seqs, 0);
    ck_assert_int_ge(b->max_q_len, 4);
    check_shift(b->seq_lens, 0, 0);
    check_shift(b->prefix_lens, 1, 0);
    check_shift(b->q_indptr, 2, 0);
    check_shift(b->positions, 3, 0);
    check_shift(b->req_pool_indices, 4, 0);
    ck_assert_uint_eq(b->num_kv_groups, 2);
    for (int g = 0; g < 2; g++)
        ck_assert_mem_eq(&PRE->kv[g], &kv[g], sizeof kv[g]);
    ck_assert_mem_eq(&PRE->mask, &mask, sizeof mask);
    ck_assert_mem_eq(&PRE->multi_item, &multi_item, sizeof multi_item);
    ck_assert_mem_eq(&PRE->state, &state, sizeof state);
    ck_assert_ptr_null(b->shared_prefix);
    ck_assert_ptr_null(b->num_real_seqs_device);
    ck_assert_ptr_null(b->num_real_tokens_device);
}

static void check_decode_kv(int g, int32_t row)
{
    const attn_kv_batch *got = &DEC->kv[g];
    check_shift(got->kv_lens, 5, EXTENDS);
    check_shift(got->req_to_token, 6, 0); /* rows of requests, not of sequences */
    check_shift(got->block_table, 7, EXTENDS * 10);
    check_shift(got->kv_indptr, 8, EXTENDS);
    check_shift(got->kv_indices, 9, 0); /* kv_indptr is absolute */
    check_shift(got->last_page_len, 0, EXTENDS);
    ck_assert_int_eq(got->block_table_stride, 10);
    ck_assert_int_eq(got->req_to_token_stride, 20);
    ck_assert_uint_eq(got->index_forms, 7);
    ck_assert_int_eq(got->page_size, 4);
    int64_t shift = g == 0 ? row : 0; /* group 1 has rows of its own */
    ck_assert_ptr_eq(got->out_cache_loc.host, locations[0] + shift);
    ck_assert_ptr_eq(got->out_cache_loc.device, locations[1] + shift);
    if (g == 0) {
        ck_assert_ptr_null(got->kv_new_indptr.host);
        ck_assert_ptr_null(got->kv_new_indptr.device);
    } else {
        check_shift(got->kv_new_indptr, 1, EXTENDS);
    }
}

static void check_decode_slice(int32_t row)
{
    const attn_batch *b = &DEC->batch;
    ck_assert_uint_eq(b->mode, ATTN_MODE_DECODE);
    ck_assert_int_eq(b->num_seqs, DECODES);
    ck_assert_int_eq(b->num_tokens, DECODES);
    ck_assert_int_eq(b->num_real_seqs, DECODES - 1);
    ck_assert_int_eq(b->num_real_tokens, DECODES - 1);
    ck_assert_int_eq(b->num_decode_seqs, 0);
    ck_assert_int_eq(b->max_q_len, 1);
    check_shift(b->seq_lens, 0, EXTENDS);
    check_shift(b->prefix_lens, 1, EXTENDS);
    ck_assert_ptr_null(b->q_indptr.host);
    ck_assert_ptr_null(b->q_indptr.device);
    check_shift(b->positions, 3, row);
    check_shift(b->req_pool_indices, 4, EXTENDS);
    ck_assert_uint_eq(b->num_kv_groups, 2);
    check_decode_kv(0, row);
    check_decode_kv(1, row);
    ck_assert_ptr_eq(DEC->mask.indptr.host, mask_indptr + EXTENDS);
    ck_assert_ptr_eq(DEC->mask.indptr.device, mask_indptr + 1 + EXTENDS);
    ck_assert_ptr_eq(DEC->mask.bits, mask_bits); /* its indptr is absolute */
    ck_assert_uint_eq(DEC->mask.kind, ATTN_MASK_FULL);
    check_shift(DEC->multi_item.prefix_lens, 3, EXTENDS);
    check_shift(DEC->multi_item.max_item_len, 4, EXTENDS);
    ck_assert_ptr_eq(DEC->multi_item.token_pos, token_pos + EXTENDS * 6);
    check_shift(DEC->state.slot, 5, EXTENDS);
    check_shift(DEC->state.dst_slot, 6, EXTENDS);
    check_shift(DEC->state.has_initial, 7, EXTENDS);
    check_shift(DEC->state.snapshots, 8, row);
    ck_assert_ptr_null(b->shared_prefix);
    ck_assert_ptr_null(b->num_real_seqs_device);
    ck_assert_ptr_null(b->num_real_tokens_device);
}

/* Twice on one metadata: slices must not add up. */
START_TEST(mixed_is_sliced)
{
    start();
    ready();
    int32_t base = _i == 0 ? 0 : BASE;
    for (int time = 0; time < 2; time++) {
        make_mixed(base);
        if (_i == 2) /* an engine that has the array on the device alone; the CPU can read it */
            mixed.q_indptr.host = NULL;
        ck_assert_msg(plan(&mixed) == ATTN_OK, "%s", message);
        if (_i == 2) {
            ck_assert_ptr_null(PRE->batch.q_indptr.host);
            PRE->batch.q_indptr.host = host_array[2];
        }
        check_extend_slice();
        check_decode_slice(base + EXTEND_ROWS);
        ck_assert_ptr_eq(PRE->stream, (attn_stream)0x77);
        ck_assert_ptr_eq(DEC->stream, (attn_stream)0x77);
    }
    finish();
}
END_TEST

/* Parts that a batch lacks are absent in its slices, also after a batch that had them. */
START_TEST(absent_parts_stay_absent)
{
    start();
    ready();
    make_mixed(0);
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    mixed.mask = NULL, mixed.multi_item = NULL;
    mixed.num_state_groups = 0, mixed.state_groups = NULL;
    mixed.positions = (attn_i32_array){NULL, NULL};
    kv[0].kv_lens = kv[0].kv_indptr = (attn_i32_array){NULL, NULL};
    kv[0].out_cache_loc.host = NULL;
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        const mock_child *child = &mock_children[c];
        ck_assert_ptr_null(child->batch.mask);
        ck_assert_ptr_null(child->batch.multi_item);
        ck_assert_ptr_null(child->batch.state_groups);
        ck_assert_ptr_null(child->batch.sparse);
        ck_assert_ptr_null(child->batch.positions.host);
        ck_assert_ptr_null(child->batch.positions.device);
        ck_assert_ptr_null(child->kv[0].kv_lens.device);
        ck_assert_ptr_null(child->kv[0].kv_indptr.host);
        ck_assert_ptr_null(child->kv[0].out_cache_loc.host);
        ck_assert_ptr_nonnull(child->kv[0].out_cache_loc.device);
    }
    finish();
}
END_TEST

/* A batch of newer headers, with larger KV groups; and one that ends before `sparse`. */
START_TEST(batch_of_another_size)
{
    struct {
        attn_kv_batch kv;
        uint64_t more[3];
    } wide[2];
    start();
    ready();
    make_mixed(0);
    for (int g = 0; g < 2; g++) {
        memset(&wide[g], 0xEE, sizeof wide[g]);
        wide[g].kv = kv[g];
        wide[g].kv.struct_size = sizeof wide[g];
    }
    mixed.kv_groups = &wide[0].kv;
    mixed.struct_size = offsetof(attn_batch, sparse);
    mixed.sparse = (const attn_sparse_batch *)(uintptr_t)1; /* not part of it */
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    mixed.kv_groups = kv;
    check_extend_slice();
    check_decode_slice(EXTEND_ROWS);
    ck_assert_ptr_null(DEC->batch.sparse);
    ck_assert_uint_eq(DEC->batch.struct_size, sizeof(attn_batch));
    ck_assert_uint_eq(DEC->kv[1].struct_size, sizeof(attn_kv_batch));
    finish();
}
END_TEST

/* ---- Forward arguments ----------------------------------------------------------------------- */

static int role_in(uint32_t role, uint64_t set)
{
    return (int)(set >> role & 1u);
}

#define R(name) (1ull << ATTN_ROLE_##name)
static const uint64_t query_rows = R(Q) | R(OUT) | R(LSE) | R(Q_NOPE) | R(Q_PE) | R(MIXED_QKV) |
                                   R(GATE_A) | R(GATE_B) | R(GATE_Z) | R(SPARSE_INDICES) |
                                   R(SPARSE_COUNT) | R(INDEX_Q) | R(INDEX_WEIGHTS) |
                                   R(INDEX_LOGITS);
static const uint64_t key_rows = R(K) | R(V) | R(C_KV) | R(K_PE) | R(INDEX_K);

static void check_shifted(uint32_t role, int32_t row)
{
    const attn_tensor *got = &DEC->tensors[role], *from = &tensors[role];
    uint64_t bytes = (uint64_t)row * (48 + role) * (role % 2 ? 4 : 2);
    ck_assert_ptr_eq(got->data, from->data);
    ck_assert_uint_eq(got->byte_offset, from->byte_offset + bytes);
    ck_assert_int_eq(got->shape[0], from->shape[0] - row);
    ck_assert_mem_eq(&got->shape[1], &from->shape[1], 5 * sizeof got->shape[0]);
    ck_assert_mem_eq(got->strides, from->strides, sizeof got->strides);
    ck_assert_uint_eq(got->dtype, from->dtype);
    /* The largest power of two that still divides: exactly, not merely a safe one. */
    uint32_t alignment = 64;
    while (bytes % alignment != 0)
        alignment /= 2;
    ck_assert_uint_eq(got->alignment, alignment);
}

START_TEST(mixed_args_are_shifted_for_decode)
{
    start();
    ready();
    make_mixed(BASE);
    make_args();
    int32_t layer = _i == 0 ? 5 : 9, row = BASE + EXTEND_ROWS;
    uint64_t shifted = layer == 5 ? query_rows | key_rows : query_rows; /* 9: kv_new_indptr */
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_msg(OPS->forward_extend(metadata, layer, &args, (attn_stream)0x55, &error) == ATTN_OK,
                  "%s", message);
    ck_assert_int_eq(mock_ordered, 2);
    ck_assert_int_eq(mock_order[0], MOCK_PRE);
    ck_assert_int_eq(mock_order[1], MOCK_DEC);
    ck_assert_int_eq(PRE->calls[MOCK_FORWARD_EXTEND], 1);
    ck_assert_int_eq(DEC->calls[MOCK_FORWARD_DECODE], 1);
    ck_assert_mem_eq(&PRE->args, &args, sizeof args);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        ck_assert_ptr_eq(PRE->given[role], operands[role]);
        if (role_in(role, shifted))
            check_shifted(role, row);
        else
            ck_assert_ptr_eq(DEC->given[role], operands[role]);
    }
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].layer_id, layer);
        ck_assert_ptr_eq(mock_children[c].stream, (attn_stream)0x55);
        ck_assert_uint_eq(mock_children[c].args.flags, args.flags);
        ck_assert_ptr_eq(mock_children[c].args.scales, scales);
        ck_assert_uint_eq(mock_children[c].args.num_scales, ATTN_ROLE_COUNT);
    }
    finish();
}
END_TEST

/* Roles that are absent stay so, and a shorter list of operands is read no further. */
START_TEST(mixed_args_may_be_few)
{
    start();
    ready();
    make_mixed(0);
    make_args();
    operands[ATTN_ROLE_K] = operands[ATTN_ROLE_LSE] = NULL;
    operands[ATTN_ROLE_K_CACHE] = (const attn_tensor *)(uintptr_t)1; /* beyond the count */
    args.num_operands = ATTN_ROLE_K_CACHE;
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_ptr_null(DEC->given[ATTN_ROLE_K]);
    ck_assert_ptr_null(DEC->given[ATTN_ROLE_LSE]);
    ck_assert_ptr_null(DEC->given[ATTN_ROLE_K_CACHE]);
    check_shifted(ATTN_ROLE_Q, EXTEND_ROWS);
    finish();
}
END_TEST

/* ---- Dispatch -------------------------------------------------------------------------------- */

START_TEST(batches_go_by_mode)
{
    static const struct {
        uint32_t mode;
        int spec, child, slot;
    } table[] = {
        {ATTN_MODE_EXTEND, 0, MOCK_PRE, MOCK_FORWARD_EXTEND},
        {ATTN_MODE_EXTEND, 1, MOCK_PRE, MOCK_FORWARD_EXTEND},
        {ATTN_MODE_DECODE, 0, MOCK_DEC, MOCK_FORWARD_DECODE},
        {ATTN_MODE_DECODE, 1, MOCK_DEC, MOCK_FORWARD_DECODE},
        {ATTN_MODE_TARGET_VERIFY, 0, MOCK_PRE, MOCK_FORWARD_EXTEND},
        {ATTN_MODE_TARGET_VERIFY, 1, MOCK_DEC, MOCK_FORWARD_EXTEND},
        {ATTN_MODE_DRAFT_EXTEND, 0, MOCK_PRE, MOCK_FORWARD_EXTEND},
        {ATTN_MODE_DRAFT_EXTEND, 1, MOCK_DEC, MOCK_FORWARD_EXTEND},
    };
    start();
    values[2].integer = table[_i].spec;
    ready();
    make_args();
    attn_batch batch = plain_batch(table[_i].mode);
    ck_assert_msg(plan(&batch) == ATTN_OK, "%s", message);
    attn_status status = batch.mode == ATTN_MODE_DECODE
                             ? OPS->forward_decode(metadata, 4, &args, NULL, &error)
                             : OPS->forward_extend(metadata, 4, &args, NULL, &error);
    ck_assert_msg(status == ATTN_OK, "%s", message);
    const mock_child *child = &mock_children[table[_i].child];
    ck_assert_int_eq(mock_ordered, 1);
    ck_assert_int_eq(mock_order[0], table[_i].child);
    ck_assert_int_eq(child->calls[table[_i].slot], 1);
    ck_assert_mem_eq(&child->batch, &batch, sizeof batch); /* whole and as it was */
    ck_assert_mem_eq(&child->args, &args, sizeof args);
    ck_assert_int_eq(mock_children[!table[_i].child].calls[MOCK_INIT], 0);
    finish();
}
END_TEST

START_TEST(mixed_of_one_kind_calls_one_child)
{
    start();
    ready();
    make_mixed(BASE);
    make_args();
    int only = _i;
    if (only == MOCK_PRE) {
        mixed.num_decode_seqs = 0, mixed.first_decode_seq = SEQS;
    } else {
        mixed.num_seqs = mixed.num_tokens = mixed.num_decode_seqs = mixed.num_real_seqs =
            mixed.num_real_tokens = DECODES;
        mixed.first_decode_seq = 0;
        host_array[2][1] = BASE + 1, host_array[2][2] = BASE + 2;
    }
    ck_assert_msg(plan(&mixed) == ATTN_OK, "%s", message);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(mock_ordered, 1);
    ck_assert_int_eq(mock_order[0], only);
    ck_assert_int_eq(mock_children[only].calls[MOCK_INIT], 1);
    ck_assert_int_eq(mock_children[!only].calls[MOCK_INIT], 0);
    ck_assert_int_eq(mock_children[only].batch.num_seqs, only == MOCK_PRE ? SEQS : DECODES);
    ck_assert_int_eq(mock_children[only].batch.num_tokens, only == MOCK_PRE ? ROWS : DECODES);
    if (only == MOCK_DEC)
        check_shifted(ATTN_ROLE_Q, BASE);
    finish();
}
END_TEST

START_TEST(idle_reaches_nobody)
{
    start();
    ready();
    make_args();
    attn_batch batch = {.struct_size = sizeof batch, .mode = ATTN_MODE_IDLE};
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    for (int c = 0; c < MOCK_CHILDREN; c++)
        ck_assert_int_eq(mock_children[c].calls[MOCK_INIT], 0);
    ck_assert_int_eq(mock_ordered, 0);
    finish();
}
END_TEST

/* ---- Batches that are wrong ------------------------------------------------------------------ */

START_TEST(batch_beyond_the_bounds)
{
    static const uint32_t fields[] = {
        ATTN_FIELD_MAX_SEQS, ATTN_FIELD_MAX_TOKENS, ATTN_FIELD_MAX_Q_LEN, ATTN_FIELD_MAX_KV_LEN,
        ATTN_FIELD_MODES,    ATTN_FIELD_MODES,      ATTN_FIELD_BATCH,     ATTN_FIELD_BATCH};
    start();
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    ready();
    make_mixed(0);
    make_args();
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    int planned = PRE->calls[MOCK_INIT];
    switch (_i) {
    case 0:
        mixed.num_seqs = bounds.max_seqs + 1;
        break;
    case 1:
        mixed.num_tokens = bounds.max_tokens + 1;
        break;
    case 2:
        mixed.max_q_len = bounds.max_q_len + 1;
        break;
    case 3:
        mixed.max_kv_len = bounds.max_kv_len + 1;
        break;
    case 4:
        mixed.mode = ATTN_MODE_TARGET_VERIFY;
        break;
    case 5:
        mixed.mode = 40;
        break;
    case 6:
        mixed.num_decode_seqs = SEQS + 1;
        break;
    case 7:
        mixed.num_decode_seqs = -1;
        break;
    }
    ck_assert_int_eq(plan(&mixed), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, fields[_i]);
    ck_assert_int_eq(PRE->calls[MOCK_INIT], planned);
    /* The batch before it is gone, too. */
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    finish();
}
END_TEST

/* KV groups of layers that are another backend's are there and not ours. */
START_TEST(batch_with_more_kv_groups)
{
    start();
    ready();
    make_mixed(0);
    mixed.num_kv_groups = 3;
    ck_assert_msg(plan(&mixed) == ATTN_OK, "%s", message);
    check_extend_slice();
    check_decode_slice(EXTEND_ROWS);
    finish();
}
END_TEST

START_TEST(forward_without_its_batch)
{
    start();
    ready();
    make_args();
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    ck_assert_int_eq(OPS->forward_decode(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    attn_batch batch = plain_batch(ATTN_MODE_EXTEND);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_decode(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    batch.mode = ATTN_MODE_DECODE;
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    ck_assert_int_eq(mock_ordered, 0);
    finish();
}
END_TEST

/* ---- Failing calls --------------------------------------------------------------------------- */

/* Whatever fails in a child, its status comes through and its name stands before the message. */
START_TEST(errors_name_the_child)
{
    static const int slots[] = {MOCK_PREPARE, MOCK_METADATA_SIZE, MOCK_INIT, MOCK_FORWARD_EXTEND,
                                MOCK_FORWARD_DECODE};
    int c = _i % 2, slot = slots[_i / 2];
    if ((slot == MOCK_FORWARD_EXTEND && c == MOCK_DEC) ||
        (slot == MOCK_FORWARD_DECODE && c == MOCK_PRE))
        return; /* not called for a MIXED batch */
    start();
    ready();
    make_mixed(0);
    make_args();
    if (slot > MOCK_INIT)
        ck_assert_int_eq(plan(&mixed), ATTN_OK);
    mock_children[c].slot_status[slot] = ATTN_TIMEOUT;
    attn_status status = ATTN_OK;
    if (slot == MOCK_PREPARE)
        status = OPS->prepare(instance, NULL, NULL, &error);
    else if (slot == MOCK_METADATA_SIZE)
        status = OPS->metadata_size(instance, 0, &bounds, &size, &error);
    else if (slot == MOCK_INIT)
        status = plan(&mixed);
    else
        status = OPS->forward_extend(metadata, 4, &args, NULL, &error);
    ck_assert_int_eq(status, ATTN_TIMEOUT);
    ck_assert_int_eq(error.code, ATTN_TIMEOUT);
    ck_assert_str_eq(message, c == MOCK_PRE ? "child pre: as planned" : "child dec: as planned");
    if (slot == MOCK_FORWARD_EXTEND)
        ck_assert_int_eq(DEC->calls[MOCK_FORWARD_DECODE], 0); /* the first failure ends it */
    if (slot == MOCK_INIT)
        ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    finish();
}
END_TEST

static Suite *hybrid_batch_suite(void)
{
    static const struct test_row tests[] = {
        {"slices", &mixed_is_sliced, 3},
        {"slices", &absent_parts_stay_absent, 1},
        {"slices", &mixed_args_are_shifted_for_decode, 2},
        {"slices", &mixed_args_may_be_few, 1},
        {"routing", &batches_go_by_mode, 8},
        {"routing", &mixed_of_one_kind_calls_one_child, 2},
        {"routing", &idle_reaches_nobody, 1},
        {"sizes", &batch_of_another_size, 1},
        {"batches", &batch_beyond_the_bounds, 8},
        {"batches", &batch_with_more_kv_groups, 1},
        {"batches", &forward_without_its_batch, 1},
        {"calls", &errors_name_the_child, 10},
    };
    return suite_of_rows("hybrid_batch", tests, sizeof tests / sizeof tests[0]);
}

int main(void)
{
    return test_main(hybrid_batch_suite());
}
