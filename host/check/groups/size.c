/* SPDX-License-Identifier: Apache-2.0
 *
 * size.c: what is large: many sequences and heads, long sequences and items, pools of many pages
 * and of many bytes, sinks far from all scores, rows after the last sequence.
 *
 * Faults of size (an index of 16 bits, a table of 256, an offset of 32 bits) do not show in cases
 * of ordinary size. These cases are large in one thing and small in all others: few heads, the
 * smallest dimensions that are accepted, few queries where there are many keys.
 */
#include "host/check/cases/forward_case.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"

#include <string.h>

enum { ALL = (1 << GRID_MAX_VALUES) - 1, MANY_SEQUENCES = 300, PADDED_TO = 330, SMALL_DIM = 16 };
#define BIT(value) (1u << (value))

static const struct case_run once = {.exact_memory = true, .repeat = 1};

/* A family of cases: a product of choices, each point in some variants. */
struct family {
    const struct grid_choice *choices; /* NULL = latents alone */
    const struct mla_choice *latents;  /* NULL = no latents */
    int32_t num_variants;              /* 0 = 1 */
    void (*change)(struct case_spec *spec, int32_t variant);
};

/* ---- Running --------------------------------------------------------------------------------- */

static int32_t variants_of(const struct family *family)
{
    return family->num_variants > 0 ? family->num_variants : 1;
}

static int32_t count_family(const struct check_subject *subject, const struct family *family)
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

static void run_family(struct check_run *run, const struct family *family)
{
    struct grid *grid = grid_of(run->subject);
    CHECK_THAT(run, grid, "no memory for the grid");
    run_large(run, grid, family);
    grid_release(run->subject, grid);
}

/* count_NAME and run_NAME of a family: softmax layers, or latent ones. */
#define FAMILY(name, change, variants, ...)                                                        \
    static const struct grid_choice name##_choices[GRID_MAX_CHOICES + 1] = {__VA_ARGS__};          \
    static const struct family name##_family = {name##_choices, NULL, variants, change};           \
    FUNCTIONS(name)
#define LATENT(name, change, variants, forms, layouts, ...)                                        \
    static const struct mla_choice name##_choice = {forms, layouts, SMALL_LATENTS, {__VA_ARGS__}}; \
    static const struct family name##_family = {NULL, &name##_choice, variants, change};           \
    FUNCTIONS(name)
#define FUNCTIONS(name)                                                                            \
    static int32_t count_##name(const struct check_subject *subject)                               \
    {                                                                                              \
        return count_family(subject, &name##_family);                                              \
    }                                                                                              \
    static void run_##name(struct check_run *run)                                                  \
    {                                                                                              \
        run_family(run, &name##_family);                                                           \
    }
#define BOTH_FORMS    (MLA_ABSORBED | MLA_EXPANDED)
#define SMALL_LATENTS BIT(MLA_SMALL)
#define BOTH_PHASES                                                                                \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE)                                             \
    }
#define SEVERAL_ROWS (BIT(MODE_EXTEND) | BIT(MODE_MIXED) | BIT(MODE_VERIFY) | BIT(MODE_DRAFT))

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Prefix and new tokens. What a mode or a type says of lengths holds for them too. */
static void set_lengths(struct case_spec *spec, int32_t count, const int32_t (*lengths)[2])
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

/* Beyond 256, which is more than the listed ones: these are repeated. */
static void make_many_sequences(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[FORWARD_CASE_MAX_SEQS][2] = {{0, 3},  {17, 1}, {16, 2}, {1, 1},
                                                              {31, 1}, {5, 4},  {40, 2}, {0, 0}};
    (void)variant;
    set_lengths(spec, FORWARD_CASE_MAX_SEQS, lengths);
    spec->num_sequences = MANY_SEQUENCES;
    spec->padded = spec->mode == ATTN_MODE_DECODE ? PADDED_TO : 0;
}

FAMILY(many_sequences, make_many_sequences, 1, {AXIS_TYPE, ALL}, {AXIS_MODE, ALL})
FAMILY(many_sequences_cross, make_many_sequences, 1, {AXIS_TYPE, BIT(TYPE_CROSS)},
       {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES)
FAMILY(many_sequences_forms, make_many_sequences, 1, {AXIS_FORM, ALL}, BOTH_PHASES)
LATENT(mla_many_sequences, make_many_sequences, 1, BOTH_FORMS, MLA_LATENT,
       {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)})

/* Keys beyond 8,192, 32,768 and 65,536 of one sequence, beside short ones: the most where they cost
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
    set_lengths(spec, 3, lengths);
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
    set_lengths(spec, 2, lengths);
}

/* More than 1,024 queries of a sequence, which see each other. */
static void make_long_queries(struct case_spec *spec, int32_t variant)
{
    make_long_keys(spec, variant);
    static const int32_t lengths[][2] = {{40, 3}, {5, 1040}};
    set_lengths(spec, 2, lengths);
}

FAMILY(long_keys, make_long_keys, 1, {AXIS_MODE, ALL})
FAMILY(long_keys_cross, make_long_keys, 1, {AXIS_TYPE, BIT(TYPE_CROSS)},
       {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES)
FAMILY(long_keys_forms, make_longest_keys, 1, {AXIS_FORM, ALL}, {AXIS_PAGE, BIT(1)},
       {AXIS_MODE, BIT(MODE_DECODE)})
FAMILY(long_keys_narrowed, make_longest_keys, 1,
       {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_100)}, {AXIS_CHUNK, BIT(0) | BIT(3)},
       {AXIS_MODE, BIT(MODE_DECODE)})
FAMILY(long_keys_alibi, make_longest_keys, 1, {AXIS_ALIBI, BIT(1)}, {AXIS_MODE, BIT(MODE_DECODE)})
FAMILY(long_keys_masked, make_longest_keys, 1,
       {AXIS_MASK, BIT(MASK_NONE) | BIT(MASK_FULL) | BIT(MASK_QLEN_POSITIONS)})
FAMILY(long_queries, make_long_queries, 1, {AXIS_TYPE, ALL}, {AXIS_MODE, BIT(MODE_EXTEND)})
LATENT(mla_long_keys, make_long_keys, 1, MLA_ABSORBED, MLA_LATENT,
       {AXIS_MODE, BIT(MODE_DECODE) | BIT(MODE_MIXED)})
LATENT(mla_long_queries, make_long_queries, 1, MLA_EXPANDED, MLA_LATENT,
       {AXIS_MODE, BIT(MODE_EXTEND)})
LATENT(mla_long_chunks, make_longest_keys, 1, MLA_EXPANDED, MLA_LATENT, {AXIS_MASK, BIT(MASK_NONE)},
       {AXIS_SOURCE, BIT(SOURCE_PREFIX)})

/* Items of up to 700 tokens. */
static void make_long_items(struct case_spec *spec, int32_t variant)
{
    make_long_keys(spec, variant);
    static const int32_t lengths[][2] = {{700, 90}, {0, 300}, {20, 400}};
    set_lengths(spec, 3, lengths);
    spec->longest_item = 700;
}

FAMILY(long_items, make_long_items, 1, {AXIS_MASK, BIT(MASK_ITEMS)},
       {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)})

/* ---- Heads ----------------------------------------------------------------------------------- */

static const int32_t heads[][2] = {{40, 8}, {64, 1}, {65, 5}, {128, 1}, {128, 128}};
enum { HEADS = sizeof heads / sizeof heads[0] };

static void make_many_heads(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{37, 3}, {0, 5}, {16, 1}};
    set_lengths(spec, 3, lengths);
    spec->num_q_heads = heads[variant][0];
    spec->num_kv_heads = heads[variant][1];
    if (spec->latent.kv_lora_rank > 0)
        case_spec_set_form(spec, spec->latent.expanded);
}

FAMILY(many_heads, make_many_heads, HEADS, BOTH_PHASES, {AXIS_TYPE, ALL})
FAMILY(many_sinks, make_many_heads, HEADS, BOTH_PHASES, {AXIS_SINK, BIT(SINK_GIVEN)},
       {AXIS_ALIBI, ALL})
LATENT(mla_many_heads, make_many_heads, HEADS, BOTH_FORMS, MLA_LATENT, BOTH_PHASES)

/* ---- Pools ----------------------------------------------------------------------------------- */

static void make_many_pages(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    spec->spread = SPREAD_PAGES;
}

static void make_far_pages(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    spec->spread = SPREAD_BYTES;
}

#define SOURCES (BIT(SOURCE_SAVED) | BIT(SOURCE_CACHE))
FAMILY(many_pages, make_many_pages, 1, {AXIS_FORM, ALL}, {AXIS_PAGE, BIT(0) | BIT(1)},
       {AXIS_SOURCE, SOURCES}, {AXIS_MODE, ALL})
FAMILY(far_pages, make_far_pages, 1, {AXIS_TYPE, BIT(TYPE_DECODER) | BIT(TYPE_CROSS)},
       {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE)}, {AXIS_FORM, ALL},
       {AXIS_SOURCE, SOURCES | BIT(SOURCE_UNSAVED)}, BOTH_PHASES)
FAMILY(far_pages_dtypes, make_far_pages, 1, {AXIS_DTYPE, ALL},
       {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3) | BIT(KV_E5M2_PER_HEAD)}, {AXIS_LAYOUT, ALL},
       BOTH_PHASES)
LATENT(mla_many_pages, make_many_pages, 1, BOTH_FORMS, MLA_LATENT, {AXIS_FORM, ALL},
       {AXIS_PAGE, BIT(0) | BIT(1)}, BOTH_PHASES)
static const struct mla_choice mla_far_pages_choice = {
    BOTH_FORMS,
    MLA_LATENT | MLA_PACKED,
    BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK),
    {{AXIS_DTYPE, ALL}, {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3)}, BOTH_PHASES}};
static const struct family mla_far_pages_family = {.latents = &mla_far_pages_choice,
                                                   .change = make_far_pages};
FUNCTIONS(mla_far_pages)

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

FAMILY(high_sinks, make_high_sinks, 1, {AXIS_SINK, BIT(SINK_GIVEN)}, {AXIS_MODE, ALL},
       {AXIS_LSE, ALL}, {AXIS_LENGTHS, BIT(LENGTHS_SPLITS)}, {AXIS_OUT, BIT(0) | BIT(1)})
LATENT(mla_high_sinks, make_high_sinks, 1, BOTH_FORMS, MLA_LATENT, {AXIS_SINK, BIT(SINK_GIVEN)},
       BOTH_PHASES, {AXIS_LSE, ALL})

/* As vLLM pads a batch: sequences without queries, then rows that no sequence has. */
static void make_spare_rows(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{9, 3}, {0, 2}, {4, 1}, {0, 0}};
    static const int32_t decodes[][2] = {{9, 1}, {40, 1}, {4, 1}, {0, 0}};
    set_lengths(spec, spec->mode == ATTN_MODE_EXTEND ? 4 : 3, variant == 2 ? decodes : lengths);
    spec->spare = variant == 0 ? 1 : 21;
}

FAMILY(spare_rows, make_spare_rows, 3, {AXIS_TYPE, ALL}, {AXIS_MODE, SEVERAL_ROWS}, {AXIS_LSE, ALL},
       {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)})
LATENT(mla_spare_rows, make_spare_rows, 3, BOTH_FORMS, MLA_LATENT, {AXIS_MODE, SEVERAL_ROWS},
       {AXIS_LSE, ALL})

/* ---- Table ----------------------------------------------------------------------------------- */

#define ROW(rule, function, sentence)                                                              \
    {                                                                                              \
        rule, #function, sentence, CHECK_NEEDS_COMPUTE, count_##function, run_##function           \
    }

const struct check check_size[] = {
    ROW("INVAR-01", many_sequences, "300 sequences in one batch are each computed right"),
    ROW("INVAR-01", many_sequences_cross, "300 sequences see each its encoder's keys"),
    ROW("INVAR-01", many_sequences_forms, "so they are in each form of KV indices"),
    ROW("INVAR-01", mla_many_sequences, "300 sequences of a latent layer are computed right"),
    ROW("INVAR-01", long_keys, "keys beyond 8192, 32768 and 65536 are seen as the first ones are"),
    ROW("INVAR-01", long_keys_cross, "an encoder may have more than 65536 tokens"),
    ROW("INVAR-01", long_keys_forms, "so they are in each form of KV indices"),
    ROW("INVAR-01", long_keys_narrowed, "windows and chunks hold at positions beyond 65536"),
    ROW("INVAR-01", long_keys_alibi, "ALiBi holds at distances beyond 65536"),
    ROW("INVAR-01", long_keys_masked, "masks hold for more than 65536 keys"),
    ROW("INVAR-01", long_queries, "more than 1024 queries of a sequence are computed right"),
    ROW("INVAR-01", mla_long_keys, "latents beyond 8192, 32768 and 65536 are seen"),
    ROW("INVAR-01", mla_long_queries, "more than 1024 queries of an expanded sequence are right"),
    ROW("INVAR-01", mla_long_chunks, "expanded chunks of more than 65536 keys are computed right"),
    ROW("MEAN-16", long_items, "items have up to 700 tokens"),
    ROW("MEAN-17", many_heads, "40 to 128 heads read the KV heads that are theirs"),
    ROW("MEAN-12", many_sinks, "40 to 128 heads have the sink and the slope that are theirs"),
    ROW("MEAN-17", mla_many_heads, "40 to 128 heads of a latent layer are computed right"),
    ROW("KV-06", many_pages, "pages may have numbers beyond 65536 and 131072"),
    ROW("KV-06", mla_many_pages, "pages of latents may have numbers beyond 65536 and 131072"),
    ROW("KV-06", far_pages, "pages may lie more than 4 GiB apart, and 2^31 elements"),
    ROW("KV-06", far_pages_dtypes, "so they may in each dtype and layout"),
    ROW("KV-06", mla_far_pages, "pages of latents may lie more than 4 GiB apart"),
    ROW("MEAN-12", high_sinks, "a sink may be far above every score, or far below"),
    ROW("MEAN-12", mla_high_sinks, "a sink of latents may be far above every score, or far below"),
    ROW("CAPT-04", spare_rows, "rows after q_indptr[S] are padding: finite, nothing else changes"),
    ROW("CAPT-04", mla_spare_rows, "so they are where latents are read"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
