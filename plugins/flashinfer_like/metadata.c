/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and a batch: checked here, planned on the device.
 *
 * Lengths, pages and row numbers stay where the batch has them, in device arrays. Tiles, and where
 * each block begins, are made of them on the device too, by one small kernel for each layer group
 * when a batch is planned: nothing is waited for, host arrays are not needed, and a graph that is
 * replayed finds the new plan at the old address. What blocks leave for each other is bounded by
 * the grid, not by the batch.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    FORMS = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_METADATA),
    ARRIVED = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_ZEROED),
    WORKSPACE = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)
};

static const char *const region_names[ATTN_REGION_COUNT] = {
    [PLANS] = "device metadata",
    [ARRIVED] = "zeroed device metadata",
    [WORKSPACE] = "device scratch",
    [HOST] = "host metadata",
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

/* Of all multiprocessors: with fewer there are no more blocks. */
static uint64_t grid_of(const fi_group *group)
{
    fi_grid grid = fi_find_grid(group);
    return (uint64_t)grid.lanes * grid.columns;
}

/* Room for either kernel's plan. */
fi_plan_layout fi_layout_plan(const fi_group *group, const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs, rows = (uint64_t)bounds->max_tokens;
    uint64_t columns = fi_bounded_grid(group, bounds).columns;
    fi_plan_layout layout;
    layout.most_tiles =
        (int64_t)(rows * (uint64_t)group->base.ratio / FI_ROWS + (seqs < rows ? seqs : rows));
    uint64_t tiles = (uint64_t)layout.most_tiles;
    layout.first_tile_at = aligned(sizeof(fi_plan));
    layout.before_at = aligned(layout.first_tile_at + (seqs + 1) * sizeof(int32_t));
    layout.tiles_at = aligned(layout.before_at + (tiles + 1) * sizeof(int64_t));
    layout.starts_at = aligned(layout.tiles_at + tiles * sizeof(fi_tile));
    layout.size = aligned(layout.starts_at + columns * sizeof(fi_start));
    return layout;
}

fi_workspace_layout fi_layout_workspace(const fi_group *group, int kernel)
{
    uint64_t rows = grid_of(group) * 2 * (uint64_t)group->shape->kernels[kernel].rows;
    fi_workspace_layout layout;
    layout.rows_at = aligned(rows * (uint64_t)group->base.v_dim * sizeof(float));
    layout.size = aligned(layout.rows_at + rows * 2 * sizeof(float));
    return layout;
}

static uint64_t workspace_bytes(const fi_group *group)
{
    if (cuda_is_fp8(group->base.kv_dtype))
        return fi_layout_workspace(group, KERNEL_CODES).size;
    return larger(fi_layout_workspace(group, KERNEL_ATTEND).size,
                  fi_layout_workspace(group, KERNEL_PREFILL).size);
}

static uint64_t arrived_bytes(const fi_group *group)
{
    return grid_of(group) * sizeof(int32_t);
}

static uint64_t host_bytes(uint32_t num_groups)
{
    return sizeof(attn_metadata) + num_groups * sizeof(attn_kv_batch);
}

void fi_tell_memory(const attn_problem *problem, attn_verdict *verdict)
{
    fi_group group;
    const attn_bounds *bounds = problem->bounds;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0)
        return;
    fi_group_init(&group, problem, problem->device->num_sms);
    verdict->device_bytes = aligned(CUDA_COUNTS_BYTES) + fi_layout_plan(&group, bounds).size +
                            workspace_bytes(&group) + arrived_bytes(&group);
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
        sizes[PLANS] += fi_layout_plan(group, bounds).size;
        sizes[ARRIVED] = larger(sizes[ARRIVED], arrived_bytes(group));
        sizes[WORKSPACE] = larger(sizes[WORKSPACE], workspace_bytes(group));
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
    if (status != ATTN_OK)
        return status;
    attn_util_clear_size(size);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        size->size[region] = sizes[region];
        size->alignment[region] = sizes[region] ? ALIGNMENT : 0;
    }
    return ATTN_OK;
}

attn_status fi_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                               const attn_memory *memory, attn_metadata **metadata,
                               attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT && status == ATTN_OK; region++)
        if (sizes[region])
            status = attn_util_check_region(memory, region, region_names[region], sizes[region],
                                            ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    char *device = memory->base[PLANS];
    *made = (attn_metadata){.instance = instance,
                            .plans = device + aligned(CUDA_COUNTS_BYTES),
                            .workspace = memory->base[WORKSPACE],
                            .arrived = memory->base[ARRIVED]};
    cuda_plan_init(&made->plan, kind, &bounds, FORMS,
                   kind == ATTN_METADATA_GRAPH ? (uintptr_t)device : 0,
                   (attn_kv_batch *)(made + 1));
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void fi_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

/* ---- Planning -------------------------------------------------------------------------------- */

static int is_custom(const cuda_plan *plan)
{
    return plan->mask.kind == ATTN_MASK_FULL || plan->mask.kind == ATTN_MASK_QLEN;
}

int fi_find_kernel(const attn_metadata *metadata, const fi_group *group)
{
    if (cuda_is_fp8(group->base.kv_dtype))
        return KERNEL_CODES;
    int64_t rows = cuda_plan_extent(&metadata->plan).q_len * group->base.ratio;
    int is_decode = metadata->plan.batch.mode == ATTN_MODE_DECODE;
    return is_decode || rows <= SHORT_ROWS ? KERNEL_ATTEND : KERNEL_PREFILL;
}

void fi_plan_of(const attn_metadata *metadata, uint32_t index, fi_plan_call *call)
{
    const attn_instance *instance = metadata->instance;
    const fi_group *group = &instance->groups[index];
    int kernel = fi_find_kernel(metadata, group);
    fi_grid grid = fi_bounded_grid(group, &metadata->plan.bounds);
    char *base = metadata->plans;
    for (uint32_t i = 0; i < index; i++)
        base += fi_layout_plan(&instance->groups[i], &metadata->plan.bounds).size;
    fi_plan_layout layout = fi_layout_plan(group, &metadata->plan.bounds);
    *call = (fi_plan_call){.plan = (fi_plan *)(void *)base,
                           .first_tile = (int *)(void *)(base + layout.first_tile_at),
                           .before = (long long *)(void *)(base + layout.before_at),
                           .tiles = (fi_tile *)(void *)(base + layout.tiles_at),
                           .starts = (fi_start *)(void *)(base + layout.starts_at),
                           .window_left = group->base.window_left,
                           .chunk = group->base.chunk,
                           .custom = is_custom(&metadata->plan),
                           .rows = group->shape->kernels[kernel].rows,
                           .align = fi_box_keys(group, kernel),
                           .ratio = group->base.ratio,
                           .unit = group->shape->kernels[kernel].keys,
                           .rounds = group->base.kv_heads / (int)grid.lanes,
                           .columns = (int)grid.columns,
                           .hands = kernel == KERNEL_PREFILL ? FI_HANDS : 1};
    cuda_plan_fill(&metadata->plan, &group->base, &metadata->plan.kv[index], &call->batch);
}

static attn_status plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                              attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const cuda_launch launch = {.function = instance->plan,
                                .name = "fi_plan_batch",
                                .grid = {1, 1, 1},
                                .block = {FI_PLAN_THREADS}};
    fi_plan_call call;
    void *params[] = {&call};
    fi_plan_of(metadata, index, &call);
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* Nothing looks at the plan of an eager batch without rows. */
attn_status fi_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                     attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    cuda_plan *plan = &metadata->plan;
    attn_status status = cuda_plan_take(plan, instance->cuda, instance->groups, sizeof(fi_group),
                                        instance->num_groups, batch, stream, error);
    if (status != ATTN_OK || plan->batch.mode == ATTN_MODE_IDLE ||
        (plan->kind == ATTN_METADATA_EAGER && !cuda_plan_has_rows(plan)))
        return status;
    metadata->is_settled = 0;
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++)
        status = plan_group(metadata, i, stream, error);
    return status;
}
