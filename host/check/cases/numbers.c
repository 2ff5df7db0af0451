/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/cases/numbers.h"

#include "host/base/mix.h"

/* What is drawn, and from what. */
struct draw {
    const struct grid *grid;
    const attn_options *options;
    int64_t most_work;
    struct case_spec *spec;
    uint64_t seed, next;
};

/* ---- Numbers --------------------------------------------------------------------------------- */

static int32_t below(struct draw *draw, int32_t count)
{
    uint64_t word = mix_stream(draw->seed, draw->next++);
    return (int32_t)mix_below((uint32_t)(word >> 32), (uint64_t)count);
}

static int one_in(struct draw *draw, int32_t count)
{
    return below(draw, count) == 0;
}

/* Few often, many seldom. */
static int32_t any_length(struct draw *draw)
{
    static const int32_t most[] = {1, 9, 9, 65, 65, 301, 700, 2600};
    return below(draw, most[below(draw, 8)]);
}

int64_t numbers_work(const struct case_spec *spec)
{
    int64_t pairs = 0;
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++) {
        const struct case_sequence *sequence = &spec->sequences[s];
        int64_t queries = spec->mode == ATTN_MODE_DECODE ? 1 : sequence->num_new;
        pairs += queries * (sequence->prefix_len + sequence->num_new + sequence->num_new_keys);
    }
    return pairs * spec->num_q_heads * (spec->head_dim + spec->v_head_dim);
}

static int has_row(const struct case_spec *spec)
{
    int has = spec->spare > 0 || spec->padded > spec->num_sequences;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        has |= spec->mode == ATTN_MODE_DECODE || spec->sequences[s].num_new > 0;
    return has;
}

/* Arrays of a batch without rows, and those of its sequences without one, are not there. */
static int lacks_arrays(const struct case_spec *spec)
{
    int of_sequences = spec->multi_item || spec->scale_granularity == ATTN_SCALE_PER_SEQ_HEAD ||
                       spec->input_granularity == ATTN_SCALE_PER_SEQ_HEAD;
    return !has_row(spec) || (of_sequences && spec->num_sequences == 0 && spec->padded == 0);
}

static void keep_if_accepted(struct draw *draw, struct case_spec *changed)
{
    if (!case_spec_defect(changed) && !lacks_arrays(changed) && numbers_work(changed) <= draw->most_work &&
        grid_accepts_spec(draw->grid, draw->options, changed, NULL, 0))
        *draw->spec = *changed;
}

/* ---- Batch ----------------------------------------------------------------------------------- */

/* Sequence s of a MIXED batch, of which `decodes` decode. */
static int is_decode(const struct case_spec *spec, int32_t s, int32_t decodes)
{
    return spec->decodes_first ? s < decodes : s >= spec->num_sequences - decodes;
}

static void set_kind_of_lengths(struct draw *draw, struct case_spec *spec)
{
    int32_t verified = 1 + below(draw, 9), decodes = below(draw, spec->num_sequences + 1);
    if (spec->mode == ATTN_MODE_MIXED)
        spec->decode_q_len = 1 + below(draw, 5);
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        if (spec->mode == ATTN_MODE_TARGET_VERIFY) /* as many of each */
            sequence->num_new = verified;
        if (spec->mode == ATTN_MODE_MIXED && is_decode(spec, s, decodes))
            sequence->num_new = spec->decode_q_len;
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY)
            sequence->prefix_len = 0;
        if (spec->attn_type == ATTN_TYPE_CROSS)
            sequence->num_new_keys = one_in(draw, 2) ? 0 : below(draw, 40);
    }
}

/* No sequence at all, or none with a prefix, are cases of their own. */
static void draw_lengths(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    int has_prefixes = !one_in(draw, 4);
    changed.num_sequences = one_in(draw, 12) ? 0 : 1 + below(draw, FORWARD_CASE_MAX_SEQS);
    for (int32_t s = 0; s < changed.num_sequences; s++)
        changed.sequences[s] =
            (struct case_sequence){.prefix_len = has_prefixes ? any_length(draw) : 0,
                                   .num_new = below(draw, one_in(draw, 4) ? 200 : 12)};
    set_kind_of_lengths(draw, &changed);
    if (changed.padded > 0)
        changed.padded = changed.num_sequences + 1 + below(draw, 5);
    keep_if_accepted(draw, &changed);
}

static void draw_rows(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    if (changed.mode == ATTN_MODE_DECODE)
        return;
    changed.first_row = one_in(draw, 2) ? below(draw, 40) : 0;
    changed.spare = one_in(draw, 4) ? 1 + below(draw, 20) : 0;
    keep_if_accepted(draw, &changed);
}

static void draw_padding(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    changed.padded = one_in(draw, 2) ? changed.num_sequences + 1 + below(draw, 5) : 0;
    keep_if_accepted(draw, &changed);
}

/* Keys of a prefix that comes expanded have lengths of another kind. */
static int has_own_lengths(const struct case_spec *spec)
{
    return spec->partial && spec->latent.expanded;
}

void numbers_draw_batch(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec)
{
    struct draw draw = {grid, options, most_work, spec, seed, 0};
    if (has_own_lengths(spec))
        return;
    draw_lengths(&draw);
    draw_rows(&draw);
    draw_padding(&draw);
    if (spec->multi_item) {
        struct case_spec changed = *spec;
        changed.longest_item = 1 + below(&draw, 60);
        keep_if_accepted(&draw, &changed);
    }
    if (spec->from_cache && one_in(&draw, 2)) {
        struct case_spec changed = *spec;
        changed.fewer_keys = true;
        keep_if_accepted(&draw, &changed);
    }
}

/* ---- Layer ----------------------------------------------------------------------------------- */

static void draw_window(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    if (changed.attn_type == ATTN_TYPE_CROSS)
        return;
    changed.window_left = one_in(draw, 2) ? -1 : below(draw, 300);
    keep_if_accepted(draw, &changed);
    changed = *draw->spec;
    changed.window_right = one_in(draw, 2) ? 0 : below(draw, 30) - 1;
    keep_if_accepted(draw, &changed);
    changed = *draw->spec;
    changed.attention_chunk = one_in(draw, 2) ? 0 : 1 + below(draw, 300);
    keep_if_accepted(draw, &changed);
}

static void draw_scores(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    changed.logit_cap = one_in(draw, 2) ? 0 : 5 + 0.37f * (float)below(draw, 150);
    keep_if_accepted(draw, &changed);
    changed = *draw->spec;
    changed.sm_scale = one_in(draw, 2) ? 0 : 0.05f + 0.013f * (float)below(draw, 40);
    keep_if_accepted(draw, &changed);
}

/* A latent's heads share it, and its dimensions are those of its form. */
static void draw_heads(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    changed.num_q_heads = changed.num_kv_heads * (1 + below(draw, 9));
    keep_if_accepted(draw, &changed);
    if (draw->spec->latent.kv_lora_rank > 0)
        return;
    changed = *draw->spec;
    changed.num_kv_heads = 1 + below(draw, 7);
    changed.num_q_heads = changed.num_kv_heads * (1 + below(draw, 9));
    keep_if_accepted(draw, &changed);
    changed = *draw->spec;
    changed.head_dim = 1 + below(draw, 140);
    changed.v_head_dim = one_in(draw, 2) ? changed.head_dim : 1 + below(draw, 140);
    keep_if_accepted(draw, &changed);
}

static void draw_pages(struct draw *draw)
{
    struct case_spec changed = *draw->spec;
    if (!changed.kv_layout)
        return;
    changed.page_size = 1 + below(draw, one_in(draw, 2) ? 140 : 12);
    keep_if_accepted(draw, &changed);
}

void numbers_draw_layer(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec)
{
    struct draw draw = {grid, options, most_work, spec, seed, 0};
    draw_window(&draw);
    draw_scores(&draw);
    draw_heads(&draw);
    draw_pages(&draw);
}
