/* SPDX-License-Identifier: Apache-2.0
 *
 * products.cuh: the two products of a consumer warpgroup.
 *
 *   scores   S[64 x keys]  = Q[64 x dim] * K[keys x dim]^T    Q and K in shared memory
 *   values   O[64 x dim_v] += P[64 x keys] * V[keys x dim_v]  P in registers, V in shared memory
 */
#ifndef FA3_LIKE_PRODUCTS_CUH
#define FA3_LIKE_PRODUCTS_CUH

#include "plugins/fa3_like/kernels/pipeline.cuh"

/* q: this warpgroup's rows; both matrices in panels of 64 columns. */
template <typename T> DEVICE void product_scores(float (&s)[T::keys / 2], unsigned q, unsigned k)
{
    const unsigned long long a = matrix_descriptor(q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(k, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < T::dim / 16; i++)
        product_shared<T::keys, T::half, 0>(
            s, descriptor_advance(a, i / 4 * GROUP_ROWS * ROW_BYTES + i % 4 * 32),
            descriptor_advance(b, i / 4 * T::keys * ROW_BYTES + i % 4 * 32), i > 0);
}

template <typename T>
DEVICE void product_values(float (&o)[T::dim_v / 2], const unsigned (&p)[T::keys / 4], unsigned v,
                           int add)
{
    const unsigned long long b = matrix_descriptor(v, T::keys * ROW_BYTES, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < T::keys / 16; i++)
        product_register<T::dim_v, T::half, 1>(
            o, p + 4 * i, descriptor_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
}

#endif
