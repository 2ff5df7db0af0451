/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: units of work of absorbed latents, where one tile has many rows and long sums.
 */
#include "mla.h"

/* Rows that a tile of latents is cut into: four panels of queries, or two, as scores are computed.
 */
enum { MAX_CUT_ROWS = 64, LEAST_CUT_ROWS = 32 };

enum { MAX_BALANCED = 64 }; /* workers at most for which the balance of units is computed */

/* Does the worker who ends last have at most an eighth more to do than all on average, where each
 * takes the next unit when it is free? */
static int is_balanced(const group_plan *plan, uint32_t workers, int64_t cost)
{
    int64_t done[MAX_BALANCED] = {0}, last = 0;
    for (int32_t i = 0; workers <= MAX_BALANCED && i < plan->num_units; i++) {
        uint32_t first = 0; /* to be free */
        for (uint32_t w = 1; w < workers; w++)
            first = done[w] < done[first] ? w : first;
        done[first] += unit_cost(&plan->units[i]);
        last = done[first] > last ? done[first] : last;
    }
    return workers <= MAX_BALANCED && last * workers * SHARE <= cost * (SHARE + 1);
}

static int64_t count_tiles(const attn_metadata *metadata, const cpu_group *group,
                           const group_plan *plan, int32_t tile_rows)
{
    int64_t tiles = 0;
    for (int32_t s = 0; s < metadata->batch.num_seqs; s++)
        tiles += ((int64_t)plan->sequences[s].q_len * group->ratio + tile_rows - 1) / tile_rows;
    return tiles;
}

static int64_t count_splits(const group_plan *plan)
{
    int64_t splits = 0;
    for (int32_t i = 0; i < plan->num_units; i++)
        splits += plan->units[i].end_split - plan->units[i].first_split;
    return splits;
}

/* A tile of latents has sums of many elements, which take long to merge. So where tiles are not
 * balanced their rows are cut, at the price of keys that are converted once more. Where that does
 * not balance them they are shared out by splits, and rows remain cut if there are too few. */
void mla_cut_tiles(const attn_metadata *metadata, const cpu_group *group,
                   const group_capacity *capacity, group_plan *plan)
{
    const uint32_t workers = metadata->instance->services->num_workers;
    int64_t cost = cpu_cut_tiles(metadata, group, TILE_ROWS, plan);
    const int few = count_splits(plan) < workers;
    int balanced = is_balanced(plan, workers, cost);
    for (int32_t rows = MAX_CUT_ROWS; !balanced && rows >= LEAST_CUT_ROWS; rows /= 2) {
        if (count_tiles(metadata, group, plan, rows) > capacity->shares)
            break;
        cost = cpu_cut_tiles(metadata, group, rows, plan);
        balanced = is_balanced(plan, workers, cost);
    }
    if (balanced)
        return;
    if (!few)
        cost = cpu_cut_tiles(metadata, group, TILE_ROWS, plan);
    cpu_share_tiles(group, plan, capacity, cost);
}
