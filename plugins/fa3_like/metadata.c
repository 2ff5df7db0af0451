/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and a batch: checked here, planned on the device.
 *
 * Lengths, pages and row numbers stay where the batch has them, in device arrays that the kernels
 * read. What is made of them, the list of tiles, is made on the device too, by one small kernel for
 * each layer group when a batch is planned: nothing is waited for, host arrays are not needed, and a
 * graph that is replayed finds the new list at the old address. Host arrays, where they are given,
 * tell one thing: that a batch has no prefix, so that keys are read as they came.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/batch.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/region.h"

#include <string.h>

#define FAIL(error, ...)                                                                           \
    plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

enum {
    ALIGNMENT = 256,
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
    return sizeof(attn_metadata) + num_groups * sizeof(fa3_metadata);
}

void fa3_tell_memory(const attn_problem *problem, attn_verdict *verdict)
{
    fa3_group group;
    const attn_bounds *bounds = problem->bounds;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0)
        return;
    fa3_group_init(&group, problem);
    verdict->device_bytes = fa3_layout_plan(&group, bounds).size + COUNTER_BYTES;
    verdict->host_bytes = host_bytes(1);
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = region_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = fa3_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
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
    region_clear_size(size);
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
        region_check(memory, PLANS, "device metadata", sizes[PLANS], ALIGNMENT, error);
    if (status == ATTN_OK)
        status = region_check(memory, COUNTER, "zeroed device metadata", sizes[COUNTER], ALIGNMENT,
                              error);
    if (status == ATTN_OK)
        status = region_check(memory, HOST, "host metadata", sizes[HOST], ALIGNMENT, error);
    return status;
}

static void place_plans(attn_metadata *metadata)
{
    char *at = metadata->plans;
    for (uint32_t i = 0; i < metadata->instance->num_groups; i++) {
        fa3_plan_layout layout =
            fa3_layout_plan(&metadata->instance->groups[i], &metadata->bounds);
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
    *made = (attn_metadata){.instance = instance,
                            .kind = kind,
                            .bounds = bounds,
                            .plans = memory->base[PLANS],
                            .counter = (uintptr_t)memory->base[COUNTER],
                            .groups = (fa3_metadata *)(made + 1)};
    place_plans(made);
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void fa3_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

/* ---- The batch ------------------------------------------------------------------------------- */

static attn_status check_counts(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error)
{
    attn_status status = batch_check_counts(bounds, batch, error);
    if (status == ATTN_OK)
        status = batch_check_bound("max_q_len", batch->max_q_len, bounds->max_q_len,
                                   ATTN_FIELD_MAX_Q_LEN, error);
    if (status == ATTN_OK)
        status = batch_check_bound("max_kv_len", batch->max_kv_len, bounds->max_kv_len,
                                   ATTN_FIELD_MAX_KV_LEN, error);
    if (status == ATTN_OK && batch->mode == ATTN_MODE_DECODE && batch->num_tokens < batch->num_seqs)
        status = FAIL(error, "num_tokens %d: accepted num_seqs, %d, in DECODE", batch->num_tokens,
                      batch->num_seqs);
    return status;
}

static attn_status check_parts(const attn_bounds *bounds, const attn_batch *batch,
                               const attn_mask *mask, attn_error *error)
{
    if (mask->kind >= ATTN_MASK_COUNT || !(bounds->mask_kinds & ATTN_MASK_BIT(mask->kind)))
        return FAIL(error, "mask kind %u: accepted the set %#x, the bounds of this metadata",
                    mask->kind, bounds->mask_kinds);
    if (batch->positions.device)
        return FAIL(error, "positions are given, which the bounds of this metadata exclude");
    if (batch->multi_item)
        return FAIL(error, "multi_item is given, which the bounds of this metadata exclude");
    if (batch->mode != ATTN_MODE_DECODE && !batch->q_indptr.device)
        return FAIL(error, "q_indptr is missing on the device");
    return ATTN_OK;
}

/* A graph has baked in one mode and one kind of mask, and the addresses. */
static attn_status check_same(const attn_metadata *metadata, const attn_batch *batch,
                              uint32_t mask_kind, attn_error *error)
{
    const attn_batch *first = &metadata->batch;
    if (metadata->kind != ATTN_METADATA_GRAPH || !metadata->planned)
        return ATTN_OK;
    if (batch->mode != first->mode || mask_kind != metadata->mask_kind)
        return FAIL(error, "mode %u, mask kind %u: accepted %u, %u, as this graph was captured",
                    batch->mode, mask_kind, first->mode, metadata->mask_kind);
    if (batch->seq_lens.device != first->seq_lens.device ||
        batch->q_indptr.device != first->q_indptr.device ||
        batch->prefix_lens.device != first->prefix_lens.device)
        return FAIL(error, "device arrays lie elsewhere than when this graph was captured");
    return ATTN_OK;
}

/* ---- A layer group's view of it -------------------------------------------------------------- */

static attn_status check_arrays(const attn_batch *batch, const attn_kv_batch *kv, int32_t kv_group,
                                attn_error *error)
{
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (!(kv->index_forms & ATTN_INDEX_BLOCK_TABLE) || !kv->block_table.device)
        return FAIL(error,
                    "index_forms of KV group %d are %#x, device arrays included: accepted "
                    "block_table",
                    kv_group, kv->index_forms);
    if (!kv->kv_lens.device && !batch->seq_lens.device)
        return FAIL(error, "KV group %d has no kv_lens on the device, the batch no seq_lens",
                    kv_group);
    if (batch->mode == ATTN_MODE_DECODE ? !batch->seq_lens.device : !batch->prefix_lens.device)
        return FAIL(error, "%s is missing on the device",
                    batch->mode == ATTN_MODE_DECODE ? "seq_lens" : "prefix_lens");
    return ATTN_OK;
}

static attn_status find_kv_group(const fa3_group *group, const attn_batch *batch, attn_kv_batch *kv,
                                 attn_error *error)
{
    if (group->kv_group < 0 || (uint32_t)group->kv_group >= batch->num_kv_groups ||
        !batch->kv_groups)
        return FAIL(error, "kv_group %d: the batch has %u of them", group->kv_group,
                    batch->num_kv_groups);
    COPY_SIZED(kv, attn_at(batch->kv_groups, (uint32_t)group->kv_group));
    if (kv->page_size != group->page_size)
        return FAIL(error, "page_size of KV group %d is %d: accepted %d", group->kv_group,
                    kv->page_size, group->page_size);
    return check_arrays(batch, kv, group->kv_group, error);
}

/* Do host arrays tell that all keys are new, so that they may be read from where they come? */
static int has_no_prefix(const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *rows = batch->q_indptr.host, *prefix = batch->prefix_lens.host;
    const int32_t *keys = kv->kv_lens.device ? kv->kv_lens.host : batch->seq_lens.host;
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

/* Without a cache keys are the sequence's own rows. */
static void view_rows(const attn_batch *batch, fa3_metadata *view)
{
    view->cu_seqlens_q = batch->mode == ATTN_MODE_DECODE ? NULL : batch->q_indptr.device;
    view->cu_seqlens_k = view->cu_seqlens_q;
    view->cache_seqlens = NULL;
    view->page_table = NULL;
    view->out_cache_loc = NULL;
    view->batch = (fa3_batch){.q_indptr = view->cu_seqlens_q};
}

static void view_cache(const attn_batch *batch, const attn_kv_batch *kv, fa3_metadata *view)
{
    int decode = batch->mode == ATTN_MODE_DECODE;
    view_rows(batch, view);
    view->cu_seqlens_k = NULL;
    view->cache_seqlens = kv->kv_lens.device ? kv->kv_lens.device : batch->seq_lens.device;
    view->page_table = kv->block_table.device;
    view->page_table_stride = kv->block_table_stride;
    view->out_cache_loc = kv->out_cache_loc.device;
    view->batch.seq_lens = batch->seq_lens.device;
    view->batch.prefix_lens = decode ? NULL : batch->prefix_lens.device;
    view->batch.kv_lens = view->cache_seqlens;
    view->batch.new_indptr = kv->kv_new_indptr.device;
    view->batch.slots = (const i64 *)kv->out_cache_loc.device;
}

static attn_status view_batch(attn_metadata *metadata, const attn_batch *batch, uint32_t mask_kind,
                              uint32_t index, attn_error *error)
{
    const fa3_group *group = &metadata->instance->groups[index];
    fa3_metadata *view = &metadata->groups[index];
    attn_kv_batch kv = {.struct_size = sizeof kv};
    attn_status status = ATTN_OK;
    if (!fa3_has_cache(group)) {
        view_rows(batch, view);
    } else if ((status = find_kv_group(group, batch, &kv, error)) == ATTN_OK) {
        view_cache(batch, &kv, view);
        if (metadata->kind == ATTN_METADATA_EAGER && has_no_prefix(batch, &kv)) {
            view->cu_seqlens_k =
                view->batch.new_indptr ? view->batch.new_indptr : view->cu_seqlens_q;
            view->batch.slots = NULL; /* whoever has no slot is read as the others are */
        }
    }
    view->max_seqlen_q = batch->mode == ATTN_MODE_DECODE ? 1 : batch->max_q_len;
    view->max_seqlen_k = batch->max_kv_len;
    view->batch.num_seqs = batch->num_seqs;
    view->batch.num_tokens = batch->num_tokens;
    view->batch.window_left = bound_of(group->window_left);
    view->batch.window_right =
        mask_kind == ATTN_MASK_NONE ? FA3_UNBOUNDED : bound_of(group->window_right);
    return status;
}

/* ---- Planning -------------------------------------------------------------------------------- */

static attn_status plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                              attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const fa3_group *group = &instance->groups[index];
    const fa3_metadata *view = &metadata->groups[index];
    fa3_plan_layout layout = fa3_layout_plan(group, &metadata->bounds);
    char *base = (char *)view->plan;
    fa3_plan_call call = {.batch = view->batch,
                          .plan = view->plan,
                          .tiles = view->tiles,
                          .slow = view->slow,
                          .first_tile = (int *)(void *)(base + layout.first_tile_at),
                          .marks = (int *)(void *)(base + layout.marks_at),
                          .tile_queries = group->tile->queries,
                          .tile_keys = group->tile->keys};
    call.bucket_keys = metadata->bounds.max_kv_len / group->tile->keys / FA3_PLAN_BUCKETS + 1;
    const cuda_launch launch = {.function = instance->plan,
                                .name = "fa3_plan_batch",
                                .grid = {1, 1, 1},
                                .block = {FA3_PLAN_THREADS}};
    void *params[] = {&call};
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* Nothing is looked at afterwards of an eager batch without rows. */
static attn_status plan(attn_metadata *metadata, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (metadata->batch.mode == ATTN_MODE_IDLE ||
        (metadata->kind == ATTN_METADATA_EAGER && metadata->batch.num_tokens == 0))
        return ATTN_OK;
    for (uint32_t i = 0; i < metadata->instance->num_groups && status == ATTN_OK; i++)
        status = plan_group(metadata, i, stream, error);
    return status;
}

attn_status fa3_init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                      attn_stream stream, attn_error *error)
{
    attn_batch batch;
    attn_mask mask = {.struct_size = sizeof mask};
    if (!metadata || !given)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    COPY_SIZED(&batch, given);
    if (batch.mask)
        COPY_SIZED(&mask, batch.mask);
    attn_status status = batch_check_mode(&metadata->bounds, batch.mode, error);
    if (status == ATTN_OK && batch.mode != ATTN_MODE_IDLE) {
        status = check_counts(&metadata->bounds, &batch, error);
        if (status == ATTN_OK)
            status = check_parts(&metadata->bounds, &batch, &mask, error);
        if (status == ATTN_OK)
            status = check_same(metadata, &batch, mask.kind, error);
        for (uint32_t i = 0; i < metadata->instance->num_groups && status == ATTN_OK; i++)
            status = view_batch(metadata, &batch, mask.kind, i, error);
    }
    if (status != ATTN_OK)
        return status;
    metadata->batch = batch;
    metadata->mask_kind = mask.kind;
    metadata->planned = 1;
    return plan(metadata, stream, error);
}
