/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.c: random numbers for a softmax or latent spec.
 */
#include "host/check/cases/numbers.h"

#include "host/check/cases/draw.h"

#include "host/base/dtype.h"

/* What is drawn, and from what. */
struct numbers {
    const struct grid *grid;
    const attn_options *options;
    int64_t most_work;
    struct case_spec *spec;
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

/* Few often, many seldom. */
static int32_t any_length(struct numbers *numbers)
{
    static const int32_t most[] = {1, 9, 9, 65, 65, 301, 700, 2600};
    return below(numbers, most[below(numbers, 8)]);
}

int64_t numbers_work(const struct case_spec *spec)
{
    int64_t pairs = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        const struct case_sequence *sequence = case_sequence_at(spec, s);
        int64_t queries = spec->mode == ATTN_MODE_DECODE ? 1 : sequence->num_new;
        pairs += queries * (sequence->prefix_len + sequence->num_new + sequence->num_new_keys);
    }
    return pairs * spec->num_q_heads * (spec->head_dim + spec->v_head_dim);
}

static int has_row(const struct case_spec *spec)
{
    int has = spec->spare > 0 || spec->padded > spec->num_sequences;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        has |= spec->mode == ATTN_MODE_DECODE || case_sequence_at(spec, s)->num_new > 0;
    return has;
}

/* Arrays of a batch without rows, and those of its sequences without one, are not there. */
static int lacks_arrays(const struct case_spec *spec)
{
    int of_sequences = spec->multi_item || spec->scale_granularity == ATTN_SCALE_PER_SEQ_HEAD ||
                       spec->input_granularity == ATTN_SCALE_PER_SEQ_HEAD;
    return !has_row(spec) || (of_sequences && spec->num_sequences == 0 && spec->padded == 0);
}

static bool keep_if_accepted(struct numbers *numbers, struct case_spec *changed)
{
    return !lacks_arrays(changed) && numbers_work(changed) <= numbers->most_work &&
           grid_take(numbers->grid, numbers->options, changed, numbers->spec);
}

/* ---- Batch ----------------------------------------------------------------------------------- */

/* Sequence s of a MIXED batch, of which `decodes` decode. */
static int is_decode(const struct case_spec *spec, int32_t s, int32_t decodes)
{
    return spec->decodes_first ? s < decodes : s >= spec->num_sequences - decodes;
}

static void set_kind_of_lengths(struct numbers *numbers, struct case_spec *spec)
{
    int32_t verified = 1 + below(numbers, 9), decodes = below(numbers, spec->num_sequences + 1);
    if (spec->mode == ATTN_MODE_MIXED)
        spec->decode_q_len = 1 + below(numbers, 5);
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        if (spec->mode == ATTN_MODE_TARGET_VERIFY) /* as many of each */
            sequence->num_new = verified;
        if (spec->mode == ATTN_MODE_MIXED && spec->num_sequences <= FORWARD_CASE_MAX_SEQS &&
            is_decode(spec, s, decodes))
            sequence->num_new = spec->decode_q_len;
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY)
            sequence->prefix_len = 0;
        if (spec->attn_type == ATTN_TYPE_CROSS)
            sequence->num_new_keys =
                one_in(numbers, 2) ? 0 : below(numbers, one_in(numbers, 4) ? 300 : 40);
    }
}

/* No sequence at all, or none with a prefix, are cases of their own. */
static bool draw_lengths(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    int has_prefixes = !one_in(numbers, 4);
    changed.num_sequences = one_in(numbers, 12) ? 0 : 1 + below(numbers, FORWARD_CASE_MAX_SEQS);
    for (int32_t s = 0; s < changed.num_sequences; s++)
        changed.sequences[s] =
            (struct case_sequence){.prefix_len = has_prefixes ? any_length(numbers) : 0,
                                   .num_new = below(numbers, one_in(numbers, 4) ? 200 : 12)};
    set_kind_of_lengths(numbers, &changed);
    if (changed.padded > 0)
        changed.padded = changed.num_sequences + 1 + below(numbers, 5);
    return keep_if_accepted(numbers, &changed);
}

static void draw_rows(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    if (changed.mode == ATTN_MODE_DECODE)
        return;
    changed.first_row = one_in(numbers, 2) ? below(numbers, 40) : 0;
    changed.spare = one_in(numbers, 4) ? 1 + below(numbers, 20) : 0;
    keep_if_accepted(numbers, &changed);
}

static void draw_padding(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    changed.padded = one_in(numbers, 2) ? changed.num_sequences + 1 + below(numbers, 5) : 0;
    keep_if_accepted(numbers, &changed);
}

/* Keys of a prefix that comes expanded have lengths of another kind. */
static int has_own_lengths(const struct case_spec *spec)
{
    return spec->partial && spec->latent.expanded;
}

void numbers_draw_batch(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec)
{
    struct numbers numbers = {grid, options, most_work, spec, {.seed = seed}};
    if (has_own_lengths(spec))
        return;
    /* Where few are accepted, as few cases are of these, more are tried. */
    for (int left = spec->attn_type == ATTN_TYPE_DECODER ? 1 : 4; left > 0; left--)
        left = draw_lengths(&numbers) ? 1 : left;
    draw_rows(&numbers);
    draw_padding(&numbers);
    if (spec->multi_item) {
        struct case_spec changed = *spec;
        changed.longest_item = 1 + below(&numbers, 60);
        keep_if_accepted(&numbers, &changed);
    }
    if (spec->from_cache && one_in(&numbers, 2)) {
        struct case_spec changed = *spec;
        changed.fewer_keys = true;
        keep_if_accepted(&numbers, &changed);
    }
}

/* Among many keys, those that ALiBi puts too far away, or for which outputs are too coarse. */
static void hide_needles(struct case_spec *spec)
{
    spec->without_needles |= spec->alibi || dtype_is_fp8(spec->out_dtype);
}

static void lengthen(struct case_sequence *sequence, int32_t prefix_len)
{
    if (sequence->prefix_len < prefix_len)
        sequence->prefix_len = prefix_len;
}

void numbers_draw_hint(const struct grid *grid, const attn_options *options, uint64_t seed,
                       int64_t most_work, struct case_spec *spec)
{
    enum { MOST_PAGES = 3, LEAST_DIM = 8 };
    struct numbers numbers = {grid, options, most_work, spec, {.seed = seed}};
    struct case_spec changed = *spec;
    if (!one_in(&numbers, 3) || has_own_lengths(spec) ||
        spec->num_sequences > FORWARD_CASE_MAX_SEQS)
        return;
    changed.hint = HINT_ALL + below(&numbers, CASE_HINTS - HINT_ALL);
    for (int32_t s = 1; s < changed.num_sequences; s++) {
        if (one_in(&numbers, 3))
            continue;
        int32_t shared = changed.page_size * (1 + below(&numbers, MOST_PAGES));
        lengthen(&changed.sequences[s - 1], shared);
        lengthen(&changed.sequences[s], shared);
        changed.sequences[s].shared = shared;
    }
    hide_needles(&changed);
    /* Prefixes have grown: so few elements do not tell so many keys apart. */
    changed.without_needles |= changed.head_dim < LEAST_DIM || changed.v_head_dim < LEAST_DIM;
    keep_if_accepted(&numbers, &changed);
}

bool numbers_draw_few(const struct grid *grid, const attn_options *options, uint64_t seed,
                      int64_t most_work, struct case_spec *spec)
{
    enum { TRIES = 8, MOST_KEYS = 3300 };
    struct numbers numbers = {grid, options, most_work, spec, {.seed = seed}};
    bool is_kept = false;
    for (int try = 0; try < TRIES && !is_kept && !has_own_lengths(spec); try++) {
        struct case_spec changed = *spec;
        hide_needles(&changed);
        changed.num_sequences = one_in(&numbers, 2) ? 1 : 2 + below(&numbers, 3);
        for (int32_t s = 0; s < changed.num_sequences; s++)
            changed.sequences[s] =
                (struct case_sequence){.prefix_len = below(&numbers, MOST_KEYS >> try / 2),
                                       .num_new = 1 + below(&numbers, 2)};
        set_kind_of_lengths(&numbers, &changed);
        changed.padded = 0;
        is_kept = keep_if_accepted(&numbers, &changed);
    }
    return is_kept;
}

/* ---- Layer ----------------------------------------------------------------------------------- */

static void draw_window(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    if (changed.attn_type == ATTN_TYPE_CROSS)
        return;
    changed.window_left = one_in(numbers, 2) ? -1 : below(numbers, 300);
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.window_right = one_in(numbers, 2) ? 0 : below(numbers, 30) - 1;
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.attention_chunk = one_in(numbers, 2) ? 0 : 1 + below(numbers, 300);
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.positions_ahead =
        changed.explicit_positions && !changed.alibi ? below(numbers, 500) : 0;
    keep_if_accepted(numbers, &changed);
}

static void draw_scores(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    changed.logit_cap = one_in(numbers, 2) ? 0 : 5 + 0.37f * (float)below(numbers, 150);
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.sm_scale = one_in(numbers, 2) ? 0 : 0.05f + 0.013f * (float)below(numbers, 40);
    keep_if_accepted(numbers, &changed);
}

/* A latent's heads share it, and its dimensions are those of its form. */
static void draw_heads(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    changed.num_q_heads = changed.num_kv_heads * (1 + below(numbers, 9));
    keep_if_accepted(numbers, &changed);
    if (numbers->spec->latent.kv_lora_rank > 0)
        return;
    changed = *numbers->spec;
    changed.num_kv_heads = 1 + below(numbers, 7);
    changed.num_q_heads = changed.num_kv_heads * (1 + below(numbers, 9));
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.head_dim = 1 + below(numbers, 140);
    changed.v_head_dim = one_in(numbers, 2) ? changed.head_dim : 1 + below(numbers, 140);
    keep_if_accepted(numbers, &changed);
}

static void draw_pages(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    if (!changed.kv_layout)
        return;
    changed.page_size = 1 + below(numbers, one_in(numbers, 2) ? 140 : 12);
    keep_if_accepted(numbers, &changed);
}

void numbers_draw_layer(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec)
{
    struct numbers numbers = {grid, options, most_work, spec, {.seed = seed}};
    draw_window(&numbers);
    draw_scores(&numbers);
    draw_heads(&numbers);
    draw_pages(&numbers);
}

/* ---- Large things ---------------------------------------------------------------------------- */

enum { HEADS, SEQUENCES, PADDING, KEYS, QUERIES, LARGE_THINGS };

/* Of the listed sequences one that comes again where sequences are many. */
static struct case_sequence *any_sequence(struct numbers *numbers, struct case_spec *spec)
{
    int32_t listed =
        spec->num_sequences > FORWARD_CASE_MAX_SEQS ? FORWARD_CASE_REPEATED : spec->num_sequences;
    return &spec->sequences[below(numbers, listed)];
}

static void make_large(struct numbers *numbers, int32_t thing, struct case_spec *spec)
{
    bool latent = spec->latent.kv_lora_rank > 0;
    switch (thing) {
    case HEADS:
        spec->num_q_heads = spec->num_kv_heads * ((40 + below(numbers, 89)) / spec->num_kv_heads);
        if (latent)
            case_spec_set_form(spec, spec->latent.expanded);
        break;
    case SEQUENCES:
        spec->num_sequences = 20 + below(numbers, 280);
        break;
    case PADDING:
        spec->padded = spec->num_sequences + 20 + below(numbers, 180);
        break;
    case KEYS:
        any_sequence(numbers, spec)->prefix_len = 500 + below(numbers, 4000);
        break;
    default:
        any_sequence(numbers, spec)->num_new = 60 + below(numbers, 500);
    }
}

/* Few sequences of few keys, of heads that are small where that is accepted. */
static void make_small(struct numbers *numbers, struct case_spec *spec)
{
    spec->num_sequences = 1 + below(numbers, 4);
    for (int32_t s = 0; s < FORWARD_CASE_MAX_SEQS; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = below(numbers, one_in(numbers, 4) ? 1200 : 90),
                                   .num_new = below(numbers, one_in(numbers, 4) ? 60 : 6)};
    spec->padded = 0;
    hide_needles(spec);
    if (spec->latent.kv_lora_rank > 0)
        return;
    struct case_spec small = *spec;
    small.head_dim = 8 + below(numbers, 17);
    small.v_head_dim = 8 + below(numbers, 17);
    grid_take(numbers->grid, numbers->options, &small, spec);
}

/* Elements of a pool in which all sequences are as long as the longest: cases have such. */
static bool is_cache_small(const struct case_spec *spec)
{
    int64_t longest = 0, count = spec->padded > 0 ? spec->padded : spec->num_sequences;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        const struct case_sequence *sequence = case_sequence_at(spec, s);
        int64_t keys = sequence->prefix_len + sequence->num_new + spec->page_size;
        longest = keys > longest ? keys : longest;
    }
    return count * longest * spec->num_kv_heads * (spec->head_dim + spec->v_head_dim) <= 1 << 23;
}

void numbers_draw_large(const struct grid *grid, const attn_options *options, uint64_t seed,
                        int64_t most_work, struct case_spec *spec)
{
    enum { TRIES = 12 };
    struct numbers numbers = {grid, options, most_work, spec, {.seed = seed}};
    bool is_kept = false;
    for (int try = 0; try < TRIES && !is_kept && !has_own_lengths(spec); try++) {
        struct case_spec changed = *spec;
        int32_t first = below(&numbers, LARGE_THINGS);
        int32_t second = (first + 1 + below(&numbers, LARGE_THINGS - 1)) % LARGE_THINGS;
        make_small(&numbers, &changed);
        make_large(&numbers, first < second ? first : second, &changed);
        make_large(&numbers, first < second ? second : first, &changed);
        set_kind_of_lengths(&numbers, &changed);
        is_kept = is_cache_small(&changed) && keep_if_accepted(&numbers, &changed);
    }
}
