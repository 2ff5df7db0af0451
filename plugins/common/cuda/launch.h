/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h: a module's functions, and their launches, through the driver that was opened.
 */
#ifndef PLUGINS_CUDA_LAUNCH_H
#define PLUGINS_CUDA_LAUNCH_H

#include "plugins/common/cuda/device.h"

/* ---- Functions ------------------------------------------------------------------------------- */

/* Preparation of a function. */
typedef struct cuda_wants {
    uint32_t shared;    /* bytes of dynamic shared memory that launches may ask for */
    int large_clusters; /* more than 8 blocks, which not every device has room for */
    int carveout;       /* percent of the L1 cache that becomes shared memory; 0 = see below */
} cuda_wants;

/* The kernel `name` of a module, opted in to what launches will ask for; with dynamic shared
 * memory, all of the L1 cache becomes shared memory, as fewer blocks might fit otherwise; a kernel
 * that loads much to registers sets a smaller share. UNSUPPORTED if a block of this device cannot
 * have that much; a failure of the driver. *function is set on success alone and lives as long as
 * its module. */
attn_status cuda_function_find(const cuda_api *cuda, const cuda_facts *facts, cuda_module module,
                               const char *name, const cuda_wants *wants, cuda_function *function,
                               attn_error *error);

/* ---- Launches -------------------------------------------------------------------------------- */

typedef struct cuda_launch {
    cuda_function function;
    const char *name;    /* for messages */
    int64_t grid[3];     /* blocks; a 0 among them: there is nothing to do */
    uint32_t block[3];   /* threads; 0 counts as 1 */
    uint32_t cluster[3]; /* blocks, of which the grid is a multiple; all 0 = no clusters */
    uint32_t shared;     /* bytes of dynamic shared memory */
    int cooperative;     /* blocks wait for one another: all of the grid run at once */
    int programmatic;    /* may begin before the kernel before it in the stream has ended; waits for
                          * it by griddepcontrol.wait */
} cuda_launch;

/* Enqueue one launch; `params` are addresses of the kernel's parameters, which are copied.
 * Attributes go through cuLaunchKernelEx. If a driver lacks that, `programmatic` is ignored, as the
 * kernel then only starts later, and clusters and cooperative launches are refused:
 * DEPENDENCY_MISSING. INVALID_ARGUMENT for a grid that is larger than a grid may be, or that is no
 * multiple of its clusters; a failure of the driver, with the kernel's name. */
attn_status cuda_launch_run(const cuda_api *cuda, const cuda_launch *launch, void **params,
                            cuda_stream stream, attn_error *error);

#endif /* PLUGINS_CUDA_LAUNCH_H */
