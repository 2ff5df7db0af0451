/* SPDX-License-Identifier: Apache-2.0
 *
 * join.c: few tiles of many keys. Their keys are split into as many parts as keep the
 * multiprocessors busy, and fa3_join makes outputs of the parts (kernels/join.cuh). Parts are in
 * scratch memory, JOIN_ROWS rows at most.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/launch.h"
#include "plugins/fa3_like/kernels/join.cuh"

enum { ALIGNMENT = 256, JOIN_BLOCKS = 8, JOIN_ROWS = 1 << 15 };

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

fa3_join_layout fa3_layout_join(const fa3_group *group, const cuda_group *base,
                                const attn_bounds *bounds)
{
    fa3_join_layout layout = {.size = 0};
    if (!group->low || fa3_layout_plan(group, bounds).size == 0)
        return layout;
    uint64_t rows =
        JOIN_MOST * (uint64_t)bounds->max_tokens * (uint64_t)(base->kv_heads * base->ratio);
    rows = rows < JOIN_ROWS ? rows : JOIN_ROWS;
    layout.at = fa3_layout_gather(group, base, bounds).size;
    layout.lse_at = aligned(layout.at + rows * (uint64_t)base->v_dim * sizeof(float));
    layout.size = aligned(layout.lse_at + rows * sizeof(float)) - layout.at;
    return layout;
}

int64_t fa3_most_splits(const cuda_group *base, const cuda_extent *extent)
{
    int64_t rows = extent->tokens * base->kv_heads * base->ratio;
    int64_t splits = rows > 0 ? JOIN_ROWS / rows : 1;
    return splits < JOIN_MOST ? splits : JOIN_MOST;
}

/* Rows of a part: the batch's, or the most that a batch of the graph has. */
static int64_t rows_of(const layer_call *call)
{
    return cuda_plan_extent(&call->metadata->plan).tokens;
}

void fa3_set_parts(const layer_call *call, struct fa3_forward_params *p)
{
    const cuda_group *group = call->group;
    fa3_join_layout layout = fa3_layout_join(call->tiles, group, &call->metadata->plan.bounds);
    char *scratch = ((const fa3_own *)call->metadata->own)->scratch;
    int64_t heads = group->kv_heads * group->ratio;
    p->splits = call->view->splits;
    p->out_f32 = 1;
    p->sinks = 0;
    p->out = (uintptr_t)(scratch + layout.at);
    p->out_token = heads * group->v_dim;
    p->out_head = group->v_dim;
    p->out_split = rows_of(call) * p->out_token;
    p->lse = (uintptr_t)(scratch + layout.lse_at);
    p->lse_token = heads;
    p->lse_head = 1;
    p->lse_split = rows_of(call) * heads;
}

attn_status fa3_join(const layer_call *call, const struct fa3_forward_params *parts,
                     attn_stream stream, attn_error *error)
{
    const cuda_group *group = call->group;
    fa3_join_call p = {.operands = call->rows.operands,
                       .plan = call->view->plan,
                       .slow = call->view->slow,
                       .values = (const float *)(uintptr_t)parts->out,
                       .lse = (const float *)(uintptr_t)parts->lse,
                       .splits = parts->splits,
                       .rows = (int)rows_of(call),
                       .heads_q = group->kv_heads * group->ratio,
                       .dim_v = group->v_dim,
                       .out_dtype = cuda_element(group->out_dtype)};
    const cuda_launch launch = {.function = call->kernels->join,
                                .name = "fa3_join",
                                .grid = {fa3_num_sms(call) * JOIN_BLOCKS, 1, 1},
                                .block = {FA3_JOIN_THREADS},
                                .programmatic = 1};
    void *params[] = {&p};
    cuda_plan_fill(&call->metadata->plan, group, call->kv, &p.batch);
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}
