/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward.cuh"

FA3_FORWARD(fa3_forward_d64_low_f16, 64, 64, 64, 2, 6, 2, true)
