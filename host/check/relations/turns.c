/* SPDX-License-Identifier: Apache-2.0
 *
 * turns.c: layers with different parameters in one batch, and batches with any parameters in
 * sequence through one metadata, with one to eight threads. INVAR-01.numbers has one layer and one
 * call; these checks show faults in data that groups share, such as maxima, and in state that a
 * batch leaves for the next one. */
#include "host/check/cases/numbers.h"
#include "host/check/cases/chain.h"
#include "host/check/cases/other_host.h"
#include "host/check/cases/sequel_draw.h"
#include "host/check/cases/setting.h"

#include "host/check/cases/draw.h"

#include "host/base/dtype.h"

enum { CASES = 44, LATENT_CASES = 32, GROUPS = 3, TRIES = 3 * CHAIN_STEPS };
/* Products of a query's and a key's element that a layer may have in a call. */
static const int64_t most_work = 3000000;

struct turns {
    struct chain chain;
    int32_t num_layers;
    struct case_spec layers[GROUPS]; /* each is a layer group; the first one says the batch */
    bool few;                        /* queries in each batch, before many keys */
    struct options *drawn;           /* NULL: options are those of the index form */
    char what[3 * SETTING_TEXT];     /* that was drawn */
};

/* ---- Layers ---------------------------------------------------------------------------------- */

static uint64_t part_of_seed(const struct turns *turns, uint64_t part)
{
    return mix_absorb(turns->chain.run->seed, part);
}

static struct numbers_for numbers_whom(const struct turns *turns)
{
    return (struct numbers_for){
        .grid = turns->chain.grid, .options = turns->chain.options, .most_work = most_work};
}

static bool accepts_first(void *ctx, const attn_options *options)
{
    struct turns *turns = ctx;
    return grid_accepts_spec(turns->chain.grid, options, &turns->layers[0], NULL, 0);
}

/* The options of a form are its own. */
static const attn_options *draw_options(struct turns *turns, const struct grid_point *point)
{
    const struct chain *chain = &turns->chain;
    if (point->value[AXIS_FORM] == 0)
        turns->drawn = setting_draw_options(chain->run, accepts_first, turns, turns->what);
    if (!turns->drawn)
        return grid_options(chain->grid, point);
    check_note(chain->run, "with %s", turns->what);
    return &turns->drawn->view;
}

static bool draw_first(struct turns *turns, bool latent, struct grid_point *point)
{
    struct chain *chain = &turns->chain;
    struct sequel_wish wish = {.latent = latent};
    struct case_spec *spec = &turns->layers[0];
    bool found = false;
    for (uint64_t n = 0; n < TRIES && !found; n++)
        found = sequel_draw(chain->grid, &wish, part_of_seed(turns, 10 + n), point, spec) &&
                spec->attn_type == ATTN_TYPE_DECODER; /* which has all that a batch has */
    if (!found)
        return false;
    chain->options = draw_options(turns, point);
    const struct numbers_for whom = numbers_whom(turns);
    numbers_draw_layer(&whom, part_of_seed(turns, 1), spec);
    turns->num_layers = 1;
    return true;
}

static void draw_others(struct turns *turns, bool latent, const struct grid_point *first)
{
    const struct chain *chain = &turns->chain;
    const struct numbers_for whom = numbers_whom(turns);
    for (uint64_t g = 1; g < GROUPS; g++) {
        struct case_spec *spec = &turns->layers[turns->num_layers];
        struct grid_point point;
        if (!sequel_draw_beside(chain->grid, first, &turns->layers[0], latent,
                                part_of_seed(turns, 2 * g), &point, spec))
            continue;
        numbers_draw_layer(&whom, part_of_seed(turns, 2 * g + 1), spec);
        turns->num_layers += spec->fill == turns->layers[0].fill;
    }
}

static bool is_accepted(const struct turns *turns, struct case_spec *spec)
{
    return !case_spec_defect(spec) && numbers_work(spec) <= most_work &&
           grid_accepts_spec(turns->chain.grid, turns->chain.options, spec, NULL, 0);
}

/* Few wide heads in one layer, many narrow ones in another: no layer needs the most of everything.
 * */
static void set_apart(struct turns *turns)
{
    struct draw draw = {.seed = part_of_seed(turns, 30)};
    for (int32_t g = 0; g < turns->num_layers; g++) {
        struct case_spec changed = turns->layers[g];
        const bool is_wide = (g + turns->chain.run->index / 4) % 2;
        if (changed.latent.kv_lora_rank > 0)
            continue;
        changed.num_kv_heads = is_wide ? 1 : 4 + draw_below(&draw, 8);
        changed.num_q_heads = changed.num_kv_heads * (is_wide ? 1 : 1 + draw_below(&draw, 5));
        changed.head_dim = is_wide ? 90 + draw_below(&draw, 160) : 5 + draw_below(&draw, 20);
        changed.v_head_dim = changed.head_dim;
        if (is_accepted(turns, &changed))
            turns->layers[g] = changed;
    }
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* The batch of the first layer for another one. False: query refuses it, or the layer has keys of
 * its own where a mask says something about each. */
static bool take_batch(const struct turns *turns, const struct case_spec *first,
                       struct case_spec *spec)
{
    sequel_take_batch(spec, first);
    if (spec->alibi && spec->positions_ahead)
        return false;
    if (spec->mask_kind == ATTN_MASK_FULL && spec->fewer_keys != first->fewer_keys)
        return false;
    return is_accepted(turns, spec);
}

/* Among any number of keys no needle stands out. */
static bool is_coarse(const struct case_spec *spec)
{
    return dtype_is_fp8(spec->q_dtype) || dtype_is_fp8(spec->new_kv_dtype) ||
           dtype_is_fp8(spec->kv_dtype) || dtype_is_fp8(spec->out_dtype);
}

static bool draw_batch(const struct turns *turns, uint64_t seed, struct case_spec specs[GROUPS])
{
    const struct numbers_for whom = numbers_whom(turns);
    bool few = turns->few || seed % 2;
    for (int32_t g = 0; g < turns->num_layers; g++) {
        specs[g] = turns->layers[g];
        specs[g].without_needles |= specs[g].alibi || is_coarse(&specs[g]);
    }
    if (!few || !numbers_draw_few(&whom, seed, &specs[0]))
        numbers_draw_batch(&whom, seed, &specs[0]);
    for (int32_t g = 1; g < turns->num_layers; g++)
        if (!take_batch(turns, &specs[0], &specs[g]))
            return false;
    return true;
}

static bool add_step(struct turns *turns, const struct case_spec specs[GROUPS], uint64_t seed)
{
    struct chain *chain = &turns->chain;
    struct joint *step = &chain->steps[chain->count];
    *step = (struct joint){0};
    for (int32_t g = 0; g < turns->num_layers; g++)
        if (!chain_put(chain, &specs[g], mix_absorb(seed, (uint64_t)g), seed)) {
            joint_destroy(step);
            return false;
        }
    chain_add(chain);
    return true;
}

/* Batches that not all layers take, or not all of which one instance takes, are left out. */
static void draw_steps(struct turns *turns)
{
    struct chain *chain = &turns->chain;
    for (uint64_t n = 0; n < TRIES && chain->count < CHAIN_STEPS; n++) {
        const struct chain before = *chain;
        struct case_spec specs[GROUPS];
        uint64_t seed = part_of_seed(turns, 100 + n);
        if (!draw_batch(turns, seed, specs))
            continue;
        if (!add_step(turns, specs, seed))
            return;
        if (!chain_is_accepted(chain))
            chain_drop(chain, &before);
    }
}

static void judge_steps(struct check_run *run, void *ctx)
{
    struct turns *turns = ctx;
    bool good = chain_open(&turns->chain);
    for (int32_t n = 0; n < turns->chain.count && good; n++)
        good = chain_judge(&turns->chain, n, "call");
    case_session_destroy(turns->chain.session);
    turns->chain.session = NULL;
    (void)run;
}

static void run_turns(struct check_run *run, bool latent)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct turns turns = {.chain = {.run = run, .grid = grid}, .few = run->index % 2};
    if (sequel_serves(run->subject, latent) && draw_first(&turns, latent, &point)) {
        draw_others(&turns, latent, &point);
        if (run->index % 4 == 1)
            set_apart(&turns);
        draw_steps(&turns);
    }
    if (turns.chain.count > 0)
        other_host_use(run, other_host_draw_threads(run), judge_steps, &turns);
    else if (run->code == CHECK_PASS)
        check_skip(run, "query refuses every batch that was drawn");
    setting_tell(run, turns.what);
    chain_finish(&turns.chain);
    options_destroy(turns.drawn);
}

/* ---- Table ----------------------------------------------------------------------------------- */

CHECK_COUNT(turns, sequel_serves(subject, false) ? numerics_few(subject, CASES) : 1)
CHECK_COUNT(mla_turns, sequel_serves(subject, true) ? numerics_few(subject, LATENT_CASES) : 1)
CHECK_RUN(softmax_turns, run_turns(run, false))
CHECK_RUN(mla_turns, run_turns(run, true))

const struct check check_number_turns[] = {
    {"INVAR-01", "turns",
     "layers and batches with any parameters may share an instance and a metadata",
     CHECK_NEEDS_COMPUTE, count_turns, run_softmax_turns, NULL, NULL, NULL},
    CHECK_CASES(
        "INVAR-01", mla_turns,
        "latent layers and batches with any parameters may share an instance and a metadata"),
    {.rule = NULL},
};
