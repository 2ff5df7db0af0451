/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c: the regions of a metadata, and how they are laid out.
 *
 *   device scratch    [worker 0][worker 1] ...      the most any group needs
 *   host metadata     attn_metadata, linear_slots; sequences, snapshots of each state group
 */
#include "cpu_linear.h"

#include "attn_plugin_util.h"

enum { ALIGNMENT = 64 };

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t linear_worker_bytes(const linear_group *groups, uint32_t count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = aligned((uint64_t)linear_scratch_floats(&groups[i]) * sizeof(float));
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t sequences_bytes(const attn_bounds *bounds)
{
    return aligned((uint64_t)bounds->max_seqs * sizeof(linear_sequence));
}

static uint64_t snapshots_bytes(const attn_bounds *bounds)
{
    return aligned((uint64_t)bounds->max_tokens * sizeof(int32_t));
}

uint64_t linear_metadata_bytes(const attn_bounds *bounds, uint32_t num_state_groups)
{
    return aligned(sizeof(attn_metadata)) + aligned(num_state_groups * sizeof(linear_slots)) +
           num_state_groups * (sequences_bytes(bounds) + snapshots_bytes(bounds));
}

/* ---- Slots of the ABI ------------------------------------------------------------------------ */

enum {
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* Sizes of the two regions. */
static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t *scratch, uint64_t *host,
                           attn_error *error)
{
    attn_status status = attn_util_read_eager_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = linear_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    *scratch = linear_worker_bytes(instance->groups, instance->num_groups) *
               instance->services->num_workers;
    *host = linear_metadata_bytes(bounds, instance->num_state_groups);
    return ATTN_OK;
}

attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                 attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    uint64_t scratch, host;
    attn_status status = measure(instance, kind, given, &bounds, &scratch, &host, error);
    if (status != ATTN_OK)
        return status;
    attn_util_tell_size(size, scratch, host, ALIGNMENT);
    return ATTN_OK;
}

static void lay_out_slots(attn_metadata *made)
{
    uint32_t count = made->instance->num_state_groups;
    char *next = (char *)made + aligned(sizeof *made);
    made->slots = (linear_slots *)(void *)next;
    next += aligned(count * sizeof *made->slots);
    for (uint32_t g = 0; g < count; g++) {
        made->slots[g].sequences = (linear_sequence *)(void *)next;
        next += sequences_bytes(&made->bounds);
        made->slots[g].snapshots = (int32_t *)(void *)next;
        next += snapshots_bytes(&made->bounds);
    }
}

attn_status linear_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    uint64_t scratch, host;
    attn_status status = measure(instance, kind, given, &bounds, &scratch, &host, error);
    if (status == ATTN_OK)
        status = attn_util_check_told(memory, scratch, host, ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[METADATA];
    *made = (attn_metadata){.instance = instance,
                            .bounds = bounds,
                            .scratch = memory->base[SCRATCH],
                            .worker_bytes =
                                linear_worker_bytes(instance->groups, instance->num_groups)};
    lay_out_slots(made);
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void linear_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}
