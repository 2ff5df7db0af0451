/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(fi_attend_d80_f16, 80, 80, 4, true)
FI_ATTEND_MANY(fi_attend_many_d80_f16, 80, 80, 4, true)
