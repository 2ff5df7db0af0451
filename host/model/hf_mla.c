/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_mla.c: latent attention: DeepSeek V2, V3, V3.2, Kimi K2, and Kimi Linear, whose other
 * layers are Kimi delta attention.
 */
#include "host/model/hf.h"

#include <math.h>

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

static void read_latent(const struct hf_source *source, struct model_spec *spec)
{
    int32_t heads = hf_int(source, "num_attention_heads", 0, MODEL_MAX_HEADS);
    int32_t lora = hf_int(source, "kv_lora_rank", 0, MODEL_MAX_DIM);
    int32_t nope = hf_int(source, "qk_nope_head_dim", 0, MODEL_MAX_DIM);
    int32_t rope = hf_int(source, "qk_rope_head_dim", 0, MODEL_MAX_DIM);
    int32_t v_dim = hf_int(source, "v_head_dim", 0, MODEL_MAX_DIM);
    model_spec_mla(spec, heads, lora, nope, rope, v_dim);
    spec->group.sm_scale = (float)(scale_correction(source) / sqrt((double)nope + rope));
    if (!(source->defaults->flags & HF_SPARSE_INDEX))
        return;
    spec->group.kind = ATTN_KIND_SPARSE;
    spec->sparse =
        (attn_sparse_dims){.struct_size = sizeof spec->sparse,
                           .index_kind = ATTN_SPARSE_TOKEN,
                           .top_k = hf_int(source, "index_topk", 0, INT32_MAX),
                           .block_size = 1,
                           .label_dim = hf_int(source, "index_head_dim", 0, MODEL_MAX_DIM),
                           .label_dtype = source->model->dtype};
}

static void read_delta(const struct json_reader *config, const struct hf_source *source,
                       struct model_spec *spec)
{
    int32_t heads = (int32_t)json_int(config, "num_heads", JSON_REQUIRED, 1, MODEL_MAX_HEADS);
    int32_t dim = (int32_t)json_int(config, "head_dim", JSON_REQUIRED, 1, MODEL_MAX_DIM);
    attn_linear_dims dims = {.family = ATTN_LINEAR_KDA,
                             .flags = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES,
                             .num_k_heads = heads,
                             .num_v_heads = heads,
                             .head_k_dim = dim,
                             .head_v_dim = dim,
                             .conv_width =
                                 (int32_t)json_int(config, "short_conv_kernel_size", 4, 1, 64),
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

void hf_build_mla(struct hf_source *source)
{
    struct model_spec latent, delta;
    struct json_reader linear;
    const cJSON *kda_layers = NULL, *full_layers = NULL;
    int32_t num_layers = hf_num_layers(source);
    read_latent(source, &latent);
    if (json_object(&source->text, "linear_attn_config", "linear_attn_config.", &linear)) {
        read_delta(&linear, source, &delta);
        kda_layers = layer_list(&linear, "kda_layers", num_layers);
        full_layers = layer_list(&linear, "full_attn_layers", num_layers);
    }
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        bool is_delta = is_listed(kda_layers, i);
        if (full_layers && is_delta == is_listed(full_layers, i))
            json_fail(&linear, "full_attn_layers",
                      "layer %d is in %s of kda_layers and full_attn_layers: accepted in one",
                      i + 1, is_delta ? "both" : "neither");
        hf_add(source, is_delta ? &delta : &latent, "decoder", i);
    }
}
