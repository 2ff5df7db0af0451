/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_visit.h: random problems and query's answers to them: for the checks of group CAPS
 * (check/contract/caps.c, caps_reasons.c).
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

/* Is the answer yes? */
bool caps_accepts(const struct check_subject *subject, const struct caps_problem *p);

/* Reasons that are there to be looked at; 0 unless the answer is no. */
uint32_t caps_num_reasons(const struct caps_answer *answer);

/* Is one of them about this field? */
bool caps_names_field(const struct caps_answer *answer, uint32_t field);

/* Do two reasons say the same; do two answers? */
bool caps_same_reason(const attn_reason *a, const attn_reason *b);
bool caps_same_answer(const struct caps_answer *a, const struct caps_answer *b);

/* A case at its problems. */
struct caps_visit {
    struct check_run *run;
    const struct grid *grid;
    struct caps_problem plain; /* one that is mostly accepted */
    uint64_t seed;             /* of the problem */
    int64_t accepted, refused;
};

/* What a check makes of a problem and its answer. False: it was reported, and the case ends. */
typedef bool (*caps_visitor)(struct caps_visit *visit, const struct caps_problem *p,
                             const struct caps_answer *answer);

/* The thousand problems of a case, and how many cases there are. */
void caps_visit_problems(struct check_run *run, caps_visitor look);
int32_t caps_count_cases(const struct check_subject *subject);

/* The same of latent or linear layers (kind: ATTN_KIND_MLA, ATTN_KIND_LINEAR). Skipped where no
 * plain problem of that kind is accepted. */
void caps_visit_kind(struct check_run *run, uint32_t kind, caps_visitor look);
int32_t caps_count_kind_cases(const struct check_subject *subject, uint32_t kind);

/* A plain problem of that kind that query accepts. False: there is none, and `refusal`, if it is
 * not NULL, has the first reason. */
enum { CAPS_TEXT = 400 };
bool caps_find_plain(const struct check_subject *subject, const struct grid *grid, uint32_t kind,
                     struct caps_problem *p, char refusal[CAPS_TEXT]);

/* A thing that query has to refuse, and the field that has to be named (0 = any). */
enum { CAPS_CHANGES = 3 };
struct caps_unknown {
    const char *what;
    uint32_t field;
    struct caps_change {
        size_t member; /* of a caps_problem, of 32 bits; 0 = no change */
        uint32_t value;
        bool is_added; /* to the bits that are there */
    } changes[CAPS_CHANGES];
    const char
        *layout; /* of the state if that is the field, else of the KV cache; NULL = as it is */
    bool of_any; /* it is in problems of all kinds */
};
#define CAPS_CHANGE(member, number, is_added)                                                      \
    {                                                                                              \
        offsetof(struct caps_problem, member), number, is_added                                    \
    }
#define CAPS_VALUE(what, field, of_any, member, number)                                            \
    {                                                                                              \
        what, field, {CAPS_CHANGE(member, number, false)}, NULL, of_any                            \
    }
#define CAPS_BITS(what, field, of_any, member, bits)                                               \
    {                                                                                              \
        what, field, {CAPS_CHANGE(member, bits, true)}, NULL, of_any                               \
    }

/* Number `n` of those that are in problems of all kinds; NULL: there are fewer. */
const struct caps_unknown *caps_unknown_of_any(int32_t n);

/* Ask about a problem that is accepted, with that in it. */
void caps_must_refuse(struct check_run *run, struct caps_problem *p,
                      const struct caps_unknown *unknown);

/* Report a failure: what is wrong, and the problem. Returns false, as what found it does. */
bool caps_tell(struct caps_visit *visit, const struct caps_problem *p, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What the checks make of a problem: CAPS-01, CAPS-03 (caps.c). */
bool caps_look_same(struct caps_visit *visit, const struct caps_problem *p,
                    const struct caps_answer *answer);
bool caps_look_create(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer);
bool caps_look_bounds(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer);
bool caps_look_promises(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer);

/* CAPS-04, CAPS-06, CAPS-07 (caps_reasons.c). */
bool caps_look_reasons(struct caps_visit *visit, const struct caps_problem *p,
                       const struct caps_answer *answer);
bool caps_look_listed(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer);
bool caps_look_language(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer);
bool caps_look_capacity(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer);

#endif /* HOST_CHECK_CASES_CAPS_VISIT_H */
