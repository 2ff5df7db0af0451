/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: operands become the kernels' parameters; then a launch, or more.
 *
 *   fi_save       new keys into the cache; in DECODE, and where they are few, the attention kernel
 *                 does that on its way
 *   fi_prefill_*  keys that sequences of a DECODE batch share: once for each level
 *   fi_attend_*, fi_prefill_*  attention, of few or of many rows: new keys from k and v, the others
 *                 from the cache
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"
#include "plugins/common/cuda/tensor_map.h"
#include "attn_plugin_util.h"

#include <string.h>

enum { PANEL_BYTES = 128 };

static const float log2_e = 1.44269504088896341f;

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const fi_group *group;
    const attn_util_layer *layer;
    const attn_kv_batch *kv;
    uint32_t index; /* of the group */
    int kernel;     /* KERNEL_* */
    int plan;       /* FI_SEQUENCES, FI_BESIDE, or a level of shared prefixes */
    attn_forward_args args;
    fi_call params;
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    attn_status status = fi_find_layer(call->instance, layer_id, &call->index, &call->layer, error);
    if (status != ATTN_OK)
        return status;
    call->group = &call->instance->groups[call->index];
    call->kv = &call->metadata->plan.kv[call->index];
    call->kernel = fi_find_kernel(call->metadata, call->index, call->plan);
    return ATTN_OK;
}

static int shift_of(int32_t size)
{
    int shift = 0;
    while (shift < 30 && 1 << shift < size)
        shift++;
    return 1 << shift == size ? shift : -1;
}

/* Fill in the group's plan and constants; operands are set already. */
static void fill_params(layer_call *call)
{
    const cuda_group *group = &call->group->base;
    const attn_bounds *bounds = &call->metadata->plan.bounds;
    fi_workspace_layout workspace = fi_layout_workspace(call->group, bounds, call->kernel);
    fi_grid grid = fi_bounded_grid(call->group, call->kernel, bounds);
    fi_call *p = &call->params;
    fi_prior_layout prior = fi_layout_prior(call->group, bounds);
    fi_plan_call plan;
    fi_plan_of(call->metadata, call->index, call->plan, &plan);
    p->batch = plan.batch;
    p->plan = plan.plan;
    p->tiles = plan.tiles;
    p->starts = plan.starts;
    p->partial = (float *)(void *)call->metadata->workspace;
    p->partial_row = (float *)(void *)(call->metadata->workspace + workspace.rows_at);
    p->prior = (float *)(void *)(call->metadata->workspace + prior.at);
    p->prior_row = (float *)(void *)(call->metadata->workspace + prior.rows_at);
    p->split = fi_is_prefill(call->kernel) ? 0 : plan.split;
    p->most_parts = (int)fi_most_splits(call->group, bounds);
    p->prior_rows = bounds->max_seqs;
    p->level = plan.level;
    p->arrived = call->metadata->arrived;
    p->kv_heads = group->kv_heads;
    p->lanes = (int)grid.lanes;
    p->ratio = group->ratio;
    p->ratio_inverse =
        group->ratio > 1 ? (uint32_t)((((uint64_t)1 << 32) + group->ratio - 1) / group->ratio) : 0;
    p->page_size = group->page_size;
    p->page_shift = shift_of(group->page_size);
    p->window_left = group->window_left;
    p->chunk = group->chunk;
    p->custom = plan.custom;
    p->dtype = cuda_element(group->q_dtype);
    p->kv_dtype = cuda_element(group->kv_dtype);
    p->scale_stride = group->scale_granularity == ATTN_SCALE_PER_HEAD;
    p->out_dtype = cuda_element(group->out_dtype);
    p->cap = group->logit_cap;
    p->scale = group->sm_scale * (p->cap != 0 || p->operands.slopes ? 1.0f : log2_e);
    /* Without kv_new_indptr, each sequence of DECODE has one new key, its last. */
    p->save = p->operands.save && !fi_is_prefill(call->kernel) && !p->batch.q_indptr &&
              !p->batch.new_indptr;
    p->saved = p->operands.save && !p->save;
}

/* A map with boxes of 128 bytes of a row and `box` elements along the tensor's dimensions `dims`;
 * -1: no such dimension. */
static attn_status set_map(const layer_call *call, const char *name, uint32_t role,
                           const int dims[3], const uint32_t box[3], fi_tensor_map *to,
                           attn_error *error)
{
    const attn_tensor *tensor = attn_operand(&call->args, role);
    const int all[] = {(int)tensor->ndim - 1, dims[0], dims[1], dims[2]};
    uint32_t size = (uint32_t)attn_dtype_size(tensor->dtype);
    cuda_tensor_map map;
    cuda_tensor_box wanted = {.name = name,
                              .data = attn_util_data(tensor),
                              .dtype = tensor->dtype,
                              .rank = 4,
                              .box = {PANEL_BYTES / size, box[0], box[1], box[2]},
                              .swizzle = 128,
                              .l2 = 128};
    for (int d = 0; d < 4; d++) {
        wanted.shape[d] = all[d] < 0 ? 1 : tensor->shape[all[d]];
        /* The stride of a dimension with one element is unused. */
        wanted.strides[d] = wanted.shape[d] > 1 ? tensor->strides[all[d]] * size : 16;
    }
    attn_status status = cuda_tensor_map_make(call->instance->cuda, &wanted, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

/* Are all rows of a tensor aligned for the copy engine? */
static int has_rows(const layer_call *call, uint32_t role, int aligned)
{
    const attn_tensor *tensor = attn_operand(&call->args, role);
    return tensor && tensor->shape[0] > 0 && call->params.operands.aligned & aligned;
}

/* Keys are read in boxes if pages hold whole boxes, and new keys are, too, but for an fp8 cache. */
static attn_status set_key_maps(layer_call *call, attn_error *error)
{
    fi_call *p = &call->params;
    int hnd = call->group->base.hnd;
    const int cached[] = {1 + hnd, 2 - hnd, 0}, fresh[] = {0, 1, -1}; /* token, head, page */
    const uint32_t new_box[] = {(uint32_t)fi_warp_keys(call->group, call->kernel), 1, 1};
    attn_status status = ATTN_OK;
    p->box_keys = fi_box_keys(call->group, call->kernel);
    const uint32_t box[] = {(uint32_t)p->box_keys, 1, 1};
    if (!call->group->shape->has_hopper)
        return ATTN_OK; /* without a copy engine, keys are read row by row */
    p->has_maps = cuda_group_has_cache(&call->group->base) && p->box_keys > 1 &&
                  has_rows(call, ATTN_ROLE_K_CACHE, CALL_ALIGNED_CACHE);
    /* For an fp8 cache, new keys have to be rounded first. */
    p->has_new_maps =
        !cuda_is_fp8(call->group->base.kv_dtype) && has_rows(call, ATTN_ROLE_K, CALL_ALIGNED_NEW);
    if (p->has_maps)
        status = set_map(call, "k_cache", ATTN_ROLE_K_CACHE, cached, box, &p->k_map, error);
    if (p->has_maps && status == ATTN_OK)
        status = set_map(call, "v_cache", ATTN_ROLE_V_CACHE, cached, box, &p->v_map, error);
    if (p->has_new_maps && status == ATTN_OK)
        status = set_map(call, "k", ATTN_ROLE_K, fresh, new_box, &p->k_new_map, error);
    if (p->has_new_maps && status == ATTN_OK)
        status = set_map(call, "v", ATTN_ROLE_V, fresh, new_box, &p->v_new_map, error);
    return status;
}

/* Outputs of tiles of many rows are written in boxes if a box holds whole queries. Wide kernels use
 * the map for q. */
static attn_status set_out_map(layer_call *call, attn_error *error)
{
    fi_call *p = &call->params;
    static const int dims[] = {1, 0, -1}; /* head, token */
    const uint32_t box[] = {(uint32_t)p->ratio, (uint32_t)(FI_STORE_ROWS / p->ratio), 1};
    if (fi_is_wide(call->group->shape)) {
        p->has_out_map = call->plan == FI_SEQUENCES && FI_STORE_ROWS % p->ratio == 0 &&
                         has_rows(call, ATTN_ROLE_Q, CALL_ALIGNED_Q);
        return p->has_out_map ? set_map(call, "q", ATTN_ROLE_Q, dims, box, &p->out_map, error)
                              : ATTN_OK;
    }
    p->has_out_map = call->group->shape->has_hopper && fi_is_prefill(call->kernel) &&
                     call->plan == FI_SEQUENCES && FI_STORE_ROWS % p->ratio == 0 &&
                     p->out_dtype == p->dtype && has_rows(call, ATTN_ROLE_OUT, CALL_ALIGNED_OUT_16);
    return p->has_out_map ? set_map(call, "out", ATTN_ROLE_OUT, dims, box, &p->out_map, error)
                          : ATTN_OK;
}

/* Blocks for a warp per row and head of the batch, up to SAVE_BLOCKS per multiprocessor. There may
 * be more new rows than rows; warps then save several. */
static int64_t save_blocks(const layer_call *call)
{
    const cuda_plan *plan = &call->metadata->plan;
    int64_t most = (int64_t)cuda_plan_num_sms(plan, call->instance->facts.num_sms) * SAVE_BLOCKS;
    int64_t warps = cuda_plan_extent(plan).tokens * call->group->base.kv_heads;
    int64_t blocks = (warps * 32 + FI_SAVE_THREADS - 1) / FI_SAVE_THREADS;
    return blocks < 1 ? 1 : blocks < most ? blocks : most;
}

/* Does attention save the codes that it rounds? One block must have all rows of a sequence. Tiles
 * of few rows round one key after the other; in half tiles a warpgroup rounds keys that come in
 * boxes. */
static int saves_codes(const layer_call *call)
{
    const cuda_group *group = &call->group->base;
    const cuda_extent extent = cuda_plan_extent(&call->metadata->plan);
    const int aligned = CALL_ALIGNED_NEW | CALL_ALIGNED_CACHE;
    if (call->kernel == KERNEL_CODES)
        return extent.q_len * group->ratio <= FI_ROWS && extent.q_len <= FEW_SAVED;
    return call->kernel == KERNEL_PREFILL_HALF_CODES && call->params.has_maps &&
           call->params.page_shift >= 0 && (call->params.operands.aligned & aligned) == aligned;
}

/* Does the attention kernel save the new rows? Few rows of 16 bits cost nothing: warps copy them
 * beside attention, which reads them from k and v. It does not if rows may have two launches, as
 * neither may have all of them, and the kernel for many items has no registers for it. */
static int saves_on_its_way(const layer_call *call)
{
    const cuda_group *group = &call->group->base;
    const int aligned = CALL_ALIGNED_NEW | CALL_ALIGNED_CACHE;
    fi_grid grid = fi_bounded_grid(call->group, call->kernel, &call->metadata->plan.bounds);
    int64_t pieces = cuda_plan_extent(&call->metadata->plan).tokens * group->kv_heads *
                     ((group->dim + group->v_dim) / 8);
    if (call->group->is_invariant || call->params.batch.new_indptr)
        return 0;
    if (cuda_is_fp8(group->kv_dtype))
        return saves_codes(call);
    return call->kernel != KERNEL_ATTEND_MANY &&
           (call->params.operands.aligned & aligned) == aligned &&
           pieces <= (int64_t)grid.lanes * grid.columns * SAVE_PIECES;
}

static attn_status launch_save(layer_call *call, attn_stream stream, attn_error *error)
{
    const cuda_launch launch = {.function = call->instance->save,
                                .name = "fi_save",
                                .grid = {save_blocks(call), 1, 1},
                                .block = {FI_SAVE_THREADS},
                                .programmatic =
                                    call->group->shape->has_hopper && call->metadata->is_settled};
    int dim = call->group->base.dim, v_dim = call->group->base.v_dim;
    void *params[] = {&call->params, &dim, &v_dim};
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

static attn_status launch_attend(layer_call *call, attn_stream stream, attn_error *error)
{
    const fi_kernel *kernel = &call->group->shape->kernels[call->kernel];
    fi_grid grid = fi_bounded_grid(call->group, call->kernel, &call->metadata->plan.bounds);
    const cuda_launch launch = {
        .function = call->group->functions[call->kernel],
        .name = kernel->name,
        .grid = {fi_is_prefill(call->kernel) ? (int64_t)grid.lanes * grid.columns : grid.lanes,
                 fi_is_prefill(call->kernel) ? 1 : grid.columns, 1},
        .block = {kernel->threads},
        .shared = fi_shared_bytes(call->group, call->kernel),
        .programmatic = call->group->shape->has_hopper && call->metadata->is_settled};
    void *params[] = {&call->params};
    call->metadata->is_settled = 1;
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

/* Launch attention for call->plan, from parameters to kernel. */
static attn_status attend(layer_call *call, attn_stream stream, attn_error *error)
{
    fill_params(call);
    attn_status status = set_key_maps(call, error);
    if (status == ATTN_OK)
        status = set_out_map(call, error);
    return status == ATTN_OK ? launch_attend(call, stream, error) : status;
}

/* Launch attention for sequences of few rows, if others have a kernel of their own. */
static attn_status attend_beside(const layer_call *call, attn_stream stream, attn_error *error)
{
    layer_call beside = *call;
    beside.plan = FI_BESIDE;
    beside.kernel = fi_find_kernel(call->metadata, call->index, FI_BESIDE);
    return attend(&beside, stream, error);
}

/* Launch attention over the keys of a level, all of them in the cache, for the sequences that share
 * them. */
static attn_status attend_runs(const layer_call *call, int level, attn_stream stream,
                               attn_error *error)
{
    layer_call runs = *call;
    runs.plan = level;
    runs.kernel = KERNEL_PREFILL;
    runs.params.operands.k = runs.params.operands.v = NULL;
    runs.params.operands.save = 0;
    return attend(&runs, stream, error);
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    if (!metadata || !args)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status = cuda_plan_check_forward(&metadata->plan, decode, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    layer_call call = {.metadata = metadata, .instance = metadata->instance, .plan = FI_SEQUENCES};
    ATTN_UTIL_READ(&call.args, args);
    status = find_layer(&call, layer_id, error);
    if (status == ATTN_OK)
        status = cuda_operands_take(&call.group->base, call.layer, &metadata->plan, call.kv,
                                    &call.args, &call.params.operands, error);
    if (status != ATTN_OK)
        return status;
    fill_params(&call);
    status = set_key_maps(&call, error);
    if (status == ATTN_OK)
        status = set_out_map(&call, error);
    if (status != ATTN_OK)
        return status;
    if (call.params.saved && !fi_part_of(metadata, call.index)) {
        call.params.saves = saves_on_its_way(&call);
        call.params.saved = !call.params.saves;
        if (!call.params.saves)
            status = launch_save(&call, stream, error);
    }
    for (int level = 0; level < fi_planned_levels(metadata, call.group) && status == ATTN_OK;
         level++)
        status = attend_runs(&call, level, stream, error);
    if (status == ATTN_OK && fi_has_beside(metadata, call.index))
        status = attend_beside(&call, stream, error);
    return status == ATTN_OK ? launch_attend(&call, stream, error) : status;
}

attn_status fi_forward_extend(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status fi_forward_decode(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
