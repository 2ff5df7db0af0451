/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/chunk_channels_inverse.cuh"

extern "C" __global__ void __launch_bounds__(CHUNK_CHANNELS_THREADS, CHUNK_CHANNELS_BLOCKS)
    linear_ready_channels_delta(const __grid_constant__ linear_call call, int first)
{
    extern __shared__ float4 chunk_shared[];
    channels_block(call, first, (char *)chunk_shared);
}

extern "C" __global__ void __launch_bounds__(CHUNK_CHANNELS_THREADS, CHUNK_CHANNELS_BLOCKS)
    linear_ready_channels(const __grid_constant__ linear_call call, int first)
{
    extern __shared__ float4 chunk_shared[];
    channels_inverse_block<false>(call, first, (char *)chunk_shared);
    if (blockIdx.x == 0)
        pdl_wait(); /* no later launch starts before strips have ended */
}

extern "C" __global__ void __launch_bounds__(CHUNK_CHANNELS_THREADS, CHUNK_CHANNELS_BLOCKS)
    linear_ready_channels_tiles(const __grid_constant__ linear_call call, int first)
{
    extern __shared__ float4 chunk_shared[];
    channels_inverse_block<true>(call, first, (char *)chunk_shared);
}
