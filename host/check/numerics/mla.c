/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.c: latent attention against the oracle: its two forms, the rows that they save and read, and
 * their agreement. Invariances are in check/relations/invariance.c.
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/mla_pair.h"
#include "host/check/numerics/partials.h"

enum { RANDOM_CASES = 60 };

/* ---- Products -------------------------------------------------------------------------------- */

#define BOTH_LAYOUTS     (MLA_LATENT | MLA_PACKED)
#define SMALL            BIT(MLA_SMALL)
#define TWO_DIMS         (BIT(MLA_SMALL) | BIT(MLA_DEEPSEEK))
#define PLAIN_AND_SCALED OF(KV, AS_Q, E4M3, E5M2)

/* Some values are infinite, NaN, or lie between two that can be stored. */
SPEC_CHANGE(make_special, spec->special_values = true)

/* ---- Both forms ------------------------------------------------------------------------------ */

enum { PREFIX = 40, QUERIES = 9 };

/* Whole sequences of new tokens, so that both forms see the same keys. */
static void set_whole(struct case_spec *spec)
{
    static const int32_t lengths[] = {PREFIX + QUERIES, PREFIX + 1, 17};
    spec->num_sequences = 3;
    spec->first_row = 0;
    spec->padded = 0;
    for (int32_t s = 0; s < 3; s++)
        spec->sequences[s] = (struct case_sequence){.num_new = lengths[s], .tokens_of = s};
}

static void with_pair(struct kind_case *k, void (*use)(struct mla_pair *pair))
{
    struct case_spec whole = k->at.spec, expanded;
    struct mla_pair pair;
    set_whole(&whole);
    expanded = whole;
    case_spec_set_form(&expanded, true);
    if (!numerics_accepts(&k->at, &whole) || !numerics_accepts(&k->at, &expanded))
        return;
    if (mla_pair_init(&pair, k->run, &whole, k->at.options) && mla_pair_judge(&pair))
        use(&pair);
    mla_pair_finish(&pair);
}

static void judge_agreement(struct kind_case *k)
{
    with_pair(k, mla_pair_compare);
}

/* All tokens are in the cache except for the last ones, which are new; or for one, which is
 * decoded. */
static struct case_spec reader_of(const struct case_spec *whole, bool decode)
{
    struct case_spec spec = *whole;
    for (int32_t s = 0; s < spec.num_sequences; s++) {
        struct case_sequence *sequence = &spec.sequences[s];
        int32_t all = sequence->num_new, left = decode ? 1 : all < QUERIES ? all : QUERIES;
        *sequence = (struct case_sequence){
            .prefix_len = all - left, .num_new = left, .tokens_of = s, .first_query = all - left};
    }
    if (decode)
        spec.mode = ATTN_MODE_DECODE;
    return spec;
}

/* The cache that one instance has written is the prefix of another one, whose session is made for
 * the reader, or of this one. */
static void read_cache_of(struct mla_pair *pair, const struct forward_case *writer, bool decode,
                          struct case_session *session)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct case_spec spec = reader_of(&pair->spec, decode);
    struct forward_case *reader = numerics_case(pair->run, &spec, pair->absorbed);
    struct case_session *other = NULL;
    if (reader && !session)
        session = other =
            numerics_session(pair->run, pair->run->subject, reader, pair->options, &setup);
    if (reader && session) {
        mla_pair_hand_over(writer, reader);
        numerics_judge(pair->run, session, reader);
    }
    case_session_destroy(other);
    forward_case_destroy(reader);
}

static void hand_over(struct mla_pair *pair)
{
    for (int n = 0; n < 4; n++)
        read_cache_of(pair, n & 1 ? pair->expanded : pair->absorbed, n & 2, NULL);
}

/* One instance expands a prefill, and decodes absorbed. */
static void serve_both(struct mla_pair *pair)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct spec_problem *posed = &pair->expanded->posed;
    attn_verdict verdict;
    posed->bounds.modes |= ATTN_MODE_BIT(ATTN_MODE_DECODE);
    if (!numerics_query(pair->run->subject, pair->options, &posed->problem, &verdict)) {
        check_skip(pair->run, "query refuses both forms in one instance");
        return;
    }
    struct case_session *session =
        numerics_session(pair->run, pair->run->subject, pair->expanded, pair->options, &setup);
    if (session && numerics_judge(pair->run, session, pair->expanded))
        read_cache_of(pair, pair->expanded, true, session);
    case_session_destroy(session);
}

static void judge_both_forms(struct kind_case *k)
{
    with_pair(k, serve_both);
}

static void judge_hand_off(struct kind_case *k)
{
    struct case_spec decoding = k->at.spec;
    set_whole(&decoding);
    decoding = reader_of(&decoding, true);
    if (numerics_accepts(&k->at, &decoding))
        with_pair(k, hand_over);
}

/* ---- Chunks of a prefix ---------------------------------------------------------------------- */

enum { OWN = PARTIALS_FIRST, FIRST_CHUNK, MAX_CHUNKS = PARTIALS_MAX - FIRST_CHUNK };

/* Where the chunks of a prefix end. */
static const int32_t chunk_ends[][MAX_CHUNKS] = {{PREFIX}, {16, PREFIX}, {1, 23, PREFIX}};
enum { PATTERNS = sizeof chunk_ends / sizeof chunk_ends[0] };

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The last tokens with keys [first, end) of those before them, or with each other (end = 0). The
 * second sequence has none before. */
static struct case_spec part_of(const struct case_spec *whole, int32_t first, int32_t end)
{
    struct case_spec spec = *whole;
    for (int32_t s = 0; s < spec.num_sequences; s++) {
        int32_t all = whole->sequences[s].num_new, prefix = s == 1 ? 0 : all - QUERIES;
        spec.sequences[s] =
            (struct case_sequence){.prefix_len = prefix,
                                   .num_new = all - prefix,
                                   .num_new_keys = least(end, prefix) - least(first, prefix),
                                   .chunk_end = least(end, prefix),
                                   .tokens_of = s,
                                   .first_query = prefix};
    }
    if (end == 0)
        return spec;
    spec.partial = true;
    spec.mask_kind = ATTN_MASK_NONE;
    spec.flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    if (spec.sinks)
        spec.flags |= ATTN_FORWARD_OMIT_SINK; /* of partials to be merged one has the sink */
    return spec;
}

/* In each pattern of chunks. */
static void judge_merge(struct kind_case *k)
{
    for (int pattern = 0; pattern < PATTERNS && k->run->code == CHECK_PASS; pattern++) {
        struct partials parts = {
            .run = k->run, .count = FIRST_CHUNK, .units = 2, .of_element = true};
        parts.specs[PARTIALS_WHOLE] = k->at.spec;
        set_whole(&parts.specs[PARTIALS_WHOLE]);
        parts.specs[OWN] = part_of(&parts.specs[PARTIALS_WHOLE], 0, 0);
        for (int32_t first = 0, n = 0; first < PREFIX; first = chunk_ends[pattern][n++])
            parts.specs[parts.count++] =
                part_of(&parts.specs[PARTIALS_WHOLE], first, chunk_ends[pattern][n]);
        if (numerics_accepts(&k->at, &parts.specs[PARTIALS_WHOLE]) &&
            numerics_accepts(&k->at, &parts.specs[FIRST_CHUNK]))
            partials_judge(&parts, k->at.options);
    }
}

/* ---- Anything -------------------------------------------------------------------------------- */

static const struct grid_choice anything[GRID_MAX_CHOICES + 1] = {
    OF_LATENTS(BOTH_FORMS, BOTH_LAYOUTS, TWO_DIMS, {0, 0})};

static int32_t count_random(const struct check_subject *subject)
{
    int32_t count = subject->exhaustive ? 40 * RANDOM_CASES : RANDOM_CASES;
    return numerics_count(subject, anything) > 1 ? count : 1;
}

static void run_mla_random(struct check_run *run)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    if (numerics_random(run, grid, anything, &point, &spec))
        numerics_run(run, &spec, grid_options(grid, &point));
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_mla[] = {
    ROW("MEAN-19", mla_absorbed,
        "absorbed: a key is a latent row, and its value is the first part of that row",
        LATENT(MLA_ABSORBED, MLA_LATENT, SMALL, EACH(MODE), OF(LENGTHS, PAGES, SPLITS, EMPTY))),
    ROW("STRUCT-10", mla_places,
        "results are right for latents with exactly the alignment of the problem",
        LATENT(BOTH_FORMS, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), EACH(PLACE), OF(DTYPE, BF16, F32),
               BOTH_PHASES)),
    ROW("MEAN-19", mla_dims, "latents of any dimensions are right in both forms",
        LATENT(BOTH_FORMS, MLA_LATENT, ALL_LATENTS, EACH(DTYPE), BOTH_PHASES)),
    ROW("MEAN-19", mla_deepseek,
        "latents of 512 + 64 elements are right: long ones, in MIXED and in TARGET_VERIFY",
        LATENT(BOTH_FORMS, MLA_LATENT, BIT(MLA_DEEPSEEK), OF(MODE, MIXED, VERIFY),
               OF(LENGTHS, SPLITS))),
    ROW("MEAN-19", mla_heads, "all query heads read the same latent",
        LATENT(BOTH_FORMS, MLA_LATENT, SMALL, EACH(HEADS), BOTH_PHASES)),
    ROW("MEAN-19", mla_scores,
        "scores of latent layers are scaled and capped, and sinks added, as for softmax layers",
        LATENT(MLA_ABSORBED, MLA_LATENT, SMALL, FIRST(CAP, 2), EACH(SCALE), EACH(SINK), BOTH_PHASES,
               EACH(SCORES))),
    ROW("MEAN-19", mla_masks,
        "masks and windows allow the same keys for latent layers as for softmax layers",
        LATENT(BOTH_FORMS, MLA_LATENT, SMALL, OF(MASK, NONE, FULL, QLEN), OF(WINDOW, CAUSAL, 15),
               OF(LENGTHS, PAGES, EMPTY))),
    ROW("MEAN-22", mla_input_scales, "q_nope and q_pe in fp8 are read as value times scale",
        LATENT(MLA_ABSORBED, MLA_LATENT, ALL_LATENTS, OF(INPUTS, Q_E4M3), EACH(MODE),
               PLAIN_AND_SCALED)),
    ROW("MEAN-22", mla_input_heads,
        "q_nope and q_pe in fp8 are read as value times scale, for any heads, masks and sm_scale",
        LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_DEEPSEEK), OF(INPUTS, Q_E4M3), EACH(HEADS),
               EACH(SCALE), OF(KV, E4M3), EACH(SINK), OF(WINDOW, CAUSAL, 15), BOTH_PHASES)),
    ROW("MEAN-20", mla_expanded, "expanded: new tokens see each other, and not the cache",
        LATENT(MLA_EXPANDED, MLA_LATENT, SMALL, EACH(MODE), OF(LENGTHS, PAGES, SPLITS, EMPTY),
               OF(SOURCE, SAVED, UNSAVED))),
    ROW("MEAN-20", mla_as_given, "expanded keys are read as given, whatever the cache's type",
        LATENT(MLA_EXPANDED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), PLAIN_AND_SCALED, EACH(DTYPE),
               BOTH_PHASES)),
    ROW("MEAN-20", mla_chunks,
        "a call with a chunk of an expanded prefix sees only the keys of its arguments",
        LATENT(MLA_EXPANDED, MLA_LATENT, SMALL, EACH(MODE), OF(MASK, NONE), OF(SOURCE, PREFIX),
               OF(LENGTHS, PAGES, SPLITS, EMPTY), OF(WINDOW, CAUSAL, 15))),
    OWN_ROW("MEAN-20", mla_merge, judge_merge,
            "results over chunks of an expanded prefix merge to the result over the whole prefix",
            LATENT(MLA_EXPANDED, MLA_LATENT, SMALL, EACH(DTYPE), OF(MODE, EXTEND), NTH(LSE, 0),
                   FIRST(SINK, 2))),
    ROW("KV-02", mla_sources, "new latents come from the arguments, the prefix from the cache",
        LATENT(MLA_ABSORBED, MLA_LATENT, SMALL, OF(SOURCE, UNSAVED, CACHE), PLAIN_AND_SCALED,
               BOTH_PHASES, OF(LENGTHS, PAGES, SPLITS))),
    ROW("KV-02", mla_partials, "without new latents only the cache is read",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), OF(SOURCE, PREFIX), OF(MASK, NONE),
               BOTH_PHASES)),
    ROW("KV-03", mla_read_only,
        "a layer that reads another layer's latents reads what the other layer wrote",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), OF(SOURCE, SHARED), PLAIN_AND_SCALED,
               BOTH_PHASES)),
    ROW("KV-06", mla_pages, "latents are in pages in any order; unused pages are not read",
        LATENT(MLA_ABSORBED, MLA_LATENT, SMALL, EACH(PAGE), EACH(SLOTS))),
    ROW("KV-06", mla_packed_pages, "packed latents are in pages in any order",
        LATENT(MLA_ABSORBED, MLA_PACKED, BIT(MLA_ONE_BLOCK), EACH(PAGE),
               OF(SLOTS, SHUFFLED_PAGES))),
    ROW("KV-06", mla_unseen, "latents that no query sees may be NaN and change nothing",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), OF(WINDOW, 15, BOTH), FIRST(PAGE, 2),
               SAVED_OR_NOT, BOTH_PHASES)),
    ROW("KV-08", mla_index_forms, "each form of KV indices gives the same result",
        LATENT(BOTH_FORMS, MLA_LATENT, SMALL, EACH(FORM), FIRST(PAGE, 3), BOTH_PHASES)),
    ROW("KV-10", mla_saved, "both forms save c_kv and k_pe; a row whose slot is -1 is not saved",
        LATENT(BOTH_FORMS, MLA_LATENT, SMALL, PLAIN_AND_SCALED, OF(SOURCE, SAVED, SOME_SAVED),
               EACH(MODE))),
    ROW("KV-10", mla_limits, "latents beyond the largest are saturated, ties go to even",
        LATENT_VARIED(make_special, 1, BOTH_FORMS, MLA_LATENT, SMALL, PLAIN_AND_SCALED,
                      EACH(DTYPE))),
    ROW("KV-11", mla_packed, "a packed row holds fp8 values, a scale per 128 of them, and bf16",
        LATENT(BOTH_FORMS, MLA_PACKED, BIT(MLA_DEEPSEEK) | BIT(MLA_ONE_BLOCK), EACH(MODE),
               OF(SOURCE, SAVED, SOME_SAVED))),
    ROW("KV-11", mla_packed_read, "packed rows are read back as written",
        LATENT(MLA_ABSORBED, MLA_PACKED, BIT(MLA_DEEPSEEK) | BIT(MLA_ONE_BLOCK), EACH(DTYPE),
               OF(SOURCE, UNSAVED, CACHE), BOTH_PHASES)),
    ROW("KV-11", mla_packed_limits,
        "the scales of a packed row follow from the largest magnitude of each 128 values",
        LATENT_VARIED(make_special, 1, BOTH_FORMS, MLA_PACKED,
                      BIT(MLA_DEEPSEEK) | BIT(MLA_ONE_BLOCK), EACH(DTYPE))),
    OWN_ROW("INVAR-01", mla_forms_agree, judge_agreement,
            "the expanded output is W_UV times the absorbed output",
            LATENT(MLA_ABSORBED, MLA_LATENT, SMALL, EACH(DTYPE), OF(WINDOW, CAUSAL, 15),
                   FIRST(SINK, 2))),
    OWN_ROW("INVAR-01", mla_hand_off, judge_hand_off,
            "an instance reads the latents that another instance saved, in either form",
            LATENT(MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), OF(MODE, EXTEND),
                   PLAIN_AND_SCALED, {AXIS_PAGE, BIT(0) | BIT(2)})),
    OWN_ROW("INVAR-01", mla_both_forms, judge_both_forms,
            "an instance may prefill in the expanded form and decode in the absorbed form",
            LATENT(MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_ONE_BLOCK), OF(MODE, EXTEND),
                   PLAIN_AND_QUANTISED)),
    CHECK_ROW("INVAR-01", mla_random, count_random, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE,
              "latent layers are right for random problems that query accepts"),
    {.rule = NULL},
};
