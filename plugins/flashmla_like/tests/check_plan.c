/* SPDX-License-Identifier: Apache-2.0
 *
 * check_plan.c: units and ranges as the kernels find them: plan.cuh compiled as C.
 */
#include "plugins/flashmla_like/kernels/plan.cuh"

#include <stdlib.h>

#include "tests/tools/test_main.h"

enum { SEQS = 40, RANGES = 132 };

static uint32_t state;

static int below(int n)
{
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

/* A batch of `seqs` sequences with up to `most_q` queries each. */
typedef struct plan_case {
    int lens[SEQS], prefix[SEQS], indptr[SEQS + 1];
    mla_call call;
    mla_unit units[4096];
    int seqs[4096]; /* of units */
    int num_units, length;
} plan_case;

static void make_case(plan_case *c, int heads, int most_q, int window)
{
    int seqs = 1 + below(SEQS), rows = heads * most_q;
    memset(c, 0, sizeof *c);
    for (int s = 0; s < seqs; s++) {
        int q = 1 + below(most_q);
        c->prefix[s] = below(5000);
        c->lens[s] = c->prefix[s] + q;
        c->indptr[s + 1] = c->indptr[s] + q;
    }
    c->call.batch.seq_lens = c->call.batch.kv_lens = c->lens;
    c->call.batch.prefix_lens = c->prefix;
    c->call.batch.q_indptr = c->indptr;
    c->call.batch.num_seqs = seqs;
    c->call.heads = heads;
    c->call.rows = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    c->call.pair = rows > 64 ? 2 : 1;
    c->call.tile = heads == 40 ? 48 : 64;
    c->call.window_left = window;
}

/* As mla_plan does it, one after the other, each as long as it is or all `place` long. */
static void list_units(plan_case *c, int place)
{
    for (int s = 0; s < c->call.batch.num_seqs; s++)
        for (int piece = 0; piece < plan_seq_units(&c->call, s); piece++) {
            mla_unit *unit = &c->units[c->num_units];
            c->seqs[c->num_units++] = s;
            *unit = plan_unit(&c->call, s, piece);
            unit->begin = c->length;
            c->length += place ? place : unit->tiles + MLA_UNIT_COST;
        }
}

/* What mla_merge reads of a divided unit. */
static void check_divided(const plan_case *c, const mla_unit *unit, int range, int first, int count)
{
    mla_divided divided = plan_divided(&c->call, unit, range);
    int seq = c->seqs[unit - c->units], queries = c->indptr[seq + 1] - c->indptr[seq];
    ck_assert_int_eq(divided.first, first);
    ck_assert_int_eq(divided.count, count);
    ck_assert_int_eq(divided.first_row, unit->first_row);
    ck_assert_int_eq(divided.rows, queries * c->call.heads);
    ck_assert_int_eq(divided.first_token, c->indptr[seq]);
}

/* Every tile of a unit is one range's, and the second of them lists a divided unit. */
static void check_unit(const plan_case *c, const mla_unit *unit, int range)
{
    int next = 0, dividing = 0, working = 0, first = 0;
    for (int r = 0; r < RANGES; r++) {
        int t0, t1;
        plan_tiles(unit, range, r, &t0, &t1);
        dividing += plan_divides(unit, range, r);
        if (t0 >= t1)
            continue;
        ck_assert_int_eq(t0, next);
        ck_assert_int_ge(r, plan_first_range(unit, range));
        ck_assert_int_le(r, plan_last_range(unit, range));
        ck_assert_int_eq(working == 1, plan_divides(unit, range, r));
        next = t1;
        first = working++ == 0 ? r : first;
    }
    ck_assert_int_eq(next, unit->tiles);
    ck_assert_int_eq(dividing, working > 1);
    check_divided(c, unit, range, first, working);
}

/* The unit's tiles are the keys that its first and its last query see. */
static void check_keys(const plan_case *c, const mla_unit *unit)
{
    int seq = c->seqs[unit - c->units];
    int rows = (c->indptr[seq + 1] - c->indptr[seq]) * c->call.heads;
    int last = unit->first_row + c->call.rows * c->call.pair - 1;
    last = last < rows ? last : rows - 1;
    int hi = c->prefix[seq] + last / c->call.heads + 1, lo = 0;
    if (c->call.window_left >= 0)
        lo = c->prefix[seq] + unit->first_row / c->call.heads - c->call.window_left;
    lo = lo > 0 ? lo : 0;
    ck_assert_int_lt(unit->first_row, rows);
    ck_assert_int_eq(unit->first_tile, lo / c->call.tile);
    ck_assert_int_eq(unit->tiles, (hi + c->call.tile - 1) / c->call.tile - lo / c->call.tile);
}

LOOP_OF(plan, ranges_share_out_all_tiles, 0, 60)
{
    static const int heads[] = {1, 8, 16, 40, 128}, most_q[] = {1, 4, 90};
    plan_case *c = malloc(sizeof *c);
    state = (uint32_t)_i;
    make_case(c, heads[_i % 5], most_q[_i / 5 % 3], _i % 4 == 3 ? 100 : -1);
    c->call.batch.window_right = 0;
    list_units(c, 0);
    ck_assert_int_gt(c->num_units, 0);
    int range = (c->length + RANGES - 1) / RANGES;
    for (int u = 0; u < c->num_units; u++) {
        check_unit(c, &c->units[u], range);
        check_keys(c, &c->units[u]);
    }
    free(c);
}

/* How many ranges work on a unit. */
static int ranges_of(const mla_unit *unit, int range)
{
    int working = 0;
    for (int r = 0; r < RANGES; r++) {
        int t0, t1;
        plan_tiles(unit, range, r, &t0, &t1);
        working += t0 < t1;
    }
    return working;
}

/* Of places as long as the longest unit and longer. */
LOOP_OF(plan, units_in_places_are_whole, 0, 20)
{
    plan_case *c = malloc(sizeof *c);
    state = (uint32_t)_i;
    make_case(c, 16, _i % 2 ? 90 : 1, -1);
    c->call.ranges = RANGES;
    list_units(c, 5100 / 64 + MLA_UNIT_COST + _i % 3);
    int range = plan_whole_range(&c->call, c->num_units, c->length / c->num_units);
    for (int u = 0; u < c->num_units; u++) {
        check_unit(c, &c->units[u], range);
        ck_assert_int_eq(ranges_of(&c->units[u], range), 1);
    }
    free(c);
}

/* A prompt whose line is longer than an int: each unit is whole in its range, and ranges are as long as each other but for
 * one unit. */
TEST_OF(plan, shares_of_a_long_line)
{
    static mla_call call;
    const int tokens = 1000000, tile = 48;
    const int longest = (tokens + tile - 1) / tile + MLA_UNIT_COST;
    i64 length = 0, at = 0, sums[RANGES] = {0};
    call.ranges = RANGES;
    for (int u = 0; u < tokens; u++)
        length += u / tile + 1 + MLA_UNIT_COST;
    ck_assert(length > INT32_MAX);
    for (int u = 0, last = 0; u < tokens; u++) {
        mla_unit unit = {.tiles = u / tile + 1};
        const int share = plan_share(&call, at, length);
        int t0, t1;
        unit.begin = plan_own_begin(longest, share);
        plan_tiles(&unit, longest, share, &t0, &t1);
        ck_assert(t0 == 0 && t1 == unit.tiles && share >= last && share < RANGES);
        ck_assert_int_eq(plan_last_range(&unit, longest), plan_first_range(&unit, longest));
        sums[share] += unit.tiles + MLA_UNIT_COST;
        at += unit.tiles + MLA_UNIT_COST;
        last = share;
    }
    for (int r = 0; r < RANGES; r++)
        ck_assert(llabs(sums[r] - length / RANGES) <= longest);
}

/* With `fixed`: wherever a unit's ranges begin, its own tiles alone decide how long its parts are. */
LOOP_OF(plan, fixed_parts_share_out_all_tiles, 0, 60)
{
    static const int lengths[] = {MLA_FIXED_SHORT, MLA_FIXED_MIDDLE, MLA_FIXED_LONG};
    plan_case *c = malloc(sizeof *c);
    state = (uint32_t)_i;
    make_case(c, 16, 4, -1);
    list_units(c, 0);
    mla_unit *unit = &c->units[0];
    unit->tiles = _i < 40 ? 1 + _i * 3 : 1 + below(20000);
    const int part = lengths[_i % 3];
    const int range = plan_fixed_range(part, unit->tiles);
    const int parts = plan_parts(range, unit->tiles);
    ck_assert_int_eq(parts == 1, unit->tiles <= part);
    ck_assert_int_le(parts, MLA_FIXED_PARTS(part));
    for (int first = 0; first + parts <= RANGES; first += 1 + below(50)) {
        unit->begin = plan_own_begin(range, first);
        check_unit(c, unit, range);
        ck_assert_int_eq(plan_first_range(unit, range), first);
        ck_assert_int_eq(ranges_of(unit, range), parts);
    }
    free(c);
}

/* Parts that are as many as before, and as equal as whole tiles can be. */
TEST_OF(plan, equal_parts_are_as_few)
{
    for (int tiles = 1; tiles < 300; tiles++)
        for (int longest = 1; longest < 50; longest++) {
            const int range = plan_equal_range(longest, tiles);
            const int parts = plan_parts(longest, tiles);
            ck_assert_int_le(range, longest);
            ck_assert_int_eq(plan_parts(range, tiles), parts);
            ck_assert_int_le(range * parts - tiles, parts - 1);
        }
}

/* Rows that see nothing have a unit all the same, so that their outputs are written. */
TEST_OF(plan, units_without_keys_have_a_tile)
{
    plan_case c;
    state = 1;
    make_case(&c, 16, 1, -1);
    c.lens[0] = 0;
    c.prefix[0] = -1;
    mla_unit unit = plan_unit(&c.call, 0, 0);
    ck_assert_int_eq(unit.tiles, 1);
    ck_assert_int_eq(unit.first_tile, 0);
}

TESTS("flashmla_like plan");
