/* SPDX-License-Identifier: Apache-2.0
 *
 * hints.c: batches with hints of shared prefixes: runs of several lengths, with sequences before,
 * between and after them that share nothing. Sequences of a run have the same slots. Results are as
 * without the hint, also those of cross attention in the same batch: sequences share their own
 * keys, not those of their encoders. Without a hint: sequences that read what others of the batch
 * write. */
#include "host/check/cases/chain.h"
#include "host/check/cases/kind.h"

#include "host/base/mix.h"

/* In pages: those that a sequence shares with the one before; then tokens of its prefix beyond
 * them, and new ones. Sequence 0 shares nothing with anything. */
static const struct {
    int32_t pages, more, num_new;
} runs[FORWARD_CASE_MAX_SEQS] = {
    {0, 21, 3}, {0, 35, 2}, {2, 9, 2}, {2, 0, 3}, {0, 4, 5}, {0, 50, 1}, {3, 17, 1}, {0, 19, 1},
};

/* The same number of pages, or where `tiles` those that hold as many keys as no tile of them does:
 * 208 and 336, which are no multiples of 64 or 128. */
static int32_t pages_of(const struct case_spec *spec, int32_t pages, bool tiles)
{
    int32_t keys = pages == 2 ? 208 : 336;
    return pages == 0 || !tiles ? pages : (keys + spec->page_size - 1) / spec->page_size;
}

static void set_runs(struct case_spec *spec, enum case_hint hint, bool tiles)
{
    int32_t page = spec->page_size;
    spec->hint = hint;
    spec->num_sequences = FORWARD_CASE_MAX_SEQS;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        bool begins = s + 1 < spec->num_sequences && runs[s + 1].pages > runs[s].pages;
        int32_t shared = page * pages_of(spec, runs[s].pages, tiles);
        int32_t least = begins ? page * pages_of(spec, runs[s + 1].pages, tiles) : shared;
        int32_t num_new = spec->mode == ATTN_MODE_DECODE          ? 1
                          : spec->mode == ATTN_MODE_TARGET_VERIFY ? 4
                                                                  : runs[s].num_new;
        spec->sequences[s] = (struct case_sequence){.prefix_len = least + runs[s].more,
                                                    .num_new = num_new,
                                                    .tokens_of = s,
                                                    .shared = shared};
    }
}

static bool has_tiles(const struct kind_case *k)
{
    return k->run->check->relation->has_tiles;
}

static void judge_spec(struct kind_case *k, struct case_spec *spec)
{
    if (numerics_accepts(&k->at, spec))
        numerics_run(k->run, spec, k->at.options);
}

/* The hint of all runs in every case; of the others, and none at all, one in each. */
static void judge_hints(struct kind_case *k)
{
    static const enum case_hint others[] = {HINT_SOME, HINT_SHORT, HINT_NONE};
    for (int n = 0; n < 2 && k->run->code == CHECK_PASS; n++) {
        struct case_spec spec = k->at.spec;
        set_runs(&spec, n ? others[k->run->index % 3] : HINT_ALL, has_tiles(k));
        judge_spec(k, &spec);
    }
}

/* Levels of runs, and nothing else. */
static void judge_levels(struct kind_case *k)
{
    set_runs(&k->at.spec, HINT_LEVELS, has_tiles(k));
    judge_spec(k, &k->at.spec);
}

/* ---- Keys that another sequence brings ------------------------------------------------------- */

/* So many pages and tokens more are the keys of a sequence; so many of them are new; its first pages
 * are those of the sequence before, which brings some of them. The first and the last sequence are
 * of one query: in a MIXED batch the one that comes last decodes, and reads what a prompt brings or
 * brings what a prompt reads. */
static const struct {
    int32_t pages, more, new_pages, num_new, shared;
} writers[] = {
    {1, 0, 0, 1, 0}, {3, 0, 2, 0, 1}, {3, 6, 0, 4, 3}, {4, 0, 1, 0, 3}, {4, 1, 0, 1, 4},
};

static void set_writers(struct case_spec *spec, bool backwards)
{
    enum { COUNT = sizeof writers / sizeof writers[0] };
    int32_t page = spec->page_size;
    spec->hint = HINT_NONE;
    spec->num_sequences = COUNT;
    spec->shares_with_next = backwards;
    for (int32_t n = 0; n < COUNT; n++) {
        int32_t s = backwards ? COUNT - 1 - n : n, keys = page * writers[n].pages + writers[n].more;
        int32_t num_new =
            spec->mode == ATTN_MODE_DECODE ? 1 : page * writers[n].new_pages + writers[n].num_new;
        spec->sequences[s] = (struct case_sequence){.prefix_len = keys - num_new,
                                                    .num_new = num_new,
                                                    .tokens_of = s,
                                                    .shared = page * writers[n].shared};
    }
}

/* Those who read come after those who write, then before them. */
static void judge_shared_new(struct kind_case *k)
{
    for (int n = 0; n < 2 && k->run->code == CHECK_PASS; n++) {
        set_writers(&k->at.spec, n == 1);
        judge_spec(k, &k->at.spec);
    }
}

/* ---- With cross attention -------------------------------------------------------------------- */

/* The same queries over encoders of their own, longer than what is shared, but for the last of each
 * run. */
static void make_cross(struct case_spec *spec, bool tiles)
{
    static const int32_t pages[FORWARD_CASE_MAX_SEQS] = {4, 3, 4, 1, 3, 4, 1, 3};
    spec->attn_type = ATTN_TYPE_CROSS;
    spec->window_left = spec->window_right = -1;
    spec->hint = HINT_NONE;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s] = (struct case_sequence){.prefix_len = spec->page_size * pages[s] + s +
                                                                  (tiles ? 100 * pages[s] : 0),
                                                    .num_new = spec->sequences[s].num_new,
                                                    .num_new_keys = s % 2 ? 0 : 11};
}

/* An instance with both layer groups, called once. */
static void judge_beside(struct kind_case *k)
{
    const uint64_t seed = k->run->seed;
    struct chain chain = {.run = k->run, .options = k->at.options};
    set_runs(&k->at.spec, HINT_ALL, has_tiles(k));
    struct case_spec cross = k->at.spec;
    make_cross(&cross, has_tiles(k));
    if (numerics_accepts(&k->at, &k->at.spec) && numerics_accepts(&k->at, &cross) &&
        chain_put(&chain, &k->at.spec, mix_absorb(seed, 0), seed) &&
        chain_put(&chain, &cross, mix_absorb(seed, 1), seed)) {
        chain_add(&chain);
        if (chain_open(&chain))
            chain_judge(&chain, 0, "layers of a batch");
    }
    chain_finish(&chain);
}

/* ---- Table ----------------------------------------------------------------------------------- */

/* With tiles what is shared is several tiles of keys, the last one in part. */
static const struct relation hinted = {.judge = judge_hints},
                             hinted_tiles = {.judge = judge_hints, .has_tiles = true},
                             in_levels = {.judge = judge_levels},
                             tile_levels = {.judge = judge_levels, .has_tiles = true},
                             beside_cross = {.judge = judge_beside},
                             tiles_beside_cross = {.judge = judge_beside, .has_tiles = true},
                             shared_new = {.judge = judge_shared_new};

#define HINTED                                                                                     \
    SOFTMAX(OF(MODE, EXTEND, DECODE, MIXED, VERIFY), PLAIN_AND_QUANTISED, OF(WINDOW, CAUSAL, 63))
#define HINTED_LATENTS                                                                             \
    LATENT(MLA_ABSORBED, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), THREE_MODES)
#define BESIDE SOFTMAX(BOTH_PHASES, SAVED_OR_NOT)

const struct check check_hints[] = {
    ROWS_AS("INVAR-01", hints, hinted, "a shared-prefix hint changes no result", HINTED,
            HINTED_LATENTS),
    ROW_AS("INVAR-01", hints_forms, hinted,
           "a shared-prefix hint changes no result, in any form of KV indices",
           SOFTMAX(EACH(FORM), BOTH_PHASES)),
    ROW_AS("KV-15", prefix_levels, in_levels,
           "shared-prefix hints of several levels change no result", HINTED),
    ROW_AS("KV-15", beside_cross, beside_cross,
           "a shared-prefix hint does not apply to the keys of encoders", BESIDE),
    ROWS_AS("KV-01", shared_new, shared_new,
            "a sequence reads new keys of other sequences of its batch, earlier or later ones",
            SOFTMAX(OF(SOURCE, SAVED), THREE_MODES, PLAIN_AND_QUANTISED, OF(WINDOW, CAUSAL, 63)),
            HINTED_LATENTS),
    {.rule = NULL},
};

const struct check check_hints_tiles[] = {
    ROWS_AS("INVAR-01", hints_tiles, hinted_tiles, "a shared prefix may span several tiles of keys",
            SOFTMAX(THREE_MODES, PLAIN_AND_QUANTISED, OF(WINDOW, CAUSAL, 100)), HINTED_LATENTS),
    ROW_AS("KV-15", levels_tiles, tile_levels,
           "a prefix shared at several levels may span several tiles of keys", HINTED),
    ROW_AS("KV-15", tiles_beside_cross, tiles_beside_cross,
           "a shared-prefix hint does not apply to encoders of several tiles of keys", BESIDE),
    {.rule = NULL},
};
