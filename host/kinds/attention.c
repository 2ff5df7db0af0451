/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: rows, constants and geometry of kinds that attend to keys.
 */
#include "host/kinds/attention.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

static uint32_t list_rows(const struct model *model, const attn_layer_group *group,
                          struct row_operand *list)
{
    int32_t q = group->num_q_heads, kv = group->num_kv_heads;
    int32_t dim = group->head_dim, v_dim = group->v_head_dim;
    list[0] = (struct row_operand){ATTN_ROLE_Q, q, dim, model->dtype, GENERATOR_QUERY, 0};
    list[1] = (struct row_operand){ATTN_ROLE_K, kv, dim, model->dtype, GENERATOR_KEY, 0};
    list[2] = (struct row_operand){ATTN_ROLE_V, kv, v_dim, model->dtype, GENERATOR_VALUE, 0};
    return 3;
}

static void describe_output(const attn_layer_group *group, struct row_operand *out)
{
    out->heads = group->num_q_heads;
    out->dim = group->v_head_dim;
}

void attention_geometry(const attn_layer_group *group, generator_layer *geometry)
{
    geometry->num_q_heads = group->num_q_heads;
    geometry->num_kv_heads = group->num_kv_heads;
    geometry->head_dim = group->head_dim;
    geometry->v_head_dim = group->v_head_dim;
    geometry->window_left = group->window_left;
    geometry->window_right = group->window_right;
    geometry->attention_chunk = group->attention_chunk;
}

const struct kind_form attention_form = {list_rows, describe_output, attention_geometry};

void attention_make_row(const struct kind_row *row, const struct row_operand *operand, void *to)
{
    const generator_tensor out = {
        .data = to,
        .dtype = operand->dtype,
        .token_stride = operands_row_elements(operand),
        .head_stride = operand->dim,
        .first = operand->first,
        .dim = operand->dim,
    };
    generator_fill(row->generator, row->workload, row->request, row->position, 1, row->layer,
                   operand->stream, &out);
}

/* ---- Constants ------------------------------------------------------------------------------- */

uint32_t attention_constants(const struct model *model, const attn_layer_group *group)
{
    (void)model;
    uint32_t mask = 0;
    if (group->flags & ATTN_GROUP_HAS_SINKS)
        mask |= 1u << ATTN_ROLE_SINKS;
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        mask |= 1u << ATTN_ROLE_ALIBI_SLOPES;
    return mask;
}

void attention_describe_constant(const struct model *model, const attn_layer_group *group,
                                 uint32_t role, attn_tensor *tensor)
{
    (void)model, (void)role;
    tensor->dtype = ATTN_F32;
    tensor->ndim = 1;
    tensor->shape[0] = group->num_q_heads;
}

void attention_make_constant(const struct generator *generator, const attn_layer_group *group,
                             int32_t layer, uint32_t role, float *values)
{
    for (int32_t h = 0; h < group->num_q_heads; h++)
        values[h] = role == ATTN_ROLE_SINKS
                        ? generator_sink(generator, layer, h)
                        : generator_rank_slope(generator, h, group->num_q_heads);
}
