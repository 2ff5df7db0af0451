// SPDX-License-Identifier: Apache-2.0
//
// ceilings.cu: what a GPU can do at best, for `attnhost bench`: reading memory, and products of
// matrices in the tensor cores. Results are of no use; they are written where `never` is true, so
// that the compiler must keep the work.

#include <stdint.h>

namespace
{

constexpr int kReadThreads = 512; // bench/ceilings.c launches as many
constexpr int kUnroll = 8;        // loads in flight for each thread

__device__ __forceinline__ uint4 load_streaming(const uint4 *from)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

} // namespace

// Read count 16-byte words, a multiple of kReadThreads * kUnroll; each block takes every
// gridDim.x-th tile.
extern "C" __global__ void __launch_bounds__(kReadThreads)
    ceiling_read(const uint4 *from, uint64_t count, int never, uint32_t *out)
{
    constexpr uint64_t tile = uint64_t(kReadThreads) * kUnroll;
    uint32_t sum = 0;
    for (uint64_t at = blockIdx.x * tile; at < count; at += gridDim.x * tile) {
        uint4 x[kUnroll];
#pragma unroll
        for (int i = 0; i < kUnroll; i++)
            x[i] = load_streaming(from + at + i * kReadThreads + threadIdx.x);
#pragma unroll
        for (int i = 0; i < kUnroll; i++)
            sum += (x[i].x ^ x[i].y) + (x[i].z ^ x[i].w);
    }
    if (never)
        out[blockIdx.x * kReadThreads + threadIdx.x] = sum;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Products of 64x16 by 16x256 matrices of bf16 (wgmma.m64n256k16), two groups of four warps in a
// block, one block for each multiprocessor. Operands lie in shared memory in rows of 128 bytes with
// their swizzle, as attention and matrix kernels have them; sums stay in registers.
namespace
{

constexpr int kGroups = 2;    // of 128 threads
constexpr int kK = 64;        // elements of a row in shared memory, 128 bytes
constexpr int kProducts = 16; // that are enqueued together
constexpr int kBytesA = 64 * kK * 2;
constexpr int kBytesB = 256 * kK * 2;
constexpr int kSharedBytes = kGroups * kBytesA + kBytesB; // 48 KiB

// The descriptor of a matrix in shared memory (PTX ISA, wgmma: matrix descriptor): address / 16 in
// bits 0-13, bytes / 16 between groups of 8 rows in bits 32-45, swizzle of 128 bytes in bits 62-63.
// The other offset is not used with this swizzle.
__device__ __forceinline__ uint64_t describe(uint32_t address)
{
    return uint64_t(address >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}

#define D8(i)                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)

__device__ __forceinline__ void multiply_add(float (&d)[128], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, "
                 "%88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, "
                 "%104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, "
                 "%120, %121, %122, %123, %124, %125, %126, %127"
                 "}, %128, %129, accumulate, 1, 1, 0, 0;\n}"
                 : D32(0), D32(32), D32(64), D32(96)
                 : "l"(a), "l"(b));
}

// Random bf16 of magnitude 1/2 to 1 and either sign, two in a word: zeros would take less power.
__device__ __forceinline__ uint32_t random_pair(uint32_t i)
{
    uint32_t x = (i + 1) * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    x ^= x >> 16;
    return (x & 0x807f807fu) | 0x3f003f00u;
}

} // namespace

// Each group makes kProducts * iterations products of 2 * 64 * 256 * 16 operations; the other
// group's fill the time in which one waits. The sums of so many random numbers stay far below the
// largest float.
extern "C" __global__ void __launch_bounds__(kGroups * 128, 1)
    ceiling_matrix(int iterations, int never, float *out)
{
    __shared__ __align__(1024) uint32_t shared[kSharedBytes / 4];
    for (int i = threadIdx.x; i < kSharedBytes / 4; i += blockDim.x)
        shared[i] = random_pair(i + blockIdx.x * (kSharedBytes / 4));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
    uint64_t a = describe(base + threadIdx.x / 128 * kBytesA);
    uint64_t b = describe(base + kGroups * kBytesA);
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; i++)
        d[i] = 0;
    for (int n = 0; n < iterations; n++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < kProducts; k++) { // 16 elements are 32 bytes
            int offset = k % (kK / 16) * (32 >> 4);
            multiply_add(d, a + offset, b + offset);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    if (never) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 128; i++)
            sum += d[i];
        out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    }
}

#endif
