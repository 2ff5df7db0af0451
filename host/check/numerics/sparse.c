/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c: sparse layers over latents against the oracle: choices that are given; choices of the layer's own indexer,
 * in one call and in one for each of its three steps; labels that are saved; choices of 2048 keys among thousands,
 * many of which have the same logit.
 */
#include "host/check/cases/kind.h"

#define BOTH_LAYOUTS (MLA_LATENT | MLA_PACKED)
#define THREE_DIMS   (BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL) | BIT(MLA_ONE_BLOCK))
#define TWO_LABELS   OF(CHOICE, E4M3, BF16)
#define TWO_LENGTHS  OF(LENGTHS, ROWS, SPLITS)

SPEC_CHANGE(make_fewer_keys, spec->fewer_keys = true)
SPEC_CHANGE(make_steps, spec->indexer.by_steps = true)

/* Rows of many keys, of about as many as are chosen, and of few. Of two cases that differ in one axis one has ties.
 * The bounds allow so many keys that cpu_native has no room for the logits of all rows at once. */
static void make_long(struct case_spec *spec, int32_t variant)
{
    const bool is_packed = spec->kv_dtype == ATTN_FP8_E4M3;
    (void)variant;
    spec->top_k = spec->latent.kv_lora_rank == 512 ? 2048 : 1000;
    spec->indexer.has_ties =
        is_packed ^ (spec->mode == ATTN_MODE_DECODE) ^ (spec->indexer.label_dtype == ATTN_FP8_E4M3);
    case_set_lengths(spec, "8971+4 2046+4 5+4");
    spec->max_kv_len = 1 << 20;
}

/* The bounds allow so many keys that the logits of eight rows are 256 MiB: more rows go in several waves, whose
 * borders fall inside sequences. More rows than a GPU has multiprocessors, too, each of which chooses. */
static void make_waves(struct case_spec *spec, int32_t variant)
{
    case_set_lengths(spec, "90+3 70+1 130+6 80+2 100+9 64+1 75+4 0+0");
    spec->num_sequences = variant == 0 ? 12 : spec->mode == ATTN_MODE_DECODE ? 160 : 44;
    if (variant == 0)
        spec->max_kv_len = 1 << 23;
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_sparse[] = {
    ROW("MEAN-21", sparse_given,
        "a row attends to the latents in its list of indices, as many as its count",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, THREE_DIMS, OF(CHOICE, GIVEN), EACH(MODE), SAVED_OR_NOT,
               TWO_LENGTHS)),
    ROW("MEAN-24", sparse_chosen,
        "a layer with an indexer chooses, of the keys that a row sees, those with the "
        "largest logits, and attends to them",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, THREE_DIMS, EACH(MODE), INDEXERS, TWO_LENGTHS)),
    ROW("MEAN-24", sparse_long,
        "the 2048 keys with the largest logits are chosen from thousands, even if many "
        "logits are equal",
        LATENT_VARIED(make_long, 1, MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL),
                      TWO_LABELS, OF(MODE, DECODE, VERIFY))),
    ROW("MEAN-24", sparse_waves,
        "a batch may have more rows than the device has multiprocessors, or than an indexer has "
        "memory for",
        LATENT_VARIED(make_waves, 2, MLA_ABSORBED, MLA_LATENT, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL),
                      TWO_LABELS, OF(MODE, DECODE, VERIFY, EXTEND))),
    ROW("MEAN-24", sparse_steps, "logits, choice and attention may run in separate calls",
        LATENT_VARIED(make_steps, 1, MLA_ABSORBED, BOTH_LAYOUTS, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL),
                      EACH(MODE), TWO_LABELS, TWO_LENGTHS)),
    ROW("KV-17", sparse_labels, "only new labels and latents are written to the caches",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, THREE_DIMS, EACH(PAGE), INDEXERS,
               OF(SLOTS, SHUFFLED_PAGES), BOTH_PHASES)),
    ROW("MEAN-24", sparse_seen,
        "an indexer chooses among the keys that the mask and the window let through",
        LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL), OF(CHOICE, BF16),
               BOTH_PHASES, OF(MASK, LAYER, NONE, FULL, QLEN), OF(WINDOW, CAUSAL, 15),
               {AXIS_CHUNK, BIT(0) | BIT(2)})),
    ROW("MEAN-24", sparse_fewer_keys,
        "an indexer's logits are those of the keys that the KV group has, even if the batch "
        "has more tokens",
        LATENT_VARIED(make_fewer_keys, 1, MLA_ABSORBED, MLA_LATENT,
                      BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL), TWO_LABELS, OF(SOURCE, CACHE),
                      BOTH_PHASES)),
    ROW("MEAN-24", sparse_heads,
        "heads, sinks and score scales mean the same for a sparse layer as for a latent layer",
        LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL), TWO_LABELS,
               EACH(HEADS), EACH(SINK), BOTH_PHASES)),
    ROW("KV-08", sparse_index_forms, "each form of KV indices gives the same choice and result",
        LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_DEEPSEEK) | BIT(MLA_SMALL), EACH(FORM),
               OF(CHOICE, GIVEN, E4M3), BOTH_PHASES)),
    ROW("STRUCT-10", sparse_places,
        "results are right for operands of an indexer with exactly the alignment of the problem",
        LATENT(MLA_ABSORBED, BOTH_LAYOUTS, THREE_DIMS, INDEXERS, EACH(PLACE), BOTH_PHASES)),
    {.rule = NULL},
};
