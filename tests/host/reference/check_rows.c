/* SPDX-License-Identifier: Apache-2.0
 *
 * check_rows.c: rows that are computed side by side have the bits of each row alone, for any
 * vectors of the processor; and a row's result is that of a plain loop. */
#include "host/reference/row.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/mix.h"
#include "tests/tools/test_main.h"

enum { MAX_KEYS = 200, MAX_DIM = 136, MAX_COUNT = 9 };

static uint64_t state;

static uint64_t next(uint64_t below)
{
    state = mix_word(state + MIX_INCREMENT);
    return (state >> 20) % below;
}

static double number(void)
{
    return (double)((int64_t)next(255) - 127) / 64;
}

/* ---- Rows and what they read ----------------------------------------------------------------- */

/* Keys and values, and how often each was read. */
static struct {
    double keys[MAX_KEYS][MAX_DIM], values[MAX_KEYS][MAX_DIM];
    int32_t dim, v_dim;
    int64_t last_key, last_value;
    int32_t key_reads[MAX_KEYS], value_reads[MAX_KEYS];
} data;

static double queries[MAX_COUNT][MAX_DIM];
static uint8_t bits[MAX_COUNT * MAX_KEYS / 8 + 1];
static int32_t positions[MAX_KEYS];
static reference_row rows[MAX_COUNT];
static int32_t count;

static void read_data(void *ctx, int64_t j, double *key, double *value)
{
    (void)ctx;
    if (key) {
        ck_assert_int_gt(j, data.last_key);
        ck_assert_int_lt(data.last_value, 0);
        memcpy(key, data.keys[j], (size_t)data.dim * sizeof *key);
        data.last_key = j;
        data.key_reads[j]++;
    }
    if (value) {
        ck_assert_int_gt(j, data.last_value);
        memcpy(value, data.values[j], (size_t)data.v_dim * sizeof *value);
        data.last_value = j;
        data.value_reads[j]++;
    }
}

static const reference_kv kv = {.read = read_data};

static void forget_reads(void)
{
    data.last_key = data.last_value = -1;
    memset(data.key_reads, 0, sizeof data.key_reads);
    memset(data.value_reads, 0, sizeof data.value_reads);
}

/* Now and then what is not finite. */
static double any_number(uint64_t odd)
{
    static const double others[] = {INFINITY, -INFINITY, NAN, 0x1p-1060, -0.0, 1e300};
    return next(odd) == 0 ? others[next(6)] : number();
}

static void draw_sight(int32_t r, int64_t kv_len)
{
    reference_sight *sight = &rows[r].sight;
    *sight = reference_sight_all();
    sight->has_position = next(8) != 0;
    sight->position = (int64_t)next((uint64_t)kv_len + 4);
    sight->prefix_len = (int64_t)next((uint64_t)kv_len + 1);
    sight->window_right = next(3) == 0 ? (int64_t)next(7) - 1 : 0;
    if (next(3) == 0)
        sight->window_left = (int64_t)next(90);
    if (next(4) == 0)
        sight->attention_chunk = 1 + (int64_t)next(70);
    if (next(5) == 0)
        sight->first_key = (int64_t)next(70);
    if (next(6) == 0)
        sight->key_positions = positions;
    if (next(6) == 0) {
        sight->has_items = 1;
        sight->items_prefix_len = (int64_t)next(60);
        sight->token_pos_in_item = (int32_t)next(20);
    }
    if (next(5) == 0) {
        sight->mask_kind = next(2) ? ATTN_MASK_FULL : ATTN_MASK_QLEN;
        sight->mask_bits = bits;
        sight->mask_first_bit = (int64_t)r * MAX_KEYS;
        sight->mask_columns = kv_len;
    }
}

/* Rows of one call; `plain` = causal ones without anything. */
static void draw_rows(bool plain)
{
    static const int32_t dims[] = {1, 3, 4, 5, 8, 17, 64, 128, 136};
    static const int64_t lengths[] = {0, 1, 3, 5, 63, 64, 65, 129, MAX_KEYS};
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_FP8_E4M3};
    uint64_t odd = plain || next(3) ? UINT64_MAX : 2000;
    int64_t kv_len = lengths[next(9)];
    data.dim = dims[next(9)];
    data.v_dim = dims[next(9)];
    count = 1 + (int32_t)next(MAX_COUNT);
    for (int64_t j = 0; j < MAX_KEYS; j++) {
        positions[j] = (int32_t)next(MAX_KEYS);
        for (int32_t d = 0; d < MAX_DIM; d++) {
            data.keys[j][d] = any_number(odd);
            data.values[j][d] = any_number(odd);
        }
    }
    for (size_t i = 0; i < sizeof bits; i++)
        bits[i] = (uint8_t)next(256);
    double scale = next(4) == 0 ? 30 : 0.125; /* the first leaves weights of 0 */
    for (int32_t r = 0; r < count; r++) {
        for (int32_t d = 0; d < MAX_DIM; d++)
            queries[r][d] = any_number(odd);
        rows[r] = (reference_row){
            .head_dim = data.dim,
            .v_head_dim = data.v_dim,
            .kv_len = kv_len,
            .sm_scale = scale,
            .logit_cap = !plain && next(4) == 0 ? 5 : 0,
            .alibi_slope = !plain && next(4) == 0 ? 0.25 : 0,
            .sink = 1.5,
            .has_sink = next(3) == 0,
            .operand_dtype = dtypes[next(4)],
            .out_dtype = dtypes[next(4)],
            .query = queries[r],
        };
        rows[r].multiplies_codes = rows[r].operand_dtype == ATTN_FP8_E4M3;
        draw_sight(r, kv_len);
        if (plain) {
            rows[r].sight = reference_sight_all();
            rows[r].sight.position = kv_len - 1 - r;
            rows[r].sight.window_right = 0;
        }
    }
}

/* ---- Side by side and alone ------------------------------------------------------------------ */

static struct answers {
    reference_row_to to[MAX_COUNT];
    double out[MAX_COUNT][MAX_DIM], bars[MAX_COUNT][MAX_DIM];
} together, alone;

static void set_answers(struct answers *answers, bool bars)
{
    memset(answers, 0xFF, sizeof *answers);
    for (int32_t r = 0; r < MAX_COUNT; r++)
        answers->to[r] =
            (reference_row_to){.out = answers->out[r], .bars = bars ? answers->bars[r] : NULL};
}

/* Which NaN it is depends on the order of operands, which is a compiler's to choose. */
static void forget_nans(struct answers *answers)
{
    for (int32_t r = 0; r < MAX_COUNT; r++) {
        for (int32_t d = 0; d < MAX_DIM; d++) {
            if (isnan(answers->out[r][d]))
                answers->out[r][d] = NAN;
            if (isnan(answers->bars[r][d]))
                answers->bars[r][d] = NAN;
        }
        if (isnan(answers->to[r].result.lse))
            answers->to[r].result.lse = NAN;
    }
}

static void same_answers(void)
{
    forget_nans(&together);
    forget_nans(&alone);
    ck_assert_mem_eq(together.out, alone.out, sizeof alone.out);
    ck_assert_mem_eq(together.bars, alone.bars, sizeof alone.bars);
    for (int32_t r = 0; r < count; r++) {
        const reference_row_result *a = &together.to[r].result, *b = &alone.to[r].result;
        ck_assert_mem_eq(&a->lse, &b->lse, sizeof a->lse);
        ck_assert_mem_eq(&a->lse_bar, &b->lse_bar, sizeof a->lse_bar);
        ck_assert_int_eq(a->num_seen, b->num_seen);
    }
}

/* Two rows together, in loops. */
static void multiply_pairs(const double *queries_of_two, const double *keys, int64_t stride,
                           int64_t fours, double *sums)
{
    memset(sums, 0, sizeof(double[ROW_TILE][2][2][ROW_SUMS]));
    for (int64_t k = 0; k < ROW_TILE; k++)
        for (int64_t n = 0; n < fours * 2 * ROW_SUMS; n++) {
            int64_t four = n / (2 * ROW_SUMS), lane = n % (2 * ROW_SUMS);
            double term = queries_of_two[n] * keys[k * stride + four * ROW_SUMS + lane % ROW_SUMS];
            sums[(2 * k) * 2 * ROW_SUMS + lane] += term;
            sums[(2 * k + 1) * 2 * ROW_SUMS + lane] += fabs(term);
        }
}

/* The processor's, then the pairs. */
static const row_kernels *kernels_of(int32_t index)
{
    static row_kernels pairs;
    pairs = *row_kernels_here(0);
    pairs.rows = 2;
    pairs.dot = multiply_pairs;
    const row_kernels *here = row_kernels_here(index);
    return here ? here : index > 0 && row_kernels_here(index - 1) ? &pairs : NULL;
}

/* Once each key that a row sees, and no other. */
static void reads_are_right(void)
{
    for (int64_t j = 0; j < rows->kv_len; j++) {
        int seen = 0;
        for (int32_t r = 0; r < count; r++)
            seen |= reference_sees(&rows[r].sight, j);
        ck_assert_int_eq(data.key_reads[j], seen);
        ck_assert_int_eq(data.value_reads[j], seen);
    }
}

static int64_t cases(int64_t otherwise)
{
    const char *given = getenv("ATTNHOST_TEST_CASES");
    return given ? strtoll(given, NULL, 10) : otherwise;
}

TEST_OF(rows, together_as_alone)
{
    reference_scratch scratch, other;
    reference_scratch_init(&scratch);
    reference_scratch_init(&other);
    state = 1;
    for (int64_t n = 0; n < cases(1500); n++) {
        draw_rows(n % 4 == 0);
        bool bars = n % 5 != 0;
        set_answers(&alone, bars);
        for (int32_t r = 0; r < count; r++) {
            forget_reads();
            ck_assert_int_eq(reference_row_compute(&rows[r], &kv, &other, alone.out[r],
                                                   alone.to[r].bars, &alone.to[r].result, NULL),
                             ATTN_OK);
        }
        const row_kernels *kernels;
        for (int32_t k = 0; (kernels = kernels_of(k)); k++) {
            set_answers(&together, bars);
            forget_reads();
            ck_assert_int_eq(
                reference_rows_compute_by(kernels, rows, count, &kv, &scratch, together.to, NULL),
                ATTN_OK);
            same_answers();
            reads_are_right();
        }
    }
    reference_scratch_finish(&scratch);
    reference_scratch_finish(&other);
}

/* ---- A plain loop ---------------------------------------------------------------------------- */

static double plain_dot(const double *a, const double *b)
{
    double sum[4] = {0};
    for (int32_t d = 0; d < data.dim; d++)
        sum[d < data.dim / 4 * 4 ? d % 4 : 0] += a[d] * b[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* One row to out[]; returns the LSE. */
static double plain_row(const reference_row *row, double *out)
{
    static double scores[MAX_KEYS];
    double largest = row->has_sink ? row->sink : -INFINITY;
    memset(out, 0, MAX_DIM * sizeof *out);
    for (int64_t j = 0; j < row->kv_len; j++) {
        if (!reference_sees(&row->sight, j))
            continue;
        scores[j] = row->sm_scale * plain_dot(row->query, data.keys[j]);
        largest = scores[j] > largest ? scores[j] : largest;
    }
    if (largest == -INFINITY)
        return largest;
    double sum = row->has_sink ? exp(row->sink - largest) : 0;
    for (int64_t j = 0; j < row->kv_len; j++)
        if (reference_sees(&row->sight, j))
            sum += exp(scores[j] - largest);
    for (int64_t j = 0; j < row->kv_len; j++)
        if (reference_sees(&row->sight, j))
            for (int32_t d = 0; d < data.v_dim; d++)
                out[d] += exp(scores[j] - largest) / sum * data.values[j][d];
    return largest + log(sum);
}

TEST_OF(rows, as_a_plain_loop)
{
    reference_scratch scratch;
    static double out[MAX_DIM];
    reference_scratch_init(&scratch);
    state = 2;
    for (int n = 0; n < 300; n++) {
        draw_rows(true);
        for (int32_t r = 0; r < count; r++)
            rows[r].out_dtype = ATTN_F32;
        set_answers(&together, true);
        forget_reads();
        ck_assert_int_eq(reference_rows_compute(rows, count, &kv, &scratch, together.to, NULL),
                         ATTN_OK);
        for (int32_t r = 0; r < count; r++) {
            double lse = plain_row(&rows[r], out);
            ck_assert_mem_eq(&together.to[r].result.lse, &lse, sizeof lse);
            ck_assert_mem_eq(together.out[r], out, (size_t)data.v_dim * sizeof *out);
        }
    }
    reference_scratch_finish(&scratch);
}

/* ---- Ranges, refusals ------------------------------------------------------------------------ */

TEST_OF(rows, ranges_hold_what_is_seen)
{
    state = 3;
    int64_t exact = 0;
    for (int n = 0; n < 20000; n++) {
        int64_t kv_len = (int64_t)next(40), first, end;
        draw_sight(0, kv_len);
        const reference_sight *sight = &rows[0].sight;
        int all = reference_sight_range(sight, kv_len, &first, &end);
        exact += all;
        ck_assert_int_ge(first, 0);
        ck_assert_int_le(first, end);
        ck_assert(end <= kv_len || first == end);
        for (int64_t j = 0; j < kv_len; j++) {
            int inside = j >= first && j < end, seen = reference_sees(sight, j);
            ck_assert(inside || !seen);
            ck_assert(!all || seen == inside);
        }
    }
    ck_assert_int_gt(exact, 5000);
}

TEST_OF(rows, rows_must_be_alike)
{
    reference_scratch scratch;
    reference_scratch_init(&scratch);
    state = 4;
    do
        draw_rows(true);
    while (count < 3);
    set_answers(&together, true);
    for (int n = 0; n < 3; n++) {
        reference_row before = rows[2];
        rows[2].head_dim += n == 0;
        rows[2].v_head_dim += n == 1;
        rows[2].kv_len += n == 2;
        ck_assert_int_eq(reference_rows_compute(rows, count, &kv, &scratch, together.to, NULL),
                         ATTN_INVALID_ARGUMENT);
        rows[2] = before;
    }
    ck_assert_int_eq(reference_rows_compute(rows, 0, &kv, &scratch, NULL, NULL), ATTN_OK);
    reference_scratch_finish(&scratch);
}

GROUP(rows, .timeout = 300);
TESTS("rows");
