/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds, and the check of a batch.
 *
 * There is nothing to plan on the host: kernels read lengths, slots and row numbers from the
 * batch's device arrays. Host arrays are not read. What else a graph bakes in is how many
 * sequences, rows and decode sequences the batch had that it was captured with; so these lie in
 * device memory and are set anew, by a memset each on the stream, whenever they change.
 */
#include "triton_like.h"

#include "plugins/common/copy_sized.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/region.h"

#include <inttypes.h>
#include <string.h>

#define FAIL(error, ...)                                                                           \
    plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

enum {
    ALIGNMENT = 256,
    COUNTS_BYTES = NUM_COUNTS * (int)sizeof(int32_t),
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
    COUNTS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_METADATA),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)
};

/* ---- Memory ---------------------------------------------------------------------------------- */

int32_t triton_split_part(const triton_group *group, uint32_t mode, const attn_bounds *bounds)
{
    switch (mode) {
    case ATTN_MODE_DECODE:
        return SPLIT_ALL;
    case ATTN_MODE_MIXED:
        return SPLIT_DECODE;
    case ATTN_MODE_TARGET_VERIFY:
    case ATTN_MODE_DRAFT_EXTEND:
        return (int64_t)bounds->max_q_len * group->ratio <= MAX_SPLIT_ROWS ? SPLIT_ALL : SPLIT_NONE;
    default:
        return SPLIT_NONE;
    }
}

/* By default as many that one sequence gives every multiprocessor two blocks. */
int32_t triton_grid_splits(const triton_group *group, const triton_options *options,
                           const attn_bounds *bounds)
{
    int32_t most = options->num_kv_splits;
    if (most == 0)
        most = ((int32_t)group->num_sms * 2 + group->kv_heads - 1) / group->kv_heads;
    if (options->num_kv_splits == 0 && most > MOST_DEFAULT_SPLITS)
        most = MOST_DEFAULT_SPLITS;
    return splits_count(bounds->max_kv_len, options->split_tile, most);
}

/* Rows whose keys may be split. Drafted tokens count even where they are too many for it: memory
 * grows with the bounds. */
static uint64_t split_rows(const triton_group *group, const attn_bounds *bounds)
{
    uint32_t drafts =
        ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY) | ATTN_MODE_BIT(ATTN_MODE_DRAFT_EXTEND);
    uint64_t tokens = (uint64_t)bounds->max_tokens, rows = 0;
    if (bounds->modes & (ATTN_MODE_BIT(ATTN_MODE_DECODE) | ATTN_MODE_BIT(ATTN_MODE_MIXED)))
        rows = 1;
    if (bounds->modes & drafts && group->ratio <= MAX_SPLIT_ROWS)
        rows = (uint64_t)(MAX_SPLIT_ROWS / group->ratio);
    rows *= (uint64_t)bounds->max_seqs;
    return rows < tokens ? rows : tokens;
}

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

triton_scratch triton_scratch_layout(const triton_group *group, const triton_options *options,
                                     const attn_bounds *bounds)
{
    uint64_t element = options->reduce_in_fp32 ? 4 : 2;
    uint64_t rows = split_rows(group, bounds) * (uint64_t)group->kv_heads * (uint64_t)group->ratio;
    uint64_t splits = rows * (uint64_t)triton_grid_splits(group, options, bounds);
    triton_scratch layout;
    layout.lse_at = aligned(splits * (uint64_t)group->v_dim * element);
    layout.used_at = layout.lse_at + aligned(splits * sizeof(float));
    layout.size = layout.used_at + rows * sizeof(int32_t);
    return layout;
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = region_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = triton_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    uint32_t variants = triton_variants(bounds->mask_kinds);
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const triton_group *group = &instance->groups[i];
        uint64_t size = triton_scratch_layout(group, &instance->options, bounds).size;
        sizes[SCRATCH] = size > sizes[SCRATCH] ? size : sizes[SCRATCH];
        if (bounds->modes && triton_files(group, bounds->modes) & ~group->files)
            return plugin_fail_field(error, ATTN_UNSUPPORTED, ATTN_FIELD_MODES,
                                     "modes %#x: the problem given to create named others, so "
                                     "kernels for these were not built",
                                     bounds->modes);
        if (bounds->mask_kinds && variants & ~group->variants)
            return plugin_fail_field(error, ATTN_UNSUPPORTED, ATTN_FIELD_MASK_KINDS,
                                     "mask_kinds %#x: the problem given to create named others, so "
                                     "kernels for these were not built",
                                     bounds->mask_kinds);
    }
    sizes[COUNTS] = kind == ATTN_METADATA_GRAPH ? COUNTS_BYTES : 0;
    sizes[HOST] = sizeof(attn_metadata) + instance->num_groups * sizeof(attn_kv_batch);
    return ATTN_OK;
}

attn_status triton_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
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

static attn_status check_region(const attn_memory *memory, uint32_t region, uint64_t needed,
                                attn_error *error)
{
    const char *name = region == SCRATCH  ? "device scratch"
                       : region == COUNTS ? "device metadata"
                                          : "host metadata";
    if (needed == 0)
        return ATTN_OK;
    return region_check(memory, region, name, needed, ALIGNMENT, error);
}

attn_status triton_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK && !instance->prepared)
        status = plugin_fail(error, ATTN_BAD_STATE,
                             "metadata before prepare, which compiles the kernels");
    for (uint32_t region = 0; region < ATTN_REGION_COUNT && status == ATTN_OK; region++)
        status = check_region(memory, region, sizes[region], error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    *made =
        (attn_metadata){.instance = instance,
                        .kind = kind,
                        .bounds = bounds,
                        .scratch = sizes[SCRATCH] ? memory->base[SCRATCH] : NULL,
                        .counts = sizes[COUNTS] ? (cuda_address)(uintptr_t)memory->base[COUNTS] : 0,
                        .counted = {-1, -1, -1},
                        .kv = (attn_kv_batch *)(made + 1)};
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void triton_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

/* ---- The batch ------------------------------------------------------------------------------- */

static attn_status check_count(const char *what, int64_t got, int64_t bound, attn_error *error)
{
    if (got < 0 || got > bound)
        return FAIL(error, "%s %" PRId64 ": accepted 0..%" PRId64 ", the bound of this metadata",
                    what, got, bound);
    return ATTN_OK;
}

static attn_status check_scalars(const attn_bounds *bounds, const attn_batch *batch,
                                 attn_error *error)
{
    if (batch->mode >= ATTN_MODE_COUNT || !(bounds->modes & ATTN_MODE_BIT(batch->mode)))
        return FAIL(error, "mode %u: accepted the set %#x, the bounds of this metadata",
                    batch->mode, bounds->modes);
    attn_status status = check_count("num_seqs", batch->num_seqs, bounds->max_seqs, error);
    if (status == ATTN_OK)
        status = check_count("num_tokens", batch->num_tokens, bounds->max_tokens, error);
    if (status == ATTN_OK)
        status = check_count("num_real_seqs", batch->num_real_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_count("num_decode_seqs", batch->num_decode_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_count("max_q_len", batch->max_q_len, bounds->max_q_len, error);
    if (status == ATTN_OK)
        status = check_count("max_kv_len", batch->max_kv_len, bounds->max_kv_len, error);
    if (status == ATTN_OK && batch->mode == ATTN_MODE_DECODE && batch->num_tokens < batch->num_seqs)
        status = FAIL(error, "num_tokens %d: accepted num_seqs, %d, in DECODE", batch->num_tokens,
                      batch->num_seqs);
    return status;
}

static attn_status check_parts(const attn_bounds *bounds, const attn_batch *batch,
                               const attn_mask *mask, attn_error *error)
{
    int custom = mask->kind == ATTN_MASK_FULL || mask->kind == ATTN_MASK_QLEN;
    if (mask->kind >= ATTN_MASK_COUNT || !(bounds->mask_kinds & ATTN_MASK_BIT(mask->kind)))
        return FAIL(error, "mask kind %u: accepted the set %#x, the bounds of this metadata",
                    mask->kind, bounds->mask_kinds);
    if (custom && (!mask->bits || !mask->indptr.device))
        return FAIL(error, "mask kind %u without bits or indptr", mask->kind);
    if (batch->positions.device && !custom)
        return FAIL(error, "positions are given without a custom mask");
    if (batch->positions.device && !(bounds->uses & ATTN_USES_POSITIONS))
        return FAIL(error, "positions are given, which the bounds of this metadata exclude");
    if (batch->multi_item)
        return FAIL(error, "multi_item is given, which the bounds of this metadata exclude");
    return ATTN_OK;
}

static attn_status check_arrays(const attn_batch *batch, attn_error *error)
{
    if (batch->mode == ATTN_MODE_DECODE) {
        if (batch->num_seqs > 0 && !batch->seq_lens.device)
            return FAIL(error, "seq_lens is missing on the device");
    } else if (!batch->q_indptr.device) {
        return FAIL(error, "q_indptr is missing on the device");
    }
    return ATTN_OK;
}

/* A graph has baked in the kernels of one mode and one kind of mask, and the addresses. */
static attn_status check_same(const attn_metadata *metadata, const attn_batch *batch,
                              const attn_mask *mask, attn_error *error)
{
    if (metadata->kind != ATTN_METADATA_GRAPH || !metadata->planned)
        return ATTN_OK;
    const attn_batch *first = &metadata->batch;
    if (batch->mode != first->mode || mask->kind != metadata->mask.kind)
        return FAIL(error, "mode %u, mask kind %u: accepted %u, %u, as this graph was captured",
                    batch->mode, mask->kind, first->mode, metadata->mask.kind);
    if (batch->seq_lens.device != first->seq_lens.device ||
        batch->q_indptr.device != first->q_indptr.device ||
        batch->prefix_lens.device != first->prefix_lens.device ||
        batch->req_pool_indices.device != first->req_pool_indices.device ||
        batch->positions.device != first->positions.device || mask->bits != metadata->mask.bits)
        return FAIL(error, "device arrays are not where they were when this graph was captured");
    return ATTN_OK;
}

/* ---- KV groups ------------------------------------------------------------------------------- */

static attn_status find_kv_group(const triton_group *group, const attn_batch *batch,
                                 attn_kv_batch *kv, attn_error *error)
{
    memset(kv, 0, sizeof *kv);
    if (!triton_has_cache(group))
        return ATTN_OK;
    if (group->kv_group < 0 || (uint32_t)group->kv_group >= batch->num_kv_groups ||
        !batch->kv_groups)
        return FAIL(error, "kv_group %d: the batch has %u of them", group->kv_group,
                    batch->num_kv_groups);
    COPY_SIZED(kv, attn_at(batch->kv_groups, (uint32_t)group->kv_group));
    if (kv->page_size != group->page_size)
        return FAIL(error, "page_size of KV group %d is %d: accepted %d", group->kv_group,
                    kv->page_size, group->page_size);
    int slots = kv->index_forms & ATTN_INDEX_REQ_TO_TOKEN && kv->req_to_token.device &&
                batch->req_pool_indices.device;
    int pages = kv->index_forms & ATTN_INDEX_BLOCK_TABLE && kv->block_table.device;
    if (!slots && !pages && batch->num_seqs > 0)
        return FAIL(error,
                    "index_forms of KV group %d are %#x, device arrays included: accepted "
                    "req_to_token or block_table",
                    group->kv_group, kv->index_forms);
    if (!pages)
        kv->block_table.device = NULL;
    else
        kv->req_to_token.device = NULL;
    if (!kv->kv_lens.device)
        kv->kv_lens = batch->seq_lens;
    if (!kv->kv_lens.device && batch->num_seqs > 0)
        return FAIL(error, "KV group %d has no kv_lens on the device, the batch no seq_lens",
                    group->kv_group);
    return ATTN_OK;
}

static attn_status set_counts(attn_metadata *metadata, attn_stream stream, attn_error *error)
{
    const cuda_api *cuda = metadata->instance->cuda;
    const attn_batch *batch = &metadata->batch;
    const int32_t counts[NUM_COUNTS] = {[COUNT_SEQS] = batch->num_seqs,
                                        [COUNT_TOKENS] = batch->num_tokens,
                                        [COUNT_DECODE_SEQS] = batch->num_decode_seqs};
    for (uint32_t i = 0; i < NUM_COUNTS && metadata->counts; i++) {
        if (metadata->counted[i] == counts[i])
            continue;
        int result = cuda->cuMemsetD32Async(metadata->counts + i * sizeof(int32_t),
                                            (unsigned)counts[i], 1, stream);
        if (result != CUDA_OK)
            return cuda_fail(cuda, result, "batch", "cuMemsetD32Async", error);
        metadata->counted[i] = counts[i];
    }
    return ATTN_OK;
}

attn_status triton_init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                         attn_stream stream, attn_error *error)
{
    attn_batch batch;
    attn_mask mask = {.struct_size = sizeof mask};
    if (!metadata || !given)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    COPY_SIZED(&batch, given);
    if (batch.mask)
        COPY_SIZED(&mask, batch.mask);
    attn_status status = ATTN_OK;
    if (batch.mode != ATTN_MODE_IDLE) {
        status = check_scalars(&metadata->bounds, &batch, error);
        if (status == ATTN_OK)
            status = check_parts(&metadata->bounds, &batch, &mask, error);
        if (status == ATTN_OK)
            status = check_arrays(&batch, error);
        if (status == ATTN_OK)
            status = check_same(metadata, &batch, &mask, error);
        for (uint32_t i = 0; i < metadata->instance->num_groups && status == ATTN_OK; i++)
            status = find_kv_group(&metadata->instance->groups[i], &batch, &metadata->kv[i], error);
    }
    if (status != ATTN_OK)
        return status;
    metadata->batch = batch;
    metadata->mask = mask;
    metadata->planned = 1;
    return set_counts(metadata, stream, error);
}
