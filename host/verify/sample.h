/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.h: the sample of verified output rows; those that stay enter the digest.
 *
 * The sample is a function of seed, request, position and layer alone, so it does not depend on how
 * requests were batched, and anyone can evaluate it from the trace. To the bit (mix.h; all
 * arithmetic modulo 2^64):
 *
 *   state = 0x6174746e686f7374                         ("attnhost")
 *   for word in seed, request, position, layer:  state = mix_absorb(state, word)
 *   sampled = (state >> 11) < threshold,  threshold = floor(rate * 2^53)
 *
 * `request` is its index in the workload; for a rejected draft it is the number of its token,
 * request + requests * (1 + its row in the verification) (workload/token_key.h).
 *
 * rate * 2^53 is exact in IEEE double, and state >> 11 < 2^53, so rate 1 takes every row and rate 0
 * none. */
#ifndef HOST_VERIFY_SAMPLE_H
#define HOST_VERIFY_SAMPLE_H

#include <stdint.h>

/* floor(rate * 2^53); a rate below 0 or NaN counts as 0, one above 1 as 1. */
uint64_t sample_threshold(double rate);

/* Whether the row of `request` (as above) at absolute `position` is sampled, in two parts, as a row is looked at in many
 * layers: the state after `position`, and 1 if the row is sampled in a layer, else 0. */
uint64_t sample_row_state(uint64_t seed, int64_t request, int64_t position);
int sample_in_layer(uint64_t row_state, int32_t layer, uint64_t threshold);

#endif /* HOST_VERIFY_SAMPLE_H */
