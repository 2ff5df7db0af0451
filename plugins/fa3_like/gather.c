/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c: caches that tiles cannot read: codes under queries of 16 bits, and pages that
 * the copy engine has no boxes for. Once a layer fa3_gather makes rows of the batch's keys and
 * values, which tiles read as if they were all given (kernels/gather.cuh); it saves the new ones.
 *
 * Rows take scratch memory: as much as the bounds' keys need, up to GATHER_BYTES. Batches of more
 * keys are the library's.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/launch.h"

enum { ALIGNMENT = 256, GATHER_BLOCKS = 8, ELEMENT_BYTES = 2 };

#define GATHER_BYTES ((uint64_t)512 << 20)

int fa3_gathers(const cuda_group *group)
{
    return cuda_group_has_cache(group) && !cuda_is_fp8(group->q_dtype) &&
           (cuda_is_fp8(group->kv_dtype) || !fa3_has_boxes(group));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The most keys that all sequences of a batch have together. */
static uint64_t most_keys(const attn_bounds *bounds)
{
    uint64_t all = (uint64_t)bounds->max_seqs * (uint64_t)bounds->max_kv_len;
    uint64_t kept = (uint64_t)bounds->max_kv_tokens;
    return bounds->max_kv_tokens > 0 && kept < all ? kept : all;
}

fa3_gather_layout fa3_layout_gather(const fa3_group *group, const cuda_group *base,
                                    const attn_bounds *bounds)
{
    uint64_t heads = (uint64_t)base->kv_heads;
    uint64_t k_bytes = heads * (uint64_t)base->dim * ELEMENT_BYTES;
    uint64_t v_bytes = heads * (uint64_t)base->v_dim * ELEMENT_BYTES;
    fa3_gather_layout layout = {.size = 0};
    if (!group->gathers || fa3_layout_plan(group, bounds).size == 0)
        return layout;
    layout.rows = most_keys(bounds);
    if (layout.rows > GATHER_BYTES / (k_bytes + v_bytes))
        layout.rows = GATHER_BYTES / (k_bytes + v_bytes);
    layout.v_at = aligned(layout.rows * k_bytes);
    layout.scales_at = aligned(layout.v_at + layout.rows * v_bytes);
    layout.size = aligned(layout.scales_at + 2 * heads * sizeof(float));
    return layout;
}

/* The most keys that the planned batch, or any of the graph's, has. */
static uint64_t keys_of(const attn_metadata *metadata, uint32_t index)
{
    const cuda_plan *plan = &metadata->plan;
    const int32_t *lens = plan->kv[index].kv_lens.host;
    uint64_t sum = 0;
    if (plan->kind == ATTN_METADATA_GRAPH)
        return most_keys(&plan->bounds);
    if (!lens)
        return (uint64_t)plan->batch.num_seqs * (uint64_t)plan->batch.max_kv_len;
    for (int32_t s = 0; s < plan->batch.num_seqs; s++)
        sum += lens[s] > 0 ? (uint64_t)lens[s] : 0;
    return sum;
}

int fa3_may_gather(const attn_metadata *metadata, uint32_t index)
{
    const fa3_instance *own = metadata->instance->own;
    const cuda_group *base = &metadata->instance->groups[index].base;
    fa3_gather_layout layout = fa3_layout_gather(&own->groups[index], base, &metadata->plan.bounds);
    return layout.size > 0 && keys_of(metadata, index) <= layout.rows;
}

/* ---- A layer --------------------------------------------------------------------------------- */

static char *place_of(const layer_call *call, fa3_gather_layout *layout)
{
    *layout = fa3_layout_gather(call->tiles, call->group, &call->metadata->plan.bounds);
    return ((const fa3_own *)call->metadata->own)->scratch;
}

float *fa3_gather_scales(const layer_call *call)
{
    fa3_gather_layout layout;
    char *at = place_of(call, &layout);
    return cuda_is_fp8(call->group->kv_dtype) ? (float *)(void *)(at + layout.scales_at) : NULL;
}

attn_tensor fa3_gathered(const layer_call *call, int values)
{
    fa3_gather_layout layout;
    char *at = place_of(call, &layout);
    int64_t heads = call->group->kv_heads, dim = values ? call->group->v_dim : call->group->dim;
    const attn_tensor *q = attn_operand(&call->args, ATTN_ROLE_Q);
    return (attn_tensor){.struct_size = sizeof(attn_tensor),
                         .data = at + (values ? layout.v_at : 0),
                         .device_type = q->device_type,
                         .device_id = q->device_id,
                         .dtype = call->group->q_dtype,
                         .ndim = 3,
                         .shape = {(int64_t)layout.rows, heads, dim},
                         .strides = {heads * dim, dim, 1},
                         .alignment = ALIGNMENT};
}

attn_status fa3_gather(const layer_call *call, attn_stream stream, attn_error *error)
{
    const cuda_group *group = call->group;
    fa3_gather_layout layout;
    char *at = place_of(call, &layout);
    fa3_gather_call p = {.operands = call->rows.operands,
                         .first = call->view->ahead_first,
                         .k = (unsigned short *)(void *)at,
                         .v = (unsigned short *)(void *)(at + layout.v_at),
                         .heads = group->kv_heads,
                         .dim = group->dim,
                         .dim_v = group->v_dim,
                         .page_size = group->page_size,
                         .dtype = cuda_element(group->q_dtype),
                         .new_dtype = cuda_element(group->new_dtype),
                         .kv_dtype = cuda_element(group->kv_dtype),
                         .scale_stride = group->scale_granularity == ATTN_SCALE_PER_HEAD,
                         .most_rows = (int)layout.rows,
                         .window_left = group->window_left,
                         .chunk = group->chunk};
    const cuda_launch launch = {.function = call->kernels->gather,
                                .name = "fa3_gather",
                                .grid = {fa3_num_sms(call) * GATHER_BLOCKS, 1, 1},
                                .block = {FA3_GATHER_THREADS},
                                .programmatic = 1};
    void *params[] = {&p};
    cuda_plan_fill(&call->metadata->plan, group, call->kv, &p.batch);
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}
