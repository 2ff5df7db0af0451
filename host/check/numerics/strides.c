/* SPDX-License-Identifier: Apache-2.0
 *
 * strides.c: operands that do not lie as a case lays them: a generator over all roles that a
 * forward is given. Each of them alone, then all together, in both forms of strider.h; what comes
 * out is judged as ever.
 */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/linear_bench.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/strider.h"

#include "host/base/error.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 800 };

static const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* ---- The generator --------------------------------------------------------------------------- */

/* One forward, judged. False: `text` says why. */
typedef bool (*judge_once)(void *ctx, char *text, size_t size);

/* Forwards with each operand moved by itself, then with all of them; the first one moves none, to
 * see which there are. `text` begins with the operand's name. */
static bool move_each(struct check_run *run, struct strider *strider, judge_once judge, void *ctx,
                      char *text, size_t size)
{
    for (int n = -1; n < (int)ATTN_ROLE_COUNT + STRIDER_FORMS; n++) {
        bool all = n >= (int)ATTN_ROLE_COUNT;
        strider->roles = n < 0 ? 0 : all ? strider->given : strider->given & BIT(n);
        strider->form = all ? (enum strider_form)(n - (int)ATTN_ROLE_COUNT) : STRIDER_TURNED;
        if (n >= 0 && strider->roles == 0)
            continue;
        check_note(run, "%s with other strides", strider_name(strider));
        char why[TEXT - 100];
        if (judge(ctx, why, sizeof why))
            continue;
        snprintf(text, size, "%s with other strides%s: %s", strider_name(strider),
                 n >= 0 && strider->form == STRIDER_TURNED ? " and outer dimensions turned round"
                                                           : "",
                 why);
        return false;
    }
    return true;
}

/* The same, one dimension at a time so far apart that no 32 bits count what lies between: on the
 * CPU all operands that have several there at once, and each alone where that fails, to name it; on
 * a GPU, which has to have the memory, each alone. */
static bool move_far(struct check_run *run, struct strider *strider, judge_once judge, void *ctx,
                     char *text, size_t size)
{
    char why[TEXT - 100];
    bool alone = strider->device->type != ATTN_DEVICE_CPU;
    strider->roles = 0;
    strider->form = STRIDER_FAR;
    if (!judge(ctx, why, sizeof why)) {
        snprintf(text, size, "%s", why);
        return false;
    }
    for (uint32_t d = 0; d + 1 < ATTN_MAX_DIMS; d++)
        for (int n = -1; n < (int)ATTN_ROLE_COUNT; n++) {
            if (n < 0 ? alone : !(alone && strider->dims[n] >> d & 1))
                continue;
            strider->far_dim = d;
            strider->roles = n < 0 ? strider->given : BIT(n);
            check_note(run, "%s far apart along dimension %u", strider_name(strider), d);
            if (judge(ctx, why, sizeof why))
                continue;
            snprintf(text, size, "%s far apart along dimension %u: %s", strider_name(strider), d,
                     why);
            if (n >= 0)
                return false;
            alone = true;
        }
    return !alone || strider->device->type != ATTN_DEVICE_CPU;
}

/* What is done to a case's operands. */
typedef bool (*move_operands)(struct check_run *run, struct strider *strider, judge_once judge,
                              void *ctx, char *text, size_t size);

/* ---- Softmax and latent layers --------------------------------------------------------------- */

struct forward_judge {
    struct numerics_noted noted;
    struct case_session *session;
    struct forward_case *c;
    attn_status status;
};

static bool judge_forward(void *ctx, char *text, size_t size)
{
    struct forward_judge *judge = ctx;
    const struct case_run how = numerics_repeats(&judge->noted);
    struct case_verdict verdict;
    case_session_repeat(judge->session, judge->c, &how, &verdict);
    judge->status = verdict.status;
    if (!verdict.good)
        snprintf(text, size, "%s", verdict.text);
    return verdict.good;
}

static void run_spec(struct check_run *run, const struct case_spec *spec,
                     const attn_options *options, move_operands move)
{
    char text[TEXT];
    struct strider strider;
    struct check_subject subject = *run->subject;
    struct check_run moved = *run;
    struct forward_judge judge = {.noted = {run, spec}, .c = numerics_case(run, spec, NULL)};
    if (!judge.c)
        return;
    strider_init(&strider, subject.type, subject.device, run->seed);
    subject.type = &strider.type;
    moved.subject = &subject;
    judge.session = numerics_session(&moved, judge.c, spec, options, &exactly);
    if (judge.session && !move(run, &strider, judge_forward, &judge, text, sizeof text))
        numerics_report(&moved, spec, judge.status, text);
    run->code = moved.code;
    memcpy(run->text, moved.text, sizeof run->text);
    case_session_destroy(judge.session);
    strider_finish(&strider);
    forward_case_destroy(judge.c);
}

/* As much of this as query accepts: every optional operand, and dimensions that differ. */
static void enrich(const struct grid *grid, const attn_options *options, struct case_spec *spec)
{
    enum { LSE, SINKS, SLOPES, VALUES, CHANGES };
    for (int change = 0; change < CHANGES; change++) {
        struct case_spec richer = *spec;
        richer.wants_lse |= change == LSE;
        richer.sinks |= change == SINKS;
        richer.alibi |= change == SLOPES;
        if (change == VALUES && spec->latent.kv_lora_rank == 0)
            richer.v_head_dim = 33;
        if (grid_accepts_spec(grid, options, &richer, NULL, 0))
            *spec = richer;
    }
}

static const struct grid_choice softmax_choices[] = {
    {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)},
    {AXIS_LAYOUT, 3},
    {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED) | BIT(SOURCE_SHARED)},
    {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3_PER_HEAD)},
    {0, 0}};
static const struct grid_choice far_choices[] = {
    BOTH_PHASES,
    {AXIS_LAYOUT, 3},
    {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)},
    {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3_PER_HEAD)},
    {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED | MLA_EXPANDED,
    MLA_LATENT | MLA_PACKED,
    BIT(MLA_ONE_BLOCK),
    {{AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)}}};

CHECK_COUNT(strides, numerics_count(subject, softmax_choices))
CHECK_COUNT(far_operands, numerics_count(subject, far_choices))
CHECK_COUNT(mla_strides, numerics_mla_count(subject, &latent_choice))

static void run_found(struct check_run *run, const struct grid_choice *choices, move_operands move)
{
    struct numerics_point at;
    if (numerics_open(&at, run, choices, &latent_choice)) {
        if (at.spec.min_alignment > 0 || at.spec.kv_strides != ATTN_KV_STRIDES_ANY) {
            check_skip(run,
                       "query wants min_alignment %u, kv_strides %u: the operands may not lie "
                       "anyhow",
                       at.spec.min_alignment, at.spec.kv_strides);
        } else {
            enrich(at.grid, at.options, &at.spec);
            run_spec(run, &at.spec, at.options, move);
        }
    }
    numerics_close(&at);
}

CHECK_RUN(strides, run_found(run, softmax_choices, move_each))
CHECK_RUN(mla_strides, run_found(run, NULL, move_each))

/* The fake driver fills what it allocates, which is some GiB here. */
static bool has_far_memory(struct check_run *run)
{
    if (run->subject->fake_device)
        check_skip(run, "the fake driver fills its memory: no operands of some GiB");
    return !run->subject->fake_device;
}

static void run_far_operands(struct check_run *run)
{
    if (has_far_memory(run))
        run_found(run, far_choices, move_far);
}

static void run_mla_far_operands(struct check_run *run)
{
    if (has_far_memory(run))
        run_found(run, NULL, move_far);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

enum { LINEAR_VARIANTS = 4 };

struct linear_judge {
    struct linear_bench *bench;
    struct case_session *session;
    attn_status status;
};

static bool judge_linear(void *ctx, char *text, size_t size)
{
    struct linear_judge *judge = ctx;
    struct linear_case *c = judge->bench->c;
    host_error error;
    host_error_init(&error);
    judge->status = linear_case_reset(c, judge->session, &error.base);
    if (judge->status == ATTN_OK)
        judge->status = linear_case_forward(c, judge->session, NULL, &error.base);
    if (judge->status == ATTN_OK)
        return linear_case_judge(c, judge->session, true, text, size);
    snprintf(text, size, "%s", host_error_text(&error));
    return false;
}

/* Every operand that the family has: raw gates, z, bias, D for each element; both layouts. */
static void make_rich(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 1, .has_initial = true},
        {.rows = 37, .has_initial = true, .in_place = true},
        {.rows = 1},
        {.rows = 2, .has_initial = true, .dropped = true}};
    linear_set_extend(spec, index % 2 ? 1 : 4, sequences);
    if (index % 2)
        spec->mode = ATTN_MODE_DECODE;
    spec->first_row = index % 2 ? 0 : spec->first_row;
    spec->vk = index / 2 % 2;
    spec->padded = index % 2 ? 2 : 0;
    spec->z = spec->bias = true;
    spec->width = 4;
    if (spec->family == ATTN_LINEAR_MAMBA2)
        spec->skip = 2;
    if (spec->family != ATTN_LINEAR_LIGHTNING && spec->family != ATTN_LINEAR_SHORT_CONV)
        spec->flags |= ATTN_LINEAR_RAW_GATES;
    if (spec->family != ATTN_LINEAR_SHORT_CONV) {
        spec->k_heads = 2;
        spec->v_heads = 4;
        spec->k_dim = 24;
    }
    spec->v_dim = 20;
}

CHECK_COUNT(linear_strides, LINEAR_VARIANTS *linear_count_families(subject))

static void run_linear_spec(struct check_run *run, const struct linear_spec *spec,
                            move_operands move)
{
    char text[TEXT];
    struct strider strider;
    struct check_subject subject = *run->subject;
    struct linear_bench bench;
    if (!linear_bench_open(&bench, run, spec))
        return;
    struct linear_judge judge = {.bench = &bench};
    strider_init(&strider, subject.type, subject.device, run->seed);
    subject.type = &strider.type;
    if (linear_bench_session(&bench, &subject, &exactly, &judge.session) &&
        !move(run, &strider, judge_linear, &judge, text, sizeof text))
        linear_report(run, spec, judge.status, text);
    case_session_destroy(judge.session);
    strider_finish(&strider);
    linear_bench_close(&bench);
}

static void run_linear_strides(struct check_run *run)
{
    struct linear_spec spec;
    if (linear_find_case(run, make_rich, &spec))
        run_linear_spec(run, &spec, move_each);
}

static void run_linear_far_operands(struct check_run *run)
{
    struct linear_spec spec;
    if (has_far_memory(run) && linear_find_case(run, make_rich, &spec))
        run_linear_spec(run, &spec, move_far);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_strides[] = {
    CHECK_CASES("INVAR-01", strides,
                "each operand may have any outer strides, gaps and a byte_offset"),
    CHECK_CASES("INVAR-01", mla_strides,
                "each operand of latent layers may have any outer strides, gaps and a byte_offset"),
    CHECK_CASES("INVAR-01", linear_strides,
                "each operand of linear layers, constants and states too, may have any "
                "outer strides, gaps and a byte_offset"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};

const struct check check_far_operands[] = {
    CHECK_CASES("INVAR-01", far_operands,
                "vectors of an operand may lie more than 2^32 elements apart"),
    CHECK_ROW("INVAR-01", mla_far_operands, count_mla_strides, CHECK_NEEDS_COMPUTE,
              "vectors of an operand of latent layers may lie more than 2^32 elements apart"),
    CHECK_ROW(
        "INVAR-01", linear_far_operands, count_linear_strides, CHECK_NEEDS_COMPUTE,
        "vectors of an operand of linear layers, states and constants too, may lie more than 2^32 "
        "elements apart"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
