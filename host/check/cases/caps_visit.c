/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/cases/caps_visit.h"

#include "host/base/mix.h"

#include <string.h>

enum { CASES = 10, PROBLEMS = 1000 /* of a case */, PROBLEM_TEXT = 600 };

/* ---- Asking ---------------------------------------------------------------------------------- */

void caps_ask(const struct check_subject *subject, const attn_problem *problem,
              struct caps_answer *answer)
{
    memset(&answer->verdict, 0, sizeof answer->verdict);
    memset(answer->reasons, 0, sizeof answer->reasons);
    host_error_init(&answer->error);
    for (int r = 0; r < CAPS_MAX_REASONS; r++)
        answer->reasons[r].struct_size = sizeof(attn_reason);
    answer->verdict = (attn_verdict){.struct_size = sizeof(attn_verdict),
                                     .reasons_capacity = CAPS_MAX_REASONS,
                                     .reasons = answer->reasons};
    answer->status = subject->type->query(subject->type, subject->options, subject->services,
                                          problem, &answer->verdict, &answer->error.base);
    for (int r = 0; r < CAPS_MAX_REASONS; r++) {
        attn_reason *reason = &answer->reasons[r];
        reason->child[sizeof reason->child - 1] = '\0';
        reason->got[sizeof reason->got - 1] = '\0';
        reason->accepted[sizeof reason->accepted - 1] = '\0';
    }
}

bool caps_accepts(const struct check_subject *subject, const struct caps_problem *p)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    return subject->type->query(subject->type, subject->options, subject->services, &p->problem,
                                &verdict, NULL) == ATTN_OK &&
           verdict.supported;
}

uint32_t caps_num_reasons(const struct caps_answer *answer)
{
    uint32_t count = answer->verdict.num_reasons;
    return answer->status != ATTN_OK || answer->verdict.supported ? 0
           : count < CAPS_MAX_REASONS                             ? count
                                                                  : CAPS_MAX_REASONS;
}

bool caps_same_reason(const attn_reason *a, const attn_reason *b)
{
    return a->code == b->code && a->field == b->field && a->with_field == b->with_field &&
           strcmp(a->child, b->child) == 0 && strcmp(a->got, b->got) == 0 &&
           strcmp(a->accepted, b->accepted) == 0;
}

/* ---- One after the other --------------------------------------------------------------------- */

void caps_tell(struct caps_visit *visit, const struct caps_problem *p, const char *what)
{
    char text[PROBLEM_TEXT];
    caps_problem_describe(p, text, sizeof text);
    check_fail(visit->run, "%s; the problem: %s", what, text);
}

void caps_visit_problems(struct check_run *run, caps_visitor look)
{
    struct caps_visit visit = {.run = run, .grid = grid_of(run->subject)};
    CHECK_THAT(run, visit.grid, "no memory for the grid");
    for (int32_t n = 0; n < PROBLEMS; n++) {
        struct caps_problem p;
        struct caps_answer answer;
        visit.seed = mix_absorb(run->seed, (uint64_t)n);
        caps_problem_random(&p, visit.grid, visit.seed);
        if (n % 50 == 0)
            check_note(run, "random problem %d of %d", n, PROBLEMS);
        caps_ask(run->subject, &p.problem, &answer);
        bool supported = answer.status == ATTN_OK && answer.verdict.supported;
        visit.accepted += supported;
        visit.refused += answer.status == ATTN_OK && !supported;
        if (!look(&visit, &p, &answer))
            break;
    }
    grid_release(run->subject, (struct grid *)(uintptr_t)visit.grid);
}

int32_t caps_count_cases(const struct check_subject *subject)
{
    return subject->exhaustive ? 4 * CASES : CASES;
}
