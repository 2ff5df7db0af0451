/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d192_v128_f16, 192, 128, 128, 2, 1, true)
