/* SPDX-License-Identifier: Apache-2.0
 *
 * dtypes.c: independent dtypes of operands. The grid combines them as models do; here each operand
 * of a layer has each dtype by itself, and every combination that query accepts is computed right:
 * of equal width, wider, narrower. */
#include "host/check/cases/kind.h"

#include "host/base/dtype.h"
#include "host/base/mix.h"

#include <string.h>

static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32, ATTN_FP8_E4M3, ATTN_FP8_E5M2};
enum {
    DTYPES = sizeof dtypes / sizeof dtypes[0],
    TYPES = DTYPES * DTYPES * DTYPES * DTYPES, /* of four operands */
    FORMS = 4                                  /* of latents: two forms, two layouts */
};

/* Number `n`'s digit for operand `which`. */
static attn_dtype dtype_at(int32_t n, int which)
{
    while (which-- > 0)
        n /= DTYPES;
    return dtypes[n % DTYPES];
}

/* ---- Softmax layers and latent ones ---------------------------------------------------------- */

static const uint8_t modes[] = {MODE_EXTEND, MODE_DECODE, MODE_MIXED};

/* A plain spec in one mode, as the backend accepts it; of latents in one of their forms. */
static bool find_plain(const struct grid *grid, bool latent, int32_t form, uint8_t mode,
                       struct case_spec *spec, char *reason, size_t size)
{
    const struct grid_choice latents[GRID_MAX_CHOICES + 1] = {
        OF_LATENTS(BIT(form % 2), BIT(form / 2), BIT(MLA_SMALL), {AXIS_MODE, BIT(mode)})};
    struct grid_point point = grid->base;
    point.value[AXIS_MODE] = mode;
    if (latent && grid_product(grid, latents, 0, &point, reason, size) == 0)
        return false;
    return grid_accepts(grid, &point, spec, reason, size);
}

static void set_types(struct case_spec *spec, int32_t n)
{
    attn_dtype new_kv = dtype_at(n, 1);
    spec->q_dtype = dtype_at(n, 0);
    spec->new_kv_dtype = new_kv != spec->q_dtype ? new_kv : ATTN_DTYPE_NONE;
    spec->kv_dtype = dtype_at(n, 2);
    spec->out_dtype = dtype_at(n, 3);
    spec->input_granularity = dtype_is_fp8(spec->q_dtype) || dtype_is_fp8(new_kv)
                                  ? ATTN_SCALE_PER_TENSOR
                                  : ATTN_SCALE_NONE;
    spec->scale_granularity = dtype_is_fp8(spec->kv_dtype) && spec->kv_layout &&
                                      strcmp(spec->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) != 0
                                  ? ATTN_SCALE_PER_TENSOR
                                  : ATTN_SCALE_NONE;
    /* Of e5m2 no needle stands out. */
    spec->without_needles = spec->q_dtype == ATTN_FP8_E5M2 || spec->out_dtype == ATTN_FP8_E5M2;
}

/* In turns, as far as query accepts it: new keys are saved or not; heads are as the grid has them,
 * or end within a vector of elements, where each type is converted in another way. */
static void set_rest(const struct grid *grid, int32_t index, bool latent, struct case_spec *spec)
{
    const attn_options *options = grid_options(grid, &grid->base);
    struct case_spec changed = *spec;
    changed.flags ^= index % 3 == 2 ? ATTN_FORWARD_SAVE_KV : 0;
    grid_take(grid, options, &changed, spec);
    changed = *spec;
    if (!latent && index % 2 == 1)
        changed.head_dim = changed.v_head_dim = 20;
    grid_take(grid, options, &changed, spec);
}

/* How many there are, and case `index` of them; if there are none, why the first is refused. */
static int32_t find(const struct grid *grid, bool latent, int32_t index, struct case_spec *spec,
                    char *reason, size_t size)
{
    struct case_spec plain[FORMS][sizeof modes];
    bool is_there[FORMS][sizeof modes];
    int32_t count = 0, forms = latent ? FORMS : 1;
    if (!latent && grid->refusal[0])
        return 0;
    for (int32_t form = 0; form < forms; form++)
        for (size_t m = 0; m < sizeof modes; m++)
            is_there[form][m] = find_plain(grid, latent, form, modes[m], &plain[form][m],
                                           form + (int32_t)m == 0 ? reason : NULL, size);
    for (int32_t n = 0; n < TYPES * forms; n++) {
        int32_t form = n % forms;
        size_t mode = (size_t)count % sizeof modes;
        struct case_spec tried = plain[form][is_there[form][mode] ? mode : 0];
        if (!is_there[form][mode] && !is_there[form][0])
            continue;
        set_types(&tried, n / forms);
        if (case_spec_defect(&tried) ||
            !grid_accepts_spec(grid, grid_options(grid, &grid->base), &tried, NULL, 0))
            continue;
        if (count++ == index) {
            set_rest(grid, index, latent, &tried);
            *spec = tried;
        }
    }
    return count;
}

CHECK_COUNT(dtypes, numerics_count_found(subject, find, false))
CHECK_COUNT(mla_dtypes, numerics_count_found(subject, find, true))
CHECK_RUN(dtypes, numerics_run_found(run, find, false))
CHECK_RUN(mla_dtypes, numerics_run_found(run, find, true))

/* ---- Linear layers --------------------------------------------------------------------------- */

/* States and inputs of a convolution are read, kept and left after some rows; one sequence is long
 * enough to be computed in chunks. */
static void set_batch(struct case_spec *spec, int32_t n)
{
    struct linear_spec *linear = &spec->linear;
    linear_set_extend(spec, "67i 2ip 5 1i");
    if (linear->width < 2 && linear->k_dim != 1 && linear->v_dim != 1)
        linear->width = 4;
    linear->snapshots = n % 2;
    linear->cuts = 2;
    spec->q_dtype = dtype_at(n, 0);
    linear->conv_dtype = dtype_at(n, 1);
    linear->state_dtype = dtype_at(n, 2);
    spec->out_dtype = dtype_at(n, 3);
}

/* Each of the types in one family, as far as there is one that has it. */
static int32_t find_linear(const struct check_subject *subject, int32_t index,
                           struct case_spec *spec)
{
    char reason[LINEAR_TEXT];
    struct case_spec plain[ATTN_LINEAR_COUNT];
    uint32_t set = linear_families(subject);
    int32_t count = 0, families = __builtin_popcount(set);
    for (int32_t f = 0; f < families; f++)
        if (!linear_find(subject, linear_family_at(set, f), mix_absorb(subject->seed, (uint64_t)f),
                         NULL, 0, &plain[f], reason))
            return 0;
    for (int32_t n = 0; n < TYPES && families > 0; n++) {
        struct case_spec tried = plain[count % families];
        set_batch(&tried, n);
        if (linear_accepts(subject, &tried, reason) && count++ == index)
            *spec = tried;
    }
    return count;
}

static int32_t count_linear_dtypes(const struct check_subject *subject)
{
    struct case_spec spec;
    int32_t count = find_linear(subject, -1, &spec);
    return count > 0 ? count : 1;
}

static void run_linear_dtypes(struct check_run *run)
{
    struct case_spec spec;
    if (run->index < find_linear(run->subject, run->index, &spec))
        numerics_run(run, &spec, NULL);
    else
        check_skip(run, "query refuses every case of linear layers that was drawn");
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_dtypes[] = {
    CHECK_CASES("CAPS-02", dtypes,
                "results are right for all dtypes of q, new k and v, caches and outputs that query "
                "accepts"),
    CHECK_CASES("CAPS-02", mla_dtypes,
                "latent layers are right for all dtypes of operands that query accepts"),
    CHECK_CASES("CAPS-02", linear_dtypes,
                "linear layers are right for all dtypes of operands that query accepts"),
    {.rule = NULL},
};
