/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.h: fp16, bf16 and fp8 to and from fp32, one element at a time, exact to the bit.
 *
 * All rounding is to nearest even. fp16 and bf16 overflow to infinity; fp8, which is quantised KV,
 * saturates to the largest finite value, infinities too; NaN stays NaN everywhere. Integer
 * arithmetic, so that a caller's flush-to-zero mode changes nothing.
 */
#ifndef PLUGINS_CONVERT_H
#define PLUGINS_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Shift right by 1..31, rounding to nearest even. */
static inline uint32_t shift_rounded(uint32_t x, unsigned shift)
{
    return (x + (1u << (shift - 1)) - 1 + (x >> shift & 1)) >> shift;
}

static inline float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) /* infinity, NaN */
        return bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return bits_float(sign | ((rest << 13) + (112u << 23)));
    if (rest == 0)
        return bits_float(sign);
    unsigned up = (unsigned)__builtin_clz(rest) - 21; /* to bring the leading 1 to bit 10 */
    return bits_float(sign | ((113u - up) << 23) | (rest << up & 0x3ff) << 13);
}

static inline uint16_t f32_to_f16(float x)
{
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) /* 65520: half way to the value beyond the largest */
        return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) /* 2^-14: normal */
        return (uint16_t)(sign | shift_rounded(rest - (112u << 23), 13));
    if (rest <= 0x33000000) /* 2^-25: half of the smallest, which rounds to even, 0 */
        return (uint16_t)sign;
    uint32_t mantissa = (rest & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | shift_rounded(mantissa, 126 - (rest >> 23)));
}

static inline float bf16_to_f32(uint16_t brain)
{
    return bits_float((uint32_t)brain << 16);
}

static inline uint16_t f32_to_bf16(float x)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)shift_rounded(bits, 16);
}

/* A format of 8 bits: sign, exponent, mantissa. */
typedef struct fp8_format {
    unsigned mantissa_bits;
    unsigned bias;
    uint32_t largest; /* code of the largest finite value */
    uint32_t nan;     /* a code of NaN */
} fp8_format;

static const fp8_format fp8_e4m3 = {3, 7, 0x7e, 0x7f};
static const fp8_format fp8_e5m2 = {2, 15, 0x7b, 0x7f};

static inline uint8_t f32_to_fp8(float x, const fp8_format *format)
{
    uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    unsigned drop = 23 - format->mantissa_bits;
    uint32_t rebias = (127 - format->bias) << 23;
    if (rest > 0x7f800000)
        return (uint8_t)(sign | format->nan);
    if (rest >= (format->largest << drop) + rebias)
        return (uint8_t)(sign | format->largest);
    if (rest >= rebias + (1u << 23)) /* normal */
        return (uint8_t)(sign | shift_rounded(rest - rebias, drop));
    unsigned shift = drop + (127 - format->bias) + 1 - (rest >> 23);
    if (rest >> 23 == 0 || shift > 25) /* less than half of the smallest */
        return (uint8_t)sign;
    return (uint8_t)(sign | shift_rounded((rest & 0x7fffff) | 0x800000, shift));
}

static inline float fp8_to_f32(uint8_t code, const fp8_format *format)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    unsigned drop = 23 - format->mantissa_bits;
    uint32_t infinity = format->nan == format->largest + 1 ? 0x80 : format->largest + 1;
    if (rest == infinity)
        return bits_float(sign | 0x7f800000);
    if (rest > format->largest)
        return bits_float(sign | 0x7fc00000);
    uint32_t rebias = (127 - format->bias) << 23;
    if (rest >> format->mantissa_bits != 0)
        return bits_float(sign | ((rest << drop) + rebias));
    /* Subnormal: the code is a count of the smallest value. */
    float smallest = bits_float(rebias - ((format->mantissa_bits - 1) << 23));
    float magnitude = (float)rest * smallest;
    return sign ? -magnitude : magnitude;
}

#endif /* PLUGINS_CONVERT_H */
