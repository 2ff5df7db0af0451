/* SPDX-License-Identifier: Apache-2.0
 *
 * elements.cuh: elements of tensors to and from fp32, exact to the bit, C and CUDA alike.
 *
 * Data types are given as constants, so that only the code of one is left once all is inlined.
 * Rounding is to nearest even, once. fp16 and bf16 overflow to infinity; fp8, which is quantised
 * KV, saturates to the largest finite value, infinities too. NaN stays NaN and keeps its sign.
 * Integer arithmetic: a processor in flush-to-zero mode gives the same.
 */
#ifndef PLUGINS_CUDA_ELEMENTS_CUH
#define PLUGINS_CUDA_ELEMENTS_CUH

#include "plugins/common/cuda/portable.h"

enum {
    ELEMENT_F32 = 0,
    ELEMENT_F16 = 1,
    ELEMENT_BF16 = 2,
    ELEMENT_E4M3 = 3, /* e4m3fn: no infinity */
    ELEMENT_E5M2 = 4
};

PORTABLE int element_is_fp8(int dtype)
{
    return dtype == ELEMENT_E4M3 || dtype == ELEMENT_E5M2;
}

PORTABLE int element_size(int dtype)
{
    return dtype == ELEMENT_F32 ? 4 : element_is_fp8(dtype) ? 1 : 2;
}

PORTABLE int f32_is_nan(float x)
{
    return (f32_bits(x) & 0x7fffffff) > 0x7f800000;
}

/* ---- Wider ----------------------------------------------------------------------------------- */

PORTABLE float element_from_f16(u16 half)
{
    u32 sign = (u32)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) /* infinity, NaN */
        return bits_f32(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return bits_f32(sign | ((rest << 13) + (112u << 23)));
    /* Subnormal: a multiple of 2^-24. */
    return bits_f32(sign | f32_bits(f32_multiply((float)rest, 5.9604644775390625e-8f)));
}

PORTABLE float element_from_bf16(u16 brain)
{
    return bits_f32((u32)brain << 16);
}

/* Element `index` of an array of f32, f16 or bf16. */
PORTABLE float element_load(int dtype, const void *array, i64 index)
{
    if (dtype == ELEMENT_F32)
        return bits_f32(*PORTABLE_AT((const any32 *)array + index));
    u16 bits = *PORTABLE_AT((const any16 *)array + index);
    return dtype == ELEMENT_F16 ? element_from_f16(bits) : element_from_bf16(bits);
}

/* ---- Narrower -------------------------------------------------------------------------------- */

/* Shift right by 1..31, rounding to nearest even. */
PORTABLE u32 shift_to_even(u32 x, u32 shift)
{
    return (x + (1u << (shift - 1)) - 1 + (x >> shift & 1)) >> shift;
}

/* The magnitude of a float as a code with `mantissa` explicit bits and this bias, including
 * subnormal codes. A magnitude too large for the type gives a number above its largest code. */
PORTABLE u32 narrow_magnitude(u32 magnitude, u32 mantissa, u32 bias)
{
    u32 drop = 23 - mantissa, rebias = (127 - bias) << 23;
    if (magnitude >= rebias + (1u << 23))
        return shift_to_even(magnitude - rebias, drop);
    u32 shift = drop + 128 - bias - (magnitude >> 23);
    if (shift > 24) /* less than half of the smallest code */
        return 0;
    return shift_to_even((magnitude & 0x7fffff) | 0x800000, shift);
}

PORTABLE u16 element_to_f16(float x)
{
    u32 bits = f32_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (u16)(sign | 0x7e00);
    u32 code = narrow_magnitude(rest, 10, 15);
    return (u16)(sign | (code < 0x7c00 ? code : 0x7c00));
}

PORTABLE u16 element_to_bf16(float x)
{
    u32 bits = f32_bits(x);
    return (u16)(f32_is_nan(x) ? (bits >> 16 | 0x40) : shift_to_even(bits, 16));
}

PORTABLE u8 element_to_fp8(int dtype, float x)
{
    u32 bits = f32_bits(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    u32 largest = dtype == ELEMENT_E5M2 ? 0x7b : 0x7e;
    if (rest > 0x7f800000)
        return (u8)(sign | 0x7f);
    u32 code = dtype == ELEMENT_E5M2 ? narrow_magnitude(rest, 2, 15) : narrow_magnitude(rest, 3, 7);
    return (u8)(sign | (code < largest ? code : largest));
}

/* Write element `index` of an array of f32, f16 or bf16. */
PORTABLE void element_store(int dtype, void *array, i64 index, float x)
{
    if (dtype == ELEMENT_F32)
        *PORTABLE_AT((any32 *)array + index) = f32_bits(x);
    else
        *PORTABLE_AT((any16 *)array + index) =
            dtype == ELEMENT_F16 ? element_to_f16(x) : element_to_bf16(x);
}

#endif /* PLUGINS_CUDA_ELEMENTS_CUH */
