/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks.cu: the recurrence, chunk by chunk: the list of chunks; what each needs; states.
 */
#include "plugins/linear_like/kernels/chunk_channels.cuh"

extern "C" __global__ void __launch_bounds__(CHUNK_PLAN_THREADS)
    linear_list(const __grid_constant__ linear_call call)
{
    list_block(call);
}

#define READY_KERNEL(name, blocks, function)                                                       \
    extern "C" __global__ void __launch_bounds__(CHUNK_READY_THREADS, blocks)                      \
        name(const __grid_constant__ linear_call call, int first)                                  \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        function(call, first, (char *)chunk_shared);                                               \
    }

READY_KERNEL(linear_ready_plain, 4, ready_block<false>)
READY_KERNEL(linear_ready_delta, 4, ready_block<true>)
READY_KERNEL(linear_ready_channels, 2, channels_block)

#define STATES_KERNEL(name, delta, exact)                                                          \
    extern "C" __global__ void __launch_bounds__(64 * CHUNK_STATE_WARPS, 1)                        \
        name(const __grid_constant__ linear_call call, int first)                                  \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        states_block<delta, exact>(call, first, (char *)chunk_shared);                             \
    }

STATES_KERNEL(linear_states_plain, false, true)
STATES_KERNEL(linear_states_delta, true, false)
