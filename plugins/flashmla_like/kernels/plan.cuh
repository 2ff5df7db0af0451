/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cuh: places the batch's units on a line, and cuts it into equal ranges (mla.h).
 */
#ifndef FLASHMLA_LIKE_PLAN_CUH
#define FLASHMLA_LIKE_PLAN_CUH

#include "plugins/flashmla_like/kernels/mla.h"
#include "plugins/common/cuda/mask.cuh"

PORTABLE mask_rule plan_rule(const mla_call *c)
{
    mask_rule rule = {c->window_left, c->batch.window_right, c->chunk, 0, 0};
    return rule;
}

PORTABLE int plan_seq_units(const mla_call *c, int s)
{
    index_sequence q;
    int rows = c->rows * c->pair;
    index_find_sequence(&c->batch, 0, s, &q);
    return (int_max(q.q_len, 0) * c->heads + rows - 1) / rows;
}

/* Unit `piece` of sequence s, without its place on the line. */
PORTABLE mla_unit plan_unit(const mla_call *c, int s, int piece)
{
    mask_rule rule = plan_rule(c);
    mla_unit unit;
    int lo, hi, rows = c->rows * c->pair;
    index_find_sequence(&c->batch, 1, s, &unit.q);
    unit.first_row = piece * rows;
    unit.begin = 0;
    int last = int_min(unit.first_row + rows, unit.q.q_len * c->heads) - 1;
    mask_outline(&rule, &c->batch, &unit.q, unit.first_row / c->heads, last / c->heads, &lo, &hi);
    unit.first_tile = lo / c->tile;
    unit.tiles = int_max((hi + c->tile - 1) / c->tile - unit.first_tile, 1);
    return unit;
}

/* The first and last range with tiles of a unit. */
PORTABLE int plan_first_range(const mla_unit *unit, int range)
{
    return (unit->begin + MLA_UNIT_COST) / range;
}

PORTABLE int plan_last_range(const mla_unit *unit, int range)
{
    return (unit->begin + MLA_UNIT_COST + unit->tiles - 1) / range;
}

/* Range r's tiles [*t0, *t1) of a unit; empty if *t0 >= *t1. */
PORTABLE void plan_tiles(const mla_unit *unit, int range, int r, int *t0, int *t1)
{
    int base = unit->begin + MLA_UNIT_COST;
    *t0 = int_max(0, r * range - base);
    *t1 = int_min(unit->tiles, (r + 1) * range - base);
}

/* Is range r the second one of the unit in which it starts? */
PORTABLE int plan_divides(const mla_unit *unit, int range, int r)
{
    return plan_first_range(unit, range) + 1 == r && plan_last_range(unit, range) >= r;
}

PORTABLE mla_divided plan_divided(const mla_call *c, const mla_unit *unit, int range)
{
    mla_divided divided;
    divided.first = plan_first_range(unit, range);
    divided.count = plan_last_range(unit, range) - divided.first + 1;
    divided.first_row = unit->first_row;
    divided.rows = unit->q.q_len * c->heads;
    divided.first_token = unit->q.first_row;
    return divided;
}

/* With `fixed`: tiles of each part, except the last, of a unit with `tiles` tiles: `part` times a
 * power of two. A few more keys do not move the parts' borders. */
PORTABLE int plan_fixed_range(int part, int tiles)
{
    int range = part;
    while (range * MLA_FIXED_PARTS(part) < tiles)
        range *= 2;
    return range;
}

/* The place of a unit with ranges of its own, of `range` tiles each, from range `first` on. */
PORTABLE int plan_own_begin(int range, int first)
{
    return first * range - MLA_UNIT_COST;
}

/* The number of parts of at most `range` tiles of a unit. */
PORTABLE int plan_parts(int range, int tiles)
{
    return (tiles + range - 1) / range;
}

/* Tiles of a part, if the fewest parts of at most `longest` tiles have equal lengths. */
PORTABLE int plan_equal_range(int longest, int tiles)
{
    return plan_parts(plan_parts(longest, tiles), tiles);
}

/* The length of ranges of whole units that are `place` apart. */
PORTABLE int plan_whole_range(const mla_call *c, int count, int place)
{
    return int_max((count + c->ranges - 1) / c->ranges, 1) * place;
}

/* The range of a whole unit at `at` on a line of `length`. */
PORTABLE int plan_share(const mla_call *c, i64 at, i64 length)
{
    int low = 0, high = c->ranges;
    while (high - low > 1) { /* avoids a 64-bit division, which is a call */
        int middle = low + (high - low) / 2;
        if (middle * length <= at * c->ranges)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The place of a part of range r among all parts. A range of the line has two: one for a unit that
 * starts in an earlier range, and one for a unit that starts in it (`first`: this is the unit's
 * first part). */
PORTABLE int plan_part_place(const mla_call *c, int r, int first)
{
    return r < c->ranges ? 2 * r + first : c->ranges + r;
}

/* The start of a range at a unit of the list. If `unit` is not below num_units, the range is
 * empty. */
PORTABLE mla_start plan_start(const mla_call *c, int unit, int num_units, int range)
{
    mla_start start;
    start.first = c->units[unit];
    start.unit = unit;
    start.num_units = num_units;
    start.range = range;
    return start;
}

#ifdef __CUDACC__

/* The sum over the block's earlier threads; *total = over all threads. */
static __device__ i64 plan_scan(i64 mine, i64 *total, i64 *sums)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    i64 sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        i64 other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    i64 before = 0, all = 0;
    for (int w = 0; w < MLA_PLAN_THREADS / 32; w++) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
    }
    *total = all;
    return before + sum - mine;
}

/* The sequences of a list. With `fixed`, sequences of many units, which stay whole, are listed
 * before the others. */
enum { PLAN_ALL, PLAN_MANY, PLAN_FEW };

static __device__ bool plan_lists(int units, int which)
{
    return which == PLAN_ALL || (units <= MLA_FIXED_UNITS) == (which == PLAN_FEW);
}

/* The last of the block's sequences whose units start at `at` or before. */
static __device__ int plan_owner(const int *begins, int at)
{
    int low = 0, high = MLA_PLAN_THREADS;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (begins[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Appends the units of sequences to the list of `count` units, and returns the new count. All
 * threads list the units of a prompt: for one thread they would take milliseconds. */
static __device__ int plan_list(const mla_call *c, int count, int which, i64 *sums)
{
    __shared__ int begins[MLA_PLAN_THREADS];
    const int seqs = index_num_seqs(&c->batch);
    for (int base = 0; base < seqs; base += MLA_PLAN_THREADS) {
        int s = base + (int)threadIdx.x, mine = s < seqs ? plan_seq_units(c, s) : 0;
        i64 total;
        mine = plan_lists(mine, which) ? mine : 0;
        begins[threadIdx.x] = count + (int)plan_scan(mine, &total, sums);
        __syncthreads();
        const int end = count + (int)total;
        for (int at = count + (int)threadIdx.x; at < int_min(end, c->most_units);
             at += MLA_PLAN_THREADS) {
            const int owner = plan_owner(begins, at);
            c->units[at] = plan_unit(c, base + owner, at - begins[owner]);
        }
        count = end;
    }
    return int_min(count, c->most_units);
}

/* The sum of the units' lengths; *longest = the longest one. */
static __device__ i64 plan_measure(const mla_call *c, int count, int *longest, i64 *sums)
{
    __shared__ int most;
    i64 mine = 0, length;
    if (threadIdx.x == 0)
        most = 1;
    __syncthreads();
    for (int u = threadIdx.x; u < count; u += MLA_PLAN_THREADS) {
        const int one = c->units[u].tiles + MLA_UNIT_COST;
        atomicMax(&most, one);
        mine += one;
    }
    plan_scan(mine, &length, sums);
    *longest = most;
    return length;
}

/* The equal distance between whole units (the longest unit's length), or 0: units follow each other
 * and may be divided. Units are whole with `whole`, or if the longest range then takes at most
 * MLA_WHOLE_PERCENT longer than a cut range, which has the cost of one more unit. `longest`: the
 * longest unit; `least`: the length of cut ranges. */
static __device__ int plan_place(const mla_call *c, int count, int longest, int least)
{
    const i64 most = (least + MLA_UNIT_COST) * (100ll + MLA_WHOLE_PERCENT);
    return c->whole || plan_whole_range(c, count, longest) * 100ll <= most ? longest : 0;
}

/* Gives unit u ranges of its own, of `range` tiles each, from range `first` on. */
static __device__ void plan_own(const mla_call *c, int u, int range, int first)
{
    const int parts = plan_parts(range, c->units[u].tiles);
    c->units[u].begin = plan_own_begin(range, first);
    for (int r = first; r < first + parts; r++)
        c->starts[r] = plan_start(c, u, u + 1, range);
    if (parts > 1)
        c->plan->divided[atomicAdd(&c->plan->num_divided, 1)] =
            plan_divided(c, &c->units[u], range);
}

/* Gives each of units [begin, count) ranges of its own among [next, end): equal parts of at most
 * `longest` tiles or, if that is 0, fixed ones. Remaining ranges are empty. */
static __device__ void plan_owns(const mla_call *c, int begin, int count, int next, int end,
                                 int longest, i64 *sums)
{
    for (int base = begin; base < count; base += MLA_PLAN_THREADS) {
        int u = base + (int)threadIdx.x, range = 1, parts = 0;
        i64 total;
        if (u < count) {
            const int tiles = c->units[u].tiles;
            range = longest ? plan_equal_range(longest, tiles) : plan_fixed_range(c->part, tiles);
            parts = plan_parts(range, tiles);
        }
        int first = next + (int)plan_scan(parts, &total, sums);
        if (parts && first + parts <= end)
            plan_own(c, u, range, first);
        next += (int)total;
    }
    for (int r = next + (int)threadIdx.x; r < end; r += MLA_PLAN_THREADS)
        c->starts[r] = plan_start(c, 0, 0, 1);
}

/* The smallest part length, up to `least`, for which no range needs parts of two units; 0 = there
 * is none. Each part has a unit's cost, so a range with two parts takes longer than others. */
static __device__ int plan_longest(const mla_call *c, int count, int least, i64 *sums)
{
    int longest = int_max(least - MLA_UNIT_COST, MLA_LEAST_RANGE);
    for (; count <= c->ranges && longest <= least; longest++) {
        i64 mine = 0, parts;
        for (int u = threadIdx.x; u < count; u += MLA_PLAN_THREADS)
            mine += plan_parts(longest, c->units[u].tiles);
        plan_scan(mine, &parts, sums);
        if (parts <= c->ranges)
            return longest;
    }
    return 0;
}

/* The first of `count` units whose first range is r or later. */
static __device__ int plan_find(const mla_call *c, int count, int range, int r)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (plan_first_range(&c->units[middle], range) < r)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* For units whose line would exceed an int: all units stay whole, in ranges of about equal
 * length. */
static __device__ void plan_shares(const mla_call *c, int count, i64 length, int longest, i64 *sums)
{
    i64 at = 0, total;
    for (int base = 0; base < count; base += MLA_PLAN_THREADS, at += total) {
        int u = base + (int)threadIdx.x;
        i64 mine = u < count ? c->units[u].tiles + MLA_UNIT_COST : 0;
        i64 begin = at + plan_scan(mine, &total, sums);
        if (u < count)
            c->units[u].begin = plan_own_begin(longest, plan_share(c, begin, length));
    }
    __syncthreads();
    for (int r = threadIdx.x; r < c->ranges; r += MLA_PLAN_THREADS) {
        const int first = plan_find(c, count, longest, r);
        const int end = plan_find(c, count, longest, r + 1);
        c->starts[r] = plan_start(c, int_min(first, count - 1), end, longest);
    }
}

/* Places the first `count` units on the line, and cuts it into ranges. */
static __device__ void plan_line(const mla_call *c, int count, i64 *sums)
{
    int most;
    const i64 all = plan_measure(c, count, &most, sums);
    if ((i64)count * most > MLA_MOST_LINE) {
        plan_shares(c, count, all, most, sums);
        return;
    }
    const int least = int_max((int)((all + c->ranges - 1) / c->ranges), MLA_LEAST_RANGE);
    const int place = plan_place(c, count, most, least);
    const int longest = place ? 0 : plan_longest(c, count, least, sums);
    int length = 0;
    if (longest) {
        plan_owns(c, 0, count, 0, c->ranges, longest, sums);
        return;
    }
    for (int base = 0; base < count; base += MLA_PLAN_THREADS) {
        int u = base + (int)threadIdx.x;
        i64 total;
        int mine = u >= count ? 0 : place ? place : c->units[u].tiles + MLA_UNIT_COST;
        int at = length + (int)plan_scan(mine, &total, sums);
        if (u < count)
            c->units[u].begin = at;
        length += (int)total;
    }
    __syncthreads();
    int range = place ? plan_whole_range(c, count, place) : least;
    for (int r = threadIdx.x; r < c->ranges; r += MLA_PLAN_THREADS) {
        int low = 0, high = count;
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (c->units[middle].begin <= r * range)
                low = middle;
            else
                high = middle;
        }
        c->starts[r] = plan_start(c, low, count, range);
        if (count && plan_divides(&c->units[low], range, r))
            c->plan->divided[atomicAdd(&c->plan->num_divided, 1)] =
                plan_divided(c, &c->units[low], range);
    }
}

extern "C" __global__ void __launch_bounds__(MLA_PLAN_THREADS)
    mla_plan(const __grid_constant__ mla_call c)
{
    __shared__ i64 sums[MLA_PLAN_THREADS / 32];
    const int count = plan_list(&c, 0, c.fixed ? PLAN_MANY : PLAN_ALL, sums);
    if (threadIdx.x == 0)
        c.plan->num_divided = 0;
    __syncthreads();
    if (c.ranges)
        plan_line(&c, count, sums);
    if (c.fixed) {
        const int all = plan_list(&c, count, PLAN_FEW, sums);
        __syncthreads();
        plan_owns(&c, count, all, c.ranges, c.ranges + c.fixed, 0, sums);
    }
}

#endif

#endif /* FLASHMLA_LIKE_PLAN_CUH */
