/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/cuda/planned/kernels/prefill.cuh"

FI_PREFILL(fi_prefill_d128_bf16, 128, 128, 128, 2, 2, false)
