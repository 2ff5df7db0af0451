/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h: what the kernels of step_kernels.cu are launched with.
 *
 * Kernel step_NAME has one parameter, a struct NAME_launch. Block (x, y) of a grid does a part of
 * piece x of the work (a row, an update, a sequence): its threads y * STEP_BLOCK and up, in strides
 * of all threads of the piece. So any grid does all of a piece, and none need be larger than a
 * driver accepts.
 */
#ifndef HOST_RUN_KERNELS_LAUNCH_H
#define HOST_RUN_KERNELS_LAUNCH_H

#include "host/run/step_kernels.h"
#include "host/workload/vectors.h"

enum {
    STEP_BLOCK = 128,        /* threads of a block */
    STEP_MAX_GRID_Y = 65535, /* of CUDA */
    GENERATE_MAX = 7,        /* operands of a layer */
    GENERATE_MAX_LINEAR = 3, /* of a linear layer */
    GENERATE_MAX_FACTORS = 512
};

/* X(name) */
#define STEP_KERNELS(X)                                                                            \
    X(generate) X(generate_linear) X(update_table) X(index_pages) X(watch) X(gather) X(keys) X(move)

/* Elements [8 first_word, 8 first_word + dim) of each head's vector, dense [rows, heads, dim]. */
struct generate_vector {
    void *data;
    int32_t stream; /* GENERATOR_QUERY, _KEY, _VALUE, or _OPERAND + role of an indexer's */
    int32_t layer;  /* whose streams; of queries not read */
    int32_t heads, dim, first_word;
    attn_dtype dtype;
};

struct generate_vectors {
    struct generate_vector list[GENERATE_MAX];
    int32_t count;
};

struct generate_launch {
    struct generator generator; /* its layers are not the device's: NULL */
    generator_layer geometry;
    const struct request_tokens *requests; /* of the whole workload */
    int32_t num_requests;
    struct step_rows rows;
    struct generate_vectors vectors;
    uint64_t num_words; /* of a row */
    int32_t layer;
};

/* An operand of a linear layer, dense [rows, elements]; the first of its exponents is that of
 * generate_linear_launch.exponents[exponents_at]. */
struct generate_linear_operand {
    void *data;
    uint32_t role;
    attn_dtype dtype;
    int32_t elements, exponents_at;
    struct vectors_factors factors;
};

struct generate_linear_launch {
    struct generator generator;            /* its layers are not the device's: NULL */
    const struct request_tokens *requests; /* of the whole workload */
    int32_t num_requests;
    int32_t num_operands;
    struct step_rows rows;
    struct generate_linear_operand operands[GENERATE_MAX_LINEAR];
    uint64_t num_words; /* of a row */
    int32_t layer;
    int8_t exponents[GENERATE_MAX_FACTORS];
};

struct update_table_launch {
    const struct step_update *updates;
    const int32_t *slots;
    int32_t *req_to_token;
    int64_t stride;
};

struct index_pages_launch {
    struct step_index index;
};

struct watch_launch {
    struct step_rows rows;
    struct step_output output;
    uint64_t *first;
    int32_t layer;
};

struct gather_launch {
    struct step_sample sample;
    const void *rows;
    uint64_t row_bytes;
    int32_t layer;
};

struct keys_launch {
    struct step_keys keys;
    struct step_sample sample;
    uint64_t skip; /* bytes of a row that was gathered before */
    int32_t layer;
};

struct move_launch {
    struct step_moves moves;
    struct step_cache cache;
};

#endif /* HOST_RUN_KERNELS_LAUNCH_H */
