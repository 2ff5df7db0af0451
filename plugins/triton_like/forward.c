/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: operands become the kernels' parameters; then at most three launches.
 *
 * New tokens are read from k and v themselves, saved or not, so that nothing waits for the cache to
 * be written; what of them lies in an fp8 cache is rounded for later steps only.
 */
#include "triton_like.h"

#include "plugins/common/copy_sized.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/operand.h"
#include "plugins/common/plugin_error.h"

#include <math.h>
#include <string.h>

#define FAIL(error, field, ...)                                                                    \
    plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const triton_group *group;
    const triton_layer *layer;
    const attn_kv_batch *kv;
    const kernel_build *build;
    attn_forward_args args;
    int32_t save;
    kernel_params params;
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->instance;
    uint32_t kind = call->metadata->mask.kind;
    int variant = kind == ATTN_MASK_FULL || kind == ATTN_MASK_QLEN ? VARIANT_CUSTOM : VARIANT_PLAIN;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++) {
            if (instance->groups[i].layers[n].layer_id != layer_id)
                continue;
            call->group = &instance->groups[i];
            call->layer = &instance->groups[i].layers[n];
            call->kv = &call->metadata->kv[i];
            call->build = &instance->groups[i].builds[variant];
            return ATTN_OK;
        }
    return FAIL(error, ATTN_FIELD_LAYER_ID, "layer_id %d is not of this instance", layer_id);
}

/* ---- Operands -------------------------------------------------------------------------------- */

static attn_status get_operand(const layer_call *call, uint32_t role, operand_form form,
                               const attn_tensor **operand, attn_error *error)
{
    form.device_type = ATTN_DEVICE_CUDA;
    return operand_get(&call->args, role, &form, operand, error);
}

/* An operand of at least `rows` rows. */
static attn_status get_rows(const layer_call *call, uint32_t role, operand_form form, int64_t rows,
                            const attn_tensor **operand, attn_error *error)
{
    form.shape[0] = -1;
    attn_status status = get_operand(call, role, form, operand, error);
    if (status == ATTN_OK && (*operand)->shape[0] < rows)
        status = FAIL(error, ATTN_FIELD_OPERAND, "operand %s has %lld rows: accepted %lld and more",
                      operand_name(role), (long long)(*operand)->shape[0], (long long)rows);
    return status;
}

static long long stride_bytes(const attn_tensor *tensor, int dimension)
{
    return tensor->strides[dimension] * (long long)attn_dtype_size(tensor->dtype);
}

/* Do all rows begin at a multiple of `bytes`? */
static int is_aligned(const attn_tensor *tensor, int64_t bytes)
{
    if ((uintptr_t)operand_data(tensor) % (uintptr_t)bytes != 0)
        return 0;
    for (uint32_t d = 0; d + 1 < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && stride_bytes(tensor, (int)d) % bytes != 0)
            return 0;
    return 1;
}

static attn_status get_queries(layer_call *call, attn_error *error)
{
    const triton_group *group = call->group;
    kernel_params *p = &call->params;
    const attn_tensor *q = NULL, *out = NULL, *lse = NULL;
    int64_t rows = call->metadata->batch.num_tokens;
    int64_t heads = (int64_t)group->kv_heads * group->ratio;
    operand_form q_form = {.dtype = group->q_dtype, .ndim = 3, .shape = {0, heads, group->dim}};
    operand_form out_form = {
        .dtype = group->out_dtype, .ndim = 3, .shape = {0, heads, group->v_dim}, .written = 1};
    operand_form lse_form = {.dtype = ATTN_F32, .ndim = 2, .shape = {0, heads}, .written = 1};
    attn_status status = get_rows(call, ATTN_ROLE_Q, q_form, rows, &q, error);
    if (status == ATTN_OK)
        status = get_rows(call, ATTN_ROLE_OUT, out_form, rows, &out, error);
    if (status == ATTN_OK && attn_operand(&call->args, ATTN_ROLE_LSE))
        status = get_rows(call, ATTN_ROLE_LSE, lse_form, rows, &lse, error);
    if (status != ATTN_OK)
        return status;
    p->q = operand_data(q);
    p->q_row = stride_bytes(q, 0);
    p->q_head = stride_bytes(q, 1);
    p->out = operand_data(out);
    p->out_row = stride_bytes(out, 0);
    p->out_head = stride_bytes(out, 1);
    if (lse) {
        p->lse = (float *)(void *)operand_data(lse);
        p->lse_row = stride_bytes(lse, 0);
        p->lse_head = stride_bytes(lse, 1);
    }
    p->aligned |= is_aligned(q, 16) ? ALIGNED_Q : 0;
    p->aligned |= is_aligned(out, 2 * (int64_t)attn_dtype_size(group->out_dtype)) ? ALIGNED_OUT : 0;
    return ATTN_OK;
}

static attn_status get_new_keys(layer_call *call, attn_error *error)
{
    const triton_group *group = call->group;
    kernel_params *p = &call->params;
    const attn_tensor *k = NULL, *v = NULL;
    int cached = triton_has_cache(group);
    int64_t rows = call->kv->kv_new_indptr.device ? 0 : call->metadata->batch.num_tokens;
    operand_form form = {
        .dtype = group->q_dtype, .ndim = 3, .shape = {0, group->kv_heads, group->dim}};
    p->aligned |= ALIGNED_NEW;
    if (cached && !attn_operand(&call->args, ATTN_ROLE_K) &&
        !attn_operand(&call->args, ATTN_ROLE_V))
        return ATTN_OK;
    if (call->layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the KV of another layer: accepted no operands k and v",
                    call->layer->layer_id);
    attn_status status = get_rows(call, ATTN_ROLE_K, form, rows, &k, error);
    form.shape[2] = group->v_dim;
    if (status == ATTN_OK)
        status = get_rows(call, ATTN_ROLE_V, form, rows, &v, error);
    call->save = cached && call->args.flags & ATTN_FORWARD_SAVE_KV;
    if (status == ATTN_OK && call->save && !call->kv->out_cache_loc.device)
        status = FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    if (status != ATTN_OK)
        return status;
    p->k = operand_data(k);
    p->k_row = stride_bytes(k, 0);
    p->k_head = stride_bytes(k, 1);
    p->v = operand_data(v);
    p->v_row = stride_bytes(v, 0);
    p->v_head = stride_bytes(v, 1);
    if (!is_aligned(k, 16) || !is_aligned(v, 16))
        p->aligned &= ~ALIGNED_NEW;
    return ATTN_OK;
}

static attn_status get_cache(const layer_call *call, uint32_t role, int32_t dim,
                             const attn_tensor **cache, attn_error *error)
{
    const triton_group *group = call->group;
    int64_t page = group->page_size, heads = group->kv_heads;
    operand_form form = {.dtype = group->kv_dtype,
                         .ndim = 4,
                         .shape = {0, group->hnd ? heads : page, group->hnd ? page : heads, dim},
                         .written = call->save};
    return get_rows(call, role, form, 0, cache, error);
}

static attn_status get_caches(layer_call *call, attn_error *error)
{
    const triton_group *group = call->group;
    kernel_params *p = &call->params;
    const attn_tensor *k = NULL, *v = NULL;
    int token = group->hnd ? 2 : 1, head = group->hnd ? 1 : 2;
    p->aligned |= ALIGNED_CACHE;
    if (!triton_has_cache(group))
        return ATTN_OK;
    attn_status status = get_cache(call, ATTN_ROLE_K_CACHE, group->dim, &k, error);
    if (status == ATTN_OK)
        status = get_cache(call, ATTN_ROLE_V_CACHE, group->v_dim, &v, error);
    if (status == ATTN_OK && k->shape[0] != v->shape[0])
        status = FAIL(error, ATTN_FIELD_OPERAND, "k_cache has %lld pages, v_cache %lld",
                      (long long)k->shape[0], (long long)v->shape[0]);
    if (status != ATTN_OK)
        return status;
    p->k_cache = operand_data(k);
    p->k_page = stride_bytes(k, 0);
    p->k_token = stride_bytes(k, token);
    p->k_cache_head = stride_bytes(k, head);
    p->v_cache = operand_data(v);
    p->v_page = stride_bytes(v, 0);
    p->v_token = stride_bytes(v, token);
    p->v_cache_head = stride_bytes(v, head);
    if (!is_aligned(k, 16) || !is_aligned(v, 16))
        p->aligned &= ~ALIGNED_CACHE;
    return ATTN_OK;
}

/* Scales on the device are read there; those on the host travel in the parameters. */
static attn_status get_scale(const layer_call *call, uint32_t role, float *values,
                             const float **device, attn_error *error)
{
    const attn_scale *scale = attn_operand_scale(&call->args, role);
    const triton_group *group = call->group;
    uint32_t count =
        group->scale_granularity == ATTN_SCALE_PER_HEAD ? (uint32_t)group->kv_heads : 1;
    if (!scale)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is missing", operand_name(role));
    if (scale->granularity != group->scale_granularity || scale->count != count)
        return FAIL(error, ATTN_FIELD_SCALE,
                    "scale of %s: granularity %u, count %u: accepted %u, %u", operand_name(role),
                    scale->granularity, scale->count, group->scale_granularity, count);
    *device = scale->device;
    if (scale->device)
        return ATTN_OK;
    if (!scale->host)
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s: both pointers are NULL",
                    operand_name(role));
    for (uint32_t i = 0; i < count; i++)
        if (!(scale->host[i] > 0) || !isfinite(scale->host[i]))
            return FAIL(error, ATTN_FIELD_SCALE,
                        "scale of %s: value %u is %g: accepted finite, above 0", operand_name(role),
                        i, (double)scale->host[i]);
    memcpy(values, scale->host, count * sizeof *values);
    return ATTN_OK;
}

/* An fp32 value for each query head. */
static attn_status get_per_head(const layer_call *call, uint32_t role, const float **values,
                                attn_error *error)
{
    const attn_tensor *operand = NULL;
    operand_form form = {.dtype = ATTN_F32,
                         .ndim = 1,
                         .shape = {(int64_t)call->group->kv_heads * call->group->ratio}};
    attn_status status = get_operand(call, role, form, &operand, error);
    if (status == ATTN_OK)
        *values = (const float *)(const void *)operand_data(operand);
    return status;
}

static attn_status get_constants(layer_call *call, attn_error *error)
{
    const triton_group *group = call->group;
    kernel_params *p = &call->params;
    attn_status status = ATTN_OK;
    if (triton_is_fp8(group->kv_dtype)) {
        status = get_scale(call, ATTN_ROLE_K_CACHE, p->k_scales, &p->k_scale_device, error);
        if (status == ATTN_OK)
            status = get_scale(call, ATTN_ROLE_V_CACHE, p->v_scales, &p->v_scale_device, error);
    }
    if (status == ATTN_OK && group->flags & ATTN_GROUP_HAS_SINKS &&
        !(call->args.flags & ATTN_FORWARD_OMIT_SINK))
        status = get_per_head(call, ATTN_ROLE_SINKS, &p->sinks, error);
    if (status == ATTN_OK && group->flags & ATTN_GROUP_HAS_ALIBI)
        status = get_per_head(call, ATTN_ROLE_ALIBI_SLOPES, &p->slopes, error);
    return status;
}

/* ---- The batch ------------------------------------------------------------------------------- */

static void take_batch(layer_call *call)
{
    const attn_metadata *metadata = call->metadata;
    const attn_batch *batch = &metadata->batch;
    const attn_kv_batch *kv = call->kv;
    kernel_params *p = &call->params;
    const attn_bounds *bounds = &metadata->bounds;
    const triton_options *options = &call->instance->options;
    int decode = batch->mode == ATTN_MODE_DECODE;
    p->seq_lens = batch->seq_lens.device;
    p->q_indptr = decode ? NULL : batch->q_indptr.device;
    p->prefix_lens = triton_has_cache(call->group) ? batch->prefix_lens.device : NULL;
    p->positions = batch->positions.device;
    p->kv_lens = kv->kv_lens.device;
    p->new_indptr = kv->kv_new_indptr.device;
    p->req_pool_indices = batch->req_pool_indices.device;
    p->req_to_token = kv->req_to_token.device;
    p->block_table = kv->block_table.device;
    p->table_stride = p->block_table ? kv->block_table_stride : kv->req_to_token_stride;
    p->out_cache_loc = (const long long *)kv->out_cache_loc.device;
    p->mask_bits = metadata->mask.bits;
    p->mask_indptr = (const long long *)metadata->mask.indptr.device;
    p->mask_qlen = metadata->mask.kind == ATTN_MASK_QLEN;
    p->window_right = metadata->mask.kind == ATTN_MASK_LAYER ? call->group->window_right : -1;
    p->num_seqs = batch->num_seqs;
    p->num_tokens = batch->num_tokens;
    p->counts = (const int *)(uintptr_t)metadata->counts;
    p->num_decode_seqs = batch->num_decode_seqs;
    p->split_part = triton_split_part(call->group, batch->mode, bounds);
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

/* Sizes that launch shapes are made of: of a graph's, the bounds. */
typedef struct extent {
    int64_t seqs, tokens, q_len;
    int64_t decode_seqs; /* the most that there may be */
} extent;

static extent extent_of(const attn_metadata *metadata)
{
    const attn_bounds *bounds = &metadata->bounds;
    const attn_batch *batch = &metadata->batch;
    extent e = {batch->num_seqs, batch->num_tokens, batch->max_q_len, batch->num_decode_seqs};
    if (metadata->kind == ATTN_METADATA_GRAPH)
        e = (extent){bounds->max_seqs, bounds->max_tokens, bounds->max_q_len, bounds->max_seqs};
    if (batch->mode == ATTN_MODE_DECODE)
        e.q_len = 1;
    return e;
}

/* All sequences, or those before the decode ones; padding, too. */
static attn_status launch_extend(layer_call *call, attn_stream stream, attn_error *error)
{
    const kernel_shape *shape = &call->build->shape;
    extent e = extent_of(call->metadata);
    int64_t tile_rows = EXTEND_WARPS * 16 * shape->row_tiles;
    if (call->params.split_part == SPLIT_DECODE && call->metadata->kind == ATTN_METADATA_EAGER) {
        e.seqs -= e.decode_seqs;
        e.tokens -= e.decode_seqs;
    }
    return launch(call, call->build->extend, "attn_extend",
                  e.tokens * call->group->ratio / tile_rows + e.seqs + 1, call->group->kv_heads, 1,
                  EXTEND_WARPS * 32, shape->extend_shared, stream, error);
}

/* As many blocks as the device runs at once, at most one for each piece of work; then, where there
 * is something to be merged or padding to be cleared, the second stage. */
static attn_status launch_split(layer_call *call, attn_stream stream, attn_error *error)
{
    const triton_group *group = call->group;
    const kernel_shape *shape = &call->build->shape;
    const attn_batch *batch = &call->metadata->batch;
    extent e = extent_of(call->metadata);
    int all = call->params.split_part == SPLIT_ALL;
    int64_t seqs = all ? e.seqs : e.decode_seqs, rows = all ? e.tokens : e.decode_seqs;
    int64_t row_tiles = ((all ? e.q_len : 1) * group->ratio + 15) / 16;
    int64_t blocks = (int64_t)group->num_sms * shape->decode_blocks;
    int64_t work = seqs * row_tiles * group->kv_heads * call->params.num_splits;
    int padded = call->metadata->kind == ATTN_METADATA_GRAPH || batch->mode != ATTN_MODE_DECODE ||
                 e.tokens > e.seqs;
    attn_status status =
        launch(call, call->build->decode, "attn_decode", work < blocks ? work : blocks, 1, 1,
               shape->warps * 32, shape->decode_shared, stream, error);
    if (status != ATTN_OK || (call->params.num_splits == 1 && !(all && padded)))
        return status;
    return launch(call, call->build->reduce, "attn_reduce", rows,
                  (int64_t)group->kv_heads * group->ratio, 1, (group->v_dim + 31) / 32 * 32, 0,
                  stream, error);
}

static attn_status launch_all(layer_call *call, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    extent e = extent_of(call->metadata);
    if (call->save)
        status = launch(call, call->build->save, "attn_save_kv", e.tokens, call->group->kv_heads, 1,
                        64, 0, stream, error);
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
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    if (!metadata->planned)
        return plugin_fail(error, ATTN_BAD_STATE, "forward before a batch was planned");
    if (metadata->batch.mode == ATTN_MODE_IDLE || metadata->batch.num_tokens == 0)
        return ATTN_OK;
    if (decode != (metadata->batch.mode == ATTN_MODE_DECODE))
        return plugin_fail(error, ATTN_BAD_STATE, "forward_%s for a batch of mode %u",
                           decode ? "decode" : "extend", metadata->batch.mode);
    layer_call call = {.metadata = metadata, .instance = metadata->instance};
    COPY_SIZED(&call.args, args);
    if (call.args.num_operands > 0 && !call.args.operands)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    if (!call.args.scales)
        call.args.num_scales = 0;
    attn_status status = find_layer(&call, layer_id, error);
    if (status == ATTN_OK)
        status = get_queries(&call, error);
    if (status == ATTN_OK)
        status = get_new_keys(&call, error);
    if (status == ATTN_OK)
        status = get_caches(&call, error);
    if (status == ATTN_OK)
        status = get_constants(&call, error);
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
