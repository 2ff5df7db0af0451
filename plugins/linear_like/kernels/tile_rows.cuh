/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_rows.cuh: rows of q, k and v as the batch has them, by four warps: copied as a tile; q and k as fp16.
 */
#ifndef LINEAR_LIKE_TILE_ROWS_CUH
#define LINEAR_LIKE_TILE_ROWS_CUH

#include "plugins/linear_like/kernels/chunk_products.cuh"

/* Rows of `dim` channels as a tile, by sixteen lanes each of four warps; 0 where there are none. `from`: the
 * first; they are `apart` bytes apart. */
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

/* Two elements of bf16 times a power of two, as fp16. */
DEVICE u32 convert_two(u32 x, u32 up)
{
    u32 y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(up));
    return pack_half(bits_f32(y << 16), bits_f32(y & 0xffff0000));
}

/* Powers of two of the rows that a warp of four copies as fetch_tile() does: in the lower half of the warp q's, in
 * the upper half k's. */
DEVICE u32 load_ups(const char *numbers)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % CHUNK_READY_THREADS / 32;
    return ((const u32 *)numbers)[(lane < 16 ? NUMBERS_Q_UP : NUMBERS_K_UP) + lane % 16 / 2 * 8 +
                                  2 * warp + lane % 2];
}

/* Rows of q or k that fetch_tile() has brought, as fp16, near length 1: each thread those that it has copied. */
template <bool K> DEVICE void convert_tile(char *tile, u32 ups)
{
    const int place = threadIdx.x % 16, row = threadIdx.x % CHUNK_READY_THREADS / 16;
    uint4 *at = (uint4 *)(tile + tile_offset(row, place));
#pragma unroll 1
    for (int r = 0; r < 8; r += 4) {
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = at[64 * (r + i)];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 up = __shfl_sync(~0u, ups, (K ? 16 : 0) + 2 * (r + i) + row % 2);
            at[64 * (r + i)] = make_uint4(convert_two(x[i].x, up), convert_two(x[i].y, up),
                                          convert_two(x[i].z, up), convert_two(x[i].w, up));
        }
    }
}

#endif /* LINEAR_LIKE_TILE_ROWS_CUH */
