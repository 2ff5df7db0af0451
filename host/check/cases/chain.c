/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c: a sequence of calls on one instance, each judged.
 */
#include "host/check/cases/chain.h"

#include "host/base/error.h"

#include <stdio.h>
#include <string.h>

void chain_finish(struct chain *chain)
{
    case_session_destroy(chain->session);
    for (int32_t n = 0; n < CHAIN_STEPS; n++)
        joint_destroy(&chain->steps[n]);
}

bool chain_is_accepted(const struct chain *chain)
{
    const struct joint *first = &chain->steps[0];
    bool accepted = true;
    for (uint32_t g = 0; g < first->num_problems && accepted; g++) {
        attn_problem problem = first->problems[g];
        attn_verdict verdict;
        problem.bounds = &chain->bounds;
        accepted = !(problem.mla_expanded & chain->absorbed[g]) &&
                   numerics_query(chain->run->subject, chain->options, &problem, &verdict);
    }
    return accepted;
}

bool chain_open(struct chain *chain)
{
    struct joint *first = &chain->steps[0];
    struct case_backend backend = numerics_backend(chain->run->subject, chain->options);
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER,
                                     .exact_memory = true,
                                     .problems = first->problems,
                                     .num_problems = first->num_problems};
    first->bounds = chain->bounds; /* to which its problems point */
    attn_status status = session_create(&backend, &first->problems[0], chain->run->subject->device,
                                        &setup, &chain->session, check_error(chain->run));
    return numerics_good(chain->run, &chain->specs[0], status);
}

bool chain_put(struct chain *chain, const struct case_spec *spec, uint64_t seed,
               uint64_t batch_seed)
{
    struct joint *step = &chain->steps[chain->count];
    struct forward_case *c = chain_make_case(chain, spec, seed, batch_seed);
    if (!c)
        return false;
    if (step->count == 0)
        chain->specs[chain->count] = *spec;
    step->cases[step->count] = c;
    step->with[step->count] = step->count;
    step->count++;
    return true;
}

void chain_add(struct chain *chain)
{
    struct joint *step = &chain->steps[chain->count];
    struct joint *first = &chain->steps[0];
    joint_pose(step);
    if (chain->count == 0)
        chain->bounds = step->bounds;
    joint_widen(&chain->bounds, &step->bounds);
    for (int32_t n = 0, g = 0; n < step->count; n++) {
        const struct case_spec *spec = &step->cases[n]->spec;
        if (step->with[n] != n)
            continue;
        first->problems[g].mla_expanded |= step->problems[g].mla_expanded;
        chain->absorbed[g] |= case_is_absorbed(spec) ? ATTN_MODE_BIT(spec->mode) : 0;
        g++;
    }
    chain->count++;
}

bool chain_add_case(struct chain *chain, struct forward_case *c)
{
    struct joint *step = &chain->steps[chain->count];
    if (!c)
        return false;
    *step = (struct joint){.count = 1, .cases = {c}};
    c->posed.group.kv_group =
        chain->count ? chain->steps[0].cases[0]->posed.group.kv_group : c->posed.group.kv_group;
    chain_add(chain);
    return true;
}

void chain_drop(struct chain *chain, const struct chain *before)
{
    joint_destroy(&chain->steps[--chain->count]);
    chain->bounds = before->bounds;
    memcpy(chain->absorbed, before->absorbed, sizeof chain->absorbed);
    for (uint32_t g = 0; g < before->steps[0].num_problems; g++)
        chain->steps[0].problems[g].mla_expanded = before->steps[0].problems[g].mla_expanded;
}

struct forward_case *chain_make_case(struct chain *chain, const struct case_spec *spec,
                                     uint64_t seed, uint64_t batch_seed)
{
    struct forward_case *c = NULL;
    attn_status status = forward_case_create_seeded(
        spec, seed, batch_seed, chain->run->subject->device, &c, check_error(chain->run));
    numerics_good(chain->run, spec, status);
    return c;
}

static void note(struct chain *chain, int32_t n, const char *what)
{
    char text[600];
    case_spec_describe(&chain->specs[n], text, sizeof text);
    check_note(chain->run, "%s %d: %s", what, n, text);
}

/* Report a step that failed; returns whether it was good. */
static bool report_step(struct chain *chain, int32_t n, const char *what,
                        const struct case_verdict *verdict)
{
    const struct joint *step = &chain->steps[n];
    char text[600];
    if (verdict->good)
        return true;
    snprintf(text, sizeof text, "%s %d, layer %d of %d: %.500s", what, n, step->at, step->count,
             verdict->text);
    numerics_report(chain->run, &step->cases[step->at]->spec, verdict->status, text);
    return false;
}

bool chain_judge(struct chain *chain, int32_t n, const char *what)
{
    struct case_verdict verdict;
    if (n >= chain->count)
        return true;
    note(chain, n, what);
    joint_judge(chain->session, &chain->steps[n], &verdict);
    return report_step(chain, n, what, &verdict);
}

/* ---- Instances called in turns ---------------------------------------------------------------- */

void chain_judge_turns(struct chain *chains, int32_t count)
{
    bool good = true;
    for (int32_t step = 0; step < CHAIN_STEPS; step++)
        for (int32_t n = 0; n < count && good; n++)
            good =
                chain_judge(&chains[n], step, n ? "second instance, call" : "first instance, call");
}

/* ---- The same addresses ---------------------------------------------------------------------- */

bool chain_add_like(struct chain *chain, struct forward_case *c)
{
    const struct forward_case *first = chain->steps[0].cases[0];
    if (c && (c->bytes != first->bytes || memcmp(c->parts, first->parts, sizeof c->parts) != 0 ||
              memcmp(c->shapes, first->shapes, sizeof c->shapes) != 0)) {
        forward_case_destroy(c);
        return false;
    }
    return chain_add_case(chain, c);
}

static void swap(char **a, char **b)
{
    char *kept = *a;
    *a = *b;
    *b = kept;
}

static void swap_views(struct case_view **a, struct case_view **b)
{
    struct case_view *kept = *a;
    *a = *b;
    *b = kept;
}

/* From now on `next` lies where `before` lay, which must not be run any more. */
static void take_place(struct forward_case *next, struct forward_case *before)
{
    memcpy(before->image, next->image, next->bytes);
    swap(&next->image, &before->image);
    swap(&next->planning, &before->planning);
    swap(&next->memory, &before->memory);
    swap_views(&next->planned, &before->planned);
}

void chain_judge_contents(struct chain *chain)
{
    if (!chain_is_accepted(chain) || !chain_open(chain) || !chain_judge(chain, 0, "batch"))
        return;
    for (int32_t n = 1; n < chain->count; n++) {
        take_place(chain->steps[n].cases[0], chain->steps[n - 1].cases[0]);
        if (!chain_judge(chain, n, "at the same addresses as before, batch"))
            return;
    }
}

/* ---- Two metadata ---------------------------------------------------------------------------- */

/* Make a metadata of the instance for the second step, plan and use it or not, then destroy it. */
static bool use_second(struct chain *chain, bool planned, struct case_session **second)
{
    note(chain, 1, "a second metadata, call");
    attn_status status = session_create_beside(chain->session, &chain->steps[1].bounds, second,
                                               check_error(chain->run));
    if (!numerics_good(chain->run, &chain->specs[0], status))
        return false;
    struct case_verdict verdict = {.good = true};
    if (planned)
        joint_judge(*second, &chain->steps[1], &verdict);
    return report_step(chain, 1, "a second metadata, call", &verdict);
}

static bool has_equal_size(struct chain *chain, const struct case_session *first)
{
    attn_memory_size size;
    attn_status status = session_ask_size(first, &first->bounds, &size, check_error(chain->run));
    if (!numerics_good(chain->run, &chain->specs[0], status))
        return false;
    if (memcmp(&size, &first->memory.size, sizeof size) == 0)
        return true;
    numerics_report(chain->run, &chain->specs[0], ATTN_INTERNAL,
                    "metadata_size gives another answer to the same question after another "
                    "metadata was created");
    return false;
}

/* Plan the batch of the first metadata before the second one exists, and compute it afterwards. */
void chain_judge_two(struct chain *chain, int32_t way)
{
    static const char what[] = "planned before a second metadata was created, call";
    struct case_session *first = NULL, *second = NULL;
    struct case_verdict verdict;
    attn_status status = session_create_beside(
        chain->session, &chain->steps[0].cases[0]->posed.bounds, &first, check_error(chain->run));
    bool good = numerics_good(chain->run, &chain->specs[0], status);
    if (good) {
        note(chain, 0, what);
        joint_plan(first, &chain->steps[0], &verdict);
        good = report_step(chain, 0, what, &verdict) &&
               use_second(chain, way & SECOND_PLANNED, &second);
    }
    if (!(way & SECOND_STAYS)) {
        case_session_destroy(second);
        second = NULL;
    }
    if (good) {
        note(chain, 0, what);
        joint_judge_planned(first, &chain->steps[0], &verdict);
        good = report_step(chain, 0, what, &verdict) && has_equal_size(chain, first);
    }
    if (good) { /* and once more, planned as things are now */
        joint_judge(first, &chain->steps[0], &verdict);
        report_step(chain, 0, "after a second metadata was created, call", &verdict);
    }
    case_session_destroy(second);
    case_session_destroy(first);
}
