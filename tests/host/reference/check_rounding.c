/* SPDX-License-Identifier: Apache-2.0
 *
 * check_rounding.c: the pass rule admits the arithmetic of the field always, and what is worse
 * fails. $ATTNHOST_TEST_CASES rows are drawn, by $ATTNHOST_TEST_SEED: docs/CONFORMANCE.md tells of
 * 100 seeds of 30000.
 */
#include "tests/host/reference/rounding_case.h"
#include "tests/tools/test_main.h"

#include <math.h>
#include <stdio.h>

static struct rounding_row row;
static double actual[ROUNDING_MAX_DIM];

static void open_row(void)
{
    rounding_row_init(&row);
}

static void close_row(void)
{
    rounding_row_finish(&row);
}

static uint64_t seed(void)
{
    const char *given = getenv("ATTNHOST_TEST_SEED");
    return given ? strtoull(given, NULL, 10) : 0;
}

/* ---- What is admitted ------------------------------------------------------------------------ */

static const struct rounding_arithmetic admitted[] = {
    {.name = "fp32", .block = 0},
    {.name = "FlashAttention", .block = -1, .rounds = 1, .fast_exp = 1, .tensor_core = 1},
    {.name = "rounded after normalisation", .block = 0, .rounds = 1, .normalised = 1},
    {.name = "the sum is of what is rounded",
     .block = -1,
     .rounds = 1,
     .sums_what_is_rounded = 1,
     .fast_exp = 1},
};
enum { ADMITTED = sizeof admitted / sizeof admitted[0] };

/* Of fp8 operands. */
static const struct rounding_arithmetic admitted_codes[] = {
    {.name = "fp8 in fp32", .block = -1, .rounds = 1},
    {.name = "fp8 in tensor cores", .block = -1, .rounds = 1, .fast_exp = 1, .codes = 1},
};
enum { ADMITTED_CODES = sizeof admitted_codes / sizeof admitted_codes[0] };

/* An LSE is of fp32: one of rounded probabilities is not. */
static double judge_lse(const struct rounding_arithmetic *how, double lse)
{
    reference_verdict verdict = reference_check_lse((double)(float)lse, &row.result);
    return how->sums_what_is_rounded ? 0 : reference_verdict_ratio(&verdict);
}

static void rows_pass(int32_t count, const struct rounding_wish *wish,
                      const struct rounding_arithmetic *ways, int32_t num_ways)
{
    int32_t failed = 0;
    double most[ADMITTED] = {0}, most_lse[ADMITTED] = {0};
    for (int32_t n = 0; n < count; n++) {
        rounding_row_draw(&row, seed(), (uint64_t)n, wish);
        for (int32_t a = 0; a < num_ways; a++) {
            double lse = judge_lse(&ways[a], rounding_row_compute(&row, &ways[a], actual));
            double out = rounding_row_judge(&row, actual);
            if (out > 1 || lse > 1)
                printf("# row %d, %s: %g bars, LSE %g; keys %lld dims %d, %d dtypes %u, %u cap %g "
                       "sink %g needles %lld\n",
                       n, ways[a].name, out, lse, (long long)row.row.kv_len, row.row.head_dim,
                       row.row.v_head_dim, row.row.operand_dtype, row.row.out_dtype,
                       row.row.logit_cap, row.row.sink, (long long)row.numbers);
            failed += out > 1 || lse > 1;
            most[a] = fmax(most[a], out);
            most_lse[a] = fmax(most_lse[a], lse);
        }
    }
    for (int32_t a = 0; a < num_ways; a++)
        printf("# %d rows, %s: at most %.3f bars, LSE %.3f\n", count, ways[a].name, most[a],
               most_lse[a]);
    ck_assert_int_eq(failed, 0);
}

TEST_OF(rounding, right_arithmetic_passes)
{
    const struct rounding_wish anything = {0};
    rows_pass(random_cases(3000), &anything, admitted, ADMITTED);
}

TEST_OF(rounding, right_codes_pass)
{
    const struct rounding_wish codes = {.dtype = ATTN_FP8_E4M3};
    rows_pass(random_cases(1000), &codes, admitted_codes, ADMITTED_CODES);
}

/* ---- What is not ----------------------------------------------------------------------------- */

/* Arithmetic that must fail, and how many of a hundred rows it does fail at least, among rows that
 * are drawn so. */
struct refused {
    struct rounding_arithmetic how;
    struct rounding_wish wish;
    int32_t least; /* of 100 rows, */
    int32_t rows;  /* or of so many */
};

#define FLASH      .block = -1, .rounds = 1, .fast_exp = 1, .tensor_core = 1
#define WIDE       .least_dim = 64, .dtype = ATTN_BF16
#define WIDE_CODES .least_dim = 64, .dtype = ATTN_FP8_E4M3
static const struct refused refused[] = {
    {.how = {.name = "P of 5 bits", FLASH, .mantissa = 5}, .wish = {WIDE}, .least = 30},
    {.how = {.name = "scores in bf16", .block = -1, .scores = ATTN_BF16},
     .wish = {.least_keys = 16, WIDE},
     .least = 15},
    {.how = {.name = "each score rounded to bf16", .block = -1, .round_score = 1},
     .wish = {.least_keys = 16, WIDE},
     .least = 5},
    {.how = {.name = "row sum in bf16", FLASH, .row_sum = ATTN_BF16},
     .wish = {.least_keys = 300, WIDE},
     .least = 30},
    {.how = {.name = "large output through fp16", FLASH, .narrowed = ATTN_F16},
     .wish = {WIDE, .size = 20},
     .least = 90},
    {.how = {.name = "small output through fp16", FLASH, .narrowed = ATTN_F16},
     .wish = {WIDE, .size = -24},
     .least = 90},
    {.how = {.name = "a needle of 4096 keys left out", FLASH, .skips = 1},
     .wish = {.least_keys = 4096, .most_keys = 4096, WIDE, .needles = 1},
     .least = 95},
    {.how = {.name = "fp8 scores in bf16", .block = -1, .rounds = 1, .scores = ATTN_BF16},
     .wish = {.least_keys = 16, WIDE_CODES},
     .least = 5},
    {.how = {.name = "P of 2 bits, of fp8", .block = -1, .mantissa = 2, .codes = 1},
     .wish = {WIDE_CODES},
     .least = 5},
    {.how = {.name = "fp8 P after the division", .rounds = 1, .normalised = 1},
     .wish = {.least_keys = 1024, WIDE_CODES},
     .least = 30},
    {.how = {.name = "fp8 values of 8192 keys in one sum", .rounds = 1, .codes = 1},
     .wish = {.least_keys = 8192, .most_keys = 8192, .dtype = ATTN_FP8_E4M3, .leans = 1},
     .least = 5,
     .rows = 10},
};
enum { REFUSED = sizeof refused / sizeof refused[0] };

LOOP_OF(rounding, wrong_arithmetic_fails, 0, REFUSED)
{
    const struct refused *r = &refused[_i];
    int32_t rows = r->rows ? r->rows : 100, failed = 0;
    for (int32_t n = 0; n < rows; n++) {
        rounding_row_draw(&row, seed(), (uint64_t)n, &r->wish);
        double lse = judge_lse(&r->how, rounding_row_compute(&row, &r->how, actual));
        failed += rounding_row_judge(&row, actual) > 1 || lse > 1;
    }
    printf("# %s: %d of %d rows fail\n", r->how.name, failed, rows);
    ck_assert_int_ge(failed, r->least);
}

GROUP(rounding, .set_up = open_row, .tear_down = close_row, .timeout = NO_TIMEOUT);
TESTS("rounding");
