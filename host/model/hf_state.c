/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_state.c: models with Mamba2 layers: Falcon-H1, Nemotron-H, Mamba2.
 */
#include "host/model/hf.h"

#include <string.h>

/* ---- Falcon-H1: attention and Mamba2 read the same input in every block ---------------------- */

/* mamba_d_ssm is the width of the inner state, by default a multiple of the hidden size. */
static int32_t falcon_width(const struct hf_source *source)
{
    if (json_has(&source->text, "mamba_d_ssm"))
        return hf_int(source, "mamba_d_ssm", 0, INT32_MAX / 2);
    return (int32_t)json_int(&source->text, "hidden_size", JSON_REQUIRED, 1, 1 << 20) *
           hf_int(source, "mamba_expand", 2, 64);
}

static void falcon_dims(const struct hf_source *source, attn_linear_dims *dims)
{
    int32_t width = falcon_width(source);
    const cJSON *head = json_get(&source->text, "mamba_d_head");
    bool automatic = !head || (cJSON_IsString(head) && strcmp(head->valuestring, "auto") == 0);
    *dims = (attn_linear_dims){.num_v_heads = hf_int(source, "mamba_n_heads", 128, MODEL_MAX_HEADS),
                               .num_groups = hf_int(source, "mamba_n_groups", 1, MODEL_MAX_HEADS),
                               .head_k_dim = hf_int(source, "mamba_d_state", 256, MODEL_MAX_DIM),
                               .conv_width = hf_int(source, "mamba_d_conv", 4, 64),
                               .chunk = hf_int(source, "mamba_chunk_size", 256, 1 << 20)};
    dims->head_v_dim =
        automatic ? width / dims->num_v_heads : hf_int(source, "mamba_d_head", 0, MODEL_MAX_DIM);
    if ((int64_t)dims->head_v_dim * dims->num_v_heads != width)
        json_fail(&source->text, "mamba_d_ssm",
                  "got %d: accepted mamba_n_heads x mamba_d_head = %lld", width,
                  (long long)dims->head_v_dim * dims->num_v_heads);
    hf_mamba2_dims(source, "mamba_n_heads", dims);
}

void hf_build_falcon_h1(struct hf_source *source)
{
    struct model_spec attention, recurrence;
    attn_linear_dims dims;
    int32_t num_layers = hf_num_layers(source);
    struct hf_heads heads = hf_read_heads(source);
    falcon_dims(source, &dims);
    model_spec_softmax(&attention, heads.num_heads, heads.num_kv_heads, heads.head_dim,
                       heads.head_dim);
    model_spec_linear(&recurrence, &dims);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        hf_add(source, &recurrence, "decoder", i);
        hf_add(source, &attention, "decoder", i);
    }
}

/* ---- Nemotron-H: each block is one letter of a pattern
 * ------------------------------------------- */

static void nemotron_dims(const struct hf_source *source, attn_linear_dims *dims)
{
    *dims = (attn_linear_dims){
        .num_v_heads = hf_int(source, "mamba_num_heads", 128, MODEL_MAX_HEADS),
        .head_v_dim = hf_int(source, "mamba_head_dim", 64, MODEL_MAX_DIM),
        .num_groups = hf_int(source, "n_groups|mamba_n_groups", 8, MODEL_MAX_HEADS),
        .head_k_dim = hf_int(source, "ssm_state_size|mamba_d_state", 128, MODEL_MAX_DIM),
        .conv_width = hf_int(source, "conv_kernel|mamba_d_conv", 4, 64),
        .chunk = hf_int(source, "chunk_size|mamba_chunk_size", 128, 1 << 20),
        .dt_min = (float)json_double(&source->text, "time_step_min|mamba_dt_min", 0.001, 0, 1e3)};
    hf_mamba2_dims(source, "mamba_num_heads", dims);
}

void hf_build_nemotron_h(struct hf_source *source)
{
    static const char key[] = "hybrid_override_pattern";
    struct model_spec attention, recurrence;
    attn_linear_dims dims;
    struct hf_heads heads = hf_read_heads(source);
    nemotron_dims(source, &dims);
    model_spec_softmax(&attention, heads.num_heads, heads.num_kv_heads, heads.head_dim,
                       heads.head_dim);
    model_spec_linear(&recurrence, &dims);

    int32_t num_layers = hf_num_layers(source);
    const char *pattern = json_string(&source->text, key, NULL);
    if (!pattern)
        json_fail(&source->text, key, "is missing: accepted a letter for each layer, as M-M*-");
    else if (strlen(pattern) != (size_t)num_layers)
        json_fail(&source->text, key, "got %zu letters: accepted num_hidden_layers = %d",
                  strlen(pattern), num_layers);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        if (pattern[i] == 'M')
            hf_add(source, &recurrence, "decoder", i);
        else if (pattern[i] == '*')
            hf_add(source, &attention, "decoder", i);
        else if (pattern[i] != '-' && pattern[i] != 'E')
            json_fail(&source->text, key,
                      "letter %d is '%c': accepted M (Mamba2), * (attention), - (MLP), E (experts)",
                      i + 1, pattern[i]);
    }
}

/* ---- Mamba2
 * -------------------------------------------------------------------------------------- */

void hf_build_mamba2(struct hf_source *source)
{
    struct model_spec spec;
    int32_t num_layers = hf_num_layers(source);
    attn_linear_dims dims = {.num_v_heads = hf_int(source, "num_heads", 0, MODEL_MAX_HEADS),
                             .head_v_dim = hf_int(source, "head_dim", 0, MODEL_MAX_DIM),
                             .num_groups = hf_int(source, "n_groups", 8, MODEL_MAX_HEADS),
                             .head_k_dim = hf_int(source, "state_size", 128, MODEL_MAX_DIM),
                             .conv_width = hf_int(source, "conv_kernel", 4, 64),
                             .chunk = hf_int(source, "chunk_size", 256, 1 << 20)};
    hf_mamba2_dims(source, "num_heads", &dims);
    int64_t width = (int64_t)hf_int(source, "expand", 2, 64) *
                    json_int(&source->text, "hidden_size", JSON_REQUIRED, 1, INT32_MAX);
    if (width != (int64_t)dims.num_v_heads * dims.head_v_dim)
        json_fail(&source->text, "num_heads",
                  "num_heads x head_dim = %lld: accepted expand x hidden_size = %lld",
                  (long long)dims.num_v_heads * dims.head_v_dim, (long long)width);
    model_spec_linear(&spec, &dims);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source, &spec, "decoder", i);
}
