/* SPDX-License-Identifier: Apache-2.0
 *
 * ready_products.cuh: decayed products of a chunk's rows with its keys, and their storage.
 */
#ifndef LINEAR_LIKE_READY_PRODUCTS_CUH
#define LINEAR_LIKE_READY_PRODUCTS_CUH

#include "plugins/linear_like/kernels/ready_rows.cuh"

/* Rows [16 warp, + 16) of a tile times the rows of another: 16 x 64, fp32. */
DEVICE void multiply_tiles(const char *a, const char *b, int warp, int lane, float (&sums)[8][4])
{
    const unsigned left = shared_address(a), right = shared_address(b);
    const int row = 16 * warp + lane % 16;
    const int b_row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
    for (int step = 0; step < 8; step++) {
        u32 x[4];
        load_matrices(left + tile_offset(row, 2 * step + lane / 16), x);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 y[4];
            if (pair > warp) /* above the diagonal */
                continue;
            load_matrices(right + tile_offset(b_row, 2 * step + half) + pair * 2048, y);
            multiply(sums[2 * pair], x, y[0], y[1]);
            multiply(sums[2 * pair + 1], x, y[2], y[3]);
        }
    }
}

/* Replaces products of rows with their own keys by unrounded ones. */
DEVICE void replace_own(const float *own, int warp, int lane, float (&sums)[8][4])
{
    const int i = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (i + e / 2 * 8 == 8 * n + lane % 4 * 2 + e % 2)
                sums[n][e] = own[i + e / 2 * 8];
}

/* Copies sixteen rows of 64 columns, contiguous in a tile, from the warp's staging. */
DEVICE void copy_staged(const char *staging, char *to, int lane)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++)
        ((uint4 *)to)[32 * i + lane] = ((const uint4 *)staging)[32 * i + lane];
    __syncwarp();
}

/* Writes 16 rows of 64 columns, each scaled by a power of two; numbers get the inverses, times
 * `more`. */
DEVICE void write_rows(const float (&x)[32], char *staging, char *to, float *numbers,
                       const float (&more)[2], int warp, int lane)
{
    left_operand<8> y;
    float scale[2];
    make_left(x, y, scale);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = lane / 4 + 8 * i;
        if (lane % 4 == 0)
            numbers[16 * warp + row] = y.times[i] * more[i];
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(u32 *)(staging + tile_offset(row, n) + lane % 4 * 4) = y.at[n / 2][n % 2 * 2 + i];
    }
    copy_staged(staging, to + warp * CHUNK_STAGE, lane);
}

/* Decays a warp's products, and multiplies columns by `times`; elements on and above the diagonal
 * become 0. Left of the diagonal's block, decays are factored at its first row. */
DEVICE void decay_products(const float (&from)[8][4], const ready_gates &g, const float *times,
                           int warp, int lane, float (&to)[32])
{
    const int first = 16 * warp, i = first + lane / 4;
    const float sum[2] = {g.sum[i], g.sum[i + 8]}, rest[2] = {g.rest[i], g.rest[i + 8]};
    const float edge = g.sum[first], edge_rest = g.rest[first];
    const float below[2] = {exp2_fast((sum[0] - edge) + (rest[0] - edge_rest)),
                            exp2_fast((sum[1] - edge) + (rest[1] - edge_rest))};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int j = 8 * n + lane % 4 * 2;
        if (n >= 2 * warp + 2) {
            to[4 * n] = to[4 * n + 1] = to[4 * n + 2] = to[4 * n + 3] = 0;
            continue;
        }
        const float2 of = *(const float2 *)(g.sum + j), more = *(const float2 *)(g.rest + j);
        const float2 by = *(const float2 *)(times + j);
        if (n < 2 * warp) {
            const float x = by.x * exp2_fast((edge - of.x) + (edge_rest - more.x));
            const float y = by.y * exp2_fast((edge - of.y) + (edge_rest - more.y));
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[4 * n + e] = from[n][e] * (below[e / 2] * (e % 2 ? y : x));
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float difference =
                (sum[e / 2] - (e % 2 ? of.y : of.x)) + (rest[e / 2] - (e % 2 ? more.y : more.x));
            const bool there = j + e % 2 < i + e / 2 * 8;
            to[4 * n + e] =
                there ? from[n][e] * ((e % 2 ? by.y : by.x) * exp2_fast(difference)) : 0;
        }
    }
}

/* Writes the numbers of rows, and the decay of the state over the chunk. */
DEVICE void write_numbers(const linear_dims &d, const ready_memory &m, const ready_gates &g,
                          float *numbers)
{
    const int r = threadIdx.x;
    numbers[NUMBERS_DECAY + r] = exp2f(g.sum[63] + g.rest[63]);
    if (r >= 64)
        return;
    numbers[NUMBERS_Q + r] = exp2f(g.sum[r] + g.rest[r]) * m.q_times[r] * d.sm_scale;
    numbers[NUMBERS_K + r] =
        exp2f((g.sum[63] - g.sum[r]) + (g.rest[63] - g.rest[r])) * m.k_times[r];
}

/* Writes decayed products of queries and keys. Those on the diagonal are stored unrounded among the
 * numbers (without a delta rule, times beta), as they may be a row's only ones. */
template <bool DELTA>
DEVICE void write_products(const linear_dims &d, const float (&qk)[8][4], const ready_memory &m,
                           const ready_gates &g, char *to, float *numbers, int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.q_times[i] * d.sm_scale, m.q_times[i + 8] * d.sm_scale};
    decay_products(qk, g, m.k_times, warp, lane, x);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = i + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            if (row == j)
                numbers[NUMBERS_OWN(DELTA) + row] =
                    qk[n][e] * (m.k_times[j] * more[e / 2] * (DELTA ? 1 : g.beta[j]));
        }
    write_rows(x, m.staging + warp * CHUNK_STAGE, to, numbers + NUMBERS_P, more, warp, lane);
}

/* Parts of a chunk's data for a v head. */
struct ready_values {
    float *numbers;
    char *products, *w, *u; /* `w`: or the inverse */

    __device__ __forceinline__ ready_values(const linear_call &call, int index, int head, int rule)
    {
        char *to = call.chunks.values + ((i64)index * call.dims.v_heads + head) *
                                            CHUNK_VALUES_BYTES(call.dims.v_dim / CHUNK_PANEL, rule);
        numbers = (float *)to;
        products = to + CHUNK_NUMBERS;
        w = products + (CHUNK_ONE_DECAY(rule) ? CHUNK_TRIANGLE : CHUNK_PRODUCTS);
        u = w + (rule == CHUNK_SOLVED ? CHUNK_TILE : 0);
    }
};

#endif /* LINEAR_LIKE_READY_PRODUCTS_CUH */
