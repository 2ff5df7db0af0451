/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fi_prefixes.c: shared prefixes, on hints drawn at random: every key of every sequence is
 * read for it once, by a level's run or by itself; plans lie side by side within the memory that
 * they ask for.
 */
#include "host/base/mix.h"
#include "plugins/flashinfer_like/flashinfer_like.h"
#include "plugins/flashinfer_like/kernels/plan.cuh"
#include "tests/tools/test_main.h"

enum {
    CASES = 3000,
    MAX_SEQS = 40,
    MAX_KEYS = 2000,
    PAGE = 16,
    LEAST = 128,
    POISON = 0xa5,
    GUARD = 512
};

/* Check takes a note of every assertion: too slow for one a key. */
#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            ck_abort_msg("case %d: not so: %s", case_number, #what);                               \
    } while (0)

static int case_number;

typedef struct test_case {
    uint64_t seed, drawn;
    int seqs, levels;
    int lens[MAX_SEQS];
    int indptr[FI_LEVELS][MAX_SEQS + 1], prefixes[FI_LEVELS][MAX_SEQS];
    fi_group group;
    attn_instance instance;
    attn_kv_batch kv;
    attn_metadata metadata;
    unsigned char *memory;
    uint64_t size;
} test_case;

static int between(test_case *t, int low, int high)
{
    return low + (int)(mix_stream(t->seed, t->drawn++) % (uint64_t)(high - low + 1));
}

/* ---- Hints ----------------------------------------------------------------------------------- */

/* Runs of sequences [first, end) that share `from` keys already: some of one sequence, some of so
 * few keys that they are not worth a place. Returns how many there are now. */
static int draw_runs(test_case *t, int level, int runs, int first, int end, int from)
{
    for (int s = first; s < end;) {
        int next = int_min(end, s + between(t, 1, between(t, 0, 1) ? 4 : MAX_SEQS));
        t->indptr[level][runs] = s;
        t->indptr[level][runs + 1] = next;
        t->prefixes[level][runs++] = from + PAGE * between(t, 0, between(t, 0, 1) ? 6 : 30);
        s = next;
    }
    return runs;
}

/* Each level within the one before; a hint need not tell of all sequences. */
static void draw_levels(test_case *t)
{
    int first = between(t, 0, 2), end = int_max(first, t->seqs - between(t, 0, 2));
    t->levels = between(t, 1, FI_LEVELS);
    int runs = draw_runs(t, 0, 0, first, end, 0);
    for (int level = 0; level < t->levels; level++) {
        t->metadata.prefixes.level[level] = (fi_runs){t->indptr[level], t->prefixes[level], runs};
        t->indptr[level][runs] = runs ? t->indptr[level][runs] : 0;
        int inner = 0;
        for (int r = 0; r < runs && level + 1 < t->levels; r++)
            inner = draw_runs(t, level + 1, inner, t->indptr[level][r], t->indptr[level][r + 1],
                              t->prefixes[level][r]);
        runs = inner;
    }
    t->metadata.prefixes.levels = t->levels;
}

/* Every sequence has a key after what it shares at least. */
static void draw_lens(test_case *t)
{
    for (int s = 0; s < t->seqs; s++) {
        plan_share share = {0, 0, 0};
        int shared = 0;
        for (int l = 0; l < t->levels; l++) {
            const fi_runs *runs = &t->metadata.prefixes.level[l];
            int r = work_find_row(runs->seq_indptr, runs->count, s);
            shared = r < 0 ? shared : int_max(shared, runs->prefix_len[r]);
        }
        share = plan_find_share(&t->metadata.prefixes, t->levels, s);
        REQUIRE(share.keys <= shared);
        t->lens[s] = shared + between(t, 1, between(t, 0, 1) ? 3 : 300);
    }
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static void plan(test_case *t, int level, fi_plan_call *call)
{
    fi_plan_of(&t->metadata, 0, level, call);
    fi_plan_all(call);
}

static void begin(test_case *t, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->seed = mix_word(seed);
    t->seqs = between(t, 2, MAX_SEQS);
    t->group = (fi_group){
        .shape = fi_find_shape(128, 128), .num_sms = 132, .options = fi_read_options(NULL)};
    t->group.options.cascade = between(t, 0, 4) ? WHEN_ALWAYS : WHEN_AUTO;
    t->group.base = (cuda_group){.kv_heads = between(t, 1, 8),
                                 .ratio = between(t, 1, 16),
                                 .dim = 128,
                                 .v_dim = 128,
                                 .window_left = -1,
                                 .page_size = PAGE,
                                 .q_dtype = ATTN_BF16,
                                 .kv_dtype = ATTN_BF16};
    t->instance = (attn_instance){.num_groups = 1, .groups = &t->group};
    t->metadata.instance = &t->instance;
    t->metadata.shared_keys = -1;
    t->metadata.prefixes.least = LEAST;
    draw_levels(t);
    draw_lens(t);
    cuda_plan *p = &t->metadata.plan;
    p->kv = &t->kv;
    p->bounds = (attn_bounds){.struct_size = sizeof p->bounds,
                              .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE),
                              .uses = ATTN_USES_SHARED_PREFIX,
                              .max_prefix_levels = t->levels,
                              .max_seqs = t->seqs,
                              .max_tokens = t->seqs};
    p->batch.mode = ATTN_MODE_DECODE;
    p->batch.seq_lens.device = t->kv.kv_lens.device = t->lens;
    p->batch.num_seqs = p->batch.num_tokens = t->seqs;
    t->size = fi_layout_plan(&t->group, &p->bounds).size +
              (uint64_t)t->levels * fi_layout_runs(&t->group, &p->bounds).size;
    t->memory = malloc(t->size + 2 * GUARD);
    ck_assert_ptr_nonnull(t->memory);
    memset(t->memory, POISON, t->size + 2 * GUARD);
    t->metadata.plans = (char *)t->memory + GUARD;
}

static void end(test_case *t)
{
    for (uint64_t i = 0; i < GUARD; i++)
        REQUIRE(t->memory[i] == POISON && t->memory[GUARD + t->size + i] == POISON);
    free(t->memory);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* How often key j of a sequence is read for one of its query heads. */
static int reads[MAX_SEQS][FI_LEVELS * 31 * PAGE + MAX_KEYS];

static void read_tile(const test_case *t, const fi_plan_call *call, const fi_tile *tile, int head)
{
    index_sequence q;
    index_find_sequence(&call->batch, 0, tile->seq, &q);
    for (int n = tile->row0; n < int_min(tile->row0 + call->rows, q.q_len * call->ratio); n++)
        for (int j = tile->lo; n % call->ratio == head && j < tile->hi; j++)
            reads[q.first_row + n / call->ratio][j]++;
    REQUIRE(q.first_row + q.q_len <= t->seqs);
}

/* The plans as kernels go through them, once all of them are made. */
static int check_keys(const test_case *t, const fi_plan_call *calls)
{
    int tiles = 0, head = t->group.base.ratio - 1;
    memset(reads, 0, sizeof reads);
    for (int level = -1; level < t->levels; level++) {
        const fi_plan_call *call = &calls[level + 1];
        for (int n = 0; n < call->plan->tiles; n++)
            read_tile(t, call, &call->tiles[n], head);
        tiles += level >= 0 ? call->plan->tiles : 0;
    }
    for (int s = 0; s < t->seqs; s++)
        for (int j = 0; j < t->lens[s]; j++)
            REQUIRE(reads[s][j] == 1);
    return tiles;
}

/* Columns have all units of a lane, each once, and those that have any come first. */
static void check_columns(const fi_plan_call *call)
{
    int64_t units = 0;
    for (int c = 0; c < call->columns; c++) {
        REQUIRE((call->starts[c].count > 0) == (c < call->plan->columns));
        units += call->starts[c].count;
    }
    REQUIRE(units == call->plan->units);
}

/* The keys that tiles of sequences take are those that runs leave. */
static void check_levels(const test_case *t, const fi_plan_call *calls)
{
    int left[MAX_SEQS] = {0};
    for (int level = 0; level < t->levels; level++) {
        const fi_plan_call *call = &calls[level + 1];
        fi_plan_layout layout = fi_layout_runs(&t->group, &t->metadata.plan.bounds);
        REQUIRE(call->plan->tiles <= layout.most_tiles);
        REQUIRE(call->plan->columns <= call->columns);
        check_columns(call);
        for (int n = 0; n < call->plan->tiles; n++) {
            const fi_tile *tile = &call->tiles[n];
            int first = t->indptr[level][tile->seq], last = t->indptr[level][tile->seq + 1];
            REQUIRE(last - first >= 2 && tile->hi - tile->lo >= LEAST);
            for (int s = first; s < last; s++)
                left[s] |= 1 << level;
        }
    }
    for (int n = 0; n < calls->plan->tiles; n++)
        REQUIRE(calls->tiles[n].levels == left[calls->tiles[n].seq]);
}

TEST_OF(levels, every_key_once)
{
    static test_case t;
    int cases = random_cases(CASES), tiles = 0, deep = 0;
    for (int i = 0; i < cases; i++) {
        fi_plan_call calls[FI_LEVELS + 1];
        case_number = i;
        begin(&t, (uint64_t)i);
        for (int level = -1; level < t.levels; level++)
            plan(&t, level, &calls[level + 1]);
        tiles += check_keys(&t, calls);
        check_levels(&t, calls);
        deep += t.levels > 1 && calls[2].plan->tiles > 0;
        end(&t);
    }
    ck_assert(tiles > cases && deep > cases / 5); /* there was something to find */
}

/* ---- What there are levels for --------------------------------------------------------------- */

TEST_OF(levels, groups)
{
    attn_bounds bounds = {.struct_size = sizeof bounds,
                          .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE),
                          .uses = ATTN_USES_SHARED_PREFIX,
                          .max_prefix_levels = 2};
    const fi_group full = {.base = {.window_left = -1, .kv_dtype = ATTN_BF16},
                           .shape = fi_find_shape(128, 128)};
    fi_group other = full;
    ck_assert_int_eq(fi_num_levels(&full, &bounds), 2);
    other.base.window_left = 100;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    other = full;
    other.base.chunk = 100;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    other = full;
    other.base.flags = ATTN_GROUP_HAS_ALIBI;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    other = full;
    other.base.attn_type = ATTN_TYPE_CROSS;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    other = full;
    other.base.kv_dtype = ATTN_FP8_E4M3;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    other = full;
    other.shape = fi_find_shape(512, 512); /* without kernels of few rows */
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    bounds.max_prefix_levels = 0; /* one, as ever since there are hints */
    ck_assert_int_eq(fi_num_levels(&full, &bounds), 1);
    bounds.max_prefix_levels = 99;
    ck_assert_int_eq(fi_num_levels(&full, &bounds), FI_LEVELS);
    other = full;
    other.options.cascade = WHEN_NEVER;
    ck_assert_int_eq(fi_num_levels(&other, &bounds), 0);
    bounds.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    ck_assert_int_eq(fi_num_levels(&full, &bounds), 0);
    bounds.modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    bounds.uses = 0;
    ck_assert_int_eq(fi_num_levels(&full, &bounds), 0);
}

/* Few columns have parts of an item, since merging takes time for each: 4 units of a KV head by 2
 * columns, 64 by 7, where 96 / 64 of a unit's time go to a part; never more than there are. */
TEST_OF(levels, few_columns_share_a_run)
{
    fi_plan_call p = {.columns = 132,
                      .merge = FI_MERGE,
                      .merge_several = FI_MERGE,
                      .several = FI_SEVERAL,
                      .merged = 1,
                      .level = 0};
    ck_assert_int_eq(FI_MERGE, 96);
    ck_assert_int_eq(plan_shared_columns(&p, 4, 1), 2);
    ck_assert_int_eq(plan_shared_columns(&p, 64, 1), 7);
    ck_assert_int_eq(plan_shared_columns(&p, 640, 10), 66); /* ten such items */
    ck_assert_int_eq(plan_shared_columns(&p, 0, 0), 1);
    p.columns = 16;
    ck_assert_int_eq(plan_shared_columns(&p, 6400, 100), 16);
}

/* Where a batch has fewer items than columns, as one decode over one KV head: where several blocks
 * merge and 4 / 64 of a unit's time go to a part, 128 units are shared by 43 columns, three each,
 * not by 46, and 1024 by 128, eight each, not by 132. Of less than 8 parts one block merges. */
TEST_OF(levels, few_columns_share_an_item)
{
    fi_plan_call p = {.columns = 132,
                      .rounds = 1,
                      .merge = FI_MERGE_ROWS,
                      .merge_several = 4,
                      .several = FI_SEVERAL,
                      .merged = FI_MERGED,
                      .level = -1};
    ck_assert_int_eq(plan_make(&p, 1, 128).columns, 43);
    ck_assert_int_eq(plan_make(&p, 1, 1024).columns, 128);
    ck_assert_int_eq(plan_make(&p, 1, 5).columns, 5);
    ck_assert_int_eq(plan_make(&p, 8, 1024).columns, 128);
    ck_assert_int_eq(plan_make(&p, 200, 1024).columns, 132); /* each has items of its own */
    p.columns = 16; /* as with 8 KV heads: all of them, however short the keys are */
    ck_assert_int_eq(plan_make(&p, 1, 16).columns, 16);
    p.columns = 100;
    p.merge = 28 * 8; /* of 128 rows */
    p.merged = 2;
    p.merge_several = 1;
    p.several = FI_SEVERAL_MANY;
    ck_assert_int_eq(plan_make(&p, 20, 300).columns, 100);
    ck_assert_int_eq(plan_make(&p, 30, 300).columns, 60); /* an item has less than 4 parts */
}

/* What the planner finds is not worth it has no tiles, in any of the plans: as if there were no
 * levels. One key less to save, and it is. */
TEST_OF(levels, the_planner_tells_what_is_worth_it)
{
    static test_case t;
    fi_plan_call call;
    int64_t saved = 0;
    begin(&t, 1);
    for (int level = 0; level < t.levels; level++)
        for (int r = 0; r < t.metadata.prefixes.level[level].count; r++)
            saved += plan_count_saved(&t.metadata.prefixes, level, r);
    ck_assert_int_gt(saved, 0);
    for (int is_worth = 0; is_worth < 2; is_worth++) {
        int tiles = 0, taken = 0;
        for (int level = t.levels - 1; level >= -1; level--) {
            fi_plan_of(&t.metadata, 0, level, &call);
            call.prefixes.worth = saved + !is_worth;
            fi_plan_all(&call);
            tiles += level >= 0 ? call.plan->tiles : 0;
        }
        for (int n = 0; n < call.plan->tiles; n++)
            taken += call.tiles[n].levels != 0;
        ck_assert_int_eq(tiles > 0, is_worth);
        ck_assert_int_eq(taken > 0, is_worth);
    }
    end(&t);
}

/* A batch whose sequences share little is not worth another launch; of a graph's, or one of unknown
 * lengths, the planner tells. */
TEST_OF(levels, little_is_not_worth_it)
{
    static test_case t;
    begin(&t, 1);
    t.group.options.cascade = WHEN_AUTO;
    int64_t bytes = 2 * (int64_t)t.group.base.kv_heads * 256, worth = (256 << 20) / bytes;
    ck_assert_int_eq(fi_planned_levels(&t.metadata, &t.group), t.levels);
    t.metadata.shared_keys = worth;
    ck_assert_int_eq(fi_planned_levels(&t.metadata, &t.group), t.levels);
    t.metadata.shared_keys = worth - 1;
    ck_assert_int_eq(fi_planned_levels(&t.metadata, &t.group), 0);
    t.group.options.cascade = WHEN_ALWAYS;
    ck_assert_int_eq(fi_planned_levels(&t.metadata, &t.group), t.levels);
    end(&t);
}

GROUP(levels, .timeout = 300);
TESTS("fi_prefixes");
