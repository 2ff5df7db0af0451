/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.h: the oracle of linear layers: the recurrences of attn_problem.h, token by token in fp64.
 *
 * Rows are a reference_result, judged by reference_compare(). A row passes if
 *
 *   max |actual - truth| <= 2 * max |naive - truth| + 1e-5 * terms
 *
 * with the largest sum of absolute terms of an element of the output, since a sum whose terms
 * cancel cannot be better than its terms. The naive form is the same recurrence in fp32: every
 * operation rounded, q, k and v rounded to the operand dtype after the convolution and after the
 * normalisation, the output rounded to its dtype, the state to its own when it is stored.
 *
 * Slots are a reference_states. A state passes, head by head, if
 *
 *   max |actual - truth| <= 2 * max |naive - truth| + 1e-5 * max |truth|
 *
 * and a convolution's state if it is equal to the bit.
 */
#ifndef HOST_REFERENCE_LINEAR_H
#define HOST_REFERENCE_LINEAR_H

#include "host/reference/reference.h"

/* Expected contents of a slot after a forward. */
typedef struct reference_state {
    int32_t slot;
    double *state;   /* [heads, K, V]; NULL = the family has none */
    double *error;   /* [heads] of the naive form */
    double *largest; /* [heads] |state| */
    double *conv;    /* [channels, conv_width - 1]; NULL = no convolution */
} reference_state;

/* All slots that a forward writes. */
typedef struct reference_states {
    int64_t count;
    reference_state *entries;
    int32_t num_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t num_channels;
    int32_t num_taps; /* inputs that the convolution keeps: conv_width - 1 */
    int32_t vk;       /* the layout is state.ssm.vk/1 */
    double *memory;
} reference_states;

/* Compute the expected output of a linear layer, as reference_forward() does, and the expected
 * states in the slots (states may be NULL). Both are the caller's structs, filled on success alone.
 * The pools of the arguments are read and not written. */
attn_status reference_linear_forward(const attn_problem *problem, const attn_batch *batch,
                                     int32_t layer_id, const attn_forward_args *args,
                                     reference_result *result, reference_states *states,
                                     attn_error *error);

enum { REFERENCE_LINEAR_ROWS = 8 };

/* The judged part of one v head in one sequence, and its verdicts. */
typedef struct reference_linear_judgement {
    int32_t sequence;
    int32_t head;
    int64_t rows[REFERENCE_LINEAR_ROWS]; /* of the sequence; in any order, the same one again too */
    reference_verdict verdicts[REFERENCE_LINEAR_ROWS]; /* of these rows of operand OUT */
    reference_verdict state;      /* of the head in the slot that is written; PASS if none is */
    reference_verdict conv_state; /* of the channels that the head reads; likewise */
} reference_linear_judgement;

/* Judge one head of one sequence alone, by replay of its rows: what a forward wrote to OUT, STATE
 * and CONV_STATE. The slot that was read holds what it held before. INVALID_ARGUMENT: as
 * reference_linear_forward(); a sequence, head or row that there is not. Snapshots are not judged.
 */
attn_status reference_linear_judge(const attn_problem *problem, const attn_batch *batch,
                                   int32_t layer_id, const attn_forward_args *args,
                                   reference_linear_judgement *judgement, attn_error *error);

/* NULL, zeroed and finished ones are fine. */
void reference_states_finish(reference_states *states);

/* Compare pools (NULL = the family has none) with their expected contents; the counts, a head of a
 * slot as a row, are added to *report. INVALID_ARGUMENT: a slot lies outside a pool. */
attn_status reference_compare_states(const reference_states *states, const attn_tensor *state,
                                     const attn_tensor *conv_state, reference_report *report,
                                     attn_error *error);

#endif /* HOST_REFERENCE_LINEAR_H */
