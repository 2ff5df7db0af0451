/* SPDX-License-Identifier: Apache-2.0
 *
 * check_triton_like_plan.c: what triton_like asks of the driver: launches, memory, what is set in a
 * graph's metadata. The driver and NVRTC are tables of this file that take down what they hear;
 * nothing is computed.
 */
#include "tests/tools/test_main.h"
#include "tests/tools/plugin_test.h"

#include "plugins/common/tests/plugin_run.h"
#include "plugins/triton_like/triton_like.h"

#include <stdio.h>
#include <string.h>

enum { SMS = 10, DIM = 64 };

union seen_params {
    kernel_params all;
};

/* ---- A driver that notes its calls ----------------------------------------------------------- */

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
    *context = &test_error;
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
    *module = &test_error;
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
    *program = &test_error;
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
    static cuda_api fake;
    fake = seen_driver;
    fake.cuCtxGetCurrent = fake_context;
    fake.cuCtxGetDevice = fake_device;
    fake.cuDeviceGetAttribute = fake_attribute;
    fake.cuModuleLoadData = fake_load;
    fake.cuModuleUnload = fake_unload;
    fake.cuModuleGetFunction = fake_find;
    fake.cuFuncSetAttribute = fake_set;
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

/* 8 heads of 64 over 2 KV heads, pages of 16; as many splits of keys, 0 = as the plugin chooses. */
static void plan_problem(test_problem *t)
{
    make_problem(t);
    t->device.num_sms = SMS;
    t->group.head_dim = t->group.v_head_dim = DIM;
    t->problem.page_size = 16;
    t->bounds.mask_kinds = 1;
    t->bounds.uses = 0;
    t->bounds.max_tokens = 40;
    t->bounds.max_q_len = 8;
    t->bounds.max_kv_len = 5000;
}

static int64_t given_splits;

static void create_instance(test_run *t, const attn_problem *problem)
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    char kernel_dir[4096];
    snprintf(kernel_dir, sizeof kernel_dir, "%s/plugins/triton_like/kernels", top ? top : ".");
    const attn_option_value values[] = {
        {.struct_size = sizeof values[0], .key = "kernel_dir", .text = kernel_dir, .place = "test"},
        {.struct_size = sizeof values[0],
         .key = "num_kv_splits",
         .integer = given_splits,
         .text = "",
         .place = "test"}};
    const attn_options options = {.struct_size = sizeof options, .num_values = 2, .values = values};
    need(triton_create(&triton_like_type, problem, 1, &options, &services, &t->instance,
                       &test_error));
    need(triton_prepare(t->instance, NULL, NULL, &test_error));
}

static void make_operands(test_run *t)
{
    t->max_kv_len = 4000;
    t->args.flags = 0; /* all keys are in the cache */
    t->operands[ATTN_ROLE_K] = t->operands[ATTN_ROLE_V] = NULL;
}

static size_t expect_launch(const seen_launch *seen)
{
    (void)seen;
    return sizeof(kernel_params);
}

static const attn_backend_ops ops = {.destroy = triton_destroy,
                                     .metadata_size = triton_metadata_size,
                                     .metadata_create = triton_metadata_create,
                                     .init_forward_metadata = triton_init_forward_metadata,
                                     .metadata_destroy = cuda_metadata_destroy,
                                     .forward_extend = triton_forward_extend,
                                     .forward_decode = triton_forward_decode};

const test_plugin plugin_of_test = {.ops = &ops,
                                    .make_instance = create_instance,
                                    .make_operands = make_operands,
                                    .expect_launch = expect_launch};

static void plan_create(test_run *t, int64_t splits, uint32_t kind)
{
    test_problem of;
    plan_problem(&of);
    given_splits = splits;
    run_begin(t, &of, kind);
}

static void run(test_run *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t decode_seqs,
                int32_t q_len)
{
    t->num_decodes = decode_seqs;
    num_fills = 0;
    need(run_batch(t, mode, seqs, tokens, q_len));
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST_OF(plan, eager_launches)
{
    test_run t;
    plan_create(&t, 0, ATTN_METADATA_EAGER);
    unsigned resident = SMS * (unsigned)t.instance->groups[0].builds[0].shape.decode_blocks;
    run(&t, ATTN_MODE_EXTEND, 3, 20, 0, 8);
    expect_launches("attn_extend");
    ck_assert_int_eq(launches[0].params->all.split_part, SPLIT_NONE);
    run(&t, ATTN_MODE_MIXED, 3, 20, 0, 8);
    expect_launches("attn_extend");
    run(&t, ATTN_MODE_MIXED, 5, 20, 2, 8);
    expect_launches("attn_extend attn_decode attn_reduce");
    ck_assert_int_eq(launches[1].params->all.split_part, SPLIT_DECODE);
    ck_assert_int_eq(launches[1].params->all.batch.num_decode_seqs, 2);
    ck_assert_uint_eq(launches[1].grid[0], resident); /* 2 x 2 heads x 10 splits are more */
    ck_assert_uint_eq(launches[2].grid[0], 2);
    ck_assert_uint_eq(launches[2].grid[1], TEST_Q_HEADS);
    run(&t, ATTN_MODE_DECODE, 6, 6, 0, 1);
    expect_launches("attn_decode attn_reduce");
    ck_assert_int_eq(launches[0].params->all.split_part, SPLIT_ALL);
    ck_assert_uint_eq(launches[0].grid[0], resident);
    ck_assert_int_eq(launches[0].params->all.num_splits, 10); /* 2 x 10 / 2, for 5000 keys */
    t.metadata->plan.bounds.max_sms = 1;                      /* fewer blocks, as many splits */
    run(&t, ATTN_MODE_DECODE, 6, 6, 0, 1);
    ck_assert_uint_eq(launches[0].grid[0], resident / SMS);
    ck_assert_int_eq(launches[0].params->all.num_splits, 10);
    t.metadata->plan.bounds.max_sms = 0;
    run(&t, ATTN_MODE_TARGET_VERIFY, 2, 16, 0, 8);
    expect_launches("attn_decode attn_reduce");
    ck_assert_uint_eq(launches[1].grid[0], 16);
    run_end(&t);
}

/* Without splits there is nothing to merge, unless there is padding to be cleared. */
TEST_OF(plan, unsplit_launches)
{
    test_run t;
    plan_create(&t, 1, ATTN_METADATA_EAGER);
    run(&t, ATTN_MODE_DECODE, 3, 3, 0, 1);
    expect_launches("attn_decode");
    ck_assert_uint_eq(launches[0].grid[0], 3 * TEST_KV_HEADS);
    run(&t, ATTN_MODE_DECODE, 3, 5, 0, 1);
    expect_launches("attn_decode attn_reduce");
    ck_assert_uint_eq(launches[1].grid[0], 5);
    run(&t, ATTN_MODE_MIXED, 4, 9, 2, 4);
    expect_launches("attn_extend attn_decode");
    run(&t, ATTN_MODE_DRAFT_EXTEND, 3, 12, 0, 4);
    expect_launches("attn_decode attn_reduce");
    run_end(&t);
}

/* Launch shapes of a graph follow from the bounds; what else its batches differ in is set in its
 * memory, and what has not changed is not set again. */
LOOP_OF(plan, graph_launches, 0, 4)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                     ATTN_MODE_TARGET_VERIFY};
    test_run t;
    plan_create(&t, 0, ATTN_METADATA_GRAPH);
    run(&t, modes[_i], 1, 1, 0, 1);
    seen_launch first[TEST_MAX_LAUNCHES];
    kernel_params params[TEST_MAX_LAUNCHES]; /* a launch notes its own over those of the last run */
    int count = num_launches, decode = modes[_i] == ATTN_MODE_DECODE;
    memcpy(first, launches, sizeof first);
    for (int i = 0; i < count; i++)
        params[i] = launches[i].params->all;
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
        ck_assert_int_eq(launches[i].params->all.num_splits, params[i].num_splits);
        const int *counts = launches[i].params->all.batch.counts;
        ck_assert_ptr_eq(counts, params[i].batch.counts);
        ck_assert_int_eq(counts[CALL_COUNT_SEQS], 5);
        ck_assert_int_eq(counts[CALL_COUNT_TOKENS], decode ? 6 : 30);
        ck_assert_int_eq(counts[CALL_COUNT_DECODE_SEQS], modes[_i] == ATTN_MODE_MIXED ? 3 : 0);
    }
    run_end(&t);
}

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
    test_run t;
    plan_create(&t, 0, ATTN_METADATA_EAGER);
    for (int n = 0; n < 20000; n++) {
        attn_bounds less = t.of.bounds, more;
        attn_memory_size small = {.struct_size = sizeof small}, large = small;
        draw_bounds(&less, 1 + draw(100));
        more = less;
        more.modes |= 1u << draw(ATTN_MODE_COUNT);
        more.max_seqs += draw(3) * draw(50);
        more.max_tokens += draw(3) * draw(50);
        more.max_q_len += draw(3) * draw(50);
        more.max_kv_len += draw(3) * draw(5000);
        need(triton_metadata_size(t.instance, ATTN_METADATA_GRAPH, &less, &small, &test_error));
        need(triton_metadata_size(t.instance, ATTN_METADATA_GRAPH, &more, &large, &test_error));
        for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
            ck_assert_uint_le(small.size[region], large.size[region]);
    }
    expect_memory_needed(&t, ATTN_METADATA_EAGER);
    run_end(&t);
}

/* Partial results of all rows that a batch may bring lie within the memory, one after the other.
 */
TEST_OF(plan, scratch_has_room)
{
    test_problem t;
    plan_problem(&t);
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

/* By default one long sequence has work for two blocks of every multiprocessor; how a length is
 * split does not depend on the bounds that allow it. */
TEST_OF(plan, default_splits)
{
    test_problem t;
    triton_group group;
    triton_options options;
    plan_problem(&t);
    need(triton_options_read(NULL, &options, &test_error));
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

int main(void)
{
    unsetenv("HOME"); /* no cache of compiled kernels */
    unsetenv("XDG_CACHE_HOME");
    return test_main("triton_like_plan");
}
