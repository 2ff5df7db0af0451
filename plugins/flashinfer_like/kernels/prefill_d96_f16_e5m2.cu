/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL_CODES(d96, f16, e5m2)
FI_PREFILL_HALF_CODES(d96, f16, e5m2)
