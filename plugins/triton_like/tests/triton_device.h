/* SPDX-License-Identifier: Apache-2.0
 *
 * triton_device.h: triton_like's .so for tests on a GPU that print TAP themselves: opened, with
 * services that it can live on. What it refuses ends the program with "Bail out!".
 */
#ifndef TRITON_DEVICE_H
#define TRITON_DEVICE_H

#include <stddef.h>

#include "attn_plugin.h"

/* Host memory alone; warnings are TAP's comments; one worker. */
extern const attn_services triton_services;

/* Where calls of the plugin and of the reference leave their message. */
extern attn_error triton_error;

/* Ends the program, with that message, if `status` is not ATTN_OK. */
void triton_need(attn_status status, const char *what);

/* The backend type of $ATTNHOST_TEST_PLUGIN_DIR/triton_like.so. */
const attn_backend_type *triton_open(void);

/* The option kernel_dir: $ATTNHOST_TEST_SRCDIR/plugins/triton_like/kernels. */
void triton_kernel_dir(char *path, size_t size);

/* Host memory of `bytes` for a region of metadata, from a page's beginning on; free() releases it.
 */
void *triton_host_region(uint64_t bytes);

#endif /* TRITON_DEVICE_H */
