/* SPDX-License-Identifier: Apache-2.0
 *
 * sequel_draw.h: specs that belong together, drawn from a seed: calls of one instance, in sequence
 * or in one batch. Of softmax layers, or of latent ones. */
#ifndef HOST_CHECK_CASES_SEQUEL_DRAW_H
#define HOST_CHECK_CASES_SEQUEL_DRAW_H

#include "host/check/cases/grid.h"

/* Which layers a draw is about, and a set of bits of modes that it may have; 0 = any. */
struct sequel_wish {
    bool latent;
    uint32_t modes;
    bool padded;
    bool sparse; /* with an indexer, if one is accepted */
};

/* A point that is accepted. false: none of those that were drawn is. */
bool sequel_draw(const struct grid *grid, const struct sequel_wish *wish, uint64_t seed,
                 struct grid_point *point, struct case_spec *spec);

/* Another call of the same layer: all that a problem has is as in `point`, mode, form, mask,
 * lengths, sources, slots and what is asked for are drawn. A mask kind (MASK_*) that is not
 * negative is taken if it is accepted. */
bool sequel_redraw(const struct grid *grid, const struct grid_point *point, int32_t mask,
                   uint64_t seed, struct case_spec *spec);

/* Another layer group in the batch of `first`: mode, mask, queries and padding are its own, all
 * else is drawn. */
bool sequel_draw_beside(const struct grid *grid, const struct grid_point *first,
                        const struct case_spec *first_spec, bool latent, uint64_t seed,
                        struct grid_point *point, struct case_spec *spec);

/* The batch of `first` for another layer: its queries; keys of the layer's own where it has such.
 */
void sequel_take_batch(struct case_spec *spec, const struct case_spec *first);

/* Is anything of softmax layers, or of latent ones, accepted? */
bool sequel_serves(const struct check_subject *subject, bool latent);

/* `count` cases; one that is skipped where nothing is; forty times as many of an exhaustive run. */
int32_t sequel_count(const struct check_subject *subject, bool latent, int32_t count);

#endif /* HOST_CHECK_CASES_SEQUEL_DRAW_H */
