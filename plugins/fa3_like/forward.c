/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: the library's, or operands become the kernels' parameters; then two
 * launches.
 *
 *   fa3_rows    new keys into the cache, but for those that tiles save, padding, sequences that are
 *               not for tiles
 *   forward_*   the tiles: queries and outputs by tensor maps over the operands' rows, keys by
 *               those over the cache's pages, or over the rows of k and v where they are all there
 *               is, which are saved then
 *
 * Of expanded latents fi_save, which saves them, goes first.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"
#include "plugins/common/cuda/tensor_map.h"

#include <string.h>

enum { PANEL_BYTES = 128, PIECE_BYTES = 16 };

static const float log2_e = 1.44269504088896341f;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const fa3_own *own = call->metadata->own;
    attn_status status = fi_find_layer(call->instance, layer_id, &call->index, &call->layer, error);
    if (status != ATTN_OK)
        return status;
    call->group = &call->instance->groups[call->index].base;
    call->tiles = &call->kernels->groups[call->index];
    call->view = &own->groups[call->index];
    call->kv = &call->metadata->plan.kv[call->index];
    return ATTN_OK;
}

/* ---- What tiles can take --------------------------------------------------------------------- */

/* Are all keys read from k and v? */
static int reads_rows(const layer_call *call)
{
    return attn_operand(&call->args, ATTN_ROLE_K) && call->view->cu_seqlens_k;
}

/* The library serves keys in small pages, and new keys that are not saved beside others in pages.
 */
static int is_for_library(const layer_call *call)
{
    if (!call->view->is_tiled || reads_rows(call) || call->view->is_gathered)
        return !call->view->is_tiled;
    int is_unsaved =
        attn_operand(&call->args, ATTN_ROLE_K) && !(call->args.flags & ATTN_FORWARD_SAVE_KV);
    return is_unsaved || !call->view->page_table;
}

/* Are keys read from rows that are gathered from the cache? */
static int reads_gathered(const layer_call *call)
{
    return call->view->is_gathered && !reads_rows(call);
}

static uint32_t pieces(int64_t bytes)
{
    return (uint32_t)(bytes / PIECE_BYTES);
}

/* Does the number of every piece of a tensor fit 32 bits? `stride`: bytes of its first dimension.
 */
static int has_few_pieces(const attn_tensor *tensor, int64_t stride)
{
    return stride >= 0 && tensor->shape[0] * (stride / PIECE_BYTES) < UINT32_MAX;
}

/* May tiles read the new keys of sequences without older keys from k and v, and save new keys? New
 * rows must be those of the queries. No sequence reads another's new keys (ATTN_USES_SHARED_NEW_KV
 * is rejected), so none waits for another's tiles. */
static int has_new_rows(const layer_call *call)
{
    const cuda_group *group = call->group;
    const call_operands *o = &call->rows.operands;
    const int aligned = CALL_ALIGNED_NEW | CALL_ALIGNED_CACHE;
    return o->save && !call->kv->kv_new_indptr.device && group->kv_dtype == group->q_dtype &&
           !reads_gathered(call) && (o->aligned & aligned) == aligned &&
           has_few_pieces(attn_operand(&call->args, ATTN_ROLE_K), o->k_row) &&
           has_few_pieces(attn_operand(&call->args, ATTN_ROLE_V), o->v_row) &&
           has_few_pieces(attn_operand(&call->args, ATTN_ROLE_K_CACHE), o->k_page) &&
           has_few_pieces(attn_operand(&call->args, ATTN_ROLE_V_CACHE), o->v_page);
}

static int32_t greatest_divisor(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Rows that tiles save at a time, from their stages; 0: they save one at a time, or none. It is not
 * worth it if a multiprocessor has few tiles, which wait for their saves, or a KV head few query
 * heads, which have much to save each. */
static int32_t save_box(const layer_call *call)
{
    const cuda_extent extent = cuda_plan_extent(&call->metadata->plan);
    const fa3_tile *tile = call->view->tile;
    int32_t rows = greatest_divisor(call->group->page_size, SAVE_BOX);
    int32_t least = extent.q_len >= SAVE_LONG ? 1 : SAVE_BOX_HEADS;
    int64_t tiles =
        fi_count_tiles(&extent, 1, tile->queries) * call->group->kv_heads * call->group->ratio;
    int is_worth = call->group->ratio >= least && tiles >= SAVE_BOX_WAVES * fa3_num_sms(call);
    int can = rows >= SAVE_BOX_LEAST && tile->queries <= SAVE_BOX_QUERIES && has_new_rows(call);
    return can && (is_worth || call->kernels->option == TILES_ALWAYS) ? rows : 0;
}

/* Do tiles save the new keys? */
static int has_savers(const layer_call *call)
{
    int is_long = cuda_plan_extent(&call->metadata->plan).q_len >= SAVE_LONG;
    return has_new_rows(call) &&
           (save_box(call) > 0 || call->group->ratio >= (is_long ? SAVE_HEADS_LONG : SAVE_HEADS));
}

/* Tensor maps and the kernel's own stores move 16 bytes at a time. */
static int is_aligned(const layer_call *call)
{
    int keys = reads_rows(call) ? CALL_ALIGNED_NEW : CALL_ALIGNED_CACHE;
    int needed = CALL_ALIGNED_Q | keys | CALL_ALIGNED_OUT_16;
    return (call->rows.operands.aligned & needed) == needed;
}

static int is_for_tiles(const layer_call *call)
{
    const attn_tensor *keys =
        attn_operand(&call->args, reads_rows(call) ? ATTN_ROLE_K : ATTN_ROLE_K_CACHE);
    return is_aligned(call) && keys->shape[0] > 0 && fa3_has_scale(call->group);
}

int64_t fa3_num_sms(const layer_call *call)
{
    return cuda_plan_num_sms(&call->metadata->plan, call->instance->facts.num_sms);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Where tiles find the cache's scales; NULL: they need none. */
static float *cache_scales(const layer_call *call)
{
    if (call->tiles->has_codes)
        return fa3_cache_scales(call);
    return reads_gathered(call) ? fa3_gather_scales(call) : NULL;
}

/* Blocks of fa3_rows: by the bytes of new rows if it saves any, but at least one per multiprocessor
 * if it does; a few for slow sequences otherwise. */
static int64_t count_row_blocks(const layer_call *call, int all_slow)
{
    const cuda_group *group = call->group;
    const int64_t sms = fa3_num_sms(call), most = sms * ROWS_BLOCKS;
    const cuda_extent extent = cuda_plan_extent(&call->metadata->plan);
    int64_t bytes = extent.tokens * group->kv_heads * (group->dim + group->v_dim) *
                    attn_dtype_size(group->kv_dtype);
    int64_t keys = fi_most_keys(&call->metadata->plan, group);
    int saves = call->rows.operands.save && !(call->rows.saves_rest && keys <= extent.q_len);
    int64_t blocks = saves ? bytes / ROWS_BLOCK_BYTES : 0;
    if (all_slow || blocks > most)
        return most;
    int64_t least = saves || sms < ROWS_FEW ? sms : ROWS_FEW;
    return blocks > least ? blocks : least;
}

static attn_status launch_rows(layer_call *call, int all_slow, attn_stream stream,
                               attn_error *error)
{
    const attn_instance *instance = call->instance;
    const cuda_group *group = call->group;
    fa3_rows_call *p = &call->rows;
    const cuda_launch launch = {.function = call->kernels->rows,
                                .name = "fa3_rows",
                                .grid = {count_row_blocks(call, all_slow), 1, 1},
                                .block = {FA3_ROWS_THREADS},
                                .programmatic = 1};
    void *params[] = {p};
    fa3_fill_batch(call->metadata, call->index, &p->batch);
    p->plan = call->view->plan;
    p->slow = call->view->slow;
    p->heads_q = group->kv_heads * group->ratio;
    p->heads_per_kv = group->ratio;
    p->dim = group->dim;
    p->dim_v = group->v_dim;
    p->page_size = group->page_size;
    p->dtype = call->tiles->has_codes ? ELEMENT_E4M3 : cuda_element(group->q_dtype);
    p->new_dtype = cuda_element(call->tiles->new_dtype);
    p->kv_dtype = cuda_element(group->kv_dtype);
    p->out_dtype = cuda_element(group->out_dtype);
    p->has_codes = call->tiles->has_codes || (call->tiles->gathers && cuda_is_fp8(group->kv_dtype));
    p->scale_stride = group->scale_granularity == ATTN_SCALE_PER_HEAD;
    p->all_slow = all_slow;
    p->cache_scales = cache_scales(call);
    p->window_left = group->window_left;
    p->chunk = group->chunk;
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
    uint32_t size = (uint32_t)attn_dtype_size(view->tensor->dtype);
    cuda_tensor_map map;
    cuda_tensor_box box = {.name = view->name,
                           .data = attn_util_data(view->tensor),
                           .dtype = view->tensor->dtype,
                           .rank = 4,
                           .box = {PANEL_BYTES / size, view->box_rows, 1, 1},
                           .swizzle = 128,
                           .l2 = 128};
    for (int d = 0; d < 4; d++) {
        box.shape[d] = view->shape[d];
        /* The stride of a dimension with one element is unused. */
        box.strides[d] = view->shape[d] > 1 ? view->strides[d] * size : 16;
    }
    attn_status status = cuda_tensor_map_make(call->instance->cuda, &box, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

static map_view view_rows(const char *name, const attn_tensor *tensor, uint32_t box_rows)
{
    return (map_view){name,
                      tensor,
                      {tensor->shape[2], tensor->shape[0], tensor->shape[1], 1},
                      {1, tensor->strides[0], tensor->strides[1], 1},
                      box_rows};
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

static void set_keys(const layer_call *call, struct fa3_forward_params *p)
{
    const fa3_metadata *view = call->view;
    p->has_new = has_new_rows(call);
    p->is_early = p->has_new || reads_rows(call);
    p->page_size = FA3_UNBOUNDED;
    p->box_rows = call->view->tile->keys;
    if (reads_rows(call)) {
        p->k_starts = (uintptr_t)view->cu_seqlens_k;
        p->k_lengths = (uintptr_t)view->given.keys;
        p->positions = (uintptr_t)view->given.positions;
        return;
    }
    p->k_lengths = (uintptr_t)view->cache_seqlens;
    p->k_length = view->max_seqlen_k;
    if (reads_gathered(call)) {
        p->k_starts = (uintptr_t)view->ahead_first;
        p->kv_scales = (uintptr_t)cache_scales(call);
        return;
    }
    p->block_table = (uintptr_t)view->page_table;
    p->table_stride = view->page_table_stride;
    p->page_size = call->group->page_size;
    p->box_rows = greatest_divisor(call->group->page_size, p->box_rows);
}

/* Where tiles save new rows. */
static void set_saves(const layer_call *call, struct fa3_forward_params *p)
{
    const call_operands *o = &call->rows.operands;
    uint32_t page_size = (uint32_t)call->group->page_size;
    p->slots = call->rows.saves_rest ? (uintptr_t)call->rows.batch.out_cache_loc : 0;
    p->k_save = (struct fa3_save){
        (uintptr_t)o->k,   (uintptr_t)o->k_cache, pieces(o->k_row),        pieces(o->k_head),
        pieces(o->k_page), pieces(o->k_token),    pieces(o->k_cache_head), page_size};
    p->v_save = (struct fa3_save){
        (uintptr_t)o->v,   (uintptr_t)o->v_cache, pieces(o->v_row),        pieces(o->v_head),
        pieces(o->v_page), pieces(o->v_token),    pieces(o->v_cache_head), page_size};
}

/* Strides in elements. */
static void set_outputs(const layer_call *call, struct fa3_forward_params *p)
{
    const call_operands *o = &call->rows.operands;
    const int64_t element = attn_dtype_size(call->group->out_dtype);
    p->out_f32 = call->group->out_dtype == ATTN_F32;
    p->out = (uintptr_t)o->out;
    p->out_token = o->out_row / element;
    p->out_head = o->out_head / element;
    p->lse = (uintptr_t)o->lse;
    p->lse_token = o->lse_row / (int64_t)sizeof(float);
    p->lse_head = o->lse_head / (int64_t)sizeof(float);
}

/* Query heads whose tiles run together. With few tiles, the late start of the last section's
 * longest tile costs more than reading keys again. */
static int32_t find_section(const layer_call *call, int64_t keys)
{
    const fa3_tile *tile = call->view->tile;
    const cuda_group *group = call->group;
    int64_t tiles = call->metadata->plan.batch.num_tokens / tile->queries * group->kv_heads;
    int64_t key_bytes = (int64_t)(tile->dim + tile->dim_v) * (call->tiles->has_codes ? 1 : 2);
    int64_t heads = keys > 0 ? L2_SECTION / (key_bytes * keys) : 1;
    if (heads > group->kv_heads || tiles * group->ratio < SECTION_WAVES * fa3_num_sms(call))
        heads = group->kv_heads;
    return (int32_t)(heads < 1 ? 1 : heads) * group->ratio;
}

/* Set the tiles: those of the plan's list, or, for one sequence, computed ones, so that tiles that
 * share keys run together. */
static void set_work(const layer_call *call, struct fa3_forward_params *p)
{
    const cuda_plan *plan = &call->metadata->plan;
    const fa3_tile *tile = call->view->tile;
    const fa3_metadata *view = call->view;
    int is_listed = plan->kind != ATTN_METADATA_EAGER || plan->batch.num_seqs != 1;
    p->batch = plan->batch.num_seqs;
    p->q_length = view->max_seqlen_q;
    p->q_tiles = (p->q_length + tile->queries - 1) / tile->queries;
    p->section = find_section(call, (int64_t)view->max_seqlen_k * plan->batch.num_seqs);
    p->q_starts = (uintptr_t)view->cu_seqlens_q;
    if (!is_listed) {
        p->q_starts = (uintptr_t)view->plan->starts;
    } else {
        p->tiles = (uintptr_t)view->tiles;
        p->tile_room = (int32_t)fa3_layout_plan(call->tiles, &plan->bounds).most_tiles;
        p->tile_count = (uintptr_t)&view->plan->tile_count;
    }
}

static void set_scores(const layer_call *call, struct fa3_forward_params *p)
{
    const cuda_group *group = call->group;
    int capped = group->logit_cap > 0;
    p->sinks = (uintptr_t)call->rows.operands.sinks;
    p->window_left = call->view->window_left;
    p->window_right = call->view->window_right;
    p->chunk = group->chunk;
    p->score_log2 = (capped ? group->logit_cap : group->sm_scale) * log2_e;
    p->score_cap = capped ? group->sm_scale / group->logit_cap : 0.0f;
}

static attn_status set_new_maps(const layer_call *call, struct fa3_forward_params *p,
                                attn_error *error)
{
    uint32_t rows = (uint32_t)call->view->tile->keys;
    map_view k = view_rows("k", attn_operand(&call->args, ATTN_ROLE_K), rows);
    map_view v = view_rows("v", attn_operand(&call->args, ATTN_ROLE_V), rows);
    attn_status status = make_map(call, &k, &p->k_new, error);
    if (status == ATTN_OK)
        status = make_map(call, &v, &p->v_new, error);
    p->save_box = p->slots ? save_box(call) : 0;
    if (status != ATTN_OK || p->save_box == 0)
        return status;
    rows = (uint32_t)p->save_box;
    k = view_pages("k_cache", attn_operand(&call->args, ATTN_ROLE_K_CACHE), call->group->hnd, rows);
    v = view_pages("v_cache", attn_operand(&call->args, ATTN_ROLE_V_CACHE), call->group->hnd, rows);
    status = make_map(call, &k, &p->k_pages, error);
    return status == ATTN_OK ? make_map(call, &v, &p->v_pages, error) : status;
}

static attn_status set_maps(const layer_call *call, struct fa3_forward_params *p, attn_error *error)
{
    const attn_forward_args *args = &call->args;
    uint32_t box_rows = (uint32_t)p->box_rows;
    map_view q = view_rows("q", attn_operand(args, ATTN_ROLE_Q), GROUP_QUERIES);
    map_view o = view_rows("out", attn_operand(args, p->out_f32 ? ATTN_ROLE_Q : ATTN_ROLE_OUT),
                           GROUP_QUERIES);
    attn_tensor keys = fa3_gathered(call, 0), values = fa3_gathered(call, 1);
    map_view k, v;
    if (reads_gathered(call)) {
        k = view_rows("k", &keys, box_rows);
        v = view_rows("v", &values, box_rows);
    } else if (reads_rows(call)) {
        k = view_rows("k", attn_operand(args, ATTN_ROLE_K), box_rows);
        v = view_rows("v", attn_operand(args, ATTN_ROLE_V), box_rows);
    } else {
        k = view_pages("k_cache", attn_operand(args, ATTN_ROLE_K_CACHE), call->group->hnd,
                       box_rows);
        v = view_pages("v_cache", attn_operand(args, ATTN_ROLE_V_CACHE), call->group->hnd,
                       box_rows);
    }
    attn_status status = make_map(call, &q, &p->q, error);
    if (status == ATTN_OK)
        status = make_map(call, &o, &p->o, error);
    if (status == ATTN_OK && p->has_new)
        status = set_new_maps(call, p, error);
    if (status == ATTN_OK)
        status = make_map(call, &k, &p->k, error);
    return status == ATTN_OK ? make_map(call, &v, &p->v, error) : status;
}

/* Blocks: as many as run at once, or as there may be tiles. */
static int64_t count_blocks(const layer_call *call, const struct fa3_forward_params *p)
{
    cuda_extent extent = cuda_plan_extent(&call->metadata->plan);
    int64_t tiles = extent.seqs + extent.tokens / call->view->tile->queries,
            most = fa3_num_sms(call);
    tiles *= p->heads_q * call->view->splits;
    return tiles < most ? tiles : most;
}

/* The kernel's parameters begin with those of any forward kernel. */
static attn_status launch_tiles(const layer_call *call, attn_stream stream, attn_error *error)
{
    const fa3_tile *tile = call->view->tile;
    struct fa3_codes_params all;
    struct fa3_forward_params *p = &all.forward;
    memset(&all, 0, sizeof all);
    p->heads_per_kv = call->group->ratio;
    p->heads_q = call->group->kv_heads * p->heads_per_kv;
    p->counter = ((const fa3_own *)call->metadata->own)->counter;
    set_keys(call, p);
    set_saves(call, p);
    set_outputs(call, p);
    set_work(call, p);
    set_scores(call, p);
    if (call->view->splits > 1)
        fa3_set_parts(call, p);
    attn_status status = set_maps(call, p, error);
    if (status == ATTN_OK && call->tiles->has_codes)
        status = fa3_turn_values(call, &all, stream, error);
    if (status != ATTN_OK)
        return status;
    const cuda_launch launch = {.function = tile == call->tiles->low ? call->tiles->low_forward
                                                                     : call->tiles->forward,
                                .name = tile->kernel,
                                .grid = {count_blocks(call, p), 1, 1},
                                .block = {tile->threads},
                                .shared = tile->shared,
                                .programmatic = 1};
    void *params[] = {&all};
    status = cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
    return status == ATTN_OK && p->splits > 1 ? fa3_join(call, p, stream, error) : status;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_status take_operands(layer_call *call, attn_stream stream, attn_error *error)
{
    if (call->tiles->is_expanded)
        return fa3_take_expanded(call, stream, error);
    return call->tiles->has_codes
               ? fa3_take_codes(call, stream, error)
               : cuda_operands_take(call->group, call->layer, &call->metadata->plan, call->kv,
                                    &call->args, &call->rows.operands, error);
}

static attn_status forward_tiles(layer_call *call, int32_t layer_id, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = take_operands(call, stream, error);
    if (status != ATTN_OK)
        return status;
    int for_tiles = is_for_tiles(call), saves = call->rows.operands.save;
    int gathers = for_tiles && reads_gathered(call);
    call->rows.operands.save = saves && !gathers;
    call->rows.saves_rest = for_tiles && has_savers(call);
    status = launch_rows(call, !for_tiles, stream, error);
    call->rows.operands.save = saves;
    if (status == ATTN_OK && gathers)
        status = fa3_gather(call, stream, error);
    if (status == ATTN_OK && for_tiles)
        status = launch_tiles(call, stream, error);
    /* the library's part: decoding sequences of few rows */
    if (status == ATTN_OK && for_tiles && fi_part_of(call->metadata, call->index))
        status = fi_forward_extend(call->metadata, layer_id, &call->args, stream, error);
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
    layer_call call = {
        .metadata = metadata, .instance = metadata->instance, .kernels = metadata->instance->own};
    ATTN_UTIL_READ(&call.args, args);
    status = find_layer(&call, layer_id, error);
    if (status != ATTN_OK)
        return status;
    if (!decode && !is_for_library(&call))
        return forward_tiles(&call, layer_id, stream, error);
    if (call.tiles->has_codes)
        return fa3_forward_widened(&call, decode, layer_id, stream, error);
    return (decode ? fi_forward_decode : fi_forward_extend)(metadata, layer_id, args, stream,
                                                            error);
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
