/* SPDX-License-Identifier: Apache-2.0
 *
 * invariance.c: invariance of results under the rest of the batch, its order, padding, a graph.
 *
 * A check makes a case, the base, and variants of it: the same tokens in other batches. Each is
 * judged by the oracle; where a backend has declared it, rows are also bit-identical.
 */
#include "host/check/cases/kind.h"

#include <stdio.h>
#include <string.h>

/* ---- A base and its variants ----------------------------------------------------------------- */

/* A check at work. */
struct family {
    struct kind_case base; /* its session serves all variants */
    uint32_t needs;        /* ATTN_NOTE_*: what the backend has to declare */
    bool same_bits;        /* rows of variants are those of the base */
};

static struct case_spec *spec_of(struct family *family)
{
    return &family->base.at.spec;
}

/* Make the base, whose spec was found, and judge it. */
static bool family_begin(struct family *family)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct kind_case *base = &family->base;
    if (!numerics_accepts(&base->at, &base->at.spec) || !kind_make(base))
        return false;
    if (family->needs && !kind_declares(base, family->needs))
        return false;
    base->session = kind_session(base, base->run->subject, &setup);
    return base->session && kind_judge(base);
}

/* What a forward has left for a query of a sequence. */
struct query_result {
    const struct forward_case *c;
    int32_t s, t;
};

static bool same_head(const struct query_result *a, const struct query_result *b, int32_t head)
{
    const struct case_spec *spec = &a->c->spec;
    size_t size = (size_t)spec->v_head_dim * attn_dtype_size(spec->out_dtype);
    const float *lse = forward_case_lse(a->c, a->s, a->t, head);
    return memcmp(forward_case_output(a->c, a->s, a->t, head),
                  forward_case_output(b->c, b->s, b->t, head), size) == 0 &&
           (!lse || memcmp(lse, forward_case_lse(b->c, b->s, b->t, head), sizeof *lse) == 0);
}

static bool same_logits(const struct query_result *a, const struct query_result *b)
{
    const float *mine = forward_case_logits(a->c, a->s, a->t);
    const float *other = forward_case_logits(b->c, b->s, b->t);
    size_t size = (size_t)a->c->lengths.kv_len[a->s] * sizeof *mine;
    return !mine || !other || memcmp(mine, other, size) == 0;
}

/* The first row of a variant that differs from the base's in a bit. */
static bool same_rows(struct family *family, const struct forward_case *variant)
{
    const struct case_spec *spec = &variant->spec;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        for (int32_t t = 0; t < variant->lengths.q_len[s]; t++) {
            const struct case_sequence *of = &spec->sequences[s];
            struct query_result mine = {variant, s, t};
            struct query_result base = {family->base.c, of->tokens_of, of->first_query + t};
            int32_t head = 0;
            char what[24] = "logits";
            while (head < spec->num_q_heads && same_head(&mine, &base, head))
                head++;
            if (head == spec->num_q_heads && same_logits(&mine, &base))
                continue;
            if (head < spec->num_q_heads)
                snprintf(what, sizeof what, "head %d", head);
            check_fail(family->base.run,
                       "query %d of sequence %d, %s, has other bits than the same query (%d of "
                       "sequence %d) in the batch it is compared with",
                       t, s, what, base.t, base.s);
            return false;
        }
    return true;
}

static bool family_judge(struct family *family, const struct case_spec *spec)
{
    const struct kind_case *base = &family->base;
    struct forward_case *variant = numerics_case(base->run, spec, base->c);
    bool good = variant && numerics_judge(base->run, base->session, variant, spec) &&
                (!family->same_bits || same_rows(family, variant));
    forward_case_destroy(variant);
    return good;
}

/* The base's spec as one of a variant: its sequences are their own. */
static struct case_spec variant_of(const struct family *family)
{
    struct case_spec spec = family->base.at.spec;
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
    int32_t count = family->base.at.spec.num_sequences;
    for (int32_t shift = 1; shift < count; shift++) {
        struct case_spec spec = variant_of(family);
        for (int32_t s = 0; s < count; s++) {
            spec.sequences[s] = family->base.at.spec.sequences[(s + shift) % count];
            spec.sequences[s].tokens_of = (s + shift) % count;
        }
        if (!family_judge(family, &spec))
            return;
    }
}

/* Halves, then each sequence alone. */
static void judge_split(struct family *family)
{
    int32_t count = family->base.at.spec.num_sequences;
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
        spec.fill = case_session_verdict(family->base.session)->graph_seq_len_fill;
        if (!family_judge(family, &spec))
            return;
    }
}

/* The first new tokens of each sequence, as far as there are more, are in the cache. */
static void judge_cut(struct family *family)
{
    static const int32_t cuts[] = {1, 5, 16, 63};
    for (int n = 0; n < 4; n++) {
        struct case_spec spec = variant_of(family);
        for (int32_t s = 0; s < spec.num_sequences; s++) {
            struct case_sequence *sequence = &spec.sequences[s];
            int32_t cut = cuts[n] < sequence->num_new ? cuts[n] : sequence->num_new - 1;
            sequence->prefix_len += cut;
            sequence->num_new -= cut;
            sequence->first_query = cut;
        }
        if (!family_judge(family, &spec))
            return;
    }
}

/* Of these lengths; room for padding is in the bounds already. */
static void run_lengths(struct check_run *run, uint32_t needs, int32_t count,
                        const int32_t lengths[][2], void (*judge)(struct family *family))
{
    struct family family = {.needs = needs, .same_bits = needs != 0};
    if (kind_find(&family.base, run)) {
        set_sequences(spec_of(&family), count, lengths);
        spec_of(&family)->loose_bounds = true;
        if (family_begin(&family))
            judge(&family);
    }
    kind_close(&family.base);
}

static void run_family(struct check_run *run, uint32_t needs, void (*judge)(struct family *family))
{
    static const int32_t lengths[][2] = {{17, 3}, {0, 20}, {64, 1}, {33, 8}};
    run_lengths(run, needs, 4, lengths, judge);
}

/* Keys of three splits, as the sum of two is the same in either order: into how many parts a
 * sequence is cut goes by its share of the batch's work, so all are about as long. */
static void run_long_company(struct check_run *run)
{
    static const int32_t lengths[][2] = {{1100, 1}, {1026, 3}, {1400, 1}, {1030, 2},
                                         {1200, 1}, {1140, 3}, {1060, 1}, {1320, 1}};
    run_lengths(run, ATTN_NOTE_BATCH_INVARIANT, 8, lengths, judge_split);
}

/* Likewise of a GPU's blocks, which take far more latents before they divide a sequence that is alone. */
static void run_long_latents(struct check_run *run)
{
    static const int32_t lengths[][2] = {{6300, 1}, {6226, 3}, {6400, 1}};
    run_lengths(run, ATTN_NOTE_BATCH_INVARIANT, 3, lengths, judge_split);
}

static void run_cuts(struct check_run *run)
{
    static const int32_t lengths[][2] = {{0, 130}, {70, 61}, {600, 20}, {1040, 9}};
    run_lengths(run, ATTN_NOTE_CUT_INVARIANT, 4, lengths, judge_cut);
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
    struct kind_case *base = &family->base;
    const attn_verdict *verdict = case_session_verdict(base->session);
    const struct case_setup setup = {.kind = ATTN_METADATA_GRAPH, .exact_memory = true};
    if (!is_capturable(base->c, verdict->graph_level)) {
        check_skip(base->run,
                   "query reports graph level %u, at which this batch cannot be captured",
                   verdict->graph_level);
        return;
    }
    struct case_spec spec = variant_of(family);
    struct forward_case *replayed = numerics_case(base->run, &spec, base->c);
    struct case_session *session =
        replayed ? numerics_session(base->run, replayed, &spec, base->at.options, &setup) : NULL;
    for (int n = 0; session && n < 3; n++)
        if (!numerics_judge(base->run, session, replayed, &spec) ||
            (verdict->notes & ATTN_NOTE_DETERMINISTIC && !same_rows(family, replayed)))
            break;
    case_session_destroy(session);
    forward_case_destroy(replayed);
}

static void run_replay(struct check_run *run)
{
    struct family family = {.needs = 0};
    if (kind_find(&family.base, run) && family_begin(&family))
        judge_replay(&family);
    kind_close(&family.base);
}

/* Rows choose so many keys that on a GPU even eight of them have more parts of the least size than there are
 * multiprocessors: the parts of all eight are larger than those of four. */
SPEC_CHANGE(choose_many, spec->top_k = 2000)

static void run_choosing_company(struct check_run *run)
{
    static const int32_t lengths[][2] = {{2100, 1}, {2026, 3}, {2400, 1}, {2030, 2},
                                         {2200, 1}, {2140, 3}, {2060, 1}, {2320, 1}};
    run_lengths(run, ATTN_NOTE_BATCH_INVARIANT, 8, lengths, judge_split);
}

/* ---- Table ----------------------------------------------------------------------------------- */

CHECK_RUN(eager_padding, run_family(run, 0, judge_padded))
CHECK_RUN(order, run_family(run, ATTN_NOTE_BATCH_INVARIANT, judge_permuted))
CHECK_RUN(company, run_family(run, ATTN_NOTE_BATCH_INVARIANT, judge_split))
CHECK_RUN(padding, run_family(run, ATTN_NOTE_BATCH_INVARIANT, judge_padded))

#define SOME_RULES       CHOICE(AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_15))
#define SAVED_OR_UNSAVED CHOICE(AXIS_SOURCE, BIT(SOURCE_SAVED) | BIT(SOURCE_UNSAVED))
#define ABSORBED(...)                                                                              \
    LATENT_CASES(MLA_ABSORBED, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), __VA_ARGS__)
#define IN_BOTH_FORMS(...)                                                                         \
    LATENT_CASES(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), __VA_ARGS__)

const struct check check_invar[] = {
    KIND_ROWS("CAPT-04", eager_padding, "padding is finite and changes nothing else",
              SOFTMAX_CASES(THREE_MODES, PLAIN_AND_QUANTISED, SAVED_OR_UNSAVED),
              IN_BOTH_FORMS(THREE_MODES, SAVED_OR_UNSAVED)),
    KIND_ROW("CAPT-04", "sparse_eager_padding", eager_padding, CHECK_NEEDS_COMPUTE,
             "padding is finite and changes nothing else (sparse layers)",
             SPARSE_LATENT_CASES(THREE_MODES, SAVED_OR_NOT)),
    KIND_ROW("CAPT-05", "sparse_replay", replay, CHECK_NEEDS_COMPUTE | CHECK_NEEDS_CUDA,
             "a graph replay gives the results of an eager run (sparse layers)",
             SPARSE_LATENT_CASES(THREE_MODES, {AXIS_PADDING, 3})),
    KIND_ROW("INVAR-03", "order", order, CHECK_NEEDS_COMPUTE,
             "BATCH_INVARIANT: the order of the sequences changes no bit",
             SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES)),
    KIND_ROWS("INVAR-03", company, "BATCH_INVARIANT: the other sequences change no bit",
              SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES),
              IN_BOTH_FORMS(BOTH_PHASES)),
    KIND_ROW("INVAR-03", "long_company", long_company, CHECK_NEEDS_COMPUTE,
             "BATCH_INVARIANT: the other sequences do not change how keys are split",
             SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED)),
    KIND_ROW(
        "INVAR-03", "mla_long_company", long_latents, CHECK_NEEDS_COMPUTE,
        "BATCH_INVARIANT: the other sequences do not change how keys are split (latent layers)",
        ABSORBED(BOTH_PHASES, PLAIN_AND_QUANTISED)),
    KIND_ROW("INVAR-03", "sparse_company", company, CHECK_NEEDS_COMPUTE,
             "BATCH_INVARIANT: the other sequences change no bit (sparse layers)",
             SPARSE_LATENT_CASES(BOTH_PHASES)),
    KIND_ROW("INVAR-03", "sparse_long_company", choosing_company, CHECK_NEEDS_COMPUTE,
             "BATCH_INVARIANT: the other sequences do not change how chosen keys are split",
             LATENT_VARIED(choose_many, 1, MLA_ABSORBED, MLA_LATENT | MLA_PACKED,
                           BIT(MLA_ONE_BLOCK), {AXIS_CHOICE, BIT(CHOICE_GIVEN) | BIT(CHOICE_E4M3)},
                           BOTH_PHASES)),
    KIND_ROWS("INVAR-04", cuts,
              "CUT_INVARIANT: the number of a sequence's tokens in the cache changes no bit",
              SOFTMAX_CASES({AXIS_DTYPE, ALL}, SAVED_OR_NOT, SOME_RULES),
              LATENT_CASES(MLA_ABSORBED, MLA_LATENT, BIT(MLA_ONE_BLOCK), SAVED_OR_NOT)),
    KIND_ROW("INVAR-03", "padding", padding, CHECK_NEEDS_COMPUTE,
             "BATCH_INVARIANT: padding changes no bit",
             SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES)),
    KIND_ROW("CAPT-05", "replay", replay, CHECK_NEEDS_COMPUTE | CHECK_NEEDS_CUDA,
             "a graph replay gives the results of an eager run",
             SOFTMAX_CASES({AXIS_MODE, 31}, {AXIS_PADDING, 3}, PLAIN_AND_QUANTISED,
                           {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_SPLITS)},
                           {AXIS_SINK, BIT(SINK_NONE) | BIT(SINK_GIVEN)})),
    {.rule = NULL},
};
