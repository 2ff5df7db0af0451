/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.c: the tables of rules.h.
 *
 * The order follows SGLang's platform x model rules: FlashAttention 3 on Hopper, TensorRT-LLM's
 * kernels on data-centre Blackwell, FlashInfer elsewhere and Triton where FlashInfer lacks a
 * feature (sinks, chunks); encoder-decoder models prefer FlashInfer. A backend that is not
 * installed is passed over, so a rule may name more than there is.
 */
#include "host/rules.h"

#include <string.h>

#define ANY_SM 0, UINT32_MAX
#define BIT(n) (1u << (n))

#define SOFTMAX  BIT(ATTN_KIND_SOFTMAX)
#define MLA      BIT(ATTN_KIND_MLA)
#define LINEAR   BIT(ATTN_KIND_LINEAR)
#define SPARSE   BIT(ATTN_KIND_SPARSE)
#define ANY_KIND (SOFTMAX | MLA | LINEAR | SPARSE)

#define DECODER  BIT(ATTN_TYPE_DECODER)
#define ENCODER  BIT(ATTN_TYPE_ENCODER_ONLY)
#define CROSS    BIT(ATTN_TYPE_CROSS)
#define ANY_TYPE (DECODER | ENCODER | CROSS)

/* clang-format off */
static const struct rule rules[] = {
    {ATTN_DEVICE_CPU, ANY_SM, ANY_KIND, ANY_TYPE, 0, "cpu",
     {"cpu_native"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, LINEAR, DECODER, 0, "cuda, linear",
     {"linear", "triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 90, 109, SPARSE, DECODER, 0, "sm90 to sm109, sparse",
     {"dsa_like", "fa3_like", "flashinfer_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SPARSE, DECODER, 0, "cuda, sparse",
     {"dsa_like", "flashinfer_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 90, 90, MLA, DECODER, 0, "sm90, mla",
     {"fa3_like", "flashmla_like", "flashinfer_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 100, 109, MLA, DECODER, 0, "sm100 to sm109, mla",
     {"trtllm_mla_like", "flashinfer_like", "cutlass_mla_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, MLA, DECODER, 0, "cuda, mla",
     {"triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SOFTMAX, CROSS, 0, "cuda, cross attention",
     {"flashinfer_like", "fa3_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 90, 90, SOFTMAX, ENCODER, 0, "sm90, encoder",
     {"fa3_like", "triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SOFTMAX, ENCODER, 0, "cuda, encoder",
     {"triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 90, 90, SOFTMAX, DECODER, RULE_CHUNK, "sm90, chunked attention",
     {"fa3_like", "triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 90, 90, SOFTMAX, DECODER, 0, "sm90, softmax",
     {"fa3_like", "flashinfer_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 100, 109, SOFTMAX, DECODER, 0, "sm100 to sm109, softmax",
     {"trtllm_mha_like", "fa4_like", "flashinfer_like", "triton_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SOFTMAX, DECODER, RULE_SINKS, "cuda, sinks",
     {"triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SOFTMAX, DECODER, RULE_CHUNK, "cuda, chunked attention",
     {"triton_like", "flashinfer_like"}},
    {ATTN_DEVICE_CUDA, 75, UINT32_MAX, SOFTMAX, DECODER, 0, "cuda, softmax",
     {"flashinfer_like", "triton_like"}},
};
/* clang-format on */

static const struct {
    const char *alias;
    const char *type;
} aliases[] = {
    {"flashinfer", "flashinfer_like"},
    {"flashinfer_mla", "flashinfer_like"},
    {"fa3", "fa3_like"},
    {"fa4", "fa4_like"},
    {"triton", "triton_like"},
    {"torch_native", "cpu_native"},
    {"intel_amx", "cpu_native"},
    {"flex_attention", "flex_attention_like"},
    {"flashmla", "flashmla_like"},
    {"trtllm_mla", "trtllm_mla_like"},
    {"trtllm_mha", "trtllm_mha_like"},
    {"cutlass_mla", "cutlass_mla_like"},
    {"tokenspeed_mla", "tokenspeed_mla_like"},
    {"cutedsl_mla", "cutedsl_mla_like"},
    {"dsa", "dsa_like"},
    {"nsa", "dsa_like"},
    {"dsv4", "dsv4_like"},
    {"compressed", "dsv4_like"},
    {"hpc_ops", "hpc_ops_like"},
    {"dual_chunk_flash_attn", "dual_chunk_like"},
    {"aiter", "aiter_like"},
    {"wave", "wave_like"},
    {"intel_xpu", "intel_xpu_like"},
    {"ascend", "ascend_like"},
};

enum { NUM_RULES = sizeof rules / sizeof *rules, NUM_ALIASES = sizeof aliases / sizeof *aliases };

const struct rule *rule_find(const attn_device *device, const attn_layer_group *group)
{
    uint32_t has = (group->flags & ATTN_GROUP_HAS_SINKS ? (uint32_t)RULE_SINKS : 0u) |
                   (group->attention_chunk > 0 ? (uint32_t)RULE_CHUNK : 0u);
    for (size_t i = 0; i < NUM_RULES; i++) {
        const struct rule *rule = &rules[i];
        if (rule->device_type == device->type && device->sm >= rule->min_sm &&
            device->sm <= rule->max_sm && rule->kinds & BIT(group->kind) &&
            rule->attn_types & BIT(group->attn_type) && (has & rule->needs) == rule->needs)
            return rule;
    }
    return NULL;
}

const char *rule_alias(const char *name)
{
    for (size_t i = 0; i < NUM_ALIASES; i++)
        if (strcmp(aliases[i].alias, name) == 0)
            return aliases[i].type;
    return NULL;
}

const char *rule_alias_at(size_t index)
{
    return index < NUM_ALIASES ? aliases[index].alias : NULL;
}

int rule_knows(const char *name)
{
    for (size_t i = 0; i < NUM_ALIASES; i++)
        if (strcmp(aliases[i].type, name) == 0)
            return 1;
    for (size_t i = 0; i < NUM_RULES; i++)
        for (size_t n = 0; n < RULE_MAX_NAMES && rules[i].names[n]; n++)
            if (strcmp(rules[i].names[n], name) == 0)
                return 1;
    return strcmp(name, "hybrid_phase") == 0;
}
