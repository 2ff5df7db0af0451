/* SPDX-License-Identifier: Apache-2.0
 *
 * warpgroup.cuh: attention's two products by a warpgroup of sm_90a, 64 rows at a time.
 *
 *   scores   S[64 x keys]  = Q[64 x dim] * K[keys x dim]^T    Q and K in shared memory
 *   values   O[64 x dim_v] += P[64 x keys] * V[keys x dim_v]  P in registers, V in shared memory
 *
 * Matrices in shared memory are in panels of 64 columns, 128 bytes per row, as TMA writes a box
 * with the 128-byte swizzle: piece p of 16 bytes of row r is at place p ^ r % 8.
 *
 * T: keys, dim, dim_v, is_f16 (else bf16).
 */
#ifndef PLUGINS_CUDA_WARPGROUP_CUH
#define PLUGINS_CUDA_WARPGROUP_CUH

#include "plugins/common/cuda/ptx.cuh"

#define DEVICE static __device__ __forceinline__

#define GROUP_THREADS 128 /* a warpgroup */
#define GROUP_ROWS    64  /* its rows: the m of its products */
#define PANEL         64  /* elements of a row that the 128-byte swizzle keeps together */
#define ROW_BYTES     128 /* bytes of a row of a panel */

/* The place of a 16-byte piece of a panel under the swizzle. */
DEVICE unsigned swizzled(int row, int piece)
{
    return row * ROW_BYTES + ((piece ^ (row % 8)) * 16);
}

/* A number that is the same in all lanes. The compiler then keeps it in a uniform register, not in
 * a register of each lane. */
DEVICE int uniform(int x)
{
    return __shfl_sync(0xffffffff, x, 0);
}

/* The warp no longer uses what `barrier` guards. */
DEVICE void release(unsigned barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* A position in a ring of `count` slots; the phase flips with each round. */
template <int count> struct ring {
    int slot = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void advance()
    {
        if (++slot == count) {
            slot = 0;
            phase ^= 1;
        }
    }
};

#if HAS_HOPPER

/* q: this warpgroup's rows; both matrices in panels of 64 columns. */
template <typename T> DEVICE void gemm_qk(float (&s)[T::keys / 2], unsigned q, unsigned k)
{
    const unsigned long long a = matrix_descriptor(q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(k, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < T::dim / 16; i++)
        wgmma_ss<T::keys, T::is_f16, 0>(
            s, descriptor_advance(a, i / 4 * GROUP_ROWS * ROW_BYTES + i % 4 * 32),
            descriptor_advance(b, i / 4 * T::keys * ROW_BYTES + i % 4 * 32), i > 0);
}

template <typename T>
DEVICE void gemm_pv(float (&o)[T::dim_v / 2], const unsigned (&p)[T::keys / 4], unsigned v, int add)
{
    const unsigned long long b = matrix_descriptor(v, T::keys * ROW_BYTES, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < T::keys / 16; i++)
        wgmma_rs<T::dim_v, T::is_f16, 1>(o, p + 4 * i, descriptor_advance(b, i * 16 * ROW_BYTES),
                                         i > 0 ? 1 : add);
}

#endif

#endif
