/* SPDX-License-Identifier: Apache-2.0
 *
 * chain.c: a sequence of calls on one instance, each judged.
 */
#include "host/check/relations/chain.h"

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
    const struct check_subject *subject = chain->run->subject;
    const struct joint *first = &chain->steps[0];
    bool accepted = true;
    for (uint32_t g = 0; g < first->num_problems && accepted; g++) {
        attn_problem problem = first->problems[g];
        attn_verdict verdict = {.struct_size = sizeof verdict};
        problem.bounds = &chain->bounds;
        accepted = !(problem.mla_expanded & chain->absorbed[g]) &&
                   subject->type->query(subject->type, chain->options, subject->services, &problem,
                                        &verdict, NULL) == ATTN_OK &&
                   verdict.supported;
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
    host_error error;
    host_error_init(&error);
    first->bounds = chain->bounds; /* to which its problems point */
    attn_status status = session_create(&backend, &first->problems[0], chain->run->subject->device,
                                        &setup, &chain->session, &error.base);
    if (status != ATTN_OK)
        numerics_report(chain->run, &chain->specs[0], status, host_error_text(&error));
    return status == ATTN_OK;
}

void chain_add(struct chain *chain)
{
    const struct joint *step = &chain->steps[chain->count];
    struct joint *first = &chain->steps[0];
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
    joint_pose(step);
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
    host_error error;
    host_error_init(&error);
    attn_status status = forward_case_create_seeded(spec, seed, batch_seed,
                                                    chain->run->subject->device, &c, &error.base);
    if (status != ATTN_OK)
        numerics_report(chain->run, spec, status, host_error_text(&error));
    return c;
}

void chain_note(struct chain *chain, int32_t n, const char *what)
{
    char text[600];
    case_spec_describe(&chain->specs[n], text, sizeof text);
    check_note(chain->run, "%s %d: %s", what, n, text);
}

bool chain_told(struct chain *chain, int32_t n, const char *what,
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
    chain_note(chain, n, what);
    joint_judge(chain->session, &chain->steps[n], &verdict);
    return chain_told(chain, n, what, &verdict);
}
