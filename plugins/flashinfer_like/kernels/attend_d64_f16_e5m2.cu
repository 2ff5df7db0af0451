/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(d64, f16, e5m2)
FI_ATTEND_CODES_MANY(d64, f16, e5m2)
