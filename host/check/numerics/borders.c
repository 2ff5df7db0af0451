/* SPDX-License-Identifier: Apache-2.0
 *
 * borders.c: numbers of a problem, each an axis along which query accepts some values. The smallest and the largest value
 * of each are created, run and judged; the next ones beyond are refused by create as well; memory does not shrink on the
 * way. And several at an end, one after the other, in an order that is drawn: memory that is enough for each alone may
 * be too little for two.
 */
#include "host/check/cases/draw.h"
#include "host/check/cases/kind.h"
#include "host/check/cases/refusal.h"

#include <stddef.h>
#include <string.h>

#include "host/base/error.h"

/* ---- Axes ------------------------------------------------------------------------------------ */

enum { AXES_EACH = 700 /* values that are asked for one by one */ };

/* `most_run`: larger cases would cost more than they show. */
struct axis {
    const char *name;
    int32_t most_run;
    size_t member;       /* of struct case_spec, an int32_t */
    size_t other;        /* a member that is set, too; 0 = none */
    int32_t other_value; /* 0 = the same */
};

enum { SOFTMAX_AXES = 9, LATENT_AXES = 6, LINEAR_AXES = 4 };

#define AT(member) offsetof(struct case_spec, member)
static const struct axis softmax_axes[SOFTMAX_AXES] = {
    {"head_dim", 1024, AT(head_dim), 0, 0},
    {"v_head_dim", 1024, AT(v_head_dim), 0, 0},
    {"head_dim and v_head_dim", 1024, AT(head_dim), AT(v_head_dim), 0},
    {"num_kv_heads", 66, AT(num_kv_heads), AT(num_q_heads), 0},
    {"num_q_heads for a KV head", 130, AT(num_q_heads), AT(num_kv_heads), 1},
    {"page_size", 700, AT(page_size), 0, 0},
    {"window_left", INT32_MAX, AT(window_left), 0, 0},
    {"window_right", INT32_MAX, AT(window_right), AT(window_left), 4},
    {"attention_chunk", INT32_MAX, AT(attention_chunk), 0, 0},
};
static const struct axis latent_axes[LATENT_AXES] = {
    {"kv_lora_rank", 1024, AT(latent.kv_lora_rank), 0, 0},
    {"rope_dim", 1024, AT(latent.rope_dim), 0, 0},
    {"nope_dim", 1024, AT(latent.nope_dim), 0, 0},
    {"v_head_dim", 1024, AT(latent.v_dim), 0, 0},
    {"num_q_heads", 66, AT(num_q_heads), 0, 0},
    {"page_size", 700, AT(page_size), 0, 0},
};
static const struct axis linear_axes[LINEAR_AXES] = {
    {"head_k_dim", 512, AT(linear.k_dim), 0, 0},
    {"head_v_dim", 512, AT(linear.v_dim), 0, 0},
    {"num_v_heads", 128, AT(linear.v_heads), 0, 0},
    {"conv_width", 64, AT(linear.width), 0, 0},
};

static const struct axis *axes_of(const struct kind_case *k, int32_t *count)
{
    bool linear = k->kind == &linear_layers, latent = k->kind == &latent_layers;
    *count = linear ? LINEAR_AXES : latent ? LATENT_AXES : SOFTMAX_AXES;
    return linear ? linear_axes : latent ? latent_axes : softmax_axes;
}

static void axis_set(const struct axis *axis, int32_t value, struct kind_case *k)
{
    char *spec = (char *)&k->at.spec;
    memcpy(spec + axis->member, &value, sizeof value);
    if (axis->other)
        memcpy(spec + axis->other, axis->other_value ? &axis->other_value : &value, sizeof value);
    if (k->kind == &latent_layers)
        case_spec_set_form(&k->at.spec, k->at.spec.latent.expanded);
}

/* Few keys and queries: an axis is what counts. Linear layers are found so. */
static void make_short(struct kind_case *k)
{
    if (k->kind == &linear_layers)
        return;
    case_read_lengths(&k->at.spec, "37+3 0+5 17+1");
    for (int32_t s = 0; s < 3; s++) {
        k->at.spec.sequences[s].tokens_of = s;
        if (k->at.spec.mode == ATTN_MODE_DECODE)
            k->at.spec.sequences[s].num_new = 1;
    }
}

static void make_linear_short(struct case_spec *spec, int32_t index)
{
    struct linear_spec *linear = &spec->linear;
    (void)index;
    linear_set_extend(spec, "18i 1p");
    linear->padded = 0;
    if (linear->family != ATTN_LINEAR_SHORT_CONV) {
        linear->k_heads = 1;
        linear->v_heads = 2;
        linear->k_dim = 16;
    }
    linear->v_dim = 16;
    linear->width = linear->width > 1 ? linear->width : 3;
}

/* A case whose spec is changed along one axis, within what can be run where `is_small`. */
struct line {
    struct kind_case k;
    const struct axis *axis;
    bool is_small;
};

/* Elements of a page, of a query, of a state: more would cost more than they show. */
enum { CORNERS = 40, MOST_AXES = 16, MOST_ELEMENTS = 1 << 18 };

static bool is_small(const struct kind_case *k)
{
    const struct case_spec *spec = &k->at.spec;
    const struct linear_spec *linear = &k->at.spec.linear;
    if (spec->kind == ATTN_KIND_LINEAR)
        return (int64_t)linear->v_heads * (linear->k_dim + linear->width) * linear->v_dim <=
               MOST_ELEMENTS;
    int64_t dims = (int64_t)spec->head_dim + spec->v_head_dim;
    int64_t page = spec->kv_layout ? spec->page_size : 1;
    return spec->num_q_heads * dims <= MOST_ELEMENTS &&
           spec->num_kv_heads * dims * page <= MOST_ELEMENTS && !case_spec_defect(spec);
}

static bool make_at(const struct line *line, int32_t value, struct kind_case *at)
{
    *at = line->k;
    axis_set(line->axis, value, at);
    return (!line->is_small || is_small(at)) && at->kind->accepts(at);
}

static bool accepts(const struct line *line, int64_t value)
{
    struct kind_case at;
    return value <= INT32_MAX && make_at(line, (int32_t)value, &at);
}

/* Accepted; most < least: none is. */
struct borders {
    int32_t least, most;
};

/* Values up to AXES_EACH one by one, since some backends take multiples alone; from there on what
 * is accepted is taken to have one end. */
static struct borders find_borders(const struct line *line)
{
    struct borders found = {0, -1};
    int64_t step = AXES_EACH;
    for (int32_t value = 0; value <= AXES_EACH; value++)
        if (accepts(line, value)) {
            found.least = found.most < found.least ? value : found.least;
            found.most = value;
        }
    if (found.most < AXES_EACH)
        return found;
    for (; accepts(line, found.most + step); step *= 2)
        found.most += (int32_t)step;
    for (; step > 0; step /= 2)
        if (accepts(line, found.most + step))
            found.most += (int32_t)step;
    return found;
}

/* ---- At the borders -------------------------------------------------------------------------- */

/* An instance for the spec that the case has now; it is gone again. */
static attn_status create(const struct kind_case *k)
{
    const struct check_subject *subject = k->run->subject;
    struct spec_problem posed;
    attn_instance *instance = NULL;
    spec_problem_init(&posed, &k->at.spec, &subject->device->info);
    attn_status status = numerics_create(k->run, k->at.options, &posed.problem, &instance);
    if (status == ATTN_OK)
        subject->type->ops->destroy(instance);
    return status;
}

/* A border value that is too large to run here can at least be created. */
static void run_at(const struct line *line, int32_t value)
{
    const struct axis *axis = line->axis;
    struct check_run *run = line->k.run;
    struct kind_case at = line->k;
    axis_set(axis, value, &at);
    check_note(run, "%s %d", axis->name, value);
    if (value > axis->most_run) {
        attn_status status = create(&at);
        if (status != ATTN_OK && status != ATTN_OUT_OF_HOST_MEMORY &&
            status != ATTN_OUT_OF_DEVICE_MEMORY && status != ATTN_DEPENDENCY_MISSING)
            check_fail(run, "query accepts %s %d; create gives %s %s", axis->name, value,
                       host_status_name(status), check_error_text(run));
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

/* create refuses values beyond a border. */
static void refuse_at(const struct line *line, int64_t value)
{
    struct check_run *run = line->k.run;
    struct kind_case at = line->k;
    if (value > INT32_MAX || run->code != CHECK_PASS)
        return;
    axis_set(line->axis, (int32_t)value, &at);
    if (at.kind->accepts(&at)) /* then it is the case that makes no sense */
        return;
    attn_status status = create(&at);
    if (status != ATTN_INVALID_ARGUMENT && !refusal_gives(run->subject, status, ATTN_UNSUPPORTED))
        check_fail(
            run, "query refuses %s %lld, just outside its accepted range; create gives %s %s",
            line->axis->name, (long long)value, host_status_name(status), check_error_text(run));
}

static void judge_line(struct line *line, bool beyond)
{
    struct borders borders = find_borders(line);
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
    make_short(&line.k);
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
    struct spec_problem posed;
    const attn_problem *problem = &posed.problem;
    attn_instance *instance = NULL;
    make_short(k);
    spec_problem_init(&posed, &k->at.spec, &subject->device->info);
    attn_status status = numerics_create(run, k->at.options, problem, &instance);
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", check_error_text(run));
    else if (status != ATTN_OK)
        check_fail(run, "create: %s", check_error_text(run));
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

/* ---- Corners --------------------------------------------------------------------------------- */

/* 0 .. count - 1 in any order. */
static void shuffle(struct draw *draw, int32_t count, int32_t order[MOST_AXES])
{
    for (int32_t n = 0; n < count; n++) {
        int32_t other = draw_below(draw, n + 1);
        order[n] = order[other];
        order[other] = n;
    }
}

/* An end of the accepted range, mostly the far one, as far as it can be run; below 0 = there is
 * none, or the axis stays as it is. */
static int32_t draw_end(struct draw *draw, const struct line *line)
{
    if (draw_one_in(draw, 4))
        return -1;
    struct borders borders = find_borders(line);
    if (borders.most < borders.least)
        return -1;
    int32_t far = borders.most > line->axis->most_run ? line->axis->most_run : borders.most;
    return draw_one_in(draw, 5) ? borders.least : far;
}

static void judge_corners(struct kind_case *k)
{
    struct draw draw = {.seed = k->run->seed};
    struct line line = {.k = *k, .is_small = true};
    int32_t order[MOST_AXES], count;
    const struct axis *axes = axes_of(k, &count);
    make_short(&line.k);
    shuffle(&draw, count, order);
    for (int32_t n = 0; n < count; n++) {
        line.axis = &axes[order[n]];
        int32_t value = draw_end(&draw, &line);
        struct kind_case at;
        if (value >= 0 && make_at(&line, value, &at))
            line.k = at;
    }
    kind_run(&line.k);
}

/* ---- Table ----------------------------------------------------------------------------------- */

/* So many variants of plain cases in both phases. */
#define PLAIN(number)                                                                              \
    CASES_OF(.kind = &softmax_layers, .choices = {BOTH_PHASES, NTH(LAYOUT, 0)}, .variants = number)
#define PLAIN_LATENT(number)                                                                       \
    CASES_OF(.kind = &latent_layers,                                                               \
             .choices = {OF_LATENTS(BOTH_FORMS, MLA_LATENT, BIT(MLA_SMALL), BOTH_PHASES)},         \
             .variants = number)
#define PLAIN_LINEAR(number) LINEAR(make_linear_short, number)
#define ALL_AXES             PLAIN(SOFTMAX_AXES), PLAIN_LATENT(LATENT_AXES), PLAIN_LINEAR(LINEAR_AXES)
#define IN_ONE               PLAIN(1), PLAIN_LATENT(1), PLAIN_LINEAR(1)

static const struct relation at_borders = {.judge = judge_borders},
                             beyond_borders = {.judge = judge_beyond},
                             climbing = {.judge = climb_all}, in_corners = {.judge = judge_corners};

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

const struct check check_corners[] = {
    ALL_ROWS("CAPS-02", corners, in_corners, CHECK_NEEDS_COMPUTE,
             "results are right with several axes at the ends of their accepted ranges",
             CASES_OF(.kind = &softmax_layers, .choices = {BOTH_PHASES}, .drawn = CORNERS),
             CASES_OF(.kind = &latent_layers,
                      .choices = {OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED,
                                             BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK), BOTH_PHASES,
                                             PLAIN_AND_QUANTISED)},
                      .drawn = CORNERS),
             CASES_OF(.kind = &linear_layers, .vary = make_linear_short, .drawn = CORNERS)),
    {.rule = NULL},
};
