/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h: a module's functions, and their launches, through the opened driver.
 */
#ifndef PLUGINS_CUDA_LAUNCH_H
#define PLUGINS_CUDA_LAUNCH_H

#include "plugins/common/cuda/device.h"

/* ---- Functions ------------------------------------------------------------------------------- */

/* Preparation of a function. */
typedef struct cuda_wants {
    uint32_t shared;    /* most bytes of dynamic shared memory of a launch */
    int large_clusters; /* more than 8 blocks; not every device supports them */
    int carveout;       /* percent of the L1 cache to use as shared memory; 0 = see below */
} cuda_wants;

/* Finds kernel `name` of a module, and enables the shared memory of its launches. With dynamic
 * shared memory, all of the L1 cache becomes shared memory, as fewer blocks might fit otherwise; a
 * kernel that loads much into registers sets a smaller share. UNSUPPORTED if the device has too
 * little; otherwise a failure of the driver. *function is set only on success and lives as long as
 * its module. */
attn_status cuda_function_find(const cuda_api *cuda, const cuda_facts *facts, cuda_module module,
                               const char *name, const cuda_wants *wants, cuda_function *function,
                               attn_error *error);

/* ---- Launches -------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cuda_function function;
    const char *name;    /* for messages */
    int64_t grid[3];     /* blocks; if one is 0, nothing is launched */
    uint32_t block[3];   /* threads; 0 counts as 1 */
    uint32_t cluster[3]; /* blocks; the grid is a multiple of it; all 0 = no clusters */
    uint32_t shared;     /* bytes of dynamic shared memory */
    int cooperative;     /* blocks wait for each other: the whole grid must run at once */
    int programmatic;    /* may start before the previous kernel in the stream has ended; waits for
                          * it by griddepcontrol.wait */
} cuda_launch;

/* Enqueues a launch; `params` are addresses of the kernel's parameters, which are copied.
 * Attributes need cuLaunchKernelEx. If a driver lacks it, `programmatic` is ignored (the kernel
 * just starts later), and clusters and cooperative launches return DEPENDENCY_MISSING.
 * INVALID_ARGUMENT if the grid is too large or not a multiple of its clusters; otherwise a failure
 * of the driver, with the kernel's name. */
attn_status cuda_launch_run(const cuda_api *cuda, const cuda_launch *launch, void **params,
                            cuda_stream stream, attn_error *error);

#endif /* PLUGINS_CUDA_LAUNCH_H */
