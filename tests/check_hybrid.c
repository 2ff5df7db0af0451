/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid: plugins/hybrid between a mock host and mock children (hybrid_mock.h): what reaches
 * which child, in which words, and what is left behind when one fails.
 */
#include "plugins/hybrid/hybrid.h"
#include "tests/hybrid_mock.h"
#include "tests/test_main.h"

#include <stdlib.h>
#include <string.h>

#define PRE       (&mock_children[MOCK_PRE])
#define DEC       (&mock_children[MOCK_DEC])
#define BIT(mode) ATTN_MODE_BIT(ATTN_MODE_##mode)
#define ALL_MODES                                                                                  \
    (BIT(EXTEND) | BIT(DECODE) | BIT(MIXED) | BIT(IDLE) | BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND))
#define OPS (hybrid_phase_type.ops)

/* ---- What the tests start from --------------------------------------------------------------- */

/* Two layer groups: layers 4 and 5 of KV group 0, layer 9 of KV group 1. */
static attn_device device;
static attn_layer layers[3];
static attn_layer_group groups[2];
static attn_bounds bounds;
static attn_problem problems[2];
static attn_option_value values[3];
static attn_options options;

static char message[256];
static attn_error error;

static attn_instance *instance;
static attn_metadata *metadata;
static attn_memory_size size;
static attn_memory memory;

static void start(void)
{
    mock_reset();
    device = (attn_device){.struct_size = sizeof device, .type = ATTN_DEVICE_CPU};
    bounds = (attn_bounds){sizeof bounds, ALL_MODES, 1, 0, 6, 40, 20, 100, 600};
    for (int l = 0; l < 3; l++)
        layers[l] = (attn_layer){sizeof(attn_layer), 0, l < 2 ? 4 + l : 9, l};
    for (int g = 0; g < 2; g++) {
        groups[g] = (attn_layer_group){.struct_size = sizeof groups[g], .kv_group = g};
        groups[g].num_layers = g == 0 ? 2 : 1;
        groups[g].layers = g == 0 ? layers : &layers[2];
        problems[g] = (attn_problem){.struct_size = sizeof problems[g], .device = &device};
        problems[g].group = &groups[g];
        problems[g].bounds = &bounds;
        problems[g].q_dtype = problems[g].kv_dtype = ATTN_BF16;
    }
    values[0] = (attn_option_value){sizeof *values, ATTN_OPTION_BACKEND_REF, "prefill", 0, 0, "pre",
                                    "default"};
    values[1] = (attn_option_value){sizeof *values, ATTN_OPTION_BACKEND_REF, "decode", 0, 0, "dec",
                                    "default"};
    values[2] = (attn_option_value){.struct_size = sizeof *values,
                                    .type = ATTN_OPTION_ENUM,
                                    .key = "speculative_attention_mode",
                                    .text = "prefill",
                                    .place = "default"};
    options = (attn_options){sizeof options, 3, values};
    memset(message, 0, sizeof message);
    error =
        (attn_error){.struct_size = sizeof error, .capacity = sizeof message, .message = message};
    instance = NULL;
    metadata = NULL;
}

static attn_status create(void)
{
    return hybrid_phase_type.create(&hybrid_phase_type, problems, 2, &options, &mock_services,
                                    &instance, &error);
}

static attn_status query(attn_verdict *verdict)
{
    return hybrid_phase_type.query(&hybrid_phase_type, &options, &mock_services, &problems[0],
                                   verdict, &error);
}

static attn_status plan(const attn_batch *batch)
{
    return OPS->init_forward_metadata(metadata, batch, (attn_stream)0x77, &error);
}

/* Memory as `size` tells, exactly, each region from malloc so that an overrun is seen by the
 * address sanitizer and valgrind, and misaligned for anything above the asked alignment. */
static void give_memory(void)
{
    memory = (attn_memory){.struct_size = sizeof memory};
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        size_t alignment = size.alignment[r] < 16 ? 16 : size.alignment[r];
        ck_assert_int_eq(posix_memalign(&memory.base[r], alignment, size.size[r] + 1), 0);
        ((unsigned char *)memory.base[r])[size.size[r]] = 0x5C;
        memory.size[r] = size.size[r];
    }
}

static void check_guards(void)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        ck_assert_uint_eq(((unsigned char *)memory.base[r])[size.size[r]], 0x5C);
}

static attn_status create_metadata(void)
{
    size = (attn_memory_size){.struct_size = sizeof size};
    attn_status status = OPS->metadata_size(instance, ATTN_METADATA_EAGER, &bounds, &size, &error);
    ck_assert_msg(status == ATTN_OK, "%s", message);
    give_memory();
    return OPS->metadata_create(instance, ATTN_METADATA_EAGER, &bounds, &memory, &metadata, &error);
}

static void ready(void)
{
    ck_assert_msg(create() == ATTN_OK, "%s", message);
    ck_assert_msg(create_metadata() == ATTN_OK, "%s", message);
}

/* Everything that was made is gone. */
static void check_nothing_left(void)
{
    ck_assert_int_eq(mock_allocated, 0);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].live, 0);
        ck_assert_int_eq(mock_children[c].live_metadata, 0);
    }
}

static void finish(void)
{
    if (metadata) {
        check_guards();
        OPS->metadata_destroy(metadata);
    }
    OPS->destroy(instance);
    check_nothing_left();
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        free(memory.base[r]);
    memset(&memory, 0, sizeof memory);
}

/* ---- A MIXED batch: three sequences of 2, 1 and 4 queries, then two of one query ---------------
 */

enum { SEQS = 5, DECODES = 2, EXTENDS = 3, EXTEND_ROWS = 7, ROWS = 9, BASE = 3 };

static int32_t host_array[10][64], device_array[10][64];
static int64_t locations[2][64];
static int64_t mask_indptr[SEQS + 1];
static uint8_t mask_bits[64];
static uint16_t token_pos[64];
static attn_kv_batch kv[3];
static attn_mask mask;
static attn_multi_item multi_item;
static attn_state_batch state;
static attn_shared_prefix shared;
static attn_batch mixed;

static attn_i32_array array(int a)
{
    return (attn_i32_array){host_array[a], device_array[a]};
}

/* Rows start at `base`. KV group 1 has new rows of its own. */
static void make_mixed(int32_t base)
{
    static const int32_t indptr[SEQS + 1] = {0, 2, 3, 7, 8, 9};
    mixed = (attn_batch){.struct_size = sizeof mixed, .mode = ATTN_MODE_MIXED};
    for (int s = 0; s <= SEQS; s++)
        host_array[2][s] = device_array[2][s] = base + indptr[s];
    mixed.num_seqs = SEQS, mixed.num_tokens = ROWS, mixed.num_decode_seqs = DECODES;
    mixed.num_real_seqs = SEQS - 1, mixed.num_real_tokens = ROWS - 1;
    mixed.max_q_len = 4, mixed.max_kv_len = 50;
    mixed.num_real_seqs_device = mixed.num_real_tokens_device = device_array[9];
    mixed.seq_lens = array(0), mixed.prefix_lens = array(1), mixed.q_indptr = array(2);
    mixed.positions = array(3), mixed.req_pool_indices = array(4);
    for (int g = 0; g < 3; g++) {
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g], .page_size = 4, .index_forms = 7};
        kv[g].block_table_stride = 10, kv[g].req_to_token_stride = 20;
        kv[g].kv_lens = array(5), kv[g].req_to_token = array(6), kv[g].block_table = array(7);
        kv[g].kv_indptr = array(8), kv[g].kv_indices = array(9), kv[g].last_page_len = array(0);
        kv[g].out_cache_loc = (attn_i64_array){locations[0], locations[1]};
    }
    kv[1].kv_new_indptr = array(1);
    mixed.kv_groups = kv, mixed.num_kv_groups = 2;
    mask = (attn_mask){sizeof mask, ATTN_MASK_FULL, mask_bits, {mask_indptr, mask_indptr + 1}};
    multi_item = (attn_multi_item){sizeof multi_item, 6, array(3), token_pos, array(4)};
    state = (attn_state_batch){sizeof state, 0, array(5), array(6), array(7), array(8)};
    shared = (attn_shared_prefix){.struct_size = sizeof shared, .num_groups = 1};
    mixed.mask = &mask, mixed.multi_item = &multi_item, mixed.state = &state;
    mixed.shared_prefix = &shared;
}

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
    mixed.mask = NULL, mixed.multi_item = NULL, mixed.state = NULL;
    mixed.positions = (attn_i32_array){NULL, NULL};
    kv[0].kv_lens = kv[0].kv_indptr = (attn_i32_array){NULL, NULL};
    kv[0].out_cache_loc.host = NULL;
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        const mock_child *child = &mock_children[c];
        ck_assert_ptr_null(child->batch.mask);
        ck_assert_ptr_null(child->batch.multi_item);
        ck_assert_ptr_null(child->batch.state);
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

/* ---- Forward arguments ----------------------------------------------------------------------- */

static attn_tensor tensors[ATTN_ROLE_COUNT];
static const attn_tensor *operands[ATTN_ROLE_COUNT + 2];
static attn_scale scale;
static const attn_scale *scales[ATTN_ROLE_COUNT];
static attn_forward_args args;

static int role_in(uint32_t role, uint64_t set)
{
    return (int)(set >> role & 1u);
}

#define R(name) (1ull << ATTN_ROLE_##name)
static const uint64_t query_rows =
    R(Q) | R(OUT) | R(LSE) | R(Q_NOPE) | R(Q_PE) | R(MIXED_QKV) | R(GATE_A) | R(GATE_B) | R(GATE_Z);
static const uint64_t key_rows = R(K) | R(V) | R(C_KV) | R(K_PE);

/* Every role, each with another stride, dtype and offset. */
static void make_args(void)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        attn_tensor *t = &tensors[role];
        *t = (attn_tensor){.struct_size = sizeof *t, .ndim = 3, .alignment = 64};
        t->data = device_array[role % 10];
        t->byte_offset = 100 + role;
        t->dtype = role % 2 ? ATTN_F32 : ATTN_BF16;
        t->shape[0] = 12 + role, t->shape[1] = 4, t->shape[2] = 8;
        t->strides[0] = 48 + role, t->strides[1] = 8, t->strides[2] = 1;
        operands[role] = t;
        scales[role] = &scale;
    }
    args = (attn_forward_args){.struct_size = sizeof args,
                               .flags = ATTN_FORWARD_SAVE_KV | ATTN_FORWARD_OMIT_SINK,
                               .num_operands = ATTN_ROLE_COUNT,
                               .num_scales = ATTN_ROLE_COUNT,
                               .operands = operands,
                               .scales = scales};
}

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

/* ---- Routing --------------------------------------------------------------------------------- */

static attn_batch plain_batch(uint32_t mode)
{
    make_mixed(0);
    attn_batch batch = mixed;
    batch.mode = mode;
    batch.num_decode_seqs = 0;
    return batch;
}

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

/* Which modes the children are asked about, made for and given metadata for. */
START_TEST(children_hear_of_their_modes_alone)
{
    static const struct {
        uint32_t modes;
        int spec;
        uint32_t pre, dec;
    } table[] = {
        {BIT(EXTEND), 0, BIT(EXTEND), 0},
        {BIT(DECODE) | BIT(IDLE), 0, 0, BIT(DECODE)},
        {BIT(MIXED), 0, BIT(EXTEND), BIT(DECODE)},
        {BIT(EXTEND) | BIT(TARGET_VERIFY), 1, BIT(EXTEND), BIT(TARGET_VERIFY)},
        {BIT(DECODE) | BIT(DRAFT_EXTEND), 0, BIT(DRAFT_EXTEND), BIT(DECODE)},
        {ALL_MODES, 1, BIT(EXTEND), BIT(DECODE) | BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND)},
        {BIT(IDLE), 0, 0, 0},
        {1u << 20, 0, 1u << 20, 1u << 20}, /* unknown: both are to refuse it */
    };
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    bounds.modes = table[_i].modes;
    values[2].integer = table[_i].spec;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    const uint32_t modes[MOCK_CHILDREN] = {table[_i].pre, table[_i].dec};
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].queries, modes[c] != 0);
        ck_assert_uint_eq(mock_children[c].bounds.modes, modes[c]);
    }
    ready();
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].live, modes[c] != 0);
        ck_assert_int_eq(mock_children[c].live_metadata, modes[c] != 0);
        ck_assert_uint_eq(mock_children[c].bounds.modes, modes[c]);
        ck_assert_uint_eq(mock_children[c].num_problems, modes[c] != 0 ? 2 : 0);
    }
    finish();
}
END_TEST

/* A child that only decodes has one query for each sequence. */
START_TEST(decode_bounds_are_narrow)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(PRE->bounds.max_q_len, 20);
    ck_assert_int_eq(PRE->bounds.max_tokens, 40);
    ck_assert_int_eq(DEC->bounds.max_q_len, 1);
    ck_assert_int_eq(DEC->bounds.max_tokens, 6);
    ck_assert_int_eq(DEC->bounds.max_kv_len, 100);
    ck_assert_int_eq(DEC->bounds.max_kv_tokens, 600);
    bounds.max_tokens = 4; /* fewer rows than sequences */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_tokens, 4);
    bounds.max_seqs = bounds.max_tokens = 0; /* not known yet */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_tokens, 0);
    values[2].integer = 1; /* drafts have several queries */
    bounds.max_tokens = 40;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_q_len, 20);
    ck_assert_int_eq(DEC->bounds.max_tokens, 40);
}
END_TEST

/* A layer group is shown only to the children that serve a mode of it. */
START_TEST(group_without_modes_is_left_out)
{
    start();
    attn_bounds encoder = bounds;
    encoder.modes = BIT(EXTEND);
    problems[0].bounds = &encoder;
    ready();
    ck_assert_uint_eq(PRE->num_problems, 2);
    ck_assert_uint_eq(DEC->num_problems, 1);
    ck_assert_ptr_eq(DEC->problem.group, &groups[1]);
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
        mixed.num_decode_seqs = 0;
    } else {
        mixed.num_seqs = mixed.num_tokens = mixed.num_decode_seqs = mixed.num_real_seqs =
            mixed.num_real_tokens = DECODES;
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

/* ---- When MIXED is not split -------------------------------------------------------------------
 */

static const attn_mla_dims mla = {sizeof mla, 512, 64, 128};

static void set_up_split(int how)
{
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    problems[1] = problems[0];
    groups[1].kv_group = 0;
    switch (how) {
    case 0: /* plain: split */
        break;
    case 1: /* a rounded cache whose new tokens both read alike: split */
        problems[0].kv_dtype = ATTN_FP8_E4M3;
        PRE->verdict.reads_new_kv_unquantised = DEC->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 2: /* one of them reads them from the arguments */
        problems[0].kv_dtype = ATTN_FP8_E4M3;
        PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 3:
        groups[0].kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
        DEC->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 4: /* not rounded, so that it does not matter: split */
        PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 5:
        groups[0].kind = ATTN_KIND_SPARSE;
        break;
    case 6: /* forms of latent attention differ */
        groups[0].mla = &mla;
        problems[0].mla_expanded = BIT(EXTEND) | BIT(MIXED);
        break;
    case 7: /* one form: split */
        groups[0].mla = &mla;
        problems[0].mla_expanded = BIT(EXTEND) | BIT(MIXED) | BIT(DECODE) | BIT(TARGET_VERIFY);
        break;
    }
}

START_TEST(mixed_is_split_only_where_it_can_be)
{
    static const int expected[] = {1, 1, 0, 0, 1, 0, 0, 1};
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    set_up_split(_i);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    uint32_t whole = expected[_i] ? 0 : BIT(MIXED);
    ck_assert_uint_eq(PRE->bounds.modes, BIT(EXTEND) | whole);
    ck_assert_uint_eq(DEC->bounds.modes, BIT(DECODE));
    ck_assert_uint_eq(verdict.graph_level, whole ? ATTN_GRAPH_ALWAYS : ATTN_GRAPH_UNIFORM);
    ck_assert_uint_eq(PRE->problem.mla_expanded, problems[0].mla_expanded & (BIT(EXTEND) | whole));
    ck_assert_uint_eq(DEC->problem.mla_expanded, problems[0].mla_expanded & BIT(DECODE));
    uint32_t reads = verdict.reads_new_kv_unquantised;
    ck_assert_int_eq((reads & BIT(MIXED)) != 0, (reads & BIT(EXTEND)) != 0);
    ck_assert_uint_eq(reads & ~bounds.modes, 0);

    groups[1].kind = ATTN_KIND_SOFTMAX; /* the other group alone could be split */
    ready();
    make_mixed(0);
    make_args();
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(mock_ordered, expected[_i] ? 2 : 1);
    ck_assert_uint_eq(PRE->batch.mode, expected[_i] ? ATTN_MODE_EXTEND : ATTN_MODE_MIXED);
    finish();
}
END_TEST

/* MIXED alone: the rows come in MIXED's form, whatever is said of modes that do not occur. */
START_TEST(mixed_alone_takes_its_form_along)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    bounds.modes = BIT(MIXED);
    groups[0].mla = &mla;
    problems[0].mla_expanded = BIT(MIXED);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(PRE->problem.mla_expanded, BIT(EXTEND));
    ck_assert_uint_eq(DEC->problem.mla_expanded, BIT(DECODE));
}
END_TEST

/* Whole MIXED batches move decode rows to another child: no batch invariance. */
START_TEST(whole_mixed_is_not_batch_invariant)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    set_up_split(5);
    PRE->verdict.notes = DEC->verdict.notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.notes, ATTN_NOTE_DETERMINISTIC);
    problems[0].need_notes = ATTN_NOTE_BATCH_INVARIANT;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(reason.code, ATTN_REASON_DETERMINISM);
    ck_assert_str_eq(reason.accepted, "0, 1");
    values[1].text = "pre"; /* one child for both: nothing moves */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
}
END_TEST

/* A child that cannot serve its rows says so; it is not passed over by not splitting. */
START_TEST(refusal_of_rows_is_not_hidden)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    bounds.modes = BIT(MIXED);
    problems[0].kv_dtype = ATTN_FP8_E4M3;
    PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
    DEC->refused_modes = BIT(DECODE);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_str_eq(reason.child, "dec");
}
END_TEST

/* ---- Verdicts -------------------------------------------------------------------------------- */

static void refuse(mock_child *child, uint32_t r, uint32_t field, const char *inner)
{
    child->verdict.supported = 0;
    child->verdict.num_reasons = r + 1;
    child->reasons[r] = (attn_reason){.struct_size = sizeof(attn_reason), .code = 1 + field};
    child->reasons[r].field = field;
    strcpy(child->reasons[r].child, inner);
    strcpy(child->reasons[r].got, "got");
    strcpy(child->reasons[r].accepted, "accepted");
}

START_TEST(yes_is_merged)
{
    attn_verdict verdict = {.struct_size = sizeof verdict, .supported = 7, .num_reasons = 9};
    start();
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    PRE->verdict = (attn_verdict){.supported = 1,
                                  .graph_level = ATTN_GRAPH_SINGLE_TOKEN,
                                  .notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT |
                                           ATTN_NOTE_REDUCED_PRECISION,
                                  .reads_new_kv_unquantised = BIT(EXTEND),
                                  .graph_seq_len_fill = 0,
                                  .cost_hint = 1.5,
                                  .device_bytes = 100,
                                  .pinned_bytes = 20,
                                  .host_bytes = 3};
    DEC->verdict = (attn_verdict){.supported = 1,
                                  .graph_level = ATTN_GRAPH_UNIFORM,
                                  .notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_FIRST_CALL_SLOW,
                                  .graph_seq_len_fill = 1,
                                  .cost_hint = 0.5,
                                  .device_bytes = 11,
                                  .pinned_bytes = 7,
                                  .host_bytes = 5};
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_uint_eq(verdict.num_reasons, 0);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_SINGLE_TOKEN);
    ck_assert_uint_eq(verdict.notes, ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_REDUCED_PRECISION |
                                         ATTN_NOTE_FIRST_CALL_SLOW);
    ck_assert_uint_eq(verdict.reads_new_kv_unquantised, BIT(EXTEND));
    ck_assert_int_eq(verdict.graph_seq_len_fill, 1);
    ck_assert(verdict.cost_hint == 1.5);
    ck_assert_uint_eq(verdict.device_bytes, 111);
    ck_assert_uint_eq(verdict.pinned_bytes, 27);
    ck_assert_uint_gt(verdict.host_bytes, 8); /* and its own */
    bounds.max_seqs = 0;                      /* bounds not known: no own bytes either */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.host_bytes, 8);
}
END_TEST

START_TEST(reasons_are_named_and_counted)
{
    attn_reason reasons[4];
    start();
    refuse(PRE, 0, ATTN_FIELD_HEAD_DIM, "");
    refuse(PRE, 1, ATTN_FIELD_PAGE_SIZE, "inner");
    refuse(DEC, 0, ATTN_FIELD_KV_LAYOUT, "a_name_that_fills_it_up_to_31_ch");
    DEC->reasons[0].child[31] = '\0';
    for (uint32_t capacity = 0; capacity <= 4; capacity++) {
        attn_verdict verdict = {
            .struct_size = sizeof verdict, .reasons_capacity = capacity, .reasons = reasons};
        if (capacity == 0)
            verdict.reasons = NULL;
        for (int r = 0; r < 4; r++)
            reasons[r] = (attn_reason){.struct_size = sizeof reasons[r], .child = "untouched"};
        ck_assert_int_eq(query(&verdict), ATTN_OK);
        ck_assert_uint_eq(verdict.supported, 0);
        ck_assert_uint_eq(verdict.num_reasons, 3);
        ck_assert_uint_eq(verdict.reasons_capacity, capacity);
        static const char *const child[] = {"pre", "pre/inner", "dec/a_name_that_fills_it_up_to_"};
        for (uint32_t r = 0; r < 4; r++) {
            ck_assert_str_eq(reasons[r].child, r < capacity && r < 3 ? child[r] : "untouched");
            if (r < capacity && r < 3) {
                ck_assert_str_eq(reasons[r].got, "got");
                ck_assert_str_eq(reasons[r].accepted, "accepted");
            }
        }
    }
}
END_TEST

START_TEST(one_no_is_a_no)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    refuse(&mock_children[_i], 0, ATTN_FIELD_HEAD_DIM, "");
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 1);
    ck_assert_int_eq(create(), ATTN_UNSUPPORTED);
    ck_assert_str_eq(message, _i == MOCK_PRE ? "pre: head_dim got: accepted accepted"
                                             : "dec: head_dim got: accepted accepted");
    ck_assert_uint_eq(error.field, ATTN_FIELD_HEAD_DIM);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

/* A split batch is cut at a row of the batch's choosing: no capture of any batch whatever. */
START_TEST(mixed_limits_the_graph_level)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_UNIFORM);
    problems[0].graph_level = ATTN_GRAPH_UNIFORM;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    problems[0].graph_level = ATTN_GRAPH_ALWAYS;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(reason.code, ATTN_REASON_GRAPH_LEVEL);
    ck_assert_uint_eq(reason.field, ATTN_FIELD_GRAPH_LEVEL);
    ck_assert_str_eq(reason.child, "");
    ck_assert_str_eq(reason.got, "3");
    ck_assert_str_eq(reason.accepted, "0..2");
    bounds.modes &= ~BIT(MIXED);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);

    bounds.modes |= BIT(MIXED);
    problems[0].graph_level = ATTN_GRAPH_NEVER;
    ck_assert_int_eq(create(), ATTN_OK);
    size.struct_size = sizeof size;
    ck_assert_int_eq(OPS->metadata_size(instance, ATTN_METADATA_GRAPH, &bounds, &size, &error),
                     ATTN_CAPTURE_UNSUPPORTED);
    bounds.modes = BIT(DECODE);
    ck_assert_int_eq(OPS->metadata_size(instance, ATTN_METADATA_GRAPH, &bounds, &size, &error),
                     ATTN_OK);
    ck_assert_uint_eq(DEC->kind, ATTN_METADATA_GRAPH);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_SIZE], 0);
    finish();
}
END_TEST

/* ---- Sizes of structs (STRUCT-02, STRUCT-05) ---------------------------------------------------
 */

/* Of a smaller struct nothing behind its end is written, of a larger one nothing behind ours. */
START_TEST(verdict_of_another_size)
{
    struct {
        attn_verdict verdict;
        unsigned char more[32];
    } given;
    static const uint32_t sizes[] = {offsetof(attn_verdict, graph_level),
                                     offsetof(attn_verdict, device_bytes), sizeof(attn_verdict),
                                     sizeof given};
    start();
    PRE->verdict.notes = DEC->verdict.notes = ATTN_NOTE_DETERMINISTIC;
    PRE->verdict.device_bytes = 5;
    uint32_t last = sizes[_i] < sizeof given.verdict ? sizes[_i] : (uint32_t)sizeof given.verdict;
    memset(&given, 0xEE, sizeof given);
    given.verdict.struct_size = sizes[_i];
    given.verdict.reasons_capacity = 0;
    given.verdict.reasons = NULL;
    ck_assert_int_eq(query(&given.verdict), ATTN_OK);
    ck_assert_uint_eq(given.verdict.struct_size, sizes[_i]);
    ck_assert_uint_eq(given.verdict.supported, 1);
    for (size_t b = last; b < sizeof given; b++)
        ck_assert_uint_eq(((unsigned char *)&given)[b], 0xEE);
    if (ATTN_HAS(&given.verdict, attn_verdict, device_bytes))
        ck_assert_uint_eq(given.verdict.device_bytes, 5);
}
END_TEST

START_TEST(reasons_of_another_size)
{
    struct {
        attn_reason reason;
        unsigned char more[24];
    } reasons[3];
    start();
    memset(reasons, 0xEE, sizeof reasons);
    for (int r = 0; r < 3; r++)
        reasons[r].reason.struct_size = sizeof reasons[r];
    problems[0].graph_level = ATTN_GRAPH_ALWAYS;
    refuse(PRE, 0, ATTN_FIELD_HEAD_DIM, "");
    refuse(DEC, 0, ATTN_FIELD_PAGE_SIZE, "x");
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 3, .reasons = &reasons[0].reason};
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.num_reasons, 3);
    static const char *const child[] = {"pre", "dec/x", ""};
    for (int r = 0; r < 3; r++) {
        ck_assert_str_eq(reasons[r].reason.child, child[r]);
        ck_assert_uint_eq(reasons[r].reason.struct_size, sizeof reasons[r]);
        ck_assert_uint_eq(reasons[r].more[0], 0xEE);
    }
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

START_TEST(problem_and_bounds_of_another_size)
{
    struct {
        attn_bounds bounds;
        uint64_t more[2];
    } wide;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    memset(&wide, 0xEE, sizeof wide);
    wide.bounds = bounds;
    wide.bounds.struct_size = sizeof wide;
    problems[0].bounds = &wide.bounds;
    problems[0].struct_size = offsetof(attn_problem, features);
    problems[0].features = (const char *const *)(uintptr_t)1;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(DEC->bounds.struct_size, sizeof(attn_bounds));
    ck_assert_uint_eq(DEC->problem.struct_size, sizeof(attn_problem));
    ck_assert_ptr_null(DEC->problem.features);
}
END_TEST

START_TEST(memory_of_another_size)
{
    start();
    ck_assert_int_eq(create(), ATTN_OK);
    ck_assert_int_eq(create_metadata(), ATTN_OK);
    attn_metadata *other = NULL;
    attn_memory_size small;
    memset(&small, 0xEE, sizeof small);
    small.struct_size = offsetof(attn_memory_size, alignment);
    ck_assert_int_eq(OPS->metadata_size(instance, 0, &bounds, &small, &error), ATTN_OK);
    ck_assert_mem_eq(small.size, size.size, sizeof size.size);
    ck_assert_uint_eq(small.alignment[0], 0xEEEEEEEEEEEEEEEEu);
    ck_assert_uint_eq(small.struct_size, offsetof(attn_memory_size, alignment));
    memory.struct_size = offsetof(attn_memory, size); /* sizes that are not part of it are 0 */
    ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &memory, &other, &error),
                     ATTN_BUFFER_TOO_SMALL);
    ck_assert_ptr_null(other);
    finish();
}
END_TEST

/* ---- Create ---------------------------------------------------------------------------------- */

START_TEST(create_without_an_option)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    if (_i == 0)
        values[0] = values[2];
    else if (_i == 1)
        values[1] = values[2];
    else
        options.num_values = 0;
    ck_assert_int_eq(query(&verdict), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 1 ? "option decode" : "option prefill"));
    ck_assert_uint_eq(error.field, ATTN_FIELD_OPTION);
    message[0] = '\0';
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 1 ? "option decode" : "option prefill"));
    ck_assert_ptr_null(instance);
    check_nothing_left();
    ck_assert_int_eq(
        hybrid_phase_type.query(&hybrid_phase_type, NULL, &mock_services, problems, &verdict, NULL),
        ATTN_CONFIG_ERROR);
}
END_TEST

START_TEST(create_without_child_services)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    attn_services services = mock_services;
    start();
    if (_i == 0)
        services.child_query = NULL;
    else
        services.child_create = NULL;
    ck_assert_int_eq(hybrid_phase_type.query(&hybrid_phase_type, &options, &services, problems,
                                             &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(hybrid_phase_type.create(&hybrid_phase_type, problems, 2, &options, &services,
                                              &instance, &error),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

START_TEST(create_fails_in_a_child)
{
    start();
    mock_children[_i].create_status = ATTN_DEPENDENCY_MISSING;
    ck_assert_int_eq(create(), ATTN_DEPENDENCY_MISSING);
    ck_assert_int_eq(error.code, ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_null(instance);
    ck_assert_int_eq(PRE->calls[MOCK_DESTROY], _i == MOCK_DEC);
    check_nothing_left();
    mock_children[_i].create_status = ATTN_OK;
    mock_children[_i].query_status = ATTN_DEVICE_LOST;
    ck_assert_int_eq(create(), ATTN_DEVICE_LOST);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

/* Whichever allocation fails: nothing is left. */
START_TEST(create_runs_out_of_memory)
{
    attn_status status = ATTN_OUT_OF_HOST_MEMORY;
    int failed = 0;
    for (int allowed = 0; status != ATTN_OK; allowed++) {
        start();
        mock_allocate_left = allowed;
        status = create();
        if (status == ATTN_OK)
            break;
        ck_assert_int_eq(status, ATTN_OUT_OF_HOST_MEMORY);
        ck_assert_ptr_null(instance);
        check_nothing_left();
        failed++;
    }
    ck_assert_int_ge(failed, 3);
    finish();
}
END_TEST

START_TEST(children_are_destroyed_last_first)
{
    start();
    ready();
    finish();
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].calls[MOCK_DESTROY], 1);
        ck_assert_int_eq(mock_children[c].calls[MOCK_METADATA_DESTROY], 1);
    }
    OPS->destroy(NULL);
    OPS->metadata_destroy(NULL);
}
END_TEST

/* ---- Memory ---------------------------------------------------------------------------------- */

enum {
    DEVICE_SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
    DEVICE_METADATA = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_METADATA),
    DEVICE_ZEROED = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_ZEROED),
    PINNED_METADATA = ATTN_REGION(ATTN_SPACE_PINNED, ATTN_USE_METADATA),
    HOST_SCRATCH = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_SCRATCH),
    HOST_METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)
};

static void ask_memory(mock_child *child, uint32_t region, uint64_t bytes, uint64_t alignment)
{
    child->size.size[region] = bytes;
    child->size.alignment[region] = alignment;
}

static void ask_odd_memory(void)
{
    ask_memory(PRE, DEVICE_SCRATCH, 1000, 256);
    ask_memory(DEC, DEVICE_SCRATCH, 1001, 16);
    ask_memory(PRE, DEVICE_METADATA, 33, 1);
    ask_memory(DEC, DEVICE_METADATA, 100, 512);
    ask_memory(PRE, DEVICE_ZEROED, 7, 0);
    ask_memory(DEC, DEVICE_ZEROED, 5, 4);
    ask_memory(DEC, PINNED_METADATA, 3, 2);
    ask_memory(PRE, PINNED_METADATA, 0, 4096); /* an alignment of nothing */
    ask_memory(PRE, HOST_SCRATCH, 77, 8);
    ask_memory(PRE, HOST_METADATA, 13, 64);
    ask_memory(DEC, HOST_METADATA, 29, 32);
}

START_TEST(memory_is_what_the_children_need)
{
    start();
    ask_odd_memory();
    ready();
    ck_assert_uint_eq(size.size[DEVICE_SCRATCH], 1001); /* shared: the larger of the two */
    ck_assert_uint_eq(size.alignment[DEVICE_SCRATCH], 256);
    ck_assert_uint_eq(size.size[DEVICE_METADATA], 512 + 100);
    ck_assert_uint_eq(size.alignment[DEVICE_METADATA], 512);
    ck_assert_uint_eq(size.size[DEVICE_ZEROED], 8 + 5);
    ck_assert_uint_eq(size.alignment[DEVICE_ZEROED], 4);
    ck_assert_uint_eq(size.size[PINNED_METADATA], 3);
    ck_assert_uint_eq(size.alignment[PINNED_METADATA], 2);
    ck_assert_uint_eq(size.size[HOST_SCRATCH], 77);
    ck_assert_uint_ge(size.alignment[HOST_METADATA], 64);
    for (int c = 0; c < MOCK_CHILDREN; c++)
        for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
            const mock_child *child = &mock_children[c];
            const unsigned char *bytes = child->memory.base[r];
            uint64_t alignment = child->size.alignment[r];
            ck_assert_uint_eq(child->memory.size[r], child->size.size[r]);
            if (child->size.size[r] == 0)
                continue;
            ck_assert_uint_eq(alignment ? (uintptr_t)bytes % alignment : 0, 0);
            ck_assert(bytes >= (unsigned char *)memory.base[r]);
            ck_assert(bytes + child->size.size[r] <=
                      (unsigned char *)memory.base[r] + memory.size[r]);
            /* Each child has filled its part; scratch alone may be shared. */
            for (uint64_t b = 0; r % ATTN_USE_COUNT != 0 && b < child->size.size[r]; b++)
                ck_assert_uint_eq(bytes[b], 0xA0u + (unsigned)c);
        }
    ck_assert_ptr_eq(PRE->memory.base[DEVICE_SCRATCH], memory.base[DEVICE_SCRATCH]);
    ck_assert_ptr_eq(DEC->memory.base[DEVICE_SCRATCH], memory.base[DEVICE_SCRATCH]);
    make_mixed(0); /* its own part is not theirs */
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    check_decode_slice(EXTEND_ROWS);
    finish();
}
END_TEST

/* One byte less, and one byte off, in every region. */
START_TEST(memory_too_small_or_misaligned)
{
    start();
    ask_odd_memory();
    ready();
    attn_metadata *other = NULL;
    int refused = 0;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (size.size[r] == 0)
            continue;
        attn_memory less = memory;
        less.size[r]--;
        error.needed = 0;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_BUFFER_TOO_SMALL);
        ck_assert_uint_eq(error.needed, size.size[r]);
        less = memory;
        less.base[r] = NULL;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_BUFFER_TOO_SMALL);
        refused++;
        if (size.alignment[r] <= 1)
            continue;
        less = memory;
        less.base[r] = (char *)less.base[r] + size.alignment[r] / 2;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_INVALID_ARGUMENT);
    }
    ck_assert_int_eq(refused, 6);
    ck_assert_ptr_null(other);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_CREATE], 1); /* ready()'s */
    finish();
}
END_TEST

START_TEST(metadata_fails_in_a_child)
{
    start();
    ck_assert_int_eq(create(), ATTN_OK);
    mock_children[_i].slot_status[MOCK_METADATA_CREATE] = ATTN_OUT_OF_DEVICE_MEMORY;
    ck_assert_int_eq(create_metadata(), ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_str_eq(message, _i == MOCK_PRE ? "child pre: as planned" : "child dec: as planned");
    ck_assert_ptr_null(metadata);
    ck_assert_int_eq(PRE->live_metadata, 0);
    ck_assert_int_eq(DEC->live_metadata, 0);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_DESTROY], _i == MOCK_DEC);
    check_guards();
    finish();
}
END_TEST

/* Modes beyond those of create. */
START_TEST(metadata_of_modes_not_created_for)
{
    start();
    bounds.modes = BIT(EXTEND);
    ck_assert_int_eq(create(), ATTN_OK);
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    size.struct_size = sizeof size;
    ck_assert_int_eq(OPS->metadata_size(instance, 0, &bounds, &size, &error), ATTN_UNSUPPORTED);
    ck_assert_uint_eq(error.field, ATTN_FIELD_MODES);
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

/* Optional slots that a child does not have. */
START_TEST(slots_that_are_not_there)
{
    start();
    PRE->ops.prepare = NULL;
    PRE->ops.forward_decode = NULL;
    PRE->ops.get_extension = NULL;
    ready();
    make_mixed(0);
    make_args();
    ck_assert_int_eq(OPS->prepare(instance, NULL, NULL, &error), ATTN_OK);
    ck_assert_int_eq(DEC->calls[MOCK_PREPARE], 1);
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    DEC->ops.forward_decode = NULL;
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(message, "dec has no forward_decode"));
    PRE->ops.forward_extend = NULL;
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(message, "pre has no forward_extend"));
    finish();
}
END_TEST

/* ---- Every slot ------------------------------------------------------------------------------ */

static int progressed;

static void count_progress(void *ctx, uint32_t done, uint32_t total, const char *what)
{
    ck_assert_ptr_eq(ctx, &progressed);
    ck_assert_uint_eq(done, 1);
    ck_assert_uint_eq(total, 2);
    ck_assert_str_eq(what, progressed == 0 ? "pre" : "dec");
    progressed++;
}

/* Calls of every slot of the table, after a life that uses all of the composite's: a slot that is
 * added to the ABI makes this test fail until it is forwarded or listed as not to be. */
START_TEST(every_slot_is_forwarded)
{
    static const struct {
        const char *name;
        size_t offset;
        int pre, dec; /* calls expected; -1 = at least one */
        int present;  /* in the composite */
    } table[] = {
#define SLOT(name) #name, offsetof(attn_backend_ops, name)
        {SLOT(destroy), 1, 1, 1},
        {SLOT(prepare), 1, 1, 1},
        {SLOT(index_forms), 1, 1, 1},
        {SLOT(metadata_size), -1, -1, 1},
        {SLOT(metadata_create), 1, 1, 1},
        {SLOT(init_forward_metadata), 1, 2, 1},
        {SLOT(metadata_destroy), 1, 1, 1},
        {SLOT(forward_extend), 1, 0, 1},
        {SLOT(forward_decode), 0, 2, 1},
        {SLOT(get_extension), 0, 0, 0}, /* an extension takes the child's instance, not ours */
#undef SLOT
    };
    enum { COUNT = sizeof table / sizeof table[0] };
    ck_assert_uint_eq(COUNT, MOCK_SLOTS);
    ck_assert_uint_eq(offsetof(attn_backend_ops, destroy) + COUNT * sizeof(void (*)(void)),
                      sizeof(attn_backend_ops));
    start();
    progressed = 0;
    PRE->index_forms = ATTN_INDEX_CSR;
    DEC->index_forms = ATTN_INDEX_BLOCK_TABLE;
    ready();
    ck_assert_int_eq(OPS->prepare(instance, count_progress, &progressed, &error), ATTN_OK);
    ck_assert_int_eq(progressed, 2);
    ck_assert_uint_eq(OPS->index_forms(instance), ATTN_INDEX_CSR | ATTN_INDEX_BLOCK_TABLE);
    make_mixed(0);
    make_args();
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    attn_batch batch = plain_batch(ATTN_MODE_DECODE);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_decode(metadata, 4, &args, NULL, &error), ATTN_OK);
    finish();
    for (int s = 0; s < COUNT; s++) {
        void (*slot)(void);
        ck_assert_uint_eq(table[s].offset,
                          offsetof(attn_backend_ops, destroy) + (size_t)s * sizeof slot);
        memcpy(&slot, (const char *)OPS + table[s].offset, sizeof slot);
        ck_assert_msg((slot != NULL) == table[s].present, "%s", table[s].name);
        ck_assert_msg(table[s].pre == PRE->calls[s] || (table[s].pre < 0 && PRE->calls[s] > 0),
                      "%s of pre: %d calls", table[s].name, PRE->calls[s]);
        ck_assert_msg(table[s].dec == DEC->calls[s] || (table[s].dec < 0 && DEC->calls[s] > 0),
                      "%s of dec: %d calls", table[s].name, DEC->calls[s]);
    }
}
END_TEST

/* ---- The plugin ------------------------------------------------------------------------------ */

START_TEST(entry_and_describe)
{
    attn_host_info host = {sizeof host, 0, ATTN_ABI_MAJOR, 0, "host", "1"};
    struct {
        attn_plugin plugin;
        unsigned char more[16];
    } given;
    const attn_backend_type *type = NULL;
    start();
    memset(&given, 0, sizeof given);
    given.plugin.struct_size = sizeof given;
    ck_assert_int_eq(attn_plugin_entry(&host, &given.plugin, &error), ATTN_OK);
    ck_assert_uint_eq(given.plugin.struct_size, sizeof given);
    ck_assert_uint_eq(given.plugin.abi_major, ATTN_ABI_MAJOR);
    ck_assert_str_eq(given.plugin.name, "hybrid");
    ck_assert_uint_eq(given.plugin.num_backends, 1);
    ck_assert_int_eq(given.plugin.describe(0, &type, &error), ATTN_OK);
    ck_assert_ptr_eq(type, &hybrid_phase_type);
    ck_assert_uint_eq(type->flags, ATTN_TYPE_COMPOSITE);
    ck_assert_int_eq(given.plugin.describe(1, &type, &error), ATTN_INVALID_ARGUMENT);
    host.abi_major_min = host.abi_major_max = ATTN_ABI_MAJOR + 1;
    ck_assert_int_eq(attn_plugin_entry(&host, &given.plugin, &error), ATTN_INCOMPATIBLE_VERSION);
}
END_TEST

static void add_case(Suite *suite, const char *name, const TTest *const *tests, const int *loops)
{
    TCase *tcase = tcase_create(name);
    for (int t = 0; tests[t]; t++)
        tcase_add_loop_test(tcase, tests[t], 0, loops[t]);
    suite_add_tcase(suite, tcase);
}

#define CASE(name, ...)                                                                            \
    add_case(suite, name, (const TTest *const[]){__VA_ARGS__, NULL}, (const int[])

static Suite *hybrid_suite(void)
{
    Suite *suite = suite_create("hybrid");
    CASE("slices", mixed_is_sliced, absent_parts_stay_absent, mixed_args_are_shifted_for_decode,
         mixed_args_may_be_few){3, 1, 2, 1});
    CASE("routing", batches_go_by_mode, children_hear_of_their_modes_alone,
         decode_bounds_are_narrow, group_without_modes_is_left_out,
         mixed_of_one_kind_calls_one_child, idle_reaches_nobody){8, 8, 1, 1, 2, 1});
    CASE("split", mixed_is_split_only_where_it_can_be, mixed_alone_takes_its_form_along,
         whole_mixed_is_not_batch_invariant, refusal_of_rows_is_not_hidden){8, 1, 1, 1});
    CASE("verdicts", yes_is_merged, reasons_are_named_and_counted, one_no_is_a_no,
         mixed_limits_the_graph_level){1, 1, 2, 1});
    CASE("sizes", verdict_of_another_size, reasons_of_another_size, batch_of_another_size,
         problem_and_bounds_of_another_size, memory_of_another_size){4, 1, 1, 1, 1});
    CASE("create", create_without_an_option, create_without_child_services,
         create_fails_in_a_child, create_runs_out_of_memory,
         children_are_destroyed_last_first){3, 2, 2, 1, 1});
    CASE("memory", memory_is_what_the_children_need, memory_too_small_or_misaligned,
         metadata_fails_in_a_child, metadata_of_modes_not_created_for){1, 1, 2, 1});
    CASE("batches", batch_beyond_the_bounds, batch_with_more_kv_groups,
         forward_without_its_batch){8, 1, 1});
    CASE("calls", errors_name_the_child, slots_that_are_not_there, every_slot_is_forwarded,
         entry_and_describe){10, 1, 1, 1});
    return suite;
}

int main(void)
{
    return test_main(hybrid_suite());
}
