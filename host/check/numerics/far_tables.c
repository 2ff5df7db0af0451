/* SPDX-License-Identifier: Apache-2.0
 *
 * far_tables.c: tables of a batch that are larger than 32 bits count: rows of req_to_token, block
 * tables and token_pos, entries of kv_indices, bytes of masks. Results are judged as ever.
 */
#include "host/check/cases/far_batch.h"
#include "host/check/cases/numerics.h"

#include <string.h>

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
    struct numerics_point at;
    if (run->subject->fake_device) {
        check_skip(run, "the fake driver fills its memory: no tables of some GiB");
        return;
    }
    if (numerics_open(&at, run, choices, &latent_choice))
        judge(run, &at.spec, at.options);
    numerics_close(&at);
}

CHECK_COUNT(far_tables, numerics_count(subject, table_choices))
CHECK_RUN(far_tables, run_far(run, table_choices))
CHECK_COUNT(far_cross_tables, numerics_count(subject, cross_choices))
CHECK_RUN(far_cross_tables, run_far(run, cross_choices))
CHECK_COUNT(mla_far_tables, numerics_mla_count(subject, &latent_choice))
CHECK_RUN(mla_far_tables, run_far(run, NULL))
CHECK_COUNT(far_masks, numerics_count(subject, mask_choices))
CHECK_RUN(far_masks, run_far(run, mask_choices))

const struct check check_far_tables[] = {
    CHECK_CASES("KV-08", far_tables, "rows of a table may lie more than 2^31 entries apart"),
    CHECK_CASES("KV-08", far_cross_tables,
                "rows of an encoder's table may lie more than 2^31 entries apart"),
    CHECK_CASES("KV-08", mla_far_tables,
                "rows of a table of latents may lie more than 2^31 entries apart"),
    CHECK_CASES("MEAN-10", far_masks, "masks and items may lie more than 2^32 bytes apart"),
    {.rule = NULL},
};
