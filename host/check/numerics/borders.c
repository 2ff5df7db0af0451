/* SPDX-License-Identifier: Apache-2.0
 *
 * borders.c: how far query goes along each axis of a problem. The smallest and the largest value
 * that it accepts are created, run and judged; the next ones beyond are refused by create as well;
 * memory does not shrink on the way.
 */
#include "host/check/cases/caps_problem.h"
#include "host/check/cases/forward_case_session.h"
#include "host/check/numerics/axes.h"

#include "host/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 800 };

static const struct case_run exactly = {.exact_memory = true};

/* ---- Creating -------------------------------------------------------------------------------- */

static bool is_refusal(const struct check_subject *subject, attn_status status)
{
    return status == ATTN_UNSUPPORTED || status == ATTN_INVALID_ARGUMENT ||
           (status == ATTN_CHILD_FAILED && subject->type->flags & ATTN_BACKEND_COMPOSITE);
}

/* What is beyond a border is refused by create. */
static void expect_refused(struct check_run *run, const attn_problem *problem,
                           const attn_options *options, const char *axis, int32_t value)
{
    const struct check_subject *subject = run->subject;
    attn_instance *instance = NULL;
    host_error error;
    host_error_init(&error);
    attn_status status = subject->type->create(subject->type, problem, 1, options,
                                               subject->services, &instance, &error.base);
    if (!is_refusal(subject, status))
        check_fail(run, "query refuses %s %d, next to what it accepts; create gives %s %s", axis,
                   value, host_status_name(status), host_error_text(&error));
    if (status == ATTN_OK)
        subject->type->ops->destroy(instance);
}

/* What is at a border but too large to be run here can at least be created. */
static void expect_created(struct check_run *run, const attn_problem *problem,
                           const attn_options *options, const char *axis, int32_t value)
{
    const struct check_subject *subject = run->subject;
    attn_instance *instance = NULL;
    host_error error;
    host_error_init(&error);
    attn_status status = subject->type->create(subject->type, problem, 1, options,
                                               subject->services, &instance, &error.base);
    if (status == ATTN_OK)
        subject->type->ops->destroy(instance);
    else if (status != ATTN_OUT_OF_HOST_MEMORY && status != ATTN_OUT_OF_DEVICE_MEMORY &&
             status != ATTN_DEPENDENCY_MISSING)
        check_fail(run, "query accepts %s %d; create gives %s %s", axis, value,
                   host_status_name(status), host_error_text(&error));
}

/* ---- Softmax and latent layers --------------------------------------------------------------- */

/* A spec along one axis. */
struct spec_line {
    struct check_run *run;
    const struct grid *grid;
    const attn_options *options;
    const struct case_spec *base;
    const struct spec_axis *axis;
    bool beyond; /* what is next to the borders, not what is at them */
};

static bool make_at(const struct spec_line *line, int32_t value, struct case_spec *spec)
{
    *spec = *line->base;
    line->axis->set(spec, value);
    return grid_accepts_spec(line->grid, line->options, spec, NULL, 0);
}

static bool accepts_spec(void *ctx, int32_t value)
{
    struct case_spec spec;
    return make_at(ctx, value, &spec);
}

static void run_at(const struct spec_line *line, int32_t value)
{
    struct check_run *run = line->run;
    struct case_spec spec;
    struct spec_problem posed;
    if (!make_at(line, value, &spec))
        return;
    check_note(run, "%s %d", line->axis->name, value);
    if (value <= line->axis->most_run && case_spec_defect(&spec)) {
        check_fail(run, "query accepts %s %d, of which there is no case", line->axis->name, value);
        return;
    }
    if (value <= line->axis->most_run) {
        numerics_run(run, &spec, line->options, &exactly);
        return;
    }
    spec_problem_init(&posed, &spec, &run->subject->device->info);
    expect_created(run, &posed.problem, line->options, line->axis->name, value);
    line->axis->set(&spec, line->axis->most_run);
    if (grid_accepts_spec(line->grid, line->options, &spec, NULL, 0))
        numerics_run(run, &spec, line->options, &exactly);
}

static void refuse_at(const struct spec_line *line, int64_t value)
{
    struct case_spec spec = *line->base;
    struct spec_problem posed;
    if (value > INT32_MAX || line->run->code != CHECK_PASS)
        return;
    line->axis->set(&spec, (int32_t)value);
    spec_problem_init(&posed, &spec, &line->run->subject->device->info);
    attn_verdict verdict = {.struct_size = sizeof verdict};
    const struct check_subject *subject = line->run->subject;
    attn_status status = subject->type->query(subject->type, line->options, subject->services,
                                              &posed.problem, &verdict, NULL);
    if (status != ATTN_OK || !verdict.supported) /* else it is the case that makes no sense */
        expect_refused(line->run, &posed.problem, line->options, line->axis->name, (int32_t)value);
}

static void judge_line(const struct spec_line *line)
{
    struct borders borders = find_borders(accepts_spec, (void *)(uintptr_t)line);
    if (borders.most < borders.least) {
        check_skip(line->run, "query accepts no %s of 0..%d", line->axis->name, AXES_EACH);
        return;
    }
    if (line->beyond) {
        refuse_at(line, (int64_t)borders.least - 1);
        refuse_at(line, (int64_t)borders.most + 1);
        return;
    }
    run_at(line, borders.least);
    if (borders.most != borders.least && line->run->code == CHECK_PASS)
        run_at(line, borders.most);
}

#define MODES                                                                                      \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)                                             \
    }
static const struct grid_choice softmax_choices[] = {MODES, {AXIS_LAYOUT, BIT(0)}, {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED | MLA_EXPANDED, MLA_LATENT, BIT(MLA_SMALL), {MODES}};

CHECK_COUNT(borders, SOFTMAX_AXES *numerics_count(subject, softmax_choices))
CHECK_COUNT(mla_borders, LATENT_AXES *numerics_mla_count(subject, &latent_choice))

static void run_line(struct check_run *run, bool latent, bool beyond)
{
    const struct spec_axis *axes = latent ? latent_axes : softmax_axes;
    int32_t num_axes = latent ? LATENT_AXES : SOFTMAX_AXES;
    struct grid *grid = grid_of(run->subject);
    struct check_run base = *run;
    struct case_spec spec;
    struct spec_line line = {.run = run, .grid = grid, .base = &spec, .beyond = beyond};
    CHECK_THAT(run, grid, "no memory for the grid");
    base.index = run->index / num_axes;
    line.axis = &axes[run->index % num_axes];
    bool found = latent ? numerics_mla_spec(&base, grid, &latent_choice, &spec, &line.options)
                        : numerics_spec(&base, grid, softmax_choices, &spec, &line.options);
    if (found) {
        axes_make_short(&spec);
        judge_line(&line);
    } else {
        check_skip(run, "%s", base.text);
    }
    grid_release(run->subject, grid);
}

CHECK_RUN(borders, run_line(run, false, false))
CHECK_RUN(beyond, run_line(run, false, true))
CHECK_RUN(mla_borders, run_line(run, true, false))
CHECK_RUN(mla_beyond, run_line(run, true, true))

/* ---- Linear layers --------------------------------------------------------------------------- */

struct linear_line {
    struct check_run *run;
    const struct linear_spec *base;
    const struct linear_axis *axis;
};

static void set_linear(const struct linear_line *line, int32_t value, struct linear_spec *spec)
{
    *spec = *line->base;
    linear_axis_set(line->axis, value, spec);
}

static bool accepts_linear(void *ctx, int32_t value)
{
    const struct linear_line *line = ctx;
    struct linear_spec spec;
    char reason[LINEAR_TEXT];
    set_linear(line, value, &spec);
    return linear_accepts(line->run->subject, &spec, reason);
}

static void run_linear_at(const struct linear_line *line, int32_t value)
{
    struct check_run *run = line->run;
    struct linear_spec spec;
    struct linear_posed posed;
    bool large = value > line->axis->most_run;
    set_linear(line, value, &spec);
    check_note(run, "%s %d", line->axis->name, value);
    linear_pose(&posed, &spec, &run->subject->device->info);
    if (large)
        expect_created(run, &posed.problem, run->subject->options, line->axis->name, value);
    set_linear(line, large ? line->axis->most_run : value, &spec);
    if (!large || accepts_linear((void *)(uintptr_t)line, line->axis->most_run))
        linear_run_spec(run, &spec);
}

static void refuse_linear_at(const struct linear_line *line, int64_t value)
{
    struct linear_spec spec;
    struct linear_posed posed;
    if (value > INT32_MAX || line->run->code != CHECK_PASS)
        return;
    set_linear(line, (int32_t)value, &spec);
    linear_pose(&posed, &spec, &line->run->subject->device->info);
    if (!accepts_linear((void *)(uintptr_t)line, (int32_t)value))
        expect_refused(line->run, &posed.problem, line->run->subject->options, line->axis->name,
                       (int32_t)value);
}

CHECK_COUNT(linear_borders, LINEAR_AXES *linear_count_families(subject))

/* linear_find_case() counts families first, so the axis is the slower index. */
static void run_linear_line(struct check_run *run, bool beyond)
{
    struct linear_spec spec;
    int32_t families = linear_count_families(run->subject);
    struct linear_line line = {
        .run = run, .base = &spec, .axis = &linear_axes[run->index / families % LINEAR_AXES]};
    if (!linear_find_case(run, axes_make_linear_short, &spec))
        return;
    struct borders borders = find_borders(accepts_linear, &line);
    if (borders.most < borders.least) {
        check_skip(run, "query accepts no %s of 0..%d", line.axis->name, AXES_EACH);
        return;
    }
    if (beyond) {
        refuse_linear_at(&line, (int64_t)borders.least - 1);
        refuse_linear_at(&line, (int64_t)borders.most + 1);
        return;
    }
    run_linear_at(&line, borders.least);
    if (borders.most != borders.least && run->code == CHECK_PASS)
        run_linear_at(&line, borders.most);
}

CHECK_RUN(linear_borders, run_linear_line(run, false))
CHECK_RUN(linear_beyond, run_linear_line(run, true))

/* ---- Flags ----------------------------------------------------------------------------------- */

/* What a call may not ask for. */
enum { CAPTURING, OUT_READ_ONLY, LSE_READ_ONLY, CACHE_READ_ONLY, FLAWS };

struct flaw {
    int which;
    attn_tensor tensor;
};

static uint32_t role_of(const struct flaw *flaw, const attn_tensor **operands)
{
    if (flaw->which == CACHE_READ_ONLY)
        return operands[ATTN_ROLE_LATENT_CACHE] ? ATTN_ROLE_LATENT_CACHE : ATTN_ROLE_V_CACHE;
    return flaw->which == OUT_READ_ONLY ? ATTN_ROLE_OUT : ATTN_ROLE_LSE;
}

static void add_flaw(void *ctx, attn_forward_args *args, const attn_tensor **operands,
                     const attn_scale **scales)
{
    struct flaw *flaw = ctx;
    (void)scales;
    if (flaw->which == CAPTURING) {
        args->flags |= ATTN_FORWARD_CAPTURING;
        return;
    }
    uint32_t role = role_of(flaw, operands);
    flaw->tensor = *operands[role];
    flaw->tensor.flags |= ATTN_TENSOR_READ_ONLY;
    operands[role] = &flaw->tensor;
}

static void try_flaw(struct check_run *run, struct case_session *session, struct forward_case *c,
                     int which)
{
    static const char *const names[FLAWS] = {"with CAPTURING", "whose out is read-only",
                                             "whose lse is read-only",
                                             "that saves to a cache that is read-only"};
    struct flaw flaw = {.which = which};
    attn_status meant = which == CAPTURING ? ATTN_CAPTURE_UNSUPPORTED : ATTN_INVALID_ARGUMENT;
    host_error error;
    host_error_init(&error);
    attn_status status = case_session_try(session, c, add_flaw, &flaw, &error.base);
    if (status != meant)
        check_fail(run, "a forward %s gives %s %s: accepted %s", names[which],
                   host_status_name(status), host_error_text(&error), host_status_name(meant));
}

/* Some of them, in an instance for which there is nothing to capture; then a forward as ever. */
static void try_flaws(struct check_run *run, const struct grid *grid, const struct case_spec *base,
                      const attn_options *options, int first, int end)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct case_spec spec = *base;
    spec.wants_lse = true;
    if (!grid_accepts_spec(grid, options, &spec, NULL, 0))
        spec.wants_lse = false;
    struct forward_case *c = numerics_case(run, &spec, NULL);
    struct case_session *session = c ? numerics_session(run, c, &spec, options, &setup) : NULL;
    for (int which = first; session && which < end; which++) {
        bool saves = spec.flags & ATTN_FORWARD_SAVE_KV;
        if ((which != LSE_READ_ONLY || spec.wants_lse) && (which != CACHE_READ_ONLY || saves))
            try_flaw(run, session, c, which);
    }
    if (session)
        numerics_judge(run, session, c, &spec);
    case_session_destroy(session);
    forward_case_destroy(c);
}

CHECK_COUNT(flags, numerics_count(subject, softmax_choices))
CHECK_COUNT(mla_flags, numerics_mla_count(subject, &latent_choice))

static void flaws_found(struct check_run *run, bool latent, int first, int end)
{
    struct numerics_point at;
    if (run->subject->device->type != ATTN_DEVICE_CPU) {
        check_skip(run, "this is about calls on a CPU");
        return;
    }
    if (numerics_open(&at, run, latent ? NULL : softmax_choices, &latent_choice))
        try_flaws(run, at.grid, &at.spec, at.options, first, end);
    numerics_close(&at);
}

CHECK_RUN(no_capture, flaws_found(run, false, CAPTURING, CAPTURING + 1))
CHECK_RUN(mla_no_capture, flaws_found(run, true, CAPTURING, CAPTURING + 1))
CHECK_RUN(read_only, flaws_found(run, false, OUT_READ_ONLY, FLAWS))
CHECK_RUN(mla_read_only, flaws_found(run, true, OUT_READ_ONLY, FLAWS))

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

static void climb_all(struct check_run *run, const attn_problem *problem,
                      const attn_options *options)
{
    const struct check_subject *subject = run->subject;
    attn_instance *instance = NULL;
    host_error error;
    host_error_init(&error);
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

CHECK_COUNT(climb, numerics_count(subject, softmax_choices))
CHECK_COUNT(mla_climb, numerics_mla_count(subject, &latent_choice))

static void climb_found(struct check_run *run, bool latent)
{
    struct numerics_point at;
    struct spec_problem posed;
    if (numerics_open(&at, run, latent ? NULL : softmax_choices, &latent_choice)) {
        axes_make_short(&at.spec);
        spec_problem_init(&posed, &at.spec, &run->subject->device->info);
        climb_all(run, &posed.problem, at.options);
    }
    numerics_close(&at);
}

CHECK_RUN(climb, climb_found(run, false))
CHECK_RUN(mla_climb, climb_found(run, true))

static void run_linear_climb(struct check_run *run)
{
    struct linear_spec spec;
    struct linear_posed posed;
    if (!linear_find_case(run, axes_make_linear_short, &spec))
        return;
    linear_pose(&posed, &spec, &run->subject->device->info);
    climb_all(run, &posed.problem, run->subject->options);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_borders[] = {
    CHECK_CASES("CAPS-02", borders,
                "the smallest and the largest value of each axis that query accepts run"),
    CHECK_CASES(
        "CAPS-02", mla_borders,
        "the smallest and the largest value of each axis of latent layers that query accepts run"),
    CHECK_CASES(
        "CAPS-02", linear_borders,
        "the smallest and the largest value of each axis of linear layers that query accepts run"),
    CHECK_ROW("CAPS-03", beyond, count_borders, 0,
              "create refuses the next value of each axis, as query does"),
    CHECK_ROW("CAPS-03", mla_beyond, count_mla_borders, 0,
              "create refuses the next value of each axis of latent layers, as query does"),
    CHECK_ROW("CAPS-03", linear_beyond, count_linear_borders, 0,
              "create refuses the next value of each axis of linear layers, as query does"),
    CHECK_ROW("CAPT-01", no_capture, count_flags, CHECK_NEEDS_COMPUTE,
              "on a CPU a call with CAPTURING is CAPTURE_UNSUPPORTED"),
    CHECK_ROW("CAPT-01", mla_no_capture, count_mla_flags, CHECK_NEEDS_COMPUTE,
              "on a CPU a call of a latent layer with CAPTURING is CAPTURE_UNSUPPORTED"),
    CHECK_ROW("PURE-02", read_only, count_flags, CHECK_NEEDS_COMPUTE,
              "a call that would write to a read-only operand is INVALID_ARGUMENT"),
    CHECK_ROW(
        "PURE-02", mla_read_only, count_mla_flags, CHECK_NEEDS_COMPUTE,
        "a call of a latent layer that would write to a read-only operand is INVALID_ARGUMENT"),
    CHECK_ROW("WORK-02", climb, count_climb, 0,
              "no region becomes smaller at any size of any bound"),
    CHECK_ROW("WORK-02", mla_climb, count_mla_climb, 0,
              "no region of latent layers becomes smaller at any size of any bound"),
    CHECK_ROW("WORK-02", linear_climb, linear_count_families, 0,
              "no region of linear layers becomes smaller at any size of any bound"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
