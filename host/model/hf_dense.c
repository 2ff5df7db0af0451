/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_dense.c: decoders of softmax layers that are full, sliding or chunked, some of them with
 * gated delta net layers in between: Llama, Mistral, Qwen, Gemma, GPT-OSS, OLMo, Granite, Phi and
 * most others; the same as encoders where the file says that they are not causal.
 */
#include "host/model/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_FULL = 0, LAYER_SLIDING = 1, LAYER_CHUNKED = 2, LAYER_LINEAR = 3, LAYER_TYPES = 4 };

struct dense {
    int32_t num_layers;
    int32_t window;            /* tokens, the query counted; 0 = off */
    int32_t chunk;             /* tokens; read only if a layer is chunked */
    int32_t upper;             /* HF_UPPER_SLIDING: first sliding layer */
    int32_t period;            /* of the HF_PERIOD_* patterns */
    int32_t first_shared;      /* this layer and those after it read earlier caches */
    int32_t reach;             /* an encoder's window to each side; -1 = it is a decoder */
    const cJSON *layer_types;  /* names, one for each layer; NULL = by the pattern */
    const cJSON *rope_layers;  /* Llama 4: 1 = chunked with RoPE, 0 = full without */
    const cJSON *layer_heads;  /* per_layer_config; NULL = by the type */
    int32_t last[LAYER_TYPES]; /* the last layer of each type that has its own cache; -1 = none */
    struct model_spec specs[LAYER_TYPES];
};

/* ---- The pattern of layers ------------------------------------------------------------------- */

/* sliding_window: null means none even where its absence means the family's default. A family
 * without windows reads it only for layers that the file itself calls sliding. */
static int32_t read_window(const struct hf_source *source)
{
    const struct hf_defaults *defaults = source->defaults;
    const struct json_reader *text = &source->text;
    bool asked = defaults->pattern == HF_UPPER_SLIDING || defaults->pattern == HF_LISTED_SLIDING;
    bool slides =
        asked || defaults->pattern == HF_ALL_SLIDING || defaults->pattern == HF_PERIOD_SLIDING;
    if (!slides && !json_has(text, "layer_types"))
        return 0;
    hf_no_matter(text, "sliding_window"); /* some files have 0 where it is not used */
    if (asked && !json_bool(text, "use_sliding_window", false))
        return 0;
    return (int32_t)json_int(text, "sliding_window",
                             json_stated(text, "sliding_window") ? 0 : defaults->window, 1,
                             INT32_MAX);
}

/* A number, or EXAONE's letters: LLLG is three local layers and a global one. */
static int32_t read_period(const struct hf_source *source)
{
    static const char keys[] = "sliding_window_pattern|_sliding_window_pattern|"
                               "global_attn_every_n_layers";
    const cJSON *value = json_get(&source->text, keys);
    if (!cJSON_IsString(value))
        return hf_int(source, keys, source->defaults->period, MODEL_MAX_LAYERS);
    size_t local = strspn(value->valuestring, "L");
    if (strcmp(value->valuestring + local, "G") != 0 || local >= MODEL_MAX_LAYERS)
        json_fail(&source->text, keys, "got \"%.40s\": accepted a number, or letters as LLLG",
                  value->valuestring);
    return (int32_t)local + 1;
}

/* Llama 4 lists which layers have RoPE; an empty list means by the period. */
static const cJSON *read_rope_layers(const struct hf_source *source, int32_t num_layers)
{
    const cJSON *list = json_array(&source->text, "no_rope_layers", -1);
    if (!list || cJSON_GetArraySize(list) == 0)
        return NULL;
    return json_array(&source->text, "no_rope_layers", num_layers);
}

/* How many layers layer_types has. Step's files may name those that predict further tokens, too. */
static int64_t num_listed(const struct hf_source *source, const struct dense *dense)
{
    const cJSON *list = json_array(&source->text, "layer_types", -1);
    int64_t further = 0;
    if (source->defaults->flags & HF_SLIDING_HEADS && list)
        further = json_int(&source->text, "num_nextn_predict_layers", 0, 0, MODEL_MAX_LAYERS);
    bool is_longer = list && cJSON_GetArraySize(list) == dense->num_layers + further;
    return is_longer ? dense->num_layers + further : dense->num_layers;
}

static void read_pattern(const struct hf_source *source, struct dense *dense)
{
    const struct hf_defaults *defaults = source->defaults;
    dense->num_layers = hf_num_layers(source);
    dense->window = read_window(source);
    dense->layer_types = json_array(&source->text, "layer_types", num_listed(source, dense));
    dense->period = defaults->period;
    switch (defaults->pattern) {
    case HF_UPPER_SLIDING:
        dense->upper = (int32_t)json_int(&source->text, "max_window_layers", 28, 0, INT32_MAX);
        break;
    case HF_PERIOD_SLIDING:
        dense->period = read_period(source);
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
    case HF_LISTED_SLIDING:
        if (dense->window && !dense->layer_types)
            json_fail(&source->text, "layer_types",
                      "is missing: use_sliding_window is true; accepted a name for each layer");
        break;
    default:
        break;
    }
}

/* ---- Type of a layer ------------------------------------------------------------------------- */

static int named_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    static const struct hf_layer_name names[] = {{"full_attention", LAYER_FULL},
                                                 {"sliding_attention", LAYER_SLIDING},
                                                 {"chunked_attention", LAYER_CHUNKED},
                                                 {"linear_attention", LAYER_LINEAR},
                                                 {NULL, 0}};
    return hf_layer_type(source, "layer_types", dense->layer_types, index, names);
}

static int rope_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    const cJSON *item = cJSON_GetArrayItem(dense->rope_layers, index);
    if (!cJSON_IsNumber(item) && !cJSON_IsBool(item))
        hf_fail_item(source, "no_rope_layers", index, item, "0 (full) or 1 (chunked)");
    bool chunked = cJSON_IsTrue(item) || (cJSON_IsNumber(item) && item->valuedouble > 0);
    return chunked ? LAYER_CHUNKED : LAYER_FULL;
}

static int layer_type(const struct hf_source *source, const struct dense *dense, int32_t index)
{
    bool from_the_end = source->defaults->flags & HF_FROM_THE_END;
    int32_t place = from_the_end ? dense->num_layers - 1 - index : index + 1;
    bool last_of_period = dense->period > 0 && place % dense->period == 0;
    if (source->defaults->flags & HF_LAST_FULL && index == dense->num_layers - 1)
        return LAYER_FULL;
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
    /* OLMo's beta is twice the sigmoid, so that the state may change its sign. */
    bool given = source->defaults->flags & HF_GATES_GIVEN &&
                 json_bool(&source->text, "linear_allow_neg_eigval", true);
    attn_linear_dims dims = {
        .family = ATTN_LINEAR_GDN,
        .flags = given ? ATTN_LINEAR_QK_L2NORM : ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
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

static double read_scale(const struct hf_source *source, double otherwise)
{
    const struct hf_defaults *defaults = source->defaults;
    if (defaults->flags & HF_QUERY_SCALAR &&
        (defaults->query_scalar > 0 || json_has(&source->text, "query_pre_attn_scalar")))
        return 1.0 / sqrt(json_double(&source->text, "query_pre_attn_scalar",
                                      defaults->query_scalar, 1e-6, 1e9));
    if (defaults->flags & HF_MULTIPLIER)
        return json_double(&source->text, "attention_multiplier", 1, 1e-9, 1e9);
    if (defaults->flags & HF_ROOT_SCALE)
        return json_double(&source->text, "attention_multiplier", otherwise, 1e-9, 1e9);
    if (defaults->flags & HF_UNIT_SCALE) {
        hf_no_matter(&source->text, "query_pre_attn_scalar"); /* Gemma 3's, left in 3n's files */
        return 1;
    }
    return otherwise;
}

/* MPT's class adds its biases whatever the file says of them. */
static void read_attn_config(const struct hf_source *source, attn_layer_group *group)
{
    struct json_reader own;
    if (!json_object(&source->text, "attn_config", "attn_config.", &own))
        return;
    group->sm_scale = (float)json_double(&own, "softmax_scale", (double)group->sm_scale, 1e-9, 1e9);
    if (group->flags & ATTN_GROUP_HAS_ALIBI && !json_bool(&own, "alibi", true))
        json_fail(&own, "alibi", "got false: accepted true of %s", source->model->architecture);
    hf_check_unread(source, &own);
}

static void read_softmax(const struct hf_source *source, struct model_spec *spec)
{
    const struct hf_defaults *defaults = source->defaults;
    struct hf_heads heads = hf_read_heads(source);
    model_spec_softmax(spec, heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.head_dim);
    spec->group.sm_scale = (float)read_scale(source, (double)spec->group.sm_scale);
    if (defaults->flags & HF_SOFTCAP) {
        bool stated = json_stated(&source->text, "attn_logit_softcapping");
        spec->group.logit_cap = json_float(&source->text, "attn_logit_softcapping",
                                           stated ? 0 : defaults->softcap, 1e6);
    }
    if (defaults->flags & HF_SINKS)
        spec->group.flags |= ATTN_GROUP_HAS_SINKS;
    /* Falcon's class scales biases as it scales scores: that is a matter of the slopes alone. */
    bool says = defaults->flags & HF_SAYS_ALIBI && json_bool(&source->text, "alibi", false);
    if (says || defaults->flags & HF_ALIBI)
        spec->group.flags |= ATTN_GROUP_HAS_ALIBI;
    if (defaults->flags & HF_ATTN_CONFIG)
        read_attn_config(source, &spec->group);
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

/* ---- Encoders -------------------------------------------------------------------------------- */

/* How far a layer with a window sees to each side, or -1 for a decoder. is_causal = false keeps the
 * number as it is; use_bidirectional_attention shares it among the sides, and Gemma 4's code sees
 * one token more than Gemma 3's. Gemma 4's "vision" concerns the tokens of an image, which are a
 * prompt's own mask. */
static int32_t read_reach(const struct hf_source *source, int32_t window)
{
    const struct json_reader *text = &source->text;
    const cJSON *both = source->defaults->flags & HF_BIDIRECTIONAL
                            ? json_get(text, "use_bidirectional_attention")
                            : NULL;
    bool all = cJSON_IsString(both) && strcmp(both->valuestring, "all") == 0;
    bool vision = cJSON_IsString(both) && strcmp(both->valuestring, "vision") == 0;
    if (both && !all && !vision && !cJSON_IsBool(both))
        json_fail(text, "use_bidirectional_attention", "accepted true, false, all, vision");
    bool causal = json_bool(text, "is_causal", true);
    if (all)
        return window / 2 + 1;
    if (cJSON_IsTrue(both))
        return window / 2;
    return causal ? -1 : window;
}

/* Layers that see what comes after them have no cache, and no decode phase. */
static void make_encoder(struct hf_source *source, struct dense *dense)
{
    dense->reach = read_reach(source, dense->window);
    if (dense->reach < 0)
        return;
    for (int type = LAYER_FULL; type <= LAYER_SLIDING; type++) {
        dense->specs[type].group.attn_type = ATTN_TYPE_ENCODER_ONLY;
        dense->specs[type].group.window_right = -1;
    }
    dense->specs[LAYER_SLIDING].group.window_left = dense->reach;
    dense->specs[LAYER_SLIDING].group.window_right = dense->reach;
    source->model->max_encoder_len = source->model->max_context_len;
}

/* ---- Layers with heads of their own ---------------------------------------------------------- */

/* per_layer_config is by layer number, "5" or "05"; without it all layers of a type have the same. */
static const cJSON *layer_entry(const cJSON *config, int32_t index)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, config)
    {
        char *end;
        if (strtol(entry->string, &end, 10) == index && end > entry->string && !*end)
            return entry;
    }
    return NULL;
}

static void check_entry(const struct hf_source *source, const cJSON *entry)
{
    const cJSON *field;
    cJSON_ArrayForEach(field, entry)
    {
        if (strcmp(field->string, "head_dim") != 0 &&
            strcmp(field->string, "num_attention_heads") != 0 &&
            strcmp(field->string, "num_key_value_heads") != 0)
            json_fail(&source->text, "per_layer_config",
                      "layer %.16s has \"%.40s\": accepted head_dim, num_attention_heads, "
                      "num_key_value_heads",
                      entry->string, field->string);
    }
}

static void set_heads(const struct hf_source *source, const struct json_reader *reader,
                      const char *dim_key, int32_t dim, const char *heads_key,
                      struct model_spec *spec)
{
    attn_layer_group *group = &spec->group;
    group->head_dim = group->v_head_dim = (int32_t)json_int(reader, dim_key, dim, 1, MODEL_MAX_DIM);
    if (heads_key)
        group->num_kv_heads =
            (int32_t)json_int(reader, heads_key, group->num_kv_heads, 1, MODEL_MAX_HEADS);
    if (hf_ok(source) && group->num_q_heads % group->num_kv_heads != 0)
        json_fail(reader, heads_key, "got %d: accepted a divisor of num_attention_heads = %d",
                  group->num_kv_heads, group->num_q_heads);
}

/* Query heads of Step's sliding layers, by the class's key or the authors'. */
static int32_t sliding_heads(const struct hf_source *source, int32_t otherwise)
{
    struct json_reader own;
    if (json_object(&source->text, "attention_other_setting", "attention_other_setting.", &own))
        otherwise = (int32_t)json_int(&own, "num_attention_heads", otherwise, 1, MODEL_MAX_HEADS);
    return hf_int(source, "num_sliding_attention_heads", otherwise, MODEL_MAX_HEADS);
}

static void read_layer_heads(const struct hf_source *source, const struct dense *dense,
                             int32_t index, int type, struct model_spec *spec)
{
    struct json_reader own;
    bool by_window = source->defaults->flags & HF_SLIDING_HEADS;
    attn_layer_group *group = &spec->group;
    const cJSON *entry = layer_entry(dense->layer_heads, index);
    if (entry && cJSON_IsObject(entry)) {
        own = source->text;
        own.object = entry;
        own.path = "per_layer_config.";
        check_entry(source, entry);
        group->num_q_heads =
            (int32_t)json_int(&own, "num_attention_heads", group->num_q_heads, 1, MODEL_MAX_HEADS);
        set_heads(source, &own, "head_dim", group->head_dim, "num_key_value_heads", spec);
    } else if (!dense->layer_heads && by_window && type == LAYER_SLIDING) {
        group->num_q_heads = sliding_heads(source, group->num_q_heads);
        set_heads(source, &source->text, "head_dim", group->head_dim, "num_key_value_heads", spec);
    } else if (!dense->layer_heads && !by_window && type == LAYER_FULL) {
        bool own_kv = json_bool(&source->text, "attention_k_eq_v", false);
        set_heads(source, &source->text, "global_head_dim", 512,
                  own_kv ? "num_global_key_value_heads" : NULL, spec);
    }
}

/* Query heads by layer; the KV heads of all are the same. */
static void read_listed_heads(const struct hf_source *source, const struct dense *dense,
                              int32_t index, struct model_spec *spec)
{
    static const char key[] = "num_attention_heads_per_layer";
    const cJSON *list = json_array(&source->text, key, dense->num_layers);
    const cJSON *item = cJSON_GetArrayItem(list, index);
    if (!list)
        return;
    if (!hf_is_index(item, MODEL_MAX_HEADS) || item->valueint < 1 ||
        item->valueint % spec->group.num_kv_heads != 0)
        hf_fail_item(source, key, index, item, "a multiple of num_key_value_heads");
    else
        spec->group.num_q_heads = item->valueint;
}

/* ---- The whole ------------------------------------------------------------------------------- */

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
    if (type > LAYER_SLIDING && dense->reach >= 0)
        json_fail(&source->text, "is_causal",
                  "got false: accepted true with chunked or linear layers");
}

/* Gemma 3n and 4: the last layers read the cache of the last layer before them of their type. */
static void read_sharing(const struct hf_source *source, struct dense *dense)
{
    int64_t shared = 0;
    if (source->defaults->flags & HF_SHARED_KV)
        shared = json_int(&source->text, "num_kv_shared_layers", 0, 0, dense->num_layers - 1);
    dense->first_shared = dense->num_layers - (int32_t)shared;
    for (int type = 0; type < LAYER_TYPES; type++)
        dense->last[type] = -1;
}

static void add_dense_layer(struct hf_source *source, struct dense *dense, int32_t index)
{
    int type = layer_type(source, dense, index);
    struct model_spec spec = dense->specs[type];
    const char *stack = dense->reach >= 0 ? "encoder" : "decoder";
    check_type(source, dense, type);
    if (source->defaults->flags & (HF_LAYER_HEADS | HF_SLIDING_HEADS))
        read_layer_heads(source, dense, index, type, &spec);
    if (source->defaults->flags & HF_HEADS_LISTED)
        read_listed_heads(source, dense, index, &spec);
    if (index < dense->first_shared || dense->reach >= 0) {
        dense->last[type] = index;
        hf_add(source, &spec, stack, index);
    } else if (dense->last[type] < 0) {
        json_fail(&source->text, "num_kv_shared_layers",
                  "got %d: layer %d has no layer of its type before them to share with",
                  dense->num_layers - dense->first_shared, index);
    } else {
        hf_add_shared(source, &spec, stack, index, dense->last[type]);
    }
}

void hf_build_dense(struct hf_source *source)
{
    struct dense dense = {0};
    struct json_reader heads;
    read_pattern(source, &dense);
    read_specs(source, &dense);
    make_encoder(source, &dense);
    read_sharing(source, &dense);
    if (source->defaults->flags & (HF_LAYER_HEADS | HF_SLIDING_HEADS)) {
        hf_no_matter(&source->text, "global_head_dim|num_global_key_value_heads");
        hf_no_matter(&source->text, "num_sliding_attention_heads|attention_other_setting");
        if (json_object(&source->text, "per_layer_config", "per_layer_config.", &heads))
            dense.layer_heads = heads.object;
    }
    for (int32_t i = 0; hf_ok(source) && i < dense.num_layers; i++)
        add_dense_layer(source, &dense, i);
}
