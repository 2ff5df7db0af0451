/* SPDX-License-Identifier: Apache-2.0
 *
 * family.h: rows of cases in some variants of each point, which a function makes out of a plain case that is small
 * in all that the row is not about.
 */
#ifndef HOST_CHECK_NUMERICS_FAMILY_H
#define HOST_CHECK_NUMERICS_FAMILY_H

#include "host/check/cases/kind.h"

/* A row of such cases, of SOFTMAX_VARIED or LATENT_VARIED. */
#define LARGE_ROW(rule, name, sentence, cases)                                                     \
    KIND_ROW(rule, #name, large, CHECK_NEEDS_COMPUTE, sentence, cases)
/* Two of them: NAME of softmax layers, mla_NAME of latent ones. */
#define LARGE_ROWS(rule, name, sentence, softmax, latent)                                          \
    LARGE_ROW(rule, name, sentence, softmax),                                                      \
        LARGE_ROW(rule, mla_##name, sentence " (latent layers)", latent)
void run_large(struct check_run *run);

/* `run` of a row whose cases keep the heads and dimensions of the grid's base. */
void run_varied(struct check_run *run);

/* Prefix and new tokens of each sequence. What a mode or a type says of lengths holds for them too.
 */
void family_set_lengths(struct case_spec *spec, int32_t count, const int32_t (*lengths)[2]);

#define SMALL_LATENTS BIT(MLA_SMALL)
#define SMALL_VARIED(function, number, ...)                                                        \
    LATENT_VARIED(function, number, BOTH_FORMS, MLA_LATENT, SMALL_LATENTS, __VA_ARGS__)

#endif /* HOST_CHECK_NUMERICS_FAMILY_H */
