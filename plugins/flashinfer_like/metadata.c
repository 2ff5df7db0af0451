/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and a batch: checked here, planned on the device.
 *
 * Lengths, pages and row numbers stay where the batch has them, in device arrays. Tiles, and where
 * each block begins, are made of them on the device too, by one small kernel for each layer group
 * when a batch is planned: nothing is waited for, host arrays are not needed, and a graph that is
 * replayed finds the new plan at the old address. What blocks leave for each other is bounded by
 * the grid, not by the batch. Runs of sequences that share their first keys are planned as if they
 * were the sequences of another batch, by the same kernel.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/launch.h"
#include "plugins/flashinfer_like/kernels/plan.cuh"
#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    /* The reads that runs must save to be used: a level takes some 30 us, much of it for merges,
     * and keys that are read again come from the L2, at some 7 TB/s. */
    WORTH_BYTES = 256 << 20,
    WORTH_KEYS = 128, /* least keys of a run */
    PART_SLOTS = 2,   /* per block, see plan.h */
    FORMS = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    ARRIVED = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED),
    WORKSPACE = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Blocks for all multiprocessors; fewer multiprocessors have no more blocks. */
static uint64_t grid_of(const fi_group *group, int kernel, const attn_bounds *bounds)
{
    fi_grid grid = fi_find_grid(group, kernel, bounds);
    return (uint64_t)grid.lanes * grid.columns;
}

static uint64_t most_columns(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t most = 0;
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (fi_has_kernel(group, i))
            most = larger(most, fi_bounded_grid(group, i, bounds).columns);
    return most;
}

static fi_plan_layout lay_out(const fi_group *group, const attn_bounds *bounds, uint64_t tiles)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs, columns = most_columns(group, bounds);
    fi_plan_layout layout;
    layout.most_tiles = (int64_t)tiles;
    layout.first_tile_at = aligned(sizeof(fi_plan));
    layout.before_at = aligned(layout.first_tile_at + (seqs + 1) * sizeof(int32_t));
    layout.tiles_at = aligned(layout.before_at + (tiles + 1) * sizeof(int64_t));
    layout.starts_at = aligned(layout.tiles_at + tiles * sizeof(fi_tile));
    layout.size = aligned(layout.starts_at + columns * sizeof(fi_start));
    return layout;
}

/* A layout that is large enough for tiles of any kernel. */
fi_plan_layout fi_layout_plan(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs, rows = (uint64_t)bounds->max_tokens;
    return lay_out(group, bounds,
                   rows * (uint64_t)group->base.ratio / FI_ROWS + (seqs < rows ? seqs : rows));
}

/* Sequences of few rows have one query, with any number of heads, or FI_SHORT_ROWS rows at most. */
fi_plan_layout fi_layout_few(const fi_group *group, const attn_bounds *bounds)
{
    fi_plan_layout all = fi_layout_plan(group, bounds);
    uint64_t rows = larger((uint64_t)group->base.ratio, FI_SHORT_ROWS);
    uint64_t tiles = (uint64_t)bounds->max_seqs * ((rows + FI_ROWS - 1) / FI_ROWS);
    return tiles < (uint64_t)all.most_tiles ? lay_out(group, bounds, tiles) : all;
}

/* Does the group have kernels for few rows? */
static int has_few(const fi_group *group)
{
    return fi_has_kernel(group, cuda_is_fp8(group->base.kv_dtype) ? KERNEL_CODES : KERNEL_ATTEND);
}

/* May sequences of few rows be planned beside others? */
static int may_have_beside(const fi_group *group, const attn_bounds *bounds)
{
    uint32_t modes = bounds->modes & ~(uint32_t)ATTN_MODE_BIT(ATTN_MODE_DECODE);
    return group->is_invariant && has_few(group) && modes &&
           !plan_has_few(bounds->max_q_len, group->base.ratio);
}

/* A run that is used has two sequences at least. */
fi_plan_layout fi_layout_runs(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs;
    return lay_out(group, bounds,
                   seqs * (uint64_t)group->base.ratio / FI_PREFILL_ROWS + (seqs + 1) / 2);
}

/* Only kernels for few rows merge the results of runs. */
int fi_num_levels(const fi_group *group, const attn_bounds *bounds)
{
    const cuda_group *base = &group->base;
    if (group->is_invariant || !has_few(group) || group->options.cascade == WHEN_NEVER ||
        !(bounds->uses & ATTN_USES_SHARED_PREFIX) ||
        !(bounds->modes & ATTN_MODE_BIT(ATTN_MODE_DECODE)) ||
        base->attn_type != ATTN_TYPE_DECODER || cuda_is_fp8(base->kv_dtype) ||
        base->window_left >= 0 || base->chunk > 0 || base->flags & ATTN_GROUP_HAS_ALIBI)
        return 0;
    int levels = bounds->max_prefix_levels > 1 ? bounds->max_prefix_levels : 1;
    return levels < FI_LEVELS ? levels : FI_LEVELS;
}

/* The bytes of a group's plans: FI_SEQUENCES, then FI_BESIDE, then each level. */
static uint64_t plans_bytes(const fi_group *group, const attn_bounds *bounds)
{
    return fi_layout_plan(group, bounds).size +
           (may_have_beside(group, bounds) ? fi_layout_few(group, bounds).size : 0) +
           (uint64_t)fi_num_levels(group, bounds) * fi_layout_runs(group, bounds).size;
}

int64_t fi_most_splits(const fi_group *group, const attn_bounds *bounds)
{
    int64_t keys = bounds->max_kv_len > 1 ? bounds->max_kv_len : 1, split = group->options.split;
    return group->is_invariant ? (keys + split - 1) / split : 0;
}

/* The bytes of PART_SLOTS tiles of the kernel with the largest ones; or, in an invariant group, of
 * all splits of a tile of few rows, as tiles of many rows are not split. */
int64_t fi_block_bytes(const fi_group *group, const attn_bounds *bounds)
{
    int64_t rows = group->is_invariant ? fi_most_splits(group, bounds) * FI_ROWS
                                       : (int64_t)PART_SLOTS * FI_PREFILL_ROWS;
    return rows * (group->base.v_dim + 2) * (int)sizeof(float);
}

fi_workspace_layout fi_layout_workspace(const fi_group *group, const attn_bounds *bounds,
                                        int kernel)
{
    uint64_t slots = group->is_invariant
                         ? fi_is_prefill(kernel) ? 0 : (uint64_t)fi_most_splits(group, bounds)
                         : PART_SLOTS;
    uint64_t rows =
        grid_of(group, kernel, bounds) * slots * (uint64_t)group->shape->kernels[kernel].rows;
    /* For wide heads, each warp of a row has its own numbers. */
    uint64_t numbers = fi_is_wide(group->shape) ? 2 * FI_WIDE_PIECES : 2;
    fi_workspace_layout layout;
    layout.rows_at = aligned(rows * (uint64_t)group->base.v_dim * sizeof(float));
    layout.size = aligned(layout.rows_at + rows * numbers * sizeof(float));
    return layout;
}

static uint64_t workspace_bytes(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t bytes = 0;
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (fi_has_kernel(group, i))
            bytes = larger(bytes, fi_layout_workspace(group, bounds, i).size);
    return bytes;
}

fi_prior_layout fi_layout_prior(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t heads = (uint64_t)group->base.kv_heads * (uint64_t)group->base.ratio;
    uint64_t rows = (uint64_t)fi_num_levels(group, bounds) * (uint64_t)bounds->max_seqs * heads;
    fi_prior_layout layout;
    layout.at = aligned(workspace_bytes(group, bounds));
    layout.rows_at = aligned(layout.at + rows * (uint64_t)group->base.v_dim * sizeof(float));
    layout.size = aligned(layout.rows_at + rows * 2 * sizeof(float));
    return layout;
}

static uint64_t arrived_bytes(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t blocks = 0;
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (fi_has_kernel(group, i))
            blocks = larger(blocks, grid_of(group, i, bounds));
    return blocks * sizeof(int32_t);
}

static uint64_t host_bytes(uint32_t num_groups)
{
    return sizeof(attn_metadata) +
           num_groups * (sizeof(attn_kv_batch) + sizeof(int64_t[ATTN_MAX_CODE_PATHS]));
}

void fi_tell_memory(const attn_problem *problem, const fi_options *options, attn_verdict *verdict)
{
    fi_group group;
    const attn_bounds *bounds = problem->bounds;
    fi_group_init(&group, problem, problem->device->num_sms, options);
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 ||
        (group.is_invariant && bounds->max_kv_len == 0))
        return;
    verdict->device_bytes = aligned(CUDA_COUNTS_BYTES) + plans_bytes(&group, bounds) +
                            fi_layout_prior(&group, bounds).size + arrived_bytes(&group, bounds);
    verdict->host_bytes = host_bytes(1);
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = fi_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
    sizes[PLANS] = aligned(CUDA_COUNTS_BYTES);
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const fi_group *group = &instance->groups[i];
        sizes[PLANS] += plans_bytes(group, bounds);
        sizes[ARRIVED] = larger(sizes[ARRIVED], arrived_bytes(group, bounds));
        sizes[WORKSPACE] = larger(sizes[WORKSPACE], fi_layout_prior(group, bounds).size);
    }
    sizes[HOST] = host_bytes(instance->num_groups);
    return ATTN_OK;
}

attn_status fi_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                             attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        cuda_memory_tell(sizes, ALIGNMENT, size);
    return status;
}

attn_status fi_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                               const attn_memory *memory, attn_metadata **metadata,
                               attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        status = cuda_memory_check(memory, sizes, ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    char *device = memory->base[PLANS];
    attn_kv_batch *kv = (attn_kv_batch *)(made + 1);
    *made = (attn_metadata){.instance = instance,
                            .plans = device + aligned(CUDA_COUNTS_BYTES),
                            .workspace = memory->base[WORKSPACE],
                            .arrived = memory->base[ARRIVED],
                            .rows = (int64_t(*)[ATTN_MAX_CODE_PATHS])(kv + instance->num_groups)};
    cuda_plan_init(&made->plan, kind, &bounds, FORMS,
                   kind == ATTN_METADATA_GRAPH ? (uintptr_t)device : 0, kv);
    *metadata = made;
    return ATTN_OK;
}

/* ---- Planning -------------------------------------------------------------------------------- */

static int is_custom(const cuda_plan *plan)
{
    return plan->mask.kind == ATTN_MASK_FULL || plan->mask.kind == ATTN_MASK_QLEN;
}

const fi_part *fi_part_of(const attn_metadata *metadata, uint32_t index)
{
    return metadata->parts && metadata->parts[index].q_len > 0 ? &metadata->parts[index] : NULL;
}

int64_t fi_most_keys(const cuda_plan *plan, const cuda_group *group)
{
    if (!cuda_group_has_cache(group))
        return cuda_plan_extent(plan).q_len;
    return plan->kind == ATTN_METADATA_GRAPH ? plan->bounds.max_kv_len : plan->batch.max_kv_len;
}

static cuda_extent extent_of(const attn_metadata *metadata, uint32_t index)
{
    const fi_part *part = fi_part_of(metadata, index);
    if (!part)
        return cuda_plan_extent(&metadata->plan);
    return (cuda_extent){.seqs = part->num_seqs,
                         .tokens = (int64_t)part->num_seqs * part->q_len,
                         .q_len = part->q_len};
}

/* Does each sequence of the batch, or of the part, get half a tile? */
static int is_half(const attn_metadata *metadata, uint32_t index)
{
    const cuda_plan *plan = &metadata->plan;
    const fi_group *group = &metadata->instance->groups[index];
    cuda_extent extent = extent_of(metadata, index);
    return fi_is_half(group, &extent, fi_most_keys(plan, &group->base),
                      cuda_plan_num_sms(plan, group->num_sms));
}

/* Do all sequences get tiles of few rows? In an invariant group the number of a sequence's rows
 * decides. If there are half tiles, they are compared, as they are always faster than whole ones.
 */
static int is_short(const attn_metadata *metadata, uint32_t index)
{
    const cuda_plan *plan = &metadata->plan;
    const fi_group *group = &metadata->instance->groups[index];
    cuda_extent extent = extent_of(metadata, index);
    if (!has_few(group))
        return 0;
    if (plan->batch.mode == ATTN_MODE_DECODE)
        return 1;
    if (group->is_invariant)
        return plan_has_few((int)extent.q_len, group->base.ratio);
    if (group->options.half_tiles != WHEN_NEVER && fi_has_kernel(group, fi_half_kernel(group)))
        return extent.q_len * group->base.ratio <= FI_HALF_ROWS && !is_half(metadata, index);
    return fi_is_short(&group->base, &extent, fi_most_keys(plan, &group->base),
                       cuda_plan_num_sms(plan, group->num_sms));
}

int fi_has_beside(const attn_metadata *metadata, uint32_t index)
{
    const fi_group *group = &metadata->instance->groups[index];
    return group->is_invariant && has_few(group) && !is_short(metadata, index);
}

int fi_find_kernel(const attn_metadata *metadata, uint32_t index, int plan)
{
    const fi_group *group = &metadata->instance->groups[index];
    int few = plan == FI_BESIDE || (plan == FI_SEQUENCES && is_short(metadata, index));
    int is_fp8 = cuda_is_fp8(group->base.kv_dtype);
    cuda_extent extent = extent_of(metadata, index);
    if (!few && plan == FI_SEQUENCES && is_half(metadata, index))
        return fi_half_kernel(group);
    if (!few)
        return is_fp8 ? KERNEL_PREFILL_CODES : KERNEL_PREFILL;
    if (fi_is_many(group, &extent, fi_most_keys(&metadata->plan, &group->base),
                   cuda_plan_num_sms(&metadata->plan, group->num_sms)))
        return is_fp8 ? KERNEL_CODES_MANY : KERNEL_ATTEND_MANY;
    return is_fp8 ? KERNEL_CODES : KERNEL_ATTEND;
}

/* The keys that runs must save reading, all together. */
static int64_t worth_keys(const fi_group *group)
{
    int64_t key_bytes = 2 * (int64_t)group->base.kv_heads * (group->base.dim + group->base.v_dim);
    return group->options.cascade == WHEN_AUTO ? WORTH_BYTES / key_bytes : 0;
}

int fi_planned_levels(const attn_metadata *metadata, const fi_group *group)
{
    int levels = fi_num_levels(group, &metadata->plan.bounds);
    if (metadata->shared_keys >= 0 && metadata->shared_keys < worth_keys(group))
        return 0;
    return int_min(levels, metadata->prefixes.levels);
}

/* Decides as the planner does. */
int fi_uses_runs(const attn_metadata *metadata, const fi_group *group)
{
    int levels = fi_planned_levels(metadata, group);
    if (levels == 0)
        return 0;
    return metadata->hinted.levels != levels ? -1 : metadata->hinted.keys >= worth_keys(group);
}

/* Turn the runs of a level into sequences of a batch: each has the rows of q of its sequences, one
 * per sequence, and the table of the first one; all of its queries see all of its keys. */
static void make_runs(const fi_runs *runs, call_batch *batch)
{
    batch->q_indptr = batch->table_rows = runs->seq_indptr;
    batch->seq_lens = batch->kv_lens = runs->prefix_len;
    batch->prefix_lens = batch->positions = batch->new_indptr = batch->counts = NULL;
    batch->mask_bits = NULL;
    batch->item_prefix_lens = NULL;
    batch->window_right = -1;
    batch->num_seqs = runs->count;
    batch->num_tokens = 0; /* no padding */
}

/* Move arrays by sequence to the part's first one; arrays by row stay. */
static void make_part(const fi_part *part, call_batch *batch)
{
    const int first = part->first_seq;
    batch->q_indptr += first;
    batch->prefix_lens += batch->prefix_lens ? first : 0;
    batch->seq_lens += batch->seq_lens ? first : 0;
    batch->kv_lens += batch->kv_lens ? first : 0;
    batch->new_indptr += batch->new_indptr ? first : 0;
    batch->req_pool_indices += batch->req_pool_indices ? first : 0;
    batch->block_table += batch->block_table ? (int64_t)first * batch->table_stride : 0;
    batch->kv_indptr += batch->kv_indptr ? first : 0;
    batch->item_prefix_lens += batch->item_prefix_lens ? first : 0;
    batch->item_pos += batch->item_pos ? (int64_t)first * batch->item_stride : 0;
    batch->num_seqs = part->num_seqs;
    batch->num_tokens = 0; /* no padding */
}

static char *find_plan(const attn_metadata *metadata, uint32_t index, int plan)
{
    const attn_bounds *bounds = &metadata->plan.bounds;
    const fi_group *groups = metadata->instance->groups;
    char *base = metadata->plans;
    for (uint32_t i = 0; i < index; i++)
        base += plans_bytes(&groups[i], bounds);
    if (plan != FI_SEQUENCES)
        base += fi_layout_plan(&groups[index], bounds).size;
    if (plan >= 0 && may_have_beside(&groups[index], bounds))
        base += fi_layout_few(&groups[index], bounds).size;
    if (plan >= 0)
        base += (uint64_t)plan * fi_layout_runs(&groups[index], bounds).size;
    return base;
}

/* Units per split, or 0 if items are not split; tiles of many rows have one split. */
static int split_of(const fi_group *group, int kernel)
{
    if (!group->is_invariant)
        return 0;
    return fi_is_prefill(kernel) ? 1 << 30 : (int)(group->options.split / FI_KEYS);
}

static int whose(const attn_metadata *metadata, uint32_t index, int plan)
{
    if (plan == FI_BESIDE)
        return FI_FEW;
    return plan == FI_SEQUENCES && fi_has_beside(metadata, index) ? FI_MANY : FI_ALL;
}

/* The time in which a block merges a part of an item, in 64ths of a unit's; it grows with the
 * tile's rows. If several blocks merge, it is short, and shorter still relative to a longer unit.
 */
static int merge_cost(int rows, int level)
{
    return level >= 0 ? FI_MERGE : FI_MERGE_ROWS * rows / FI_ROWS;
}

static int merge_cost_several(int rows, int level)
{
    return level >= 0 ? FI_MERGE : rows == FI_ROWS ? MERGE_SEVERAL : MERGE_SEVERAL_MANY;
}

/* How many more units a column may have so that it has a part of one item only. */
static int even_units(const cuda_group *group, int rows)
{
    return rows == FI_ROWS ? int_min(FI_END / (group->dim + group->v_dim), FI_MOST_EVEN)
                           : FI_EVEN_MANY;
}

/* The most rows of a tile. Half tiles, and tiles of a kernel for all numbers of rows, are planned
 * as if they were full, so that a graph's bounds and its batches have the same plan. */
static int most_rows(const attn_metadata *metadata, uint32_t index, int rows)
{
    if (rows == FI_HALF_ROWS || !has_few(&metadata->instance->groups[index]))
        return rows;
    int64_t most = extent_of(metadata, index).q_len * metadata->instance->groups[index].base.ratio;
    return most < rows ? (int)most : rows;
}

void fi_plan_of(const attn_metadata *metadata, uint32_t index, int plan, fi_plan_call *call)
{
    const fi_group *group = &metadata->instance->groups[index];
    const attn_bounds *bounds = &metadata->plan.bounds;
    int kernel = fi_find_kernel(metadata, index, plan), level = plan >= 0 ? plan : -1;
    int rows = group->shape->kernels[kernel].rows;
    fi_grid grid = fi_bounded_grid(group, kernel, bounds);
    char *base = find_plan(metadata, index, plan);
    fi_plan_layout layout = plan == FI_BESIDE      ? fi_layout_few(group, bounds)
                            : plan == FI_SEQUENCES ? fi_layout_plan(group, bounds)
                                                   : fi_layout_runs(group, bounds);
    *call = (fi_plan_call){.plan = (fi_plan *)(void *)base,
                           .first_tile = (int *)(void *)(base + layout.first_tile_at),
                           .before = (long long *)(void *)(base + layout.before_at),
                           .tiles = (fi_tile *)(void *)(base + layout.tiles_at),
                           .starts = (fi_start *)(void *)(base + layout.starts_at),
                           .window_left = group->base.window_left,
                           .chunk = group->base.chunk,
                           .custom = is_custom(&metadata->plan),
                           .skips = fi_is_prefill(kernel),
                           .rows = rows,
                           .align = fi_box_keys(group, kernel),
                           .ratio = group->base.ratio,
                           .unit = group->shape->kernels[kernel].keys,
                           .begin = group->shape->kernels[kernel].begin,
                           .split = split_of(group, kernel),
                           .whose = whose(metadata, index, plan),
                           .rounds = group->base.kv_heads / (int)grid.lanes,
                           .columns = (int)grid.columns,
                           .merge = merge_cost(rows, level),
                           .merge_several = merge_cost_several(rows, level),
                           .several =
                               plan_several(level >= 0 ? rows : most_rows(metadata, index, rows)),
                           .merged = level >= 0 ? 1 : int_max(1, FI_MERGED * FI_ROWS / rows),
                           .even = even_units(&group->base, rows),
                           .hands = fi_is_prefill(kernel) && level < 0 ? FI_HANDS : 1,
                           .level = level,
                           .prefixes = metadata->prefixes};
    call->prefixes.levels = fi_planned_levels(metadata, group);
    call->prefixes.worth = worth_keys(group);
    /* All queries of a run must see all of its keys, but those of items need not. */
    if (metadata->plan.items.token_pos)
        call->prefixes.worth = INT64_MAX;
    cuda_plan_fill(&metadata->plan, &group->base, &metadata->plan.kv[index], &call->batch);
    if (fi_part_of(metadata, index))
        make_part(fi_part_of(metadata, index), &call->batch);
    if (level >= 0)
        make_runs(&metadata->prefixes.level[level], &call->batch);
}

/* Count each row once, though its sequence may be in runs of several levels. */
static fi_told count_shared(const fi_prefixes *host, int num_seqs)
{
    fi_told hinted = {.levels = host->levels};
    for (int l = 0; l < host->levels; l++)
        for (int r = 0; r < host->level[l].count; r++) {
            const int32_t *first = &host->level[l].seq_indptr[r];
            int64_t saved = plan_count_saved(host, l, r);
            hinted.keys += saved;
            if (saved > 0 && plan_find_share(host, l + 1, *first).levels == 1 << l)
                hinted.rows += int_max(int_min(first[1], num_seqs) - *first, 0);
        }
    return hinted;
}

/* Take the hint's levels, as many as there is memory for. A graph launches the levels it was
 * captured with; those that a later batch does not give, or that save too little, have no tiles. */
static void take_prefixes(attn_metadata *metadata, int is_first)
{
    const attn_batch *batch = &metadata->plan.batch;
    const attn_bounds *bounds = &metadata->plan.bounds;
    int is_graph = metadata->plan.kind == ATTN_METADATA_GRAPH, is_told = 1;
    uint32_t given = batch->mode == ATTN_MODE_DECODE ? batch->num_prefix_levels : 0;
    fi_prefixes taken = {.least =
                             metadata->instance->options.cascade == WHEN_AUTO ? WORTH_KEYS : 1};
    fi_prefixes host = taken;
    for (uint32_t l = 0; l < given && l < FI_LEVELS; l++) {
        attn_shared_prefix shared;
        ATTN_UTIL_READ(&shared, attn_at(batch->shared_prefix, l));
        const fi_runs runs = {shared.seq_indptr.device, shared.prefix_len.device,
                              (int)shared.num_groups};
        if (!runs.seq_indptr || !runs.prefix_len || shared.num_groups > (uint32_t)bounds->max_seqs)
            break;
        taken.level[taken.levels++] = runs;
        is_told = is_told && shared.seq_indptr.host && shared.prefix_len.host;
        host.level[host.levels++] =
            (fi_runs){shared.seq_indptr.host, shared.prefix_len.host, runs.count};
    }
    if (is_graph && !is_first)
        taken.levels = metadata->prefixes.levels;
    metadata->prefixes = taken;
    metadata->hinted = (fi_told){.levels = 0};
    if (is_told && host.levels == taken.levels)
        metadata->hinted = count_shared(&host, batch->num_real_seqs);
    metadata->shared_keys = is_told && !is_graph ? metadata->hinted.keys : -1;
}

static attn_status launch_plan(attn_metadata *metadata, uint32_t index, int plan,
                               attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const cuda_launch launch = {.function = instance->plan,
                                .name = "fi_plan_batch",
                                .grid = {1, 1, 1},
                                .block = {FI_PLAN_THREADS}};
    fi_plan_call call;
    void *params[] = {&call};
    fi_plan_of(metadata, index, plan, &call);
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

attn_status fi_plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                          attn_error *error)
{
    int levels = fi_planned_levels(metadata, &metadata->instance->groups[index]);
    attn_status status = launch_plan(metadata, index, FI_SEQUENCES, stream, error);
    if (status == ATTN_OK && fi_has_beside(metadata, index))
        status = launch_plan(metadata, index, FI_BESIDE, stream, error);
    for (int level = 0; level < levels && status == ATTN_OK; level++)
        status = launch_plan(metadata, index, level, stream, error);
    return status;
}

/* An eager batch without rows needs no plan, as nothing reads it. */
attn_status fi_take_batch(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                          int *is_worked_on, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    cuda_plan *plan = &metadata->plan;
    int is_first = !plan->planned;
    attn_status status = cuda_plan_take(plan, instance->cuda, instance->groups, sizeof(fi_group),
                                        instance->num_groups, batch, stream, error);
    *is_worked_on = status == ATTN_OK && plan->batch.mode != ATTN_MODE_IDLE &&
                    (plan->kind != ATTN_METADATA_EAGER || cuda_plan_has_rows(plan));
    if (status == ATTN_OK)
        memset(metadata->rows, 0, instance->num_groups * sizeof *metadata->rows);
    if (*is_worked_on) {
        metadata->is_settled = 0;
        take_prefixes(metadata, is_first);
    }
    return status;
}

attn_status fi_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                     attn_stream stream, attn_error *error)
{
    int is_worked_on;
    attn_status status = fi_take_batch(metadata, batch, stream, &is_worked_on, error);
    for (uint32_t i = 0; status == ATTN_OK && is_worked_on && i < metadata->instance->num_groups;
         i++) {
        fi_count_rows(metadata, i);
        status = fi_plan_group(metadata, i, stream, error);
    }
    return status;
}
