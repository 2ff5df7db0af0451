/* SPDX-License-Identifier: Apache-2.0
 *
 * device_triton_like.h: what the files of device_triton_like share.
 */
#ifndef DEVICE_TRITON_LIKE_H
#define DEVICE_TRITON_LIKE_H

#include <stddef.h>

#include "attn_plugin.h"
#include "tests/tools/cuda_device.h"
#include "plugins/triton_like/tests/triton_device.h"

/* ---- device_triton_setup.c ------------------------------------------------------------------- */

/* The GPU and triton_like's type, once setup_open() has found both. */
extern cuda_device gpu;
extern const cuda_api *cuda; /* gpu.api */
extern const attn_backend_type *type;

/* 0 = there is no GPU, and gpu.why. */
int setup_open(void);

/* Ends the program if the driver refused. */
void must(int result, const char *what);

enum { NUM_BUFFERS = 32 };

/* Buffers of a case; each has red zones of its own, being exactly as large as on the host. */
typedef struct buffers {
    cuda_address address[NUM_BUFFERS];
    int count;
} buffers;

/* A copy on the device; NULL for nothing. */
void *upload(buffers *all, const void *from, size_t size);
void release_all(buffers *all);

/* An instance, and memory for its metadata. */
typedef struct setup {
    attn_option_value values[4];
    attn_options options;
    char kernel_dir[4096];
    attn_instance *instance;
    attn_metadata *metadata[2]; /* by kind */
    attn_memory memory[2];
    cuda_address device_memory[2][2]; /* by kind: scratch, metadata */
    cuda_stream stream;
} setup;

/* Options of triton_like: 0 splits, 0 tile = by default. */
void setup_create(setup *u, const attn_problem *problem, int64_t splits, int64_t tile,
                  int64_t precise);
void setup_destroy(setup *u);

/* `kind` of metadata. */
attn_status forward(setup *u, uint32_t kind, uint32_t mode, int32_t layer_id,
                    const attn_forward_args *args);

/* ---- device_triton_time.c -------------------------------------------------------------------- */

/* Prefill and decode, as TAP's comments. */
void time_all(void);

#endif /* DEVICE_TRITON_LIKE_H */
