/* SPDX-License-Identifier: Apache-2.0
 *
 * row.h: internal to host/reference: what row.c, score.c and naive.c share.
 */
#ifndef HOST_REFERENCE_ROW_H
#define HOST_REFERENCE_ROW_H

#include "host/reference/reference.h"

/* The position of key `j`. */
int64_t reference_key_position(const reference_sight *sight, int64_t j);

/* |i - j| of ALiBi, in positions; 0 where there is no i. */
double reference_distance(const reference_sight *sight, int64_t j);

/* The score of key `j` in fp64: scaled, biased, capped. */
double reference_score(const reference_row *row, const double *key, int64_t j);

/* One row in the naive form, in the making. All arrays are the caller's. */
typedef struct naive_row {
    attn_dtype operand_dtype;
    float *query;  /* [head_dim] */
    float *key;    /* [head_dim] the key at hand */
    float *scores; /* of the keys seen: fp32, unrounded; then the probabilities */
    float *out;    /* [v_head_dim] sums */
    float lse;
} naive_row;

/* Start: the arrays are set, nothing else needs to be. */
void naive_begin(naive_row *naive, const reference_row *row);

/* scores[index] of key `j`. */
void naive_score(naive_row *naive, const reference_row *row, const double *key, int64_t j,
                 int64_t index);

/* Scores into probabilities, and the LSE. `truth` are the fp64 scores of the same keys. */
void naive_softmax(naive_row *naive, const reference_row *row, const double *truth, int64_t count);

/* Add the value of the key at `index`. */
void naive_value(naive_row *naive, const reference_row *row, const double *value, int64_t index);

/* The largest error against the truth over places where both are finite, output rounded. */
double naive_error(const naive_row *naive, const reference_row *row, const double *truth);

#endif /* HOST_REFERENCE_ROW_H */
