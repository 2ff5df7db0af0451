/* SPDX-License-Identifier: Apache-2.0
 *
 * ini.c: a model from the keys of the [model] section.
 *
 * The ranges of single keys were checked when the ini was read; here are the rules that tie several
 * keys together. A key of a layer type ([model] sliding.head_dim) stands in for the one of all
 * layers.
 */
#include "host/model/model.h"

#include <stdio.h>
#include <string.h>

#include "host/base/error.h"
#include "host/model/build.h"

struct ini_model {
    const struct config *config;
    const struct config_model *keys;
    int32_t num_layers;
};

/* Layers of one type, by their keys and those of all layers. */
struct shape {
    int64_t type; /* CONFIG_LAYER_* */
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t v_head_dim;
    double logit_cap;
    double sm_scale; /* 0 = 1 / sqrt(head_dim) */
    bool sinks;
    bool alibi;
};

enum { KEY_TEXT = 64 };

/* The key to name in a message: "model.sliding.head_dim" where that was given, else
 * "model.head_dim". */

static const char *key_of(const struct ini_model *model, int64_t type, const char *name, char *text)
{
    snprintf(text, KEY_TEXT, "model.%s.%s", config_layer_name(type), name);
    if (!config_is_set(model->config, text))
        snprintf(text, KEY_TEXT, "model.%s", name);
    return text;
}

static bool is_own(const struct ini_model *model, int64_t type, const char *name)
{
    char text[KEY_TEXT];
    key_of(model, type, name, text);
    return strchr(text + strlen("model."), '.') != NULL;
}

static int64_t first_of(int64_t own, int64_t common, int64_t otherwise)
{
    return own ? own : common ? common : otherwise;
}

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
    if (keys->num_kv_shared_layers >= wanted)
        return config_fail(model->config, "model.num_kv_shared_layers", error,
                           "%lld: accepted 0 to %lld, below the number of layers",
                           (long long)keys->num_kv_shared_layers, (long long)wanted - 1);
    model->num_layers = (int32_t)wanted;
    return ATTN_OK;
}

static attn_status settle_heads(const struct ini_model *model, struct shape *shape,
                                attn_error *error)
{
    const struct config_model *keys = model->keys;
    char key[KEY_TEXT];
    int64_t heads = first_of(keys->by_type.num_q_heads[shape->type], keys->num_q_heads, 0);
    int64_t kv_heads = first_of(keys->by_type.num_kv_heads[shape->type], keys->num_kv_heads, heads);
    attn_status status =
        require(model->config, "model.num_q_heads", heads, "1 to 4096 heads", error);
    if (status)
        return status;
    shape->num_q_heads = (int32_t)heads;
    shape->num_kv_heads = (int32_t)kv_heads;
    if (heads % kv_heads != 0)
        return config_fail(model->config, key_of(model, shape->type, "num_kv_heads", key), error,
                           "%lld: accepted a divisor of the %lld query heads of %s layers",
                           (long long)kv_heads, (long long)heads, config_layer_name(shape->type));
    return ATTN_OK;
}

/* MLA's heads are as wide as their two parts; a head_dim that says otherwise is a mistake. */
static attn_status settle_mla_dims(const struct ini_model *model, struct shape *shape,
                                   attn_error *error)
{
    const struct config_model *keys = model->keys;
    attn_status status = require(model->config, "model.qk_rope_head_dim",
                                 config_is_set(model->config, "model.qk_rope_head_dim"),
                                 "0 to 4096 (kv_lora_rank makes this an MLA model)", error);
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
    if (keys->num_kv_heads && keys->num_kv_heads != shape->num_q_heads)
        return config_fail(model->config, "model.num_kv_heads", error,
                           "%lld: accepted model.num_q_heads = %d in an MLA model",
                           (long long)keys->num_kv_heads, shape->num_q_heads);
    shape->num_kv_heads = shape->num_q_heads;
    shape->head_dim = (int32_t)width;
    shape->v_head_dim = (int32_t)(keys->v_head_dim ? keys->v_head_dim : keys->qk_nope_head_dim);
    return ATTN_OK;
}

static attn_status settle_dims(const struct ini_model *model, struct shape *shape,
                               attn_error *error)
{
    const struct config_model *keys = model->keys;
    if (keys->kv_lora_rank && shape->type != CONFIG_LAYER_LINEAR)
        return settle_mla_dims(model, shape, error);
    int64_t dim = first_of(keys->by_type.head_dim[shape->type], keys->head_dim, 0);
    int64_t v_dim = first_of(keys->by_type.v_head_dim[shape->type], keys->v_head_dim, dim);
    attn_status status = require(model->config, "model.head_dim", dim, "1 to 4096 elements", error);
    shape->head_dim = (int32_t)dim;
    shape->v_head_dim = (int32_t)v_dim;
    return status;
}

/* Keys that only latent layers have. */
static attn_status check_latent_keys(const struct ini_model *model, attn_error *error)
{
    static const char *const names[] = {"model.qk_rope_head_dim", "model.qk_nope_head_dim",
                                        "model.index_topk", "model.index_head_dim",
                                        "model.index_n_heads"};
    for (size_t i = 0; !model->keys->kv_lora_rank && i < sizeof names / sizeof *names; i++)
        if (config_is_set(model->config, names[i]))
            return config_fail(model->config, names[i], error,
                               "needs model.kv_lora_rank, which is missing");
    return ATTN_OK;
}

/* ---- Types of layers ------------------------------------------------------------------------- */

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

/* What a type of layers needs besides heads. */
static attn_status check_needs(const struct ini_model *model, int64_t type, attn_error *error)
{
    const struct config_model *keys = model->keys;
    const struct {
        int64_t type, given;
        const char *key, *what, *accepted;
    } needs[] = {{CONFIG_LAYER_SLIDING, keys->sliding_window, "model.sliding_window", "sliding",
                  "1 to 2147483647 tokens"},
                 {CONFIG_LAYER_CHUNKED, keys->attention_chunk, "model.attention_chunk", "chunked",
                  "1 to 2147483647 tokens"},
                 {CONFIG_LAYER_SPARSE, keys->kv_lora_rank, "model.kv_lora_rank", "sparse",
                  "1 to 65536, as sparse layers pick latents"},
                 {CONFIG_LAYER_SPARSE, keys->index_topk, "model.index_topk", "sparse",
                  "1 to 2147483647 keys"},
                 {CONFIG_LAYER_LINEAR, keys->linear_family, "model.linear_family", "linear",
                  "gdn, mamba2, kda, lightning or short_conv, or model.config = config.json"}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (type == needs[i].type && !needs[i].given)
            return config_fail(model->config, needs[i].key, error,
                               "is missing: layer_types has a %s layer; accepted %s", needs[i].what,
                               needs[i].accepted);
    return ATTN_OK;
}

/* Does this type of layer have all it needs, and nothing that contradicts it? */
static attn_status check_type(const struct ini_model *model, int64_t type, attn_error *error)
{
    const struct config_model *keys = model->keys;
    bool encoder_only = keys->attn_type == ATTN_TYPE_ENCODER_ONLY;
    bool latent =
        type == CONFIG_LAYER_FULL || type == CONFIG_LAYER_SPARSE || type == CONFIG_LAYER_LINEAR;
    if (keys->kv_lora_rank && !latent)
        return refuse_type(model, "accepted full, sparse and linear in an MLA model (kv_lora_rank)",
                           error);
    if (keys->kv_lora_rank && encoder_only)
        return config_fail(model->config, "model.attn_type", error,
                           "encoder_only: accepted decoder in an MLA model (kv_lora_rank)");
    if (encoder_only &&
        (type == CONFIG_LAYER_CROSS || type == CONFIG_LAYER_CHUNKED || type == CONFIG_LAYER_LINEAR))
        return refuse_type(
            model, "accepted full, sliding and encoder when attn_type is encoder_only", error);
    return check_needs(model, type, error);
}

/* Keys of one type that its layers cannot have. */
static attn_status check_own_keys(const struct ini_model *model, int64_t type, attn_error *error)
{
    bool linear = type == CONFIG_LAYER_LINEAR, cross = type == CONFIG_LAYER_CROSS;
    bool latent = model->keys->kv_lora_rank && !linear;
    const struct {
        const char *name;
        bool refused;
    } keys[] = {{"logit_cap", linear},     {"sm_scale", linear},   {"sinks", linear},
                {"head_dim", latent},      {"v_head_dim", latent}, {"num_kv_heads", latent},
                {"alibi", linear || cross}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].refused && is_own(model, type, keys[i].name)) {
            char key[KEY_TEXT];
            return config_fail(model->config, key_of(model, type, keys[i].name, key), error,
                               "is a key that %s layers do not have%s", config_layer_name(type),
                               latent ? " in an MLA model (kv_lora_rank)" : "");
        }
    return ATTN_OK;
}

/* ---- Parameters of a layer ------------------------------------------------------------------- */

static bool flag_of(const struct ini_model *model, int64_t type, const char *name, const bool *own,
                    bool common)
{
    return is_own(model, type, name) ? own[type] : common;
}

static attn_status settle_shape(const struct ini_model *model, int64_t type, struct shape *shape,
                                attn_error *error)
{
    const struct config_model *keys = model->keys;
    const struct config_layer_keys *own = &keys->by_type;
    *shape = (struct shape){
        .type = type,
        .logit_cap = is_own(model, type, "logit_cap") ? own->logit_cap[type] : keys->logit_cap,
        .sm_scale = own->sm_scale[type] > 0 ? own->sm_scale[type] : keys->sm_scale,
        .sinks = flag_of(model, type, "sinks", own->sinks, keys->sinks),
        .alibi = flag_of(model, type, "alibi", own->alibi, keys->alibi),
    };
    attn_status status = check_own_keys(model, type, error);
    if (!status)
        status = settle_heads(model, shape, error);
    return status ? status : settle_dims(model, shape, error);
}

/* Query heads are the values' heads, KV heads the keys', as in attn_layer_group. */
static attn_status linear_spec(const struct ini_model *model, const struct shape *shape,
                               struct model_spec *spec, attn_error *error)
{
    static const uint32_t flags[ATTN_LINEAR_COUNT] = {
        [ATTN_LINEAR_GDN] = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
        [ATTN_LINEAR_KDA] = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
        [ATTN_LINEAR_MAMBA2] = ATTN_LINEAR_RAW_GATES,
        [ATTN_LINEAR_SHORT_CONV] = ATTN_LINEAR_CONV_IDENTITY};
    const struct config_model *keys = model->keys;
    uint32_t family = (uint32_t)keys->linear_family - 1;
    bool convolution = family == ATTN_LINEAR_SHORT_CONV;
    if (convolution && !keys->linear_conv)
        return config_fail(model->config, "model.linear_conv_kernel_dim", error,
                           "is missing: linear_family is short_conv; accepted 1 to 64 taps");
    attn_linear_dims dims = {
        .family = family,
        .flags = flags[family],
        .num_k_heads = convolution ? 0 : shape->num_kv_heads,
        .num_v_heads = shape->num_q_heads,
        .head_k_dim = convolution ? 0 : shape->head_dim,
        .head_v_dim = shape->v_head_dim,
        .num_groups = family == ATTN_LINEAR_MAMBA2 ? shape->num_kv_heads : 0,
        .conv_width = (int32_t)keys->linear_conv,
        .state_dtype = ATTN_F32,
        .conv_dtype = keys->linear_conv ? keys->dtype : (attn_dtype)ATTN_DTYPE_NONE,
    };
    model_spec_linear(spec, &dims);
    return ATTN_OK;
}

static void latent_spec(const struct config_model *keys, const struct shape *shape,
                        struct model_spec *spec)
{
    model_spec_mla(spec, shape->num_q_heads, (int32_t)keys->kv_lora_rank,
                   (int32_t)keys->qk_nope_head_dim, (int32_t)keys->qk_rope_head_dim,
                   shape->v_head_dim);
    if (shape->type == CONFIG_LAYER_SPARSE)
        model_spec_sparse(spec, (int32_t)keys->index_topk, (int32_t)keys->index_head_dim,
                          (int32_t)keys->index_n_heads, keys->dtype);
}

static void set_masks(const struct config_model *keys, int64_t type, bool encoder,
                      attn_layer_group *group)
{
    if (encoder) {
        group->attn_type = ATTN_TYPE_ENCODER_ONLY;
        group->window_right = -1;
    }
    if (type == CONFIG_LAYER_SLIDING) {
        group->window_left = (int32_t)(keys->sliding_window - 1);
        if (encoder)
            group->window_right = group->window_left;
    }
    if (type == CONFIG_LAYER_CHUNKED)
        group->attention_chunk = (int32_t)keys->attention_chunk;
}

#define LAYER_KIND(name, word, kind) ATTN_KIND_##kind,
static const uint32_t layer_kinds[] = {CONFIG_LAYER_MAP(LAYER_KIND)};

/* The parameters of a layer of one type. */
static attn_status layer_spec(const struct ini_model *model, const struct shape *shape,
                              struct model_spec *spec, attn_error *error)
{
    const struct config_model *keys = model->keys;
    bool encoder = shape->type == CONFIG_LAYER_ENCODER || keys->attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (shape->type == CONFIG_LAYER_LINEAR)
        return linear_spec(model, shape, spec, error);
    if (keys->kv_lora_rank)
        latent_spec(keys, shape, spec);
    else
        (shape->type == CONFIG_LAYER_CROSS ? model_spec_cross : model_spec_softmax)(
            spec, shape->num_q_heads, shape->num_kv_heads, shape->head_dim, shape->v_head_dim);
    if (!keys->kv_lora_rank)
        spec->group.kind = layer_kinds[shape->type];
    set_masks(keys, shape->type, encoder, &spec->group);
    if (shape->sm_scale > 0)
        spec->group.sm_scale = (float)shape->sm_scale;
    spec->group.logit_cap = (float)shape->logit_cap;
    if (shape->sinks)
        spec->group.flags |= ATTN_GROUP_HAS_SINKS;
    /* A cross layer's query has no position that a distance could be taken from. */
    if (shape->alibi && shape->type != CONFIG_LAYER_CROSS)
        spec->group.flags |= ATTN_GROUP_HAS_ALIBI;
    return ATTN_OK;
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

/* A layer with a cache of its own, or one that reads that of layer `owner`; -1: there is none. */
static attn_status add_layer(const struct ini_model *ini, struct model *model,
                             const struct model_spec *spec, int32_t index, int32_t owner,
                             attn_error *error)
{
    if (index < ini->num_layers - ini->keys->num_kv_shared_layers)
        return model_add_layer(model, spec, stack_of(spec), index, error);
    if (owner < 0 || !model_group_has_kv(&spec->group))
        return config_fail(ini->config, "model.num_kv_shared_layers", error,
                           "%lld: layer %d is %s: accepted layers with a KV cache that have one "
                           "of their type before the shared ones",
                           (long long)ini->keys->num_kv_shared_layers, index,
                           config_layer_name(layer_type(ini, index)));
    return model_add_shared_layer(model, spec, stack_of(spec), index, owner, error);
}

static attn_status add_layers(const struct ini_model *ini, struct model *model, attn_error *error)
{
    int32_t last[CONFIG_LAYER_COUNT];
    int32_t first_shared = ini->num_layers - (int32_t)ini->keys->num_kv_shared_layers;
    memset(last, -1, sizeof last);
    for (int32_t i = 0; i < ini->num_layers; i++) {
        struct model_spec spec;
        struct shape shape;
        int64_t type = layer_type(ini, i);
        attn_status status = check_type(ini, type, error);
        if (!status)
            status = settle_shape(ini, type, &shape, error);
        if (!status)
            status = layer_spec(ini, &shape, &spec, error);
        if (!status)
            status = add_layer(ini, model, &spec, i, last[type], error);
        if (status)
            return status;
        model->has_type[type] = true;
        if (i < first_shared)
            last[type] = i;
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
        status = check_latent_keys(&ini, error);
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
