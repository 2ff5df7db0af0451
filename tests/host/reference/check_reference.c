/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle's rows, its pass rule and its merging: literal cases, borders, and random rows against
 * a model that is written differently.
 */
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/reference/reference.h"

#include "tests/tools/test_main.h"

#include <math.h>
#include <string.h>

#define TINY 1e-14

enum { KEYS = 40, MAX_KEYS = 64, DIM = 5 };

/* A row over KEYS keys whose value j is [j, j * j], so that each set of keys has its own sum. */
struct example {
    double query[DIM], keys[MAX_KEYS * DIM], values[MAX_KEYS * 2], bars[2];
    reference_kv_arrays arrays;
    reference_row row;
    reference_scratch scratch;
};

static void example_init(struct example *example, int64_t kv_len, double key)
{
    memset(example, 0, sizeof *example);
    for (int d = 0; d < DIM; d++)
        example->query[d] = 1;
    for (int64_t n = 0; n < kv_len * DIM; n++)
        example->keys[n] = key;
    for (int64_t j = 0; j < kv_len; j++) {
        example->values[2 * j] = (double)j;
        example->values[2 * j + 1] = (double)(j * j);
    }
    example->arrays = (reference_kv_arrays){example->keys, example->values, DIM, 2, DIM, 2};
    example->row = (reference_row){.head_dim = DIM,
                                   .v_head_dim = 2,
                                   .kv_len = kv_len,
                                   .sm_scale = 1,
                                   .operand_dtype = ATTN_F32,
                                   .out_dtype = ATTN_F32,
                                   .query = example->query,
                                   .sight = reference_sight_all()};
    reference_scratch_init(&example->scratch);
}

static reference_row_result example_run(struct example *example, double out[2])
{
    reference_row_result result;
    reference_kv kv = reference_kv_array(&example->arrays);
    ck_assert_int_eq(reference_row_compute(&example->row, &kv, &example->scratch, out,
                                           example->bars, &result, NULL),
                     ATTN_OK);
    reference_scratch_finish(&example->scratch);
    return result;
}

/* ---- Literal rows ---------------------------------------------------------------------------- */

TEST_OF(rows, row_that_sees_no_key)
{
    struct example example;
    double out[2] = {7, 7};
    example_init(&example, 9, 1);
    example.row.sight.window_left = 0;
    example.row.sight.position = 100;
    reference_row_result result = example_run(&example, out);
    ck_assert_double_eq(out[0], 0);
    ck_assert_double_eq(out[1], 0);
    ck_assert(isinf(result.lse) && result.lse < 0);
    ck_assert_int_eq(result.num_seen, 0);
    ck_assert_double_eq(result.lse_bar, 0);
    ck_assert_double_le(example.bars[0], 0x1p-125);
}

TEST_OF(rows, no_key_but_a_sink)
{
    struct example example;
    double out[2] = {7, 7};
    example_init(&example, 0, 1);
    example.row.has_sink = 1;
    example.row.sink = -3.25;
    reference_row_result result = example_run(&example, out);
    ck_assert_double_eq(out[0], 0);
    ck_assert_double_eq(out[1], 0);
    ck_assert_double_eq(result.lse, -3.25);
}

/* Scores that are all -inf: the row is as one without keys, whatever their values are. */
TEST_OF(rows, lost_keys_of_any_value)
{
    for (int has_sink = 0; has_sink < 2; has_sink++) {
        struct example example;
        double out[2] = {7, 7};
        example_init(&example, 5, -INFINITY);
        example.values[2] = NAN;
        example.values[5] = INFINITY;
        example.row.has_sink = has_sink;
        example.row.sink = 1.5;
        reference_row_result result = example_run(&example, out);
        ck_assert(out[0] == 0 && out[1] == 0);
        ck_assert(has_sink ? result.lse == 1.5 : isinf(result.lse) && result.lse < 0);
    }
    struct example seen;
    double out[2];
    example_init(&seen, 5, -INFINITY);
    for (int d = 0; d < DIM; d++)
        seen.keys[3 * DIM + d] = 1;
    seen.values[6] = NAN;
    example_run(&seen, out);
    ck_assert(isnan(out[0]));
    ck_assert(out[1] == 9);
}

TEST_OF(rows, equal_scores_give_the_mean)
{
    struct example example;
    double out[2];
    example_init(&example, 4, 0.5);
    reference_row_result result = example_run(&example, out);
    ck_assert_double_eq_tol(out[0], 1.5, TINY);
    ck_assert_double_eq_tol(out[1], 3.5, TINY);
    ck_assert_double_eq_tol(result.lse, 2.5 + log(4), TINY);
    ck_assert_int_eq(result.num_seen, 4);
}

/* A sink of the keys' own score weighs like one more key that has no value. */
TEST_OF(rows, sink_is_a_key_without_value)
{
    struct example example;
    double out[2];
    example_init(&example, 4, 0.5);
    example.row.has_sink = 1;
    example.row.sink = 2.5;
    reference_row_result result = example_run(&example, out);
    ck_assert_double_eq_tol(out[0], 6.0 / 5, TINY);
    ck_assert_double_eq_tol(result.lse, 2.5 + log(5), TINY);
}

/* Scale, then ALiBi, then the cap; the sink is neither scaled nor capped. */
TEST_OF(rows, order_of_the_score)
{
    struct example example;
    double out[2];
    example_init(&example, 1, 2);
    example.row.sm_scale = 0.25;
    example.row.alibi_slope = 0.5;
    example.row.logit_cap = 3;
    example.row.sight.position = 4;
    example.row.has_sink = 1;
    example.row.sink = 5;
    reference_row_result result = example_run(&example, out);
    double score = 3 * tanh((0.25 * 10 - 0.5 * 4) / 3);
    ck_assert_double_eq_tol(result.lse, log(exp(score) + exp(5)), TINY);
}

/* ---- Borders --------------------------------------------------------------------------------- */

static void assert_sees(const reference_sight *sight, int64_t kv_len, int64_t first, int64_t last)
{
    for (int64_t j = 0; j < kv_len; j++)
        ck_assert_msg(reference_sees(sight, j) == (first <= j && j <= last),
                      "key %lld: seen are %lld to %lld", (long long)j, (long long)first,
                      (long long)last);
}

TEST_OF(rows, borders_of_windows_and_chunks)
{
    reference_sight sight = reference_sight_all();
    sight.position = 13;
    assert_sees(&sight, 30, 0, 29);
    sight.window_right = 0;
    assert_sees(&sight, 30, 0, 13);
    sight.window_right = 3;
    assert_sees(&sight, 30, 0, 16);
    sight.window_left = 5;
    assert_sees(&sight, 30, 8, 16);
    sight.window_left = 0;
    sight.window_right = 0;
    assert_sees(&sight, 30, 13, 13);
    sight = reference_sight_all();
    sight.position = 13;
    sight.attention_chunk = 4;
    assert_sees(&sight, 30, 12, 13);
    sight.position = 15;
    assert_sees(&sight, 30, 12, 15);
    sight.position = 16;
    assert_sees(&sight, 30, 16, 16);
    sight.attention_chunk = 0;
    sight.window_right = 2;
    sight.mask_kind = ATTN_MASK_NONE;
    assert_sees(&sight, 30, 0, 29);
}

TEST_OF(rows, borders_of_cross_attention)
{
    reference_sight sight = reference_sight_all();
    sight.has_position = 0;
    sight.position = 2;
    sight.window_left = sight.window_right = 0;
    assert_sees(&sight, 30, 0, 29);
}

/* Bits are little-endian, rows are not padded: row 1 of 9 columns begins at bit 9. */
TEST_OF(rows, borders_of_masks)
{
    static const uint8_t bits[] = {0xff, 0x03, 0xfe}; /* bit 9 is set, 10 to 16 are not */
    reference_sight sight = reference_sight_all();
    sight.mask_kind = ATTN_MASK_FULL;
    sight.mask_bits = bits;
    sight.mask_first_bit = 9;
    sight.mask_columns = 9;
    sight.position = 3;
    for (int64_t j = 0; j < 9; j++)
        ck_assert_int_eq(reference_sees(&sight, j), j == 0 || j == 8);
    ck_assert_int_eq(reference_sees(&sight, 9), 0);
    sight.mask_kind = ATTN_MASK_QLEN;
    sight.prefix_len = 4;
    for (int64_t j = 0; j < 14; j++)
        ck_assert_int_eq(reference_sees(&sight, j), j < 5 || j == 12);
    sight.window_left = 1; /* 2 <= j, and no right side */
    for (int64_t j = 0; j < 14; j++)
        ck_assert_int_eq(reference_sees(&sight, j), (j >= 2 && j < 5) || j == 12);
}

TEST_OF(rows, explicit_positions_move_window_and_chunk)
{
    static const int32_t positions[] = {5, 9, 5, 6}; /* of keys 4 to 7 */
    static const uint8_t all[] = {0xff, 0xff};
    reference_sight sight = reference_sight_all();
    sight.mask_kind = ATTN_MASK_FULL;
    sight.mask_bits = all;
    sight.mask_columns = 8;
    sight.prefix_len = 4;
    sight.key_positions = positions;
    sight.position = 6;
    sight.window_left = 1; /* positions 5 and up */
    for (int64_t j = 0; j < 8; j++)
        ck_assert_int_eq(reference_sees(&sight, j), j >= 4);
    sight.attention_chunk = 8; /* position 9 is in the next one */
    for (int64_t j = 0; j < 8; j++)
        ck_assert_int_eq(reference_sees(&sight, j), j >= 4 && j != 5);
}

TEST_OF(rows, items_see_prefix_and_themselves)
{
    reference_sight sight = reference_sight_all();
    sight.window_right = 0;
    sight.has_items = 1;
    sight.items_prefix_len = 4;
    sight.position = 9;
    sight.token_pos_in_item = 2;
    for (int64_t j = 0; j < 12; j++)
        ck_assert_int_eq(reference_sees(&sight, j), j < 4 || j == 8 || j == 9);
    sight.token_pos_in_item = 0;
    assert_sees(&sight, 12, 0, 3);
    sight.position = 2;
    assert_sees(&sight, 12, 0, 2);
}

/* ---- Against a model ------------------------------------------------------------------------- */

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53 * 2 - 1;
}

/* Long double, one pass, nothing subtracted: right as long as no score is large. */
static void model(const struct example *example, long double out[2], long double *lse)
{
    long double sum = 0, total[2] = {0, 0};
    for (int64_t j = 0; j < example->row.kv_len; j++) {
        long double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (long double)example->query[d] * (long double)example->keys[j * DIM + d];
        long double weight = expl(score * (long double)example->row.sm_scale);
        sum += weight;
        total[0] += weight * (long double)example->values[2 * j];
        total[1] += weight * (long double)example->values[2 * j + 1];
    }
    out[0] = total[0] / sum;
    out[1] = total[1] / sum;
    *lse = logl(sum);
}

TEST_OF(rows, random_rows_are_the_models)
{
    uint64_t state = 42;
    for (int trial = 0; trial < 200; trial++) {
        struct example example;
        example_init(&example, 1 + trial % KEYS, 0);
        for (int n = 0; n < DIM; n++)
            example.query[n] = uniform(&state) * 3;
        for (int n = 0; n < KEYS * DIM; n++)
            example.keys[n] = uniform(&state);
        double out[2];
        long double expected[2], lse;
        model(&example, expected, &lse);
        reference_row_result result = example_run(&example, out);
        for (int d = 0; d < 2; d++)
            ck_assert_double_eq_tol(out[d], (double)expected[d], 1e-12);
        ck_assert_double_eq_tol(result.lse, (double)lse, 1e-13);
    }
}

TEST_OF(rows, scores_beyond_exp)
{
    struct example example;
    double out[2];
    example_init(&example, 3, 0);
    for (int d = 0; d < DIM; d++) {
        example.keys[DIM + d] = 1000;
        example.keys[2 * DIM + d] = -1000;
    }
    reference_row_result result = example_run(&example, out);
    ck_assert_double_eq(out[0], 1);
    ck_assert_double_eq(result.lse, 5000);
}

TEST_OF(rows, not_a_number_spreads)
{
    struct example example;
    double out[2];
    example_init(&example, 3, 1);
    example.keys[DIM] = (double)NAN;
    reference_row_result result = example_run(&example, out);
    ck_assert(isnan(out[0]) && isnan(out[1]) && isnan(result.lse));
    example_init(&example, 3, 1);
    example.keys[DIM] = (double)NAN;
    example.row.sight.position = 0;
    example.row.sight.window_right = 0; /* a key that is not seen does not count */
    result = example_run(&example, out);
    ck_assert_double_eq(out[0], 0);
    ck_assert_double_eq(result.lse, 5);
}

TEST_OF(rows, bad_rows_are_refused)
{
    struct example example;
    example_init(&example, 3, 1);
    reference_kv kv = reference_kv_array(&example.arrays);
    reference_row_result result;
    double out[2];
    HOST_ERROR(error);
    example.row.head_dim = 0;
    ck_assert_int_eq(
        reference_row_compute(&example.row, &kv, &example.scratch, out, NULL, &result, &error.base),
        ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "head_dim 0"));
}

/* ---- The pass rule --------------------------------------------------------------------------- */

/* What fp32 adds to a bar of these small rows at most. */
static const double fp32_part = 2e-5;

static void assert_bar(double bar, double expected)
{
    ck_assert_double_ge(bar, expected);
    ck_assert_double_le(bar, expected + fp32_part);
}

/* Two keys with the scores 0 and log 3 give the probabilities 1/4 and 3/4. In bf16 each is off by
 * 2^-8 of it at most, and so is what all keys share; the output, 3/4, by 2^-9. */
TEST_OF(rule, bar_where_few_keys_decide)
{
    struct example example;
    double out[2];
    example_init(&example, 2, 0);
    example.keys[DIM] = log(3);
    example.row.operand_dtype = example.row.out_dtype = ATTN_BF16;
    example_run(&example, out);
    ck_assert_double_eq_tol(out[0], 0.75, TINY);
    assert_bar(example.bars[0], 0x1p-8 * 0.75 + 0x1p-8 * 0.75 + 0x1p-9);
    example_init(&example, 2, 0);
    example.keys[DIM] = log(3);
    example.row.operand_dtype = ATTN_F16;
    example_run(&example, out);
    assert_bar(example.bars[0], 0x1p-11 * 0.75 + 0x1p-11 * 0.75);
    example_init(&example, 2, 0);
    example.keys[DIM] = log(3);
    example_run(&example, out);
    assert_bar(example.bars[0], 0);
}

/* 4 keys of weight 1/4 each and another sign every time: k = sqrt(2 log(2 * 3 / 1e-9)) standard
 * deviations of 2^-8 / sqrt(3) of 1/4 each are more than they can do together; of 64 not. */
TEST_OF(rule, bar_where_many_keys_decide)
{
    struct example example;
    double out[2], k = sqrt(2 * log(2 * 3 / 1e-9));
    for (int64_t count = 4; count <= 64; count *= 16) {
        example_init(&example, count, 0);
        for (int64_t j = 0; j < count; j++)
            example.values[2 * j] = j % 2 ? 1 : -1;
        example.row.operand_dtype = ATTN_BF16;
        example_run(&example, out);
        ck_assert_double_eq_tol(out[0], 0, TINY);
        double likely = k * 0x1p-8 / sqrt(3) / sqrt((double)count);
        ck_assert_int_eq(likely < 0x1p-8, count == 64);
        assert_bar(example.bars[0], fmin(likely, 0x1p-8));
    }
}

/* A subnormal probability of fp16 is off by half of the smallest one. */
TEST_OF(rule, bar_of_subnormal_probabilities)
{
    struct example example;
    double out[2];
    example_init(&example, 2, 0);
    example.keys[DIM] = -14; /* 2^-20.2 */
    example.values[2] = 1024;
    example.row.operand_dtype = ATTN_F16;
    example_run(&example, out);
    double share = exp(-14) / (1 + exp(-14)) * 1024;
    ck_assert_double_eq_tol(out[0], share, 1e-12);
    assert_bar(example.bars[0], 0x1p-25 * 1024 + 0x1p-11 * share);
}

/* Beside values in fp8 a probability of bf16 may be lost below 2^-40; of fp16 it is as ever. */
TEST_OF(rule, bar_of_probabilities_beside_codes)
{
    struct example example;
    double out[2];
    for (int n = 0; n < 3; n++) {
        example_init(&example, 2, 0);
        example.keys[DIM] = -30; /* 2^-43.3 */
        example.values[2] = 448;
        example.row.operand_dtype = n == 2 ? ATTN_F16 : ATTN_BF16;
        example.row.values_are_codes = n > 0;
        example_run(&example, out);
        double share = exp(-30) / (1 + exp(-30)) * 448;
        double lost = n == 0 ? 0x1p-8 * share : (n == 1 ? 0x1p-40 : 0x1p-25) * 448;
        double common = (n == 2 ? 0x1p-11 : 0x1p-8) * share;
        ck_assert_double_eq_tol(out[0], share, 1e-16);
        ck_assert_int_eq(example.bars[0] > share, n > 0);
        assert_bar(example.bars[0], lost + common);
    }
}

/* An LSE is fp32 whatever the operands are, and its bar grows with the scores. */
TEST_OF(rule, bar_of_an_lse_follows_from_the_scores)
{
    struct example example;
    double out[2], bars[2];
    for (int n = 0; n < 2; n++) {
        example_init(&example, 8, n ? 20 : 0.2);
        example.row.operand_dtype = ATTN_BF16;
        bars[n] = example_run(&example, out).lse_bar;
    }
    ck_assert_double_gt(bars[0], 0x1p-24);
    ck_assert_double_lt(bars[0], 1e-5);
    ck_assert_double_gt(bars[1], 4 * bars[0]);
    ck_assert_double_lt(bars[1], 3e-4);
}

TEST_OF(rule, without_bars_a_row_is_the_same)
{
    struct example example;
    double out[2];
    example_init(&example, 2, 0);
    example.keys[DIM] = 0.3;
    reference_kv kv = reference_kv_array(&example.arrays);
    reference_row_result result;
    ck_assert_int_eq(
        reference_row_compute(&example.row, &kv, &example.scratch, out, NULL, &result, NULL),
        ATTN_OK);
    ck_assert_double_eq(result.lse_bar, 0);
    double first = out[0], lse = result.lse;
    result = example_run(&example, out);
    ck_assert_double_eq(out[0], first);
    ck_assert_double_eq(result.lse, lse);
    ck_assert_double_gt(result.lse_bar, 0);
}

static int32_t check_one(double actual, double truth, attn_dtype dtype, double bar)
{
    reference_row_result row = {.bar = bar};
    double a[] = {0, actual}, t[] = {0, truth}, bars[] = {0, bar};
    reference_verdict each = reference_check_row(a, t, bars, 2, dtype, &row);
    reference_verdict verdict = reference_check_row(a, t, NULL, 2, dtype, &row);
    ck_assert_int_eq(each.code, verdict.code);
    ck_assert_double_eq(each.error, verdict.error);
    if (verdict.code != REFERENCE_PASS)
        ck_assert_int_eq(verdict.dimension, 1);
    return verdict.code;
}

TEST_OF(rule, bar_of_a_row)
{
    double bar = 0.5;
    ck_assert_int_eq(check_one(3 + bar * 0.999, 3, ATTN_F32, bar), REFERENCE_PASS);
    ck_assert_int_eq(check_one(3 - bar * 0.999, 3, ATTN_F32, bar), REFERENCE_PASS);
    ck_assert_int_eq(check_one(3 + bar * 1.001, 3, ATTN_F32, bar), REFERENCE_ERROR_TOO_LARGE);
    ck_assert_int_eq(check_one(1e-9, 0, ATTN_F32, 0), REFERENCE_ERROR_TOO_LARGE);
}

/* The worst element is not the one with the largest error, but the one that is off by most bars. */
TEST_OF(rule, each_element_has_its_bar)
{
    const double actual[] = {10, 1.2, 3}, truth[] = {11, 1, 3}, bars[] = {2, 0.1, 1};
    reference_row_result row = {.bar = 100};
    reference_verdict verdict = reference_check_row(actual, truth, bars, 3, ATTN_F32, &row);
    ck_assert_int_eq(verdict.code, REFERENCE_ERROR_TOO_LARGE);
    ck_assert_int_eq(verdict.dimension, 1);
    ck_assert_double_eq(verdict.bar, 0.1);
    ck_assert_double_eq_tol(reference_verdict_ratio(&verdict), 2, TINY);
}

TEST_OF(rule, finiteness_must_agree_first)
{
    double inf = (double)INFINITY, nan = (double)NAN;
    ck_assert_int_eq(check_one(nan, 1, ATTN_F32, 1e4), REFERENCE_NOT_FINITE_HERE);
    ck_assert_int_eq(check_one(inf, 1, ATTN_F32, 1e4), REFERENCE_NOT_FINITE_HERE);
    ck_assert_int_eq(check_one(1, nan, ATTN_F32, 1e4), REFERENCE_FINITE_HERE);
    ck_assert_int_eq(check_one(1, -inf, ATTN_F32, 1e4), REFERENCE_FINITE_HERE);
    ck_assert_int_eq(check_one(inf, -inf, ATTN_F32, 1e4), REFERENCE_NOT_FINITE_HERE);
    ck_assert_int_eq(check_one(nan, -inf, ATTN_F32, 1e4), REFERENCE_NOT_FINITE_HERE);
    ck_assert_int_eq(check_one(nan, nan, ATTN_F32, 0), REFERENCE_PASS);
    ck_assert_int_eq(check_one(-inf, -inf, ATTN_F32, 0), REFERENCE_PASS);
    /* Beyond the output's dtype, infinity is the right rounding. */
    ck_assert_int_eq(check_one(inf, 70000, ATTN_F16, 1e-5), REFERENCE_PASS);
    ck_assert_int_eq(check_one(-inf, 70000, ATTN_F16, 1e-5), REFERENCE_NOT_FINITE_HERE);
    ck_assert_int_eq(check_one(inf, 60000, ATTN_F16, 1e-5), REFERENCE_NOT_FINITE_HERE);
}

TEST_OF(rule, bar_of_an_lse)
{
    reference_row_result row = {.lse = 200, .lse_bar = 1.002};
    ck_assert_int_eq(reference_check_lse(201.001, &row).code, REFERENCE_PASS);
    ck_assert_int_eq(reference_check_lse(201.003, &row).code, REFERENCE_ERROR_TOO_LARGE);
    row = (reference_row_result){.lse = 0.001, .lse_bar = 1e-5};
    ck_assert_int_eq(reference_check_lse(0.001009, &row).code, REFERENCE_PASS);
    ck_assert_int_eq(reference_check_lse(0.001011, &row).code, REFERENCE_ERROR_TOO_LARGE);
    row = (reference_row_result){.lse = (double)-INFINITY};
    ck_assert_int_eq(reference_check_lse((double)-INFINITY, &row).code, REFERENCE_PASS);
    ck_assert_int_eq(reference_check_lse(-1e30, &row).code, REFERENCE_FINITE_HERE);
    ck_assert_int_eq(reference_check_lse((double)NAN, &row).code, REFERENCE_NOT_FINITE_HERE);
}

/* ---- Merging --------------------------------------------------------------------------------- */

TEST_OF(merge, merge_of_equal_weights_is_the_mean)
{
    const double one[] = {1, 4}, two[] = {3, -4};
    double out[2], lse;
    reference_merge(2, one, 0, two, 0, out, &lse);
    ck_assert_double_eq(out[0], 2);
    ck_assert_double_eq(out[1], 0);
    ck_assert_double_eq_tol(lse, log(2), TINY);
}

TEST_OF(merge, merge_weighs_by_lse)
{
    const double one[] = {1, 0}, two[] = {0, 1};
    double out[2], lse;
    reference_merge(2, one, log(3) + 1000, two, 1000, out, &lse);
    ck_assert_double_eq_tol(out[0], 0.75, 1e-12);
    ck_assert_double_eq_tol(out[1], 0.25, 1e-12);
    ck_assert_double_eq_tol(lse, 1000 + log(4), 1e-12);
}

TEST_OF(merge, merge_with_an_empty_side)
{
    const double full[] = {5, -6}, junk[] = {(double)NAN, (double)INFINITY};
    double out[2], lse, none = (double)-INFINITY;
    reference_merge(2, full, -2, junk, none, out, &lse);
    ck_assert_double_eq(out[0], 5);
    ck_assert_double_eq(out[1], -6);
    ck_assert_double_eq(lse, -2);
    reference_merge(2, junk, none, full, -2, out, &lse);
    ck_assert_double_eq(out[0], 5);
    ck_assert_double_eq(out[1], -6);
    ck_assert_double_eq(lse, -2);
}

TEST_OF(merge, merge_of_two_empty_sides)
{
    const double junk[] = {(double)NAN, 3};
    double out[2] = {9, 9}, lse, none = (double)-INFINITY;
    reference_merge(2, junk, none, junk, none, out, &lse);
    ck_assert_double_eq(out[0], 0);
    ck_assert_double_eq(out[1], 0);
    ck_assert(isinf(lse) && lse < 0);
}

TEST_OF(merge, merge_in_place)
{
    double one[] = {1, 0};
    const double two[] = {3, 2};
    double lse = 0.5;
    reference_merge(2, one, lse, two, 0.5, one, &lse);
    ck_assert_double_eq_tol(one[0], 2, TINY);
    ck_assert_double_eq_tol(one[1], 1, TINY);
    ck_assert_double_eq_tol(lse, 0.5 + log(2), TINY);
}

TESTS("reference");
