/* SPDX-License-Identifier: Apache-2.0
 *
 * far_tables.c: tables of a batch that are larger than 32 bits count: rows of req_to_token, block
 * tables and token_pos, entries of kv_indices, bytes of masks. Results are judged as ever.
 */
#include "host/check/cases/far_batch.h"
#include "host/check/cases/numerics.h"

#include <string.h>

#define BIT(value) (1u << (value))
#define BOTH_PHASES                                                                                \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)                                             \
    }
enum { ALL = (1 << GRID_MAX_VALUES) - 1 };

static const struct grid_choice table_choices[] = {
    {AXIS_FORM, ALL}, BOTH_PHASES, {AXIS_PAGE, BIT(0) | BIT(1)}, {0, 0}};
static const struct grid_choice cross_choices[] = {{AXIS_TYPE, BIT(TYPE_CROSS)},
                                                   {AXIS_WINDOW, BIT(WINDOW_NONE)},
                                                   {AXIS_FORM, ALL},
                                                   BOTH_PHASES,
                                                   {0, 0}};
static const struct grid_choice mask_choices[] = {
    {AXIS_MASK, BIT(MASK_FULL) | BIT(MASK_QLEN) | BIT(MASK_QLEN_POSITIONS) | BIT(MASK_ITEMS)},
    {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_VERIFY)},
    {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED, MLA_LATENT, BIT(MLA_SMALL), {{AXIS_FORM, ALL}, BOTH_PHASES}};

static void judge(struct check_run *run, const struct case_spec *spec, const attn_options *options)
{
    static const struct case_run once = {.exact_memory = true};
    struct check_subject subject = *run->subject;
    struct check_run moved = *run;
    struct far_batch far;
    far_batch_init(&far, subject.type, subject.device);
    subject.type = &far.type;
    moved.subject = &subject;
    numerics_run(&moved, spec, options, &once);
    run->code = moved.code;
    memcpy(run->text, moved.text, sizeof run->text);
    if (run->code == CHECK_PASS && far.tables == 0)
        check_fail(run, "the suite is wrong: no table of this case was moved");
    far_batch_finish(&far);
}

static void run_far(struct check_run *run, const struct grid_choice *choices)
{
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    const attn_options *options;
    CHECK_THAT(run, grid, "no memory for the grid");
    if (run->subject->fake_device)
        check_skip(run, "the fake driver fills its memory: no tables of some GiB");
    else if (choices ? numerics_spec(run, grid, choices, &spec, &options)
                     : numerics_mla_spec(run, grid, &latent_choice, &spec, &options))
        judge(run, &spec, options);
    grid_release(run->subject, grid);
}

#define TABLES(name)                                                                               \
    static int32_t count_far_##name(const struct check_subject *subject)                           \
    {                                                                                              \
        return numerics_count(subject, name##_choices);                                            \
    }                                                                                              \
    static void run_far_##name(struct check_run *run)                                              \
    {                                                                                              \
        run_far(run, name##_choices);                                                              \
    }
TABLES(table)
TABLES(cross)
TABLES(mask)

CHECK_COUNT(latent, numerics_mla_count(subject, &latent_choice))
CHECK_RUN(latent, run_far(run, NULL))

const struct check check_far_tables[] = {
    {"KV-08", "far_tables", "rows of a table may lie more than 2^31 entries apart",
     CHECK_NEEDS_COMPUTE, count_far_table, run_far_table},
    {"KV-08", "far_cross_tables", "rows of an encoder's table may lie more than 2^31 entries apart",
     CHECK_NEEDS_COMPUTE, count_far_cross, run_far_cross},
    {"KV-08", "mla_far_tables", "rows of a table of latents may lie more than 2^31 entries apart",
     CHECK_NEEDS_COMPUTE, count_latent, run_latent},
    {"MEAN-10", "far_masks", "masks and items may lie more than 2^32 bytes apart",
     CHECK_NEEDS_COMPUTE, count_far_mask, run_far_mask},
    {NULL, NULL, NULL, 0, NULL, NULL},
};
