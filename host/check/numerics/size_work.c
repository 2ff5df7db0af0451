/* SPDX-License-Identifier: Apache-2.0
 *
 * size_work.c: the largest numbers of work items: tiles of many sequences that do not fill their
 * last one, and splits of keys, as many as the backend's options allow. Tables of work items and
 * memory for partial results are sized by the bounds, and must hold the maximum.
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/other_host.h"
#include "host/check/cases/setting.h"

/* ---- Tiles ----------------------------------------------------------------------------------- */

enum { MANY_SEQUENCES = 160, QUERIES = 67, WIDE_HEADS = 2 * QUERIES };

/* Each sequence has 134 rows of a KV head (queries, times two heads; in DECODE heads alone): a few
 * more than tiles of 16, 32, 64, 128 and 132, and its queries are more than 64. */
static void make_many_tiles(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    case_set_lengths(spec, "3+67 0+67 9+67 1+67 5+67 2+67 7+67 4+67");
    spec->num_sequences = MANY_SEQUENCES;
    for (int32_t s = 0; spec->mode == ATTN_MODE_TARGET_VERIFY && s < FORWARD_CASE_MAX_SEQS; s++)
        spec->sequences[s].num_new = QUERIES;
    if (spec->mode != ATTN_MODE_DECODE)
        return;
    spec->num_q_heads = WIDE_HEADS;
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
}

/* ---- Splits ---------------------------------------------------------------------------------- */

/* Three shapes: two sequences whose work is shared out, with many rows, long values and two KV
 * heads; six unlike ones; and, of 128 heads, one of many keys and one of many rows. The first and
 * the last have sinks, where they are accepted: splits are merged with them, and without. */
enum { WIDE, UNEVEN, MANY_HEADS, SHAPES };
enum { ENDS = 2, WIDE_ROWS = 66, SMALL_DIM = 16, HEADS = 128 };

static const char *const shape_lengths[SHAPES] = {
    "1590+66 1540+66", "17+40 1200+5 0+1 900+1 70+19 1000+2", "10500+1 0+80 3+2"};

/* Queries and keys are short; of latents, those that are read as values are long. */
static void set_dims(struct case_spec *spec, int32_t shape, int32_t value)
{
    const bool wide = shape == WIDE, decode = spec->mode == ATTN_MODE_DECODE;
    value = wide ? value : SMALL_DIM;
    spec->num_kv_heads = wide ? 2 : 1;
    spec->num_q_heads = (wide && decode ? 2 * WIDE_ROWS : 2) * spec->num_kv_heads;
    if (shape == MANY_HEADS)
        spec->num_q_heads = HEADS;
    if (spec->latent.kv_lora_rank > 0) {
        spec->latent.kv_lora_rank = spec->latent.expanded ? 33 : value;
        spec->latent.rope_dim = 7, spec->latent.nope_dim = 11;
        spec->latent.v_dim = spec->latent.expanded ? value : 5;
        case_spec_set_form(spec, spec->latent.expanded);
    } else {
        spec->head_dim = SMALL_DIM, spec->v_head_dim = value;
    }
}

/* The longest values that are accepted; else the dimensions stay what they are. */
static void widen(const struct grid *grid, const attn_options *options, int32_t shape,
                  struct case_spec *spec)
{
    bool taken = false;
    for (int32_t value = 512; value >= 64 && !taken; value /= 2) {
        struct case_spec wide = *spec;
        set_dims(&wide, shape, value);
        taken = grid_take(grid, options, &wide, spec);
    }
}

/* Option number `n` of those that are numbers with a range, in `setting`; how many there are. */
static int32_t find_number(const struct check_subject *subject, int32_t n, struct setting *setting)
{
    int32_t count = 0;
    for (uint32_t o = 0; o < subject->type->num_options; o++)
        if (setting_has_range(setting_option(subject, o)) && count++ == n)
            setting->option = o;
    return count;
}

/* A composite splits no work itself: the last shape is for its children. */
CHECK_COUNT(shapes, subject->type->flags &ATTN_BACKEND_COMPOSITE ? MANY_HEADS : SHAPES)

static int32_t count_settings(const struct check_subject *subject, int32_t points)
{
    struct setting unused;
    int32_t numbers = find_number(subject, -1, &unused);
    return numbers > 0 ? numbers * ENDS * count_shapes(subject) * points : 1;
}

static void run_shape(struct check_run *run, const struct grid *grid, struct case_spec *spec,
                      int32_t shape, const attn_options *options)
{
    /* Of many workers latents' tiles have the most units of work that their rows are cut into. */
    const bool cuts_rows = spec->latent.kv_lora_rank > 0 && run->index % 2 == 0;
    const uint32_t threads[SHAPES] = {1, 3, cuts_rows ? 12 : 2};
    char reason[512] = "";
    case_set_lengths(spec, shape_lengths[shape]);
    widen(grid, options, shape, spec);
    struct case_spec sunk = *spec;
    sunk.sinks = true;
    if (shape != UNEVEN)
        grid_take(grid, options, &sunk, spec);
    if (grid_accepts_spec(grid, options, spec, reason, sizeof reason))
        other_host_run_spec(run, threads[shape], spec, options);
    else
        check_skip(run, "%s", reason);
}

static void run_setting(struct check_run *run, const struct grid *grid, struct case_spec *spec,
                        int32_t variant)
{
    struct setting setting;
    char what[3 * SETTING_TEXT];
    int32_t shapes = count_shapes(run->subject);
    if (find_number(run->subject, variant / shapes / ENDS, &setting) == 0) {
        check_skip(run, "the backend has no option that is a number with a range");
        return;
    }
    setting_value(setting_option(run->subject, setting.option), variant / shapes % ENDS,
                  setting.text);
    struct options *options = setting_open(run, &setting, 1, what);
    if (options)
        run_shape(run, grid, spec, variant % shapes, &options->view);
    options_destroy(options);
}

static const struct grid_choice softmax_choices[] = {BOTH_PHASES, OF(MASK, LAYER, FULL), {0}};
static const struct grid_choice latent_choices[] = {
    OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), OF(MODE, EXTEND)), {0}};

CHECK_COUNT(split_settings, count_settings(subject, numerics_count(subject, softmax_choices)))
CHECK_COUNT(mla_split_settings, count_settings(subject, numerics_count(subject, latent_choices)))

/* Points of the product come first: it is they that numerics_spec() counts by run->index. */
static void run_settings(struct check_run *run, const struct grid_choice *choices)
{
    struct grid *grid = grid_of(run->subject);
    struct check_run at = *run;
    struct case_spec spec;
    const attn_options *options;
    int32_t points = numerics_count(run->subject, choices);
    at.index = run->index % points;
    bool found = numerics_spec(&at, grid, choices, &spec, &options);
    at.index = run->index;
    *run = at;
    if (found)
        run_setting(run, grid, &spec, run->index / points);
}

CHECK_RUN(split_settings, run_settings(run, softmax_choices))
CHECK_RUN(mla_split_settings, run_settings(run, latent_choices))

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_size_work[] = {
    ROWS("INVAR-01", many_tiles, "each of 160 sequences may have a few rows more than a tile",
         SOFTMAX_SMALL(make_many_tiles, 1, OF(TYPE, DECODER, ENCODER_ONLY), EACH(MODE)),
         SMALL_VARIED(make_many_tiles, 1, BOTH_PHASES)),
    ROW("INVAR-01", many_tiles_cross,
        "each of 160 sequences with an encoder may have a few rows more than a tile",
        SOFTMAX_SMALL(make_many_tiles, 1, OF(TYPE, CROSS), OF(WINDOW, NONE), BOTH_PHASES)),
    CHECK_CASES("INVAR-01", split_settings,
                "long batches are right with each numeric option at the ends of its range"),
    CHECK_CASES("INVAR-01", mla_split_settings,
                "long batches of latent layers are right with each numeric option at the ends of "
                "its range"),
    {.rule = NULL},
};
