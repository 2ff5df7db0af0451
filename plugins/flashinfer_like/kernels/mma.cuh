/* SPDX-License-Identifier: Apache-2.0
 *
 * mma.cuh: instructions of sm_80 and later: asynchronous copies into shared memory, matrices out of
 * it, and 16 x 8 x 16 products with fp32 sums. Instructions of Hopper are in common/cuda/ptx.cuh.
 *
 * A lane has the elements of rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next, of
 * a product's 16 x 8 sums.
 */
#ifndef FI_MMA_CUH
#define FI_MMA_CUH

#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/ptx.cuh"

/* Copies 16 bytes from device memory. */
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

/* Arrives at the barrier once this thread's copies so far have completed. */
static __device__ __forceinline__ void barrier_expect_copies(u32 barrier)
{
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Prefetches a box of a tensor of four dimensions into L2. */
static __device__ __forceinline__ void prefetch_box(const void *map, int c0, int c1, int c2, int c3)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#endif
}

/* Prefetches a line of device memory into L1. */
static __device__ __forceinline__ void touch(const void *line)
{
    asm volatile("{.reg .b32 ignored; ld.global.b32 ignored, [%0];}" ::"l"((u64)line & ~3ull));
}

/* ---- Matrices ------------------------------------------------------------------------------ */

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

/* Widens two e4m3 values, each in the upper byte of 16 bits. */
static __device__ __forceinline__ u32 widen_two(u32 pair)
{
    u32 x = (pair & 0x80008000u) | (pair & 0x7f007f00u) >> 1;
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(0x5c005c00u));
    return x;
}

/* Four codes as f16, which has all of their values: e5m2 is what is left of it without its last
 * eight bits, NaN and infinities too. */
template <int kind>
static __device__ __forceinline__ void widen_codes(u32 codes, u32 &low, u32 &high)
{
    if (kind == ELEMENT_E5M2) {
        low = __byte_perm(codes, 0, 0x1404);
        high = __byte_perm(codes, 0, 0x3424);
        return;
    }
#if HAS_HOPPER
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; "
        "cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#else
    /* Exponent and mantissa one place further down: 2^-8 of the value, subnormals included. */
    const u32 nans = __vcmpeq4(codes & 0x7f7f7f7fu, 0x7f7f7f7fu);
    low = widen_two(__byte_perm(codes, 0, 0x1404)) | (__byte_perm(nans, 0, 0x1404) & 0x7e007e00u);
    high = widen_two(__byte_perm(codes, 0, 0x3424)) | (__byte_perm(nans, 0, 0x3424) & 0x7e007e00u);
#endif
}

static __device__ __forceinline__ float2 unpack_half(u32 pair)
{
    float2 x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(pair));
    return x;
}

/* c += a * b: 16 x 16 times 16 x 8. */
template <bool is_f16>
static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if (is_f16)
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

#endif /* FI_MMA_CUH */
