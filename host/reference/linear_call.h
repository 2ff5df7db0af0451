/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_call.h: internal to host/reference: a forward of a linear layer with all its parts looked
 * up and checked.
 *
 *   linear_call      tensors and dimensions (linear_call.c)
 *   linear_sequence  rows and slots of one sequence (linear_call.c)
 *   linear_form      truth or naive: what is rounded (linear_step.c)
 */
#ifndef HOST_REFERENCE_LINEAR_CALL_H
#define HOST_REFERENCE_LINEAR_CALL_H

#include "host/reference/call.h"
#include "host/reference/linear.h"

/* Borrows everything it points to. */
typedef struct linear_call {
    const attn_problem *problem;
    const attn_layer_group *group;
    const attn_linear_dims *dims;
    const attn_batch *batch;
    const attn_state_batch *slots;
    int32_t num_seqs; /* 0 in IDLE */
    int32_t k_heads;
    int32_t v_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t channels;
    int32_t first[3]; /* channels of q, k and v */
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

/* Taps that the convolution's state holds; 0 = there is none. */
int32_t linear_taps(const linear_call *call);

/* An element of a tensor of any rank, given by its first indices. */
double linear_load(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2);

/* ---- Arithmetic ------------------------------------------------------------------------------ */

/* The truth rounds nothing; the naive form rounds every operation to fp32, operands to theirs. */
typedef struct linear_form {
    int32_t naive;
    attn_dtype operand;
} linear_form;

/* All channels of a sequence's rows after the convolution: to[rows][channels]; terms (may be NULL)
 * gets the sums of absolute terms. */
void linear_convolve(const linear_call *call, const linear_form *form,
                     const linear_sequence *sequence, double *to, double *terms);

/* One token of one v head. */
typedef struct linear_token {
    int64_t row;
    int32_t head;
    const double *channels; /* of this token */
    double *state;          /* [K, V], updated */
    double *work;           /* [2 K + V] */
    double *out;            /* [V] */
    double *terms;          /* [V] sums of absolute terms */
} linear_token;

void linear_step(const linear_call *call, const linear_form *form, const linear_token *token);

/* out and terms times silu(z), where z is given. */
void linear_output_gate(const linear_call *call, const linear_form *form,
                        const linear_token *token);

#endif /* HOST_REFERENCE_LINEAR_CALL_H */
