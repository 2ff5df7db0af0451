/* SPDX-License-Identifier: Apache-2.0
 *
 * common_cuda_driver.h: the fake driver for check_common_cuda.c, which speaks to it through the
 * plugins' own declarations: these and the host's have the same names.
 */
#ifndef COMMON_CUDA_DRIVER_H
#define COMMON_CUDA_DRIVER_H

#include <stdint.h>

/* What the kernel "record" was last launched with. */
typedef struct seen_launch {
    int count; /* launches so far */
    unsigned grid[3], block[3], cluster[3];
    unsigned shared;
    int cooperative, programmatic;
    uint64_t argument;
} seen_launch;

extern seen_launch seen;

/* The fake as the driver of plugins: one sm_90 device whose primary context is current, and two
 * kernels, "record" and "gather". */
void driver_begin(void);
/* Nothing is left on the device, and nothing was out of bounds. */
void driver_end(void);
/* Wait for the device. */
void driver_wait(void);
/* Make the device one of compute capability `sm`. */
void driver_set_sm(uint32_t sm);
/* The next call of this name fails with a CUresult. */
void driver_fail(const char *call, unsigned result);
/* `bytes` of device memory with these contents, or with none; it goes with driver_end(). */
void *driver_take(const void *contents, uint64_t bytes);
void driver_fetch(void *to, const void *from, uint64_t bytes);

/* "gather": the elements of box 0, 0 ... of a descriptor, its first parameter, to the address that
 * is its second, as a copy by TMA would bring them. */

#endif /* COMMON_CUDA_DRIVER_H */
