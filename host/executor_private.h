/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_private.h: what executor.c (a step) and executor_create.c (its making) share.
 *
 * Memory of a step: q, k, v and out of one layer, for the widest layer and the largest step; they
 * are made again for each layer, so memory never holds more than one layer's vectors.
 */
#ifndef HOST_EXECUTOR_PRIVATE_H
#define HOST_EXECUTOR_PRIVATE_H

#include "host/executor.h"

#define EXECUTOR_ALIGNMENT 256u

/* A composed backend. */
struct unit {
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    uint32_t index_forms;
};

/* What a layer is called with besides q, k, v and out. */
struct layer_constants {
    float *sinks;  /* [num_q_heads], or NULL */
    float *slopes; /* likewise */
};

/* Scales of one layer group's cache. */
struct group_scales {
    float *k, *v; /* one value, or one for each KV head; NULL if the cache needs none */
    uint32_t count;
    attn_scale k_scale, v_scale;
};

struct executor {
    struct executor_params params;
    uint32_t num_units;
    struct unit *units;
    struct layer_constants *layers; /* [model.num_layers] */
    struct group_scales *scales;    /* [model.num_groups] */
    struct verify_scales *verify_scales;
    uint32_t *reads_new_unquantised;
    struct verifier *verifier;
    struct digest digest;
    int64_t rows_checked;

    /* Of the step at hand */
    struct forward_batch batch;
    void *q, *k, *v, *out; /* [max_tokens, widest] */
    token_key *row_keys;   /* [max_tokens] */
    int64_t *row_requests, *row_positions;
    uint8_t *row_is_first; /* nobody computed this row of the request before */
    int32_t *sampled;
    struct verify_sequence *sequences;
    uint8_t **computed; /* [num_requests] bit for each position; NULL = none yet */
};

#endif /* HOST_EXECUTOR_PRIVATE_H */
