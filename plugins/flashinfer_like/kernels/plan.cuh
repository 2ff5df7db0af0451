/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cuh: the steps of the planner, C and CUDA alike. plan.cu runs them in parallel on the
 * device, fi_plan_all() one after the other, with the same result.
 *
 *   sequences   A            B   C          plan_count_tiles(): how many tiles each has
 *   tiles       0    1    2  3   4    5     plan_make_tile(), plan_deal(): which, in which order
 *   units       |||| |||| || |   |||| ||    plan_tile_units(): of keys, for each item
 *   columns     0     1          2          plan_make_start(): where each starts, and the columns
 *                                           that share its items
 *
 * With splits (plan.h), a column has the splits that start among its units:
 * plan_make_split_start().
 */
#ifndef FI_PLAN_CUH
#define FI_PLAN_CUH

#include "plugins/flashinfer_like/kernels/plan_units.cuh"
#include "plugins/flashinfer_like/kernels/prefixes.cuh"

enum {
    FI_MERGE = 96,      /* time to merge a part of a run's item, in 64ths of a unit */
    FI_MERGE_ROWS = 28, /* the same for FI_ROWS rows of other items, by one block */
    FI_MERGED = 16,     /* so many parts of FI_ROWS rows are merged in about the time of one */
    /* The end of an item of FI_ROWS rows takes as long as FI_END / (dim + v_dim) units. A column
     * may have so many more, at most FI_MOST_EVEN, if it then has parts of one item only. */
    FI_END = 1024,
    FI_EVEN_MANY = 2, /* the same for more rows */
    FI_MOST_EVEN = 8
};

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* A single query counts as few rows whatever the ratio of heads, as in a batch of DECODE. */
PORTABLE int plan_has_few(int q_len, int ratio)
{
    return q_len == 1 || q_len * ratio <= FI_SHORT_ROWS;
}

/* `levels`: the levels of shared prefixes in use. */
PORTABLE int plan_count_tiles(const fi_plan_call *p, int levels, int s)
{
    index_sequence q;
    index_find_sequence(&p->batch, 0, s, &q);
    if (p->level >= levels || q.q_len == 0)
        return 0;
    if (p->whose != FI_ALL && plan_has_few(q.q_len, p->ratio) != (p->whose == FI_FEW))
        return 0;
    if (p->level >= 0 && !(plan_find_run(p, s).levels >> p->level & 1))
        return 0;
    return (q.q_len * p->ratio + p->rows - 1) / p->rows;
}

PORTABLE mask_rule plan_rule(const fi_plan_call *p)
{
    mask_rule rule = {p->window_left, p->batch.window_right, p->chunk, p->custom, 1};
    return rule;
}

/* If all queries [t0, t1] belong to items, skips the whole units between the prefix and the first
 * of these items. */
PORTABLE void plan_skip_items(const fi_plan_call *p, const index_sequence *q, int t0, int t1,
                              fi_tile *tile)
{
    int first = tile->hi, here;
    for (int t = t0; t <= t1; t++) {
        if (!mask_find_item(&p->batch, q, tile->seq, t, &here))
            return;
        first = int_min(first, here);
    }
    int before = int_max(index_int(p->batch.item_prefix_lens, tile->seq) - tile->lo, 0);
    int gap = (before + p->unit - 1) / p->unit, end = (first - tile->lo) / p->unit;
    if (first <= tile->lo || end <= gap)
        return;
    tile->gap = gap;
    tile->skip = (end - gap) * p->unit;
    if (tile->hi - tile->lo <= tile->skip) /* no row sees a key */
        tile->lo = tile->hi = tile->gap = tile->skip = 0;
}

/* Tile i of the batch, once first_tile is complete. */
PORTABLE fi_tile plan_make_tile(const fi_plan_call *p, int levels, int i)
{
    const mask_rule rule = plan_rule(p);
    int s = work_find_row(p->first_tile, index_num_seqs(&p->batch), i);
    fi_tile tile = {s, (i - index_int(p->first_tile, s)) * p->rows, 0, 0, 0, 0, 0};
    index_sequence q;
    index_find_sequence(&p->batch, 0, s, &q);
    int last = int_min(tile.row0 + p->rows, q.q_len * p->ratio) - 1;
    mask_outline(&rule, &p->batch, &q, tile.row0 / p->ratio, last / p->ratio, &tile.lo, &tile.hi);
    if (p->level >= 0) {
        tile.lo = plan_find_run(p, s).before;
    } else if (levels > 0) {
        plan_share share = plan_find_share(&p->prefixes, levels, s);
        tile.lo = int_max(tile.lo, share.keys);
        tile.hi = int_max(tile.lo, tile.hi);
        tile.levels = share.levels;
    }
    tile.lo -= tile.lo % p->align; /* shared keys are whole pages */
    if (p->skips && p->level < 0 && mask_has_items(&rule, &p->batch))
        plan_skip_items(p, &q, tile.row0 / p->ratio, last / p->ratio, &tile);
    return tile;
}

/* The batch's tile at place n of the plan's list. Columns process consecutive parts of this list,
 * so in the batch's order concurrent blocks would read different keys. So the tiles are dealt to h
 * hands, and the list has one hand after the other. The tiles of a hand are h apart: tiles of one
 * sequence run concurrently, from their first key on, and all but the first find the keys in L2.
 * Every other round is dealt backwards, since a causal tile has more keys than the tile before
 * it. */
PORTABLE int plan_deal(const fi_plan_call *p, int tiles, int n)
{
    if (p->hands <= 1)
        return n;
    /* The last round has only `rest` tiles. They go to the first hands or, dealt backwards, to the
     * last ones. So hands form two groups; those of the first have `first_rounds`. */
    int rounds = tiles / p->hands, rest = tiles % p->hands, back = rounds % 2;
    int group = back ? p->hands - rest : rest;
    int first_rounds = back ? rounds : rounds + 1, other_rounds = back ? rounds + 1 : rounds;
    int is_first = n < group * first_rounds, here = is_first ? n : n - group * first_rounds;
    int mine = is_first ? first_rounds : other_rounds;
    int hand = (is_first ? 0 : group) + here / mine, round = here % mine;
    return round * p->hands + (round % 2 ? p->hands - 1 - hand : hand);
}

/* ---- Columns ------------------------------------------------------------------------------- */

/* The first unit of column c. The last column of an item has no more units than the others, because
 * it may have new keys, and keys that not all rows see. */
PORTABLE i64 plan_first_unit(i64 units, int columns, int c)
{
    return (units * c + columns - 1) / columns;
}

/* The column that unit u belongs to. */
PORTABLE int plan_column_of(i64 units, int columns, i64 u)
{
    return (int)(u * columns / units);
}

/* With n columns per item, each part takes `merge` 64ths of a unit to merge: units / n + n * merge
 * / 64 is least at n^2 = units * 64 / merge. `least`: lower bound of the result. */
PORTABLE i64 plan_best_columns(const fi_plan_call *p, i64 units, i64 items, i64 least, int merge)
{
    i64 high = p->columns;
    while (least < high) {
        i64 middle = least + (high - least) / 2;
        if (middle * middle * merge < units * items * 64)
            least = middle + 1;
        else
            high = middle;
    }
    return int_min((int)least, p->columns);
}

/* The most columns that pay off with fewer items than columns. Up to p->merged parts are merged in
 * the time of one. */
PORTABLE i64 plan_most_columns(const fi_plan_call *p, i64 units, i64 items)
{
    i64 least = int_max(1, (int)(items < p->columns ? items * p->merged : p->columns));
    i64 best = plan_best_columns(p, units, items, least, p->merge_several);
    if (units > 0 && best < items * p->several)
        best = plan_best_columns(p, units, items, least, p->merge);
    return best;
}

/* Columns to use: as few as give no column more units than plan_most_columns() does. In a run of
 * shared keys one block merges all parts of an item, so there blocks should end at different times:
 * one merges while others multiply. */
PORTABLE int plan_shared_columns(const fi_plan_call *p, i64 units, i64 items)
{
    i64 most = plan_most_columns(p, units, items);
    if (units == 0 || (most < items * p->several && p->level >= 0))
        return (int)most;
    i64 each = (units + most - 1) / most;
    return (int)((units + each - 1) / each);
}

/* The units of a lane and the columns that share them. With fewer items than columns each item is
 * shared, and its start costs no single column. */
PORTABLE fi_plan plan_make(const fi_plan_call *p, int tiles, i64 head_units)
{
    i64 items = (i64)tiles * p->rounds;
    fi_plan plan = {head_units * p->rounds, tiles, p->columns, items >= p->columns ? p->begin : 0};
    if (p->level >= 0 || (items < p->columns && p->split == 0))
        plan.columns = plan_shared_columns(p, plan.units, items);
    plan.units += items * plan.begin;
    if (plan.units < plan.columns)
        plan.columns = (int)plan.units;
    return plan;
}

/* ---- Columns of one item --------------------------------------------------------------------
 *
 * With fewer items than columns, idle units may follow an item's own to fill whole columns:
 *
 *   items     |0 0 0 0 0|1 1 1|2 2 2 2 2 2 2 2|      16 units in columns of 3: two have parts of two
 *   filled    |0 0 0|0 0 .|1 1 1|2 2 2|2 2 2|2 2 .|  items, and so two item ends in sequence
 *
 * An item's end takes as long as p->even units or more, so filling may give columns so many more
 * units. If the longest item has no more than that, no item is cut. */

/* Columns of `each` units for the items of tiles first, first + step ... */
PORTABLE i64 plan_count_filled(const fi_plan_call *p, int tiles, i64 each, int first, int step)
{
    i64 columns = 0;
    for (int i = first; i < tiles; i += step) {
        const fi_tile tile = *PORTABLE_AT(p->tiles + i);
        columns += (plan_tile_units(&tile, p->unit) + each - 1) / each;
    }
    return columns * p->rounds;
}

PORTABLE i64 plan_find_longest(const fi_plan_call *p, int tiles, int first, int step)
{
    i64 longest = 0;
    for (int i = first; i < tiles; i += step) {
        const fi_tile tile = *PORTABLE_AT(p->tiles + i);
        i64 units = plan_tile_units(&tile, p->unit);
        longest = units > longest ? units : longest;
    }
    return longest;
}

/* Units of a column before filling; 0 = do not fill. */
PORTABLE i64 plan_begin_filling(const fi_plan_call *p, const fi_plan *plan)
{
    i64 items = (i64)plan->tiles * p->rounds;
    if (items >= p->columns || p->split > 0 || p->level >= 0 || plan->units == 0)
        return 0;
    i64 most = plan_most_columns(p, plan->units, items);
    return (plan->units + most - 1) / most;
}

/* Units of a column for filling; 0 = do not fill. counts[n]: columns needed with each + n units. */
PORTABLE i64 plan_choose_filling(const fi_plan_call *p, const fi_plan *plan, i64 each, i64 longest,
                                 const int *counts)
{
    i64 most = plan_most_columns(p, plan->units, (i64)plan->tiles * p->rounds);
    if (longest <= each + p->even)
        return longest;
    for (int n = 0; n <= p->even; n++)
        if (counts[n] <= most)
            return each + n;
    return 0;
}

/* Units of the item of tile i in columns of `each`. */
PORTABLE i64 plan_fill(const fi_plan_call *p, int i, i64 each)
{
    const fi_tile tile = *PORTABLE_AT(p->tiles + i);
    return (plan_tile_units(&tile, p->unit) + each - 1) / each * each;
}

PORTABLE void plan_end_filling(const fi_plan_call *p, fi_plan *plan, i64 each, i64 head_units)
{
    plan->units = head_units * p->rounds;
    plan->columns = (int)(plan->units / each);
}

/* ---- Starts --------------------------------------------------------------------------------- */

/* The place of a unit: its item (tile and round) and its number among the item's own units. A
 * negative number: an idle unit before them. */
typedef struct plan_place {
    int tile;
    int round;
    int unit;
    int units; /* that the item has */
} plan_place;

/* The first unit of a lane's items of a tile. */
PORTABLE i64 plan_tile_begin(const fi_plan_call *p, const fi_plan *plan, int tile)
{
    return (*PORTABLE_AT(p->before + tile) + (i64)tile * plan->begin) * p->rounds;
}

PORTABLE plan_place plan_find_unit(const fi_plan_call *p, const fi_plan *plan, i64 u)
{
    int low = 0, high = plan->tiles; /* begin of low <= u < begin of high */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (plan_tile_begin(p, plan, middle) <= u)
            low = middle;
        else
            high = middle;
    }
    const fi_tile tile = *PORTABLE_AT(p->tiles + low);
    plan_place place = {low, 0, 0, plan_tile_units(&tile, p->unit)};
    i64 rest = u - plan_tile_begin(p, plan, low);
    i64 own = *PORTABLE_AT(p->before + low + 1) - *PORTABLE_AT(p->before + low);
    i64 all = own + plan->begin;
    place.round = (int)(rest / all);
    place.unit = (int)(rest % all) - plan->begin;
    return place;
}

/* Own units of all earlier items, and of this item before this place. */
PORTABLE i64 plan_own_units(const fi_plan_call *p, plan_place at)
{
    return *PORTABLE_AT(p->before + at.tile) * p->rounds + (i64)at.round * at.units +
           int_max(at.unit, 0);
}

/* The first split that starts at unit u or later; tile == plan->tiles if there is none. An item's
 * first split starts with the item's idle units. */
PORTABLE plan_place plan_find_split(const fi_plan_call *p, const fi_plan *plan, i64 u)
{
    plan_place place = {plan->tiles, 0, 0, 0};
    if (u >= plan->units)
        return place;
    place = plan_find_unit(p, plan, u);
    i64 next = place.unit <= 0 ? p->split : ((i64)place.unit + p->split - 1) / p->split * p->split;
    if (place.unit == -plan->begin)
        next = 0;
    if (next < place.units) {
        place.unit = (int)next;
        return place;
    }
    place.unit = 0;
    place.round++;
    if (place.round == p->rounds) {
        place.round = 0;
        place.tile++;
    }
    return place;
}

/* The start of column c, which has the splits that start among its units. */
PORTABLE fi_start plan_make_split_start(const fi_plan_call *p, const fi_plan *plan, int c)
{
    fi_start start = {{0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0};
    plan_place from = plan_find_split(p, plan, plan_first_unit(plan->units, plan->columns, c));
    plan_place to = plan_find_split(p, plan, plan_first_unit(plan->units, plan->columns, c + 1));
    start.count = (int)(plan_own_units(p, to) - plan_own_units(p, from));
    if (start.count == 0)
        return start;
    start.first = *PORTABLE_AT(p->tiles + from.tile);
    start.tile = from.tile;
    start.round = from.round;
    start.unit = from.unit;
    start.first_column = c;
    if (from.unit > 0) {
        i64 begin =
            plan_tile_begin(p, plan, from.tile) + (i64)from.round * (from.units + plan->begin);
        start.first_column = plan_column_of(plan->units, plan->columns, begin);
        to = plan_find_split(p, plan,
                             plan_first_unit(plan->units, plan->columns, start.first_column + 1));
        start.first_parts = to.unit / p->split;
    }
    return start;
}

/* The start of column c, once tiles and `before` are complete. A column may have idle units
 * only. */
PORTABLE fi_start plan_make_start(const fi_plan_call *p, const fi_plan *plan, int c)
{
    fi_start start = {{0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0};
    if (c >= plan->columns)
        return start;
    if (p->split > 0)
        return plan_make_split_start(p, plan, c);
    i64 first = plan_first_unit(plan->units, plan->columns, c);
    i64 last = plan_first_unit(plan->units, plan->columns, c + 1) - 1;
    plan_place from = plan_find_unit(p, plan, first), to = plan_find_unit(p, plan, last);
    i64 to_begin = last - to.unit;
    to.unit = int_min(to.unit, to.units - 1); /* without the idle units at the end */
    int count = (int)(plan_own_units(p, to) + (to.unit >= 0) - plan_own_units(p, from));
    if (count == 0)
        return start;
    start.first = *PORTABLE_AT(p->tiles + from.tile);
    start.tile = from.tile;
    start.round = from.round;
    start.unit = int_max(from.unit, 0);
    start.count = count;
    i64 begin = first - from.unit; /* the item's first own unit */
    start.first_column = plan_column_of(plan->units, plan->columns, begin);
    start.in_the_middle =
        plan_first_unit(plan->units, plan->columns, start.first_column) < begin - plan->begin;
    start.first_parts =
        plan_column_of(plan->units, plan->columns, begin + from.units - 1) - start.first_column + 1;
    /* If the column ends among an item's idle units, its last item ended before them. */
    start.last_parts = 1;
    if (to.unit >= 0)
        start.last_parts =
            plan_column_of(plan->units, plan->columns, to_begin + to.units - 1) - c + 1;
    return start;
}

/* ---- All of it ------------------------------------------------------------------------------- */

#ifndef __CUDACC__

static inline void fi_plan_fill(const fi_plan_call *p, fi_plan *plan)
{
    int counts[FI_MOST_EVEN + 1];
    i64 units = 0, each = plan_begin_filling(p, plan);
    if (each == 0)
        return;
    for (int n = 0; n <= p->even; n++)
        counts[n] = (int)plan_count_filled(p, plan->tiles, each + n, 0, 1);
    each = plan_choose_filling(p, plan, each, plan_find_longest(p, plan->tiles, 0, 1), counts);
    if (each == 0)
        return;
    for (int i = 0; i < plan->tiles; i++) {
        *PORTABLE_AT(p->before + i) = units;
        units += plan_fill(p, i, each);
    }
    *PORTABLE_AT(p->before + plan->tiles) = units;
    plan_end_filling(p, plan, each, units);
}

/* Plans a batch whose arrays the CPU can read. */
static inline void fi_plan_all(const fi_plan_call *p)
{
    int seqs = index_num_seqs(&p->batch), tiles = 0;
    i64 units = 0, saved = 0;
    for (int l = 0; l < p->prefixes.levels; l++)
        for (int r = 0; r < p->prefixes.level[l].count; r++)
            saved += plan_count_saved(&p->prefixes, l, r);
    int levels = plan_choose_levels(p, saved);
    for (int s = 0; s < seqs; s++) {
        *PORTABLE_AT(p->first_tile + s) = tiles;
        tiles += plan_count_tiles(p, levels, s);
    }
    *PORTABLE_AT(p->first_tile + seqs) = tiles;
    for (int i = 0; i < tiles; i++) {
        fi_tile tile = plan_make_tile(p, levels, plan_deal(p, tiles, i));
        *PORTABLE_AT(p->tiles + i) = tile;
        *PORTABLE_AT(p->before + i) = units;
        units += plan_tile_units(&tile, p->unit);
    }
    *PORTABLE_AT(p->before + tiles) = units;
    fi_plan plan = plan_make(p, tiles, units);
    fi_plan_fill(p, &plan);
    *PORTABLE_AT(p->plan) = plan;
    for (int c = 0; c < p->columns; c++)
        *PORTABLE_AT(p->starts + c) = plan_make_start(p, &plan, c);
}

#endif

#endif /* FI_PLAN_CUH */
