/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(fi_attend_d128_bf16, 128, 128, 4, false)
FI_ATTEND_MANY(fi_attend_many_d128_bf16, 128, 128, 4, false)
