/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_dense.c: decoders of softmax layers that are full, sliding or chunked, some of them with
 * gated delta net layers in between: Llama, Mistral, Qwen, Gemma, GPT-OSS.
 */
#include "host/model/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_FULL = 0, LAYER_SLIDING = 1, LAYER_CHUNKED = 2, LAYER_LINEAR = 3, LAYER_TYPES = 4 };

struct dense {
    int32_t num_layers;
    int32_t window;           /* tokens, the query counted; 0 = off */
    int32_t chunk;            /* tokens; read only if a layer is chunked */
    int32_t upper;            /* HF_UPPER_SLIDING: first sliding layer */
    int32_t period;           /* of the HF_PERIOD_* patterns */
    const cJSON *layer_types; /* names, one for each layer; NULL = by the pattern */
    const cJSON *rope_layers; /* Llama 4: 1 = chunked with RoPE, 0 = full without */
    struct model_spec specs[LAYER_TYPES];
};

/* sliding_window: null means none even where its absence means the family's default. */
static int32_t read_window(const struct hf_source *source)
{
    const struct hf_defaults *defaults = source->defaults;
    const struct json_reader *text = &source->text;
    bool stated = cJSON_HasObjectItem(text->object, "sliding_window");
    if (defaults->pattern == HF_UPPER_SLIDING && !json_bool(text, "use_sliding_window", false))
        return 0;
    return (int32_t)json_int(text, "sliding_window", stated ? 0 : defaults->window, 1, INT32_MAX);
}

/* Llama 4 lists which layers have RoPE; an empty list means by the period. */
static const cJSON *read_rope_layers(const struct hf_source *source, int32_t num_layers)
{
    const cJSON *list = json_array(&source->text, "no_rope_layers", -1);
    if (!list || cJSON_GetArraySize(list) == 0)
        return NULL;
    return json_array(&source->text, "no_rope_layers", num_layers);
}

static void read_pattern(const struct hf_source *source, struct dense *dense)
{
    const struct hf_defaults *defaults = source->defaults;
    dense->num_layers = hf_num_layers(source);
    dense->window = read_window(source);
    dense->layer_types = json_array(&source->text, "layer_types", dense->num_layers);
    dense->period = defaults->period;
    switch (defaults->pattern) {
    case HF_UPPER_SLIDING:
        dense->upper = (int32_t)json_int(&source->text, "max_window_layers", 28, 0, INT32_MAX);
        break;
    case HF_PERIOD_SLIDING:
        dense->period = hf_int(source, "sliding_window_pattern|_sliding_window_pattern",
                               defaults->period, MODEL_MAX_LAYERS);
        break;
    case HF_PERIOD_CHUNKED:
        dense->period =
            hf_int(source, "no_rope_layer_interval", defaults->period, MODEL_MAX_LAYERS);
        dense->rope_layers = read_rope_layers(source, dense->num_layers);
        dense->chunk = hf_int(source, "attention_chunk_size", 8192, INT32_MAX);
        break;
    case HF_PERIOD_LINEAR:
        dense->period =
            hf_int(source, "full_attention_interval", defaults->period, MODEL_MAX_LAYERS);
        break;
    default:
        break;
    }
}

/* ---- Type of a layer ------------------------------------------------------------------------- */

static int named_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    static const char *const names[LAYER_TYPES] = {"full_attention", "sliding_attention",
                                                   "chunked_attention", "linear_attention"};
    const cJSON *item = cJSON_GetArrayItem(dense->layer_types, index);
    char key[48], got[64];
    for (int type = 0; cJSON_IsString(item) && type < LAYER_TYPES; type++)
        if (strcmp(item->valuestring, names[type]) == 0)
            return type;
    snprintf(key, sizeof key, "layer_types[%d]", index);
    json_describe(item, got, sizeof got);
    json_fail(&source->text, key,
              "got %s: accepted full_attention, sliding_attention, chunked_attention, "
              "linear_attention",
              got);
    return LAYER_FULL;
}

static int rope_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    const cJSON *item = cJSON_GetArrayItem(dense->rope_layers, index);
    if (!cJSON_IsNumber(item) && !cJSON_IsBool(item)) {
        char key[48];
        snprintf(key, sizeof key, "no_rope_layers[%d]", index);
        json_fail(&source->text, key, "accepted 0 (full) or 1 (chunked)");
    }
    bool chunked = cJSON_IsTrue(item) || (cJSON_IsNumber(item) && item->valuedouble > 0);
    return chunked ? LAYER_CHUNKED : LAYER_FULL;
}

static int layer_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    bool last_of_period = dense->period > 0 && (index + 1) % dense->period == 0;
    if (dense->layer_types)
        return named_type(source, dense, index);
    if (dense->rope_layers)
        return rope_type(source, dense, index);
    switch (source->defaults->pattern) {
    case HF_ALL_SLIDING:
        return dense->window ? LAYER_SLIDING : LAYER_FULL;
    case HF_UPPER_SLIDING:
        return dense->window && index >= dense->upper ? LAYER_SLIDING : LAYER_FULL;
    case HF_PERIOD_SLIDING:
        return dense->window && !last_of_period ? LAYER_SLIDING : LAYER_FULL;
    case HF_PERIOD_CHUNKED:
        return last_of_period ? LAYER_FULL : LAYER_CHUNKED;
    case HF_PERIOD_LINEAR:
        return last_of_period ? LAYER_FULL : LAYER_LINEAR;
    default:
        return LAYER_FULL;
    }
}

/* ---- Parameters of a type -------------------------------------------------------------------- */

static void read_delta_net(const struct hf_source *source, struct model_spec *spec)
{
    attn_linear_dims dims = {
        .family = ATTN_LINEAR_GDN,
        .flags = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
        .num_k_heads = hf_int(source, "linear_num_key_heads", 16, MODEL_MAX_HEADS),
        .num_v_heads = hf_int(source, "linear_num_value_heads", 32, MODEL_MAX_HEADS),
        .head_k_dim = hf_int(source, "linear_key_head_dim", 128, MODEL_MAX_DIM),
        .head_v_dim = hf_int(source, "linear_value_head_dim", 128, MODEL_MAX_DIM),
        .conv_width = hf_int(source, "linear_conv_kernel_dim", 4, 64),
        .chunk = 64,
        .state_dtype = hf_state_dtype(source),
        .conv_dtype = source->model->dtype};
    if (dims.num_v_heads % dims.num_k_heads != 0)
        json_fail(&source->text, "linear_num_value_heads",
                  "got %d: accepted a multiple of linear_num_key_heads = %d", dims.num_v_heads,
                  dims.num_k_heads);
    model_spec_linear(spec, &dims);
}

static void read_softmax(const struct hf_source *source, struct model_spec *spec)
{
    const struct hf_defaults *defaults = source->defaults;
    struct hf_heads heads = hf_read_heads(source);
    model_spec_softmax(spec, heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.head_dim);
    if (defaults->flags & HF_QUERY_SCALAR)
        spec->group.sm_scale =
            (float)(1.0 / sqrt(json_double(&source->text, "query_pre_attn_scalar",
                                           defaults->query_scalar, 1e-6, 1e9)));
    if (defaults->flags & HF_SOFTCAP) {
        bool stated = cJSON_HasObjectItem(source->text.object, "attn_logit_softcapping");
        spec->group.logit_cap = (float)json_double(&source->text, "attn_logit_softcapping",
                                                   stated ? 0 : defaults->softcap, 0, 1e6);
    }
    if (defaults->flags & HF_SINKS)
        spec->group.flags |= ATTN_GROUP_HAS_SINKS;
}

/* Parameters of every type; those no layer has are never used. */
static void read_specs(const struct hf_source *source, struct dense *dense)
{
    read_softmax(source, &dense->specs[LAYER_FULL]);
    dense->specs[LAYER_SLIDING] = dense->specs[LAYER_FULL];
    dense->specs[LAYER_SLIDING].group.window_left = dense->window - 1;
    dense->specs[LAYER_CHUNKED] = dense->specs[LAYER_FULL];
    dense->specs[LAYER_CHUNKED].group.attention_chunk = dense->chunk;
    if (source->defaults->pattern == HF_PERIOD_LINEAR)
        read_delta_net(source, &dense->specs[LAYER_LINEAR]);
}

/* A type that the family, or the rest of the file, says nothing about. */
static void check_type(const struct hf_source *source, const struct dense *dense, int type)
{
    if (type == LAYER_SLIDING && !dense->window)
        json_fail(&source->text, "sliding_window",
                  "is missing: layer_types has sliding_attention; accepted 1 to 2147483647");
    if (type == LAYER_CHUNKED && !dense->chunk)
        json_fail(&source->text, "layer_types", "has chunked_attention, which %s does not have",
                  source->model->architecture);
    if (type == LAYER_LINEAR && source->defaults->pattern != HF_PERIOD_LINEAR)
        json_fail(&source->text, "layer_types", "has linear_attention, which %s does not have",
                  source->model->architecture);
}

void hf_build_dense(struct hf_source *source)
{
    struct dense dense = {0};
    read_pattern(source, &dense);
    read_specs(source, &dense);
    for (int32_t i = 0; hf_ok(source) && i < dense.num_layers; i++) {
        int type = layer_type(source, &dense, i);
        check_type(source, &dense, type);
        hf_add(source, &dense.specs[type], "decoder", i);
    }
}
