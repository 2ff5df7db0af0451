/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/attend.cuh"

FI_ATTEND_CODES(d128, bf16, e5m2)
FI_ATTEND_CODES_MANY(d128, bf16, e5m2)
