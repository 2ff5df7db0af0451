/* SPDX-License-Identifier: Apache-2.0
 *
 * check_model: layer groups from the ini and from Hugging Face configurations, and what is refused.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/log.h"
#include "host/model/model.h"
#include "host/model/build.h"
#include "tests/tools/test_main.h"

/* ---- Helpers --------------------------------------------------------------------------------- */

static struct model *load_hf(const char *name)
{
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    char path[1024];
    HOST_ERROR(error);
    struct model *model = NULL;
    snprintf(path, sizeof path, "%s/tests/models/%s.json", source ? source : ".", name);
    attn_status status = model_create_hf(path, NULL, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", name, host_error_text(&error));
    return model;
}

static struct config *load_ini(const char *text)
{
    HOST_ERROR(error);
    struct config *config = NULL;
    attn_status status =
        config_load_text(text, strlen(text), "test.ini", NULL, NULL, 0, &config, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return config;
}

static struct model *model_of_ini(const char *text)
{
    HOST_ERROR(error);
    struct model *model = NULL;
    struct config *config = load_ini(text);
    attn_status status = model_create(config, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    config_destroy(config);
    return model;
}

/* The text is refused, and the message holds every one of the words (NULL-terminated). */
static void assert_refused(attn_status status, const host_error *error, va_list words)
{
    ck_assert_int_eq(status, ATTN_CONFIG_ERROR);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *))
        ck_assert_msg(strstr(host_error_text(error), word), "'%s' is not in: %s", word,
                      host_error_text(error));
}

static void ini_refused(const char *text, ...)
{
    HOST_ERROR(error);
    struct model *model = NULL;
    struct config *config = load_ini(text);
    va_list words;
    attn_status status = model_create(config, &model, &error.base);
    va_start(words, text);
    assert_refused(status, &error, words);
    va_end(words);
    ck_assert_ptr_null(model);
    config_destroy(config);
}

static void hf_refused(const char *text, ...)
{
    HOST_ERROR(error);
    struct model *model = NULL;
    va_list words;
    attn_status status =
        model_create_hf_text(text, strlen(text), "x/config.json", NULL, &model, &error.base);
    va_start(words, text);
    assert_refused(status, &error, words);
    va_end(words);
    ck_assert_ptr_null(model);
}

static void assert_layers(const struct model *model, uint32_t group, const char *layers)
{
    char text[128];
    ck_assert_uint_lt(group, model->num_groups);
    model_layers_text(&model->groups[group], text, sizeof text);
    ck_assert_str_eq(text, layers);
}

static void assert_close(double value, double wanted)
{
    ck_assert_msg(fabs(value - wanted) <= 1e-6 * fabs(wanted), "%.9g, wanted %.9g", value, wanted);
}

/* What holds of every model: ids, groups and buffers refer to each other. */
static void assert_consistent(const struct model *model)
{
    uint32_t total = 0, buffers = 0;
    for (uint32_t g = 0; g < model->num_groups; g++) {
        const attn_layer_group *group = &model->groups[g];
        ck_assert_uint_eq(group->struct_size, sizeof *group);
        if (group->linear && group->linear->family == ATTN_LINEAR_SHORT_CONV) {
            ck_assert_int_eq(group->head_dim, 0); /* there are no keys */
            ck_assert_int_eq(group->num_kv_heads, 0);
        } else {
            ck_assert_int_gt(group->head_dim, 0);
            ck_assert_int_eq(group->num_q_heads % group->num_kv_heads, 0);
        }
        ck_assert(isfinite(group->sm_scale) && group->sm_scale > 0);
        ck_assert_uint_gt(group->num_layers, 0);
        for (uint32_t i = 0; i < group->num_layers; i++) {
            const attn_layer *layer = attn_at(group->layers, i);
            const struct model_layer *known = &model->layers[layer->layer_id];
            ck_assert_int_eq(known->layer_id, layer->layer_id);
            ck_assert_uint_eq(known->group, g);
            ck_assert_uint_eq(known->index, i);
            ck_assert_int_eq(known->kv_buffer, layer->kv_buffer);
        }
        if (model_group_has_kv(group))
            ck_assert_int_lt(group->kv_group, (int32_t)model->num_kv_groups);
        if (model_group_has_kv(group) || model_group_has_state(group))
            buffers += group->num_layers;
        total += group->num_layers;
    }
    ck_assert_uint_eq(total, model->num_layers);
    ck_assert_uint_eq(buffers, model->num_buffers);
    for (uint32_t b = 0; b < model->num_buffers; b++)
        ck_assert_int_eq(model->layers[model->buffers[b].layer_id].kv_buffer, (int32_t)b);
}

/* ---- Hugging Face ---------------------------------------------------------------------------- */

TEST_OF(hugging_face, every_family_is_consistent)
{
    static const char *const names[] = {"llama",       "mistral",     "mistral_no_window",
                                        "qwen2",       "qwen3_moe",   "qwen3_next",
                                        "gemma2",      "gemma3",      "gpt_oss",
                                        "llama4",      "deepseek_v3", "deepseek_v32",
                                        "glm_5",       "kimi_linear", "falcon_h1",
                                        "nemotron_h",  "mamba2",      "bert",
                                        "roberta",     "modernbert",  "whisper",
                                        "deepseek_v2", "mixtral",     "olmo2",
                                        "qwen3",       "qwen3_vl",    "qwen3_vl_moe",
                                        "kimi_k2",     "kimi_k25",    "kimi_vl",
                                        "minimax",     "minimax_m1",  "lfm2",
                                        "lfm2_indices"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *model = load_hf(names[i]);
        assert_consistent(model);
        model_destroy(model);
    }
}

/* The layers of files that are neither in tests/golden/explain nor in tests/models/live. */
TEST_OF(hugging_face, layers_of_other_files)
{
    static const struct {
        const char *name;
        uint32_t group;
        const char *layers, *text;
    } rows[] = {
        {"mistral_no_window", 0, "0-2",
         "softmax decoder, 32 query heads, 8 kv heads, head_dim 128, sm_scale 0.0883883"},
        {"kimi_k2", 0, "0-2",
         "mla decoder, 64 query heads, kv_lora_rank 512, rope_dim 64, nope_dim 128, v_head_dim "
         "128, sm_scale 0.130861"},
        {"kimi_vl", 0, "0-3",
         "mla decoder, 16 query heads, kv_lora_rank 512, rope_dim 64, nope_dim 128, v_head_dim "
         "128, sm_scale 0.0721688"},
        {"kimi_vl", 1, "4-5",
         "softmax encoder_only, 16 query heads, 16 kv heads, head_dim 72, sm_scale 0.117851"},
        {"minimax_m1", 0, "0-1,3",
         "linear lightning, 64 key heads of 128, 64 value heads of 128, conv width 0, sm_scale 1"},
        {"minimax_m1", 1, "2",
         "softmax decoder, 64 query heads, 8 kv heads, head_dim 128, sm_scale 0.0883883"},
        {"lfm2_indices", 0, "0-1,3-4",
         "linear short_conv, 0 key heads of 0, 16 value heads of 64, conv width 3"},
        {"lfm2_indices", 1, "2,5",
         "softmax decoder, 16 query heads, 8 kv heads, head_dim 64, sm_scale 0.125"},
    };
    char text[256];
    for (int r = 0; r < COUNT(rows); r++) {
        struct model *model = load_hf(rows[r].name);
        assert_layers(model, rows[r].group, rows[r].layers);
        model_group_text(model, &model->groups[rows[r].group], text, sizeof text);
        ck_assert_str_eq(text, rows[r].text);
        model_destroy(model);
    }
}

/* Parts of a model that no text shows: the lengths of encoders and of their caches, and a state's types. */
TEST_OF(hugging_face, encoders_and_states)
{
    struct model *gemma = load_hf("gemma3"), *whisper = load_hf("whisper");
    struct model *minimax = load_hf("minimax"), *lfm2 = load_hf("lfm2");
    ck_assert_str_eq(gemma->layers[13].stack, "vision");
    ck_assert_int_eq(gemma->max_encoder_len, 64 * 64 + 1);
    ck_assert_uint_eq(whisper->num_kv_groups, 2);
    ck_assert_int_eq(whisper->groups[1].window_right, -1);
    ck_assert_int_eq(whisper->groups[1].kv_group, 1);
    ck_assert_uint_eq(whisper->kv_groups[1].holds, MODEL_KV_ENCODER);
    ck_assert_int_eq(whisper->kv_groups[1].max_kv_len, 1500);
    ck_assert_int_eq(whisper->kv_groups[0].max_kv_len, 448);
    ck_assert_int_eq(whisper->layers[4].kv_buffer, -1);
    const attn_linear_dims *lightning = minimax->groups[0].linear, *conv = lfm2->groups[0].linear;
    ck_assert_uint_eq(lightning->flags, 0);
    ck_assert_int_eq(lightning->chunk, 256);
    ck_assert_uint_eq(lightning->state_dtype, ATTN_F32);
    ck_assert_uint_eq(lightning->conv_dtype, ATTN_DTYPE_NONE);
    ck_assert_uint_eq(conv->flags, ATTN_LINEAR_CONV_IDENTITY);
    ck_assert_uint_eq(conv->conv_dtype, ATTN_BF16);
    model_destroy(gemma);
    model_destroy(whisper);
    model_destroy(minimax);
    model_destroy(lfm2);
}

/* sm_scale with YaRN's factor for a context stretched this many times: squared, as both sides of
 * the product have it. */
static void assert_yarn(const char *name, double stretch, double mscale)
{
    struct model *model = load_hf(name);
    double factor = 0.1 * mscale * log(stretch) + 1;
    assert_close(model->groups[0].sm_scale, factor * factor / sqrt(128 + 64));
    ck_assert_uint_eq(model->groups[0].kind, ATTN_KIND_MLA);
    ck_assert_int_eq(model->groups[0].mla->kv_lora_rank, 512);
    model_destroy(model);
}

TEST_OF(hugging_face, latent_scales)
{
    assert_yarn("deepseek_v2", 40, 0.707);
    assert_yarn("deepseek_v3", 40, 1);
    assert_yarn("kimi_k2", 32, 1);
    assert_yarn("kimi_k25", 64, 1);
    assert_yarn("kimi_vl", 1, 1); /* its rope_scaling is null */
}

/* A file of tests/models with one more key. */
static void load_text_with(const char *name, const char *key, char text[4096])
{
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/models/%s.json", source ? source : ".", name);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fgetc(file), '{');
    int length = snprintf(text, 4096, "{%s,", key);
    length += (int)fread(text + length, 1, 4095 - (size_t)length, file);
    ck_assert(feof(file));
    text[length] = '\0';
    fclose(file);
}

/* Every family with recurrent states takes their dtype from the file. */
TEST_OF(hugging_face, state_dtypes)
{
    static const char *const names[] = {"qwen3_next", "kimi_linear", "falcon_h1", "nemotron_h",
                                        "mamba2"};
    char text[4096];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *model = NULL;
        load_text_with(names[i], "\"mamba_ssm_dtype\": \"bfloat16\"", text);
        ck_assert_int_eq(
            model_create_hf_text(text, strlen(text), "x/config.json", NULL, &model, NULL), ATTN_OK);
        ck_assert_uint_eq(model->groups[0].linear->state_dtype, ATTN_BF16);
        model_destroy(model);
        model = load_hf(names[i]);
        ck_assert_uint_eq(model->groups[0].linear->state_dtype, ATTN_F32);
        model_destroy(model);
        load_text_with(names[i], "\"mamba_ssm_dtype\": \"float16\"", text);
        hf_refused(text, "mamba_ssm_dtype", "accepted float32, bfloat16", NULL);
    }
}

/* What a file's key says of the convolutions' bias, and without it the family's default. */
TEST_OF(hugging_face, convolution_bias)
{
    static const struct {
        const char *model, *key;
        bool otherwise;
    } rows[] = {{"lfm2_indices", "conv_bias", false},
                {"falcon_h1", "mamba_conv_bias", true},
                {"nemotron_h", "use_conv_bias", true},
                {"mamba2", "use_conv_bias", true}};
    char text[4096], field[64], what[256];
    for (size_t i = 0; i < 3 * (sizeof rows / sizeof *rows); i++) {
        const char *values[] = {"null", "false", "true"}, *value = values[i % 3];
        bool expected = i % 3 ? i % 3 == 2 : rows[i / 3].otherwise;
        struct model *model = NULL;
        snprintf(field, sizeof field, "\"%s\": %s", rows[i / 3].key, value);
        load_text_with(rows[i / 3].model, field, text);
        ck_assert_int_eq(
            model_create_hf_text(text, strlen(text), "x/config.json", NULL, &model, NULL), ATTN_OK);
        ck_assert_msg(model->conv_bias == expected, "%s with %s", rows[i / 3].model, field);
        model_group_text(model, &model->groups[0], what, sizeof what);
        ck_assert_msg((strstr(what, " with bias") != NULL) == expected, "%s", what);
        model_group_text(model, &model->groups[model->num_groups - 1], what, sizeof what);
        ck_assert(model->num_groups == 1 || !strstr(what, "bias"));
        model_destroy(model);
        snprintf(field, sizeof field, "\"%s\": 1", rows[i / 3].key);
        load_text_with(rows[i / 3].model, field, text);
        hf_refused(text, "x/config.json", rows[i / 3].key, "got 1", "true or false", NULL);
    }
}

/* How the text of the first group ends, with these bounds of dt and of the log decay. */
static void assert_bounds(const struct model *model, float dt_min, float dt_max, float lower_bound,
                          const char *end)
{
    char text[256];
    attn_layer_group group = model->groups[0];
    attn_linear_dims dims = *group.linear;
    dims.dt_min = dt_min;
    dims.dt_max = dt_max;
    dims.lower_bound = lower_bound;
    group.linear = &dims;
    model_group_text(model, &group, text, sizeof text);
    size_t length = strlen(text), wanted = strlen(end);
    ck_assert_msg(length > wanted && strcmp(text + length - wanted, end) == 0,
                  "'%s' does not end in '%s'", text, end);
}

TEST_OF(hugging_face, bounds_of_linear_layers)
{
    struct model *mamba = load_hf("mamba2");
    assert_bounds(mamba, 0.25f, 100, 0, ", sm_scale 1, dt 0.25..100");
    assert_bounds(mamba, 0, 0.1f, -5, ", sm_scale 1, dt 0..0.1, lower_bound -5");
    assert_bounds(mamba, 0.5f, 0, 0, ", sm_scale 1, dt at least 0.5");
    assert_bounds(mamba, 0, 0, 0, ", sm_scale 1");
    ck_assert_uint_eq(mamba->num_kv_groups, 0);
    ck_assert_uint_eq(mamba->num_buffers, 3);
    model_destroy(mamba);
}

#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, "

TEST_OF(refused, lists_of_layers_are_as_long_as_there_are_layers)
{
    hf_refused("{\"architectures\": [\"KimiLinearForCausalLM\"], \"num_attention_heads\": 2, "
               "\"num_hidden_layers\": 2, \"kv_lora_rank\": 8, \"qk_nope_head_dim\": 8, "
               "\"qk_rope_head_dim\": 8, \"v_head_dim\": 8, \"linear_attn_config\": {"
               "\"full_attn_layers\": [2], \"kda_layers\": [1, 1, 1], \"head_dim\": 8, "
               "\"num_heads\": 2}}",
               "linear_attn_config.kda_layers: got 3", "at most num_hidden_layers = 2", NULL);
}

/* MiniMax's and LFM2's lists of layers. */
TEST_OF(refused, bad_lists_of_layers)
{
#define MINIMAX(list)                                                                              \
    "{\"architectures\": [\"MiniMaxM1ForCausalLM\"], \"hidden_size\": 64,"                         \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4" list "}"
#define LFM2(list)                                                                                 \
    "{\"architectures\": [\"Lfm2ForCausalLM\"], \"hidden_size\": 64,"                              \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4" list "}"
    hf_refused(MINIMAX(""), "attn_type_list", "missing", "layer_types", NULL);
    hf_refused(MINIMAX(", \"attn_type_list\": [0, 1, 1]"), "attn_type_list", "2", NULL);
    hf_refused(MINIMAX(", \"attn_type_list\": [0, 2]"), "attn_type_list[1]", "got 2", "1 (full)",
               NULL);
    hf_refused(MINIMAX(", \"attn_type_list\": [0.5, 1]"), "attn_type_list[0]", "0.5", NULL);
    hf_refused(MINIMAX(", \"layer_types\": [\"full_attention\", \"conv\"]"), "layer_types[1]",
               "\"conv\"", "full_attention, linear_attention", NULL);
    hf_refused(LFM2(", \"layer_types\": [\"linear_attention\", \"conv\"]"), "layer_types[0]",
               "full_attention, conv", NULL);
    hf_refused(LFM2(", \"layer_types\": [\"conv\", 1]"), "layer_types[1]", "got 1", NULL);
    hf_refused(LFM2(", \"full_attn_idxs\": [0, 2]"), "full_attn_idxs[1]", "got 2", NULL);
    hf_refused(LFM2(", \"full_attn_idxs\": [-1]"), "full_attn_idxs[0]", "got -1", NULL);
#undef MINIMAX
#undef LFM2
}

TEST_OF(refused, nul_bytes_are_refused)
{
    static const char text[] = "{\n\"architectures\": [\"LlamaForCausalLM\0\"]}";
    struct model *model = NULL;
    HOST_ERROR(error);
    attn_status status =
        model_create_hf_text(text, sizeof text - 1, "x/config.json", NULL, &model, &error.base);
    ck_assert_int_eq(status, ATTN_CONFIG_ERROR);
    ck_assert_str_eq(host_error_text(&error), "x/config.json:2:36: not valid JSON: unexpected text "
                                              "here; accepted: one whole object");
}

TEST_OF(refused, bad_json)
{
    hf_refused("{\"architectures\": [\"Llama", "x/config.json:1:26", "ends before", NULL);
    hf_refused("{\"a\": 1,\n \"b\": }\n", "x/config.json:2:7", "not valid JSON", NULL);
    hf_refused("", "ends before", NULL);
    hf_refused("[1, 2]", "got an array", "accepted a JSON object", NULL);
    hf_refused("{\"a\": 1} trailing", "not valid JSON", NULL);
    hf_refused("{\"hidden_size\": 3}", "architectures", "is missing", NULL);
    hf_refused("{\"architectures\": [\"LlamaForCasualLM\"]}", "architectures[0]",
               "did you mean LlamaForCausalLM?", "keys of [model]", NULL);
    hf_refused("{\"architectures\": [\"Zzz\"]}", "unknown architecture \"Zzz\"", "docs/MODELS.md",
               NULL);
}

TEST_OF(refused, bad_fields)
{
    hf_refused(LLAMA "\"num_hidden_layers\": 0, \"num_attention_heads\": 4}", "num_hidden_layers",
               "got 0", "1 to 4096", NULL);
    hf_refused(LLAMA "\"num_attention_heads\": 4}", "num_hidden_layers", "is missing", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": \"two\", \"num_attention_heads\": 4}",
               "num_hidden_layers", "got \"two\"", "an integer", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 1.5, \"num_attention_heads\": 4}", "got 1.5", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"head_dim\": 0}",
               "head_dim", "got 0", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 5}", "hidden_size",
               "got 64", "multiple of the 5 heads", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                     "\"num_key_value_heads\": 3}",
               "num_attention_heads", "got 4", "num_key_value_heads = 3", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                     "\"torch_dtype\": \"int8\"}",
               "torch_dtype", "int8", "bfloat16", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                     "\"layer_types\": [\"full_attention\"]}",
               "layer_types", "got 1 elements", "accepted 2", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
                     "\"layer_types\": [\"fulll\"]}",
               "layer_types[0]", "got \"fulll\"", "full_attention", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
                     "\"layer_types\": [\"sliding_attention\"]}",
               "sliding_window", "is missing", NULL);
    hf_refused(LLAMA "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
                     "\"layer_types\": [\"linear_attention\"]}",
               "linear_attention", "LlamaForCausalLM does not have", NULL);
    hf_refused("{\"architectures\": [\"Gemma3ForCausalLM\"], \"text_config\": 3}", "text_config",
               "got 3", "an object", NULL);
    hf_refused("{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"text_config\": "
               "{\"num_attention_heads\": 3}}",
               "text_config.num_attention_heads", "num_key_value_heads = 4", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"], \"num_hidden_layers\": 3, "
               "\"hybrid_override_pattern\": \"M*\"}",
               "hybrid_override_pattern", "got 2 letters", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"], \"num_hidden_layers\": 2, "
               "\"hybrid_override_pattern\": \"MX\"}",
               "letter 2 is 'X'", NULL);
}

TEST_OF(refused, missing_file)
{
    HOST_ERROR(error);
    struct model *model = NULL;
    ck_assert_int_eq(model_create_hf("/nonexistent/config.json", NULL, &model, &error.base),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "/nonexistent/config.json"));
    ck_assert_int_eq(model_create_hf("/nonexistent/config.json", NULL, &model, NULL),
                     ATTN_CONFIG_ERROR);
}

/* A name is proposed within its own family alone: Gemma 2's windows and caps are not Gemma's. */
TEST_OF(refused, unknown_architectures)
{
    static const char *const others[] = {"Gemma5ForCausalLM", "Gemma7TextModel", "OlmForCausalLM",
                                         "Qwen9ForCausalLM", "GptOsForCausalLM"};
    char text[128];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct model *model = NULL;
        HOST_ERROR(error);
        snprintf(text, sizeof text, "{\"architectures\": [\"%s\"]}", others[i]);
        hf_refused(text, others[i], "keys of [model]", "docs/MODELS.md", NULL);
        ck_assert_int_eq(model_create_hf_text(text, strlen(text), "x", NULL, &model, &error.base),
                         ATTN_CONFIG_ERROR);
        ck_assert_msg(!strstr(host_error_text(&error), "did you mean"), "%s",
                      host_error_text(&error));
    }
    hf_refused("{\"architectures\": [\"LLaMAForCausalLM\"]}", "did you mean LlamaForCausalLM?",
               NULL);
    hf_refused("{\"architectures\": [\"T5ForConditionalGeneration\"]}",
               "T5ForConditionalGeneration cannot be described", "learned distance bias", NULL);
    hf_refused("{\"architectures\": [\"MambaForCausalLM\"]}", "recurrence", NULL);
    hf_refused("{\"architectures\": [\"Gemma4AssistantForCausalLM\"]}", "another model's caches",
               NULL);
    hf_refused("{\"architectures\": [\"Gemma4UnifiedAssistantForCausalLM\"], \"text_config\": "
               "{\"num_hidden_layers\": 4, \"num_attention_heads\": 4}}",
               "another model's caches", NULL);
    hf_refused("{\"architectures\": [\"Qwen3OmniMoeForConditionalGeneration\"], "
               "\"thinker_config\": {\"text_config\": {\"model_type\": \"qwen3_omni_moe_text\", "
               "\"hidden_size\": 2048, \"num_hidden_layers\": 4, \"num_attention_heads\": 28, "
               "\"num_key_value_heads\": 4}}}",
               "hidden_size", "got 2048: accepted a multiple of the 28 heads", NULL);
}

/* ---- Classes that are read by their family, their text model or their keys ------------------- */

#define SHAPE                                                                                      \
    "\"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 8, "                  \
    "\"num_key_value_heads\": 2"

static struct model *read_text(const char *text)
{
    struct model *model = NULL;
    HOST_ERROR(error);
    attn_status status = model_create_hf_text(text, strlen(text), "x", NULL, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", text, host_error_text(&error));
    return model;
}

TEST_OF(hugging_face, limits_of_time_steps)
{
    static const char *const wrong[] = {"[]",
                                        "[0.5]",
                                        "[0, 0]",
                                        "[5, 1]",
                                        "[-1, 1]",
                                        "[0, 1, 2]",
                                        "[null, 1]",
                                        "[\"0\", \"1\"]",
                                        "[0, \"\"]",
                                        "[0, [1]]",
                                        "[1e39, null]",
                                        "[1e-39, null]",
                                        "[0, {\"__float__\": 1}]"};
    static const char model[] =
        "{\"architectures\": [\"Mamba2ForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": "
        "64, "
        "\"num_heads\": 2, \"head_dim\": 64, \"n_groups\": 1, \"time_step_limit\": %s}";
    char text[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, model, wrong[i]);
        hf_refused(text, "x/config.json: time_step_limit: accepted [lowest, highest]", NULL);
    }
    snprintf(text, sizeof text, model, "[0.5, null]");
    struct model *open = read_text(text);
    ck_assert(open->groups[0].linear->dt_min == 0.5f && open->groups[0].linear->dt_max == 0);
    model_destroy(open);
}

/* What fp32 cannot hold is no number of a layer. */
TEST_OF(hugging_face, numbers_that_fp32_loses)
{
    hf_refused(
        "{\"architectures\": [\"Gemma2ForCausalLM\"], \"attn_logit_softcapping\": 1e-300, " SHAPE
        "}",
        "attn_logit_softcapping: got 1e-300", "accepted 0, or a number from 1.2e-38", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"], \"hybrid_override_pattern\": "
               "\"M-M*\", \"time_step_min\": 1e-39, " SHAPE "}",
               "time_step_min: got 1e-39", NULL);
}

static void keep_message(void *ctx, uint32_t level, const char *message)
{
    if (level == ATTN_LOG_WARNING)
        snprintf(ctx, 512, "%s", message);
}

/* A cache of fewer bits than the model has is the user's choice: the file's own choice causes a warning and has no effect. */
TEST_OF(hugging_face, schemes_of_the_cache)
{
    static const struct {
        const char *config, *said;
    } rows[] = {
        {"{\"kv_cache_scheme\": {\"num_bits\": 8}}",
         "quantization_config.kv_cache_scheme is ignored"},
        {"{\"kv_cache_quant_algo\": \"FP8\"}",
         "quantization_config.kv_cache_quant_algo is ignored"},
        {"{\"kv_cache_scheme\": null}", ""},
        {"{\"bits\": 4}", ""},
    };
    char text[512], message[512];
    struct host_log log;
    host_log_init(&log, keep_message, message, ATTN_LOG_WARNING);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        message[0] = '\0';
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"LlamaForCausalLM\"], \"quantization_config\": %s, " SHAPE
                 "}",
                 rows[i].config);
        model_destroy(read_text(text));
        ck_assert_msg(!*rows[i].said ? !*message : strstr(message, rows[i].said) != NULL, "%s: %s",
                      rows[i].config, message);
    }
    host_log_finish(&log);
}

/* One group of causal attention: all that a plain decoder has. */
static void assert_plain(const char *text, int32_t kv_heads, int32_t head_dim)
{
    struct model *model = read_text(text);
    ck_assert_uint_eq(model->num_groups, 1);
    ck_assert_uint_eq(model->num_layers, 4);
    ck_assert_int_eq(model->groups[0].num_q_heads, 8);
    ck_assert_int_eq(model->groups[0].num_kv_heads, kv_heads);
    ck_assert_int_eq(model->groups[0].head_dim, head_dim);
    ck_assert_uint_eq(model->groups[0].attn_type, ATTN_TYPE_DECODER);
    model_destroy(model);
}

TEST_OF(hugging_face, other_classes_of_a_family)
{
    assert_plain("{\"architectures\": [\"LlamaForSequenceClassification\"], " SHAPE "}", 2, 8);
    assert_plain("{\"architectures\": [\"Qwen3Model\"], " SHAPE "}", 2, 128);
    struct model *model =
        read_text("{\"architectures\": [\"BertForTokenClassification\"], "
                  "\"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 8}");
    ck_assert_uint_eq(model->groups[0].attn_type, ATTN_TYPE_ENCODER_ONLY);
    ck_assert_str_eq(model->architecture, "BertForTokenClassification");
    model_destroy(model);
    hf_refused("{\"architectures\": [\"WhisperForCausalLM\"], \"d_model\": 64}",
               "WhisperForCausalLM", NULL);
}

/* What is in attn_config is read or refused by name. */
TEST_OF(hugging_face, attn_config)
{
#define NESTED(name, own)                                                                          \
    "{\"architectures\": [\"" name "ForCausalLM\"], \"d_model\": 64, \"n_layers\": 4, "            \
    "\"n_heads\": 8, \"max_seq_len\": 128, \"attn_config\": {" own "}}"
    struct model *model = read_text(NESTED("Dbrx", "\"kv_n_heads\": 2, \"clip_qkv\": 8"));
    ck_assert_int_eq(model->groups[0].num_kv_heads, 2);
    ck_assert_int_eq(model->max_context_len, 128);
    model_destroy(model);
    model = read_text(NESTED("Mpt", "\"softmax_scale\": 0.5"));
    ck_assert_int_eq(model->groups[0].num_kv_heads, 8);
    ck_assert_uint_ne(model->groups[0].flags & ATTN_GROUP_HAS_ALIBI, 0);
    ck_assert_float_eq(model->groups[0].sm_scale, 0.5F);
    model_destroy(model);
    hf_refused(NESTED("Mpt", "\"alibi\": false"), "attn_config.alibi", "got false", NULL);
    hf_refused(NESTED("Mpt", "\"alibi_bias_max\": 16"), "attn_config.alibi_bias_max", "got 16",
               NULL);
    hf_refused(NESTED("Mpt", "\"prefix_lm\": true"), "attn_config.prefix_lm", "got true", NULL);
    hf_refused(NESTED("Mpt", "\"attn_type\": \"multiquery_attention\""), "attn_config.attn_type",
               NULL);
    hf_refused(NESTED("Dbrx", "\"sliding_window\": 8"), "attn_config.sliding_window", NULL);
}

/* Query heads of sliding layers as the authors' files say it, whose lists of layers are longer. */
TEST_OF(hugging_face, sliding_query_heads)
{
    struct model *model = read_text(
        "{\"architectures\": [\"Step3p7ForConditionalGeneration\"], \"text_config\": {" SHAPE
        ", \"head_dim\": 24, \"sliding_window\": 8, "
        "\"num_nextn_predict_layers\": 1, \"layer_types\": [\"full_attention\", "
        "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", "
        "\"full_attention\"], \"attention_other_setting\": {\"num_attention_heads\": 12}}}");
    ck_assert_int_eq(model->num_layers, 4);
    ck_assert_uint_eq(model->num_groups, 2);
    ck_assert_int_eq(model->groups[0].num_q_heads, 8);
    ck_assert_int_eq(model->groups[1].num_q_heads, 12);
    ck_assert_int_eq(model->groups[1].num_kv_heads, 2);
    ck_assert_int_eq(model->groups[1].window_left, 7);
    model_destroy(model);
}

/* The text model is read, the tower is said to be left out; what is not neutral is refused. */
TEST_OF(hugging_face, wrappers)
{
    static const char *const places[] = {"text_config", "llm_config", "language_config"};
    char text[512];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"NewVlForConditionalGeneration\"], \"vision_config\": "
                 "{\"x\": 1}, \"%s\": {\"model_type\": \"llama\", " SHAPE "}}",
                 places[i]);
        assert_plain(text, 2, 8);
        struct model *model = read_text(text);
        ck_assert_uint_eq(model->num_left_out, 1);
        ck_assert_ptr_nonnull(strstr(model->left_out, "towers"));
        model_destroy(model);
    }
    struct model *omni = read_text(
        "{\"architectures\": [\"Qwen3OmniMoeForConditionalGeneration\"], \"talker_config\": "
        "{\"x\": 1}, \"thinker_config\": {\"vision_config\": {\"x\": 1}, \"text_config\": "
        "{\"model_type\": \"qwen3_omni_moe_text\", \"head_dim\": 24, " SHAPE "}}}");
    ck_assert_int_eq(omni->num_layers, 4);
    ck_assert_int_eq(omni->groups[0].head_dim, 24);
    ck_assert_ptr_nonnull(strstr(omni->left_out, "speech output"));
    model_destroy(omni);
    hf_refused("{\"architectures\": [\"Qwen3OmniMoeForConditionalGeneration\"], "
               "\"thinker_config\": {\"text_config\": {\"model_type\": \"qwen3_omni_moe_text\", "
               "\"attn_logit_softcapping\": 30, " SHAPE "}}}",
               "thinker_config.text_config.attn_logit_softcapping", "got 30", NULL);
    hf_refused("{\"architectures\": [\"NewVlForConditionalGeneration\"], \"text_config\": "
               "{\"model_type\": \"gemma\", \"use_bidirectional_attention\": true, " SHAPE "}}",
               "text_config.use_bidirectional_attention", "got true", NULL);
}

/* Whatever could be about attention must be known; what is neutral or about something else may be
 * there. */
TEST_OF(hugging_face, decoders_by_their_keys)
{
#define NEW(keys) "{\"architectures\": [\"NewForCausalLM\"], " SHAPE keys "}"
    assert_plain(NEW(", \"intermediate_size\": 9, \"num_local_experts\": 8, \"eos_token_id\": 2"),
                 2, 8);
    assert_plain(NEW(", \"attention_bias\": true, \"ring_attention\": false, \"head_dim\": 24"), 2,
                 24);
    hf_refused(NEW(", \"ring_attention\": true"), "ring_attention", "got true", "NewForCausalLM",
               NULL);
    hf_refused(NEW(", \"sliding_window\": 8"), "sliding_window", "got 8", NULL);
    hf_refused(NEW(", \"index_kpool\": 16"), "index_kpool", "got 16", NULL);
    hf_refused(NEW(", \"type_vocab_size\": 2"), "type_vocab_size", NULL);
    hf_refused(NEW(", \"is_encoder_decoder\": true"), "is_encoder_decoder", NULL);
    hf_refused("{\"architectures\": [\"NewModel\"], " SHAPE "}", "unknown architecture", NULL);
    struct model *model =
        read_text(NEW(", \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
                      "\"sliding_attention\", \"sliding_attention\", \"full_attention\"]"));
    assert_layers(model, 0, "0,3");
    ck_assert_int_eq(model->groups[1].window_left, 7);
    model_destroy(model);
    model = read_text("{\"architectures\": [\"NewForCausalLM\"], \"num_hidden_layers\": 4, "
                      "\"num_attention_heads\": 8, \"kv_lora_rank\": 32, \"qk_rope_head_dim\": "
                      "8, \"qk_nope_head_dim\": 16, \"v_head_dim\": 24}");
    ck_assert_uint_eq(model->groups[0].kind, ATTN_KIND_MLA);
    model_destroy(model);
#undef NEW
}

/* Heads that a file does not say as most do. */
TEST_OF(hugging_face, heads_of_falcon_and_others)
{
#define FALCON(keys)                                                                               \
    "{\"architectures\": [\"FalconForCausalLM\"], \"hidden_size\": 64, \"num_hidden_layers\": "    \
    "4, \"num_attention_heads\": 8" keys "}"
    assert_plain(FALCON(""), 1, 8);
    assert_plain(FALCON(", \"num_kv_heads\": 8, \"multi_query\": true"), 1, 8);
    assert_plain(FALCON(", \"multi_query\": false"), 8, 8);
    assert_plain(FALCON(", \"new_decoder_architecture\": true, \"num_kv_heads\": 2"), 2, 8);
    struct model *biased = read_text(FALCON(", \"alibi\": true, \"multi_query\": false"));
    struct model *rotary = read_text(FALCON(", \"alibi\": false"));
    ck_assert_uint_eq(biased->groups[0].flags, ATTN_GROUP_HAS_ALIBI);
    ck_assert_uint_eq(rotary->groups[0].flags, 0);
    model_destroy(biased);
    model_destroy(rotary);
#undef FALCON
    assert_plain("{\"architectures\": [\"GPT2LMHeadModel\"], \"n_embd\": 64, \"n_layer\": 4, "
                 "\"n_head\": 8}",
                 8, 8);
    struct model *model = read_text("{\"architectures\": [\"LagunaForCausalLM\"], " SHAPE
                                    ", \"num_attention_heads_per_layer\": [8, 4, 4, 8]}");
    assert_layers(model, 0, "0,3");
    ck_assert_int_eq(model->groups[1].num_q_heads, 4);
    model_destroy(model);
    hf_refused("{\"architectures\": [\"LagunaForCausalLM\"], " SHAPE
               ", \"num_attention_heads_per_layer\": [8, 3, 4, 8]}",
               "num_attention_heads_per_layer[1]", "got 3", NULL);
    model = read_text("{\"architectures\": [\"GraniteSWAForCausalLM\"], \"hidden_size\": 1024, "
                      "\"num_hidden_layers\": 1, \"num_attention_heads\": 20, "
                      "\"num_key_value_heads\": 4, \"attention_multiplier\": 0.015}");
    ck_assert_int_eq(model->groups[0].head_dim, 51);
    ck_assert_uint_ne(model->groups[0].flags & ATTN_GROUP_HAS_SINKS, 0);
    assert_close(model->groups[0].sm_scale, 0.015);
    model_destroy(model);
}

/* What sounds like attention and is not read is refused by name; neutral values are not. */
TEST_OF(refused, keys_that_nothing_reads)
{
#define WITH(keys) LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, " keys "}"
    static const char *const refused[][3] = {
        {WITH("\"sliding_window\": 4096"), "sliding_window", "got 4096"},
        {WITH("\"use_bidirectional_attention\": true"), "use_bidirectional_attention",
         "accepted null or false"},
        {WITH("\"query_pre_attn_scalar\": 64"), "query_pre_attn_scalar", "got 64"},
        {WITH("\"alibi\": true"), "alibi", "got true"},
        {WITH("\"position_embedding_type\": \"relative_key\""), "position_embedding_type",
         "\"absolute\", \"rope\""},
        {WITH("\"kv_lora_rank\": 512"), "kv_lora_rank", "accepted null or 0"},
        {WITH("\"attn_layer_indices\": [1]"), "attn_layer_indices", "got an array"},
        {WITH("\"dual_chunk_attention_config\": {\"chunk_size\": 8}"),
         "dual_chunk_attention_config", "got an object"},
        {WITH("\"layers_block_type\": [\"full_attention\", \"mlp\"]"), "layers_block_type",
         "full_attention for every layer"},
        {WITH("\"vision_config\": {\"depth\": 1, \"num_heads\": 2, \"hidden_size\": 16, "
              "\"sliding_window\": 9}"),
         "vision_config.sliding_window", "got 9"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        hf_refused(refused[i][0], "x/config.json", refused[i][1], refused[i][2],
                   "not known of LlamaForCausalLM", NULL);

    static const char neutral[] = WITH(
        "\"sliding_window\": null, \"use_bidirectional_attention\": false, \"is_causal\": true, "
        "\"layer_types\": [\"full_attention\", \"full_attention\"], \"alibi\": false, "
        "\"layers_block_type\": [\"full_attention\", \"full_attention\"], "
        "\"position_embedding_type\": \"rope\", \"attn_logit_softcapping\": 0, "
        "\"cross_attention_layers\": [], \"per_layer_config\": {}, \"x\": {\"alibi\": 1}");
    struct model *model = NULL;
    ck_assert_int_eq(model_create_hf_text(neutral, sizeof neutral - 1, "x", NULL, &model, NULL),
                     ATTN_OK);
    ck_assert_uint_eq(model->num_groups, 1);
    model_destroy(model);
#undef WITH
}

static void hf_taken(const char *text)
{
    struct model *model = NULL;
    HOST_ERROR(error);
    ck_assert_msg(model_create_hf_text(text, strlen(text), "x", NULL, &model, &error.base) ==
                      ATTN_OK,
                  "%s", host_error_text(&error));
    model_destroy(model);
}

/* Published files say some things twice, or say what their model does not use. */
TEST_OF(refused, keys_of_published_files)
{
#define QWEN_VL(window)                                                                            \
    "{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"sliding_window\": " window    \
    ", \"num_key_value_heads\": 2, \"text_config\": {\"hidden_size\": 64, "                        \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"sliding_window\": 9, \"use_sliding_window\": false}}"
    hf_taken(QWEN_VL("9"));
    hf_refused(QWEN_VL("10"), "x/config.json: sliding_window: got 10", NULL);
#undef QWEN_VL
    hf_taken("{\"architectures\": [\"Cohere2ForCausalLM\"], \"hidden_size\": 4096, "
             "\"position_embedding_type\": \"rope_gptj\"}");
    hf_taken("{\"architectures\": [\"Gemma3nForCausalLM\"], \"query_pre_attn_scalar\": 256}");
    hf_taken("{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"hidden_size\": 2560, "
             "\"num_hidden_layers\": 1, \"layer_types\": [\"attention\"], "
             "\"mamba_n_heads\": 7}");
    hf_refused("{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"hidden_size\": 2560, "
               "\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"], \"mamba_n_heads\": 7}",
               "mamba_d_ssm", NULL);
    char text[4096];
    load_text_with("kimi_linear", "\"head_dim\": 72", text);
    hf_taken(text);
    load_text_with("kimi_linear", "\"num_key_value_heads\": 1", text);
    hf_refused(text, "num_key_value_heads", "got 1", "kv_lora_rank", NULL);
}

#define GEMMA4(keys)                                                                               \
    "{\"architectures\": [\"Gemma4ForCausalLM\"], \"num_hidden_layers\": 4, " keys "}"

/* What a family reads may still be wrong. */
TEST_OF(refused, bad_readings)
{
    hf_refused(GEMMA4("\"num_kv_shared_layers\": 4"), "num_kv_shared_layers", "got 4", "0 to 3",
               NULL);
    hf_refused(GEMMA4("\"num_kv_shared_layers\": 1"), "num_kv_shared_layers",
               "layer 3 has no layer of its type", NULL);
    hf_refused(GEMMA4("\"per_layer_config\": {\"03\": {\"sliding_window\": 4}}"),
               "per_layer_config", "layer 03", "sliding_window", NULL);
    hf_refused(GEMMA4("\"per_layer_config\": {\"3\": {\"num_key_value_heads\": 3}}"),
               "per_layer_config.num_key_value_heads", "got 3", NULL);
    hf_refused(GEMMA4("\"use_bidirectional_attention\": 3"), "use_bidirectional_attention", NULL);
    hf_refused("{\"architectures\": [\"Exaone4ForCausalLM\"], \"hidden_size\": 4096, "
               "\"sliding_window_pattern\": \"LLGL\"}",
               "sliding_window_pattern", "LLGL", "LLLG", NULL);
    hf_refused("{\"architectures\": [\"SmolLM3ForCausalLM\"], \"hidden_size\": 2048, "
               "\"use_sliding_window\": true, \"sliding_window\": 8}",
               "layer_types", "is missing", NULL);
    hf_refused("{\"architectures\": [\"Llama4ForCausalLM\"], \"is_causal\": false}", "is_causal",
               "accepted true with chunked or linear", NULL);
    hf_refused("{\"architectures\": [\"BertModel\"], \"hidden_size\": 768, "
               "\"add_cross_attention\": true}",
               "add_cross_attention", "is_decoder = true", NULL);
    hf_refused("{\"architectures\": [\"BambaForCausalLM\"], \"hidden_size\": 4096, "
               "\"num_hidden_layers\": 2, \"attn_layer_indices\": [2]}",
               "attn_layer_indices[0]", "got 2", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"], \"num_hidden_layers\": 3, "
               "\"layers_block_type\": [\"mlp\", \"moe\"]}",
               "layers_block_type", "got 2 names", "num_hidden_layers = 3", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"], "
               "\"layers_block_type\": [\"mlp\", \"hybrid\"]}",
               "layers_block_type[1]", "hybrid", NULL);
    hf_refused("{\"architectures\": [\"NemotronHForCausalLM\"]}", "hybrid_override_pattern",
               "layers_block_type", NULL);
    hf_refused("{\"architectures\": [\"ModernBertModel\"], \"hidden_size\": 768, "
               "\"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
               "layer_types[0]", "full_attention, sliding_attention", NULL);
}

/* Cut anywhere, a configuration is refused, never half read. */
TEST_OF(refused, truncated_anywhere)
{
    static const char whole[] = LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                                      "\"x\": {\"y\": [1, \"\\\"}\", null]}}";
    for (size_t length = 0; length < sizeof whole - 1; length++) {
        struct model *model = NULL;
        ck_assert_int_eq(model_create_hf_text(whole, length, "cut", NULL, &model, NULL),
                         ATTN_CONFIG_ERROR);
        ck_assert_ptr_null(model);
    }
    struct model *model = NULL;
    ck_assert_int_eq(model_create_hf_text(whole, sizeof whole - 1, "cut", NULL, &model, NULL),
                     ATTN_OK);
    ck_assert_int_eq(model->groups[0].head_dim, 16);
    model_destroy(model);
}

static attn_status llama_with(const char *ini, struct model **model, host_error *error)
{
    static const char text[] = LLAMA "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                                     "\"max_position_embeddings\": 100, "
                                     "\"torch_dtype\": \"float16\"}";
    struct config *config = load_ini(ini);
    host_error_init(error);
    attn_status status =
        model_create_hf_text(text, sizeof text - 1, "config.json", config, model, &error->base);
    config_destroy(config);
    return status;
}

TEST_OF(hugging_face, what_the_user_may_override)
{
    host_error error;
    struct model *model = NULL;
    ck_assert_int_eq(llama_with("[model]\ndtype = f32\nmax_context_len = 60\n", &model, &error),
                     ATTN_OK);
    ck_assert_uint_eq(model->dtype, ATTN_F32);
    ck_assert_int_eq(model->max_context_len, 60);
    model_destroy(model);
    ck_assert_int_eq(llama_with("[workload]\nseed = 3\n", &model, &error), ATTN_OK);
    ck_assert_uint_eq(model->dtype, ATTN_F16);
    ck_assert_int_eq(model->max_context_len, 100);
    model_destroy(model);
    model = NULL;
    ck_assert_int_eq(llama_with("[model]\nmax_context_len = 101\n", &model, &error),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "accepted 1 to 100"));
    ck_assert_int_eq(llama_with("[model]\nhead_dim = 16\n", &model, &error), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "model.head_dim"));
    ck_assert_ptr_null(model);
}

/* ---- The ini --------------------------------------------------------------------------------- */

TEST_OF(ini, ini_plain)
{
    struct model *model =
        model_of_ini("[model]\nnum_layers = 3\nnum_q_heads = 6\nnum_kv_heads = 2\nhead_dim = 33\n"
                     "v_head_dim = 7\nlogit_cap = 30\nsinks = yes\nalibi = yes\nsm_scale = 0.5\n");
    assert_consistent(model);
    const attn_layer_group *group = &model->groups[0];
    ck_assert_uint_eq(model->num_groups, 1);
    ck_assert_int_eq(group->head_dim, 33);
    ck_assert_int_eq(group->v_head_dim, 7);
    ck_assert_uint_eq(group->flags, ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI);
    assert_close(group->sm_scale, 0.5);
    assert_close(group->logit_cap, 30);
    model_destroy(model);
}

TEST_OF(ini, ini_layer_types)
{
    struct model *model =
        model_of_ini("[model]\nnum_layers = 7\nnum_q_heads = 4\nhead_dim = 8\nsliding_window = 1\n"
                     "attention_chunk = 5\nlayer_types = sliding full chunked cross encoder\n");
    assert_consistent(model);
    ck_assert_uint_eq(model->num_groups, 5);
    assert_layers(model, 0, "0,5"); /* the pattern is repeated */
    assert_layers(model, 1, "1,6");
    ck_assert_int_eq(model->groups[0].window_left, 0);
    ck_assert_int_eq(model->groups[2].attention_chunk, 5);
    ck_assert_uint_eq(model->groups[3].attn_type, ATTN_TYPE_CROSS);
    ck_assert_int_eq(model->groups[3].kv_group, 1);
    ck_assert_uint_eq(model->groups[4].attn_type, ATTN_TYPE_ENCODER_ONLY);
    ck_assert_uint_eq(model->num_buffers, 6);
    model_destroy(model);
}

TEST_OF(ini, ini_encoder_window_is_two_sided)
{
    struct model *model = model_of_ini("[model]\nnum_layers = 2\nnum_q_heads = 4\nhead_dim = 8\n"
                                       "sliding_window = 4\nattn_type = encoder_only\n");
    ck_assert_int_eq(model->groups[0].window_left, 3);
    ck_assert_int_eq(model->groups[0].window_right, 3);
    ck_assert_uint_eq(model->groups[0].attn_type, ATTN_TYPE_ENCODER_ONLY);
    model_destroy(model);
}

TEST_OF(ini, ini_mla)
{
    struct model *model =
        model_of_ini("[model]\nnum_layers = 2\nnum_q_heads = 16\nkv_lora_rank = 512\n"
                     "qk_rope_head_dim = 64\nqk_nope_head_dim = 128\n");
    ck_assert_uint_eq(model->groups[0].kind, ATTN_KIND_MLA);
    ck_assert_int_eq(model->groups[0].head_dim, 192);
    ck_assert_int_eq(model->groups[0].v_head_dim, 128);
    model_destroy(model);
}

/* MiMo V2: heads, dimensions and sinks by type of layer. */
TEST_OF(ini, ini_heads_by_type)
{
    struct model *model = model_of_ini(
        "[model]\nnum_q_heads = 64\nnum_kv_heads = 4\nhead_dim = 192\nv_head_dim = 128\n"
        "layer_types = full sliding*5\nsliding_window = 128\nlogit_cap = 30\n"
        "sliding.num_kv_heads = 8\nsliding.sinks = yes\nsliding.logit_cap = 0\n"
        "sliding.sm_scale = 0.5\nsliding.v_head_dim = 64\nfull.alibi = yes\n");
    const attn_layer_group *full = &model->groups[0], *sliding = &model->groups[1];
    ck_assert_uint_eq(model->num_groups, 2);
    assert_consistent(model);
    ck_assert_int_eq(full->num_kv_heads, 4);
    ck_assert_int_eq(full->v_head_dim, 128);
    ck_assert_uint_eq(full->flags, ATTN_GROUP_HAS_ALIBI);
    assert_close((double)full->logit_cap, 30);
    assert_close((double)full->sm_scale, 1 / sqrt(192));
    ck_assert_int_eq(sliding->num_q_heads, 64);
    ck_assert_int_eq(sliding->num_kv_heads, 8);
    ck_assert_int_eq(sliding->head_dim, 192);
    ck_assert_int_eq(sliding->v_head_dim, 64);
    ck_assert_uint_eq(sliding->flags, ATTN_GROUP_HAS_SINKS);
    ck_assert(!(sliding->logit_cap > 0));
    assert_close((double)sliding->sm_scale, 0.5);
    model_destroy(model);
}

/* Types may have all of their shape to themselves, and v_head_dim follows their own head_dim. */
TEST_OF(ini, ini_types_alone)
{
    struct model *model =
        model_of_ini("[model]\nlayer_types = full cross\nfull.num_q_heads = 4\n"
                     "full.head_dim = 8\ncross.num_q_heads = 2\ncross.head_dim = 16\n");
    ck_assert_int_eq(model->groups[0].v_head_dim, 8);
    ck_assert_int_eq(model->groups[0].num_kv_heads, 4);
    ck_assert_int_eq(model->groups[1].v_head_dim, 16);
    ck_assert_int_eq(model->groups[1].num_kv_heads, 2);
    model_destroy(model);
}

/* Gemma 3n: the last layers read the cache of the last one of their type before them. */
TEST_OF(ini, ini_shared_caches)
{
    struct model *model =
        model_of_ini("[model]\nnum_layers = 6\nnum_q_heads = 4\nhead_dim = 8\nsliding_window = 4\n"
                     "layer_types = sliding sliding full\nnum_kv_shared_layers = 3\n");
    static const int32_t buffers[] = {0, 1, 2, 1, 1, 2};
    ck_assert_uint_eq(model->num_buffers, 3);
    for (int32_t l = 0; l < 6; l++) {
        const struct model_layer *layer = &model->layers[l];
        const attn_layer *given = attn_at(model->groups[layer->group].layers, layer->index);
        ck_assert_int_eq(layer->kv_buffer, buffers[l]);
        ck_assert_uint_eq(given->flags, l < 3 ? 0u : (uint32_t)ATTN_LAYER_KV_READ_ONLY);
    }
    model_destroy(model);
}

TEST_OF(ini, ini_sparse_layers)
{
    struct model *model = model_of_ini(
        "[model]\nnum_layers = 3\nnum_q_heads = 8\nkv_lora_rank = 512\nqk_rope_head_dim = 64\n"
        "qk_nope_head_dim = 128\nindex_topk = 2048\nindex_head_dim = 128\n"
        "layer_types = full sparse sparse\n");
    ck_assert_uint_eq(model->groups[0].kind, ATTN_KIND_MLA);
    ck_assert_uint_eq(model->groups[1].kind, ATTN_KIND_SPARSE);
    ck_assert_int_eq(model->groups[1].sparse->top_k, 2048);
    ck_assert_int_eq(model->groups[1].sparse->label_dim, 128);
    ck_assert_int_eq(model->groups[1].sparse->index_heads, 64);
    ck_assert_uint_eq(model->groups[1].sparse->label_dtype, ATTN_BF16);
    ck_assert_uint_eq(model->groups[1].sparse->index_dtype, ATTN_BF16);
    ck_assert_int_eq(model->groups[1].mla->kv_lora_rank, 512);
    model_destroy(model);
}

/* Codes are multiplied by codes: index queries are of the type of e4m3 labels, and of no other. */
TEST_OF(ini, ini_label_dtypes)
{
#define SPARSE                                                                                     \
    "[model]\nnum_layers = 2\nnum_q_heads = 8\nkv_lora_rank = 64\nqk_rope_head_dim = 16\n"         \
    "qk_nope_head_dim = 32\nindex_topk = 16\nlayer_types = sparse\n"
    struct model *codes =
        model_of_ini(SPARSE "index_head_dim = 32\n[kv_cache]\nlabel_dtype = fp8_e4m3\n"
                            "[speculative]\ndraft_tokens = 2\n");
    ck_assert_uint_eq(codes->num_groups, 1); /* the draft's layer is like the others */
    ck_assert_uint_eq(codes->groups[0].sparse->label_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(codes->groups[0].sparse->index_dtype, ATTN_FP8_E4M3);
    model_destroy(codes);
    struct model *wide =
        model_of_ini(SPARSE "index_head_dim = 32\n[kv_cache]\nlabel_dtype = f32\n");
    ck_assert_uint_eq(wide->groups[0].sparse->label_dtype, ATTN_F32);
    ck_assert_uint_eq(wide->groups[0].sparse->index_dtype, ATTN_BF16);
    model_destroy(wide);
    ini_refused(SPARSE "index_head_dim = 30\n[kv_cache]\nlabel_dtype = fp8_e4m3\n",
                "test.ini:", "kv_cache.label_dtype", "labels of 30 elements", "a multiple of 4",
                NULL);
#undef SPARSE
}

/* Qwen3-Next; and latent layers next to linear ones, as Kimi Linear has them. */
TEST_OF(ini, ini_linear_layers)
{
    static const char linear[] =
        "[model]\nnum_layers = 4\nnum_q_heads = 16\nnum_kv_heads = 2\nhead_dim = 256\n"
        "layer_types = linear*3 full\nlinear_family = gdn\nlinear.num_q_heads = 32\n"
        "linear.num_kv_heads = 16\nlinear.head_dim = 128\nlinear_conv_kernel_dim = 4\n";
    struct model *model = model_of_ini(linear), *next = load_hf("qwen3_next");
    const attn_linear_dims *dims = model->groups[0].linear, *wanted = NULL;
    for (uint32_t g = 0; g < next->num_groups; g++)
        wanted = next->groups[g].linear ? next->groups[g].linear : wanted;
    ck_assert_uint_eq(dims->family, wanted->family);
    ck_assert_uint_eq(dims->flags, wanted->flags);
    ck_assert_int_eq(dims->num_k_heads, 16);
    ck_assert_int_eq(dims->num_v_heads, 32);
    ck_assert_int_eq(dims->head_k_dim, 128);
    ck_assert_int_eq(dims->head_v_dim, 128);
    ck_assert_int_eq(dims->conv_width, 4);
    ck_assert_int_eq(model->groups[1].num_q_heads, 16);
    assert_consistent(model);
    model_destroy(model);
    model_destroy(next);
    model = model_of_ini(
        "[model]\nnum_layers = 2\nnum_q_heads = 4\nkv_lora_rank = 64\nqk_rope_head_dim = 0\n"
        "qk_nope_head_dim = 32\nlayer_types = linear full\nlinear_family = short_conv\n"
        "linear.head_dim = 16\nlinear_conv_kernel_dim = 3\n");
    ck_assert_uint_eq(model->groups[0].linear->family, ATTN_LINEAR_SHORT_CONV);
    ck_assert_int_eq(model->groups[0].linear->num_k_heads, 0);
    ck_assert_int_eq(model->groups[0].linear->head_v_dim, 16);
    ck_assert_int_eq(model->groups[1].mla->rope_dim, 0);
    ck_assert_int_eq(model->groups[1].head_dim, 32);
    model_destroy(model);
}

/* One rank's heads, as engines divide them: KV heads that are fewer than ranks are replicated. */
TEST_OF(ini, heads_of_a_rank)
{
    static const struct {
        int32_t ranks, q_heads, kv_heads;
    } wanted[] = {{1, 32, 8}, {2, 16, 4}, {8, 4, 1}, {16, 2, 1}, {32, 1, 1}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "[model]\nnum_layers = 1\nnum_q_heads = 32\nnum_kv_heads = 8\nhead_dim = 8\n"
                 "tp_size = %d\ntp_rank = %d\n",
                 wanted[i].ranks, wanted[i].ranks - 1);
        struct model *model = model_of_ini(text);
        ck_assert_int_eq(model->groups[0].num_q_heads, wanted[i].q_heads);
        ck_assert_int_eq(model->groups[0].num_kv_heads, wanted[i].kv_heads);
        ck_assert_int_eq(model->tp_rank, wanted[i].ranks - 1);
        model_destroy(model);
    }
#define SHARED "[model]\nnum_layers = 1\nnum_q_heads = 12\nhead_dim = 8\n"
    ini_refused(SHARED "tp_size = 8\n", "12 query heads", "model.tp_size = 8", NULL);
    ini_refused(SHARED "num_kv_heads = 3\ntp_size = 2\n", "3 KV heads", "or a divisor", NULL);
    ini_refused(SHARED "tp_size = 2\ntp_rank = 2\n", "model.tp_rank: 2", "accepted 0 to 1", NULL);
#undef SHARED
}

static struct model *load_rank(const char *name, int32_t ranks)
{
    char set[64], path[1024];
    const char *source = getenv("ATTNHOST_TEST_SRCDIR"), *const sets[] = {set};
    struct config *config = NULL;
    struct model *model = NULL;
    HOST_ERROR(error);
    snprintf(set, sizeof set, "model.tp_size=%d", ranks);
    snprintf(path, sizeof path, "%s/tests/models/%s.json", source ? source : ".", name);
    ck_assert_int_eq(config_load(NULL, sets, 1, &config, &error.base), ATTN_OK);
    attn_status status = model_create_hf(path, config, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", name, host_error_text(&error));
    config_destroy(config);
    return model;
}

/* Latents are each rank's; recurrences are shared by heads, Mamba2's groups as KV heads are. */
TEST_OF(ini, ranks_of_other_kinds)
{
    static const char *const names[] = {"deepseek_v3", "qwen3_next", "kimi_linear", "falcon_h1"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct model *whole = load_hf(names[n]), *rank = load_rank(names[n], 2);
        assert_consistent(rank);
        ck_assert_uint_eq(rank->num_groups, whole->num_groups);
        for (uint32_t g = 0; g < whole->num_groups; g++) {
            const attn_layer_group *all = &whole->groups[g], *own = &rank->groups[g];
            ck_assert_int_eq(own->num_q_heads * 2, all->num_q_heads);
            if (all->mla)
                ck_assert_int_eq(own->mla->kv_lora_rank, all->mla->kv_lora_rank);
            if (all->mla)
                ck_assert_int_eq(own->num_kv_heads, own->num_q_heads);
            if (all->linear) {
                ck_assert_int_eq(own->linear->num_v_heads * 2, all->linear->num_v_heads);
                ck_assert_int_eq(own->linear->num_k_heads,
                                 all->linear->num_k_heads == 1 ? 1 : all->linear->num_k_heads / 2);
            }
        }
        model_destroy(whole);
        model_destroy(rank);
    }
}

#define DRAFTED                                                                                    \
    "[model]\nnum_layers = 2\nnum_q_heads = 8\nnum_kv_heads = 2\nhead_dim = 64\n"                  \
    "[speculative]\ndraft_tokens = 3\n"

/* A draft model of its own shape, in a buffer of its own. */
TEST_OF(ini, drafts_of_another_shape)
{
    struct model *model =
        model_of_ini(DRAFTED "num_q_heads = 4\nhead_dim = 32\nsliding_window = 8\n"
                             "num_layers = 2\nkv_dtype = fp8_e4m3\n");
    const attn_layer_group *draft = &model->groups[1];
    assert_consistent(model);
    ck_assert_uint_eq(model->num_groups, 2);
    ck_assert_uint_eq(model->num_buffers, 4);
    ck_assert_int_eq(draft->num_q_heads, 4);
    ck_assert_int_eq(draft->num_kv_heads, 4);
    ck_assert_int_eq(draft->head_dim, 32);
    ck_assert_int_eq(draft->window_left, 7);
    for (uint32_t l = 0; l < 4; l++)
        ck_assert_int_eq(model->layers[l].is_draft, l >= 2);
    ck_assert(model_group_drafts(model, draft) && !model_group_drafts(model, &model->groups[0]));
    model_destroy(model);
    model = model_of_ini(DRAFTED); /* as the target's last layer, in its group */
    ck_assert_uint_eq(model->num_groups, 1);
    ck_assert(model->layers[2].is_draft && !model_group_drafts(model, &model->groups[0]));
    model_destroy(model);
    model = model_of_ini(DRAFTED "kv_dtype = f16\n"); /* the same shape, another cache */
    ck_assert_uint_eq(model->num_groups, 2);
    ck_assert_int_eq(model->groups[1].head_dim, 64);
    model_destroy(model);
}

TEST_OF(ini, drafts_from_a_file)
{
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    char text[1400];
    snprintf(text, sizeof text, DRAFTED "config = %s/tests/models/llama.json\n",
             source ? source : ".");
    struct model *model = model_of_ini(text), *llama = load_hf("llama");
    ck_assert_uint_eq(model->num_layers, 2 + llama->num_layers);
    ck_assert_int_eq(model->groups[1].num_q_heads, llama->groups[0].num_q_heads);
    ck_assert_int_eq(model->groups[1].head_dim, llama->groups[0].head_dim);
    ck_assert(model->layers[2].is_draft);
    model_destroy(model);
    model_destroy(llama);
    snprintf(text, sizeof text, DRAFTED "config = %s/tests/models/qwen3_next.json\n",
             source ? source : ".");
    ini_refused(text, "speculative.config", "linear", "accepted decoder layers", NULL);
    snprintf(text, sizeof text, DRAFTED "head_dim = 8\nconfig = %s/tests/models/llama.json\n",
             source ? source : ".");
    ini_refused(text, "speculative.head_dim", "speculative.config", NULL);
    ini_refused(DRAFTED "num_q_heads = 4\nnum_kv_heads = 3\n", "speculative.num_kv_heads: 3", NULL);
}

TEST_OF(ini, ini_type_refusals)
{
#define MODEL  "[model]\nnum_layers = 2\nnum_q_heads = 4\nhead_dim = 8\n"
#define LATENT MODEL "kv_lora_rank = 16\nqk_nope_head_dim = 8\nqk_rope_head_dim = 0\n"
    ini_refused(MODEL "full.num_kv_heads = 3\n", "test.ini:5", "model.full.num_kv_heads: 3",
                "the 4 query heads of full layers", NULL);
    ini_refused(MODEL "layer_types = sparse\n", "model.kv_lora_rank", "sparse", NULL);
    ini_refused(LATENT "layer_types = sparse\n", "model.index_topk", "sparse", NULL);
    ini_refused(LATENT "full.head_dim = 8\n", "model.full.head_dim", "do not have", NULL);
    ini_refused(MODEL "index_topk = 8\n", "model.index_topk", "kv_lora_rank", NULL);
    ini_refused(MODEL "layer_types = linear\nlinear_family = gdn\nlinear.sinks = yes\n",
                "model.linear.sinks", "linear layers do not have", NULL);
    ini_refused(MODEL "layer_types = linear\nlinear_family = short_conv\n",
                "linear_conv_kernel_dim", "1 to 64 taps", NULL);
    ini_refused(MODEL "num_kv_shared_layers = 2\n", "accepted 0 to 1", NULL);
    ini_refused(MODEL "num_kv_shared_layers = 1\nlayer_types = full sliding\n"
                      "sliding_window = 4\n",
                "num_kv_shared_layers", "layer 1 is sliding", NULL);
#undef LATENT
#undef MODEL
}

TEST_OF(ini, ini_refusals)
{
    ini_refused("[model]\nnum_q_heads = 4\nhead_dim = 8\n", "num_layers", "is missing", NULL);
    ini_refused("[model]\nnum_layers = 1\nhead_dim = 8\n", "num_q_heads", "is missing", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\n", "head_dim", "is missing", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nnum_kv_heads = 3\nhead_dim = 8\n",
                "test.ini:4", "num_kv_heads", "3", "a divisor of the 4 query heads of full layers",
                NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 8\nlayer_types = full full\n",
                "layer_types", "2 layers", "num_layers = 1", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 8\nlayer_types = sliding\n",
                "sliding_window", "is missing", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 8\nlayer_types = linear\n",
                "model.linear_family", "config.json", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 8\nlayer_types = full\n"
                "sliding_window = 4\n",
                "sliding_window", "no layer is sliding", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nkv_lora_rank = 512\n",
                "qk_rope_head_dim", "is missing", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 8\nqk_rope_head_dim = 64\n",
                "kv_lora_rank", NULL);
    ini_refused("[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 9\nkv_lora_rank = 512\n"
                "qk_rope_head_dim = 4\nqk_nope_head_dim = 4\n",
                "head_dim", "9", "= 8", NULL);
}

/* ---- Sharing and text ------------------------------------------------------------------------ */

TEST_OF(build, a_shared_buffer_is_read_only)
{
    struct model *model = model_new("m", "test", NULL);
    struct model_spec spec;
    model_spec_softmax(&spec, 4, 4, 8, 8);
    ck_assert_int_eq(model_add_layer(model, &spec, "decoder", 0, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_layer(model, &spec, "decoder", 1, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_shared_layer(model, &spec, "decoder", 2, 0, NULL), ATTN_OK);
    const attn_layer *layers = model->groups[0].layers;
    ck_assert_uint_eq(model->num_buffers, 2);
    ck_assert_int_eq(layers[2].kv_buffer, layers[0].kv_buffer);
    ck_assert_uint_eq(layers[2].flags, ATTN_LAYER_KV_READ_ONLY);
    ck_assert_uint_eq(layers[1].flags, 0);
    model_destroy(model);
    model_destroy(NULL);
}

TEST_OF(build, layer_text_is_cut_visibly)
{
    struct model *model = model_new("m", "test", NULL);
    struct model_spec even, odd;
    char text[12], one[1], whole[64];
    static const char kinds[] = "oooeeeoeoeoeooooooooeoooooooooe"; /* even, odd */
    model_spec_softmax(&even, 4, 4, 8, 8);
    model_spec_softmax(&odd, 4, 4, 16, 16);
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(model_add_layer(model, i % 2 ? &odd : &even, "decoder", i, NULL), ATTN_OK);
    model_layers_text(&model->groups[0], whole, sizeof whole);
    ck_assert_str_eq(whole, "0-38/2");
    model_layers_text(&model->groups[1], whole, sizeof whole);
    ck_assert_str_eq(whole, "1-39/2");
    model_destroy(model);
    model = model_new("m", "test", NULL);
    for (int i = 0; kinds[i]; i++)
        ck_assert_int_eq(model_add_layer(model, kinds[i] == 'o' ? &odd : &even, "decoder", i, NULL),
                         ATTN_OK);
    model_layers_text(&model->groups[1], whole, sizeof whole);
    ck_assert_str_eq(whole, "3-5,7-11/2,20,30");
    model_layers_text(&model->groups[1], text, sizeof text);
    ck_assert_str_eq(text, "3-5,7-11...");
    model_layers_text(&model->groups[0], one, sizeof one);
    ck_assert_str_eq(one, "");
    model_destroy(model);
}

TESTS("model");
