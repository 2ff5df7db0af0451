/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c: a group of softmax layers, and CUDA plugins' answers to its problem.
 */
#include "plugins/common/cuda/group.h"
#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/elements.cuh"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

void cuda_group_init(cuda_group *group, const attn_problem *problem)
{
    const attn_layer_group *from = problem->group;
    *group = (cuda_group){
        .attn_type = from->attn_type,
        .flags = from->flags,
        .kv_group = from->kv_group,
        .kv_heads = from->num_kv_heads,
        .ratio = from->num_q_heads / from->num_kv_heads,
        .dim = from->head_dim,
        .v_dim = from->v_head_dim,
        .window_left = from->window_left,
        .window_right = from->window_right,
        .chunk = from->attention_chunk,
        .sm_scale = from->sm_scale,
        .logit_cap = from->logit_cap,
        .scale_granularity = from->kv_scale_granularity,
        .page_size = problem->page_size > 0 ? problem->page_size : 1,
        .hnd = problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) == 0,
        .packed = problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0,
        .q_dtype = problem->q_dtype,
        .new_dtype = attn_new_kv_dtype(problem),
        .kv_dtype = problem->kv_dtype,
        .out_dtype = problem->out_dtype,
        .num_layers = from->num_layers,
    };
}

int cuda_group_has_cache(const cuda_group *group)
{
    return group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

static const cuda_group *group_at(const void *groups, size_t group_size, uint32_t index)
{
    return (const cuda_group *)(const void *)((const char *)groups + index * group_size);
}

attn_status cuda_groups_list_layers(void *groups, size_t group_size, uint32_t num_groups,
                                    const attn_problem *problems, attn_error *error)
{
    attn_util_layer *layers = (attn_util_layer *)(void *)((char *)groups + num_groups * group_size);
    attn_util_layer *next = layers;
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < num_groups && status == ATTN_OK; i++) {
        const attn_problem *problem = attn_at(problems, i);
        ((cuda_group *)(void *)((char *)groups + i * group_size))->layers = next;
        status = attn_util_list_layers(problem->group, layers, &next, error);
    }
    return status;
}

uint32_t cuda_groups_index_forms(const void *groups, size_t group_size, uint32_t num_groups)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < num_groups; i++) {
        const cuda_group *group = group_at(groups, group_size, i);
        if (cuda_group_has_cache(group))
            forms |= group->page_size == 1 ? ATTN_INDEX_REQ_TO_TOKEN : ATTN_INDEX_BLOCK_TABLE;
    }
    return forms ? forms : ATTN_INDEX_BLOCK_TABLE;
}

int cuda_is_fp8(attn_dtype dtype)
{
    return dtype == ATTN_FP8_E4M3 || dtype == ATTN_FP8_E5M2;
}

int cuda_element(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F16:
        return ELEMENT_F16;
    case ATTN_BF16:
        return ELEMENT_BF16;
    case ATTN_FP8_E4M3:
        return ELEMENT_E4M3;
    case ATTN_FP8_E5M2:
        return ELEMENT_E5M2;
    default:
        return ELEMENT_F32;
    }
}

/* ---- Query ----------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

attn_status cuda_question_read(const attn_problem *problem, cuda_question *ask, attn_error *error)
{
    attn_status status = attn_util_read_problem(problem, &ask->problem, &ask->group, &ask->bounds,
                                                &ask->device, error);
    if (status == ATTN_OK)
        status = attn_util_require_layers(&ask->group, error);
    if (status != ATTN_OK || ask->group.kind != ATTN_KIND_SOFTMAX)
        return status;
    status = attn_util_require_softmax(&ask->group, error);
    if (status == ATTN_OK && ask->group.attn_type == ATTN_TYPE_CROSS)
        status = attn_util_require_positionless(&ask->group, error);
    if (status == ATTN_OK && cuda_question_has_cache(ask) && ask->problem.page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", ask->problem.page_size);
    return status;
}

int cuda_question_has_cache(const cuda_question *ask)
{
    return ask->group.attn_type != ATTN_TYPE_ENCODER_ONLY;
}

void cuda_check_layer(const cuda_question *ask, attn_verdict *verdict)
{
    const attn_layer_group *group = &ask->group;
    if (group->kind != ATTN_KIND_SOFTMAX)
        REFUSE(LAYER_KIND, KIND, "softmax", "%s", attn_util_kind_name(group->kind));
    if (group->attn_type >= ATTN_TYPE_COUNT)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder, encoder_only, cross", "%u", group->attn_type);
}

enum { ANY_DIM = -1, DIMS_TEXT = 64 };

/* Lists the head dimensions, or the value widths, of the pairs that match `with` (ANY_DIM matches
 * all), each once. Returns their number. */
static uint32_t list_dims(const cuda_dims *pairs, uint32_t num_pairs, cuda_dims with, int values,
                          char text[DIMS_TEXT])
{
    uint32_t count = 0;
    size_t length = 0;
    int32_t listed = 0; /* the table begins with the smallest */
    text[0] = '\0';
    for (uint32_t i = 0; i < num_pairs && length < DIMS_TEXT; i++) {
        int32_t shown = values ? pairs[i].v_dim : pairs[i].dim;
        if ((with.dim != ANY_DIM && pairs[i].dim != with.dim) ||
            (with.v_dim != ANY_DIM && pairs[i].v_dim != with.v_dim) ||
            (with.dim == ANY_DIM && shown <= listed))
            continue;
        length +=
            (size_t)snprintf(text + length, DIMS_TEXT - length, "%s%d", count++ ? ", " : "", shown);
        listed = shown;
    }
    return count;
}

void cuda_check_dims(const cuda_dims *pairs, uint32_t count, const attn_layer_group *group,
                     attn_verdict *verdict)
{
    char dims[DIMS_TEXT], values[DIMS_TEXT];
    cuda_dims any = {ANY_DIM, ANY_DIM}, of_dim = {group->head_dim, ANY_DIM};
    cuda_dims of_values = {ANY_DIM, group->v_head_dim};
    for (uint32_t i = 0; i < count; i++)
        if (pairs[i].dim == group->head_dim && pairs[i].v_dim == group->v_head_dim)
            return;
    if (list_dims(pairs, count, of_dim, 1, values) > 0) {
        REFUSE(HEAD_DIM, V_HEAD_DIM, values, "%d", group->v_head_dim);
    } else if (list_dims(pairs, count, of_values, 0, dims) > 0) {
        REFUSE(HEAD_DIM, HEAD_DIM, dims, "%d", group->head_dim);
    } else {
        list_dims(pairs, count, any, 0, dims);
        list_dims(pairs, count, any, 1, values);
        REFUSE(HEAD_DIM, HEAD_DIM, dims, "%d", group->head_dim);
        REFUSE(HEAD_DIM, V_HEAD_DIM, values, "%d", group->v_head_dim);
    }
}

static int is_operand_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* May the cache be quantised? */
static int may_quantise(const cuda_dtypes *takes, const attn_layer_group *group)
{
    return takes->e4m3_cache && group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

static int is_quantised(const cuda_dtypes *takes, const attn_layer_group *group, attn_dtype dtype)
{
    return may_quantise(takes, group) &&
           (dtype == ATTN_FP8_E4M3 || (takes->e5m2_cache && dtype == ATTN_FP8_E5M2));
}

static void refuse_kv_dtype(const cuda_dtypes *takes, const attn_problem *problem,
                            const attn_layer_group *group, const char *unquantised,
                            attn_verdict *verdict)
{
    char accepted[64];
    int quantised = may_quantise(takes, group);
    snprintf(accepted, sizeof accepted, "%s%s%s", unquantised, quantised ? ", fp8_e4m3" : "",
             quantised && takes->e5m2_cache ? ", fp8_e5m2" : "");
    REFUSE(DTYPE, KV_DTYPE, accepted, "%s", attn_util_dtype_name(problem->kv_dtype));
}

/* An unquantised cache has q's dtype, so the accepted dtypes of q depend on it. */
void cuda_check_dtypes(const cuda_dtypes *takes, const attn_problem *problem,
                       const attn_layer_group *group, attn_verdict *verdict)
{
    const char *all = "f16, bf16", *q = attn_util_dtype_name(problem->q_dtype);
    attn_dtype kv = problem->kv_dtype;
    attn_dtype one = attn_util_one_input(problem, is_operand_dtype);
    int quantised = is_quantised(takes, group, kv);
    attn_util_check_inputs(problem, group, one, verdict);
    if (!is_operand_dtype(problem->q_dtype)) {
        REFUSE(DTYPE, Q_DTYPE, one != ATTN_DTYPE_NONE ? attn_util_dtype_name(one) : all, "%s", q);
        if (!is_operand_dtype(kv) && !quantised)
            refuse_kv_dtype(takes, problem, group, all, verdict);
    } else if (kv != problem->q_dtype && !quantised) {
        refuse_kv_dtype(takes, problem, group, q, verdict);
    }
    if (!is_operand_dtype(problem->out_dtype) &&
        !(takes->f32_out && problem->out_dtype == ATTN_F32))
        REFUSE(DTYPE, OUT_DTYPE, takes->f32_out ? "f32, f16, bf16" : all, "%s",
               attn_util_dtype_name(problem->out_dtype));
}

/* If the dtype of a cache must change, it may become a quantised one or not. */
void cuda_check_scales(const cuda_dtypes *takes, const attn_problem *problem,
                       const attn_layer_group *group, attn_verdict *verdict)
{
    uint32_t granularity = group->kv_scale_granularity;
    attn_dtype kv_dtype = problem->kv_dtype;
    int scaled = is_quantised(takes, group, kv_dtype);
    int open = may_quantise(takes, group) && !scaled && !is_operand_dtype(kv_dtype);
    int given = granularity != ATTN_SCALE_NONE;
    int few = group->num_kv_heads <= CALL_MAX_SCALES;
    if (granularity <= ATTN_SCALE_PER_HEAD && (open || scaled == given) &&
        (few || granularity != ATTN_SCALE_PER_HEAD))
        return;
    const char *some = few ? "per_tensor, per_head" : "per_tensor";
    char accepted[64];
    snprintf(accepted, sizeof accepted, "%s%s%s", scaled ? "" : "none", open ? ", " : "",
             scaled || open ? some : "");
    REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY, accepted, "%s",
           attn_util_granularity_name(granularity));
}
