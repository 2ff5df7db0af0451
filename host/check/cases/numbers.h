/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.h: random numbers for a spec. The grid uses lists of values; here lengths, windows,
 * heads, pages and similar numbers are drawn from all accepted values.
 */
#ifndef HOST_CHECK_CASES_NUMBERS_H
#define HOST_CHECK_CASES_NUMBERS_H

#include "host/check/cases/forward_case.h"
#include "host/check/cases/grid.h"

/* Products of a query's and a key's element. */
int64_t numbers_work(const struct case_spec *spec);

/* Other numbers of the batch: sequences and their lengths, padding, first rows. Each as drawn from
 * the seed, if query accepts the spec with it and its work is at most `most_work`. */
void numbers_draw_batch(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec);

/* Runs of sequences with first pages in common and a hint of them, in a third of the cases. What
 * else the spec has stays: sinks, slopes, caps, masks, and whether LSE is asked for. */
void numbers_draw_hint(const struct grid *grid, const attn_options *options, uint64_t seed,
                       int64_t most_work, struct case_spec *spec);

/* A few sequences with a query or two, before up to some 3000 keys each: work that is cut along its
 * keys. false: the spec stays as it is. */
bool numbers_draw_few(const struct grid *grid, const attn_options *options, uint64_t seed,
                      int64_t most_work, struct case_spec *spec);

/* The same of the layer: windows, chunks, scale and cap, heads, dimensions, pages. */
void numbers_draw_layer(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec);

/* Two things at once that are large: heads, sequences, padding, keys of a sequence, queries of one;
 * all else is small. The spec stays as it is where no such two are accepted. */
void numbers_draw_large(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec);

#endif /* HOST_CHECK_CASES_NUMBERS_H */
