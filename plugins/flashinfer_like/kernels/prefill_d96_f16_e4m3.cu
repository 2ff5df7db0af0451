/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL_CODES(fi_prefill_d96_f16_e4m3, 96, 96, 128, 2, 1, 2, true)
