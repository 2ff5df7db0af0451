/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND(d80, f16)
FI_ATTEND_MANY(d80, f16)
