/* SPDX-License-Identifier: Apache-2.0
 *
 * lse.cuh: the logarithm of a softmax row's sum, C and CUDA alike.
 */
#ifndef PLUGINS_CUDA_LSE_CUH
#define PLUGINS_CUDA_LSE_CUH

#include "plugins/common/cuda/portable.h"

#ifndef __CUDACC__
#include <math.h>
#endif

/* ln(sum * 2^top), sum > 0. Where top is no row's maximum, it and the sum's logarithm may be large
 * and cancel: so the sum's exponent is added to top, which is exact, and the fast logarithm is of
 * 1 to 2, where it is off by 2^-22. (Of 2^13 it is off by 13 times that.) Infinities and NaN
 * stay. */
PORTABLE float lse_of(float top, float sum)
{
    const float ln2 = 0.693147180559945309f;
#ifdef __CUDACC__
    const int exponent = int_min((int)(f32_bits(sum) >> 23 & 0xff), 253);
    const float part = sum * bits_f32((u32)(254 - exponent) << 23);
    return ((top + (float)(exponent - 127)) + __log2f(part)) * ln2;
#else
    return (top + log2f(sum)) * ln2;
#endif
}

#endif /* PLUGINS_CUDA_LSE_CUH */
