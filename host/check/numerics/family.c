/* SPDX-License-Identifier: Apache-2.0
 *
 * family.c: running of variants.
 */
#include "host/check/numerics/family.h"

enum { SMALL_DIM = 16 };

/* ---- Running --------------------------------------------------------------------------------- */

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

/* Too much for a driver that fills what it allocates: more than 64 MiB. */
static bool is_vast(const struct case_spec *spec)
{
    int64_t slots = (int64_t)70000 * spec->page_size;
    int64_t bytes = slots * spec->num_kv_heads * (spec->head_dim + spec->v_head_dim) * 2;
    return spec->spread == SPREAD_BYTES || (spec->spread == SPREAD_PAGES && bytes > 64 << 20);
}

static void run_variant(struct kind_case *k)
{
    struct case_spec *spec = &k->at.spec;
    k->run->check->cases->vary(spec, k->variant);
    const char *defect = case_spec_defect(spec);
    CHECK_THAT(k->run, !defect, "the suite is wrong: %s of a large case", defect);
    if (k->run->subject->fake_device && is_vast(spec))
        check_skip(k->run, "the fake driver fills its memory: no pools of more than 64 MiB");
    else if (numerics_accepts(&k->at, spec))
        kind_run(k);
}

static void run_case(struct check_run *run, bool small)
{
    struct kind_case k;
    if (kind_find(&k, run)) {
        if (small)
            make_small(k.at.grid, k.at.options, &k.at.spec);
        run_variant(&k);
    }
    kind_close(&k);
}

void run_large(struct check_run *run)
{
    run_case(run, true);
}

void run_varied(struct check_run *run)
{
    run_case(run, false);
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
