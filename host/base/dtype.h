/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.h: data types on the host: names, and exact conversions.
 *
 * All conversions are IEEE: to a narrower type one rounding to nearest, ties to even, from the
 * value itself, with subnormals. NaN stays NaN (sign kept, payload not). Overflow gives infinity
 * where the type has one, else NaN (fp8 e4m3fn), as casts in PyTorch do; only dtype_quantise()
 * saturates. Build with -ffp-contract=off.
 */
#ifndef HOST_BASE_DTYPE_H
#define HOST_BASE_DTYPE_H

#include "attn_types.h"

#include <stdint.h>

/* ---- Names ----------------------------------------------------------------------------------- */

/* "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "f64", "int32", "int64", "uint8", "uint16", "none",
 * as in the ini; "?" for anything else. Static. */
const char *dtype_name(attn_dtype dtype);

/* The type of a name: those of dtype_name() and their usual synonyms (fp32, float32, half,
 * fp16, bfloat16, e4m3, fp8_e4m3fn ...), whatever the case of its letters.
 * 0 and *dtype, or -1 for another text. */
int dtype_parse(const char *text, attn_dtype *dtype);

/* Is it one of the floating-point types, f64, f32, f16, bf16, fp8? */
int dtype_is_float(attn_dtype dtype);

/* Is it one of the two fp8 types, whose stored values need a scale? */
int dtype_is_fp8(attn_dtype dtype);

/* The largest finite value of a floating-point type, e.g. 448 for fp8 e4m3fn; 0 for others. */
double dtype_largest(attn_dtype dtype);

/* ---- Elements -------------------------------------------------------------------------------- */

/* `value` as bits of a 16-bit or 8-bit type, and back (exact). */
uint16_t dtype_fp16_bits(double value);
uint16_t dtype_bf16_bits(double value);
uint8_t dtype_e4m3_bits(double value);
uint8_t dtype_e5m2_bits(double value);
double dtype_fp16_value(uint16_t bits);
double dtype_bf16_value(uint16_t bits);
double dtype_e4m3_value(uint8_t bits);
double dtype_e5m2_value(uint8_t bits);

/* Element `index` of an array of a floating-point type; `base` need not be aligned. Types that are
 * not floating point read as NaN and are not written. */
double dtype_load(attn_dtype dtype, const void *base, int64_t index);
void dtype_store(attn_dtype dtype, void *base, int64_t index, double value);

/* `value` rounded to a floating-point type, as a double. */
double dtype_round(attn_dtype dtype, double value);

/* The most that dtype_round() changes a number of this magnitude by: half a unit in the last place.
 * 0 for fp64 and what is not floating point. */
double dtype_half_unit(attn_dtype dtype, double value);

/* dtype_round() of `count` neighbours, in place. */
void dtype_round_floats(attn_dtype dtype, float *x, int64_t count);

/* dtype_load() and dtype_store() of `count` neighbours, as doubles and as floats (of fp64,
 * rounded).
 */
void dtype_to_double(attn_dtype dtype, const void *from, int64_t count, double *to);
void dtype_from_double(attn_dtype dtype, const double *from, int64_t count, void *to);
void dtype_to_float(attn_dtype dtype, const void *from, int64_t count, float *to);
void dtype_from_float(attn_dtype dtype, const float *from, int64_t count, void *to);

/* ---- Quantised KV ---------------------------------------------------------------------------- */

/* Store x / scale: an IEEE division in fp32, one rounding to nearest even, saturated to the largest
 * finite value (infinities too); NaN stays NaN. Element `index` of the array `base` of `dtype`, any
 * floating-point type of at most 32 bits. A type that is not fp8 is stored without scale and
 * without saturation, as dtype_store() does. */
void dtype_quantise(attn_dtype dtype, void *base, int64_t index, float x, float scale);

/* The value of a stored element: stored * scale, exactly; types other than fp8 have no scale. */
double dtype_dequantise(attn_dtype dtype, const void *base, int64_t index, float scale);

/* Both for `count` neighbours, and a round trip: x becomes the value that is read back after it is
 * stored. */
void dtype_quantise_all(attn_dtype dtype, const float *from, int64_t count, float scale, void *to);
void dtype_dequantise_all(attn_dtype dtype, const void *from, int64_t count, float scale,
                          double *to);
void dtype_as_stored(attn_dtype dtype, double *x, int64_t count, float scale);

#endif /* HOST_BASE_DTYPE_H */
