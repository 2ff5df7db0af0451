/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_numbers.h: cases/numbers.h for recurrent layers: linear_spec_draw takes values of lists,
 * here heads, dimensions, lengths, decays' limits, snapshots and padding become any that are
 * accepted.
 */
#ifndef HOST_CHECK_CASES_LINEAR_NUMBERS_H
#define HOST_CHECK_CASES_LINEAR_NUMBERS_H

#include "host/check/cases/linear_find.h"

/* Other numbers of the layer: heads, dimensions, the convolution's width, limits of decays. Each as
 * drawn from the seed, if query accepts the spec with it and its rows have at most `most_work`
 * elements of states between them. */
void linear_numbers_draw_layer(const struct check_subject *subject, uint64_t seed,
                               int64_t most_work, struct linear_spec *spec);

/* The same of the batch: sequences and their rows, who decodes, snapshots, gaps, padding. */
void linear_numbers_draw_batch(const struct check_subject *subject, uint64_t seed,
                               int64_t most_work, struct linear_spec *spec);

#endif /* HOST_CHECK_CASES_LINEAR_NUMBERS_H */
