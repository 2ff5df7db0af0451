/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(fi_attend_d192_v128_f16_e4m3, 192, 128, 6, true)
