/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx2.c: the inner loops for AVX2, FMA and F16C.
 */
#define KERNELS      linear_kernels_avx2
#define KERNELS_NAME "avx2"
#include "kernels.inc"
