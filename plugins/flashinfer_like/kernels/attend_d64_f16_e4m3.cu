/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(fi_attend_d64_f16_e4m3, 64, 64, 10, true)
FI_ATTEND_CODES_MANY(fi_attend_many_d64_f16_e4m3, 64, 64, true)
