/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_vector.h: vector types of inner loops for the CPU, by GCC's vector extensions; `vf` is as
 * wide as the including file's instruction set allows.
 */
#ifndef PLUGINS_CPU_VECTOR_H
#define PLUGINS_CPU_VECTOR_H

#include "plugins/common/convert.h"

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef float vf_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vf load(const float *from)
{
    return *(const vf_any *)from;
}

INLINE void put(float *to, vf x)
{
    *(vf_any *)to = x;
}

INLINE vf splat(float x)
{
#if LANES == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif LANES == 8
    return (vf){x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x};
#endif
}

/* mask ? a : b, lane by lane; mask is the result of a comparison. */
INLINE vf choose(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* a > b ? a : b, lane by lane: b where one of them is NaN. */
INLINE vf larger(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE vf magnitude(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

/* Halves are added until one lane is left, for all widths in that order. */
INLINE float add_lanes(vf x)
{
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum[LANES];
    put(sum, x);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            sum[i] += sum[i + step];
    return sum[0];
#endif
}

INLINE float max_lanes(vf x)
{
    float largest[LANES];
    put(largest, x);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            largest[i] = largest[i] > largest[i + step] ? largest[i] : largest[i + step];
    return largest[0];
}

/* exp, within 2 ulp; 0 below the smallest normal number, NaN of NaN. Cephes' polynomial. */
INLINE vf vexp(vf x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted = x * 1.44269504f + magic;
    vf n = shifted - magic;
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vf power = (vf)(((vu)shifted << 23) + (127u << 23)); /* of magic's bits none is left */
#if LANES == 16
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_mul_ps(kept, (__m512)p, (__m512)power);
#else
    return choose(x < -87.3f, splat(0), p * power);
#endif
}

/* ---- Conversion ------------------------------------------------------------------------------ */

/* LANES elements as f32_to_bf16() makes them. */
INLINE void put_bf16(uint16_t *to, vf x)
{
    typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
    const vu bits = (vu)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const vu nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    const halves half =
        __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), halves);
    memcpy(to, &half, sizeof half);
}

static inline void convert_f16(const uint16_t *row, int32_t n, float *to)
{
    int32_t i = 0;
#ifdef __AVX2__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + i))));
#endif
    for (; i < n; i++)
        to[i] = f16_to_f32(row[i]);
}

static inline void convert_bf16(const uint16_t *row, int32_t n, float *to)
{
    int32_t i = 0;
#ifdef __AVX2__
    for (; i + 8 <= n; i += 8) {
        __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(row + i)));
        _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    }
#endif
    for (; i < n; i++)
        to[i] = bf16_to_f32(row[i]);
}

#endif /* PLUGINS_CPU_VECTOR_H */
