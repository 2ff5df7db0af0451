/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_encoder.c: models with encoders: BERT and its kin, ModernBERT, Whisper.
 */
#include "host/model/hf.h"

/* ---- BERT, RoBERTa, DistilBERT --------------------------------------------------------------- */

/* An encoder; with is_decoder a decoder, and with add_cross_attention one that reads an encoder's
 * states as well. */
void hf_build_bert(struct hf_source *source)
{
    struct model_spec self, cross;
    int32_t num_layers = hf_num_layers(source);
    int32_t heads =
        hf_int(source, "num_attention_heads|n_heads", source->defaults->num_heads, MODEL_MAX_HEADS);
    int32_t head_dim = hf_split_heads(&source->text, "hidden_size|dim", heads);
    bool decoder = json_bool(&source->text, "is_decoder", false);
    bool crosses = json_bool(&source->text, "add_cross_attention", false);
    if (crosses && !decoder)
        json_fail(&source->text, "add_cross_attention",
                  "got true: accepted with is_decoder = true");
    if (json_bool(&source->text, "is_causal", decoder) != decoder)
        json_fail(&source->text, "is_causal", "accepted the value of is_decoder, %s",
                  decoder ? "true" : "false");
    model_spec_encoder(&self, heads, head_dim);
    if (decoder)
        model_spec_softmax(&self, heads, heads, head_dim, head_dim);
    model_spec_cross(&cross, heads, heads, head_dim, head_dim);
    source->model->max_encoder_len = !decoder  ? source->model->max_context_len
                                     : crosses ? MODEL_DEFAULT_ENCODER
                                               : 0;
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        hf_add(source, &self, decoder ? "decoder" : "encoder", i);
        if (crosses)
            hf_add(source, &cross, "cross", i);
    }
}

/* ---- ModernBERT: some layers are global, the others see a window to both sides --------------- */

/* As layer_types says; in older files every n-th layer is global. */
static bool modernbert_is_global(const struct hf_source *source, const cJSON *list, int32_t period,
                                 int32_t index)
{
    static const struct hf_layer_name names[] = {
        {"full_attention", 1}, {"sliding_attention", 0}, {NULL, 0}};
    return list ? hf_layer_type(source, "layer_types", list, index, names) == 1
                : index % period == 0;
}

void hf_build_modernbert(struct hf_source *source)
{
    struct model_spec global, local;
    const struct hf_defaults *defaults = source->defaults;
    int32_t num_layers = hf_num_layers(source);
    int32_t heads = hf_int(source, "num_attention_heads", defaults->num_heads, MODEL_MAX_HEADS);
    int32_t period =
        hf_int(source, "global_attn_every_n_layers", defaults->period, MODEL_MAX_LAYERS);
    int32_t window = hf_int(source, "local_attention", defaults->window, INT32_MAX);
    const cJSON *list = json_array(&source->text, "layer_types", num_layers);
    model_spec_encoder(&global, heads, hf_split_heads(&source->text, "hidden_size", heads));
    local = global;
    local.group.window_left = window / 2; /* local_attention counts both sides together */
    local.group.window_right = window / 2;
    source->model->max_encoder_len = source->model->max_context_len;
    if (json_bool(&source->text, "is_decoder", false) ||
        json_bool(&source->text, "is_causal", false))
        json_fail(&source->text, "is_causal", "got true: accepted false, it is an encoder");
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source, modernbert_is_global(source, list, period, i) ? &global : &local, "encoder",
               i);
}

/* ---- Whisper: an encoder, and a decoder with self and cross attention ---------------------- */

static int32_t whisper_heads(const struct hf_source *source, const char *key, int32_t *head_dim)
{
    int32_t heads = hf_int(source, key, 0, MODEL_MAX_HEADS);
    *head_dim = hf_split_heads(&source->text, "d_model", heads);
    return heads;
}

void hf_build_whisper(struct hf_source *source)
{
    struct model_spec self, cross, encoder;
    int32_t head_dim, encoder_head_dim;
    int32_t heads = whisper_heads(source, "decoder_attention_heads", &head_dim);
    int32_t encoder_heads = whisper_heads(source, "encoder_attention_heads", &encoder_head_dim);
    int32_t layers = hf_int(source, "decoder_layers", 0, MODEL_MAX_LAYERS);
    int32_t encoder_layers = hf_int(source, "encoder_layers", 0, MODEL_MAX_LAYERS);
    source->model->max_encoder_len =
        hf_int(source, "max_source_positions|max_position_embeddings", 1500, INT32_MAX);
    model_spec_softmax(&self, heads, heads, head_dim, head_dim);
    model_spec_cross(&cross, heads, heads, head_dim, head_dim);
    model_spec_encoder(&encoder, encoder_heads, encoder_head_dim);
    for (int32_t i = 0; hf_ok(source) && i < layers; i++) {
        hf_add(source, &self, "decoder", i);
        hf_add(source, &cross, "cross", i);
    }
    for (int32_t i = 0; hf_ok(source) && i < encoder_layers; i++)
        hf_add(source, &encoder, "encoder", i);
}

/* The keys of an encoder with a decoder, of which this is the decoder; it has no cross attention
 * unless the file asks for it, and that is refused as an unread key. */
void hf_build_decoder(struct hf_source *source)
{
    struct model_spec self;
    int32_t head_dim;
    int32_t heads = whisper_heads(source, "decoder_attention_heads", &head_dim);
    int32_t layers = hf_int(source, "decoder_layers", 0, MODEL_MAX_LAYERS);
    model_spec_softmax(&self, heads, heads, head_dim, head_dim);
    for (int32_t i = 0; hf_ok(source) && i < layers; i++)
        hf_add(source, &self, "decoder", i);
}
