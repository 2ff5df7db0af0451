/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(fi_attend_d256_f16, 256, 256, 3, true)
