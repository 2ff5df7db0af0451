/* SPDX-License-Identifier: Apache-2.0
 *
 * extremes.c: the least, the largest and the negative value of each number that a layer has: scales
 * and caps of scores, slopes, windows, magnitudes of keys and values and the scales of their
 * caches, and scores of -inf.
 */
#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/kind.h"

#include <stdint.h>
#include <stdio.h>

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Queries are as large as leaves scores what they are; where they are f16 that is not much. */
static bool is_f16(const struct case_spec *spec)
{
    return spec->q_dtype == ATTN_F16 || spec->kv_dtype == ATTN_F16;
}

static void make_scaled(struct case_spec *spec, int32_t variant)
{
    static const float scales[] = {-0.3f, -3, 0x1p-9f, 0x1p9f, 0x1p-100f, 0x1p100f, -0x1p-100f};
    spec->sm_scale = scales[is_f16(spec) && variant >= 4 ? 2 : variant];
}

/* Beyond what scores are, far above them, far below: then all keys weigh the same, and no needle
 * stands out. In every second variant scores grow beyond the cap. */
static void make_capped(struct case_spec *spec, int32_t variant)
{
    static const float caps[] = {100, 1000, 0x1p30f, 0x1p-10f};
    spec->logit_cap = caps[variant / 2];
    spec->growing_scores = variant % 2;
    spec->without_needles = spec->logit_cap < 1;
}

static void make_odd_slopes(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    spec->odd_slopes = true;
    spec->num_q_heads = 6;
    spec->num_kv_heads = 2;
}

/* As where keys before the new ones were thrown away. */
static void make_ahead(struct case_spec *spec, int32_t variant)
{
    static const int32_t ahead[] = {1, 16, 150, 1000000};
    spec->positions_ahead = ahead[variant];
    spec->without_needles = spec->alibi;
}

/* Any sum of a position and these is beyond 32 bits. */
static void make_endless(struct case_spec *spec, int32_t variant)
{
    spec->window_left = variant % 3 != 1 ? INT32_MAX : -1;
    spec->window_right = variant % 3 != 0 ? INT32_MAX : 0;
    spec->attention_chunk = variant == 3 ? INT32_MAX : 0;
}

/* ---- Magnitudes ------------------------------------------------------------------------------ */

/* Scales of their caches are 0.01 times these. Nothing comes below 2^-126, where it may count as 0
 * (docs/ABI.md, the pass rule), but values that small compared with the rest of a row. */
static void make_sized(struct case_spec *spec, int32_t variant)
{
    static const float sizes[][2] = {{0x1p-100f, 0x1p-100f},
                                     {0x1p-104f, 1},
                                     {1, 0x1p-100f},
                                     {0x1p100f, 0x1p100f},
                                     {0x1p-60f, 0x1p110f}};
    static const float of_f16[2] = {0x1p-6f, 0x1p9f};
    const float *size = is_f16(spec) || spec->out_dtype == ATTN_F16 ? of_f16 : sizes[variant];
    spec->key_size = size[0];
    spec->value_size = size[1];
}

/* NaN and values at the limits in vectors that no register is filled by. */
SPEC_CHANGE(make_special, spec->special_values = true)

/* ---- Scores of -inf -------------------------------------------------------------------------- */

/* A page, a tile and more, a split and more, all keys: then a row is as one that sees none. */
static void make_lost(struct case_spec *spec, int32_t variant)
{
    static const int32_t lost[] = {16, 130, 1100, 1 << 20};
    case_set_lengths(spec, "1500+3 20+2 1030+1 0+5");
    spec->lost_keys = lost[variant];
}

/* Two sequences beside others, or all; and values that a weight of 0 does not make 0. */
static void make_lost_values(struct case_spec *spec, int32_t variant)
{
    make_lost(spec, 1 + 2 * variant);
    spec->lost_values = spec->without_needles = true;
}

/* ---- Lengths --------------------------------------------------------------------------------- */

SPEC_CHANGE(make_fewer_keys, spec->fewer_keys = true)

/* Some rows see nothing of what they would, others do, on either side of where work is cut. */
SPEC_CHANGE(make_fewer_far,
            (case_set_lengths(spec, "20+3 1000+60 2035+40 1000+30"), spec->fewer_keys = true))

/* Numbers of rows next to those that work is cut into. */
static void make_row_counts(struct case_spec *spec, int32_t variant)
{
    static const int32_t counts[] = {63, 64, 65, 127, 128, 129, 131, 132, 133, 255, 256, 257};
    char lengths[20];
    snprintf(lengths, sizeof lengths, variant % 2 ? "3+%d 0+1" : "3+%d",
             counts[variant] - variant % 2);
    case_set_lengths(spec, lengths);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_extremes[] = {
    ROWS(
        "MEAN-09", score_scales, "sm_scale may be negative, tiny or large",
        SOFTMAX_SMALL(make_scaled, 7, BOTH_PHASES, EACH(DTYPE), NTH(ALIBI, 0), OF(LENGTHS, SPLITS)),
        SMALL_VARIED(make_scaled, 7, BOTH_PHASES)),
    ROWS("MEAN-09", caps, "logit_cap may be above or below all scores",
         SOFTMAX_SMALL(make_capped, 8, BOTH_PHASES, NTH(CAP, 1), OF(SINK, NONE, GIVEN)),
         SMALL_VARIED(make_capped, 8, NTH(CAP, 1), BOTH_PHASES)),
    ROW("MEAN-09", slopes, "ALiBi slopes may be 0, negative or steep",
        SOFTMAX_SMALL(make_odd_slopes, 1, BOTH_PHASES, NTH(ALIBI, 1), OF(LENGTHS, PAGES, SPLITS))),
    ROW("MEAN-05", positions_ahead, "explicit positions may be far from the key's index",
        SOFTMAX_SMALL(make_ahead, 4, BOTH_PHASES, OF(MASK, FULL_POSITIONS, QLEN_POSITIONS),
                      OF(WINDOW, CAUSAL, 15), FIRST(CHUNK, 2), EACH(ALIBI))),
    ROW("MEAN-06", endless_windows, "windows and chunks may be as large as an int32",
        SOFTMAX_SMALL(make_endless, 4, OF(WINDOW, BOTH), BOTH_PHASES,
                      OF(MASK, LAYER, NONE, QLEN_POSITIONS))),
    ROW("KV-04", sizes, "keys, values and their scales may be tiny or large",
        SOFTMAX_SMALL(make_sized, 5, BOTH_PHASES, EACH(DTYPE), OF(KV, AS_Q, E4M3_PER_HEAD, E5M2),
                      SAVED_OR_NOT)),
    ROW("KV-11", mla_sizes, "latents and their scales may be tiny or large",
        SMALL_VARIED(make_sized, 5, BOTH_PHASES, PLAIN_AND_QUANTISED)),
    ROW("KV-11", mla_packed_sizes, "packed latents and their scales may be tiny or large",
        LATENT_VARIED(make_sized, 5, BOTH_FORMS, MLA_PACKED, BIT(MLA_ONE_BLOCK), BOTH_PHASES)),
    ROW("KV-06", short_values, "a NaN in a value of one element affects only its own sequence",
        SOFTMAX_VARIED(make_special, 1, BOTH_PHASES, NTH(V_DIM, 4), EACH(OUT),
                       PLAIN_AND_QUANTISED)),
    ROWS("MEAN-14", lost_keys,
         "keys with a score of -inf have weight 0, and a row may have only such keys",
         SOFTMAX_SMALL(make_lost, 4, BOTH_PHASES, EACH(DTYPE), OF(SINK, NONE, GIVEN)),
         LATENT_VARIED(make_lost, 4, MLA_ABSORBED, MLA_LATENT | MLA_PACKED,
                       SMALL_LATENTS | BIT(MLA_ONE_BLOCK), BOTH_PHASES, OF(SINK, NONE, GIVEN))),
    ROWS("MEAN-14", lost_values,
         "if all scores of a row are -inf, its values are ignored, even NaN",
         SOFTMAX_VARIED(make_lost_values, 2, BOTH_PHASES, EACH(DIM), OF(SINK, NONE, GIVEN)),
         LATENT_VARIED(make_lost_values, 2, MLA_ABSORBED, MLA_LATENT, ALL_LATENTS, BOTH_PHASES,
                       OF(SINK, NONE, GIVEN))),
    ROWS("KV-01", row_counts, "a batch may have any number of new rows",
         SOFTMAX_SMALL(make_row_counts, 12, OF(SOURCE, SAVED), OF(MODE, EXTEND),
                       OF(KV, AS_Q, E4M3_PER_SEQ_HEAD)),
         SMALL_VARIED(make_row_counts, 12, OF(MODE, EXTEND))),
    ROW("MEAN-10", fewer_keys, "a KV group may have fewer keys than its batch has tokens",
        SOFTMAX_SMALL(make_fewer_keys, 1, BUT(MASK, ITEMS), OF(MODE, EXTEND, DECODE, VERIFY),
                      OF(SOURCE, CACHE), OF(LENGTHS, PAGES, SPLITS))),
    ROW("MEAN-10", fewer_keys_far,
        "a KV group may have fewer keys than its batch has tokens, even if windows leave "
        "some rows no keys",
        SOFTMAX_SMALL(make_fewer_far, 1, BUT(WINDOW, NONE), {AXIS_CHUNK, BIT(0) | BIT(3)},
                      OF(MODE, EXTEND), OF(SOURCE, CACHE))),
    {.rule = NULL},
};
