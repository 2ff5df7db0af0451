/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_model.c: any bytes as a Hugging Face config.json. Of what is accepted the layers, groups and
 * buffers must fit together.
 */
#include <math.h>

#include "host/model/model.h"
#include "tests/fuzz/fuzz.h"

static const char file_name[] = "fuzz.json";

const char fuzz_name[] = "model";

static void check_group(const struct model *model, const attn_layer_group *group)
{
    char text[256];
    bool has_heads = group->kind != ATTN_KIND_LINEAR; /* those of a recurrent layer are elsewhere */
    if (group->kind == ATTN_KIND_LINEAR && !group->linear)
        fuzz_fail("recurrent layers without dimensions");
    if (group->num_layers == 0)
        fuzz_fail("a group without layers");
    if (has_heads && (group->num_q_heads < 1 || group->num_kv_heads < 1 ||
                      group->num_q_heads % group->num_kv_heads != 0 || group->head_dim < 1 ||
                      group->v_head_dim < 1))
        fuzz_fail("a group of %u layers, heads %d and %d, dims %d and %d", group->num_layers,
                  group->num_q_heads, group->num_kv_heads, group->head_dim, group->v_head_dim);
    if (!isfinite(group->sm_scale) || (has_heads && !(group->sm_scale > 0)) ||
        !isfinite(group->logit_cap) || group->logit_cap < 0)
        fuzz_fail("sm_scale %g, logit_cap %g", (double)group->sm_scale, (double)group->logit_cap);
    model_layers_text(group, text, sizeof text);
    model_group_text(model, group, text, sizeof text);
}

static void check_layers(const struct model *model)
{
    uint32_t num_layers = 0;
    for (uint32_t g = 0; g < model->num_groups; g++) {
        check_group(model, &model->groups[g]);
        num_layers += model->groups[g].num_layers;
    }
    if (model->num_layers == 0 || num_layers != model->num_layers)
        fuzz_fail("%u layers, %u in groups", model->num_layers, num_layers);
    for (uint32_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        if (layer->group >= model->num_groups ||
            layer->index >= model->groups[layer->group].num_layers ||
            layer->kv_buffer >= (int32_t)model->num_buffers)
            fuzz_fail("layer %u: group %u, index %u, buffer %d", i, layer->group, layer->index,
                      layer->kv_buffer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *model = NULL;
    HOST_ERROR(error);
    attn_status status =
        model_create_hf_text((const char *)data, size, file_name, NULL, &model, &error.base);
    if (status != ATTN_OK) {
        fuzz_check_refusal(status, &error, file_name);
        return 0;
    }
    if (model->max_context_len < 1 || model->max_encoder_len < 0)
        fuzz_fail("%d tokens, %d of an encoder", model->max_context_len, model->max_encoder_len);
    check_layers(model);
    model_destroy(model);
    return 0;
}
