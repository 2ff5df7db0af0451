/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(fi_attend_d64_bf16, 64, 64, 6, false)
FI_ATTEND_MANY(fi_attend_many_d64_bf16, 64, 64, 6, false)
