/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.h: a sequence of calls of one instance, through one metadata. Each call is judged as if it
 * were alone.
 */
#ifndef HOST_CHECK_CASES_CHAIN_H
#define HOST_CHECK_CASES_CHAIN_H

#include "host/check/cases/joint.h"
#include "host/check/cases/numerics.h"

enum { CHAIN_STEPS = 4 };

/* An instance, and the batches it is called with. */
struct chain {
    struct check_run *run;
    const struct grid *grid;
    const attn_options *options;
    int32_t count;
    struct case_spec specs[CHAIN_STEPS];
    struct joint steps[CHAIN_STEPS];
    attn_bounds bounds; /* of all steps */
    /* Latent layers, by layer group: modes in which the steps are absorbed. */
    uint32_t absorbed[JOINT_MAX];
    struct case_session *session;
};

/* Destroy its cases and its session. */
void chain_finish(struct chain *chain);

/* Does query accept the layers of the first step with room for all of them? A mode has one form. */
bool chain_is_accepted(const struct chain *chain);

/* The session, with room for all steps. False: reported. */
bool chain_open(struct chain *chain);

/* One more layer group of the next step. False: reported. */
bool chain_put(struct chain *chain, const struct case_spec *spec, uint64_t seed,
               uint64_t batch_seed);

/* The next step has all its cases: extend the bounds and forms of the chain by it. */
void chain_add(struct chain *chain);

/* A case of one layer as the next step. False: there is none. */
bool chain_add_case(struct chain *chain, struct forward_case *c);

/* Remove the step that was added last, with its bounds and forms. */
void chain_drop(struct chain *chain, const struct chain *before);

/* NULL: reported. */
struct forward_case *chain_make_case(struct chain *chain, const struct case_spec *spec,
                                     uint64_t seed, uint64_t batch_seed);

/* Plan and judge step n, if it exists. False: reported. */
bool chain_judge(struct chain *chain, int32_t n, const char *what);

/* Run the steps of two open chains in turn, until one fails. */
void chain_judge_turns(struct chain *chains, int32_t count);

/* A case of one layer as the next step, if its parts have the layout of the first case's. False:
 * there is none. */
bool chain_add_like(struct chain *chain, struct forward_case *c);

/* Open the chain, and judge its steps, each at the addresses of the one before. */
void chain_judge_contents(struct chain *chain);

/* The first step is planned before the second one has a metadata of its own, which may be planned with, and stay, and is
 * computed after. Bounds of both are those of their own batches. */
enum { SECOND_PLANNED = 1, SECOND_STAYS = 2, CHAIN_TWO_WAYS = 4 };
void chain_judge_two(struct chain *chain, int32_t way);

#endif /* HOST_CHECK_CASES_CHAIN_H */
