/* SPDX-License-Identifier: Apache-2.0
 *
 * hints.c: batches that say which sequences have their first keys in common: runs of several
 * lengths, with sequences before, between and after them that share nothing. Sequences of a run do
 * have the same slots. A result is what it is without the hint.
 */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"

#define BIT(value) (1u << (value))
enum { ALL = (1 << GRID_MAX_VALUES) - 1 };

/* In pages: those that a sequence shares with the one before; then tokens of its prefix beyond
 * them, and new ones. Sequence 0 shares nothing with anything. */
static const struct {
    int32_t pages, more, num_new;
} runs[FORWARD_CASE_MAX_SEQS] = {
    {0, 21, 3}, {0, 35, 2}, {2, 9, 2}, {2, 0, 3}, {0, 4, 5}, {0, 50, 1}, {3, 17, 1}, {0, 19, 1},
};

static void set_runs(struct case_spec *spec, enum case_hint hint)
{
    int32_t page = spec->page_size;
    spec->hint = hint;
    spec->num_sequences = FORWARD_CASE_MAX_SEQS;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        bool begins = s + 1 < spec->num_sequences && runs[s + 1].pages > runs[s].pages;
        int32_t shared = page * runs[s].pages;
        int32_t least = begins ? page * runs[s + 1].pages : shared;
        int32_t num_new = spec->mode == ATTN_MODE_DECODE          ? 1
                          : spec->mode == ATTN_MODE_TARGET_VERIFY ? 4
                                                                  : runs[s].num_new;
        spec->sequences[s] = (struct case_sequence){.prefix_len = least + runs[s].more,
                                                    .num_new = num_new,
                                                    .tokens_of = s,
                                                    .shared = shared};
    }
}

/* The hint of all runs in every case; of the others, and none at all, one in each. */
static void judge_hints(struct check_run *run, const struct grid *grid,
                        const struct case_spec *base, const attn_options *options)
{
    const struct case_run exactly = {.exact_memory = true, .repeat = 1};
    static const enum case_hint others[] = {HINT_SOME, HINT_SHORT, HINT_NONE};
    for (int n = 0; n < 2 && run->code == CHECK_PASS; n++) {
        struct case_spec spec = *base;
        char reason[512] = "";
        set_runs(&spec, n ? others[run->index % 3] : HINT_ALL);
        if (grid_accepts_spec(grid, options, &spec, reason, sizeof reason))
            numerics_run(run, &spec, options, &exactly);
        else
            check_skip(run, "%s", reason);
    }
}

static const struct grid_choice softmax_choices[] = {
    {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED) | BIT(MODE_VERIFY)},
    {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3)},
    {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_63)},
    {0, 0}};
static const struct grid_choice form_choices[] = {
    {AXIS_FORM, ALL}, {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)}, {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED,
    MLA_LATENT | MLA_PACKED,
    BIT(MLA_ONE_BLOCK),
    {{AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)}}};

static void run_found(struct check_run *run, const struct grid_choice *choices)
{
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    const attn_options *options;
    CHECK_THAT(run, grid, "no memory for the grid");
    if (choices ? numerics_spec(run, grid, choices, &spec, &options)
                : numerics_mla_spec(run, grid, &latent_choice, &spec, &options))
        judge_hints(run, grid, &spec, options);
    grid_release(run->subject, grid);
}

/* Levels of runs, and nothing else. */
static void run_prefix_levels(struct check_run *run)
{
    const struct case_run exactly = {.exact_memory = true, .repeat = 1};
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    const attn_options *options;
    char reason[512] = "";
    CHECK_THAT(run, grid, "no memory for the grid");
    if (numerics_spec(run, grid, softmax_choices, &spec, &options)) {
        set_runs(&spec, HINT_LEVELS);
        if (grid_accepts_spec(grid, options, &spec, reason, sizeof reason))
            numerics_run(run, &spec, options, &exactly);
        else
            check_skip(run, "%s", reason);
    }
    grid_release(run->subject, grid);
}

static int32_t count_hints(const struct check_subject *subject)
{
    return numerics_count(subject, softmax_choices);
}

static int32_t count_hints_forms(const struct check_subject *subject)
{
    return numerics_count(subject, form_choices);
}

static int32_t count_mla_hints(const struct check_subject *subject)
{
    return numerics_mla_count(subject, &latent_choice);
}

static void run_hints(struct check_run *run)
{
    run_found(run, softmax_choices);
}

static void run_hints_forms(struct check_run *run)
{
    run_found(run, form_choices);
}

static void run_mla_hints(struct check_run *run)
{
    run_found(run, NULL);
}

#define ROW(name, sentence)                                                                        \
    {                                                                                              \
        "INVAR-01", #name, sentence, CHECK_NEEDS_COMPUTE, count_##name, run_##name                 \
    }

const struct check check_hints[] = {
    ROW(hints, "the hint of shared prefixes changes no result"),
    ROW(hints_forms, "the hint of shared prefixes changes no result, in any form of KV indices"),
    ROW(mla_hints, "the hint of shared prefixes changes no result of latent layers"),
    {"KV-15", "prefix_levels", "shared prefixes of several levels change no result",
     CHECK_NEEDS_COMPUTE, count_hints, run_prefix_levels},
    {NULL, NULL, NULL, 0, NULL, NULL},
};
