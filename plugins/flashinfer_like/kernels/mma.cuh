/* SPDX-License-Identifier: Apache-2.0
 *
 * mma.cuh: the instructions of sm_80 and later that the kernels are made of: asynchronous copies
 * into shared memory, matrices out of it, and 16 x 8 x 16 products with fp32 sums.
 *
 * Of a product's 16 x 8 sums a lane has rows lane / 4 and that + 8, columns lane % 4 * 2 and the
 * next.
 */
#ifndef FLASHINFER_LIKE_MMA_CUH
#define FLASHINFER_LIKE_MMA_CUH

#include "plugins/common/cuda/portable.h"

static __device__ __forceinline__ u32 shared_address(const void *pointer)
{
    return (u32)__cvta_generic_to_shared(pointer);
}

/* 16 bytes from device memory. */
static __device__ __forceinline__ void copy16(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* ---- Barriers in shared memory ------------------------------------------------------------------
 */

static __device__ __forceinline__ void barrier_init(u32 barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u32 barrier)
{
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
                 : "memory");
}

/* Has the phase wait for this thread's copies so far. */
static __device__ __forceinline__ void barrier_expect_copies(u32 barrier)
{
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and has the phase wait for as many bytes of bulk copies. */
static __device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes)
{
    asm volatile("{\n.reg .b64 state;\n"
                 "mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* A box of a tensor of four dimensions from device memory; the barrier counts its bytes. By one
 * thread; from sm_90 on. */
static __device__ __forceinline__ void copy_box(u32 to, const void *map, u32 barrier, int c0,
                                                int c1, int c2, int c3)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
#endif
}

/* The same into the L2 alone. */
static __device__ __forceinline__ void prefetch_box(const void *map, int c0, int c1, int c2, int c3)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#endif
}

/* Waits for the end of the phase of this parity. */
static __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity)
{
    u32 done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#else
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#endif
    } while (!done);
}

/* Waits for `threads` threads at barrier `id`. */
static __device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- Grids -------------------------------------------------------------------------------------
 */

/* Where the launch is programmatic: waits for the grid before, all of whose writes are then seen;
 * and lets the next one begin when all blocks have said so or are done. */
static __device__ __forceinline__ void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void grid_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- Registers ----------------------------------------------------------------------------------
 */

/* All four warps of a warpgroup together: so many registers for each thread. Before sm_90a a thread
 * has what the kernel was launched with. */
template <int count> static __device__ __forceinline__ void registers_raise(void)
{
#if __CUDA_ARCH__ == 900
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

template <int count> static __device__ __forceinline__ void registers_lower(void)
{
#if __CUDA_ARCH__ == 900
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

/* ---- Matrices -----------------------------------------------------------------------------------
 */

static __device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* c += a * b: 16 x 16 times 16 x 8. */
template <bool half>
static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if (half)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats in the 16-bit type, the first in the lower half. */
template <bool half> static __device__ __forceinline__ u32 pack16(float low, float high)
{
    u32 word;
    if (half)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* Adds, and orders all that the block's threads did before the barrier before it against whatever
 * others do after they saw the sum. */
static __device__ __forceinline__ int add_acq_rel(int *counter, int x)
{
    int old;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(x)
                 : "memory");
    return old;
}

#endif /* FLASHINFER_LIKE_MMA_CUH */
