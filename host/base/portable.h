/* SPDX-License-Identifier: Apache-2.0
 *
 * portable.h: macros for one source on the CPU and on a GPU.
 *
 * A PORTABLE function is inline on both. A KERNEL accesses memory only through DEVICE_AT, which
 * gives the address of the object that a pointer points to. Tests compile kernels as C and let it
 * look the place up, bounds checked, in the memory of a fake driver
 * (tests/fixtures/host_kernels.c).
 */
#ifndef HOST_BASE_PORTABLE_H
#define HOST_BASE_PORTABLE_H

#ifdef __CUDACC__
#define PORTABLE static __device__ __forceinline__
#define KERNEL   extern "C" __global__ void
#else
#define PORTABLE static inline
#define KERNEL   static void
#endif

#ifndef DEVICE_AT
#define DEVICE_AT(pointer) (pointer)
#endif

#endif /* HOST_BASE_PORTABLE_H */
