/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_products.cuh: products of a warpgroup, whose accumulators have the layout of the next
 * product's left operand: wgmma on Hopper, mma.sync elsewhere. Operands include numbers (factors)
 * of a chunk's rows and keys.
 */
#ifndef LINEAR_LIKE_CHUNK_PRODUCTS_CUH
#define LINEAR_LIKE_CHUNK_PRODUCTS_CUH

#include "plugins/linear_like/kernels/chunk_tile.cuh"

/* Numbers of a chunk's rows and keys, in a tile's CHUNK_NUMBERS: factors of products. */
enum {
    NUMBERS_Q = 0,
    NUMBERS_W = 64,
    NUMBERS_U = 128,
    NUMBERS_P = 192,
    NUMBERS_K = 256, /* times the decay of a row's update to the end of the chunk */
    NUMBERS_V = 320, /* u in units of the layer's v; a delta rule has none */
    NUMBERS_DECAY = 384,
    NUMBERS_MOST = 448,       /* of a rule with one decay: the largest of NUMBERS_U */
    NUMBERS_Q_UP = NUMBERS_U, /* with rows from the batch: of inverse_memory */
    NUMBERS_K_UP = 448
};

/* A row's q times its own k, which the products exclude; without w, times beta. */
#define NUMBERS_OWN(delta) ((delta) ? NUMBERS_V : NUMBERS_W)

/* ---- Operands -------------------------------------------------------------------------------- */

/* Sums as a left operand, each row scaled by a power of two; `times`: factors of its products.
 * COUNT: sums by eights. */
template <int COUNT> struct left_operand {
    u32 at[COUNT / 2][4];
    float times[2];
};

template <int COUNT>
DEVICE void scale_left(const float (&x)[4 * COUNT], left_operand<COUNT> &to, float (&scale)[2])
{
    float largest[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 4 * COUNT; n += 4) {
        largest[0] = fmaxf(largest[0], fmaxf(fabsf(x[n]), fabsf(x[n + 1])));
        largest[1] = fmaxf(largest[1], fmaxf(fabsf(x[n + 2]), fabsf(x[n + 3])));
    }
    scale[0] = find_scale(largest_of_row(largest[0]), &to.times[0]);
    scale[1] = find_scale(largest_of_row(largest[1]), &to.times[1]);
}

/* Packs eights [FROM, END). */
template <int FROM, int END, int COUNT>
DEVICE void pack_left(const float (&x)[4 * COUNT], const float (&scale)[2], left_operand<COUNT> &to)
{
#pragma unroll
    for (int n = FROM; n < END; n++) {
        to.at[n / 2][n % 2 * 2] = pack_half(x[4 * n] * scale[0], x[4 * n + 1] * scale[0]);
        to.at[n / 2][n % 2 * 2 + 1] = pack_half(x[4 * n + 2] * scale[1], x[4 * n + 3] * scale[1]);
    }
}

template <int COUNT>
DEVICE void make_left(const float (&x)[4 * COUNT], left_operand<COUNT> &to, float (&scale)[2])
{
    scale_left<COUNT>(x, to, scale);
    pack_left<0, COUNT, COUNT>(x, scale, to);
}

/* The rounding errors of x rounded to `a`. */
template <int COUNT>
DEVICE void make_rest(const float (&x)[4 * COUNT], const left_operand<COUNT> &a,
                      const float (&scale)[2], u32 (&rest)[COUNT / 2][4])
{
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            rest[n / 2][n % 2 * 2 + i] =
                pack_rest(x[4 * n + 2 * i] * scale[i], x[4 * n + 2 * i + 1] * scale[i],
                          a.at[n / 2][n % 2 * 2 + i]);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* sums[64 x 64] (+)= a[64 x 64] * (rows of half a tile)', by a warpgroup; call wait_product()
 * before using them. */
DEVICE void multiply_rows(float (&sums)[32], const u32 *a, unsigned tile, bool add)
{
#if HAS_HOPPER
    const unsigned long long b = matrix_descriptor(tile, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma_rs<64, true, 0>(sums, *(const u32(*)[4])(a + 4 * step),
                              descriptor_advance(b, step * 32), add || step > 0);
    wgmma_commit();
#else
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < 32; n++)
        sums[n] = add ? sums[n] : 0;
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            const u32(&left)[4] = *(const u32(*)[4])(a + 4 * step);
            load_matrices(tile + tile_offset(row, 2 * step + half) + pair * 2048, b);
            multiply(*(float(*)[4]) & sums[8 * pair], left, b[0], b[1]);
            multiply(*(float(*)[4]) & sums[8 * pair + 4], left, b[2], b[3]);
        }
#endif
}

/* sums[64 x 64] = a[64 x 64] * (four panels of sixteen columns)'. */
DEVICE void multiply_panels(float (&sums)[32], const u32 (&a)[4][4], unsigned from)
{
#if HAS_HOPPER
    const unsigned long long b = matrix_descriptor(from, 16, 256) | 3ull
                                                                        << 62; /* 32-byte swizzle */
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma_rs<64, true, 0>(sums, a[step], descriptor_advance(b, step * 2048), step > 0);
    wgmma_commit();
#else
    __trap();
#endif
}

/* sums[64 x 64] (+)= a[64 x 64] * (a panel of a tile). */
DEVICE void multiply_panel(float (&sums)[32], const u32 (&a)[4][4], unsigned panel, bool add)
{
#if HAS_HOPPER
    const unsigned long long b = matrix_descriptor(panel, CHUNK_TILE / 2, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma_rs<64, true, 1>(sums, a[step], descriptor_advance(b, step * 2048), add || step > 0);
    wgmma_commit();
#else
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 32; n++)
        sums[n] = add ? sums[n] : 0;
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            load_matrices_turned(panel + tile_offset(lane % 16, 2 * pair + lane / 16) + step * 2048,
                                 b);
            multiply(*(float(*)[4]) & sums[8 * pair], a[step], b[0], b[1]);
            multiply(*(float(*)[4]) & sums[8 * pair + 4], a[step], b[2], b[3]);
        }
#endif
}

/* sums[64 x 64] = a b', for two tiles of rows of 16 * STEPS fp16 elements; call wait_product()
 * before using them. */
template <bool IS_F16, int STEPS>
DEVICE void multiply_shared(float (&sums)[32], unsigned a, unsigned b)
{
#if HAS_HOPPER
    const unsigned long long left = matrix_descriptor(a, 16, 1024);
    const unsigned long long right = matrix_descriptor(b, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const unsigned at = step / 4 * (CHUNK_TILE / 2) + step % 4 * 32;
        wgmma_ss<64, IS_F16, 0>(sums, descriptor_advance(left, at), descriptor_advance(right, at),
                                step > 0);
    }
    wgmma_commit();
#else
    __trap();
#endif
}

/* Waits until at most PENDING products are in flight. */
template <int PENDING> DEVICE void wait_product(float (&sums)[32])
{
    wgmma_wait<PENDING>();
    wgmma_arrived(sums);
}

/* ---- Elements of 16 bits ----------------------------------------------------------------------- */

DEVICE void unpack_eight(int dtype, uint4 from, float (&x)[8])
{
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = dtype == ELEMENT_F16 ? half_low(words[i]) : bits_f32(words[i] << 16);
        x[2 * i + 1] = dtype == ELEMENT_F16 ? half_high(words[i]) : bits_f32(words[i] & 0xffff0000);
    }
}

DEVICE u32 pack_two(int dtype, float low, float high)
{
    u32 packed;
    if (dtype == ELEMENT_F16)
        return pack_half(low, high);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

#endif /* LINEAR_LIKE_CHUNK_PRODUCTS_CUH */
