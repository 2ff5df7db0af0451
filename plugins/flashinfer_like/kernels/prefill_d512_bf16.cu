/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashinfer_like/kernels/wide.cuh"

FI_PREFILL_WIDE(d512, bf16)
