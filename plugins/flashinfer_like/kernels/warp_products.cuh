/* SPDX-License-Identifier: Apache-2.0
 *
 * warp_products.cuh: the two products of warpgroup.cuh for sm_80 to sm_89, which lack warpgroups:
 * each of four warps multiplies its own 16 rows, with the same layouts in shared memory and
 * registers.
 *
 * A product of 16 x 8 x 16 reads 256 bytes of keys or values, as many as shared memory delivers in
 * the two cycles that the product takes. So these products are bound by shared memory.
 */
#ifndef FI_WARP_PRODUCTS_CUH
#define FI_WARP_PRODUCTS_CUH

#include "plugins/common/cuda/warpgroup.cuh"
#include "plugins/flashinfer_like/kernels/mma.cuh"

#if !HAS_HOPPER

/* Two adjacent sums[16 x 8] += a * b; the four matrices of `b` are two for each. */
template <bool is_f16> DEVICE void multiply_two(float *sums, const u32 (&a)[4], const u32 (&b)[4])
{
    multiply<is_f16>(*(float(*)[4])sums, a, b[0], b[1]);
    multiply<is_f16>(*(float(*)[4])(sums + 4), a, b[2], b[3]);
}

template <typename T> DEVICE void gemm_qk(float (&s)[T::keys / 2], u32 q, u32 k)
{
    const int thread = thread_here(), lane = thread % 32;
    const int row = thread / 32 % 4 * 16 + lane % 16, key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < T::keys / 2; i++)
        s[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < T::dim / 16; i++) {
        const u32 panel_k = k + i / 4 * T::keys * ROW_BYTES;
        u32 a[4], b[4];
        load_matrices(a, q + i / 4 * GROUP_ROWS * ROW_BYTES + swizzled(row, i % 4 * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < T::keys / 16; n++) {
            load_matrices(b, panel_k + swizzled(n * 16 + key, i % 4 * 2 + lane / 8 % 2));
            multiply_two<T::is_f16>(s + n * 8, a, b);
        }
    }
}

template <typename T>
DEVICE void gemm_pv(float (&o)[T::dim_v / 2], const u32 (&p)[T::keys / 4], u32 v, int add)
{
    const int lane = thread_here() % 32;
#pragma unroll
    for (int d = 0; d < T::dim_v / 2; d++)
        o[d] = add ? o[d] : 0.0f;
#pragma unroll
    for (int i = 0; i < T::keys / 16; i++) {
        const u32 a[4] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
#pragma unroll
        for (int d = 0; d < T::dim_v / 16; d++) {
            u32 b[4];
            load_matrices_transposed(b, v + d / 4 * T::keys * ROW_BYTES +
                                            swizzled(i * 16 + lane % 16, d % 4 * 2 + lane / 16));
            multiply_two<T::is_f16>(o + d * 8, a, b);
        }
    }
}

#endif
#endif /* FI_WARP_PRODUCTS_CUH */
