/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(fi_attend_d96_bf16_e4m3, 96, 96, 8, false)
FI_ATTEND_CODES_MANY(fi_attend_many_d96_bf16_e4m3, 96, 96, false)
