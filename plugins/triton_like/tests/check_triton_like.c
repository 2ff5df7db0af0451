/* SPDX-License-Identifier: Apache-2.0
 *
 * check_triton_like.c: triton_like on any machine: how keys are split, what query says, tiles that
 * fit, and, where NVRTC is, that every kernel compiles. What they compute is judged by
 * `attnhost check` on a GPU.
 */
#include "tests/tools/test_main.h"

#include "tests/tools/plugin_test.h"
#include "plugins/triton_like/tests/triton_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void open_plugin(void)
{
    open_plugin_of("triton_like");
}

/* ---- Query ----------------------------------------------------------------------------------- */

TEST_OF(any_machine, query_accepts_and_refuses)
{
    test_problem t;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    make_decode_problem(&t);
    ck_assert_uint_eq(refused_fields(&t), 0);
    ck_assert_int_eq(test_type->query(test_type, NULL, NULL, &t.problem, &verdict, &test_error),
                     ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);
    ck_assert_uint_eq(verdict.reads_new_kv_unquantised, 0);
    ck_assert(verdict.traits & ATTN_TRAIT_RUNTIME_COMPILATION);
    ck_assert_uint_gt(verdict.device_bytes, 8 * 32 * 128 * 4);
    ck_assert_uint_eq(verdict.graph_seq_len_fill, 0);

    t.device.type = ATTN_DEVICE_CPU;
    t.device.sm = 0;
    ck_assert_uint_eq(refused_fields(&t), FIELD(DEVICE_TYPE) | FIELD(DEVICE_SM));
    make_decode_problem(&t);
    t.device.sm = 75;
    t.problem.q_dtype = t.problem.kv_dtype = ATTN_F32;
    ck_assert_uint_eq(refused_fields(&t), FIELD(DEVICE_SM) | FIELD(Q_DTYPE) | FIELD(KV_DTYPE));
    make_decode_problem(&t);
    t.group.attn_type = ATTN_TYPE_COUNT;
    ck_assert_uint_eq(refused_fields(&t), FIELD(ATTN_TYPE));
    make_decode_problem(&t);
    t.group.attn_type = ATTN_TYPE_CROSS;
    t.group.window_right = -1;
    ck_assert_uint_eq(refused_fields(&t), 0);
    make_decode_problem(&t);
    t.bounds.uses = ATTN_USES_MULTI_ITEM | ATTN_USES_LSE;
    t.group.head_dim = 8;
    t.group.v_head_dim = MAX_DIM + 1;
    ck_assert_uint_eq(refused_fields(&t), FIELD(USES) | FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM));
    make_decode_problem(&t); /* Gemma 4's full layers */
    t.group.head_dim = t.group.v_head_dim = 512;
    t.group.sm_scale = 1.0f;
    ck_assert_uint_eq(refused_fields(&t), 0);
    make_decode_problem(&t);
    t.problem.kv_dtype = ATTN_FP8_E4M3;
    ck_assert_uint_eq(refused_fields(&t), FIELD(SCALE_GRANULARITY));
    t.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    ck_assert_uint_eq(refused_fields(&t), 0);
    t.group.num_q_heads = t.group.num_kv_heads = CALL_MAX_SCALES + 1;
    ck_assert_uint_eq(refused_fields(&t), FIELD(SCALE_GRANULARITY));
    make_decode_problem(&t);
    t.group.num_q_heads = 33;
    ck_assert_int_eq(test_type->query(test_type, NULL, NULL, &t.problem, &verdict, &test_error),
                     ATTN_INVALID_ARGUMENT);
}

TEST_OF(any_machine, create_refuses)
{
    test_problem t;
    attn_instance *instance = NULL;
    expect_create_refuses();
    attn_option_value value = {.struct_size = sizeof value,
                               .key = "num_kv_splits",
                               .integer = MAX_SPLITS + 1,
                               .text = "129",
                               .place = "x.ini:3"};
    attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    make_decode_problem(&t);
    ck_assert_int_eq(test_type->create(test_type, &t.problem, 1, &options, &test_services,
                                       &instance, &test_error),
                     ATTN_CONFIG_ERROR);
    ck_assert(strstr(test_message, "x.ini:3") != NULL);
}

/* ---- Splits ---------------------------------------------------------------------------------- */

TEST_OF(any_machine, splits_follow_the_rule)
{
    ck_assert_int_eq(splits_count(0, 256, 8), 1);
    ck_assert_int_eq(splits_count(256, 256, 8), 1);
    ck_assert_int_eq(splits_count(257, 256, 8), 2);
    ck_assert_int_eq(splits_count(2048, 256, 8), 8);
    ck_assert_int_eq(splits_count(1 << 30, 256, 8), 8);
    ck_assert_int_eq(splits_count(0x7fffffff, 1, 128), 128);
    ck_assert_int_eq(splits_count(300, 100, 1), 1);
    ck_assert_int_eq(splits_used(0, 1), 1);
    ck_assert_int_eq(splits_used(300, 8), 5); /* of 64 keys each */
    ck_assert_int_eq(splits_used(0x7fffffff, 1), 1);
    ck_assert_int_eq(splits_used(0x7fffffff, 128), 128);
}

/* Every key in one split and one alone, in order, whatever the numbers. */
TEST_OF(any_machine, splits_cover_all_keys)
{
    uint32_t state = 12345;
    for (int n = 0; n < 20000; n++) {
        state = state * 1664525u + 1013904223u;
        int len = (int)(state >> 8) % (n % 2 ? 700 : 200000), tile = 1 + (int)(state % 1000);
        int max = 1 + (int)(state >> 20) % MAX_SPLITS, count = splits_count(len, tile, max), at = 0;
        int used = splits_used(len, count);
        ck_assert_int_ge(count, 1);
        ck_assert_int_le(count, max);
        ck_assert_int_ge(used, 1);
        ck_assert_int_le(used, count);
        for (int i = 0; i < count; i++) {
            int begin, end;
            splits_range(len, count, i, &begin, &end);
            ck_assert_int_eq(begin, at);
            ck_assert(end >= begin && end <= len);
            ck_assert_int_eq(end > begin, i < used && len > 0);
            ck_assert(begin % SPLIT_ALIGN == 0 || begin == len);
            at = end;
        }
        ck_assert_int_eq(at, len);
    }
}

/* ---- Tiles and kernels ----------------------------------------------------------------------- */

TEST_OF(any_machine, tiles_fit_any_device)
{
    static const uint32_t sizes[] = {0, 99 * 1024, 163 * 1024, 227 * 1024};
    test_problem t;
    make_decode_problem(&t);
    for (int32_t dim = MIN_DIM; dim <= MAX_DIM; dim++)
        for (int i = 0; i < 8; i++)
            for (int variant = 0; variant < VARIANT_COUNT; variant++) {
                triton_group group;
                t.group.head_dim = dim;
                t.group.v_head_dim = i % 2 ? MAX_DIM + MIN_DIM - dim : dim;
                t.problem.kv_dtype = dim % 2 ? ATTN_FP8_E4M3 : ATTN_BF16;
                t.group.logit_cap = dim % 3 ? 30.0f : 0.0f;
                triton_group_init(&group, &t.problem);
                kernel_shape shape = triton_shape(&group, variant, sizes[i / 2]);
                int32_t limit = sizes[i / 2] ? (int32_t)sizes[i / 2] : 99 * 1024;
                ck_assert_int_gt(shape.extend_shared, 0);
                ck_assert_int_le(shape.extend_shared, limit);
                ck_assert_int_le(shape.decode_shared, limit);
                ck_assert_int_ge(shape.stages, 2);
                /* What decode's warps leave to be merged. */
                ck_assert_int_ge(shape.decode_shared,
                                 shape.warps / shape.team * 16 *
                                     (triton_pad(&group, group.base.v_dim) + 6) * 4);
                /* A pass of all threads over rows of keys ends with a tile. */
                ck_assert_int_eq(shape.key_tile % (shape.extend_warps * 4), 0);
            }
}

static void compile(const nvrtc_api *nvrtc, const char *name, const kernel_constants *constants,
                    const char *architecture)
{
    const char *options[MAX_CONSTANTS + 4] = {architecture, "-std=c++17", "--ptxas-options=-O0"};
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    int num_options = 3;
    nvrtc_program program;
    kernel_sources sources;
    char folder[4096], log[8192] = "";
    size_t size = 0;
    snprintf(folder, sizeof folder, "%s/plugins/triton_like/kernels", top ? top : ".");
    ck_assert_msg(sources_init(&sources, folder, name, &test_error) == ATTN_OK, "%s", test_message);
    for (int i = 0; i < constants->count; i++)
        options[num_options++] = constants->text[i];
    ck_assert_int_eq(nvrtc->nvrtcCreateProgram(&program, sources.source, name, sources.num_headers,
                                               (const char *const *)sources.headers, sources.names),
                     0);
    int result = nvrtc->nvrtcCompileProgram(program, num_options, options);
    nvrtc->nvrtcGetProgramLogSize(program, &size);
    if (size < sizeof log)
        nvrtc->nvrtcGetProgramLog(program, log);
    ck_assert_msg(result == 0, "%s: %s", name, log);
    ck_assert_int_eq(nvrtc->nvrtcGetCUBINSize(program, &size), 0);
    ck_assert_uint_gt(size, 1000);
    nvrtc->nvrtcDestroyProgram(&program);
    sources_finish(&sources);
}

/* A sample of what kernels are specialised by: every dtype of each operand, both conversions of
 * fp8, even and odd dimensions, the smallest and the largest, vectors and none, every feature, both
 * variants, the least device and Hopper. */
static const struct specimen {
    attn_dtype q, kv, out;
    int32_t dim, v_dim, ratio, page;
    int features; /* ALiBi, sinks, window, chunk, cap */
    int variant, precise;
    const char *architecture;
} specimens[] = {
    {ATTN_BF16, ATTN_BF16, ATTN_BF16, 128, 128, 4, 16, 0, VARIANT_PLAIN, 1, "sm_90"},
    {ATTN_F16, ATTN_FP8_E5M2, ATTN_F32, 72, 33, 7, 3, 1, VARIANT_CUSTOM, 0, "sm_80"},
    {ATTN_BF16, ATTN_FP8_E4M3, ATTN_BF16, 128, 128, 8, 64, 0, VARIANT_PLAIN, 1, "sm_90"},
    {ATTN_F16, ATTN_FP8_E4M3, ATTN_F16, 64, 64, 1, 1, 0, VARIANT_CUSTOM, 1, "sm_80"},
    {ATTN_BF16, ATTN_FP8_E4M3, ATTN_F32, 256, 256, 2, 16, 1, VARIANT_CUSTOM, 1, "sm_90"},
    {ATTN_F16, ATTN_F16, ATTN_F16, 40, 40, 13, 16, 0, VARIANT_CUSTOM, 1, "sm_80"},
    {ATTN_BF16, ATTN_BF16, ATTN_F32, 16, 256, 16, 1, 1, VARIANT_PLAIN, 0, "sm_90"},
    {ATTN_BF16, ATTN_FP8_E5M2, ATTN_F16, 17, 96, 1, 5, 1, VARIANT_PLAIN, 1, "sm_80"},
    {ATTN_BF16, ATTN_BF16, ATTN_BF16, 512, 512, 8, 16, 0, VARIANT_PLAIN, 0, "sm_90"},
    {ATTN_F16, ATTN_FP8_E4M3, ATTN_F16, 264, 64, 4, 16, 1, VARIANT_CUSTOM, 1, "sm_80"},
};

LOOP_OF(nvrtc, kernels_compile, 0, COUNT(specimens))
{
    static const char *const names[] = {"extend.cu", "decode.cu", "save_kv.cu"};
    const struct specimen *specimen = &specimens[_i];
    const nvrtc_api *nvrtc = NULL;
    if (nvrtc_api_get(&nvrtc, &test_error) != ATTN_OK) {
        printf("# SKIP kernels_compile: %s\n", test_message);
        return;
    }
    test_problem t;
    triton_group group;
    kernel_constants constants;
    char architecture[64];
    make_decode_problem(&t);
    t.group.flags = specimen->features ? ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI : 0;
    t.group.window_left = specimen->features ? 100 : -1;
    t.group.attention_chunk = specimen->features ? 64 : 0;
    t.group.logit_cap = specimen->features ? 30.0f : 0.0f;
    t.group.head_dim = specimen->dim;
    t.group.v_head_dim = specimen->v_dim;
    t.group.num_q_heads = t.group.num_kv_heads * specimen->ratio;
    t.group.kv_scale_granularity = (uint32_t)(_i % 2 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR);
    t.problem.q_dtype = specimen->q;
    t.problem.kv_dtype = specimen->kv;
    t.problem.out_dtype = specimen->out;
    t.problem.page_size = specimen->page;
    triton_group_init(&group, &t.problem);
    const triton_options options = {.split_tile = 256,
                                    .reduce_in_fp32 = specimen->precise,
                                    .split_probabilities = specimen->precise};
    kernel_shape shape = triton_shape(&group, specimen->variant, 0);
    triton_constants(&group, specimen->variant, &shape, &options, &constants);
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", specimen->architecture);
    for (int i = 0; i < (_i < 2 ? 3 : 2); i++)
        compile(nvrtc, names[i], &constants, architecture);
}

GROUP(any_machine, .set_up_once = open_plugin);
GROUP(nvrtc, .timeout = 300, .tags = "compiler");
TESTS("triton_like");
