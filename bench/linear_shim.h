/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_shim.h: a backend of linear layers through attnhost.h, for cpu_linear.py and
 * gpu_linear.py; the class LinearSetup is the twin of linear_setup. Sequence s has state slot s +
 * 1, which is updated in place or, `apart`, goes to slot num_seqs + s + 1, so that a step can be
 * made again. */
#ifndef LINEAR_SHIM_H
#define LINEAR_SHIM_H

#include "shim.h"

typedef struct linear_setup {
    uint32_t struct_size;
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t dtype;
    uint32_t state_dtype;
    int32_t device_type; /* ATTN_DEVICE_*, the first of its kind */
    int32_t graph;       /* 1: GRAPH metadata, 0: EAGER */
    int32_t apart;
    int32_t decode; /* 1: a token for each sequence, of an existing state */
    int32_t num_seqs;
    int32_t num_tokens; /* new ones of each sequence */
    int32_t k_heads;
    int32_t v_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t conv_width;
    int32_t vk; /* state.ssm.vk/1 */
    int32_t num_layers;
    int32_t num_threads;
    float sm_scale;
    const char *plugin; /* a file */
    const char *backend;
    const char *const *options; /* [num_options] pairs of a key and a value, of the backend */
    uint32_t num_options;
} linear_setup;

/* NULL only without memory; else *status says so, and shim_message() why. */
shim *shim_create(const linear_setup *setup, attn_status *status);

#endif /* LINEAR_SHIM_H */
