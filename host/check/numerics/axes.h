/* SPDX-License-Identifier: Apache-2.0
 *
 * axes.h: numbers of a problem, each an axis along which query accepts some values: how far.
 */
#ifndef HOST_CHECK_NUMERICS_AXES_H
#define HOST_CHECK_NUMERICS_AXES_H

#include "host/check/cases/kind.h"

enum { AXES_EACH = 700 /* values that are asked for one by one */ };

/* ---- Borders --------------------------------------------------------------------------------- */

/* A question with one number left open. */
typedef bool (*accepts_value)(void *ctx, int32_t value);

struct borders {
    int32_t least, most; /* accepted; most < least: none is */
};

struct borders find_borders(accepts_value accepts, void *ctx);

/* ---- Axes ------------------------------------------------------------------------------------ */

/* `most_run`: beyond it a case would be larger than what it shows is worth. */
struct axis {
    const char *name;
    int32_t most_run;
    size_t member;       /* of struct case_spec, an int32_t */
    size_t other;        /* a member that is set, too; 0 = none */
    int32_t other_value; /* 0 = the same */
};

enum { SOFTMAX_AXES = 9, LATENT_AXES = 6, LINEAR_AXES = 4 };

/* Axes of the case's kind, and how many. */
const struct axis *axes_of(const struct kind_case *k, int32_t *count);
void axis_set(const struct axis *axis, int32_t value, struct kind_case *k);

/* Few keys and queries: an axis is what counts. Linear layers are found so (axes_make_linear_short). */
void axes_make_short(struct kind_case *k);
void axes_make_linear_short(struct linear_spec *spec, int32_t index);

#endif /* HOST_CHECK_NUMERICS_AXES_H */
