/* SPDX-License-Identifier: Apache-2.0
 *
 * family.h: a family of cases: a product of choices of the grid, each point in some variants, which
 * a function makes out of a plain case that is small in all that the family is not about.
 */
#ifndef HOST_CHECK_NUMERICS_FAMILY_H
#define HOST_CHECK_NUMERICS_FAMILY_H

#include "host/check/cases/numerics.h"

struct family {
    const struct grid_choice *choices; /* NULL = latents alone */
    const struct mla_choice *latents;  /* NULL = no latents */
    int32_t num_variants;              /* 0 = 1 */
    void (*change)(struct case_spec *spec, int32_t variant);
    bool as_is; /* heads and dimensions are those of the grid's base */
};

int32_t family_count(const struct check_subject *subject, const struct family *family);
void family_run(struct check_run *run, const struct family *family);

/* Prefix and new tokens of each sequence. What a mode or a type says of lengths holds for them too.
 */
void family_set_lengths(struct case_spec *spec, int32_t count, const int32_t (*lengths)[2]);

/* count_NAME and run_NAME of a family: softmax layers, or latent ones. */
#define FAMILY(name, change, variants, ...)                                                        \
    static const struct grid_choice name##_choices[GRID_MAX_CHOICES + 1] = {__VA_ARGS__};          \
    static const struct family name##_family = {name##_choices, NULL, variants, change, false};    \
    FAMILY_FUNCTIONS(name)
#define LATENT(name, change, variants, forms, layouts, ...)                                        \
    static const struct mla_choice name##_choice = {forms, layouts, SMALL_LATENTS, {__VA_ARGS__}}; \
    static const struct family name##_family = {NULL, &name##_choice, variants, change, false};    \
    FAMILY_FUNCTIONS(name)
#define FAMILY_FUNCTIONS(name)                                                                     \
    CHECK_COUNT(name, family_count(subject, &name##_family))                                       \
    CHECK_RUN(name, family_run(run, &name##_family))

#define BOTH_FORMS    (MLA_ABSORBED | MLA_EXPANDED)
#define SMALL_LATENTS BIT(MLA_SMALL)

#endif /* HOST_CHECK_NUMERICS_FAMILY_H */
