/* SPDX-License-Identifier: Apache-2.0
 *
 * check_common_kernels.c: the kernels that plugins share, compiled as C: saving KV to the bit as
 * cpu_native and the oracle do, merging as the oracle does. device_common_kernels.c holds a GPU to
 * what is computed here.
 */
#include "plugins/common/tests/common_kernels_case.h"

#include "host/base/dtype.h"
#include "host/reference/reference.h"
#include "plugins/common/convert.h"
#include "tests/tools/test_main.h"

#include <math.h>

static const attn_dtype dtypes[] = {[ELEMENT_F32] = ATTN_F32,
                                    [ELEMENT_F16] = ATTN_F16,
                                    [ELEMENT_BF16] = ATTN_BF16,
                                    [ELEMENT_E4M3] = ATTN_FP8_E4M3,
                                    [ELEMENT_E5M2] = ATTN_FP8_E5M2};

/* Check's own assertions tell the framework that they were passed, which takes too long in a loop
 * of millions. */
#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)

/* ---- Elements -------------------------------------------------------------------------------- */

TEST_OF(elements, elements_widen)
{
    for (u32 bits = 0; bits <= 0xffff; bits++) {
        u16 narrow = (u16)bits;
        float half = element_from_f16(narrow), brain = element_from_bf16(narrow);
        double half_truth = dtype_fp16_value(narrow), brain_truth = dtype_bf16_value(narrow);
        MUST(f32_bits(half) == float_bits(f16_to_f32(narrow)), "fp16 %#x", bits);
        MUST(f32_bits(brain) == float_bits(bf16_to_f32(narrow)), "bf16 %#x", bits);
        MUST(isnan(half) ? isnan(half_truth) : (double)half == half_truth, "fp16 %#x", bits);
        MUST(isnan(brain) ? isnan(brain_truth) : (double)brain == brain_truth, "bf16 %#x", bits);
    }
}

/* Every upper half with lower halves around the ties of fp16 and bf16. */
TEST_OF(elements, elements_narrow)
{
    static const u32 lows[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000,
                               0x7fff, 0x8000, 0x8001, 0x9000, 0xf000, 0xffff, 0x5a5a};
    for (u32 high = 0; high <= 0xffff; high++)
        for (size_t i = 0; i < sizeof lows / sizeof lows[0]; i++) {
            float x = bits_f32(high << 16 | lows[i]);
            u16 half = element_to_f16(x), brain = element_to_bf16(x);
            MUST(half == f32_to_f16(x) && brain == f32_to_bf16(x), "%a", (double)x);
            if (!isnan(x))
                MUST(half == dtype_fp16_bits((double)x) && brain == dtype_bf16_bits((double)x),
                     "%a", (double)x);
        }
}

/* ---- Saving: values -------------------------------------------------------------------------- */

/* What the sweeps have met: none of it may be missing. */
static struct {
    long subnormal, ties, saturated, nan, zero;
} met;

static double fp8_value(int dtype, u8 code)
{
    return dtype == ELEMENT_E4M3 ? dtype_e4m3_value(code) : dtype_e5m2_value(code);
}

static void count_met(int dtype, float x, float scale, u8 code)
{
    u8 magnitude = code & 0x7f, largest = dtype == ELEMENT_E4M3 ? 0x7e : 0x7b;
    double quotient = fabs((double)(x / scale)), value = fabs(fp8_value(dtype, code));
    met.nan += isnan(x);
    met.zero += magnitude == 0;
    met.subnormal += magnitude != 0 && magnitude < (dtype == ELEMENT_E4M3 ? 8 : 4);
    met.saturated += magnitude == largest && quotient > value;
    if (magnitude > 0 && magnitude < largest)
        met.ties += quotient - value == fp8_value(dtype, magnitude + 1) - quotient ||
                    value - quotient == quotient - fp8_value(dtype, magnitude - 1);
}

/* One value by the kernel, by cpu_native and by the oracle. */
static void check_value(int from_dtype, int to_dtype, const void *from, float scale)
{
    const fp8_format *format = to_dtype == ELEMENT_E4M3 ? &fp8_e4m3 : &fp8_e5m2;
    u8 codes[4] = {0xA5}, oracle = 0x5A;
    float x = element_load(from_dtype, from, 0);
    save_kv_vector(from_dtype, to_dtype, from, codes, 1, scale, 0, 1);
    dtype_quantise(dtypes[to_dtype], &oracle, 0, (float)dtype_load(dtypes[from_dtype], from, 0),
                   scale);
    u8 native = f32_to_fp8(x / scale, format);
    MUST(codes[0] == native && codes[0] == oracle,
         "%a / %a as dtype %d: %#x, cpu_native %#x, the oracle %#x", (double)x, (double)scale,
         to_dtype, codes[0], native, oracle);
    count_met(to_dtype, x, scale, codes[0]);
}

static void check_met(void)
{
    ck_assert_int_gt(met.subnormal, 1000);
    ck_assert_int_gt(met.ties, 1000);
    ck_assert_int_gt(met.saturated, 1000);
    ck_assert_int_gt(met.nan, 1000);
    ck_assert_int_gt(met.zero, 1000);
}

/* All values of both 16-bit types, both fp8 types, all scales. */
TEST_OF(save_kv, all_values_are_quantised_alike)
{
    for (int from = ELEMENT_F16; from <= ELEMENT_BF16; from++)
        for (int to = ELEMENT_E4M3; to <= ELEMENT_E5M2; to++)
            for (int i = 0; i < CASE_SCALES; i++)
                for (u32 bits = 0; bits <= 0xffff; bits++) {
                    u16 x = (u16)bits;
                    check_value(from, to, &x, case_scales[i]);
                }
    check_met();
}

static void check_around(int to, float x, float scale)
{
    const float near[] = {x, nextafterf(x, INFINITY), nextafterf(x, -INFINITY), -x};
    for (int i = 0; i < 4; i++)
        check_value(ELEMENT_F32, to, &near[i], scale);
}

/* fp32: every code and every tie with their neighbours, and random bits. */
TEST_OF(save_kv, fp32_is_quantised_alike)
{
    u32 state = 1;
    for (int to = ELEMENT_E4M3; to <= ELEMENT_E5M2; to++) {
        int largest = to == ELEMENT_E4M3 ? 0x7e : 0x7b;
        for (int i = 0; i < CASE_SCALES; i++)
            for (int code = 0; code <= largest; code++) {
                float value = (float)fp8_value(to, (u8)code);
                float next = code < largest ? (float)fp8_value(to, (u8)(code + 1)) : 2 * value;
                check_around(to, value * case_scales[i], case_scales[i]);
                check_around(to, (value + next) / 2 * case_scales[i], case_scales[i]);
            }
        for (int n = 0; n < 2000000; n++) {
            state = state * 1664525u + 1013904223u;
            u32 bits = state ^ state >> 15;
            check_value(ELEMENT_F32, to, &bits, case_scales[n % CASE_SCALES]);
        }
    }
    check_met();
}

/* ---- Saving: places -------------------------------------------------------------------------- */

static const char *cache_vector(const save_case *c, int side, i64 slot, int head)
{
    const save_kv_side *s = side ? &c->call.v : &c->call.k;
    return (const char *)c->to[side] + slot / SAVE_PAGE * s->to_page +
           slot % SAVE_PAGE * s->to_token + head * s->to_head;
}

/* Every row's vectors, by the oracle's quantiser; and no other byte. */
static void check_places(save_case *c)
{
    save_case before = *c;
    for (int side = 0; side < 2; side++) {
        const save_kv_side *s = side ? &c->call.v : &c->call.k;
        before.to[side] = malloc(c->to_bytes);
        memset(before.to[side], 0xA5, c->to_bytes);
        for (i64 row = 0; row < SAVE_ROWS; row++)
            for (int head = 0; head < SAVE_HEADS && c->slots[row] >= 0; head++) {
                const char *from =
                    (const char *)c->from[side] + row * s->from_row + head * s->from_head;
                char *to = (char *)before.to[side] +
                           (cache_vector(c, side, c->slots[row], head) - (char *)c->to[side]);
                int size = element_size(c->call.to_dtype);
                for (int d = 0; d < SAVE_DIM; d++)
                    if (c->call.to_dtype == c->call.from_dtype)
                        memcpy(to + d * size, from + d * size, (size_t)size);
                    else
                        dtype_quantise(dtypes[c->call.to_dtype], to, d,
                                       (float)dtype_load(dtypes[c->call.from_dtype], from, d),
                                       c->scales[s->scale_stride * head]);
            }
        ck_assert_int_eq(memcmp(before.to[side], c->to[side], c->to_bytes), 0);
        free(before.to[side]);
    }
}

/* Both layouts, gaps, slots in no order and of -1, scales for all heads and for each; threads that
 * share a vector give what one gives. */
TEST_OF(save_kv, rows_go_to_their_slots)
{
    static const int pairs[][2] = {{ELEMENT_F16, ELEMENT_F16},   {ELEMENT_BF16, ELEMENT_BF16},
                                   {ELEMENT_F32, ELEMENT_F32},   {ELEMENT_F16, ELEMENT_E4M3},
                                   {ELEMENT_BF16, ELEMENT_E5M2}, {ELEMENT_F32, ELEMENT_E4M3},
                                   {ELEMENT_F32, ELEMENT_E5M2},  {ELEMENT_BF16, ELEMENT_E4M3}};
    for (unsigned seed = 0; seed < 16; seed++) {
        save_case c;
        save_case_init(&c, seed, pairs[seed / 2][0], pairs[seed / 2][1], 0.03f, seed / 2 % 2 == 1);
        save_case_run(&c);
        check_places(&c);
        save_case_poison(&c);
        for (int head = 0; head < SAVE_HEADS; head++)
            for (int block = 0; block < 3; block++)
                for (int lane = 0; lane < 64; lane++)
                    save_kv_rows(&c.call, block, SAVE_ROWS, 3, head, lane, 64);
        check_places(&c);
        save_case_finish(&c);
    }
}

/* ---- Merging --------------------------------------------------------------------------------- */

/* Relative error against fp64, in units of 2^-23. */
static double units(float actual, double truth)
{
    return fabs((double)actual - truth) / fabs(truth) * 0x1p23;
}

TEST_OF(merge, exponential_and_logarithm)
{
    for (float x = 0; x > -87.0f; x = nextafterf(x, -INFINITY) * 1.00001f - 1e-5f)
        MUST(units(merge_exp(x), exp((double)x)) < 2, "e^%a", (double)x);
    for (float x = nextafterf(1.0f, 2.0f); x < 0x1p24f; x *= 1.00003f)
        MUST(units(merge_log(x), log((double)x)) < 2, "ln %a", (double)x);
    ck_assert(merge_exp(0.0f) == 1.0f && merge_exp(-0.0f) == 1.0f && merge_log(1.0f) == 0.0f);
    ck_assert(merge_exp(-87.0f) == 0.0f && merge_exp(-INFINITY) == 0.0f);
    ck_assert(isnan(merge_exp(NAN)) && isnan(merge_log(NAN)));
}

/* The oracle's merge of a row and head: fold the states, and the sink as one without a value. */
static void merge_in_fp64(const merge_case *c, i64 row, int head, double *out,
                          reference_row_result *result)
{
    double part[128], lse = (double)c->sink;
    int dim = c->result.dim;
    memset(out, 0, 128 * sizeof *out);
    memset(part, 0, sizeof part);
    double largest = 0, rounding = 0;
    for (int i = 0; i < c->states.count; i++) {
        double state_lse = (double)merge_state_lse(&c->states, row, head, i);
        for (int d = 0; d < dim; d++) {
            part[d] =
                dtype_load(dtypes[c->states.dtype], merge_state_out(&c->states, row, head, i), d);
            if (isfinite(part[d]))
                largest = fmax(largest, fabs(part[d]));
        }
        reference_merge(dim, out, lse, part, state_lse, out, &lse);
    }
    for (int d = 0; d < dim; d++) {
        double rounded = dtype_round(dtypes[c->result.dtype], out[d]);
        rounding = fmax(rounding, fabs(rounded - out[d]));
    }
    *result = (reference_row_result){.lse = lse,
                                     .bar = 2 * rounding + 1e-5 * largest,
                                     .lse_bar = isfinite(lse) ? 1e-5 * fmax(1, fabs(lse)) : 0};
}

/* To twice the output's rounding, and what fp32 does. */
static void check_merged(const merge_case *c)
{
    double truth[128], actual[128];
    reference_row_result result;
    for (i64 row = 0; row < MERGE_ROWS; row++)
        for (int head = 0; head < MERGE_HEADS; head++) {
            const char *out = c->out + row * c->result.out_row + head * c->result.out_head;
            const char *lse = c->lse + row * c->result.lse_row + head * c->result.lse_head;
            merge_in_fp64(c, row, head, truth, &result);
            for (int d = 0; d < c->result.dim; d++)
                actual[d] = dtype_load(dtypes[c->result.dtype], out, d);
            reference_verdict verdict = reference_check_row(actual, truth, NULL, c->result.dim,
                                                            dtypes[c->result.dtype], &result);
            MUST(verdict.code == REFERENCE_PASS, "row %lld head %d dim %d: %g for %g",
                 (long long)row, head, verdict.dimension, actual[verdict.dimension],
                 truth[verdict.dimension]);
            verdict = reference_check_lse(dtype_load(ATTN_F32, lse, 0), &result);
            MUST(verdict.code == REFERENCE_PASS, "row %lld head %d: lse %g for %g", (long long)row,
                 head, dtype_load(ATTN_F32, lse, 0), result.lse);
        }
}

/* No byte between the vectors is written. */
static void check_gaps(const merge_case *c)
{
    int size = element_size(c->result.dtype);
    for (i64 row = 0; row < MERGE_ROWS; row++) {
        for (int head = 0; head < MERGE_HEADS; head++) {
            const char *gap =
                c->out + row * c->result.out_row + head * c->result.out_head + c->result.dim * size;
            for (int i = 0; i < size; i++)
                MUST((u8)gap[i] == 0xA5, "row %lld head %d", (long long)row, head);
        }
        const char *gap = c->lse + row * c->result.lse_row + MERGE_HEADS * c->result.lse_head;
        MUST(*(const any32 *)gap == 0xA5A5A5A5u, "LSE of row %lld", (long long)row);
    }
}

/* One to nine states, all kinds of LSE, all types; by any number of threads to the same bits. */
TEST_OF(merge, states_merge_as_the_oracle_merges)
{
    for (int count = 1; count <= MERGE_MAX_STATES; count++)
        for (int kind = 0; kind < MERGE_KINDS; kind++)
            for (unsigned seed = 0; seed < 20; seed++) {
                merge_case c;
                merge_case_init(&c, seed, kind, count, (int)seed % 3, (int)(seed / 3) % 3);
                merge_case_run(&c, 0, 1);
                check_merged(&c);
                char *out = malloc(c.out_bytes);
                memcpy(out, c.out, c.out_bytes);
                merge_case_poison(&c);
                merge_case_run(&c, 0, seed % 4 ? 32 : 5);
                ck_assert_int_eq(memcmp(out, c.out, c.out_bytes), 0);
                check_gaps(&c);
                free(out);
                merge_case_finish(&c);
            }
}

TEST_OF(merge, two_states_give_the_bits_of_many)
{
    for (unsigned seed = 0; seed < 60; seed += 2) { /* without a sink */
        merge_case c;
        merge_case_init(&c, seed, (int)seed / 2 % MERGE_KINDS, 2, (int)seed % 3,
                        (int)(seed / 3) % 3);
        merge_case_run(&c, 0, 1);
        char *out = malloc(c.out_bytes), *lse = malloc(c.lse_bytes);
        memcpy(out, c.out, c.out_bytes);
        memcpy(lse, c.lse, c.lse_bytes);
        merge_case_poison(&c);
        merge_case_run(&c, 1, 8);
        ck_assert_int_eq(memcmp(out, c.out, c.out_bytes), 0);
        ck_assert_int_eq(memcmp(lse, c.lse, c.lse_bytes), 0);
        check_gaps(&c);
        free(out);
        free(lse);
        merge_case_finish(&c);
    }
}

/* The result in the place of the second state, by one thread its LSE too. */
TEST_OF(merge, states_merge_in_place)
{
    for (unsigned seed = 0; seed < 12; seed++) {
        merge_case c;
        merge_case_init(&c, seed, MERGE_NEAR, 2, (int)seed % 3, (int)seed % 3);
        merge_case_run(&c, 1, 1);
        merge_states a = merge_case_state(&c, 0), b = merge_case_state(&c, 1);
        merge_result over = {.out = (void *)(uintptr_t)b.out,
                             .lse = (void *)(uintptr_t)b.lse,
                             .out_row = b.out_row,
                             .out_head = b.out_head,
                             .lse_row = b.lse_row,
                             .lse_head = b.lse_head,
                             .dtype = b.dtype,
                             .dim = c.result.dim};
        size_t bytes = (size_t)(c.result.dim * element_size(b.dtype));
        for (i64 row = 0; row < MERGE_ROWS; row++)
            for (int head = 0; head < MERGE_HEADS; head++) {
                const char *apart = c.out + row * c.result.out_row + head * c.result.out_head;
                const char *lse = c.lse + row * c.result.lse_row + head * c.result.lse_head;
                merge_two(&a, &b, &over, row, head, 0, 1);
                MUST(memcmp(merge_state_out(&b, row, head, 0), apart, bytes) == 0, "row %lld",
                     (long long)row);
                MUST(f32_bits(merge_state_lse(&b, row, head, 0)) == *(const any32 *)lse, "row %lld",
                     (long long)row);
            }
        merge_case_finish(&c);
    }
}

/* What is not a number stays none, where it counts and nowhere else; the LSE may be left out. */
TEST_OF(merge, merging_keeps_what_is_not_finite)
{
    float outs[2][2] = {{1.0f, NAN}, {3.0f, 4.0f}}, lses[2] = {0.0f, -1.0f}, out[2], lse = 7;
    merge_states states = {.out = outs,
                           .lse = lses,
                           .out_state = sizeof outs[0],
                           .lse_state = sizeof lses[0],
                           .count = 2};
    merge_result result = {.out = out, .lse = &lse, .dim = 2};
    merge_many(&states, MERGE_EMPTY, &result, 0, 0, 0, 1);
    ck_assert(isfinite(out[0]) && isnan(out[1]) && isfinite(lse));
    lses[0] = -INFINITY;
    merge_many(&states, MERGE_EMPTY, &result, 0, 0, 0, 1);
    ck_assert(out[0] == 3.0f && out[1] == 4.0f && lse == -1.0f);
    lses[1] = -INFINITY;
    merge_many(&states, MERGE_EMPTY, &result, 0, 0, 0, 1);
    ck_assert(out[0] == 0.0f && out[1] == 0.0f && lse == -INFINITY);
    merge_many(&states, 2.5f, &result, 0, 0, 0, 1);
    ck_assert(out[0] == 0.0f && out[1] == 0.0f && lse == 2.5f);
    result.lse = NULL;
    const float bad[] = {NAN, INFINITY}, others[] = {1.0f, -INFINITY};
    for (int i = 0; i < 8; i++) { /* a bad one first or last, next to a state or an empty one */
        lses[i / 4] = bad[i % 2];
        lses[1 - i / 4] = others[i / 2 % 2];
        merge_many(&states, MERGE_EMPTY, &result, 0, 0, 0, 1);
        ck_assert(isnan(out[0]) && isnan(out[1]) && lse == 2.5f);
    }
}

TESTS("common_kernels");
