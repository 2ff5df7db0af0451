/* SPDX-License-Identifier: Apache-2.0
 *
 * check_triton_like_plan.c: what triton_like asks of the driver: launches, memory, what is set in a
 * graph's metadata. The driver and NVRTC are tables of this file that take down what they hear;
 * nothing is computed.
 */
#include "tests/tools/test_main.h"
#include "tests/tools/plugin_test.h"

#include "plugins/common/cuda/cuda_api.h"
#include "plugins/triton_like/triton_like.h"

#include <stdio.h>
#include <string.h>

enum { SMS = 10, MAX_LAUNCHES = 8, Q_HEADS = 8, KV_HEADS = 2, DIM = 64, LAYER = 3 };

static char message[1024];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

/* ---- A driver that takes things down --------------------------------------------------------- */

typedef struct launch_note {
    const char *name;
    unsigned grid[3], threads, shared;
    kernel_params params;
} launch_note;

static launch_note launches[MAX_LAUNCHES];
static int num_launches, num_fills;

static int fake_launch(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       cuda_stream stream, void **params, void **extra)
{
    (void)stream;
    (void)extra;
    ck_assert_int_lt(num_launches, MAX_LAUNCHES);
    ck_assert_uint_eq(block_y * block_z, 1);
    launch_note *note = &launches[num_launches++];
    *note = (launch_note){
        .name = function, .grid = {grid_x, grid_y, grid_z}, .threads = block_x, .shared = shared};
    memcpy(&note->params, params[0], sizeof note->params);
    return CUDA_OK;
}

/* Device memory of this test is host memory. */
static int fake_fill(cuda_address to, unsigned value, size_t count, cuda_stream stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)to)[i] = value;
    num_fills++;
    return CUDA_OK;
}

static int fake_attribute(int *value, unsigned attribute, int ordinal)
{
    (void)ordinal;
    *value = attribute == CUDA_DEVICE_MAJOR                 ? 9
             : attribute == CUDA_DEVICE_MULTIPROCESSORS     ? SMS
             : attribute == CUDA_DEVICE_SHARED_MEMORY_OPTIN ? 227 * 1024
                                                            : 0;
    return CUDA_OK;
}

static int fake_context(cuda_context *context)
{
    *context = &error;
    return CUDA_OK;
}

static int fake_device(int *ordinal)
{
    *ordinal = 0;
    return CUDA_OK;
}

static int fake_load(cuda_module *module, const void *image)
{
    (void)image;
    *module = &error;
    return CUDA_OK;
}

static int fake_unload(cuda_module module)
{
    (void)module;
    return CUDA_OK;
}

/* A function is its name. */
static int fake_find(cuda_function *function, cuda_module module, const char *name)
{
    (void)module;
    *(const char **)function = name;
    return CUDA_OK;
}

static int fake_set(cuda_function function, unsigned attribute, int value)
{
    (void)function;
    if (attribute == CUDA_FUNCTION_SHARED_CARVEOUT)
        return value <= 100 ? CUDA_OK : 1;
    ck_assert_uint_eq(attribute, CUDA_FUNCTION_MAX_DYNAMIC_SHARED);
    return value <= 227 * 1024 ? CUDA_OK : 1;
}

static int fake_name(unsigned result, const char **name)
{
    (void)result;
    *name = "CUDA_ERROR_OF_A_TEST";
    return CUDA_OK;
}

static int fake_version(int *major, int *minor)
{
    *major = *minor = 0;
    return 0;
}

static const char *fake_string(int result)
{
    (void)result;
    return "a test";
}

static int fake_create(nvrtc_program *program, const char *source, const char *name,
                       int num_headers, const char *const *headers, const char *const *names)
{
    ck_assert(source && name && headers && names && num_headers > 0);
    *program = &error;
    return 0;
}

static int fake_destroy(nvrtc_program *program)
{
    *program = NULL;
    return 0;
}

static int fake_compile(nvrtc_program program, int num_options, const char *const *options)
{
    ck_assert(program && options && num_options > 0);
    return 0;
}

static int fake_size(nvrtc_program program, size_t *size)
{
    (void)program;
    *size = 1;
    return 0;
}

static int fake_text(nvrtc_program program, char *text)
{
    (void)program;
    *text = '\0';
    return 0;
}

attn_status cuda_api_get(const cuda_api **api, attn_error *unused)
{
    (void)unused;
    static const cuda_api fake = {.cuGetErrorName = fake_name,
                                  .cuCtxGetCurrent = fake_context,
                                  .cuCtxGetDevice = fake_device,
                                  .cuDeviceGetAttribute = fake_attribute,
                                  .cuModuleLoadData = fake_load,
                                  .cuModuleUnload = fake_unload,
                                  .cuModuleGetFunction = fake_find,
                                  .cuFuncSetAttribute = fake_set,
                                  .cuMemsetD32Async = fake_fill,
                                  .cuLaunchKernel = fake_launch};
    *api = &fake;
    return ATTN_OK;
}

attn_status nvrtc_api_get(const nvrtc_api **api, attn_error *unused)
{
    (void)unused;
    static const nvrtc_api fake = {.nvrtcVersion = fake_version,
                                   .nvrtcGetErrorString = fake_string,
                                   .nvrtcCreateProgram = fake_create,
                                   .nvrtcDestroyProgram = fake_destroy,
                                   .nvrtcCompileProgram = fake_compile,
                                   .nvrtcGetProgramLogSize = fake_size,
                                   .nvrtcGetProgramLog = fake_text,
                                   .nvrtcGetCUBINSize = fake_size,
                                   .nvrtcGetCUBIN = fake_text};
    *api = &fake;
    return ATTN_OK;
}

attn_status cuda_fail(const cuda_api *api, int result, const char *who, const char *what,
                      attn_error *unused)
{
    (void)api;
    (void)unused;
    ck_abort_msg("%s: %s: %d", who, what, result);
    return ATTN_INTERNAL;
}

/* ---- An instance ----------------------------------------------------------------------------- */

static void test_log(void *ctx, uint32_t level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static const attn_services services = {.struct_size = sizeof services,
                                       .num_workers = 1,
                                       .log = test_log,
                                       .allocate = test_allocate,
                                       .release = test_release};

/* An instance, one metadata and a batch; arrays hold nothing, as they are not read. */
typedef struct plan {
    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
    char kernel_dir[4096];
    attn_option_value values[2];
    attn_options options;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory memory;
    attn_batch batch;
    attn_kv_batch kv;
    int32_t array[16];
} plan;

static void plan_problem(plan *t, int64_t splits)
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    *t = (plan){.device = {.struct_size = sizeof t->device,
                           .type = ATTN_DEVICE_CUDA,
                           .sm = 90,
                           .num_sms = SMS,
                           .shared_memory = 227 * 1024},
                .layer = {.struct_size = sizeof t->layer, .layer_id = LAYER},
                .bounds = {.struct_size = sizeof t->bounds,
                           .modes = (1u << ATTN_MODE_COUNT) - 1,
                           .mask_kinds = 1,
                           .max_seqs = 6,
                           .max_tokens = 40,
                           .max_q_len = 8,
                           .max_kv_len = 5000}};
    t->group = (attn_layer_group){.struct_size = sizeof t->group,
                                  .num_q_heads = Q_HEADS,
                                  .num_kv_heads = KV_HEADS,
                                  .head_dim = DIM,
                                  .v_head_dim = DIM,
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
                                .page_size = 16,
                                .tp_size = 1};
    snprintf(t->kernel_dir, sizeof t->kernel_dir, "%s/plugins/triton_like/kernels",
             top ? top : ".");
    t->values[0] = (attn_option_value){.struct_size = sizeof t->values[0],
                                       .key = "kernel_dir",
                                       .text = t->kernel_dir,
                                       .place = "test"};
    t->values[1] = (attn_option_value){.struct_size = sizeof t->values[0],
                                       .key = "num_kv_splits",
                                       .integer = splits,
                                       .text = "",
                                       .place = "test"};
    t->options =
        (attn_options){.struct_size = sizeof t->options, .num_values = 2, .values = t->values};
}

static void need(attn_status status)
{
    ck_assert_msg(status == ATTN_OK, "%d: %s", status, message);
}

static void plan_create(plan *t, int64_t splits, uint32_t kind)
{
    plan_problem(t, splits);
    need(triton_create(&triton_like_type, &t->problem, 1, &t->options, &services, &t->instance,
                       &error));
    need(triton_prepare(t->instance, NULL, NULL, &error));
    attn_memory_size size = {.struct_size = sizeof size};
    need(triton_metadata_size(t->instance, kind, &t->bounds, &size, &error));
    t->memory = (attn_memory){.struct_size = sizeof t->memory};
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        t->memory.size[region] = size.size[region];
        t->memory.base[region] = aligned_alloc(4096, (size.size[region] + 4096) / 4096 * 4096);
    }
    need(triton_metadata_create(t->instance, kind, &t->bounds, &t->memory, &t->metadata, &error));
}

static void plan_destroy(plan *t)
{
    triton_metadata_destroy(t->metadata);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(t->memory.base[region]);
    triton_destroy(t->instance);
}

/* Plan a batch and run the layer: what was launched stands in `launches`. */
static void run(plan *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t decode_seqs,
                int32_t q_len)
{
    static uint16_t cells[1];
    int64_t page = 16;
    attn_tensor q = {.struct_size = sizeof q,
                     .data = cells,
                     .device_type = ATTN_DEVICE_CUDA,
                     .dtype = ATTN_BF16,
                     .ndim = 3,
                     .alignment = 256,
                     .shape = {40, Q_HEADS, DIM},
                     .strides = {Q_HEADS * DIM, DIM, 1}};
    attn_tensor cache = q;
    cache.ndim = 4;
    memcpy(cache.shape, (int64_t[]){400, page, KV_HEADS, DIM}, 4 * sizeof(int64_t));
    memcpy(cache.strides, (int64_t[]){page * KV_HEADS * DIM, KV_HEADS * DIM, DIM, 1},
           4 * sizeof(int64_t));
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {[ATTN_ROLE_Q] = &q,
                                                    [ATTN_ROLE_OUT] = &q,
                                                    [ATTN_ROLE_K_CACHE] = &cache,
                                                    [ATTN_ROLE_V_CACHE] = &cache};
    attn_forward_args args = {
        .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
    t->kv = (attn_kv_batch){.struct_size = sizeof t->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = 16,
                            .block_table_stride = 400,
                            .block_table = {NULL, t->array}};
    t->batch = (attn_batch){.struct_size = sizeof t->batch,
                            .mode = mode,
                            .num_seqs = seqs,
                            .num_tokens = tokens,
                            .num_real_seqs = seqs,
                            .num_real_tokens = tokens,
                            .num_decode_seqs = decode_seqs,
                            .first_decode_seq = mode == ATTN_MODE_MIXED ? seqs - decode_seqs : 0,
                            .decode_q_len = mode == ATTN_MODE_MIXED,
                            .max_q_len = q_len,
                            .max_kv_len = 4000,
                            .num_kv_groups = 1,
                            .kv_groups = &t->kv,
                            .seq_lens = {NULL, t->array},
                            .prefix_lens = {NULL, t->array},
                            .q_indptr = {NULL, mode == ATTN_MODE_DECODE ? NULL : t->array}};
    num_launches = num_fills = 0;
    need(triton_init_forward_metadata(t->metadata, &t->batch, NULL, &error));
    need((mode == ATTN_MODE_DECODE ? triton_forward_decode : triton_forward_extend)(
        t->metadata, LAYER, &args, NULL, &error));
}

static void expect_launches(const char *names)
{
    char got[256] = "";
    for (int i = 0; i < num_launches; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "",
                 launches[i].name);
    ck_assert_str_eq(got, names);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST_OF(plan, eager_launches)
{
    plan t;
    plan_create(&t, 0, ATTN_METADATA_EAGER);
    unsigned resident = SMS * (unsigned)t.instance->groups[0].builds[0].shape.decode_blocks;
    run(&t, ATTN_MODE_EXTEND, 3, 20, 0, 8);
    expect_launches("attn_extend");
    ck_assert_int_eq(launches[0].params.split_part, SPLIT_NONE);
    run(&t, ATTN_MODE_MIXED, 3, 20, 0, 8);
    expect_launches("attn_extend");
    run(&t, ATTN_MODE_MIXED, 5, 20, 2, 8);
    expect_launches("attn_extend attn_decode attn_reduce");
    ck_assert_int_eq(launches[1].params.split_part, SPLIT_DECODE);
    ck_assert_int_eq(launches[1].params.batch.num_decode_seqs, 2);
    ck_assert_uint_eq(launches[1].grid[0], resident); /* 2 x 2 heads x 10 splits are more */
    ck_assert_uint_eq(launches[2].grid[0], 2);
    ck_assert_uint_eq(launches[2].grid[1], Q_HEADS);
    run(&t, ATTN_MODE_DECODE, 6, 6, 0, 1);
    expect_launches("attn_decode attn_reduce");
    ck_assert_int_eq(launches[0].params.split_part, SPLIT_ALL);
    ck_assert_uint_eq(launches[0].grid[0], resident);
    ck_assert_int_eq(launches[0].params.num_splits, 10); /* 2 x 10 / 2, for 5000 keys */
    t.metadata->plan.bounds.max_sms = 1;                 /* fewer blocks, as many splits */
    run(&t, ATTN_MODE_DECODE, 6, 6, 0, 1);
    ck_assert_uint_eq(launches[0].grid[0], resident / SMS);
    ck_assert_int_eq(launches[0].params.num_splits, 10);
    t.metadata->plan.bounds.max_sms = 0;
    run(&t, ATTN_MODE_TARGET_VERIFY, 2, 16, 0, 8);
    expect_launches("attn_decode attn_reduce");
    ck_assert_uint_eq(launches[1].grid[0], 16);
    plan_destroy(&t);
}
END_TEST

/* Without splits there is nothing to merge, unless there is padding to be cleared. */
TEST_OF(plan, unsplit_launches)
{
    plan t;
    plan_create(&t, 1, ATTN_METADATA_EAGER);
    run(&t, ATTN_MODE_DECODE, 3, 3, 0, 1);
    expect_launches("attn_decode");
    ck_assert_uint_eq(launches[0].grid[0], 3 * KV_HEADS);
    run(&t, ATTN_MODE_DECODE, 3, 5, 0, 1);
    expect_launches("attn_decode attn_reduce");
    ck_assert_uint_eq(launches[1].grid[0], 5);
    run(&t, ATTN_MODE_MIXED, 4, 9, 2, 4);
    expect_launches("attn_extend attn_decode");
    run(&t, ATTN_MODE_DRAFT_EXTEND, 3, 12, 0, 4);
    expect_launches("attn_decode attn_reduce");
    plan_destroy(&t);
}
END_TEST

/* Launch shapes of a graph follow from the bounds; what else its batches differ in is set in its
 * memory, and what has not changed is not set again. */
START_TEST(graph_launches)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                     ATTN_MODE_TARGET_VERIFY};
    plan t;
    plan_create(&t, 0, ATTN_METADATA_GRAPH);
    run(&t, modes[_i], 1, 1, 0, 1);
    launch_note first[MAX_LAUNCHES];
    int count = num_launches, decode = modes[_i] == ATTN_MODE_DECODE;
    memcpy(first, launches, sizeof first);
    ck_assert_int_eq(num_fills, CALL_COUNTS);
    run(&t, modes[_i], 1, 1, 0, 1);
    ck_assert_int_eq(num_fills, 0);
    run(&t, modes[_i], 5, decode ? 6 : 30, modes[_i] == ATTN_MODE_MIXED ? 3 : 0, decode ? 1 : 8);
    ck_assert_int_eq(num_fills, modes[_i] == ATTN_MODE_MIXED ? 3 : 2);
    ck_assert_int_eq(num_launches, count);
    for (int i = 0; i < count; i++) {
        ck_assert_str_eq(launches[i].name, first[i].name);
        ck_assert_mem_eq(launches[i].grid, first[i].grid, sizeof first[i].grid);
        ck_assert_uint_eq(launches[i].threads, first[i].threads);
        ck_assert_uint_eq(launches[i].shared, first[i].shared);
        ck_assert_int_eq(launches[i].params.num_splits, first[i].params.num_splits);
        const int *counts = launches[i].params.batch.counts;
        ck_assert_ptr_eq(counts, first[i].params.batch.counts);
        ck_assert_int_eq(counts[CALL_COUNT_SEQS], 5);
        ck_assert_int_eq(counts[CALL_COUNT_TOKENS], decode ? 6 : 30);
        ck_assert_int_eq(counts[CALL_COUNT_DECODE_SEQS], modes[_i] == ATTN_MODE_MIXED ? 3 : 0);
    }
    plan_destroy(&t);
}
END_TEST

static uint32_t state = 1;

static int32_t draw(int32_t count)
{
    state = state * 1664525u + 1013904223u;
    return (int32_t)(state >> 8) % count;
}

static void draw_bounds(attn_bounds *bounds, int32_t most)
{
    bounds->modes = 1u << draw(ATTN_MODE_COUNT) | 1u << draw(ATTN_MODE_COUNT);
    bounds->max_seqs = 1 + draw(most);
    bounds->max_tokens = 1 + draw(4 * most);
    bounds->max_q_len = 1 + draw(most);
    bounds->max_kv_len = 1 + draw(100 * most);
}

/* WORK-02, WORK-03: memory grows with every bound; one byte less is refused. */
TEST_OF(plan, memory_grows_with_the_bounds)
{
    plan t;
    plan_create(&t, 0, ATTN_METADATA_EAGER);
    for (int n = 0; n < 20000; n++) {
        attn_bounds less = t.bounds, more;
        attn_memory_size small = {.struct_size = sizeof small}, large = small;
        draw_bounds(&less, 1 + draw(100));
        more = less;
        more.modes |= 1u << draw(ATTN_MODE_COUNT);
        more.max_seqs += draw(3) * draw(50);
        more.max_tokens += draw(3) * draw(50);
        more.max_q_len += draw(3) * draw(50);
        more.max_kv_len += draw(3) * draw(5000);
        need(triton_metadata_size(t.instance, ATTN_METADATA_GRAPH, &less, &small, &error));
        need(triton_metadata_size(t.instance, ATTN_METADATA_GRAPH, &more, &large, &error));
        for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
            ck_assert_uint_le(small.size[region], large.size[region]);
    }
    attn_metadata *metadata = NULL;
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        attn_memory less = t.memory;
        if (less.size[region]-- == 0)
            continue;
        ck_assert_int_eq(triton_metadata_create(t.instance, ATTN_METADATA_EAGER, &t.bounds, &less,
                                                &metadata, &error),
                         ATTN_BUFFER_TOO_SMALL);
        ck_assert_uint_eq(error.needed, t.memory.size[region]);
    }
    plan_destroy(&t);
}
END_TEST

/* Partial results of all rows that a batch may bring lie within the memory, one after the other.
 */
TEST_OF(plan, scratch_has_room)
{
    plan t;
    plan_problem(&t, 0);
    for (int n = 0; n < 5000; n++) {
        triton_group group;
        triton_options options = {.split_tile = 1 + draw(600), .reduce_in_fp32 = draw(2)};
        t.group.num_kv_heads = 1 + draw(8);
        t.group.num_q_heads = t.group.num_kv_heads * (1 + draw(70));
        t.group.v_head_dim = 16 + draw(200);
        draw_bounds(&t.bounds, 1 + draw(60));
        triton_group_init(&group, &t.problem);
        triton_scratch layout = triton_scratch_layout(&group, &options, &t.bounds);
        uint64_t splits = (uint64_t)triton_grid_splits(&group, &options, &t.bounds), rows = 0;
        for (uint32_t mode = 0; mode < ATTN_MODE_COUNT; mode++) {
            int32_t part = triton_split_part(&group, mode, &t.bounds);
            int64_t most = (int64_t)t.bounds.max_seqs * t.bounds.max_q_len;
            if (mode == ATTN_MODE_DECODE || part == SPLIT_DECODE)
                most = t.bounds.max_seqs;
            most = most < t.bounds.max_tokens ? most : t.bounds.max_tokens;
            if (t.bounds.modes & ATTN_MODE_BIT(mode) && part != SPLIT_NONE)
                rows = rows > (uint64_t)most ? rows : (uint64_t)most;
        }
        rows *= (uint64_t)t.group.num_q_heads;
        ck_assert_uint_ge(layout.lse_at, rows * splits * (uint64_t)group.base.v_dim *
                                             (options.reduce_in_fp32 ? 4 : 2));
        ck_assert_uint_ge(layout.used_at, layout.lse_at + rows * splits * sizeof(float));
        ck_assert_uint_ge(layout.size, layout.used_at + rows * sizeof(int32_t));
    }
}
END_TEST

/* By default one long sequence has work for two blocks of every multiprocessor; how a length is
 * split does not depend on the bounds that allow it. */
TEST_OF(plan, default_splits)
{
    plan t;
    triton_group group;
    triton_options options;
    plan_problem(&t, 0);
    need(triton_options_read(NULL, &options, &error));
    for (int32_t heads = 1; heads <= 16; heads++) {
        t.group.num_kv_heads = heads;
        t.group.num_q_heads = heads * 4;
        t.device.num_sms = 132;
        triton_group_init(&group, &t.problem);
        t.bounds.max_kv_len = 1 << 20;
        int32_t splits = triton_grid_splits(&group, &options, &t.bounds);
        ck_assert_int_ge(splits * heads, splits == MAX_DEFAULT_SPLITS ? heads : 2 * 132);
        ck_assert_int_lt(splits * heads, 2 * 132 + heads);
        for (int n = 0; n < 1000; n++) {
            int32_t len = 1 + draw(100000), one, other;
            t.bounds.max_kv_len = len;
            one = triton_grid_splits(&group, &options, &t.bounds);
            t.bounds.max_kv_len = len + draw(1 << 20);
            other = triton_grid_splits(&group, &options, &t.bounds);
            ck_assert_int_eq(splits_count(len, options.split_tile, one),
                             splits_count(len, options.split_tile, other));
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("triton_like_plan");
    TCase *tc = tcase_create("plan");
    tcase_add_loop_test(tc, graph_launches, 0, 4);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    unsetenv("HOME"); /* no cache of compiled kernels */
    unsetenv("XDG_CACHE_HOME");
    return test_main(suite());
}
