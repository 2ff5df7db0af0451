/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_channels_inverse.cuh: what chunk_states.cuh needs of each chunk of KDA with a norm: q and k with
 * the decays from the chunk's first row on, k with those to its end, decayed products of q and k, and
 * (I + A)^-1.
 *
 * Without a convolution rows come as they are, bf16. After one (TILES) tiles of normalised rows, fp16,
 * lie where those with decays will. Eight warps have a chunk of a head: 16 rows and half of the channels
 * each. A lane has what tensor cores have as sums: two neighbouring channels of rows r and r + 8. Sums of
 * log decays come in this form, as products of ones on and below a diagonal and of log decays in fp16,
 * from which all decays of a chunk are made. ldmatrix gives rows of q and k in the same form, so that products within
 * a block find their operands in the registers they were made in. Products of blocks are those of chunk_channels.cuh.
 */
#ifndef LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH
#define LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH

#include "plugins/linear_like/kernels/channels_decays.cuh"

/* ---- Products of blocks ---------------------------------------------------------------------- */

/* What a warp's rows have with those of an earlier block. */
DEVICE void multiply_ends(const decays_memory &m, const decays_part &part, int block,
                          const u32 (&left)[8][4], float (&sums)[2][4])
{
    const int lane = part.lane;
    const unsigned at = tile_offset(16 * block + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int decays = block + part.block == 3 ? 1 : block == 0 ? 0 : 2;
    const u16 *between = m.between + decays * CHUNK_MAX_KEYS + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < 8; step++) {
        const int half = step < 4 ? part.half : 1 - part.half;
        u32 y[4];
        load_matrices(shared_address(m.ends) + half * (CHUNK_TILE / 2) + (at ^ step % 4 * 32), y);
        if (block + 1 < part.block)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 less =
                    *(const u32 *)(between + CHANNELS_PER_WARP * half + 16 * (step % 4) + 8 * h);
                y[h] = multiply_pairs(y[h], less), y[2 + h] = multiply_pairs(y[2 + h], less);
            }
#pragma unroll
        for (int n = 0; n < 2; n++)
            multiply(sums[n], left[step], y[2 * n], y[2 * n + 1]);
    }
}

/* A's rows of a warp, of which blocks on the diagonal are left as fp32, to be inverted. */
DEVICE void write_system_part(const decays_memory &m, const decays_part &part,
                              const float (&sums)[4][2][4])
{
    const int block = part.block, lane = part.lane, i = 16 * block + lane / 4;
    const unsigned to = shared_address(m.system) + 16 * block * 128;
    float *square = (float *)(m.staging + block * CHUNK_STAGE) + lane / 4 * 16 + lane % 4 * 2;
    const float beta[2] = {m.beta[i], m.beta[i + 8]};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        float a[2][4];
        u32 packed[4];
        if (pair > block)
            continue;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[n][e] = sums[pair][n][e] * beta[e / 2];
        if (pair < block) {
#pragma unroll
            for (int n = 0; n < 4; n++)
                packed[n] = pack_half(-a[n / 2][n % 2 * 2], -a[n / 2][n % 2 * 2 + 1]);
            store_matrices(to + tile_offset(lane % 16, 2 * pair + lane / 16), packed);
        } else {
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(float2 *)(square + n % 2 * 128 + n / 2 * 8) =
                    make_float2(a[n / 2][n % 2 * 2], a[n / 2][n % 2 * 2 + 1]);
        }
    }
    __syncwarp();
    invert_block(m, (float *)(m.staging + block * CHUNK_STAGE), block, lane);
}

/* Products of queries and keys, times PRODUCTS_ROOM, to the workspace. */
DEVICE void write_products_part(const decays_memory &m, const decays_part &part,
                                const float (&sums)[4][2][4], char *products)
{
    const int block = part.block, lane = part.lane;
    char *staging = m.staging + (4 + block) * CHUNK_STAGE;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 packed[4] = {0, 0, 0, 0};
        if (pair <= block) {
            float p[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const bool there = 8 * n + lane % 4 * 2 + e % 2 < lane / 4 + e / 2 * 8;
                    p[n][e] = pair < block || there ? sums[pair][n][e] * PRODUCTS_ROOM : 0;
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
                packed[n] = pack_half(p[n / 2][n % 2 * 2], p[n / 2][n % 2 * 2 + 1]);
        }
        store_matrices(shared_address(staging) + tile_offset(lane % 16, 2 * pair + lane / 16),
                       packed);
    }
    copy_staged(staging, products + block * CHUNK_STAGE, lane);
}

/* Products of a warp's rows with all blocks of keys. */
DEVICE void multiply_blocks(const decays_memory &m, const decays_part &part,
                            const u32 (&left)[8][4], const float (&within)[2][4],
                            float (&sums)[4][2][4])
{
#pragma unroll
    for (int block = 0; block < 4; block++) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            sums[block][n / 4][n % 4] = block == part.block ? within[n / 4][n % 4] : 0;
        if (block < part.block)
            multiply_ends(m, part, block, left, sums[block]);
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* By one thread: tiles, which all have written. */
DEVICE void store_keys(const decays_memory &m, char *keys)
{
    store_bytes(keys, shared_address(m.q), 2 * CHUNK_TILE);
    store_bytes(keys + 2 * CHUNK_TILE, shared_address(m.to_end), CHUNK_TILE);
    store_commit();
}

/* Rows of q and k as the batch has them, or as the convolution has left them at `keys`. */
template <bool TILES>
DEVICE void fetch_keys(const linear_call &call, const channels_chunk &at, const char *keys,
                       const decays_part &part, const decays_memory &m)
{
    const linear_dims &d = call.dims;
    fetch_gates(call, at, m);
    copy_commit();
    if constexpr (TILES)
        fetch_tiles<CHUNK_CHANNELS_THREADS>(keys, m.q);
    else
        fetch_rows(call, at.chunk, d.first[1 - part.half] + at.head / d.ratio * d.k_dim,
                   part.mine(m));
    copy_commit();
}

/* Chunks of the window, times v heads, by blocks which have one after the other: rows and gates of the next
 * one are on their way while products of one are made. After a convolution the last ones go first, as the
 * cache has them. */
template <bool TILES>
DEVICE void channels_inverse_block(const linear_call &call, int first, char *memory)
{
#if HAS_HOPPER
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int units = int_min(*chunks.count - first, chunks.window) * d.v_heads;
    if ((int)blockIdx.x >= units)
        return;
    const decays_memory m(memory);
    const decays_part part;
    int unit = TILES ? units - 1 - (int)blockIdx.x : blockIdx.x;
    const int step = TILES ? -(int)gridDim.x : gridDim.x;
    channels_chunk at(call, chunks.list[first + unit / d.v_heads], unit);
    char *keys = chunks.keys + (i64)unit * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
    fetch_keys<TILES>(call, at, keys, part, m);
    u32 b = load_beta(call, at);
#pragma unroll 1
    for (;;) {
        const int next = unit + step;
        const bool more = next >= 0 && next < units;
        const linear_chunk following = chunks.list[first + (more ? next : unit) / d.v_heads];
        const ready_values to(call, unit / d.v_heads, unit % d.v_heads, CHUNK_CHANNELS);
        convolved_row row = {};
        if constexpr (TILES)
            row = load_convolved(call, part, unit / d.v_heads, unit % d.v_heads);
        float sums[CHANNELS_STEPS][2][4], products[4][2][4];
        block_products within = {};
        u32 left[8][4];
        copy_wait<1>(); /* gates */
        find_logs(call, at, b, m);
        __syncwarp(); /* a warp's log decays are its own */
        sum_logs(m, part, sums);
        copy_wait<0>();
        __syncthreads();
        at = channels_chunk(call, following, more ? next : unit);
        if constexpr (!TILES)
            find_lengths(m, part);
        find_blocks(m, to.numbers);
        __syncthreads();
        const bool in_range = decay_part<TILES>(m, part, sums, left, within);
        fence_async_shared();
        __syncthreads();
        if (threadIdx.x == 0)
            store_keys(m, keys);
        keys += (i64)step * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
        if (more) {
            prefetch_chunk<TILES>(call, at, keys);
            b = load_beta(call, at);
        }
        take_given(m, part, in_range, left, within.mine);
        multiply_blocks(m, part, left, within.mine, products);
        write_row_numbers<TILES>(d, m, part, row, to.numbers);
        if (part.half)
            write_products_part(m, part, products, to.products);
        else
            write_system_part(m, part, products);
        float times[2] = {};
        if (part.half == 0) /* now: the next chunk's are on their way after the barrier */
            find_times(m.beta, part.block, part.lane, times);
        if (threadIdx.x == 0)
            store_wait_read();
        __syncthreads();
        if (more)
            fetch_keys<TILES>(call, at, keys, part, m);
        if (part.half == 0)
            write_columns(shared_address(m.system), m.staging + part.block * CHUNK_STAGE,
                          part.block, to.w, part.lane, times);
        if (!more)
            return;
        unit = next;
    }
#else
    __trap();
#endif
}

#endif /* LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH */
