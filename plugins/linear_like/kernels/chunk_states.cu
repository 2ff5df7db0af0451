/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/chunk_states.cuh"

/* Kernels of rules with one decay could be launched programmatically, but that was slower. */
#define STATES_KERNEL(name, block, rule, exact)                                                    \
    extern "C" __global__ void __launch_bounds__(CHUNK_STATE_THREADS, 1)                           \
        name(const __grid_constant__ linear_call call, int first)                                  \
    {                                                                                              \
        extern __shared__ float4 chunk_shared[];                                                   \
        if (CHUNK_ONE_DECAY(rule)) {                                                               \
            pdl_launch_dependents();                                                               \
            pdl_wait();                                                                            \
        }                                                                                          \
        block<rule, exact>(call, first, (char *)chunk_shared);                                     \
    }

STATES_KERNEL(linear_states_plain, states_block, CHUNK_PLAIN, true)
STATES_KERNEL(linear_states_delta, states_block, CHUNK_SOLVED, false)
STATES_KERNEL(linear_states_inverse, states_block, CHUNK_INVERSE, false)
STATES_KERNEL(linear_states_tiles, states_block, CHUNK_TILES, false)
STATES_KERNEL(linear_states_channels, whole_block, CHUNK_CHANNELS, false)
STATES_KERNEL(linear_states_channels_tiles, whole_block, CHUNK_CHANNELS_TILES, false)
STATES_KERNEL(linear_segments_plain, segments_block, CHUNK_PLAIN, true)
STATES_KERNEL(linear_segments_delta, segments_block, CHUNK_SOLVED, false)
STATES_KERNEL(linear_segments_inverse, segments_block, CHUNK_INVERSE, false)
STATES_KERNEL(linear_segments_tiles, segments_block, CHUNK_TILES, false)
STATES_KERNEL(linear_segments_channels, segments_block, CHUNK_CHANNELS, false)
STATES_KERNEL(linear_segments_channels_tiles, segments_block, CHUNK_CHANNELS_TILES, false)
