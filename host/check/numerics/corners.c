/* SPDX-License-Identifier: Apache-2.0
 *
 * corners.c: several axes of a problem at the ends of what query accepts, one after the other, in
 * an order that is drawn: memory that is enough for each alone may be too little for two.
 */
#include "host/check/numerics/axes.h"

#include "host/check/cases/draw.h"

/* Elements of a page, of a query, of a state: more would be larger than what it shows is worth. */
enum { CORNERS = 40, MOST_AXES = 16, MOST_ELEMENTS = 1 << 18 };

static const struct case_run exactly = {.exact_memory = true};

/* 0 .. count - 1 in any order. */
static void shuffle(struct draw *draw, int32_t count, int32_t order[MOST_AXES])
{
    for (int32_t n = 0; n < count; n++) {
        int32_t other = draw_below(draw, n + 1);
        order[n] = order[other];
        order[other] = n;
    }
}

/* An end of what is accepted, mostly the far one, as far as it can be run; below 0 = there is none,
 * or the axis is left as it is. */
static int32_t draw_end(struct draw *draw, accepts_value accepts, void *ctx, int32_t most_run)
{
    if (draw_one_in(draw, 4))
        return -1;
    struct borders borders = find_borders(accepts, ctx);
    if (borders.most < borders.least)
        return -1;
    int32_t far = borders.most > most_run ? most_run : borders.most;
    return draw_one_in(draw, 5) ? borders.least : far;
}

/* ---- Softmax and latent layers --------------------------------------------------------------- */

struct spec_corner {
    const struct grid *grid;
    const attn_options *options;
    struct case_spec *spec;
    const struct spec_axis *axis;
};

static bool is_small(const struct case_spec *spec)
{
    int64_t dims = (int64_t)spec->head_dim + spec->v_head_dim;
    int64_t page = spec->kv_layout ? spec->page_size : 1;
    return spec->num_q_heads * dims <= MOST_ELEMENTS &&
           spec->num_kv_heads * dims * page <= MOST_ELEMENTS;
}

static bool make_at(const struct spec_corner *corner, int32_t value, struct case_spec *spec)
{
    *spec = *corner->spec;
    corner->axis->set(spec, value);
    return is_small(spec) && !case_spec_defect(spec) &&
           grid_accepts_spec(corner->grid, corner->options, spec, NULL, 0);
}

static bool accepts_spec(void *ctx, int32_t value)
{
    struct case_spec spec;
    return make_at(ctx, value, &spec);
}

static void run_corner(struct check_run *run, struct spec_corner *corner,
                       const struct spec_axis *axes, int32_t num_axes)
{
    struct draw draw = {.seed = run->seed};
    int32_t order[MOST_AXES];
    axes_make_short(corner->spec);
    shuffle(&draw, num_axes, order);
    for (int32_t n = 0; n < num_axes; n++) {
        struct case_spec changed;
        corner->axis = &axes[order[n]];
        int32_t value = draw_end(&draw, accepts_spec, corner, corner->axis->most_run);
        if (value >= 0 && make_at(corner, value, &changed))
            *corner->spec = changed;
    }
    numerics_run(run, corner->spec, corner->options, &exactly);
}

#define MODES                                                                                      \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)                                             \
    }
static const struct grid_choice softmax_choices[] = {MODES, {0, 0}};
static const struct mla_choice latent_choice = {MLA_ABSORBED | MLA_EXPANDED,
                                                MLA_LATENT | MLA_PACKED,
                                                BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK),
                                                {MODES, {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3)}}};

CHECK_COUNT(corners,
            numerics_count(subject, softmax_choices) > 1 ? numerics_few(subject, CORNERS) : 1)
CHECK_COUNT(mla_corners,
            numerics_mla_count(subject, &latent_choice) > 1 ? numerics_few(subject, CORNERS) : 1)

static void run_any(struct check_run *run, bool latent)
{
    struct grid *grid = grid_of(run->subject);
    struct check_run point = *run;
    struct case_spec spec;
    struct spec_corner corner = {.grid = grid, .spec = &spec};
    CHECK_THAT(run, grid, "no memory for the grid");
    int32_t count = latent ? numerics_mla_count(run->subject, &latent_choice)
                           : numerics_count(run->subject, softmax_choices);
    point.index = run->index % count;
    bool found = latent ? numerics_mla_spec(&point, grid, &latent_choice, &spec, &corner.options)
                        : numerics_spec(&point, grid, softmax_choices, &spec, &corner.options);
    if (found)
        run_corner(run, &corner, latent ? latent_axes : softmax_axes,
                   latent ? LATENT_AXES : SOFTMAX_AXES);
    else
        check_skip(run, "%s", point.text);
    grid_release(run->subject, grid);
}

CHECK_RUN(corners, run_any(run, false))
CHECK_RUN(mla_corners, run_any(run, true))

/* ---- Linear layers --------------------------------------------------------------------------- */

struct linear_corner {
    const struct check_subject *subject;
    struct linear_spec *spec;
    const struct linear_axis *axis;
};

static bool accepts_linear(void *ctx, int32_t value)
{
    const struct linear_corner *corner = ctx;
    struct linear_spec spec = *corner->spec;
    char reason[LINEAR_TEXT];
    linear_axis_set(corner->axis, value, &spec);
    int64_t state = (int64_t)spec.v_heads * (spec.k_dim + spec.width) * spec.v_dim;
    return state <= MOST_ELEMENTS && linear_accepts(corner->subject, &spec, reason);
}

CHECK_COUNT(linear_corners, linear_families(subject) ? numerics_few(subject, CORNERS) : 1)

static void run_linear_corners(struct check_run *run)
{
    struct draw draw = {.seed = run->seed};
    struct linear_spec spec;
    struct linear_corner corner = {.subject = run->subject, .spec = &spec};
    int32_t order[MOST_AXES];
    if (!linear_find_case(run, axes_make_linear_short, &spec))
        return;
    shuffle(&draw, LINEAR_AXES, order);
    for (int32_t n = 0; n < LINEAR_AXES; n++) {
        corner.axis = &linear_axes[order[n]];
        int32_t value = draw_end(&draw, accepts_linear, &corner, corner.axis->most_run);
        if (value >= 0 && accepts_linear(&corner, value))
            linear_axis_set(corner.axis, value, &spec);
    }
    linear_run_spec(run, &spec);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_corners[] = {
    CHECK_CASES("CAPS-02", corners,
                "results are right with several axes at the ends of their accepted ranges"),
    CHECK_CASES(
        "CAPS-02", mla_corners,
        "latent layers: results are right with several axes at the ends of their accepted ranges"),
    CHECK_CASES(
        "CAPS-02", linear_corners,
        "linear layers: results are right with several axes at the ends of their accepted ranges"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
