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
/* Qwen3-MoE takes its heads from hidden_size. */
static const struct hf_defaults qwen3_moe = {.num_heads = 32,
                                             .num_kv_heads = 4,
                                             .window = 4096,
                                             .pattern = HF_UPPER_SLIDING,
                                             .max_positions = 32768};
static const struct hf_defaults qwen3_next = {.num_layers = 48,
                                              .num_heads = 16,
                                              .num_kv_heads = 2,
                                              .head_dim = 256,
                                              .pattern = HF_PERIOD_LINEAR,
                                              .period = 4,
                                              .max_positions = 32768};
static const struct hf_defaults qwen3_5 = {.num_layers = 32,
                                           .num_heads = 16,
                                           .num_kv_heads = 4,
                                           .head_dim = 256,
                                           .pattern = HF_PERIOD_LINEAR,
                                           .period = 4,
                                           .max_positions = 32768};
static const struct hf_defaults qwen3_5_moe = {.num_layers = 40,
                                               .num_heads = 16,
                                               .num_kv_heads = 2,
                                               .head_dim = 256,
                                               .pattern = HF_PERIOD_LINEAR,
                                               .period = 4,
                                               .max_positions = 32768};
static const struct hf_defaults gemma = {
    .num_layers = 28, .num_heads = 16, .num_kv_heads = 16, .head_dim = 256, .max_positions = 8192};
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
                                          .flags = HF_QUERY_SCALAR | HF_SOFTCAP | HF_BIDIRECTIONAL,
                                          .query_scalar = 256,
                                          .dtype = ATTN_BF16};
static const struct hf_defaults gemma3n = {.num_layers = 35,
                                           .num_heads = 8,
                                           .num_kv_heads = 2,
                                           .head_dim = 256,
                                           .window = 512,
                                           .pattern = HF_PERIOD_SLIDING,
                                           .period = 5,
                                           .max_positions = 32768,
                                           .flags = HF_UNIT_SCALE | HF_SHARED_KV | HF_NO_TOWER,
                                           .dtype = ATTN_BF16};
static const struct hf_defaults gemma4 = {.num_layers = 30,
                                          .num_heads = 8,
                                          .num_kv_heads = 4,
                                          .head_dim = 256,
                                          .window = 512,
                                          .pattern = HF_PERIOD_SLIDING,
                                          .period = 6,
                                          .max_positions = 131072,
                                          .flags = HF_UNIT_SCALE | HF_SHARED_KV | HF_BIDIRECTIONAL |
                                                   HF_LAYER_HEADS | HF_LAST_FULL,
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
static const struct hf_defaults phi3 = {
    .num_layers = 32, .num_heads = 32, .pattern = HF_ALL_SLIDING, .max_positions = 4096};
static const struct hf_defaults phimoe = {.num_layers = 32,
                                          .num_heads = 32,
                                          .num_kv_heads = 8,
                                          .pattern = HF_ALL_SLIDING,
                                          .max_positions = 131072};
static const struct hf_defaults phi = {.num_layers = 24, .num_heads = 32, .max_positions = 2048};
static const struct hf_defaults olmoe = {.num_layers = 16, .num_heads = 16, .max_positions = 4096};
static const struct hf_defaults olmo3 = {.num_layers = 32,
                                         .num_heads = 32,
                                         .window = 4096,
                                         .pattern = HF_PERIOD_SLIDING,
                                         .period = 4,
                                         .max_positions = 2048};
static const struct hf_defaults olmo_hybrid = {.num_layers = 32,
                                               .num_heads = 30,
                                               .pattern = HF_PERIOD_LINEAR,
                                               .period = 4,
                                               .max_positions = 65536,
                                               .flags = HF_GATES_GIVEN};
/* Llama's own defaults, which other families took over. */
static const struct hf_defaults as_llama = {
    .num_layers = 32, .num_heads = 32, .max_positions = 2048};
static const struct hf_defaults granite = {
    .num_layers = 32, .num_heads = 32, .max_positions = 2048, .flags = HF_MULTIPLIER};
static const struct hf_defaults cohere = {.num_layers = 40, .num_heads = 64, .max_positions = 8192};
static const struct hf_defaults cohere2 = {.num_layers = 40,
                                           .num_heads = 64,
                                           .window = 4096,
                                           .pattern = HF_PERIOD_SLIDING,
                                           .period = 4,
                                           .max_positions = 8192};
static const struct hf_defaults glm = {
    .num_layers = 40, .num_heads = 32, .num_kv_heads = 2, .head_dim = 128, .max_positions = 131072};
static const struct hf_defaults glm4_moe = {
    .num_layers = 46, .num_heads = 96, .num_kv_heads = 8, .max_positions = 131072};
static const struct hf_defaults starcoder2 = {.num_layers = 30,
                                              .num_heads = 24,
                                              .num_kv_heads = 2,
                                              .pattern = HF_ALL_SLIDING,
                                              .max_positions = 4096};
static const struct hf_defaults smollm3 = {.num_layers = 36,
                                           .num_heads = 16,
                                           .num_kv_heads = 4,
                                           .pattern = HF_LISTED_SLIDING,
                                           .max_positions = 32768};
static const struct hf_defaults ernie4_5 = {
    .num_layers = 18, .num_heads = 16, .num_kv_heads = 2, .head_dim = 128, .max_positions = 131072};
static const struct hf_defaults ernie4_5_moe = {
    .num_layers = 28, .num_heads = 20, .num_kv_heads = 4, .max_positions = 131072};
static const struct hf_defaults nemotron = {
    .num_layers = 32, .num_heads = 48, .max_positions = 4096};
static const struct hf_defaults exaone4 = {.num_layers = 32,
                                           .num_heads = 32,
                                           .num_kv_heads = 32,
                                           .window = 4096,
                                           .pattern = HF_PERIOD_SLIDING,
                                           .period = 4,
                                           .max_positions = 2048};
static const struct hf_defaults stablelm = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 32, .max_positions = 4096};
static const struct hf_defaults apertus = {
    .num_layers = 32, .num_heads = 32, .max_positions = 65536};
static const struct hf_defaults seed_oss = {
    .num_layers = 64, .num_heads = 80, .num_kv_heads = 8, .head_dim = 128, .max_positions = 524288};
static const struct hf_defaults bloom = {.num_layers = 2, .num_heads = 8, .flags = HF_ALIBI};
static const struct hf_defaults kimi_linear = {.flags = HF_LISTED_LINEAR};
static const struct hf_defaults sparse_mla = {.flags = HF_SPARSE_INDEX, .index_heads = 64};
static const struct hf_defaults glm_dsa = {.flags = HF_SPARSE_INDEX, .index_heads = 32};
static const struct hf_defaults falcon_h1 = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .max_positions = 8192};
static const struct hf_defaults bamba = {
    .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .max_positions = 262144};
static const struct hf_defaults zamba2 = {.num_layers = 54, .max_positions = 4096};
static const struct hf_defaults recurrent_gemma = {.num_layers = 26, .num_heads = 10};
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

/* Families that were read off their configuration classes in Transformers 5.24. */
static const struct hf_defaults afmoe = {.num_layers = 32,
                                         .num_heads = 16,
                                         .head_dim = 128,
                                         .window = 1024,
                                         .pattern = HF_PERIOD_SLIDING,
                                         .period = 4,
                                         .max_positions = 16384};
static const struct hf_defaults ministral = {
    .num_heads = 32, .num_kv_heads = 8, .window = 4096, .pattern = HF_ALL_SLIDING};
static const struct hf_defaults laguna = {.num_layers = 40,
                                          .num_heads = 48,
                                          .num_kv_heads = 8,
                                          .head_dim = 128,
                                          .max_positions = 131072,
                                          .flags = HF_HEADS_LISTED};
static const struct hf_defaults granite_swa = {
    .num_layers = 24, .num_heads = 20, .flags = HF_MULTIPLIER | HF_SINKS | HF_FLOOR_DIM};
static const struct hf_defaults granite_moe_swa = {
    .num_layers = 32, .num_heads = 32, .flags = HF_MULTIPLIER | HF_SINKS | HF_FLOOR_DIM};
static const struct hf_defaults vaultgemma = {.num_layers = 26,
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
static const struct hf_defaults minimax_m2 = {
    .num_layers = 62, .num_heads = 48, .num_kv_heads = 8, .head_dim = 128, .max_positions = 196608};
static const struct hf_defaults hy_v3 = {
    .num_layers = 80, .num_heads = 64, .num_kv_heads = 8, .head_dim = 128, .max_positions = 131072};
static const struct hf_defaults solar_open = {
    .num_layers = 48, .num_heads = 64, .num_kv_heads = 8, .head_dim = 128, .max_positions = 131072};
static const struct hf_defaults gpt2 = {.num_layers = 12, .num_heads = 12, .max_positions = 1024};
static const struct hf_defaults opt = {.num_layers = 12, .num_heads = 12, .max_positions = 2048};
static const struct hf_defaults gpt_neox = {
    .num_layers = 44, .num_heads = 64, .max_positions = 2048};
static const struct hf_defaults gptj = {.num_layers = 28, .num_heads = 16, .max_positions = 2048};
static const struct hf_defaults falcon = {.num_layers = 32,
                                          .num_heads = 71,
                                          .max_positions = 2048,
                                          .flags = HF_MULTI_QUERY | HF_SAYS_ALIBI};
static const struct hf_defaults gpt_bigcode = {
    .num_layers = 12, .num_heads = 12, .max_positions = 1024, .flags = HF_MULTI_QUERY};
static const struct hf_defaults persimmon = {
    .num_layers = 36, .num_heads = 64, .max_positions = 16384};
static const struct hf_defaults glm4v = {
    .num_layers = 40, .num_heads = 32, .num_kv_heads = 2, .max_positions = 32768};
static const struct hf_defaults hyperclovax = {
    .num_layers = 32, .num_heads = 32, .max_positions = 2048, .flags = HF_ROOT_SCALE};
static const struct hf_defaults flint = {.num_layers = 49,
                                         .num_heads = 32,
                                         .num_kv_heads = 4,
                                         .head_dim = 128,
                                         .max_positions = 262144,
                                         .flags = HF_SINKS};
static const struct hf_defaults gemma4_unified = {.num_layers = 30,
                                                  .num_heads = 8,
                                                  .num_kv_heads = 4,
                                                  .head_dim = 256,
                                                  .window = 1024,
                                                  .pattern = HF_PERIOD_SLIDING,
                                                  .period = 6,
                                                  .max_positions = 262144,
                                                  .flags = HF_UNIT_SCALE | HF_SHARED_KV |
                                                           HF_BIDIRECTIONAL | HF_LAYER_HEADS |
                                                           HF_LAST_FULL | HF_NO_TOWER};
static const struct hf_defaults muse_glimmer = {.num_layers = 52,
                                                .num_heads = 32,
                                                .num_kv_heads = 2,
                                                .head_dim = 128,
                                                .window = 2048,
                                                .pattern = HF_PERIOD_SLIDING,
                                                .period = 4,
                                                .max_positions = 131072,
                                                .flags = HF_FROM_THE_END | HF_NO_TOWER};
static const struct hf_defaults muse_spark = {.num_layers = 62,
                                              .num_heads = 128,
                                              .num_kv_heads = 16,
                                              .head_dim = 64,
                                              .window = 2048,
                                              .pattern = HF_PERIOD_SLIDING,
                                              .period = 4,
                                              .max_positions = 1048576,
                                              .flags = HF_FROM_THE_END | HF_NO_TOWER};
static const struct hf_defaults step3p7 = {.num_layers = 45,
                                           .num_heads = 64,
                                           .num_kv_heads = 8,
                                           .head_dim = 128,
                                           .max_positions = 128000,
                                           .flags = HF_QUERY_SCALAR | HF_SLIDING_HEADS};
static const struct hf_defaults dbrx = {.num_layers = 24,
                                        .num_heads = 16,
                                        .num_kv_heads = 1,
                                        .max_positions = 2048,
                                        .flags = HF_ATTN_CONFIG};
static const struct hf_defaults mpt = {
    .num_layers = 24, .num_heads = 16, .max_positions = 2048, .flags = HF_ATTN_CONFIG | HF_ALIBI};
static const struct hf_defaults longcat = {.max_positions = 131072, .flags = HF_TWO_IN_ONE};
static const struct hf_defaults seq2seq = {.max_positions = 1024};

const struct hf_architecture hf_architectures[] = {
    {"LlamaForCausalLM", hf_build_dense, &plain},
    {"OlmoForCausalLM", hf_build_dense, &as_llama},
    {"Olmo2ForCausalLM", hf_build_dense, &plain},
    {"Olmo3ForCausalLM", hf_build_dense, &olmo3},
    {"OlmoeForCausalLM", hf_build_dense, &olmoe},
    {"OlmoHybridForCausalLM", hf_build_dense, &olmo_hybrid},
    {"MistralForCausalLM", hf_build_dense, &mistral},
    {"MixtralForCausalLM", hf_build_dense, &mixtral},
    {"Mistral3ForConditionalGeneration", hf_build_dense, &mistral},
    {"Qwen2ForCausalLM", hf_build_dense, &qwen},
    {"Qwen2MoeForCausalLM", hf_build_dense, &qwen},
    {"Qwen2VLForConditionalGeneration", hf_build_dense, &qwen},
    {"Qwen2_5_VLForConditionalGeneration", hf_build_dense, &qwen},
    {"Qwen3ForCausalLM", hf_build_dense, &qwen3},
    {"Qwen3MoeForCausalLM", hf_build_dense, &qwen3_moe},
    {"Qwen3VLForConditionalGeneration", hf_build_dense, &qwen3},
    {"Qwen3VLMoeForConditionalGeneration", hf_build_dense, &qwen3_moe},
    {"Qwen3NextForCausalLM", hf_build_dense, &qwen3_next},
    {"Qwen3_5ForCausalLM", hf_build_dense, &qwen3_5},
    {"Qwen3_5ForConditionalGeneration", hf_build_dense, &qwen3_5},
    {"Qwen3_5MoeForCausalLM", hf_build_dense, &qwen3_5_moe},
    {"Qwen3_5MoeForConditionalGeneration", hf_build_dense, &qwen3_5_moe},
    {"GemmaForCausalLM", hf_build_dense, &gemma},
    {"Gemma2ForCausalLM", hf_build_dense, &gemma2},
    {"Gemma3ForCausalLM", hf_build_dense, &gemma3},
    {"Gemma3TextModel", hf_build_dense, &gemma3},
    {"Gemma3ForConditionalGeneration", hf_build_dense, &gemma3},
    {"Gemma3nForCausalLM", hf_build_dense, &gemma3n},
    {"Gemma3nForConditionalGeneration", hf_build_dense, &gemma3n},
    {"Gemma4ForCausalLM", hf_build_dense, &gemma4},
    {"Gemma4ForConditionalGeneration", hf_build_dense, &gemma4},
    {"GptOssForCausalLM", hf_build_dense, &gpt_oss},
    {"Llama4ForCausalLM", hf_build_dense, &llama4},
    {"Llama4ForConditionalGeneration", hf_build_dense, &llama4},
    {"PhiForCausalLM", hf_build_dense, &phi},
    {"Phi3ForCausalLM", hf_build_dense, &phi3},
    {"PhimoeForCausalLM", hf_build_dense, &phimoe},
    {"PhiMoEForCausalLM", hf_build_dense, &phimoe},
    {"GraniteForCausalLM", hf_build_dense, &granite},
    {"GraniteMoeForCausalLM", hf_build_dense, &granite},
    {"GraniteMoeSharedForCausalLM", hf_build_dense, &granite},
    {"GraniteMoeHybridForCausalLM", hf_build_granite_hybrid, &as_llama},
    {"CohereForCausalLM", hf_build_dense, &cohere},
    {"Cohere2ForCausalLM", hf_build_dense, &cohere2},
    {"GlmForCausalLM", hf_build_dense, &glm},
    {"Glm4ForCausalLM", hf_build_dense, &glm},
    {"Glm4MoeForCausalLM", hf_build_dense, &glm4_moe},
    {"Starcoder2ForCausalLM", hf_build_dense, &starcoder2},
    {"SmolLM3ForCausalLM", hf_build_dense, &smollm3},
    {"Ernie4_5ForCausalLM", hf_build_dense, &ernie4_5},
    {"Ernie4_5_MoeForCausalLM", hf_build_dense, &ernie4_5_moe},
    {"HunYuanDenseV1ForCausalLM", hf_build_dense, &as_llama},
    {"HunYuanMoEV1ForCausalLM", hf_build_dense, &as_llama},
    {"NemotronForCausalLM", hf_build_dense, &nemotron},
    {"Exaone4ForCausalLM", hf_build_dense, &exaone4},
    {"ExaoneMoeForCausalLM", hf_build_dense, &exaone4},
    {"StableLmForCausalLM", hf_build_dense, &stablelm},
    {"ArceeForCausalLM", hf_build_dense, &stablelm},
    {"ApertusForCausalLM", hf_build_dense, &apertus},
    {"SeedOssForCausalLM", hf_build_dense, &seed_oss},
    {"BloomForCausalLM", hf_build_dense, &bloom},
    {"AfmoeForCausalLM", hf_build_dense, &afmoe},
    {"MinistralForCausalLM", hf_build_dense, &ministral},
    {"Ministral3ForCausalLM", hf_build_dense, &ministral},
    {"FlintForCausalLM", hf_build_dense, &flint},
    {"LagunaForCausalLM", hf_build_dense, &laguna},
    {"GraniteSWAForCausalLM", hf_build_dense, &granite_swa},
    {"GraniteMoeSWAForCausalLM", hf_build_dense, &granite_moe_swa},
    {"VaultGemmaForCausalLM", hf_build_dense, &vaultgemma},
    {"MiniMaxM2ForCausalLM", hf_build_dense, &minimax_m2},
    {"HYV3ForCausalLM", hf_build_dense, &hy_v3},
    {"SolarOpenForCausalLM", hf_build_dense, &solar_open},
    {"Cohere2MoeForCausalLM", hf_build_dense, &cohere2},
    {"GPT2LMHeadModel", hf_build_dense, &gpt2},
    {"OpenAIGPTLMHeadModel", hf_build_dense, &gpt2},
    {"OPTForCausalLM", hf_build_dense, &opt},
    {"GPTNeoXForCausalLM", hf_build_dense, &gpt_neox},
    {"GPTJForCausalLM", hf_build_dense, &gptj},
    {"CodeGenForCausalLM", hf_build_dense, &gptj},
    {"FalconForCausalLM", hf_build_dense, &falcon},
    {"GPTBigCodeForCausalLM", hf_build_dense, &gpt_bigcode},
    {"PersimmonForCausalLM", hf_build_dense, &persimmon},
    {"Glm4vForConditionalGeneration", hf_build_dense, &glm4v},
    {"Glm46VForConditionalGeneration", hf_build_dense, &glm4v},
    {"HyperCLOVAXForCausalLM", hf_build_dense, &hyperclovax},
    {"CwmForCausalLM", hf_build_dense, &plain},
    {"MellumForCausalLM", hf_build_dense, &plain},
    {"FlexOlmoForCausalLM", hf_build_dense, &plain},
    {"Jais2ForCausalLM", hf_build_dense, &plain},
    {"BitNetForCausalLM", hf_build_dense, &plain},
    {"HeliumForCausalLM", hf_build_dense, &plain},
    {"BioGptForCausalLM", hf_build_dense, &plain},
    {"NanoChatForCausalLM", hf_build_dense, &plain},
    {"Dots1ForCausalLM", hf_build_dense, &plain},
    {"AriaTextForCausalLM", hf_build_dense, &plain},
    {"Apertus1p5TextForCausalLM", hf_build_dense, &plain},
    {"ChameleonForConditionalGeneration", hf_build_dense, &plain},
    {"Gemma4UnifiedForCausalLM", hf_build_dense, &gemma4_unified},
    {"Gemma4UnifiedForConditionalGeneration", hf_build_dense, &gemma4_unified},
    {"MuseGlimmerForConditionalGeneration", hf_build_dense, &muse_glimmer},
    {"MuseSparkForConditionalGeneration", hf_build_dense, &muse_spark},
    {"Step3p7ForConditionalGeneration", hf_build_dense, &step3p7},
    {"DbrxForCausalLM", hf_build_dense, &dbrx},
    {"MptForCausalLM", hf_build_dense, &mpt},
    {"LongcatFlashForCausalLM", hf_build_mla, &longcat},
    {"Glm4MoeLiteForCausalLM", hf_build_mla, &plain},
    {"Mistral4ForCausalLM", hf_build_mla, &plain},
    {"YoutuForCausalLM", hf_build_mla, &plain},
    {"MiniCPM3ForCausalLM", hf_build_mla, &plain},
    {"AXK1ForCausalLM", hf_build_mla, &plain},
    {"DeepseekV2ForCausalLM", hf_build_mla, &plain},
    {"DeepseekV3ForCausalLM", hf_build_mla, &plain},
    {"DeepseekV32ForCausalLM", hf_build_mla, &sparse_mla},
    {"GlmMoeDsaForCausalLM", hf_build_mla, &glm_dsa},
    {"KimiLinearForCausalLM", hf_build_mla, &kimi_linear},
    {"KimiVLForConditionalGeneration", hf_build_mla, &plain},
    {"KimiK25ForConditionalGeneration", hf_build_mla, &plain},
    {"Kimi_K25ForConditionalGeneration", hf_build_mla, &plain},
    {"FalconH1ForCausalLM", hf_build_falcon_h1, &falcon_h1},
    {"BambaForCausalLM", hf_build_bamba, &bamba},
    {"Zamba2ForCausalLM", hf_build_zamba2, &zamba2},
    {"NemotronHForCausalLM", hf_build_nemotron_h, &nemotron_h},
    {"Mamba2ForCausalLM", hf_build_mamba2, &plain},
    {"JambaForCausalLM", hf_build_jamba, &bamba},
    {"RecurrentGemmaForCausalLM", hf_build_recurrent_gemma, &recurrent_gemma},
    {"MiniMaxText01ForCausalLM", hf_build_minimax, &minimax},
    {"MiniMaxM1ForCausalLM", hf_build_minimax, &minimax},
    {"MiniMaxForCausalLM", hf_build_minimax, &minimax},
    {"Lfm2ForCausalLM", hf_build_lfm2, &lfm2},
    {"Lfm2MoeForCausalLM", hf_build_lfm2, &lfm2},
    {"BertModel", hf_build_bert, &bert},
    {"BertForMaskedLM", hf_build_bert, &bert},
    {"BertForSequenceClassification", hf_build_bert, &bert},
    {"BertLMHeadModel", hf_build_bert, &bert},
    {"RobertaModel", hf_build_bert, &roberta},
    {"RobertaForMaskedLM", hf_build_bert, &roberta},
    {"XLMRobertaModel", hf_build_bert, &roberta},
    {"XLMRobertaForSequenceClassification", hf_build_bert, &roberta},
    {"DistilBertModel", hf_build_bert, &distilbert},
    {"CamembertModel", hf_build_bert, &roberta},
    {"Data2VecTextModel", hf_build_bert, &roberta},
    {"XLMRobertaXLModel", hf_build_bert, &roberta},
    {"XmodModel", hf_build_bert, &roberta},
    {"RobertaPreLayerNormModel", hf_build_bert, &roberta},
    {"ElectraModel", hf_build_bert, &bert},
    {"ErnieModel", hf_build_bert, &bert},
    {"MegatronBertModel", hf_build_bert, &bert},
    {"RoCBertModel", hf_build_bert, &bert},
    {"RemBertModel", hf_build_bert, &bert},
    {"AlbertModel", hf_build_bert, &bert},
    {"RoFormerModel", hf_build_bert, &bert},
    {"LayoutLMModel", hf_build_bert, &bert},
    {"BartForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"BartForCausalLM", hf_build_decoder, &seq2seq},
    {"BlenderbotForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"BlenderbotForCausalLM", hf_build_decoder, &seq2seq},
    {"BlenderbotSmallForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"BlenderbotSmallForCausalLM", hf_build_decoder, &seq2seq},
    {"MarianForCausalLM", hf_build_decoder, &seq2seq},
    {"MBartForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"MBartForCausalLM", hf_build_decoder, &seq2seq},
    {"MvpForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"MvpForCausalLM", hf_build_decoder, &seq2seq},
    {"PegasusForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"PegasusForCausalLM", hf_build_decoder, &seq2seq},
    {"PLBartForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"PLBartForCausalLM", hf_build_decoder, &seq2seq},
    {"MarianMTModel", hf_build_whisper, &seq2seq},
    {"M2M100ForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"NllbMoeForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"Speech2TextForConditionalGeneration", hf_build_whisper, &seq2seq},
    {"TrOCRForCausalLM", hf_build_decoder, &seq2seq},
    {"ModernBertModel", hf_build_modernbert, &modernbert},
    {"ModernBertForMaskedLM", hf_build_modernbert, &modernbert},
    {"WhisperForConditionalGeneration", hf_build_whisper, &whisper},
};
const size_t hf_num_architectures = sizeof hf_architectures / sizeof *hf_architectures;

/* "model_type" of a text_config, and the architecture that reads it. */
const struct hf_text_type hf_text_types[] = {
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"},
    {"ministral3", "Ministral3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"},
    {"qwen3_omni_moe_text", "Qwen3MoeForCausalLM"},
    {"qwen3_vl_text", "Qwen3VLForConditionalGeneration"},
    {"qwen2_5_omni_text", "Qwen2ForCausalLM"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
    {"cohere", "CohereForCausalLM"},
    {"cohere2", "Cohere2ForCausalLM"},
    {"gemma", "GemmaForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"gemma3_text", "Gemma3ForCausalLM"},
    {"granite", "GraniteForCausalLM"},
    {"granite4_vision_text", "GraniteForCausalLM"},
    {"granite_docling_text", "GraniteForCausalLM"},
    {"opt", "OPTForCausalLM"},
    {"persimmon", "PersimmonForCausalLM"},
    {"exaone4", "Exaone4ForCausalLM"},
    {"hyperclovax", "HyperCLOVAXForCausalLM"},
    {"lfm2", "Lfm2ForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},
    {"nemotron_h", "NemotronHForCausalLM"},
    {"glm4v_text", "Glm4vForConditionalGeneration"},
    {"aria_text", "AriaTextForCausalLM"},
    {"apertus1p5_text", "Apertus1p5TextForCausalLM"},
};
const size_t hf_num_text_types = sizeof hf_text_types / sizeof *hf_text_types;

static const char position_bias[] =
    "it adds a learned distance bias to its scores, which the ABI can pass only as a private "
    "operand of one backend (docs/ABI.md, PRIV-02)";
static const char other_recurrence[] =
    "it has no attention, and the ABI does not describe its recurrence; accepted: gdn, mamba2, "
    "kda, lightning, short_conv";

static const char guest[] =
    "its layers have no keys of their own; they read another model's caches";
static const char two_maps[] = "its output is the difference of two attention maps";

const struct hf_beyond hf_beyond[] = {
    {"DiffLlamaForCausalLM", two_maps},
    {"Gemma4AssistantForCausalLM", guest},
    {"Gemma4UnifiedAssistantForCausalLM", guest},
    {"T5ForConditionalGeneration", position_bias},
    {"T5EncoderModel", position_bias},
    {"MT5ForConditionalGeneration", position_bias},
    {"UMT5ForConditionalGeneration", position_bias},
    {"MambaForCausalLM", other_recurrence},
    {"FalconMambaForCausalLM", other_recurrence},
    {"RwkvForCausalLM", other_recurrence},
    {"xLSTMForCausalLM", other_recurrence},
};
const size_t hf_num_beyond = sizeof hf_beyond / sizeof *hf_beyond;
