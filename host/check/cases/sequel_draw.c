/* SPDX-License-Identifier: Apache-2.0
 *
 * sequel_draw.c: drawing specs that one instance can serve in sequence.
 */
#include "host/check/cases/sequel_draw.h"

#include "host/check/cases/numbers.h"

#include "host/base/mix.h"

enum { TRIES = 120 };
/* Products of a query's and a key's element that a case may have. */
static const int64_t most_work = 1000000;

/* ---- What is accepted ------------------------------------------------------------------------ */

/* The spec of a point, and is it accepted and cheap enough? */
static bool sequel_accepts(const struct grid *grid, const struct grid_point *point,
                           struct case_spec *spec)
{
    return grid_accepts(grid, point, spec, NULL, 0) && numbers_work(spec) <= most_work;
}

/* ---- Points ---------------------------------------------------------------------------------- */

static struct grid_point any_point(const struct grid *grid, bool latent, uint64_t seed, uint64_t n)
{
    struct grid_point point =
        latent ? grid_random_latent(grid, seed, n, 0) : grid_random(grid, seed, n);
    uint8_t *value = point.value;
    if (value[AXIS_SOURCE] == SOURCE_SHARED) /* the reading layer is a matter of its own */
        value[AXIS_SOURCE] = SOURCE_SAVED;
    if (value[AXIS_LENGTHS] == LENGTHS_SPLITS)
        value[AXIS_LENGTHS] = LENGTHS_SHORT;
    return point;
}

bool sequel_draw(const struct grid *grid, const struct sequel_wish *wish, uint64_t seed,
                 struct grid_point *point, struct case_spec *spec)
{
    for (uint64_t n = 0; n < TRIES; n++) {
        *point = any_point(grid, wish->latent, seed, n);
        if (!wish->latent && n < TRIES / 2)
            grid_draw_type(point, seed);
        if (wish->padded)
            point->value[AXIS_PADDING] = 1;
        if (wish->sparse && n < TRIES / 2) /* of the latents drawn, few would have an indexer */
            point->value[AXIS_CHOICE] = CHOICE_BF16;
        if (wish->modes && !(wish->modes >> point->value[AXIS_MODE] & 1))
            continue;
        if (sequel_accepts(grid, point, spec))
            return true;
    }
    return false;
}

/* ---- Another call ---------------------------------------------------------------------------- */

bool sequel_redraw(const struct grid *grid, const struct grid_point *point, int32_t mask,
                   uint64_t seed, struct case_spec *spec)
{
    static const enum grid_axis of_call[] = {AXIS_MODE,   AXIS_SLOTS,   AXIS_MASK,
                                             AXIS_SOURCE, AXIS_LENGTHS, AXIS_LSE,
                                             AXIS_SCORES, AXIS_PADDING, AXIS_ROW};
    for (uint64_t n = 0; n < TRIES; n++) {
        struct grid_point drawn = any_point(grid, point->value[AXIS_LATENT] != MLA_NONE, seed, n),
                          next = *point;
        for (size_t a = 0; a < sizeof of_call / sizeof of_call[0]; a++)
            next.value[of_call[a]] = drawn.value[of_call[a]];
        next.value[AXIS_LATENT_FORM] = drawn.value[AXIS_LATENT_FORM];
        if (next.value[AXIS_SINK] != SINK_NONE)
            next.value[AXIS_SINK] = n % 2 ? SINK_GIVEN : SINK_OMITTED;
        if (mask >= 0 && n < TRIES / 2)
            next.value[AXIS_MASK] = (uint8_t)mask;
        if (!sequel_accepts(grid, &next, spec))
            continue;
        spec->indexer.by_steps = spec->indexer.heads > 0 && mix_stream(seed, n) % 2;
        if (n % 2 == 0)
            numbers_draw_batch(&(struct numbers_for){.grid = grid,
                                                     .options = grid_options(grid, &next),
                                                     .most_work = most_work},
                               mix_absorb(seed, n), spec);
        return true;
    }
    return false;
}

/* ---- Another layer --------------------------------------------------------------------------- */

void sequel_take_batch(struct case_spec *spec, const struct case_spec *first)
{
    struct case_spec own = *spec;
    spec->mode = first->mode;
    spec->mask_kind = first->mask_kind;
    spec->explicit_positions = first->explicit_positions;
    spec->positions_ahead = first->positions_ahead;
    spec->multi_item = first->multi_item;
    spec->longest_item = first->longest_item;
    spec->decodes_first = first->decodes_first;
    spec->decode_q_len = first->decode_q_len;
    spec->first_row = first->first_row;
    spec->spare = first->spare;
    spec->padded = first->padded;
    spec->num_sequences = first->num_sequences;
    for (int32_t s = 0; s < first->num_sequences; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        *sequence = first->sequences[s];
        if (own.attn_type == ATTN_TYPE_CROSS) {
            sequence->prefix_len = own.sequences[s % (own.num_sequences + 1)].prefix_len;
            sequence->num_new_keys = s % 2 ? 0 : 11;
        }
    }
}

/* A mask over all keys is for layers of equal lengths. */
static bool can_share_batch(const struct case_spec *first, const struct case_spec *spec)
{
    bool cross = spec->attn_type == ATTN_TYPE_CROSS || first->attn_type == ATTN_TYPE_CROSS;
    return spec->attn_type != ATTN_TYPE_ENCODER_ONLY &&
           !(cross && first->mask_kind == ATTN_MASK_FULL);
}

/* Other keys than the first one's: those of an encoder, or a prefix alone. */
static void take_own_lengths(uint8_t *value, bool of_prefix)
{
    if (of_prefix) {
        value[AXIS_SOURCE] = SOURCE_PREFIX;
        return;
    }
    value[AXIS_TYPE] = TYPE_CROSS;
    value[AXIS_WINDOW] = WINDOW_NONE;
    value[AXIS_CHUNK] = value[AXIS_ALIBI] = 0;
}

bool sequel_draw_beside(const struct grid *grid, const struct grid_point *first,
                        const struct case_spec *first_spec, bool latent, uint64_t seed,
                        struct grid_point *point, struct case_spec *spec)
{
    static const enum grid_axis of_batch[] = {AXIS_MODE,    AXIS_MASK, AXIS_LENGTHS,
                                              AXIS_PADDING, AXIS_ROW,  AXIS_FORM};
    for (uint64_t n = 0; n < TRIES; n++) {
        *point = any_point(grid, latent, seed, n);
        for (size_t a = 0; a < sizeof of_batch / sizeof of_batch[0]; a++)
            point->value[of_batch[a]] = first->value[of_batch[a]];
        if (n % 2 == 0)
            take_own_lengths(point->value, latent || seed & 1);
        if (!grid_accepts(grid, point, spec, NULL, 0) || !can_share_batch(first_spec, spec))
            continue;
        sequel_take_batch(spec, first_spec);
        if (!case_spec_defect(spec) &&
            grid_accepts_spec(grid, grid_options(grid, point), spec, NULL, 0) &&
            numbers_work(spec) <= most_work)
            return true;
    }
    return false;
}

/* ---- How many cases -------------------------------------------------------------------------- */

bool sequel_serves(const struct check_subject *subject, bool latent)
{
    static const struct grid_choice plain[GRID_MAX_CHOICES + 1] = {OF_LATENTS(
        BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_SMALL) | BIT(MLA_DEEPSEEK), {0, 0})};
    struct grid *grid = grid_of(subject);
    struct grid_point point;
    return latent ? grid_product(grid, plain, 0, &point, NULL, 0) > 0 : grid->num_points > 0;
}

int32_t sequel_count(const struct check_subject *subject, bool latent, int32_t count)
{
    return !sequel_serves(subject, latent) ? 1 : subject->exhaustive ? 40 * count : count;
}
