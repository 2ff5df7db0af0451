/* SPDX-License-Identifier: Apache-2.0
 *
 * turn_values.cuh: transposes all values of a batch before the forward kernel (turn.cuh), one tile
 * per block. This reads and writes the values once; a forward kernel that transposes them itself
 * does so for each tile of queries. Values after a sequence's end become zeros.
 */
#ifndef FA3_LIKE_TURN_VALUES_CUH
#define FA3_LIKE_TURN_VALUES_CUH

#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/turn.cuh"

/* The address of a key's value. Keys of a tile are looked up one by one, as pages may have any
 * size. */
DEVICE const char *value_of(const struct fa3_turn_params &p, int sequence, int key)
{
    const char *v = (const char *)p.v + blockIdx.y * p.v_head;
    if (p.block_table) {
        const int page =
            ((const int *)p.block_table)[sequence * p.table_stride + key / p.page_size];
        return v + page * p.v_outer + key % p.page_size * p.v_token;
    }
    if (p.k_starts)
        return v + (((const int *)p.k_starts)[sequence] + key) * p.v_token;
    return v + sequence * p.v_outer + key * p.v_token;
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS)
    fa3_turn_values(const __grid_constant__ struct fa3_turn_params p)
{
    __shared__ __align__(1024) unsigned char from[TURN_BYTES], to[TURN_BYTES];
    const int tile = blockIdx.x, sequence = blockIdx.z, first = tile * TURN_KEYS;
    pdl_wait();
    if (p.seqs && sequence >= *(const int *)p.seqs)
        return;
    int keys = p.k_length;
    if (p.k_lengths)
        keys = ((const int *)p.k_lengths)[sequence];
    else if (p.k_starts)
        keys = ((const int *)p.k_starts)[sequence + 1] - ((const int *)p.k_starts)[sequence];
    if (first >= keys)
        return;

    uint4 x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = i * 16 + threadIdx.x / 8;
        x[i] = make_uint4(0, 0, 0, 0);
        if (first + row < keys)
            x[i] =
                __ldg((const uint4 *)(value_of(p, sequence, first + row) + threadIdx.x % 8 * 16));
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        shared_store(shared_address(from) + swizzled(i * 16 + threadIdx.x / 8, threadIdx.x % 8),
                     x[i]);
    __syncthreads();
    turn_rows<2>(shared_address(from), shared_address(to), threadIdx.x / 32 * 2);
    __syncthreads();
    const int64_t start =
        p.turned_first ? ((const int *)p.turned_first)[sequence] : sequence * p.turned_tiles;
    uint4 *out =
        (uint4 *)((char *)p.turned + ((start + tile) * gridDim.y + blockIdx.y) * TURN_BYTES);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i * GROUP_THREADS + threadIdx.x] =
            shared_load(shared_address(to) + (i * GROUP_THREADS + threadIdx.x) * 16);
    pdl_launch_dependents();
}

#endif
