/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_kernels.c: steps of the recurrence, for the CPU's vector instructions.
 */
#include "host/reference/linear_step.h"

#define TARGET
#define REAL       double
#define NAME(name) name##_truth_any
#include "host/reference/linear_step.inc"
#define REAL       float
#define NAME(name) name##_naive_any
#include "host/reference/linear_step.inc"
#undef TARGET

static const linear_kernels any = {"any", step_truth_any, step_naive_any};

#if defined(__x86_64__)

#define TARGET     __attribute__((target("avx2")))
#define REAL       double
#define NAME(name) name##_truth_avx2
#include "host/reference/linear_step.inc"
#define REAL       float
#define NAME(name) name##_naive_avx2
#include "host/reference/linear_step.inc"
#undef TARGET

#define TARGET     __attribute__((target("avx512f")))
#define REAL       double
#define NAME(name) name##_truth_avx512
#include "host/reference/linear_step.inc"
#define REAL       float
#define NAME(name) name##_naive_avx512
#include "host/reference/linear_step.inc"
#undef TARGET

static const linear_kernels avx2 = {"avx2", step_truth_avx2, step_naive_avx2};
static const linear_kernels avx512 = {"avx512", step_truth_avx512, step_naive_avx512};

#endif

const linear_kernels *linear_kernels_here(int32_t index)
{
    const linear_kernels *here[4] = {NULL};
    int32_t count = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        here[count++] = &avx512;
    if (__builtin_cpu_supports("avx2"))
        here[count++] = &avx2;
#endif
    here[count++] = &any;
    return index < count ? here[index] : NULL;
}
