/* SPDX-License-Identifier: Apache-2.0
 *
 * axes.h: numbers of a problem, each an axis along which query accepts some values: how far.
 */
#ifndef HOST_CHECK_NUMERICS_AXES_H
#define HOST_CHECK_NUMERICS_AXES_H

#include "host/check/cases/linear_bench.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"

enum { AXES_EACH = 700 /* values that are asked for one by one */ };

/* ---- Borders --------------------------------------------------------------------------------- */

/* A question with one number left open. */
typedef bool (*accepts_value)(void *ctx, int32_t value);

struct borders {
    int32_t least, most; /* accepted; most < least: none is */
};

struct borders find_borders(accepts_value accepts, void *ctx);

/* ---- Softmax and latent layers --------------------------------------------------------------- */

/* `most_run`: beyond it a case would be larger than what it shows is worth. */
struct spec_axis {
    const char *name;
    int32_t most_run;
    void (*set)(struct case_spec *spec, int32_t value);
};

enum { SOFTMAX_AXES = 9, LATENT_AXES = 6 };
extern const struct spec_axis softmax_axes[SOFTMAX_AXES], latent_axes[LATENT_AXES];

/* Few keys and queries: an axis is what counts. */
void axes_make_short(struct case_spec *spec);

/* ---- Linear layers --------------------------------------------------------------------------- */

struct linear_axis {
    const char *name;
    int32_t most_run;
    size_t member; /* of struct linear_spec, an int32_t */
};

enum { LINEAR_AXES = 4 };
extern const struct linear_axis linear_axes[LINEAR_AXES];

void linear_axis_set(const struct linear_axis *axis, int32_t value, struct linear_spec *spec);

/* The same for these, as linear_find_case() has it. */
void axes_make_linear_short(struct linear_spec *spec, int32_t index);

#endif /* HOST_CHECK_NUMERICS_AXES_H */
