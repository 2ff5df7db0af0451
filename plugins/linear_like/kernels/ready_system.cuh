/* SPDX-License-Identifier: Apache-2.0
 *
 * ready_system.cuh: solves (I + A) x = b by blocks of 16 rows, each warp for its own columns.
 */
#ifndef LINEAR_LIKE_READY_SYSTEM_CUH
#define LINEAR_LIKE_READY_SYSTEM_CUH

#include "plugins/linear_like/kernels/ready_products.cuh"

/* The offset of an element of the system. */
DEVICE int system_offset(int row, int column)
{
    return tile_offset(row, column / 8) + column % 8 * 2;
}

/* Inverts a 16 x 16 block on the diagonal, rows of 16 floats at `block`, by substitution, a column
 * per lane. */
DEVICE void invert_block(const ready_memory &m, const float *block, int warp, int lane)
{
    const int j = lane % 16, first = 16 * warp;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sums[4] = {i == j ? 1.0f : 0, 0, 0, 0};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            const float4 a = *(const float4 *)(block + i * 16 + l);
            const float row[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (l + e < i)
                    sums[e] -= row[e] * x[l + e];
        }
        x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
#pragma unroll
    for (int i = 0; i < 16; i += 2) { /* half of the warp has even rows, half odd ones */
        const float own = lane < 16 ? x[i] : x[i + 1];
        *(u16 *)(m.system + system_offset(first + i + lane / 16, first + j)) =
            (u16)pack_half(own, own);
    }
}

/* Writes a warp's rows of A: x times `more` of the row. */
DEVICE void write_system_rows(const float (&x)[32], const float (&more)[2], const ready_memory &m,
                              int warp, int lane)
{
    float *block = (float *)(m.staging + warp * CHUNK_STAGE);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = lane / 4 + 8 * e, j = lane % 4 * 2;
            const float low = x[4 * n + 2 * e] * more[e], high = x[4 * n + 2 * e + 1] * more[e];
            if (n < 2 * warp)
                *(u32 *)(m.system + system_offset(16 * warp + i, 8 * n + j)) =
                    pack_half(-low, -high);
            else if (n < 2 * warp + 2)
                *(float2 *)(block + i * 16 + n % 2 * 8 + j) = make_float2(low, high);
        }
    __syncwarp();
    invert_block(m, block, warp, lane);
}

DEVICE void write_system(const float (&kk)[8][4], const ready_memory &m, const ready_gates &g,
                         int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.k_times[i] * g.beta[i], m.k_times[i + 8] * g.beta[i + 8]};
    decay_products(kk, g, m.k_times, warp, lane, x);
    write_system_rows(x, more, m, warp, lane);
}

/* Columns of b: rows of a tile times beta and `times`, over `up`; if that is 0, times e^g. */
struct ready_side {
    const ready_gates &g;
    const char *tile;
    const float *times;
    float up;

    __device__ __forceinline__ ready_side(const ready_gates &gates, const char *from,
                                          const float *rows, float multiplied)
        : g(gates), tile(from), times(rows), up(multiplied)
    {
    }
};

/* The largest of 64 numbers. */
DEVICE float largest_of_all(const float *x, int lane)
{
    float largest = fmaxf(x[lane], x[lane + 32]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    return largest;
}

/* The factors of a lane's four rows of b: rows 16 i + {0, 1, 8, 9}, plus its own offset. */
DEVICE void find_factors(const ready_side &b, int i, float scale, int lane, float (&factor)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = 16 * i + lane % 4 * 2 + e / 2 * 8 + e % 2;
        const float decay = b.up != 0 ? 1 / b.up : exp2_fast(b.g.sum[row] + b.g.rest[row]);
        factor[e] = b.g.beta[row] * b.times[row] * scale * decay;
    }
}

/* Loads sixteen columns of b, rows [16 i, + 16), in the layout of sums. */
DEVICE void load_side(unsigned tile, int i, int place, const float (&factor)[4], int lane,
                      float (&x)[2][4])
{
    u32 y[4];
    load_matrices_turned(
        tile + tile_offset(16 * i + lane % 8 + lane / 16 * 8, place + lane / 8 % 2), y);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[n / 2][n % 2 * 2] = half_low(y[n]) * factor[n / 2 * 2];
        x[n / 2][n % 2 * 2 + 1] = half_high(y[n]) * factor[n / 2 * 2 + 1];
    }
}

DEVICE void pack_sums(const float (&x)[2][4], u32 (&a)[4])
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        a[n] = pack_half(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]);
}

/* The rounding errors of sums rounded to `a`. */
DEVICE void pack_rests(const float (&x)[2][4], const u32 (&a)[4], u32 (&rest)[4])
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        rest[n] = pack_rest(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1], a[n]);
}

/* Solves for 16 * COUNT columns from `first` on, by a warp. Columns are transposed, as the sums of
 * one product have the layout of the next one's left operand:
 *
 *   x_i' = (b_i' - sum over j < i of x_j' A_ij') (I + A_ii)^-1'
 *
 * The terms in parentheses are two numbers each, since one was not accurate enough for outputs.
 * Elements of x are at most 64 times those of b (the rule is a contraction), so one power of two
 * suffices for all rows. PANELS: writes panels of values. Returns the factor of rows. */
template <bool PANELS, int COUNT>
DEVICE float solve_columns(const ready_memory &m, const ready_side &b, int first, int columns,
                           char *to, int warp, int lane)
{
    constexpr float room = 128;
    const unsigned system = shared_address(m.system), tile = shared_address(b.tile);
    const int system_row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    const int place = first % 64 / 8; /* of a staged row */
    char *staging = m.staging + warp * CHUNK_STAGE;
    float inverse, scale = find_scale(largest_of_all(b.times, lane), &inverse) * room;
    u32 x[COUNT][4][4]; /* by sixteen columns, by sixteen rows */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float factor[4], sums[COUNT][2][4];
        u32 a[4];
        find_factors(b, i, scale, lane, factor);
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            load_side(tile, i, first / 8 + 2 * c, factor, lane, sums[c]);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            load_matrices(system + tile_offset(16 * i + system_row, 2 * j + half), a);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                if (j == i) {
                    u32 rest[4];
                    pack_sums(sums[c], x[c][i]);
                    pack_rests(sums[c], x[c][i], rest);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sums[c][0][e] = sums[c][1][e] = 0;
                    multiply(sums[c][0], rest, a[0], a[1]);
                    multiply(sums[c][1], rest, a[2], a[3]);
                }
                multiply(sums[c][0], x[c][j], a[0], a[1]);
                multiply(sums[c][1], x[c][j], a[2], a[3]);
                if (j == i)
                    pack_sums(sums[c], x[c][i]);
            }
        }
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            store_matrices_turned(shared_address(staging) +
                                      (PANELS ? c * 512 + panel_offset(system_row, half)
                                              : tile_offset(system_row, place + 2 * c + half)),
                                  x[c][i]);
        __syncwarp();
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            const int n = 32 * c + lane;
            const int at = tile_offset(n / (2 * COUNT), place + n % (2 * COUNT));
            if constexpr (!PANELS)
                *(uint4 *)(to + first / 64 * (CHUNK_TILE / 2) + i * CHUNK_STAGE + at) =
                    *(const uint4 *)(staging + at);
            else if (first + 16 * c < columns)
                ((uint4 *)(to + (first / 16 + c) * CHUNK_PANEL_BYTES + i * 512))[lane] =
                    ((const uint4 *)(staging + c * 512))[lane];
        }
        __syncwarp();
    }
    return inverse / room;
}

/* Half of the block's WARPS solve for u, from v in the tile of q; the others for w. */
template <int WARPS>
DEVICE void solve(const linear_dims &d, const ready_memory &m, const ready_side &keys,
                  const ready_values &to, int warp, int lane)
{
    constexpr int count = 16 / WARPS, half = WARPS / 2;
    const int first = warp % half * 16 * count, row = warp % half * 32 + lane;
    float times;
    if (warp < half) {
        const ready_side values(keys.g, m.q, m.v_times, 1);
        times = solve_columns<true, count>(m, values, first, d.v_dim, to.u, warp, lane);
        if (row < CHUNK_ROWS)
            to.numbers[NUMBERS_U + row] = times;
    } else {
        times = solve_columns<false, count>(m, keys, first, CHUNK_MAX_KEYS, to.w, warp, lane);
        if (row < CHUNK_ROWS)
            to.numbers[NUMBERS_W + row] = times;
    }
}

#endif /* LINEAR_LIKE_READY_SYSTEM_CUH */
