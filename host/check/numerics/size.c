/* SPDX-License-Identifier: Apache-2.0
 *
 * size.c: large cases: many sequences and heads, long sequences and items, pools of many pages and
 * of many bytes, sinks far from all scores, rows after the last sequence.
 *
 * Faults of size (an index of 16 bits, a table of 256, an offset of 32 bits) do not show in cases
 * of ordinary size. These cases are large in one thing and small in all others: few heads, the
 * smallest dimensions that are accepted, few queries where there are many keys. */
#include "host/check/cases/kind.h"

enum { MANY_SEQUENCES = 300, PADDED_TO = 330 };

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Beyond 256, which is more than the listed ones: these are repeated. */
static void make_many_sequences(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    case_set_lengths(spec, "0+3 17+1 16+2 1+1 31+1 5+4 40+2 0+0");
    spec->num_sequences = MANY_SEQUENCES;
    spec->padded = spec->mode == ATTN_MODE_DECODE ? PADDED_TO : 0;
}

/* With as few heads as there can be, since something else is long. */
static void make_long(struct case_spec *spec, const char *lengths)
{
    case_set_lengths(spec, lengths);
    spec->num_q_heads = spec->num_kv_heads;
    if (spec->latent.kv_lora_rank > 0) {
        spec->num_q_heads = 1;
        case_spec_set_form(spec, spec->latent.expanded);
    }
}

/* Keys beyond 8,192, 32,768 and 65,536 of one sequence, with short ones: the most where they cost
 * least. */
static void make_long_keys(struct case_spec *spec, int32_t variant)
{
    static const char *const longest[] = {[ATTN_MODE_EXTEND] = "66005+1 5+3 300+1",
                                          [ATTN_MODE_DECODE] = "66005+1 5+3 300+1",
                                          [ATTN_MODE_MIXED] = "33003+1 5+3 300+1",
                                          [ATTN_MODE_TARGET_VERIFY] = "8209+1 5+3 300+1",
                                          [ATTN_MODE_DRAFT_EXTEND] = "33003+1 5+3 300+1"};
    (void)variant;
    make_long(spec, longest[spec->mode]);
}

/* More than 65,536 keys alone, after a short sequence; more than 1,024 queries of a sequence, which see each other. */
SPEC_CHANGE(make_longest_keys, make_long(spec, "70+2 66005+1"))
SPEC_CHANGE(make_long_queries, make_long(spec, "40+3 5+1040"))

/* What serving has with the dimensions of models: long prompts, long contexts, many sequences. */
static void make_serving(struct case_spec *spec, int32_t variant)
{
    static const char *const lengths[] = {"40+3 5+1040", "9011+2 70+1",
                                          "0+3 17+1 16+2 1+1 31+1 5+4 40+2 0+0"};
    make_long(spec, lengths[variant]);
    if (variant == 2)
        spec->num_sequences = 70;
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
SPEC_CHANGE(make_long_items, (make_long(spec, "700+90 0+300 20+400"), spec->longest_item = 700))

/* Of up to 65,536 tokens, of three and of one: 65,000 items, and columns beyond 65,536. */
static void make_many_items(struct case_spec *spec, int32_t variant)
{
    static const int32_t longest[] = {65536, 3, 1};
    make_long(spec, "66004+3 70+90");
    spec->longest_item = longest[variant];
}

/* ---- Unlike work ----------------------------------------------------------------------------- */

/* Long sequences, whose work is split, mixed with short ones, and few queries with many, unsorted.
 * */
static void make_uneven(struct case_spec *spec, int32_t variant)
{
    static const char *const lengths[] = {"17+40 3001+5 0+1 1500+1 70+19 2200+2",
                                          "2600+3 1+1 64+33 1999+1 0+2 700+64",
                                          "2500+40 9+1 3001+3 1800+12 0+2 2999+1"};
    case_set_lengths(spec, lengths[variant]);
}

/* Only sequences without cached keys, so that the cache concerns new keys alone. */
SPEC_CHANGE(make_new_sequences, case_set_lengths(spec, "0+5 0+1 0+70 0+1"))

#define NEW_KEYS OF(SOURCE, SAVED, UNSAVED)

/* ---- Heads ----------------------------------------------------------------------------------- */

static const int32_t heads[][2] = {{40, 8}, {64, 1}, {65, 5}, {128, 1}, {128, 128}};
enum { HEADS = sizeof heads / sizeof heads[0] };

static void make_many_heads(struct case_spec *spec, int32_t variant)
{
    case_set_lengths(spec, "37+3 0+5 16+1");
    spec->num_q_heads = heads[variant][0];
    spec->num_kv_heads = heads[variant][1];
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
}

/* ---- Pools ----------------------------------------------------------------------------------- */

SPEC_CHANGE(make_many_pages, spec->spread = SPREAD_PAGES)
SPEC_CHANGE(make_far_pages, spec->spread = SPREAD_BYTES)

/* ---- Sinks, rows after the last -------------------------------------------------------------- */

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
    static const char *const lengths[][2] = {{"9+3 0+2 4+1", "9+1 40+1 4+1"},
                                             {"9+3 0+2 4+1 0+0", "9+1 40+1 4+1 0+0"}};
    const bool extends = spec->mode == ATTN_MODE_EXTEND;
    case_set_lengths(spec, variant == 3 && extends ? "" : lengths[extends][variant == 2]);
    spec->spare = variant == 0 ? 1 : 21;
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_size[] = {
    ROWS("INVAR-01", many_sequences, "each of 300 sequences in one batch is right",
         SOFTMAX_SMALL(make_many_sequences, 1, EACH(TYPE), EACH(MODE)),
         SMALL_VARIED(make_many_sequences, 1, THREE_MODES)),
    ROW("INVAR-01", many_sequences_cross, "each of 300 sequences sees the keys of its own encoder",
        SOFTMAX_SMALL(make_many_sequences, 1, OF(TYPE, CROSS), OF(WINDOW, NONE), BOTH_PHASES)),
    ROW("INVAR-01", many_sequences_forms,
        "each of 300 sequences is right in each form of KV indices",
        SOFTMAX_SMALL(make_many_sequences, 1, EACH(FORM), BOTH_PHASES)),
    ROWS("INVAR-01", long_keys, "keys beyond 8192, 32768 and 65536 are seen like the first ones",
         SOFTMAX_SMALL(make_long_keys, 1, EACH(MODE)),
         LATENT_SMALL(make_long_keys, 1, MLA_ABSORBED, MLA_LATENT, SMALL_LATENTS,
                      OF(MODE, DECODE, MIXED))),
    ROW("INVAR-01", long_keys_cross, "an encoder may have more than 65536 tokens",
        SOFTMAX_SMALL(make_long_keys, 1, OF(TYPE, CROSS), OF(WINDOW, NONE), BOTH_PHASES)),
    ROW("INVAR-01", long_keys_forms,
        "keys beyond 8192, 32768 and 65536 are seen in each form of KV indices",
        SOFTMAX_SMALL(make_longest_keys, 1, EACH(FORM), NTH(PAGE, 1), OF(MODE, DECODE))),
    ROW("INVAR-01", long_keys_narrowed, "windows and chunks hold at positions beyond 65536",
        SOFTMAX_SMALL(make_longest_keys, 1, OF(WINDOW, CAUSAL, 100), {AXIS_CHUNK, BIT(0) | BIT(3)},
                      OF(MODE, DECODE))),
    ROW("INVAR-01", long_keys_alibi, "ALiBi holds at distances beyond 65536",
        SOFTMAX_SMALL(make_longest_keys, 1, NTH(ALIBI, 1), OF(MODE, DECODE))),
    ROW("INVAR-01", long_keys_masked, "masks hold for more than 65536 keys",
        SOFTMAX_SMALL(make_longest_keys, 1, OF(MASK, NONE, FULL, QLEN_POSITIONS))),
    ROWS("INVAR-01", long_queries, "more than 1024 queries of a sequence are right",
         SOFTMAX_SMALL(make_long_queries, 1, EACH(TYPE), OF(MODE, EXTEND)),
         LATENT_SMALL(make_long_queries, 1, MLA_EXPANDED, MLA_LATENT, SMALL_LATENTS,
                      OF(MODE, EXTEND))),
    ROW("INVAR-01", model_dims,
        "heads of 64 to 512 dimensions may have more than 1024 queries, 8192 keys or 64 sequences",
        SOFTMAX_VARIED(make_serving, 3, {AXIS_DIM, BIT(0) | BIT(1) | BIT(6) | BIT(7) | BIT(12)},
                       NTH(HEADS, 3), OF(MODE, EXTEND))),
    ROW("INVAR-01", mla_long_chunks, "expanded chunks of more than 65536 keys are right",
        LATENT_SMALL(make_longest_keys, 1, MLA_EXPANDED, MLA_LATENT, SMALL_LATENTS, OF(MASK, NONE),
                     OF(SOURCE, PREFIX))),
    ROW("MEAN-16", long_items, "items have up to 700 tokens",
        SOFTMAX_SMALL(make_long_items, 1, OF(MASK, ITEMS), THREE_MODES)),
    ROWS("MEAN-17", many_heads, "each of 40 to 128 heads is right",
         SOFTMAX_SMALL(make_many_heads, HEADS, BOTH_PHASES, EACH(TYPE)),
         SMALL_VARIED(make_many_heads, HEADS, BOTH_PHASES)),
    ROW("MEAN-12", many_sinks, "each of 40 to 128 heads has its own sink and slope",
        SOFTMAX_SMALL(make_many_heads, HEADS, BOTH_PHASES, OF(SINK, GIVEN), EACH(ALIBI))),
    ROWS("KV-06", many_pages, "page numbers may be above 65536 and 131072",
         SOFTMAX_SMALL(make_many_pages, 1, EACH(FORM), FIRST(PAGE, 2), SAVED_OR_NOT, EACH(MODE)),
         SMALL_VARIED(make_many_pages, 1, EACH(FORM), FIRST(PAGE, 2), BOTH_PHASES)),
    ROWS("KV-06", far_pages, "pages may be more than 4 GiB, and more than 2^31 elements, apart",
         SOFTMAX_SMALL(make_far_pages, 1, OF(TYPE, DECODER, CROSS), OF(WINDOW, CAUSAL, NONE),
                       EACH(FORM), OF(SOURCE, SAVED, CACHE, UNSAVED), BOTH_PHASES),
         LATENT_SMALL(make_far_pages, 1, BOTH_FORMS, MLA_LATENT | MLA_PACKED,
                      BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK), EACH(DTYPE), PLAIN_AND_QUANTISED,
                      BOTH_PHASES)),
    ROW("KV-06", far_pages_dtypes, "pages may be more than 4 GiB apart in each dtype and layout",
        SOFTMAX_SMALL(make_far_pages, 1, EACH(DTYPE), OF(KV, AS_Q, E4M3, E5M2_PER_HEAD),
                      EACH(LAYOUT), BOTH_PHASES)),
    ROWS("MEAN-12", high_sinks, "a sink may be far above or far below every score",
         SOFTMAX_SMALL(make_high_sinks, 1, OF(SINK, GIVEN), EACH(MODE), EACH(LSE),
                       OF(LENGTHS, SPLITS), FIRST(OUT, 2)),
         SMALL_VARIED(make_high_sinks, 1, OF(SINK, GIVEN), BOTH_PHASES, EACH(LSE))),
    ROWS("CAPT-04", spare_rows,
         "rows after q_indptr[S] are padding: they are finite and change nothing else",
         SOFTMAX_SMALL(make_spare_rows, 4, EACH(TYPE), BUT(MODE, DECODE), EACH(LSE),
                       OF(SOURCE, SAVED, UNSAVED)),
         SMALL_VARIED(make_spare_rows, 4, BUT(MODE, DECODE), EACH(LSE))),
    ROW("INVAR-01", long_queries_narrowed,
        "with windows and chunks of some hundred keys, many queries see exactly the right keys",
        SOFTMAX_SMALL(make_narrowed_queries, 5, OF(TYPE, DECODER), OF(MODE, EXTEND))),
    ROW("INVAR-01", wide_windows, "windows and chunks may have more than 65536 keys",
        SOFTMAX_SMALL(make_wide_windows, 4, BOTH_PHASES)),
    ROWS("MEAN-03", late_rows, "row numbers may be above 65536",
         SOFTMAX_SMALL(make_late_rows, 1, BUT(MODE, DECODE), OF(SOURCE, SAVED, UNSAVED)),
         SMALL_VARIED(make_late_rows, 1, OF(MODE, EXTEND, MIXED))),
    ROW("MEAN-16", many_items,
        "an item may have 65536 tokens, and a sequence tens of thousands of items",
        SOFTMAX_SMALL(make_many_items, 3, OF(MASK, ITEMS), BOTH_PHASES)),
    ROWS("INVAR-01", uneven, "one batch may have long and short sequences",
         SOFTMAX_SMALL(make_uneven, 3, OF(MODE, EXTEND, DECODE, MIXED, VERIFY),
                       OF(KV, AS_Q, E4M3_PER_SEQ_HEAD)),
         SMALL_VARIED(make_uneven, 3, THREE_MODES)),
    ROW("INVAR-01", uneven_cross, "one batch may have long and short encoders",
        SOFTMAX_SMALL(make_uneven, 3, OF(TYPE, CROSS), OF(WINDOW, NONE), BOTH_PHASES)),
    ROWS("INVAR-01", new_sequences, "a batch may have only new sequences, saved or not",
         SOFTMAX_SMALL(make_new_sequences, 1, OF(MODE, EXTEND, MIXED), EACH(KV), NEW_KEYS),
         LATENT_SMALL(make_new_sequences, 1, BOTH_FORMS, MLA_LATENT | MLA_PACKED, SMALL_LATENTS,
                      OF(MODE, EXTEND, MIXED), EACH(KV), NEW_KEYS)),
    {.rule = NULL},
};
