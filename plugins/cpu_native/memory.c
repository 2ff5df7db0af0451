/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c: the regions of a metadata, and how they are laid out.
 *
 *   device scratch    [worker 0][worker 1] ... [partial results][logits and lists]
 *                     the most any group needs
 *   host metadata     attn_metadata, capacities, plans, then for each group its sequences, units,
 *                     merges
 *
 * The layout of the metadata is one function that is run twice: with no memory it gives the size,
 * with memory it sets the pointers.
 */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <string.h>

enum { ALIGNMENT = 64 };

/* Memory for partial results: if it does not suffice, tiles stay undivided. */
#define PART_BYTES_PER_WORKER ((int64_t)8 << 20)

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Bytes of a worker's part of the scratch; worker_scratch in attend.c lays it out. */
static int64_t worker_bytes(const cpu_group *group, int64_t rows)
{
    int64_t dim = group->dim, v_dim = panel_round(group->v_dim);
    int64_t lanes = cpu_lanes(group, (int32_t)rows);
    /* Of panels of keys and values. */
    int64_t key = group->mla.absorbed ? mla_key_floats(group) : dim + v_dim;
    int64_t floats = TILE_KEYS * key + PANEL * MAX_DIM /* rows under conversion */
                     + TILE_KEYS                       /* positions */
                     + lanes * (dim + dim % 2 + TILE_KEYS) + rows * 2 * v_dim +
                     6 * panel_round(TILE_ROWS);
    if (group->sparse.top_k > 0)
        floats = most_of(floats, sparse_worker_floats(group));
    return (int64_t)aligned((uint64_t)floats * sizeof(float) + 2 * TILE_ROWS * sizeof(uint64_t)) +
           20 * ALIGNMENT;
}

group_capacity cpu_group_capacity(const cpu_group *group, const cpu_options *options,
                                  uint32_t num_workers, const attn_bounds *bounds)
{
    int64_t rows = (int64_t)bounds->max_tokens * group->ratio;
    int64_t tiles = group->sparse.top_k > 0 ? sparse_units(group, bounds)
                                            : (int64_t)bounds->max_seqs + rows / TILE_ROWS;
    int64_t keys = group->sparse.top_k > 0 ? group->sparse.top_k : bounds->max_kv_len;
    int64_t extra = (int64_t)SHARE * num_workers;
    int64_t splits = (keys + options->split - 1) / options->split;
    group_capacity capacity = {
        .units = (tiles > extra ? tiles : extra) + extra, /* rows that are cut; then splits */
        .merges = extra,
        .shares = extra,
        .part_floats = panel_round(group->v_dim) + 2,
        .worker_bytes = worker_bytes(group, least(rows, TILE_ROWS)),
    };
    /* Tiles that are shared out are at most `extra`, of all heads together. */
    int64_t part_bytes = capacity.part_floats * (int64_t)sizeof(float);
    int64_t part_rows = least(rows * group->kv_heads, extra * least(rows, TILE_ROWS));
    int64_t most = PART_BYTES_PER_WORKER * num_workers / part_bytes;
    if (group->sparse.top_k > 0)
        capacity.shared_floats = sparse_shared_floats(group, num_workers, bounds);
    if (splits > 1)
        capacity.part_rows = part_rows > most / splits ? most : part_rows * splits;
    return capacity;
}

uint64_t cpu_scratch_bytes(const group_capacity *capacities, uint32_t count, uint32_t num_workers)
{
    uint64_t shared = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t floats = (uint64_t)capacities[i].shared_floats;
        shared = floats > shared ? floats : shared;
    }
    return cpu_shared_offset(capacities, count, num_workers) + shared * sizeof(float);
}

uint64_t cpu_shared_offset(const group_capacity *capacities, uint32_t count, uint32_t num_workers)
{
    uint64_t worker = 0, parts = 0;
    for (uint32_t i = 0; i < count; i++) {
        const group_capacity *c = &capacities[i];
        uint64_t part = (uint64_t)(c->part_rows * c->part_floats) * sizeof(float);
        worker = (uint64_t)c->worker_bytes > worker ? (uint64_t)c->worker_bytes : worker;
        parts = part > parts ? part : parts;
    }
    return worker * num_workers + parts;
}

/* ---- Host metadata --------------------------------------------------------------------------- */

/* Take `count` elements after what is taken already. With base NULL only the size grows. */
static void *take(char *base, uint64_t *size, int64_t count, uint64_t element)
{
    void *taken = base ? base + *size : NULL;
    *size += aligned((uint64_t)count * element);
    return taken;
}

static uint64_t lay_out(const group_capacity *capacities, uint32_t count, const attn_bounds *bounds,
                        char *base)
{
    uint64_t size = 0;
    attn_metadata *metadata = take(base, &size, 1, sizeof *metadata);
    group_capacity *kept = take(base, &size, count, sizeof *kept);
    group_plan *plans = take(base, &size, count, sizeof *plans);
    if (base) {
        memset(metadata, 0, sizeof *metadata);
        memset(plans, 0, count * sizeof *plans);
        memcpy(kept, capacities, count * sizeof *kept);
        metadata->capacities = kept;
        metadata->plans = plans;
    }
    for (uint32_t i = 0; i < count; i++) {
        const group_capacity *c = &capacities[i];
        cpu_sequence *sequences = take(base, &size, bounds->max_seqs, sizeof *sequences);
        work_unit *units = take(base, &size, c->units, sizeof *units);
        work_unit *merges = take(base, &size, c->merges, sizeof *merges);
        if (base) {
            plans[i].sequences = sequences;
            plans[i].units = units;
            plans[i].merges = merges;
        }
    }
    return size;
}

uint64_t cpu_metadata_bytes(const group_capacity *capacities, uint32_t count,
                            const attn_bounds *bounds)
{
    return lay_out(capacities, count, bounds, NULL);
}

/* ---- Slots of the ABI ------------------------------------------------------------------------ */

enum {
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* Sizes of the two regions; `capacities` is for MAX_GROUPS. */
static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, group_capacity *capacities, uint64_t *scratch,
                           uint64_t *host, attn_error *error)
{
    uint32_t workers = instance->services->num_workers;
    attn_status status = attn_util_read_eager_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = cpu_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        capacities[i] =
            cpu_group_capacity(&instance->groups[i], &instance->options, workers, bounds);
    *scratch = cpu_scratch_bytes(capacities, instance->num_groups, workers);
    *host = cpu_metadata_bytes(capacities, instance->num_groups, bounds);
    return ATTN_OK;
}

attn_status cpu_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                              attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    group_capacity capacities[MAX_GROUPS];
    uint64_t scratch, host;
    attn_status status =
        measure(instance, kind, given, &bounds, capacities, &scratch, &host, error);
    if (status != ATTN_OK)
        return status;
    attn_util_tell_size(size, scratch, host, ALIGNMENT);
    return ATTN_OK;
}

attn_status cpu_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error)
{
    attn_bounds bounds;
    group_capacity capacities[MAX_GROUPS];
    uint64_t scratch, host;
    attn_status status =
        measure(instance, kind, given, &bounds, capacities, &scratch, &host, error);
    if (status == ATTN_OK)
        status = attn_util_check_told(memory, scratch, host, ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    lay_out(capacities, instance->num_groups, &bounds, memory->base[METADATA]);
    attn_metadata *made = memory->base[METADATA];
    made->instance = instance;
    made->bounds = bounds;
    made->scratch = memory->base[SCRATCH];
    made->shared =
        (float *)(void *)(made->scratch + cpu_shared_offset(capacities, instance->num_groups,
                                                            instance->services->num_workers));
    for (uint32_t i = 0; i < instance->num_groups; i++)
        if ((uint64_t)capacities[i].worker_bytes > made->worker_bytes)
            made->worker_bytes = (uint64_t)capacities[i].worker_bytes;
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
void cpu_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}
