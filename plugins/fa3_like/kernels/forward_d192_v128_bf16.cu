/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d192_v128_bf16, 192, 128, 64, 3, 2, 2, false)
