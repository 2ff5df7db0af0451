/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_sequel.c: linear layers: no call changes the results of a later one, and the layers of one
 * batch share no state (sequel.c for the others).
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/numbers.h"
#include "host/check/cases/chain.h"

#include "host/base/mix.h"

#include <string.h>

enum { TRIES = 40, STEPS = 3, CHAINS = 2, LAYERS = 5, MOST_ROWS = 140, MOST_WORK = 500000 };

/* ---- Specs ----------------------------------------------------------------------------------- */

static int32_t rows_of(const struct case_spec *spec)
{
    int32_t rows = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        rows += spec->sequences[s].num_new;
    return rows;
}

/* Now and then any numbers, instead of those of lists. */
static bool has_any_numbers(uint64_t seed)
{
    return mix_stream(seed, TRIES) % 2 == 0;
}

/* A spec that is accepted and short. */
static bool draw(const struct check_run *run, uint32_t family, uint64_t seed,
                 struct case_spec *spec)
{
    const struct numbers_for whom = {.subject = run->subject, .most_work = MOST_WORK};
    char reason[LINEAR_TEXT];
    for (uint64_t n = 0; n < TRIES; n++) {
        linear_spec_draw(spec, family, mix_absorb(seed, n));
        if (rows_of(spec) > MOST_ROWS || !linear_accepts(run->subject, spec, reason))
            continue;
        if (has_any_numbers(seed)) {
            numbers_draw_layer(&whom, seed, spec);
            numbers_draw_batch(&whom, seed, spec);
        }
        return true;
    }
    return false;
}

/* The varying part of a call. */
static void take_call(struct case_spec *spec, const struct case_spec *from)
{
    struct linear_spec *linear = &spec->linear;
    spec->mode = from->mode;
    spec->decodes_first = from->decodes_first;
    linear->decodes = from->linear.decodes;
    spec->decode_q_len = from->decode_q_len;
    linear->snapshots = from->linear.snapshots;
    linear->sparse = from->linear.sparse;
    linear->cuts = from->linear.cuts;
    linear->absent = from->linear.absent;
    spec->first_row = from->first_row;
    linear->padded = from->linear.padded;
    spec->spare = from->spare;
    spec->num_sequences = from->num_sequences;
    memcpy(spec->sequences, from->sequences, sizeof spec->sequences);
}

/* Of the same layer; what need not be given is given or not. */
static bool draw_call(const struct check_run *run, const struct case_spec *layer, uint64_t seed,
                      struct case_spec *spec)
{
    const struct numbers_for whom = {.subject = run->subject, .most_work = MOST_WORK};
    struct linear_spec *linear = &spec->linear;
    char reason[LINEAR_TEXT];
    for (uint64_t n = 0; n < TRIES; n++) {
        struct case_spec drawn;
        linear_spec_draw(&drawn, layer->linear.family, mix_absorb(seed, n));
        *spec = *layer;
        take_call(spec, &drawn);
        linear->z = drawn.linear.z;
        linear->bias = drawn.linear.bias;
        linear->skip = drawn.linear.skip;
        linear->gap = drawn.linear.gap;
        linear->steep = drawn.linear.steep;
        if (rows_of(spec) > MOST_ROWS || !linear_accepts(run->subject, spec, reason))
            continue;
        if (has_any_numbers(seed))
            numbers_draw_batch(&whom, seed, spec);
        return true;
    }
    return false;
}

/* ---- Sequels --------------------------------------------------------------------------------- */

static bool add_case(struct chain *chain, const struct case_spec *spec, uint64_t seed)
{
    chain->specs[chain->count] = *spec;
    return chain_add_case(chain, chain_make_case(chain, spec, seed, seed));
}

static bool draw_chain(struct chain *chain, uint32_t family, uint64_t seed)
{
    struct case_spec layer, called;
    if (!draw(chain->run, family, seed, &layer))
        return false;
    for (uint64_t n = 0; n < STEPS; n++)
        if (draw_call(chain->run, &layer, mix_absorb(seed, 100 + n), &called) &&
            !add_case(chain, &called, mix_absorb(seed, n)))
            return false;
    return chain->count > 0 && chain_open(chain);
}

static void skip_all(struct check_run *run)
{
    check_skip(run, "query refuses every case of linear layers that was drawn");
}

/* Two families in turns, or one with other dimensions and dtypes; both instances are there first.
 */
static void judge_sequel(struct kind_case *k)
{
    struct chain chains[CHAINS];
    const struct check_run *run = k->run;
    const uint32_t set = linear_families(run->subject);
    int32_t opened = 0;
    for (int32_t n = 0; n < CHAINS; n++) {
        const int32_t family = (run->index * (1 + n) + n) % __builtin_popcount(set);
        chains[n] = (struct chain){.run = k->run};
        opened += draw_chain(&chains[n], linear_family_at(set, family),
                             mix_absorb(run->seed, (uint64_t)n));
    }
    if (opened < CHAINS)
        skip_all(k->run);
    else
        chain_judge_turns(chains, CHAINS);
    for (int32_t n = 0; n < CHAINS; n++)
        chain_finish(&chains[n]);
}

static void make_short(struct case_spec *spec, int32_t index)
{
    (void)index;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s].num_new =
            spec->sequences[s].num_new > 70 ? 70 : spec->sequences[s].num_new;
    if (spec->mode == ATTN_MODE_MIXED) /* a turn would move the one that decodes */
        spec->mode = ATTN_MODE_EXTEND;
}

static void judge_contents(struct kind_case *k)
{
    struct chain chain = {.run = k->run};
    struct case_spec *spec = &k->at.spec;
    bool good = add_case(&chain, spec, k->run->seed);
    for (spec->linear.turn = 1; spec->linear.turn < STEPS && good; spec->linear.turn++) {
        const uint64_t seed = mix_absorb(k->run->seed, (uint64_t)spec->linear.turn);
        chain.specs[chain.count] = *spec;
        good = chain_add_like(&chain, chain_make_case(&chain, spec, seed, seed));
    }
    if (good)
        chain_judge_contents(&chain);
    chain_finish(&chain);
}

static void judge_two_metadata(struct kind_case *k)
{
    struct chain chain = {.run = k->run};
    if (!draw_chain(&chain, k->at.spec.linear.family, k->run->seed) || chain.count < 2)
        skip_all(k->run);
    else
        chain_judge_two(&chain, k->variant % CHAIN_TWO_WAYS);
    chain_finish(&chain);
}

/* ---- Layers of one batch --------------------------------------------------------------------- */

/* The first one's batch, for layers of this family, in state group `group`. */
static void add_layer(struct chain *chain, uint32_t family, int32_t group, uint64_t seed)
{
    struct joint *joint = &chain->steps[0];
    struct case_spec spec;
    char reason[LINEAR_TEXT];
    if (!draw(chain->run, family, seed, &spec))
        return;
    if (joint->count > 0) {
        const struct case_spec *first = &chain->specs[0];
        take_call(&spec, first);
        if (group !=
            first->linear.state_group) { /* what one's slots lack those of the other have */
            spec.linear.absent ^= LINEAR_WITHOUT_DST | LINEAR_WITHOUT_INITIAL;
            spec.linear.snapshots = !spec.linear.snapshots;
        }
    }
    spec.linear.layer = joint->count;
    spec.linear.state_group = group;
    if (!linear_accepts(chain->run->subject, &spec, reason))
        return;
    chain_put(chain, &spec, chain->run->seed, chain->run->seed);
}

/* In state groups by turns, from the first one on or from the last. */
static void judge_groups(struct kind_case *k, int32_t num_state_groups)
{
    struct chain chain = {.run = k->run};
    struct joint *joint = &chain.steps[0];
    const uint32_t set = linear_families(k->run->subject);
    const int32_t families = __builtin_popcount(set), index = k->run->index;
    for (int32_t n = 0; n < LAYERS; n++)
        add_layer(&chain, linear_family_at(set, (index + n / 2) % families),
                  (joint->count + index / families) % num_state_groups,
                  mix_absorb(k->run->seed, (uint64_t)n));
    if (joint->count > 0) {
        chain_add(&chain);
        if (chain_open(&chain))
            chain_judge(&chain, 0, "layers of a batch");
    } else if (k->run->code == CHECK_PASS) {
        skip_all(k->run);
    }
    chain_finish(&chain);
}

static void judge_layers(struct kind_case *k)
{
    judge_groups(k, 1);
}

static void judge_state_groups(struct kind_case *k)
{
    judge_groups(k, 2 + k->variant % (LINEAR_STATE_GROUPS - 1));
}

/* ---- Padding --------------------------------------------------------------------------------- */

static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                 ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DRAFT_EXTEND};
enum { MODES = sizeof modes / sizeof modes[0] };

static void change_padded(struct case_spec *spec, int32_t index)
{
    linear_set_extend(spec, "3i 1p 1");
    spec->first_row = index % 4;
    linear_set_mode(spec, modes[index % MODES]);
    spec->linear.padded = index % 3 * 2;
    spec->spare =
        spec->mode == ATTN_MODE_DECODE || spec->mode == ATTN_MODE_MIXED ? 0 : 7 - index % 3;
    spec->linear.snapshots = index % 2;
    if (index / MODES == 1) { /* padding alone */
        spec->num_sequences = 0;
        spec->linear.padded = 2;
    }
}

/* ---- Table ----------------------------------------------------------------------------------- */

/* So many of each family, and twenty times as many of an exhaustive run. */
#define CASES(number) LINEAR_MORE(NULL, number, 20)

const struct check check_linear_sequel[] = {
    OWN_ROW("INVAR-01", linear_sequel, judge_sequel,
            "calls of linear layers do not change the results of later calls", CASES(4)),
    OWN_ROW("INVAR-01", linear_layers, judge_layers,
            "linear layers of one batch share only its rows and slots", CASES(3)),
    OWN_ROW("KV-12", state_groups, judge_state_groups,
            "linear layers of one batch use the slots of their own state groups",
            CASES(2 * (LINEAR_STATE_GROUPS - 1))),
    OWN_ROW(
        "LIFE-05", linear_other_bounds, judge_two_metadata,
        "a planned batch does not change when its instance gets another metadata (linear layers)",
        CASES(2 * CHAIN_TWO_WAYS)),
    OWN_ROW("LIFE-06", linear_contents, judge_contents,
            "a new batch at the old addresses is planned again (linear layers)",
            LINEAR_MORE(make_short, 3, 20)),
    ROW("CAPT-04", linear_padded,
        "padding of linear layers is finite and changes no other result, in every mode",
        LINEAR_MORE(change_padded, 2 * MODES, 20)),
    {.rule = NULL},
};
