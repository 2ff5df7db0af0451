/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/chunk_fused.cuh"

#if HAS_HOPPER
#define FUSED_BLOCK(outputs) fused_block<outputs>(call, maps, first, (char *)chunk_shared)
#else
#define FUSED_BLOCK(outputs) __trap() /* chunks are for Hopper */
#endif

#define FUSED_KERNEL(name, outputs)                                                                \
    extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 1)                                 \
        name(const __grid_constant__ linear_call call, const __grid_constant__ linear_maps maps,   \
             int first)                                                                            \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        FUSED_BLOCK(outputs);                                                                      \
    }

FUSED_KERNEL(linear_fused, true)
FUSED_KERNEL(linear_fused_segments, false)
