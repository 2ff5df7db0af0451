/* SPDX-License-Identifier: Apache-2.0
 *
 * Number formats: against PyTorch's tables, and at the places where conversions go wrong.
 */
#include "host/base/dtype.h"

#include "tests/tools/golden_file.h"
#include "tests/tools/test_main.h"

#include <math.h>

static float from_word(double word)
{
    uint32_t bits = (uint32_t)word;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- Names ----------------------------------------------------------------------------------- */

TEST_OF(dtype, names_go_both_ways)
{
    static const attn_dtype all[] = {ATTN_F64,      ATTN_F32,      ATTN_F16,       ATTN_BF16,
                                     ATTN_FP8_E4M3, ATTN_FP8_E5M2, ATTN_I32,       ATTN_I64,
                                     ATTN_U8,       ATTN_U16,      ATTN_DTYPE_NONE};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        attn_dtype parsed = 1;
        ck_assert_int_eq(dtype_parse(dtype_name(all[n]), &parsed), 0);
        ck_assert_uint_eq(parsed, all[n]);
    }
}

TEST_OF(dtype, synonyms_and_unknown_names)
{
    attn_dtype dtype = 7;
    ck_assert_int_eq(dtype_parse("float8_e4m3fn", &dtype), 0);
    ck_assert_uint_eq(dtype, ATTN_FP8_E4M3);
    ck_assert_int_eq(dtype_parse("BFloat16", &dtype), 0);
    ck_assert_uint_eq(dtype, ATTN_BF16);
    dtype = 7;
    ck_assert_int_eq(dtype_parse("fp12", &dtype), -1);
    ck_assert_int_eq(dtype_parse("", &dtype), -1);
    ck_assert_uint_eq(dtype, 7);
    ck_assert_str_eq(dtype_name(ATTN_DTYPE(9, 3)), "?");
}

TEST_OF(dtype, kinds_and_largest_values)
{
    ck_assert(dtype_is_float(ATTN_F16) && dtype_is_float(ATTN_F64));
    ck_assert(!dtype_is_float(ATTN_I32) && !dtype_is_float(ATTN_DTYPE_NONE));
    ck_assert(dtype_is_fp8(ATTN_FP8_E5M2) && !dtype_is_fp8(ATTN_U8));
    ck_assert_double_eq(dtype_largest(ATTN_FP8_E4M3), 448);
    ck_assert_double_eq(dtype_largest(ATTN_FP8_E5M2), 57344);
    ck_assert_double_eq(dtype_largest(ATTN_F16), 65504);
    ck_assert_double_eq(dtype_largest(ATTN_BF16), 0x1.fep+127);
    ck_assert_double_eq(dtype_largest(ATTN_I32), 0);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void check_table(attn_dtype dtype, const double *expected)
{
    for (int code = 0; code < 256; code++) {
        uint8_t bits = (uint8_t)code;
        double value = dtype_load(dtype, &bits, 0);
        if (isnan(expected[code])) {
            ck_assert(isnan(value));
            continue;
        }
        ck_assert_double_eq(value, expected[code]);
        ck_assert_int_eq(!!signbit(value), code >> 7);
        uint8_t back = 0;
        dtype_store(dtype, &back, 0, value);
        ck_assert_uint_eq(back, bits);
    }
}

TEST_OF(dtype, fp8_tables_are_pytorchs)
{
    golden_case record;
    int64_t count;
    FILE *file = golden_open("dtypes.txt");
    ck_assert(golden_next(file, &record));
    ck_assert_str_eq(record.name, "tables");
    check_table(ATTN_FP8_E4M3, golden_get(&record, "e4m3", &count));
    ck_assert_int_eq(count, 256);
    check_table(ATTN_FP8_E5M2, golden_get(&record, "e5m2", &count));
    ck_assert_int_eq(count, 256);
    golden_finish(&record);
    fclose(file);
}

static void check_sixteen(attn_dtype dtype, const double *words, const double *expected,
                          int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        float value = from_word(words[n]);
        uint16_t bits;
        dtype_store(dtype, &bits, 0, (double)value);
        if (isnan(value))
            ck_assert(isnan(dtype_load(dtype, &bits, 0)));
        else
            ck_assert_msg(bits == (uint16_t)expected[n], "%s of %a is %#x, not %#x",
                          dtype_name(dtype), (double)value, bits, (unsigned)expected[n]);
    }
}

TEST_OF(dtype, sixteen_bit_rounding_is_pytorchs)
{
    golden_case record;
    int64_t count;
    FILE *file = golden_open("dtypes.txt");
    while (golden_next(file, &record) && strcmp(record.name, "sixteen") != 0)
        golden_finish(&record);
    const double *words = golden_get(&record, "inputs", &count);
    ck_assert_int_gt(count, 1000);
    check_sixteen(ATTN_F16, words, golden_get(&record, "f16", NULL), count);
    check_sixteen(ATTN_BF16, words, golden_get(&record, "bf16", NULL), count);
    golden_finish(&record);
    fclose(file);
}

static int64_t check_quantised(const golden_case *record, attn_dtype dtype)
{
    int64_t count;
    const double *words = golden_get(record, "inputs", &count);
    const double *codes = golden_get(record, "codes", NULL);
    float scale = (float)golden_number(record, "scale");
    for (int64_t n = 0; n < count; n++) {
        float value = from_word(words[n]);
        uint8_t code;
        dtype_quantise(dtype, &code, 0, value, scale);
        if (isnan(value))
            ck_assert(isnan(dtype_load(dtype, &code, 0)));
        else
            ck_assert_msg(code == (uint8_t)codes[n], "%s of %a / %a is %#x, not %#x",
                          dtype_name(dtype), (double)value, (double)scale, code,
                          (unsigned)codes[n]);
    }
    return count;
}

TEST_OF(dtype, quantisation_is_pytorchs_of_clamped)
{
    golden_case record;
    int64_t checked[2] = {0, 0};
    FILE *file = golden_open("dtypes.txt");
    while (golden_next(file, &record)) {
        if (strncmp(record.name, "quantise_e4m3", 13) == 0)
            checked[0] += check_quantised(&record, ATTN_FP8_E4M3);
        if (strncmp(record.name, "quantise_e5m2", 13) == 0)
            checked[1] += check_quantised(&record, ATTN_FP8_E5M2);
        golden_finish(&record);
    }
    fclose(file);
    ck_assert_int_gt(checked[0], 1500);
    ck_assert_int_gt(checked[1], 1500);
}

/* ---- Borders --------------------------------------------------------------------------------- */

/* Through fp32 this would be a tie, and round down to 1. */
TEST_OF(dtype, one_rounding_from_double)
{
    double above_tie = 1 + 0x1p-11 + 0x1p-40;
    ck_assert_double_eq(dtype_round(ATTN_F16, above_tie), 1 + 0x1p-10);
    ck_assert_double_eq(dtype_round(ATTN_F16, 1 + 0x1p-11), 1);
    ck_assert_double_eq(dtype_round(ATTN_BF16, 1 + 0x1p-8 + 0x1p-45), 1 + 0x1p-7);
    ck_assert_double_eq(dtype_round(ATTN_FP8_E4M3, 1 + 0x1p-4 + 0x1p-45), 1.125);
}

TEST_OF(dtype, subnormals_and_underflow)
{
    ck_assert_uint_eq(dtype_fp16_bits(0x1p-24), 1);
    ck_assert_uint_eq(dtype_fp16_bits(0x1p-25), 0);
    ck_assert_uint_eq(dtype_fp16_bits(-0x1.000001p-25), 0x8001);
    ck_assert_uint_eq(dtype_fp16_bits(0x1p-14 - 0x1p-26), 0x400); /* up into the normals */
    ck_assert_uint_eq(dtype_bf16_bits(0x1p-133), 1);
    ck_assert_uint_eq(dtype_e4m3_bits(0x1p-9), 1);
    ck_assert_uint_eq(dtype_e4m3_bits(0x1p-10), 0);
    ck_assert_uint_eq(dtype_e5m2_bits(0x1p-16), 1);
    ck_assert_uint_eq(dtype_e5m2_bits(-0x1p-1074), 0x80);
    ck_assert_double_eq(dtype_fp16_value(1), 0x1p-24);
    ck_assert_double_eq(dtype_bf16_value(0x0080), 0x1p-126);
}

/* No number of any size is changed by more, and some are by as much. */
static uint16_t stored_bf16(double value)
{
    uint16_t bits;
    dtype_store(ATTN_BF16, &bits, 0, value);
    return bits;
}

/* Each number of bf16, what lies half-way to the next, and the doubles beside that; 2^128 follows the last. */
TEST_OF(dtype, bf16_borders)
{
    for (uint32_t bits = 0; bits <= 0x7f7f; bits++) {
        double value = dtype_bf16_value((uint16_t)bits);
        double next = bits < 0x7f7f ? dtype_bf16_value((uint16_t)(bits + 1)) : 0x1p128;
        double middle = (value + next) / 2;
        ck_assert_uint_eq(stored_bf16(value), bits);
        ck_assert_uint_eq(stored_bf16(-value), bits | 0x8000);
        ck_assert_uint_eq(stored_bf16(middle), bits + (bits & 1));
        ck_assert_uint_eq(stored_bf16(-nextafter(middle, 0)), bits | 0x8000);
        ck_assert_uint_eq(stored_bf16(nextafter(middle, INFINITY)), bits + 1);
    }
}

TEST_OF(dtype, half_units)
{
    static const attn_dtype all[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_FP8_E4M3, ATTN_FP8_E5M2};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        for (int exponent = -30; exponent < 8; exponent++) {
            double most = 0, half = dtype_half_unit(all[n], ldexp(1, exponent));
            if (half > ldexp(1, exponent))
                continue; /* all of them become zero */
            ck_assert_double_eq(half, dtype_half_unit(all[n], -ldexp(1.99, exponent)));
            for (int step = 0; step < 4096; step++) {
                double value = ldexp(1, exponent) + (step / 16.0) * half;
                if (value < ldexp(2, exponent))
                    most = fmax(most, fabs(dtype_round(all[n], value) - value));
            }
            ck_assert_double_eq(most, half);
        }
    ck_assert_double_eq(dtype_half_unit(ATTN_F64, 1), 0);
    ck_assert_double_eq(dtype_half_unit(ATTN_BF16, (double)INFINITY), 0);
    ck_assert_double_eq(dtype_half_unit(ATTN_BF16, 0), ldexp(1, -134));
}

TEST_OF(dtype, overflow_of_a_cast)
{
    ck_assert_uint_eq(dtype_fp16_bits(65519.999), 0x7bff);
    ck_assert_uint_eq(dtype_fp16_bits(65520), 0x7c00);
    ck_assert_uint_eq(dtype_bf16_bits(-1e300), 0xff80);
    ck_assert_uint_eq(dtype_e5m2_bits((double)INFINITY), 0x7c);
    ck_assert_uint_eq(dtype_e4m3_bits(464), 0x7e);
    ck_assert_uint_eq(dtype_e4m3_bits(465), 0x7f); /* no infinity: NaN */
    ck_assert(isinf(dtype_e5m2_value(0xfc)) && dtype_e5m2_value(0xfc) < 0);
    ck_assert(isnan(dtype_e4m3_value(0xff)));
}

TEST_OF(dtype, quantised_infinities_saturate_and_nan_stays)
{
    uint8_t codes[6];
    dtype_quantise(ATTN_FP8_E4M3, codes, 0, INFINITY, 0.5f);
    dtype_quantise(ATTN_FP8_E4M3, codes, 1, -INFINITY, 0.5f);
    dtype_quantise(ATTN_FP8_E4M3, codes, 2, NAN, 0.5f);
    dtype_quantise(ATTN_FP8_E5M2, codes, 3, 3e38f, 1e-3f); /* the quotient is infinite */
    dtype_quantise(ATTN_FP8_E5M2, codes, 4, -61440.0f, 1.0f);
    dtype_quantise(ATTN_FP8_E5M2, codes, 5, NAN, 2.0f);
    ck_assert_uint_eq(codes[0], 0x7e);
    ck_assert_uint_eq(codes[1], 0xfe);
    ck_assert_uint_eq(codes[3], 0x7b);
    ck_assert_uint_eq(codes[4], 0xfb);
    ck_assert(isnan(dtype_dequantise(ATTN_FP8_E4M3, codes, 2, 0.5f)));
    ck_assert(isnan(dtype_dequantise(ATTN_FP8_E5M2, codes, 5, 0.5f)));
    ck_assert_double_eq(dtype_dequantise(ATTN_FP8_E4M3, codes, 1, 0.5f), -224);
}

/* x / scale and x * (1 / scale) differ in fp32 for these, by one code. */
TEST_OF(dtype, division_is_no_multiplication_by_the_reciprocal)
{
    int differing = 0;
    for (int n = 1; n < 4000; n++) {
        float scale = (float)n * 0.001f, tie = 1.0625f; /* between the codes of 1 and 1.125 */
        float x = tie * scale;
        volatile float quotient = x / scale, reciprocal = 1.0f / scale;
        volatile float product = x * reciprocal;
        uint8_t code, by_product;
        dtype_quantise(ATTN_FP8_E4M3, &code, 0, x, scale);
        ck_assert_uint_eq(code, dtype_e4m3_bits((double)quotient));
        by_product = dtype_e4m3_bits((double)product);
        differing += code != by_product;
    }
    ck_assert_int_gt(differing, 0);
}

TEST_OF(dtype, types_without_scale_are_stored_as_cast)
{
    uint16_t half;
    dtype_quantise(ATTN_F16, &half, 0, 1e6f, 123.0f);
    ck_assert_uint_eq(half, 0x7c00);
    float single;
    dtype_quantise(ATTN_F32, &single, 0, 0.1f, 123.0f);
    ck_assert_float_eq(single, 0.1f);
    ck_assert_double_eq(dtype_dequantise(ATTN_F32, &single, 0, 123.0f), (double)0.1f);
}

TEST_OF(dtype, arrays_and_unaligned_elements)
{
    static const attn_dtype all[] = {ATTN_F64,  ATTN_F32,      ATTN_F16,
                                     ATTN_BF16, ATTN_FP8_E4M3, ATTN_FP8_E5M2};
    const double in[] = {1, -2.5, 0.25, 0, 448};
    const float in_float[] = {1, -2.5f, 0.25f, 0, 448};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        unsigned char memory[1 + sizeof in], again[1 + sizeof in];
        double out[5];
        float out_float[5];
        dtype_from_double(all[n], in, 5, memory + 1);
        dtype_from_float(all[n], in_float, 5, again + 1);
        ck_assert_mem_eq(memory + 1, again + 1, 5 * attn_dtype_size(all[n]));
        dtype_to_double(all[n], memory + 1, 5, out);
        dtype_to_float(all[n], memory + 1, 5, out_float);
        for (int i = 0; i < 5; i++) {
            ck_assert_double_eq(out[i], in[i]);
            ck_assert_float_eq(out_float[i], in_float[i]);
        }
    }
    int32_t integer = 5;
    dtype_store(ATTN_I32, &integer, 0, 9);
    ck_assert_int_eq(integer, 5);
    ck_assert(isnan(dtype_load(ATTN_I32, &integer, 0)));
}

/* Neighbours are converted as each of them alone is. */
TEST_OF(dtype, neighbours)
{
    static const attn_dtype types[] = {ATTN_F64,      ATTN_F32,      ATTN_F16,       ATTN_BF16,
                                       ATTN_FP8_E4M3, ATTN_FP8_E5M2, ATTN_DTYPE_NONE};
    static const float x[] = {0,     -0.0f,  1,       -1.0625f, 448,       -465,       57345,
                              1e30f, -1e-9f, 0x1p-7f, 3e-39f,   HUGE_VALF, -HUGE_VALF, NAN};
    enum { COUNT = sizeof x / sizeof x[0] };
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const attn_dtype dtype = types[t];
        char all[8 * COUNT] = {0}, each[8 * COUNT] = {0};
        double read[COUNT], stored[COUNT], one;
        float rounded[COUNT];
        memcpy(rounded, x, sizeof rounded);
        dtype_round_floats(dtype, rounded, COUNT);
        dtype_quantise_all(dtype, x, COUNT, 0.75f, all);
        dtype_dequantise_all(dtype, all, COUNT, 0.75f, read);
        for (int i = 0; i < COUNT; i++) {
            dtype_quantise(dtype, each, i, x[i], 0.75f);
            stored[i] = (double)x[i];
        }
        ck_assert_mem_eq(all, each, sizeof all);
        dtype_as_stored(dtype, stored, COUNT, 0.75f);
        for (int i = 0; i < COUNT; i++) {
            float alone = (float)dtype_round(dtype, (double)x[i]);
            one = dtype_dequantise(dtype, each, i, 0.75f);
            ck_assert(memcmp(&rounded[i], &alone, sizeof alone) == 0 || isnan(alone));
            ck_assert(memcmp(&read[i], &one, sizeof one) == 0 || isnan(one));
            ck_assert(memcmp(&stored[i], &one, sizeof one) == 0 || isnan(one));
        }
    }
}

TESTS("dtype");
