/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: attention as it is meant, against the oracle: groups MEAN, KV and the pass rule.
 *
 * A check proves one rule on cases that are plain but for what the rule is about: a product of
 * values of a few axes of the grid. INVAR-01.grid then has all pairs of everything, and
 * INVAR-01.random anything.
 */
#include "host/check/cases/kind.h"
#include "host/check/numerics/partials.h"

#include "host/base/error.h"

#include <string.h>

enum { RANDOM_CASES = 120 };

#define CUSTOM_MASKS (BIT(MASK_FULL) | BIT(MASK_QLEN))
#define POSITIONS    (BIT(MASK_FULL_POSITIONS) | BIT(MASK_QLEN_POSITIONS))

SPEC_CHANGE(host_needed, spec->host = HOST_NEEDED)
SPEC_CHANGE(host_some, spec->host = HOST_SOME)

/* Some values are infinite, NaN, or lie between two that can be stored. */
SPEC_CHANGE(make_special, spec->special_values = true)

/* Blocks that each KV head chooses, as in NSA: one head is judged, the first or the last. */
static void judge_head(struct case_spec *spec, int32_t variant)
{
    spec->chosen_head = variant ? spec->num_kv_heads - 1 : 0;
}

/* ---- Cross attention without a position ------------------------------------------------------ */

static void set_position_rule(attn_layer_group *group, int which)
{
    if (which == 0)
        group->window_left = 5;
    else if (which == 1)
        group->window_right = 0;
    else if (which == 2)
        group->attention_chunk = 16;
    else
        group->flags |= ATTN_GROUP_HAS_ALIBI;
}

static void run_positionless(struct check_run *run)
{
    static const struct grid_choice cross[GRID_MAX_CHOICES + 1] = {{AXIS_TYPE, BIT(TYPE_CROSS)},
                                                                   {AXIS_WINDOW, BIT(WINDOW_NONE)}};
    static const char *const names[] = {"window_left 5", "window_right 0", "attention_chunk 16",
                                        "has_alibi"};
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    const attn_options *options;
    for (int which = 0; which < 4 && numerics_spec(run, grid, cross, &spec, &options); which++) {
        struct spec_problem posed;
        attn_verdict verdict = {.struct_size = sizeof verdict};
        spec_problem_init(&posed, &spec, &run->subject->device->info);
        set_position_rule(&posed.group, which);
        attn_status status = run->subject->type->query(
            run->subject->type, options, run->subject->services, &posed.problem, &verdict, NULL);
        bool child = run->subject->type->flags & ATTN_BACKEND_COMPOSITE;
        if (status != ATTN_INVALID_ARGUMENT && !(child && status == ATTN_CHILD_FAILED))
            check_fail(run,
                       "query of cross attention with %s gives %s, supported %u: accepted "
                       "INVALID_ARGUMENT",
                       names[which], host_status_name(status), verdict.supported);
    }
}

/* ---- Partial results ------------------------------------------------------------------------- */

/* The keys of each sequence in two parts; of one part, and of a second sequence, there are none. */
static void split_keys(const struct case_spec *whole, struct case_spec *front,
                       struct case_spec *back)
{
    *front = *back = *whole;
    for (int32_t s = 0; s < whole->num_sequences; s++) {
        int32_t keys = whole->sequences[s].prefix_len, at = s == 1 ? 0 : keys / 3;
        front->sequences[s].tokens_of = back->sequences[s].tokens_of = s;
        front->sequences[s].prefix_len = at;
        back->sequences[s].prefix_len = keys - at;
        back->sequences[s].first_key = at;
    }
    front->flags |= ATTN_FORWARD_OMIT_SINK; /* of partials to be merged one has the sink */
}

static void judge_merge(struct kind_case *k)
{
    struct partials parts = {.run = k->run, .count = 3, .units = 1};
    parts.specs[PARTIALS_WHOLE] = k->at.spec;
    split_keys(&k->at.spec, &parts.specs[PARTIALS_FIRST], &parts.specs[PARTIALS_FIRST + 1]);
    if (numerics_accepts(&k->at, &parts.specs[PARTIALS_FIRST]))
        partials_judge(&parts, k->at.options);
}

CHECK_RUN(merge, kind_use(run, judge_merge))

/* ---- The grid -------------------------------------------------------------------------------- */

static int32_t count_grid(const struct check_subject *subject)
{
    int32_t count = grid_of(subject)->num_points;
    return count > 0 ? count : 1;
}

/* A failure says which rules it may be about. */
static void run_point(struct check_run *run, const struct grid *grid,
                      const struct grid_point *point)
{
    struct case_spec spec;
    if (grid_accepts(grid, point, &spec, NULL, 0))
        numerics_run(run, &spec, grid_options(grid, point));
    else
        check_fail(run, "query accepted this case before, and refuses it now");
    size_t length = strlen(run->text);
    if (run->code == CHECK_FAIL && length + 16 < sizeof run->text) {
        memcpy(run->text + length, "; rules: ", 10);
        grid_rules(point, run->text + length + 9, sizeof run->text - length - 9);
    }
}

static void run_grid(struct check_run *run)
{
    struct grid *grid = grid_of(run->subject);
    if (run->index < grid->num_points)
        run_point(run, grid, &grid->points[run->index]);
    else
        check_skip(run, "%s", grid->refusal);
}

/* Fewer where each is likely to be compiled first. */
static int32_t count_random(const struct check_subject *subject)
{
    bool compiles = grid_of(subject)->notes & ATTN_NOTE_RUNTIME_COMPILATION;
    return subject->exhaustive ? 40 * RANDOM_CASES : compiles ? RANDOM_CASES / 5 : RANDOM_CASES;
}

static void run_random(struct check_run *run)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    if (numerics_random(run, grid, NULL, &point, &spec))
        run_point(run, grid, &point);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_num[] = {
    JUDGED_ROW("MEAN-02", mixed,
               "a MIXED batch has extend rows first, then one query for each sequence",
               SOFTMAX_CASES({AXIS_MODE, BIT(MODE_MIXED)}, {AXIS_LENGTHS, ALL}, {AXIS_ROW, ALL})),
    JUDGED_ROW("MEAN-02", mixed_decodes,
               "sequences of a MIXED batch that decode come first, or have several queries each",
               SOFTMAX_CASES({AXIS_MODE, BIT(MODE_MIXED)}, {AXIS_DECODES, ALL & ~BIT(DECODES_LAST)},
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_SPLITS)},
                             {AXIS_ROW, ALL}, {AXIS_PADDING, ALL})),
    JUDGED_ROW("MEAN-03", decode_rows,
               "row s of a DECODE batch belongs to sequence s, whatever q_indptr holds",
               SOFTMAX_CASES({AXIS_MODE, BIT(MODE_DECODE)}, {AXIS_LENGTHS, ALL})),
    JUDGED_ROW("MEAN-03", absolute_rows, "q_indptr holds absolute rows and need not start at 0",
               SOFTMAX_CASES({AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_MIXED) | BIT(MODE_VERIFY) |
                                             BIT(MODE_DRAFT)},
                             {AXIS_ROW, BIT(1)},
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_EMPTY)})),
    JUDGED_ROW("MEAN-04", positions, "query t of a request sits at prefix_len + t, key j at j",
               SOFTMAX_CASES({AXIS_MODE, ALL}, {AXIS_LENGTHS, ALL})),
    JUDGED_ROW("MEAN-05", explicit_positions,
               "explicit positions of new keys and their queries apply to window, chunk and ALiBi",
               SOFTMAX_CASES({AXIS_MASK, POSITIONS},
                             {AXIS_WINDOW, BIT(WINDOW_NONE) | BIT(WINDOW_15)},
                             {AXIS_CHUNK, BIT(0) | BIT(1)}, {AXIS_ALIBI, ALL})),
    JUDGED_ROW("MEAN-06", windows, "key j is seen iff i - window_left <= j <= i + window_right",
               SOFTMAX_CASES({AXIS_WINDOW, ALL}, BOTH_PHASES,
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_SPLITS)})),
    JUDGED_ROW("MEAN-06", encoder,
               "tokens of an encoder see each other, within the window on either side",
               SOFTMAX_CASES({AXIS_TYPE, BIT(TYPE_ENCODER_ONLY)},
                             {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE) |
                                               BIT(WINDOW_BOTH) | BIT(WINDOW_RIGHT)},
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_ROWS)})),
    JUDGED_ROW(
        "MEAN-07", chunks, "with attention_chunk only keys of the query's chunk are seen",
        SOFTMAX_CASES({AXIS_CHUNK, ALL & ~BIT(0)}, BOTH_PHASES,
                      {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE) | BIT(WINDOW_15)})),
    JUDGED_ROW(
        "MEAN-08", cross, "cross attention sees all keys of the encoder",
        SOFTMAX_CASES({AXIS_TYPE, BIT(TYPE_CROSS)}, {AXIS_WINDOW, BIT(WINDOW_NONE)}, BOTH_PHASES,
                      {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED) | BIT(SOURCE_CACHE)})),
    JUDGED_ROW(
        "MEAN-08", cross_lengths,
        "an encoder may have no keys, fewer keys than there are queries, or many more",
        SOFTMAX_CASES({AXIS_TYPE, BIT(TYPE_CROSS)}, {AXIS_WINDOW, BIT(WINDOW_NONE)}, THREE_MODES,
                      {AXIS_LENGTHS, BIT(LENGTHS_EMPTY) | BIT(LENGTHS_SPLITS) | BIT(LENGTHS_ROWS)},
                      PLAIN_AND_QUANTISED)),
    CHECK_ROW("MEAN-08", positionless, NULL, 0,
              "query is INVALID_ARGUMENT for cross attention with a feature that needs positions"),
    JUDGED_ROW("MEAN-09", scores, "the score is scaled, biased by ALiBi, then capped",
               SOFTMAX_CASES({AXIS_CAP, ALL}, {AXIS_SCALE, ALL}, {AXIS_ALIBI, ALL}, BOTH_PHASES,
                             {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)})),
    JUDGED_ROW(
        "MEAN-09", alibi_ahead, "ALiBi uses the absolute distance, for keys after the query too",
        SOFTMAX_CASES({AXIS_ALIBI, BIT(1)}, {AXIS_CAP, BIT(0) | BIT(1)},
                      {AXIS_WINDOW, BIT(WINDOW_NONE) | BIT(WINDOW_BOTH) | BIT(WINDOW_RIGHT)})),
    JUDGED_ROW("MEAN-09", growing_scores,
               "results are right for scores that grow by more than 100 along the keys",
               SOFTMAX_CASES({AXIS_SCORES, BIT(1)}, {AXIS_LENGTHS, ALL}, BOTH_PHASES)),
    JUDGED_ROW("MEAN-10", masks,
               "with masks NONE, FULL and QLEN a query sees exactly the keys that the mask allows",
               SOFTMAX_CASES({AXIS_MASK, BIT(MASK_NONE) | CUSTOM_MASKS},
                             {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_VERIFY)},
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_ROWS)})),
    JUDGED_ROW(
        "MEAN-10", mask_none_narrowed, "window_left and chunk also narrow a batch with mask NONE",
        SOFTMAX_CASES({AXIS_MASK, BIT(MASK_NONE)}, {AXIS_WINDOW, BIT(WINDOW_15) | BIT(WINDOW_BOTH)},
                      {AXIS_CHUNK, BIT(0) | BIT(1)})),
    JUDGED_ROW("MEAN-11", custom_masks_narrowed,
               "a custom mask replaces window_right and the chunk's rule j <= i, and nothing else",
               SOFTMAX_CASES({AXIS_MASK, CUSTOM_MASKS},
                             {AXIS_WINDOW, BIT(WINDOW_15) | BIT(WINDOW_BOTH) | BIT(WINDOW_RIGHT)},
                             {AXIS_CHUNK, BIT(0) | BIT(1)})),
    JUDGED_ROW("MEAN-12", sinks,
               "a sink is one more logit in the denominator, unless it is omitted",
               SOFTMAX_CASES(
                   {AXIS_SINK, BIT(SINK_GIVEN) | BIT(SINK_OMITTED)}, BOTH_PHASES,
                   {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_EMPTY) | BIT(LENGTHS_SPLITS)})),
    JUDGED_ROW(
        "MEAN-13", lse, "the LSE is the natural logarithm of the sum of exp(score), with the sink",
        SOFTMAX_CASES({AXIS_LSE, BIT(0)}, {AXIS_SINK, ALL}, {AXIS_SCORES, ALL}, BOTH_PHASES)),
    JUDGED_ROW("MEAN-14", empty_rows,
               "a row that sees no key has output 0 and LSE -inf, or the sink as LSE",
               SOFTMAX_CASES({AXIS_MASK, CUSTOM_MASKS},
                             {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)},
                             {AXIS_LENGTHS, BIT(LENGTHS_EMPTY) | BIT(LENGTHS_SHORT)})),
    JUDGED_ROW("MEAN-14", no_keys,
               "a sequence without keys has output 0 and LSE -inf, or the sink as LSE",
               SOFTMAX_CASES({AXIS_SOURCE, BIT(SOURCE_PREFIX)}, {AXIS_MASK, BIT(MASK_NONE)},
                             {AXIS_LENGTHS, BIT(LENGTHS_EMPTY) | BIT(LENGTHS_SHORT)},
                             {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)}, BOTH_PHASES)),
    FOUND_ROW("MEAN-15", merge, "results over parts of the keys merge to the result over all",
              SOFTMAX_CASES({AXIS_SOURCE, BIT(SOURCE_PREFIX)}, {AXIS_MASK, BIT(MASK_NONE)},
                            {AXIS_LSE, BIT(0)}, {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)},
                            BOTH_PHASES)),
    JUDGED_ROW("MEAN-16", multi_item, "a token of an item sees the prefix and its own item",
               SOFTMAX_CASES({AXIS_MASK, BIT(MASK_ITEMS)},
                             {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_15)},
                             {AXIS_LENGTHS, ALL})),
    JUDGED_ROW("MEAN-17", heads, "query head h reads KV head h / (num_q_heads / num_kv_heads)",
               SOFTMAX_CASES({AXIS_HEADS, ALL}, BOTH_PHASES)),
    JUDGED_ROW("KV-01", saved,
               "new keys and values are written to out_cache_loc; a row whose slot is -1 is "
               "written nowhere",
               SOFTMAX_CASES({AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_SOME_SAVED)},
                             {AXIS_SLOTS, ALL},
                             {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_ROWS)},
                             {AXIS_V_DIM, BIT(0) | BIT(2)}, THREE_MODES)),
    JUDGED_ROW("KV-02", sources, "new keys come from the arguments, others from the cache",
               SOFTMAX_CASES({AXIS_SOURCE, ALL}, BOTH_PHASES, PLAIN_AND_QUANTISED)),
    JUDGED_ROW("KV-02", partials, "without k and v only the cache is read",
               SOFTMAX_CASES({AXIS_SOURCE, BIT(SOURCE_PREFIX)}, {AXIS_MASK, BIT(MASK_NONE)},
                             BOTH_PHASES, PLAIN_AND_QUANTISED)),
    JUDGED_ROW(
        "KV-03", read_only_layers,
        "a layer that reads another layer's buffer reads the keys that the other layer wrote",
        SOFTMAX_CASES({AXIS_SOURCE, BIT(SOURCE_SHARED)}, {AXIS_KV, ALL}, BOTH_PHASES)),
    JUDGED_ROW("KV-04", quantised,
               "stored = x / scale rounded to nearest even, read = stored * scale",
               SOFTMAX_CASES(QUANTISED, {AXIS_MODE, ALL}, {AXIS_LAYOUT, ALL})),
    JUDGED_ROW("KV-04", limits,
               "values beyond the largest are saturated, ties go to even, NaN stays NaN",
               SOFTMAX_VARIED(make_special, 1, {AXIS_KV, ALL}, {AXIS_DTYPE, ALL}, BOTH_PHASES,
                              {AXIS_WINDOW, BIT(WINDOW_CAUSAL)}, {AXIS_CHUNK, BIT(0)},
                              {AXIS_SOURCE, BIT(SOURCE_SAVED)})),
    JUDGED_ROW("KV-13", sequence_scales, "each sequence of a batch has its own scales",
               SOFTMAX_CASES({AXIS_KV, BIT(KV_E4M3_PER_SEQ_HEAD)}, {AXIS_MODE, ALL}, SAVED_OR_NOT)),
    JUDGED_ROW("KV-14", token_scales, "each slot has its own scales; new tokens are read as given",
               SOFTMAX_CASES({AXIS_KV, BIT(KV_E4M3_PER_TOKEN_HEAD)}, {AXIS_MODE, ALL},
                             {AXIS_SOURCE, ALL & ~BIT(SOURCE_SHARED)})),
    JUDGED_ROW(
        "KV-16", new_kv, "new k and v whose type differs from q's are read and saved by value",
        SOFTMAX_CASES({AXIS_INPUTS, ALL & ~BIT(INPUTS_PLAIN)}, BOTH_PHASES,
                      {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3) | BIT(KV_E4M3_PER_HEAD)},
                      {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED) | BIT(SOURCE_SHARED)})),
    JUDGED_ROW("MEAN-22", input_scales, "q, k and v in fp8 are read as value times scale",
               SOFTMAX_CASES({AXIS_INPUTS, ALL & ~BIT(INPUTS_PLAIN)}, {AXIS_MODE, ALL},
                             PLAIN_AND_QUANTISED, {AXIS_HEADS, BIT(0) | BIT(1) | BIT(2)})),
    JUDGED_ROW(
        "MEAN-23", out_scale, "an fp8 output is divided by its scale, rounded once and saturated",
        SOFTMAX_CASES({AXIS_OUT, BIT(OUT_E4M3)},
                      {AXIS_INPUTS, BIT(INPUTS_PLAIN) | BIT(INPUTS_E4M3) | BIT(INPUTS_Q_E4M3)},
                      BOTH_PHASES, PLAIN_AND_QUANTISED, {AXIS_SCORES, ALL},
                      {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_EMPTY)})),
    JUDGED_ROW("MEAN-22", input_scales_e5m2, "q, k and v in e5m2 are read as value times scale",
               SOFTMAX_VARIED(numerics_make_e5m2, 1, {AXIS_INPUTS, ALL & ~BIT(INPUTS_PLAIN)},
                              BOTH_PHASES, {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E5M2)})),
    JUDGED_ROW("MEAN-23", out_scale_e5m2, "an e5m2 output is divided by its scale and rounded once",
               SOFTMAX_VARIED(numerics_make_e5m2, 1, {AXIS_OUT, BIT(OUT_E4M3)},
                              {AXIS_INPUTS, BIT(INPUTS_PLAIN) | BIT(INPUTS_E4M3)}, BOTH_PHASES)),
    JUDGED_ROW("STRUCT-10", places,
               "results are right for operands with exactly the alignment of the problem",
               SOFTMAX_CASES({AXIS_PLACE, ALL}, BOTH_PHASES, {AXIS_LAYOUT, ALL})),
    JUDGED_ROW("STRUCT-11", kv_strides, "the caches of keys and values may have different strides",
               SOFTMAX_CASES({AXIS_PLACE, BIT(PLACE_ANY) | BIT(PLACE_KV_EQUAL)}, BOTH_PHASES,
                             SAVED_OR_NOT)),
    JUDGED_ROW("KV-06", pages,
               "a slot is page * page_size + offset, in any order of pages; unused slots do not "
               "affect results",
               SOFTMAX_CASES({AXIS_PAGE, ALL}, {AXIS_SLOTS, ALL}, {AXIS_LAYOUT, ALL})),
    JUDGED_ROW("KV-06", unseen, "keys that no query sees may be NaN and change nothing",
               SOFTMAX_CASES({AXIS_WINDOW, BIT(WINDOW_15) | BIT(WINDOW_BOTH)},
                             {AXIS_PAGE, BIT(0) | BIT(1)}, SAVED_OR_NOT,
                             {AXIS_MASK, BIT(MASK_LAYER) | BIT(MASK_FULL)}, BOTH_PHASES)),
    JUDGED_ROW(
        "MEAN-21", chosen_keys,
        "a row of a sparse layer sees exactly the keys whose slots its call lists",
        SPARSE_CASES(CHOICE_GIVEN, {AXIS_MODE, ALL}, {AXIS_FORM, ALL},
                     {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_CACHE) | BIT(SOURCE_SHARED)},
                     {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_EMPTY)})),
    JUDGED_ROW("MEAN-21", chosen_from_caches,
               "sparse layers read chosen keys from caches of any type and layout",
               SPARSE_CASES(CHOICE_GIVEN, {AXIS_KV, ALL}, {AXIS_LAYOUT, ALL}, {AXIS_PAGE, ALL})),
    JUDGED_ROW("MEAN-21", chosen_blocks,
               "in its listed blocks, a row sees the keys that the layer's window and causal rule "
               "allow, for all heads",
               SPARSE_CASES(CHOICE_BLOCKS, {AXIS_MODE, ALL}, {AXIS_PAGE, 3},
                            {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_EMPTY)})),
    JUDGED_ROW("MEAN-21", blocks_of_heads, "each KV head of a row has its own list of blocks",
               SOFTMAX_VARIED(judge_head, 2, {AXIS_CHOICE, BIT(CHOICE_BLOCKS_OF_HEADS)},
                              {AXIS_MODE, ALL}, {AXIS_HEADS, BIT(0) | BIT(1)}, SAVED_OR_NOT)),
    JUDGED_ROW("CAPS-09", host_needed, "a batch needs only the host arrays that the verdict names",
               SOFTMAX_VARIED(host_needed, 1, THREE_MODES, {AXIS_FORM, ALL},
                              {AXIS_MASK, BIT(MASK_LAYER) | BIT(MASK_FULL)}, {AXIS_TYPE, ALL},
                              {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE)})),
    JUDGED_ROW("CAPS-09", host_some,
               "each host array that the verdict does not name may be present or absent",
               SOFTMAX_VARIED(host_some, 1, THREE_MODES, {AXIS_FORM, ALL},
                              {AXIS_MASK, BIT(MASK_LAYER) | BIT(MASK_FULL)}, {AXIS_TYPE, ALL},
                              {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_NONE)})),
    JUDGED_ROW("KV-08", index_forms, "each form of KV indices gives the same result",
               SOFTMAX_CASES({AXIS_FORM, ALL}, {AXIS_PAGE, ALL}, BOTH_PHASES,
                             {AXIS_SLOTS, BIT(SLOTS_CONTIGUOUS) | BIT(SLOTS_SHUFFLED_PAGES)})),
    CHECK_CASES("INVAR-01", grid,
                "attention is right for every pair of axis values that query accepts"),
    CHECK_ROW("INVAR-01", random, count_random, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE,
              "attention is right for random problems that query accepts"),
    {.rule = NULL},
};
