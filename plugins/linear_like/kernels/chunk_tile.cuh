/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_tile.cuh: fp16 tiles of a chunk, and their products on tensor cores.
 *
 * A tile has CHUNK_ROWS rows of two panels of 64 elements. The 16-byte pieces of a row are permuted
 * by xor with the row number, so neither rows nor columns of 8 x 8 matrices have bank conflicts.
 * The layout is the same in shared memory and in the workspace, so tiles are copied unchanged.
 *
 * fp16 has eight times the precision of bf16. To make up for its range, each row is scaled by a
 * power of two that brings its largest element to [1, 2); products are rescaled in fp32.
 */
#ifndef LINEAR_LIKE_CHUNK_TILE_CUH
#define LINEAR_LIKE_CHUNK_TILE_CUH

#include "plugins/common/cuda/ptx.cuh"
#include "plugins/linear_like/kernels/rows.cuh"
#include "plugins/linear_like/kernels/shapes.h"

#define DEVICE static __device__ __forceinline__

/* ---- Instructions ---------------------------------------------------------------------------- */

DEVICE u32 pack_half(float low, float high)
{
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE float half_low(u32 x)
{
    float y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(y) : "r"(x));
    return y;
}

DEVICE float half_high(u32 x)
{
    float y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(y) : "r"(x));
    return y;
}

/* The rounding errors of two numbers that were rounded to `packed`. */
DEVICE u32 pack_rest(float low, float high, u32 packed)
{
    return pack_half(low - half_low(packed), high - half_high(packed));
}

/* Four 8 x 8 matrices, a row's address from each lane. */
DEVICE void load_matrices(unsigned address, u32 (&x)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* "stmatrix": stores four 8 x 8 matrices. */
DEVICE void store_matrices(unsigned address, const u32 (&x)[4])
{
#if HAS_HOPPER
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#else
    __trap();
#endif
}

/* "stmatrix": stores them transposed. */
DEVICE void store_matrices_turned(unsigned address, const u32 (&x)[4])
{
#if HAS_HOPPER
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
#else
    __trap();
#endif
}

/* sums += a b: 16 x 16 times 16 x 8. */
DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void copy_async(unsigned to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Copies 16 bytes, or zeros. */
DEVICE void copy_or_clear(unsigned to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* "cp.async.bulk" from shared memory; store_commit() closes the group. */
DEVICE void store_bytes(char *to, unsigned from, unsigned bytes)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
#else
    __trap();
#endif
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* The power of two that brings `largest` to [1, 2), and its inverse; 1 for 0 and for numbers that
 * are not finite. */
DEVICE float find_scale(float largest, float *inverse)
{
    u32 exponent = f32_bits(largest) & 0x7f800000;
    if (exponent == 0 || exponent > 0x7e000000)
        exponent = exponent ? 0x7e000000 : 0x3f800000;
    *inverse = bits_f32(exponent);
    return bits_f32(0x7f000000 - exponent);
}

/* The maximum over the four lanes that share a row of a product. */
DEVICE float largest_of_row(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* The offset of 16-byte piece `place` of a row, in a tile or in products, which have one panel. */
DEVICE int tile_offset(int row, int place)
{
    return (place >> 3) * (CHUNK_TILE / 2) + row * 128 + (((place ^ row) & 7) << 4);
}

/* The convolution's numbers of the rows of a k head, or of v head `head` - k_heads; they follow the
 * rows of v. */
DEVICE float *row_numbers(const linear_call &call, int index, int head)
{
    const linear_dims &d = call.dims;
    const i64 rows = (i64)call.chunks.window * CHUNK_ROWS * d.v_heads * d.v_dim * 2;
    return (float *)(call.chunks.rows + rows) + (i64)index * CHUNK_ROW_NUMBERS(d) +
           head * CHUNK_ROWS;
}

/* The offset of block [i, j] in a lower triangle of 16 x 16 blocks, each laid out by
 * panel_offset(), in columns. */
DEVICE int triangle_block(int i, int j)
{
    return (j * (9 - j) / 2 + i - j) * 512;
}

/* The offset of half a row in a panel of values. */
DEVICE int panel_offset(int row, int half)
{
    return row * 32 + ((half ^ (row >> 2 & 1)) << 4);
}

#endif /* LINEAR_LIKE_CHUNK_TILE_CUH */
