/* SPDX-License-Identifier: Apache-2.0
 *
 * codes.c: queries, and new keys and values, of e4m3. The library reads 16 bits, so these are
 * converted to bf16 for all that it serves (DECODE, few queries, masks, and what the forward kernel
 * for fp8 does not):
 *
 *   fa3_store_scales   scales that the host has
 *   fa3_widen          q * scale as bf16; new keys and values as the cache's codes stand for them,
 *                      which round to these codes again
 *
 * Before the forward kernel for fp8 runs
 *
 *   fa3_turn_values    the cache's values along the keys (kernels/turn.cuh)
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"

#include <math.h>
#include <string.h>

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

enum { ALIGNMENT = 256, WIDEN_BLOCKS = 8, SPARE_ROWS = 64 };

/* ---- Problems -------------------------------------------------------------------------------- */

int fa3_has_codes(const attn_problem *problem)
{
    return problem->q_dtype == ATTN_FP8_E4M3 && !fa3_is_expanded(problem);
}

static int has_cache(const attn_layer_group *group)
{
    return group->attn_type == ATTN_TYPE_DECODER || group->attn_type == ATTN_TYPE_CROSS;
}

void fa3_plain_problem(const attn_problem *given, attn_problem *problem, attn_layer_group *group)
{
    ATTN_UTIL_READ(problem, given);
    ATTN_UTIL_READ(group, given->group);
    problem->struct_size = sizeof *problem;
    group->struct_size = sizeof *group;
    problem->group = group;
    if (fa3_is_expanded(given))
        fa3_plain_expanded(problem, group);
    if (!fa3_has_codes(given))
        return;
    if (!has_cache(group)) { /* such a group is rejected, and has no page size */
        group->attn_type = ATTN_TYPE_DECODER;
        problem->page_size = problem->page_size > 0 ? problem->page_size : 1;
    }
    problem->q_dtype = ATTN_BF16;
    problem->kv_dtype = ATTN_FP8_E4M3;
    problem->new_kv_dtype = ATTN_DTYPE_NONE;
    group->input_scale_granularity = ATTN_SCALE_NONE;
}

/* The cache must have codes, too: over any other cache, q * scale may not be rounded to bf16
 * (docs/ABI.md). New k and v have q's type, or bf16, which the library reads. An encoder's k and v
 * must be bf16, as the number of their rows is not known. */
void fa3_check_codes(const attn_problem *problem, attn_verdict *verdict)
{
    const uint32_t scales =
        1u << ATTN_SCALE_PER_TENSOR | 1u << ATTN_SCALE_PER_HEAD | 1u << ATTN_SCALE_PER_SEQ_HEAD;
    attn_layer_group group;
    ATTN_UTIL_READ(&group, problem->group);
    attn_dtype new_dtype = attn_new_kv_dtype(problem);
    int is_decoder = group.attn_type != ATTN_TYPE_CROSS;
    if (!has_cache(&group))
        attn_util_check_member(1u << ATTN_TYPE_DECODER | 1u << ATTN_TYPE_CROSS, group.attn_type,
                               ATTN_TYPE_COUNT, attn_util_attn_type_name, ATTN_REASON_ATTN_TYPE,
                               ATTN_FIELD_ATTN_TYPE, verdict);
    if (problem->kv_dtype != ATTN_FP8_E4M3)
        attn_util_refuse(verdict, ATTN_REASON_DTYPE, ATTN_FIELD_KV_DTYPE, "fp8_e4m3", "%s",
                         attn_util_dtype_name(problem->kv_dtype));
    if (new_dtype != ATTN_BF16 && !(new_dtype == ATTN_FP8_E4M3 && is_decoder))
        attn_util_refuse(verdict, ATTN_REASON_DTYPE, ATTN_FIELD_NEW_KV_DTYPE,
                         is_decoder ? "bf16, fp8_e4m3" : "bf16", "%s",
                         attn_util_dtype_name(new_dtype));
    attn_util_check_member(scales, group.input_scale_granularity, ATTN_SCALE_COUNT,
                           attn_util_granularity_name, ATTN_REASON_SCALE_GRANULARITY,
                           ATTN_FIELD_INPUT_SCALE_GRANULARITY, verdict);
}

/* ---- Scratch memory -------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The most tiles of keys that all sequences of a batch have together. */
static uint64_t most_turned(const attn_bounds *bounds)
{
    uint64_t seqs = (uint64_t)bounds->max_seqs, keys = (uint64_t)fa3_codes_tile.keys;
    uint64_t all = seqs * (((uint64_t)bounds->max_kv_len + keys - 1) / keys);
    uint64_t kept = (uint64_t)bounds->max_kv_tokens / keys + seqs;
    return bounds->max_kv_tokens > 0 && kept < all ? kept : all;
}

/* The most rows that operands may have: q_indptr and kv_new_indptr need not begin with row 0. */
static int64_t most_rows(const attn_bounds *bounds)
{
    return 2 * (int64_t)bounds->max_tokens + SPARE_ROWS;
}

fa3_codes_layout fa3_layout_codes(const fa3_group *group, const cuda_group *base,
                                  const attn_bounds *bounds)
{
    uint64_t rows = (uint64_t)most_rows(bounds), heads = (uint64_t)base->kv_heads;
    uint64_t bf16 = 2, dim = (uint64_t)base->dim, dim_v = (uint64_t)base->v_dim;
    uint64_t new_rows = group->new_dtype == ATTN_FP8_E4M3 ? (uint64_t)most_rows(bounds) : 0;
    fa3_codes_layout layout = {.size = 0};
    if (!group->has_codes)
        return layout;
    layout.scales_each =
        heads * (group->granularity == ATTN_SCALE_PER_SEQ_HEAD ? (uint64_t)bounds->max_seqs : 1);
    layout.k_at = aligned(rows * heads * (uint64_t)base->ratio * dim * bf16);
    layout.v_at = aligned(layout.k_at + new_rows * heads * dim * bf16);
    layout.scales_at = aligned(layout.v_at + new_rows * heads * dim_v * bf16);
    layout.turned_at =
        aligned(layout.scales_at + (3 * layout.scales_each + 2 * heads) * sizeof(float));
    layout.size = layout.turned_at;
    if (fa3_layout_plan(group, bounds).size > 0)
        layout.size = aligned(layout.size +
                              most_turned(bounds) * heads * (uint64_t)fa3_codes_tile.keys * dim_v);
    return layout;
}

static fa3_codes_layout layout_of(const layer_call *call)
{
    return fa3_layout_codes(call->tiles, call->group, &call->metadata->plan.bounds);
}

static char *scratch_of(const layer_call *call)
{
    return ((const fa3_own *)call->metadata->own)->scratch;
}

/* ---- Scales ---------------------------------------------------------------------------------- */

static attn_status check_scale(const layer_call *call, uint32_t role, const attn_scale *scale,
                               attn_error *error)
{
    const char *name = attn_util_role_name(role);
    uint32_t granularity = call->tiles->granularity, heads = (uint32_t)call->group->kv_heads;
    uint32_t count = granularity == ATTN_SCALE_PER_TENSOR ? 1 : heads;
    if (granularity == ATTN_SCALE_PER_SEQ_HEAD)
        count *= (uint32_t)call->metadata->plan.batch.num_seqs;
    if (!scale || (!scale->device && !scale->host))
        return FAIL(error, ATTN_FIELD_SCALE, "scale of %s is missing", name);
    if (scale->granularity != granularity || scale->count != count)
        return FAIL(error, ATTN_FIELD_SCALE,
                    "scale of %s: granularity %u, count %u: accepted %u, %u", name,
                    scale->granularity, scale->count, granularity, count);
    for (uint32_t i = 0; i < count && !scale->device; i++)
        if (!(scale->host[i] > 0) || !isfinite(scale->host[i]))
            return FAIL(error, ATTN_FIELD_SCALE,
                        "scale of %s: value %u is %s: accepted finite, above 0", name, i,
                        attn_util_number((double)scale->host[i]).text);
    return ATTN_OK;
}

static attn_status store_scales(const layer_call *call, const attn_scale *scale, float *to,
                                attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t first = 0; first < scale->count && status == ATTN_OK;
         first += FA3_STORED_SCALES) {
        uint32_t left = scale->count - first;
        fa3_scales_call p = {.to = to + first,
                             .count = (int)(left < FA3_STORED_SCALES ? left : FA3_STORED_SCALES)};
        const cuda_launch launch = {.function = call->kernels->store_scales,
                                    .name = "fa3_store_scales",
                                    .grid = {1, 1, 1},
                                    .block = {FA3_STORED_SCALES}};
        void *params[] = {&p};
        memcpy(p.values, scale->host + first, (size_t)p.count * sizeof *p.values);
        status = cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
    }
    return status;
}

/* Take the scale of q, k or v, whose `number` is 0, 1 or 2. */
static attn_status take_input(const layer_call *call, uint32_t role, int number, fa3_input *to,
                              attn_stream stream, attn_error *error)
{
    const attn_scale *scale = call->args.scales ? attn_operand_scale(&call->args, role) : NULL;
    fa3_codes_layout layout = layout_of(call);
    float *stored = (float *)(void *)(scratch_of(call) + layout.scales_at) +
                    (uint64_t)number * layout.scales_each;
    int per_head = call->tiles->granularity != ATTN_SCALE_PER_TENSOR;
    attn_status status = check_scale(call, role, scale, error);
    if (status != ATTN_OK)
        return status;
    *to = (fa3_input){
        .scale = scale->device ? scale->device : stored,
        .sequence = call->tiles->granularity == ATTN_SCALE_PER_SEQ_HEAD ? call->group->kv_heads : 0,
        .head = per_head};
    return scale->device ? ATTN_OK : store_scales(call, scale, stored, stream, error);
}

attn_status fa3_take_codes(layer_call *call, attn_stream stream, attn_error *error)
{
    cuda_group group = *call->group;
    fa3_rows_call *p = &call->rows;
    group.q_dtype = ATTN_FP8_E4M3;
    group.new_dtype = call->tiles->new_dtype;
    attn_status status = cuda_operands_take(&group, call->layer, &call->metadata->plan, call->kv,
                                            &call->args, &p->operands, error);
    if (status == ATTN_OK)
        status = take_input(call, ATTN_ROLE_Q, 0, &p->q_input, stream, error);
    if (status != ATTN_OK || !p->operands.k || group.new_dtype != ATTN_FP8_E4M3)
        return status;
    status = take_input(call, ATTN_ROLE_K, 1, &p->k_input, stream, error);
    return status == ATTN_OK ? take_input(call, ATTN_ROLE_V, 2, &p->v_input, stream, error)
                             : status;
}

float *fa3_cache_scales(const layer_call *call)
{
    fa3_codes_layout layout = layout_of(call);
    return (float *)(void *)(scratch_of(call) + layout.scales_at) + 3 * layout.scales_each;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* The address of a graph batch's number of sequences; 0 for an eager batch, whose grid is exact. */
static uint64_t plan_seqs(const layer_call *call)
{
    const cuda_plan *plan = &call->metadata->plan;
    return plan->counts ? plan->counts + CALL_COUNT_SEQS * sizeof(int32_t) : 0;
}

static attn_status launch_turn(const layer_call *call, const struct fa3_codes_params *p,
                               attn_stream stream, attn_error *error)
{
    const call_operands *o = &call->rows.operands;
    const fa3_metadata *view = call->view;
    struct fa3_turn_params turn = {.v = (uintptr_t)o->v_cache,
                                   .turned = p->turned,
                                   .turned_first = p->turned_first,
                                   .k_lengths = (uintptr_t)view->cache_seqlens,
                                   .block_table = (uintptr_t)view->page_table,
                                   .v_token = o->v_token,
                                   .v_head = o->v_cache_head,
                                   .v_outer = o->v_page,
                                   .table_stride = view->page_table_stride,
                                   .k_length = view->max_seqlen_k,
                                   .page_size = call->group->page_size,
                                   .seqs = plan_seqs(call)};
    const cuda_plan *plan = &call->metadata->plan;
    int64_t keys = fa3_codes_tile.keys;
    int64_t tiles = (fi_most_keys(plan, call->group) + keys - 1) / keys;
    const cuda_launch launch = {.function = call->kernels->turn,
                                .name = "fa3_turn_values",
                                .grid = {tiles, call->group->kv_heads, cuda_plan_extent(plan).seqs},
                                .block = {GROUP_THREADS},
                                .programmatic = 1};
    void *params[] = {&turn};
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

attn_status fa3_turn_values(const layer_call *call, struct fa3_codes_params *p, attn_stream stream,
                            attn_error *error)
{
    const fa3_input *q = &call->rows.q_input;
    const float *cache = call->rows.cache_scales;
    p->q_scale = (struct fa3_scale){(uintptr_t)q->scale, q->sequence, q->head};
    p->k_scale = (struct fa3_scale){(uintptr_t)cache, 0, 1};
    p->v_scale = (struct fa3_scale){(uintptr_t)(cache + call->group->kv_heads), 0, 1};
    p->turned = (uintptr_t)(scratch_of(call) + layout_of(call).turned_at);
    p->turned_first = (uintptr_t)call->view->ahead_first;
    return launch_turn(call, p, stream, error);
}

/* ---- The library ----------------------------------------------------------------------------- */

static attn_tensor widened(const attn_tensor *from, void *data, int64_t rows)
{
    attn_tensor tensor = {.struct_size = sizeof tensor,
                          .data = data,
                          .device_type = from->device_type,
                          .device_id = from->device_id,
                          .dtype = ATTN_BF16,
                          .ndim = 3,
                          .shape = {rows, from->shape[1], from->shape[2]},
                          .strides = {from->shape[1] * from->shape[2], from->shape[2], 1},
                          .alignment = ALIGNMENT};
    return tensor;
}

static attn_status launch_widen(layer_call *call, int has_new, attn_stream stream,
                                attn_error *error)
{
    const cuda_group *group = call->group;
    fa3_codes_layout layout = layout_of(call);
    char *at = scratch_of(call);
    fa3_widen_call p = {.operands = call->rows.operands,
                        .q = (unsigned short *)(void *)at,
                        .k = has_new ? (unsigned short *)(void *)(at + layout.k_at) : NULL,
                        .v = has_new ? (unsigned short *)(void *)(at + layout.v_at) : NULL,
                        .q_input = call->rows.q_input,
                        .k_input = call->rows.k_input,
                        .v_input = call->rows.v_input,
                        .heads_q = group->kv_heads * group->ratio,
                        .heads_per_kv = group->ratio,
                        .dim = group->dim,
                        .dim_v = group->v_dim,
                        .scale_stride = group->scale_granularity == ATTN_SCALE_PER_HEAD,
                        .most_rows = (int)most_rows(&call->metadata->plan.bounds)};
    const cuda_launch launch = {.function = call->kernels->widen,
                                .name = "fa3_widen",
                                .grid = {fa3_num_sms(call) * WIDEN_BLOCKS, 1, 1},
                                .block = {FA3_WIDEN_THREADS}};
    void *params[] = {&p};
    cuda_plan_fill(&call->metadata->plan, group, call->kv, &p.batch);
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

/* The end of the rows that an indptr names; -1 = unknown to the host. */
static int64_t named_rows(const attn_i32_array *indptr, const attn_batch *batch)
{
    return indptr->host ? indptr->host[batch->num_seqs] : -1;
}

void fa3_note_rows(attn_metadata *metadata, uint32_t index)
{
    const attn_batch *batch = &metadata->plan.batch;
    const attn_i32_array *new_rows = &metadata->plan.kv[index].kv_new_indptr;
    fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    int is_named = batch->mode != ATTN_MODE_DECODE && batch->q_indptr.device;
    view->named_rows = is_named ? named_rows(&batch->q_indptr, batch) : batch->num_tokens;
    view->named_new_rows = new_rows->device ? named_rows(new_rows, batch) : view->named_rows;
}

/* If the host does not know the named rows, all rows of the operand are checked. */
static attn_status check_rows(const layer_call *call, uint32_t role, int64_t named,
                              attn_error *error)
{
    int64_t most = most_rows(&call->metadata->plan.bounds);
    int64_t rows = named >= 0 ? named : attn_operand(&call->args, role)->shape[0];
    return rows <= most ? ATTN_OK
                        : FAIL(error, ATTN_FIELD_OPERAND,
                               "operand %s has %lld rows: accepted up to %lld within these bounds",
                               attn_util_role_name(role), (long long)rows, (long long)most);
}

static attn_status check_all_rows(const layer_call *call, int has_new, attn_error *error)
{
    attn_status status = check_rows(call, ATTN_ROLE_Q, call->view->named_rows, error);
    return status == ATTN_OK && has_new
               ? check_rows(call, ATTN_ROLE_K, call->view->named_new_rows, error)
               : status;
}

attn_status fa3_forward_widened(layer_call *call, int decode, int32_t layer_id, attn_stream stream,
                                attn_error *error)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
    attn_forward_args args = call->args;
    fa3_codes_layout layout = layout_of(call);
    char *at = scratch_of(call);
    const attn_bounds *bounds = &call->metadata->plan.bounds;
    attn_tensor q, k, v;
    attn_status status = fa3_take_codes(call, stream, error);
    int has_new = call->rows.operands.k && call->tiles->new_dtype == ATTN_FP8_E4M3;
    if (status == ATTN_OK)
        status = check_all_rows(call, has_new, error);
    if (status == ATTN_OK)
        status = launch_widen(call, has_new, stream, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        operands[role] = attn_operand(&call->args, role);
    q = widened(operands[ATTN_ROLE_Q], at, most_rows(bounds));
    operands[ATTN_ROLE_Q] = &q;
    if (has_new) {
        k = widened(operands[ATTN_ROLE_K], at + layout.k_at, most_rows(bounds));
        v = widened(operands[ATTN_ROLE_V], at + layout.v_at, most_rows(bounds));
        operands[ATTN_ROLE_K] = &k;
        operands[ATTN_ROLE_V] = &v;
    }
    args.num_operands = ATTN_ROLE_COUNT;
    args.operands = operands;
    return (decode ? fi_forward_decode : fi_forward_extend)(call->metadata, layer_id, &args, stream,
                                                            error);
}
