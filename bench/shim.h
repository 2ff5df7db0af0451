/* SPDX-License-Identifier: Apache-2.0
 *
 * shim.h: what every shim here shares: a backend driven through attnhost.h as an engine does it,
 * all layers of a step planned once, then forwarded one by one. A separate shim makes the problem
 * and the batch, and begins with this struct. Tensors belong to the caller.
 *
 *     shim_init, shim_open; fill in the index, batch, scales and flags; shim_compose
 *     shim_bind each layer's tensors
 *     shim_plan, shim_forward each layer        or shim_steps
 *     shim_destroy
 */
#ifndef SHIM_H
#define SHIM_H

#include <attnhost.h>

#include <stddef.h>

struct shim;

/* What is opened before there is a problem. */
typedef struct shim_params {
    int32_t device_type; /* ATTN_DEVICE_*, the first of its kind */
    int32_t num_layers;
    int32_t num_threads; /* of the host's pool */
    size_t index_bytes;  /* of shim.index */
    const char *plugin;  /* a file, a folder if it ends with a slash; NULL = the installed ones */
    void (*describe)(struct shim *s);
} shim_params;

typedef struct shim {
    int32_t device_type;
    int32_t num_layers;
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    attn_layer *layers; /* for the problem's group; layer i has buffer i */
    attn_tensor (*tensors)[ATTN_ROLE_COUNT];
    const attn_tensor *(*operands)[ATTN_ROLE_COUNT]; /* those of the tensors that are bound */
    void *index;                                     /* zeroed; what the batch points into */
    size_t index_bytes;
    const char *index_copy; /* that block where the device reads it; NULL = not placed yet */
    void (*describe)(struct shim *s); /* fills in the batch once the block is placed */
    attn_batch batch;
    const attn_scale *scales[ATTN_ROLE_COUNT]; /* of every layer; NULL = none */
    uint32_t flags;                            /* ATTN_FORWARD_* of every forward */
    attn_error error;
    char message[512];
} shim;

/* For a zeroed shim. INVALID_ARGUMENT if the setup of the caller, named in the message, is not as
 * large as the shim's own. */
attn_status shim_init(shim *s, const char *setup, size_t given, size_t expected);

/* Memory, a host, and its plugins. */
attn_status shim_open(shim *s, const shim_params *params);

/* The backend `type` with num_options times key, value, and metadata of `kind` (ATTN_METADATA_*);
 * the problem's device is filled in here. */
attn_status shim_compose(shim *s, const char *type, const char *const *options,
                         uint32_t num_options, const attn_problem *problem, uint32_t kind);

/* Frees the struct that begins with the shim, too. NULL is fine. */
void shim_destroy(shim *s);

/* Why the last call failed. Lives as long as the shim. */
const char *shim_message(const shim *s);

/* Give a layer a tensor; data may be NULL: none. */
attn_status shim_bind(shim *s, int32_t layer, uint32_t role, void *data, uint32_t dtype,
                      uint32_t ndim, const int64_t *shape);

/* The index as one block of host memory; where a copy of it lies on the GPU (on the CPU the block
 * itself), which stays there as long as the shim is used; an array of it, here and there. */
const void *shim_index(const shim *s, int64_t *bytes);
void shim_place_index(shim *s, const void *device);
attn_i32_array shim_both(const shim *s, const int32_t *array);

/* Plan the batch; `stream` as in attnhost.h. BAD_STATE before the index is placed. */
attn_status shim_plan(shim *s, void *stream);

/* One layer of the planned batch; `flags` besides those of every forward. */
attn_status shim_forward(shim *s, int32_t layer, uint32_t flags, void *stream);

/* `count` times a step on the CPU: plan the batch, forward every layer. */
attn_status shim_steps(shim *s, int32_t count);

/* Pages 1, 2, ... in an order that no prefetcher knows. */
void shim_shuffle_pages(int32_t *pages, int32_t count);

#endif /* SHIM_H */
