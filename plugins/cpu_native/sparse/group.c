/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c: a sparse group, its units of work, and the sizes of their memory. */
#include "sparse.h"

static void list_codes(attn_dtype dtype, float *values)
{
    const fp8_format *format = dtype == ATTN_FP8_E4M3   ? &fp8_e4m3
                               : dtype == ATTN_FP8_E5M2 ? &fp8_e5m2
                                                        : NULL;
    for (int code = 0; format && code < 256; code++)
        values[code] = fp8_to_f32((uint8_t)code, format);
}

void sparse_group_init(cpu_group *group, const attn_problem *problem)
{
    attn_sparse_dims sparse = {0};
    ATTN_UTIL_READ(&sparse, problem->group->sparse);
    group->sparse = (sparse_group){
        .top_k = sparse.top_k,
        .heads = sparse.index_heads,
        .label = sparse.index_heads > 0 ? sparse.label_dim : 0,
        .q_dtype = sparse.index_dtype,
        .label_dtype = sparse.label_dtype,
    };
    list_codes(sparse.index_dtype, group->sparse.decode_q);
    list_codes(sparse.label_dtype, group->sparse.decode_label);
}

/* ---- Units ----------------------------------------------------------------------------------- */

static int64_t tiles_of_query(const cpu_group *group)
{
    return (group->ratio + TILE_ROWS - 1) / TILE_ROWS;
}

int64_t sparse_units(const cpu_group *group, const attn_bounds *bounds)
{
    return (int64_t)bounds->max_tokens * tiles_of_query(group);
}

int64_t sparse_cut_tiles(const attn_metadata *metadata, const cpu_group *group, group_plan *plan)
{
    const int32_t split = metadata->instance->options.split;
    const int64_t tiles = tiles_of_query(group);
    int64_t cost = 0;
    plan->num_units = 0;
    for (int32_t s = 0; s < metadata->batch.num_seqs; s++)
        for (int64_t n = 0; n < plan->sequences[s].q_len * tiles; n++) {
            work_unit *unit = &plan->units[plan->num_units++];
            const int32_t first = (int32_t)(n % tiles) * TILE_ROWS, rest = group->ratio - first;
            *unit = (work_unit){
                .row = n / tiles * group->ratio + first,
                .rows = rest < TILE_ROWS ? rest : TILE_ROWS,
                .seq = s,
                .end_split = (plan->max_count + split - 1) / split,
            };
            cost += unit_cost(unit);
        }
    return cost;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* A query of the indexer, as whole register blocks, and a tile of labels with their logits. */
int64_t sparse_worker_floats(const cpu_group *group)
{
    const int64_t heads = (group->sparse.heads + INDEX_STEP - 1) / INDEX_STEP * INDEX_STEP;
    return heads * (group->sparse.label + 1) + (TILE_KEYS + 1) * (int64_t)group->sparse.label +
           TILE_KEYS + 6 * PANEL;
}

/* Logits of as many rows as LOGIT_FLOATS for each worker hold, one at least; then lists. */
#define LOGIT_FLOATS ((int64_t)1 << 19)

static int64_t wave_rows(uint32_t num_workers, const attn_bounds *bounds)
{
    int64_t rows = LOGIT_FLOATS * num_workers / bounds->max_kv_len;
    rows = rows < 1 ? 1 : rows;
    return rows < bounds->max_tokens ? rows : bounds->max_tokens;
}

int64_t sparse_shared_floats(const cpu_group *group, uint32_t num_workers,
                             const attn_bounds *bounds)
{
    if (group->sparse.heads == 0)
        return 0;
    return wave_rows(num_workers, bounds) * bounds->max_kv_len +
           (int64_t)bounds->max_tokens * ((int64_t)group->sparse.top_k + 1);
}

void sparse_share_memory(layer_call *call, float *shared)
{
    const attn_bounds *bounds = &call->metadata->bounds;
    const sparse_group *sparse = &call->group->sparse;
    sparse_operands *own = &call->sparse;
    own->wave = wave_rows(call->instance->services->num_workers, bounds);
    own->logits = shared;
    own->logit_stride = bounds->max_kv_len;
    int32_t *slots = (int32_t *)(void *)(shared + own->wave * bounds->max_kv_len);
    own->lists = (row_lists){
        .slots = slots - call->plan->row_first * (int64_t)sparse->top_k,
        .stride = sparse->top_k,
        .counts = slots + (int64_t)bounds->max_tokens * sparse->top_k - call->plan->row_first,
        .count_stride = 1,
        .most = sparse->top_k,
    };
}
