/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory for batches within bounds. There is nothing to plan on the host
 * (plugins/common/cuda/plan.h): kernels read lengths, slots and row numbers on the device.
 */
#include "triton_like.h"

#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    COUNTS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
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
        return (int64_t)bounds->max_q_len * group->base.ratio <= MAX_SPLIT_ROWS ? SPLIT_ALL
                                                                                : SPLIT_NONE;
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
        most = ((int32_t)group->num_sms * 2 + group->base.kv_heads - 1) / group->base.kv_heads;
    if (options->num_kv_splits == 0 && most > MAX_DEFAULT_SPLITS)
        most = MAX_DEFAULT_SPLITS;
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
    if (bounds->modes & drafts && group->base.ratio <= MAX_SPLIT_ROWS)
        rows = (uint64_t)(MAX_SPLIT_ROWS / group->base.ratio);
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
    uint64_t rows =
        split_rows(group, bounds) * (uint64_t)group->base.kv_heads * (uint64_t)group->base.ratio;
    uint64_t splits = rows * (uint64_t)triton_grid_splits(group, options, bounds);
    triton_scratch layout;
    layout.lse_at = aligned(splits * (uint64_t)group->base.v_dim * element);
    layout.used_at = layout.lse_at + aligned(splits * sizeof(float));
    layout.size = layout.used_at + rows * sizeof(int32_t);
    return layout;
}

/* Bounds with modes or kinds of mask that no problem given to create had. */
static attn_status fail_not_built(uint32_t field, uint32_t set, attn_error *error)
{
    char text[96];
    attn_util_set_text(field, set, text, sizeof text);
    return attn_util_fail_field(
        error, ATTN_UNSUPPORTED, field,
        "%s %s: create was given a problem without them, so that their kernels were not built",
        attn_util_field_name(field), text);
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
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
            return fail_not_built(ATTN_FIELD_MODES, bounds->modes, error);
        if (bounds->mask_kinds && variants & ~group->variants)
            return fail_not_built(ATTN_FIELD_MASK_KINDS, bounds->mask_kinds, error);
    }
    sizes[COUNTS] = kind == ATTN_METADATA_GRAPH ? CUDA_COUNTS_BYTES : 0;
    sizes[HOST] = sizeof(attn_metadata) + instance->num_groups * sizeof(attn_kv_batch);
    return ATTN_OK;
}

attn_status triton_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                 attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        cuda_memory_tell(sizes, ALIGNMENT, size);
    return status;
}

attn_status triton_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK && !instance->prepared)
        status = attn_util_fail(error, ATTN_BAD_STATE,
                                "metadata before prepare, which compiles the kernels");
    if (status == ATTN_OK)
        status = cuda_memory_check(memory, sizes, ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    *made = (attn_metadata){.instance = instance,
                            .scratch = sizes[SCRATCH] ? memory->base[SCRATCH] : NULL};
    cuda_plan_init(&made->plan, kind, &bounds, ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE,
                   sizes[COUNTS] ? (cuda_address)(uintptr_t)memory->base[COUNTS] : 0,
                   (attn_kv_batch *)(made + 1));
    *metadata = made;
    return ATTN_OK;
}

attn_status triton_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    return cuda_plan_take(&metadata->plan, instance->cuda, instance->groups, sizeof(triton_group),
                          instance->num_groups, batch, stream, error);
}
