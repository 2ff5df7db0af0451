/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.c: any numbers. INVAR-01.random takes values of the grid's lists, here lengths, windows,
 * chunks, heads, dimensions, pages, scales and padding are drawn, and mostly an option's value: a
 * fault that shows at some numbers alone has no list to hide behind.
 */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numbers.h"
#include "host/check/cases/numerics.h"
#include "host/check/groups/setting.h"

#include "host/base/mix.h"

#include <stdio.h>
#include <string.h>

enum { CASES = 600, LATENT_CASES = 180 };
/* Products of a query's and a key's element that a case may have. */
static const int64_t most_work = 4000000;

static const struct case_run once = {.exact_memory = true};

/* Fewer where each is likely to be compiled first. */
static int32_t count_cases(const struct check_subject *subject, int32_t count)
{
    struct grid *grid = grid_of(subject);
    bool compiles = grid && grid->notes & ATTN_NOTE_RUNTIME_COMPILATION;
    grid_release(subject, grid);
    return subject->exhaustive ? 20 * count : compiles ? count / 20 : count;
}

/* More often than not it is a number: work is cut by these. */
static void draw_setting(const struct check_run *run, int32_t count, struct setting *setting)
{
    for (uint64_t n = 0; n < 20; n++) {
        uint64_t word = mix_stream(run->seed, 4 + n);
        setting_find(run->subject, (int32_t)mix_below((uint32_t)(word >> 32), (uint64_t)count),
                     setting);
        if (setting_has_range(setting_option(run->subject, setting->option)) || word % 8 == 0)
            return;
    }
}

/* Options with one at an end of its range, which `what` says. NULL: those that there are. */
static struct options *draw_options(struct check_run *run, char what[3 * SETTING_TEXT])
{
    int32_t count = setting_count_all(run->subject);
    struct options *options = NULL;
    struct setting setting;
    host_error error;
    if (count == 0 || mix_stream(run->seed, 3) % 4 == 0)
        return NULL;
    draw_setting(run, count, &setting);
    setting_describe(run->subject, &setting, 1, what);
    return setting_parse(run->subject, &setting, 1, &options, &error) == ATTN_OK ? options : NULL;
}

/* The options of a form are its own. A failure says which ones there were. */
static void judge(struct check_run *run, const struct grid *grid, const struct grid_point *point,
                  struct case_spec *spec)
{
    char what[3 * SETTING_TEXT];
    struct options *drawn = point->value[AXIS_FORM] == 0 ? draw_options(run, what) : NULL;
    bool is_used = drawn && grid_accepts_spec(grid, &drawn->view, spec, NULL, 0);
    const attn_options *used = is_used ? &drawn->view : grid_options(grid, point);
    if (is_used)
        check_note(run, "with %s", what);
    numbers_draw_layer(grid, used, mix_absorb(run->seed, 1), most_work, spec);
    numbers_draw_batch(grid, used, mix_absorb(run->seed, 2), most_work, spec);
    numerics_run(run, spec, used, &once);
    size_t length = strlen(run->text);
    if (is_used && run->code == CHECK_FAIL)
        snprintf(run->text + length, sizeof run->text - length, "; with %s", what);
    options_destroy(drawn);
}

/* ---- Softmax --------------------------------------------------------------------------------- */

static int32_t count_numbers(const struct check_subject *subject)
{
    return count_cases(subject, CASES);
}

static void run_numbers(struct check_run *run)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    CHECK_THAT(run, grid, "no memory for the grid");
    if (numerics_random(run, grid, &point, &spec))
        judge(run, grid, &point, &spec);
    grid_release(run->subject, grid);
}

/* ---- Latents --------------------------------------------------------------------------------- */

static const struct mla_choice anything = {
    MLA_ABSORBED | MLA_EXPANDED, MLA_LATENT | MLA_PACKED, (1u << MLA_DIMS) - 1, {{0, 0}}};

static int32_t count_mla_numbers(const struct check_subject *subject)
{
    return numerics_mla_count(subject, &anything) > 1 ? count_cases(subject, LATENT_CASES) : 1;
}

static void run_mla_numbers(struct check_run *run)
{
    struct grid *grid = grid_of(run->subject);
    struct mla_point point;
    struct case_spec spec;
    CHECK_THAT(run, grid, "no memory for the grid");
    if (numerics_mla_random(run, grid, &anything, &point, &spec))
        judge(run, grid, &point.common, &spec);
    grid_release(run->subject, grid);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define ROW(function, sentence)                                                                    \
    {                                                                                              \
        "INVAR-01", #function, sentence, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE, count_##function,   \
            run_##function                                                                         \
    }

const struct check check_numbers[] = {
    ROW(numbers, "lengths, windows, heads and pages are any that query accepts"),
    ROW(mla_numbers, "lengths, windows, heads and pages of latent layers are any"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
