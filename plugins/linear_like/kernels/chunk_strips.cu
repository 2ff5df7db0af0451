/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/channels_strips.cuh"

extern "C" __global__ void __launch_bounds__(STRIP_THREADS, 1)
    linear_strips_channels(const __grid_constant__ linear_call call)
{
    extern __shared__ float4 chunk_shared[];
    strips_block<false>(call, (char *)chunk_shared);
}

/* After the convolution. */
extern "C" __global__ void __launch_bounds__(STRIP_THREADS, 1)
    linear_strips_channels_tiles(const __grid_constant__ linear_call call)
{
    extern __shared__ float4 chunk_shared[];
    strips_block<true>(call, (char *)chunk_shared);
}
