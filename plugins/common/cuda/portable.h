/* SPDX-License-Identifier: Apache-2.0
 *
 * portable.h: macros for one source on the CPU and on a GPU.
 *
 * A PORTABLE function is inline on both. Arithmetic whose results must not depend on where it runs
 * goes through the functions below: each is one IEEE operation, rounded to nearest even, that no
 * compiler may fuse with another. (C: build with -ffp-contract=off; CUDA: without -ftz=true.)
 *
 * Sources here include each other by their whole path, "plugins/common/cuda/...": nvcc and C
 * compilers find them from the top of the tree, NVRTC is handed them by that name. */
#ifndef PLUGINS_CUDA_PORTABLE_H
#define PLUGINS_CUDA_PORTABLE_H

/* The place of the object that a pointer points to. Tests compile kernels as C and let it look the
 * place up, bounds checked, in the memory of a fake driver. */
#ifndef PORTABLE_AT
#define PORTABLE_AT(pointer) (pointer)
#endif

#ifdef __CUDACC__
#define PORTABLE static __device__ __forceinline__
/* A type that may look at any memory: device code is not optimised by the types of what lies there.
 */
#define PORTABLE_ALIAS
typedef long long i64;
#else
#include <stdint.h>
#include <string.h>
#define PORTABLE       static inline
#define PORTABLE_ALIAS __attribute__((may_alias))
typedef int64_t i64;
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

typedef u16 PORTABLE_ALIAS any16;
typedef u32 PORTABLE_ALIAS any32;
typedef i64 PORTABLE_ALIAS any64;

PORTABLE int int_min(int a, int b)
{
    return a < b ? a : b;
}

PORTABLE int int_max(int a, int b)
{
    return a > b ? a : b;
}

#ifdef __CUDACC__

PORTABLE u32 f32_bits(float x)
{
    return __float_as_uint(x);
}

PORTABLE float bits_f32(u32 bits)
{
    return __uint_as_float(bits);
}

PORTABLE float f32_add(float a, float b)
{
    return __fadd_rn(a, b);
}

PORTABLE float f32_multiply(float a, float b)
{
    return __fmul_rn(a, b);
}

PORTABLE float f32_divide(float a, float b)
{
    return __fdiv_rn(a, b);
}

#else

PORTABLE u32 f32_bits(float x)
{
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PORTABLE float bits_f32(u32 bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

PORTABLE float f32_add(float a, float b)
{
    return a + b;
}

PORTABLE float f32_multiply(float a, float b)
{
    return a * b;
}

PORTABLE float f32_divide(float a, float b)
{
    return a / b;
}

#endif

PORTABLE float f32_subtract(float a, float b)
{
    return f32_add(a, -b);
}

#endif /* PLUGINS_CUDA_PORTABLE_H */
