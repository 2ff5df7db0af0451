/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_table.c: the architectures that are known, as data.
 *
 * Names are those of "architectures" in config.json; defaults are those of the configuration class
 * of the same family in Transformers, for files that leave fields out (Gemma 3 does).
 */
#include "host/model/hf.h"

static const struct hf_defaults plain = {0};
static const struct hf_defaults mistral = {
    .num_kv_heads = 8, .window = 4096, .pattern = HF_ALL_SLIDING, .max_positions = 131072};
static const struct hf_defaults mixtral = {
    .num_kv_heads = 8, .pattern = HF_ALL_SLIDING, .max_positions = 131072};
static const struct hf_defaults qwen = {
    .window = 4096, .pattern = HF_UPPER_SLIDING, .max_positions = 32768};
static const struct hf_defaults qwen3 = {
    .head_dim = 128, .window = 4096, .pattern = HF_UPPER_SLIDING, .max_positions = 32768};
static const struct hf_defaults qwen3_next = {.num_layers = 48,
                                              .num_heads = 16,
                                              .num_kv_heads = 2,
                                              .head_dim = 256,
                                              .pattern = HF_PERIOD_LINEAR,
                                              .period = 4,
                                              .max_positions = 32768};
static const struct hf_defaults gemma2 = {.num_layers = 26,
                                          .num_heads = 8,
                                          .num_kv_heads = 4,
                                          .head_dim = 256,
                                          .window = 4096,
                                          .pattern = HF_PERIOD_SLIDING,
                                          .period = 2,
                                          .max_positions = 8192,
                                          .flags = HF_QUERY_SCALAR | HF_SOFTCAP,
                                          .query_scalar = 256,
                                          .softcap = 50};
static const struct hf_defaults gemma3 = {.num_layers = 26,
                                          .num_heads = 8,
                                          .num_kv_heads = 4,
                                          .head_dim = 256,
                                          .window = 4096,
                                          .pattern = HF_PERIOD_SLIDING,
                                          .period = 6,
                                          .max_positions = 131072,
                                          .flags = HF_QUERY_SCALAR | HF_SOFTCAP,
                                          .query_scalar = 256,
                                          .dtype = ATTN_BF16};
static const struct hf_defaults gpt_oss = {.num_layers = 36,
                                           .num_heads = 64,
                                           .num_kv_heads = 8,
                                           .head_dim = 64,
                                           .window = 128,
                                           .pattern = HF_PERIOD_SLIDING,
                                           .period = 2,
                                           .max_positions = 131072,
                                           .flags = HF_SINKS,
                                           .dtype = ATTN_BF16};
static const struct hf_defaults llama4 = {.num_layers = 48,
                                          .num_heads = 40,
                                          .num_kv_heads = 8,
                                          .head_dim = 128,
                                          .pattern = HF_PERIOD_CHUNKED,
                                          .period = 4,
                                          .max_positions = 131072,
                                          .dtype = ATTN_BF16};
static const struct hf_defaults sparse_mla = {.flags = HF_SPARSE_INDEX};
static const struct hf_defaults falcon_h1 = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .max_positions = 8192};
static const struct hf_defaults nemotron_h = {
    .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .max_positions = 4096};
static const struct hf_defaults minimax = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .max_positions = 131072};
static const struct hf_defaults lfm2 = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .max_positions = 128000};
static const struct hf_defaults bert = {.num_layers = 12, .num_heads = 12, .max_positions = 512};
static const struct hf_defaults roberta = {
    .num_layers = 12, .num_heads = 12, .max_positions = 512, .flags = HF_PADDED_POSITIONS};
static const struct hf_defaults distilbert = {
    .num_layers = 6, .num_heads = 12, .max_positions = 512};
static const struct hf_defaults modernbert = {
    .num_layers = 22, .num_heads = 12, .max_positions = 8192, .window = 128, .period = 3};
static const struct hf_defaults whisper = {.max_positions = 448};

const struct hf_architecture hf_architectures[] = {
    {"LlamaForCausalLM", hf_build_dense, &plain},
    {"Olmo2ForCausalLM", hf_build_dense, &plain},
    {"MistralForCausalLM", hf_build_dense, &mistral},
    {"MixtralForCausalLM", hf_build_dense, &mixtral},
    {"Mistral3ForConditionalGeneration", hf_build_dense, &mistral},
    {"Qwen2ForCausalLM", hf_build_dense, &qwen},
    {"Qwen2MoeForCausalLM", hf_build_dense, &qwen},
    {"Qwen2VLForConditionalGeneration", hf_build_dense, &qwen},
    {"Qwen2_5_VLForConditionalGeneration", hf_build_dense, &qwen},
    {"Qwen3ForCausalLM", hf_build_dense, &qwen3},
    {"Qwen3MoeForCausalLM", hf_build_dense, &qwen3},
    {"Qwen3VLForConditionalGeneration", hf_build_dense, &qwen3},
    {"Qwen3VLMoeForConditionalGeneration", hf_build_dense, &qwen3},
    {"Qwen3NextForCausalLM", hf_build_dense, &qwen3_next},
    {"Gemma2ForCausalLM", hf_build_dense, &gemma2},
    {"Gemma3ForCausalLM", hf_build_dense, &gemma3},
    {"Gemma3ForConditionalGeneration", hf_build_dense, &gemma3},
    {"GptOssForCausalLM", hf_build_dense, &gpt_oss},
    {"Llama4ForCausalLM", hf_build_dense, &llama4},
    {"Llama4ForConditionalGeneration", hf_build_dense, &llama4},
    {"DeepseekV2ForCausalLM", hf_build_mla, &plain},
    {"DeepseekV3ForCausalLM", hf_build_mla, &plain},
    {"DeepseekV32ForCausalLM", hf_build_mla, &sparse_mla},
    {"KimiLinearForCausalLM", hf_build_mla, &plain},
    {"KimiVLForConditionalGeneration", hf_build_mla, &plain},
    {"KimiK25ForConditionalGeneration", hf_build_mla, &plain},
    {"Kimi_K25ForConditionalGeneration", hf_build_mla, &plain},
    {"FalconH1ForCausalLM", hf_build_falcon_h1, &falcon_h1},
    {"NemotronHForCausalLM", hf_build_nemotron_h, &nemotron_h},
    {"Mamba2ForCausalLM", hf_build_mamba2, &plain},
    {"MiniMaxText01ForCausalLM", hf_build_minimax, &minimax},
    {"MiniMaxM1ForCausalLM", hf_build_minimax, &minimax},
    {"MiniMaxForCausalLM", hf_build_minimax, &minimax},
    {"Lfm2ForCausalLM", hf_build_lfm2, &lfm2},
    {"Lfm2MoeForCausalLM", hf_build_lfm2, &lfm2},
    {"BertModel", hf_build_bert, &bert},
    {"BertForMaskedLM", hf_build_bert, &bert},
    {"BertForSequenceClassification", hf_build_bert, &bert},
    {"RobertaModel", hf_build_bert, &roberta},
    {"RobertaForMaskedLM", hf_build_bert, &roberta},
    {"XLMRobertaModel", hf_build_bert, &roberta},
    {"XLMRobertaForSequenceClassification", hf_build_bert, &roberta},
    {"DistilBertModel", hf_build_bert, &distilbert},
    {"ModernBertModel", hf_build_modernbert, &modernbert},
    {"ModernBertForMaskedLM", hf_build_modernbert, &modernbert},
    {"WhisperForConditionalGeneration", hf_build_whisper, &whisper},
};
const size_t hf_num_architectures = sizeof hf_architectures / sizeof *hf_architectures;
