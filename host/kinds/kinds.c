/* SPDX-License-Identifier: Apache-2.0 */
#include "host/kinds/kinds.h"

static const struct kind_ops *const kinds[ATTN_KIND_COUNT] = {
    [ATTN_KIND_SOFTMAX] = &kind_softmax,
    [ATTN_KIND_MLA] = &kind_mla,
    [ATTN_KIND_LINEAR] = &kind_linear,
    [ATTN_KIND_SPARSE] = &kind_sparse,
};

const struct kind_ops *kind_of(const attn_layer_group *group)
{
    return kinds[group->kind];
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
