/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_spec.c: the latent grid, and drawing from it.
 */
#include "host/check/cases/mla_spec.h"

#include "host/base/mix.h"

#include <stdio.h>
#include <string.h>

/* kv_lora_rank, rope_dim, nope_dim, v_dim. */
static const int32_t dims[MLA_DIMS][4] = {
    [MLA_SMALL] = {64, 16, 32, 24},
    [MLA_DEEPSEEK] = {512, 64, 128, 128},
    [MLA_ONE_BLOCK] = {128, 5, 20, 33},
    {33, 7, 11, 5},
    {1, 1, 1, 1},
    {256, 32, 64, 64},
    {130, 70, 3, 40},
};

/* ---- Specs ----------------------------------------------------------------------------------- */

/* The part of the prefix that comes with this batch: all of it, its end, its beginning, nothing. */
static void set_chunk(struct case_sequence *sequence, int32_t s)
{
    int32_t prefix = sequence->prefix_len;
    sequence->chunk_end = s % 4 == 2 ? prefix / 2 : prefix;
    sequence->num_new_keys = s % 4 == 1 ? prefix / 3 : s % 4 == 3 ? 0 : sequence->chunk_end;
}

static bool make_spec(const struct grid *grid, const struct mla_point *point,
                      struct case_spec *spec)
{
    const int32_t *of = dims[point->dims];
    if (point->common.value[AXIS_INPUTS] != INPUTS_PLAIN || !grid_spec(grid, &point->common, spec))
        return false;
    spec->latent = (struct case_latent){of[0], of[1], of[2], of[3], false};
    case_spec_set_form(spec, point->expanded);
    spec->kv_layout = point->packed ? ATTN_LAYOUT_MLA_LATENT_FP8 : ATTN_LAYOUT_MLA_LATENT;
    if (point->packed) {
        if (point->common.value[AXIS_KV] != KV_AS_Q)
            return false;
        spec->kv_dtype = ATTN_FP8_E4M3;
    }
    if (spec->index_form == 0) /* the grid of a backend for latent layers alone is empty */
        spec->index_form = ATTN_INDEX_BLOCK_TABLE;
    if (point->expanded && spec->partial) {
        spec->from_cache = false;
        for (int32_t s = 0; s < spec->num_sequences; s++)
            set_chunk(&spec->sequences[s], s);
    }
    return case_spec_defect(spec) == NULL;
}

bool mla_accepts(const struct grid *grid, const struct mla_point *point, struct case_spec *spec,
                 char *reason, size_t size)
{
    if (!make_spec(grid, point, spec)) {
        if (reason)
            snprintf(reason, size, "no such case");
        return false;
    }
    return grid_accepts_spec(grid, grid_options(grid, &point->common), spec, reason, size);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A value of a set, counted from 0. */
static uint8_t nth_value(uint32_t values, int64_t n)
{
    while (n-- > 0)
        values &= values - 1;
    return (uint8_t)__builtin_ctz(values);
}

/* The next digit of a number whose base is the size of the set. */
static uint8_t take_value(uint32_t values, int64_t *number)
{
    int64_t count = __builtin_popcount(values), digit = *number % count;
    *number /= count;
    return nth_value(values, digit);
}

static int64_t num_points(const struct mla_choice *choice)
{
    int64_t count = __builtin_popcount(choice->forms) * __builtin_popcount(choice->layouts) *
                    __builtin_popcount(choice->dims);
    for (int c = 0; choice->choices[c].values; c++)
        count *= __builtin_popcount(choice->choices[c].values);
    return count;
}

/* Point `number` of a product around a base. False: an axis has no such value. */
static bool take_point(const struct grid *grid, const struct mla_choice *choice, int64_t number,
                       struct mla_point *point)
{
    point->expanded = take_value(choice->forms, &number);
    point->packed = take_value(choice->layouts, &number);
    point->dims = take_value(choice->dims, &number);
    for (int c = 0; choice->choices[c].values; c++) {
        enum grid_axis axis = choice->choices[c].axis;
        uint8_t value = take_value(choice->choices[c].values, &number);
        if (value >= grid_num_values(grid, axis))
            return false;
        point->common.value[axis] = value;
    }
    return true;
}

/* As plain as the backend allows. */
static const struct mla_choice plain = {
    MLA_ABSORBED | MLA_EXPANDED,
    MLA_LATENT | MLA_PACKED,
    1 << MLA_SMALL | 1 << MLA_DEEPSEEK,
    {{AXIS_DTYPE, 7}, {AXIS_MODE, 1 << MODE_EXTEND | 1 << MODE_DECODE}, {AXIS_PAGE, 7}}};

static struct mla_point find_base(const struct grid *grid, char *reason, size_t size)
{
    struct mla_point point = {0};
    struct case_spec spec;
    for (int64_t n = 0; n < num_points(&plain); n++)
        if (take_point(grid, &plain, n, &point) &&
            mla_accepts(grid, &point, &spec, n == 0 ? reason : NULL, size)) {
            if (reason)
                reason[0] = '\0';
            return point;
        }
    return (struct mla_point){0};
}

/* Points of a product around a base that the backend accepts; `*point` is number `index` of them. */
static int32_t accepted_points(const struct grid *grid, const struct mla_point *base,
                               const struct mla_choice *choice, int32_t index,
                               struct mla_point *point, char *reason, size_t size)
{
    int32_t count = 0;
    for (int64_t n = 0; n < num_points(choice); n++) {
        struct mla_point tried = *base;
        struct case_spec spec;
        bool ask_why = reason && count == 0 && !reason[0];
        if (!take_point(grid, choice, n, &tried) ||
            !mla_accepts(grid, &tried, &spec, ask_why ? reason : NULL, size))
            continue;
        if (count++ == index)
            *point = tried;
    }
    return count;
}

/* Axes that a choice leaves as they are have the base's value; the form is the choice's own, and so
 * are the dimensions, unless the backend takes none of them: kernels of 512 + 64 alone are checked
 * for all that others are. */
int32_t mla_product(const struct grid *grid, const struct mla_choice *choice, int32_t index,
                    struct mla_point *point, char *reason, size_t size)
{
    struct mla_point base = find_base(grid, reason, size);
    struct mla_choice of_base = *choice;
    int32_t count = accepted_points(grid, &base, choice, index, point, reason, size);
    of_base.dims = 1u << base.dims;
    return count > 0 ? count : accepted_points(grid, &base, &of_base, index, point, reason, size);
}

/* ---- At random ------------------------------------------------------------------------------- */

/* Every other one is of small dimensions. */
struct mla_point mla_random(const struct grid *grid, uint64_t seed, uint64_t n, uint32_t without)
{
    static const enum grid_axis unused[] = {AXIS_TYPE, AXIS_DIM, AXIS_V_DIM, AXIS_LAYOUT};
    uint64_t stream = mix_absorb(seed, n);
    uint32_t bits = (uint32_t)(mix_stream(stream, 0) >> 32);
    struct mla_point point = {.common = grid_random(grid, seed, n),
                              .expanded = bits % 3 == 0,
                              .packed = bits >> 8 & 1 && bits >> 9 & 1,
                              .dims = bits >> 10 & 1 ? (uint8_t)((bits >> 11) % MLA_DIMS) : 0};
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        point.common.value[unused[i]] = 0;
    for (uint32_t axis = 0; axis < GRID_AXES; axis++)
        if (without >> axis & 1)
            point.common.value[axis] = 0;
    if (point.packed)
        point.common.value[AXIS_KV] = KV_AS_Q;
    return point;
}
