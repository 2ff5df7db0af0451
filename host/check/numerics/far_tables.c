/* SPDX-License-Identifier: Apache-2.0
 *
 * far_tables.c: tables of a batch that are larger than 32 bits count: rows of req_to_token, block
 * tables and token_pos, entries of kv_indices, bytes of masks. Results are judged as ever.
 */
#include "host/check/cases/far_batch.h"
#include "host/check/cases/kind.h"

#include <string.h>

static void judge(struct kind_case *k)
{
    static const struct case_run once = {.exact_memory = true};
    struct check_run *run = k->run;
    struct check_subject subject = *run->subject;
    struct check_run moved = *run;
    struct far_batch far;
    far_batch_init(&far, subject.type, subject.device);
    subject.type = &far.type;
    moved.subject = &subject;
    numerics_run(&moved, &k->at.spec, k->at.options, &once);
    run->code = moved.code;
    memcpy(run->text, moved.text, sizeof run->text);
    if (run->code == CHECK_PASS && far.tables == 0)
        check_fail(run, "the suite is wrong: no table of this case was moved");
    far_batch_finish(&far);
}

static void run_far(struct check_run *run)
{
    if (run->subject->fake_device)
        check_skip(run, "the fake driver fills its memory: no tables of some GiB");
    else
        kind_use(run, judge);
}

#define ROW(rule, name, sentence, cases)                                                           \
    KIND_ROW(rule, name, far, CHECK_NEEDS_COMPUTE, sentence, cases)

const struct check check_far_tables[] = {
    ROW("KV-08", "far_tables", "rows of an index table may be more than 2^31 entries apart",
        SOFTMAX_CASES({AXIS_FORM, ALL}, BOTH_PHASES, {AXIS_PAGE, BIT(0) | BIT(1)})),
    ROW("KV-08", "far_cross_tables",
        "rows of an encoder's index table may be more than 2^31 entries apart",
        SOFTMAX_CASES({AXIS_TYPE, BIT(TYPE_CROSS)}, {AXIS_WINDOW, BIT(WINDOW_NONE)},
                      {AXIS_FORM, ALL}, BOTH_PHASES)),
    ROW("KV-08", "mla_far_tables",
        "rows of an index table of latents may be more than 2^31 entries apart",
        LATENT_CASES(MLA_ABSORBED, MLA_LATENT, BIT(MLA_SMALL), {AXIS_FORM, ALL}, BOTH_PHASES)),
    ROW("MEAN-10", "far_masks", "masks and items may be more than 2^32 bytes apart",
        SOFTMAX_CASES({AXIS_MASK, BIT(MASK_FULL) | BIT(MASK_QLEN) | BIT(MASK_QLEN_POSITIONS) |
                                      BIT(MASK_ITEMS)},
                      {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_VERIFY)})),
    {.rule = NULL},
};
