/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/chunk_channels.cuh"

extern "C" __global__ void __launch_bounds__(CHUNK_CHANNELS_THREADS, 2)
    linear_ready_channels(const __grid_constant__ linear_call call, int first)
{
    extern __shared__ float4 chunk_shared[];
    channels_block(call, first, (char *)chunk_shared);
}
