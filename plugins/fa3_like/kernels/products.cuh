/* SPDX-License-Identifier: Apache-2.0
 *
 * products.cuh: the two products of a consumer warpgroup, and who has the tensor cores when.
 *
 *   scores   S[64 x keys]  = Q[64 x dim] * K[keys x dim]^T    Q and K in shared memory
 *   values   O[64 x dim_v] += P[64 x keys] * V[keys x dim_v]  P in registers, V in shared memory
 */
#ifndef FA3_LIKE_PRODUCTS_CUH
#define FA3_LIKE_PRODUCTS_CUH

#include "plugins/fa3_like/kernels/pipeline.cuh"

/* Orders: whether warpgroups take turns at the tensor cores; a turn: the scores of the next tile and
 * the values of this one. */
#define ORDER_FREE  0
#define ORDER_TURNS 1
#define ORDER_TURNS_LATE 2
#define ORDER_HALVES 3

/* q: this warpgroup's rows; both matrices in panels of 64 columns. */
template <typename T>
DEVICE void product_scores(float (&s)[T::keys / 2], unsigned q, unsigned k)
{
    const unsigned long long a = matrix_descriptor(q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(k, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < T::dim / 16; i++)
        product_shared<T::keys, T::half, 0>(
            s, descriptor_advance(a, i / 4 * GROUP_ROWS * ROW_BYTES + i % 4 * 32),
            descriptor_advance(b, i / 4 * T::keys * ROW_BYTES + i % 4 * 32), i > 0);
}

/* Keys [16 from, 16 to) of the tile. */
template <typename T, int from = 0, int to = T::keys / 16>
DEVICE void product_values(float (&o)[T::dim_v / 2], const unsigned (&p)[T::keys / 4], unsigned v,
                           int add)
{
    const unsigned long long b = matrix_descriptor(v, T::keys * ROW_BYTES, 8 * ROW_BYTES);
#pragma unroll
    for (int i = from; i < to; i++)
        product_register<T::dim_v, T::half, 1>(
            o, p + 4 * i, descriptor_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
}

/* Named barrier 1 + g: the turn of warpgroup g; its predecessor's arrival hands it over. */
template <typename T> DEVICE void turn_wait(int group)
{
    if constexpr (T::order == ORDER_TURNS || T::order == ORDER_TURNS_LATE)
        named_sync(1 + group, 2 * GROUP_THREADS);
}

template <typename T> DEVICE void turn_pass(int group)
{
    if constexpr (T::order == ORDER_TURNS || T::order == ORDER_TURNS_LATE)
        named_arrive(1 + (group + 1 == T::groups ? 0 : group + 1), 2 * GROUP_THREADS);
}

#endif
