/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(fi_attend_d256_bf16_e4m3, 256, 256, 5, false)
