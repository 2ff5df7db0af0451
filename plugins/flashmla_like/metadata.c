/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: a batch, planned on the device by one block for each group. Launch shapes are made of
 * the batch's sizes, in graphs of the bounds.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"

#include <string.h>

enum {
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    PARTS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

enum { MOST_FIXED = 1 << 24 }; /* no device has memory for more parts */

uint32_t fm_index_forms(attn_instance *instance)
{
    (void)instance;
    return FM_INDEX_FORMS;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static fm_shape shape_of(int64_t rows, uint32_t sms)
{
    fm_shape shape = {.kernel = 0, .rows = 8, .pair = rows > 64 ? 2 : 1};
    while (shape.rows < 64 && shape.rows < rows) {
        shape.rows *= 2;
        shape.kernel++;
    }
    shape.ranges = (int)sms / shape.pair;
    if (shape.ranges > MLA_MOST_RANGES)
        shape.ranges = MLA_MOST_RANGES;
    if (shape.ranges < 1)
        shape.ranges = 1;
    return shape;
}

/* Enough ranges for the parts of any batch within `most`, if `units` units of a sequence are
 * divided. A sequence has a part for each `part` tiles, and one more; a window may begin and end
 * within a tile. */
static int fixed_ranges(const attn_bounds *most, int64_t units, int tile, int part)
{
    const int64_t seqs = most->max_seqs, longest = (int64_t)most->max_kv_len / tile + 2;
    const int64_t parts = longest / part + 1;
    const int64_t most_parts = parts < MLA_FIXED_PARTS(part) ? parts : MLA_FIXED_PARTS(part);
    const int64_t all = seqs * units * most_parts;
    const int64_t some = units * (2 * seqs + most->max_kv_tokens / (tile * part));
    const int64_t least = most->max_kv_tokens > 0 && some < all ? some : all;
    return least < 1 ? 1 : least < MOST_FIXED ? (int)least : MOST_FIXED;
}

/* With BATCH_INVARIANT every batch has the kernel of 64 rows. The line has ranges only if sequences
 * may have more than MLA_FIXED_UNITS units. */
static fm_shape fixed_shape(const attn_instance *instance, uint32_t index, const attn_bounds *most,
                            uint32_t sms)
{
    const cuda_group *group = &instance->groups[index];
    fm_shape shape = shape_of(group->ratio > MLA_ROWS ? group->ratio : MLA_ROWS, sms);
    const int64_t rows = (int64_t)shape.rows * shape.pair;
    const int64_t units = ((int64_t)most->max_q_len * group->ratio + rows - 1) / rows;
    const int few = units <= MLA_FIXED_UNITS;
    if (few)
        shape.ranges = 0;
    shape.fixed = fixed_ranges(most, few ? units : MLA_FIXED_UNITS,
                               fm_tile(fm_latents(group), shape.rows), instance->fixed);
    return shape;
}

/* Bounds of the planned batch; those of the metadata for a graph, whose later batches may be
 * larger. */
static attn_bounds extent_of(const cuda_plan *plan)
{
    const cuda_extent extent = cuda_plan_extent(plan);
    attn_bounds most = plan->bounds;
    most.max_seqs = (int32_t)extent.seqs;
    most.max_q_len = (int32_t)extent.q_len;
    if (plan->kind != ATTN_METADATA_GRAPH)
        most.max_kv_len = plan->batch.max_kv_len;
    return most;
}

fm_shape fm_find_shape(const attn_metadata *metadata, uint32_t index)
{
    const attn_instance *instance = metadata->instance;
    const cuda_group *group = &instance->groups[index];
    const attn_bounds extent = extent_of(&metadata->plan);
    const uint32_t sms = cuda_plan_num_sms(&metadata->plan, instance->facts.num_sms);
    if (instance->fixed)
        return fixed_shape(instance, index, &extent, sms);
    const int64_t rows = (int64_t)extent.max_q_len * group->ratio;
    /* e4m3 queries have no kernel of 32 rows, as the one of 64 is faster. */
    const int wide = fm_latents(group) == FM_LATENT_CODED && rows > 16 && rows < MLA_ROWS;
    return shape_of(wide ? MLA_ROWS : rows, sms);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + FM_ALIGNMENT - 1) / FM_ALIGNMENT * FM_ALIGNMENT;
}

/* A sequence of at most 128 rows is one unit, or, with `fixed`, one or two. */
static uint64_t most_units(const attn_instance *instance, uint32_t index, const attn_bounds *bounds)
{
    const int32_t heads = instance->groups[index].ratio;
    const uint64_t rows = instance->fixed && heads <= MLA_ROWS ? MLA_ROWS : 2 * MLA_ROWS;
    return (uint64_t)bounds->max_seqs + (uint64_t)bounds->max_tokens * (uint64_t)heads / rows;
}

/* Byte offsets of the lists of a group's plan, from its header. */
typedef struct plan_layout {
    uint64_t starts, units, end;
} plan_layout;

static plan_layout lay_out(const attn_instance *instance, uint32_t index, const attn_bounds *bounds)
{
    const uint64_t units = most_units(instance, index, bounds);
    uint64_t fixed = 0;
    if (instance->fixed)
        fixed = (uint64_t)fixed_shape(instance, index, bounds, 1).fixed;
    plan_layout at;
    at.starts = aligned(sizeof(mla_plan_header) + fixed * sizeof(mla_divided));
    at.units = at.starts + aligned((MLA_MOST_RANGES + fixed) * sizeof(mla_start));
    at.end = at.units + aligned(units * sizeof(mla_unit));
    return at;
}

/* A block of the line has two states, any other block one. */
static uint64_t num_states(const fm_shape *shape)
{
    return (2u * (uint64_t)shape->ranges + (uint64_t)shape->fixed) * (uint64_t)shape->pair;
}

static uint64_t outputs_bytes(const fm_shape *shape)
{
    return aligned(num_states(shape) * (uint64_t)shape->rows * MLA_LORA * sizeof(float));
}

static uint64_t states_bytes(const fm_shape *shape)
{
    return outputs_bytes(shape) +
           aligned(num_states(shape) * (uint64_t)shape->rows * sizeof(float));
}

/* The bytes of the group with the largest parts. Without `fixed`, shapes of the most rows are
 * tried, with one and with two blocks per unit. */
static uint64_t parts_bytes(const attn_instance *instance, const attn_bounds *bounds)
{
    uint64_t most = 0;
    uint32_t sms = cuda_num_sms(bounds, instance->facts.num_sms);
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (int64_t rows = 64; rows <= 128; rows += 64) {
            const fm_shape shape =
                instance->fixed ? fixed_shape(instance, i, bounds, sms) : shape_of(rows, sms);
            const uint64_t size = states_bytes(&shape);
            most = size > most ? size : most;
        }
    return most;
}

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = fm_require_bounds(bounds, error);
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
    if (status != ATTN_OK)
        return status;
    sizes[PLANS] = aligned(CUDA_COUNTS_BYTES);
    for (uint32_t i = 0; i < instance->num_groups; i++)
        sizes[PLANS] += lay_out(instance, i, bounds).end;
    sizes[PARTS] = parts_bytes(instance, bounds);
    sizes[HOST] = sizeof(attn_metadata) + instance->num_groups * sizeof(attn_kv_batch);
    return ATTN_OK;
}

attn_status fm_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                             attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        cuda_memory_tell(sizes, FM_ALIGNMENT, size);
    return status;
}

attn_status fm_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                               const attn_memory *memory, attn_metadata **metadata,
                               attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK)
        status = cuda_memory_check(memory, sizes, FM_ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    char *plans = memory->base[PLANS];
    *made = (attn_metadata){.instance = instance,
                            .plans = plans + aligned(CUDA_COUNTS_BYTES),
                            .scratch = memory->base[PARTS]};
    cuda_plan_init(&made->plan, kind, &bounds, FM_INDEX_FORMS,
                   kind == ATTN_METADATA_GRAPH ? (cuda_address)(uintptr_t)plans : 0,
                   (attn_kv_batch *)(made + 1));
    *metadata = made;
    return ATTN_OK;
}

/* ---- A batch --------------------------------------------------------------------------------- */

void fm_describe(const attn_metadata *metadata, uint32_t index, mla_call *call)
{
    const attn_instance *instance = metadata->instance;
    const cuda_group *group = &instance->groups[index];
    const attn_bounds *bounds = &metadata->plan.bounds;
    const fm_shape shape = fm_find_shape(metadata, index);
    const plan_layout layout = lay_out(instance, index, bounds);
    char *at = metadata->plans;
    for (uint32_t i = 0; i < index; i++)
        at += lay_out(instance, i, bounds).end;
    cuda_plan_fill(&metadata->plan, group, &metadata->plan.kv[index], &call->batch);
    call->plan = (mla_plan_header *)(void *)at;
    call->starts = (mla_start *)(void *)(at + layout.starts);
    call->units = (mla_unit *)(void *)(at + layout.units);
    call->most_units = (int)most_units(instance, index, bounds);
    call->parts = (float *)(void *)metadata->scratch;
    call->part_lse = (float *)(void *)(metadata->scratch + outputs_bytes(&shape));
    call->ranges = shape.ranges;
    call->pair = shape.pair;
    call->rows = shape.rows;
    call->tile = fm_tile(fm_latents(group), shape.rows);
    call->heads = group->ratio;
    call->lora = group->v_dim;
    call->rope = group->dim - group->v_dim;
    call->page_size = group->page_size;
    call->window_left = group->window_left;
    call->chunk = group->chunk;
    call->sm_scale = group->sm_scale;
    call->out_f32 = group->out_dtype == ATTN_F32;
    call->whole = instance->whole || instance->fixed;
    call->fixed = shape.fixed;
    call->part = instance->fixed;
    call->shrinks = instance->shrinks;
}

attn_status fm_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                     attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    attn_status status =
        cuda_plan_take(&metadata->plan, instance->cuda, instance->groups, sizeof(cuda_group),
                       instance->num_groups, batch, stream, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++) {
        mla_call call = {.operands = {.k = NULL}};
        void *params[] = {&call};
        const cuda_launch launch = {.function = instance->plan,
                                    .name = "mla_plan",
                                    .grid = {1, 1, 1},
                                    .block = {MLA_PLAN_THREADS}};
        fm_describe(metadata, i, &call);
        status = cuda_launch_run(instance->cuda, &launch, params, stream, error);
    }
    return status;
}
