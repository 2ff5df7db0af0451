/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d256_bf16, 256, 256, 64, 2, 2, 1, false)
