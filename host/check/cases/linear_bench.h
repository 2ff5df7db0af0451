/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_bench.h: what the checks of linear layers have in common: from a family to a spec that is
 * accepted, from a spec to PASS, FAIL or SKIP.
 */
#ifndef HOST_CHECK_CASES_LINEAR_BENCH_H
#define HOST_CHECK_CASES_LINEAR_BENCH_H

#include "host/check/check.h"
#include "host/check/cases/linear_case.h"

enum { LINEAR_TEXT = 700 };

/* ---- Specs that are accepted ----------------------------------------------------------------- */

/* Does query accept the spec? If not, `reason` (of LINEAR_TEXT) says why. */
bool linear_accepts(const struct check_subject *subject, const struct linear_spec *spec,
                    char *reason);

#define LINEAR_UNASKED UINT32_MAX

/* Families of which something is accepted: a set of bits, asked for once where the subject has a place
 * for it. How many, at least 1: a check that finds none has a case that is skipped. */
uint32_t linear_families(const struct check_subject *subject);
int32_t linear_count_families(const struct check_subject *subject);

/* Family `index` of those of the set; ATTN_LINEAR_COUNT = there are fewer. */
uint32_t linear_family_at(uint32_t set, int32_t index);

/* What a check changes in the spec that was drawn for a case; NULL = nothing. */
typedef void (*linear_change)(struct linear_spec *spec, int32_t index);

/* The first spec of a family that is accepted, of those that the seed gives. If there is none,
 * `reason` (of LINEAR_TEXT) says why the first was not. */
bool linear_find(const struct check_subject *subject, uint32_t family, uint64_t seed,
                 linear_change change, int32_t index, struct linear_spec *spec, char *reason);

/* The same for case run->index of families times variants: family index % families, variant index /
 * families. False: skipped. */
bool linear_find_case(struct check_run *run, linear_change change, struct linear_spec *spec);

/* Make it a batch of EXTEND with these sequences. */
void linear_set_extend(struct linear_spec *spec, int32_t num_sequences,
                       const struct linear_case_sequence *sequences);
/* Make it a batch of LINEAR_MANY sequences of 0 to 67 rows, with initial states and without. A linear_change. */
enum { LINEAR_MANY = 6 };
void linear_set_many(struct linear_spec *spec, int32_t index);

/* ---- A case ---------------------------------------------------------------------------------- */

/* A case and a session for it. What goes wrong is reported, and then the answer is false. */
struct linear_bench {
    struct check_run *run;
    const struct linear_spec *spec;
    struct linear_case *c;
    struct case_session *session;
};

/* The case alone, without a session. */
bool linear_bench_make(struct linear_bench *bench, struct check_run *run,
                       const struct linear_spec *spec);

bool linear_bench_open(struct linear_bench *bench, struct check_run *run,
                       const struct linear_spec *spec);
void linear_bench_close(struct linear_bench *bench);

/* A session of another subject, or with another setup, for the same case; it is the caller's. */
bool linear_bench_session(const struct linear_bench *bench, const struct check_subject *subject,
                          const struct case_setup *setup, struct case_session **session);

/* The whole batch (`part` NULL) or a part, in the bench's session. */
bool linear_bench_forward(struct linear_bench *bench, const struct linear_part *part);

/* Run one of the parts that a case is cut into, and judge them together. An fp32 state is judged at
 * the end, by one recurrence over all parts. A state that is rounded when stored is judged part by
 * part, each from the state that the part found. */
bool linear_bench_part(struct linear_bench *bench, const struct linear_part *part);
bool linear_bench_judge_parts(struct linear_bench *bench);

bool linear_bench_reset(struct linear_bench *bench);
bool linear_bench_judge(struct linear_bench *bench, bool whole);

/* Reset, forward the whole batch, and compare with the bytes that were fetched before: they are
 * equal, or it is reported with `text` and where the first difference is. */
bool linear_bench_repeat(struct linear_bench *bench, const void *bytes, const char *text);

/* A copy of what was fetched last; NULL: it was reported. */
void *linear_bench_copy(const struct linear_bench *bench);

/* A spec's whole batch, forwarded and judged, as often as the subject says: with the same bits, and
 * twice at least, where that is promised; else judged each time. */
void linear_run_spec(struct check_run *run, const struct linear_spec *spec);

/* The same of linear_find_case(). */
void linear_run_case(struct check_run *run, linear_change change);

/* The case fails, with the spec after the text; what the machine lacks is SKIP. */
void linear_report(struct check_run *run, const struct linear_spec *spec, attn_status status,
                   const char *text);

#endif /* HOST_CHECK_CASES_LINEAR_BENCH_H */
