/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_call.h: internal to host/reference: a forward of a linear layer with all its parts looked
 * up and checked.
 *
 *   linear_call      tensors and dimensions (linear_call.c)
 *   linear_sequence  rows and slots of one sequence (linear_call.c)
 */
#ifndef HOST_REFERENCE_LINEAR_CALL_H
#define HOST_REFERENCE_LINEAR_CALL_H

#include "host/reference/call.h"
#include "host/reference/linear.h"
#include "host/reference/linear_replay.h"

/* Borrows everything it points to. */
typedef struct linear_call {
    const attn_problem *problem;
    const attn_layer_group *group;
    const attn_linear_dims *dims;
    reference_linear_layer layer; /* with its constants once linear_constants_init() was called */
    const attn_batch *batch;
    const attn_state_batch *slots;
    int32_t num_seqs; /* 0 in IDLE */
    int32_t k_heads;
    int32_t v_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t vk;
    int32_t raw;
    int64_t num_rows;
    const attn_tensor *mixed;
    const attn_tensor *a; /* from here on NULL = the family has none, or not given */
    const attn_tensor *b;
    const attn_tensor *z;
    const attn_tensor *a_log;
    const attn_tensor *dt_bias;
    const attn_tensor *skip;
    const attn_tensor *weight;
    const attn_tensor *bias;
    const attn_tensor *state;
    const attn_tensor *conv_state;
} linear_call;

typedef struct linear_sequence {
    int32_t index;
    int32_t real;
    int64_t first_row;
    int64_t num_rows;
    int32_t slot; /* to be read; 0 = start from zero */
    int32_t dst;  /* to be written; 0 = dropped */
} linear_sequence;

attn_status linear_call_init(linear_call *call, const attn_problem *problem,
                             const attn_batch *batch, int32_t layer_id,
                             const attn_forward_args *args, attn_error *error);
attn_status linear_sequence_init(linear_sequence *sequence, const linear_call *call, int32_t s,
                                 attn_error *error);

/* The slot that gets the state after row `row`; 0 = none. */
int32_t linear_snapshot(const linear_call *call, int64_t row);

/* An element of a tensor of any rank, given by its first indices. */
double linear_load(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2);

/* ---- Operands in fp64 ------------------------------------------------------------------------ */

/* The layer's constants as call->layer has them. *memory is theirs, released by free(), and set to
 * NULL on failure. OUT_OF_HOST_MEMORY. */
attn_status linear_constants_init(linear_call *call, double **memory, attn_error *error);

/* Doubles that `count` rows of all operands take. */
int64_t linear_rows_size(const linear_call *call, int64_t count);

/* A sequence's rows, in linear_rows_size() doubles of the caller's. */
reference_linear_rows linear_rows_load(const linear_call *call, const linear_sequence *sequence,
                                       double *memory);

/* Set a replay's states and inputs to what the slot holds; 0 = to the beginning of a sequence. */
void linear_replay_load(reference_linear_replay *replay, const linear_call *call, int32_t slot);

/* Rows [first, first + count) of them. */
reference_linear_rows linear_rows_part(const linear_call *call, const reference_linear_rows *rows,
                                       int64_t first, int64_t count);

#endif /* HOST_REFERENCE_LINEAR_CALL_H */
