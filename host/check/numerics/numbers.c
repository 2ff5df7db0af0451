/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.c: any numbers. INVAR-01.random and linear_random take values of lists, here lengths,
 * windows, chunks, heads, dimensions, pages, scales, snapshots and padding are drawn, and mostly an
 * option's value: a fault that shows at some numbers alone cannot hide between the entries of a list.
 */
#include "host/check/cases/draw.h"
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numbers.h"
#include "host/check/cases/kind.h"
#include "host/check/cases/other_host.h"
#include "host/check/cases/setting.h"

#include "host/base/mix.h"

#include <unistd.h>

enum { CASES = 660, LATENTS = 180, LINEAR_CASES = 240, LARGE_CASES = 200, SPARSE_CASES = 60 };
/* Products of a query's and a key's element that a case may have; elements of states. */
static const int64_t most_work = 4000000, most_state_work = 3000000, large_work = 150000000;

/* A spec of a grid. */
struct asked {
    const struct grid *grid;
    struct case_spec *spec;
};

static bool accepts_asked(void *ctx, const attn_options *options)
{
    const struct asked *asked = ctx;
    return grid_accepts_spec(asked->grid, options, asked->spec, NULL, 0);
}

/* Of fp8 operands every second case has e5m2 instead of e4m3, and every third has its scales on the device alone. */
static void change_fp8(const struct check_run *run, const struct grid *grid,
                       const attn_options *options, struct case_spec *spec)
{
    struct case_spec changed = *spec;
    const bool has_e4m3 = spec->q_dtype == ATTN_FP8_E4M3 || spec->new_kv_dtype == ATTN_FP8_E4M3 ||
                          spec->out_dtype == ATTN_FP8_E4M3;
    if (has_e4m3 && mix_stream(run->seed, 9) % 2) {
        numerics_make_e5m2(&changed, 0);
        grid_take(grid, options, &changed, spec);
    }
    const bool scaled =
        spec->scale_granularity != ATTN_SCALE_NONE || spec->input_granularity != ATTN_SCALE_NONE;
    spec->device_scales = scaled && mix_stream(run->seed, 10) % 3 == 0;
}

/* What others have one at a time, beside all else: in an eighth of the cases each a negative scale, a window of up to
 * 3000 keys, keys with a score of -inf, keys in page 0, sinks or slopes that are extreme. */
static void draw_extremes(const struct check_run *run, const struct grid *grid,
                          const attn_options *options, struct case_spec *spec)
{
    const uint64_t drawn = mix_stream(run->seed, 14);
    struct case_spec changed = *spec;
    if (drawn % 8 == 0)
        changed.sm_scale = -(spec->sm_scale > 0 ? spec->sm_scale : 0.2f);
    else if (drawn % 8 == 1 && spec->attn_type != ATTN_TYPE_CROSS)
        changed.window_left = 300 + draw_at(run->seed, 15, 2700);
    else if (drawn % 8 == 2)
        changed.lost_keys = 1 + draw_at(run->seed, 15, drawn >> 63 ? 2600 : 40);
    else if (drawn % 8 == 3)
        changed.keys_in_page_0 = spec->kv_layout;
    else if (drawn % 8 == 4)
        changed.high_sinks = spec->sinks;
    else if (drawn % 8 == 5)
        changed.odd_slopes = changed.without_needles = spec->alibi;
    else
        return;
    if (changed.lost_keys > 0 && (drawn >> 62 & 1) && !case_is_packed(spec))
        changed.lost_values = changed.without_needles = true;
    grid_take(grid, options, &changed, spec);
}

/* In a tenth of the cases a key or a value that rows see is NaN, and so are their outputs. */
static void put_nan(const struct check_run *run, struct case_spec *spec)
{
    struct case_spec changed = *spec;
    if (mix_stream(run->seed, 11) % 10 != 0)
        return;
    changed.seen_nan = mix_stream(run->seed, 12) % 3 == 0 ? NAN_IN_VALUE : NAN_IN_KEY;
    changed.without_needles = true;
    if (!case_spec_defect(&changed))
        *spec = changed;
}

/* In a quarter of the cases, on the CPU, nothing after the last element of an array or a tensor may be read. */
static bool is_guarded(const struct check_run *run)
{
    return run->subject->device->type == ATTN_DEVICE_CPU && sysconf(_SC_PAGESIZE) == CASE_GUARD &&
           mix_stream(run->seed, 13) % 4 == 0;
}

/* The options of a form are its own. A failure says which ones there were. */
static void judge(struct check_run *run, const struct grid *grid, const struct grid_point *point,
                  bool large, struct case_spec *spec)
{
    char what[3 * SETTING_TEXT] = "";
    struct asked asked = {grid, spec};
    struct options *drawn = NULL;
    if (point->value[AXIS_FORM] == 0)
        drawn = setting_draw_options(run, accepts_asked, &asked, what);
    const attn_options *used = drawn ? &drawn->view : grid_options(grid, point);
    struct numbers_for whom = {.grid = grid, .options = used, .most_work = most_work};
    if (drawn)
        check_note(run, "with %s", what);
    change_fp8(run, grid, used, spec);
    numbers_draw_layer(&whom, mix_absorb(run->seed, 1), spec);
    numbers_draw_batch(&whom, mix_absorb(run->seed, 2), spec);
    whom.most_work = !large                          ? 2 * most_work
                     : spec->latent.kv_lora_rank > 0 ? large_work / 6
                                                     : large_work;
    if (large)
        numbers_draw_large(&whom, mix_absorb(run->seed, 5), spec);
    numbers_draw_hint(&whom, mix_absorb(run->seed, 7), spec);
    draw_extremes(run, grid, used, spec);
    put_nan(run, spec);
    spec->guarded = is_guarded(run);
    other_host_run_spec(run, other_host_draw_threads(run), spec, used);
    setting_tell(run, what);
    options_destroy(drawn);
}

/* ---- Softmax layers and latent ones ---------------------------------------------------------- */

/* A sparse layer over latents, without what such a layer cannot have. False: skipped. */
static bool draw_sparse(struct check_run *run, const struct grid *grid, struct grid_point *point,
                        struct case_spec *spec)
{
    enum { TRIES = 400 };
    static const enum grid_axis plain[] = {AXIS_LATENT_FORM, AXIS_ALIBI, AXIS_MASK, AXIS_WINDOW,
                                           AXIS_CHUNK};
    for (uint64_t n = 0; n < TRIES; n++) {
        const uint64_t drawn = mix_stream(run->seed, 16 + n);
        *point = grid_random_latent(grid, run->seed, n, run->without);
        point->value[AXIS_CHOICE] = (uint8_t)(CHOICE_GIVEN + drawn % CHOICE_F32);
        for (size_t a = 0; a < (point->value[AXIS_CHOICE] == CHOICE_GIVEN ? 5 : 2); a++)
            point->value[plain[a]] = 0;
        if (point->value[AXIS_SOURCE] != SOURCE_CACHE)
            point->value[AXIS_SOURCE] = SOURCE_SAVED;
        if (!grid_accepts(grid, point, spec, NULL, 0))
            continue;
        spec->top_k = 1 + draw_at(run->seed, 15, 2 * spec->top_k);
        spec->indexer.has_ties = spec->indexer.heads > 0 && drawn >> 62 & 1;
        spec->indexer.by_steps = spec->indexer.heads > 0 && drawn >> 63;
        if (grid_accepts_spec(grid, grid_options(grid, point), spec, NULL, 0))
            return true;
    }
    check_skip(run, "query refuses all drawn cases");
    return false;
}

static void run_any(struct check_run *run, const struct grid_choice *latents, bool large)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    if (numerics_random(run, grid, latents, &point, &spec))
        judge(run, grid, &point, large, &spec);
}

static void run_sparse(struct check_run *run, bool large)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    if (draw_sparse(run, grid, &point, &spec))
        judge(run, grid, &point, large, &spec);
}

/* Those of few elements for what is large. */
static const struct grid_choice any_latents[GRID_MAX_CHOICES + 1] = {
    OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED, ALL_LATENTS, {0, 0})};
static const struct grid_choice short_latents[GRID_MAX_CHOICES + 1] = {
    OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK), {0, 0})};

static const struct grid_choice sparse_latents[GRID_MAX_CHOICES + 1] = {OF_LATENTS(
    MLA_ABSORBED, MLA_LATENT | MLA_PACKED, ALL_LATENTS, {AXIS_CHOICE, ALL & ~BIT(CHOICE_NONE)})};

static int32_t count_latents(const struct check_subject *subject, const struct grid_choice *latents,
                             int32_t count)
{
    return numerics_count(subject, latents) > 1 ? numerics_few(subject, count) : 1;
}

CHECK_COUNT(numbers, numerics_few(subject, CASES))
CHECK_COUNT(large, numerics_few(subject, LARGE_CASES))
CHECK_COUNT(mla_numbers, count_latents(subject, any_latents, LATENTS))
CHECK_COUNT(mla_large, count_latents(subject, short_latents, LARGE_CASES))
CHECK_COUNT(sparse_numbers, count_latents(subject, sparse_latents, SPARSE_CASES))
CHECK_COUNT(sparse_large, count_latents(subject, sparse_latents, SPARSE_CASES))
CHECK_RUN(sparse_numbers, run_sparse(run, false))
CHECK_RUN(sparse_large, run_sparse(run, true))
CHECK_RUN(numbers, run_any(run, NULL, false))
CHECK_RUN(large, run_any(run, NULL, true))
CHECK_RUN(mla_numbers, run_any(run, any_latents, false))
CHECK_RUN(mla_large, run_any(run, short_latents, true))

/* ---- Recurrences ----------------------------------------------------------------------------- */

struct asked_linear {
    struct check_subject subject; /* with the options that are tried */
    struct case_spec *spec;
};

static bool accepts_linear(void *ctx, const attn_options *options)
{
    struct asked_linear *asked = ctx;
    char reason[LINEAR_TEXT];
    asked->subject.options = options;
    return linear_accepts(&asked->subject, asked->spec, reason);
}

static void judge_linear(struct kind_case *k)
{
    struct check_run *run = k->run;
    struct case_spec *spec = &k->at.spec;
    const struct check_subject *given = run->subject;
    struct check_subject subject = *given;
    struct asked_linear asked = {subject, spec};
    const struct numbers_for whom = {.subject = &subject, .most_work = most_state_work};
    char what[3 * SETTING_TEXT];
    struct options *drawn = setting_draw_options(run, accepts_linear, &asked, what);
    if (drawn)
        subject.options = &drawn->view;
    run->subject = &subject;
    numbers_draw_layer(&whom, mix_absorb(run->seed, 1), spec);
    numbers_draw_batch(&whom, mix_absorb(run->seed, 2), spec);
    spec->guarded = is_guarded(run);
    numerics_run(run, spec, NULL);
    setting_tell(run, what);
    run->subject = given;
    options_destroy(drawn);
}

static const struct relation any_recurrence = {.judge = judge_linear};

/* ---- Table ----------------------------------------------------------------------------------- */

#define NUMBERS(function, sentence)                                                                \
    {                                                                                              \
        "INVAR-01", #function, sentence, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE, count_##function,   \
            run_##function, NULL, NULL, NULL                                                       \
    }

const struct check check_numbers[] = {
    NUMBERS(numbers,
            "results are right for random lengths, windows, heads and pages that query accepts"),
    NUMBERS(
        mla_numbers,
        "latent layers are right for random lengths, windows, heads and pages that query accepts"),
    NUMBERS(large,
            "any two of these may be large at once: heads, sequences, padding, keys, queries"),
    NUMBERS(mla_large, "any two of these may be large at once in latent layers: heads, sequences, "
                       "padding, keys, queries"),
    NUMBERS(sparse_numbers, "sparse layers over latents are right for random lengths, windows, "
                            "heads and pages that query accepts"),
    NUMBERS(sparse_large, "any two of these may be large at once in sparse layers over latents: "
                          "heads, sequences, padding, keys, queries"),
    ROW_NEEDS("INVAR-01", linear_numbers, any_recurrence, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE,
              "linear layers are right for random lengths, heads, dimensions and "
              "snapshots that query accepts",
              CASES_OF(.kind = &linear_layers, .drawn = LINEAR_CASES)),
    {.rule = NULL},
};
