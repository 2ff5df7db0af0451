/* SPDX-License-Identifier: Apache-2.0
 *
 * size.c: what is large: many sequences and heads, long sequences and items, pools of many pages
 * and of many bytes, sinks far from all scores, rows after the last sequence.
 *
 * Faults of size (an index of 16 bits, a table of 256, an offset of 32 bits) do not show in cases
 * of ordinary size. These cases are large in one thing and small in all others: few heads, the
 * smallest dimensions that are accepted, few queries where there are many keys.
 */
#include "host/check/cases/kind.h"

enum { MANY_SEQUENCES = 300, PADDED_TO = 330 };
#define SEVERAL_ROWS (BIT(MODE_EXTEND) | BIT(MODE_MIXED) | BIT(MODE_VERIFY) | BIT(MODE_DRAFT))

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Beyond 256, which is more than the listed ones: these are repeated. */
static void make_many_sequences(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[FORWARD_CASE_MAX_SEQS][2] = {{0, 3},  {17, 1}, {16, 2}, {1, 1},
                                                              {31, 1}, {5, 4},  {40, 2}, {0, 0}};
    (void)variant;
    case_set_lengths(spec, FORWARD_CASE_MAX_SEQS, lengths);
    spec->num_sequences = MANY_SEQUENCES;
    spec->padded = spec->mode == ATTN_MODE_DECODE ? PADDED_TO : 0;
}

/* Keys beyond 8,192, 32,768 and 65,536 of one sequence, with short ones: the most where they cost
 * least. */
static void make_long_keys(struct case_spec *spec, int32_t variant)
{
    static const int32_t longest[] = {[ATTN_MODE_EXTEND] = 66005,
                                      [ATTN_MODE_DECODE] = 66005,
                                      [ATTN_MODE_MIXED] = 33003,
                                      [ATTN_MODE_TARGET_VERIFY] = 8209,
                                      [ATTN_MODE_DRAFT_EXTEND] = 33003};
    const int32_t lengths[][2] = {{longest[spec->mode], 1}, {5, 3}, {300, 1}};
    (void)variant;
    case_set_lengths(spec, 3, lengths);
    spec->num_q_heads = spec->num_kv_heads;
    if (spec->latent.kv_lora_rank > 0) {
        spec->num_q_heads = 1;
        case_spec_set_form(spec, spec->latent.expanded);
    }
}

/* More than 65,536 keys alone, after a short sequence. */
static void make_longest_keys(struct case_spec *spec, int32_t variant)
{
    make_long_keys(spec, variant);
    static const int32_t lengths[][2] = {{70, 2}, {66005, 1}};
    case_set_lengths(spec, 2, lengths);
}

/* More than 1,024 queries of a sequence, which see each other. */
static void make_long_queries(struct case_spec *spec, int32_t variant)
{
    make_long_keys(spec, variant);
    static const int32_t lengths[][2] = {{40, 3}, {5, 1040}};
    case_set_lengths(spec, 2, lengths);
}

/* Windows and chunks that 16 bits do not hold, with a sign or without. */
static void make_wide_windows(struct case_spec *spec, int32_t variant)
{
    static const int32_t wide[] = {40000, 65600};
    make_longest_keys(spec, variant);
    if (variant < 2)
        spec->window_left = wide[variant];
    else
        spec->attention_chunk = wide[variant - 2];
}

/* Borders in the midst of tiles, whatever size these have: of 64 keys or 256 queries. */
static void make_narrowed_queries(struct case_spec *spec, int32_t variant)
{
    static const struct {
        int32_t left, right, chunk;
    } narrow[] = {{500, 0, 0}, {-1, 0, 200}, {150, 0, 320}, {130, 65, 0}, {-1, 0, 1000}};
    make_long_queries(spec, variant);
    spec->window_left = narrow[variant].left;
    spec->window_right = narrow[variant].right;
    spec->attention_chunk = narrow[variant].chunk;
}

/* Rows before and after number 65,536. */
SPEC_CHANGE(make_late_rows, spec->first_row = 65530)

/* Items of up to 700 tokens. */
static void make_long_items(struct case_spec *spec, int32_t variant)
{
    make_long_keys(spec, variant);
    static const int32_t lengths[][2] = {{700, 90}, {0, 300}, {20, 400}};
    case_set_lengths(spec, 3, lengths);
    spec->longest_item = 700;
}

/* Of up to 65,536 tokens, of three and of one: 65,000 items, and columns beyond 65,536. */
static void make_many_items(struct case_spec *spec, int32_t variant)
{
    static const int32_t longest[] = {65536, 3, 1};
    static const int32_t lengths[][2] = {{66004, 3}, {70, 90}};
    make_long_keys(spec, variant);
    case_set_lengths(spec, 2, lengths);
    spec->longest_item = longest[variant];
}

/* ---- Unlike work ----------------------------------------------------------------------------- */

/* Long sequences, whose work is split, mixed with short ones, and few queries with many, unsorted.
 * */
static void make_uneven(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][6][2] = {
        {{17, 40}, {3001, 5}, {0, 1}, {1500, 1}, {70, 19}, {2200, 2}},
        {{2600, 3}, {1, 1}, {64, 33}, {1999, 1}, {0, 2}, {700, 64}},
        {{2500, 40}, {9, 1}, {3001, 3}, {1800, 12}, {0, 2}, {2999, 1}}};
    case_set_lengths(spec, 6, lengths[variant]);
}

/* Sequences of which nothing is cached, alone: whatever the cache says is about new keys. */
static void make_new_sequences(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{0, 5}, {0, 1}, {0, 70}, {0, 1}};
    (void)variant;
    case_set_lengths(spec, 4, lengths);
}

#define NEW_KEYS CHOICE(AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED))

/* ---- Heads ----------------------------------------------------------------------------------- */

static const int32_t heads[][2] = {{40, 8}, {64, 1}, {65, 5}, {128, 1}, {128, 128}};
enum { HEADS = sizeof heads / sizeof heads[0] };

static void make_many_heads(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{37, 3}, {0, 5}, {16, 1}};
    case_set_lengths(spec, 3, lengths);
    spec->num_q_heads = heads[variant][0];
    spec->num_kv_heads = heads[variant][1];
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
}

/* ---- Pools ----------------------------------------------------------------------------------- */

SPEC_CHANGE(make_many_pages, spec->spread = SPREAD_PAGES)
SPEC_CHANGE(make_far_pages, spec->spread = SPREAD_BYTES)

#define SOURCES (BIT(SOURCE_SAVED) | BIT(SOURCE_CACHE))

/* ---- Sinks, rows after the last ---------------------------------------------------------------
 */

static void make_high_sinks(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    spec->high_sinks = true;
    spec->num_q_heads = 12; /* one of each kind and height */
    spec->num_kv_heads = 2;
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
}

/* As vLLM pads a batch: sequences without queries, then rows that no sequence has; at last a batch
 * of such rows alone. */
static void make_spare_rows(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{9, 3}, {0, 2}, {4, 1}, {0, 0}};
    static const int32_t decodes[][2] = {{9, 1}, {40, 1}, {4, 1}, {0, 0}};
    int32_t count = spec->mode == ATTN_MODE_EXTEND ? 4 : 3;
    if (variant == 3 && spec->mode == ATTN_MODE_EXTEND)
        count = 0;
    case_set_lengths(spec, count, variant == 2 ? decodes : lengths);
    spec->spare = variant == 0 ? 1 : 21;
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_size[] = {
    JUDGED_ROW("INVAR-01", many_sequences, "each of 300 sequences in one batch is right",
               SOFTMAX_SMALL(make_many_sequences, 1, {AXIS_TYPE, ALL}, {AXIS_MODE, ALL})),
    JUDGED_ROW("INVAR-01", many_sequences_cross,
               "each of 300 sequences sees the keys of its own encoder",
               SOFTMAX_SMALL(make_many_sequences, 1, {AXIS_TYPE, BIT(TYPE_CROSS)},
                             {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES)),
    JUDGED_ROW("INVAR-01", many_sequences_forms,
               "each of 300 sequences is right in each form of KV indices",
               SOFTMAX_SMALL(make_many_sequences, 1, {AXIS_FORM, ALL}, BOTH_PHASES)),
    JUDGED_ROW("INVAR-01", mla_many_sequences, "each of 300 sequences of a latent layer is right",
               SMALL_VARIED(make_many_sequences, 1, THREE_MODES)),
    JUDGED_ROW("INVAR-01", long_keys,
               "keys beyond 8192, 32768 and 65536 are seen like the first ones",
               SOFTMAX_SMALL(make_long_keys, 1, {AXIS_MODE, ALL})),
    JUDGED_ROW("INVAR-01", long_keys_cross, "an encoder may have more than 65536 tokens",
               SOFTMAX_SMALL(make_long_keys, 1, {AXIS_TYPE, BIT(TYPE_CROSS)},
                             {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES)),
    JUDGED_ROW("INVAR-01", long_keys_forms,
               "keys beyond 8192, 32768 and 65536 are seen in each form of KV indices",
               SOFTMAX_SMALL(make_longest_keys, 1, {AXIS_FORM, ALL}, {AXIS_PAGE, BIT(1)},
                             {AXIS_MODE, BIT(MODE_DECODE)})),
    JUDGED_ROW("INVAR-01", long_keys_narrowed, "windows and chunks hold at positions beyond 65536",
               SOFTMAX_SMALL(make_longest_keys, 1,
                             {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_100)},
                             {AXIS_CHUNK, BIT(0) | BIT(3)}, {AXIS_MODE, BIT(MODE_DECODE)})),
    JUDGED_ROW(
        "INVAR-01", long_keys_alibi, "ALiBi holds at distances beyond 65536",
        SOFTMAX_SMALL(make_longest_keys, 1, {AXIS_ALIBI, BIT(1)}, {AXIS_MODE, BIT(MODE_DECODE)})),
    JUDGED_ROW(
        "INVAR-01", long_keys_masked, "masks hold for more than 65536 keys",
        SOFTMAX_SMALL(make_longest_keys, 1,
                      {AXIS_MASK, BIT(MASK_NONE) | BIT(MASK_FULL) | BIT(MASK_QLEN_POSITIONS)})),
    JUDGED_ROW(
        "INVAR-01", long_queries, "more than 1024 queries of a sequence are right",
        SOFTMAX_SMALL(make_long_queries, 1, {AXIS_TYPE, ALL}, {AXIS_MODE, BIT(MODE_EXTEND)})),
    JUDGED_ROW("INVAR-01", mla_long_keys, "latents beyond 8192, 32768 and 65536 are seen",
               LATENT_SMALL(make_long_keys, 1, MLA_ABSORBED, MLA_LATENT, SMALL_LATENTS,
                            {AXIS_MODE, BIT(MODE_DECODE) | BIT(MODE_MIXED)})),
    JUDGED_ROW("INVAR-01", mla_long_queries,
               "more than 1024 queries of an expanded sequence are right",
               LATENT_SMALL(make_long_queries, 1, MLA_EXPANDED, MLA_LATENT, SMALL_LATENTS,
                            {AXIS_MODE, BIT(MODE_EXTEND)})),
    JUDGED_ROW("INVAR-01", mla_long_chunks, "expanded chunks of more than 65536 keys are right",
               LATENT_SMALL(make_longest_keys, 1, MLA_EXPANDED, MLA_LATENT, SMALL_LATENTS,
                            {AXIS_MASK, BIT(MASK_NONE)}, {AXIS_SOURCE, BIT(SOURCE_PREFIX)})),
    JUDGED_ROW("MEAN-16", long_items, "items have up to 700 tokens",
               SOFTMAX_SMALL(make_long_items, 1, {AXIS_MASK, BIT(MASK_ITEMS)}, THREE_MODES)),
    JUDGED_ROW("MEAN-17", many_heads, "each of 40 to 128 heads reads its own KV head",
               SOFTMAX_SMALL(make_many_heads, HEADS, BOTH_PHASES, {AXIS_TYPE, ALL})),
    JUDGED_ROW("MEAN-12", many_sinks, "each of 40 to 128 heads has its own sink and slope",
               SOFTMAX_SMALL(make_many_heads, HEADS, BOTH_PHASES, {AXIS_SINK, BIT(SINK_GIVEN)},
                             {AXIS_ALIBI, ALL})),
    JUDGED_ROW("MEAN-17", mla_many_heads, "each of 40 to 128 heads of a latent layer is right",
               SMALL_VARIED(make_many_heads, HEADS, BOTH_PHASES)),
    JUDGED_ROWS("KV-06", many_pages, "page numbers may be above 65536 and 131072",
                SOFTMAX_SMALL(make_many_pages, 1, {AXIS_FORM, ALL}, {AXIS_PAGE, BIT(0) | BIT(1)},
                              {AXIS_SOURCE, SOURCES}, {AXIS_MODE, ALL}),
                SMALL_VARIED(make_many_pages, 1, {AXIS_FORM, ALL}, {AXIS_PAGE, BIT(0) | BIT(1)},
                             BOTH_PHASES)),
    JUDGED_ROW("KV-06", far_pages,
               "pages may be more than 4 GiB, and more than 2^31 elements, apart",
               SOFTMAX_SMALL(make_far_pages, 1, {AXIS_TYPE, BIT(TYPE_DECODER) | BIT(TYPE_CROSS)},
                             {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE)}, {AXIS_FORM, ALL},
                             {AXIS_SOURCE, SOURCES | BIT(SOURCE_UNSAVED)}, BOTH_PHASES)),
    JUDGED_ROW("KV-06", far_pages_dtypes,
               "pages may be more than 4 GiB apart in each dtype and layout",
               SOFTMAX_SMALL(make_far_pages, 1, {AXIS_DTYPE, ALL},
                             {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3) | BIT(KV_E5M2_PER_HEAD)},
                             {AXIS_LAYOUT, ALL}, BOTH_PHASES)),
    JUDGED_ROW("KV-06", mla_far_pages, "pages of latents may be more than 4 GiB apart",
               LATENT_SMALL(make_far_pages, 1, BOTH_FORMS, MLA_LATENT | MLA_PACKED,
                            BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK), {AXIS_DTYPE, ALL},
                            PLAIN_AND_QUANTISED, BOTH_PHASES)),
    JUDGED_ROWS("MEAN-12", high_sinks, "a sink may be far above or far below every score",
                SOFTMAX_SMALL(make_high_sinks, 1, {AXIS_SINK, BIT(SINK_GIVEN)}, {AXIS_MODE, ALL},
                              {AXIS_LSE, ALL}, {AXIS_LENGTHS, BIT(LENGTHS_SPLITS)},
                              {AXIS_OUT, BIT(0) | BIT(1)}),
                SMALL_VARIED(make_high_sinks, 1, {AXIS_SINK, BIT(SINK_GIVEN)}, BOTH_PHASES,
                             {AXIS_LSE, ALL})),
    JUDGED_ROWS("CAPT-04", spare_rows,
                "rows after q_indptr[S] are padding: they are finite and change nothing else",
                SOFTMAX_SMALL(make_spare_rows, 4, {AXIS_TYPE, ALL}, {AXIS_MODE, SEVERAL_ROWS},
                              {AXIS_LSE, ALL},
                              {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)}),
                SMALL_VARIED(make_spare_rows, 4, {AXIS_MODE, SEVERAL_ROWS}, {AXIS_LSE, ALL})),
    {.rule = NULL},
};

const struct check check_size_more[] = {
    JUDGED_ROW(
        "INVAR-01", long_queries_narrowed,
        "with windows and chunks of some hundred keys, many queries see exactly the right keys",
        SOFTMAX_SMALL(make_narrowed_queries, 5, {AXIS_TYPE, BIT(TYPE_DECODER)},
                      {AXIS_MODE, BIT(MODE_EXTEND)})),
    JUDGED_ROW("INVAR-01", wide_windows, "windows and chunks may have more than 65536 keys",
               SOFTMAX_SMALL(make_wide_windows, 4, BOTH_PHASES)),
    JUDGED_ROWS("MEAN-03", late_rows, "row numbers may be above 65536",
                SOFTMAX_SMALL(make_late_rows, 1, {AXIS_MODE, SEVERAL_ROWS},
                              {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)}),
                SMALL_VARIED(make_late_rows, 1, {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_MIXED)})),
    JUDGED_ROW("MEAN-16", many_items,
               "an item may have 65536 tokens, and a sequence tens of thousands of items",
               SOFTMAX_SMALL(make_many_items, 3, {AXIS_MASK, BIT(MASK_ITEMS)}, BOTH_PHASES)),
    JUDGED_ROW("INVAR-01", uneven, "one batch may have long and short sequences",
               SOFTMAX_SMALL(make_uneven, 3,
                             {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED) |
                                             BIT(MODE_VERIFY)},
                             {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3_PER_SEQ_HEAD)})),
    JUDGED_ROW("INVAR-01", uneven_cross, "one batch may have long and short encoders",
               SOFTMAX_SMALL(make_uneven, 3, {AXIS_TYPE, BIT(TYPE_CROSS)},
                             {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES)),
    JUDGED_ROW("INVAR-01", mla_uneven,
               "one batch of latent layers may have long and short sequences",
               SMALL_VARIED(make_uneven, 3, THREE_MODES)),
    JUDGED_ROWS(
        "INVAR-01", new_sequences, "a batch may have only new sequences, saved or not",
        SOFTMAX_SMALL(make_new_sequences, 1, {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_MIXED)},
                      {AXIS_KV, ALL}, NEW_KEYS),
        LATENT_SMALL(make_new_sequences, 1, BOTH_FORMS, MLA_LATENT | MLA_PACKED, SMALL_LATENTS,
                     {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_MIXED)}, {AXIS_KV, ALL}, NEW_KEYS)),
    {.rule = NULL},
};
