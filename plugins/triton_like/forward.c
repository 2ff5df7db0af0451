/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: operands become the kernels' parameters; then at most three launches.
 *
 * New tokens are read from k and v themselves, saved or not, so that nothing waits for the cache to
 * be written; what of them lies in an fp8 cache is rounded for later steps only.
 */
#include "triton_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const triton_group *group;
    const attn_util_layer *layer;
    const attn_kv_batch *kv;
    const kernel_build *build;
    attn_forward_args args;
    kernel_params params;
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->instance;
    uint32_t kind = call->metadata->plan.mask.kind;
    int variant = kind == ATTN_MASK_FULL || kind == ATTN_MASK_QLEN ? VARIANT_CUSTOM : VARIANT_PLAIN;
    uint32_t index = 0;
    attn_status status =
        cuda_find_layer(instance->groups, sizeof *instance->groups, instance->num_groups, layer_id,
                        &index, &call->layer, error);
    if (status != ATTN_OK)
        return status;
    call->group = &instance->groups[index];
    call->kv = &call->metadata->plan.kv[index];
    call->build = &instance->groups[index].builds[variant];
    return ATTN_OK;
}

static void take_batch(layer_call *call)
{
    const attn_metadata *metadata = call->metadata;
    const attn_bounds *bounds = &metadata->plan.bounds;
    const triton_options *options = &call->instance->options;
    kernel_params *p = &call->params;
    cuda_plan_fill(&metadata->plan, &call->group->base, call->kv, &p->batch);
    p->split_part = triton_split_part(call->group, metadata->plan.batch.mode, bounds);
    p->num_splits = triton_grid_splits(call->group, options, bounds);
    p->split_tile = options->split_tile;
    triton_scratch scratch = triton_scratch_layout(call->group, options, bounds);
    p->partial = metadata->scratch;
    p->partial_lse = (float *)(void *)(metadata->scratch + scratch.lse_at);
    p->partial_used = (int *)(void *)(metadata->scratch + scratch.used_at);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static attn_status launch(layer_call *call, cuda_function function, const char *name,
                          int64_t grid_x, int64_t grid_y, int64_t grid_z, int32_t threads,
                          int32_t shared, attn_stream stream, attn_error *error)
{
    void *params[] = {&call->params};
    const cuda_launch run = {.function = function,
                             .name = name,
                             .grid = {grid_x, grid_y, grid_z},
                             .block = {(uint32_t)threads},
                             .shared = (uint32_t)shared};
    return cuda_launch_run(call->instance->cuda, &run, params, stream, error);
}

/* All sequences, or those before the decode ones; padding, too. */
static attn_status launch_extend(layer_call *call, attn_stream stream, attn_error *error)
{
    const kernel_shape *shape = &call->build->shape;
    cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    int64_t tile_rows = shape->extend_warps / shape->team * 16 * shape->row_tiles;
    if (call->params.split_part == SPLIT_DECODE &&
        call->metadata->plan.kind == ATTN_METADATA_EAGER) {
        e.seqs -= e.decode_seqs;
        e.tokens -= e.decode_seqs;
    }
    return launch(call, call->build->extend, "attn_extend",
                  e.tokens * call->group->base.ratio / tile_rows + e.seqs + 1,
                  call->group->base.kv_heads, 1, shape->extend_warps * 32, shape->extend_shared,
                  stream, error);
}

/* As many blocks as the device runs at once, at most one for each piece of work; then, where there
 * is something to be merged or padding to be cleared, the second stage. */
static attn_status launch_split(layer_call *call, attn_stream stream, attn_error *error)
{
    const triton_group *group = call->group;
    const kernel_shape *shape = &call->build->shape;
    const attn_batch *batch = &call->metadata->plan.batch;
    cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    int all = call->params.split_part == SPLIT_ALL;
    int64_t seqs = all ? e.seqs : e.decode_seqs, rows = all ? e.tokens : e.decode_seqs;
    int64_t row_tiles = ((all ? e.q_len : 1) * group->base.ratio + 15) / 16;
    int64_t blocks =
        (int64_t)cuda_plan_num_sms(&call->metadata->plan, group->num_sms) * shape->decode_blocks;
    int64_t work = seqs * row_tiles * group->base.kv_heads * call->params.num_splits;
    int padded = call->metadata->plan.kind == ATTN_METADATA_GRAPH ||
                 batch->mode != ATTN_MODE_DECODE || e.tokens > e.seqs;
    attn_status status =
        launch(call, call->build->decode, "attn_decode", work < blocks ? work : blocks, 1, 1,
               shape->warps * 32, shape->decode_shared, stream, error);
    if (status != ATTN_OK || (call->params.num_splits == 1 && !(all && padded)))
        return status;
    return launch(call, call->build->reduce, "attn_reduce", rows,
                  (int64_t)group->base.kv_heads * group->base.ratio, 1,
                  (group->base.v_dim + 31) / 32 * 32, 0, stream, error);
}

static attn_status launch_all(layer_call *call, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    if (call->params.operands.save)
        status = launch(call, call->build->save, "attn_save_kv", e.tokens,
                        call->group->base.kv_heads, 1, 64, 0, stream, error);
    if (status == ATTN_OK && call->params.split_part != SPLIT_ALL)
        status = launch_extend(call, stream, error);
    if (status == ATTN_OK && call->params.split_part != SPLIT_NONE)
        status = launch_split(call, stream, error);
    return status;
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    if (!metadata || !args)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status = cuda_plan_check_forward(&metadata->plan, decode, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    layer_call call = {.metadata = metadata, .instance = metadata->instance};
    ATTN_UTIL_READ(&call.args, args);
    status = find_layer(&call, layer_id, error);
    if (status == ATTN_OK)
        status = cuda_operands_take(&call.group->base, call.layer, &metadata->plan, call.kv,
                                    &call.args, &call.params.operands, error);
    if (status != ATTN_OK)
        return status;
    take_batch(&call);
    return launch_all(&call, stream, error);
}

attn_status triton_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status triton_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
