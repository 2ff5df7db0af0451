/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and a batch: checked here, planned on the device.
 *
 * Lengths, pages and row numbers stay where the batch has them, in device arrays that the kernels
 * read. What is made of them, the list of tiles, is made on the device too, by one small kernel for
 * each layer group when a batch is planned: nothing is waited for, host arrays are not needed, and
 * a graph that is replayed finds the new list at the old address. Host arrays, where they are
 * given, tell one thing: that a batch has no prefix, so that keys are read as they came.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    BLOCKS = ATTN_INDEX_BLOCK_TABLE,
    COUNTER_BYTES = 2 * (int)sizeof(uint32_t),
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_METADATA),
    COUNTER = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_ZEROED),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

fa3_plan_layout fa3_layout_plan(const fa3_group *group, const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs * sizeof(int32_t);
    fa3_plan_layout layout;
    layout.most_tiles = bounds->max_tokens / group->tile->queries + (int64_t)bounds->max_seqs;
    layout.tiles_at = aligned(sizeof(fa3_plan));
    layout.slow_at = aligned(layout.tiles_at + (uint64_t)layout.most_tiles * 2 * sizeof(int32_t));
    layout.first_tile_at = aligned(layout.slow_at + seqs);
    layout.marks_at = aligned(layout.first_tile_at + seqs + sizeof(int32_t));
    layout.size = aligned(layout.marks_at + seqs);
    return layout;
}

static uint64_t host_bytes(uint32_t num_groups)
{
    return sizeof(attn_metadata) + num_groups * (sizeof(attn_kv_batch) + sizeof(fa3_metadata));
}

void fa3_tell_memory(const attn_problem *problem, attn_verdict *verdict)
{
    fa3_group group;
    const attn_bounds *bounds = problem->bounds;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0)
        return;
    fa3_group_init(&group, problem);
    verdict->device_bytes =
        aligned(CUDA_COUNTS_BYTES) + fa3_layout_plan(&group, bounds).size + COUNTER_BYTES;
    verdict->host_bytes = host_bytes(1);
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = fa3_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
    sizes[PLANS] = aligned(CUDA_COUNTS_BYTES);
    for (uint32_t i = 0; i < instance->num_groups; i++)
        sizes[PLANS] += fa3_layout_plan(&instance->groups[i], bounds).size;
    sizes[COUNTER] = COUNTER_BYTES;
    sizes[HOST] = host_bytes(instance->num_groups);
    return ATTN_OK;
}

attn_status fa3_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
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

static attn_status check_regions(const attn_memory *memory, const uint64_t sizes[ATTN_REGION_COUNT],
                                 attn_error *error)
{
    attn_status status =
        attn_util_check_region(memory, PLANS, "device metadata", sizes[PLANS], ALIGNMENT, error);
    if (status == ATTN_OK)
        status = attn_util_check_region(memory, COUNTER, "zeroed device metadata", sizes[COUNTER],
                                        ALIGNMENT, error);
    if (status == ATTN_OK)
        status =
            attn_util_check_region(memory, HOST, "host metadata", sizes[HOST], ALIGNMENT, error);
    return status;
}

/* The plans of the groups, one after the other. */
static void place_plans(attn_metadata *metadata, char *at)
{
    for (uint32_t i = 0; i < metadata->instance->num_groups; i++) {
        fa3_plan_layout layout =
            fa3_layout_plan(&metadata->instance->groups[i], &metadata->plan.bounds);
        metadata->groups[i] = (fa3_metadata){.plan = (fa3_plan *)(void *)at,
                                             .tiles = (int32_t *)(void *)(at + layout.tiles_at),
                                             .slow = (int32_t *)(void *)(at + layout.slow_at)};
        at += layout.size;
    }
}

attn_status fa3_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        status = check_regions(memory, sizes, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    attn_kv_batch *kv = (attn_kv_batch *)(made + 1);
    char *device = memory->base[PLANS];
    uint64_t counts = kind == ATTN_METADATA_GRAPH ? (uintptr_t)device : 0;
    *made = (attn_metadata){.instance = instance,
                            .counter = (uintptr_t)memory->base[COUNTER],
                            .groups = (fa3_metadata *)(kv + instance->num_groups)};
    cuda_plan_init(&made->plan, kind, &bounds, BLOCKS, counts, kv);
    place_plans(made, device + aligned(CUDA_COUNTS_BYTES));
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void fa3_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

/* ---- A layer group's view of a batch --------------------------------------------------------- */

/* Do host arrays tell that all keys are new, so that they may be read from where they come? */
static int has_no_prefix(const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *rows = batch->q_indptr.host, *prefix = batch->prefix_lens.host;
    const int32_t *keys = kv->kv_lens.host;
    const int32_t *new_rows = kv->kv_new_indptr.device ? kv->kv_new_indptr.host : rows;
    if (batch->mode == ATTN_MODE_DECODE || !rows || !prefix || !keys || !new_rows)
        return 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t queries = rows[s + 1] - rows[s];
        if (prefix[s] != 0 || keys[s] != queries || new_rows[s + 1] - new_rows[s] != queries)
            return 0;
    }
    return 1;
}

static int32_t bound_of(int32_t window)
{
    return window < 0 || window > FA3_UNBOUNDED ? FA3_UNBOUNDED : window;
}

static void view_batch(attn_metadata *metadata, uint32_t index)
{
    const cuda_group *group = &metadata->instance->groups[index].base;
    const attn_batch *batch = &metadata->plan.batch;
    const attn_kv_batch *kv = &metadata->plan.kv[index];
    fa3_metadata *view = &metadata->groups[index];
    int decode = batch->mode == ATTN_MODE_DECODE, cached = cuda_group_has_cache(group);
    view->cu_seqlens_q = decode ? NULL : batch->q_indptr.device;
    view->cu_seqlens_k = NULL;
    if (!cached)
        view->cu_seqlens_k = view->cu_seqlens_q;
    else if (metadata->plan.kind == ATTN_METADATA_EAGER && has_no_prefix(batch, kv))
        view->cu_seqlens_k =
            kv->kv_new_indptr.device ? kv->kv_new_indptr.device : view->cu_seqlens_q;
    view->cache_seqlens = kv->kv_lens.device;
    view->page_table = kv->block_table.device;
    view->page_table_stride = kv->block_table_stride;
    view->max_seqlen_q = decode ? 1 : batch->max_q_len;
    view->max_seqlen_k = cached ? batch->max_kv_len : view->max_seqlen_q;
    view->window_left = bound_of(group->window_left);
    view->window_right =
        metadata->plan.mask.kind == ATTN_MASK_NONE ? FA3_UNBOUNDED : bound_of(group->window_right);
}

/* ---- Planning -------------------------------------------------------------------------------- */

static attn_status plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                              attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const fa3_group *group = &instance->groups[index];
    const fa3_metadata *view = &metadata->groups[index];
    const attn_bounds *bounds = &metadata->plan.bounds;
    fa3_plan_layout layout = fa3_layout_plan(group, bounds);
    char *base = (char *)view->plan;
    fa3_plan_call call = {.plan = view->plan,
                          .tiles = view->tiles,
                          .slow = view->slow,
                          .first_tile = (int *)(void *)(base + layout.first_tile_at),
                          .marks = (int *)(void *)(base + layout.marks_at),
                          .window_left = group->base.window_left,
                          .tile_queries = group->tile->queries,
                          .tile_keys = group->tile->keys,
                          .bucket_keys =
                              bounds->max_kv_len / group->tile->keys / FA3_PLAN_BUCKETS + 1,
                          .only_new = view->cu_seqlens_k != NULL};
    const cuda_launch launch = {.function = instance->plan,
                                .name = "fa3_plan_batch",
                                .grid = {1, 1, 1},
                                .block = {FA3_PLAN_THREADS}};
    void *params[] = {&call};
    cuda_plan_fill(&metadata->plan, &group->base, &metadata->plan.kv[index], &call.batch);
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* Nothing looks at the plan of an eager batch without rows. */
attn_status fa3_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    cuda_plan *plan = &metadata->plan;
    attn_status status = cuda_plan_take(plan, instance->cuda, instance->groups, sizeof(fa3_group),
                                        instance->num_groups, batch, stream, error);
    if (status != ATTN_OK || plan->batch.mode == ATTN_MODE_IDLE ||
        (plan->kind == ATTN_METADATA_EAGER && !cuda_plan_has_rows(plan)))
        return status;
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++) {
        view_batch(metadata, i);
        status = plan_group(metadata, i, stream, error);
    }
    return status;
}
