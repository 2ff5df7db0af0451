/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d80_f16, 80, 80, 128, 2, 2, true)
