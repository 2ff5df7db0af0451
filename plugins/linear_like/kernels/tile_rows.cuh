/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_rows.cuh: copies rows of q, k and v from the batch to tiles, by four warps, and converts q
 * and k to fp16.
 */
#ifndef LINEAR_LIKE_TILE_ROWS_CUH
#define LINEAR_LIKE_TILE_ROWS_CUH

#include "plugins/linear_like/kernels/chunk_products.cuh"

/* Copies rows of `dim` channels to a tile, sixteen lanes per row, by four warps; missing elements
 * are 0. Rows are `apart` bytes apart from `from` on. */
DEVICE void fetch_tile(const char *from, i64 apart, int rows, int dim, char *tile)
{
    const int place = threadIdx.x % 16, row = threadIdx.x % CHUNK_READY_THREADS / 16;
    const unsigned to = shared_address(tile) + tile_offset(row, place);
    const int here = place * 8 < dim ? rows - row : 0;
    from += row * apart + place * 16;
#pragma unroll
    for (int r = 0; r < 8; r++)
        copy_or_clear(to + r * 1024, from + 8 * r * apart, 8 * r < here);
}

/* Two bf16 elements times a power of two, as fp16. */
DEVICE u32 convert_two(u32 x, u32 up)
{
    u32 y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(up));
    return pack_half(bits_f32(y << 16), bits_f32(y & 0xffff0000));
}

/* The 16 bytes of row `r` of eight that belong to thread `thread` of 128. */
DEVICE uint4 *tile_piece(char *tile, int thread, int r)
{
    return (uint4 *)(tile + tile_offset(thread / 16 * 8 + r, thread % 16));
}

/* Clears the thread's pieces of rows from `rows` on. */
DEVICE void clear_rows(char *tile, int thread, int rows)
{
#pragma unroll
    for (int r = 0; r < 8; r++)
        if (thread / 16 * 8 + r >= rows)
            *tile_piece(tile, thread, r) = make_uint4(0, 0, 0, 0);
}

/* Converts rows of q or k to fp16, times powers of two that bring their lengths near 1. `ups`: each
 * power, twice as bf16 in a word. */
DEVICE void convert_tile(char *tile, int thread, const float *ups)
{
    const uint4 *from = (const uint4 *)(ups + thread / 16 * 8);
#pragma unroll
    for (int r = 0; r < 8; r += 4) {
        const uint4 four = from[r / 4];
        const u32 up[4] = {four.x, four.y, four.z, four.w};
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = *tile_piece(tile, thread, r + i);
#pragma unroll
        for (int i = 0; i < 4; i++)
            *tile_piece(tile, thread, r + i) =
                make_uint4(convert_two(x[i].x, up[i]), convert_two(x[i].y, up[i]),
                           convert_two(x[i].z, up[i]), convert_two(x[i].w, up[i]));
    }
}

#endif /* LINEAR_LIKE_TILE_ROWS_CUH */
