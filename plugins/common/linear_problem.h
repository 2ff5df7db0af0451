/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_problem.h: checks of problems of recurrent layers, for errors and for a plugin with all
 * families: the query of such a plugin except device and memory.
 */
#ifndef PLUGINS_LINEAR_PROBLEM_H
#define PLUGINS_LINEAR_PROBLEM_H

#include "attn_plugin_util.h"

enum {
    LINEAR_MOST_DIM = 256,       /* of a head */
    LINEAR_MOST_HEADS = 1 << 20, /* q, k and v of a row together stay below 2^31 channels */
    LINEAR_MOST_WIDTH = 8        /* of the convolution */
};

/* Promises that rows computed by chunks, which begin with the batch, do not keep. */
enum { LINEAR_INVARIANT = ATTN_TRAIT_BATCH_INVARIANT | ATTN_TRAIT_CUT_INVARIANT };

/* A problem in structs of full size. */
typedef struct linear_question {
    attn_problem problem;
    attn_layer_group group;
    attn_linear_dims dims; /* zero if there are none */
    attn_bounds bounds;
    attn_device device;
    int exact; /* set by the plugin: a batch has to hand on just what it would itself go on with */
} linear_question;

/* INVALID_ARGUMENT for numbers that make no sense in any plugin. */
attn_status linear_question_init(linear_question *ask, const attn_problem *problem,
                                 attn_error *error);

/* Reasons of all but the device; `graph_level`: the plugin's best. */
void linear_question_check(const linear_question *ask, uint32_t graph_level, attn_verdict *verdict);

/* Refusals of bounds by query, as one message: UNSUPPORTED, or INVALID_ARGUMENT for unknown bounds.
 */
attn_status linear_require_bounds(const attn_bounds *bounds, attn_error *error);

#endif /* PLUGINS_LINEAR_PROBLEM_H */
