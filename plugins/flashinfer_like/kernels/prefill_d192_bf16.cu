/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d192_bf16, 192, 192, 64, 2, 2, false)
