/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_inverse.cuh: prepares each chunk of GDN with a norm for chunk_states.cuh: tiles of q and k,
 * their decayed products, and (I + A)^-1 beta, which replaces w and u. Of the last two only blocks
 * of 16 x 16 on and below the diagonal are written.
 *
 * Without a convolution, rows are bf16 from the batch. Warpgroup products compute q k' and k k'
 * once for all v heads of a k head, and the rows' lengths. After a convolution, tiles of normalised
 * rows are in the workspace. Both products are multiplied by the same decays, which are computed
 * once per v head.
 */
#ifndef LINEAR_LIKE_CHUNK_INVERSE_CUH
#define LINEAR_LIKE_CHUNK_INVERSE_CUH

#include "plugins/linear_like/kernels/chunk_ready.cuh"
#include "plugins/linear_like/kernels/tile_rows.cuh"

/* Powers of two that bring rows near length 1, twice as bf16 in a word; `times` divided by these
 * are the rows' lengths. */
struct inverse_memory : ready_memory {
    u32 *q_up, *k_up;
    float *lefts; /* [heads][3][64]: decays from each column to the first rows of blocks 1 to 3 */

    __device__ __forceinline__ explicit inverse_memory(char *from)
        : ready_memory(from), q_up((u32 *)v_times), k_up((u32 *)own), lefts((float *)staging)
    {
        staging = k + CHUNK_TILE / 2;
        system = q;
    }

    /* For two heads at a time, in place of q and k: the system, and each warp's block on its
     * diagonal, in fp32. */
    __device__ __forceinline__ char *half(int number) const
    {
        return system + number * CHUNK_PRODUCTS;
    }

    __device__ __forceinline__ float *block(int warp, int number) const
    {
        return (float *)k + (2 * warp + number) * 256;
    }

    /* The products that the last warp passes to the first: its first sixteen columns. */
    __device__ __forceinline__ float4 *given(int lane) const
    {
        return (float4 *)(lefts + CHUNK_READY_HEADS * 3 * 64) + lane;
    }

    /* Decays of head `number` to block `block` of rows, not the first block. */
    __device__ __forceinline__ float *left(int number, int block) const
    {
        return lefts + (3 * number + block - 1) * 64;
    }
};

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Copies a chunk's rows of q or k from the batch. */
DEVICE void fetch_rows(const linear_call &call, const ready_chunk &chunk, int first, char *tile)
{
    const i64 apart = call.operands.mixed_row;
    fetch_tile(call.operands.mixed + (i64)(chunk.sequence.first_row + chunk.t) * apart + first * 2,
               apart, chunk.rows, call.dims.k_dim, tile);
}

/* Copies both tiles of a head, as written by the convolution. */
template <int THREADS> DEVICE void fetch_tiles(const char *from, char *tiles)
{
    const unsigned to = shared_address(tiles) + threadIdx.x * 16;
    from += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < CHUNK_KEYS_BYTES; i += THREADS * 16)
        copy_async(to + i, from + i);
}

/* A row's elements on the diagonal of a product, in the lanes that have them. */
DEVICE bool find_diagonal(const float (&x)[32], int warp, int lane, float (&to)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to[i] = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const int at = 4 * (2 * w + i) + 2 * i;
            to[i] = w == warp ? lane / 4 % 2 ? x[at + 1] : x[at] : to[i];
        }
    }
    return lane % 4 == lane / 8;
}

/* Writes the factors of rows, from their sums of squares. */
DEVICE void write_lengths(const float (&sums)[2], int row, float *times, u32 *up)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int exponent = (int)(f32_bits(sums[i]) >> 23); /* 255: factors are 0 */
        const u32 half = exponent == 255 ? 1 : (u32)(127 - ((exponent - 127) >> 1));
        times[row + 8 * i] = bits_f32((254 - half) << 23) * rsqrtf(sums[i] + 1e-6f);
        up[row + 8 * i] = half << 7 | half << 23;
    }
}

/* Writes factors 1, as rows are normalised. */
DEVICE void write_ones(const inverse_memory &m)
{
    const u32 one = 0x3f803f80;
    if (threadIdx.x >= CHUNK_ROWS)
        return;
    m.q_times[threadIdx.x] = m.k_times[threadIdx.x] = 1;
    m.q_up[threadIdx.x] = m.k_up[threadIdx.x] = one;
}

DEVICE void convert_tiles(const inverse_memory &m, char *to)
{
    const int row = threadIdx.x / 8, at = threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 up = (i < 8 ? m.q_up : m.k_up)[i % 4 * 16 + row];
        const uint4 x = *(const uint4 *)(m.q + i * 2048 + at);
        *(uint4 *)(to + i * 2048 + at) = make_uint4(convert_two(x.x, up), convert_two(x.y, up),
                                                    convert_two(x.z, up), convert_two(x.w, up));
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Scales a warp's products to rows of length 1; `own`: each row's q times its own k. */
DEVICE void scale_products(const inverse_memory &m, float (&qk)[32], float (&kk)[32], int warp,
                           int lane)
{
    const int i = 16 * warp + lane / 4;
    float q[2], k[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        q[h] = m.q_times[i + 8 * h] * bits_f32(m.q_up[i + 8 * h] & 0xffff0000) * PRODUCTS_ROOM;
        k[h] = m.k_times[i + 8 * h] * bits_f32(m.k_up[i + 8 * h] & 0xffff0000);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n >= 2 * warp + 2)
            continue;
        const int j = 8 * n + lane % 4 * 2;
        const float2 times = *(const float2 *)(m.k_times + j);
        const uint2 up = *(const uint2 *)(m.k_up + j);
        const float x = times.x * bits_f32(up.x & 0xffff0000);
        const float y = times.y * bits_f32(up.y & 0xffff0000);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            qk[4 * n + e] *= (e % 2 ? y : x) * q[e / 2];
            kk[4 * n + e] *= (e % 2 ? y : x) * k[e / 2];
        }
    }
}

/* Writes decays from columns left of the diagonal's blocks to the first row of each block; a thread
 * has columns of every second head. So lanes that share columns need not compute them again. */
DEVICE void write_lefts(const inverse_memory &m, int heads)
{
    const int j = threadIdx.x % CHUNK_ROWS;
#pragma unroll 1
    for (int number = threadIdx.x / CHUNK_ROWS; number < heads; number += 2) {
        const ready_gates g(m, number);
        const float sum = g.sum[j], rest = g.rest[j];
#pragma unroll
        for (int block = 1; block < 4; block++) {
            const int edge = 16 * block;
            if (j < edge)
                m.left(number, block)[j] = exp2_fast((g.sum[edge] - sum) + (g.rest[edge] - rest));
        }
    }
}

/* Decays from columns to a lane's rows of block `block`. */
struct inverse_decays {
    float sum[2], rest[2], below[2];

    __device__ __forceinline__ inverse_decays(const ready_gates &g, int block, int lane)
    {
        const float edge = g.sum[16 * block], edge_rest = g.rest[16 * block];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] = g.sum[16 * block + lane / 4 + 8 * h];
            rest[h] = g.rest[16 * block + lane / 4 + 8 * h];
            below[h] = exp2_fast((sum[h] - edge) + (rest[h] - edge_rest));
        }
    }

    /* Left of the diagonal's block, factored at its first row. `left`: to that row. */
    __device__ __forceinline__ void find_left(const float *left, int j, float (&to)[4]) const
    {
        const float2 of = *(const float2 *)(left + j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[e] = below[e / 2] * (e % 2 ? of.y : of.x);
    }

    /* In the diagonal's block: columns of its half, 0 on and above the diagonal. */
    __device__ __forceinline__ void find_within(const ready_gates &g, int j, int half, int lane,
                                                float (&to)[4]) const
    {
        const float2 of = *(const float2 *)(g.sum + j), more = *(const float2 *)(g.rest + j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float difference =
                (sum[e / 2] - (e % 2 ? of.y : of.x)) + (rest[e / 2] - (e % 2 ? more.y : more.x));
            const bool there = 8 * half + lane % 4 * 2 + e % 2 < lane / 4 + e / 2 * 8;
            to[e] = there ? exp2_fast(difference) : 0;
        }
    }
};

/* -beta of a lane's rows of block `block`; otherwise the compiler would negate each product. */
DEVICE void find_signed(const ready_gates &g, int block, int lane, float (&to)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        asm("neg.f32 %0, %1;" : "=f"(to[h]) : "f"(g.beta[16 * block + lane / 4 + 8 * h]));
}

DEVICE void pack_products(const float (&x)[2][4], u32 (&to)[4])
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        to[n] = pack_half(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]);
}

/* The last warp has four blocks of a head, the first warp one. So the last warp passes one block to
 * the first: products of sixteen columns, in the layout of lanes. */
DEVICE void give_products(const float (&qk)[32], const float (&kk)[32], const inverse_memory &m,
                          int warp, int lane)
{
    float4 *to = m.given(lane);
    if (warp != 3)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to[32 * i] = make_float4(qk[4 * i], qk[4 * i + 1], qk[4 * i + 2], qk[4 * i + 3]);
        to[32 * i + 64] = make_float4(kk[4 * i], kk[4 * i + 1], kk[4 * i + 2], kk[4 * i + 3]);
    }
}

DEVICE void take_products(const inverse_memory &m, int lane, float (&qk)[8], float (&kk)[8])
{
    const float4 *from = m.given(lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = from[32 * i], y = from[32 * i + 64];
        qk[4 * i] = x.x, qk[4 * i + 1] = x.y, qk[4 * i + 2] = x.z, qk[4 * i + 3] = x.w;
        kk[4 * i] = y.x, kk[4 * i + 1] = y.y, kk[4 * i + 2] = y.z, kk[4 * i + 3] = y.w;
    }
}

/* Writes products of queries and keys to the workspace, and the system of one of two v heads to
 * shared memory. */
struct inverse_writer {
    unsigned system, staged; /* the system; the lane's part of a staged block */

    /* Writes block [block, pair], left of the diagonal. */
    __device__ __forceinline__ void write_left(const float *qk, const float *kk,
                                               const inverse_decays &decays,
                                               const float (&times)[2], const float *left,
                                               int block, int pair, int place, int lane) const
    {
        float p[2][4], a[2][4];
        u32 packed[4];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float decay[4];
            decays.find_left(left, 8 * (2 * pair + n) + lane % 4 * 2, decay);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p[n][e] = qk[4 * n + e] * decay[e];
                a[n][e] = kk[4 * n + e] * decay[e] * times[e / 2];
            }
        }
        pack_products(a, packed);
        store_matrices(system + 2048 * block + tile_offset(lane % 16, 2 * pair + lane / 16),
                       packed);
        pack_products(p, packed);
        store_matrices(staged + place * 512, packed);
    }

    /* Writes the diagonal's block; `to`: the lane's place in the fp32 copy for the system. */
    __device__ __forceinline__ void write_within(const float *qk, const float *kk,
                                                 const inverse_decays &decays,
                                                 const float (&times)[2], const ready_gates &g,
                                                 int pair, float *to, int lane) const
    {
        float p[2][4], a[2][4];
        u32 packed[4];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float decay[4];
            decays.find_within(g, 8 * (2 * pair + n) + lane % 4 * 2, n, lane, decay);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p[n][e] = qk[4 * n + e] * decay[e];
                a[n][e] = kk[4 * n + e] * decay[e] * times[e / 2];
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(float2 *)(to + e % 2 * 128 + e / 2 * 8) =
                make_float2(a[e / 2][e % 2 * 2], a[e / 2][e % 2 * 2 + 1]);
        pack_products(p, packed);
        store_matrices(staged + pair * 512, packed);
    }
};

/* Writes block [3, 0], by the first warp. */
DEVICE void write_taken(const inverse_memory &m, const ready_gates &g, const inverse_writer &by,
                        const float *left, int lane)
{
    const inverse_decays decays(g, 3, lane);
    float qk[8], kk[8], times[2];
    take_products(m, lane, qk, kk);
    find_signed(g, 3, lane, times);
    by.write_left(qk, kk, decays, times, left, 3, 0, 1, lane);
}

/* Writes all blocks of v head `number`, whose system is number `half`. */
DEVICE void write_decayed(const float (&qk)[32], const float (&kk)[32], const inverse_memory &m,
                          int number, int half, char *to, int warp, int lane)
{
    const ready_gates g(m, number);
    const char *staging = m.staging + warp * CHUNK_STAGE;
    const inverse_writer by = {shared_address(m.half(half)),
                               shared_address(staging) + panel_offset(lane % 16, lane / 16)};
    const inverse_decays decays(g, warp, lane);
    float times[2];
    find_signed(g, warp, lane, times);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        if (pair == warp)
            by.write_within(qk + 8 * pair, kk + 8 * pair, decays, times, g, pair,
                            m.block(warp, half) + lane / 4 * 16 + lane % 4 * 2, lane);
        else if (pair < warp && (pair > 0 || warp < 3))
            by.write_left(qk + 8 * pair, kk + 8 * pair, decays, times, m.left(number, warp), warp,
                          pair, pair, lane);
    }
    if (warp == 0)
        write_taken(m, g, by, m.left(number, 3), lane);
    __syncwarp();
#pragma unroll
    for (int place = 0; place < 4; place++) {
        const bool taken = place == 1 && warp == 0;
        if (taken || (place <= warp && (place > 0 || warp < 3)))
            *(uint4 *)(to + (taken ? triangle_block(3, 0) : triangle_block(warp, place)) +
                       lane * 16) = *(const uint4 *)(staging + place * 512 + lane * 16);
    }
    __syncwarp();
}

/* Inverts a warp's blocks on the diagonals of two heads by substitution, a column per lane; they
 * contain the difference from the unit matrix. */
DEVICE void invert_blocks(const inverse_memory &m, int heads, int warp, int lane)
{
    const int j = lane % 16, first = 16 * warp, number = lane / 16 < heads ? lane / 16 : 0;
    const float *block = m.block(warp, number);
    char *system = m.half(number);
    float x[16];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = i == j ? 1 : 0;
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            const float4 a = *(const float4 *)(block + i * 16 + l);
            const float row[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (l + e < i)
                    sum += row[e] * x[l + e];
        }
        x[i] = sum;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const u32 two = pack_half(x[i], x[i + 1]);
        *(u16 *)(system + system_offset(first + i, first + j)) = (u16)two;
        *(u16 *)(system + system_offset(first + i + 1, first + j)) = (u16)(two >> 16);
    }
}

/* Writes the numbers of rows, of v's rows, and of the state's product with k. `own`: a row's q
 * times its own k; `v_times`: factors of v's rows; NULL = 1. */
DEVICE void write_all_numbers(const linear_dims &d, const inverse_memory &m, const ready_gates &g,
                              const float (&own)[2], bool has_own, const float *v_times,
                              float *numbers, int warp, int lane)
{
    const int r = threadIdx.x;
    const float end = g.sum[63], end_rest = g.rest[63], scale = d.sm_scale / PRODUCTS_ROOM;
    float most = bits_f32(m.k_up[r % CHUNK_ROWS]);
    if (v_times && r >= CHUNK_ROWS) {
        most = fmaxf(v_times[r - CHUNK_ROWS], v_times[r - CHUNK_ROWS ^ 32]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    numbers[NUMBERS_DECAY + r] = r >= CHUNK_ROWS ? most : exp2f(end + end_rest);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (has_own)
            numbers[NUMBERS_OWN(true) + 16 * warp + lane / 4 + 8 * i] = own[i] * scale;
    if (r >= CHUNK_ROWS)
        return;
    const float decay = exp2f(g.sum[r] + g.rest[r]);
    numbers[NUMBERS_Q + r] = decay * m.q_times[r] * d.sm_scale;
    numbers[NUMBERS_K + r] = exp2f((end - g.sum[r]) + (end_rest - g.rest[r])) * m.k_times[r];
    numbers[NUMBERS_U + r] = v_times ? v_times[r] : bits_f32(m.q_up[r]);
    numbers[NUMBERS_W + r] = m.k_times[r] * decay;
    numbers[NUMBERS_P + r] = scale;
}

/* ---- (I + A)^-1 ------------------------------------------------------------------------------ */

/* x, opaque to the compiler, which would otherwise hoist addresses out of the loop and spill
 * them. */
DEVICE int find_again(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* The factors of sixteen columns of the inverse: beta and CHUNK_INVERSE_ROOM. */
DEVICE void find_times(const float *beta, int column, int lane, float (&times)[2])
{
    times[0] = CHUNK_INVERSE_ROOM * beta[16 * column + lane / 4];
    times[1] = CHUNK_INVERSE_ROOM * beta[16 * column + lane / 4 + 8];
}

/* (I + A)^-1 times `times`: sixteen columns, transposed as in solve_columns(). The right side of a
 * block of rows is two numbers, too. TRIANGLE: blocks above the diagonal are not written. */
template <bool TRIANGLE = false>
DEVICE void write_columns(unsigned system, char *staging, int column, char *to, int lane,
                          const float (&times)[2])
{
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    u32 x[4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i == column) { /* the unit matrix's column gives the block's inverse, transposed */
            load_matrices_turned(system + tile_offset(16 * i + row, 2 * i + half), x[i]);
#pragma unroll
            for (int n = 0; n < 4; n++)
                x[i][n] =
                    pack_half(half_low(x[i][n]) * times[n % 2], half_high(x[i][n]) * times[n % 2]);
        } else if (i > column) {
            float sums[2][4] = {}, more[2][4] = {};
            u32 a[4], side[4], rest[4];
#pragma unroll
            for (int j = 0; j < i; j++) {
                if (j < column)
                    continue;
                load_matrices(system + tile_offset(16 * i + row, 2 * j + half), a);
                multiply(sums[0], x[j], a[0], a[1]);
                multiply(sums[1], x[j], a[2], a[3]);
            }
            load_matrices(system + tile_offset(16 * i + row, 2 * i + half), a);
            pack_sums(sums, side);
            pack_rests(sums, side, rest);
            multiply(more[0], rest, a[0], a[1]);
            multiply(more[1], rest, a[2], a[3]);
            multiply(more[0], side, a[0], a[1]);
            multiply(more[1], side, a[2], a[3]);
            pack_sums(more, x[i]);
        }
        if (TRIANGLE && i < column)
            continue;
        const int at = TRIANGLE ? lane * 16 : tile_offset(lane / 2, 2 * column + lane % 2);
        store_matrices_turned(shared_address(staging) + (TRIANGLE
                                                             ? panel_offset(row, half)
                                                             : tile_offset(row, 2 * column + half)),
                              x[i]);
        __syncwarp();
        *(uint4 *)(to + (TRIANGLE ? triangle_block(i, column) : i * CHUNK_STAGE) + at) =
            *(const uint4 *)(staging + at);
        __syncwarp();
    }
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* Gates of all heads, of two heads at a time: one row of a head per thread. */
struct inverse_gates {
    linear_gate of[CHUNK_READY_HEADS / 2];

    __device__ __forceinline__ inverse_gates(const linear_call &call, const ready_chunk &chunk,
                                             int head, int heads)
    {
        const int row = threadIdx.x % CHUNK_ROWS, number = threadIdx.x / CHUNK_ROWS;
#pragma unroll
        for (int i = 0; i < CHUNK_READY_HEADS / 2; i++)
            if (2 * i + number < heads && row < chunk.rows)
                of[i] = linear_load_gate(&call, chunk.sequence.first_row + chunk.t + row,
                                         head + 2 * i + number, 0);
    }

    /* Writes beta, and the log decay in the place of its sum. */
    __device__ __forceinline__ void write(const linear_call &call, const inverse_memory &m,
                                          int heads, int rows) const
    {
        const int row = threadIdx.x % CHUNK_ROWS, number = threadIdx.x / CHUNK_ROWS;
#pragma unroll
        for (int i = 0; i < CHUNK_READY_HEADS / 2; i++) {
            if (2 * i + number >= heads)
                continue;
            const ready_gates g(m, 2 * i + number);
            float beta = 0, log = 0;
            if (row < rows) {
                beta = linear_gate_beta(&call, &of[i]);
                log = linear_gate_log(&call.dims, &of[i], &beta);
            }
            g.beta[row] = beta, g.sum[row] = log;
        }
    }
};

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Loads a row's q times its own k, from unrounded rows. */
DEVICE void load_own(const float *from, int warp, int lane, float (&own)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        own[i] = from[16 * warp + lane / 4 + 8 * i] * PRODUCTS_ROOM;
}

/* Sums log decays, one warp per head, during the products: without a branch. */
DEVICE void sum_head_logs(const inverse_memory &m, int heads, int warp, int lane)
{
    const ready_gates g(m, warp);
    const float2 logs = *(const float2 *)(g.sum + 2 * lane);
    sum_logs(scale_log(logs.x), scale_log(logs.y), lane, g, warp < heads);
}

/* q k' and k k' of unscaled rows; writes `q_times` and `k_times` to shared memory, and tiles. */
DEVICE void multiply_rows_raw(const inverse_memory &m, int heads, int warp, int lane,
                              float (&qk)[32], float (&kk)[32])
{
    const unsigned q = shared_address(m.q), k = shared_address(m.k);
    float sums[2];
    multiply_shared<false, 8>(qk, q, q);
    multiply_shared<false, 8>(kk, k, k);
    sum_head_logs(m, heads, warp, lane);
    wait_product<1>(qk);
    const bool diagonal = find_diagonal(qk, warp, lane, sums);
    if (diagonal)
        write_lengths(sums, 16 * warp + lane / 4, m.q_times, m.q_up);
    multiply_shared<false, 8>(qk, q, k);
    wait_product<1>(kk);
    find_diagonal(kk, warp, lane, sums);
    if (diagonal)
        write_lengths(sums, 16 * warp + lane / 4, m.k_times, m.k_up);
    wait_product<0>(qk);
}

/* Blocks: parts of v heads of a k head, k heads, chunks of the window, from the last to the first,
 * as the last written data is in L2. TILES: those of q and k are in the workspace. */
template <bool TILES> DEVICE void inverse_block(const linear_call &call, int first, char *memory)
{
#if HAS_HOPPER
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int together = chunks.together;
    const int part = blockIdx.x, key_head = blockIdx.y;
    const int index = gridDim.z - 1 - blockIdx.z;
    const linear_chunk from = chunks.list[int_min(first + index, chunks.most - 1)];
    if (first + index >= *chunks.count)
        return;
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const inverse_memory m(memory);
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int head = key_head * d.ratio + part * together;
    const int heads = int_min(together, d.ratio - part * together);
    float kk[32], qk[32], own[2];
    const inverse_gates gates(call, chunk, head, heads);
    if constexpr (TILES) {
        fetch_tiles<CHUNK_READY_THREADS>(
            chunks.keys + ((i64)index * d.k_heads + key_head) * CHUNK_KEYS_BYTES, m.q);
        write_ones(m);
    } else {
        fetch_rows(call, chunk, d.first[0] + key_head * d.k_dim, m.q);
        fetch_rows(call, chunk, d.first[1] + key_head * d.k_dim, m.k);
    }
    copy_commit();
    gates.write(call, m, heads, chunk.rows);
    copy_wait<0>();
    fence_async_shared();
    __syncthreads();
    if constexpr (TILES) {
        multiply_shared<true, 8>(qk, shared_address(m.q), shared_address(m.k));
        multiply_shared<true, 8>(kk, shared_address(m.k), shared_address(m.k));
        sum_head_logs(m, heads, warp, lane);
        wait_product<0>(qk);
        wgmma_arrived(kk);
    } else {
        multiply_rows_raw(m, heads, warp, lane, qk, kk);
    }
    __syncthreads();
    if (!TILES && part == 0 && !chunks.raw)
        convert_tiles(m, chunks.keys + ((i64)index * d.k_heads + key_head) * CHUNK_KEYS_BYTES);
    write_lefts(m, heads);
    scale_products(m, qk, kk, warp, lane);
    give_products(qk, kk, m, warp, lane);
    const bool diagonal = find_diagonal(qk, warp, lane, own);
    if constexpr (TILES)
        load_own(row_numbers(call, index, key_head), warp, lane, own);
#pragma unroll 1
    for (int n = 0; n < heads; n += 2) {
        const int here = int_min(2, heads - n);
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < here; i++) {
            const ready_values to(call, index, head + n + i, CHUNK_INVERSE);
            const ready_gates g(m, n + i);
            write_all_numbers(d, m, g, own, diagonal,
                              TILES ? row_numbers(call, index, d.k_heads + head + n + i) : NULL,
                              to.numbers, warp, lane);
            write_decayed(qk, kk, m, n + i, i, to.products, warp, lane);
        }
        invert_blocks(m, here, warp, find_again(lane));
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < here; i++) { /* over two heads, each warp has columns of equal work */
            const ready_values to(call, index, head + n + i, CHUNK_INVERSE);
            const int column = i ? 3 - warp : warp;
            const int at = find_again(lane);
            float times[2];
            find_times(ready_gates(m, n + i).beta, column, at, times);
            write_columns<true>(shared_address(m.half(i)), m.staging + warp * CHUNK_STAGE, column,
                                to.w, at, times);
        }
    }
#else
    __trap();
#endif
}

#endif /* LINEAR_LIKE_CHUNK_INVERSE_CUH */
