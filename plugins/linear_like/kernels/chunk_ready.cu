/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/chunk_inverse.cuh"
#include "plugins/linear_like/kernels/chunk_list.cuh"

extern "C" __global__ void __launch_bounds__(CHUNK_PLAN_THREADS)
    linear_list(const __grid_constant__ linear_call call)
{
    list_block(call);
}

/* EARLY: the next launch may start as soon as all blocks have started. */
#define READY_KERNEL(name, block, early)                                                           \
    extern "C" __global__ void __launch_bounds__(CHUNK_READY_THREADS, 4)                           \
        name(const __grid_constant__ linear_call call, int first)                                  \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        if (early)                                                                                 \
            pdl_launch_dependents();                                                               \
        block(call, first, (char *)chunk_shared);                                                  \
    }

READY_KERNEL(linear_ready_plain, ready_block<false>, false)
READY_KERNEL(linear_ready_delta, ready_block<true>, false)
READY_KERNEL(linear_ready_inverse, inverse_block<false>, true)
READY_KERNEL(linear_ready_tiles, inverse_block<true>, true)
