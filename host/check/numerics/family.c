/* SPDX-License-Identifier: Apache-2.0
 *
 * family.c: running of a family's points and variants.
 */
#include "host/check/numerics/family.h"

enum { SMALL_DIM = 16 };

static const struct case_run once = {.exact_memory = true};

/* ---- Running --------------------------------------------------------------------------------- */

static int32_t variants_of(const struct family *family)
{
    return family->num_variants > 0 ? family->num_variants : 1;
}

int32_t family_count(const struct check_subject *subject, const struct family *family)
{
    struct grid *grid = grid_of(subject);
    struct grid_point point;
    struct mla_point latent;
    int32_t count = 0;
    if (grid && family->latents)
        count = mla_product(grid, family->latents, 0, &latent, NULL, 0);
    else if (grid)
        count = grid_product(grid, family->choices, 0, &point, NULL, 0);
    grid_release(subject, grid);
    return count > 0 ? count * variants_of(family) : 1;
}

static void take_dims(struct case_spec *spec, int32_t q_heads)
{
    spec->num_q_heads = q_heads;
    spec->num_kv_heads = 1;
    if (spec->latent.kv_lora_rank > 0) {
        spec->latent = (struct case_latent){33, 7, 11, 5, spec->latent.expanded};
        case_spec_set_form(spec, spec->latent.expanded);
    } else {
        spec->head_dim = spec->v_head_dim = SMALL_DIM;
    }
}

/* Small in all that the case is not about, where the backend has it: two heads, or one. */
static void make_small(const struct grid *grid, const attn_options *options, struct case_spec *spec)
{
    for (int32_t q_heads = 2; q_heads > 0; q_heads--) {
        struct case_spec small = *spec;
        take_dims(&small, q_heads);
        if (!case_spec_defect(&small) && grid_accepts_spec(grid, options, &small, NULL, 0)) {
            *spec = small;
            return;
        }
    }
}

/* The spec of a case before it is made large. False: why not. */
static bool find_spec(const struct grid *grid, const struct family *family, int32_t index,
                      struct case_spec *spec, const attn_options **options, char *reason,
                      size_t size)
{
    struct grid_point point;
    struct mla_point latent;
    if (family->latents) {
        int32_t count = mla_product(grid, family->latents, index, &latent, reason, size);
        *options = grid_options(grid, &latent.common);
        return index < count && mla_accepts(grid, &latent, spec, reason, size);
    }
    int32_t count = grid_product(grid, family->choices, index, &point, reason, size);
    *options = grid_options(grid, &point);
    return index < count && grid_accepts(grid, &point, spec, reason, size);
}

/* Too much for a driver that fills what it allocates: more than 64 MiB. */
static bool is_vast(const struct case_spec *spec)
{
    int64_t slots = (int64_t)70000 * spec->page_size;
    int64_t bytes = slots * spec->num_kv_heads * (spec->head_dim + spec->v_head_dim) * 2;
    return spec->spread == SPREAD_BYTES || (spec->spread == SPREAD_PAGES && bytes > 64 << 20);
}

static void run_large(struct check_run *run, const struct grid *grid, const struct family *family)
{
    struct case_spec spec;
    const attn_options *options = NULL;
    char reason[512] = "";
    int32_t variants = variants_of(family);
    if (!find_spec(grid, family, run->index / variants, &spec, &options, reason, sizeof reason)) {
        check_skip(run, "%s", grid->refusal[0] && !family->latents ? grid->refusal : reason);
        return;
    }
    if (!family->as_is)
        make_small(grid, options, &spec);
    family->change(&spec, run->index % variants);
    const char *defect = case_spec_defect(&spec);
    CHECK_THAT(run, !defect, "the suite is wrong: %s of a large case", defect);
    if (run->subject->fake_device && is_vast(&spec))
        check_skip(run, "the fake driver fills its memory: no pools of more than 64 MiB");
    else if (grid_accepts_spec(grid, options, &spec, reason, sizeof reason))
        numerics_run(run, &spec, options, &once);
    else
        check_skip(run, "%s", reason);
}

void family_run(struct check_run *run, const struct family *family)
{
    struct grid *grid = grid_of(run->subject);
    CHECK_THAT(run, grid, "no memory for the grid");
    run_large(run, grid, family);
    grid_release(run->subject, grid);
}

/* ---- Lengths --------------------------------------------------------------------------------- */

void family_set_lengths(struct case_spec *spec, int32_t count, const int32_t (*lengths)[2])
{
    spec->num_sequences = count;
    for (int32_t s = 0; s < count; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        *sequence = (struct case_sequence){.prefix_len = lengths[s][0], .num_new = lengths[s][1]};
        if (spec->mode == ATTN_MODE_TARGET_VERIFY)
            sequence->num_new = 4;
        if (spec->mode == ATTN_MODE_MIXED && s > 0 && s == count - 1)
            sequence->num_new = 1;
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY)
            sequence->prefix_len = 0;
        if (spec->attn_type == ATTN_TYPE_CROSS)
            sequence->num_new_keys = s % 2 ? 0 : 11;
        if (spec->partial && spec->latent.expanded) {
            sequence->chunk_end = sequence->prefix_len;
            sequence->num_new_keys = sequence->prefix_len;
        }
    }
}
