/* SPDX-License-Identifier: Apache-2.0
 *
 * check_private: operands beside the roles and layouts of a vendor's own, through
 * tests/fixtures/biased.c.
 */
#include "tests/host/embed/batch_fixture.h"

#include "host/plugin/layouts.h"
#include "host/plugin/private_operands.h"

#include <math.h>

enum { HEADS = 4, DIM = 64, KEYS = 3 };

static float q[KEYS][HEADS][DIM], k[KEYS][2][DIM], v[KEYS][2][DIM], out[KEYS][HEADS][DIM];
static float pages[2][16][2][DIM], values[2][16][2][DIM], bias[KEYS][HEADS][KEYS];
static attn_tensor tensors[ATTN_ROLE_COUNT], bias_tensor;
static const attn_tensor *operands[ATTN_ROLE_COUNT];
static attn_named_operand named[2];
static attn_forward_args call;
static const char *features[] = {"example.bias"};
static attnhost_metadata *metadata;
static attnhost_backend *backend;

static void give(uint32_t role, void *data, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[4] = {a, b, c, d};
    ck_assert_int_eq(attnhost_tensor_init(&tensors[role], data, ATTN_DEVICE_CPU, 0, ATTN_F32,
                                          d ? 4 : 3, shape, NULL, NULL),
                     ATTN_OK);
    operands[role] = &tensors[role];
}

static attn_status make_backend(const char *name)
{
    make_problems();
    groups[0].window_right = 0;
    problems[0].num_features = 1;
    problems[0].features = features;
    return attnhost_compose(host, name, problems, 1, &backend, &error.base);
}

/* One sequence of three new tokens, values that differ, and a bias for each key of each row. */
static void make_call(void)
{
    static const int32_t len[1] = {KEYS}, none[1] = {0}, rows[2] = {0, KEYS}, page[7] = {1};
    static const int64_t slots[KEYS] = {16, 17, 18};
    ck_assert_int_eq(load("biased"), ATTN_OK);
    attn_status status = make_backend("biased_rows");
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    metadata = make_metadata(backend, NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.num_seqs = batch.num_real_seqs = 1;
    batch.num_tokens = batch.num_real_tokens = KEYS;
    batch.seq_lens = (attn_i32_array){len, len};
    batch.prefix_lens = (attn_i32_array){none, none};
    batch.q_indptr = (attn_i32_array){rows, rows};
    batch.num_kv_groups = 1;
    kv[0].block_table = (attn_i32_array){page, page};
    kv[0].out_cache_loc = (attn_i64_array){slots, slots};
    status = attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    for (int j = 0; j < KEYS; j++)
        for (int h = 0; h < HEADS; h++) {
            v[j][h / 2][0] = (float)(j + 1);
            for (int i = 0; i < KEYS; i++)
                bias[j][h][i] = 0.5f * (float)(i * h - j);
        }
    give(ATTN_ROLE_Q, q, KEYS, HEADS, DIM, 0);
    give(ATTN_ROLE_K, k, KEYS, 2, DIM, 0);
    give(ATTN_ROLE_V, v, KEYS, 2, DIM, 0);
    give(ATTN_ROLE_OUT, out, KEYS, HEADS, DIM, 0);
    give(ATTN_ROLE_K_CACHE, pages, 2, 16, 2, DIM);
    give(ATTN_ROLE_V_CACHE, values, 2, 16, 2, DIM);
    const int64_t shape[3] = {KEYS, HEADS, KEYS};
    attnhost_tensor_init(&bias_tensor, bias, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, shape, NULL, NULL);
    for (int n = 0; n < 2; n++)
        named[n] = (attn_named_operand){
            .struct_size = sizeof named[n], .name = "example.bias", .tensor = &bias_tensor};
    call = (attn_forward_args){.struct_size = sizeof call,
                               .flags = ATTN_FORWARD_SAVE_KV,
                               .num_operands = ATTN_ROLE_COUNT,
                               .operands = operands,
                               .num_named = 1,
                               .named = named};
}

static void end_call(void)
{
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

static attn_status run(void)
{
    host_error_init(&error);
    return attnhost_forward(metadata, 0, &call, NULL, &error.base);
}

/* Queries are 0, so the bias alone says how much each value counts. */
TEST_OF(operands, a_bias_is_added)
{
    make_call();
    attn_status status = run();
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    for (int t = 0; t < KEYS; t++)
        for (int h = 0; h < HEADS; h++) {
            double sum = 0, total = 0;
            for (int j = 0; j <= t; j++) {
                double p = exp((double)bias[t][h][j]);
                total += p;
                sum += p * v[j][h / 2][0];
            }
            ck_assert_double_eq_tol((double)out[t][h][0], sum / total, 1e-5);
        }
    ck_assert_float_ne(out[2][0][0], out[2][3][0]); /* heads differ by their bias alone */
    end_call();
}

#define ASSERT_REFUSED(part, spoil)                                                                \
    do {                                                                                           \
        make_call();                                                                               \
        spoil;                                                                                     \
        ck_assert_int_eq(run(), ATTN_INVALID_ARGUMENT);                                            \
        assert_says(part);                                                                         \
        ck_assert_uint_eq(error.base.field, ATTN_FIELD_OPERAND);                                   \
        end_call();                                                                                \
    } while (0)

TEST_OF(operands, calls_bring_what_was_named)
{
    ASSERT_REFUSED("example.bias, which the features of the layer's problem name, is absent",
                   call.num_named = 0);
    ASSERT_REFUSED("num_named is 1 and named NULL", call.named = NULL);
    ASSERT_REFUSED("example.bias is given twice; accepted: once", call.num_named = 2);
    ASSERT_REFUSED("example.other is given, and the features of the layer's problem do not name it",
                   named[0].name = "example.other");
    ASSERT_REFUSED("named[0] lacks its struct_size, its name or its tensor",
                   named[0].tensor = NULL);
    ASSERT_REFUSED("example.bias is bf16; accepted: f32", bias_tensor.dtype = ATTN_BF16);
    ASSERT_REFUSED("example.bias has 2 dimensions; accepted: 3", bias_tensor.ndim = 2);
    ASSERT_REFUSED("example.bias: shape[0] is 7; accepted: 3", bias_tensor.shape[0] = 7);
    ASSERT_REFUSED("example.bias: shape[1] is 2; accepted: 4", bias_tensor.shape[1] = 2);
}

/* Not announced: kernels that never look at it may have been chosen. */
TEST_OF(operands, what_was_not_named_is_refused)
{
    make_call();
    end_call();
    make_problems();
    groups[0].window_right = 0;
    ck_assert_int_eq(attnhost_compose(host, "biased_rows", problems, 1, &backend, &error.base),
                     ATTN_OK);
    metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base), ATTN_OK);
    ck_assert_int_eq(run(), ATTN_INVALID_ARGUMENT);
    assert_says("example.bias is given, and the features of the layer's problem do not name it");
    call.num_named = 0;
    ck_assert_int_eq(run(), ATTN_OK);
    end_call();
}

/* Another plugin's, its own without a declaration, and through a composite. */
TEST_OF(operands, who_cannot_take_it_is_named)
{
    ck_assert_int_eq(load("biased"), ATTN_OK);
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    ck_assert_int_eq(make_backend("example_rows"), ATTN_UNSUPPORTED);
    assert_says("example_rows: features example.bias: accepted absent");
    ck_assert_int_eq(make_backend("hiding_rows"), ATTN_INTERNAL);
    assert_says("hiding_rows: defect of the plugin: it accepts the private operand example.bias, "
                "which it does not declare (PRIV-01)");

    char path[4400];
    const char *plugins = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/hybrid.so", plugins ? plugins : "plugins/.libs");
    ck_assert_int_eq(attnhost_load_plugin(host, path, &error.base), ATTN_OK);
    define("pair", "hybrid_phase", "prefill", "biased_rows", "decode", "biased_rows");
    ck_assert_int_eq(make_backend("pair"), ATTN_UNSUPPORTED);
    assert_says("biased_rows");
    assert_says("features example.bias: accepted absent");
    problems[0].num_features = 0;
    ck_assert_int_eq(attnhost_compose(host, "pair", problems, 1, &backend, &error.base), ATTN_OK);
    attnhost_backend_destroy(backend);
}

/* A vendor's own layout: it computes there what it computes in kv.nhd/1. */
TEST_OF(operands, a_private_layout)
{
    static float in_nhd[KEYS][HEADS][DIM], by_heads[2][2][16][DIM], v_by_heads[2][2][16][DIM];
    make_call();
    end_call();
    for (int l = 0; l < 2; l++) {
        make_problems();
        groups[0].window_right = 0;
        problems[0].kv_layout = l ? "example.heads/1" : ATTN_LAYOUT_KV_NHD;
        attn_status status = attnhost_compose(host, l ? "head_rows" : "biased_rows", problems, 1,
                                              &backend, &error.base);
        ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
        metadata = make_metadata(backend, NULL);
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                         ATTN_OK);
        if (l) {
            give(ATTN_ROLE_K_CACHE, by_heads, 2, 2, 16, DIM);
            give(ATTN_ROLE_V_CACHE, v_by_heads, 2, 2, 16, DIM);
        }
        call.num_named = 0;
        ck_assert_msg(run() == ATTN_OK, "%s", host_error_text(&error));
        if (!l)
            memcpy(in_nhd, out, sizeof out);
        end_call();
    }
    ck_assert_mem_eq(out, in_nhd, sizeof out);
    for (int j = 0; j < KEYS; j++)
        for (int h = 0; h < 2; h++)
            ck_assert_mem_eq(v_by_heads[h][1][j], v[j][h], sizeof v[j][h]);
}

/* By name, before anything is made: a backend of other layouts, and a composite with one. */
TEST_OF(operands, a_private_layout_is_not_handed_over)
{
    char path[4400];
    const char *plugins = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/hybrid.so", plugins ? plugins : "plugins/.libs");
    ck_assert_int_eq(load("biased"), ATTN_OK);
    ck_assert_int_eq(attnhost_load_plugin(host, path, &error.base), ATTN_OK);
    define("alone", "hybrid_phase", "prefill", "head_rows", "decode", "head_rows");
    define("mixed", "hybrid_phase", "prefill", "head_rows", "decode", "biased_rows");
    make_problems();
    problems[0].kv_layout = "example.heads/1";
    ck_assert_int_eq(attnhost_compose(host, "alone", problems, 1, &backend, &error.base), ATTN_OK);
    attnhost_backend_destroy(backend);
    ck_assert_int_eq(attnhost_compose(host, "mixed", problems, 1, &backend, &error.base),
                     ATTN_UNSUPPORTED);
    assert_says("biased_rows");
    assert_says("kv_layout example.heads/1: accepted kv.nhd/1");
    problems[0].kv_layout = ATTN_LAYOUT_KV_NHD;
    host_error_init(&error);
    ck_assert_int_eq(attnhost_compose(host, "mixed", problems, 1, &backend, &error.base),
                     ATTN_UNSUPPORTED);
    assert_says("head_rows");
    assert_says("kv_layout kv.nhd/1: accepted example.heads/1");
}

TEST_OF(operands, names)
{
    static const char *const good[] = {"a.b", "vendor_2.rel_bias"};
    static const char *const bad[] = {"",      "bias",  ".bias", "v.",  "attn.bias", "V.b",
                                      "v.b/1", "v.b.c", "1v.b",  "v.1", "attn.x/1"};
    char longest[80] = "v.";
    for (size_t n = 0; n < sizeof good / sizeof *good; n++)
        ck_assert_msg(operands_is_private(good[n]), "%s", good[n]);
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++)
        ck_assert_msg(!operands_is_private(bad[n]), "%s", bad[n]);
    memset(longest + 2, 'x', 61);
    ck_assert(operands_is_private(longest));
    longest[63] = 'x';
    ck_assert(!operands_is_private(longest));
}

TEST_OF(operands, layout_names)
{
    static const char *const good[] = {"v.rows/1", "vendor_2.tiles/12"};
    static const char *const bad[] = {
        "",           "v.rows",  "v.rows/",   "v.rows/0", "v.rows/01", "v.rows/1x", "rows/1",
        "kv.tiled/1", "mla.x/1", "state.x/1", "attn.x/1", "kv.nhd/1",  "v.rows/1/2"};
    for (size_t n = 0; n < sizeof good / sizeof *good; n++)
        ck_assert_msg(layouts_is_private(good[n]) && !layouts_public(good[n]), "%s", good[n]);
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++)
        ck_assert_msg(!layouts_is_private(bad[n]), "%s", bad[n]);
    ck_assert_str_eq(layouts_public(ATTN_LAYOUT_STATE_CONV), ATTN_LAYOUT_STATE_CONV);
    ck_assert_ptr_null(layouts_public("kv.nhd/2"));
}

GROUP(operands, .set_up = setup, .tear_down = teardown);
TESTS("private");
