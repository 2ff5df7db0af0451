/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_state.c: models with recurrent layers next to attention, or with nothing else: Falcon-H1,
 * Bamba, Granite 4, Zamba2, Nemotron-H, Mamba2, Jamba, RecurrentGemma.
 */
#include "host/model/hf.h"

#include <math.h>
#include <string.h>

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* What a block of a model has, as a letter; those of Nemotron-H's patterns, and two more. */
enum {
    BLOCK_MAMBA = 'M',
    BLOCK_ATTENTION = '*',
    BLOCK_MLP = '-',
    BLOCK_EXPERTS = 'E',
    BLOCK_PARALLEL = 'P', /* Mamba2 and attention read the same input */
    BLOCK_HYBRID = 'H'    /* attention, and Mamba2 after it */
};

/* The names that Transformers gives them; "mamba" and "attention" in older files. */
static const struct hf_layer_name block_names[] = {{"full_attention", BLOCK_ATTENTION},
                                                   {"linear_attention", BLOCK_MAMBA},
                                                   {"mlp", BLOCK_MLP},
                                                   {"moe", BLOCK_EXPERTS},
                                                   {"hybrid", BLOCK_HYBRID},
                                                   {"attention", BLOCK_ATTENTION},
                                                   {"mamba", BLOCK_MAMBA},
                                                   {NULL, 0}};

/* The letters of a list of names, of which `but` does not occur in this family. */
static void read_named_blocks(const struct hf_source *source, const char *key, const cJSON *list,
                              int32_t num_layers, const char *but, char *blocks)
{
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        blocks[i] = (char)hf_layer_type(source, key, list, i, block_names);
        if (strchr(but, blocks[i]))
            hf_fail_item(source, key, i, cJSON_GetArrayItem(list, i),
                         "what the blocks of this model are: full_attention, linear_attention ...");
    }
}

static void add_blocks(struct hf_source *source, const char *blocks, int32_t num_layers,
                       const struct model_spec *attention, const struct model_spec *recurrence)
{
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        if (blocks[i] == BLOCK_HYBRID)
            hf_add(source, attention, "decoder", i);
        if (strchr("MPH", blocks[i]))
            hf_add(source, recurrence, "decoder", i);
        if (blocks[i] == BLOCK_ATTENTION || blocks[i] == BLOCK_PARALLEL)
            hf_add(source, attention, "decoder", i);
    }
}

static void read_attention(const struct hf_source *source, struct model_spec *spec)
{
    struct hf_heads heads = hf_read_heads(source);
    model_spec_softmax(spec, heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.head_dim);
}

/* ---- Falcon-H1, Bamba, Granite 4: the same names for the recurrence ------------------------- */

/* mamba_d_ssm is the width of the inner state, by default a multiple of the hidden size. */
static int32_t inner_width(const struct hf_source *source)
{
    if (json_has(&source->text, "mamba_d_ssm"))
        return hf_int(source, "mamba_d_ssm", 0, INT32_MAX / 2);
    return (int32_t)json_int(&source->text, "hidden_size", JSON_REQUIRED, 1, 1 << 20) *
           hf_int(source, "mamba_expand", 2, 64);
}

static void read_recurrence(const struct hf_source *source, struct model_spec *spec)
{
    int32_t width = inner_width(source);
    const cJSON *head = json_get(&source->text, "mamba_d_head");
    bool automatic = !head || (cJSON_IsString(head) && strcmp(head->valuestring, "auto") == 0);
    attn_linear_dims dims = {.num_v_heads = hf_int(source, "mamba_n_heads", 128, MODEL_MAX_HEADS),
                             .num_groups = hf_int(source, "mamba_n_groups", 1, MODEL_MAX_HEADS),
                             .head_k_dim = hf_int(source, "mamba_d_state", 256, MODEL_MAX_DIM),
                             .conv_width = hf_int(source, "mamba_d_conv", 4, 64),
                             .chunk = hf_int(source, "mamba_chunk_size", 256, 1 << 20)};
    dims.head_v_dim =
        automatic ? width / dims.num_v_heads : hf_int(source, "mamba_d_head", 0, MODEL_MAX_DIM);
    if ((int64_t)dims.head_v_dim * dims.num_v_heads != width)
        json_fail(&source->text, "mamba_d_ssm",
                  "got %d: accepted mamba_n_heads x mamba_d_head = %lld", width,
                  (long long)dims.head_v_dim * dims.num_v_heads);
    hf_mamba2_dims(source, "mamba_n_heads", &dims);
    model_spec_linear(spec, &dims);
}

void hf_build_falcon_h1(struct hf_source *source)
{
    struct model_spec attention, recurrence;
    char blocks[MODEL_MAX_LAYERS];
    int32_t num_layers = hf_num_layers(source);
    memset(blocks, BLOCK_PARALLEL, sizeof blocks);
    read_attention(source, &attention);
    read_recurrence(source, &recurrence);
    add_blocks(source, blocks, num_layers, &attention, &recurrence);
}

void hf_build_bamba(struct hf_source *source)
{
    static const char key[] = "attn_layer_indices";
    struct model_spec attention, recurrence;
    char blocks[MODEL_MAX_LAYERS];
    int32_t num_layers = hf_num_layers(source), n = 0;
    const cJSON *list = json_array(&source->text, key, -1), *item;
    memset(blocks, BLOCK_MAMBA, sizeof blocks);
    read_attention(source, &attention);
    read_recurrence(source, &recurrence);
    cJSON_ArrayForEach(item, list)
    {
        if (hf_is_index(item, num_layers - 1))
            blocks[item->valueint] = BLOCK_ATTENTION;
        else
            hf_fail_item(source, key, n, item, "the number of a layer, from 0");
        n++;
    }
    add_blocks(source, blocks, num_layers, &attention, &recurrence);
}

void hf_build_granite_hybrid(struct hf_source *source)
{
    struct model_spec attention, recurrence;
    char blocks[MODEL_MAX_LAYERS];
    int32_t num_layers = hf_num_layers(source);
    const cJSON *list = json_array(&source->text, "layer_types", num_layers);
    memset(blocks, BLOCK_MAMBA, sizeof blocks);
    read_attention(source, &attention);
    attention.group.sm_scale =
        (float)json_double(&source->text, "attention_multiplier", 1, 1e-9, 1e9);
    if (list)
        read_named_blocks(source, "layer_types", list, num_layers, "-EH", blocks);
    /* The small ones are all attention, and their mamba_* fields fit nothing. */
    if (memchr(blocks, BLOCK_MAMBA, (size_t)num_layers))
        read_recurrence(source, &recurrence);
    add_blocks(source, blocks, num_layers, &attention, &recurrence);
}

/* ---- Zamba2: shared attention blocks, which read the input next to the hidden state ---------- */

static void read_zamba2_recurrence(const struct hf_source *source, struct model_spec *spec)
{
    int64_t hidden = json_int(&source->text, "hidden_size", JSON_REQUIRED, 1, 1 << 20);
    int32_t heads = hf_int(source, "n_mamba_heads", 8, MODEL_MAX_HEADS);
    int64_t width = hidden * hf_int(source, "mamba_expand", 2, 64);
    attn_linear_dims dims = {.num_v_heads = heads,
                             .head_v_dim = (int32_t)json_int(&source->text, "mamba_headdim",
                                                             width / heads, 1, MODEL_MAX_DIM),
                             .num_groups = hf_int(source, "mamba_ngroups", 1, MODEL_MAX_HEADS),
                             .head_k_dim = hf_int(source, "mamba_d_state", 64, MODEL_MAX_DIM),
                             .conv_width = hf_int(source, "mamba_d_conv", 4, 64),
                             .chunk = hf_int(source, "chunk_size", 256, 1 << 20),
                             .dt_min = json_float(&source->text, "time_step_min", 0.001, 1e3)};
    if ((int64_t)dims.head_v_dim * heads != width)
        json_fail(&source->text, "n_mamba_heads",
                  "got %d: accepted a divisor of mamba_expand x hidden_size = %lld", heads,
                  (long long)width);
    hf_mamba2_dims(source, "n_mamba_heads", &dims);
    model_spec_linear(spec, &dims);
}

void hf_build_zamba2(struct hf_source *source)
{
    static const char key[] = "layers_block_type";
    struct model_spec attention, recurrence;
    char blocks[MODEL_MAX_LAYERS];
    int32_t num_layers = hf_num_layers(source);
    int32_t heads = hf_int(source, "num_attention_heads", 32, MODEL_MAX_HEADS);
    int32_t kv_heads = hf_int(source, "num_key_value_heads", heads, MODEL_MAX_HEADS);
    int32_t otherwise = 2 * hf_split_heads(&source->text, "hidden_size", heads);
    int32_t head_dim = hf_int(source, "attention_head_dim", otherwise, MODEL_MAX_DIM);
    const cJSON *list = json_array(&source->text, key, num_layers);
    if (heads % kv_heads != 0)
        json_fail(&source->text, "num_key_value_heads",
                  "got %d: accepted a divisor of the %d heads", kv_heads, heads);
    model_spec_softmax(&attention, heads, kv_heads, head_dim, head_dim);
    attention.group.sm_scale = (float)(1.0 / sqrt(head_dim / 2.0));
    read_zamba2_recurrence(source, &recurrence);
    if (!list)
        json_fail(&source->text, key, "is missing: accepted a name for each layer");
    else
        read_named_blocks(source, key, list, num_layers, "*-E", blocks);
    add_blocks(source, blocks, num_layers, &attention, &recurrence);
}

/* ---- Nemotron-H: each block is one of attention, Mamba2, MLP and experts --------------------- */

static void nemotron_dims(const struct hf_source *source, attn_linear_dims *dims)
{
    *dims = (attn_linear_dims){
        .num_v_heads = hf_int(source, "mamba_num_heads", 128, MODEL_MAX_HEADS),
        .head_v_dim = hf_int(source, "mamba_head_dim", 64, MODEL_MAX_DIM),
        .num_groups = hf_int(source, "n_groups|mamba_n_groups", 8, MODEL_MAX_HEADS),
        .head_k_dim = hf_int(source, "ssm_state_size|mamba_d_state", 128, MODEL_MAX_DIM),
        .conv_width = hf_int(source, "conv_kernel|mamba_d_conv", 4, 64),
        .chunk = hf_int(source, "chunk_size|mamba_chunk_size", 128, 1 << 20),
        .dt_min = json_float(&source->text, "time_step_min|mamba_dt_min", 0.001, 1e3)};
    hf_mamba2_dims(source, "mamba_num_heads", dims);
}

/* The authors' files have a letter for each block. */
static void read_letters(const struct hf_source *source, const char *pattern, char *blocks)
{
    static const char key[] = "hybrid_override_pattern";
    if (strlen(pattern) > MODEL_MAX_LAYERS) {
        json_fail(&source->text, key, "got %zu letters: accepted at most %d", strlen(pattern),
                  MODEL_MAX_LAYERS);
        return;
    }
    for (size_t i = 0; hf_ok(source) && pattern[i]; i++) {
        blocks[i] = pattern[i];
        if (!strchr("M*-E", pattern[i]))
            json_fail(
                &source->text, key,
                "letter %zu is '%c': accepted M (Mamba2), * (attention), - (MLP), E (experts)",
                i + 1, pattern[i]);
    }
}

/* Either the letters, or the names that Transformers saves; with them num_hidden_layers may be left
 * out. Returns the number of blocks. */
static int32_t read_nemotron_blocks(const struct hf_source *source, char *blocks)
{
    const cJSON *list = json_array(&source->text, "layers_block_type", -1);
    const char *pattern = json_string(&source->text, "hybrid_override_pattern", NULL);
    int64_t count = list ? cJSON_GetArraySize(list) : pattern ? (int64_t)strlen(pattern) : 0;
    int64_t said = json_int(&source->text, "num_hidden_layers", count, 0, MODEL_MAX_LAYERS);
    if (!list && !pattern)
        json_fail(&source->text, "hybrid_override_pattern|layers_block_type",
                  "is missing: accepted a letter for each layer, as M-M*-, or layers_block_type, a "
                  "name for each");
    else if (said != count || count > MODEL_MAX_LAYERS)
        json_fail(&source->text, list ? "layers_block_type" : "hybrid_override_pattern",
                  "got %lld %s: accepted num_hidden_layers = %lld", (long long)count,
                  list ? "names" : "letters", (long long)said);
    else if (list)
        read_named_blocks(source, "layers_block_type", list, (int32_t)count, "H", blocks);
    else
        read_letters(source, pattern, blocks);
    return hf_ok(source) ? (int32_t)count : 0;
}

void hf_build_nemotron_h(struct hf_source *source)
{
    struct model_spec attention, recurrence;
    attn_linear_dims dims;
    char blocks[MODEL_MAX_LAYERS];
    int32_t num_layers = read_nemotron_blocks(source, blocks);
    read_attention(source, &attention);
    nemotron_dims(source, &dims);
    model_spec_linear(&recurrence, &dims);
    add_blocks(source, blocks, num_layers, &attention, &recurrence);
}

/* ---- Jamba, RecurrentGemma: recurrences that the ABI has no words for ------------------------ */

void hf_build_jamba(struct hf_source *source)
{
    struct model_spec attention;
    int32_t num_layers = hf_num_layers(source);
    int32_t period = hf_int(source, "attn_layer_period", 8, MODEL_MAX_LAYERS);
    int64_t offset = json_int(&source->text, "attn_layer_offset", 4, 0, period - 1);
    read_attention(source, &attention);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        if (i % period == offset)
            hf_add(source, &attention, "decoder", i);
        else
            hf_leave_out(source, "its Mamba-1 layers, which the ABI does not describe");
    }
}

void hf_build_recurrent_gemma(struct hf_source *source)
{
    static const struct hf_layer_name names[] = {{"attention", 1}, {"recurrent", 0}, {NULL, 0}};
    static const char key[] = "block_types|_block_types";
    struct model_spec attention;
    int32_t num_layers = hf_num_layers(source);
    const cJSON *pattern = json_get(&source->text, key);
    int32_t period = cJSON_IsArray(pattern) ? cJSON_GetArraySize(pattern) : 0;
    read_attention(source, &attention);
    attention.group.window_left = hf_int(source, "attention_window_size", 2048, INT32_MAX) - 1;
    if (pattern && period == 0)
        json_fail(&source->text, key, "accepted a list of attention and recurrent");
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        bool full = pattern ? hf_layer_type(source, "block_types", pattern, i % period, names) == 1
                            : i % 3 == 2;
        if (full)
            hf_add(source, &attention, "decoder", i);
        else
            hf_leave_out(source, "its RG-LRU layers, which the ABI does not describe");
    }
}

/* ---- Mamba2 ---------------------------------------------------------------------------------- */

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
