/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: the meaning of attention, against the oracle: groups MEAN, KV and the pass rule.
 *
 * A check proves one rule on cases that are plain except for the subject of the rule: a product of
 * values of a few axes of the grid. INVAR-01.grid covers all pairs of values, INVAR-01.random
 * random problems. */
#include "host/check/cases/kind.h"
#include "host/check/numerics/partials.h"

#include "host/base/error.h"

#include <string.h>

enum { RANDOM_CASES = 120 };

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
    static const struct grid_choice cross[GRID_MAX_CHOICES + 1] = {OF(TYPE, CROSS),
                                                                   OF(WINDOW, NONE)};
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

/* ---- The grid -------------------------------------------------------------------------------- */

static int32_t count_grid(const struct check_subject *subject)
{
    int32_t count = grid_of(subject)->num_points;
    return count > 0 ? count : 1;
}

/* A failure lists the rules that the case exercises. */
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
    bool compiles = grid_of(subject)->traits & ATTN_TRAIT_RUNTIME_COMPILATION;
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
    ROW("MEAN-02", mixed, "a MIXED batch has extend rows first, then one query for each sequence",
        SOFTMAX(OF(MODE, MIXED), EACH(LENGTHS), EACH(ROW))),
    ROW("MEAN-02", mixed_decodes,
        "sequences that decode may come first in a MIXED batch, and may have several queries each",
        SOFTMAX(OF(MODE, MIXED), BUT(DECODES, LAST), OF(LENGTHS, PAGES, SPLITS), EACH(ROW),
                EACH(PADDING))),
    ROW("MEAN-03", decode_rows,
        "row s of a DECODE batch belongs to sequence s, whatever q_indptr holds",
        SOFTMAX(OF(MODE, DECODE), EACH(LENGTHS))),
    ROW("MEAN-03", absolute_rows, "q_indptr holds absolute rows and need not start at 0",
        SOFTMAX(BUT(MODE, DECODE), NTH(ROW, 1), OF(LENGTHS, PAGES, EMPTY))),
    ROW("MEAN-04", positions, "query t of a request sits at prefix_len + t, key j at j",
        SOFTMAX(EACH(MODE), EACH(LENGTHS))),
    ROW("MEAN-05", explicit_positions,
        "explicit positions of new keys and their queries apply to window, chunk and ALiBi",
        SOFTMAX(OF(MASK, FULL_POSITIONS, QLEN_POSITIONS), OF(WINDOW, NONE, 15), FIRST(CHUNK, 2),
                EACH(ALIBI))),
    ROW("MEAN-06", windows, "key j is seen iff i - window_left <= j <= i + window_right",
        SOFTMAX(EACH(WINDOW), BOTH_PHASES, OF(LENGTHS, PAGES, SPLITS))),
    ROW("MEAN-06", encoder, "tokens of an encoder see each other, within the window on either side",
        SOFTMAX(OF(TYPE, ENCODER_ONLY), OF(WINDOW, CAUSAL, NONE, BOTH, RIGHT),
                OF(LENGTHS, PAGES, ROWS))),
    ROW("MEAN-07", chunks, "with attention_chunk only keys of the query's chunk are seen",
        SOFTMAX({AXIS_CHUNK, ALL & ~BIT(0)}, BOTH_PHASES, OF(WINDOW, CAUSAL, NONE, 15))),
    ROW("MEAN-08", cross, "cross attention sees all keys of the encoder",
        SOFTMAX(OF(TYPE, CROSS), OF(WINDOW, NONE), BOTH_PHASES, OF(SOURCE, SAVED, UNSAVED, CACHE))),
    ROW("MEAN-08", cross_lengths,
        "an encoder may have no keys, fewer keys than there are queries, or many more",
        SOFTMAX(OF(TYPE, CROSS), OF(WINDOW, NONE), THREE_MODES, OF(LENGTHS, EMPTY, SPLITS, ROWS),
                PLAIN_AND_QUANTISED)),
    CHECK_ROW("MEAN-08", positionless, NULL, 0,
              "query is INVALID_ARGUMENT for cross attention with a feature that needs positions"),
    ROW("MEAN-09", scores, "the score is scaled, biased by ALiBi, then capped",
        SOFTMAX(EACH(CAP), EACH(SCALE), EACH(ALIBI), BOTH_PHASES, OF(SINK, NONE, GIVEN))),
    ROW("MEAN-09", alibi_ahead, "ALiBi uses the absolute distance, for keys after the query too",
        SOFTMAX(NTH(ALIBI, 1), FIRST(CAP, 2), OF(WINDOW, NONE, BOTH, RIGHT))),
    ROW("MEAN-09", growing_scores,
        "results are right for scores that grow by more than 100 along the keys",
        SOFTMAX(NTH(SCORES, 1), EACH(LENGTHS), BOTH_PHASES)),
    ROW("MEAN-10", masks,
        "with masks NONE, FULL and QLEN a query sees exactly the keys that the mask allows",
        SOFTMAX(OF(MASK, NONE, FULL, QLEN), OF(MODE, EXTEND, DECODE, VERIFY),
                OF(LENGTHS, PAGES, ROWS))),
    ROW("MEAN-10", mask_none_narrowed, "window_left and chunk also narrow a batch with mask NONE",
        SOFTMAX(OF(MASK, NONE), OF(WINDOW, 15, BOTH), FIRST(CHUNK, 2))),
    ROW("MEAN-11", custom_masks_narrowed,
        "a custom mask replaces window_right and the chunk's rule j <= i, and nothing else",
        SOFTMAX(OF(MASK, FULL, QLEN), OF(WINDOW, 15, BOTH, RIGHT), FIRST(CHUNK, 2))),
    ROW("MEAN-12", sinks, "a sink is one more logit in the denominator, unless it is omitted",
        SOFTMAX(OF(SINK, GIVEN, OMITTED), BOTH_PHASES, OF(LENGTHS, PAGES, EMPTY, SPLITS))),
    ROW("MEAN-13", lse, "the LSE is the natural logarithm of the sum of exp(score), with the sink",
        SOFTMAX(NTH(LSE, 0), EACH(SINK), EACH(SCORES), BOTH_PHASES)),
    ROW("MEAN-14", empty_rows,
        "a row that sees no key has output 0 and LSE -inf, or the sink as LSE",
        SOFTMAX(OF(MASK, FULL, QLEN), OF(SINK, NONE, GIVEN), OF(LENGTHS, EMPTY, SHORT))),
    ROW("MEAN-14", no_keys, "a sequence without keys has output 0 and LSE -inf, or the sink as LSE",
        SOFTMAX(OF(SOURCE, PREFIX), OF(MASK, NONE), OF(LENGTHS, EMPTY, SHORT),
                OF(SINK, NONE, GIVEN), BOTH_PHASES)),
    OWN_ROW("MEAN-15", merge, judge_merge,
            "results over parts of the keys merge to the result over all",
            SOFTMAX(OF(SOURCE, PREFIX), OF(MASK, NONE), NTH(LSE, 0), OF(SINK, NONE, GIVEN),
                    BOTH_PHASES)),
    ROW("MEAN-16", multi_item, "a token of an item sees the prefix and its own item",
        SOFTMAX(OF(MASK, ITEMS), OF(WINDOW, CAUSAL, 15), EACH(LENGTHS))),
    ROW("MEAN-17", heads, "query head h reads KV head h / (num_q_heads / num_kv_heads)",
        SOFTMAX(EACH(HEADS), BOTH_PHASES)),
    ROW("KV-01", saved,
        "new keys and values are written to out_cache_loc; a row whose slot is -1 is "
        "written nowhere",
        SOFTMAX(OF(SOURCE, SAVED, SOME_SAVED), EACH(SLOTS), OF(LENGTHS, PAGES, ROWS),
                {AXIS_V_DIM, BIT(0) | BIT(2)}, THREE_MODES)),
    ROW("KV-02", sources, "new keys come from the arguments, others from the cache",
        SOFTMAX(EACH(SOURCE), BOTH_PHASES, PLAIN_AND_QUANTISED)),
    ROW("KV-02", partials, "without k and v only the cache is read",
        SOFTMAX(OF(SOURCE, PREFIX), OF(MASK, NONE), BOTH_PHASES, PLAIN_AND_QUANTISED)),
    ROW("KV-03", read_only_layers,
        "a layer that reads another layer's buffer reads the keys that the other layer wrote",
        SOFTMAX(OF(SOURCE, SHARED), EACH(KV), BOTH_PHASES)),
    ROW("KV-04", quantised, "stored = x / scale rounded to nearest even, read = stored * scale",
        SOFTMAX(QUANTISED, EACH(MODE), EACH(LAYOUT))),
    ROW("KV-04", limits, "values beyond the largest are saturated, ties go to even, NaN stays NaN",
        SOFTMAX_VARIED(make_special, 1, EACH(KV), EACH(DTYPE), BOTH_PHASES, OF(WINDOW, CAUSAL),
                       NTH(CHUNK, 0), OF(SOURCE, SAVED))),
    ROW("KV-13", sequence_scales, "each sequence of a batch has its own scales",
        SOFTMAX(OF(KV, E4M3_PER_SEQ_HEAD), EACH(MODE), SAVED_OR_NOT)),
    ROW("KV-14", token_scales, "each slot has its own scales; new tokens are read as given",
        SOFTMAX(OF(KV, E4M3_PER_TOKEN_HEAD), EACH(MODE), BUT(SOURCE, SHARED))),
    ROW("KV-16", new_kv, "new k and v whose type differs from q's are read and saved by value",
        SOFTMAX(BUT(INPUTS, PLAIN), BOTH_PHASES, OF(KV, AS_Q, E4M3, E4M3_PER_HEAD),
                OF(SOURCE, SAVED, UNSAVED, SHARED))),
    ROW("MEAN-22", input_scales, "q, k and v in fp8 are read as value times scale",
        SOFTMAX(BUT(INPUTS, PLAIN), EACH(MODE), PLAIN_AND_QUANTISED, FIRST(HEADS, 3))),
    ROW("MEAN-23", out_scale, "an fp8 output is divided by its scale, rounded once and saturated",
        SOFTMAX(OF(OUT, E4M3), OF(INPUTS, PLAIN, E4M3, Q_E4M3), BOTH_PHASES, PLAIN_AND_QUANTISED,
                EACH(SCORES), OF(LENGTHS, PAGES, EMPTY))),
    ROW("MEAN-22", input_scales_e5m2, "q, k and v in e5m2 are read as value times scale",
        SOFTMAX_VARIED(numerics_make_e5m2, 1, BUT(INPUTS, PLAIN), BOTH_PHASES, OF(KV, AS_Q, E5M2))),
    ROW("MEAN-23", out_scale_e5m2, "an e5m2 output is divided by its scale and rounded once",
        SOFTMAX_VARIED(numerics_make_e5m2, 1, OF(OUT, E4M3), OF(INPUTS, PLAIN, E4M3), BOTH_PHASES)),
    ROW("STRUCT-10", places,
        "results are right for operands with exactly the alignment of the problem",
        SOFTMAX(EACH(PLACE), BOTH_PHASES, EACH(LAYOUT))),
    ROW("STRUCT-11", kv_strides, "the caches of keys and values may have different strides",
        SOFTMAX(OF(PLACE, ANY, KV_EQUAL), BOTH_PHASES, SAVED_OR_NOT)),
    ROW("KV-06", pages,
        "a slot is page * page_size + offset, in any order of pages; unused slots do not "
        "affect results",
        SOFTMAX(EACH(PAGE), EACH(SLOTS), EACH(LAYOUT))),
    ROW("KV-06", unseen, "keys that no query sees may be NaN and change nothing",
        SOFTMAX(OF(WINDOW, 15, BOTH), FIRST(PAGE, 2), SAVED_OR_NOT, OF(MASK, LAYER, FULL),
                BOTH_PHASES)),
    ROW("MEAN-21", chosen_keys,
        "a row of a sparse layer sees exactly the keys whose slots its call lists",
        SPARSE(GIVEN, EACH(MODE), EACH(FORM), OF(SOURCE, SAVED, CACHE, SHARED),
               OF(LENGTHS, PAGES, EMPTY))),
    ROW("MEAN-21", chosen_from_caches,
        "sparse layers read chosen keys from caches of any type and layout",
        SPARSE(GIVEN, EACH(KV), EACH(LAYOUT), EACH(PAGE))),
    ROW("MEAN-21", chosen_blocks,
        "in its listed blocks, a row sees the keys that the layer's window and causal rule "
        "allow, for all heads",
        SPARSE(BLOCKS, EACH(MODE), FIRST(PAGE, 2), OF(LENGTHS, PAGES, EMPTY))),
    ROW("MEAN-21", blocks_of_heads, "each KV head of a row has its own list of blocks",
        SOFTMAX_VARIED(judge_head, 2, OF(CHOICE, BLOCKS_OF_HEADS), EACH(MODE), FIRST(HEADS, 2),
                       SAVED_OR_NOT)),
    ROW("CAPS-09", host_needed, "a batch needs only the host arrays that the verdict names",
        SOFTMAX_VARIED(host_needed, 1, THREE_MODES, EACH(FORM), OF(MASK, LAYER, FULL), EACH(TYPE),
                       OF(WINDOW, CAUSAL, NONE))),
    ROW("CAPS-09", host_some,
        "each host array that the verdict does not name may be present or absent",
        SOFTMAX_VARIED(host_some, 1, THREE_MODES, EACH(FORM), OF(MASK, LAYER, FULL), EACH(TYPE),
                       OF(WINDOW, CAUSAL, NONE))),
    ROW("KV-08", index_forms, "each form of KV indices gives the same result",
        SOFTMAX(EACH(FORM), EACH(PAGE), BOTH_PHASES, OF(SLOTS, CONTIGUOUS, SHUFFLED_PAGES))),
    CHECK_CASES("INVAR-01", grid,
                "attention is right for every pair of axis values that query accepts"),
    CHECK_ROW("INVAR-01", random, count_random, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE,
              "attention is right for random problems that query accepts"),
    {.rule = NULL},
};
