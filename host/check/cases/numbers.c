/* SPDX-License-Identifier: Apache-2.0
 *
 * numbers.c: random numbers for a spec.
 */
#include "host/check/cases/numbers.h"

#include "host/check/cases/draw.h"

#include "host/base/dtype.h"

/* What is drawn, and from what. */
struct numbers {
    const struct numbers_for *whom;
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

/* Beyond them the sequences repeat. */
static int32_t num_listed(const struct case_spec *spec)
{
    return spec->num_sequences > FORWARD_CASE_MAX_SEQS ? FORWARD_CASE_REPEATED
                                                       : spec->num_sequences;
}

/* Arrays of a batch without rows are not there. */
static bool has_row(const struct case_spec *spec)
{
    bool has = spec->spare > 0 || spec->padded > spec->num_sequences;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        has |= spec->mode == ATTN_MODE_DECODE || case_sequence_at(spec, s)->num_new > 0;
    return has;
}

/* Products of an element of a state and one of a key, or of the convolution. */
static int64_t linear_work(const struct case_spec *spec)
{
    const struct linear_spec *linear = &spec->linear;
    int64_t rows = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        rows += case_sequence_at(spec, s)->num_new;
    return rows * linear->v_heads * (linear->k_dim + linear->width + 1) * linear->v_dim;
}

static bool keep_if_accepted(struct numbers *numbers, struct case_spec *changed)
{
    char reason[LINEAR_TEXT];
    if (changed->kind != ATTN_KIND_LINEAR)
        return has_row(changed) && numbers_work(changed) <= numbers->whom->most_work &&
               grid_take(numbers->whom->grid, numbers->whom->options, changed, numbers->spec);
    bool is_kept = linear_work(changed) <= numbers->whom->most_work &&
                   linear_accepts(numbers->whom->subject, changed, reason);
    if (is_kept)
        *numbers->spec = *changed;
    return is_kept;
}

/* One number: as drawn, if it is accepted. */
#define DRAW(numbers, member, number)                                                              \
    do {                                                                                           \
        struct case_spec with_number = *(numbers)->spec;                                           \
        with_number.member = number;                                                               \
        keep_if_accepted(numbers, &with_number);                                                   \
    } while (0)

/* ---- Recurrent layers ------------------------------------------------------------------------ */

static void draw_linear_heads(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    int32_t k_heads = 1 + below(numbers, one_in(numbers, 4) ? 20 : 5);
    if (changed.linear.k_heads > 0)
        changed.linear.k_heads = k_heads;
    changed.linear.v_heads = k_heads * (1 + below(numbers, 5));
    keep_if_accepted(numbers, &changed);
}

/* Two at least: the bar of one element would be a matter of luck (linear_spec.c). */
static int32_t any_dim(struct numbers *numbers)
{
    return 2 + below(numbers, one_in(numbers, 3) ? 255 : 66);
}

static void draw_gates(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    struct linear_spec *spec = &changed.linear;
    if (spec->dt_min > 0 && spec->dt_max > spec->dt_min) {
        spec->dt_min = 0.01f + 0.03f * (float)below(numbers, 20);
        spec->dt_max = spec->dt_min + 0.04f * (float)(1 + below(numbers, 30));
    }
    if (spec->lower_bound < 0) /* above 0, as in no model, a state grows */
        spec->lower_bound = one_in(numbers, 5) ? 0.002f * (float)(1 + below(numbers, 20))
                                               : -0.07f * (float)(1 + below(numbers, 120));
    keep_if_accepted(numbers, &changed);
}

/* Few rows often, many seldom; cases of one row or none are those that fail. */
static int32_t any_rows(struct numbers *numbers)
{
    static const int32_t most[] = {2, 2, 9, 20, 70, 140, 300, 700};
    return below(numbers, most[below(numbers, 8)]);
}

static void draw_linear_sequences(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec, *spec = &changed;
    spec->num_sequences = 1 + below(numbers, FORWARD_CASE_MAX_SEQS);
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s] = (struct case_sequence){
            .num_new = spec->mode == ATTN_MODE_DECODE          ? 1
                       : spec->mode == ATTN_MODE_TARGET_VERIFY ? 1 + below(numbers, 12)
                                                               : any_rows(numbers),
            .has_initial = !one_in(numbers, 4),
            .in_place = one_in(numbers, 2),
            .dropped = one_in(numbers, 8)};
    spec->linear.decodes = below(numbers, spec->num_sequences + 1);
    spec->decode_q_len = 1 + (one_in(numbers, 2) ? 0 : below(numbers, 9));
    spec->decodes_first = one_in(numbers, 2);
    if (spec->mode == ATTN_MODE_MIXED)
        linear_spec_mix(spec);
    keep_if_accepted(numbers, &changed);
}

static void draw_snapshots(struct numbers *numbers)
{
    struct case_spec changed = *numbers->spec;
    struct linear_spec *spec = &changed.linear;
    if (changed.mode == ATTN_MODE_TARGET_VERIFY) /* it has them of all rows */
        return;
    spec->snapshots = one_in(numbers, 3);
    spec->sparse = spec->snapshots ? 1 + below(numbers, 90) : 0;
    spec->cuts = spec->snapshots && one_in(numbers, 2) ? 1 + below(numbers, 6) : 0;
    keep_if_accepted(numbers, &changed);
}

static void draw_linear_rows(struct numbers *numbers)
{
    DRAW(numbers, linear.gap, one_in(numbers, 2) ? 0 : 1 + below(numbers, 80));
    DRAW(numbers, linear.padded, one_in(numbers, 2) ? 0 : 1 + below(numbers, 9));
    struct case_spec changed = *numbers->spec;
    if (changed.mode == ATTN_MODE_DECODE)
        return;
    changed.first_row = one_in(numbers, 2) ? 0 : below(numbers, 150);
    changed.spare =
        changed.mode == ATTN_MODE_MIXED || one_in(numbers, 2) ? 0 : 1 + below(numbers, 20);
    keep_if_accepted(numbers, &changed);
}

static void draw_linear_layer(struct numbers *numbers)
{
    const struct case_spec *spec = numbers->spec;
    draw_linear_heads(numbers);
    DRAW(numbers, linear.k_dim, spec->linear.k_heads > 0 ? any_dim(numbers) : spec->linear.k_dim);
    DRAW(numbers, linear.v_dim, any_dim(numbers));
    if (spec->linear.k_dim != 1 && spec->linear.v_dim != 1)
        DRAW(numbers, linear.width, below(numbers, 12));
    draw_gates(numbers);
}

static void draw_linear_batch(struct numbers *numbers)
{
    draw_linear_sequences(numbers);
    draw_snapshots(numbers);
    draw_linear_rows(numbers);
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

/* Keys of a prefix that comes expanded have lengths of another kind. */
static int has_own_lengths(const struct case_spec *spec)
{
    return spec->partial && spec->latent.expanded;
}

void numbers_draw_batch(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec)
{
    struct numbers numbers = {whom, spec, {.seed = seed}};
    if (spec->kind == ATTN_KIND_LINEAR)
        draw_linear_batch(&numbers);
    if (spec->kind == ATTN_KIND_LINEAR || has_own_lengths(spec))
        return;
    /* Where few are accepted, as few cases are of these, more are tried. */
    for (int left = spec->attn_type == ATTN_TYPE_DECODER ? 1 : 4; left > 0; left--)
        left = draw_lengths(&numbers) ? 1 : left;
    draw_rows(&numbers);
    DRAW(&numbers, padded, one_in(&numbers, 2) ? spec->num_sequences + 1 + below(&numbers, 5) : 0);
    if (spec->multi_item)
        DRAW(&numbers, longest_item, 1 + below(&numbers, 60));
    if (spec->from_cache && one_in(&numbers, 2))
        DRAW(&numbers, fewer_keys, true);
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

void numbers_draw_hint(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec)
{
    enum { MOST_PAGES = 3, LEAST_DIM = 8 };
    struct numbers numbers = {whom, spec, {.seed = seed}};
    struct case_spec changed = *spec;
    const bool repeats = spec->num_sequences > FORWARD_CASE_MAX_SEQS;
    if (!one_in(&numbers, repeats ? 1 : 3) || has_own_lengths(spec))
        return;
    changed.hint = HINT_ALL + below(&numbers, CASE_HINTS - HINT_ALL);
    for (int32_t s = 1; s < num_listed(&changed); s++) {
        if (one_in(&numbers, 3))
            continue;
        int32_t shared = changed.page_size * (1 + below(&numbers, repeats ? 1 : MOST_PAGES));
        lengthen(&changed.sequences[s - 1], shared);
        lengthen(&changed.sequences[s], shared);
        changed.sequences[s].shared = shared;
    }
    hide_needles(&changed);
    /* Prefixes have grown: so few elements do not tell so many keys apart. */
    changed.without_needles |= changed.head_dim < LEAST_DIM || changed.v_head_dim < LEAST_DIM;
    if (is_cache_small(&changed))
        keep_if_accepted(&numbers, &changed);
}

bool numbers_draw_few(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec)
{
    enum { TRIES = 8, MOST_KEYS = 3300 };
    struct numbers numbers = {whom, spec, {.seed = seed}};
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
    const struct case_spec *spec = numbers->spec;
    if (spec->attn_type == ATTN_TYPE_CROSS)
        return;
    DRAW(numbers, window_left, one_in(numbers, 2) ? -1 : below(numbers, 300));
    DRAW(numbers, window_right, one_in(numbers, 2) ? 0 : below(numbers, 30) - 1);
    DRAW(numbers, attention_chunk, one_in(numbers, 2) ? 0 : 1 + below(numbers, 300));
    DRAW(numbers, positions_ahead,
         spec->explicit_positions && !spec->alibi ? below(numbers, 500) : 0);
}

/* A latent's heads share it, and its dimensions are those of its form. */
static void draw_heads(struct numbers *numbers)
{
    DRAW(numbers, num_q_heads, numbers->spec->num_kv_heads * (1 + below(numbers, 9)));
    if (numbers->spec->latent.kv_lora_rank > 0)
        return;
    struct case_spec changed = *numbers->spec;
    changed.num_kv_heads = 1 + below(numbers, 7);
    changed.num_q_heads = changed.num_kv_heads * (1 + below(numbers, 9));
    keep_if_accepted(numbers, &changed);
    changed = *numbers->spec;
    changed.head_dim = 1 + below(numbers, 140);
    changed.v_head_dim = one_in(numbers, 2) ? changed.head_dim : 1 + below(numbers, 140);
    keep_if_accepted(numbers, &changed);
}

/* Kernels have code of their own for what models have: each of these in a third of the cases, many heads of keys in fewer.
 * Dimensions whatever their work, as lengths are drawn later. */
static void draw_usual(struct numbers *numbers)
{
    static const int32_t dims[][2] = {{128, 128}, {192, 128}, {192, 192}, {256, 256}, {512, 512}};
    static const int32_t pages[] = {1, 16, 32, 64, 128};
    const bool latent = numbers->spec->latent.kv_lora_rank > 0;
    struct case_spec changed = *numbers->spec;
    if (one_in(numbers, 3) && !latent) {
        const int32_t *of = dims[below(numbers, 5)];
        changed.head_dim = of[0];
        changed.v_head_dim = of[1];
        grid_take(numbers->whom->grid, numbers->whom->options, &changed, numbers->spec);
    }
    if (one_in(numbers, 3) && numbers->spec->kv_layout)
        DRAW(numbers, page_size, pages[below(numbers, 5)]);
    if (!one_in(numbers, 9) || latent)
        return;
    changed = *numbers->spec;
    changed.num_kv_heads = 8 + below(numbers, 25);
    changed.num_q_heads = changed.num_kv_heads * (1 + below(numbers, 2));
    keep_if_accepted(numbers, &changed);
}

void numbers_draw_layer(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec)
{
    struct numbers drawn = {whom, spec, {.seed = seed}}, *numbers = &drawn;
    if (spec->kind == ATTN_KIND_LINEAR) {
        draw_linear_layer(numbers);
        return;
    }
    draw_window(numbers);
    DRAW(numbers, logit_cap, one_in(numbers, 2) ? 0 : 5 + 0.37f * (float)below(numbers, 150));
    DRAW(numbers, sm_scale, one_in(numbers, 2) ? 0 : 0.05f + 0.013f * (float)below(numbers, 40));
    draw_heads(numbers);
    if (spec->kv_layout)
        DRAW(numbers, page_size, 1 + below(numbers, one_in(numbers, 2) ? 140 : 12));
    draw_usual(numbers);
}

/* ---- Large things ---------------------------------------------------------------------------- */

enum { HEADS, SEQUENCES, PADDING, KEYS, QUERIES, LARGE_THINGS };

static struct case_sequence *any_sequence(struct numbers *numbers, struct case_spec *spec)
{
    return &spec->sequences[below(numbers, num_listed(spec))];
}

/* One in three is far above the others. */
static int32_t large_length(struct numbers *numbers, int32_t least, int32_t count, int32_t far)
{
    const int32_t drawn = below(numbers, count);
    return (drawn < count - count / 3 ? least : far) + drawn;
}

/* As often up to 64 as more. */
static int32_t any_sequences(struct numbers *numbers)
{
    const int32_t drawn = below(numbers, 280);
    return drawn < 140 ? 9 + drawn % 56 : drawn + 20;
}

/* More than a thousand of a head or two. */
static void make_queries(struct numbers *numbers, struct case_spec *spec)
{
    enum { MANY = 700 };
    struct case_sequence *sequence = any_sequence(numbers, spec);
    sequence->num_new = large_length(numbers, 60, 500, MANY);
    if (sequence->num_new < MANY)
        return;
    spec->num_q_heads = spec->num_kv_heads = 1;
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
    else
        spec->num_q_heads += below(numbers, 2);
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
        spec->num_sequences = any_sequences(numbers);
        spec->padded = one_in(numbers, 3) ? spec->num_sequences + 1 + below(numbers, 5) : 0;
        break;
    case PADDING:
        spec->padded = spec->num_sequences + 20 + below(numbers, 180);
        break;
    case KEYS:
        any_sequence(numbers, spec)->prefix_len = large_length(numbers, 500, 4000, 6000);
        break;
    default:
        make_queries(numbers, spec);
    }
}

/* Few sequences of few keys, of heads that are small where that is accepted, or of one head as it is. */
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
    if (one_in(numbers, 3)) {
        small = *spec;
        small.num_q_heads /= small.num_kv_heads;
        small.num_kv_heads = 1;
    }
    grid_take(numbers->whom->grid, numbers->whom->options, &small, spec);
}

void numbers_draw_large(const struct numbers_for *whom, uint64_t seed, struct case_spec *spec)
{
    enum { TRIES = 12 };
    struct numbers numbers = {whom, spec, {.seed = seed}};
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
