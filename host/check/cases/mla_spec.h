/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_spec.h: which cases of latent attention a backend is checked with.
 *
 * A point is one of the grid, for what such layers share with all others (mode, types, pages,
 * lengths, masks), with what they have of their own: the form, the dimensions of the latent, the
 * packed layout of its cache. Axes that mean nothing here stay at 0: AXIS_TYPE, AXIS_DIM,
 * AXIS_V_DIM, AXIS_LAYOUT. Of SOURCE_PREFIX in the expanded form keys are a chunk of the prefix.
 */
#ifndef HOST_CHECK_CASES_MLA_SPEC_H
#define HOST_CHECK_CASES_MLA_SPEC_H

#include "host/check/cases/grid.h"

/* Dimensions by name; the others are counted. */
enum { MLA_SMALL, MLA_DEEPSEEK, MLA_ONE_BLOCK, MLA_DIMS = 7 };

struct mla_point {
    struct grid_point common;
    uint8_t expanded, packed, dims;
};

/* Sets of bits of the values of a point; every point that has one of each, and is as the base else.
 * `choices` (a choice without values ends them) are of the grid's axes. */
enum { MLA_ABSORBED = 1 << 0, MLA_EXPANDED = 1 << 1, MLA_LATENT = 1 << 0, MLA_PACKED = 1 << 1 };
struct mla_choice {
    uint32_t forms, layouts, dims;
    struct grid_choice choices[GRID_MAX_CHOICES + 1];
};

/* The spec of a point, and does query accept it? If not, the first reason stands in `reason` (may
 * be NULL). */
bool mla_accepts(const struct grid *grid, const struct mla_point *point, struct case_spec *spec,
                 char *reason, size_t size);

/* Point `index` of a product, counted over accepted ones, and how many there are. The reason of the
 * first that is refused is in `reason` if none is accepted. */
int32_t mla_product(const struct grid *grid, const struct mla_choice *choice, int32_t index,
                    struct mla_point *point, char *reason, size_t size);

/* Point n of a stream of random ones, accepted or not; axes of the set `without` are plain. */
struct mla_point mla_random(const struct grid *grid, uint64_t seed, uint64_t n, uint32_t without);

#endif /* HOST_CHECK_CASES_MLA_SPEC_H */
