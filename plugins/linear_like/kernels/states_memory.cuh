/* SPDX-License-Identifier: Apache-2.0
 *
 * states_memory.cuh: shared memory of a block of linear_states_* and linear_segments_*: rings of
 * stages, and data passed between its warpgroups.
 */
#ifndef LINEAR_LIKE_STATES_MEMORY_CUH
#define LINEAR_LIKE_STATES_MEMORY_CUH

#include "plugins/linear_like/kernels/chunk_products.cuh"

/* ---- Data passed between the warpgroups -------------------------------------------------- */

/* Passes on a left operand, in the layout of registers. */
template <int COUNT> DEVICE void hand_on(char *to, const left_operand<COUNT> &x)
{
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        ((uint4 *)to)[i * 128 + thread] =
            make_uint4(x.at[i][0], x.at[i][1], x.at[i][2], x.at[i][3]);
    ((float2 *)((uint4 *)to + COUNT / 2 * 128))[thread] = make_float2(x.times[0], x.times[1]);
}

template <int COUNT> DEVICE void take_over(const char *from, left_operand<COUNT> &x)
{
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const uint4 y = ((const uint4 *)from)[i * 128 + thread];
        x.at[i][0] = y.x, x.at[i][1] = y.y, x.at[i][2] = y.z, x.at[i][3] = y.w;
    }
    const float2 y = ((const float2 *)((const uint4 *)from + COUNT / 2 * 128))[thread];
    x.times[0] = y.x, x.times[1] = y.y;
}

/* Named barriers: the state, the updates are in shared memory; both have been read. */
enum { HANDED_STATE = 1, HANDED_UPDATES = 2, HANDED_TAKEN = 3 };

/* The same for tiles in two buffers: add 1 for odd chunks. */
enum { TURN_STATE = 1, TURN_UPDATES = 3, TURN_TAKEN = 5 };

/* ---- Shared memory ----------------------------------------------------------------------- */

/* Each warpgroup has its own ring of stages with its data of a chunk: w, k, the numbers, u for the
 * state; q, the numbers, products and, without w, u for the outputs. */
enum { STATE_STAGES = CHUNK_STATE_STAGES, OUTPUT_STAGES = CHUNK_OUTPUT_STAGES };

/* Rings of the states' warpgroup, of the outputs' warpgroup, and of keys for updates. */
enum { RING_STATE = 0, RING_OUTPUTS = 1, RING_UPDATES = 2 };

template <int RULE> struct states_memory {
    static constexpr int k = RULE == CHUNK_SOLVED ? CHUNK_TILE : 0;
    static constexpr int w = RULE == CHUNK_SOLVED ? 0 : k; /* the state's factor */
    static constexpr int inverse = k + CHUNK_TILE;
    static constexpr int state_numbers = inverse + (RULE >= CHUNK_INVERSE ? CHUNK_PRODUCTS : 0);
    static constexpr int state_u = state_numbers + CHUNK_NUMBERS; /* or rows of v */
    static constexpr int q = 0, output_numbers = CHUNK_TILE;
    static constexpr int products = output_numbers + (CHUNK_BY_CHANNELS(RULE) ? 0 : CHUNK_NUMBERS);
    static constexpr int output_u = products + CHUNK_PRODUCTS;
    static constexpr int update_stages = CHUNK_UPDATE_STAGES(RULE);
    static constexpr int all_stages = STATE_STAGES + OUTPUT_STAGES + update_stages;

    static constexpr int outputs = STATE_STAGES * CHUNK_STATE_STAGE(RULE);
    static constexpr int later = outputs + OUTPUT_STAGES * CHUNK_OUTPUT_STAGE(RULE);

    char *stages, *state, *updates;
    float *turn; /* of the warp */
    unsigned barriers;

    __device__ __forceinline__ states_memory(char *from, int warp)
    {
        stages = from;
        state = stages + later + update_stages * CHUNK_TILE;
        updates = state + (RULE >= CHUNK_INVERSE ? CHUNK_PLACES * CHUNK_TILE : 9 * 2048);
        turn = (float *)(state + CHUNK_HANDED(RULE) - CHUNK_STATE_WARPS * 2048) + warp * 512;
        barriers = shared_address(state + CHUNK_HANDED(RULE));
    }

    /* Factors of the rows of a chunk's state and, after them, of its updates. */
    __device__ __forceinline__ float *scales(int place) const
    {
        return (float *)(updates + CHUNK_PLACES * CHUNK_PRODUCTS) + place * 128;
    }

    __device__ __forceinline__ static int count(int ring)
    {
        return ring == RING_STATE     ? STATE_STAGES
               : ring == RING_OUTPUTS ? OUTPUT_STAGES
                                      : int_max(1, update_stages);
    }

    __device__ __forceinline__ char *stage(int ring, int n) const
    {
        const int i = n % count(ring);
        return stages + (ring == RING_STATE     ? i * CHUNK_STATE_STAGE(RULE)
                         : ring == RING_OUTPUTS ? outputs + i * CHUNK_OUTPUT_STAGE(RULE)
                                                : later + i * CHUNK_TILE);
    }

    __device__ __forceinline__ unsigned barrier(int ring, int n) const
    {
        const int first = ring == RING_STATE     ? 0
                          : ring == RING_OUTPUTS ? STATE_STAGES
                                                 : STATE_STAGES + OUTPUT_STAGES;
        return barriers + 8 * (first + n % count(ring));
    }

    __device__ __forceinline__ void wait(int ring, int n) const
    {
        barrier_wait(barrier(ring, n), n / count(ring) & 1);
    }

    /* A warp releases a stage. Readers may be a stage apart, so named barriers do not suffice. */
    __device__ __forceinline__ void free(int ring, int n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barrier(ring, n) + 8 * all_stages);
    }

    /* Waits until all readers have released the stage's previous contents. */
    __device__ __forceinline__ void wait_free(int ring, int n) const
    {
        const int round = n / count(ring);
        if (round > 0)
            barrier_wait(barrier(ring, n) + 8 * all_stages, (round - 1) & 1);
    }
};

#endif /* LINEAR_LIKE_STATES_MEMORY_CUH */
