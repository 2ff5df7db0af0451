/* SPDX-License-Identifier: Apache-2.0
 *
 * problem.h: what our plugins ask of a problem alike, whatever kind of layers they serve. Two
 * sorts:
 *
 *   attn_status problem_...   a problem that makes no sense: the first fault is an error
 *   void problem_check_...    what a plugin does not take: each is a reason of the verdict
 */
#ifndef PLUGINS_PROBLEM_H
#define PLUGINS_PROBLEM_H

#include "attn_backend.h"

/* ---- Problems that make no sense ------------------------------------------------------------- */

/* A problem in structs of ours, whatever size the caller's have. INVALID_ARGUMENT if one of the
 * four is missing. */
attn_status problem_read(const attn_problem *given, attn_problem *problem, attn_layer_group *group,
                         attn_bounds *bounds, attn_device *device, attn_error *error);

/* INVALID_ARGUMENT for a group without layers. */
attn_status problem_require_layers(const attn_layer_group *group, attn_error *error);

/* INVALID_ARGUMENT for numbers of heads, or numbers of the softmax, that no layer can have. */
attn_status problem_require_softmax(const attn_layer_group *group, attn_error *error);

/* UNSUPPORTED, in the words of the first reason, if the type's query says no. */
attn_status problem_require(const attn_backend_type *type, const attn_options *options,
                            const attn_services *services, const attn_problem *problem,
                            attn_error *error);

/* What the type's query says, with the first reason alone. */
attn_status problem_ask(const attn_backend_type *type, const attn_options *options,
                        const attn_services *services, const attn_problem *problem,
                        attn_verdict *verdict, attn_reason *reason, attn_error *error);

/* Layers of all problems. */
uint32_t problem_count_layers(const attn_problem *problems, uint32_t num_problems);

/* ---- Reasons --------------------------------------------------------------------------------- */

/* A set of bits, or the highest of levels, and the same as attn_reason's `accepted` writes it. */
typedef struct problem_limit {
    uint32_t most;
    const char *text;
} problem_limit;

/* What a plugin takes. All modes are taken. */
typedef struct problem_limits {
    problem_limit layer_flags; /* set of ATTN_LAYER_* */
    problem_limit mask_kinds;  /* set of ATTN_MASK_BIT */
    problem_limit uses;        /* set of ATTN_USES_* */
    problem_limit graph_level; /* ATTN_GRAPH_* */
    problem_limit notes;       /* set of ATTN_NOTE_* that are kept */
} problem_limits;

/* Flags of layers; one reason for all of them. */
void problem_check_layers(const problem_limits *limits, const attn_layer_group *group,
                          attn_verdict *verdict);

/* A cache of keys and values apart, by pages. */
void problem_check_kv_layout(const attn_problem *problem, attn_verdict *verdict);

/* Modes, masks, uses, and numbers below 0. */
void problem_check_bounds(const problem_limits *limits, const attn_bounds *bounds,
                          attn_verdict *verdict);

/* Graphs, notes, and features, none of which is known. */
void problem_check_needs(const problem_limits *limits, const attn_problem *problem,
                         attn_verdict *verdict);

/* UNSUPPORTED, in the words of the first reason, if problem_check_bounds() finds one. */
attn_status problem_require_bounds(const problem_limits *limits, const attn_bounds *bounds,
                                   attn_error *error);

/* The same, and INVALID_ARGUMENT for bounds of sequences, tokens or keys that are not known. */
attn_status problem_require_known_bounds(const problem_limits *limits, const attn_bounds *bounds,
                                         attn_error *error);

#endif /* PLUGINS_PROBLEM_H */
