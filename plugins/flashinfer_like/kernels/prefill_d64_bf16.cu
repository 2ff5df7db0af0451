/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d64_bf16, 64, 64, 128, 3, 2, false)
