/* SPDX-License-Identifier: Apache-2.0
 *
 * check_shared_prefix.c: runs by hand, and those of random batches against every choice there is.
 */
#include "host/run/shared_prefix.h"

#include "host/base/mix.h"
#include "tests/tools/test_main.h"

enum { MAX_SEQS = 9, LEAST = SHARED_PREFIX_MIN_KEYS };

static struct shared_prefix shared;
static struct scheduler_seq seqs[MAX_SEQS];

/* The plan of a batch in which sequence s shares lens[s] keys with the one before it. */
static void plan(const int32_t *lens, int32_t num_seqs)
{
    for (int32_t s = 0; s < num_seqs; s++)
        seqs[s].shared_len = lens[s];
    shared_prefix_plan(&shared, seqs, num_seqs);
}

#define PLAN(...)                                                                                  \
    do {                                                                                           \
        const int32_t lens_[] = {__VA_ARGS__};                                                     \
        plan(lens_, (int32_t)(sizeof lens_ / sizeof *lens_));                                      \
    } while (0)

static void expect_runs(int l, const int32_t (*runs)[3], int32_t count)
{
    const struct shared_prefix_level *level = &shared.levels[l];
    ck_assert_int_eq(level->num_runs, count);
    for (int32_t r = 0; r < count; r++) {
        ck_assert_int_eq(level->seq_indptr[r], runs[r][0]);
        ck_assert_int_eq(level->seq_indptr[r + 1], runs[r][1]);
        ck_assert_int_eq(level->prefix_len[r], runs[r][2]);
    }
}

/* Runs of a level: {first sequence, end, keys}. */
#define EXPECT_RUNS(l, ...)                                                                        \
    do {                                                                                           \
        const int32_t runs_[][3] = {__VA_ARGS__};                                                  \
        expect_runs(l, runs_, (int32_t)(sizeof runs_ / sizeof *runs_));                            \
    } while (0)

static void expect_sums(int32_t num_levels, int64_t rows, int64_t keys)
{
    ck_assert_int_eq(shared.num_levels, num_levels);
    ck_assert_int_eq(shared.shared_rows, rows);
    ck_assert_int_eq(shared.saved_keys, keys);
}

static void set_up(void)
{
    ck_assert_int_eq(shared_prefix_init(&shared, MAX_SEQS, NULL), ATTN_OK);
}

static void tear_down(void)
{
    shared_prefix_finish(&shared);
}

/* ---- By hand --------------------------------------------------------------------------------- */

/* Five requests with a system prompt of 512 tokens, of which three ask about one document; one
 * that has nothing to do with them; two that share 640. */
TEST_OF(runs, a_prompt_and_its_documents)
{
    PLAN(0, 512, 2048, 2048, 512, 0, 0, 640);
    expect_sums(2, 7, 4 * 512 + 2 * (2048 - 512) + 640);
    EXPECT_RUNS(0, {0, 5, 512}, {5, 6, 0}, {6, 8, 640});
    EXPECT_RUNS(1, {0, 1, 512}, {1, 4, 2048}, {4, 5, 512}, {5, 6, 0}, {6, 8, 640});
}

/* One level is enough, or none; a run shares keys enough by itself, and beyond the outer one. */
TEST_OF(runs, short_prefixes_are_left_out)
{
    PLAN(0, 0, 0);
    expect_sums(0, 0, 0);
    PLAN(0, LEAST - 1, LEAST - 1);
    expect_sums(0, 0, 0);
    PLAN(0, LEAST, LEAST);
    expect_sums(1, 3, 2 * LEAST);
    EXPECT_RUNS(0, {0, 3, LEAST});
    PLAN(0, 512, 512 + LEAST - 1);
    expect_sums(1, 3, 2 * 512);
    PLAN(0, 512, 512 + LEAST);
    expect_sums(2, 3, 2 * 512 + LEAST);
    PLAN(0);
    expect_sums(0, 0, 0);
}

/* Of three nested blocks the hint has the two that save most. */
TEST_OF(runs, two_of_three_levels)
{
    PLAN(0, 90, 1000, 1100);
    expect_sums(2, 3, 1000 * 2 + 100);
    PLAN(0, 500, 600, 2000);
    expect_sums(2, 4, 500 * 3 + 1500);
}

/* ---- Random ---------------------------------------------------------------------------------- */

/* A random batch: what each sequence shares with the one before it; 0 behind the last one. */
static int32_t lens[MAX_SEQS + 1], num_seqs;

/* The most keys that runs of [first, end) save beyond `base`, of `levels` levels: every cut into
 * runs is tried in which none could have one more sequence without sharing fewer keys. */
static int64_t most_saved(int32_t first, int32_t end, int32_t base, int levels)
{
    if (levels == 0 || end - first < 2)
        return 0;
    int64_t most = most_saved(first + 1, end, base, levels); /* `first` in no run */
    int32_t keys = INT32_MAX;
    for (int32_t to = first + 2; to <= end; to++) {
        keys = lens[to - 1] < keys ? lens[to - 1] : keys;
        if (keys - base < LEAST)
            break;
        if (lens[first] >= keys || lens[to] >= keys)
            continue;
        int64_t saved = (int64_t)(to - first - 1) * (keys - base) +
                        most_saved(first, to, keys, levels - 1) + most_saved(to, end, base, levels);
        most = saved > most ? saved : most;
    }
    return most;
}

/* Runs of a level cover all sequences, lie within those of the outer one, and share what the
 * sequences do; returns the keys that they save beyond those. */
static int64_t check_level(int l)
{
    const struct shared_prefix_level *level = &shared.levels[l];
    const struct shared_prefix_level *outer = l > 0 ? &shared.levels[l - 1] : NULL;
    int64_t saved = 0;
    int32_t within = 0;
    ck_assert_int_eq(level->seq_indptr[0], 0);
    ck_assert_int_eq(level->seq_indptr[level->num_runs], num_seqs);
    for (int32_t r = 0; r < level->num_runs; r++) {
        int32_t first = level->seq_indptr[r], end = level->seq_indptr[r + 1], base = 0;
        ck_assert_int_lt(first, end);
        while (outer && outer->seq_indptr[within + 1] <= first)
            within++;
        if (outer) {
            ck_assert_int_le(end, outer->seq_indptr[within + 1]);
            base = outer->prefix_len[within];
        }
        ck_assert_int_ge(level->prefix_len[r], base);
        for (int32_t s = first + 1; s < end && level->prefix_len[r] > base; s++)
            ck_assert_int_le(level->prefix_len[r], lens[s]);
        saved += (int64_t)(end - first - 1) * (level->prefix_len[r] - base);
    }
    return saved;
}

TEST_OF(runs, the_best_of_all_choices)
{
    uint64_t drawn = 0;
    for (int round = 0; round < random_cases(1000); round++) {
        int64_t saved = 0, rows = 0;
        num_seqs = 1 + (int32_t)(mix_stream(1, drawn++) % MAX_SEQS);
        memset(lens, 0, sizeof lens);
        for (int32_t s = 1; s < num_seqs; s++)
            lens[s] = (int32_t)(mix_stream(1, drawn++) % 8) * 48;
        plan(lens, num_seqs);
        for (int l = 0; l < shared.num_levels; l++)
            saved += check_level(l);
        for (int32_t r = 0; shared.num_levels > 0 && r < shared.levels[0].num_runs; r++)
            if (shared.levels[0].prefix_len[r] > 0)
                rows += shared.levels[0].seq_indptr[r + 1] - shared.levels[0].seq_indptr[r];
        ck_assert_int_eq(shared.saved_keys, saved);
        ck_assert_int_eq(shared.shared_rows, rows);
        ck_assert_int_eq(saved, most_saved(0, num_seqs, 0, SHARED_PREFIX_LEVELS));
    }
}

GROUP(runs, .set_up = set_up, .tear_down = tear_down);
TESTS("shared_prefix");
