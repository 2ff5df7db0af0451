/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.c: the table of kinds.
 */
#include "host/kinds/kinds.h"

static const struct kind_ops *const kinds[ATTN_KIND_COUNT] = {
#define KIND_ROW(kind, name) [ATTN_KIND_##kind] = &kind_##name,
    KINDS(KIND_ROW)
#undef KIND_ROW
};

const struct kind_ops *kind_of(const attn_layer_group *group)
{
    return kinds[group->kind];
}

void sparse_index_raw(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                      uint32_t role, int32_t dim, int16_t *out)
{
    int8_t raw[GENERATOR_MAX_DIM];
    int32_t from = role == ATTN_ROLE_INDEX_K ? generator->layers[layer].kv_layer : layer;
    generator_raw(generator, key, from, head, GENERATOR_OPERAND + (int32_t)role, dim, raw);
    for (int32_t d = 0; d < dim; d++)
        out[d] = raw[d];
}

const char *const *kind_layouts(const attn_layer_group *group)
{
    static const char *const none[KIND_MAX_LAYOUTS];
    bool stores = model_group_has_kv(group) || model_group_has_state(group);
    return stores ? kind_of(group)->layouts : none;
}

bool kind_expands(const struct model *model, const attn_layer_group *group)
{
    return kind_of(group)->expanded && model->mla_expanded != 0;
}

attn_dtype kind_out_dtype(const struct model *model, const attn_layer_group *group)
{
    return kind_expands(model, group) ? ATTN_F32 : model->dtype;
}
