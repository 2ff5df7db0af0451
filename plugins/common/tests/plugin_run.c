/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_run.c: the driver, the operands and the batch of a CUDA plugin's tests.
 */
#include "plugins/common/tests/plugin_run.h"
#include "tests/tools/plugin_test.h"

#include <string.h>

enum { MAX_PARAMS = 4096 }; /* of a kernel, in bytes */

seen_launch launches[TEST_MAX_LAUNCHES];
int num_launches, num_fills;
const int32_t seq_lens[16], prefix_lens[16], q_indptr[16], kv_lens[16], block_table[16];
const int64_t out_cache_loc[16];

/* ---- A driver that notes its calls ----------------------------------------------------------- */

static int driver_launch_ex(const cuda_launch_config *config, cuda_function function, void **params,
                            void **extra)
{
    static _Alignas(64) char blocks[TEST_MAX_LAUNCHES][MAX_PARAMS];
    (void)extra;
    ck_assert_int_lt(num_launches, TEST_MAX_LAUNCHES);
    ck_assert_uint_eq(config->block_y * config->block_z, 1);
    ck_assert_uint_le(config->num_attributes, 1);
    seen_launch *seen = &launches[num_launches];
    *seen = (seen_launch){.name = function,
                          .grid = {config->grid_x, config->grid_y, config->grid_z},
                          .blocks = config->grid_x * config->grid_y * config->grid_z,
                          .threads = config->block_x,
                          .shared = config->shared,
                          .programmatic = config->num_attributes == 1,
                          .params = (union seen_params *)blocks[num_launches]};
    size_t size = plugin_of_test.expect_launch(seen);
    ck_assert_uint_le(size, MAX_PARAMS);
    memset(seen->params, 0, MAX_PARAMS);
    memcpy(seen->params, params[0], size);
    num_launches++;
    return CUDA_OK;
}

static int driver_launch(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         cuda_stream stream, void **params, void **extra)
{
    const cuda_launch_config config = {.grid_x = grid_x,
                                       .grid_y = grid_y,
                                       .grid_z = grid_z,
                                       .block_x = block_x,
                                       .block_y = block_y,
                                       .block_z = block_z,
                                       .shared = shared,
                                       .stream = stream};
    return driver_launch_ex(&config, function, params, extra);
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

seen_map read_map(const void *map)
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

const cuda_api seen_driver = {.cuGetErrorName = driver_name,
                              .cuMemsetD32Async = driver_fill,
                              .cuLaunchKernel = driver_launch,
                              .cuLaunchKernelEx = driver_launch_ex,
                              .cuTensorMapEncodeTiled = driver_encode};

void expect_launches(const char *names)
{
    char got[256] = "";
    for (int i = 0; i < num_launches; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "",
                 launches[i].name);
    ck_assert_str_eq(got, names);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

attn_tensor dense_tensor(void *data, attn_dtype dtype, uint32_t ndim, const int64_t *shape)
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

/* Without latents. */
static void make_operands(test_run *t)
{
    static _Alignas(64) char cells[8][64]; /* what lies where is not read */
    static const float ones[6 * TEST_KV_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t scaled[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    const attn_problem *problem = &t->of.problem;
    const attn_layer_group *group = &t->of.group;
    int hnd = problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t page = problem->page_size, heads = group->num_kv_heads, dim = group->head_dim;
    const int64_t queries[] = {TEST_ROWS, group->num_q_heads, dim};
    const int64_t keys[] = {TEST_ROWS, heads, dim};
    const int64_t pages[] = {TEST_PAGES, hnd ? heads : page, hnd ? page : heads, dim};
    t->q = dense_tensor(cells[0], problem->q_dtype, 3, queries);
    t->out = dense_tensor(cells[1], problem->out_dtype, 3, queries);
    t->k = dense_tensor(cells[2], problem->q_dtype, 3, keys);
    t->v = dense_tensor(cells[3], problem->q_dtype, 3, keys);
    t->k_cache = dense_tensor(cells[4], problem->kv_dtype, 4, pages);
    t->v_cache = dense_tensor(cells[5], problem->kv_dtype, 4, pages);
    t->lse = dense_tensor(cells[6], ATTN_F32, 2, queries);
    t->sinks = dense_tensor(cells[7], ATTN_F32, 1, queries + 1);
    t->operands[ATTN_ROLE_Q] = &t->q;
    t->operands[ATTN_ROLE_OUT] = &t->out;
    t->operands[ATTN_ROLE_K] = &t->k;
    t->operands[ATTN_ROLE_V] = &t->v;
    t->operands[ATTN_ROLE_K_CACHE] = &t->k_cache;
    t->operands[ATTN_ROLE_V_CACHE] = &t->v_cache;
    for (int i = 0; i < 3; i++)
        t->scales[scaled[i]] = (attn_scale){.struct_size = sizeof t->scales[0],
                                            .granularity = group->input_scale_granularity,
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
    if (plugin_of_test.make_operands)
        plugin_of_test.make_operands(t);
}

static void copy_problem(test_problem *to, const test_problem *from)
{
    *to = *from;
    to->problem.device = &to->device;
    to->problem.group = &to->group;
    to->problem.bounds = &to->bounds;
    to->group.layers = &to->layer;
    to->group.mla = from->group.mla ? &to->mla : NULL;
}

void run_begin(test_run *t, const test_problem *problem, uint32_t kind)
{
    const attn_backend_ops *ops = plugin_of_test.ops;
    memset(t, 0, sizeof *t);
    make_problem(&t->of);
    if (problem)
        copy_problem(&t->of, problem);
    t->layer.layer_id = TEST_LAYER;
    plugin_of_test.make_instance(t, &t->of.problem);
    attn_memory_size size = {.struct_size = sizeof size};
    need(ops->metadata_size(t->instance, kind, &t->of.bounds, &size, &test_error));
    t->memory = (attn_memory){.struct_size = sizeof t->memory};
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        t->memory.size[region] = size.size[region];
        t->memory.base[region] = test_allocate(NULL, 0, size.size[region] + 1, 4096);
        if (region != ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH))
            memset(t->memory.base[region], 0, size.size[region]);
    }
    need(ops->metadata_create(t->instance, kind, &t->of.bounds, &t->memory, &t->metadata,
                              &test_error));
    make_operands(t);
    num_fills = 0;
}

void run_end(test_run *t)
{
    plugin_of_test.ops->metadata_destroy(t->metadata);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(t->memory.base[region]);
    if (plugin_of_test.ops->destroy)
        plugin_of_test.ops->destroy(t->instance);
}

attn_status run_batch(test_run *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t q_len)
{
    const attn_backend_ops *ops = plugin_of_test.ops;
    t->kv = (attn_kv_batch){.struct_size = sizeof t->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = t->of.problem.page_size,
                            .block_table_stride = 90,
                            .kv_lens = {t->kv.kv_lens.host, kv_lens},
                            .out_cache_loc = {NULL, out_cache_loc},
                            .kv_new_indptr = {NULL, t->kv.kv_new_indptr.device},
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
    attn_status status = ops->init_forward_metadata(t->metadata, &t->batch, NULL, &test_error);
    if (status != ATTN_OK)
        return status;
    return (mode == ATTN_MODE_DECODE ? ops->forward_decode : ops->forward_extend)(
        t->metadata, TEST_LAYER, &t->args, NULL, &test_error);
}

/* ---- What follows from a run ----------------------------------------------------------------- */

void expect_memory_needed(const test_run *t, uint32_t kind)
{
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        attn_memory less = t->memory;
        attn_metadata *metadata = NULL;
        if (less.size[region] == 0)
            continue;
        less.size[region]--;
        test_error.needed = 0;
        ck_assert_int_eq(plugin_of_test.ops->metadata_create(t->instance, kind, &t->of.bounds,
                                                             &less, &metadata, &test_error),
                         ATTN_BUFFER_TOO_SMALL);
        ck_assert_uint_eq(test_error.needed, t->memory.size[region]);
        ck_assert_ptr_null(metadata);
    }
}

void expect_rows(const test_run *t, const int *expected)
{
    const attn_code_paths *paths =
        plugin_of_test.ops->get_extension(t->instance, ATTN_EXTENSION_CODE_PATHS);
    int64_t rows[16], sum = 0;
    ck_assert_uint_le(paths->num_paths, 16);
    need(paths->rows(t->metadata, TEST_LAYER, rows, &test_error));
    for (; *expected >= 0; expected += 2) {
        const char *name =
            ((const attn_code_path *)attn_at(paths->paths, (uint32_t)*expected))->name;
        ck_assert_msg(rows[*expected] == expected[1], "%s: %lld, not %d", name,
                      (long long)rows[*expected], expected[1]);
        sum += expected[1];
    }
    ck_assert_int_eq(sum, t->batch.num_real_tokens);
}
