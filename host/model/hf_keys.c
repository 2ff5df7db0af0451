/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_keys.c: keys of a config.json that concern attention, and their neutral values.
 *
 * A family declares a key by reading it. If a key of this table is unread and its value is not
 * neutral, ignoring it would describe another model, so it is refused by name. */
#include "host/model/hf.h"

#include <stdio.h>
#include <string.h>

/* Values other than null that change nothing, as json_describe() writes them, between bars. "[]"
 * and "{}" stand for an empty array or object, "full" for a list of nothing but full_attention. */
struct neutral_key {
    const char *name, *neutral;
};

static const struct neutral_key keys[] = {
    /* windows and chunks */
    {"sliding_window", ""},
    {"use_sliding_window", "false"},
    {"sliding_window_pattern", ""},
    {"_sliding_window_pattern", ""},
    {"attention_chunk_size", ""},
    {"attention_window", ""},
    {"attention_window_size", ""},
    {"window_size", ""},
    {"fullatt_block_indexes", "[]"},
    {"local_attention", ""},
    {"global_attn_every_n_layers", "1"},
    {"attention_layers", ""},
    {"attention_types", ""},
    {"dual_chunk_attention_config", "{}"},
    {"moba_config", "{}"},
    /* which layers are of which type */
    {"layer_types", "full"},
    {"layers_block_type", "full"},
    {"hybrid_override_pattern", ""},
    {"hybrid_layer_pattern", ""},
    {"block_types", ""},
    {"block_configs", ""},
    {"attn_type_list", ""},
    {"full_attn_idxs", ""},
    {"full_attention_interval", "1"},
    {"attn_layer_indices", ""},
    {"attn_layer_period", "1"},
    {"attn_layer_offset", "0"},
    {"linear_attn_config", "{}"},
    {"linear_num_key_heads", ""},
    {"linear_num_heads", ""},
    {"cross_attention_layers", "[]"},
    {"add_cross_attention", "false"},
    /* who sees whom */
    {"is_causal", "true"},
    {"use_bidirectional_attention", "false"},
    {"attn_config", "{}"},
    {"attn_type", "\"multihead_attention\""},
    {"attn_uses_sequence_id", "false"},
    {"prefix_lm", "false"},
    {"index_topk", ""},
    {"sparse_attention_config", "{}"},
    {"use_sparse_attention", "false"},
    /* scores */
    {"query_pre_attn_scalar", ""},
    {"attention_multiplier", ""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"attn_logit_softcapping", "0"},
    {"attn_logit_softcap", "0"},
    {"softmax_scale", ""},
    {"alibi", "false"},
    {"alibi_bias_max", "8"},
    {"use_alibi", "false"},
    {"position_embedding_type", "\"absolute\"|\"rope\"|\"nope\"|\"rotary\"|\"rope_gptj\""},
    {"relative_attention", "false"},
    {"relative_attention_num_buckets", ""},
    {"add_swa_attention_sink_bias", "false"},
    {"add_full_attention_sink_bias", "false"},
    /* heads */
    {"head_dim", ""},
    {"num_key_value_heads", ""},
    {"num_kv_heads", ""},
    {"multi_query", "false"},
    {"multi_query_group_num", ""},
    {"v_head_dim", ""},
    {"kv_lora_rank", "0"},
    {"qk_rope_head_dim", "0"},
    {"qk_nope_head_dim", "0"},
    {"attention_head_dim", ""},
    {"global_head_dim", ""},
    {"num_global_key_value_heads", ""},
    {"swa_head_dim", ""},
    {"swa_v_head_dim", ""},
    {"swa_num_attention_heads", ""},
    {"swa_num_key_value_heads", ""},
    {"per_layer_config", "{}"},
    {"num_sliding_attention_heads", ""},
    {"attention_other_setting", "{}"},
    {"num_kv_shared_layers", "0"},
};

/* Is it a list that names full_attention for every layer? */
static bool is_all_full(const cJSON *value)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, value)
    {
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "full_attention") != 0)
            return false;
    }
    return cJSON_IsArray(value);
}

/* One of the values between bars? */
static bool is_among(const char *text, const char *values)
{
    size_t length = strlen(text);
    for (const char *at = values; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strcspn(at, "|") == length && strncmp(at, text, length) == 0)
            return true;
    return false;
}

static bool is_neutral(const cJSON *value, const char *neutral)
{
    char text[64];
    if (cJSON_IsNull(value))
        return true;
    if (strcmp(neutral, "full") == 0)
        return is_all_full(value);
    if (cJSON_IsArray(value) || cJSON_IsObject(value))
        return !value->child && is_among(cJSON_IsArray(value) ? "[]" : "{}", neutral);
    json_describe(value, text, sizeof text);
    return is_among(text, neutral);
}

/* "null", "null or false", "null, 0 or 1": the neutral values, for messages. */
static void accepted_text(const char *neutral, char *text, size_t size)
{
    const char *all_full = "full_attention for every layer";
    int used = snprintf(text, size, "null");
    if (strcmp(neutral, "full") == 0)
        neutral = all_full;
    for (const char *at = neutral; *at;) {
        int length = (int)strcspn(at, "|");
        if (used >= 0 && (size_t)used < size)
            used += snprintf(text + used, size - (size_t)used, "%s%.*s", at[length] ? ", " : " or ",
                             length, at);
        at += length + (at[length] == '|');
    }
}

/* Does the root only repeat what its text_config says? Some files have the text model's keys in
 * both. */
static bool is_repeated(const struct hf_source *source, const struct json_reader *reader,
                        const char *name, const cJSON *value)
{
    const cJSON *text = source->text.object;
    return reader->object == source->root.object && text != source->root.object &&
           cJSON_Compare(value, cJSON_GetObjectItemCaseSensitive(text, name), true);
}

void hf_check_unread(const struct hf_source *source, const struct json_reader *reader)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys && hf_ok(source); i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(reader->object, keys[i].name);
        char got[64], accepted[160];
        if (!value || json_was_read(value) || is_neutral(value, keys[i].neutral) ||
            is_repeated(source, reader, keys[i].name, value))
            continue;
        json_describe(value, got, sizeof got);
        accepted_text(keys[i].neutral, accepted, sizeof accepted);
        json_fail(reader, keys[i].name,
                  "got %s, which is not known of %s: accepted %s; the keys of [model] describe "
                  "layers by type (docs/MODELS.md)",
                  got, source->model->architecture, accepted);
    }
}

/* ---- Models that are read by their keys alone ------------------------------------------------ */

/* Words in the names of keys about attention. */
static const char *const words[] = {
    "attn",      "attention", "window",        "head",     "kv_",      "_kv",        "chunk",
    "sparse",    "index",     "layer_type",    "mixer",    "ssm",      "mamba",      "linear",
    "conv",      "lora_rank", "sink",          "softcap",  "soft_cap", "alibi",      "cross",
    "direction", "causal",    "local",         "global",   "relative", "recurr",     "compress",
    "loop",      "block",     "position_bias", "landmark", "lsh",      "hybrid",     "swa_",
    "state",     "memory",    "nope",          "query",    "scale",    "multiplier", "encoder",
    "diffusion", "per_stack", "type_vocab"};

/* Keys with such a word that change neither shapes, masks nor scores. */
static const char *const harmless[] = {"_attn_implementation",
                                       "attn_implementation",
                                       "attention_bias",
                                       "attention_dropout",
                                       "attn_pdrop",
                                       "attn_dropout",
                                       "attention_probs_dropout_prob",
                                       "attention_softmax_in_fp32",
                                       "scale_attention_softmax_in_fp32",
                                       "q_lora_rank",
                                       "qk_head_dim",
                                       "mlp_layer_types",
                                       "mtp_layer_types",
                                       "mtp_mlp_layer_types",
                                       "num_local_experts",
                                       "decoder_sparse_step",
                                       "final_logit_softcapping",
                                       "moe_router_logit_softcapping",
                                       "embedding_multiplier",
                                       "residual_multiplier",
                                       "logits_scaling",
                                       "scale_embedding",
                                       "lm_head_bias",
                                       "chunk_size_feed_forward",
                                       "output_hidden_states",
                                       "use_cache",
                                       "partial_rotary_factor",
                                       "is_encoder_decoder",
                                       "state_dict",
                                       "head_type"};

static bool is_harmless(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(name, harmless[i]) == 0)
            return true;
    return (length > 9 && strcmp(name + length - 9, "_token_id") == 0) ||
           (length > 12 && strcmp(name + length - 12, "_token_index") == 0);
}

static bool sounds_like_attention(const char *name)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return !is_harmless(name);
    return false;
}

void hf_check_unknown(const struct hf_source *source, const struct json_reader *reader)
{
    const cJSON *value;
    cJSON_ArrayForEach(value, reader->object)
    {
        char got[64];
        bool inner = value == source->text.object;
        if (!hf_ok(source))
            return;
        if (inner || json_was_read(value) || !sounds_like_attention(value->string) ||
            is_neutral(value, "false|0|0.0|[]|{}|\"\"") ||
            is_repeated(source, reader, value->string, value))
            continue;
        json_describe(value, got, sizeof got);
        json_fail(reader, value->string,
                  "got %s: %s is not a known architecture (docs/MODELS.md), and this key may be "
                  "about its attention: accepted null; the keys of [model] describe attention too",
                  got, source->model->architecture);
    }
}
