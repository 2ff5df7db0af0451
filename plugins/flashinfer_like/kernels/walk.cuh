/* SPDX-License-Identifier: Apache-2.0
 *
 * walk.cuh: a block's iteration over its units, and the other blocks that have parts of its items.
 * C and CUDA alike.
 *
 *   item: tile 4, head     tile 4, head + lanes   tile 5, head
 *   | 0 1 2 3 4 5 6 7 8 | 0 1 2 3 4 5 6 7 8 | 0 1 2 3 4 5 ...    units
 *     other's ^ walk_begin(), then walk_next()      ^ left == 0: other's
 */
#ifndef FI_WALK_CUH
#define FI_WALK_CUH

#include "plugins/flashinfer_like/kernels/plan_units.cuh"

/*  ---- A block's position -------------------------------------------------------------------- */

typedef struct walk_block {
    int lane;
    int column;
} walk_block;

PORTABLE walk_block walk_find_block(const fi_call *c, int number)
{
    walk_block block = {number % c->lanes, number / c->lanes};
    return block;
}

typedef struct cursor {
    fi_tile tile;
    int at; /* the tile's number */
    int head;
    int unit;  /* of the item */
    int units; /* of the item */
    int left;  /* of the block, this one included */
} cursor;

/* `unit`: keys of a unit. */
PORTABLE cursor walk_begin(const fi_call *c, walk_block block, const fi_start *start, int unit)
{
    cursor at = {start->first,
                 start->tile,
                 block.lane + start->round * c->lanes,
                 start->unit,
                 plan_tile_units(&start->first, unit),
                 start->count};
    return at;
}

PORTABLE void walk_next(const fi_call *c, walk_block block, cursor *at, int unit)
{
    at->left--;
    at->unit++;
    if (at->unit < at->units)
        return;
    at->unit = 0;
    at->head += c->lanes;
    if (at->head < c->kv_heads)
        return;
    at->head = block.lane;
    at->at++;
    if (at->left > 0) {
        at->tile = *PORTABLE_AT(c->tiles + at->at);
        at->units = plan_tile_units(&at->tile, unit);
    }
}

/* Skips the block's units of the current item; returns their number. */
PORTABLE int walk_past(const fi_call *c, walk_block block, cursor *at, int unit)
{
    int passed = int_min(at->left, at->units - at->unit);
    at->left -= passed - 1;
    at->unit += passed - 1;
    walk_next(c, block, at, unit);
    return passed;
}

/* ---- Parts --------------------------------------------------------------------------------- */

/* The parts of an item that several columns share. This block's part is in slot `mine`. The merge
 * adds `count` parts: part 0 in slot `first`, part i in slot second + (i - 1) * step. A block has
 * two slots: one for its first item, and one for another item that it does not end. With splits:
 * see plan.h. */
typedef struct parts {
    int count, mine, first, second, step;
    int arriving, all;  /* the count of this block, and of all together */
    int is_added, ends; /* splits: added to the slot's contents; the block's last split of the
                         * item */
    int *counter;       /* of the blocks that have arrived */
} parts;

PORTABLE i64 part_slot(parts p, int i)
{
    return i == 0 ? p.first : p.second + (i - 1) * p.step;
}

/* Splits of an item: the block has the item's first split, or (is_first) may start in the
 * middle. */
PORTABLE parts walk_splits(const fi_call *c, walk_block block, const cursor *at,
                           const fi_start *start, int is_first)
{
    int lane = block.lane, column = block.column, k = at->unit / c->split;
    int is_other = is_first && start->unit > 0; /* another block has the first split */
    int owner = (is_other ? start->first_column : column) * c->lanes + lane;
    int merged = is_other ? start->first_parts : k + 1; /* by the owner, in one slot */
    parts p;
    p.all = (at->units + c->split - 1) / c->split;
    p.arriving = k + 1 - (is_other ? start->unit / c->split : 0);
    p.first = owner * c->most_parts;
    p.second = p.first + merged;
    p.step = 1;
    p.count = 1 + p.all - merged;
    p.mine = p.first + (is_other ? k : 0);
    p.is_added = !is_other && k > 0;
    p.ends = at->left == 1 || at->unit == at->units - 1;
    p.counter = c->arrived + owner;
    return p;
}

/* The same if items are cut anywhere: for the block's first item, or for the item that it does not
 * end. */
PORTABLE parts walk_shared(const fi_call *c, walk_block block, const fi_start *start, int is_first)
{
    int lane = block.lane, column = block.column;
    int first = is_first ? start->first_column : column;
    int second_slot = is_first ? start->in_the_middle : 1;
    parts p;
    p.count = is_first ? start->first_parts : start->last_parts;
    p.step = 2 * c->lanes;
    p.first = first * p.step + second_slot * c->lanes + lane;
    p.second = (first + 1) * p.step + lane;
    p.mine = column == first ? p.first : column * p.step + lane;
    p.counter = c->arrived + first * c->lanes + lane;
    p.arriving = 1;
    p.all = p.count;
    p.is_added = 0;
    p.ends = 1;
    return p;
}

PORTABLE parts walk_parts(const fi_call *c, walk_block block, const cursor *at,
                          const fi_start *start, int is_first)
{
    return c->split > 0 ? walk_splits(c, block, at, start, is_first)
                        : walk_shared(c, block, start, is_first);
}

/* Is this the last unit of a part: of the item, of its split, or of the block's units? */
PORTABLE int walk_ends_part(int split, const cursor *at)
{
    return at->left == 1 || at->unit == at->units - 1 ||
           (split > 0 && !((at->unit + 1) & (split - 1)));
}

/* At the block's last unit of an item: does the block have the whole item, in one part? */
PORTABLE int walk_has_whole(int split, const cursor *at, const fi_start *start, int is_first)
{
    if (split > 0)
        return at->units <= split;
    return at->unit == at->units - 1 && (!is_first || start->unit == 0);
}

#endif /* FI_WALK_CUH */
