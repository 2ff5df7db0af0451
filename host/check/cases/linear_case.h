/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_case.h: a case (forward_case.h) of a linear layer: its parts and their contents, and its
 * forward in parts. All else is as in any case.
 *
 * A part of it is some rows of one sequence: what a case is split into.
 *
 * Unused slots of the pools are NaN. Half of the heads forget slowly, so that a row depends on all
 * rows before it; the others fast, so that digits lost in decays show. The recurrence mixes
 * everything into everything: there is no need for needles. */
#ifndef HOST_CHECK_CASES_LINEAR_CASE_H
#define HOST_CHECK_CASES_LINEAR_CASE_H

#include "host/check/cases/forward_case_session.h"
#include "host/reference/linear.h"

/* ---- Spec ------------------------------------------------------------------------------------ */

/* A spec of this family drawn from the seed, whether a backend accepts it or not. */
void linear_spec_draw(struct case_spec *spec, uint32_t family, uint64_t seed);

/* MIXED, with the spec's sequences that decode. */
void linear_spec_mix(struct case_spec *spec);
void linear_spec_describe(const struct case_spec *spec, char *text, size_t size);

/* ---- For forward_case*.c --------------------------------------------------------------------- */

/* The problem that the spec poses. */
void linear_pose(struct spec_problem *posed, const struct case_spec *spec,
                 const attn_device *device);

/* The batch's lengths, the places of its parts, and what they hold in `image`. */
void linear_lengths_init(struct case_lengths *lengths, const struct case_spec *spec);
void linear_lay_out(struct forward_case *c);
attn_status linear_fill(struct forward_case *c, attn_error *error);

/* Slots that a forward may write, slot 0 included: accept their contents as expected. */
void linear_allow_slots(const struct forward_case *c, char *expected, char *actual);

/* ---- Parts ----------------------------------------------------------------------------------- */

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
bool linear_case_has_snapshot(const struct forward_case *c, int32_t sequence, int32_t row);

/* Restore the device's copy to the initial contents of the case. */
attn_status linear_case_reset(struct forward_case *c, struct case_session *session,
                              attn_error *error);

/* Plan and forward a part of the batch. */
attn_status linear_case_forward(struct forward_case *c, struct case_session *session,
                                const struct linear_part *part, attn_error *error);

/* The same, and judge it by the oracle, which continues from the device's contents before it, so
 * stored states may have been rounded. */
void linear_case_judge_part(struct forward_case *c, struct case_session *session,
                            const struct linear_part *part, struct case_verdict *verdict);

/* The batch that the case's part is, in a view of all of it. */
void linear_view_part(struct case_view *view, const struct forward_case *c, bool for_backend);

#endif /* HOST_CHECK_CASES_LINEAR_CASE_H */
