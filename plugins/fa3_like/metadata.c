/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and a batch: checked here, planned on the device.
 *
 * Lengths, pages and row numbers stay where the batch has them, in device arrays that the kernels
 * read. One small kernel for each layer group makes the list of tiles of them when a batch is
 * planned: nothing is waited for, host arrays are not needed, and a graph that is replayed finds the
 * new list at the old address. Host arrays, if given, show that all keys are new, which are then
 * read from the arguments; of fp8 queries, how many rows are in q_indptr. A group whose batch is not
 * for tiles is planned by the library.
 *
 * In each region the plugin's own part follows the library's.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    COUNTER_BYTES = 2 * (int)sizeof(uint32_t),
    BOX_ROWS = 8,
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    COUNTER = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED),
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int has_long_batches(const attn_bounds *bounds)
{
    return (bounds->modes & ~ATTN_MODE_BIT(ATTN_MODE_DECODE) & ~ATTN_MODE_BIT(ATTN_MODE_IDLE)) != 0;
}

fa3_plan_layout fa3_layout_plan(const fa3_group *group, const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs * sizeof(int32_t);
    fa3_plan_layout layout = {.size = 0};
    if (!group->tile || !has_long_batches(bounds))
        return layout;
    const fa3_tile *least = group->low ? group->low : group->tile;
    layout.most_tiles = bounds->max_tokens / least->queries + (int64_t)bounds->max_seqs;
    layout.tiles_at = aligned(sizeof(fa3_plan));
    layout.slow_at =
        aligned(layout.tiles_at + (uint64_t)layout.most_tiles * sizeof(struct fa3_entry));
    layout.first_tile_at = aligned(layout.slow_at + seqs);
    layout.marks_at = aligned(layout.first_tile_at + seqs + sizeof(int32_t));
    int has_ahead = group->has_codes || group->gathers;
    layout.ahead_at = aligned(layout.marks_at + seqs);
    layout.given_at = aligned(layout.ahead_at + (has_ahead ? seqs + sizeof(int32_t) : 0));
    layout.given_each = group->is_expanded ? aligned(seqs) : 0;
    layout.size = layout.given_at + 3 * layout.given_each;
    return layout;
}

static uint64_t host_bytes(uint32_t num_groups)
{
    return sizeof(fa3_own) + num_groups * (sizeof(fa3_metadata) + sizeof(fi_part));
}

/* A group has either a layout of codes, or the other two. */
static uint64_t scratch_bytes(const fa3_group *group, const cuda_group *base,
                              const attn_bounds *bounds)
{
    return fa3_layout_codes(group, base, bounds).size +
           fa3_layout_gather(group, base, bounds).size + fa3_layout_join(group, base, bounds).size;
}

void fa3_tell_memory(const fa3_group *group, const cuda_group *base, const attn_bounds *bounds,
                     attn_verdict *verdict)
{
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0)
        return;
    verdict->device_bytes =
        aligned(verdict->device_bytes) + fa3_layout_plan(group, bounds).size + COUNTER_BYTES;
    verdict->device_bytes += scratch_bytes(group, base, bounds);
    verdict->host_bytes = aligned(verdict->host_bytes) + host_bytes(1);
}

/* Add this plugin's bytes after the library's. */
static void add_own(const attn_instance *instance, const attn_bounds *bounds,
                    attn_memory_size *size)
{
    const fa3_instance *own = instance->own;
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        if (region == PLANS || region == COUNTER || region == HOST || region == SCRATCH)
            size->size[region] = aligned(size->size[region]);
    uint64_t scratch = 0;
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const cuda_group *base = &instance->groups[i].base;
        uint64_t bytes = scratch_bytes(&own->groups[i], base, bounds);
        size->size[PLANS] += fa3_layout_plan(&own->groups[i], bounds).size;
        scratch = bytes > scratch ? bytes : scratch;
    }
    size->size[SCRATCH] += scratch;
    size->size[COUNTER] += COUNTER_BYTES;
    size->size[HOST] += host_bytes(instance->num_groups);
}

attn_status fa3_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                              attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    const fa3_instance *own = instance->own;
    attn_status status = attn_util_read_bounds(kind, given, &bounds, error);
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++)
        if (own->groups[i].is_expanded)
            status = fa3_require_expanded(own->groups[i].expanded, &bounds, error);
    if (status == ATTN_OK)
        status = fi_metadata_size(instance, kind, given, size, error);
    if (status == ATTN_OK)
        add_own(instance, &bounds, size);
    return status;
}

/* Room for the three lists of expanded latents. */
static fa3_given place_given(char *at, const fa3_plan_layout *layout)
{
    at += layout->given_at;
    return layout->given_each == 0
               ? (fa3_given){.keys = NULL}
               : (fa3_given){.keys = (int *)(void *)at,
                             .rows = (int *)(void *)(at + layout->given_each),
                             .positions = (int *)(void *)(at + 2 * layout->given_each)};
}

/* Set up this plugin's part of each region, which follows the library's `size` bytes. */
static void place_own(attn_metadata *metadata, const attn_memory *memory,
                      const attn_memory_size *size)
{
    const attn_instance *instance = metadata->instance;
    const fa3_instance *kernels = instance->own;
    fa3_own *own = (fa3_own *)(void *)((char *)memory->base[HOST] + aligned(size->size[HOST]));
    char *at = (char *)memory->base[PLANS] + aligned(size->size[PLANS]);
    own->counter = (uintptr_t)memory->base[COUNTER] + aligned(size->size[COUNTER]);
    own->scratch = (char *)memory->base[SCRATCH] + aligned(size->size[SCRATCH]);
    own->groups = (fa3_metadata *)(own + 1);
    own->parts = (fi_part *)(own->groups + instance->num_groups);
    memset(own->parts, 0, instance->num_groups * sizeof *own->parts);
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        fa3_plan_layout layout = fa3_layout_plan(&kernels->groups[i], &metadata->plan.bounds);
        own->groups[i] = (fa3_metadata){.plan = NULL};
        if (layout.size > 0)
            own->groups[i] = (fa3_metadata){
                .plan = (fa3_plan *)(void *)at,
                .tiles = (struct fa3_entry *)(void *)(at + layout.tiles_at),
                .slow = (int32_t *)(void *)(at + layout.slow_at),
                .given = place_given(at, &layout),
                .ahead_first = kernels->groups[i].has_codes || kernels->groups[i].gathers
                                   ? (int32_t *)(void *)(at + layout.ahead_at)
                                   : NULL};
        at += layout.size;
    }
    metadata->own = own;
    metadata->parts = own->parts;
}

attn_status fa3_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error)
{
    attn_memory_size library = {.struct_size = sizeof library}, all = library;
    attn_status status = fi_metadata_size(instance, kind, given, &library, error);
    if (status == ATTN_OK)
        status = fa3_metadata_size(instance, kind, given, &all, error);
    if (status == ATTN_OK)
        status = cuda_memory_check(memory, all.size, ALIGNMENT, error);
    if (status == ATTN_OK)
        status = fi_metadata_create(instance, kind, given, memory, metadata, error);
    if (status == ATTN_OK)
        place_own(*metadata, memory, &library);
    return status;
}

/* ---- A layer group's view of a batch --------------------------------------------------------- */

/* Do host arrays show that all keys are new, so that they may be read from k and v? An encoder's
 * keys are independent of the queries; a decoder's are at the queries' positions. */
static int has_only_new(const cuda_group *group, const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *rows = batch->q_indptr.host, *prefix = batch->prefix_lens.host;
    const int32_t *keys = kv->kv_lens.host;
    const int32_t *new_rows = kv->kv_new_indptr.device ? kv->kv_new_indptr.host : rows;
    int is_cross = group->attn_type == ATTN_TYPE_CROSS;
    if (!keys || !new_rows || (!is_cross && (!rows || !prefix)))
        return 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        if (keys[s] != new_rows[s + 1] - new_rows[s])
            return 0;
        if (!is_cross && (prefix[s] != 0 || keys[s] != rows[s + 1] - rows[s]))
            return 0;
    }
    return 1;
}

static int32_t bound_of(int32_t window)
{
    return window < 0 || window > FA3_UNBOUNDED ? FA3_UNBOUNDED : window;
}

/* The swizzle needs boxes of BOX_ROWS rows of a page. */
int fa3_has_boxes(const cuda_group *group)
{
    return group->page_size % BOX_ROWS == 0;
}

/* Does the cache have q's type? So it does with codes, though the library's group has bf16. */
static int has_one_dtype(const attn_metadata *metadata, uint32_t index)
{
    const fa3_instance *own = metadata->instance->own;
    const cuda_group *group = &metadata->instance->groups[index].base;
    return own->groups[index].has_codes || group->kv_dtype == group->q_dtype;
}

/* In the expanded form, the given keys are all keys of the batch. */
static void view_given(const attn_batch *batch, const attn_kv_batch *kv, fa3_metadata *view)
{
    view->given.kv_lens = kv->kv_lens.device;
    view->given.prefix_lens = batch->prefix_lens.device;
    view->cu_seqlens_k = view->given.rows;
    view->cache_seqlens = view->given.keys;
    view->page_table = NULL;
}

static void view_batch(attn_metadata *metadata, uint32_t index)
{
    const cuda_group *group = &metadata->instance->groups[index].base;
    const fa3_own *own = metadata->own;
    const fa3_instance *kernels = metadata->instance->own;
    const attn_batch *batch = &metadata->plan.batch;
    const attn_kv_batch *kv = &metadata->plan.kv[index];
    fa3_metadata *view = &own->groups[index];
    int cached = cuda_group_has_cache(group);
    view->cu_seqlens_q = batch->q_indptr.device;
    view->cu_seqlens_k = NULL;
    if (!cached)
        view->cu_seqlens_k = view->cu_seqlens_q;
    else if (metadata->plan.kind == ATTN_METADATA_EAGER && !cuda_is_fp8(group->kv_dtype) &&
             has_only_new(group, batch, kv))
        view->cu_seqlens_k =
            kv->kv_new_indptr.device ? kv->kv_new_indptr.device : view->cu_seqlens_q;
    view->cache_seqlens = kv->kv_lens.device;
    view->page_table =
        fa3_has_boxes(group) && has_one_dtype(metadata, index) ? kv->block_table.device : NULL;
    view->is_gathered = kernels->groups[index].gathers && fa3_may_gather(metadata, index);
    view->page_table_stride = kv->block_table_stride;
    view->max_seqlen_q = batch->max_q_len;
    view->max_seqlen_k = cached ? batch->max_kv_len : view->max_seqlen_q;
    view->window_left = bound_of(group->window_left);
    view->window_right =
        metadata->plan.mask.kind == ATTN_MASK_NONE ? FA3_UNBOUNDED : bound_of(group->window_right);
    if (group->chunk > 0) /* no row sees a later key of its chunk */
        view->window_right = 0;
    if (view->given.keys)
        view_given(batch, kv, view);
}

/* In the expanded form, a sequence's given keys are all its keys. */
void fa3_fill_batch(const attn_metadata *metadata, uint32_t index, call_batch *batch)
{
    const fa3_given *given = &((const fa3_own *)metadata->own)->groups[index].given;
    cuda_plan_fill(&metadata->plan, &metadata->instance->groups[index].base,
                   &metadata->plan.kv[index], batch);
    if (given->keys) {
        batch->kv_lens = given->keys;
        batch->prefix_lens = given->positions;
    }
}

/* ---- Planning -------------------------------------------------------------------------------- */

static attn_status plan_tiles(attn_metadata *metadata, uint32_t index, attn_stream stream,
                              attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const fa3_instance *kernels = instance->own;
    const fa3_own *own = metadata->own;
    const fa3_group *group = &kernels->groups[index];
    const cuda_group *base = &instance->groups[index].base;
    const fa3_metadata *view = &own->groups[index];
    const fi_part *part = &own->parts[index];
    const attn_bounds *bounds = &metadata->plan.bounds;
    fa3_plan_layout layout = fa3_layout_plan(group, bounds);
    char *at = (char *)view->plan;
    fa3_plan_call call = {.plan = view->plan,
                          .tiles = view->tiles,
                          .slow = view->slow,
                          .first_tile = (int *)(void *)(at + layout.first_tile_at),
                          .marks = (int *)(void *)(at + layout.marks_at),
                          .window_left = base->window_left,
                          .chunk = base->chunk,
                          .tile_queries = view->tile->queries,
                          .tile_keys = view->tile->keys,
                          .bucket_keys =
                              bounds->max_kv_len / view->tile->keys / FA3_PLAN_BUCKETS + 1,
                          .only_new = view->cu_seqlens_k != NULL || view->is_gathered,
                          .given = view->given,
                          .others_first = part->first_seq,
                          .others_end = part->first_seq + part->num_seqs,
                          .ahead_first = view->ahead_first,
                          .ahead_keys = group->has_codes ? view->tile->keys : 1};
    const cuda_launch launch = {.function = kernels->plan,
                                .name = "fa3_plan_batch",
                                .grid = {1, 1, 1},
                                .block = {FA3_PLAN_THREADS}};
    void *params[] = {&call};
    fa3_fill_batch(metadata, index, &call.batch);
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* Tiles can read unsaved keys if all keys are new, or gathered. */
int fa3_may_be_unsaved(const attn_metadata *metadata, uint32_t index)
{
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    return metadata->plan.bounds.uses & ATTN_USES_UNSAVED_KV && !view->cu_seqlens_k &&
           !view->is_gathered;
}

int fa3_has_small_pages(const attn_metadata *metadata, uint32_t index)
{
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    return cuda_group_has_cache(&metadata->instance->groups[index].base) && !view->page_table &&
           !view->is_gathered && !view->given.keys;
}

/* May calls of the batch need the library: for all or a part of it, small pages, or unsaved keys?
 */
static int needs_library(const attn_metadata *metadata, uint32_t index)
{
    const fa3_own *own = metadata->own;
    return !own->groups[index].is_tiled || fi_part_of(metadata, index) ||
           fa3_may_be_unsaved(metadata, index) || fa3_has_small_pages(metadata, index);
}

static attn_status plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                              attn_error *error)
{
    const fa3_own *own = metadata->own;
    fa3_metadata *view = &own->groups[index];
    attn_status status = ATTN_OK;
    if (view->plan)
        view_batch(metadata, index);
    if (((const fa3_instance *)metadata->instance->own)->groups[index].has_codes)
        fa3_note_rows(metadata, index);
    view->is_tiled = fa3_is_for_tiles(metadata, index, &own->parts[index]);
    fa3_count_rows(metadata, index);
    if (view->is_tiled)
        status = plan_tiles(metadata, index, stream, error);
    return status == ATTN_OK && needs_library(metadata, index)
               ? fi_plan_group(metadata, index, stream, error)
               : status;
}

attn_status fa3_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error)
{
    int is_worked_on;
    attn_status status = fi_take_batch(metadata, batch, stream, &is_worked_on, error);
    for (uint32_t i = 0; status == ATTN_OK && is_worked_on && i < metadata->instance->num_groups;
         i++)
        status = plan_group(metadata, i, stream, error);
    return status;
}
