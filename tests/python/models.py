# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, of the architectures that the tests run."""
import copy
import functools

import torch
import transformers
from transformers import AutoModelForCausalLM

SIZE = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
            pad_token_id=None, bos_token_id=None, eos_token_id=None)
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
MIXED = ["sliding_attention", "full_attention"]

LATENT = dict(num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
              moe_intermediate_size=32, first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=48,
              qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, head_dim=None)
INDEXED = {**LATENT, "index_topk": 12, "index_n_heads": 16, "index_head_dim": 16}

# name: (class of the config, what is special, what its layers have)
MODELS = {
    "llama": ("LlamaConfig", dict(num_hidden_layers=4)),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "phi3": ("Phi3Config", {}),
    "mistral": ("MistralConfig", dict(sliding_window=8)),
    "mixtral": ("MixtralConfig", {**MOE, "sliding_window": 8}),
    "gemma2": ("Gemma2Config", dict(sliding_window=8, attn_logit_softcapping=2.0, num_hidden_layers=4,
                                    query_pre_attn_scalar=16, layer_types=MIXED * 2)),
    "gemma3": ("Gemma3TextConfig", dict(sliding_window=8, query_pre_attn_scalar=16,
                                        layer_types=MIXED)),
    "gpt_oss": ("GptOssConfig", {**MOE, "sliding_window": 8, "layer_types": MIXED}),
    "exaone4": ("Exaone4Config", dict(sliding_window=8, layer_types=MIXED)),  # its modules know a window always
    "llama4": ("Llama4TextConfig", dict(
        attention_chunk_size=8, intermediate_size_mlp=96, num_local_experts=2, num_experts_per_tok=1,
        moe_layers=[1], layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0],
        attn_temperature_tuning=False)),
    "cohere2": ("Cohere2Config", dict(sliding_window=8, layer_types=MIXED)),
    "deepseek_v2": ("DeepseekV2Config", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3Config", LATENT),
    "deepseek_v32": ("DeepseekV32Config", INDEXED),
    "glm_moe_dsa": ("GlmMoeDsaConfig", {**INDEXED, "indexer_types": ["full", "shared"]}),
}


DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
             linear_value_head_dim=8, linear_conv_kernel_dim=4,
             layer_types=["linear_attention", "full_attention"])
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2, mamba_expand=2,
             mamba_d_conv=4, mamba_chunk_size=16)

# Models with recurrent layers, by their families.
RECURRENT = {
    "qwen3_next": ("Qwen3NextConfig", {**MOE, **DELTA, "shared_expert_intermediate_size": 32}),
    "qwen3_5": ("Qwen3_5TextConfig", {**DELTA, "num_hidden_layers": 4,
                                      "layer_types": DELTA["layer_types"] * 2}),
    "olmo_hybrid": ("OlmoHybridConfig", {**DELTA, "linear_num_key_heads": 4}),
    "mamba2": ("Mamba2Config", dict(num_heads=8, head_dim=16, state_size=16, n_groups=2, expand=2,
                                    chunk_size=16, num_attention_heads=None,
                                    num_key_value_heads=None)),
    "bamba": ("BambaConfig", {**MAMBA, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**MAMBA, "mamba_d_ssm": 128}),
    "nemotron_h": ("NemotronHConfig", dict(
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"],
        sliding_window=None, mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=16, n_groups=2,
        chunk_size=16)),
    "zamba2": ("Zamba2Config", dict(
        layers_block_type=["linear_attention", "hybrid"] * 2, num_hidden_layers=4, num_key_value_heads=4,
        n_mamba_heads=8, mamba_ngroups=2, mamba_d_state=16, mamba_expand=2, chunk_size=16)),
    "kimi_linear": ("KimiLinearConfig", {
        **LATENT, "linear_num_heads": 2, "linear_head_dim": 16, "q_lora_rank": None,
        "layer_types": DELTA["layer_types"]}),
    "minimax": ("MiniMaxConfig", {**MOE, "block_size": 16,
                                  "layer_types": DELTA["layer_types"]}),
    "lfm2": ("Lfm2Config", dict(layer_types=["conv", "full_attention"])),
}


def config(name):
    kind, special = {**ALL, **UNSERVED}[name]
    missing = {key for key in SIZE if special.get(key, 0) is None}  # the class has no such key
    values = {key: value for key, value in {**SIZE, **special}.items() if key not in missing}
    return getattr(transformers, kind)(**values)


# Models with ALiBi, whose modules are taken over, too; keys of SIZE that they do not have.
OTHERS = dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads",
                        "num_key_value_heads", "head_dim", "max_position_embeddings"))
ALIBI = {
    "bloom": ("BloomConfig", {**OTHERS, "n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", {**OTHERS, "hidden_size": None, "d_model": 96, "n_layers": 2, "n_heads": 6,
                          "max_seq_len": 256}),
}
# A model that counts positions by its cache, whatever its arguments say: padded batches mean nothing to it.
COUNTING = {"llama4_tuned": ("Llama4TextConfig", {**MODELS["llama4"][1], "attn_temperature_tuning": True,
                                                  "floor_scale": 4, "attn_scale": 2.0})}
ALL = {**MODELS, **RECURRENT, **ALIBI, **COUNTING}

# Models that no backend serves: what is refused, and why.
UNSERVED = {
    "jamba": ("JambaConfig", dict(attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, num_experts=2,
                                  use_mamba_kernels=False)),
    "mamba": ("MambaConfig", dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads",
                                            "head_dim", "max_position_embeddings"))),
}

# Encoders, and models that have one: what to make them by.
ENDS = dict(vocab_size=97, pad_token_id=0, bos_token_id=1, eos_token_id=2)
PAIR = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=2, encoder_ffn_dim=96, decoder_ffn_dim=96,
            decoder_start_token_id=1, **ENDS)
ENCODERS = {
    "bert": ("BertConfig", "AutoModel", dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                             num_attention_heads=4, **ENDS)),
    "modernbert": ("ModernBertConfig", "AutoModel", dict(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        local_attention=8, cls_token_id=1, sep_token_id=2, **ENDS)),
    "bart": ("BartConfig", "AutoModelForSeq2SeqLM", dict(
        max_position_embeddings=128, forced_eos_token_id=None, **PAIR)),
    "whisper": ("WhisperConfig", "AutoModelForSpeechSeq2Seq", dict(
        num_mel_bins=8, max_source_positions=20, max_target_positions=64, suppress_tokens=None,
        begin_suppress_tokens=None, **PAIR)),
    "t5": ("T5Config", "AutoModelForSeq2SeqLM", dict(d_model=64, num_layers=2, num_heads=4, d_kv=16,
                                                     d_ff=64, vocab_size=97)),
}


@functools.lru_cache(maxsize=4)
def weights(name):
    """The eager model in fp32, with attention that is peaked: what one key contributes shows."""
    torch.manual_seed(20)
    return peak(AutoModelForCausalLM.from_config(config(name), attn_implementation="eager"))


def peak(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
            if "sinks" in name:
                parameter.normal_(0, 1)
    return model.eval()


def make_of_images(implementation):
    """A Gemma 3 that sees: the tokens of an image see each other. Token 90 stands for one of its four."""
    text = {**SIZE, "sliding_window": 64, "query_pre_attn_scalar": 16}
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                  image_size=32, patch_size=8)
    made = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                     image_token_id=90, boi_token_index=91, eoi_token_index=92)
    torch.manual_seed(22)
    return peak(transformers.Gemma3ForConditionalGeneration._from_config(
        made, attn_implementation=implementation))


def make_encoder(name):
    """An eager one, and the same weights on attnhost."""
    kind, auto, values = ENCODERS[name]
    torch.manual_seed(21)
    made = [getattr(transformers, auto).from_config(getattr(transformers, kind)(**values),
                                                    attn_implementation=implementation).eval()
            for implementation in ("eager", "attnhost")]
    made[1].load_state_dict(peak(made[0]).state_dict())
    return made


def make(name, implementation, dtype=torch.float32):
    """The same weights behind another implementation of attention."""
    origin = weights(name)
    made = AutoModelForCausalLM.from_config(copy.deepcopy(config(name)),
                                            attn_implementation=implementation)
    made.load_state_dict(origin.state_dict())
    return made.to(dtype).eval()
