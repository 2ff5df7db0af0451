/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.h: compare output rows of linear layers with the oracle, by replay.
 *
 * A row of a recurrence depends on all rows before it. Operands are functions of the trace
 * (generator_linear.h), so the verifier computes a request's rows from its first token on, up to
 * the one that is sampled, and keeps the states so far: a later row of the request goes on
 * from there. What a backend left in the pools of states is not read: rows judge it.
 *
 * The truth never rounds a state. The naive form, which says how far a row may be off, does so
 * exactly where the run stored the one that the row goes on from: verify_sequence.stored. That is
 * after the last row of each step, and after the snapshots from which this request, or the request
 * that made the prefix, began. The places count, not only the number of roundings: a rounding at
 * another row gives other digits, and if the run rounds where the naive form does not, outputs in
 * bf16 differ by several times their own rounding. (States in fp32 lose nothing when they are
 * stored.)
 */
#ifndef HOST_VERIFY_LINEAR_H
#define HOST_VERIFY_LINEAR_H

#include "host/verify/verify.h"

struct linear_verifier;

/* All that is borrowed outlives the verifier. */
struct linear_verifier_params {
    const struct model *model;
    const struct workload *workload;
    const struct generator *generator;
    struct threads *threads;
    uint64_t max_kept_bytes; /* of states. Beyond, the ones not used for longest are dropped, and */
                             /* replayed from the first token when they are asked for; those of */
                             /* one request in one layer are held whatever they take; 0 = 1 GiB */
};

attn_status linear_verifier_create(const struct linear_verifier_params *params,
                                   struct linear_verifier **verifier, attn_error *error);

/* NULL is accepted. */
void linear_verifier_destroy(struct linear_verifier *verifier);

/* Judge the sampled rows of one linear layer: `out` is [tokens, v_heads, head_v_dim] in host
 * memory. What is found is added to *result, which begins as zeros; its first failure stays.
 * Results do not depend on the number of threads, on what is kept, or on what was checked before.
 */
attn_status linear_verifier_check(struct linear_verifier *verifier, const struct verify_step *step,
                                  int32_t layer, const attn_tensor *out,
                                  struct verify_result *result, attn_error *error);

/* What it has done so far. */
struct linear_verifier_stats {
    int64_t rows_replayed;   /* rows of a layer of a request, all heads */
    uint64_t kept_bytes;     /* now */
    uint64_t max_kept_bytes; /* ever */
};
struct linear_verifier_stats linear_verifier_stats(const struct linear_verifier *verifier);

#endif /* HOST_VERIFY_LINEAR_H */
