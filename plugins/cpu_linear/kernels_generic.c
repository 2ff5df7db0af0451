/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_generic.c: the inner loops for any processor.
 */
#define KERNELS      linear_kernels_generic
#define KERNELS_NAME "generic"
#include "kernels.inc"
