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

/* Make the base, whose spec was found, and judge it; its session serves all variants. */
static bool begin(struct kind_case *base)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    const uint32_t traits = base->run->check->relation->traits;
    if (!numerics_accepts(&base->at, &base->at.spec) || !kind_make(base) ||
        (traits && !kind_declares(base, traits)))
        return false;
    base->session = kind_session(base, base->run->subject, &setup);
    return base->session && kind_judge(base);
}

/* The result of a forward for a query of a sequence. */
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
static bool same_rows(const struct kind_case *with, const struct forward_case *variant)
{
    const struct case_spec *spec = &variant->spec;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        for (int32_t t = 0; t < variant->lengths.q_len[s]; t++) {
            const struct case_sequence *of = &spec->sequences[s];
            struct query_result mine = {variant, s, t};
            struct query_result base = {with->c, of->tokens_of, of->first_query + t};
            int32_t head = 0;
            char what[24] = "logits";
            while (head < spec->num_q_heads && same_head(&mine, &base, head))
                head++;
            if (head == spec->num_q_heads && same_logits(&mine, &base))
                continue;
            if (head < spec->num_q_heads)
                snprintf(what, sizeof what, "head %d", head);
            check_fail(with->run,
                       "query %d of sequence %d, %s, has other bits than the same query (%d of "
                       "sequence %d) in the batch it is compared with",
                       t, s, what, base.t, base.s);
            return false;
        }
    return true;
}

/* The base's spec as one of a variant: its sequences are their own. */
static struct case_spec variant_of(const struct kind_case *base)
{
    struct case_spec spec = base->at.spec;
    for (int32_t s = 0; s < spec.num_sequences; s++)
        spec.sequences[s].tokens_of = s;
    return spec;
}

static bool judge_variant(const struct kind_case *base, const struct case_spec *spec)
{
    struct forward_case *variant = numerics_case(base->run, spec, base->c);
    bool good = variant && numerics_judge(base->run, base->session, variant) &&
                (!base->run->check->relation->traits || same_rows(base, variant));
    forward_case_destroy(variant);
    return good;
}

/* The base with the relation's lengths, then each of its variants; room for padding is in the bounds already. */
static void judge_variants(struct kind_case *base)
{
    const struct relation *relation = base->run->check->relation;
    struct case_spec *spec = &base->at.spec;
    case_read_lengths(spec, relation->lengths);
    spec->loose_bounds = true;
    bool good = begin(base);
    for (int32_t n = 0; good; n++) {
        struct case_spec other = variant_of(base);
        good = relation->vary(&other, base, n) && judge_variant(base, &other);
    }
}

/* ---- The rest of the batch ------------------------------------------------------------------- */

static bool permute(struct case_spec *spec, const struct kind_case *base, int32_t n)
{
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        const int32_t of = (s + n + 1) % spec->num_sequences;
        spec->sequences[s] = base->at.spec.sequences[of];
        spec->sequences[s].tokens_of = of;
    }
    return n + 1 < spec->num_sequences;
}

/* Halves, then each sequence alone. */
static bool split(struct case_spec *spec, const struct kind_case *base, int32_t n)
{
    const int32_t count = base->at.spec.num_sequences, half = (count + 1) / 2;
    const int32_t first = n < 2 ? n * half : n - 2, size = n < 2 ? half : 1;
    if (first >= count)
        return false;
    spec->num_sequences = count - first < size ? count - first : size;
    memmove(spec->sequences, spec->sequences + first,
            (size_t)spec->num_sequences * sizeof *spec->sequences);
    return true;
}

static bool pad(struct case_spec *spec, const struct kind_case *base, int32_t n)
{
    spec->padded = spec->num_sequences + 1 + 2 * n;
    spec->fill = case_session_verdict(base->session)->graph_seq_len_fill;
    return n < 2;
}

/* The first new tokens of each sequence, as far as there are more, are in the cache. */
static bool cut(struct case_spec *spec, const struct kind_case *base, int32_t n)
{
    static const int32_t cuts[] = {1, 5, 16, 63};
    (void)base;
    for (int32_t s = 0; s < spec->num_sequences && n < 4; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        const int32_t before = cuts[n] < sequence->num_new ? cuts[n] : sequence->num_new - 1;
        sequence->prefix_len += before;
        sequence->num_new -= before;
        sequence->first_query = before;
    }
    return n < 4;
}

#define SAME_BITS(vary_by, trait, of)                                                              \
    {                                                                                              \
        .judge = judge_variants, .vary = vary_by, .traits = trait, .lengths = of                   \
    }
#define FOUR "17+3 0+20 64+1 33+8"
/* Keys of three splits, as the sum of two is the same in either order. The number of a sequence's
 * parts depends on its share of the batch's work, so all sequences are about as long. */
#define EIGHT "1100+1 1026+3 1400+1 1030+2 1200+1 1140+3 1060+1 1320+1"
/* Likewise of a GPU's blocks, which take far more latents before they divide a sequence that is alone. */
#define LONG "6300+1 6226+3 6400+1"
/* Rows choose so many keys that on a GPU even eight of them have more parts of the least size than there are
 * multiprocessors: the parts of all eight are larger than those of four. */
#define CHOOSING "2100+1 2026+3 2400+1 2030+2 2200+1 2140+3 2060+1 2320+1"
SPEC_CHANGE(choose_many, spec->top_k = 2000)

static const struct relation padded = SAME_BITS(pad, 0, FOUR),
                             padded_bits = SAME_BITS(pad, ATTN_TRAIT_BATCH_INVARIANT, FOUR),
                             permuted = SAME_BITS(permute, ATTN_TRAIT_BATCH_INVARIANT, FOUR),
                             in_parts = SAME_BITS(split, ATTN_TRAIT_BATCH_INVARIANT, FOUR),
                             long_in_parts = SAME_BITS(split, ATTN_TRAIT_BATCH_INVARIANT, EIGHT),
                             latents_in_parts = SAME_BITS(split, ATTN_TRAIT_BATCH_INVARIANT, LONG),
                             chosen_in_parts =
                                 SAME_BITS(split, ATTN_TRAIT_BATCH_INVARIANT, CHOOSING),
                             cut_elsewhere = SAME_BITS(cut, ATTN_TRAIT_CUT_INVARIANT,
                                                       "0+130 70+61 600+20 1040+9");

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
static void judge_replay(struct kind_case *base)
{
    if (!begin(base))
        return;
    const attn_verdict *verdict = case_session_verdict(base->session);
    const struct case_setup setup = {.kind = ATTN_METADATA_GRAPH, .exact_memory = true};
    if (!is_capturable(base->c, verdict->graph_level)) {
        check_skip(base->run,
                   "query reports graph level %u, at which this batch cannot be captured",
                   verdict->graph_level);
        return;
    }
    struct case_spec spec = variant_of(base);
    struct forward_case *replayed = numerics_case(base->run, &spec, base->c);
    struct case_session *session = replayed ? numerics_session(base->run, base->run->subject,
                                                               replayed, base->at.options, &setup)
                                            : NULL;
    for (int n = 0; session && n < 3; n++)
        if (!numerics_judge(base->run, session, replayed) ||
            (verdict->traits & ATTN_TRAIT_DETERMINISTIC && !same_rows(base, replayed)))
            break;
    case_session_destroy(session);
    forward_case_destroy(replayed);
}

static const struct relation replayed = {.judge = judge_replay};

/* ---- Table ----------------------------------------------------------------------------------- */

#define SOME_RULES       OF(WINDOW, CAUSAL, 15)
#define SAVED_OR_UNSAVED OF(SOURCE, SAVED, UNSAVED)
#define IN_BOTH_FORMS(...)                                                                         \
    LATENT(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), __VA_ARGS__)
#define REPLAYED CHECK_NEEDS_COMPUTE | CHECK_NEEDS_CUDA

const struct check check_invar[] = {
    ROWS_AS("CAPT-04", eager_padding, padded, "padding is finite and changes nothing else",
            SOFTMAX(THREE_MODES, PLAIN_AND_QUANTISED, SAVED_OR_UNSAVED),
            IN_BOTH_FORMS(THREE_MODES, SAVED_OR_UNSAVED)),
    ROW_AS("CAPT-04", sparse_eager_padding, padded,
           "padding is finite and changes nothing else (sparse layers)",
           SPARSE_LATENT(THREE_MODES, SAVED_OR_NOT)),
    ROW_NEEDS("CAPT-05", sparse_replay, replayed, REPLAYED,
              "a graph replay gives the results of an eager run (sparse layers)",
              SPARSE_LATENT(THREE_MODES, EACH(PADDING))),
    ROW_AS("INVAR-03", order, permuted,
           "BATCH_INVARIANT: the order of the sequences changes no bit",
           SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES)),
    ROWS_AS("INVAR-03", company, in_parts, "BATCH_INVARIANT: the other sequences change no bit",
            SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES), IN_BOTH_FORMS(BOTH_PHASES)),
    ROW_AS("INVAR-03", long_company, long_in_parts,
           "BATCH_INVARIANT: the other sequences do not change how keys are split",
           SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED)),
    ROW_AS("INVAR-03", mla_long_company, latents_in_parts,
           "BATCH_INVARIANT: the other sequences do not change how keys are split (latent layers)",
           LATENT(MLA_ABSORBED, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), BOTH_PHASES,
                  PLAIN_AND_QUANTISED)),
    ROW_AS("INVAR-03", sparse_company, in_parts,
           "BATCH_INVARIANT: the other sequences change no bit (sparse layers)",
           SPARSE_LATENT(BOTH_PHASES)),
    ROW_AS("INVAR-03", sparse_long_company, chosen_in_parts,
           "BATCH_INVARIANT: the other sequences do not change how chosen keys are split",
           LATENT_VARIED(choose_many, 1, MLA_ABSORBED, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK),
                         OF(CHOICE, GIVEN, E4M3), BOTH_PHASES)),
    ROWS_AS("INVAR-04", cuts, cut_elsewhere,
            "CUT_INVARIANT: the number of a sequence's tokens in the cache changes no bit",
            SOFTMAX(EACH(DTYPE), SAVED_OR_NOT, SOME_RULES),
            LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_ONE_BLOCK), SAVED_OR_NOT)),
    ROW_AS("INVAR-03", padding, padded_bits, "BATCH_INVARIANT: padding changes no bit",
           SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED, SOME_RULES)),
    ROW_NEEDS("CAPT-05", replay, replayed, REPLAYED,
              "a graph replay gives the results of an eager run",
              SOFTMAX(EACH(MODE), EACH(PADDING), PLAIN_AND_QUANTISED, OF(LENGTHS, PAGES, SPLITS),
                      OF(SINK, NONE, GIVEN))),
    {.rule = NULL},
};
