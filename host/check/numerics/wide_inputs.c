/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_inputs.c: queries, and new keys and values, of fp8 as models have them: head dimensions of
 * 64 and more, more queries than a tile of a kernel has. num.c has the rest of MEAN-22, in batches
 * of few queries and one head dimension.
 *
 * A case for each head dimension and kind of scales that query accepts. Lengths, windows, pages,
 * sources, LSE and outputs follow from the two, so that each head dimension has all values of each
 * of these, as far as query accepts them.
 */
#include "host/check/cases/numerics.h"
#include "host/check/cases/kind.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* ---- What is drawn --------------------------------------------------------------------------- */

static const int32_t dims[] = {64, 96, 128, 192, 256};

/* Scales of new keys and values are as fine as those of queries. */
static const struct {
    uint8_t inputs; /* of AXIS_INPUTS */
    uint32_t granularity;
} kinds[] = {{INPUTS_E4M3, ATTN_SCALE_PER_TENSOR},   {INPUTS_E4M3, ATTN_SCALE_PER_HEAD},
             {INPUTS_E4M3, ATTN_SCALE_PER_SEQ_HEAD}, {INPUTS_Q_E4M3, ATTN_SCALE_PER_TENSOR},
             {INPUTS_Q_E4M3, ATTN_SCALE_PER_HEAD},   {INPUTS_Q_E4M3, ATTN_SCALE_PER_SEQ_HEAD}};

/* Prefixes and new tokens: a tile of 128 queries and one more, two tiles and one more; with keys
 * before them and without; and so many keys that sums of values are added up in parts. */
static const char *const lengths[] = {"0+129 37+130", "0+257 5+3", "129+140 0+30", "70+259 0+1",
                                      "1300+150 0+40"};

static const int32_t windows[][2] = {{-1, 0}, {-1, -1}, {100, 0}, {40, 20}};
static const int32_t pages[] = {16, 64};

/* A case's features other than lengths, each added if query accepts it. */
enum { CHANGE_HEADS, CHANGE_WINDOW, CHANGE_PAGE, CHANGE_SOURCE, CHANGE_LSE, CHANGE_OUT, CHANGES };

static void change_one(struct case_spec *spec, int change, int32_t dim, int32_t kind)
{
    const int32_t *window = windows[(2 * dim + 3 * kind) % COUNT(windows)];
    switch (change) {
    case CHANGE_HEADS: /* fewer of the widest, which take as long as more of others */
        if (spec->head_dim > 128)
            spec->num_q_heads = spec->num_kv_heads = 2;
        break;
    case CHANGE_WINDOW:
        spec->window_left = window[0];
        spec->window_right = window[1];
        break;
    case CHANGE_PAGE:
        spec->page_size = pages[(kind / 2 + dim) % COUNT(pages)];
        break;
    case CHANGE_SOURCE: /* saved, or all from the cache */
        spec->from_cache = (kind + dim) % 3 == 2;
        spec->flags = spec->from_cache ? 0 : ATTN_FORWARD_SAVE_KV;
        break;
    case CHANGE_LSE:
        spec->wants_lse = (kind + kind / 3 + dim) % 2 == 0;
        break;
    case CHANGE_OUT:
    default:
        spec->out_dtype = (kind + dim) % 4 == 3 ? ATTN_F16 : spec->out_dtype;
        break;
    }
}

static void complete(const struct grid *grid, struct case_spec *spec, int32_t dim, int32_t kind)
{
    const attn_options *options = grid_options(grid, &grid->base);
    for (int change = 0; change < CHANGES; change++) {
        struct case_spec changed = *spec;
        change_one(&changed, change, dim, kind);
        grid_take(grid, options, &changed, spec);
    }
}

/* Over a cache of codes, some first over one of 16 or 32 bits; whichever query accepts. */
static bool find_spec(const struct grid *grid, bool e5m2, int32_t dim, int32_t kind,
                      struct case_spec *spec, char *reason, size_t size)
{
    bool is_plain_first = (dim + kind) % 5 == 4;
    for (int n = 0; n < 2; n++) {
        struct grid_point point = grid->base;
        char last[512];
        point.value[AXIS_INPUTS] = kinds[kind].inputs;
        point.value[AXIS_KV] = (n == 0) == is_plain_first ? KV_AS_Q : e5m2 ? KV_E5M2 : KV_E4M3;
        if (!grid_spec(grid, &point, spec))
            continue;
        spec->head_dim = spec->v_head_dim = dims[dim];
        spec->input_granularity = kinds[kind].granularity;
        if (e5m2)
            numerics_make_e5m2(spec, 0);
        case_set_lengths(spec, lengths[(dim + kind) % COUNT(lengths)]);
        if (!case_spec_defect(spec) &&
            grid_accepts_spec(grid, grid_options(grid, &point), spec, n == 0 ? reason : last,
                              n == 0 ? size : sizeof last))
            return true;
    }
    return false;
}

/* How many there are, and case `index` of them. If there are none, `reason` is why the first is
 * refused. */
static int32_t find(const struct grid *grid, bool e5m2, int32_t index, struct case_spec *spec,
                    char *reason, size_t size)
{
    int32_t count = 0;
    for (int32_t dim = 0; dim < COUNT(dims) && !grid->refusal[0]; dim++)
        for (int32_t kind = 0; kind < COUNT(kinds); kind++) {
            struct case_spec found;
            char last[512];
            bool is_first = dim + kind == 0;
            if (e5m2 && (dim + kind) % 3 != 0)
                continue;
            if (!find_spec(grid, e5m2, dim, kind, &found, is_first ? reason : last,
                           is_first ? size : sizeof last))
                continue;
            if (count++ == index) {
                complete(grid, &found, dim, kind);
                *spec = found;
            }
        }
    return count;
}

/* ---- Table ----------------------------------------------------------------------------------- */

CHECK_COUNT(wide_inputs, numerics_count_found(subject, find, false))
CHECK_COUNT(wide_inputs_e5m2, numerics_count_found(subject, find, true))
CHECK_RUN(wide_inputs, numerics_run_found(run, find, false))
CHECK_RUN(wide_inputs_e5m2, numerics_run_found(run, find, true))

const struct check check_wide_inputs[] = {
    CHECK_CASES("MEAN-22", wide_inputs,
                "q, k and v in fp8 are read as value times scale, for any head dimension and in "
                "batches of many queries"),
    CHECK_CASES("MEAN-22", wide_inputs_e5m2,
                "q, k and v in e5m2 are read as value times scale, for any head dimension and in "
                "batches of many queries"),
    {.rule = NULL},
};
