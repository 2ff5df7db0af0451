/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_mla.c: latent attention: DeepSeek V2, V3, V3.2, GLM-5, Kimi K2, and Kimi Linear, whose
 * other layers are Kimi delta attention.
 */
#include "host/model/hf.h"

#include <math.h>
#include <string.h>

/* YaRN's attention factor: 0.1 m ln(s) + 1 for a context stretched s times, arXiv 2309.00071. */
static double yarn_factor(double stretch, double mscale)
{
    return stretch <= 1 ? 1.0 : 0.1 * mscale * log(stretch) + 1.0;
}

/* DeepSeek multiplies the scores by the square of the factor when mscale_all_dim is given. */
static double scale_correction(const struct hf_source *source)
{
    struct json_reader scaling;
    if (!json_object(&source->text, "rope_scaling", "rope_scaling.", &scaling) &&
        !json_object(&source->text, "rope_parameters", "rope_parameters.", &scaling))
        return 1.0;
    double mscale = json_double(&scaling, "mscale_all_dim", 0, 0, 100);
    double factor = yarn_factor(json_double(&scaling, "factor", 1, 1, 1e6), mscale);
    return mscale > 0 ? factor * factor : 1.0;
}

/* Every head has keys of its own, made from the latent. head_dim is none of a head's dimensions:
 * files have RoPE's part there, or hidden_size over the heads. */
static void check_said_again(const struct hf_source *source, int32_t heads)
{
    int64_t kv_heads = json_int(&source->text, "num_key_value_heads", heads, 1, MODEL_MAX_HEADS);
    if (kv_heads != heads)
        json_fail(&source->text, "num_key_value_heads",
                  "got %lld: accepted num_attention_heads = %d with kv_lora_rank",
                  (long long)kv_heads, heads);
    hf_no_matter(&source->text, "head_dim");
}

static void read_latent(const struct hf_source *source, struct model_spec *spec)
{
    int32_t heads = hf_int(source, "num_attention_heads", 0, MODEL_MAX_HEADS);
    int32_t lora = hf_int(source, "kv_lora_rank", 0, MODEL_MAX_DIM);
    int32_t nope = hf_int(source, "qk_nope_head_dim", 0, MODEL_MAX_DIM);
    int32_t rope = (int32_t)json_int(&source->text, "qk_rope_head_dim", JSON_REQUIRED, 0,
                                     MODEL_MAX_DIM); /* 0: no head has a position (Kimi K3) */
    int32_t v_dim = hf_int(source, "v_head_dim", 0, MODEL_MAX_DIM);
    model_spec_mla(spec, heads, lora, nope, rope, v_dim);
    check_said_again(source, heads);
    spec->group.sm_scale = (float)(scale_correction(source) / sqrt((double)nope + rope));
    if (source->defaults->flags & HF_SPARSE_INDEX)
        model_spec_sparse(spec, hf_int(source, "index_topk", 2048, INT32_MAX),
                          hf_int(source, "index_head_dim", 128, MODEL_MAX_DIM),
                          hf_int(source, "index_n_heads", source->defaults->index_heads, 1024),
                          source->model->dtype);
}

/* The checkpoint's linear_attn_config, or the same fields as Transformers saves them. */
static void read_delta(const struct hf_source *source, struct model_spec *spec)
{
    const struct json_reader *text = &source->text;
    struct json_reader own;
    bool nested = json_object(text, "linear_attn_config", "linear_attn_config.", &own);
    const struct json_reader *reader = nested ? &own : text;
    int64_t heads = json_int(reader, nested ? "num_heads" : "linear_num_heads",
                             nested ? JSON_REQUIRED : 32, 1, MODEL_MAX_HEADS);
    int64_t dim = json_int(reader, nested ? "head_dim" : "linear_head_dim",
                           nested ? JSON_REQUIRED : 128, 1, MODEL_MAX_DIM);
    int64_t width =
        json_int(reader, nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 4, 1, 64);
    attn_linear_dims dims = {.family = ATTN_LINEAR_KDA,
                             .flags = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
                             .num_k_heads = (int32_t)heads,
                             .num_v_heads = (int32_t)heads,
                             .head_k_dim = (int32_t)dim,
                             .head_v_dim = (int32_t)dim,
                             .conv_width = (int32_t)width,
                             .chunk = 64,
                             .state_dtype = hf_state_dtype(source),
                             .conv_dtype = source->model->dtype};
    model_spec_linear(spec, &dims);
}

/* Is the layer named in this list of Kimi Linear? Its numbers start at 1. */
static bool is_listed(const cJSON *list, int32_t index)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsNumber(item) && !(item->valuedouble < index + 1) &&
            !(item->valuedouble > index + 1))
            return true;
    }
    return false;
}

/* A list of layers, or NULL. Each layer looks for itself in it, so what is longer than it can be
 * would take for ever. */
static const cJSON *layer_list(const struct json_reader *linear, const char *key,
                               int32_t num_layers)
{
    const cJSON *list = json_array(linear, key, -1);
    if (list && cJSON_GetArraySize(list) > num_layers)
        json_fail(linear, key, "got %d layers: accepted at most num_hidden_layers = %d",
                  cJSON_GetArraySize(list), num_layers);
    return list;
}

/* The authors' two lists, which together have every layer once; false if they are not there. */
static bool read_numbered(const struct hf_source *source, int32_t num_layers, bool *delta)
{
    struct json_reader linear;
    if (!json_object(&source->text, "linear_attn_config", "linear_attn_config.", &linear))
        return false;
    const cJSON *kda_layers = layer_list(&linear, "kda_layers", num_layers);
    const cJSON *full_layers = layer_list(&linear, "full_attn_layers", num_layers);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        delta[i] = is_listed(kda_layers, i);
        if (full_layers && delta[i] == is_listed(full_layers, i))
            json_fail(&linear, "full_attn_layers",
                      "layer %d is in %s of kda_layers and full_attn_layers: accepted in one",
                      i + 1, delta[i] ? "both" : "neither");
    }
    return kda_layers != NULL;
}

/* Which layers are delta attention: as Transformers saves it, as the authors do, or every layer but
 * the fifth, the ninth and so on. */
static void read_kimi_layers(const struct hf_source *source, int32_t num_layers, bool *delta)
{
    static const struct hf_layer_name names[] = {
        {"full_attention", 0}, {"linear_attention", 1}, {NULL, 0}};
    const cJSON *list = json_array(&source->text, "layer_types", num_layers);
    bool numbered = !list && read_numbered(source, num_layers, delta);
    for (int32_t i = 0; hf_ok(source) && !numbered && i < num_layers; i++)
        delta[i] =
            list ? hf_layer_type(source, "layer_types", list, i, names) == 1 : i == 0 || i % 4 != 0;
}

/* Transformers names the layers that choose their keys; all of a model's do. */
static void check_indexed(const struct hf_source *source, int32_t num_layers)
{
    static const struct hf_layer_name names[] = {
        {"indexed_attention", 0}, {"deepseek_sparse_attention", 0}, {NULL, 0}};
    const cJSON *list = json_array(&source->text, "layer_types", num_layers);
    for (int32_t i = 0; list && hf_ok(source) && i < num_layers; i++)
        hf_layer_type(source, "layer_types", list, i, names);
}

/* Layers that have the choice of the layer before them (GLM-5): by a list, by a pattern of F and S,
 * or all but each freq-th from the offset on. */
static void read_shared(const struct hf_source *source, int32_t num_layers, bool *shared)
{
    static const struct hf_layer_name names[] = {{"full", 0}, {"shared", 1}, {NULL, 0}};
    const cJSON *list = json_array(&source->text, "indexer_types", num_layers);
    const char *pattern = json_string(&source->text, "index_topk_pattern", NULL);
    int64_t freq = json_int(&source->text, "index_topk_freq", 1, 1, INT32_MAX);
    int64_t offset = json_int(&source->text, "index_skip_topk_offset", 2, 0, INT32_MAX);
    if (pattern &&
        ((int32_t)strlen(pattern) != num_layers || (int32_t)strspn(pattern, "FS") != num_layers))
        json_fail(&source->text, "index_topk_pattern", "got \"%s\": accepted %d letters, F or S",
                  pattern, num_layers);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        int64_t after = i + 1 > offset ? i + 1 - offset : 0;
        shared[i] = list      ? hf_layer_type(source, "indexer_types", list, i, names) == 1
                    : pattern ? pattern[i] == 'S'
                              : after % freq != 0;
    }
    if (hf_ok(source) && shared[0])
        json_fail(&source->text, list ? "indexer_types" : "index_topk_pattern",
                  "the first layer is shared: accepted full, as no layer precedes it");
}

void hf_build_mla(struct hf_source *source)
{
    struct model_spec latent, delta, following;
    bool is_delta[MODEL_MAX_LAYERS] = {0}, is_shared[MODEL_MAX_LAYERS] = {0};
    int32_t num_layers = hf_num_layers(source);
    read_latent(source, &latent);
    if (source->defaults->flags & HF_LISTED_LINEAR) {
        read_delta(source, &delta);
        read_kimi_layers(source, num_layers, is_delta);
    }
    following = latent;
    if (source->defaults->flags & HF_SPARSE_INDEX) {
        check_indexed(source, num_layers);
        read_shared(source, num_layers, is_shared);
        model_spec_sparse(&following, latent.sparse.top_k, 0, 0, ATTN_DTYPE_NONE);
    }
    int32_t per_block = source->defaults->flags & HF_TWO_IN_ONE ? 2 : 1;
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source,
               is_delta[i]    ? &delta
               : is_shared[i] ? &following
                              : &latent,
               "decoder", i / per_block);
}
