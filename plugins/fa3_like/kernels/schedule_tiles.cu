/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_tiles.cu: the order of tiles of a ragged batch, on the device, so that lengths need not
 * come to the host. One block; tiles sorted by how many keys they have to read, most first (1024
 * steps):
 *
 *   lengths -> how many tiles of each size -> where each size begins -> entries
 *
 * Tiles of one size come in any order: it changes when a row is computed, not what it comes to.
 *
 * In no plugin: there rows.cu's fa3_plan_batch does this. bench/kernel_race.py launches it, as a
 * cubin beside those of the forward kernels that it races.
 */
#include "plugins/fa3_like/kernels/schedule.cuh"

#define SIZES   1024
#define THREADS 1024

static __device__ int keys_of(const struct fa3_schedule_params &p, int sequence)
{
    if (p.k_lengths)
        return ((const int *)p.k_lengths)[sequence];
    if (p.k_starts)
        return ((const int *)p.k_starts)[sequence + 1] - ((const int *)p.k_starts)[sequence];
    return p.k_length;
}

/* Size of a tile, 0 the largest. */
static __device__ int size_of(const struct fa3_schedule_params &p, int queries, int keys, int tile)
{
    const int first = keys - queries + tile * p.tile_queries;
    const int last = min(first + p.tile_queries, keys) - 1;
    const int end = min(keys, last + p.window_right + 1),
              start = first_key(p.window_left, p.chunk, first);
    const int step = (p.k_length + SIZES - 1) / SIZES;
    return SIZES - 1 - min(max(end - start, 0) / max(step, 1), SIZES - 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fa3_schedule_tiles(const __grid_constant__ struct fa3_schedule_params p)
{
    __shared__ int place[SIZES], sums[32];
    const int *starts = (const int *)p.q_starts;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    place[threadIdx.x] = 0;
    __syncthreads();
    for (int b = threadIdx.x; b < p.batch; b += THREADS) {
        const int queries = starts[b + 1] - starts[b], keys = keys_of(p, b);
        for (int t = 0; t * p.tile_queries < queries; t++)
            atomicAdd(&place[size_of(p, queries, keys, t)], 1);
    }
    __syncthreads();

    /* Sums of all sizes before each: within warps, then of the warps. */
    const int own = place[threadIdx.x];
    int sum = own;
    for (int i = 1; i < 32; i *= 2) {
        const int other = __shfl_up_sync(0xffffffff, sum, i);
        sum += lane >= i ? other : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += sums[i];
    place[threadIdx.x] = sum - own;
    if (threadIdx.x == THREADS - 1)
        *(int *)p.tile_count = min(sum, p.capacity);
    __syncthreads();

    for (int b = threadIdx.x; b < p.batch; b += THREADS) {
        const int queries = starts[b + 1] - starts[b], keys = keys_of(p, b);
        for (int t = 0; t * p.tile_queries < queries; t++) {
            const int at = atomicAdd(&place[size_of(p, queries, keys, t)], 1);
            if (at < p.capacity)
                ((int2 *)p.tiles)[at] = make_int2(b, t);
        }
    }
}
