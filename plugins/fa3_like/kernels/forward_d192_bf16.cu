/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d192_bf16, 192, 192, 64, 2, 2, 2, false)
