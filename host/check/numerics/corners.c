/* SPDX-License-Identifier: Apache-2.0
 *
 * corners.c: several axes of a problem at the ends of what query accepts, one after the other, in
 * an order that is drawn: memory that is enough for each alone may be too little for two.
 */
#include "host/check/numerics/axes.h"

#include "host/check/cases/draw.h"

/* Elements of a page, of a query, of a state: more would be larger than what it shows is worth. */
enum { CORNERS = 40, MOST_AXES = 16, MOST_ELEMENTS = 1 << 18 };

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

/* ---- Cases ----------------------------------------------------------------------------------- */

struct corner {
    struct kind_case k;
    const struct axis *axis;
};

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

static bool make_at(const struct corner *corner, int32_t value, struct kind_case *at)
{
    *at = corner->k;
    axis_set(corner->axis, value, at);
    return is_small(at) && at->kind->accepts(at);
}

static bool accepts_at(void *ctx, int32_t value)
{
    struct kind_case at;
    return make_at(ctx, value, &at);
}

static void judge_corners(struct kind_case *k)
{
    struct draw draw = {.seed = k->run->seed};
    struct corner corner = {.k = *k};
    int32_t order[MOST_AXES], count;
    const struct axis *axes = axes_of(k, &count);
    axes_make_short(&corner.k);
    shuffle(&draw, count, order);
    for (int32_t n = 0; n < count; n++) {
        corner.axis = &axes[order[n]];
        int32_t value = draw_end(&draw, accepts_at, &corner, corner.axis->most_run);
        struct kind_case at;
        if (value >= 0 && make_at(&corner, value, &at))
            corner.k = at;
    }
    kind_run(&corner.k);
}

/* ---- Table ----------------------------------------------------------------------------------- */

static const struct relation in_corners = {.judge = judge_corners};

const struct check check_corners[] = {
    ALL_ROWS("CAPS-02", corners, in_corners, CHECK_NEEDS_COMPUTE,
             "results are right with several axes at the ends of their accepted ranges",
             CASES_OF(.kind = &softmax_layers, .choices = {BOTH_PHASES}, .drawn = CORNERS),
             CASES_OF(.kind = &latent_layers,
                      .choices = {OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED,
                                             BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK), BOTH_PHASES,
                                             PLAIN_AND_QUANTISED)},
                      .drawn = CORNERS),
             CASES_OF(.kind = &linear_layers, .change = axes_make_linear_short, .drawn = CORNERS)),
    {.rule = NULL},
};
