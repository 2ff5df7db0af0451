/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_channels_inverse.cuh: prepares each chunk of KDA with a norm for chunk_states.cuh: q and k
 * decayed from the chunk's first row on, k decayed to its end, decayed products of q and k, and (I
 * + A)^-1.
 *
 * Without a convolution, rows are bf16 from the batch. After one (TILES), tiles of normalised fp16
 * rows are in the place of the decayed rows. Eight warps have a chunk of a head: 16 rows and half
 * of the channels each. Then the first warp of a block of rows inverts its block of A, while the
 * second multiplies its rows with earlier ones. After that the first warps compute T, while the
 * second ones request the next chunk's rows and compute their lengths. A lane has the layout of
 * tensor cores' sums: two adjacent channels of rows r and r + 8. Sums of log decays have this
 * layout, as products of a triangle of ones and fp16 log decays; all decays of a chunk are computed
 * from them. ldmatrix loads rows of q and k in the same layout, so the operands of products within
 * a block are in registers already. Products between blocks are those of chunk_channels.cuh.
 */
#ifndef LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH
#define LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH

#include "plugins/linear_like/kernels/channels_decays.cuh"

/* ---- Products of blocks ---------------------------------------------------------------------- */

/* Products of the block's rows with those of the block `back` blocks before. */
DEVICE void multiply_ends(const decays_memory &m, const decays_part &part, int back,
                          const block_rows_left &left, block_products &sums)
{
    const int lane = part.lane, from = part.block - back;
    const unsigned at = tile_offset(16 * from + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int decays = back == 3 ? 1 : from == 0 ? 0 : 2;
    const u16 *between = m.between + decays * CHUNK_MAX_KEYS + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < 8; step++) {
        u32 y[4];
        load_matrices(shared_address(m.ends) + step / 4 * (CHUNK_TILE / 2) + (at ^ step % 4 * 32),
                      y);
        if (back > 1)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 less = *(const u32 *)(between + 16 * step + 8 * h);
                y[h] = multiply_pairs(y[h], less), y[2 + h] = multiply_pairs(y[2 + h], less);
            }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            multiply(sums.q[n], left.q[step], y[2 * n], y[2 * n + 1]);
            multiply(sums.k[n], left.k[step], y[2 * n], y[2 * n + 1]);
        }
    }
}

/* Inverts the unit matrix plus 16 x 16 numbers below its diagonal, by halves: [L, 0; M, N] becomes
 * [1 / L, 0; -(1 / N) M (1 / L), 1 / N], a chain of half as many steps. `square`: rows of 16
 * floats; write(i, j, x) is called for every element except those above the halves' diagonal
 * blocks. */
template <typename WRITE> DEVICE void invert_square(float *square, int lane, WRITE write)
{
    const int j = lane % 8, half = lane / 8 % 2, row = lane / 8 * 2;
    const float *own = square + half * (8 * 16 + 8);
    float x[8], left[8], made[2] = {0, 0}, below[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) { /* column j of 1 / L or 1 / N */
        float sums[2] = {i == j ? 1.0f : 0, 0};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            const float4 a = *(const float4 *)(own + i * 16 + l);
            const float of[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (l + e < i)
                    sums[e % 2] -= of[e] * x[l + e];
        }
        x[i] = sums[0] + sums[1];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        left[i] = __shfl_sync(~0u, x[i], j);
        if (lane / 8 == 1)
            square[i * 16 + 8 + j] = x[i];
        if (lane < 16)
            write(8 * half + i, 8 * half + j, x[i]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) /* M (1 / L), two rows of column j */
#pragma unroll
        for (int l = 0; l < 8; l += 4) {
            const float4 a = *(const float4 *)(square + (8 + row + e) * 16 + l);
            made[e] += a.x * left[l] + a.y * left[l + 1] + a.z * left[l + 2] + a.w * left[l + 3];
        }
#pragma unroll
    for (int i = 0; i < 8; i++)
        left[i] = __shfl_sync(~0u, made[i % 2], 8 * (i / 2) + j);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int l = 0; l < 8; l += 4) {
            const float4 a = *(const float4 *)(square + (row + e) * 16 + 8 + l);
            below[e] -= a.x * left[l] + a.y * left[l + 1] + a.z * left[l + 2] + a.w * left[l + 3];
        }
        write(8 + row + e, j, below[e]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        write(row + e, 8 + j, 0);
    __syncwarp();
}

/* Inverts a block on A's diagonal, by the first warp of the block. */
template <bool TILES>
DEVICE void invert_part(const decays_memory &m, const decays_part &part, bool in_range,
                        float (&within)[2][4])
{
    const int block = part.block, lane = part.lane, i = 16 * block + lane / 4;
    float *square = (float *)m.given(block, 10);
    take_sums(m, part, 10, within);
    if (!in_range)
        take_pairwise(m, part, within);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float beta = m.beta[i + 8 * e];
            *(float2 *)(square + (lane / 4 + 8 * e) * 16 + n * 8 + lane % 4 * 2) =
                make_float2(within[n][2 * e] * beta, within[n][2 * e + 1] * beta);
        }
    __syncwarp();
    if constexpr (TILES) /* faster here */
        invert_block(m, square, block, lane);
    else
        invert_square(square, lane, [&](int i, int j, float x) {
            *(u16 *)(m.system + system_offset(16 * block + i, 16 * block + j)) =
                (u16)pack_half(x, 0);
        });
}

/* Packs sums, times factors of their rows, as a left operand or two matrices of a tile. */
DEVICE void pack_block(const float (&sums)[2][4], float first, float second, u32 (&to)[4])
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        to[2 * n] = pack_half(sums[n][0] * first, sums[n][1] * first);
        to[2 * n + 1] = pack_half(sums[n][2] * second, sums[n][3] * second);
    }
}

/* Products with earlier rows, by the second warp of the block. Those of keys are A left of the
 * diagonal's block; those of queries are written to the workspace, times PRODUCTS_ROOM. */
DEVICE void multiply_part(const decays_memory &m, const decays_part &part, bool in_range,
                          block_rows_left &left, float (&within)[2][4], char *products)
{
    const int block = part.block, lane = part.lane, i = 16 * block + lane / 4;
    const unsigned at = tile_offset(lane % 16, lane / 16);
    const unsigned system = shared_address(m.system) + block * CHUNK_STAGE;
    char *const stage = (char *)m.given(block, 0);
    const unsigned staging = shared_address(stage);
    const float beta[2] = {-m.beta[i], -m.beta[i + 8]};
    u32 packed[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < CHANNELS_STEPS; step++) {
        const uint4 q = m.given(block, step)[lane], k = m.given(block, 4 + step)[lane];
        left.q[step][0] = q.x, left.q[step][1] = q.y, left.q[step][2] = q.z, left.q[step][3] = q.w;
        left.k[step][0] = k.x, left.k[step][1] = k.y, left.k[step][2] = k.z, left.k[step][3] = k.w;
    }
    take_sums(m, part, 8, within);
    if (!in_range)
        take_pairwise(m, part, within);
    __syncwarp();
#pragma unroll
    for (int pair = 1; pair < 4; pair++)
        if (pair > block)
            store_matrices(staging + (at ^ pair * 32), packed);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + lane % 4 * 2 + e % 2 >= lane / 4 + e / 2 * 8)
                within[n][e] = 0;
    pack_block(within, PRODUCTS_ROOM, PRODUCTS_ROOM, packed);
    store_matrices(staging + (at ^ block * 32), packed);
#pragma unroll
    for (int back = 1; back < 4; back++) {
        block_products sums = {};
        if (back > block)
            break;
        multiply_ends(m, part, back, left, sums);
        pack_block(sums.q, PRODUCTS_ROOM, PRODUCTS_ROOM, packed);
        store_matrices(staging + (at ^ (block - back) * 32), packed);
        pack_block(sums.k, beta[0], beta[1], packed);
        store_matrices(system + (at ^ (block - back) * 32), packed);
    }
    copy_staged(stage, products + block * CHUNK_STAGE, lane);
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Stores tiles, by one thread, after all have written them. */
DEVICE void store_keys(const decays_memory &m, char *keys)
{
    store_bytes(keys, shared_address(m.q), 2 * CHUNK_TILE);
    store_bytes(keys + 2 * CHUNK_TILE, shared_address(m.to_end), CHUNK_TILE);
    store_commit();
}

/* Copies gates first, then rows of q and k from the batch, by the second warps of blocks, or as the
 * convolution has written them at `keys`. */
template <bool TILES>
DEVICE void fetch_keys(const linear_call &call, const channels_chunk &at, const char *keys,
                       const decays_part &part, const decays_memory &m)
{
    fetch_gates(call, at, m);
    copy_commit();
    if constexpr (TILES)
        fetch_tiles<CHUNK_CHANNELS_THREADS>(keys, m.q);
    else if (part.half)
        fetch_block(call, at, part, m);
    copy_commit();
}

/* A chunk's head of the window, and the block's next one. */
struct channels_unit {
    int index, head;

    __device__ __forceinline__ channels_unit next(const linear_dims &d, int chunks, int heads) const
    {
        channels_unit to = *this;
        to.index += chunks, to.head += heads;
        if (to.head >= d.v_heads)
            to.index++, to.head -= d.v_heads;
        if (to.head < 0)
            to.index--, to.head += d.v_heads;
        return to;
    }
};

/* Chunks of the window, times v heads; each block processes several. Rows and gates of the next one
 * are copied during the products of the current one. The last chunks are first: L2 has the rows
 * that the convolution wrote last, and keeps the tiles that the states start with. */
template <bool TILES>
DEVICE void channels_inverse_block(const linear_call &call, int first, char *memory)
{
#if HAS_HOPPER
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int units = int_min(*chunks.count - first, chunks.window) * d.v_heads;
    /* With strips, which use one multiprocessor per head: as many blocks as run at once on the
     * others. */
    const int room = CHUNK_CHANNELS_BLOCKS * (chunks.strips - d.v_heads);
    const int blocks = chunks.count[1] ? room - room % d.v_heads : gridDim.x;
    if ((int)blockIdx.x >= int_min(units, blocks))
        return;
    const decays_memory m(memory);
    const decays_part part;
    const int step = -blocks;
    const int step_chunks = step / d.v_heads, step_heads = step % d.v_heads;
    int left_units = (units - 1 - (int)blockIdx.x) / blocks;
    const int begin = units - 1 - (int)blockIdx.x;
    channels_unit unit = {begin / d.v_heads, begin % d.v_heads};
    channels_chunk at(call, chunks.list[first + unit.index], unit.head);
    char *keys = chunks.keys + (i64)begin * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
    fetch_keys<TILES>(call, at, keys, part, m);
    head_factors kept = {-1, 0, 0};
    u32 b = load_beta(call, at);
#pragma unroll 1
    for (;; left_units--) {
        const bool more = left_units > 0;
        const channels_unit next = more ? unit.next(d, step_chunks, step_heads) : unit;
        const linear_chunk following = chunks.list[first + next.index];
        const ready_values to(call, unit.index, unit.head, CHUNK_CHANNELS);
        convolved_row row = {};
        if constexpr (TILES)
            row = load_convolved(call, part, unit.index, unit.head);
        float sums[CHANNELS_STEPS][2][4], times[2] = {};
        block_products within = {};
        block_rows_left left;
        gate_factors loaded;
        if constexpr (TILES)
            loaded = load_factors(call, at);
        else
            find_factors(call, at, part, m, kept);
        copy_wait<1>(); /* gates */
        if constexpr (TILES)
            find_logs(call, at, b, loaded, m);
        else
            find_logs(call, at, b, kept, m);
        __syncwarp(); /* a warp's log decays are its own, and so are the rows that it requested */
        sum_logs(m, part, sums);
        copy_wait<0>();
        if constexpr (!TILES)
            if (part.half) {
                __syncwarp();
                find_lengths(m, part);
            }
        __syncthreads();
        at = channels_chunk(call, following, next.head);
        find_blocks(m, part, to.numbers);
        const bool in_range = decay_part<TILES>(m, part, sums, left, within);
        fence_async_shared();
        __syncthreads();
        if (threadIdx.x == CHUNK_CHANNELS_THREADS / 2)
            store_keys(m, keys);
        keys += (i64)step * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
        if (more) {
            prefetch_chunk<TILES>(call, at, keys);
            b = load_beta(call, at);
        }
        if (part.half) {
            multiply_part(m, part, in_range, left, within.q, to.products);
            write_row_numbers<TILES>(d, m, part, row, to.numbers);
            if (threadIdx.x == CHUNK_CHANNELS_THREADS / 2)
                store_wait_read();
            named_arrive(CHANNELS_MULTIPLIED, CHUNK_CHANNELS_THREADS);
            named_sync(CHANNELS_SECOND, CHUNK_CHANNELS_THREADS / 2);
        } else {
            invert_part<TILES>(m, part, in_range, within.k);
            /* here, as the next chunk's arrive after the barrier */
            find_times(m.beta, part.block, part.lane, times);
            named_sync(CHANNELS_MULTIPLIED, CHUNK_CHANNELS_THREADS);
        }
        if (more)
            fetch_keys<TILES>(call, at, keys, part, m);
        if (part.half == 0)
            write_columns(shared_address(m.system), (char *)m.given(part.block, 0), part.block,
                          to.w, part.lane, times);
        if (!more)
            return;
        unit = next;
    }
#else
    __trap();
#endif
}

#endif /* LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH */
