/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.h: random numbers for a spec. The grid and linear_spec_draw() use lists of values; here lengths, windows, heads,
 * pages, snapshots and similar numbers are drawn from all accepted values.
 */
#ifndef HOST_CHECK_CASES_NUMBERS_H
#define HOST_CHECK_CASES_NUMBERS_H

#include "host/check/cases/grid.h"
#include "host/check/cases/linear_find.h"

/* Whom numbers are for: each stays as drawn from the seed if query accepts the spec with it, and if its work is at most
 * `most_work`: products of a query's and a key's element; of linear layers elements of states that its rows have between
 * them. */
struct numbers_for {
    const struct grid *grid;             /* of all but linear layers, */
    const attn_options *options;         /* and with these options; */
    const struct check_subject *subject; /* of linear ones */
    int64_t most_work;
};

/* Products of a query's and a key's element. */
int64_t numbers_work(const struct case_spec *spec);

/* Other numbers of the batch: sequences and their lengths, who decodes, snapshots, gaps, padding, first rows. */
void numbers_draw_batch(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec);

/* The same of the layer: windows, chunks, scale and cap, heads, dimensions, pages; the convolution's width, limits of
 * decays. */
void numbers_draw_layer(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec);

/* Runs of sequences with first pages in common and a hint of them, in a third of the cases and wherever sequences are
 * many. What else the spec has stays: sinks, slopes, caps, masks, and whether LSE is asked for. */
void numbers_draw_hint(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec);

/* A few sequences with a query or two, before up to some 3000 keys each: work that is cut along its
 * keys. false: the spec stays as it is. */
bool numbers_draw_few(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec);

/* Two things at once that are large: heads, sequences, padding, keys of a sequence, queries of one;
 * all else is small. The spec stays as it is where no such two are accepted. */
void numbers_draw_large(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec);

#endif /* HOST_CHECK_CASES_NUMBERS_H */
