/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_visit.c: the loop over random problems.
 */
#include "host/check/cases/caps_visit.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/setting.h"
#include "host/check/trail.h"

#include "host/base/mix.h"
#include "host/select/select.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    CASES = 10,
    KIND_CASES = 3,
    PROBLEMS = 1000, /* of a case */
    PLAIN = 64,      /* of which one is accepted, or else none of the kind is asked about */
    WHAT_TEXT = 700, /* of what is wrong */
    PROBLEM_TEXT = 800
};

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
    check_trail_live(subject->trail);
    for (int r = 0; r < CAPS_MAX_REASONS; r++) {
        attn_reason *reason = &answer->reasons[r];
        reason->child[sizeof reason->child - 1] = '\0';
        reason->got[sizeof reason->got - 1] = '\0';
        reason->accepted[sizeof reason->accepted - 1] = '\0';
    }
}

bool caps_accepts(const struct check_subject *subject, const struct caps_problem *p)
{
    attn_verdict verdict;
    bool accepts = numerics_query(subject, subject->options, &p->problem, &verdict);
    check_trail_live(subject->trail);
    return accepts;
}

uint32_t caps_num_reasons(const struct caps_answer *answer)
{
    uint32_t count = answer->verdict.num_reasons;
    return answer->status != ATTN_OK || answer->verdict.supported ? 0
           : count < CAPS_MAX_REASONS                             ? count
                                                                  : CAPS_MAX_REASONS;
}

bool caps_names_field(const struct caps_answer *answer, uint32_t field)
{
    for (uint32_t r = 0; r < caps_num_reasons(answer); r++)
        if (answer->reasons[r].field == field)
            return true;
    return false;
}

bool caps_same_reason(const attn_reason *a, const attn_reason *b)
{
    return a->code == b->code && a->field == b->field && a->with_field == b->with_field &&
           strcmp(a->child, b->child) == 0 && strcmp(a->got, b->got) == 0 &&
           strcmp(a->accepted, b->accepted) == 0;
}

bool caps_same_answer(const struct caps_answer *a, const struct caps_answer *b)
{
    const attn_verdict *v = &a->verdict, *w = &b->verdict;
    if (a->status != b->status || strcmp(a->error.text, b->error.text) != 0)
        return false;
    if (a->status != ATTN_OK)
        return true;
    if (v->supported != w->supported || v->num_reasons != w->num_reasons)
        return false;
    for (uint32_t r = 0; r < caps_num_reasons(a); r++)
        if (!caps_same_reason(&a->reasons[r], &b->reasons[r]))
            return false;
    return !v->supported ||
           (v->graph_level == w->graph_level && v->traits == w->traits &&
            v->reads_new_kv_unquantised == w->reads_new_kv_unquantised &&
            v->graph_seq_len_fill == w->graph_seq_len_fill && v->host_arrays == w->host_arrays &&
            v->cost_hint == w->cost_hint && v->device_bytes == w->device_bytes &&
            v->pinned_bytes == w->pinned_bytes && v->host_bytes == w->host_bytes);
}

/* ---- One after the other --------------------------------------------------------------------- */

bool caps_tell(struct caps_visit *visit, const struct caps_problem *p, const char *format, ...)
{
    char what[WHAT_TEXT], text[PROBLEM_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    caps_problem_describe(p, text, sizeof text);
    check_fail(visit->run, "%s; the problem: %s", what, text);
    return false;
}

/* One problem; false ends the case. */
static bool visit_one(struct caps_visit *visit, uint32_t kind, uint64_t seed, caps_visitor *look)
{
    struct caps_problem p;
    struct caps_answer answer;
    visit->seed = seed;
    if (kind == ATTN_KIND_SOFTMAX)
        caps_problem_random(&p, visit->grid, seed);
    else
        caps_problem_random_kind(&p, visit->grid, kind, seed);
    caps_ask(visit->run->subject, &p.problem, &answer);
    bool supported = answer.status == ATTN_OK && answer.verdict.supported;
    visit->accepted += supported;
    visit->refused += answer.status == ATTN_OK && !supported;
    return look(visit, &p, &answer);
}

static bool accepts_plain(void *ctx, const attn_options *options)
{
    const struct caps_visit *visit = ctx;
    struct check_subject with = *visit->run->subject;
    with.options = options;
    return caps_accepts(&with, &visit->plain);
}

/* In every second case with options that are drawn, which leave the plain problem accepted. */
void caps_visit_kind(struct check_run *run, uint32_t kind, caps_visitor *look)
{
    const struct check_subject *given = run->subject;
    struct caps_visit visit = {.run = run, .grid = grid_of(run->subject)};
    struct check_subject with = *given;
    struct options *drawn = NULL;
    char what[3 * SETTING_TEXT] = "";
    struct case_spec spec;
    char refusal[CAPS_TEXT];
    grid_spec(visit.grid, &visit.grid->base, &spec);
    caps_problem_init(&visit.plain, &spec, &run->subject->device->info);
    if (kind != ATTN_KIND_SOFTMAX &&
        !caps_find_plain(run->subject, visit.grid, kind, &visit.plain, refusal))
        check_skip(run, "%s", refusal);
    else if (run->index % 2)
        drawn = setting_draw_options(run, accepts_plain, &visit, what);
    if (drawn) {
        with.options = &drawn->view;
        run->subject = &with;
    }
    for (int32_t n = 0; n < PROBLEMS && run->code == CHECK_PASS; n++) {
        if (n % 50 == 0)
            check_note(run, "random problem %d of %d", n, PROBLEMS);
        if (!visit_one(&visit, kind, mix_absorb(run->seed, (uint64_t)n), look))
            break;
    }
    run->subject = given;
    setting_tell(run, what);
    options_destroy(drawn);
}

void caps_visit_problems(struct check_run *run, caps_visitor *look)
{
    caps_visit_kind(run, ATTN_KIND_SOFTMAX, look);
}

/* ---- How many, and of what ------------------------------------------------------------------- */

int32_t caps_count_cases(const struct check_subject *subject)
{
    return subject->exhaustive ? 4 * CASES : CASES;
}

int32_t caps_count_kind_cases(const struct check_subject *subject, uint32_t kind)
{
    struct caps_problem plain;
    bool served = caps_find_plain(subject, grid_of(subject), kind, &plain, NULL);
    return !served ? 1 : subject->exhaustive ? 4 * KIND_CASES : KIND_CASES;
}

bool caps_find_plain(const struct check_subject *subject, const struct grid *grid, uint32_t kind,
                     struct caps_problem *p, char refusal[CAPS_TEXT])
{
    struct caps_answer answer;
    for (uint64_t n = PLAIN; n > 0; n--) {
        caps_problem_plain_kind(p, grid, kind, mix_absorb(0, n));
        if (caps_accepts(subject, p))
            return true;
    }
    if (!refusal)
        return false;
    caps_ask(subject, &p->problem, &answer);
    if (caps_num_reasons(&answer) > 0)
        select_reason_text(&answer.reasons[0], refusal, CAPS_TEXT);
    else
        snprintf(refusal, CAPS_TEXT, "query accepts no plain problem of kind %u%s%s", kind,
                 answer.status == ATTN_OK ? "" : ": ", host_error_text(&answer.error));
    return false;
}
