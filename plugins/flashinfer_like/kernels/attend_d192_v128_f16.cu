/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(fi_attend_d192_v128_f16, 192, 128, 5, true)
