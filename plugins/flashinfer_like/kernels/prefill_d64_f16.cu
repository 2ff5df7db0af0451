/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(d64, f16)
FI_PREFILL_SLOPES(d64, f16)
FI_PREFILL_HALF(d64, f16)
