/* SPDX-License-Identifier: Apache-2.0
 *
 * seam_kernels.cu: kernels that tell how they were launched, for device_common_cuda.c.
 */
#include "plugins/common/cuda/portable.h"
#include "plugins/common/cuda/ptx.cuh"

/* Block x: the blocks of its cluster, and the last word of `words` of dynamic shared memory, which
 * it has written before. */
extern "C" __global__ void seam_launched(u32 *to, int words)
{
    extern __shared__ u32 room[];
    u32 cluster = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(cluster));
#endif
    room[words - 1] = 1000 + blockIdx.x;
    __syncthreads();
    to[2 * blockIdx.x] = cluster;
    to[2 * blockIdx.x + 1] = room[words - 1];
}

/* Takes its time, and lets the next kernel begin long before it has written. */
extern "C" __global__ void seam_slow(u32 *to, u32 value)
{
#if __CUDA_ARCH__ >= 900
    pdl_launch_dependents();
#endif
    for (long long begin = clock64(); clock64() - begin < 2000000;)
        ;
    *to = value;
}

/* What seam_slow has written: waits for it where it may have begun before. */
extern "C" __global__ void seam_after(const u32 *from, u32 *to)
{
#if __CUDA_ARCH__ >= 900
    pdl_wait();
#endif
    *to = *(const volatile u32 *)from;
}

/* All blocks wait for one another, by counting up: a grid that does not run at once never ends. */
extern "C" __global__ void seam_together(u32 *count)
{
    if (threadIdx.x == 0) {
        atomicAdd(count, 1);
        while (*(volatile u32 *)count < gridDim.x)
            ;
    }
}

/* A descriptor: CUtensorMap. */
struct seam_map {
    alignas(128) u64 opaque[16];
};

/* The box at `c1`, `c3` of a 4-dimensional tensor, `bytes` in all, by one copy. */
extern "C" __global__ void seam_box(const __grid_constant__ seam_map map, u32 *to, int bytes,
                                    int c1, int c3)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) u32 box[];
    __shared__ u64 barrier;
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&barrier), 1);
        fence_barrier_init();
        barrier_arrive_expect(shared_address(&barrier), (unsigned)bytes);
        tensor_load(shared_address(box), &map, shared_address(&barrier), 0, c1, 0, c3);
    }
    __syncthreads();
    barrier_wait(shared_address(&barrier), 0);
    for (int i = (int)threadIdx.x; i < bytes / 4; i += (int)blockDim.x)
        to[i] = box[i];
#endif
}
