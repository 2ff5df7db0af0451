/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_replay.h: the recurrence of linear layers, some rows at a time, with its state carried on.
 *
 *   layer    dimensions and constants, in fp64
 *   rows     operands of consecutive rows of a sequence, in fp64
 *   replay   the progress of some v heads of a sequence: the states of both forms (linear.h) and
 *            the inputs that the convolution still needs
 *
 * This is the one recurrence of the oracle: reference_linear_forward() stands on it, and so does
 * verification, which continues where it stopped. Results do not depend on how rows are
 * cut into calls, nor on which heads a replay has.
 */
#ifndef HOST_REFERENCE_LINEAR_REPLAY_H
#define HOST_REFERENCE_LINEAR_REPLAY_H

#include "host/reference/reference.h"

/* Constants are borrowed; NULL = the layer has none, or none is given. */
typedef struct reference_linear_layer {
    attn_linear_dims dims;
    double sm_scale;
    attn_dtype operand_dtype; /* of the rows' operands: what the naive form rounds them to */
    attn_dtype out_dtype;
    int32_t channels;      /* of a row of mixed_qkv */
    int32_t first[3];      /* channels of q, k and v */
    int32_t taps;          /* inputs that the convolution's state holds */
    const double *weight;  /* [channels, conv_width] */
    const double *bias;    /* [channels] */
    const double *a_log;   /* [v_heads] */
    const double *dt_bias; /* [v_heads], KDA: [v_heads, head_k_dim] */
    const double *skip;    /* [v_heads, head_v_dim] */
} reference_linear_layer;

/* All but the constants, from a layer group. INVALID_ARGUMENT, UNSUPPORTED: dimensions that make no
 * sense, by name. */
attn_status reference_linear_layer_init(reference_linear_layer *layer,
                                        const attn_layer_group *group, attn_dtype operand_dtype,
                                        attn_dtype out_dtype, attn_error *error);

/* Rows are as wide as the layer's; of a row only what the replay's heads use is read. */
typedef struct reference_linear_rows {
    int64_t count;
    const double *mixed; /* [count, channels] */
    const double *a;     /* [count, v_heads], KDA: [count, v_heads, head_k_dim]; NULL = none */
    const double *b;     /* [count, v_heads]; NULL = none */
    const double *z;     /* [count, v_heads, head_v_dim]; NULL = none */
} reference_linear_rows;

/* The channels of some v heads and of the k heads that they read. */
typedef struct reference_linear_channels {
    int32_t first[3]; /* of q, k and v, in a row of mixed_qkv */
    int32_t count[3];
    int32_t total;
} reference_linear_channels;

/* Heads first_head .. first_head + num_heads of one sequence. A state is [num_heads, head_k_dim,
 * stride]: rows of head_v_dim elements, padded to full vectors. */
typedef struct reference_linear_replay {
    const reference_linear_layer *layer;
    int32_t first_head;
    int32_t num_heads;
    int32_t first_k_head;
    int32_t num_k_heads;
    int32_t stride;
    int32_t rounded; /* the naive states were, by reference_linear_replay_store() */
    reference_linear_channels channels;
    double *truth; /* states */
    float *naive;
    double *inputs; /* [taps, channels.total], oldest first: before the next row */
} reference_linear_replay;

/* A replay at the beginning of a sequence: states and inputs are 0. The layer is borrowed.
 * Released by reference_linear_replay_finish(). OUT_OF_HOST_MEMORY. */
attn_status reference_linear_replay_init(reference_linear_replay *replay,
                                         const reference_linear_layer *layer, int32_t first_head,
                                         int32_t num_heads, attn_error *error);

/* NULL, zeroed and finished ones are fine. */
void reference_linear_replay_finish(reference_linear_replay *replay);

/* A copy of `from` at its position, independent from then on; released likewise. */
attn_status reference_linear_replay_copy(reference_linear_replay *replay,
                                         const reference_linear_replay *from, attn_error *error);

/* Back to the beginning of a sequence. */
void reference_linear_replay_reset(reference_linear_replay *replay);

/* Bytes that a replay of this many heads from `first_head` on holds. */
uint64_t reference_linear_replay_bytes(const reference_linear_layer *layer, int32_t first_head,
                                       int32_t num_heads);

/* Where channel c of channels.total stands in a row of mixed_qkv. */
int32_t reference_linear_channel(const reference_linear_channels *channels, int32_t c);

/* Go on by these rows. `wanted` (NULL = all): whether row t's output is; `out` gets it, [count,
 * num_heads, head_v_dim], and `results` its bar, [count,
 * num_heads]; both are left alone where a row is not wanted. OUT_OF_HOST_MEMORY: the scratch did
 * not grow, nothing has happened. */
attn_status reference_linear_replay_advance(reference_linear_replay *replay,
                                            const reference_linear_rows *rows,
                                            const uint8_t *wanted, reference_scratch *scratch,
                                            double *out, reference_row_result *results,
                                            attn_error *error);

/* What storing and loading again does: the naive state rounded to state_dtype, inputs to
 * conv_dtype. The truth's state is not rounded.
 *
 * Where it rounds states, the naive error of a row is from then on at least
 *
 *   max_j (3 s_j + h_j / 2)
 *
 * with s_j the standard deviation of output element j if the differences of both forms' states are
 * independent, and h_j half a unit in its last place. Roundings of many tokens add up at random,
 * and a single draw of that, the naive form's own, may be a lucky one. And two forms whose states
 * differ do not round their outputs alike: the error is that of the state, plus up to h_j.
 * The pass rule doubles what is here, which makes it 6 s_j + h_j: of a rounding to nearest no
 * backend needs twice the most.
 */
void reference_linear_replay_store(reference_linear_replay *replay);

#endif /* HOST_REFERENCE_LINEAR_REPLAY_H */
