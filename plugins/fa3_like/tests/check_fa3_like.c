/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fa3_like.c: fa3_like on any machine: what query says, what create says where something is
 * missing, how sequences are cut into tiles. What is launched is check_fa3_like_plan.c's matter;
 * what is computed is that of the conformance suite, on the fake driver and on a GPU.
 */
#include "plugins/fa3_like/kernels/codes.cuh"
#include "plugins/fa3_like/kernels/plan.cuh"
#include "plugins/fa3_like/tests/fa3_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

#include <string.h>

static void open_plugin(void)
{
    open_plugin_of("fa3_like");
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
    ck_assert_uint_eq(verdict.reads_new_kv_unquantised, 0);
    ck_assert_int_eq(verdict.graph_seq_len_fill, 0);
    ck_assert_uint_gt(verdict.device_bytes, 0);
    static const int32_t dims[] = {64, 80, 96, 128, 192, 256, 512},
                         pages[] = {1, 7, 8, 16, 24, 64, 65536};
    for (int i = 0; i < 7; i++)
        EXPECT(0, t->group.head_dim = t->group.v_head_dim = dims[i]);
    for (int i = 0; i < 7; i++)
        EXPECT(0, t->problem.page_size = pages[i]);
    EXPECT(0, t->group.head_dim = 192; t->group.v_head_dim = 128);
    EXPECT(0, t->problem.q_dtype = t->problem.kv_dtype = t->problem.out_dtype = ATTN_F16);
    EXPECT(0, t->problem.kv_layout = ATTN_LAYOUT_KV_HND);
    EXPECT(0, t->group.window_left = 127; t->group.window_right = 5);
    EXPECT(0, t->group.logit_cap = 50; t->group.flags = ATTN_GROUP_HAS_SINKS);
    EXPECT(0, t->group.sm_scale = -1);
    EXPECT(0, t->group.attn_type = ATTN_TYPE_ENCODER_ONLY; t->problem.kv_layout = NULL;
           t->problem.page_size = 0);
    EXPECT(0, t->group.flags = ATTN_GROUP_HAS_ALIBI);
    EXPECT(0, t->group.attention_chunk = 8192);
    EXPECT(0, t->group.attention_chunk = 1);
    EXPECT(0, t->problem.out_dtype = ATTN_F32);
    EXPECT(0, t->problem.kv_dtype = ATTN_FP8_E4M3;
           t->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR);
    EXPECT(0, make_codes_problem(t, ATTN_SCALE_PER_TENSOR));
    EXPECT(0, make_codes_problem(t, ATTN_SCALE_PER_SEQ_HEAD); t->problem.new_kv_dtype = ATTN_BF16;
           t->problem.out_dtype = ATTN_F16; t->group.head_dim = t->group.v_head_dim = 64);
    EXPECT(0, make_codes_problem(t, ATTN_SCALE_PER_HEAD); t->problem.new_kv_dtype = ATTN_BF16;
           t->group.attn_type = ATTN_TYPE_CROSS; t->group.window_right = -1);
    EXPECT(0, t->bounds.mask_kinds = (1 << ATTN_MASK_COUNT) - 1);
    EXPECT(0, t->bounds.uses = ATTN_USES_POSITIONS | ATTN_USES_SHARED_PREFIX |
                               ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK);
    EXPECT(0, t->layer.flags = ATTN_LAYER_KV_READ_ONLY);
    EXPECT(0, t->group.attn_type = ATTN_TYPE_CROSS; t->group.window_right = -1);
}

TEST_OF(any_machine, query_refuses)
{
    EXPECT(FIELD(DEVICE_TYPE) | FIELD(DEVICE_SM), t->device.type = ATTN_DEVICE_CPU;
           t->device.sm = 0);
    ck_assert_str_eq(reasons[1].accepted, "90");
    ck_assert_uint_eq(reasons[1].code, ATTN_REASON_ARCH);
    EXPECT(FIELD(DEVICE_SM), t->device.sm = 80);
    EXPECT(FIELD(DEVICE_SM), t->device.sm = 100);
    EXPECT(FIELD(ATTN_TYPE), t->group.attn_type = ATTN_TYPE_COUNT);
    EXPECT(FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->group.head_dim = t->group.v_head_dim = 72);
    ck_assert_str_eq(reasons[0].got, "72");
    ck_assert_str_eq(reasons[0].accepted, "64, 80, 96, 128, 192, 256, 512");
    EXPECT(FIELD(V_HEAD_DIM), t->group.v_head_dim = 64);
    ck_assert_str_eq(reasons[0].accepted, "128");
    EXPECT(FIELD(V_HEAD_DIM), t->group.head_dim = 192; t->group.v_head_dim = 64);
    ck_assert_str_eq(reasons[0].accepted, "192, 128");
    EXPECT(FIELD(HEAD_DIM), t->group.head_dim = 0);
    ck_assert_str_eq(reasons[0].accepted, "128, 192");
    EXPECT(FIELD(Q_DTYPE) | FIELD(KV_DTYPE), t->problem.q_dtype = t->problem.kv_dtype = ATTN_F32);
    EXPECT(FIELD(KV_DTYPE), t->problem.kv_dtype = ATTN_F16);
    EXPECT(0, t->problem.kv_dtype = ATTN_FP8_E5M2;
           t->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD);
    EXPECT(FIELD(KV_DTYPE), make_codes_problem(t, ATTN_SCALE_PER_HEAD);
           t->problem.kv_dtype = ATTN_FP8_E5M2);
    EXPECT(FIELD(KV_DTYPE) | FIELD(SCALE_GRANULARITY), make_codes_problem(t, ATTN_SCALE_PER_HEAD);
           t->problem.kv_dtype = ATTN_BF16; t->group.kv_scale_granularity = ATTN_SCALE_NONE);
    EXPECT(FIELD(NEW_KV_DTYPE), make_codes_problem(t, ATTN_SCALE_PER_HEAD);
           t->problem.new_kv_dtype = ATTN_F16);
    ck_assert_str_eq(reasons[0].accepted, "bf16, fp8_e4m3");
    EXPECT(FIELD(NEW_KV_DTYPE), make_codes_problem(t, ATTN_SCALE_PER_HEAD);
           t->group.attn_type = ATTN_TYPE_CROSS; t->group.window_right = -1);
    ck_assert_str_eq(reasons[0].accepted, "bf16");
    EXPECT(FIELD(INPUT_SCALE_GRANULARITY), make_codes_problem(t, ATTN_SCALE_NONE));
    EXPECT(FIELD(ATTN_TYPE), make_codes_problem(t, ATTN_SCALE_PER_HEAD);
           t->group.attn_type = ATTN_TYPE_ENCODER_ONLY);
    EXPECT(FIELD(KV_LAYOUT), t->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT);
    EXPECT(FIELD(USES), t->bounds.uses = 1u << 30 | ATTN_USES_POSITIONS);
}

/* Latents, as they are called in the expanded form. */
#define EXPECT_EXPANDED(fields, ...) EXPECT_OF(make_expanded_problem, fields, __VA_ARGS__)

TEST_OF(any_machine, query_takes_expanded_latents)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    test_problem plain;
    make_expanded_problem(&plain);
    ck_assert_int_eq(test_type->query(test_type, NULL, NULL, &plain.problem, &verdict, &test_error),
                     ATTN_OK);
    ck_assert(verdict.supported);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);
    ck_assert_uint_eq(verdict.traits, ATTN_TRAIT_SM_BUDGET);
    ck_assert_uint_gt(verdict.device_bytes, 0);
    EXPECT_EXPANDED(0, t->problem.out_dtype = ATTN_BF16);
    EXPECT_EXPANDED(0, t->problem.q_dtype = t->problem.kv_dtype = ATTN_F16);
    EXPECT_EXPANDED(0, t->problem.kv_dtype = ATTN_FP8_E4M3;
                    t->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR);
    EXPECT_EXPANDED(0, t->group.head_dim = t->group.v_head_dim = 256);
    EXPECT_EXPANDED(0, t->mla.rope_dim = 0; t->mla.nope_dim = t->group.head_dim = 128);
    EXPECT_EXPANDED(0, t->group.sm_scale = -1);
    EXPECT_EXPANDED(0, t->problem.page_size = 1);
    EXPECT_EXPANDED(0, t->layer.flags = ATTN_LAYER_KV_READ_ONLY);
    EXPECT_EXPANDED(0, t->problem.mla_expanded |= ATTN_MODE_BIT(ATTN_MODE_DECODE));
    EXPECT_EXPANDED(FIELD(MODES), t->problem.mla_expanded = 0);
    ck_assert_str_eq(reasons[0].accepted, "idle");
    EXPECT_EXPANDED(FIELD(MODES),
                    t->bounds.modes = t->problem.mla_expanded =
                        ATTN_MODE_BIT(ATTN_MODE_DECODE) | ATTN_MODE_BIT(ATTN_MODE_EXTEND));
    ck_assert_str_eq(reasons[0].accepted, "extend, idle");
    EXPECT_EXPANDED(FIELD(OUT_DTYPE), t->problem.out_dtype = ATTN_F16);
    ck_assert_str_eq(reasons[0].accepted, "f32, bf16");
    EXPECT_EXPANDED(FIELD(HEAD_DIM) | FIELD(V_HEAD_DIM), t->group.head_dim = 48;
                    t->group.v_head_dim = 24);
    EXPECT_EXPANDED(FIELD(KV_LAYOUT), t->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8);
    EXPECT_EXPANDED(FIELD(SCALE_GRANULARITY), t->problem.kv_dtype = ATTN_FP8_E4M3);
    EXPECT_EXPANDED(FIELD(ATTENTION_CHUNK), t->group.attention_chunk = 64);
    EXPECT_EXPANDED(FIELD(ALIBI), t->group.flags = ATTN_GROUP_HAS_ALIBI);
    EXPECT_EXPANDED(FIELD(MASK_KINDS), t->bounds.mask_kinds = (1 << ATTN_MASK_COUNT) - 1);
    EXPECT_EXPANDED(FIELD(USES), t->bounds.uses = ATTN_USES_POSITIONS);
    EXPECT_EXPANDED(FIELD(REQUIRED_TRAITS), t->problem.required_traits = ATTN_TRAIT_DETERMINISTIC);
    EXPECT_EXPANDED(FIELD(DEVICE_SM), t->device.sm = 100);
}

/* Equal bits are kept where tiles are not: by what is asked for, or by what there is. */
TEST_OF(any_machine, query_returns_traits)
{
    const uint32_t equal = ATTN_TRAIT_DETERMINISTIC, decode = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    const uint32_t invariant = ATTN_TRAIT_BATCH_INVARIANT;
    const struct {
        uint32_t modes, needs, flags, kept;
    } cases[] = {{~0u, 0, 0, 0},
                 {~0u, equal, 0, equal},
                 {~0u, invariant, 0, equal},
                 {decode, 0, 0, equal},
                 {~0u, 0, ATTN_GROUP_HAS_ALIBI, equal}};
    uint64_t bytes[5];
    for (int i = 0; i < 5; i++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        test_problem t;
        make_problem(&t);
        t.bounds.modes &= cases[i].modes;
        t.problem.required_traits = cases[i].needs;
        t.group.flags = cases[i].flags;
        ck_assert_int_eq(test_type->query(test_type, NULL, NULL, &t.problem, &verdict, &test_error),
                         ATTN_OK);
        ck_assert(verdict.supported);
        ck_assert_uint_eq(verdict.traits & equal, cases[i].kept);
        ck_assert_uint_eq(verdict.traits & invariant, cases[i].needs & invariant);
        ck_assert(verdict.traits & ATTN_TRAIT_SM_BUDGET);
        bytes[i] = verdict.device_bytes;
    }
    ck_assert_uint_gt(bytes[0], bytes[1]); /* by the list of tiles */
}

/* The table's lines are those of the kernels. */
TEST_OF(any_machine, shapes_are_those_of_the_kernels)
{
    static const char *const types[] = {"bf16", "f16"}, *const halves[] = {"false", "true"};
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    for (uint32_t i = 0; i < fa3_num_tiles; i++)
        for (int n = 0; n < TYPE_COUNT; n++) {
            const fa3_tile *tile = &fa3_tiles[i];
            char path[4096], expected[256], text[4096] = "";
            snprintf(path, sizeof path, "%s/plugins/fa3_like/kernels/%s_%s.cu", top ? top : ".",
                     tile->kernel + strlen("fa3_"), types[n]);
            snprintf(expected, sizeof expected, "FA3_FORWARD(%s_%s, %d, %d, %d, %d, %d, %d, %s)",
                     tile->kernel, types[n], tile->dim, tile->dim_v, tile->keys,
                     tile->queries / GROUP_QUERIES, tile->stages, tile->slots, halves[n]);
            FILE *file = fopen(path, "r");
            ck_assert_msg(file != NULL, "%s", path);
            ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
            fclose(file);
            ck_assert_msg(strstr(text, expected), "%s: accepted %s", path, expected);
        }
}

TEST_OF(any_machine, create_refuses)
{
    expect_create_refuses();
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

enum { SEQS = 5 };

/* Prefixes, queries, keys and slots of new rows: prompts, a decode, one of no query, one whose
 * third new key has no slot, one that looks at its prefix alone. */
static const int rows[SEQS + 1] = {7, 307, 308, 308, 312, 315};
static const int prefixes[SEQS] = {0, 90, 5, 40, 60}, keys[SEQS] = {300, 91, 5, 44, 60};

static fa3_plan_call make_plan(fa3_plan *plan, int *marks, const long long *slots)
{
    return (fa3_plan_call){.batch = {.q_indptr = rows,
                                     .prefix_lens = prefixes,
                                     .kv_lens = keys,
                                     .out_cache_loc = slots,
                                     .window_right = -1,
                                     .num_seqs = SEQS},
                           .plan = plan,
                           .marks = marks,
                           .window_left = -1,
                           .tile_queries = 128,
                           .tile_keys = 128,
                           .bucket_keys = 1};
}

/* Of expanded latents: whole prompts, a chunk at the end of a prefix, one before it, one of a prefix
 * that no key of came, and rows before the first key. */
TEST_OF(any_machine, given_keys_are_all_there_are)
{
    static const int queries[SEQS + 1] = {7, 307, 308, 310, 314, 317};
    static const int new_rows[SEQS + 1] = {3, 303, 333, 353, 353, 360};
    static const int prefix[SEQS] = {0, 90, 70, 40, 1}, all[SEQS] = {300, 90, 50, 44, 4};
    static const int given[SEQS] = {300, 30, 20, 0, 4}, first[SEQS] = {3, 303, 333, 353, 356};
    static const int position[SEQS] = {0, 30, 40, -4, 1}, bucket[SEQS] = {12, 3, 2, 0, 0};
    int marks[SEQS] = {0}, found[3][SEQS];
    long long slots[360] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, slots);
    p.batch.q_indptr = queries;
    p.batch.new_indptr = new_rows;
    p.batch.window_right = 0;
    p.given = (fa3_given){all, prefix, found[0], found[1], found[2]};
    p.batch.kv_lens = p.given.keys;
    p.batch.prefix_lens = p.given.positions;
    p.tile_keys = 10;
    for (int s = 0; s < SEQS; s++) {
        plan_find_given(&p, s);
        ck_assert_int_eq(found[0][s], given[s]);
        ck_assert_int_eq(found[1][s], first[s]);
        ck_assert_int_eq(found[2][s], position[s]);
        ck_assert_int_eq(plan_is_slow(&p, s), 0);
        ck_assert_int_eq(plan_count_tiles(&p, s), s == 0 ? 3 : 1);
        ck_assert_int_eq(plan_find_bucket(&p, s, 0), bucket[s]);
    }
}

TEST_OF(any_machine, tiles_of_a_batch)
{
    long long slots[320] = {0};
    int marks[SEQS] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, slots);
    static const int tiles[SEQS] = {3, 1, 0, 1, 1};
    for (int s = 0; s < SEQS; s++)
        ck_assert_int_eq(plan_count_tiles(&p, s), tiles[s]);
    slots[310] = -1;
    for (int row = rows[0]; row < rows[SEQS]; row++)
        plan_mark_row(&p, row);
    for (int s = 0; s < SEQS; s++) {
        ck_assert_int_eq(marks[s], s == 3);
        ck_assert_int_eq(plan_is_slow(&p, s), s == 3);
        ck_assert_int_eq(plan_count_tiles(&p, s), s == 3 ? 0 : tiles[s]);
    }
    p.window_left = 30; /* goes by positions, which are not those of the last keys */
    ck_assert_int_eq(plan_is_slow(&p, 4), 1);
    ck_assert_int_eq(plan_is_slow(&p, 0), 0);
    p.window_left = -1;
    p.batch.window_right = 0;
    ck_assert_int_eq(plan_is_slow(&p, 4), 1);
    ck_assert_int_eq(plan_is_slow(&p, 1), 0);
    p.batch.window_right = -1;
    p.chunk = 64;
    ck_assert_int_eq(plan_is_slow(&p, 4), 1);
    ck_assert_int_eq(plan_is_slow(&p, 1), 0);
    p.others_first = 3;
    p.others_end = 5;
    for (int s = 0; s < SEQS; s++) {
        ck_assert_int_eq(plan_is_slow(&p, s), 0);
        ck_assert_int_eq(plan_count_tiles(&p, s), s < 3 ? tiles[s] : 0);
    }
}

/* Tiles save the new rows of a prompt; of the others one range tells, from the first to the last. */
TEST_OF(any_machine, rows_that_tiles_do_not_save)
{
    long long slots[320] = {0};
    int marks[SEQS] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, slots);
    int first = 1000, end = 0;
    plan_add_rest(&p, 0, &first, &end);
    plan_add_rest(&p, 2, &first, &end); /* has no row */
    ck_assert_int_eq(end, 0);
    plan_add_rest(&p, 3, &first, &end);
    plan_add_rest(&p, 1, &first, &end);
    ck_assert_int_eq(first, 307);
    ck_assert_int_eq(end, 312);
    marks[0] = 1;
    plan_add_rest(&p, 0, &first, &end);
    ck_assert_int_eq(first, 7);
    marks[0] = 0;
    p.others_end = 1;
    ck_assert_int_eq(plan_is_whole(&p, 0), 0);
    p.others_end = 0;
    ck_assert_int_eq(plan_is_whole(&p, 0), 1);
    p.batch.new_indptr = rows; /* new rows are given apart from the queries */
    ck_assert_int_eq(plan_is_whole(&p, 0), 0);
}

/* Padding has no key, so nothing is wrong with its slot. */
/* What is made ahead is of all keys of a sequence, unless others work on it: in tiles of turned
 * values, or one by one. */
TEST_OF(any_machine, units_ahead_go_by_keys)
{
    static const int tiles[SEQS] = {3, 1, 1, 1, 1};
    int marks[SEQS] = {0, 0, 0, 1, 0}, first[SEQS + 1];
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, NULL);
    for (int s = 0; s < SEQS; s++)
        ck_assert_int_eq(plan_count_ahead(&p, s), 0);
    p.ahead_first = first;
    p.ahead_keys = p.tile_keys;
    for (int s = 0; s < SEQS; s++)
        ck_assert_int_eq(plan_count_ahead(&p, s), tiles[s]);
    p.ahead_keys = 1;
    p.others_first = 0;
    p.others_end = 2;
    for (int s = 0; s < SEQS; s++)
        ck_assert_int_eq(plan_count_ahead(&p, s), s < 2 ? 0 : index_int(p.batch.kv_lens, s));
}

/* Codes of every value come back from the cache, and rounding to bf16 keeps them. */
TEST_OF(any_machine, codes_survive_bf16)
{
    const float scale = 0.037f, cache = 0.0211f;
    for (int code = 0; code < 256; code++) {
        u8 x = (u8)code, kept = code_of_new(ELEMENT_E4M3, &x, 0, cache, ELEMENT_E4M3, cache);
        if ((code & 0x7f) == 0x7f) {
            ck_assert(f32_is_nan(code_value(ELEMENT_E4M3, x)));
            continue;
        }
        ck_assert_uint_eq(kept, x);
        u8 other = code_of_new(ELEMENT_E4M3, &x, 0, scale, ELEMENT_E4M3, cache);
        float read = element_from_bf16(widen_new((const char *)&x, 0, scale, cache));
        ck_assert_uint_eq(save_kv_quantise(ELEMENT_E4M3, read, cache), other);
    }
    ck_assert_float_eq(code_value(ELEMENT_E4M3, 0x7e), 448);
    ck_assert_float_eq(code_value(ELEMENT_E4M3, 0x81), -0.001953125f);
    ck_assert_float_eq(code_value(ELEMENT_E4M3, 0x38), 1);
}

TEST_OF(any_machine, padding_is_for_tiles)
{
    static const int none[2] = {0, 0};
    long long slots[2] = {-1, -1};
    int marks[2] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, slots);
    p.batch.q_indptr = NULL;
    p.batch.seq_lens = p.batch.kv_lens = none;
    p.batch.num_seqs = 2;
    plan_mark_row(&p, 0);
    plan_mark_row(&p, 1);
    ck_assert_int_eq(marks[0] + marks[1], 0);
    ck_assert_int_eq(plan_count_tiles(&p, 0), 1);
}

TEST_OF(any_machine, buckets_go_by_keys)
{
    int marks[SEQS] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, NULL);
    p.tile_keys = 10;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 0), 30); /* all keys */
    p.batch.window_right = 0;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 0), 12); /* 128 */
    ck_assert_int_eq(plan_find_bucket(&p, 0, 1), 25);
    ck_assert_int_eq(plan_find_bucket(&p, 0, 2), 30);
    p.window_left = 50;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 1), 17); /* 78 .. 256 */
    p.window_left = -1;
    p.chunk = 100;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 0), 12); /* 0 .. 128: two chunks */
    ck_assert_int_eq(plan_find_bucket(&p, 0, 1), 15); /* 100 .. 256 */
    ck_assert_int_eq(plan_find_bucket(&p, 0, 2), 10); /* 200 .. 300 */
    p.chunk = 0;
    p.tile_keys = 1;
    p.bucket_keys = 3;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 2), 100);
    p.bucket_keys = 0x7fffffff;
    ck_assert_int_eq(plan_find_bucket(&p, 0, 2), 0);
}

TEST_OF(any_machine, a_plan_tells_of_one_sequence)
{
    int marks[SEQS] = {0};
    fa3_plan plan;
    fa3_plan_call p = make_plan(&plan, marks, NULL);
    p.batch.num_seqs = 1;
    plan_store(&p, 3, 0);
    ck_assert_int_eq(plan.tile_count, 3);
    ck_assert_int_eq(plan.starts[0], 7);
    ck_assert_int_eq(plan.starts[1], 307);
    plan_store(&p, 0, 1); /* it is not for tiles */
    ck_assert_int_eq(plan.slow_count, 1);
    ck_assert_int_eq(plan.starts[1], 7);
}

GROUP(any_machine, .set_up_once = open_plugin);
TESTS("fa3_like");
