/* SPDX-License-Identifier: Apache-2.0
 *
 * borders.c: how far query goes along each axis of a problem. The smallest and the largest value
 * that it accepts are created, run and judged; the next ones beyond are refused by create as well;
 * memory does not shrink on the way.
 */
#include "host/check/numerics/axes.h"

#include <string.h>

#include "host/base/error.h"

/* ---- Creating -------------------------------------------------------------------------------- */

static bool is_refusal(const struct check_subject *subject, attn_status status)
{
    return status == ATTN_UNSUPPORTED || status == ATTN_INVALID_ARGUMENT ||
           (status == ATTN_CHILD_FAILED && subject->type->flags & ATTN_BACKEND_COMPOSITE);
}

/* An instance for the spec that the case has now; it is gone again. */
static attn_status create(const struct kind_case *k, host_error *error)
{
    const struct check_subject *subject = k->run->subject;
    const attn_options *options = k->at.options ? k->at.options : subject->options;
    struct spec_problem posed;
    attn_instance *instance = NULL;
    host_error_init(error);
    spec_problem_init(&posed, &k->at.spec, &subject->device->info);
    attn_status status = subject->type->create(subject->type, &posed.problem, 1, options,
                                               subject->services, &instance, &error->base);
    if (status == ATTN_OK)
        subject->type->ops->destroy(instance);
    return status;
}

/* ---- Along an axis --------------------------------------------------------------------------- */

/* A case whose spec is changed along one axis. */
struct line {
    struct kind_case k;
    const struct axis *axis;
};

static bool accepts_at(void *ctx, int32_t value)
{
    const struct line *line = ctx;
    struct kind_case at = line->k;
    axis_set(line->axis, value, &at);
    return at.kind->accepts(&at);
}

/* What is at a border but too large to be run here can at least be created. */
static void run_at(const struct line *line, int32_t value)
{
    const struct axis *axis = line->axis;
    struct check_run *run = line->k.run;
    struct kind_case at = line->k;
    host_error error;
    axis_set(axis, value, &at);
    check_note(run, "%s %d", axis->name, value);
    if (value > axis->most_run) {
        attn_status status = create(&at, &error);
        if (status != ATTN_OK && status != ATTN_OUT_OF_HOST_MEMORY &&
            status != ATTN_OUT_OF_DEVICE_MEMORY && status != ATTN_DEPENDENCY_MISSING)
            check_fail(run, "query accepts %s %d; create gives %s %s", axis->name, value,
                       host_status_name(status), host_error_text(&error));
        axis_set(axis, axis->most_run, &at);
    } else if (at.at.grid && case_spec_defect(&at.at.spec)) {
        check_fail(run, "query accepts %s %d, but the suite cannot build that case", axis->name,
                   value);
        return;
    }
    if (at.kind->accepts(&at))
        kind_run(&at);
    at.at.spec.out_dtype = ATTN_FP8_E4M3; /* a row that is rounded has a place of its own */
    if (at.at.grid && run->code == CHECK_PASS && at.kind->accepts(&at))
        kind_run(&at);
}

/* What is beyond a border is refused by create. */
static void refuse_at(const struct line *line, int64_t value)
{
    struct check_run *run = line->k.run;
    struct kind_case at = line->k;
    host_error error;
    if (value > INT32_MAX || run->code != CHECK_PASS)
        return;
    axis_set(line->axis, (int32_t)value, &at);
    if (at.kind->accepts(&at)) /* then it is the case that makes no sense */
        return;
    attn_status status = create(&at, &error);
    if (!is_refusal(run->subject, status))
        check_fail(run, "query refuses %s %lld, next to what it accepts; create gives %s %s",
                   line->axis->name, (long long)value, host_status_name(status),
                   host_error_text(&error));
}

static void judge_line(struct line *line, bool beyond)
{
    struct borders borders = find_borders(accepts_at, line);
    if (borders.most < borders.least) {
        check_skip(line->k.run, "query accepts no %s of 0..%d", line->axis->name, AXES_EACH);
    } else if (beyond) {
        refuse_at(line, (int64_t)borders.least - 1);
        refuse_at(line, (int64_t)borders.most + 1);
    } else {
        run_at(line, borders.least);
        if (borders.most != borders.least && line->k.run->code == CHECK_PASS)
            run_at(line, borders.most);
    }
}

static void judge_axis(struct kind_case *k, bool beyond)
{
    struct line line = {.k = *k};
    int32_t count;
    axes_make_short(&line.k);
    line.axis = &axes_of(&line.k, &count)[line.k.variant];
    judge_line(&line, beyond);
}

static void judge_borders(struct kind_case *k)
{
    judge_axis(k, false);
}

static void judge_beyond(struct kind_case *k)
{
    judge_axis(k, true);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Each bound from that of the case on, by halves, as far as query accepts it and a backend may
 * count on. */
static const struct bound {
    const char *name;
    size_t member;
    bool wide;
    int64_t most;
} bounds[] = {
    {"max_seqs", offsetof(attn_bounds, max_seqs), false, 1 << 16},
    {"max_tokens", offsetof(attn_bounds, max_tokens), false, 1 << 18},
    {"max_q_len", offsetof(attn_bounds, max_q_len), false, 1 << 18},
    {"max_kv_len", offsetof(attn_bounds, max_kv_len), false, 1 << 24},
    {"max_kv_tokens", offsetof(attn_bounds, max_kv_tokens), true, INT64_C(1) << 32},
};

static int64_t get_bound(const attn_bounds *from, const struct bound *bound)
{
    int32_t narrow;
    int64_t wide;
    memcpy(&narrow, (const char *)from + bound->member, sizeof narrow);
    if (!bound->wide)
        return narrow;
    memcpy(&wide, (const char *)from + bound->member, sizeof wide);
    return wide;
}

static void set_bound(attn_bounds *to, const struct bound *bound, int64_t value)
{
    int32_t narrow = (int32_t)value;
    if (bound->wide)
        memcpy((char *)to + bound->member, &value, sizeof value);
    else
        memcpy((char *)to + bound->member, &narrow, sizeof narrow);
}

/* Sizes of one bound as it grows. */
static void climb(struct check_run *run, attn_instance *instance, const attn_bounds *from,
                  const struct bound *bound)
{
    const attn_backend_ops *ops = run->subject->type->ops;
    attn_bounds larger = *from;
    attn_memory_size before = {.struct_size = sizeof before};
    int64_t value = get_bound(from, bound);
    while (value <= bound->most && run->code == CHECK_PASS) {
        attn_memory_size size = {.struct_size = sizeof size};
        set_bound(&larger, bound, value);
        if (ops->metadata_size(instance, ATTN_METADATA_EAGER, &larger, &size, NULL) != ATTN_OK)
            return; /* the bound of a bound */
        for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
            if (size.size[r] < before.size[r])
                check_fail(run,
                           "with %s %lld region %u is %llu bytes, less than the %llu of a smaller "
                           "bound",
                           bound->name, (long long)value, r, (unsigned long long)size.size[r],
                           (unsigned long long)before.size[r]);
        before = size;
        value += value / 2 + 1;
    }
}

static void climb_all(struct kind_case *k)
{
    struct check_run *run = k->run;
    const struct check_subject *subject = run->subject;
    const attn_options *options = k->at.options ? k->at.options : subject->options;
    struct spec_problem posed;
    const attn_problem *problem = &posed.problem;
    attn_instance *instance = NULL;
    host_error error;
    host_error_init(&error);
    axes_make_short(k);
    spec_problem_init(&posed, &k->at.spec, &subject->device->info);
    attn_status status = subject->type->create(subject->type, problem, 1, options,
                                               subject->services, &instance, &error.base);
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", host_error_text(&error));
    else if (status != ATTN_OK)
        check_fail(run, "create: %s", host_error_text(&error));
    if (status != ATTN_OK)
        return;
    for (size_t n = 0; n < sizeof bounds / sizeof bounds[0]; n++) {
        attn_bounds wide = *problem->bounds;
        climb(run, instance, problem->bounds, &bounds[n]);
        for (size_t other = 0; other < sizeof bounds / sizeof bounds[0]; other++)
            if (other != n)
                set_bound(&wide, &bounds[other], get_bound(&wide, &bounds[other]) * 40);
        climb(run, instance, &wide, &bounds[n]);
    }
    subject->type->ops->destroy(instance);
}

/* ---- Table ----------------------------------------------------------------------------------- */

/* So many variants of plain cases in both phases. */
#define PLAIN(number)                                                                              \
    CASES_OF(.kind = &softmax_layers, .choices = {BOTH_PHASES, NTH(LAYOUT, 0)}, .variants = number)
#define PLAIN_LATENT(number)                                                                       \
    CASES_OF(.kind = &latent_layers,                                                               \
             .choices = {OF_LATENTS(BOTH_FORMS, MLA_LATENT, BIT(MLA_SMALL), BOTH_PHASES)},         \
             .variants = number)
#define PLAIN_LINEAR(number) LINEAR(axes_make_linear_short, number)
#define ALL_AXES             PLAIN(SOFTMAX_AXES), PLAIN_LATENT(LATENT_AXES), PLAIN_LINEAR(LINEAR_AXES)
#define IN_ONE               PLAIN(1), PLAIN_LATENT(1), PLAIN_LINEAR(1)

static const struct relation at_borders = {.judge = judge_borders},
                             beyond_borders = {.judge = judge_beyond},
                             climbing = {.judge = climb_all};

const struct check check_borders[] = {
    ALL_ROWS("CAPS-02", borders, at_borders, CHECK_NEEDS_COMPUTE,
             "results are right at the smallest and largest value of each axis that query accepts",
             ALL_AXES),
    ALL_ROWS("CAPS-03", beyond, beyond_borders, 0,
             "create refuses the first value beyond each axis's range, as query does", ALL_AXES),
    ALL_ROWS("WORK-02", climb, climbing, 0, "no region becomes smaller at any step of any bound",
             IN_ONE),
    {.rule = NULL},
};
