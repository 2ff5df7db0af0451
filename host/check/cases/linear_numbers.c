/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_numbers.c: random numbers for a linear spec.
 */
#include "host/check/cases/linear_numbers.h"

#include "host/check/cases/draw.h"

/* What is drawn, and from what. */
struct numbers {
    const struct check_subject *subject;
    int64_t most_work;
    struct linear_spec *spec;
    struct draw draw;
};

/* ---- Numbers --------------------------------------------------------------------------------- */

static int32_t below(struct numbers *numbers, int32_t count)
{
    return draw_below(&numbers->draw, count);
}

static bool one_in(struct numbers *numbers, int32_t count)
{
    return draw_one_in(&numbers->draw, count);
}

static int64_t work_of(const struct linear_spec *spec)
{
    int64_t rows = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        rows += linear_sequence(spec, s)->rows;
    return rows * spec->v_heads * (spec->k_dim + spec->width + 1) * spec->v_dim;
}

static void keep_if_accepted(struct numbers *numbers, const struct linear_spec *changed)
{
    char reason[LINEAR_TEXT];
    if (work_of(changed) <= numbers->most_work && linear_accepts(numbers->subject, changed, reason))
        *numbers->spec = *changed;
}

/* ---- Layer ----------------------------------------------------------------------------------- */

static bool has_keys(const struct linear_spec *spec)
{
    return spec->k_heads > 0;
}

static void draw_heads(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    int32_t k_heads = 1 + below(numbers, one_in(numbers, 4) ? 20 : 5);
    if (has_keys(&changed))
        changed.k_heads = k_heads;
    changed.v_heads = k_heads * (1 + below(numbers, 5));
    keep_if_accepted(numbers, &changed);
}

/* Two at least: the bar of one element would be a matter of luck (linear_spec.c). */
static void draw_dims(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    if (has_keys(&changed))
        changed.k_dim = 2 + below(numbers, one_in(numbers, 3) ? 255 : 66);
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.v_dim = 2 + below(numbers, one_in(numbers, 3) ? 255 : 66);
    keep_if_accepted(numbers, &changed);
}

static void draw_convolution(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    if (changed.k_dim == 1 || changed.v_dim == 1)
        return;
    changed.width = below(numbers, 12);
    keep_if_accepted(numbers, &changed);
}

static void draw_gates(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    if (changed.dt_min > 0 && changed.dt_max > changed.dt_min) {
        changed.dt_min = 0.01f + 0.03f * (float)below(numbers, 20);
        changed.dt_max = changed.dt_min + 0.04f * (float)(1 + below(numbers, 30));
    }
    if (changed.lower_bound < 0)
        changed.lower_bound = -0.07f * (float)(1 + below(numbers, 120));
    keep_if_accepted(numbers, &changed);
}

void linear_numbers_draw_layer(const struct check_subject *subject, uint64_t seed,
                               int64_t most_work, struct linear_spec *spec)
{
    struct numbers numbers = {subject, most_work, spec, {.seed = seed}};
    draw_heads(&numbers);
    draw_dims(&numbers);
    draw_convolution(&numbers);
    draw_gates(&numbers);
}

/* ---- Batch ----------------------------------------------------------------------------------- */

/* Few rows often, many seldom; cases of one row or none are those that fail. */
static int32_t any_rows(struct numbers *numbers)
{
    static const int32_t most[] = {2, 2, 9, 20, 70, 140, 300, 700};
    return below(numbers, most[below(numbers, 8)]);
}

static void draw_sequences(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    changed.num_sequences = 1 + below(numbers, LINEAR_CASE_MAX_SEQS);
    for (int32_t s = 0; s < changed.num_sequences; s++)
        changed.sequences[s] = (struct linear_case_sequence){
            .rows = changed.mode == ATTN_MODE_DECODE          ? 1
                    : changed.mode == ATTN_MODE_TARGET_VERIFY ? 1 + below(numbers, 12)
                                                              : any_rows(numbers),
            .has_initial = !one_in(numbers, 4),
            .in_place = one_in(numbers, 2),
            .dropped = one_in(numbers, 8)};
    changed.decodes = below(numbers, changed.num_sequences + 1);
    changed.decode_q_len = 1 + (one_in(numbers, 2) ? 0 : below(numbers, 9));
    changed.decodes_first = one_in(numbers, 2);
    if (changed.mode == ATTN_MODE_MIXED)
        linear_spec_mix(&changed);
    keep_if_accepted(numbers, &changed);
}

static void draw_snapshots(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    if (changed.mode == ATTN_MODE_TARGET_VERIFY) /* it has them of all rows */
        return;
    changed.snapshots = one_in(numbers, 3);
    changed.sparse = changed.snapshots ? 1 + below(numbers, 90) : 0;
    changed.cuts = changed.snapshots && one_in(numbers, 2) ? 1 + below(numbers, 6) : 0;
    keep_if_accepted(numbers, &changed);
}

static void draw_rows(struct numbers *numbers)
{
    struct linear_spec changed = *numbers->spec;
    changed.gap = one_in(numbers, 2) ? 0 : 16 * (1 + below(numbers, 5));
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.padded = one_in(numbers, 2) ? 0 : 1 + below(numbers, 9);
    keep_if_accepted(numbers, &changed);
    if (changed.mode == ATTN_MODE_DECODE)
        return;
    changed = *numbers->spec;
    changed.first_row = one_in(numbers, 2) ? 0 : below(numbers, 150);
    changed.spare =
        changed.mode == ATTN_MODE_MIXED || one_in(numbers, 2) ? 0 : 1 + below(numbers, 20);
    keep_if_accepted(numbers, &changed);
}

void linear_numbers_draw_batch(const struct check_subject *subject, uint64_t seed,
                               int64_t most_work, struct linear_spec *spec)
{
    struct numbers numbers = {subject, most_work, spec, {.seed = seed}};
    draw_sequences(&numbers);
    draw_snapshots(&numbers);
    draw_rows(&numbers);
}
