/* SPDX-License-Identifier: Apache-2.0
 *
 * kind_linear.c: linear layers in the table of kinds, and cases of theirs that are cut into parts.
 */
#include "host/check/cases/kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"

static const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* `status` was OK; if not, it is reported. */
static bool passed(const struct kind_case *k, attn_status status, const host_error *error)
{
    if (status != ATTN_OK)
        linear_report(k->run, &k->linear, status, host_error_text(error));
    return status == ATTN_OK;
}

/* ---- Finding --------------------------------------------------------------------------------- */

static int32_t count_linear(const struct check_subject *subject, const struct kind_cases *cases)
{
    if (cases->drawn)
        return linear_families(subject) ? numerics_few(subject, cases->drawn) : 1;
    return kind_variants(cases) * linear_count_families(subject);
}

static bool find_linear(struct kind_case *k, const struct kind_cases *cases)
{
    k->variant = k->run->index / linear_count_families(k->run->subject) % kind_variants(cases);
    return linear_find_case(k->run, cases->change, &k->linear);
}

static bool accepts_linear(struct kind_case *k)
{
    char reason[LINEAR_TEXT];
    return linear_accepts(k->run->subject, &k->linear, reason);
}

static const attn_problem *pose_linear(const struct kind_case *k, struct kind_posed *posed)
{
    linear_pose(&posed->linear, &k->linear, &k->run->subject->device->info);
    return &posed->linear.problem;
}

static bool make_linear(struct kind_case *k)
{
    char what[LINEAR_TEXT];
    host_error error;
    host_error_init(&error);
    linear_spec_describe(&k->linear, what, sizeof what);
    check_note(k->run, "%s", what);
    attn_status status = linear_case_create(&k->linear, k->run->seed, k->run->subject->device,
                                            &k->recurrence, &error.base);
    return passed(k, status, &error);
}

static attn_problem *linear_problem(const struct kind_case *k)
{
    return linear_case_problem(k->recurrence);
}

/* Another family where there is one, of the same dtypes and layout. */
static bool linear_beside(struct kind_case *k, struct kind_beside *other)
{
    struct check_run *run = k->run;
    struct linear_spec beside;
    char reason[LINEAR_TEXT] = "";
    uint32_t set = linear_families(run->subject);
    uint32_t family = linear_family_at(set, (run->index + 1) % __builtin_popcount(set));
    bool found = linear_find(run->subject, family, mix_absorb(run->seed, 1),
                             run->check->cases->change, 0, &beside, reason);
    if (found) {
        beside.q_dtype = k->linear.q_dtype;
        beside.out_dtype = k->linear.out_dtype;
        beside.state_dtype = k->linear.state_dtype;
        beside.conv_dtype = k->linear.conv_dtype;
        beside.vk = k->linear.vk;
        found = linear_accepts(run->subject, &beside, reason);
    }
    if (!found) {
        check_skip(run, "%s", reason);
        return false;
    }
    linear_pose(&other->linear, &beside, &run->subject->device->info);
    other->linear.layer.layer_id += 3;
    other->problem = other->linear.problem;
    other->problem.bounds = linear_problem(k)->bounds;
    return true;
}

/* ---- Calling and judging --------------------------------------------------------------------- */

static void linear_operands(const struct kind_case *k, char *text, size_t size)
{
    linear_case_operands(k->recurrence, text, size);
}

static const void *linear_left(const struct kind_case *k, uint64_t *bytes)
{
    return linear_case_bytes(k->recurrence, bytes);
}

static uint32_t linear_operand(const struct kind_case *k, uint32_t role)
{
    bool written = role == ATTN_ROLE_OUT || role == ATTN_ROLE_STATE || role == ATTN_ROLE_CONV_STATE;
    if (!linear_case_has(k->recurrence, role))
        return 0;
    return (written ? KIND_WRITTEN : 0) |
           (linear_case_needs(k->recurrence, role) ? KIND_NEEDED : 0);
}

static void report_linear(const struct kind_case *k, attn_status status, const char *text)
{
    linear_report(k->run, &k->linear, status, text);
}

static attn_status forward_linear(struct kind_case *k, attn_error *error)
{
    attn_status status = linear_case_reset(k->recurrence, k->session, error);
    return status == ATTN_OK ? linear_case_forward(k->recurrence, k->session, NULL, error) : status;
}

static void judge_linear(struct kind_case *k, struct case_verdict *verdict)
{
    host_error error;
    host_error_init(&error);
    verdict->status = forward_linear(k, &error.base);
    if (verdict->status != ATTN_OK)
        snprintf(verdict->text, sizeof verdict->text, "%s", host_error_text(&error));
    verdict->good =
        verdict->status == ATTN_OK &&
        linear_case_judge(k->recurrence, k->session, true, verdict->text, sizeof verdict->text);
}

/* The text, and where the first difference is. */
static bool same_linear(struct kind_case *k, const void *first, const char *what)
{
    uint64_t size;
    const void *now = linear_left(k, &size);
    host_error error;
    host_error_init(&error);
    attn_status status = forward_linear(k, &error.base);
    if (status == ATTN_OK)
        status = linear_case_fetch(k->recurrence, k->session, &error.base);
    if (!passed(k, status, &error))
        return false;
    if (memcmp(first, now, size) == 0)
        return true;
    char where[LINEAR_TEXT / 2], all[LINEAR_TEXT];
    linear_case_tell_difference(k->recurrence, first, where, sizeof where);
    snprintf(all, sizeof all, "%s: %s", what, where);
    report_linear(k, ATTN_OK, all);
    return false;
}

static attn_status try_linear(struct kind_case *k, case_change change, void *ctx, attn_error *error)
{
    attn_status status = linear_case_reset(k->recurrence, k->session, error);
    return status == ATTN_OK ? linear_case_try(k->recurrence, k->session, change, ctx, error)
                             : status;
}

/* Repetition `n` of a batch whose first run left these bytes; NULL = none are promised. */
static bool repeat(struct kind_case *k, const void *first, int32_t n, int32_t count)
{
    char what[LINEAR_TEXT / 2], text[LINEAR_TEXT / 2];
    linear_spec_describe(&k->linear, what, sizeof what);
    check_note(k->run, "repetition %d of %d; %s", n, count, what);
    snprintf(text, sizeof text,
             "INVAR-02: repetition %d of %d gives other bits than the first run, and DETERMINISTIC "
             "is declared",
             n, count);
    return first ? same_linear(k, first, text) : kind_judge(k);
}

static void repeat_all(struct kind_case *k)
{
    bool same = case_session_verdict(k->session)->notes & ATTN_NOTE_DETERMINISTIC;
    int32_t count = k->run->subject->repeat;
    count = same && count < 2 ? 2 : count;
    void *first = same ? kind_keep(k) : NULL;
    bool good = first || !same;
    for (int32_t n = 2; n <= count && good; n++)
        good = repeat(k, first, n, count);
    free(first);
}

static void run_linear(struct kind_case *given)
{
    struct kind_case k = *given;
    if (make_linear(&k)) {
        k.session = kind_session(&k, k.run->subject, &exactly);
        if (k.session && kind_judge(&k))
            repeat_all(&k);
    }
    case_session_destroy(k.session);
    linear_case_destroy(k.recurrence);
}

const struct check_kind linear_layers = {.count = count_linear,
                                         .find = find_linear,
                                         .accepts = accepts_linear,
                                         .pose = pose_linear,
                                         .run = run_linear,
                                         .make = make_linear,
                                         .problem = linear_problem,
                                         .judge = judge_linear,
                                         .operands = linear_operands,
                                         .left = linear_left,
                                         .same = same_linear,
                                         .try = try_linear,
                                         .operand = linear_operand,
                                         .beside = linear_beside,
                                         .report = report_linear};

void linear_run_spec(struct check_run *run, const struct linear_spec *spec)
{
    struct kind_case k = {.run = run, .kind = &linear_layers, .linear = *spec};
    run_linear(&k);
}

void linear_run_case(struct check_run *run, linear_change change)
{
    struct linear_spec spec;
    if (linear_find_case(run, change, &spec))
        linear_run_spec(run, &spec);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

bool linear_open(struct kind_case *k, struct check_run *run, linear_change change)
{
    *k = (struct kind_case){.run = run, .kind = &linear_layers};
    if (!linear_find_case(run, change, &k->linear) || !make_linear(k))
        return false;
    k->session = kind_session(k, run->subject, &exactly);
    return k->session && linear_reset(k);
}

bool linear_reset(struct kind_case *k)
{
    host_error error;
    host_error_init(&error);
    return passed(k, linear_case_reset(k->recurrence, k->session, &error.base), &error);
}

/* Is the state rounded where it is stored? Then it is judged from one store to the next. */
static bool rounds(const struct kind_case *k)
{
    return k->linear.state_dtype != ATTN_F32;
}

bool linear_part(struct kind_case *k, const struct linear_part *part)
{
    char text[LINEAR_TEXT];
    host_error error;
    host_error_init(&error);
    if (!rounds(k))
        return passed(k, linear_case_forward(k->recurrence, k->session, part, &error.base), &error);
    bool good = linear_case_judge_part(k->recurrence, k->session, part, text, sizeof text);
    if (!good)
        report_linear(k, ATTN_OK, text);
    return good;
}

bool linear_judge_parts(struct kind_case *k)
{
    struct case_verdict verdict = {.good = true};
    if (!rounds(k))
        verdict.good =
            linear_case_judge(k->recurrence, k->session, false, verdict.text, sizeof verdict.text);
    return kind_told(k, &verdict);
}
