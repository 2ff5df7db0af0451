/* SPDX-License-Identifier: Apache-2.0
 *
 * sequel.c: no call changes the results of a later one, and layers of one batch share no state.
 *
 *   sequel        two instances whose problems have nothing to do with each other, called in turns;
 *                 each call of an instance is unlike the one before: mode, mask, lengths, scales,
 *                 sources
 *   contents      the same call again at the same addresses, with the same counts but other contents
 *   other_bounds  metadata for other bounds is made, used and destroyed between plan and forward
 *   layers        layers of one group with operands and scales of their own, and groups with KV
 *                 groups of their own, in one batch
 *
 * Each call is judged as if it were alone. */
#include "host/check/cases/chain.h"
#include "host/check/cases/draw.h"
#include "host/check/cases/sequel_draw.h"

#include "host/base/dtype.h"
#include "host/base/mix.h"

enum { STEPS = 3, CHAINS = 2, MASKS = MASK_ITEMS + 1, NUM_MODES = MODE_DRAFT + 1 };

/* ---- Sequels --------------------------------------------------------------------------------- */

/* Which mask a step has: each after each, then any. */
static int32_t mask_of(int32_t index, int32_t step)
{
    return step == 0 ? index % MASKS : step == 1 ? (index + index / MASKS) % MASKS : -1;
}

/* Steps that the instance of the first one does not take are left out. */
static bool draw_chain(struct chain *chain, bool latent, uint64_t seed)
{
    struct grid_point point;
    struct sequel_wish wish = {.latent = latent, .sparse = latent && seed % 4 == 0};
    int32_t index = chain->run->index;
    if (!sequel_draw(chain->grid, &wish, seed, &point, &chain->specs[0]))
        return false;
    chain->options = grid_options(chain->grid, &point);
    for (int32_t n = 0; n < STEPS; n++) {
        uint64_t own = mix_absorb(seed, 1 + (uint64_t)n);
        struct case_spec *spec = &chain->specs[chain->count];
        const struct chain before = *chain;
        if (!sequel_redraw(chain->grid, &point, mask_of(index, n), own, spec))
            continue;
        if (!chain_add_case(chain, chain_make_case(chain, spec, own, own)))
            return false;
        if (!chain_is_accepted(chain))
            chain_drop(chain, &before);
    }
    return chain->count > 1;
}

/* Both instances are there before the first call. */
static void run_chains(struct check_run *run, const struct grid *grid, bool latent)
{
    struct chain chains[CHAINS];
    bool open = true, any = false;
    for (int32_t n = 0; n < CHAINS; n++) {
        chains[n] = (struct chain){.run = run, .grid = grid};
        if (!draw_chain(&chains[n], latent, mix_absorb(run->seed, (uint64_t)n)))
            chains[n].count = chains[n].count > 0;
        if (chains[n].count > 0)
            open = open && chain_open(&chains[n]);
        any = any || chains[n].count > 0;
    }
    if (open)
        chain_judge_turns(chains, CHAINS);
    for (int32_t n = 0; n < CHAINS; n++)
        chain_finish(&chains[n]);
    if (!any)
        check_skip(run, "query refuses all drawn cases");
}

/* ---- Two dtypes in turn ---------------------------------------------------------------------- */

/* Operands of a layer that may be fp8: each in both types, alone and with others. */
static const struct fp8_types {
    attn_dtype q, new_kv, kv, out; /* NONE = the base's; of new k, v: q's */
} fp8_types[] = {
    {ATTN_FP8_E4M3, ATTN_DTYPE_NONE, ATTN_FP8_E4M3, ATTN_DTYPE_NONE},
    {ATTN_FP8_E5M2, ATTN_DTYPE_NONE, ATTN_FP8_E5M2, ATTN_DTYPE_NONE},
    {ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_FP8_E4M3, ATTN_DTYPE_NONE},
    {ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_FP8_E5M2, ATTN_DTYPE_NONE},
    {ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_FP8_E4M3},
    {ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_FP8_E5M2},
    {ATTN_FP8_E4M3, ATTN_BF16, ATTN_DTYPE_NONE, ATTN_DTYPE_NONE},
    {ATTN_FP8_E5M2, ATTN_BF16, ATTN_DTYPE_NONE, ATTN_DTYPE_NONE},
    {ATTN_DTYPE_NONE, ATTN_FP8_E4M3, ATTN_FP8_E4M3, ATTN_DTYPE_NONE},
    {ATTN_DTYPE_NONE, ATTN_FP8_E5M2, ATTN_FP8_E5M2, ATTN_DTYPE_NONE},
};
enum { FP8_TYPES = sizeof fp8_types / sizeof fp8_types[0] };

/* False: query refuses it. */
static bool take_types(const struct grid *grid, int32_t types, struct case_spec *spec)
{
    const struct fp8_types *t = &fp8_types[types];
    if (!grid_accepts(grid, &grid->base, spec, NULL, 0))
        return false;
    spec->q_dtype = t->q ? t->q : spec->q_dtype;
    spec->new_kv_dtype = t->new_kv;
    spec->kv_dtype = t->kv ? t->kv : spec->kv_dtype;
    spec->out_dtype = t->out ? t->out : spec->out_dtype;
    spec->input_granularity =
        dtype_is_fp8(t->q) || dtype_is_fp8(t->new_kv) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE;
    spec->scale_granularity =
        dtype_is_fp8(spec->kv_dtype) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE;
    spec->wants_lse = true;
    /* Of e5m2 no needle stands out. */
    spec->without_needles = spec->q_dtype == ATTN_FP8_E5M2 || spec->out_dtype == ATTN_FP8_E5M2;
    return !case_spec_defect(spec) &&
           grid_accepts_spec(grid, grid_options(grid, &grid->base), spec, NULL, 0);
}

/* Two instances that differ in their types alone, both there before the first call, called in
 * turns. */
static void run_types_of(struct check_run *run, const struct grid *grid, bool latent)
{
    struct chain chains[CHAINS];
    const int32_t of[CHAINS] = {run->index % FP8_TYPES,
                                (run->index + 1 + run->index / FP8_TYPES * 2) % FP8_TYPES};
    bool good = true;
    (void)latent;
    for (int32_t n = 0; n < CHAINS; n++) {
        chains[n] =
            (struct chain){.run = run, .grid = grid, .options = grid_options(grid, &grid->base)};
        good = good && take_types(grid, of[n], &chains[n].specs[0]);
        chains[n].specs[1] = chains[n].specs[0];
    }
    if (!good)
        check_skip(run, "query refuses fp8 operands of these types");
    for (int32_t n = 0; n < CHAINS && good; n++) {
        for (uint64_t step = 0; step < 2 && good; step++) {
            uint64_t seed = mix_absorb(run->seed, step); /* not of n: all else is equal */
            good = chain_add_case(&chains[n],
                                  chain_make_case(&chains[n], &chains[n].specs[step], seed, seed));
        }
        good = good && chain_open(&chains[n]);
    }
    if (good)
        chain_judge_turns(chains, CHAINS);
    for (int32_t n = 0; n < CHAINS; n++)
        chain_finish(&chains[n]);
}

/* ---- The same addresses ---------------------------------------------------------------------- */

/* Do both seeds leave out the same arrays, and put the others into the same places? */
static bool has_equal_coins(uint64_t a, uint64_t b)
{
    static const enum case_draw coins[] = {DRAW_SLACK, DRAW_NEW_ROWS, DRAW_LENS,   DRAW_MASK,
                                           DRAW_FORMS, DRAW_SCALES,   DRAW_UNREAD, DRAW_GROUPS};
    for (size_t n = 0; n < sizeof coins / sizeof coins[0]; n++)
        if (case_coin(a, coins[n]) != case_coin(b, coins[n]))
            return false;
    return true;
}

/* Search for a seed with equal coin flips: about one in 500. */
static uint64_t like_seed(uint64_t seed, uint64_t from)
{
    uint64_t n = 0;
    while (!has_equal_coins(seed, mix_absorb(from, n)))
        n++;
    return mix_absorb(from, n);
}

/* The same lengths, of other sequences. Those that decode stay the last ones of a MIXED batch. */
static void rotate(struct case_spec *spec)
{
    int32_t count = spec->num_sequences, first = spec->mode == ATTN_MODE_MIXED ? count - 2 : 0;
    if (count < 2 || first < 0)
        return;
    struct case_sequence kept = spec->sequences[first];
    for (int32_t s = first; s + 1 < count; s++)
        spec->sequences[s] = spec->sequences[s + 1];
    spec->sequences[count - 1] = kept;
}

enum { OTHER_LENGTHS, OTHER_VALUES, OTHER_INDICES, CONTENTS };

/* Another step at the same addresses: false where there is none. */
static bool add_like(struct chain *chain, int kind, uint64_t seed)
{
    const struct forward_case *first = chain->steps[0].cases[0];
    struct case_spec *spec = &chain->specs[chain->count];
    uint64_t own = kind == OTHER_INDICES ? first->seed : like_seed(first->seed, seed);
    *spec = chain->specs[0];
    if (kind == OTHER_LENGTHS)
        rotate(spec);
    return chain_add_like(chain, chain_make_case(chain, spec, own, mix_absorb(seed, 1)));
}

static void run_contents_of(struct check_run *run, const struct grid *grid, bool latent)
{
    struct chain chain = {.run = run, .grid = grid};
    struct grid_point point;
    struct sequel_wish wish = {.latent = latent, .modes = 1u << run->index % NUM_MODES};
    bool found = sequel_draw(grid, &wish, run->seed, &point, &chain.specs[0]);
    wish.modes = 0;
    if (!found && !sequel_draw(grid, &wish, run->seed, &point, &chain.specs[0])) {
        check_skip(run, "query refuses all drawn cases");
        return;
    }
    chain.options = grid_options(grid, &point);
    /* The same arrays are on the host in all of them, as a batch's own pointers are part of it. */
    chain.specs[0].host = run->index % 2 ? HOST_ALL : HOST_NEEDED;
    if (chain_add_case(&chain, chain_make_case(&chain, &chain.specs[0], run->seed, run->seed))) {
        for (int n = 0; n < STEPS - 1; n++)
            add_like(&chain, (run->index / NUM_MODES + n) % CONTENTS,
                     mix_absorb(run->seed, 1 + (uint64_t)n));
        chain_judge_contents(&chain);
    }
    chain_finish(&chain);
}

/* ---- Two metadata ---------------------------------------------------------------------------- */

/* Ways of chain_judge_two(), and: */
enum { FIRST_IS_SHORT = CHAIN_TWO_WAYS, TWO_METADATA_WAYS = 2 * CHAIN_TWO_WAYS };

/* Sequences of more keys than most ways to divide them, or of few. False: query refuses them. */
static bool set_keys(struct chain *chain, bool many, uint64_t seed, struct case_spec *spec)
{
    for (int32_t s = 0; s < spec->num_sequences && spec->attn_type != ATTN_TYPE_ENCODER_ONLY; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        if (many && s % 2 == 0)
            sequence->prefix_len += 500 + draw_at(seed, (uint64_t)s, 600);
        else if (!many && !spec->partial && sequence->prefix_len > 20)
            sequence->prefix_len = draw_at(seed, (uint64_t)s, 20);
    }
    return !case_spec_defect(spec) && grid_accepts_spec(chain->grid, chain->options, spec, NULL, 0);
}

/* Two calls of a layer; bounds of one of them are much wider than those of the other. */
static bool draw_two(struct chain *chain, bool latent, uint64_t seed)
{
    struct grid_point point;
    struct sequel_wish wish = {.latent = latent, .modes = 1u << chain->run->index % NUM_MODES};
    bool first_is_short = chain->run->index / NUM_MODES % TWO_METADATA_WAYS & FIRST_IS_SHORT;
    if (!sequel_draw(chain->grid, &wish, seed, &point, &chain->specs[0]))
        return false;
    chain->options = grid_options(chain->grid, &point);
    for (int32_t n = 0; n < 2; n++) {
        uint64_t own = mix_absorb(seed, 1 + (uint64_t)n);
        const struct chain before = *chain;
        if (n > 0 && !sequel_redraw(chain->grid, &point, -1, own, &chain->specs[n]))
            return false;
        if (!set_keys(chain, (n == 0) != first_is_short, own, &chain->specs[n]) ||
            !chain_add_case(chain, chain_make_case(chain, &chain->specs[n], own, own)))
            return false;
        if (!chain_is_accepted(chain)) {
            chain_drop(chain, &before);
            return false;
        }
    }
    return true;
}

static void run_two_metadata_of(struct check_run *run, const struct grid *grid, bool latent)
{
    struct chain chain = {.run = run, .grid = grid};
    bool found = false;
    for (uint64_t n = 0; n < 8 && !found; n++) {
        chain_finish(&chain);
        chain = (struct chain){.run = run, .grid = grid};
        found = draw_two(&chain, latent, mix_absorb(run->seed, n));
    }
    if (!found)
        check_skip(run, "query refuses all drawn cases");
    else if (chain_open(&chain))
        chain_judge_two(&chain, run->index / NUM_MODES % TWO_METADATA_WAYS);
    chain_finish(&chain);
}

/* ---- Layers of one batch --------------------------------------------------------------------- */

/* A second layer of the first one's group: other values, other scales. */
static bool add_layer(struct chain *chain, uint64_t seed)
{
    struct joint *joint = &chain->steps[0];
    const struct forward_case *first = joint->cases[0];
    uint64_t own = like_seed(first->seed, seed);
    struct forward_case *c = chain_make_case(chain, &chain->specs[0], own, first->batch_seed);
    joint->cases[joint->count] = c;
    joint->with[joint->count] = 0;
    joint->count += c != NULL;
    return c != NULL;
}

/* Another layer group, if query accepts it in the first one's batch. */
static void add_group(struct chain *chain, const struct grid_point *point, bool latent,
                      uint64_t seed)
{
    struct joint *joint = &chain->steps[0];
    const struct forward_case *first = joint->cases[0];
    struct grid_point drawn;
    struct case_spec spec;
    if (!sequel_draw_beside(chain->grid, point, &chain->specs[0], latent, seed, &drawn, &spec) ||
        spec.fill != chain->specs[0].fill || !chain_put(chain, &spec, seed, first->batch_seed))
        return;
    joint_pose(joint);
    chain->bounds = joint->bounds;
    if (chain_is_accepted(chain))
        return;
    forward_case_destroy(joint->cases[--joint->count]);
}

static void draw_layers(struct chain *chain, const struct grid_point *point, bool latent)
{
    struct joint *joint = &chain->steps[0];
    uint64_t seed = chain->run->seed;
    joint->turned = chain->run->index % 2;
    if (!chain_put(chain, &chain->specs[0], seed, seed) || !add_layer(chain, mix_absorb(seed, 1)))
        return;
    for (uint64_t n = 2; n < 5; n++)
        add_group(chain, point, n == 3 ? !latent : latent, mix_absorb(seed, n));
    chain_add(chain);
}

static void run_layers_of(struct check_run *run, const struct grid *grid, bool latent)
{
    struct chain chain = {.run = run, .grid = grid};
    struct grid_point point;
    struct sequel_wish wish = {.latent = latent};
    bool found = false;
    for (uint64_t n = 0; n < 8 && !found; n++) {
        wish.modes = 1u << ((uint64_t)run->index + n) % NUM_MODES;
        found = sequel_draw(grid, &wish, mix_absorb(run->seed, n), &point, &chain.specs[0]) &&
                chain.specs[0].attn_type == ATTN_TYPE_DECODER; /* which has all that a batch has */
    }
    chain.options = grid_options(grid, &point);
    if (found)
        draw_layers(&chain, &point, latent);
    else
        check_skip(run, "query refuses all drawn cases");
    if (chain.count > 0 && chain_open(&chain))
        chain_judge(&chain, 0, "layers of a batch");
    chain_finish(&chain);
}

/* ---- Table ----------------------------------------------------------------------------------- */

static void run_with_grid(struct check_run *run, bool latent,
                          void (*use)(struct check_run *run, const struct grid *grid, bool latent))
{
    struct grid *grid = grid_of(run->subject);
    if (sequel_serves(run->subject, latent))
        use(run, grid, latent);
    else
        check_skip(run, "%s", latent ? "query accepts no plain latent layer" : grid->refusal);
}

#define CASES(name, latent, number, use)                                                           \
    CHECK_COUNT(name, sequel_count(subject, latent, number))                                       \
    CHECK_RUN(name, run_with_grid(run, latent, use))

CASES(types_in_turn, false, 3 * FP8_TYPES, run_types_of)
CASES(sequel, false, MASKS *MASKS, run_chains)
CASES(mla_sequel, true, 21, run_chains)
CASES(contents, false, 30, run_contents_of)
CASES(mla_contents, true, 20, run_contents_of)
CASES(other_bounds, false, NUM_MODES *TWO_METADATA_WAYS, run_two_metadata_of)
CASES(mla_other_bounds, true, NUM_MODES *TWO_METADATA_WAYS, run_two_metadata_of)
CASES(layers, false, 35, run_layers_of)
CASES(mla_layers, true, 20, run_layers_of)

const struct check check_sequel[] = {
    CHECK_CASES("INVAR-01", sequel,
                "calls of an instance do not change later results, of that instance or of another"),
    CHECK_CASES("INVAR-01", types_in_turn, "calls of instances of different types may alternate"),
    CHECK_CASES("INVAR-01", layers, "layers and KV groups of one batch share only its rows"),
    CHECK_CASES("LIFE-05", other_bounds,
                "a planned batch does not change when its instance gets another metadata"),
    CHECK_CASES(
        "LIFE-05", mla_other_bounds,
        "a planned batch does not change when its instance gets another metadata (latent layers)"),
    CHECK_CASES("LIFE-06", contents, "a new batch at the old addresses is planned again"),
    CHECK_CASES("INVAR-01", mla_sequel,
                "calls of latent layers do not change the results of later calls"),
    CHECK_CASES("INVAR-01", mla_layers, "latent layers of one batch share only its rows"),
    CHECK_CASES("LIFE-06", mla_contents,
                "a new batch at the old addresses is planned again (latent layers)"),
    {.rule = NULL},
};
