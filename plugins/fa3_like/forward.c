/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: operands become the kernels' parameters; then two launches.
 *
 *   fa3_rows    new keys into the cache, padding, sequences that are not for tiles
 *   forward_*   the tiles: queries and outputs by tensor maps over the operands' rows, keys by
 * those over the cache's pages, or over the rows of k and v where they are all there is
 *
 * In DECODE the query heads of a KV head are laid side by side as the queries of one tile, where
 * all of them see the same keys and have no sinks: the keys are read once.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"
#include "plugins/common/cuda/tensor_map.h"

#include <string.h>

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

enum { ELEMENT_BYTES = 2, PANEL = 64 };

static const float log2_e = 1.44269504088896341f;

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const fa3_group *group;
    const attn_util_layer *layer;
    const fa3_metadata *view;
    const attn_kv_batch *kv;
    attn_forward_args args;
    fa3_rows_call rows; /* with the operands */
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->instance;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].base.num_layers; n++) {
            if (instance->groups[i].base.layers[n].layer_id != layer_id)
                continue;
            call->group = &instance->groups[i];
            call->layer = &instance->groups[i].base.layers[n];
            call->view = &call->metadata->groups[i];
            call->kv = &call->metadata->plan.kv[i];
            return ATTN_OK;
        }
    return FAIL(error, ATTN_FIELD_LAYER_ID, "layer_id %d is not of this instance", layer_id);
}

static attn_status take_operands(layer_call *call, attn_error *error)
{
    call_operands *o = &call->rows.operands;
    attn_status status = cuda_operands_take(&call->group->base, call->layer, &call->metadata->plan,
                                            call->kv, &call->args, o, error);
    if (status == ATTN_OK && o->k && !o->save && cuda_group_has_cache(&call->group->base))
        status =
            FAIL(error, ATTN_FIELD_OPERAND,
                 "operands k and v without SAVE_KV, which the bounds of this metadata exclude");
    return status;
}

/* ---- What tiles can take --------------------------------------------------------------------- */

/* Are keys read from k and v, as there are no others? */
static int reads_rows(const layer_call *call)
{
    return call->rows.operands.k &&
           (call->view->cu_seqlens_k || !cuda_group_has_cache(&call->group->base));
}

/* Tensor maps and the kernel's own stores move 16 bytes at a time. */
static int is_aligned(const layer_call *call)
{
    const call_operands *o = &call->rows.operands;
    int needed = CALL_ALIGNED_Q | (reads_rows(call) ? CALL_ALIGNED_NEW : CALL_ALIGNED_CACHE);
    return (o->aligned & needed) == needed &&
           ((uintptr_t)o->out | (uint64_t)o->out_row | (uint64_t)o->out_head) % 16 == 0;
}

static int is_for_tiles(const layer_call *call)
{
    const cuda_group *group = &call->group->base;
    const attn_tensor *keys =
        attn_operand(&call->args, reads_rows(call) ? ATTN_ROLE_K : ATTN_ROLE_K_CACHE);
    /* The kernel takes a score_cap of 0 for none, and without one wants scores to grow with q.k. */
    int has_scale = group->logit_cap > 0 ? group->sm_scale != 0 : group->sm_scale > 0;
    return is_aligned(call) && keys->shape[0] > 0 && has_scale;
}

/* Multiprocessors to launch for. */
static int64_t num_sms(const layer_call *call)
{
    return cuda_plan_num_sms(&call->metadata->plan, call->instance->facts.num_sms);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static attn_status launch_rows(layer_call *call, int all_slow, attn_stream stream,
                               attn_error *error)
{
    const attn_instance *instance = call->instance;
    const cuda_group *group = &call->group->base;
    fa3_rows_call *p = &call->rows;
    const cuda_launch launch = {.function = instance->rows,
                                .name = "fa3_rows",
                                .grid = {num_sms(call) * ROWS_BLOCKS, 1, 1},
                                .block = {FA3_ROWS_THREADS}};
    void *params[] = {p};
    cuda_plan_fill(&call->metadata->plan, group, call->kv, &p->batch);
    p->plan = call->view->plan;
    p->slow = call->view->slow;
    p->heads_q = group->kv_heads * group->ratio;
    p->heads_per_kv = group->ratio;
    p->dim = group->dim;
    p->dim_v = group->v_dim;
    p->page_size = group->page_size;
    p->dtype = cuda_element(group->q_dtype);
    p->all_slow = all_slow;
    p->window_left = group->window_left;
    p->scale = group->sm_scale;
    p->cap = group->logit_cap;
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* ---- Tensor maps ----------------------------------------------------------------------------- */

/* Dimensions {dim, row, head, outer} of an operand: extents, and the strides of all but the first
 * in elements. */
typedef struct map_view {
    const char *name;
    const attn_tensor *tensor;
    int64_t shape[4];
    int64_t strides[4];
    uint32_t box_rows;
} map_view;

static attn_status make_map(const layer_call *call, const map_view *view, struct fa3_tensor_map *to,
                            attn_error *error)
{
    cuda_tensor_map map;
    cuda_tensor_box box = {.name = view->name,
                           .data = attn_util_data(view->tensor),
                           .dtype = call->group->base.q_dtype,
                           .rank = 4,
                           .box = {PANEL, view->box_rows, 1, 1},
                           .swizzle = 128,
                           .l2 = 128};
    for (int d = 0; d < 4; d++) {
        box.shape[d] = view->shape[d];
        /* Of one element there is no next one. */
        box.strides[d] = view->shape[d] > 1 ? view->strides[d] * ELEMENT_BYTES : 16;
    }
    attn_status status = cuda_tensor_map_make(call->instance->cuda, &box, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

/* Rows of q, k, v or out: ragged, or one row each, or a KV head's query heads as rows of a batch.
 */
enum { ROWS_RAGGED, ROWS_SINGLE, ROWS_PACKED };

static map_view view_rows(const char *name, const attn_tensor *tensor, int form, int32_t ratio,
                          uint32_t box_rows)
{
    int64_t rows = tensor->shape[0], heads = tensor->shape[1], dim = tensor->shape[2];
    int64_t row = tensor->strides[0], head = tensor->strides[1];
    if (form == ROWS_RAGGED)
        return (map_view){name, tensor, {dim, rows, heads, 1}, {1, row, head, 1}, box_rows};
    if (form == ROWS_SINGLE)
        return (map_view){name, tensor, {dim, 1, heads, rows}, {1, 1, head, row}, box_rows};
    return (map_view){
        name, tensor, {dim, ratio, heads / ratio, rows}, {1, head, head * ratio, row}, box_rows};
}

static map_view view_pages(const char *name, const attn_tensor *tensor, int hnd, uint32_t box_rows)
{
    uint32_t token = hnd ? 2 : 1, head = hnd ? 1 : 2;
    return (map_view){
        name,
        tensor,
        {tensor->shape[3], tensor->shape[token], tensor->shape[head], tensor->shape[0]},
        {1, tensor->strides[token], tensor->strides[head], tensor->strides[0]},
        box_rows};
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

static int32_t greatest_divisor(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* How the rows of q and out are looked at. */
static int form_of(const layer_call *call)
{
    int32_t ratio = call->group->base.ratio;
    if (call->view->cu_seqlens_q)
        return ROWS_RAGGED;
    /* With one query the keys after it do not exist. */
    int fits = ratio > 1 && ratio <= call->group->tile->queries && !call->rows.operands.sinks;
    return fits && call->view->window_left == FA3_UNBOUNDED ? ROWS_PACKED : ROWS_SINGLE;
}

static void set_keys(const layer_call *call, struct fa3_forward_params *p)
{
    const fa3_metadata *view = call->view;
    p->page_size = FA3_UNBOUNDED;
    p->box_rows = call->group->tile->keys;
    if (reads_rows(call)) {
        p->k_starts = (uintptr_t)view->cu_seqlens_k;
        p->k_length = 1; /* in DECODE; else k_starts tell */
        return;
    }
    p->k_lengths = (uintptr_t)view->cache_seqlens;
    p->k_length = view->max_seqlen_k;
    p->block_table = (uintptr_t)view->page_table;
    p->table_stride = view->page_table_stride;
    p->page_size = call->group->base.page_size;
    p->box_rows = greatest_divisor(call->group->base.page_size, p->box_rows);
}

/* Strides in elements. In DECODE sequences are the batch; heads that are packed are its queries. */
static void set_outputs(const layer_call *call, int form, struct fa3_forward_params *p)
{
    const call_operands *o = &call->rows.operands;
    int packed = form == ROWS_PACKED, ragged = form == ROWS_RAGGED;
    int64_t row = o->out_row / ELEMENT_BYTES, head = o->out_head / ELEMENT_BYTES;
    int64_t lse_row = o->lse_row / (int64_t)sizeof(float);
    int64_t lse_head = o->lse_head / (int64_t)sizeof(float), ratio = call->group->base.ratio;
    p->out = (uintptr_t)o->out;
    p->out_token = packed ? head : row;
    p->out_head = packed ? head * ratio : head;
    p->out_batch = ragged ? 0 : row;
    p->lse = (uintptr_t)o->lse;
    p->lse_token = packed ? lse_head : lse_row;
    p->lse_head = packed ? lse_head * ratio : lse_head;
    p->lse_batch = ragged ? 0 : lse_row;
}

/* Which tiles there are: those of the plan's list, or of one sequence by arithmetic, where tiles
 * that share keys run together. */
static void set_work(const layer_call *call, int form, struct fa3_forward_params *p)
{
    const cuda_plan *plan = &call->metadata->plan;
    const fa3_tile *tile = call->group->tile;
    const fa3_metadata *view = call->view;
    int64_t pair_bytes = (int64_t)(tile->dim + tile->dim_v) * ELEMENT_BYTES * view->max_seqlen_k;
    int64_t pairs = pair_bytes > 0 ? L2_SECTION / pair_bytes : 1;
    int one = plan->kind == ATTN_METADATA_EAGER && plan->batch.num_seqs == 1 && form == ROWS_RAGGED;
    p->batch = plan->batch.num_seqs;
    p->q_length = form == ROWS_PACKED ? call->group->base.ratio : view->max_seqlen_q;
    p->q_tiles = (p->q_length + tile->queries - 1) / tile->queries;
    p->section = (int32_t)(pairs < 1            ? 1
                           : pairs > p->heads_q ? p->heads_q
                                                : pairs) *
                 p->heads_per_kv;
    p->q_starts = (uintptr_t)view->cu_seqlens_q;
    if (one) {
        p->q_starts = (uintptr_t)view->plan->starts;
    } else {
        p->tiles = (uintptr_t)view->tiles;
        p->tile_count = (uintptr_t)&view->plan->tile_count;
    }
}

static void set_scores(const layer_call *call, int form, struct fa3_forward_params *p)
{
    const cuda_group *group = &call->group->base;
    int capped = group->logit_cap > 0;
    p->sinks = (uintptr_t)call->rows.operands.sinks;
    p->window_left = call->view->window_left;
    p->window_right = form == ROWS_PACKED ? FA3_UNBOUNDED : call->view->window_right;
    p->score_log2 = (capped ? group->logit_cap : group->sm_scale) * log2_e;
    p->score_cap = capped ? group->sm_scale / group->logit_cap : 0.0f;
}

static attn_status set_maps(const layer_call *call, int form, struct fa3_forward_params *p,
                            attn_error *error)
{
    const attn_forward_args *args = &call->args;
    int32_t ratio = call->group->base.ratio, hnd = call->group->base.hnd;
    int keys_form = form == ROWS_RAGGED ? ROWS_RAGGED : ROWS_SINGLE;
    uint32_t box_rows = (uint32_t)p->box_rows;
    map_view q = view_rows("q", attn_operand(args, ATTN_ROLE_Q), form, ratio, GROUP_QUERIES);
    map_view o = view_rows("out", attn_operand(args, ATTN_ROLE_OUT), form, ratio, GROUP_QUERIES);
    map_view k, v;
    if (reads_rows(call)) {
        k = view_rows("k", attn_operand(args, ATTN_ROLE_K), keys_form, 1, box_rows);
        v = view_rows("v", attn_operand(args, ATTN_ROLE_V), keys_form, 1, box_rows);
    } else {
        k = view_pages("k_cache", attn_operand(args, ATTN_ROLE_K_CACHE), hnd, box_rows);
        v = view_pages("v_cache", attn_operand(args, ATTN_ROLE_V_CACHE), hnd, box_rows);
    }
    attn_status status = make_map(call, &q, &p->q, error);
    if (status == ATTN_OK)
        status = make_map(call, &o, &p->o, error);
    if (status == ATTN_OK)
        status = make_map(call, &k, &p->k, error);
    return status == ATTN_OK ? make_map(call, &v, &p->v, error) : status;
}

/* Blocks: as many as run at once, or as there may be tiles. */
static int64_t count_blocks(const layer_call *call, const struct fa3_forward_params *p)
{
    cuda_extent extent = cuda_plan_extent(&call->metadata->plan);
    int64_t tiles = extent.seqs, most = num_sms(call);
    if (call->view->cu_seqlens_q)
        tiles += extent.tokens / call->group->tile->queries;
    return tiles * p->heads_q < most ? tiles * p->heads_q : most;
}

static attn_status launch_tiles(const layer_call *call, attn_stream stream, attn_error *error)
{
    const fa3_tile *tile = call->group->tile;
    int form = form_of(call);
    struct fa3_forward_params p;
    memset(&p, 0, sizeof p);
    p.heads_per_kv = form == ROWS_PACKED ? 1 : call->group->base.ratio;
    p.heads_q = call->group->base.kv_heads * p.heads_per_kv;
    p.counter = call->metadata->counter;
    set_keys(call, &p);
    set_outputs(call, form, &p);
    set_work(call, form, &p);
    set_scores(call, form, &p);
    attn_status status = set_maps(call, form, &p, error);
    if (status != ATTN_OK)
        return status;
    const cuda_launch launch = {.function = call->group->forward,
                                .name = tile->kernel,
                                .grid = {count_blocks(call, &p), 1, 1},
                                .block = {tile->threads},
                                .shared = tile->shared};
    void *params[] = {&p};
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

/* ---- Forward --------------------------------------------------------------------------------- */

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
        status = take_operands(&call, error);
    if (status != ATTN_OK)
        return status;
    int for_tiles = is_for_tiles(&call);
    status = launch_rows(&call, !for_tiles, stream, error);
    return status == ATTN_OK && for_tiles ? launch_tiles(&call, stream, error) : status;
}

attn_status fa3_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status fa3_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
