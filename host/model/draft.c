/* SPDX-License-Identifier: Apache-2.0
 *
 * draft.c: the layers of a draft model: from a config.json of its own, from keys of [speculative],
 * or, as EAGLE and MTP have it, one more of the kind of the target's last one.
 */
#include <stdio.h>
#include <string.h>

#include "host/model/build.h"

/* The target's last layer of decoders that has a KV cache; NULL = it has none. */
static const struct model_layer *last_with_kv(const struct model *model)
{
    for (uint32_t l = model->num_layers; l-- > 0;) {
        const attn_layer_group *group = &model->groups[model->layers[l].group];
        if (model_group_has_kv(group) && group->attn_type == ATTN_TYPE_DECODER)
            return &model->layers[l];
    }
    return NULL;
}

/* A draft layer is the first of its steps: it has an indexer, if layers of its model have one. */
static const attn_layer_group *with_indexer(const struct model *model,
                                            const attn_layer_group *group)
{
    for (uint32_t g = 0; group->sparse && group->sparse->index_heads == 0 && g < model->num_groups;
         g++)
        if (model->groups[g].sparse && model->groups[g].sparse->index_heads > 0)
            group = &model->groups[g];
    return group;
}

static void spec_of_group(const attn_layer_group *group, struct model_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    spec->group = *group;
    if (group->mla)
        spec->mla = *group->mla;
    if (group->sparse)
        spec->sparse = *group->sparse;
}

/* ---- From a file ----------------------------------------------------------------------------- */

static attn_status add_read_layer(struct model *model, const struct config *config,
                                  const struct model *draft, uint32_t layer, attn_error *error)
{
    const attn_layer_group *group = &draft->groups[draft->layers[layer].group];
    struct model_spec spec;
    if (!model_group_has_kv(group) || group->attn_type != ATTN_TYPE_DECODER)
        return config_fail(config, "speculative.config", error,
                           "layer %u is a %s %s layer: accepted decoder layers with a KV cache",
                           layer, model_kind_name(group->kind),
                           model_attn_type_name(group->attn_type));
    spec_of_group(group, &spec);
    return model_add_draft_layer(model, &spec, true, draft->layers[layer].block, error);
}

static attn_status add_file(struct model *model, const struct config *config, attn_error *error)
{
    struct model *draft = NULL;
    attn_status status = model_create_hf(config->speculative.config, NULL, &draft, error);
    for (uint32_t l = 0; status == ATTN_OK && l < draft->num_layers; l++)
        status = add_read_layer(model, config, draft, l, error);
    model_destroy(draft);
    return status;
}

/* ---- From keys ------------------------------------------------------------------------------- */

static bool has_shape(const struct config_speculative *keys)
{
    return keys->num_q_heads || keys->num_kv_heads || keys->head_dim || keys->v_head_dim ||
           keys->sliding_window;
}

static int32_t either(int64_t given, int32_t otherwise)
{
    return given ? (int32_t)given : otherwise;
}

/* Softmax attention of the shape that is given; the target's heads, which may be one rank's, stand
 * in for what is not. */
static attn_status shape_spec(const struct model *model, const struct config *config,
                              const attn_layer_group *like, struct model_spec *spec,
                              attn_error *error)
{
    const struct config_speculative *keys = &config->speculative;
    int32_t heads = either(keys->num_q_heads, like->num_q_heads * model->tp_size);
    int32_t kv_heads =
        either(keys->num_kv_heads, keys->num_q_heads ? heads : like->num_kv_heads * model->tp_size);
    int32_t dim = either(keys->head_dim, like->head_dim);
    if (heads % kv_heads != 0)
        return config_fail(config, "speculative.num_kv_heads", error,
                           "%d: accepted a divisor of the draft model's %d query heads", kv_heads,
                           heads);
    model_spec_softmax(spec, heads, kv_heads, dim,
                       either(keys->v_head_dim, keys->head_dim ? dim : like->v_head_dim));
    if (keys->sliding_window)
        spec->group.window_left = (int32_t)keys->sliding_window - 1;
    return ATTN_OK;
}

static attn_status add_keys(struct model *model, const struct config *config, attn_error *error)
{
    const struct model_layer *like = last_with_kv(model);
    bool whole = has_shape(&config->speculative);
    struct model_spec spec;
    attn_status status = ATTN_OK;
    if (!like) /* problem_check_drafts() says why there are no drafts */
        return ATTN_OK;
    if (whole)
        status = shape_spec(model, config, &model->groups[like->group], &spec, error);
    else
        spec_of_group(with_indexer(model, &model->groups[like->group]), &spec);
    for (int32_t l = 0; status == ATTN_OK && l < config->speculative.num_layers; l++)
        status = model_add_draft_layer(model, &spec, whole, l, error);
    return status;
}

attn_status model_add_drafts(struct model *model, const struct config *config, attn_error *error)
{
    static const char *const names[] = {"num_layers", "num_q_heads", "num_kv_heads",
                                        "head_dim",   "v_head_dim",  "sliding_window"};
    char key[64];
    for (size_t n = 0; config->speculative.config && n < sizeof names / sizeof *names; n++) {
        snprintf(key, sizeof key, "speculative.%s", names[n]);
        if (config_is_set(config, key))
            return config_fail(config, key, error,
                               "accepted without speculative.config, which describes the draft "
                               "model");
    }
    if (config->speculative.kv_dtype)
        model->first_draft_group = model->num_groups;
    return config->speculative.config ? add_file(model, config, error)
                                      : add_keys(model, config, error);
}
