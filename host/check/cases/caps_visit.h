/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_visit.h: random problems and query's answers to them, for the checks of group CAPS.
 */
#ifndef HOST_CHECK_CASES_CAPS_VISIT_H
#define HOST_CHECK_CASES_CAPS_VISIT_H

#include "host/check/cases/caps_problem.h"
#include "host/base/error.h"

enum { CAPS_MAX_REASONS = 24 };

/* What query answers. */
struct caps_answer {
    attn_status status;
    attn_verdict verdict;
    attn_reason reasons[CAPS_MAX_REASONS];
    host_error error;
};

/* Ask with room for all reasons; their texts are terminated. */
void caps_ask(const struct check_subject *subject, const attn_problem *problem,
              struct caps_answer *answer);

/* Does the answer accept the problem? */
bool caps_accepts(const struct check_subject *subject, const struct caps_problem *p);

/* Reasons that can be read; 0 if the answer accepts. */
uint32_t caps_num_reasons(const struct caps_answer *answer);

/* Is one of them about this field? */
bool caps_names_field(const struct caps_answer *answer, uint32_t field);

/* Are two reasons equal? Two answers? */
bool caps_same_reason(const attn_reason *a, const attn_reason *b);
bool caps_same_answer(const struct caps_answer *a, const struct caps_answer *b);

/* The loop of a case over its problems. */
struct caps_visit {
    struct check_run *run;
    const struct grid *grid;
    struct caps_problem plain; /* one that is mostly accepted */
    uint64_t seed;             /* of the problem */
    int64_t accepted, refused;
};

/* A check of a problem and its answer. False: it has reported a failure, and the case ends. */
typedef bool caps_visitor(struct caps_visit *visit, const struct caps_problem *p,
                          const struct caps_answer *answer);

/* The thousand problems of a case, and how many cases there are. */
void caps_visit_problems(struct check_run *run, caps_visitor *look);
int32_t caps_count_cases(const struct check_subject *subject);

/* The same of latent or linear layers (kind: ATTN_KIND_MLA, ATTN_KIND_LINEAR). Skipped where no
 * plain problem of that kind is accepted. */
void caps_visit_kind(struct check_run *run, uint32_t kind, caps_visitor *look);
int32_t caps_count_kind_cases(const struct check_subject *subject, uint32_t kind);

/* Find a plain problem of that kind that query accepts. False: there is none, and `refusal`, if it
 * is not NULL, gets the first reason. */
enum { CAPS_TEXT = 400 };
bool caps_find_plain(const struct check_subject *subject, const struct grid *grid, uint32_t kind,
                     struct caps_problem *p, char refusal[CAPS_TEXT]);

/* Report a failure, with the problem. Returns false, for the caller to return. */
bool caps_tell(struct caps_visit *visit, const struct caps_problem *p, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* HOST_CHECK_CASES_CAPS_VISIT_H */
