/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d256_bf16, 256, 256, 64, 2, 1, false)
