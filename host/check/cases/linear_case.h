/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_case.h: a forward of a linear layer to check a backend with: a problem, a batch, pools of
 * states whose unused slots are NaN, operands.
 *
 *   spec   everything that is varied, in plain numbers
 *   case   a spec with a seed: all arrays and tensors, in one piece of host memory that the oracle
 *          reads, and a copy of it in the device's memory, where the backend works
 *   part   some rows of one sequence: what a case is split into
 *
 * Half of the heads forget slowly, so that a row depends on all rows before it; the others fast, so
 * that digits lost in decays show. The recurrence mixes everything into everything: there is no
 * need for needles.
 */
#ifndef HOST_CHECK_CASES_LINEAR_CASE_H
#define HOST_CHECK_CASES_LINEAR_CASE_H

#include "host/check/cases/forward_case_session.h"
#include "host/reference/linear.h"

/* Sequences that a spec lists; beyond them the first LINEAR_CASE_REPEATED come again. */
enum { LINEAR_CASE_MAX_SEQS = 8, LINEAR_CASE_REPEATED = 7 };

struct linear_case_sequence {
    int32_t rows;
    bool has_initial;
    bool in_place; /* dst_slot = slot */
    bool dropped;  /* dst_slot = 0 */
};

enum { LINEAR_STATE_GROUPS = 4, LINEAR_WITHOUT_DST = 1, LINEAR_WITHOUT_INITIAL = 2 };

struct linear_spec {
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t mode;   /* ATTN_MODE_* */
    uint32_t modes;  /* ATTN_MODE_BIT set: others that parts of the case have */
    attn_dtype q_dtype, out_dtype, state_dtype, conv_dtype;
    bool bare;            /* what means nothing for such a layer is 0 or absent, else any number */
    bool decodes_first;   /* MIXED: the first sequences decode, not the last ones */
    int32_t decodes;      /* MIXED: so many do */
    int32_t decode_q_len; /* MIXED: rows of each, 1 or more */
    bool vk;              /* state.ssm.vk/1 */
    int32_t k_heads, v_heads, k_dim, v_dim, width;
    bool bias, z;
    int32_t skip; /* D: 0 = none, 1 = one for a head, 2 = one for an element */
    float dt_min, dt_max, lower_bound;
    bool steep;             /* decays of many orders of magnitude */
    bool snapshots;         /* of two rows in three, or */
    int32_t sparse;         /* not 0: of every `sparse`-th, or */
    int32_t cuts;           /* not 0: of so many of each sequence, at its ends and at any place */
    int32_t most_kept;      /* not 0: slots for so many snapshots, where one for a row is much */
    uint32_t absent;        /* set of LINEAR_WITHOUT_*: arrays that would say nothing */
    enum case_host host;    /* which arrays the host has */
    int32_t gap;            /* elements between outermost rows */
    uint32_t min_alignment; /* what the problem promises of operands; */
    bool exactly_aligned;   /* they lie no better than that. A whole batch alone, no parts of it */
    int32_t first_row;
    int32_t padded; /* sequences of padding */
    int32_t spare;  /* rows of padding after those of all sequences */
    /* How far apart the slots of the pools lie; a whole batch alone, no parts of it. */
    enum page_spread spread;
    int32_t turn; /* in the batch, sequence s is that which stands at s + turn here; slots differ */
    int32_t layer;       /* of those that one batch is for: its values are others */
    int32_t state_group; /* below LINEAR_STATE_GROUPS; slots of the others are other slots */
    int32_t num_sequences;
    struct linear_case_sequence sequences[LINEAR_CASE_MAX_SEQS];
};

static inline const struct linear_case_sequence *linear_sequence(const struct linear_spec *spec,
                                                                 int32_t s)
{
    bool repeats = spec->num_sequences > LINEAR_CASE_MAX_SEQS;
    return &spec->sequences[repeats ? s % LINEAR_CASE_REPEATED : s];
}

/* A spec of this family drawn from the seed, whether a backend accepts it or not. */
void linear_spec_draw(struct linear_spec *spec, uint32_t family, uint64_t seed);

/* MIXED, with what the spec says of the sequences that decode. */
void linear_spec_mix(struct linear_spec *spec);
void linear_spec_describe(const struct linear_spec *spec, char *text, size_t size);

struct linear_case;

/* OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. */
attn_status linear_case_create(const struct linear_spec *spec, uint64_t seed,
                               const struct device *device, struct linear_case **c,
                               attn_error *error);
void linear_case_destroy(struct linear_case *c); /* NULL is accepted */

attn_problem *linear_case_problem(struct linear_case *c);

/* The problem that a spec poses on a device, without making the case. */
struct linear_posed {
    attn_layer layer;
    attn_linear_dims dims;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
};
void linear_pose(struct linear_posed *posed, const struct linear_spec *spec,
                 const attn_device *device);

/* Bring the device's copy to what the case begins with. */
attn_status linear_case_reset(struct linear_case *c, struct case_session *session,
                              attn_error *error);

/* Some rows of one sequence, whose state goes on from part to part. */
struct linear_part {
    int32_t sequence;
    int32_t first;
    int32_t rows;
    uint32_t mode;  /* EXTEND, DECODE (rows is 1), TARGET_VERIFY */
    bool snapshots; /* those of its rows are taken */
    bool accepted;  /* it goes on from the snapshot of the row before */
};

/* Does the row of a sequence leave a snapshot? */
bool linear_case_has_snapshot(const struct linear_case *c, int32_t sequence, int32_t row);

/* Plan and forward the batch, or a part of it. */
attn_status linear_case_forward(struct linear_case *c, struct case_session *session,
                                const struct linear_part *part, attn_error *error);

/* The same step by step, for cases that are layers of one batch: plan it, as this case has it, with
 * the slots of `others` for their state groups (state groups of no other case get unused slots),
 * and forward this case's layer. */
attn_status linear_case_plan(struct linear_case *c, struct linear_case *const *others,
                             int32_t num_others, struct case_session *session, attn_error *error);
attn_status linear_case_call(struct linear_case *c, struct case_session *session,
                             attn_error *error);

/* Draw everything anew, and begin with sequence `turn`: other contents at the same addresses. */
attn_status linear_case_refill(struct linear_case *c, uint64_t seed, int32_t turn,
                               attn_error *error);

/* See what the device has now, and whether the metadata's memory is whole. */
attn_status linear_case_fetch(struct linear_case *c, struct case_session *session,
                              attn_error *error);

/* The same for a part, and judge it by the oracle, which goes on from what the device had before
 * it: so what was stored may have been rounded. False: text says why. */
bool linear_case_judge_part(struct linear_case *c, struct case_session *session,
                            const struct linear_part *part, char *text, size_t size);

/* Fetch it, and judge outputs and states of all sequences by the oracle; `whole` (a single forward
 * of the batch): also that nothing else was written. False: text says why. */
bool linear_case_judge(struct linear_case *c, struct case_session *session, bool whole, char *text,
                       size_t size);

/* How those of its operands lie that are not dense (operand_text.h). */
void linear_case_operands(const struct linear_case *c, char *text, size_t size);

/* Is there an operand of this role? */
bool linear_case_has(const struct linear_case *c, uint32_t role);

/* What all judgements of the case have compared. */
const reference_report *linear_case_report(const struct linear_case *c);

/* Forward the batch with something changed in the arguments, as case_session_try() does. There are no scales. */
attn_status linear_case_try(struct linear_case *c, struct case_session *session, case_change change,
                            void *ctx, attn_error *error);

/* Does a forward without this operand fail? */
bool linear_case_needs(const struct linear_case *c, uint32_t role);

/* Where what was fetched last first differs from these bytes, which were fetched before: "out, row
 * 3, element 5: got 0.5 (0x3f00), before 0.25 (0x3e80)". They do differ. */
void linear_case_tell_difference(const struct linear_case *c, const void *bytes, char *text,
                                 size_t size);

/* The bytes that were fetched last, and how many; the place stays. */
const void *linear_case_bytes(const struct linear_case *c, uint64_t *size);

#endif /* HOST_CHECK_CASES_LINEAR_CASE_H */
