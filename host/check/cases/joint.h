/* SPDX-License-Identifier: Apache-2.0
 *
 * joint.h: several cases as the layers of one batch.
 *
 * The first one's batch is that of all: mode, queries, prefixes, mask, padding. Each has operands,
 * caches and scales of its own. Layers of one KV group have equal specs and read the first one's
 * slots; the others have slots, page size, lengths and dimensions of their own. Each is judged by
 * the oracle as if it were alone.
 */
#ifndef HOST_CHECK_CASES_JOINT_H
#define HOST_CHECK_CASES_JOINT_H

#include "host/check/cases/forward_case_session.h"

enum { JOINT_MAX = 5 };

struct joint {
    int32_t count;
    struct forward_case *cases[JOINT_MAX];
    /* The case whose layer group and KV group this one shares: itself, or an earlier one. */
    int32_t with[JOINT_MAX];
    bool turned; /* the last group's KV group is the first one of the batch */

    /* Made by joint_pose(). */
    attn_layer layers[JOINT_MAX][JOINT_MAX];
    attn_layer_group groups[JOINT_MAX];
    attn_problem problems[JOINT_MAX];
    attn_bounds bounds;
    uint32_t num_problems;

    int32_t at; /* the case that was judged last */
};

/* Bounds that have room for both. */
void joint_widen(attn_bounds *bounds, const attn_bounds *other);

/* Give the cases layer ids of their own, and make the problems of an instance for all of them. */
void joint_pose(struct joint *joint);

/* Plan and forward the batch in a session for those problems, and judge every layer. */
void joint_judge(struct case_session *session, struct joint *joint, struct case_verdict *verdict);

/* The same in two steps, between which the caller may do other work. False: `verdict` has the
 * reason. */
bool joint_plan(struct case_session *session, struct joint *joint, struct case_verdict *verdict);
void joint_judge_planned(struct case_session *session, struct joint *joint,
                         struct case_verdict *verdict);

/* NULL cases are accepted. */
void joint_destroy(struct joint *joint);

#endif /* HOST_CHECK_CASES_JOINT_H */
