# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, of the architectures that the tests run."""
import copy
import functools

import torch
import transformers
from transformers import AutoModelForCausalLM

SIZE = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
            pad_token_id=None, bos_token_id=None, eos_token_id=None)
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
MIXED = ["sliding_attention", "full_attention"] * 2

# name: (class of the config, what is special, what its layers have)
MODELS = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "phi3": ("Phi3Config", {}),
    "mistral": ("MistralConfig", dict(sliding_window=8)),
    "mixtral": ("MixtralConfig", {**MOE, "sliding_window": 8}),
    "gemma2": ("Gemma2Config", dict(sliding_window=8, attn_logit_softcapping=2.0,
                                    query_pre_attn_scalar=16, layer_types=MIXED)),
    "gemma3": ("Gemma3TextConfig", dict(sliding_window=8, query_pre_attn_scalar=16,
                                        layer_types=MIXED)),
    "gpt_oss": ("GptOssConfig", {**MOE, "sliding_window": 8, "layer_types": MIXED}),
    "cohere2": ("Cohere2Config", dict(sliding_window=8, layer_types=MIXED)),
    "deepseek_v3": ("DeepseekV3Config", dict(
        num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=32, first_k_dense_replace=2, kv_lora_rank=32, q_lora_rank=48,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24)),
}


def config(name):
    kind, special = MODELS[name]
    values = {**SIZE, **special}
    if name == "deepseek_v3":
        del values["head_dim"]
    return getattr(transformers, kind)(**values)


@functools.lru_cache(maxsize=4)
def weights(name):
    """The eager model in fp32, with attention that is peaked: what one key contributes shows."""
    torch.manual_seed(20)
    model = AutoModelForCausalLM.from_config(config(name), attn_implementation="eager")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
            if "sinks" in parameter_name:
                parameter.normal_(0, 1)
    return model.eval()


def make(name, implementation, dtype=torch.float32):
    """The same weights behind another implementation of attention."""
    origin = weights(name)
    made = AutoModelForCausalLM.from_config(copy.deepcopy(config(name)),
                                            attn_implementation=implementation)
    made.load_state_dict(origin.state_dict())
    return made.to(dtype).eval()
