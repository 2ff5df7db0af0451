/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_fixture.c: composites over two layer groups, and what tests change of them.
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <stdlib.h>
#include <string.h>

/* Two layer groups: layers 4 and 5 of KV group 0, layer 9 of KV group 1. */
const attn_backend_type *composite;
attn_device device;
attn_layer layers[3];
attn_layer_group groups[2];
attn_bounds bounds;
attn_problem problems[2];
attn_option_value values[3];
attn_options options;

char message[256];
attn_error error;

attn_instance *instance;
attn_metadata *metadata;
attn_memory_size size;
attn_memory memory;

void start(void)
{
    mock_reset();
    composite = &hybrid_phase_type;
    device = (attn_device){.struct_size = sizeof device, .type = ATTN_DEVICE_CPU};
    bounds = (attn_bounds){.struct_size = sizeof bounds,
                           .modes = ALL_MODES,
                           .mask_kinds = 1,
                           .max_seqs = 6,
                           .max_tokens = 40,
                           .max_q_len = 20,
                           .max_kv_len = 100,
                           .max_kv_tokens = 600};
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

static attn_option_value text_value(uint32_t type, const char *key, const char *text)
{
    return (attn_option_value){.struct_size = sizeof(attn_option_value),
                               .type = type,
                               .key = key,
                               .text = text,
                               .place = "default"};
}

static const attn_linear_dims linear_dims = {.struct_size = sizeof linear_dims};

void start_linear(void)
{
    start();
    composite = &hybrid_linear_type;
    values[0] = text_value(ATTN_OPTION_BACKEND_REF, "full", "pre");
    values[1] = text_value(ATTN_OPTION_BACKEND_REF, "linear", "dec");
    values[2] = text_value(ATTN_OPTION_STRING, "full_attn_layers", "");
    groups[1].kind = ATTN_KIND_LINEAR;
    groups[1].kv_group = -1;
    groups[1].linear = &linear_dims;
    problems[1].state_layout = ATTN_LAYOUT_STATE_SSM_KV;
}

void start_route(void)
{
    start();
    composite = &route_type;
    values[0] = text_value(ATTN_OPTION_STRING, "when", "phase=prefill,verify,draft");
    values[1] = text_value(ATTN_OPTION_BACKEND_REF, "then", "pre");
    values[2] = text_value(ATTN_OPTION_BACKEND_REF, "otherwise", "dec");
}

void start_autotune(void)
{
    start();
    composite = &autotune_type;
    values[0] = text_value(ATTN_OPTION_BACKEND_REF, "candidate", "pre");
    values[1] = text_value(ATTN_OPTION_BACKEND_REF, "candidate", "dec");
    values[2] = text_value(ATTN_OPTION_PATH, "store", "");
}

attn_status create(void)
{
    return composite->create(composite, problems, 2, &options, &mock_services, &instance, &error);
}

attn_status query(attn_verdict *verdict)
{
    return composite->query(composite, &options, &mock_services, &problems[0], verdict, &error);
}

attn_status plan(const attn_batch *batch)
{
    return OPS->init_forward_metadata(metadata, batch, (attn_stream)0x77, &error);
}

/* Memory as `size` says, exactly, each region from malloc so that an overrun is seen by the
 * address sanitizer and valgrind, and misaligned for anything above the asked alignment. */
void give_memory(void)
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

attn_status create_metadata(void)
{
    size = (attn_memory_size){.struct_size = sizeof size};
    attn_status status = OPS->metadata_size(instance, ATTN_METADATA_EAGER, &bounds, &size, &error);
    ck_assert_msg(status == ATTN_OK, "%s", message);
    give_memory();
    return OPS->metadata_create(instance, ATTN_METADATA_EAGER, &bounds, &memory, &metadata, &error);
}

void ready(void)
{
    ck_assert_msg(create() == ATTN_OK, "%s", message);
    ck_assert_msg(create_metadata() == ATTN_OK, "%s", message);
}

/* Everything that was made is gone. */
void check_nothing_left(void)
{
    ck_assert_int_eq(mock_allocated, 0);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].live, 0);
        ck_assert_int_eq(mock_children[c].live_metadata, 0);
    }
}

void finish(void)
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

static int32_t host_array[10][64], device_array[10][64];
static int64_t locations[2][64];
static int64_t mask_indptr[SEQS + 2];
static uint8_t mask_bits[64];
static uint16_t token_pos[64];
attn_kv_batch kv[3];
static attn_mask mask;
static attn_multi_item multi_item;
static attn_state_batch state;
attn_shared_prefix shared;
attn_batch mixed;

attn_i32_array array(int a)
{
    return (attn_i32_array){host_array[a], device_array[a]};
}

/* Rows start at `base`. KV group 1 has new rows of its own. */
void make_mixed(int32_t base)
{
    static const int32_t indptr[SEQS + 1] = {0, 2, 3, 7, 8, 9};
    mixed = (attn_batch){.struct_size = sizeof mixed, .mode = ATTN_MODE_MIXED};
    for (int s = 0; s <= SEQS; s++)
        host_array[2][s] = device_array[2][s] = base + indptr[s];
    mixed.num_seqs = SEQS, mixed.num_tokens = ROWS, mixed.num_decode_seqs = DECODES;
    mixed.first_decode_seq = SEQS - DECODES, mixed.decode_q_len = 1;
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
    mixed.mask = &mask, mixed.multi_item = &multi_item, mixed.state_groups = &state;
    mixed.num_state_groups = 1;
    mixed.shared_prefix = &shared, mixed.num_prefix_levels = 1;
}

attn_tensor tensors[ATTN_ROLE_COUNT];
const attn_tensor *operands[ATTN_ROLE_COUNT];
attn_scale scale;
static const attn_scale *scales[ATTN_ROLE_COUNT];
attn_forward_args args;

/* Every role, each with another stride, dtype and offset. */
void make_args(void)
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

attn_batch plain_batch(uint32_t mode)
{
    make_mixed(0);
    attn_batch batch = mixed;
    batch.mode = mode;
    batch.num_decode_seqs = batch.first_decode_seq = batch.decode_q_len = 0;
    return batch;
}
