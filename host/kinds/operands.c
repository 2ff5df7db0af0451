/* SPDX-License-Identifier: Apache-2.0 */
#include "host/kinds/operands.h"

#include "host/workload/generator_linear.h"
#include "host/model/model.h"

/* The layer whose form this is. */
static const struct model_layer *layer_of(const struct model *model, int32_t layer)
{
    return &model->layers[layer % (int32_t)model->num_layers];
}

static const attn_layer_group *group_of(const struct model *model, int32_t layer)
{
    return &model->groups[layer_of(model, layer)->group];
}

bool operands_is_expanded(const struct model *model, int32_t layer)
{
    return layer >= (int32_t)model->num_layers && group_of(model, layer)->kind == ATTN_KIND_MLA;
}

int32_t operands_form(const struct model *model, int32_t layer, uint32_t mode)
{
    bool expanded = group_of(model, layer)->kind == ATTN_KIND_MLA &&
                    (model->mla_expanded & ATTN_MODE_BIT(mode)) != 0;
    return expanded ? (int32_t)model->num_layers + layer : layer;
}

int32_t operands_num_forms(const struct model *model)
{
    return (int32_t)model->num_layers * (model->mla_expanded ? 2 : 1);
}

const char *operands_role_name(uint32_t role)
{
    static const char *const names[ATTN_ROLE_COUNT] = {
#define NAME(id, value, text) [value] = text,
        ATTN_ROLE_MAP(NAME)
#undef NAME
    };
    return role < ATTN_ROLE_COUNT ? names[role] : "?";
}

bool operands_write_kv(const struct model *model, int32_t layer)
{
    const attn_layer_group *group = group_of(model, layer);
    const attn_layer *ids = attn_at(group->layers, layer_of(model, layer)->index);
    return model_group_has_kv(group) && !(ids->flags & ATTN_LAYER_KV_READ_ONLY);
}

/* ---- Softmax and latent attention ------------------------------------------------------------ */

static uint32_t list_softmax(const attn_layer_group *group, attn_dtype dtype,
                             struct row_operand *list)
{
    int32_t q = group->num_q_heads, kv = group->num_kv_heads;
    int32_t dim = group->head_dim, v_dim = group->v_head_dim;
    list[0] = (struct row_operand){ATTN_ROLE_Q, q, dim, dtype, GENERATOR_QUERY, 0};
    list[1] = (struct row_operand){ATTN_ROLE_K, kv, dim, dtype, GENERATOR_KEY, 0};
    list[2] = (struct row_operand){ATTN_ROLE_V, kv, v_dim, dtype, GENERATOR_VALUE, 0};
    return 3;
}

static uint32_t list_new_latents(const attn_layer_group *group, attn_dtype dtype,
                                 struct row_operand *list)
{
    int32_t lora = group->mla->kv_lora_rank, rope = group->mla->rope_dim;
    list[0] = (struct row_operand){ATTN_ROLE_C_KV, 0, lora, dtype, GENERATOR_KEY, 0};
    list[1] = (struct row_operand){ATTN_ROLE_K_PE, 0, rope, dtype, GENERATOR_KEY, lora};
    return 2;
}

static uint32_t list_absorbed(const attn_layer_group *group, attn_dtype dtype,
                              struct row_operand *list)
{
    int32_t q = group->num_q_heads, lora = group->mla->kv_lora_rank, rope = group->mla->rope_dim;
    list[0] = (struct row_operand){ATTN_ROLE_Q_NOPE, q, lora, dtype, GENERATOR_QUERY, 0};
    list[1] = (struct row_operand){ATTN_ROLE_Q_PE, q, rope, dtype, GENERATOR_QUERY, lora};
    return 2 + list_new_latents(group, dtype, list + 2);
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* Channels of all of q, k and v (Mamba2: x, B and C), and the gates that the family has. */
static uint32_t list_linear(const struct model *model, const attn_layer_group *group,
                            struct row_operand *list)
{
    static const uint32_t roles[] = {ATTN_ROLE_MIXED_QKV, ATTN_ROLE_GATE_A, ATTN_ROLE_GATE_B};
    uint32_t given = generator_linear_given(group, model->conv_bias), count = 0;
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        int64_t shape[2] = {0, 0};
        if (!(given & 1u << roles[r]))
            continue;
        uint32_t ndim = generator_linear_shape(group, roles[r], shape);
        list[count++] = (struct row_operand){
            .role = roles[r],
            .heads = ndim == 2 ? (int32_t)shape[0] : 0,
            .dim = (int32_t)shape[ndim - 1],
            .dtype = generator_linear_dtype(group, roles[r], model->dtype),
            .stream = GENERATOR_OPERAND + (int32_t)roles[r],
        };
    }
    return count;
}

/* ---- Every kind ------------------------------------------------------------------------------ */

uint32_t operands_list(const struct model *model, int32_t layer, struct row_operand *list)
{
    const attn_layer_group *group = group_of(model, layer);
    bool absorbed = group->kind == ATTN_KIND_MLA && !operands_is_expanded(model, layer);
    if (group->kind == ATTN_KIND_LINEAR)
        return list_linear(model, group, list);
    uint32_t count = absorbed ? list_absorbed(group, model->dtype, list)
                              : list_softmax(group, model->dtype, list);
    if (model_group_has_kv(group) && !operands_write_kv(model, layer) &&
        !operands_is_expanded(model, layer))
        count -= 2; /* keys and values stand last */
    return count;
}

uint32_t operands_list_latents(const struct model *model, int32_t layer, struct row_operand *list)
{
    if (!operands_is_expanded(model, layer) || !operands_write_kv(model, layer))
        return 0;
    return list_new_latents(group_of(model, layer), model->dtype, list);
}

struct row_operand operands_output(const struct model *model, int32_t layer)
{
    const attn_layer_group *group = group_of(model, layer);
    struct row_operand out = {
        .role = ATTN_ROLE_OUT,
        .heads = group->num_q_heads,
        .dim = group->v_head_dim,
        .dtype = model_out_dtype(model, group),
    };
    if (group->kind == ATTN_KIND_MLA && !operands_is_expanded(model, layer))
        out.dim = group->mla->kv_lora_rank;
    if (group->kind == ATTN_KIND_LINEAR) {
        out.heads = group->linear->num_v_heads;
        out.dim = group->linear->head_v_dim;
    }
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
    const attn_layer_group *group = group_of(model, layer);
    int32_t owner =
        entry->kv_buffer >= 0 ? model->buffers[entry->kv_buffer].layer_id : entry->layer_id;
    /* No queries, keys and values: rows of a recurrence are made by generator_linear.h. */
    if (group->kind == ATTN_KIND_LINEAR)
        return (generator_layer){.kv_layer = owner};
    generator_layer geometry = {
        .kv_layer = operands_is_expanded(model, layer) ? (int32_t)model->num_layers + owner : owner,
        .num_q_heads = group->num_q_heads,
        .num_kv_heads = group->num_kv_heads,
        .head_dim = group->head_dim,
        .v_head_dim = group->v_head_dim,
        .window_left = group->window_left,
        .window_right = group->window_right,
        .attention_chunk = group->attention_chunk,
    };
    if (group->kind == ATTN_KIND_MLA && !operands_is_expanded(model, layer)) {
        geometry.latent = 1;
        geometry.num_kv_heads = 1;
        geometry.head_dim = group->mla->kv_lora_rank + group->mla->rope_dim;
        geometry.v_head_dim = group->mla->kv_lora_rank;
    }
    return geometry;
}
