/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/forward_codes.cuh"

FA3_FORWARD_CODES(fa3_forward_codes_d128_bf16, false)
