/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d128_low_f16, 128, 128, 64, 2, 4, 2, true)
