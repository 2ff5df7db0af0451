/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.c: see dtype.h. Narrow types are described by a `format` row and share one encoder and one
 * decoder; both work on doubles, which hold every value of every format exactly.
 */
#include "host/base/dtype.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* ---- Names ----------------------------------------------------------------------------------- */

/* The first name of a type is the one it is printed with. */
static const struct {
    attn_dtype dtype;
    const char *name;
} names[] = {
    {ATTN_F32, "f32"},
    {ATTN_F16, "f16"},
    {ATTN_BF16, "bf16"},
    {ATTN_FP8_E4M3, "fp8_e4m3"},
    {ATTN_FP8_E5M2, "fp8_e5m2"},
    {ATTN_F64, "f64"},
    {ATTN_I32, "int32"},
    {ATTN_I64, "int64"},
    {ATTN_U8, "uint8"},
    {ATTN_U16, "uint16"},
    {ATTN_DTYPE_NONE, "none"},
    {ATTN_F32, "fp32"},
    {ATTN_F32, "float32"},
    {ATTN_F32, "float"},
    {ATTN_F16, "fp16"},
    {ATTN_F16, "float16"},
    {ATTN_F16, "half"},
    {ATTN_BF16, "bfloat16"},
    {ATTN_FP8_E4M3, "e4m3"},
    {ATTN_FP8_E4M3, "e4m3fn"},
    {ATTN_FP8_E4M3, "fp8_e4m3fn"},
    {ATTN_FP8_E4M3, "float8_e4m3fn"},
    {ATTN_FP8_E5M2, "e5m2"},
    {ATTN_FP8_E5M2, "float8_e5m2"},
    {ATTN_F64, "fp64"},
    {ATTN_F64, "float64"},
    {ATTN_F64, "double"},
};

enum { NAMES = sizeof names / sizeof names[0] };

const char *dtype_name(attn_dtype dtype)
{
    for (int i = 0; i < NAMES; i++)
        if (names[i].dtype == dtype)
            return names[i].name;
    return "?";
}

int dtype_parse(const char *text, attn_dtype *dtype)
{
    for (int i = 0; i < NAMES; i++) {
        if (strcasecmp(names[i].name, text) == 0) {
            *dtype = names[i].dtype;
            return 0;
        }
    }
    return -1;
}

/* ---- Formats --------------------------------------------------------------------------------- */

/* Loops over neighbours (see FOR_EACH) are compiled for each format: what they call becomes a part of them. */
#define INLINE static inline __attribute__((always_inline))

/* A binary floating-point format of at most 16 bits, sign-magnitude as IEEE formats are. */
struct format {
    int mantissa;      /* explicit bits */
    int min_exponent;  /* of the smallest normal number */
    uint16_t sign;     /* bit */
    uint16_t largest;  /* bits of the largest finite value */
    uint16_t infinity; /* bits that overflow gives */
    uint16_t nan;
};

static const struct format fp16 = {10, -14, 0x8000, 0x7bff, 0x7c00, 0x7e00};
static const struct format bf16 = {7, -126, 0x8000, 0x7f7f, 0x7f80, 0x7fc0};
static const struct format e4m3 = {3, -6, 0x80, 0x7e, 0x7f, 0x7f}; /* no infinity */
static const struct format e5m2 = {2, -14, 0x80, 0x7b, 0x7c, 0x7f};

/* 2 to the power of a normal double's exponent. */
INLINE double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exponent of a magnitude; a double's subnormals lie below the range of every format. */
INLINE int exponent_of(double magnitude)
{
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    return (int)(bits >> 52) - 1023;
}

/* The magnitude is counted in units of the last place at its exponent. Adding the exponent's field
 * lets both a carry out of the mantissa and the step from subnormal to normal come out right. */
INLINE uint16_t encode(const struct format *format, double value)
{
    uint16_t sign = signbit(value) ? format->sign : 0;
    if (isnan(value))
        return sign | format->nan;
    double magnitude = fabs(value);
    int exponent = exponent_of(magnitude);
    if (exponent < format->min_exponent)
        exponent = format->min_exponent;
    if (exponent > format->min_exponent + (format->largest >> format->mantissa))
        return sign | format->infinity;
    /* The units are below 2^12: an addition of 2^52 rounds them to the nearest even integer. */
    double shifted = magnitude * power_of_two(format->mantissa - exponent) + 0x1p52;
    uint32_t units = (uint32_t)(shifted - 0x1p52);
    uint32_t bits = units + ((uint32_t)(exponent - format->min_exponent) << format->mantissa);
    return sign | (bits > format->largest ? format->infinity : (uint16_t)bits);
}

static __attribute__((noinline)) uint16_t encode_rare_bf16(double value)
{
    return encode(&bf16, value);
}

/* encode() of bf16, by far the most frequent type, in half the time: works on the bit fields of the
 * double, whose exponent has another bias. */
INLINE uint16_t encode_bf16(double value)
{
    enum { DROPPED = 52 - 7, LEAST = 1023 - 126, BEYOND = 1023 + 127 };
    uint64_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint64_t magnitude = wide & UINT64_MAX >> 1;
    if (magnitude < (uint64_t)LEAST << 52 || magnitude >= (uint64_t)BEYOND << 52)
        return encode_rare_bf16(value);
    magnitude += (UINT64_C(1) << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1);
    return (uint16_t)((wide >> 63 << 15) | ((magnitude >> DROPPED) - ((uint64_t)(LEAST - 1) << 7)));
}

INLINE double decode(const struct format *format, uint16_t bits)
{
    uint16_t magnitude = bits & (uint16_t)(format->sign - 1u);
    double value;
    if (magnitude > format->largest) {
        int infinite = magnitude == format->infinity && format->infinity != format->nan;
        value = infinite ? (double)INFINITY : (double)NAN;
    } else if (magnitude >> format->mantissa == 0) {
        value = magnitude * power_of_two(format->min_exponent - format->mantissa);
    } else { /* the double's bit fields, with another bias of the exponent */
        uint64_t wide = ((uint64_t)magnitude << (52 - format->mantissa)) +
                        ((uint64_t)(1022 + format->min_exponent) << 52);
        memcpy(&value, &wide, sizeof value);
    }
    return bits & format->sign ? -value : value;
}

INLINE const struct format *format_of(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F16:
        return &fp16;
    case ATTN_BF16:
        return &bf16;
    case ATTN_FP8_E4M3:
        return &e4m3;
    case ATTN_FP8_E5M2:
        return &e5m2;
    default:
        return NULL;
    }
}

int dtype_is_float(attn_dtype dtype)
{
    return dtype == ATTN_F64 || dtype == ATTN_F32 || format_of(dtype) != NULL;
}

int dtype_is_fp8(attn_dtype dtype)
{
    return dtype == ATTN_FP8_E4M3 || dtype == ATTN_FP8_E5M2;
}

double dtype_largest(attn_dtype dtype)
{
    if (dtype == ATTN_F64)
        return 0x1.fffffffffffffp+1023;
    if (dtype == ATTN_F32)
        return 0x1.fffffep+127;
    const struct format *format = format_of(dtype);
    return format ? decode(format, format->largest) : 0;
}

double dtype_half_unit(attn_dtype dtype, double value)
{
    static const struct format fp32 = {.mantissa = 23, .min_exponent = -126};
    const struct format *format = dtype == ATTN_F32 ? &fp32 : format_of(dtype);
    if (!format || !isfinite(value))
        return 0;
    int exponent = exponent_of(fabs(value));
    if (exponent < format->min_exponent)
        exponent = format->min_exponent;
    return power_of_two(exponent - format->mantissa - 1);
}

uint16_t dtype_fp16_bits(double value)
{
    return encode(&fp16, value);
}

uint16_t dtype_bf16_bits(double value)
{
    return encode_bf16(value);
}

uint8_t dtype_e4m3_bits(double value)
{
    return (uint8_t)encode(&e4m3, value);
}

uint8_t dtype_e5m2_bits(double value)
{
    return (uint8_t)encode(&e5m2, value);
}

double dtype_fp16_value(uint16_t bits)
{
    return decode(&fp16, bits);
}

double dtype_bf16_value(uint16_t bits)
{
    return decode(&bf16, bits);
}

double dtype_e4m3_value(uint8_t bits)
{
    return decode(&e4m3, bits);
}

double dtype_e5m2_value(uint8_t bits)
{
    return decode(&e5m2, bits);
}

/* ---- Elements -------------------------------------------------------------------------------- */

/* decode() of a one-byte format in a fraction of the time: copies the bit fields into those of a
 * double; a multiplication corrects the exponent's bias. */
INLINE double load_code(const struct format *format, uint8_t bits)
{
    const uint64_t magnitude = bits & 0x7fu;
    if (magnitude > format->largest)
        return decode(format, bits);
    const uint64_t wide = (uint64_t)(bits & 0x80u) << 56 | magnitude << (52 - format->mantissa);
    double value;
    memcpy(&value, &wide, sizeof value);
    return value * power_of_two(1022 + format->min_exponent);
}

/* The statement for i in [0, count), compiled once for each type, so that tests of the type cost
 * nothing. */
#define LOOP_OF(dtype, statement)                                                                  \
    case dtype: {                                                                                  \
        enum { TYPE = dtype };                                                                     \
        for (int64_t i = 0; i < count; i++)                                                        \
            statement;                                                                             \
        break;                                                                                     \
    }
#define FOR_EACH(dtype, statement)                                                                 \
    switch (dtype) {                                                                               \
        LOOP_OF(ATTN_F64, statement)                                                               \
        LOOP_OF(ATTN_F32, statement)                                                               \
        LOOP_OF(ATTN_F16, statement)                                                               \
        LOOP_OF(ATTN_BF16, statement)                                                              \
        LOOP_OF(ATTN_FP8_E4M3, statement)                                                          \
        LOOP_OF(ATTN_FP8_E5M2, statement)                                                          \
    default:                                                                                       \
        LOOP_OF(ATTN_DTYPE_NONE, statement)                                                        \
    }

INLINE double load(attn_dtype dtype, const void *base, int64_t index)
{
    const char *at = (const char *)base + index * (int64_t)attn_dtype_size(dtype);
    const struct format *format = format_of(dtype);
    if (dtype == ATTN_F64) {
        double value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (dtype == ATTN_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return (double)value;
    }
    if (!format)
        return NAN;
    if (format->sign == 0x80)
        return load_code(format, *(const uint8_t *)at);
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    if (dtype == ATTN_BF16 && (bits & 0x7fff) <= bf16.largest) { /* by far the most frequent */
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return (double)value;
    }
    return decode(format, bits);
}

INLINE void store(attn_dtype dtype, void *base, int64_t index, double value)
{
    char *at = (char *)base + index * (int64_t)attn_dtype_size(dtype);
    const struct format *format = format_of(dtype);
    if (dtype == ATTN_F64) {
        memcpy(at, &value, sizeof value);
    } else if (dtype == ATTN_F32) {
        float narrow = (float)value;
        memcpy(at, &narrow, sizeof narrow);
    } else if (format) {
        uint16_t bits = dtype == ATTN_BF16 ? encode_bf16(value) : encode(format, value);
        uint8_t byte = (uint8_t)bits;
        if (format->sign == 0x80)
            memcpy(at, &byte, sizeof byte);
        else
            memcpy(at, &bits, sizeof bits);
    }
}

INLINE double rounded(attn_dtype dtype, double value)
{
    double element;
    store(dtype, &element, 0, value);
    return dtype_is_float(dtype) ? load(dtype, &element, 0) : NAN;
}

double dtype_load(attn_dtype dtype, const void *base, int64_t index)
{
    return load(dtype, base, index);
}

void dtype_store(attn_dtype dtype, void *base, int64_t index, double value)
{
    store(dtype, base, index, value);
}

double dtype_round(attn_dtype dtype, double value)
{
    return rounded(dtype, value);
}

void dtype_round_floats(attn_dtype dtype, float *x, int64_t count)
{
    FOR_EACH(dtype, x[i] = (float)rounded(TYPE, (double)x[i]))
}

void dtype_to_double(attn_dtype dtype, const void *from, int64_t count, double *to)
{
    FOR_EACH(dtype, to[i] = load(TYPE, from, i))
}

void dtype_from_double(attn_dtype dtype, const double *from, int64_t count, void *to)
{
    FOR_EACH(dtype, store(TYPE, to, i, from[i]))
}

void dtype_to_float(attn_dtype dtype, const void *from, int64_t count, float *to)
{
    FOR_EACH(dtype, to[i] = (float)load(TYPE, from, i))
}

void dtype_from_float(attn_dtype dtype, const float *from, int64_t count,
                      void *to){FOR_EACH(dtype, store(TYPE, to, i, (double)from[i]))}

/* ---- Quantised KV ---------------------------------------------------------------------------- */

INLINE void quantise(attn_dtype dtype, void *base, int64_t index, float x, float scale)
{
    if (!dtype_is_fp8(dtype)) {
        store(dtype, base, index, (double)x);
        return;
    }
    float quotient = x / scale;
    double largest = decode(format_of(dtype), format_of(dtype)->largest);
    double value = (double)quotient;
    /* Both comparisons are false for NaN, which stays. Saturation before rounding gives the same
     * result as after it: a value that rounds beyond the largest one lies beyond it. */
    if (value > largest)
        value = largest;
    else if (value < -largest)
        value = -largest;
    store(dtype, base, index, value);
}

INLINE double dequantise(attn_dtype dtype, const void *base, int64_t index, float scale)
{
    double stored = load(dtype, base, index);
    return dtype_is_fp8(dtype) ? stored * (double)scale : stored;
}

INLINE double as_stored(attn_dtype dtype, double x, float scale)
{
    double element;
    quantise(dtype, &element, 0, (float)x, scale);
    return dequantise(dtype, &element, 0, scale);
}

void dtype_quantise(attn_dtype dtype, void *base, int64_t index, float x, float scale)
{
    quantise(dtype, base, index, x, scale);
}

double dtype_dequantise(attn_dtype dtype, const void *base, int64_t index, float scale)
{
    return dequantise(dtype, base, index, scale);
}

void dtype_quantise_all(attn_dtype dtype, const float *from, int64_t count, float scale, void *to)
{
    FOR_EACH(dtype, quantise(TYPE, to, i, from[i], scale))
}

void dtype_dequantise_all(attn_dtype dtype, const void *from, int64_t count, float scale,
                          double *to)
{
    FOR_EACH(dtype, to[i] = dequantise(TYPE, from, i, scale))
}

void dtype_as_stored(attn_dtype dtype, double *x, int64_t count, float scale)
{
    FOR_EACH(dtype, x[i] = as_stored(TYPE, x[i], scale))
}
