/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: operands become the kernels' parameters; then two launches.
 *
 *   fa3_rows    new keys into the cache, padding, sequences that are not for tiles
 *   forward_*   the tiles: queries and outputs by tensor maps over the operands' rows, keys by those
 *               over the cache's pages, or over the rows of k and v where they are all there is
 *
 * In DECODE the query heads of a KV head are laid side by side as the queries of one tile, where all of
 * them see the same keys and have no sinks: the keys are read once.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/batch.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/tensor_map.h"
#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/operand.h"
#include "plugins/common/plugin_error.h"

#include <string.h>

#define FAIL(error, field, ...)                                                                    \
    plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

enum { MAP_BYTES = 16, ELEMENT_BYTES = 2, PANEL = 64 };

static const float log2_e = 1.44269504088896341f;

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const fa3_group *group;
    const instance_layer *layer;
    const fa3_metadata *view;
    attn_forward_args args;
    const attn_tensor *q, *out, *lse, *k, *v, *k_cache, *v_cache;
    const float *sinks;
    int32_t save;
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->instance;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++) {
            if (instance->groups[i].layers[n].layer_id != layer_id)
                continue;
            call->group = &instance->groups[i];
            call->layer = &instance->groups[i].layers[n];
            call->view = &call->metadata->groups[i];
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

static attn_status get_queries(layer_call *call, attn_error *error)
{
    const fa3_group *group = call->group;
    int64_t rows = call->metadata->batch.num_tokens, heads = group->heads_q;
    operand_form q = {.dtype = group->dtype, .ndim = 3, .shape = {0, heads, group->tile->dim}};
    operand_form out = {
        .dtype = group->dtype, .ndim = 3, .shape = {0, heads, group->tile->dim_v}, .written = 1};
    operand_form lse = {.dtype = ATTN_F32, .ndim = 2, .shape = {0, heads}, .written = 1};
    operand_form sinks = {.dtype = ATTN_F32, .ndim = 1, .shape = {heads}};
    const attn_tensor *given = NULL;
    attn_status status = get_rows(call, ATTN_ROLE_Q, q, rows, &call->q, error);
    if (status == ATTN_OK)
        status = get_rows(call, ATTN_ROLE_OUT, out, rows, &call->out, error);
    if (status == ATTN_OK && attn_operand(&call->args, ATTN_ROLE_LSE))
        status = get_rows(call, ATTN_ROLE_LSE, lse, rows, &call->lse, error);
    if (status != ATTN_OK || !(group->flags & ATTN_GROUP_HAS_SINKS) ||
        call->args.flags & ATTN_FORWARD_OMIT_SINK)
        return status;
    status = get_operand(call, ATTN_ROLE_SINKS, sinks, &given, error);
    if (status == ATTN_OK)
        call->sinks = (const float *)(const void *)operand_data(given);
    return status;
}

static attn_status check_new_keys(const layer_call *call, attn_error *error)
{
    if (call->layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the KV of another layer: accepted no operands k and v",
                    call->layer->layer_id);
    if (!fa3_has_cache(call->group))
        return ATTN_OK;
    if (!(call->args.flags & ATTN_FORWARD_SAVE_KV))
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "k and v without SAVE_KV, which the bounds of this metadata exclude");
    if (!call->view->out_cache_loc)
        return FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    return ATTN_OK;
}

static attn_status get_new_keys(layer_call *call, attn_error *error)
{
    const fa3_group *group = call->group;
    int64_t rows = call->view->batch.new_indptr ? 0 : call->metadata->batch.num_tokens;
    operand_form form = {
        .dtype = group->dtype, .ndim = 3, .shape = {0, group->heads_kv, group->tile->dim}};
    if (fa3_has_cache(group) && !attn_operand(&call->args, ATTN_ROLE_K) &&
        !attn_operand(&call->args, ATTN_ROLE_V))
        return ATTN_OK;
    attn_status status = get_rows(call, ATTN_ROLE_K, form, rows, &call->k, error);
    form.shape[2] = group->tile->dim_v;
    if (status == ATTN_OK)
        status = get_rows(call, ATTN_ROLE_V, form, rows, &call->v, error);
    if (status == ATTN_OK)
        status = check_new_keys(call, error);
    call->save = fa3_has_cache(group);
    return status;
}

static attn_status get_caches(layer_call *call, attn_error *error)
{
    const fa3_group *group = call->group;
    int64_t page = group->page_size, heads = group->heads_kv;
    operand_form form = {
        .dtype = group->dtype,
        .ndim = 4,
        .shape = {0, group->hnd ? heads : page, group->hnd ? page : heads, group->tile->dim},
        .written = call->save};
    if (!fa3_has_cache(group))
        return ATTN_OK;
    attn_status status = get_rows(call, ATTN_ROLE_K_CACHE, form, 0, &call->k_cache, error);
    form.shape[3] = group->tile->dim_v;
    if (status == ATTN_OK)
        status = get_rows(call, ATTN_ROLE_V_CACHE, form, 0, &call->v_cache, error);
    if (status == ATTN_OK && call->k_cache->shape[0] != call->v_cache->shape[0])
        status = FAIL(error, ATTN_FIELD_OPERAND, "k_cache has %lld pages, v_cache %lld",
                      (long long)call->k_cache->shape[0], (long long)call->v_cache->shape[0]);
    return status;
}

static attn_status get_operands(layer_call *call, attn_error *error)
{
    attn_status status = get_queries(call, error);
    if (status == ATTN_OK)
        status = get_new_keys(call, error);
    if (status == ATTN_OK)
        status = get_caches(call, error);
    return status;
}

/* ---- What tiles can take --------------------------------------------------------------------- */

static int64_t stride_bytes(const attn_tensor *tensor, uint32_t dimension)
{
    return tensor->strides[dimension] * ELEMENT_BYTES;
}

/* Does every vector begin at a multiple of 16 bytes, no further from its neighbour than a map can tell?
 */
static int is_aligned(const attn_tensor *tensor)
{
    if (!tensor)
        return 1;
    if ((uintptr_t)operand_data(tensor) % MAP_BYTES != 0)
        return 0;
    for (uint32_t d = 0; d + 1 < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && (stride_bytes(tensor, d) % MAP_BYTES != 0 ||
                                     stride_bytes(tensor, d) >= INT64_C(1) << 40))
            return 0;
    return 1;
}

/* Are keys read from k and v, as there are no others? */
static int reads_rows(const layer_call *call)
{
    return call->k && (!fa3_has_cache(call->group) || call->view->cu_seqlens_k);
}

static int is_for_tiles(const layer_call *call)
{
    const attn_tensor *k = reads_rows(call) ? call->k : call->k_cache;
    const attn_tensor *v = reads_rows(call) ? call->v : call->v_cache;
#ifndef FA3_HAS_LSE_TOKEN
    if (call->lse && call->view->batch.q_indptr)
        return 0;
#endif
    return is_aligned(call->q) && is_aligned(call->out) && is_aligned(k) && is_aligned(v) &&
           k->shape[0] > 0 && (call->group->logit_cap > 0 || call->group->sm_scale > 0);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static fa3_rows_call rows_call(const layer_call *call, int all_slow)
{
    const fa3_group *group = call->group;
    fa3_rows_call p = {.batch = call->view->batch,
                       .plan = call->view->plan,
                       .slow = call->view->slow,
                       .q = operand_data(call->q),
                       .out = operand_data(call->out),
                       .sinks = call->sinks,
                       .block_table = call->view->page_table,
                       .q_row = call->q->strides[0],
                       .q_head = call->q->strides[1],
                       .out_row = call->out->strides[0],
                       .out_head = call->out->strides[1],
                       .table_stride = call->view->page_table_stride,
                       .heads_q = group->heads_q,
                       .heads_per_kv = group->ratio,
                       .dim = group->tile->dim,
                       .dim_v = group->tile->dim_v,
                       .page_size = group->page_size,
                       .dtype = group->dtype == ATTN_F16 ? ELEMENT_F16 : ELEMENT_BF16,
                       .save = call->save,
                       .all_slow = all_slow,
                       .scale = group->sm_scale,
                       .cap = group->logit_cap};
    p.batch.slots = (const i64 *)call->view->out_cache_loc;
    if (call->lse) {
        p.lse = (float *)(void *)operand_data(call->lse);
        p.lse_row = call->lse->strides[0];
        p.lse_head = call->lse->strides[1];
    }
    return p;
}

static void add_keys(const layer_call *call, fa3_rows_call *p)
{
    uint32_t token = call->group->hnd ? 2 : 1, head = call->group->hnd ? 1 : 2;
    if (call->k) {
        p->k = operand_data(call->k);
        p->k_row = call->k->strides[0];
        p->k_head = call->k->strides[1];
        p->v = operand_data(call->v);
        p->v_row = call->v->strides[0];
        p->v_head = call->v->strides[1];
    }
    if (call->k_cache) {
        p->k_cache = operand_data(call->k_cache);
        p->k_page = call->k_cache->strides[0];
        p->k_token = call->k_cache->strides[token];
        p->k_cache_head = call->k_cache->strides[head];
        p->v_cache = operand_data(call->v_cache);
        p->v_page = call->v_cache->strides[0];
        p->v_token = call->v_cache->strides[token];
        p->v_cache_head = call->v_cache->strides[head];
    }
    p->vectors = is_aligned(call->k) && is_aligned(call->v) && is_aligned(call->k_cache) &&
                 is_aligned(call->v_cache);
}

static attn_status launch_rows(const layer_call *call, int all_slow, attn_stream stream,
                               attn_error *error)
{
    const attn_instance *instance = call->instance;
    fa3_rows_call p = rows_call(call, all_slow);
    add_keys(call, &p);
    const cuda_launch launch = {.function = instance->rows,
                                .name = "fa3_rows",
                                .grid = {(int64_t)instance->facts.num_sms * ROWS_BLOCKS, 1, 1},
                                .block = {FA3_ROWS_THREADS}};
    void *params[] = {&p};
    return cuda_launch_run(instance->cuda, &launch, params, stream, error);
}

/* ---- Tensor maps ----------------------------------------------------------------------------- */

/* Dimensions {dim, row, head, outer} of an operand: extents, and the strides of all but the first in
 * elements. */
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
                           .data = operand_data(view->tensor),
                           .dtype = call->group->dtype,
                           .rank = 4,
                           .box = {PANEL, view->box_rows, 1, 1},
                           .swizzle = 128,
                           .l2 = 128};
    for (int d = 0; d < 4; d++) {
        box.shape[d] = view->shape[d];
        /* Of one element there is no next one. */
        box.strides[d] = view->shape[d] > 1 ? view->strides[d] * ELEMENT_BYTES : MAP_BYTES;
    }
    attn_status status = cuda_tensor_map_make(call->instance->cuda, &box, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

/* Rows of q, k, v or out: ragged, or one row each, or a KV head's query heads as rows of a batch. */
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
    const fa3_batch *batch = &call->view->batch;
    if (batch->q_indptr)
        return ROWS_RAGGED;
    /* With one query the keys after it do not exist. */
    int fits = call->group->ratio > 1 && call->group->ratio <= call->group->tile->queries;
    return fits && batch->window_left == FA3_UNBOUNDED && !call->sinks ? ROWS_PACKED : ROWS_SINGLE;
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
    p->page_size = call->group->page_size;
    p->box_rows = greatest_divisor(call->group->page_size, p->box_rows);
}

static void set_outputs(const layer_call *call, int form, struct fa3_forward_params *p)
{
    const attn_tensor *out = call->out, *lse = call->lse;
    int packed = form == ROWS_PACKED, ragged = form == ROWS_RAGGED;
    int64_t ratio = call->group->ratio;
    p->out = (uintptr_t)operand_data(out);
    p->out_token = packed ? out->strides[1] : out->strides[0];
    p->out_head = packed ? out->strides[1] * ratio : out->strides[1];
    p->out_batch = ragged ? 0 : out->strides[0];
    if (!lse)
        return;
    p->lse = (uintptr_t)operand_data(lse);
#ifdef FA3_HAS_LSE_TOKEN
    p->lse_token = packed ? lse->strides[1] : lse->strides[0];
#endif
    p->lse_head = packed ? lse->strides[1] * ratio : lse->strides[1];
    p->lse_batch = ragged ? 0 : lse->strides[0];
}

/* Which tiles there are: those of the plan's list, or of one sequence by arithmetic, where tiles that
 * share keys run together. */
static void set_work(const layer_call *call, int form, struct fa3_forward_params *p)
{
    const attn_metadata *metadata = call->metadata;
    const fa3_tile *tile = call->group->tile;
    const fa3_metadata *view = call->view;
    int64_t pair_bytes = (int64_t)(tile->dim + tile->dim_v) * ELEMENT_BYTES *
                         (view->max_seqlen_k > 0 ? view->max_seqlen_k : view->max_seqlen_q);
    int64_t pairs = pair_bytes > 0 ? L2_SECTION / pair_bytes : 0;
    int one = metadata->kind == ATTN_METADATA_EAGER && metadata->batch.num_seqs == 1 &&
              form == ROWS_RAGGED;
    p->batch = one ? 1 : metadata->batch.num_seqs;
    p->q_length = form == ROWS_PACKED ? call->group->ratio : view->max_seqlen_q;
    p->q_tiles = (p->q_length + tile->queries - 1) / tile->queries;
    p->section = (int32_t)(pairs < 1 ? 1 : pairs > p->heads_q ? p->heads_q : pairs) *
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
    const fa3_group *group = call->group;
    int capped = group->logit_cap > 0;
    p->sinks = (uintptr_t)call->sinks;
    p->window_left = call->view->batch.window_left;
    p->window_right =
        form == ROWS_PACKED ? FA3_UNBOUNDED : call->view->batch.window_right;
    p->score_log2 = (capped ? group->logit_cap : group->sm_scale) * log2_e;
    p->score_cap = capped ? group->sm_scale / group->logit_cap : 0.0f;
}

static attn_status set_maps(const layer_call *call, int form, struct fa3_forward_params *p,
                            attn_error *error)
{
    int32_t ratio = call->group->ratio;
    int keys_form = form == ROWS_RAGGED ? ROWS_RAGGED : ROWS_SINGLE;
    uint32_t box_rows = (uint32_t)p->box_rows;
    map_view q = view_rows("q", call->q, form, ratio, GROUP_QUERIES);
    map_view o = view_rows("out", call->out, form, ratio, GROUP_QUERIES);
    map_view k, v;
    if (reads_rows(call)) {
        k = view_rows("k", call->k, keys_form, 1, box_rows);
        v = view_rows("v", call->v, keys_form, 1, box_rows);
    } else {
        k = view_pages("k_cache", call->k_cache, call->group->hnd, box_rows);
        v = view_pages("v_cache", call->v_cache, call->group->hnd, box_rows);
    }
    attn_status status = make_map(call, &q, &p->q, error);
    if (status == ATTN_OK)
        status = make_map(call, &o, &p->o, error);
    if (status == ATTN_OK)
        status = make_map(call, &k, &p->k, error);
    return status == ATTN_OK ? make_map(call, &v, &p->v, error) : status;
}

/* Blocks: as many as run at once, or as there may be tiles. */
static int64_t blocks_for(const layer_call *call, const struct fa3_forward_params *p)
{
    const attn_metadata *metadata = call->metadata;
    attn_bounds extent = metadata->bounds;
    if (metadata->kind == ATTN_METADATA_EAGER) {
        extent.max_seqs = metadata->batch.num_seqs;
        extent.max_tokens = metadata->batch.num_tokens;
    }
    int64_t tiles = call->view->cu_seqlens_q ? fa3_layout_plan(call->group, &extent).most_tiles
                                             : (int64_t)extent.max_seqs;
    int64_t most = call->instance->facts.num_sms, work = tiles * p->heads_q;
    return work < most ? work : most;
}

static attn_status launch_tiles(const layer_call *call, attn_stream stream, attn_error *error)
{
    const fa3_tile *tile = call->group->tile;
    int form = form_of(call);
    struct fa3_forward_params p;
    memset(&p, 0, sizeof p);
    p.heads_q = form == ROWS_PACKED ? call->group->heads_kv : call->group->heads_q;
    p.heads_per_kv = form == ROWS_PACKED ? 1 : call->group->ratio;
    p.counter = call->metadata->counter;
    set_keys(call, &p);
    set_outputs(call, form, &p);
    set_work(call, form, &p);
    set_scores(call, form, &p);
    attn_status status = set_maps(call, form, &p, error);
    if (status != ATTN_OK)
        return status;
    const cuda_launch launch = {.function = call->group->forward,
                                .name = tile->name,
                                .grid = {blocks_for(call, &p), 1, 1},
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
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status =
        batch_check_forward(metadata->planned, metadata->batch.mode, decode, error);
    if (status != ATTN_OK || metadata->batch.mode == ATTN_MODE_IDLE ||
        metadata->batch.num_tokens == 0)
        return status;
    layer_call call = {.metadata = metadata, .instance = metadata->instance};
    COPY_SIZED(&call.args, args);
    if (call.args.num_operands > 0 && !call.args.operands)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    status = find_layer(&call, layer_id, error);
    if (status == ATTN_OK)
        status = get_operands(&call, error);
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
