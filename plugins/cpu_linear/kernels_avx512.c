/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512.c: the inner loops for AVX-512.
 */
#define KERNELS      linear_kernels_avx512
#define KERNELS_NAME "avx512"
#include "kernels.inc"
