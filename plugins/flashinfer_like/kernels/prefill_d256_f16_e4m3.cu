/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL_CODES(fi_prefill_d256_f16_e4m3, 256, 256, 64, 2, 1, 1, true)
