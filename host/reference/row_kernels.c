/* SPDX-License-Identifier: Apache-2.0
 *
 * row_kernels.c: the inner loops of row.c, for the CPU's vector instructions.
 */
#include "host/reference/row.h"

#include <stddef.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Vectors are handed to functions that are inlined: no call depends on how. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define WIDTH 4
#define TARGET
#define NAME(x) x##_any
#define KERNELS "any"
#include "host/reference/row_kernels.inc"

#if defined(__x86_64__)

#define WIDTH   4
#define TARGET  __attribute__((target("avx2")))
#define NAME(x) x##_avx2
#define KERNELS "avx2"
#include "host/reference/row_kernels.inc"

#define WIDTH   8
#define TARGET  __attribute__((target("avx512f")))
#define NAME(x) x##_avx512
#define KERNELS "avx512"
#include "host/reference/row_kernels.inc"

#endif

/* What the processor has is asked for once a call, which is a load and a test. */
const row_kernels *row_kernels_here(int32_t index)
{
    const row_kernels *here[4] = {NULL};
    int32_t count = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        here[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2"))
        here[count++] = &kernels_avx2;
#endif
    here[count++] = &kernels_any;
    return index < count ? here[index] : NULL;
}
