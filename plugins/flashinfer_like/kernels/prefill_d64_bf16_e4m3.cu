/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL_CODES(fi_prefill_d64_bf16_e4m3, 64, 64, 128, 3, 2, 2, false)
