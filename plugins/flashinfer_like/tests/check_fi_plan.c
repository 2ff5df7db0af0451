/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fi_plan.c: the planner, compiled as C, on batches drawn at random, and the blocks that go
 * through its plan as the kernels do: every key of every item once, no block with more to do than
 * another, no two parts in one place, nothing written outside the memory given.
 */
#include "host/base/mix.h"
#include "plugins/flashinfer_like/flashinfer_like.h"
#include "plugins/flashinfer_like/kernels/plan.cuh"
#include "plugins/flashinfer_like/kernels/walk.cuh"
#include "tests/tools/test_main.h"

enum {
    CASES = 10000,
    MAX_SEQS = 48,
    MAX_ROWS = 700,
    MAX_UNITS = 1 << 20,
    MOST_PARTS = 160,    /* splits of one unit that the longest sequence has, and more */
    ITEM_STRIDE = 10000, /* queries of the longest sequence, and more */
    POISON = 0xa5,
    GUARD = 512
};

/* Check takes a note of every assertion: too slow for one a unit. */
#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            ck_abort_msg("case %d: not so: %s", case_number, #what);                               \
    } while (0)

static int case_number;

/* ---- Batches --------------------------------------------------------------------------------- */

/* A batch, the grid it is for, and memory of exactly the size that the plan asks for. */
typedef struct test_case {
    uint64_t seed, drawn;
    int indptr[MAX_SEQS + 1], prefixes[MAX_SEQS], lens[MAX_SEQS], positions[MAX_ROWS];
    int counts[CALL_COUNTS];
    int item_prefixes[MAX_SEQS];
    unsigned short item_pos[MAX_SEQS * ITEM_STRIDE];
    fi_group group;
    attn_bounds bounds;
    int kernel; /* KERNEL_* */
    fi_grid grid;
    fi_plan_layout layout;
    unsigned char *memory; /* GUARD bytes, the plan, GUARD bytes */
    fi_plan_call plan;
    fi_call call; /* the arguments of blocks */
    int seqs;
} test_case;

static int between(test_case *t, int low, int high)
{
    return low + (int)(mix_stream(t->seed, t->drawn++) % (uint64_t)(high - low + 1));
}

/* Lengths of 0 and 1, ordinary ones, or one giant among small ones. */
static int draw_keys(test_case *t, int s, int giant)
{
    if (s == giant)
        return between(t, 2000, 9000);
    switch (between(t, 0, 4)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return between(t, 1, 70);
    default:
        return between(t, 0, giant >= 0 ? 40 : 900);
    }
}

static void draw_batch(test_case *t)
{
    int is_ragged = between(t, 0, 2) != 0, giant = between(t, 0, 3) == 0 ? between(t, 0, 8) : -1;
    int most_queries = between(t, 1, 60), at = between(t, 0, 9);
    t->seqs = between(t, 0, 3) == 0 ? between(t, 0, 2) : between(t, 1, MAX_SEQS);
    for (int s = 0; s < t->seqs; s++) {
        int keys = draw_keys(t, s, giant);
        int queries = is_ragged ? between(t, 0, s == giant ? 4 : most_queries) : 1;
        if (at + queries > MAX_ROWS)
            queries = 0;
        t->indptr[s] = at;
        t->lens[s] = keys;
        t->prefixes[s] = keys > queries ? keys - queries : 0;
        if (between(t, 0, 9) == 0) /* the keys need not end with the queries */
            t->prefixes[s] = between(t, 0, keys);
        at += queries;
    }
    t->indptr[t->seqs] = at;
    for (int row = 0; row < MAX_ROWS; row++)
        t->positions[row] = between(t, 0, 900);
    call_batch *batch = &t->plan.batch;
    batch->seq_lens = batch->kv_lens = t->lens;
    batch->q_indptr = is_ragged ? t->indptr : NULL;
    batch->prefix_lens = t->prefixes;
    batch->num_seqs = t->seqs;
    batch->window_right = between(t, 0, 3) == 0   ? -1
                          : between(t, 0, 3) == 0 ? between(t, 0, 40)
                                                  : 0;
    if (between(t, 0, 2) == 0) { /* a graph's, captured with another number */
        t->counts[CALL_COUNT_SEQS] = t->seqs;
        batch->counts = t->counts;
        batch->num_seqs = between(t, 0, 1000);
    }
}

/* Items of 0 to 90 tokens after a prefix; numbers that are no item's, too. */
static void draw_items(test_case *t)
{
    int is_wild = between(t, 0, 3) == 0;
    for (int s = 0; s < t->seqs; s++) {
        t->item_prefixes[s] = between(t, 0, between(t, 0, 1) ? t->lens[s] : 40);
        int length = between(t, 0, 90);
        for (int i = 0, p = 0; i < ITEM_STRIDE; i++, p = p < length ? p + 1 : 0)
            t->item_pos[s * ITEM_STRIDE + i] = (unsigned short)(is_wild ? between(t, 0, 900) : p);
    }
    t->plan.batch.item_prefix_lens = t->item_prefixes;
    t->plan.batch.item_pos = t->item_pos;
    t->plan.batch.item_stride = ITEM_STRIDE;
}

static void draw_group(test_case *t)
{
    static const uint32_t sms[] = {132, 132, 1, 2, 20, 78, 132, 148};
    do { /* not all shapes have all kernels */
        t->group.shape = &fi_shapes[between(t, 0, (int)fi_num_shapes - 1)];
        t->kernel = between(t, 0, KERNEL_COUNT - 1);
    } while (t->group.shape->kernels[t->kernel].threads == 0);
    t->group.num_sms = sms[between(t, 0, 7)];
    t->group.base.kv_heads = between(t, 1, between(t, 0, 1) ? 8 : 40);
    t->group.base.ratio = between(t, 0, 16);
    if (t->group.base.ratio == 0)
        t->group.base.ratio = 40;
    t->group.base.v_dim = 128;
    t->group.options = fi_read_options(NULL);
    if (between(t, 0, 3) == 0)
        t->group.options.workspace = between(t, 1 << 20, 20 << 20);
    t->group.base.window_left = between(t, 0, 3) == 0 ? between(t, 0, 300) : -1;
    t->group.base.chunk = between(t, 0, 5) == 0 ? between(t, 1, 500) : 0;
    t->grid = fi_find_grid(&t->group, t->kernel, &t->bounds);
}

/* Room for the batch and hardly more, every byte of it known. */
static void lay_out(test_case *t)
{
    int rows = t->plan.batch.q_indptr ? t->indptr[t->seqs] - t->indptr[0] : t->seqs;
    t->bounds = (attn_bounds){.struct_size = sizeof t->bounds,
                              .max_seqs = t->seqs + between(t, 0, 1),
                              .max_tokens = rows + between(t, 0, 1)};
    t->layout = fi_layout_plan(&t->group, &t->bounds);
    /* fi_layout_plan() reckons with the largest grid of the group's kernels. */
    t->layout.size = t->layout.starts_at + t->grid.columns * sizeof(fi_start);
    t->memory = malloc(t->layout.size + 2 * GUARD);
    ck_assert_ptr_nonnull(t->memory);
    memset(t->memory, POISON, t->layout.size + 2 * GUARD);
    char *base = (char *)t->memory + GUARD;
    t->plan.plan = (fi_plan *)(void *)base;
    t->plan.first_tile = (int *)(void *)(base + t->layout.first_tile_at);
    t->plan.before = (long long *)(void *)(base + t->layout.before_at);
    t->plan.tiles = (fi_tile *)(void *)(base + t->layout.tiles_at);
    t->plan.starts = (fi_start *)(void *)(base + t->layout.starts_at);
}

static void begin(test_case *t, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->seed = mix_word(seed);
    draw_group(t);
    draw_batch(t);
    lay_out(t);
    fi_plan_call *p = &t->plan;
    p->level = -1;
    p->window_left = t->group.base.window_left;
    p->chunk = t->group.base.chunk;
    p->custom = between(t, 0, 4) == 0;
    p->batch.positions = p->custom && between(t, 0, 1) ? t->positions : NULL;
    if (!p->custom && between(t, 0, 5) == 0)
        draw_items(t);
    p->skips = between(t, 0, 3) != 0;
    p->rows = t->group.shape->kernels[t->kernel].rows;
    p->align = between(t, 0, 1) ? fi_warp_keys(&t->group, t->kernel) : 1;
    p->ratio = t->group.base.ratio;
    p->unit = t->group.shape->kernels[t->kernel].keys;
    p->begin = between(t, 0, 1) ? between(t, 1, 12) : 0;
    p->rounds = t->group.base.kv_heads / (int)t->grid.lanes;
    p->columns = (int)t->grid.columns;
    p->hands = between(t, 0, 1) ? between(t, 1, 40) : 1;
    if (between(t, 0, 2) == 0) /* items of one split, or of some */
        p->split = between(t, 0, 3) == 0 ? 1 << 30 : 1 << between(t, 0, 5);
    p->whose = between(t, 0, 2) == 0 ? between(t, FI_FEW, FI_MANY) : FI_ALL;
    t->call = (fi_call){.level = -1,
                        .batch = p->batch,
                        .plan = p->plan,
                        .tiles = p->tiles,
                        .starts = p->starts,
                        .kv_heads = t->group.base.kv_heads,
                        .lanes = (int)t->grid.lanes,
                        .ratio = p->ratio,
                        .split = p->split,
                        .most_parts = MOST_PARTS};
    fi_plan_all(p);
}

static void end(test_case *t)
{
    free(t->memory);
}

/* ---- What was written ------------------------------------------------------------------------ */

static void expect_poison(const test_case *t, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        REQUIRE(t->memory[i] == POISON);
}

/* What lies between the arrays, after what they hold, and around all of them. */
static void check_memory(const test_case *t)
{
    const fi_plan_layout *l = &t->layout;
    uint64_t seqs = (uint64_t)t->bounds.max_seqs, tiles = (uint64_t)t->plan.plan->tiles;
    REQUIRE((int64_t)tiles <= l->most_tiles);
    expect_poison(t, 0, GUARD);
    expect_poison(t, GUARD + sizeof(fi_plan), GUARD + l->first_tile_at);
    expect_poison(t, GUARD + l->first_tile_at + (seqs + 1) * sizeof(int), GUARD + l->before_at);
    expect_poison(t, GUARD + l->before_at + (tiles + 1) * sizeof(long long), GUARD + l->tiles_at);
    expect_poison(t, GUARD + l->tiles_at + tiles * sizeof(fi_tile), GUARD + l->starts_at);
    expect_poison(t, GUARD + l->size, GUARD + l->size + GUARD);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Does the query of sequence s at `position` see key j, whose position that is? */
static int sees(const fi_plan_call *p, int s, int position, int j)
{
    if (p->batch.item_prefix_lens) {
        int prefix = p->batch.item_prefix_lens[s], column = position - prefix;
        if (j > position)
            return 0;
        if (column >= 0 && j >= prefix &&
            j <= position - p->batch.item_pos[s * ITEM_STRIDE + column])
            return 0;
    }
    if (p->window_left >= 0 && j < position - p->window_left)
        return 0;
    if (p->batch.window_right >= 0 && j > position + p->batch.window_right)
        return 0;
    if (p->chunk == 0)
        return 1;
    if (position < 0 || j / p->chunk != position / p->chunk)
        return 0;
    return p->custom || j <= position;
}

/* The first and the end of the keys that rows [r0, r1) of a sequence see. */
static void find_seen(const test_case *t, int s, int r0, int r1, int *lo, int *hi)
{
    const fi_plan_call *p = &t->plan;
    int prefix = p->batch.q_indptr ? t->prefixes[s] : t->lens[s] - 1;
    int first = prefix + r0 / p->ratio, last = prefix + (r1 - 1) / p->ratio;
    *lo = 0x7fffffff;
    *hi = -1;
    for (int j = 0; j < t->lens[s]; j++)
        for (int i = first; i <= last; i++)
            if (sees(p, s, i, j)) {
                *lo = int_min(*lo, j);
                *hi = j + 1;
            }
}

/* Keys that are passed over are whole units that none of the tile's rows sees; where there are such
 * between the prefix and the rows' items, they are. */
static int skipped_keys;

static void check_skipped(const test_case *t, const fi_tile *tile, int rows)
{
    const fi_plan_call *p = &t->plan;
    int prefix = p->batch.q_indptr ? t->prefixes[tile->seq] : t->lens[tile->seq] - 1;
    int first = prefix + tile->row0 / p->ratio, last = prefix + (tile->row0 + rows - 1) / p->ratio;
    int from = tile->lo + tile->gap * p->unit, end = from + tile->skip;
    REQUIRE(tile->skip >= 0 && tile->skip % p->unit == 0);
    REQUIRE(tile->skip == 0 || (p->skips && p->batch.item_prefix_lens && end <= tile->hi));
    for (int j = from; j < end; j++)
        for (int i = first; i <= last; i++)
            REQUIRE(!sees(p, tile->seq, i, j));
    skipped_keys += tile->skip;
    if (!p->skips || !p->batch.item_prefix_lens || first < t->item_prefixes[tile->seq])
        return;
    /* A unit of items more, on either side, would be seen. */
    int lo = int_max(t->item_prefixes[tile->seq], tile->lo), hidden = 0, most = 0;
    for (int j = lo; j < tile->hi; j++) {
        int seen = 0;
        for (int i = first; i <= last; i++)
            seen |= sees(p, tile->seq, i, j);
        hidden = seen ? 0x7fffffff : hidden == 0x7fffffff ? hidden : hidden + 1;
        most = hidden == 0x7fffffff ? most : hidden;
    }
    REQUIRE(tile->skip > most - 2 * p->unit);
}

/* A tile has all keys that its rows see, and where no mask thins them out hardly any others. */
static void check_keys(const test_case *t, const fi_tile *tile, int rows)
{
    const fi_plan_call *p = &t->plan;
    int lo, hi, align = p->align;
    if (p->batch.positions) {
        REQUIRE(tile->lo == 0);
        REQUIRE(tile->hi == t->lens[tile->seq]);
        return;
    }
    check_skipped(t, tile, rows);
    find_seen(t, tile->seq, tile->row0, tile->row0 + rows, &lo, &hi);
    if (p->batch.item_prefix_lens) { /* an outline */
        REQUIRE(hi < 0 || (tile->lo <= lo && tile->hi >= hi));
        return;
    }
    if (hi < 0) {
        REQUIRE(tile->lo == 0);
        REQUIRE(tile->hi == 0);
        return;
    }
    REQUIRE(tile->lo == lo - lo % align);
    REQUIRE(tile->hi == hi);
}

/* place[i]: where the plan has tile i of the batch; every one is somewhere. */
static int place[MAX_UNITS];

static void find_places(const test_case *t, int tiles)
{
    for (int i = 0; i < tiles; i++)
        place[i] = -1;
    for (int n = 0; n < tiles; n++) {
        int i = plan_deal(&t->plan, tiles, n);
        REQUIRE(i >= 0 && i < tiles && place[i] < 0);
        REQUIRE(t->plan.hands > 1 || i == n);
        place[i] = n;
    }
}

/* As many columns as can have units, or fewer of which none has more; the last has the fewest. Where
 * items are filled up each column has one alone, and p->even units more at most. */
static void check_columns(const fi_plan_call *p, i64 units)
{
    const i64 most = units < p->columns ? units : p->columns, columns = p->plan->columns;
    REQUIRE(columns <= most && (columns > 0 || units == 0));
    if (units == 0)
        return;
    const i64 all = p->plan->units;
    REQUIRE(all - plan_first_unit(all, (int)columns, (int)columns - 1) == all / columns);
    const i64 longest = (all + columns - 1) / columns, least = (units + most - 1) / most;
    REQUIRE(longest >= least && longest <= least + (p->level < 0 ? p->even : 0));
}

/* Units of a head in the tiles before, but for those that items are filled up with. */
static i64 own_before[MAX_UNITS + 1];
static int is_filled;

static void check_units(const fi_plan_call *p, int tiles)
{
    i64 own = 0, filled = 0, each = 1;
    for (int n = 0; n < tiles; n++) {
        int keys = p->tiles[n].hi - p->tiles[n].lo - p->tiles[n].skip;
        own_before[n] = own;
        own += keys == 0 ? 1 : (keys + p->unit - 1) / p->unit;
    }
    own_before[tiles] = own;
    is_filled = p->before[tiles] != own;
    if (is_filled)
        each = p->plan->units / p->plan->columns;
    for (int n = 0; n < tiles; n++) {
        REQUIRE(p->before[n] == filled);
        filled += (own_before[n + 1] - own_before[n] + each - 1) / each * each;
    }
    REQUIRE(p->before[tiles] == filled);
    REQUIRE(p->plan->begin == (tiles * p->rounds >= p->columns ? p->begin : 0));
    REQUIRE(p->plan->units == (filled + (i64)tiles * p->plan->begin) * p->rounds);
    check_columns(p, (own + (i64)tiles * p->plan->begin) * p->rounds);
}

static void check_tiles(const test_case *t)
{
    const fi_plan_call *p = &t->plan;
    int tiles = 0;
    find_places(t, p->plan->tiles);
    for (int s = 0; s < t->seqs; s++) {
        int queries = p->batch.q_indptr ? t->indptr[s + 1] - t->indptr[s] : 1;
        int rows = queries * p->ratio, has_few = queries == 1 || rows <= 32;
        REQUIRE(p->first_tile[s] == tiles);
        if ((p->whose == FI_FEW && !has_few) || (p->whose == FI_MANY && has_few))
            continue;
        for (int row = 0; row < rows; row += p->rows, tiles++) {
            REQUIRE(tiles < p->plan->tiles);
            const fi_tile *tile = &p->tiles[place[tiles]];
            REQUIRE(tile->seq == s);
            REQUIRE(tile->row0 == row);
            check_keys(t, tile, int_min(p->rows, rows - row));
        }
    }
    REQUIRE(p->first_tile[t->seqs] == tiles);
    REQUIRE(p->plan->tiles == tiles);
    check_units(p, tiles);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* owner[n]: the column of unit n of a lane. */
static int owner[MAX_UNITS], seen[MAX_UNITS];

/* Where the unit is among the lane's, by tile, item, key. */
static i64 number_of(const test_case *t, int block, const cursor *at)
{
    int lane = block % t->call.lanes, round = (at->head - lane) / t->call.lanes;
    REQUIRE(at->head == lane + round * t->call.lanes);
    REQUIRE(at->head < t->call.kv_heads);
    REQUIRE(at->at < t->plan.plan->tiles);
    REQUIRE(memcmp(&at->tile, &t->plan.tiles[at->at], sizeof at->tile) == 0);
    return own_before[at->at] * t->plan.rounds + (i64)round * at->units + at->unit;
}

/* Units that are somebody's work. */
static i64 own_units(const test_case *t)
{
    return own_before[t->plan.plan->tiles] * t->plan.rounds;
}

/* Units of the longest split. */
static int longest_split(const test_case *t)
{
    int longest = 0;
    for (int n = 0; n < t->plan.plan->tiles; n++)
        longest = int_max(longest, plan_tile_units(&t->plan.tiles[n], t->plan.unit));
    return int_min(longest, t->plan.split);
}

/* To pass an item, as a team does with the other one's, is to go through all of its units. */
static void pass_item(const test_case *t, walk_block block, cursor at)
{
    cursor past = at;
    int passed = walk_past(&t->call, block, &past, t->plan.unit);
    REQUIRE(passed == int_min(at.left, at.units - at.unit));
    for (int i = 0; i < passed; i++)
        walk_next(&t->call, block, &at, t->plan.unit);
    REQUIRE(past.left == at.left);
    REQUIRE(at.left == 0 || (past.at == at.at && past.head == at.head && past.unit == 0 &&
                             at.unit == 0 && past.units == at.units));
}

static void walk_lane(const test_case *t, int lane)
{
    const fi_plan *plan = t->plan.plan;
    int cut = t->plan.split, more = longest_split(t);
    i64 units = own_units(t), share = plan->columns ? plan->units / plan->columns : 0;
    memset(seen, 0, (size_t)units * sizeof *seen);
    for (int c = 0; c < t->plan.columns; c++) {
        const fi_start *start = &t->plan.starts[c];
        int block = c * t->call.lanes + lane;
        if (c >= t->plan.plan->columns) {
            REQUIRE(start->count == 0);
            continue;
        }
        int begun = 0;
        for (cursor at =
                 walk_begin(&t->call, walk_find_block(&t->call, block), start, t->plan.unit);
             at.left > 0;
             walk_next(&t->call, walk_find_block(&t->call, block), &at, t->plan.unit)) {
            i64 n = number_of(t, block, &at);
            if (at.left == start->count || at.unit == 0)
                pass_item(t, walk_find_block(&t->call, block), at);
            REQUIRE(n >= 0 && n < units);
            seen[n]++;
            owner[n] = c;
            begun += at.unit == 0;
            REQUIRE(cut == 0 || at.left < start->count || at.unit % cut == 0);
            REQUIRE(cut == 0 || at.left > 1 || walk_ends_part(t->call.split, &at));
            REQUIRE(cut == 0 || at.left > 1 || (at.unit + 1) % cut == 0 || at.unit + 1 == at.units);
            int from = plan_unit_key(&at.tile, t->plan.unit, at.unit);
            REQUIRE(from < at.tile.hi || (at.tile.hi == 0 && at.unit == 0));
            REQUIRE(at.unit + 1 < at.units ||
                    plan_unit_key(&at.tile, t->plan.unit, at.unit + 1) >= at.tile.hi);
            REQUIRE(from < at.tile.lo + at.tile.gap * t->plan.unit ||
                    from >= at.tile.lo + at.tile.gap * t->plan.unit + at.tile.skip);
        }
        /* Columns have equally many; of the begins of the first and the last item, parts. */
        REQUIRE(start->count + int_max(begun - 1, 0) * plan->begin <= share + 1 + more);
        REQUIRE(is_filled || start->count + (begun + 1) * plan->begin + more >= share);
    }
    for (i64 n = 0; n < units; n++)
        REQUIRE(seen[n] == 1);
}

/* The item that unit n belongs to: its first unit, and the one after its last. */
static void find_item(const test_case *t, i64 n, i64 *first, i64 *last)
{
    const fi_plan_call *p = &t->plan;
    int tile = 0;
    while (own_before[tile + 1] * p->rounds <= n)
        tile++;
    i64 units = own_before[tile + 1] - own_before[tile], begin = own_before[tile] * p->rounds;
    *first = begin + (n - begin) / units * units;
    *last = *first + units - 1;
}

/* Splits of an item that its first column has. */
static int count_first_splits(const test_case *t, i64 first, i64 last)
{
    int splits = 0;
    for (i64 n = first; n <= last && owner[n] == owner[first]; n += t->plan.split)
        splits++;
    return splits;
}

static void check_split_starts(const test_case *t)
{
    i64 at = 0, first, last;
    for (int c = 0; c < t->plan.plan->columns; c++) {
        const fi_start *start = &t->plan.starts[c];
        if (start->count == 0)
            continue;
        find_item(t, at, &first, &last);
        REQUIRE(start->unit == at - first);
        REQUIRE(start->first_column == owner[first]);
        if (start->unit > 0)
            REQUIRE(start->first_parts == count_first_splits(t, first, last));
        at += start->count;
    }
}

/* What a start says of items that columns share, counted anew. */
static void check_starts(const test_case *t)
{
    i64 at = 0, first, last, other;
    for (int c = 0; c < t->plan.plan->columns; c++) {
        const fi_start *start = &t->plan.starts[c];
        if (start->count == 0)
            continue;
        find_item(t, at, &first, &last);
        REQUIRE(start->first_column == owner[first]);
        REQUIRE(start->in_the_middle == (first > 0 && owner[first - 1] == owner[first]));
        REQUIRE(start->first_parts == owner[last] - owner[first] + 1);
        other = first;
        at += start->count;
        find_item(t, at - 1, &first, &last);
        if (first != other)
            REQUIRE(start->last_parts == owner[last] - c + 1);
    }
}

/* ---- Parts ----------------------------------------------------------------------------------- */

enum { MAX_GRID = 2 * 148 };

/* Whose a slot and a counter is: the first unit of the item, after its lane. */
static i64 slots[2 * MAX_GRID], counters[MAX_GRID];
static int arrivals[MAX_GRID], counted[MAX_GRID];

/* A block ends its part of an item that others share. */
static void leave_part(const test_case *t, int block, const cursor *at, const fi_start *start,
                       int is_first)
{
    int column = block / t->call.lanes, lane = block % t->call.lanes;
    i64 first, last, n = number_of(t, block, at), item;
    parts p = walk_parts(&t->call, walk_find_block(&t->call, block), at, start, is_first);
    int grid = t->call.lanes * t->plan.columns, counter = (int)(p.counter - t->call.arrived);
    find_item(t, n, &first, &last);
    item = first * t->call.lanes + lane + 1;
    REQUIRE(p.count > 1);
    REQUIRE(p.count == owner[last] - owner[first] + 1);
    REQUIRE(p.mine >= 0 && p.mine < 2 * grid);
    REQUIRE(slots[p.mine] == 0);
    slots[p.mine] = item;
    REQUIRE(part_slot(p, column - owner[first]) == p.mine);
    REQUIRE(counter >= 0 && counter < grid);
    REQUIRE(counters[counter] == 0 || counters[counter] == item);
    counters[counter] = item;
    counted[counter] = p.count;
    arrivals[counter]++;
}

/* The slots of one lane's blocks as they would be when all have run, one after the other: for each
 * the item whose splits are in it, and how many; 0 = none. */
static struct {
    i64 item;
    int splits, number; /* `number`: of the last one */
} left_in[MAX_GRID * MOST_PARTS];

static int merges; /* of splits, seen by the test */

/* All of an item's splits are there, each once, in the order in which they are merged. */
static void expect_merge(parts p, i64 item)
{
    int next = 0;
    for (int i = 0; i < p.count; i++) {
        i64 slot = part_slot(p, i);
        REQUIRE(left_in[slot].item == item);
        next += left_in[slot].splits;
        REQUIRE(left_in[slot].number == next - 1);
    }
    REQUIRE(next == p.all);
    merges++;
}

static void leave_split(const test_case *t, int block, const cursor *at, const fi_start *start,
                        int is_first)
{
    i64 first, last;
    parts p = walk_parts(&t->call, walk_find_block(&t->call, block), at, start, is_first);
    int counter = (int)(p.counter - t->call.arrived), number = at->unit / t->plan.split;
    find_item(t, number_of(t, block, at), &first, &last);
    i64 item = first * t->call.lanes + block % t->call.lanes + 1;
    REQUIRE(p.all == (at->units + t->plan.split - 1) / t->plan.split && p.all > 1);
    REQUIRE(p.mine >= 0 && p.mine < t->call.lanes * t->plan.columns * MOST_PARTS);
    REQUIRE(p.first / MOST_PARTS == counter && p.mine / MOST_PARTS == counter);
    if (p.is_added)
        REQUIRE(left_in[p.mine].item == item && left_in[p.mine].number == number - 1);
    else
        left_in[p.mine].splits = 0;
    left_in[p.mine].item = item;
    left_in[p.mine].splits++;
    left_in[p.mine].number = number;
    REQUIRE(p.ends == (at->left == 1 || at->unit == at->units - 1));
    if (!p.ends)
        return;
    if (p.arriving == p.all) { /* no other block has any of it */
        expect_merge(p, item);
        return;
    }
    REQUIRE(counters[counter] == 0 || counters[counter] == item);
    arrivals[counter] += p.arriving;
    counters[counter] = arrivals[counter] == p.all ? 0 : item;
    if (arrivals[counter] < p.all)
        return;
    arrivals[counter] = 0;
    expect_merge(p, item);
}

/* Of a block that has only the end of an item, its splits may be there before those of the block
 * that has its first ones; the order of the blocks is no matter. */
static void check_splits(const test_case *t)
{
    int grid = t->call.lanes * t->plan.columns, backwards = case_number % 2;
    memset(left_in, 0, sizeof left_in);
    memset(counters, 0, sizeof counters);
    memset(arrivals, 0, sizeof arrivals);
    for (int n = 0; n < grid; n++) {
        int block = backwards ? grid - 1 - n : n, is_first = 1;
        const fi_start *start = &t->plan.starts[block / t->call.lanes];
        for (cursor at =
                 walk_begin(&t->call, walk_find_block(&t->call, block), start, t->plan.unit);
             at.left > 0;
             walk_next(&t->call, walk_find_block(&t->call, block), &at, t->plan.unit)) {
            if (!walk_ends_part(t->call.split, &at))
                continue;
            int whole = walk_has_whole(t->call.split, &at, start, is_first);
            REQUIRE(whole == (at.units <= t->plan.split));
            if (!whole)
                leave_split(t, block, &at, start, is_first);
            is_first = is_first && at.unit < at.units - 1;
        }
    }
    for (int i = 0; i < grid; i++)
        REQUIRE(counters[i] == 0 && arrivals[i] == 0);
}

static void check_parts(const test_case *t)
{
    int grid = t->call.lanes * t->plan.columns;
    memset(slots, 0, sizeof slots);
    memset(counters, 0, sizeof counters);
    memset(arrivals, 0, sizeof arrivals);
    REQUIRE(grid <= MAX_GRID);
    for (int block = 0; block < grid; block++) {
        const fi_start *start = &t->plan.starts[block / t->call.lanes];
        int is_first = 1;
        for (cursor at =
                 walk_begin(&t->call, walk_find_block(&t->call, block), start, t->plan.unit);
             at.left > 0;
             walk_next(&t->call, walk_find_block(&t->call, block), &at, t->plan.unit)) {
            if (at.left > 1 && at.unit < at.units - 1)
                continue;
            i64 first, last;
            find_item(t, number_of(t, block, &at), &first, &last);
            int whole = walk_has_whole(t->call.split, &at, start, is_first);
            REQUIRE(whole == (owner[first] == owner[last]));
            if (!whole)
                leave_part(t, block, &at, start, is_first);
            is_first = 0;
        }
    }
    for (int i = 0; i < grid; i++)
        if (counters[i])
            REQUIRE(arrivals[i] == counted[i]);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

TEST_OF(planner, batches_at_random)
{
    static test_case t;
    int cases = random_cases(CASES), shared = 0, empty = 0, left_over = 0;
    for (int i = 0; i < cases; i++) {
        case_number = i;
        begin(&t, (uint64_t)i);
        check_memory(&t);
        check_tiles(&t);
        REQUIRE(t.plan.plan->units < MAX_UNITS);
        for (int lane = 0; lane < t.call.lanes; lane++)
            if (lane < 2 || lane == t.call.lanes - 1)
                walk_lane(&t, lane);
        if (t.plan.split > 0) {
            check_split_starts(&t);
            check_splits(&t);
        } else {
            check_starts(&t);
            check_parts(&t);
        }
        for (int c = 0; c < t.plan.plan->columns; c++)
            shared += t.plan.starts[c].first_parts > 2;
        for (int n = 0; n < t.plan.plan->tiles; n++)
            empty += t.plan.tiles[n].hi == 0;
        left_over += t.plan.plan->columns < t.plan.columns;
        end(&t);
    }
    if (cases < CASES / 10) /* under valgrind: too few to have some of everything */
        return;
    /* That there was something to find. */
    ck_assert(shared > cases / 10 && empty > cases / 10 && left_over > cases / 50);
    ck_assert_int_gt(skipped_keys, cases);
    ck_assert_int_gt(merges, cases);
}

/* All lanes have as many columns and as many heads, and no block has to wait for another to end. */
TEST_OF(planner, grids)
{
    for (int heads = 1; heads <= 200; heads++)
        for (uint32_t sms = 1; sms <= 150; sms++) {
            fi_group group = {.shape = &fi_shapes[sms % fi_num_shapes],
                              .num_sms = sms,
                              .options = fi_read_options(NULL)};
            const attn_bounds bounds = {.struct_size = sizeof bounds};
            group.base.kv_heads = heads;
            int kernel = heads % KERNEL_COUNT;
            if (group.shape->kernels[kernel].threads == 0)
                continue;
            uint32_t blocks = sms * (uint32_t)group.shape->kernels[kernel].blocks;
            fi_grid grid = fi_find_grid(&group, kernel, &bounds);
            REQUIRE(grid.columns >= 1 && grid.lanes * grid.columns <= blocks);
            REQUIRE((uint32_t)heads % grid.lanes == 0);
            REQUIRE(blocks - grid.lanes * grid.columns < grid.lanes);
            /* Memory is that of all multiprocessors. */
            attn_bounds few = {.struct_size = sizeof few, .max_sms = 1 + (int)(sms * 5 / 7)};
            fi_grid fewer = fi_bounded_grid(&group, kernel, &few);
            REQUIRE(fewer.lanes * fewer.columns <= grid.lanes * grid.columns);
        }
}

static uint32_t count_blocks(const fi_group *group, int kv_len)
{
    const attn_bounds bounds = {
        .struct_size = sizeof bounds, .max_seqs = 1, .max_q_len = 1, .max_kv_len = kv_len};
    fi_grid grid = fi_find_grid(group, KERNEL_ATTEND, &bounds);
    return grid.lanes * grid.columns;
}

/* Of 64 dimensions one sequence has one block a multiprocessor where its heads have many keys. */
TEST_OF(planner, blocks_of_one_sequence)
{
    fi_group group = {.shape = fi_find_shape(64, 64),
                      .num_sms = 132,
                      .options = fi_read_options(NULL),
                      .base = {.kv_heads = 8, .ratio = 1, .dim = 64, .v_dim = 64}};
    ck_assert_uint_eq(count_blocks(&group, 1024), 264);
    ck_assert_uint_eq(count_blocks(&group, 1025), 128);
    group.base.kv_heads = 32;
    ck_assert_uint_eq(count_blocks(&group, 1023), 256);
    ck_assert_uint_eq(count_blocks(&group, 1024), 128);
}

/* Of 64 dimensions two teams come instead of two blocks: sooner for decodes of few heads. */
TEST_OF(planner, many_items_of_short_rows)
{
    fi_group group = {
        .shape = fi_find_shape(64, 64),
        .num_sms = 132,
        .base = {.kv_heads = 8, .ratio = 8, .kv_dtype = ATTN_BF16, .window_left = -1}};
    cuda_extent extent = {.seqs = 6, .tokens = 6, .q_len = 1};
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 0);
    extent.seqs = extent.tokens = 7;
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 1);
    extent = (cuda_extent){.seqs = 24, .tokens = 48, .q_len = 2};
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 0);
    extent = (cuda_extent){.seqs = 25, .tokens = 50, .q_len = 2};
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 1);
    /* Of many units each, fewer heads: 27 in place of 53. */
    group.base.ratio = 1;
    group.base.kv_heads = 27;
    extent = (cuda_extent){.seqs = 1, .tokens = 1, .q_len = 1};
    ck_assert_int_eq(fi_is_many(&group, &extent, 4693, 132), 0);
    ck_assert_int_eq(fi_is_many(&group, &extent, 4694, 132), 1);
    group.base.window_left = 1023;
    ck_assert_int_eq(fi_is_many(&group, &extent, 8192, 132), 0);
    group.base.window_left = -1;
    group.base.kv_heads = 26;
    ck_assert_int_eq(fi_is_many(&group, &extent, 8192, 132), 0);
    group.base.ratio = 71; /* five tiles each */
    group.base.kv_heads = 1;
    extent = (cuda_extent){.seqs = 39, .tokens = 39, .q_len = 1};
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 0);
    extent.seqs = extent.tokens = 40;
    ck_assert_int_eq(fi_is_many(&group, &extent, 1024, 132), 1);
}

/* The kernel for many items: where a block has a few of them; of two blocks a multiprocessor, where
 * there are more, and all multiprocessors may be had. Never where bits must not depend on it. */
TEST_OF(planner, many_items)
{
    fi_group group = {.shape = fi_find_shape(128, 128),
                      .num_sms = 132,
                      .base = {.kv_heads = 8, .ratio = 4, .kv_dtype = ATTN_BF16}};
    cuda_extent decode = {.seqs = 4, .tokens = 4, .q_len = 1};
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 0);
    decode.seqs = decode.tokens = 5;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 1);
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 66), 1);
    group.is_invariant = 1;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 0);
    group.is_invariant = 0;
    group.base.kv_dtype = ATTN_FP8_E4M3;
    decode.seqs = decode.tokens = 49;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 0);
    decode.seqs = decode.tokens = 50;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 1);
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 131), 0);
    group.options.many_items = WHEN_NEVER;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 0);
    group.options.many_items = WHEN_ALWAYS;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 131), 0);
    decode.seqs = decode.tokens = 1;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 1);
    group.options.many_items = WHEN_AUTO;
    group.base.ratio = 40; /* three tiles each */
    decode.seqs = decode.tokens = 17;
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 1);
    group.shape = fi_find_shape(256, 256);
    ck_assert_int_eq(fi_is_many(&group, &decode, 1024, 132), 0);
}

/* What blocks leave for each other fits the workspace, of which no more is asked for than is
 * needed; a block is always there. */
TEST_OF(planner, workspaces)
{
    fi_group group = {.shape = fi_find_shape(128, 128),
                      .num_sms = 132,
                      .options = fi_read_options(NULL),
                      .base = {.kv_heads = 8, .v_dim = 128}};
    const attn_bounds bounds = {.struct_size = sizeof bounds};
    fi_grid all = fi_find_grid(&group, KERNEL_PREFILL, &bounds);
    ck_assert_uint_eq(all.lanes * all.columns, 128);
    ck_assert_int_eq(fi_block_bytes(&group, &bounds), 2 * 128 * 130 * 4);
    for (int64_t blocks = 1; blocks < 140; blocks++) {
        group.options.workspace = blocks * fi_block_bytes(&group, &bounds);
        fi_grid grid = fi_find_grid(&group, KERNEL_PREFILL, &bounds);
        int64_t taken = (int64_t)grid.lanes * grid.columns;
        ck_assert_int_le(taken, blocks);
        ck_assert_int_eq(8 % grid.lanes, 0);
        ck_assert(blocks < 8 || taken > blocks - 8 || taken == 128);
        /* Up to 256 bytes for each of its two parts go to alignment. */
        ck_assert_uint_le(fi_layout_workspace(&group, &bounds, KERNEL_PREFILL).size,
                          (uint64_t)group.options.workspace + 2 * 256);
    }
    group.options.workspace = 1;
    all = fi_find_grid(&group, KERNEL_PREFILL, &bounds);
    ck_assert_uint_eq(all.lanes * all.columns, 1);
}

/* Where items are cut into splits, a block has a slot for each split of the longest sequence; tiles
 * of many rows leave nothing. */
TEST_OF(planner, workspaces_of_splits)
{
    const attn_bounds bounds = {.struct_size = sizeof bounds, .max_kv_len = 100000};
    fi_group group = {.shape = fi_find_shape(128, 128),
                      .num_sms = 132,
                      .options = fi_read_options(NULL),
                      .is_invariant = 1,
                      .base = {.kv_heads = 8, .v_dim = 128}};
    group.options.split = 4096;
    ck_assert_int_eq(fi_most_splits(&group, &bounds), 25);
    ck_assert_int_eq(fi_block_bytes(&group, &bounds), 25 * 16 * 130 * 4);
    ck_assert_uint_eq(fi_layout_workspace(&group, &bounds, KERNEL_ATTEND).size,
                      128 * 25 * 16 * 130 * 4);
    ck_assert_uint_eq(fi_layout_workspace(&group, &bounds, KERNEL_PREFILL).size, 0);
    group.options.split = 128;
    fi_grid grid = fi_find_grid(&group, KERNEL_PREFILL, &bounds);
    ck_assert_int_eq(fi_most_splits(&group, &bounds), 782);
    ck_assert_int_le(grid.lanes * grid.columns * fi_block_bytes(&group, &bounds),
                     group.options.workspace);
    group.is_invariant = 0;
    ck_assert_int_eq(fi_most_splits(&group, &bounds), 0);
}

/* Items of few rows have columns to themselves, where a column has hardly more units then, and are
 * not cut at all where the longest has hardly more. */
TEST_OF(planner, columns_of_one_item)
{
    static const struct {
        int units[8], items, columns, even; /* the items' in turn; of the grid; p.even */
        int wanted, filled;                 /* units of a lane with idle ones */
    } cases[] = {{{16}, 32, 132, 4, 128, 512},
                 {{16}, 24, 132, 4, 96, 384},
                 {{16}, 40, 132, 4, 120, 720},
                 {{128}, 8, 33, 4, 32, 1024},
                 {{128}, 40, 132, 4, 120, 5160},
                 {{128}, 40, 132, 2, 132, 5120}, /* as many as there are, in parts of two */
                 {{16}, 96, 132, 4, 96, 1536},   /* whole */
                 {{16}, 160, 264, 8, 160, 2560},
                 {{19, 5, 35, 2, 13, 24, 10, 7}, 8, 33, 8, 32, 128},
                 {{19, 5, 35, 2, 13, 24, 10, 7}, 16, 33, 8, 30, 300},
                 {{19, 5, 35, 2, 13, 24, 10, 7}, 32, 33, 8, 33, 460},
                 {{16}, 132, 132, 4, 132, 2112}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fi_tile tiles[160];
        long long before[161] = {0};
        fi_plan_call p = {.tiles = tiles,
                          .before = before,
                          .rows = FI_ROWS,
                          .unit = FI_KEYS,
                          .rounds = 1,
                          .columns = cases[i].columns,
                          .merge = FI_MERGE_ROWS,
                          .merge_several = 1,
                          .several = FI_SEVERAL,
                          .merged = FI_MERGED,
                          .even = cases[i].even,
                          .level = -1};
        int turns = 0;
        while (turns < 8 && cases[i].units[turns])
            turns++;
        for (int n = 0; n < cases[i].items; n++) {
            tiles[n] = (fi_tile){.hi = cases[i].units[n % turns] * FI_KEYS};
            before[n + 1] = before[n] + cases[i].units[n % turns];
        }
        fi_plan plan = plan_make(&p, cases[i].items, before[cases[i].items]);
        fi_plan_fill(&p, &plan);
        ck_assert_int_eq(plan.columns, cases[i].wanted);
        ck_assert_int_eq(plan.units, cases[i].filled);
    }
}

GROUP(planner, .timeout = 300);
TESTS("fi_plan");
