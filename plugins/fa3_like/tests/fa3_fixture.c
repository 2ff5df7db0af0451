/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_fixture.c: the problem, the driver and the batch of fa3_like's tests.
 */
#include "plugins/fa3_like/tests/fa3_fixture.h"
#include "tests/tools/plugin_test.h"

#include <string.h>

char test_message[1024];
attn_error test_error = {
    .struct_size = sizeof test_error, .capacity = sizeof test_message, .message = test_message};
seen_launch launches[TEST_MAX_LAUNCHES];
int num_launches, num_fills;
const int32_t seq_lens[16], prefix_lens[16], q_indptr[16], kv_lens[16], block_table[16];
const int64_t out_cache_loc[16];

/* ---- A driver that takes things down --------------------------------------------------------- */

/* A function is its name, and that tells what its argument is. */
static int driver_launch(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         cuda_stream stream, void **params, void **extra)
{
    (void)stream;
    (void)extra;
    ck_assert_int_lt(num_launches, TEST_MAX_LAUNCHES);
    ck_assert_uint_eq(block_y * block_z, 1);
    int has_columns = strncmp(function, "fi_", 3) == 0 && grid_z == 1;
    ck_assert(has_columns || grid_y * grid_z == 1 || strcmp(function, "turn") == 0);
    seen_launch *seen = &launches[num_launches++];
    memset(seen, 0, sizeof *seen);
    seen->name = function;
    seen->grid = grid_x;
    seen->grid_y = grid_y;
    seen->grid_z = grid_z;
    seen->threads = block_x;
    seen->shared = shared;
    size_t size = sizeof seen->params.forward;
    if (strcmp(function, "fa3_forward_codes_d128") == 0)
        size = sizeof seen->params.codes;
    else if (strcmp(function, "turn") == 0)
        size = sizeof seen->params.turn;
    else if (strcmp(function, "scales") == 0)
        size = sizeof seen->params.scales;
    else if (strcmp(function, "widen") == 0)
        size = sizeof seen->params.widen;
    else if (strcmp(function, "plan") == 0)
        size = sizeof seen->params.plan;
    else if (strcmp(function, "gather") == 0)
        size = sizeof seen->params.gather;
    else if (strcmp(function, "join") == 0)
        size = sizeof seen->params.join;
    else if (strcmp(function, "rows") == 0)
        size = sizeof seen->params.rows;
    else if (strcmp(function, "fi_plan") == 0)
        size = sizeof seen->params.fi_plan;
    else if (strncmp(function, "fi_", 3) == 0)
        size = sizeof seen->params.fi_call;
    memcpy(&seen->params, params[0], size);
    return CUDA_OK;
}

static int driver_fill(cuda_address to, unsigned value, size_t count, cuda_stream stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)to)[i] = value;
    num_fills++;
    return CUDA_OK;
}

static int driver_encode(cuda_tensor_map *map, unsigned type, unsigned rank, void *address,
                         const uint64_t *shape, const uint64_t *strides, const unsigned *box,
                         const unsigned *element_strides, unsigned interleave, unsigned swizzle,
                         unsigned l2_promotion, unsigned fill)
{
    seen_map seen = {.data = address, .type = type, .swizzle = swizzle};
    (void)l2_promotion;
    (void)fill;
    ck_assert_uint_eq(rank, 4);
    ck_assert_uint_eq(interleave, 0);
    for (int d = 0; d < 4; d++) {
        ck_assert_uint_eq(element_strides[d], 1);
        seen.shape[d] = shape[d];
        seen.box[d] = box[d];
        if (d > 0)
            seen.strides[d - 1] = strides[d - 1];
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &seen, sizeof seen);
    return CUDA_OK;
}

_Static_assert(sizeof(seen_map) <= sizeof(cuda_tensor_map), "a note fits into a map");

seen_map read_map(const struct fa3_tensor_map *map)
{
    seen_map seen;
    memcpy(&seen, map, sizeof seen);
    return seen;
}

static int driver_name(unsigned result, const char **name)
{
    (void)result;
    *name = "CUDA_ERROR_OF_A_TEST";
    return CUDA_OK;
}

static const cuda_api driver = {.cuGetErrorName = driver_name,
                                .cuMemsetD32Async = driver_fill,
                                .cuLaunchKernel = driver_launch,
                                .cuTensorMapEncodeTiled = driver_encode};

/* ---- Problems -------------------------------------------------------------------------------- */

void make_problem(test_problem *t)
{
    *t = (test_problem){.device = {.struct_size = sizeof t->device,
                                   .type = ATTN_DEVICE_CUDA,
                                   .sm = 90,
                                   .num_sms = TEST_SMS,
                                   .shared_memory = 227 * 1024},
                        .layer = {.struct_size = sizeof t->layer, .layer_id = TEST_LAYER},
                        .bounds = {.struct_size = sizeof t->bounds,
                                   .modes = (1u << ATTN_MODE_COUNT) - 1,
                                   .mask_kinds = 3,
                                   .uses = ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
                                   .max_seqs = 6,
                                   .max_tokens = 600,
                                   .max_q_len = 500,
                                   .max_kv_len = 4000}};
    t->group = (attn_layer_group){.struct_size = sizeof t->group,
                                  .num_q_heads = TEST_Q_HEADS,
                                  .num_kv_heads = TEST_KV_HEADS,
                                  .head_dim = TEST_DIM,
                                  .v_head_dim = TEST_DIM,
                                  .window_left = -1,
                                  .sm_scale = 0.125f,
                                  .num_layers = 1,
                                  .layers = &t->layer};
    t->problem = (attn_problem){.struct_size = sizeof t->problem,
                                .graph_level = ATTN_GRAPH_ALWAYS,
                                .device = &t->device,
                                .group = &t->group,
                                .bounds = &t->bounds,
                                .kv_layout = ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_BF16,
                                .kv_dtype = ATTN_BF16,
                                .out_dtype = ATTN_BF16,
                                .page_size = TEST_PAGE,
                                .tp_size = 1};
}

void make_codes_problem(test_problem *t, uint32_t granularity)
{
    make_problem(t);
    t->problem.q_dtype = t->problem.kv_dtype = ATTN_FP8_E4M3;
    t->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    t->group.input_scale_granularity = granularity;
}

void make_expanded_problem(test_problem *t)
{
    make_problem(t);
    t->mla = (attn_mla_dims){
        .struct_size = sizeof t->mla, .kv_lora_rank = 512, .rope_dim = 64, .nope_dim = 128};
    t->group.kind = ATTN_KIND_MLA;
    t->group.num_kv_heads = TEST_Q_HEADS;
    t->group.head_dim = 192;
    t->group.v_head_dim = 128;
    t->group.mla = &t->mla;
    t->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_MIXED);
    t->problem.mla_expanded = t->bounds.modes;
    t->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    t->problem.out_dtype = ATTN_F32;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static attn_tensor dense(void *data, attn_dtype dtype, uint32_t ndim, const int64_t *shape)
{
    attn_tensor tensor = {.struct_size = sizeof tensor,
                          .data = data,
                          .device_type = ATTN_DEVICE_CUDA,
                          .dtype = dtype,
                          .ndim = ndim,
                          .alignment = 64};
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0; stride *= shape[d]) {
        tensor.shape[d] = shape[d];
        tensor.strides[d] = stride;
    }
    return tensor;
}

/* Of expanded latents: wider keys, and what is saved. */
static void make_latents(test_run *t)
{
    static _Alignas(64) char cells[6][64];
    const int64_t keys[] = {TEST_ROWS, TEST_Q_HEADS, 192},
                  values[] = {TEST_ROWS, TEST_Q_HEADS, 128};
    const int64_t c_kv[] = {TEST_ROWS, 512}, k_pe[] = {TEST_ROWS, 64};
    const int64_t pages[] = {TEST_PAGES, t->base.base.page_size, 576};
    t->q = dense(cells[0], ATTN_BF16, 3, keys);
    t->out = dense(cells[1], ATTN_F32, 3, values);
    t->k = dense(cells[2], ATTN_BF16, 3, keys);
    t->v = dense(cells[3], ATTN_BF16, 3, values);
    t->c_kv = dense(cells[4], ATTN_BF16, 2, c_kv);
    t->k_pe = dense(cells[5], ATTN_BF16, 2, k_pe);
    t->latents = dense(cells[0], ATTN_BF16, 3, pages);
    t->operands[ATTN_ROLE_C_KV] = &t->c_kv;
    t->operands[ATTN_ROLE_K_PE] = &t->k_pe;
    t->operands[ATTN_ROLE_LATENT_CACHE] = &t->latents;
}

static void make_operands(test_run *t)
{
    static _Alignas(64) char cells[8][64]; /* what lies where is not read */
    attn_dtype dtype = t->of.problem.q_dtype;
    static const float ones[6 * TEST_KV_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t scaled[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    int hnd = t->base.base.hnd;
    const int64_t queries[] = {TEST_ROWS, TEST_Q_HEADS, TEST_DIM};
    const int64_t keys[] = {TEST_ROWS, TEST_KV_HEADS, TEST_DIM};
    int64_t page = t->base.base.page_size;
    const int64_t pages[] = {TEST_PAGES, hnd ? TEST_KV_HEADS : page, hnd ? page : TEST_KV_HEADS,
                             TEST_DIM};
    t->q = dense(cells[0], dtype, 3, queries);
    t->out = dense(cells[1], t->of.problem.out_dtype, 3, queries);
    t->k = dense(cells[2], dtype, 3, keys);
    t->v = dense(cells[3], dtype, 3, keys);
    t->k_cache = dense(cells[4], t->of.problem.kv_dtype, 4, pages);
    t->v_cache = dense(cells[5], t->of.problem.kv_dtype, 4, pages);
    t->lse = dense(cells[6], ATTN_F32, 2, queries);
    t->sinks = dense(cells[7], ATTN_F32, 1, queries + 1);
    t->operands[ATTN_ROLE_Q] = &t->q;
    t->operands[ATTN_ROLE_OUT] = &t->out;
    t->operands[ATTN_ROLE_K] = &t->k;
    t->operands[ATTN_ROLE_V] = &t->v;
    t->operands[ATTN_ROLE_K_CACHE] = &t->k_cache;
    t->operands[ATTN_ROLE_V_CACHE] = &t->v_cache;
    if (t->group.is_expanded)
        make_latents(t);
    for (int i = 0; i < 3; i++)
        t->scales[scaled[i]] = (attn_scale){.struct_size = sizeof t->scales[0],
                                            .granularity = t->group.granularity,
                                            .count = 1,
                                            .host = ones};
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++)
        t->scales[role] = (attn_scale){.struct_size = sizeof t->scales[0],
                                       .granularity = ATTN_SCALE_PER_HEAD,
                                       .count = TEST_KV_HEADS,
                                       .host = ones};
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        t->scale_list[role] = t->scales[role].count > 0 ? &t->scales[role] : NULL;
    t->args = (attn_forward_args){.struct_size = sizeof t->args,
                                  .flags = ATTN_FORWARD_SAVE_KV,
                                  .num_operands = ATTN_ROLE_COUNT,
                                  .operands = t->operands};
}

/* What create makes of a problem, but for the driver's part. */
static void make_instance(test_run *t, const attn_problem *problem)
{
    attn_problem plain;
    attn_layer_group plain_group;
    fa3_plain_problem(problem, &plain, &plain_group);
    t->group = fa3_group_of(problem, TILES_AUTO);
    t->group.forward = t->group.tile ? (cuda_function)(uintptr_t)t->group.tile->kernel : NULL;
    t->group.low_forward = t->group.low ? (cuda_function)(uintptr_t)t->group.low->kernel : NULL;
    t->own = (fa3_instance){.plan = (cuda_function)(uintptr_t) "plan",
                            .rows = (cuda_function)(uintptr_t) "rows",
                            .store_scales = (cuda_function)(uintptr_t) "scales",
                            .widen = (cuda_function)(uintptr_t) "widen",
                            .turn = (cuda_function)(uintptr_t) "turn",
                            .gather = (cuda_function)(uintptr_t) "gather",
                            .join = (cuda_function)(uintptr_t) "join",
                            .groups = &t->group};
    const fi_options options = fi_read_options(NULL);
    fi_group_init(&t->base, &plain, TEST_SMS, &options);
    t->layer.layer_id = TEST_LAYER;
    t->base.base.layers = &t->layer;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++)
        t->base.functions[kernel] = (cuda_function)(uintptr_t)t->base.shape->kernels[kernel].name;
    t->instance = (attn_instance){.cuda = &driver,
                                  .facts = {.sm = 90, .num_sms = TEST_SMS},
                                  .plan = (cuda_function)(uintptr_t) "fi_plan",
                                  .save = (cuda_function)(uintptr_t) "fi_save",
                                  .num_groups = 1,
                                  .groups = &t->base,
                                  .own = &t->own};
}

void run_begin(test_run *t, const test_problem *problem, uint32_t kind)
{
    memset(t, 0, sizeof *t);
    make_problem(&t->of);
    if (problem) {
        t->of.bounds = problem->bounds;
        t->of.problem.kv_dtype = problem->problem.kv_dtype;
        t->of.problem.q_dtype = problem->problem.q_dtype;
    }
    make_instance(t, problem ? &problem->problem : &t->of.problem);
    attn_memory_size size = {.struct_size = sizeof size};
    ck_assert_int_eq(fa3_metadata_size(&t->instance, kind, &t->of.bounds, &size, &test_error),
                     ATTN_OK);
    t->memory = (attn_memory){.struct_size = sizeof t->memory};
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        t->memory.size[region] = size.size[region];
        t->memory.base[region] = test_allocate(NULL, 0, size.size[region] + 1, 4096);
        if (region != ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH))
            memset(t->memory.base[region], 0, size.size[region]);
    }
    ck_assert_int_eq(fa3_metadata_create(&t->instance, kind, &t->of.bounds, &t->memory,
                                         &t->metadata, &test_error),
                     ATTN_OK);
    make_operands(t);
    num_fills = 0;
}

void run_end(test_run *t)
{
    fi_metadata_destroy(t->metadata);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(t->memory.base[region]);
}

attn_status run_batch(test_run *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t q_len)
{
    t->kv = (attn_kv_batch){.struct_size = sizeof t->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = t->base.base.page_size,
                            .block_table_stride = 90,
                            .kv_lens = {t->kv.kv_lens.host, kv_lens},
                            .out_cache_loc = {NULL, out_cache_loc},
                            .block_table = {NULL, block_table}};
    t->batch = (attn_batch){.struct_size = sizeof t->batch,
                            .mode = mode,
                            .num_seqs = seqs,
                            .num_tokens = tokens,
                            .num_real_seqs = seqs,
                            .num_real_tokens = tokens,
                            .num_decode_seqs = t->num_decodes,
                            .first_decode_seq = t->num_decodes ? seqs - t->num_decodes : 0,
                            .decode_q_len = t->num_decodes > 0,
                            .max_q_len = q_len,
                            .max_kv_len = t->max_kv_len ? t->max_kv_len : 2000,
                            .num_kv_groups = 1,
                            .kv_groups = &t->kv,
                            .mask = t->mask.struct_size ? &t->mask : NULL,
                            .seq_lens = {NULL, seq_lens},
                            .prefix_lens = {t->batch.prefix_lens.host, prefix_lens},
                            .q_indptr = {t->batch.q_indptr.host, q_indptr}};
    num_launches = 0;
    attn_status status = fa3_init_forward_metadata(t->metadata, &t->batch, NULL, &test_error);
    if (status != ATTN_OK)
        return status;
    return (mode == ATTN_MODE_DECODE ? fa3_forward_decode : fa3_forward_extend)(
        t->metadata, TEST_LAYER, &t->args, NULL, &test_error);
}
