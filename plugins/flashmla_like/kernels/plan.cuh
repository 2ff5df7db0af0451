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

/* The length of ranges that have whole units, which lie `place` apart. */
PORTABLE int plan_whole_range(const mla_call *c, int count, int place)
{
    return int_max((count + c->ranges - 1) / c->ranges, 1) * place;
}

/* Where a range begins, at a unit of the list or, if there is none, nowhere. */
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

/* Sequences and pieces into the list of units. Returns their number. */
static __device__ int plan_list(const mla_call *c, int *sums)
{
    int count = 0, seqs = index_num_seqs(&c->batch);
    for (int base = 0; base < seqs; base += MLA_PLAN_THREADS) {
        int s = base + (int)threadIdx.x, mine = s < seqs ? plan_seq_units(c, s) : 0, total;
        int at = count + plan_scan(mine, &total, sums);
        for (int piece = 0; piece < mine && at + piece < c->most_units; piece++)
            c->units[at + piece] = plan_unit(c, s, piece);
        count += total;
    }
    return int_min(count, c->most_units);
}

/* The length of ranges: as short as there are ranges for, or that of whole units, if these are
 * equally long and the longest range becomes at most MLA_WHOLE_PERCENT longer by it. */
static __device__ int plan_range(const mla_call *c, int count, int length, int *sums)
{
    int least = int_max((length + c->ranges - 1) / c->ranges, MLA_LEAST_RANGE), other = 0, all;
    int one = count ? c->units[0].tiles + MLA_UNIT_COST : 1;
    int whole = (count + c->ranges - 1) / c->ranges * one;
    for (int u = threadIdx.x; u < count; u += MLA_PLAN_THREADS)
        other |= c->units[u].tiles + MLA_UNIT_COST != one;
    plan_scan(other, &all, sums);
    return all == 0 && whole * 100ll <= least * (100ll + MLA_WHOLE_PERCENT) ? whole : least;
}

/* The length of the longest unit on the line. */
static __device__ int plan_longest(const mla_call *c, int count, int *longest)
{
    if (threadIdx.x == 0)
        *longest = 1;
    __syncthreads();
    for (int u = threadIdx.x; u < count; u += MLA_PLAN_THREADS)
        atomicMax(longest, c->units[u].tiles + MLA_UNIT_COST);
    __syncthreads();
    return *longest;
}

extern "C" __global__ void __launch_bounds__(MLA_PLAN_THREADS)
    mla_plan(const __grid_constant__ mla_call c)
{
    __shared__ int sums[MLA_PLAN_THREADS / 32], longest;
    int count = plan_list(&c, sums), length = 0;
    if (threadIdx.x == 0)
        c.plan->num_divided = 0;
    __syncthreads();
    int place = c.whole ? plan_longest(&c, count, &longest) : 0;
    for (int base = 0; base < count; base += MLA_PLAN_THREADS) {
        int u = base + (int)threadIdx.x, total;
        int mine = u >= count ? 0 : place ? place : c.units[u].tiles + MLA_UNIT_COST;
        int at = length + plan_scan(mine, &total, sums);
        if (u < count)
            c.units[u].begin = at;
        length += total;
    }
    __syncthreads();
    int range = place ? plan_whole_range(&c, count, place) : plan_range(&c, count, length, sums);
    for (int r = threadIdx.x; r < c.ranges; r += MLA_PLAN_THREADS) {
        int low = 0, high = count;
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (c.units[middle].begin <= r * range)
                low = middle;
            else
                high = middle;
        }
        c.starts[r] = plan_start(&c, low, count, range);
        if (count && plan_divides(&c.units[low], range, r))
            c.plan->divided[atomicAdd(&c.plan->num_divided, 1)] =
                plan_divided(&c, &c.units[low], range);
    }
    if (threadIdx.x == 0) {
        c.plan->num_units = count;
        c.plan->range = range;
    }
}

#endif

#endif /* FLASHMLA_LIKE_PLAN_CUH */
