/* SPDX-License-Identifier: Apache-2.0
 *
 * spy.h: the spy on the CUDA driver (spy_cuda.h), as the child of a check has it.
 */
#ifndef HOST_CHECK_SPY_SPY_H
#define HOST_CHECK_SPY_SPY_H

#include <stdbool.h>
#include <stddef.h>

#include "attn_types.h"
#include "host/check/spy/spy_cuda.h"

/* Put the spy before the driver for all that open libcuda.so.1 in this process later on. The driver
 * is that of the environment's ATTNHOST_LIBCUDA, as the host's is, or else this machine's. `file`
 * is the spy, an absolute path; NULL is the one that came with the program.
 *
 * To be called before anything opens the driver: every later caller gets the first object of a
 * name. DEPENDENCY_MISSING without a driver or a spy, BAD_STATE if the driver is open already. */
attn_status spy_install(const char *file, attn_error *error);

/* The spy, if it is what libcuda.so.1 is in this process. If not, `why` says so. */
bool spy_find(struct spy_cuda *spy, char *why, size_t size);

#endif /* HOST_CHECK_SPY_SPY_H */
