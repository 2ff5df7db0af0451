/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL_CODES(fi_prefill_d192_v128_f16_e4m3, 192, 128, 64, 2, 2, 2, true)
