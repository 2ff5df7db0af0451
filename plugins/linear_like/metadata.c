/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: memory of a metadata, and a batch, checked against its bounds. Rows, slots and
 * snapshots are read on the device.
 */
#include "linear_like.h"

#include "attn_plugin_util.h"

#define FAIL(error, ...)                                                                           \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

enum {
    ALIGNMENT = 64,
    SCRATCH_ALIGNMENT = 256,
    COUNTS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* ---- Memory ---------------------------------------------------------------------------------- */

typedef struct sizes {
    uint64_t counts, readers, scratch, host;
} sizes;

uint64_t linear_readers_bytes(const linear_group *group, const attn_bounds *bounds)
{
    return group->lane_keys == STEPS_DECODE_KEYS && group->dims.width > 1
               ? (uint64_t)bounds->max_seqs * (uint64_t)group->dims.k_heads * 2 * sizeof(unsigned)
               : 0;
}

/* Sizes of the regions. */
static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, sizes *to, attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = linear_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    *to = (sizes){.counts = kind == ATTN_METADATA_GRAPH ? CUDA_COUNTS_BYTES : 0,
                  .host = sizeof(attn_metadata) +
                          instance->num_state_groups * sizeof(attn_state_batch)};
    for (uint32_t g = 0; g < instance->num_groups; g++) {
        const linear_scratch scratch = linear_lay_out_scratch(&instance->groups[g], bounds);
        const uint64_t readers = linear_readers_bytes(&instance->groups[g], bounds);
        to->scratch = to->scratch > scratch.bytes ? to->scratch : scratch.bytes;
        to->readers = to->readers > readers ? to->readers : readers;
    }
    return ATTN_OK;
}

attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                 attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    sizes need;
    attn_status status = measure(instance, kind, given, &bounds, &need, error);
    if (status != ATTN_OK)
        return status;
    attn_util_clear_size(size);
    size->size[COUNTS] = need.counts + need.readers;
    size->alignment[COUNTS] = need.counts + need.readers ? ALIGNMENT : 0;
    size->size[SCRATCH] = need.scratch;
    size->alignment[SCRATCH] = need.scratch ? SCRATCH_ALIGNMENT : 0;
    size->size[HOST] = need.host;
    size->alignment[HOST] = ALIGNMENT;
    return ATTN_OK;
}

attn_status linear_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    sizes need;
    attn_status status = measure(instance, kind, given, &bounds, &need, error);
    if (status == ATTN_OK && need.counts + need.readers)
        status = attn_util_check_region(memory, COUNTS, "device metadata",
                                        need.counts + need.readers, ALIGNMENT, error);
    if (status == ATTN_OK && need.scratch)
        status = attn_util_check_region(memory, SCRATCH, "scratch", need.scratch, SCRATCH_ALIGNMENT,
                                        error);
    if (status == ATTN_OK)
        status = attn_util_check_region(memory, HOST, "host metadata", need.host, ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    *made = (attn_metadata){
        .instance = instance,
        .readers =
            need.readers ? (unsigned *)(void *)((char *)memory->base[COUNTS] + need.counts) : NULL,
        .num_readers = need.readers / sizeof(unsigned),
        .scratch = need.scratch ? memory->base[SCRATCH] : NULL,
        .slots = (attn_state_batch *)(made + 1)};
    cuda_plan_init(&made->plan, kind, &bounds, 0,
                   need.counts ? (cuda_address)(uintptr_t)memory->base[COUNTS] : 0, NULL);
    *metadata = made;
    return ATTN_OK;
}

/* ---- A batch --------------------------------------------------------------------------------- */

static attn_status check_parts(const attn_batch *batch, attn_error *error)
{
    if (batch->positions.device || batch->positions.host || batch->multi_item)
        return FAIL(error, "positions or multi_item are given: accepted neither");
    if (batch->speculation && batch->speculation->top_k > 1)
        return FAIL(error, "speculation.top_k %d: accepted 1: a recurrence has no branches",
                    batch->speculation->top_k);
    return ATTN_OK;
}

/* Copy the arrays of state group `state_group`. */
static attn_status find_slots(const attn_batch *batch, int32_t state_group, attn_state_batch *slots,
                              attn_error *error)
{
    *slots = (attn_state_batch){0};
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (state_group < 0 || (uint32_t)state_group >= batch->num_state_groups || !batch->state_groups)
        return FAIL(error, "state_group %d: the batch has %u of them", state_group,
                    batch->num_state_groups);
    ATTN_UTIL_READ(slots, attn_at(batch->state_groups, (uint32_t)state_group));
    return slots->slot.device
               ? ATTN_OK
               : FAIL(error, "slot of state group %d is missing on the device", state_group);
}

/* A captured graph reads the same addresses at each replay. */
static attn_status check_same(const attn_metadata *metadata, const attn_batch *batch,
                              const attn_state_batch *slots, const attn_state_batch *first,
                              attn_error *error)
{
    const cuda_plan *plan = &metadata->plan;
    if (plan->kind != ATTN_METADATA_GRAPH || !plan->planned)
        return ATTN_OK;
    if (slots->slot.device != first->slot.device ||
        slots->dst_slot.device != first->dst_slot.device ||
        slots->has_initial.device != first->has_initial.device ||
        slots->snapshots.device != first->snapshots.device ||
        batch->num_real_seqs_device != plan->batch.num_real_seqs_device)
        return FAIL(error, "device arrays are not where they were when this graph was captured");
    return ATTN_OK;
}

static attn_status check_slots(const attn_metadata *metadata, const attn_batch *batch,
                               attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; g < instance->num_state_groups && status == ATTN_OK; g++) {
        attn_state_batch slots;
        status = find_slots(batch, instance->state_groups[g], &slots, error);
        if (status == ATTN_OK)
            status = check_same(metadata, batch, &slots, &metadata->slots[g], error);
    }
    return status;
}

/* Set the readers to 0 before the first launch. */
static attn_status clear_readers(attn_metadata *metadata, attn_stream stream, attn_error *error)
{
    const cuda_api *cuda = metadata->instance->cuda;
    if (!metadata->readers || metadata->cleared)
        return ATTN_OK;
    int result = cuda->cuMemsetD32Async((cuda_address)(uintptr_t)metadata->readers, 0,
                                        metadata->num_readers, stream);
    if (result != CUDA_OK)
        return cuda_fail(cuda, result, "batch", "cuMemsetD32Async", error);
    metadata->cleared = 1;
    return ATTN_OK;
}

attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                         attn_stream stream, attn_error *error)
{
    attn_batch batch;
    attn_status status = ATTN_OK;
    if (!metadata || !given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    ATTN_UTIL_READ(&batch, given);
    const int idle = batch.mode == ATTN_MODE_IDLE;
    if (!idle)
        status = check_parts(&batch, error);
    if (status == ATTN_OK && !idle)
        status = check_slots(metadata, &batch, error);
    if (status == ATTN_OK)
        status = cuda_plan_take(&metadata->plan, instance->cuda, NULL, 0, 0, given, stream, error);
    if (status == ATTN_OK)
        status = clear_readers(metadata, stream, error);
    for (uint32_t g = 0; g < instance->num_state_groups && status == ATTN_OK && !idle; g++)
        find_slots(&batch, instance->state_groups[g], &metadata->slots[g], NULL);
    return status;
}
