/* SPDX-License-Identifier: Apache-2.0
 *
 * check_flashinfer_like.c: flashinfer_like on any machine: what query says, what create says where
 * something is missing, how much memory it wants, what is launched. Plans are check_fi_plan.c's
 * matter; what is computed is that of the conformance suite, on the fake driver and on a GPU.
 */
#include "plugins/common/cuda/elements.cuh"
#include "plugins/flashinfer_like/tests/fi_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

#include <string.h>

static void open_plugin(void)
{
    open_plugin_of("flashinfer_like");
}

/* ---- Query ----------------------------------------------------------------------------------- */

TEST_OF(any_machine, query_accepts)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    test_problem plain;
    make_problem(&plain);
    ck_assert_int_eq(test_type->query(test_type, NULL, NULL, &plain.problem, &verdict, &test_error),
                     ATTN_OK);
    ck_assert(verdict.supported);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);
    ck_assert_int_eq(verdict.graph_seq_len_fill, 0);
    ck_assert_uint_gt(verdict.device_bytes, 0);
    static const int32_t dims[] = {64, 80, 96, 128, 192, 256, 512};
    static const int32_t pages[] = {1, 7, 16, 24, 64, 65536};
    for (int i = 0; i < 7; i++)
        EXPECT(0, t->group.head_dim = t->group.v_head_dim = dims[i]);
    for (int i = 0; i < 6; i++)
        EXPECT(0, t->problem.page_size = pages[i]);
    EXPECT(0, t->group.head_dim = 192; t->group.v_head_dim = 128);
    EXPECT(0, t->problem.q_dtype = t->problem.kv_dtype = t->problem.out_dtype = ATTN_F16);
    EXPECT(0, t->problem.out_dtype = ATTN_F32);
    EXPECT(0, t->problem.kv_layout = ATTN_LAYOUT_KV_HND);
    EXPECT(0, t->group.window_left = 127; t->group.window_right = 5);
    EXPECT(0, t->group.attention_chunk = 8192);
    EXPECT(0, t->group.logit_cap = 50; t->group.flags = ATTN_GROUP_HAS_SINKS);
    EXPECT(0, t->group.flags = ATTN_GROUP_HAS_ALIBI);
    EXPECT(0, t->group.attn_type = ATTN_TYPE_ENCODER_ONLY; t->problem.kv_layout = NULL;
           t->problem.page_size = 0);
    EXPECT(0, t->bounds.mask_kinds = (1 << ATTN_MASK_COUNT) - 1);
    EXPECT(0, t->bounds.uses = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM |
                               ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_LSE |
                               ATTN_USES_OMIT_SINK);
    EXPECT(0, t->layer.flags = ATTN_LAYER_KV_READ_ONLY);
    EXPECT(0, t->group.attn_type = ATTN_TYPE_CROSS; t->group.window_right = -1);
    EXPECT(0, t->device.sm = 80);
    EXPECT(0, t->device.sm = 86; t->device.shared_memory = 99 << 10);
    EXPECT(0, t->device.sm = 100);
}

TEST_OF(any_machine, query_refuses)
{
    EXPECT(FIELD(DEVICE_TYPE) | FIELD(DEVICE_SM), t->device.type = ATTN_DEVICE_CPU;
           t->device.sm = 0);
    ck_assert_str_eq(reasons[1].accepted, "80..999");
    ck_assert_uint_eq(reasons[1].code, ATTN_REASON_ARCH);
    EXPECT(FIELD(DEVICE_SM), t->device.sm = 75);
    EXPECT(FIELD(DEVICE_SHARED_MEMORY), t->device.sm = 86; t->device.shared_memory = 99 << 10;
           t->group.head_dim = t->group.v_head_dim = 256);
    EXPECT(FIELD(DEVICE_SHARED_MEMORY) | FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->device.sm = 86;
           t->device.shared_memory = 99 << 10; t->group.head_dim = t->group.v_head_dim = 72);
    EXPECT(FIELD(DEVICE_SHARED_MEMORY) | FIELD(KV_DTYPE), t->device.sm = 86;
           t->device.shared_memory = 99 << 10; t->group.head_dim = t->group.v_head_dim = 192;
           t->problem.kv_dtype = ATTN_F16);
    EXPECT(FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->device.sm = 80;
           t->group.head_dim = t->group.v_head_dim = 512);
    ck_assert_str_eq(reasons[0].accepted, "64, 80, 96, 128, 192, 256");
    EXPECT(FIELD(ATTN_TYPE), t->group.attn_type = ATTN_TYPE_COUNT);
    EXPECT(FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->group.head_dim = t->group.v_head_dim = 72);
    ck_assert_str_eq(reasons[0].accepted, "64, 80, 96, 128, 192, 256, 512");
    ck_assert_str_eq(reasons[1].accepted, "64, 80, 96, 128, 192, 256, 512");
    EXPECT(FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->group.head_dim = t->group.v_head_dim = 80;
           t->problem.kv_dtype = ATTN_FP8_E4M3;
           t->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD);
    ck_assert_str_eq(reasons[0].accepted, "64, 96, 128, 192, 256");
    EXPECT(FIELD(V_HEAD_DIM), t->group.v_head_dim = 64);
    ck_assert_str_eq(reasons[0].accepted, "128");
    EXPECT(FIELD(V_HEAD_DIM), t->group.head_dim = 192; t->group.v_head_dim = 64);
    ck_assert_str_eq(reasons[0].accepted, "192, 128");
    EXPECT(FIELD(HEAD_DIM), t->group.head_dim = 72);
    ck_assert_str_eq(reasons[0].accepted, "128, 192");
    EXPECT(FIELD(Q_DTYPE) | FIELD(KV_DTYPE), t->problem.q_dtype = t->problem.kv_dtype = ATTN_F32);
    EXPECT(FIELD(KV_DTYPE), t->problem.kv_dtype = ATTN_F16);
    ck_assert_str_eq(reasons[0].accepted, "bf16, fp8_e4m3, fp8_e5m2");
    EXPECT(0, t->problem.kv_dtype = ATTN_FP8_E5M2;
           t->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD);
    EXPECT(FIELD(SCALE_GRANULARITY), t->problem.kv_dtype = ATTN_FP8_E4M3);
    ck_assert_str_eq(reasons[0].accepted, "per_tensor, per_head");
    EXPECT(FIELD(SCALE_GRANULARITY), t->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR);
    EXPECT(FIELD(KV_LAYOUT), t->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT);
    EXPECT(FIELD(USES), t->bounds.uses = 1u << 30 | ATTN_USES_POSITIONS);
}

/* What query says with one option given. */
static attn_verdict ask_with(const test_problem *t, const char *key, int64_t integer)
{
    const attn_option_value value = {
        .struct_size = sizeof value, .key = key, .integer = integer, .text = "", .place = "test"};
    const attn_options given = {.struct_size = sizeof given, .num_values = 1, .values = &value};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 16, .reasons = reasons};
    for (int i = 0; i < 16; i++)
        reasons[i] = (attn_reason){.struct_size = sizeof reasons[0]};
    ck_assert_int_eq(test_type->query(test_type, &given, NULL, &t->problem, &verdict, &test_error),
                     ATTN_OK);
    return verdict;
}

TEST_OF(any_machine, query_has_tensor_cores_alone)
{
    test_problem t;
    make_problem(&t);
    ck_assert(ask_with(&t, "use_tensor_cores", TENSOR_CORES_AUTO).supported);
    ck_assert(ask_with(&t, "use_tensor_cores", TENSOR_CORES_ALWAYS).supported);
    ck_assert(!ask_with(&t, "use_tensor_cores", TENSOR_CORES_NEVER).supported);
    ck_assert_uint_eq(reasons[0].field, ATTN_FIELD_OPTION);
    ck_assert_str_eq(reasons[0].accepted, "auto, always");
}

/* Promised where it is asked for, by a problem or by the option. */
TEST_OF(any_machine, query_tells_of_invariance)
{
    test_problem t;
    make_problem(&t);
    const uint32_t always = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_SM_BUDGET;
    ck_assert_uint_eq(ask_with(&t, "batch_invariant", 0).traits, always);
    ck_assert_uint_eq(ask_with(&t, "batch_invariant", 1).traits,
                      always | ATTN_TRAIT_BATCH_INVARIANT);
    t.problem.required_traits = ATTN_TRAIT_BATCH_INVARIANT;
    ck_assert_uint_eq(ask_with(&t, "batch_invariant", 0).traits,
                      always | ATTN_TRAIT_BATCH_INVARIANT);
    ck_assert(ask_with(&t, "split_tile_size", 2048).supported);
    ck_assert(!ask_with(&t, "split_tile_size", 1000).supported);
    ck_assert_uint_eq(reasons[0].field, ATTN_FIELD_OPTION);
    /* Splits of more keys are fewer, and so is their memory. */
    t.bounds.max_kv_len = 100000;
    ck_assert_uint_gt(ask_with(&t, "split_tile_size", 512).device_bytes,
                      ask_with(&t, "split_tile_size", 4096).device_bytes);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* A line of the table, by its kernel's name: "fi_attend_many_d128" is "d128". */
static void expect_kernel(int kernel, uint32_t shape, const char *macro, const char *type,
                          const char *codes)
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    const char *line = strstr(fi_shapes[shape].kernels[kernel].name, "_d") + 1;
    char path[4096], text[4096] = "", expected[256];
    snprintf(path, sizeof path, "%s/plugins/flashinfer_like/kernels/%s_%s_%s%s%s.cu",
             top ? top : ".", fi_is_prefill(kernel) ? "prefill" : "attend", line, type,
             codes ? "_" : "", codes ? codes : "");
    snprintf(expected, sizeof expected, "%s(%s, %s%s%s)", macro, line, type, codes ? ", " : "",
             codes ? codes : "");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    ck_assert_msg(strstr(text, expected), "%s: accepted %s", path, expected);
}

/* Each line of the table has its kernels; their numbers are the line's. */
TEST_OF(any_machine, shapes_are_those_of_the_kernels)
{
    static const char *const types[] = {"bf16", "f16"}, *const codes[] = {"e4m3", "e5m2"};
    static const char *const macros[KERNEL_COUNT] = {[KERNEL_ATTEND] = "FI_ATTEND",
                                                     [KERNEL_ATTEND_MANY] = "FI_ATTEND_MANY",
                                                     [KERNEL_PREFILL] = "FI_PREFILL",
                                                     [KERNEL_PREFILL_HALF] = "FI_PREFILL_HALF",
                                                     [KERNEL_CODES] = "FI_ATTEND_CODES",
                                                     [KERNEL_CODES_MANY] = "FI_ATTEND_CODES_MANY",
                                                     [KERNEL_PREFILL_CODES] = "FI_PREFILL_CODES",
                                                     [KERNEL_PREFILL_HALF_CODES] =
                                                         "FI_PREFILL_HALF_CODES"};
    for (uint32_t i = 0; i < fi_num_shapes; i++)
        for (int k = 0; k < KERNEL_COUNT; k++) {
            const fi_kernel *kernel = &fi_shapes[i].kernels[k];
            for (int n = 0; kernel->threads > 0 && n < 2; n++) {
                const int is_wide = fi_is_wide(&fi_shapes[i]);
                expect_kernel(k, i, is_wide ? "FI_PREFILL_WIDE" : macros[k], types[n],
                              k < KERNEL_CODES ? NULL : codes[0]);
                if (k == KERNEL_PREFILL && fi_shapes[i].dim <= FI_SLOPES_DIM)
                    expect_kernel(k, i, "FI_PREFILL_SLOPES", types[n], NULL);
                if (k >= KERNEL_CODES)
                    expect_kernel(k, i, macros[k], types[n], codes[1]);
            }
        }
}

TEST_OF(any_machine, create_refuses)
{
    expect_create_refuses();
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Larger bounds never want less; a byte less is refused. */
TEST_OF(any_machine, memory_grows_with_bounds)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    attn_memory_size before = {.struct_size = sizeof before}, size = before;
    for (int32_t n = 64; n <= 1 << 20; n *= 4) {
        attn_bounds bounds = t.of.bounds;
        bounds.max_seqs = bounds.max_tokens = n;
        bounds.max_q_len = n;
        ck_assert_int_eq(
            fi_metadata_size(t.instance, ATTN_METADATA_EAGER, &bounds, &size, &test_error),
            ATTN_OK);
        uint64_t plans = size.size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA)];
        ck_assert_uint_gt(plans, before.size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA)]);
        for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
            ck_assert_uint_ge(size.size[region], before.size[region]);
        before = size;
    }
    expect_memory_needed(&t, ATTN_METADATA_EAGER);
    run_end(&t);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The last launch is that of this kernel, as the table has it, and reads what was planned. */
static void expect_attention(const test_run *t, int kernel, int programmatic)
{
    const fi_kernel *wanted = &t->own->group.shape->kernels[kernel];
    const seen_launch *seen = &launches[num_launches - 1];
    fi_grid grid = fi_find_grid(&t->own->group, kernel, &t->of.bounds);
    ck_assert_str_eq(seen->name, wanted->name);
    ck_assert_uint_eq(seen->blocks, grid.lanes * grid.columns);
    ck_assert_uint_eq(seen->threads, wanted->threads);
    ck_assert_uint_eq(seen->shared, wanted->shared);
    ck_assert_int_eq(seen->programmatic, programmatic);
    ck_assert_int_eq(seen->params->call.lanes, (int)grid.lanes);
    ck_assert_int_eq(seen->params->call.ratio, TEST_Q_HEADS / TEST_KV_HEADS);
    ck_assert_float_eq_tol(seen->params->call.scale, 0.125f * 1.442695f, 1e-6f);
}

/* The smaller of max_sms and what the device has. */
TEST_OF(any_machine, launches_keep_to_max_sms)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.max_sms = 3;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.own->group.num_sms = 3;
    fi_grid three = fi_find_grid(&t.own->group, KERNEL_ATTEND, &of.bounds);
    t.own->group.num_sms = TEST_SMS;
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    ck_assert_uint_eq(launches[1].blocks, three.lanes * three.columns);
    ck_assert_int_eq(launches[0].params->plan.columns, (int)three.columns);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 300, 200));
    ck_assert_uint_eq(launches[1].blocks, 3 * SAVE_BLOCKS);
    ck_assert_uint_le(launches[2].blocks, 3);
    run_end(&t);
}

/* A block of prefill has a ramp; others are as without slopes. */
TEST_OF(any_machine, prefill_of_slopes)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    fi_group group = t.own->group;
    const fi_kernel *kernels = group.shape->kernels;
    group.base.flags |= ATTN_GROUP_HAS_ALIBI;
    ck_assert_uint_eq(fi_shared_bytes(&group, KERNEL_PREFILL),
                      kernels[KERNEL_PREFILL].shared + 128 * 128);
    ck_assert_uint_eq(fi_shared_bytes(&group, KERNEL_ATTEND), kernels[KERNEL_ATTEND].shared);
    group.base.flags = 0;
    ck_assert_uint_eq(fi_shared_bytes(&group, KERNEL_PREFILL), kernels[KERNEL_PREFILL].shared);
    run_end(&t);
}

/* The new key goes into the cache on the way; the first kernel after a plan waits for it. */
TEST_OF(any_machine, decode_saves_on_its_way)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches("plan fi_attend_many_d128");
    expect_attention(&t, KERNEL_ATTEND_MANY, 0);
    ck_assert_uint_eq(launches[0].blocks, 1);
    ck_assert_uint_eq(launches[0].threads, FI_PLAN_THREADS);
    ck_assert_int_eq(launches[0].programmatic, 0);
    ck_assert_int_eq(launches[1].params->call.save, 1);
    ck_assert_ptr_eq(launches[1].params->call.plan, launches[0].params->plan.plan);
    ck_assert_ptr_eq(launches[1].params->call.tiles, launches[0].params->plan.tiles);
    ck_assert_ptr_eq(launches[1].params->call.starts, launches[0].params->plan.starts);
    ck_assert_int_eq(launches[0].params->plan.rows, FI_ROWS);
    num_launches = 0;
    need(fi_forward_decode(t.metadata, TEST_LAYER, &t.args, NULL, &test_error));
    expect_launches("fi_attend_many_d128");
    expect_attention(&t, KERNEL_ATTEND_MANY, 1);
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    expect_attention(&t, KERNEL_ATTEND, 0);
    t.args.flags = 0;
    t.operands[ATTN_ROLE_K] = t.operands[ATTN_ROLE_V] = NULL; /* all keys are in the cache */
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    expect_launches("plan fi_attend_d128");
    ck_assert_int_eq(launches[1].params->call.save, 0);
    run_end(&t);
}

/* Rows decide on the kernel: few of a KV head, or more than SHORT_MOST. */
TEST_OF(any_machine, extend_saves_few_on_its_way)
{
    test_run t;
    int ratio = TEST_Q_HEADS / TEST_KV_HEADS, short_rows = SHORT_MOST / ratio;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 2, 2));
    expect_launches("plan fi_attend_d128");
    expect_attention(&t, KERNEL_ATTEND, 0);
    ck_assert_int_eq(launches[1].params->call.save, 0);
    ck_assert_int_eq(launches[1].params->call.saves, 1);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 300, short_rows + 1));
    expect_launches("plan fi_prefill_d128");
    expect_attention(&t, KERNEL_PREFILL, 0);
    ck_assert_int_eq(launches[0].params->plan.rows, FI_PREFILL_ROWS);
    ck_assert_int_eq(launches[1].params->call.saves, 1);
    t.args.flags = 0;
    need(fi_forward_extend(t.metadata, TEST_LAYER, &t.args, NULL, &test_error));
    ck_assert_int_eq(launches[2].params->call.saves, 0);
    run_end(&t);
}

/* Many rows, rows that lie anywhere, and those of many items have a launch of their own. */
TEST_OF(any_machine, extend_saves_many_before)
{
    test_run t;
    int32_t q_len = SHORT_ROWS;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, q_len));
    expect_launches("plan save fi_prefill_d128");
    expect_attention(&t, KERNEL_PREFILL, 0);
    /* A warp for each of 600 new rows and its heads. */
    ck_assert_uint_eq(launches[1].blocks, 600 * TEST_KV_HEADS * 32 / FI_SAVE_THREADS);
    ck_assert_uint_eq(launches[1].threads, FI_SAVE_THREADS);
    ck_assert_int_eq(launches[2].params->call.saves, 0);
    num_launches = 0;
    need(fi_forward_extend(t.metadata, TEST_LAYER, &t.args, NULL, &test_error));
    expect_launches("save fi_prefill_d128");
    expect_attention(&t, KERNEL_PREFILL, 1);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 12, FI_ROWS / (TEST_Q_HEADS / TEST_KV_HEADS)));
    expect_launches("plan save fi_attend_many_d128");
    expect_attention(&t, KERNEL_ATTEND_MANY, 0);
    t.k.data = (char *)t.k.data + 2;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 20, q_len));
    expect_launches("plan save fi_prefill_d128");
    run_end(&t);
}

/* Rows that two tiles of FI_ROWS have, which both read the keys: worth it for few sequences. */
TEST_OF(any_machine, two_tiles_or_half_a_tile)
{
    test_run t;
    int ratio = TEST_Q_HEADS / TEST_KV_HEADS, one = FI_ROWS / ratio, two = one + 1;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * one, one));
    expect_launches("plan save fi_attend_many_d128");
    need(run_batch(&t, ATTN_MODE_EXTEND, 2, 2 * two, two));
    expect_launches("plan save fi_attend_many_d128");
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * two, two));
    expect_launches("plan fi_prefill_half_d128");
    expect_attention(&t, KERNEL_PREFILL_HALF, 0);
    ck_assert_int_eq(launches[0].params->plan.rows, FI_HALF_ROWS);
    need(run_batch(&t, ATTN_MODE_MIXED, 6, 6 * two, two));
    expect_launches("plan fi_prefill_half_d128");
    t.own->group.options.half_tiles = WHEN_NEVER;
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * two, two));
    expect_launches("plan fi_prefill_d128");
    run_end(&t);
}

/* `always` is for any rows that half a tile has, but for DECODE; wide heads have no such tiles. */
TEST_OF(any_machine, half_tiles)
{
    test_problem wide;
    test_run t;
    int most = FI_HALF_ROWS / (TEST_Q_HEADS / TEST_KV_HEADS);
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    t.own->group.options.half_tiles = WHEN_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 2, 2));
    expect_launches("plan fi_prefill_half_d128");
    ck_assert_int_eq(launches[0].params->plan.several, FI_SEVERAL_MANY);
    need(run_batch(&t, ATTN_MODE_EXTEND, 2, 2 * most, most));
    expect_launches("plan fi_prefill_half_d128");
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, most + 1, most + 1));
    expect_launches("plan fi_prefill_d128");
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    expect_launches("plan fi_attend_d128");
    run_end(&t);
    make_problem(&wide);
    wide.group.head_dim = wide.group.v_head_dim = 256;
    run_begin(&t, &wide, ATTN_METADATA_EAGER);
    ck_assert(!fi_has_kernel(&t.own->group, KERNEL_PREFILL_HALF));
    run_end(&t);
}

static void expect_plan(int launch, int whose, int split)
{
    ck_assert_int_eq(launches[launch].params->plan.whose, whose);
    ck_assert_int_eq(launches[launch].params->plan.split, split);
}

/* Where a row's bits must not depend on the batch, its own sequence tells the kernel, and splits
 * are fixed; what sequences share is left to each. */
TEST_OF(any_machine, invariant_batches)
{
    test_problem of;
    test_run t;
    int ratio = TEST_Q_HEADS / TEST_KV_HEADS, few = SHORT_ROWS / ratio;
    make_problem(&of);
    of.problem.required_traits = ATTN_TRAIT_BATCH_INVARIANT;
    of.bounds.uses |= ATTN_USES_SHARED_PREFIX;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    ck_assert_int_eq(fi_num_levels(&t.own->group, &of.bounds), 0);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches("plan fi_attend_d128");
    expect_plan(0, FI_ALL, 1024 / FI_KEYS);
    ck_assert_int_eq(launches[1].params->call.split, 1024 / FI_KEYS);
    ck_assert_int_eq(launches[1].params->call.most_parts, 4); /* of 4000 keys */
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * few, few));
    expect_launches("plan save fi_attend_d128");
    expect_plan(0, FI_ALL, 1024 / FI_KEYS);
    need(run_batch(&t, ATTN_MODE_MIXED, 6, 6 * few + 6, few + 1));
    expect_launches("plan plan save fi_attend_d128 fi_prefill_d128");
    expect_plan(0, FI_MANY, 1 << 30);
    expect_plan(1, FI_FEW, 1024 / FI_KEYS);
    ck_assert_int_eq(launches[1].params->plan.rows, FI_ROWS);
    ck_assert_ptr_eq(launches[3].params->call.tiles, launches[1].params->plan.tiles);
    ck_assert_ptr_eq(launches[4].params->call.tiles, launches[0].params->plan.tiles);
    ck_assert_int_eq(launches[3].params->call.level, -1);
    ck_assert_int_eq(launches[4].params->call.split, 0);
    ck_assert_int_eq(launches[4].programmatic, 1);
    run_end(&t);
}

TEST_OF(any_machine, encoders_have_no_cache)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    of.group.window_right = -1;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 2, 300, 200));
    expect_launches("plan fi_prefill_d128");
    ck_assert_ptr_null(launches[1].params->call.batch.kv_lens);
    run_end(&t);
}

/* Boxes of 16 keys, where pages have whole ones and rows begin at multiples of 16 bytes. */
TEST_OF(any_machine, decode_reads_boxes)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    const fi_call *call = &launches[1].params->call;
    ck_assert_int_eq(call->has_maps, 1);
    seen_map map = read_map(&call->k_map);
    const uint64_t shape[4] = {TEST_DIM, TEST_PAGE, TEST_KV_HEADS, TEST_PAGES};
    ck_assert_ptr_eq(map.data, t.k_cache.data);
    ck_assert_mem_eq(map.shape, shape, sizeof shape);
    ck_assert_uint_eq(map.box[0], 64);
    ck_assert_uint_eq(map.box[1], FI_GROUP);
    ck_assert_uint_eq(map.strides[0], 2 * TEST_KV_HEADS * TEST_DIM);
    ck_assert_uint_eq(map.strides[1], 2 * TEST_DIM);
    ck_assert_ptr_eq(read_map(&call->v_map).data, t.v_cache.data);
    t.k_cache.byte_offset = 2;
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    ck_assert_int_eq(launches[1].params->call.has_maps, 0);
    run_end(&t);
}

/* Heads of 512 have one kernel, whatever the batch: of sequences that share keys, too. */
TEST_OF(any_machine, wide_heads_have_one_kernel)
{
    test_problem wide;
    test_run t;
    make_problem(&wide);
    wide.group.head_dim = wide.group.v_head_dim = 512;
    wide.bounds.uses |= ATTN_USES_SHARED_PREFIX;
    run_begin(&t, &wide, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches("plan fi_prefill_d512");
    ck_assert_uint_eq(launches[1].threads, 512);
    ck_assert_int_eq(launches[1].params->call.save, 0);
    ck_assert_int_eq(launches[1].params->call.saves, 1);
    ck_assert_int_eq(launches[0].params->plan.rows, FI_WIDE_ROWS);
    ck_assert_int_eq(launches[0].params->plan.unit, 32);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 300, SHORT_ROWS));
    expect_launches("plan save fi_prefill_d512");
    ck_assert_int_eq(launches[2].params->call.box_keys, 16);
    run_end(&t);
}

/* Neither is there a copy engine, nor does a kernel wait for the one before it, before sm_90. */
TEST_OF(any_machine, earlier_devices_have_kernels_of_their_own)
{
    test_problem earlier;
    test_run t;
    make_problem(&earlier);
    earlier.device.sm = 86;
    run_begin(&t, &earlier, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches("plan fi_attend_d128");
    expect_attention(&t, KERNEL_ATTEND, 0);
    ck_assert_uint_eq(launches[1].threads, 256);
    ck_assert_int_eq(launches[1].params->call.has_maps, 0);
    num_launches = 0;
    need(fi_forward_decode(t.metadata, TEST_LAYER, &t.args, NULL, &test_error));
    expect_attention(&t, KERNEL_ATTEND, 0);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 300, SHORT_ROWS));
    expect_launches("plan fi_prefill_d128");
    expect_attention(&t, KERNEL_PREFILL, 0);
    const fi_call *call = &launches[1].params->call;
    ck_assert_int_eq(call->has_maps + call->has_new_maps + call->has_out_map, 0);
    run_end(&t);
}

/* A cache of e4m3 has kernels of its own, and its boxes are bytes. What was saved before is
 * read from the cache; k and v, which have yet to be rounded, never come in boxes. */
TEST_OF(any_machine, fp8_has_kernels_of_its_own)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.kv_dtype = ATTN_FP8_E4M3;
    of.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1));
    expect_launches("plan fi_attend_d128");
    expect_attention(&t, KERNEL_CODES, 0);
    const fi_call *call = &launches[1].params->call;
    ck_assert_int_eq(call->kv_dtype, ELEMENT_E4M3);
    ck_assert_int_eq(call->dtype, ELEMENT_BF16);
    ck_assert_int_eq(call->scale_stride, 1);
    ck_assert_float_eq(call->operands.v_scales[1], 0.25f);
    ck_assert_int_eq(call->save, 1);
    ck_assert_int_eq(call->saved, 0);
    ck_assert_int_eq(call->has_new_maps, 0);
    ck_assert_uint_eq(read_map(&call->k_map).box[0], 128);
    ck_assert_uint_eq(read_map(&call->k_map).strides[1], TEST_DIM);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 300, 200));
    expect_launches("plan save fi_prefill_d128");
    expect_attention(&t, KERNEL_PREFILL_CODES, 0);
    ck_assert_int_eq(launches[2].params->call.saved, 1);
    ck_assert_int_eq(launches[0].params->plan.hands, FI_HANDS);
    const int most = FI_HALF_ROWS / (TEST_Q_HEADS / TEST_KV_HEADS);
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * most, most));
    expect_launches("plan save fi_prefill_half_d128");
    expect_attention(&t, KERNEL_PREFILL_HALF_CODES, 0);
    run_end(&t);
    of.problem.page_size = 64; /* its keys all come in boxes, and new ones are saved on the way */
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 6 * most, most));
    expect_launches("plan fi_prefill_half_d128");
    ck_assert_int_eq(launches[1].params->call.saves, 1);
    ck_assert_int_eq(launches[1].params->call.saved, 0);
    run_end(&t);
}

TEST_OF(any_machine, graphs_go_by_bounds)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_GRAPH);
    static const int32_t batches[][3] = {{6, 600, 500}, {1, 1, 1}, {3, 40, 30}};
    for (int i = 0; i < 3; i++) {
        need(run_batch(&t, ATTN_MODE_EXTEND, batches[i][0], batches[i][1], batches[i][2]));
        expect_launches("plan save fi_prefill_d128");
        expect_attention(&t, KERNEL_PREFILL, 0);
        const int *counts = launches[2].params->call.batch.counts;
        ck_assert_ptr_nonnull(counts);
        ck_assert_int_eq(counts[CALL_COUNT_SEQS], batches[i][0]);
        ck_assert_int_eq(counts[CALL_COUNT_TOKENS], batches[i][1]);
    }
    run_end(&t);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

/* Keys that are new come from k and v; without host arrays the host does not know which. */
TEST_OF(any_machine, prompts_go_by_what_is_cached)
{
    static const int32_t rows[] = {100, 300, 500, 700}, keys[] = {200, 201, 200};
    const attn_code_paths *paths = fi_get_extension(NULL, ATTN_EXTENSION_CODE_PATHS);
    int64_t none[FI_NUM_PATHS];
    test_run t;
    ck_assert_ptr_null(fi_get_extension(NULL, "attn.code_paths"));
    ck_assert_uint_eq(paths->num_paths, FI_NUM_PATHS);
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    ck_assert_int_eq(paths->rows(t.metadata, TEST_LAYER, none, &test_error), ATTN_BAD_STATE);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 200));
    EXPECT_ROWS(&t, FI_PATH_UNTOLD, 600);
    t.batch.q_indptr.host = rows;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 200));
    EXPECT_ROWS(&t, FI_PATH_UNTOLD, 600);
    t.kv.kv_lens.host = keys;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 200));
    EXPECT_ROWS(&t, FI_PATH_RAGGED, 400, FI_PATH_PAGED, 200);
    t.batch.num_real_seqs = 2; /* and one of padding */
    t.batch.num_real_tokens = 400;
    need(fi_init_forward_metadata(t.metadata, &t.batch, NULL, &test_error));
    EXPECT_ROWS(&t, FI_PATH_RAGGED, 200, FI_PATH_PAGED, 200);
    t.layer.kv_read_only = 1; /* called without k and v */
    EXPECT_ROWS(&t, FI_PATH_RAGGED, 0, FI_PATH_PAGED, 400);
    t.layer.kv_read_only = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 12, 4));
    EXPECT_ROWS(&t, FI_PATH_FEW, 12);
    need(run_batch(&t, ATTN_MODE_IDLE, 0, 0, 0));
    EXPECT_ROWS(&t, FI_PATH_FEW, 0, FI_PATH_PAGED, 0);
    ck_assert_int_eq(paths->rows(t.metadata, TEST_LAYER + 1, none, &test_error),
                     ATTN_INVALID_ARGUMENT);
    run_end(&t);
}

TEST_OF(any_machine, encoders_read_what_came)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    of.group.window_right = -1;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 2, 300, 200));
    EXPECT_ROWS(&t, FI_PATH_RAGGED, 300);
    run_end(&t);
}

/* Few rows beside many are counted by sequence, as they are planned. */
TEST_OF(any_machine, invariant_rows_go_by_sequence)
{
    static const int32_t rows[] = {0, 200, 201, 401}, keys[] = {200, 300, 400};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.required_traits = ATTN_TRAIT_BATCH_INVARIANT;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.batch.q_indptr.host = rows;
    t.kv.kv_lens.host = keys;
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 401, 200));
    EXPECT_ROWS(&t, FI_PATH_FEW, 1, FI_PATH_RAGGED, 200, FI_PATH_PAGED, 200);
    run_end(&t);
}

/* 4 sequences of 8 share keys, two of these more of them, and 2 others on the inner level alone. */
static attn_status plan_shared(test_run *t, int has_host)
{
    static const int32_t indptr[2][5] = {{0, 4, 8}, {0, 2, 4, 6, 8}};
    static const int32_t lens[2][4] = {{96, 0}, {144, 96, 96, 0}};
    static attn_shared_prefix levels[2];
    attn_status status = run_batch(t, ATTN_MODE_DECODE, 8, 8, 1);
    for (int l = 0; l < 2; l++)
        levels[l] = (attn_shared_prefix){
            .struct_size = sizeof levels[l],
            .num_groups = l == 0 ? 2 : 4,
            .seq_indptr = {has_host ? indptr[l] : NULL, indptr[l]},
            .prefix_len = {has_host ? lens[l] : NULL, lens[l]},
        };
    t->batch.num_prefix_levels = 2;
    t->batch.shared_prefix = levels;
    t->metadata->plan.planned = 0; /* a graph is captured with the hint */
    num_launches = 0;
    return status == ATTN_OK ? fi_init_forward_metadata(t->metadata, &t->batch, NULL, &test_error)
                             : status;
}

static void begin_shared(test_run *t, uint32_t kind, int cascade)
{
    test_problem of;
    make_problem(&of);
    of.bounds.uses |= ATTN_USES_SHARED_PREFIX;
    of.bounds.max_prefix_levels = 2;
    of.bounds.max_seqs = of.bounds.max_tokens = 8;
    run_begin(t, &of, kind);
    t->instance->options.cascade = t->own->group.options.cascade = cascade;
}

TEST_OF(any_machine, decodes_go_by_what_they_share)
{
    static const uint32_t kinds[] = {ATTN_METADATA_EAGER, ATTN_METADATA_GRAPH};
    test_run t;
    for (int k = 0; k < 2; k++) {
        begin_shared(&t, kinds[k], WHEN_ALWAYS);
        need(run_batch(&t, ATTN_MODE_DECODE, 8, 8, 1));
        EXPECT_ROWS(&t, FI_PATH_DECODE, 8);
        need(plan_shared(&t, 1));
        EXPECT_ROWS(&t, FI_PATH_CASCADE, 6, FI_PATH_DECODE, 2);
        t.batch.num_real_seqs = t.batch.num_real_tokens = 5;
        num_launches = 0;
        need(fi_init_forward_metadata(t.metadata, &t.batch, NULL, &test_error));
        EXPECT_ROWS(&t, FI_PATH_CASCADE, 5);
        need(plan_shared(&t, 0));
        EXPECT_ROWS(&t, FI_PATH_DECODE_UNTOLD, 8);
        run_end(&t);
        begin_shared(&t, kinds[k], WHEN_AUTO); /* 256 MB are not saved */
        need(plan_shared(&t, 1));
        EXPECT_ROWS(&t, FI_PATH_DECODE, 8);
        run_end(&t);
    }
}

TEST_OF(any_machine, empty_batches)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 0, 0, 0));
    expect_launches("");
    need(run_batch(&t, ATTN_MODE_IDLE, 0, 0, 0));
    expect_launches("");
    run_end(&t);
    run_begin(&t, NULL, ATTN_METADATA_GRAPH);
    need(run_batch(&t, ATTN_MODE_DECODE, 6, 6, 1));
    need(run_batch(&t, ATTN_MODE_DECODE, 0, 0, 1));
    expect_launches("plan"); /* which a replay reads */
    run_end(&t);
}

TEST_OF(any_machine, refusals)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 7, 30, 20), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 2, 601, 20), ATTN_INVALID_ARGUMENT);
    t.operands[ATTN_ROLE_Q] = NULL;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 2, 30, 20), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(test_message, "operand q"), "%s", test_message);
    ck_assert_int_eq(fi_forward_extend(t.metadata, 99, &t.args, NULL, &test_error),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(test_message, "layer_id 99"), "%s", test_message);
    run_end(&t);
}

GROUP(any_machine, .set_up_once = open_plugin);
TESTS("flashinfer_like");
