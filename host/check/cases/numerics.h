/* SPDX-License-Identifier: Apache-2.0
 *
 * numerics.h: shared by checks that run cases: from a spec to PASS, FAIL or SKIP.
 */
#ifndef HOST_CHECK_CASES_NUMERICS_H
#define HOST_CHECK_CASES_NUMERICS_H

#include "host/check/check.h"
#include "host/check/cases/forward_case.h"
#include "host/check/cases/grid.h"

/* The subject as sessions call it. `options` NULL = its own. */
struct case_backend numerics_backend(const struct check_subject *subject,
                                     const attn_options *options);

/* Report a failure of a case with this spec; SKIP if this machine lacks a kernel or memory. */
void numerics_report(struct check_run *run, const struct case_spec *spec, attn_status status,
                     const char *text);

/* ATTN_OK, or report it with the run's error. */
bool numerics_good(struct check_run *run, const struct case_spec *spec, attn_status status);

/* The same of a verdict on the case; where it fails, also how its operands lie. */
bool numerics_told(struct check_run *run, const struct forward_case *c,
                   const struct case_verdict *verdict);

/* An instance of the run's subject; `options` NULL = its own. */
attn_status numerics_create(struct check_run *run, const attn_options *options,
                            const attn_problem *problem, attn_instance **instance);

/* A case of the run's seed, or a variant of `base`. NULL: it was reported. */
struct forward_case *numerics_case(struct check_run *run, const struct case_spec *spec,
                                   const struct forward_case *base);

/* A session of this subject for the case. NULL: it was reported. */
struct case_session *numerics_session(struct check_run *run, const struct check_subject *subject,
                                      const struct forward_case *c, const attn_options *options,
                                      const struct case_setup *setup);

/* Run a case in a session, as often as the subject says, with a note for each repetition. And judge it. False: it was
 * reported. */
void numerics_judge_into(struct check_run *run, struct case_session *session,
                         struct forward_case *c, struct case_verdict *verdict);
bool numerics_judge(struct check_run *run, struct case_session *session, struct forward_case *c);

/* The same in a session of its own, in memory that is as large as asked for, and aligned no better. */
bool numerics_judge_alone(struct check_run *run, struct forward_case *c,
                          const attn_options *options);

/* How many of `count` random cases: all, 20 times as many with --exhaustive, a twentieth where each
 * is likely to be compiled first. */
int32_t numerics_few(const struct check_subject *subject, int32_t count);

/* How many points of a product of choices are accepted. */
int32_t numerics_points(const struct check_subject *subject, const struct grid_choice *choices);

/* How many cases that gives: one where there are none, which is skipped with the reason. */
int32_t numerics_count(const struct check_subject *subject, const struct grid_choice *choices);

/* The spec of case run->index of a product, and the options it is run with. False: it was skipped.
 */
bool numerics_spec(struct check_run *run, const struct grid *grid,
                   const struct grid_choice *choices, struct case_spec *spec,
                   const attn_options **options);

/* Case run->index of a product. False: it was skipped, or failed. It is closed in either case. */
struct numerics_point {
    struct check_run *run;
    struct grid *grid;
    struct case_spec spec; /* the caller's to change */
    const attn_options *options;
};
bool numerics_open(struct numerics_point *at, struct check_run *run,
                   const struct grid_choice *choices);

/* Does query accept the problem, with these options? *verdict is what it answers. */
bool numerics_query(const struct check_subject *subject, const attn_options *options,
                    const attn_problem *problem, attn_verdict *verdict);

/* Does query accept a spec that was made of the point's? If not, the case is skipped. */
bool numerics_accepts(struct numerics_point *at, struct case_spec *spec);

/* An accepted point drawn from the run's seed, with the base's value for axes to be left out, and
 * its spec: of softmax layers, or of latent ones where one of `latents` (NULL = softmax) is
 * accepted. False: there is none, and the case was skipped. */
bool numerics_random(struct check_run *run, const struct grid *grid,
                     const struct grid_choice *latents, struct grid_point *point,
                     struct case_spec *spec);

/* Cases that are found by asking: which of a list query accepts, in a variant of the check. How many there are, and case
 * `index` of them; if there are none, why the first is refused. */
typedef int32_t (*numerics_find)(const struct grid *grid, bool variant, int32_t index,
                                 struct case_spec *spec, char *reason, size_t size);
int32_t numerics_count_found(const struct check_subject *subject, numerics_find find, bool variant);
void numerics_run_found(struct check_run *run, numerics_find find, bool variant);

/* Turn e4m3 in q, new keys and values and the output into e5m2, whose bars no needle crosses. */
void numerics_make_e5m2(struct case_spec *spec, int32_t variant);

/* By how much of 1 two ways to compute one thing may differ, in which rounding happens in other
 * places: some last bits of the type. */
double numerics_unit(attn_dtype dtype);

/* Run one spec from start to end, in memory of exactly the requested size, as often as the subject
 * asks. */
void numerics_run(struct check_run *run, const struct case_spec *spec, const attn_options *options);

#endif /* HOST_CHECK_CASES_NUMERICS_H */
