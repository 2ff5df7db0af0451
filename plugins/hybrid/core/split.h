/* SPDX-License-Identifier: Apache-2.0
 *
 * split.h: when a composite may split a MIXED batch by rows, extend rows to one child and decode
 * rows to another, and the promises that its verdict loses.
 *
 * It may unless that would change a result or cannot be done:
 *   - new tokens of a rounded cache: whether they are read as rounded is a property of a mode, not
 *     of a row, so the children must read them alike;
 *   - latent attention: a batch is called in one form, so EXTEND and DECODE must have MIXED's. */
#ifndef HYBRID_SPLIT_H
#define HYBRID_SPLIT_H

#include "attn_plugin.h"

/* May MIXED be split, as far as the problem alone shows? */
int split_is_possible(const attn_problem *problem);

/* Is a token that was written to the cache and read again another number? */
int split_is_rounded(const attn_problem *problem);

/* Would child `name` read new tokens of this mode from the arguments, not as rounded in the cache?
 * -1 = it does not serve this mode. */
attn_status split_reads_unquantised(const attn_services *services, const char *name,
                                    const attn_problem *problem, uint32_t mode_bit, int *answer,
                                    attn_error *error);

/* A MIXED batch is split at a row that depends on the batch, so it cannot be captured. */
void split_limit_graph_level(const attn_problem *problem, attn_verdict *verdict);

/* Which child computes a row, and so its bits, depends on the rest of its batch. */
void split_limit_invariance(const attn_problem *problem, attn_verdict *verdict);

#endif /* HYBRID_SPLIT_H */
