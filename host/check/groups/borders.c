/* SPDX-License-Identifier: Apache-2.0
 *
 * borders.c: how far query goes along each axis of a problem. The smallest and the largest value
 * that it accepts are created, run and judged; the next ones beyond are refused by create as well;
 * memory does not shrink on the way.
 */
#include "host/check/cases/caps_problem.h"
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/linear_bench.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"

#include "host/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(value) (1u << (value))
enum { TEXT = 800, EACH = 700 /* values that are asked for one by one */ };

static const struct case_run exactly = {.exact_memory = true};

/* ---- Borders of an axis ---------------------------------------------------------------------- */

/* A question with one number left open. */
typedef bool (*accepts_value)(void *ctx, int32_t value);

struct borders {
    int32_t least, most; /* accepted; most < least: none is */
};

/* Values up to EACH one by one, since some backends take multiples alone; from there on what is
 * accepted is taken to have one end. */
static struct borders find_borders(accepts_value accepts, void *ctx)
{
    struct borders found = {0, -1};
    int64_t step = EACH;
    for (int32_t value = 0; value <= EACH; value++)
        if (accepts(ctx, value)) {
            found.least = found.most < found.least ? value : found.least;
            found.most = value;
        }
    if (found.most < EACH)
        return found;
    while (found.most + step <= INT32_MAX && accepts(ctx, (int32_t)(found.most + step))) {
        found.most += (int32_t)step;
        step *= 2;
    }
    for (; step > 0; step /= 2)
        if (found.most + step <= INT32_MAX && accepts(ctx, (int32_t)(found.most + step)))
            found.most += (int32_t)step;
    return found;
}

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

/* `most_run`: beyond it a case would be larger than what it shows is worth. */
struct spec_axis {
    const char *name;
    int32_t most_run;
    void (*set)(struct case_spec *spec, int32_t value);
};

static void set_head_dim(struct case_spec *spec, int32_t value)
{
    spec->head_dim = value;
}
static void set_v_head_dim(struct case_spec *spec, int32_t value)
{
    spec->v_head_dim = value;
}
static void set_both_dims(struct case_spec *spec, int32_t value)
{
    spec->head_dim = spec->v_head_dim = value;
}
static void set_kv_heads(struct case_spec *spec, int32_t value)
{
    spec->num_kv_heads = spec->num_q_heads = value;
}
static void set_ratio(struct case_spec *spec, int32_t value)
{
    spec->num_kv_heads = 1;
    spec->num_q_heads = value;
}
static void set_page_size(struct case_spec *spec, int32_t value)
{
    spec->page_size = value;
}
static void set_window_left(struct case_spec *spec, int32_t value)
{
    spec->window_left = value;
}
static void set_window_right(struct case_spec *spec, int32_t value)
{
    spec->window_left = 4;
    spec->window_right = value;
}
static void set_chunk(struct case_spec *spec, int32_t value)
{
    spec->attention_chunk = value;
}

static const struct spec_axis softmax_axes[] = {
    {"head_dim", 1024, set_head_dim},
    {"v_head_dim", 1024, set_v_head_dim},
    {"head_dim and v_head_dim", 1024, set_both_dims},
    {"num_kv_heads", 66, set_kv_heads},
    {"num_q_heads for a KV head", 130, set_ratio},
    {"page_size", 700, set_page_size},
    {"window_left", INT32_MAX, set_window_left},
    {"window_right", INT32_MAX, set_window_right},
    {"attention_chunk", INT32_MAX, set_chunk},
};

static void set_lora(struct case_spec *spec, int32_t value)
{
    spec->latent.kv_lora_rank = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_rope(struct case_spec *spec, int32_t value)
{
    spec->latent.rope_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_nope(struct case_spec *spec, int32_t value)
{
    spec->latent.nope_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_values(struct case_spec *spec, int32_t value)
{
    spec->latent.v_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_latent_heads(struct case_spec *spec, int32_t value)
{
    spec->num_q_heads = value;
    case_spec_set_form(spec, spec->latent.expanded);
}

static const struct spec_axis latent_axes[] = {
    {"kv_lora_rank", 1024, set_lora},      {"rope_dim", 1024, set_rope},
    {"nope_dim", 1024, set_nope},          {"v_head_dim", 1024, set_values},
    {"num_q_heads", 66, set_latent_heads}, {"page_size", 700, set_page_size},
};

enum {
    SOFTMAX_AXES = sizeof softmax_axes / sizeof softmax_axes[0],
    LATENT_AXES = sizeof latent_axes / sizeof latent_axes[0]
};

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
        check_skip(line->run, "query accepts no %s of 0..%d", line->axis->name, EACH);
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

/* Few keys and queries: an axis is what counts. */
static void set_short(struct case_spec *spec)
{
    static const int32_t lengths[][2] = {{37, 3}, {0, 5}, {17, 1}};
    spec->num_sequences = 3;
    for (int32_t s = 0; s < 3; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = lengths[s][0],
                                   .num_new = spec->mode == ATTN_MODE_DECODE ? 1 : lengths[s][1],
                                   .tokens_of = s};
}

#define MODES                                                                                      \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)                                             \
    }
static const struct grid_choice softmax_choices[] = {MODES, {AXIS_LAYOUT, BIT(0)}, {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED | MLA_EXPANDED, MLA_LATENT, BIT(MLA_SMALL), {MODES}};

static int32_t count_borders(const struct check_subject *subject)
{
    return SOFTMAX_AXES * numerics_count(subject, softmax_choices);
}

static int32_t count_mla_borders(const struct check_subject *subject)
{
    return LATENT_AXES * numerics_mla_count(subject, &latent_choice);
}

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
        set_short(&spec);
        judge_line(&line);
    } else {
        check_skip(run, "%s", base.text);
    }
    grid_release(run->subject, grid);
}

static void run_borders(struct check_run *run)
{
    run_line(run, false, false);
}

static void run_beyond(struct check_run *run)
{
    run_line(run, false, true);
}

static void run_mla_borders(struct check_run *run)
{
    run_line(run, true, false);
}

static void run_mla_beyond(struct check_run *run)
{
    run_line(run, true, true);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

struct linear_axis {
    const char *name;
    int32_t most_run;
    size_t member; /* of struct linear_spec, an int32_t */
};

static const struct linear_axis linear_axes[] = {
    {"head_k_dim", 512, offsetof(struct linear_spec, k_dim)},
    {"head_v_dim", 512, offsetof(struct linear_spec, v_dim)},
    {"num_v_heads", 128, offsetof(struct linear_spec, v_heads)},
    {"conv_width", 64, offsetof(struct linear_spec, width)},
};
enum { LINEAR_AXES = sizeof linear_axes / sizeof linear_axes[0] };

struct linear_line {
    struct check_run *run;
    const struct linear_spec *base;
    const struct linear_axis *axis;
};

static void set_linear(const struct linear_line *line, int32_t value, struct linear_spec *spec)
{
    *spec = *line->base;
    memcpy((char *)spec + line->axis->member, &value, sizeof value);
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

static void change_short(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {{.rows = 18, .has_initial = true},
                                                            {.rows = 1, .in_place = true}};
    (void)index;
    linear_set_extend(spec, 2, sequences);
    spec->padded = 0;
    if (spec->family != ATTN_LINEAR_SHORT_CONV) {
        spec->k_heads = 1;
        spec->v_heads = 2;
        spec->k_dim = 16;
    }
    spec->v_dim = 16;
    spec->width = spec->width > 1 ? spec->width : 3;
}

static int32_t count_linear_borders(const struct check_subject *subject)
{
    return LINEAR_AXES * linear_count_families(subject);
}

/* linear_find_case() counts families first, so the axis is the slower index. */
static void run_linear_line(struct check_run *run, bool beyond)
{
    struct linear_spec spec;
    int32_t families = linear_count_families(run->subject);
    struct linear_line line = {
        .run = run, .base = &spec, .axis = &linear_axes[run->index / families % LINEAR_AXES]};
    if (!linear_find_case(run, change_short, &spec))
        return;
    struct borders borders = find_borders(accepts_linear, &line);
    if (borders.most < borders.least) {
        check_skip(run, "query accepts no %s of 0..%d", line.axis->name, EACH);
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

static void run_linear_borders(struct check_run *run)
{
    run_linear_line(run, false);
}

static void run_linear_beyond(struct check_run *run)
{
    run_linear_line(run, true);
}

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

static int32_t count_flags(const struct check_subject *subject)
{
    return numerics_count(subject, softmax_choices);
}

static int32_t count_mla_flags(const struct check_subject *subject)
{
    return numerics_mla_count(subject, &latent_choice);
}

static void flaws_found(struct check_run *run, bool latent, int first, int end)
{
    struct grid *grid = NULL;
    struct case_spec spec;
    const attn_options *options;
    if (run->subject->device->type != ATTN_DEVICE_CPU) {
        check_skip(run, "this is about calls on a CPU");
        return;
    }
    grid = grid_of(run->subject);
    CHECK_THAT(run, grid, "no memory for the grid");
    bool found = latent ? numerics_mla_spec(run, grid, &latent_choice, &spec, &options)
                        : numerics_spec(run, grid, softmax_choices, &spec, &options);
    if (found)
        try_flaws(run, grid, &spec, options, first, end);
    grid_release(run->subject, grid);
}

static void run_no_capture(struct check_run *run)
{
    flaws_found(run, false, CAPTURING, CAPTURING + 1);
}

static void run_mla_no_capture(struct check_run *run)
{
    flaws_found(run, true, CAPTURING, CAPTURING + 1);
}

static void run_read_only(struct check_run *run)
{
    flaws_found(run, false, OUT_READ_ONLY, FLAWS);
}

static void run_mla_read_only(struct check_run *run)
{
    flaws_found(run, true, OUT_READ_ONLY, FLAWS);
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

static int32_t count_climb(const struct check_subject *subject)
{
    return numerics_count(subject, softmax_choices);
}

static int32_t count_mla_climb(const struct check_subject *subject)
{
    return numerics_mla_count(subject, &latent_choice);
}

static void climb_found(struct check_run *run, bool latent)
{
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    struct spec_problem posed;
    const attn_options *options;
    CHECK_THAT(run, grid, "no memory for the grid");
    bool found = latent ? numerics_mla_spec(run, grid, &latent_choice, &spec, &options)
                        : numerics_spec(run, grid, softmax_choices, &spec, &options);
    if (found) {
        set_short(&spec);
        spec_problem_init(&posed, &spec, &run->subject->device->info);
        climb_all(run, &posed.problem, options);
    }
    grid_release(run->subject, grid);
}

static void run_climb(struct check_run *run)
{
    climb_found(run, false);
}

static void run_mla_climb(struct check_run *run)
{
    climb_found(run, true);
}

static void run_linear_climb(struct check_run *run)
{
    struct linear_spec spec;
    struct linear_posed posed;
    if (!linear_find_case(run, change_short, &spec))
        return;
    linear_pose(&posed, &spec, &run->subject->device->info);
    climb_all(run, &posed.problem, run->subject->options);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define ROW(rule, name, counter, needs, sentence)                                                  \
    {                                                                                              \
        rule, #name, sentence, needs, counter, run_##name                                          \
    }

const struct check check_borders[] = {
    ROW("CAPS-02", borders, count_borders, CHECK_NEEDS_COMPUTE,
        "the smallest and the largest value of each axis that query accepts run"),
    ROW("CAPS-02", mla_borders, count_mla_borders, CHECK_NEEDS_COMPUTE,
        "so do those of each axis of latent layers"),
    ROW("CAPS-02", linear_borders, count_linear_borders, CHECK_NEEDS_COMPUTE,
        "so do those of each axis of linear layers"),
    ROW("CAPS-03", beyond, count_borders, 0, "the next values are refused by create as well"),
    ROW("CAPS-03", mla_beyond, count_mla_borders, 0,
        "the next values of latent layers are refused by create as well"),
    ROW("CAPS-03", linear_beyond, count_linear_borders, 0,
        "the next values of linear layers are refused by create as well"),
    ROW("CAPT-01", no_capture, count_flags, CHECK_NEEDS_COMPUTE,
        "on a CPU a call with CAPTURING is CAPTURE_UNSUPPORTED"),
    ROW("CAPT-01", mla_no_capture, count_mla_flags, CHECK_NEEDS_COMPUTE,
        "so is one of a latent layer"),
    ROW("PURE-02", read_only, count_flags, CHECK_NEEDS_COMPUTE,
        "a call that would write to a read-only operand is INVALID_ARGUMENT"),
    ROW("PURE-02", mla_read_only, count_mla_flags, CHECK_NEEDS_COMPUTE,
        "so is one of a latent layer"),
    ROW("WORK-02", climb, count_climb, 0, "no region becomes smaller at any size of any bound"),
    ROW("WORK-02", mla_climb, count_mla_climb, 0, "nor one of latent layers"),
    ROW("WORK-02", linear_climb, linear_count_families, 0, "nor one of linear layers"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
