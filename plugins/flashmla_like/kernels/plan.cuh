/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cuh: units of the batch, laid out on a line that is cut into equal ranges (mla.h).
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

/* Unit `piece` of sequence s, but for its place on the line. */
PORTABLE mla_unit plan_unit(const mla_call *c, int s, int piece)
{
    mask_rule rule = plan_rule(c);
    index_sequence q;
    mla_unit unit;
    int lo, hi, rows = c->rows * c->pair;
    index_find_sequence(&c->batch, 0, s, &q);
    unit.seq = s;
    unit.first_row = piece * rows;
    unit.begin = 0;
    int last = int_min(unit.first_row + rows, q.q_len * c->heads) - 1;
    mask_outline(&rule, &c->batch, &q, unit.first_row / c->heads, last / c->heads, &lo, &hi);
    unit.first_tile = lo / c->tile;
    unit.tiles = int_max((hi + c->tile - 1) / c->tile - unit.first_tile, 1);
    return unit;
}

/* The first range that does tiles of a unit, and the last one. */
PORTABLE int plan_first_range(const mla_unit *unit, int range)
{
    return (unit->begin + MLA_UNIT_COST) / range;
}

PORTABLE int plan_last_range(const mla_unit *unit, int range)
{
    return (unit->begin + MLA_UNIT_COST + unit->tiles - 1) / range;
}

/* Tiles [*t0, *t1) of a unit that range `r` does; none: *t0 >= *t1. */
PORTABLE void plan_tiles(const mla_unit *unit, int range, int r, int *t0, int *t1)
{
    int base = unit->begin + MLA_UNIT_COST;
    *t0 = int_max(0, r * range - base);
    *t1 = int_min(unit->tiles, (r + 1) * range - base);
}

/* Is range `r` the second one that works on the unit where it begins? */
PORTABLE int plan_divides(const mla_unit *unit, int range, int r)
{
    return plan_first_range(unit, range) + 1 == r && plan_last_range(unit, range) >= r;
}

PORTABLE mla_divided plan_divided(const mla_call *c, const mla_unit *unit, int range)
{
    index_sequence q;
    mla_divided divided;
    index_find_sequence(&c->batch, 0, unit->seq, &q);
    divided.first = plan_first_range(unit, range);
    divided.count = plan_last_range(unit, range) - divided.first + 1;
    divided.first_row = unit->first_row;
    divided.rows = q.q_len * c->heads;
    divided.first_token = q.first_row;
    return divided;
}

/* With `fixed`: tiles of each part but the last of a unit with so many tiles, and its parts. Parts are `part` tiles long,
 * or that times a power of two: a few keys more move no border. */
PORTABLE int plan_fixed_range(int part, int tiles)
{
    int range = part;
    while (range * MLA_FIXED_PARTS < tiles)
        range *= 2;
    return range;
}

PORTABLE int plan_fixed_parts(int part, int tiles)
{
    const int range = plan_fixed_range(part, tiles);
    return (tiles + range - 1) / range;
}

/* Where a unit begins whose first part is range `first`. */
PORTABLE int plan_fixed_begin(int part, int tiles, int first)
{
    return first * plan_fixed_range(part, tiles) - MLA_UNIT_COST;
}

/* The length of ranges that have whole units, which lie `place` apart. */
PORTABLE int plan_whole_range(const mla_call *c, int count, int place)
{
    return int_max((count + c->ranges - 1) / c->ranges, 1) * place;
}

/* Where a range begins, at a unit of the list or, if there is none before `num_units`, nowhere. */
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

/* Sum over the block before this thread, and of all. */
static __device__ int plan_scan(int mine, int *total, int *sums)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < MLA_PLAN_THREADS / 32; w++) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
    }
    *total = all;
    return before + sum - mine;
}

/* Sequences that a list has: with `fixed` those of many units, whose units stay whole, then the others. */
enum { PLAN_ALL, PLAN_MANY, PLAN_FEW };

static __device__ bool plan_lists(int units, int which)
{
    return which == PLAN_ALL || (units <= MLA_FIXED_UNITS) == (which == PLAN_FEW);
}

/* Sequences and pieces into the list of units, after `count` others. Returns the number of all. */
static __device__ int plan_list(const mla_call *c, int count, int which, int *sums)
{
    const int seqs = index_num_seqs(&c->batch);
    for (int base = 0; base < seqs; base += MLA_PLAN_THREADS) {
        int s = base + (int)threadIdx.x, mine = s < seqs ? plan_seq_units(c, s) : 0, total;
        mine = plan_lists(mine, which) ? mine : 0;
        int at = count + plan_scan(mine, &total, sums);
        for (int piece = 0; piece < mine && at + piece < c->most_units; piece++)
            c->units[at + piece] = plan_unit(c, s, piece);
        count += total;
    }
    return int_min(count, c->most_units);
}

/* How far apart units lie, each as far as the longest one is long, so that no cut divides one; 0 = each as far as it is
 * long itself. With `whole`, or where the longest range gets at most MLA_WHOLE_PERCENT longer than one that a cut
 * ends, which also has the cost of one unit more. `least`: the length of ranges that cuts end. */
static __device__ int plan_place(const mla_call *c, int count, int *least, int *sums)
{
    __shared__ int longest;
    int mine = 0, length;
    if (threadIdx.x == 0)
        longest = 1;
    __syncthreads();
    for (int u = threadIdx.x; u < count; u += MLA_PLAN_THREADS) {
        const int one = c->units[u].tiles + MLA_UNIT_COST;
        atomicMax(&longest, one);
        mine += one;
    }
    plan_scan(mine, &length, sums);
    *least = int_max((length + c->ranges - 1) / c->ranges, MLA_LEAST_RANGE);
    const i64 most = (*least + MLA_UNIT_COST) * (100ll + MLA_WHOLE_PERCENT);
    return c->whole || plan_whole_range(c, count, longest) * 100ll <= most ? longest : 0;
}

/* The first `count` units onto the line, and the line's ranges. */
static __device__ void plan_line(const mla_call *c, int count, int *sums)
{
    int least, length = 0, place = plan_place(c, count, &least, sums);
    for (int base = 0; base < count; base += MLA_PLAN_THREADS) {
        int u = base + (int)threadIdx.x, total;
        int mine = u >= count ? 0 : place ? place : c->units[u].tiles + MLA_UNIT_COST;
        int at = length + plan_scan(mine, &total, sums);
        if (u < count)
            c->units[u].begin = at;
        length += total;
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

/* Unit u has `parts` ranges of its own, from range `first` on. */
static __device__ void plan_fix(const mla_call *c, int u, int first, int parts)
{
    const int tiles = c->units[u].tiles, range = plan_fixed_range(c->part, tiles);
    c->units[u].begin = plan_fixed_begin(c->part, tiles, first);
    for (int r = first; r < int_min(first + parts, c->ranges + c->fixed); r++)
        c->starts[r] = plan_start(c, u, u + 1, range);
    if (parts > 1)
        c->plan->divided[atomicAdd(&c->plan->num_divided, 1)] =
            plan_divided(c, &c->units[u], range);
}

/* Units of sequences of few units, from unit `begin` on. Ranges that are left over have none. */
static __device__ void plan_fixed(const mla_call *c, int begin, int *sums)
{
    const int count = plan_list(c, begin, PLAN_FEW, sums), end = c->ranges + c->fixed;
    int next = c->ranges;
    __syncthreads();
    for (int base = begin; base < count; base += MLA_PLAN_THREADS) {
        int u = base + (int)threadIdx.x, total;
        int parts = u < count ? plan_fixed_parts(c->part, c->units[u].tiles) : 0;
        int first = next + plan_scan(parts, &total, sums);
        if (u < count)
            plan_fix(c, u, first, parts);
        next += total;
    }
    for (int r = next + (int)threadIdx.x; r < end; r += MLA_PLAN_THREADS)
        c->starts[r] = plan_start(c, 0, 0, 1);
}

extern "C" __global__ void __launch_bounds__(MLA_PLAN_THREADS)
    mla_plan(const __grid_constant__ mla_call c)
{
    __shared__ int sums[MLA_PLAN_THREADS / 32];
    const int count = plan_list(&c, 0, c.fixed ? PLAN_MANY : PLAN_ALL, sums);
    if (threadIdx.x == 0)
        c.plan->num_divided = 0;
    __syncthreads();
    if (c.ranges)
        plan_line(&c, count, sums);
    if (c.fixed)
        plan_fixed(&c, count, sums);
}

#endif

#endif /* FLASHMLA_LIKE_PLAN_CUH */
