/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.cuh: scores to probabilities, C and CUDA alike. Logits are in units of log 2, so that an
 * exponential is one instruction; the LSE is natural.
 *
 * Lanes that share a row add and compare by the functions below. Compiled as C there is one lane,
 * and they return their argument. C uses the exact functions of the C library, the device its fast
 * instructions: results are close, not equal.
 */
#ifndef PLUGINS_CUDA_SOFTMAX_CUH
#define PLUGINS_CUDA_SOFTMAX_CUH

#include "plugins/common/cuda/portable.h"

#ifndef __CUDACC__
#include <math.h>
#endif

#define SOFTMAX_LOG2E 1.4426950408889634f
#define SOFTMAX_LN2   0.6931471805599453f
#define SOFTMAX_EMPTY bits_f32(0xff800000u) /* -inf: the logit of a hidden key */

/* ---- Functions ------------------------------------------------------------------------------- */

#ifdef __CUDACC__

#define SOFTMAX_LANES 32 /* of a warp */

/* 2^x; 0 for -inf. */
PORTABLE float softmax_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PORTABLE float softmax_log2(float x)
{
    return __log2f(x);
}

PORTABLE float softmax_max(float a, float b)
{
    return fmaxf(a, b);
}

/* Over the four lanes that hold a row of an MMA tile. */
PORTABLE float softmax_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

PORTABLE float softmax_quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Over all lanes of a warp. */
PORTABLE float softmax_warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

PORTABLE float softmax_warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

#else

#define SOFTMAX_LANES 1

PORTABLE float softmax_exp2(float x)
{
    return exp2f(x);
}

PORTABLE float softmax_log2(float x)
{
    return log2f(x);
}

PORTABLE float softmax_max(float a, float b)
{
    return fmaxf(a, b);
}

PORTABLE float softmax_quad_max(float x)
{
    return x;
}

PORTABLE float softmax_quad_sum(float x)
{
    return x;
}

PORTABLE float softmax_warp_max(float x)
{
    return x;
}

PORTABLE float softmax_warp_sum(float x)
{
    return x;
}

#endif

/* ---- Logits ---------------------------------------------------------------------------------- */

/* The factor of a product q.k before softmax_logit(). `natural`: the soft cap or ALiBi, which apply
 * to natural logits, come in between. */
PORTABLE float softmax_factor(float sm_scale, int natural)
{
    return sm_scale * (natural ? 1.0f : SOFTMAX_LOG2E);
}

/* A scaled product as a logit: biased by -slope * distance if `has_alibi`, capped unless `cap` is
 * 0. */
PORTABLE float softmax_logit(float score, float cap, int has_alibi, float slope, float distance)
{
    if (has_alibi)
        score -= slope * distance;
    if (cap != 0)
        return cap * SOFTMAX_LOG2E * tanhf(score * (1.0f / cap));
    return has_alibi ? score * SOFTMAX_LOG2E : score;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* The reference of probabilities, finite: -inf minus -inf would be NaN. */
PORTABLE float softmax_base(float top)
{
    return top == SOFTMAX_EMPTY ? 0.0f : top;
}

/* State of a row: the largest logit, and the sum of 2^(logit - top). */
typedef struct softmax_row {
    float top;
    float sum;
} softmax_row;

PORTABLE softmax_row softmax_begin(void)
{
    softmax_row row;
    row.top = SOFTMAX_EMPTY;
    row.sum = 0.0f;
    return row;
}

/* Add one more logit. Returns its weight, and in *shrink the factor that rescales earlier sums. */
PORTABLE float softmax_take(softmax_row *row, float logit, float *shrink)
{
    float top = softmax_max(row->top, logit), base = softmax_base(top);
    float weight = softmax_exp2(logit - base);
    *shrink = softmax_exp2(row->top - base);
    row->top = top;
    row->sum = row->sum * *shrink + weight;
    return weight;
}

/* The final factor of the sums; 0 for a row that saw no key. */
PORTABLE float softmax_end(const softmax_row *row)
{
    return row->sum == 0.0f ? 0.0f : 1.0f / row->sum;
}

/* The natural logarithm of the denominator; -inf for a row that saw no key. */
PORTABLE float softmax_lse(const softmax_row *row)
{
    return row->sum == 0.0f ? SOFTMAX_EMPTY
                            : (softmax_base(row->top) + softmax_log2(row->sum)) * SOFTMAX_LN2;
}

#endif /* PLUGINS_CUDA_SOFTMAX_CUH */
