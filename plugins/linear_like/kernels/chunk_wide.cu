/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/states_wide.cuh"

#define WIDE_KERNEL(name, rule)                                                                    \
    extern "C" __global__ void __launch_bounds__(CHUNK_STATE_THREADS, 1)                           \
        name(const __grid_constant__ linear_call call,                                             \
             const __grid_constant__ linear_wide_maps maps, int first)                             \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        wide_block<rule>(call, maps, first, (char *)chunk_shared);                                 \
    }

WIDE_KERNEL(linear_wide_inverse, CHUNK_INVERSE)
WIDE_KERNEL(linear_wide_tiles, CHUNK_TILES)
