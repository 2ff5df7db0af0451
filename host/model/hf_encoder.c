/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_encoder.c: models with encoders: BERT and its kin, ModernBERT, Whisper.
 */
#include "host/model/hf.h"

/* ---- BERT, RoBERTa, DistilBERT
 * -------------------------------------------------------------------- */

void hf_build_bert(struct hf_source *source)
{
    struct model_spec spec;
    int32_t num_layers = hf_num_layers(source);
    int32_t heads =
        hf_int(source, "num_attention_heads|n_heads", source->defaults->num_heads, MODEL_MAX_HEADS);
    int32_t head_dim = hf_split_heads(&source->text, "hidden_size|dim", heads);
    model_spec_encoder(&spec, heads, head_dim);
    source->model->max_encoder_len = source->model->max_context_len;
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source, &spec, "encoder", i);
}

/* ---- ModernBERT: every n-th layer is global, the others see a window to both sides
 * ------------------ */

void hf_build_modernbert(struct hf_source *source)
{
    struct model_spec global, local;
    const struct hf_defaults *defaults = source->defaults;
    int32_t num_layers = hf_num_layers(source);
    int32_t heads = hf_int(source, "num_attention_heads", defaults->num_heads, MODEL_MAX_HEADS);
    int32_t period =
        hf_int(source, "global_attn_every_n_layers", defaults->period, MODEL_MAX_LAYERS);
    int32_t window = hf_int(source, "local_attention", defaults->window, INT32_MAX);
    model_spec_encoder(&global, heads, hf_split_heads(&source->text, "hidden_size", heads));
    local = global;
    local.group.window_left = window / 2; /* local_attention counts both sides together */
    local.group.window_right = window / 2;
    source->model->max_encoder_len = source->model->max_context_len;
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source, i % period == 0 ? &global : &local, "encoder", i);
}

/* ---- Whisper: an encoder, and a decoder with self and cross attention
 * ------------------------------- */

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
    source->model->max_encoder_len = hf_int(source, "max_source_positions", 1500, INT32_MAX);
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
