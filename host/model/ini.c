/* SPDX-License-Identifier: Apache-2.0
 *
 * ini.c: a model from the keys of the [model] section.
 *
 * The ranges of single keys were checked when the ini was read; here are the rules that tie several
 * keys together.
 */
#include "host/model/model.h"

#include <string.h>

#include "host/base/error.h"
#include "host/model/build.h"

/* The keys once their defaults are settled. */
struct ini_model {
    const struct config *config;
    const struct config_model *keys;
    int32_t num_layers;
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t v_head_dim;
};

/* ---- Several keys together ------------------------------------------------------------------- */

static attn_status require(const struct config *config, const char *key, int64_t value,
                           const char *accepted, attn_error *error)
{
    if (value != 0)
        return ATTN_OK;
    return config_fail(config, key, error, "is missing: accepted %s, or model.config = config.json",
                       accepted);
}

static attn_status settle_layers(struct ini_model *model, attn_error *error)
{
    const struct config_model *keys = model->keys;
    int64_t listed = (int64_t)keys->layer_types.count;
    int64_t wanted = keys->num_layers ? keys->num_layers : listed;
    attn_status status =
        require(model->config, "model.num_layers", wanted, "1 to 4096 layers", error);
    if (status)
        return status;
    if (wanted > MODEL_MAX_LAYERS)
        return config_fail(model->config, "model.layer_types", error,
                           "has %lld layers: accepted 1 to %d", (long long)wanted,
                           MODEL_MAX_LAYERS);
    if (listed > wanted)
        return config_fail(model->config, "model.layer_types", error,
                           "has %lld layers: accepted at most model.num_layers = %lld",
                           (long long)listed, (long long)wanted);
    model->num_layers = (int32_t)wanted;
    return ATTN_OK;
}

static attn_status settle_heads(struct ini_model *model, attn_error *error)
{
    const struct config_model *keys = model->keys;
    attn_status status =
        require(model->config, "model.num_q_heads", keys->num_q_heads, "1 to 4096 heads", error);
    if (status)
        return status;
    model->num_q_heads = (int32_t)keys->num_q_heads;
    model->num_kv_heads =
        keys->num_kv_heads ? (int32_t)keys->num_kv_heads : (int32_t)keys->num_q_heads;
    if (model->num_q_heads % model->num_kv_heads != 0)
        return config_fail(model->config, "model.num_kv_heads", error,
                           "%d: accepted a divisor of model.num_q_heads = %d", model->num_kv_heads,
                           model->num_q_heads);
    return ATTN_OK;
}

/* MLA's heads are as wide as their two parts; a head_dim that says otherwise is a mistake. */
static attn_status settle_mla_dims(struct ini_model *model, attn_error *error)
{
    const struct config_model *keys = model->keys;
    attn_status status = require(model->config, "model.qk_rope_head_dim", keys->qk_rope_head_dim,
                                 "1 to 4096 (kv_lora_rank makes this an MLA model)", error);
    if (!status)
        status = require(model->config, "model.qk_nope_head_dim", keys->qk_nope_head_dim,
                         "1 to 4096 (kv_lora_rank makes this an MLA model)", error);
    if (status)
        return status;
    int64_t width = keys->qk_nope_head_dim + keys->qk_rope_head_dim;
    if (keys->head_dim && keys->head_dim != width)
        return config_fail(model->config, "model.head_dim", error,
                           "%lld: accepted qk_nope_head_dim + qk_rope_head_dim = %lld",
                           (long long)keys->head_dim, (long long)width);
    if (keys->num_kv_heads && keys->num_kv_heads != keys->num_q_heads)
        return config_fail(model->config, "model.num_kv_heads", error,
                           "%lld: accepted model.num_q_heads = %lld in an MLA model",
                           (long long)keys->num_kv_heads, (long long)keys->num_q_heads);
    model->head_dim = (int32_t)width;
    model->v_head_dim = (int32_t)(keys->v_head_dim ? keys->v_head_dim : keys->qk_nope_head_dim);
    return ATTN_OK;
}

static attn_status settle_dims(struct ini_model *model, attn_error *error)
{
    const struct config_model *keys = model->keys;
    if (keys->kv_lora_rank)
        return settle_mla_dims(model, error);
    if (keys->qk_rope_head_dim || keys->qk_nope_head_dim)
        return config_fail(model->config,
                           keys->qk_rope_head_dim ? "model.qk_rope_head_dim"
                                                  : "model.qk_nope_head_dim",
                           error, "needs model.kv_lora_rank, which is missing");
    attn_status status =
        require(model->config, "model.head_dim", keys->head_dim, "1 to 4096 elements", error);
    if (status)
        return status;
    model->head_dim = (int32_t)keys->head_dim;
    model->v_head_dim = (int32_t)(keys->v_head_dim ? keys->v_head_dim : keys->head_dim);
    return ATTN_OK;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* The type of layer `index`. Without layer_types a window or chunk is that of every layer. */
static int64_t layer_type(const struct ini_model *model, int32_t index)
{
    const struct config_model *keys = model->keys;
    if (keys->layer_types.count)
        return keys->layer_types.items[(size_t)index % keys->layer_types.count];
    if (keys->sliding_window)
        return CONFIG_LAYER_SLIDING;
    return keys->attention_chunk ? CONFIG_LAYER_CHUNKED : CONFIG_LAYER_FULL;
}

static attn_status refuse_type(const struct ini_model *model, const char *what, attn_error *error)
{
    return config_fail(model->config, "model.layer_types", error, "%s", what);
}

/* Does this type of layer have all it needs, and nothing that contradicts it? */
static attn_status check_type(const struct ini_model *model, int64_t type, attn_error *error)
{
    const struct config_model *keys = model->keys;
    bool encoder_only = keys->attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (type == CONFIG_LAYER_LINEAR)
        return refuse_type(model,
                           "linear: the dimensions of a linear layer come from a "
                           "config.json: accepted model.config = config.json",
                           error);
    if (keys->kv_lora_rank && type != CONFIG_LAYER_FULL)
        return refuse_type(model, "accepted only full in an MLA model (kv_lora_rank)", error);
    if (keys->kv_lora_rank && encoder_only)
        return config_fail(model->config, "model.attn_type", error,
                           "encoder_only: accepted decoder in an MLA model (kv_lora_rank)");
    if (encoder_only && (type == CONFIG_LAYER_CROSS || type == CONFIG_LAYER_CHUNKED))
        return refuse_type(
            model, "accepted full, sliding and encoder when attn_type is encoder_only", error);
    if (type == CONFIG_LAYER_SLIDING && !keys->sliding_window)
        return config_fail(model->config, "model.sliding_window", error,
                           "is missing: layer_types has a sliding layer; accepted 1 to 2147483647 "
                           "tokens");
    if (type == CONFIG_LAYER_CHUNKED && !keys->attention_chunk)
        return config_fail(model->config, "model.attention_chunk", error,
                           "is missing: layer_types has a chunked layer; accepted 1 to 2147483647 "
                           "tokens");
    return ATTN_OK;
}

/* The parameters of a layer of one type. */
static void layer_spec(const struct ini_model *model, int64_t type, struct model_spec *spec)
{
    const struct config_model *keys = model->keys;
    bool encoder = type == CONFIG_LAYER_ENCODER || keys->attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (keys->kv_lora_rank)
        model_spec_mla(spec, model->num_q_heads, (int32_t)keys->kv_lora_rank,
                       (int32_t)keys->qk_nope_head_dim, (int32_t)keys->qk_rope_head_dim,
                       model->v_head_dim);
    else if (type == CONFIG_LAYER_CROSS)
        model_spec_cross(spec, model->num_q_heads, model->num_kv_heads, model->head_dim,
                         model->v_head_dim);
    else
        model_spec_softmax(spec, model->num_q_heads, model->num_kv_heads, model->head_dim,
                           model->v_head_dim);
    if (encoder) {
        spec->group.attn_type = ATTN_TYPE_ENCODER_ONLY;
        spec->group.window_right = -1;
    }
    if (type == CONFIG_LAYER_SLIDING) {
        spec->group.window_left = (int32_t)(keys->sliding_window - 1);
        if (encoder)
            spec->group.window_right = spec->group.window_left;
    }
    if (type == CONFIG_LAYER_CHUNKED)
        spec->group.attention_chunk = (int32_t)keys->attention_chunk;
    if (keys->sm_scale > 0)
        spec->group.sm_scale = (float)keys->sm_scale;
    spec->group.logit_cap = (float)keys->logit_cap;
    if (keys->sinks)
        spec->group.flags |= ATTN_GROUP_HAS_SINKS;
    /* A cross layer's query has no position that a distance could be taken from. */
    if (keys->alibi && type != CONFIG_LAYER_CROSS)
        spec->group.flags |= ATTN_GROUP_HAS_ALIBI;
}

static const char *stack_of(const struct model_spec *spec)
{
    switch (spec->group.attn_type) {
    case ATTN_TYPE_ENCODER_ONLY:
        return "encoder";
    case ATTN_TYPE_CROSS:
        return "cross";
    default:
        return "decoder";
    }
}

static attn_status add_layers(const struct ini_model *ini, struct model *model, attn_error *error)
{
    for (int32_t i = 0; i < ini->num_layers; i++) {
        struct model_spec spec;
        int64_t type = layer_type(ini, i);
        attn_status status = check_type(ini, type, error);
        if (status)
            return status;
        layer_spec(ini, type, &spec);
        status = model_add_layer(model, &spec, stack_of(&spec), i, error);
        if (status)
            return status;
        if (spec.group.attn_type != ATTN_TYPE_DECODER)
            model->max_encoder_len = model->max_context_len;
    }
    return ATTN_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* A window or chunk that no layer has is a mistake in layer_types. */
static attn_status check_unused(const struct ini_model *ini, const struct model *model,
                                attn_error *error)
{
    bool window = false, chunk = false;
    for (uint32_t i = 0; i < model->num_groups; i++) {
        window |= model->groups[i].window_left >= 0;
        chunk |= model->groups[i].attention_chunk > 0;
    }
    if (ini->keys->sliding_window && !window)
        return config_fail(ini->config, "model.sliding_window", error,
                           "no layer is sliding: accepted with sliding in model.layer_types");
    if (ini->keys->attention_chunk && !chunk)
        return config_fail(ini->config, "model.attention_chunk", error,
                           "no layer is chunked: accepted with chunked in model.layer_types");
    return ATTN_OK;
}

attn_status model_create_ini(const struct config *config, struct model **out, attn_error *error)
{
    struct ini_model ini = {.config = config, .keys = &config->model};
    attn_status status = settle_layers(&ini, error);
    if (!status)
        status = settle_heads(&ini, error);
    if (!status)
        status = settle_dims(&ini, error);
    if (status)
        return status;

    struct model *model = model_new(config->name ? config->name : "default", "ini", config);
    if (!model)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a model");
    model->dtype = config->model.dtype;
    model->max_context_len = config->model.max_context_len ? (int32_t)config->model.max_context_len
                                                           : MODEL_DEFAULT_CONTEXT;
    status = add_layers(&ini, model, error);
    if (!status)
        status = check_unused(&ini, model, error);
    if (status) {
        model_destroy(model);
        return status;
    }
    model_settle(model);
    *out = model;
    return ATTN_OK;
}
