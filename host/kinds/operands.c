/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: widths, dtypes and roles of each kind's operands.
 */
#include "host/kinds/operands.h"

#include "host/kinds/kinds.h"

/* The layer whose form this is. */
static const struct model_layer *layer_of(const struct model *model, int32_t layer)
{
    return &model->layers[layer % (int32_t)model->num_layers];
}

static const attn_layer_group *group_of(const struct model *model, int32_t layer)
{
    return &model->groups[layer_of(model, layer)->group];
}

/* Properties of a layer that is called by this number. */
static const struct kind_form *form_of(const struct model *model, int32_t layer)
{
    const struct kind_ops *kind = kind_of(group_of(model, layer));
    return operands_is_expanded(model, layer) ? kind->expanded : kind->form;
}

bool operands_is_expanded(const struct model *model, int32_t layer)
{
    return layer >= (int32_t)model->num_layers && kind_of(group_of(model, layer))->expanded;
}

int32_t operands_form(const struct model *model, int32_t layer, uint32_t mode)
{
    bool expanded = kind_of(group_of(model, layer))->expanded &&
                    (model->mla_expanded & ATTN_MODE_BIT(mode)) != 0;
    return expanded ? (int32_t)model->num_layers + layer : layer;
}

int32_t operands_num_forms(const struct model *model)
{
    return (int32_t)model->num_layers * (model->mla_expanded ? 2 : 1);
}

bool operands_write_kv(const struct model *model, int32_t layer)
{
    const attn_layer_group *group = group_of(model, layer);
    const attn_layer *ids = attn_at(group->layers, layer_of(model, layer)->index);
    return model_group_has_kv(group) && !(ids->flags & ATTN_LAYER_KV_READ_ONLY);
}

bool operands_are_encoded(const struct model *model, int32_t layer)
{
    return group_of(model, layer)->attn_type == ATTN_TYPE_CROSS;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Is it written to the cache? */
static bool is_key_or_value(const struct row_operand *operand)
{
    return operand->stream == GENERATOR_KEY || operand->stream == GENERATOR_VALUE ||
           operand->role == ATTN_ROLE_INDEX_K;
}

uint32_t operands_count_kv(const struct row_operand *list, uint32_t count)
{
    uint32_t num_kv = 0;
    while (num_kv < count && is_key_or_value(&list[count - 1 - num_kv]))
        num_kv++;
    return num_kv;
}

uint32_t operands_list(const struct model *model, int32_t layer, struct row_operand *list)
{
    const attn_layer_group *group = group_of(model, layer);
    uint32_t count = form_of(model, layer)->list(model, group, list);
    bool reads_alone = model_group_has_kv(group) && !operands_write_kv(model, layer) &&
                       !operands_is_expanded(model, layer);
    return reads_alone ? count - operands_count_kv(list, count) : count;
}

uint32_t operands_list_latents(const struct model *model, int32_t layer, struct row_operand *list)
{
    const attn_layer_group *group = group_of(model, layer);
    struct row_operand all[OPERANDS_MAX];
    uint32_t count = 0;
    if (!operands_is_expanded(model, layer) || !operands_write_kv(model, layer))
        return 0;
    uint32_t num_all = kind_of(group)->form->list(model, group, all);
    for (uint32_t i = 0; i < num_all; i++)
        if (is_key_or_value(&all[i]))
            list[count++] = all[i];
    return count;
}

struct row_operand operands_output(const struct model *model, int32_t layer)
{
    const attn_layer_group *group = group_of(model, layer);
    struct row_operand out = {.role = ATTN_ROLE_OUT, .dtype = kind_out_dtype(model, group)};
    form_of(model, layer)->output(group, &out);
    return out;
}

struct row_operand operands_lse(const struct model *model, int32_t layer)
{
    return (struct row_operand){
        .role = ATTN_ROLE_LSE,
        .dim = group_of(model, layer)->num_q_heads,
        .dtype = ATTN_F32,
    };
}

struct row_operand operands_choice(const struct model *model, int32_t layer)
{
    const attn_sparse_dims *sparse = group_of(model, layer)->sparse;
    return (struct row_operand){
        .role = ATTN_ROLE_SPARSE_INDICES,
        .dim = sparse ? sparse->top_k : 0,
        .dtype = ATTN_I32,
    };
}

bool operands_choose(const struct model *model, int32_t layer)
{
    const attn_sparse_dims *sparse = group_of(model, layer)->sparse;
    return sparse && sparse->index_heads > 0;
}

int64_t operands_row_elements(const struct row_operand *operand)
{
    return (int64_t)operand->dim * (operand->heads > 0 ? operand->heads : 1);
}

uint64_t operands_row_bytes(const struct row_operand *operand)
{
    return (uint64_t)operands_row_elements(operand) * attn_dtype_size(operand->dtype);
}

generator_layer operands_geometry(const struct model *model, int32_t layer)
{
    const struct model_layer *entry = layer_of(model, layer);
    const struct kind_form *form = form_of(model, layer);
    int32_t owner =
        entry->kv_buffer >= 0 ? model->buffers[entry->kv_buffer].layer_id : entry->layer_id;
    bool expanded = operands_is_expanded(model, layer);
    generator_layer geometry = {.kv_layer = expanded ? (int32_t)model->num_layers + owner : owner};
    if (form->geometry)
        form->geometry(group_of(model, layer), &geometry);
    if (operands_are_encoded(model, layer))
        geometry.num_keys = model->max_encoder_len;
    return geometry;
}
