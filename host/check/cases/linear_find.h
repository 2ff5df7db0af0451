/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_find.h: specs of linear layers that a backend accepts, and the text for a failing one.
 */
#ifndef HOST_CHECK_CASES_LINEAR_FIND_H
#define HOST_CHECK_CASES_LINEAR_FIND_H

#include "host/check/check.h"
#include "host/check/cases/linear_case.h"

enum { LINEAR_TEXT = 700 };

/* Does query accept the spec? If not, `reason` (of LINEAR_TEXT) gets the reason. */
bool linear_accepts(const struct check_subject *subject, const struct case_spec *spec,
                    char *reason);

#define LINEAR_UNASKED UINT32_MAX

/* Families of which something is accepted: a set of bits, asked for once where the subject has a place
 * for it. How many, at least 1: a check that finds none has a case that is skipped. */
uint32_t linear_families(const struct check_subject *subject);
int32_t linear_count_families(const struct check_subject *subject);

/* Family `index` of those of the set; ATTN_LINEAR_COUNT = there are fewer. */
uint32_t linear_family_at(uint32_t set, int32_t index);

/* The first spec of a family that is accepted, of those that the seed gives, each changed (NULL = not). If there is none,
 * `reason` (of LINEAR_TEXT) says why the first was not. */
bool linear_find(const struct check_subject *subject, uint32_t family, uint64_t seed,
                 spec_change change, int32_t index, struct case_spec *spec, char *reason);

/* The same for case run->index of families times variants: family index % families, variant index /
 * families. False: skipped. */
bool linear_find_case(struct check_run *run, spec_change change, struct case_spec *spec);

/* Make it a batch of EXTEND with these sequences, as linear_spec_describe() prints them: "5ip 0 3id" are sequences of
 * 5, 0 and 3 rows, with an initial state (i), in place (p), dropped (d). */
void linear_set_extend(struct case_spec *spec, const char *sequences);

/* Of another mode: in DECODE each sequence has one row, and the first is row 0. */
void linear_set_mode(struct case_spec *spec, uint32_t mode);

/* Make it a batch of six sequences of 0 to 67 rows, with initial states and without. A spec_change. */
void linear_set_many(struct case_spec *spec, int32_t index);

#endif /* HOST_CHECK_CASES_LINEAR_FIND_H */
