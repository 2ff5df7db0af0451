/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_ready.cuh: prepares each chunk for chunk_states.cuh, all chunks and heads in parallel:
 * convolution, lengths and gates of its rows, products of queries and keys, and for a delta rule
 *
 *   u = (I + A)^-1 beta v,  w = (I + A)^-1 beta e^g k
 *   A = strict lower (beta_i e^(g_i - g_j) k_i . k_j)
 *
 * with g the sums of log decays from the chunk's first row on. Only differences g_i - g_j, i >= j,
 * are exponentiated. The system is solved by blocks of 16 rows, each warp for its own columns. The
 * product of a row's own q and k is kept separately, computed from unrounded numbers, as it may
 * cancel and be most of the output.
 */
#ifndef LINEAR_LIKE_CHUNK_READY_CUH
#define LINEAR_LIKE_CHUNK_READY_CUH

#include "plugins/linear_like/kernels/ready_system.cuh"

DEVICE void copy_tiles(const ready_memory &m, char *to)
{
    for (int i = threadIdx.x; i < CHUNK_KEYS_BYTES / 16; i += CHUNK_READY_THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)m.q)[i];
}

/* Blocks: chunks of the window, times k heads, times parts of their v heads. */
template <bool DELTA> DEVICE void ready_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int together = chunks.together;
    const int parts = (d.ratio + together - 1) / together;
    const int part = blockIdx.x % parts, rest = blockIdx.x / parts;
    const int key_head = rest % d.k_heads, index = rest / d.k_heads;
    if (first + index >= *chunks.count)
        return;
    const linear_chunk from = chunks.list[first + index];
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const ready_memory m(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = key_head * d.ratio + part * together;
    const int heads = int_min(together, d.ratio - part * together);
    if (warp < heads) {
        linear_gate gates[2];
        load_gates(call, chunk, head + warp, lane, gates);
        find_gates(call, gates, chunk.rows, lane, ready_gates(m, warp));
    }
    load_tile<false>(call, chunk, d.first[0] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.q,
                     m.q_times, NULL, NULL, {m.rest(), NULL});
    load_tile<false>(call, chunk, d.first[1] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.k,
                     m.k_times, NULL, NULL, {m.rest(), m.own});
    __syncthreads();
    if (part == 0)
        copy_tiles(m, chunks.keys + ((i64)index * d.k_heads + key_head) * CHUNK_KEYS_BYTES);
    float products[8][4];
    multiply_tiles(m.q, m.k, warp, lane, products);
    if (d.width > 0)
        replace_own(m.own, warp, lane, products);
#pragma unroll 1
    for (int n = 0; n < heads; n++) {
        const ready_values to(call, index, head + n, DELTA ? CHUNK_SOLVED : CHUNK_PLAIN);
        const ready_gates g(m, n);
        write_numbers(d, m, g, to.numbers);
        write_products<DELTA>(d, products, m, g, to.products, to.numbers, warp, lane);
        if (!DELTA)
            load_tile<true>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, to.u,
                            to.numbers + NUMBERS_V, g.beta, to.numbers + NUMBERS_U);
    }
    if constexpr (DELTA) {
#pragma unroll 1
        for (int n = 0; n < heads; n++) {
            const ready_values to(call, index, head + n, DELTA ? CHUNK_SOLVED : CHUNK_PLAIN);
            const ready_gates g(m, n);
            __syncthreads();
            load_tile<false>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, m.q,
                             m.v_times, NULL, NULL);
            multiply_tiles(m.k, m.k, warp, lane, products);
            write_system(products, m, g, warp, lane);
            __syncthreads();
            solve<CHUNK_READY_THREADS / 32>(d, m, ready_side(g, m.k, m.k_times, 0), to, warp, lane);
        }
    }
}

#endif /* LINEAR_LIKE_CHUNK_READY_CUH */
