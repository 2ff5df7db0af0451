/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(d96, bf16)
FI_PREFILL_SLOPES(d96, bf16)
FI_PREFILL_HALF(d96, bf16)
