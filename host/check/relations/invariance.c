/* SPDX-License-Identifier: Apache-2.0
 *
 * invariance.c: what must not change a result: the rest of the batch, its order, its pages, its
 * chunks, padding, another run, other threads, a graph.
 *
 * A check makes a case, the base, and variants of it: the same tokens in other batches. Each is
 * judged by the oracle; where a backend has declared it, rows are also bit-identical.
 */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/other_host.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

#define PLAIN_AND_QUANTISED                                                                        \
    {                                                                                              \
        AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3)                                                       \
    }
#define SAVED                                                                                      \
    {                                                                                              \
        AXIS_SOURCE, BIT(SOURCE_SAVED)                                                             \
    }
#define EXTEND                                                                                     \
    {                                                                                              \
        AXIS_MODE, BIT(MODE_EXTEND)                                                                \
    }
#define SOME_RULES                                                                                 \
    {                                                                                              \
        AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_15)                                           \
    }

/* ---- A base and its variants ----------------------------------------------------------------- */

/* A check at work. */
struct family {
    struct check_run *run;
    struct grid *grid;
    const attn_options *options;
    struct case_spec spec; /* of the base */
    struct forward_case *base;
    struct case_session *session; /* serves the base and all variants */
    uint32_t needs;               /* ATTN_NOTE_*: what the backend has to declare */
    bool same_bits;               /* rows of variants are those of the base */
};

static void family_finish(struct family *family)
{
    case_session_destroy(family->session);
    forward_case_destroy(family->base);
    grid_release(family->run->subject, family->grid);
}

/* Which specs a check is about: points of the grid, or latent layers. */
struct family_kind {
    const struct grid_choice *choices;
    const struct mla_choice *latent;
};

/* The spec of the base is in place. */
static bool family_find(struct family *family, struct check_run *run, struct family_kind kind)
{
    *family = (struct family){.run = run, .grid = grid_of(run->subject)};
    if (!family->grid) {
        check_fail(run, "no memory for the grid");
        return false;
    }
    return kind.latent
               ? numerics_mla_spec(run, family->grid, kind.latent, &family->spec, &family->options)
               : numerics_spec(run, family->grid, kind.choices, &family->spec, &family->options);
}

/* Does the backend declare the notes for this problem, if not by itself then when it is asked to?
 * What it has to be asked for stays in the problem. */
static bool declares(struct family *family)
{
    struct check_run *run = family->run;
    const struct check_subject *subject = run->subject;
    attn_problem *problem = &family->base->posed.problem;
    for (int asked = 0; asked < 2; asked++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        problem->need_notes = asked ? family->needs : 0;
        attn_status status = subject->type->query(subject->type, family->options, subject->services,
                                                  problem, &verdict, NULL);
        if (status == ATTN_OK && verdict.supported &&
            (verdict.notes & family->needs) == family->needs)
            return true;
    }
    check_skip(run, "the backend does not declare %s here",
               family->needs & ATTN_NOTE_BATCH_INVARIANT ? "BATCH_INVARIANT" : "DETERMINISTIC");
    return false;
}

/* Make the base and judge it. `modes` are those of variants, other than its own. */
static bool family_begin(struct family *family, uint32_t modes)
{
    struct check_run *run = family->run;
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    char reason[512] = "";
    if (!grid_accepts_spec(family->grid, family->options, &family->spec, reason, sizeof reason)) {
        check_skip(run, "%s", reason);
        return false;
    }
    family->base = numerics_case(run, &family->spec, NULL);
    if (!family->base)
        return false;
    family->base->posed.bounds.modes |= modes;
    if (family->needs && !declares(family))
        return false;
    family->session = numerics_session(run, family->base, &family->spec, family->options, &setup);
    return family->session && numerics_judge(run, family->session, family->base, &family->spec);
}

/* The first row of a variant that differs from the base's in a bit. */
static bool same_rows(struct family *family, const struct forward_case *variant)
{
    const struct forward_case *base = family->base;
    const struct case_spec *spec = &variant->spec;
    size_t size = (size_t)spec->v_head_dim * attn_dtype_size(spec->out_dtype);
    for (int32_t s = 0; s < spec->num_sequences; s++)
        for (int32_t t = 0; t < variant->lengths.q_len[s]; t++)
            for (int32_t head = 0; head < spec->num_q_heads; head++) {
                int32_t from = spec->sequences[s].tokens_of;
                int32_t row = spec->sequences[s].first_query + t;
                const float *lse = forward_case_lse(variant, s, t, head);
                if (memcmp(forward_case_output(variant, s, t, head),
                           forward_case_output(base, from, row, head), size) == 0 &&
                    (!lse ||
                     memcmp(lse, forward_case_lse(base, from, row, head), sizeof *lse) == 0))
                    continue;
                check_fail(family->run,
                           "query %d of sequence %d, head %d, has other bits than the same query "
                           "(%d of sequence %d) in the batch it is compared with",
                           t, s, head, row, from);
                return false;
            }
    return true;
}

static bool family_judge(struct family *family, const struct case_spec *spec)
{
    struct forward_case *variant = numerics_case(family->run, spec, family->base);
    bool good = variant && numerics_judge(family->run, family->session, variant, spec) &&
                (!family->same_bits || same_rows(family, variant));
    forward_case_destroy(variant);
    return good;
}

/* The base's spec as one of a variant: its sequences are their own. */
static struct case_spec variant_of(const struct family *family)
{
    struct case_spec spec = family->spec;
    for (int32_t s = 0; s < spec.num_sequences; s++)
        spec.sequences[s].tokens_of = s;
    return spec;
}

static void set_sequences(struct case_spec *spec, int32_t count, const int32_t lengths[][2])
{
    spec->num_sequences = count;
    for (int32_t s = 0; s < count; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = lengths[s][0], .num_new = lengths[s][1]};
}

/* ---- The rest of the batch ------------------------------------------------------------------- */

static void judge_permuted(struct family *family)
{
    int32_t count = family->spec.num_sequences;
    for (int32_t shift = 1; shift < count; shift++) {
        struct case_spec spec = variant_of(family);
        for (int32_t s = 0; s < count; s++) {
            spec.sequences[s] = family->spec.sequences[(s + shift) % count];
            spec.sequences[s].tokens_of = (s + shift) % count;
        }
        if (!family_judge(family, &spec))
            return;
    }
}

/* Halves, then each sequence alone. */
static void judge_split(struct family *family)
{
    int32_t count = family->spec.num_sequences;
    for (int32_t size = (count + 1) / 2; size > 0; size = size > 1 ? 1 : 0)
        for (int32_t first = 0; first < count; first += size) {
            struct case_spec spec = variant_of(family);
            spec.num_sequences = count - first < size ? count - first : size;
            memmove(spec.sequences, spec.sequences + first,
                    (size_t)spec.num_sequences * sizeof *spec.sequences);
            if (!family_judge(family, &spec))
                return;
        }
}

static void judge_padded(struct family *family)
{
    for (int32_t more = 1; more <= 3; more += 2) {
        struct case_spec spec = variant_of(family);
        spec.padded = spec.num_sequences + more;
        spec.fill = case_session_verdict(family->session)->graph_seq_len_fill;
        if (!family_judge(family, &spec))
            return;
    }
}

/* Room for padding is in the bounds already. */
static void run_lengths(struct check_run *run, struct family_kind kind, uint32_t needs,
                        int32_t count, const int32_t lengths[][2],
                        void (*judge)(struct family *family))
{
    struct family family;
    if (family_find(&family, run, kind)) {
        set_sequences(&family.spec, count, lengths);
        family.spec.loose_bounds = true;
        family.needs = needs;
        family.same_bits = needs != 0;
        if (family_begin(&family, 0))
            judge(&family);
    }
    family_finish(&family);
}

static void run_family(struct check_run *run, struct family_kind kind, uint32_t needs,
                       void (*judge)(struct family *family))
{
    static const int32_t lengths[][2] = {{17, 3}, {0, 20}, {64, 1}, {33, 8}};
    run_lengths(run, kind, needs, 4, lengths, judge);
}

/* Keys of three splits, as the sum of two is the same in either order: into how many parts a
 * sequence is cut goes by its share of the batch's work, so all are about as long. */
static void run_long(struct check_run *run, struct family_kind kind,
                     void (*judge)(struct family *family))
{
    static const int32_t lengths[][2] = {{1100, 1}, {1026, 3}, {1400, 1}, {1030, 2},
                                         {1200, 1}, {1140, 3}, {1060, 1}, {1320, 1}};
    run_lengths(run, kind, ATTN_NOTE_BATCH_INVARIANT, 8, lengths, judge);
}

/* ---- Another layer group --------------------------------------------------------------------- */

/* Equal but for what a query sees of the keys and how scores are scaled. */
static void judge_beside(struct family *family)
{
    const struct forward_case *base = family->base;
    attn_layer layer = {.struct_size = sizeof layer,
                        .layer_id = base->posed.layers[0].layer_id + 3};
    attn_layer_group group = base->posed.group;
    attn_problem problem = base->posed.problem;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    const struct check_subject *subject = family->run->subject;
    group.layers = &layer;
    group.window_left = group.window_left == 3 ? 4 : 3;
    group.sm_scale *= 2;
    problem.group = &group;
    attn_status status = subject->type->query(subject->type, family->options, subject->services,
                                              &problem, &verdict, NULL);
    if (status != ATTN_OK || !verdict.supported) {
        check_skip(family->run, "query refuses the same layers with a window");
        return;
    }
    struct case_session *alone = family->session;
    for (int last = 0; last < 2; last++) {
        const struct case_setup setup = {
            .kind = ATTN_METADATA_EAGER, .beside = &problem, .beside_last = last};
        struct case_spec spec = variant_of(family);
        family->session =
            numerics_session(family->run, base, &family->spec, family->options, &setup);
        bool good = family->session && family_judge(family, &spec);
        case_session_destroy(family->session);
        family->session = alone;
        if (!good)
            return;
    }
}

/* ---- Pages and chunks ------------------------------------------------------------------------ */

static void judge_pages(struct family *family)
{
    for (enum slot_order slots = 0; slots < SLOT_ORDERS; slots++) {
        struct case_spec spec = variant_of(family);
        spec.slots = slots;
        if (slots != family->spec.slots && !family_judge(family, &spec))
            return;
    }
}

/* Tokens [from, to) of each sequence are new, as far as they go; the ones before are in
 * the cache. */
static struct case_spec chunk_of(const struct family *family, int32_t from, int32_t to)
{
    struct case_spec spec = variant_of(family);
    for (int32_t s = 0; s < spec.num_sequences; s++) {
        struct case_sequence *sequence = &spec.sequences[s];
        int32_t length = sequence->num_new;
        sequence->prefix_len = sequence->first_query = from < length ? from : length;
        sequence->num_new = (to < length ? to : length) - sequence->prefix_len;
    }
    return spec;
}

static void judge_chunks(struct family *family)
{
    static const int32_t ends[] = {0, 1, 16, 23, 64, 70};
    for (int n = 0; n < 5; n++) {
        struct case_spec spec = chunk_of(family, ends[n], ends[n + 1]);
        if (!family_judge(family, &spec))
            return;
    }
}

static void judge_prefixes(struct family *family)
{
    static const int32_t prefixes[] = {1, 15, 16, 17, 36, 64};
    for (int n = 0; n < 6; n++) {
        struct case_spec spec = chunk_of(family, prefixes[n], 70);
        if (!family_judge(family, &spec))
            return;
    }
}

/* Every sequence that is long enough decodes its token at this position. */
static struct case_spec decode_at(const struct family *family, int32_t position)
{
    struct case_spec spec = variant_of(family);
    spec.mode = ATTN_MODE_DECODE;
    spec.first_row = 0;
    spec.num_sequences = 0;
    for (int32_t s = 0; s < family->spec.num_sequences; s++)
        if (position < family->spec.sequences[s].num_new)
            spec.sequences[spec.num_sequences++] = (struct case_sequence){
                .prefix_len = position, .num_new = 1, .tokens_of = s, .first_query = position};
    return spec;
}

static void judge_decodes(struct family *family)
{
    static const int32_t positions[] = {0, 1, 15, 16, 36, 63, 64, 69};
    for (int n = 0; n < 8; n++) {
        struct case_spec spec = decode_at(family, positions[n]);
        if (!family_judge(family, &spec))
            return;
    }
}

static void run_whole(struct check_run *run, struct family_kind kind, uint32_t modes,
                      void (*judge)(struct family *family))
{
    static const int32_t lengths[][2] = {{0, 70}, {0, 37}, {0, 16}};
    struct family family;
    if (family_find(&family, run, kind)) {
        set_sequences(&family.spec, 3, lengths);
        if (family_begin(&family, modes))
            judge(&family);
    }
    family_finish(&family);
}

/* ---- Another run ----------------------------------------------------------------------------- */

static bool judge_with_threads(struct family *family, uint32_t num_threads)
{
    struct check_run *run = family->run;
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct other_host other;
    host_error error;
    host_error_init(&error);
    attn_status status = other_host_init(&other, run->subject, num_threads, &error.base);
    if (status != ATTN_OK)
        numerics_report(run, &family->spec, status, host_error_text(&error));
    struct check_subject subject = *run->subject;
    struct check_run elsewhere = *run;
    struct case_session *session = family->session;
    elsewhere.subject = &subject;
    subject.services = status == ATTN_OK ? &other.node->services : NULL;
    family->session = status == ATTN_OK ? numerics_session(&elsewhere, family->base, &family->spec,
                                                           family->options, &setup)
                                        : NULL;
    struct case_spec spec = variant_of(family);
    bool good = family->session && family_judge(family, &spec);
    if (elsewhere.code != run->code && run->code == CHECK_PASS)
        check_fail(run, "with %u threads: %s", num_threads, elsewhere.text);
    case_session_destroy(family->session);
    family->session = session;
    other_host_finish(&other);
    return good;
}

static void judge_threads(struct family *family)
{
    if (family->run->subject->device->type != ATTN_DEVICE_CPU) {
        check_skip(family->run, "a GPU's threads are up to the backend");
        return;
    }
    for (uint32_t count = 1; count <= 4; count++)
        if (!judge_with_threads(family, count))
            return;
}

/* The same batch again, and in another instance. */
static void judge_again(struct family *family)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    struct case_spec spec = variant_of(family);
    for (int n = 0; n < 2; n++)
        if (!family_judge(family, &spec))
            return;
    struct case_session *first = family->session;
    family->session =
        numerics_session(family->run, family->base, &family->spec, family->options, &setup);
    if (family->session)
        family_judge(family, &spec);
    case_session_destroy(family->session);
    family->session = first;
}

static void run_repeated(struct check_run *run, struct family_kind kind,
                         void (*judge)(struct family *family))
{
    struct family family;
    if (family_find(&family, run, kind)) {
        family.needs = ATTN_NOTE_DETERMINISTIC;
        family.same_bits = true;
        if (family_begin(&family, 0))
            judge(&family);
    }
    family_finish(&family);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Can a batch like this be captured at this level? */
static bool is_capturable(const struct forward_case *c, uint32_t level)
{
    const struct case_lengths *l = &c->lengths;
    int64_t rows = l->first_row[l->num_seqs] - l->first_row[0];
    if (level == ATTN_GRAPH_SINGLE_TOKEN)
        return l->max_q_len == 1 && rows == l->num_seqs;
    if (level == ATTN_GRAPH_UNIFORM)
        return rows == (int64_t)l->num_seqs * l->max_q_len;
    return level == ATTN_GRAPH_ALWAYS;
}

/* A replay against the eager run, which was judged. */
static void judge_replay(struct family *family)
{
    struct check_run *run = family->run;
    const attn_verdict *verdict = case_session_verdict(family->session);
    const struct case_setup setup = {.kind = ATTN_METADATA_GRAPH, .exact_memory = true};
    if (!is_capturable(family->base, verdict->graph_level)) {
        check_skip(run, "query reports graph level %u, at which this batch cannot be captured",
                   verdict->graph_level);
        return;
    }
    struct case_spec spec = variant_of(family);
    struct forward_case *replayed = numerics_case(run, &spec, family->base);
    struct case_session *session =
        replayed ? numerics_session(run, replayed, &spec, family->options, &setup) : NULL;
    for (int n = 0; session && n < 3; n++)
        if (!numerics_judge(run, session, replayed, &spec) ||
            (verdict->notes & ATTN_NOTE_DETERMINISTIC && !same_rows(family, replayed)))
            break;
    case_session_destroy(session);
    forward_case_destroy(replayed);
}

static void run_graph(struct check_run *run, struct family_kind kind)
{
    struct family family;
    if (family_find(&family, run, kind) && family_begin(&family, 0))
        judge_replay(&family);
    family_finish(&family);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define FAMILY(name, call, ...)                                                                    \
    static const struct grid_choice name##_choices[GRID_MAX_CHOICES + 1] = {__VA_ARGS__};          \
    CHECK_COUNT(name, numerics_count(subject, name##_choices))                                     \
    static void run_##name(struct check_run *run)                                                  \
    {                                                                                              \
        const struct family_kind kind = {.choices = name##_choices};                               \
        call;                                                                                      \
    }

/* The same for latent layers of few dimensions, in these forms. */
#define LATENT(name, call, forms, ...)                                                             \
    static const struct mla_choice name##_choice = {                                               \
        forms, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), {__VA_ARGS__}};                        \
    CHECK_COUNT(name, numerics_mla_count(subject, &name##_choice))                                 \
    static void run_##name(struct check_run *run)                                                  \
    {                                                                                              \
        const struct family_kind kind = {.latent = &name##_choice};                                \
        call;                                                                                      \
    }

FAMILY(permuted_batch, run_family(run, kind, 0, judge_permuted), BOTH_PHASES, PLAIN_AND_QUANTISED,
       SOME_RULES)
FAMILY(split_batch, run_family(run, kind, 0, judge_split), BOTH_PHASES, PLAIN_AND_QUANTISED,
       SOME_RULES)
FAMILY(layer_groups, run_family(run, kind, 0, judge_beside), BOTH_PHASES, PLAIN_AND_QUANTISED,
       SOME_RULES)
FAMILY(eager_padding, run_family(run, kind, 0, judge_padded),
       {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)}, PLAIN_AND_QUANTISED,
       {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)})
FAMILY(permuted_pages, run_family(run, kind, 0, judge_pages), BOTH_PHASES, PLAIN_AND_QUANTISED,
       {AXIS_PAGE, BIT(0) | BIT(1) | BIT(2)})
FAMILY(chunked_prefill, run_whole(run, kind, 0, judge_chunks), EXTEND, SAVED, PLAIN_AND_QUANTISED,
       SOME_RULES)
FAMILY(prefix_or_none, run_whole(run, kind, 0, judge_prefixes), EXTEND, SAVED, PLAIN_AND_QUANTISED,
       SOME_RULES)
FAMILY(prefill_then_decode, run_whole(run, kind, ATTN_MODE_BIT(ATTN_MODE_DECODE), judge_decodes),
       EXTEND, SAVED, PLAIN_AND_QUANTISED, SOME_RULES)
FAMILY(same_batch, run_repeated(run, kind, judge_again), BOTH_PHASES,
       {AXIS_LENGTHS, BIT(LENGTHS_SPLITS) | BIT(LENGTHS_ROWS)}, {AXIS_DTYPE, 7})
FAMILY(any_threads, run_repeated(run, kind, judge_threads), BOTH_PHASES,
       {AXIS_LENGTHS, BIT(LENGTHS_SPLITS) | BIT(LENGTHS_ROWS)}, {AXIS_DTYPE, 7})
FAMILY(order, run_family(run, kind, ATTN_NOTE_BATCH_INVARIANT, judge_permuted), BOTH_PHASES,
       PLAIN_AND_QUANTISED, SOME_RULES)
FAMILY(company, run_family(run, kind, ATTN_NOTE_BATCH_INVARIANT, judge_split), BOTH_PHASES,
       PLAIN_AND_QUANTISED, SOME_RULES)
FAMILY(long_company, run_long(run, kind, judge_split), BOTH_PHASES, PLAIN_AND_QUANTISED)
FAMILY(padding, run_family(run, kind, ATTN_NOTE_BATCH_INVARIANT, judge_padded), BOTH_PHASES,
       PLAIN_AND_QUANTISED, SOME_RULES)
FAMILY(replay, run_graph(run, kind), {AXIS_MODE, 31}, {AXIS_PADDING, 3}, PLAIN_AND_QUANTISED,
       {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_SPLITS)},
       {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)})

#define BOTH_FORMS (MLA_ABSORBED | MLA_EXPANDED)
LATENT(mla_permuted_batch, run_family(run, kind, 0, judge_permuted), BOTH_FORMS, BOTH_PHASES,
       PLAIN_AND_QUANTISED)
LATENT(mla_split_batch, run_family(run, kind, 0, judge_split), BOTH_FORMS, BOTH_PHASES,
       PLAIN_AND_QUANTISED)
LATENT(mla_layer_groups, run_family(run, kind, 0, judge_beside), BOTH_FORMS, BOTH_PHASES)
LATENT(mla_eager_padding, run_family(run, kind, 0, judge_padded), BOTH_FORMS,
       {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)},
       {AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED)})
LATENT(mla_permuted_pages, run_family(run, kind, 0, judge_pages), BOTH_FORMS, BOTH_PHASES,
       {AXIS_PAGE, BIT(0) | BIT(1) | BIT(2)})
LATENT(mla_chunked_prefill, run_whole(run, kind, 0, judge_chunks), MLA_ABSORBED, EXTEND, SAVED,
       PLAIN_AND_QUANTISED)
LATENT(mla_prefix_or_none, run_whole(run, kind, 0, judge_prefixes), MLA_ABSORBED, EXTEND, SAVED,
       PLAIN_AND_QUANTISED)
LATENT(mla_prefill_then_decode,
       run_whole(run, kind, ATTN_MODE_BIT(ATTN_MODE_DECODE), judge_decodes), MLA_ABSORBED, EXTEND,
       SAVED, PLAIN_AND_QUANTISED, SOME_RULES)
LATENT(mla_same_batch, run_repeated(run, kind, judge_again), BOTH_FORMS, BOTH_PHASES)
LATENT(mla_any_threads, run_repeated(run, kind, judge_threads), BOTH_FORMS, BOTH_PHASES)
LATENT(mla_company, run_family(run, kind, ATTN_NOTE_BATCH_INVARIANT, judge_split), BOTH_FORMS,
       BOTH_PHASES)
LATENT(mla_long_company, run_long(run, kind, judge_split), MLA_ABSORBED, BOTH_PHASES)

const struct check check_invar[] = {
    CHECK_CASES("INVAR-01", permuted_batch, "the order of the sequences changes no result"),
    CHECK_CASES("INVAR-01", split_batch,
                "a batch split into parts gives the results of the whole batch"),
    CHECK_CASES("INVAR-01", layer_groups, "another layer group of the instance changes no result"),
    CHECK_CASES("INVAR-01", permuted_pages, "where the pages lie changes no result"),
    CHECK_CASES("INVAR-01", chunked_prefill,
                "a prefill in chunks gives the results of one prefill"),
    CHECK_CASES("INVAR-01", prefix_or_none,
                "tokens after a cached prefix come out as without a cache"),
    CHECK_CASES("INVAR-01", prefill_then_decode,
                "a token that is decoded comes out as in a prefill"),
    CHECK_CASES("CAPT-04", eager_padding, "padding is finite and changes nothing else"),
    CHECK_CASES("INVAR-02", same_batch, "DETERMINISTIC: equal batches give equal bits"),
    CHECK_CASES("INVAR-02", any_threads, "DETERMINISTIC: with any number of threads"),
    CHECK_CASES("INVAR-03", order, "BATCH_INVARIANT: the order of the sequences changes no bit"),
    CHECK_CASES("INVAR-03", company, "BATCH_INVARIANT: the other sequences change no bit"),
    CHECK_CASES("INVAR-03", long_company, "BATCH_INVARIANT: nor where keys are split"),
    CHECK_CASES("INVAR-03", padding, "BATCH_INVARIANT: padding changes no bit"),
    CHECK_ROW("CAPT-05", replay, count_replay, CHECK_NEEDS_COMPUTE | CHECK_NEEDS_CUDA,
              "a graph replay gives the results of an eager run"),
    CHECK_CASES("INVAR-01", mla_permuted_batch, "latent layers: the order of the sequences"),
    CHECK_CASES("INVAR-01", mla_split_batch, "latent layers: a batch in parts"),
    CHECK_CASES("INVAR-01", mla_layer_groups, "latent layers: another layer group of the instance"),
    CHECK_CASES("INVAR-01", mla_permuted_pages, "latent layers: where the pages lie"),
    CHECK_CASES("INVAR-01", mla_chunked_prefill, "latent layers: a prefill in chunks"),
    CHECK_CASES("INVAR-01", mla_prefix_or_none, "latent layers: a cached prefix"),
    CHECK_CASES("INVAR-01", mla_prefill_then_decode, "latent layers: decoding after a prefill"),
    CHECK_CASES("CAPT-04", mla_eager_padding,
                "latent layers: padding is finite and changes nothing"),
    CHECK_CASES("INVAR-02", mla_same_batch, "DETERMINISTIC, of latent layers"),
    CHECK_CASES("INVAR-02", mla_any_threads, "DETERMINISTIC, of latent layers with any threads"),
    CHECK_CASES("INVAR-03", mla_company, "BATCH_INVARIANT, of latent layers"),
    CHECK_CASES("INVAR-03", mla_long_company, "BATCH_INVARIANT, of latent layers with split keys"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
