/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d96_low_bf16, 96, 96, 64, 2, 4, 2, false)
