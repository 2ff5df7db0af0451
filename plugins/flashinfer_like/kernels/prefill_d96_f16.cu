/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(d96, f16)
FI_PREFILL_SLOPES(d96, f16)
FI_PREFILL_HALF(d96, f16)
