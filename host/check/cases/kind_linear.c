/* SPDX-License-Identifier: Apache-2.0
 *
 * kind_linear.c: linear layers in the table of kinds, and cases of theirs that are cut into parts.
 */
#include "host/check/cases/kind.h"

#include "host/base/mix.h"

static const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* ---- Finding --------------------------------------------------------------------------------- */

static int32_t count_linear(const struct check_subject *subject, const struct kind_cases *cases)
{
    const int32_t all = kind_variants(cases) * linear_count_families(subject);
    if (!linear_families(subject) && (cases->drawn || cases->exhaustive))
        return 1;
    return cases->drawn ? numerics_few(subject, cases->drawn)
                        : all * (subject->exhaustive && cases->exhaustive ? cases->exhaustive : 1);
}

static bool find_linear(struct kind_case *k, const struct kind_cases *cases)
{
    k->variant = k->run->index / linear_count_families(k->run->subject) % kind_variants(cases);
    return linear_find_case(k->run, cases->vary, &k->at.spec);
}

static bool accepts_linear(struct kind_case *k)
{
    char reason[LINEAR_TEXT];
    return linear_accepts(k->run->subject, &k->at.spec, reason);
}

/* Another family where there is one, of the same dtypes and layout. */
static bool linear_beside(struct kind_case *k, struct kind_beside *other)
{
    struct check_run *run = k->run;
    struct case_spec beside;
    const struct case_spec *own = &k->at.spec;
    char reason[LINEAR_TEXT] = "";
    uint32_t set = linear_families(run->subject);
    uint32_t family = linear_family_at(set, (run->index + 1) % __builtin_popcount(set));
    bool found = linear_find(run->subject, family, mix_absorb(run->seed, 1),
                             run->check->cases->vary, 0, &beside, reason);
    if (found) {
        beside.q_dtype = own->q_dtype;
        beside.out_dtype = own->out_dtype;
        beside.linear.state_dtype = own->linear.state_dtype;
        beside.linear.conv_dtype = own->linear.conv_dtype;
        beside.linear.vk = own->linear.vk;
        found = linear_accepts(run->subject, &beside, reason);
    }
    if (!found) {
        check_skip(run, "%s", reason);
        return false;
    }
    linear_pose(&other->posed, &beside, &run->subject->device->info);
    other->posed.layers[0].layer_id += 3;
    other->problem = other->posed.problem;
    other->problem.bounds = k->c->posed.problem.bounds;
    return true;
}

const struct check_kind linear_layers = {count_linear, find_linear, accepts_linear, linear_beside};

/* ---- Parts ----------------------------------------------------------------------------------- */

bool linear_begin(struct kind_case *k)
{
    if (!kind_make(k))
        return false;
    k->session = kind_session(k, k->run->subject, &exactly);
    return k->session && linear_reset(k);
}

bool linear_reset(struct kind_case *k)
{
    return kind_good(k, linear_case_reset(k->c, k->session, check_error(k->run)));
}

/* Is the state rounded where it is stored? Then it is judged from one store to the next. */
static bool rounds(const struct kind_case *k)
{
    return k->at.spec.linear.state_dtype != ATTN_F32;
}

bool linear_part(struct kind_case *k, const struct linear_part *part)
{
    struct case_verdict verdict;
    if (!rounds(k))
        return kind_good(k, linear_case_forward(k->c, k->session, part, check_error(k->run)));
    linear_case_judge_part(k->c, k->session, part, &verdict);
    return numerics_told(k->run, k->c, &verdict);
}

bool linear_judge_parts(struct kind_case *k)
{
    struct case_verdict verdict = {.good = true};
    if (!rounds(k))
        session_judge_part(k->session, k->c, NULL, NULL, &verdict);
    return numerics_told(k->run, k->c, &verdict);
}
