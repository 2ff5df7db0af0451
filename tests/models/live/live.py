#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# live.py: what the attention layers of Transformers' models do, taken from the living models.
#
#   live.py DIR [NAME...]   writes DIR/NAME.json, a small config.json as save_pretrained() saves it,
#                           and DIR/NAME.txt, a line for each attention layer
#   live.py --names         the names
#
# Each model of MODELS is built from a small configuration with random weights and run once over
# LENGTH tokens, with an attention function of ours in Transformers' own registry. It sees the heads,
# the scale, the cap and the mask of each call; the mask becomes window and chunk by trying which ones
# draw the same matrix. Recurrent layers are read off their modules. Nothing is taken from the
# configuration, which is what attnhost reads: tests/host/model/check_live.c compares the two.
#
# Needs transformers 5 and torch for the CPU; exits with 77 where they are missing.

import copy
import inspect
import json
import os
import pathlib
import re
import sys

LENGTH = 40  # tokens; more than any window and chunk below

# Values for whichever of these fields a configuration class has.
SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 8,
    "max_position_embeddings": 128, "attention_chunk_size": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_experts": 2, "num_local_experts": 2,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "shared_intermediate_size": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 8, "depth": 3, "num_heads": 4, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16,
}  # fmt: skip

NO_HEAD_DIM = {"head_dim": None}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
GEMMA = {"query_pre_attn_scalar": 20}
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 24, "num_key_value_heads": 4, "head_dim": None, "n_group": 1, "topk_group": 1,
    "num_hidden_layers": 2, "first_k_dense_replace": 2,
}  # fmt: skip
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}
SEQ2SEQ = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
           "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
           "decoder_start_token_id": 1, "is_encoder_decoder": True}  # fmt: skip
MAMBA = {"mamba_expand": 2, "mamba_n_groups": 2, "mamba_chunk_size": 16}

# File name: (class of the model, values beyond SMALL; None = as the class has it).
MODELS = {
    "afmoe": ("AfmoeForCausalLM", {}),
    "apertus": ("ApertusForCausalLM", {}),
    "arcee": ("ArceeForCausalLM", {}),
    "bamba": ("BambaForCausalLM", MAMBA | {"attn_layer_indices": [1, 4]}),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "bart_decoder": ("BartForCausalLM", SEQ2SEQ),
    "bert": ("BertModel", {}),
    "bert_causal": ("BertModel", {"is_decoder": True}),
    "bert_cross": ("BertModel", {"is_decoder": True, "add_cross_attention": True}),
    "bloom": ("BloomForCausalLM", {"n_layer": 3, "n_head": 4}),
    "cohere": ("CohereForCausalLM", {}),
    "cohere2": ("Cohere2ForCausalLM", {}),
    "dbrx": ("DbrxForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 3,
                                 "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
                                 "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2}}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT),
    "deepseek_v32": ("DeepseekV32ForCausalLM", LATENT | {"index_topk": LENGTH, "index_n_heads": 2,
                                                         "index_head_dim": 16}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "deepseek_v3_yarn": ("DeepseekV3ForCausalLM",
                         LATENT | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
                                                       "rope_theta": 10000.0, "mscale": 1.0,
                                                       "mscale_all_dim": 1.0, "beta_fast": 32.0,
                                                       "beta_slow": 1.0,
                                                       "original_max_position_embeddings": 32}}),
    "distilbert": ("DistilBertModel", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {}),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", {"moe_num_experts": 2, "moe_k": 1}),
    "exaone4": ("Exaone4ForCausalLM", {}),
    "exaone_moe": ("ExaoneMoeForCausalLM", {}),
    "flint": ("FlintForCausalLM", {}),
    "falcon_h1": ("FalconH1ForCausalLM", MAMBA | {"mamba_d_ssm": 128}),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA),
    "gemma3": ("Gemma3ForCausalLM", GEMMA),
    "gemma3_bidirectional": ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}),
    "gemma3_vision": ("Gemma3ForConditionalGeneration",
                      {"text_config": GEMMA, "vision_config": {"image_size": 56, "patch_size": 14},
                       "mm_tokens_per_image": 4}),
    "gemma3n": ("Gemma3nForCausalLM", {"num_hidden_layers": 10, "num_kv_shared_layers": 4,
                                       "intermediate_size": [32] * 10,
                                       "activation_sparsity_pattern": [0.0] * 10}),
    "gemma4": ("Gemma4ForCausalLM", {"num_hidden_layers": 12, "num_kv_shared_layers": 5,
                                     "global_head_dim": 40}),
    "gemma4_bidirectional": ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}),
    "gemma4_k_eq_v": ("Gemma4ForCausalLM", {"attention_k_eq_v": True, "global_head_dim": 40,
                                            "num_global_key_value_heads": 1}),
    "gemma4_unified": ("Gemma4UnifiedForCausalLM", {"num_hidden_layers": 12, "global_head_dim": 40}),
    "gemma4_vision": ("Gemma4ForConditionalGeneration",
                      {"text_config": {}, "vision_config": {"pooling_kernel_size": 2}}),
    "glm": ("GlmForCausalLM", {}),
    "glm4": ("Glm4ForCausalLM", {}),
    "glm4_moe": ("Glm4MoeForCausalLM", {}),
    "glm4v": ("Glm4vForConditionalGeneration",
              {"text_config": MROPE, "vision_config": {"out_hidden_size": 64}}),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", LATENT | {"index_topk": LENGTH, "index_n_heads": 2,
                                                      "index_head_dim": 16}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "gptj": ("CodeGenForCausalLM", GPT2 | {"rotary_dim": 8}),
    "gpt_oss": ("GptOssForCausalLM", {}),
    "granite": ("GraniteForCausalLM", {"attention_multiplier": 0.015625}),
    "granite_moe": ("GraniteMoeForCausalLM", {"attention_multiplier": 0.0078125}),
    "granite_moe_hybrid": ("GraniteMoeHybridForCausalLM",
                           MAMBA | {"attention_multiplier": 0.0625,
                                    "layer_types": [LINEAR, LINEAR, FULL] * 2}),
    "granite_moe_shared": ("GraniteMoeSharedForCausalLM", {"attention_multiplier": 0.125}),
    "granite_moe_swa": ("GraniteMoeSWAForCausalLM", {"attention_multiplier": 0.125}),
    "granite_swa": ("GraniteSWAForCausalLM", {"attention_multiplier": 0.015625}),
    "hy_v3": ("HYV3ForCausalLM", {}),
    "hyperclovax": ("HyperCLOVAXForCausalLM", {"attention_multiplier": 0.25}),
    "hunyuan_dense": ("HunYuanDenseV1ForCausalLM", {}),
    "hunyuan_moe": ("HunYuanMoEV1ForCausalLM", {}),
    "jamba": ("JambaForCausalLM", {"num_hidden_layers": 8, "attn_layer_period": 4,
                                   "attn_layer_offset": 2, "use_mamba_kernels": False}),
    "kimi_linear": ("KimiLinearForCausalLM", LATENT | {"num_hidden_layers": 5, "q_lora_rank": None,
                                                       "linear_head_dim": 16,
                                                       "linear_num_heads": 2}),
    "laguna": ("LagunaForCausalLM", {"num_attention_heads_per_layer": [4, 2, 4, 2, 4, 2]}),
    "lfm2": ("Lfm2ForCausalLM", {"full_attn_idxs": [2, 4], "block_multiple_of": 16}),
    "lfm2_moe": ("Lfm2MoeForCausalLM", {"layer_types": ["conv", "conv", FULL] * 2,
                                        "num_dense_layers": 1}),
    "llama": ("LlamaForCausalLM", {}),
    "llama_bidirectional": ("LlamaForCausalLM", {"is_causal": False}),
    "llama4": ("Llama4ForCausalLM", {"intermediate_size_mlp": 32}),
    "llama4_vision": ("Llama4ForConditionalGeneration",
                      {"text_config": {"intermediate_size_mlp": 32},
                       "vision_config": {"image_size": 56, "intermediate_size": 256,
                                         "projector_input_dim": 64, "projector_output_dim": 64,
                                         "vision_output_dim": 64}}),
    "longcat_flash": ("LongcatFlashForCausalLM",
                      LATENT | {"num_hidden_layers": 4, "ffn_hidden_size": 32, "expert_ffn_hidden_size": 32,
                                "moe_topk": 2, "zero_expert_num": 2, "head_dim": 8}),
    "mamba2": ("Mamba2ForCausalLM", {"num_heads": 8, "head_dim": 16, "state_size": 16,
                                     "n_groups": 2, "num_hidden_layers": 2}),
    "minimax": ("MiniMaxForCausalLM", {}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "mistral3": ("Mistral3ForConditionalGeneration",
                 {"text_config": {}, "vision_config": {"image_size": 112, "head_dim": 16}}),
    "mistral_bidirectional": ("MistralForCausalLM", {"is_causal": False}),
    "mixtral": ("MixtralForCausalLM", {}),
    "modernbert": ("ModernBertModel", {"local_attention": 8}),
    "modernbert_listed": ("ModernBertModel", {"local_attention": 8,
                                              "layer_types": [SLIDING, FULL, FULL] * 2}),
    "nemotron": ("NemotronForCausalLM", {}),
    "nemotron_h": ("NemotronHForCausalLM", {"layers_block_type": [LINEAR, "moe", FULL, "mlp", LINEAR],
                                            "sliding_window": None,
                                            "mamba_num_heads": 8, "mamba_head_dim": 16,
                                            "ssm_state_size": 16, "n_groups": 2,
                                            "moe_shared_expert_intermediate_size": 32}),
    "olmo": ("OlmoForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {}),
    "olmo_hybrid": ("OlmoHybridForCausalLM", {"linear_num_key_heads": 4}),
    "olmo_hybrid_positive": ("OlmoHybridForCausalLM", {"linear_allow_neg_eigval": False}),
    "olmoe": ("OlmoeForCausalLM", {}),
    "opt": ("OPTForCausalLM", {"word_embed_proj_dim": 64, "ffn_dim": 32}),
    "persimmon": ("PersimmonForCausalLM", {}),
    "phi": ("PhiForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {}),
    "phi3_no_window": ("Phi3ForCausalLM", {"sliding_window": None}),
    "phimoe": ("PhimoeForCausalLM", {}),
    "mpt": ("MptForCausalLM", {"d_model": 72, "n_heads": 6, "n_layers": 3,
                               "attn_config": {"softmax_scale": 0.2}}),
    "muse_glimmer": ("MuseGlimmerForConditionalGeneration",
                     {"text_config": {}, "vision_config": {"num_hidden_layers": 1}}),
    "muse_spark": ("MuseSparkForConditionalGeneration",
                   {"text_config": {"moe_hidden_size": 32}, "vision_config": {"num_hidden_layers": 1},
                    "audio_config": {"out_hidden_size": 64}}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 4}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_5": ("Qwen3_5ForCausalLM", {}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", NO_HEAD_DIM),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration",
                 {"text_config": MROPE, "vision_config": {"embed_dim": 64}}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",
                   {"text_config": MROPE, "vision_config": {"out_hidden_size": 64}}),
    "qwen3_5_vision": ("Qwen3_5ForConditionalGeneration",
                       {"text_config": {}, "vision_config": {"out_hidden_size": 64}}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration",
                 {"text_config": {}, "vision_config": {"out_hidden_size": 64}}),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration",
                     {"text_config": {}, "vision_config": {"out_hidden_size": 64}}),
    "qwen3_next": ("Qwen3NextForCausalLM", {}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", {"attention_window_size": 8, "lru_width": 64}),
    "roberta": ("RobertaModel", {}),
    "seed_oss": ("SeedOssForCausalLM", {}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "smollm3_sliding": ("SmolLM3ForCausalLM", {"use_sliding_window": True}),
    "solar_open": ("SolarOpenForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {}),
    "step3p7": ("Step3p7ForConditionalGeneration",
                {"text_config": {"layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING, SLIDING],
                                 "num_sliding_attention_heads": 6, "query_pre_attn_scalar": 20,
                                 "mlp_layer_types": ["dense"] * 6, "share_expert_dim": 32},
                 "vision_config": {"num_hidden_layers": 2, "image_size": 56}}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "vaultgemma": ("VaultGemmaForCausalLM", GEMMA),
    "whisper": ("WhisperForConditionalGeneration",
                {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 2,
                 "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": LENGTH,
                 "max_target_positions": 64, "decoder_start_token_id": 1}),
    "zamba2": ("Zamba2ForCausalLM", {"layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid"],
                                     "num_hidden_layers": 4, "n_mamba_heads": 8,
                                     "mamba_ngroups": 2, "chunk_size": 16}),
}  # fmt: skip


# ---- Masks ---------------------------------------------------------------------------------------


def drawn(left, right, chunk):
    """The mask that a window and a chunk mean: host/reference/reference.h."""
    i = torch.arange(LENGTH)[:, None]
    j = torch.arange(LENGTH)[None, :]
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    if chunk:
        seen &= (j // chunk == i // chunk) & (j <= i)
    return seen


def borders(seen):
    """window_left, window_right and chunk that draw this matrix."""
    sides = [-1, *range(LENGTH)]
    for left, right, chunk in [(a, b, 0) for b in sides for a in sides] + [
        (-1, 0, c) for c in range(1, LENGTH)
    ]:
        if torch.equal(drawn(left, right, chunk), seen):
            return left, right, chunk
    raise ValueError("the mask is no window and no chunk")


def visible(mask, module, causal):
    """A boolean [queries, keys] of the mask that an attention function is given; None = all."""
    if mask is None:
        if getattr(module, "is_causal", True) if causal is None else causal:
            raise ValueError(f"{type(module).__name__}: causal without a mask")
        return None
    mask = mask[0, 0]
    return mask.clone() if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


# ---- Layers --------------------------------------------------------------------------------------


class Probe:
    """The lines of one model."""

    def __init__(self, model):
        self.lines = {"decoder": [], "encoder": []}
        self.others = 0
        self.keys = []  # of every decoder layer so far: layers that share them are the same tensor
        self.names = {module: name for name, module in model.named_modules()}
        for module in model.modules():
            self.watch(module)

    def block(self, module):
        numbers = re.findall(r"\.(\d+)(?:\.|$)", "." + self.names[module])
        return int(numbers[0])

    def stack(self, module):
        """Encoders and towers come after the decoder, whatever runs first."""
        return "encoder" if re.search(r"\bencoder\.|vis", self.names[module]) else "decoder"

    def add(self, module, kind, text):
        self.lines[self.stack(module)].append(f"{kind} block {self.block(module)}: {text}")

    def attention(self, module, query, key, value, mask, causal, scale, cap, sinks, alibi=False):
        """One call of softmax attention; query, key, value are [batch, heads, tokens, dim]."""
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        if type(module).__name__ in ("WhisperAttention", "OPTAttention"):
            scale *= module.scaling  # they multiply their queries themselves
        seen = visible(mask, module, causal)
        left, right, chunk = (-1, -1, 0) if seen is None or bool(seen.all()) else borders(seen)
        cross = re.search("cross|encoder_attn", self.names[module])
        encoder = right != 0 and not cross
        text = f"heads {query.shape[1]}/{key.shape[1]} dims {query.shape[-1]}/{value.shape[-1]}"
        if hasattr(module, "kv_lora_rank"):
            text += f" latent {module.kv_lora_rank}+{module.qk_rope_head_dim}"
        if hasattr(module, "indexer"):
            text += f" top_k {module.indexer.index_topk}"
        text += f" scale {scale:.6g} window {left}/{right}"
        text += f" chunk {chunk}" if chunk else ""
        text += f" cap {float(cap):.6g}" if cap else ""
        text += " sinks" if sinks is not None else ""
        text += " alibi" if alibi else ""
        owner = next((n for n, k in enumerate(self.keys) if k is key), None)
        text += f" reads {owner}" if owner is not None and not cross else ""
        self.keys.append(key)
        self.add(module, "cross" if cross else "encoder_only" if encoder else "decoder", text)

    def watch(self, module):
        name = type(module).__name__
        if re.search(r"GatedDeltaNet$", name):
            self.recurrence(module, gated_delta_net)
        elif re.search(r"DeltaAttention$", name):
            self.recurrence(module, kimi_delta)
        elif re.search(r"LightningAttention$", name):
            self.recurrence(module, lightning)
        elif re.search(r"ShortConv$", name):
            self.recurrence(module, short_convolution)
        elif re.search(r"JambaMambaMixer$|RecurrentBlock$", name):
            self.others += 1
        elif hasattr(module, "ssm_state_size") and hasattr(module, "n_groups"):
            self.recurrence(module, mamba2)
        elif name == "BloomAttention":
            watch_bloom(self, module)
        elif name == "MptAttention":
            watch_mpt(self, module)

    def recurrence(self, module, describe):
        module.register_forward_pre_hook(
            lambda module, *_: self.add(module, "linear", describe(module)))

    def text(self):
        lines = self.lines["decoder"] + self.lines["encoder"]
        if self.others:
            lines.append(f"left out: {self.others} layers")
        return "\n".join(lines) + "\n"


def has_bias(convolution):
    return " bias" if convolution.bias is not None else ""


def gated_delta_net(module):
    own_gate = " gates" if getattr(module, "allow_neg_eigval", False) else ""
    convolution = getattr(module, "conv1d", None) or module.q_conv1d
    return (f"gdn k {module.num_k_heads}x{module.head_k_dim} v {module.num_v_heads}x"
            f"{module.head_v_dim} width {convolution.kernel_size[0]}{has_bias(convolution)}"
            f" scale {module.head_k_dim ** -0.5:.6g}{own_gate}")  # fmt: skip


def kimi_delta(module):
    heads = f"{module.num_heads}x{module.head_dim}"
    return f"kda k {heads} v {heads} width {module.conv_kernel_size} scale {module.head_dim ** -0.5:.6g}"


def lightning(module):
    heads = f"{module.num_attention_heads}x{module.head_dim}"
    return f"lightning k {heads} v {heads} width 0 scale 1"


def short_convolution(module):
    channels = module.conv.in_channels
    return f"short_conv channels {channels} width {module.conv_kernel_size}{has_bias(module.conv)}"


def mamba2(module):
    low, high = module.time_step_limit
    bounds = f" dt {low:.6g}/{0 if high == float('inf') else high:.6g}"
    return (f"mamba2 k {module.n_groups}x{module.ssm_state_size} v {module.num_heads}x"
            f"{module.head_dim} width {module.conv_kernel_size}{has_bias(module.conv1d)} scale 1"
            + (bounds if low or high != float("inf") else ""))  # fmt: skip


def watch_bloom(probe, module):
    """BLOOM calls no attention function; its biases must be straight lines over the keys."""

    def hook(module, args, kwargs):
        alibi, mask = kwargs["alibi"], kwargs["attention_mask"]
        steps = alibi[..., 1:] - alibi[..., :-1]
        assert module.beta == 1 and torch.allclose(steps, steps[..., :1].expand_as(steps), atol=1e-5)
        query, key, value = module._reshape(module.query_key_value(args[0]))
        probe.attention(
            module, query, key, value, mask, None, module.inv_norm_factor, 0, None, True
        )

    module.register_forward_pre_hook(hook, with_kwargs=True)


def watch_mpt(probe, module):
    """MPT calls no attention function either."""

    def hook(module, args, kwargs):
        bias, mask = kwargs["position_bias"], kwargs["attention_mask"]
        steps = bias[..., 1:] - bias[..., :-1]
        assert torch.allclose(steps, steps[..., :1].expand_as(steps), atol=1e-5)
        batch, length, _ = args[0].shape
        query, key, value = (x.view(batch, length, module.n_heads, -1).transpose(1, 2)
                             for x in module.Wqkv(args[0]).chunk(3, dim=2))  # fmt: skip
        probe.attention(
            module, query, key, value, ~mask, None, module.softmax_scale, 0, None, True
        )

    module.register_forward_pre_hook(hook, with_kwargs=True)


# ---- Models --------------------------------------------------------------------------------------


def probe_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None,
                    softcap=None, s_aux=None, is_causal=None, **_):
    current.attention(
        module, query, key, value, attention_mask, is_causal, scaling, softcap, s_aux
    )
    out = value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    return out, None


def probe_mask(*args, **kwargs):
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


def configuration(cls, values):
    """The class' configuration with small values in the fields it has, and so for its parts."""
    usual = cls()
    fields = set(inspect.signature(cls.__init__).parameters) | set(usual.to_dict())
    wanted = {k: v for k, v in SMALL.items() if k in fields}
    wanted |= {k: copy.deepcopy(v) for k, v in values.items()}
    for part in {"text_config", "vision_config"} & set(values):
        own = getattr(usual, part)
        part_cls = cls.sub_configs[part] if own is None else type(own)
        wanted[part] = configuration(part_cls, values[part]).to_dict()
    if wanted.get("head_dim", 0) is None:
        del wanted["head_dim"]
    return cls(**wanted)


def run_tower(model):
    """A small image through the tower, as each family takes it."""
    vision = model.config.vision_config
    takes = inspect.signature(model.get_image_features).parameters
    patch = 3 * vision.patch_size**2
    side = torch.arange(16)
    if "image_grid_thw" in takes:
        image = {"pixel_values": torch.zeros(16, patch * vision.temporal_patch_size),
                 "image_grid_thw": torch.tensor([[1, 4, 4]])}  # fmt: skip
    elif "image_position_ids" in takes:
        image = {"pixel_values": torch.zeros(1, 16, patch),
                 "image_position_ids": torch.stack([side % 4, side // 4], -1)[None]}  # fmt: skip
    else:
        image = {"pixel_values": torch.zeros(1, 3, vision.image_size, vision.image_size)}
    if "image_sizes" in takes:
        image["image_sizes"] = torch.tensor([[vision.image_size] * 2])
    model.get_image_features(**image)


def inputs(model):
    tokens = torch.arange(LENGTH)[None] % 60 + 3
    if model.config.model_type == "whisper":
        features = torch.zeros(1, model.config.num_mel_bins, 2 * LENGTH)
        return {"input_features": features, "decoder_input_ids": tokens}
    if getattr(model.config, "add_cross_attention", False):
        states = torch.zeros(1, LENGTH // 2, model.config.hidden_size)
        return {"input_ids": tokens, "encoder_hidden_states": states}
    return {"input_ids": tokens}


def filled(config):
    """The configuration as JSON, as many items in a line as fit."""
    lines = [""]
    for item in json.dumps(config, separators=(",\n", ": ")).split("\n"):
        if len(lines[-1]) + 1 + len(item) > 120:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + item
    return "\n".join(lines) + "\n"


def make(name, folder):
    global current
    architecture, values = MODELS[name]
    cls = getattr(transformers, architecture)
    config = configuration(cls.config_class, values)
    torch.manual_seed(1)
    eager = architecture.startswith(("Bloom", "Mpt"))
    model = cls._from_config(config, attn_implementation="eager" if eager else "probe").eval()
    current = Probe(model)
    with torch.no_grad():
        model(**inputs(model), use_cache=False)
        if architecture.startswith("Muse"):  # whose towers are left out
            towers = (getattr(config, tower, None) for tower in ("vision_config", "audio_config"))
            current.others = sum(tower is not None for tower in towers)
        elif hasattr(config, "vision_config"):
            run_tower(model)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    saved = folder / "config.json"
    (folder / f"{name}.json").write_text(filled(json.loads(saved.read_text())))
    saved.unlink()
    (folder / f"{name}.txt").write_text(current.text())


def main():
    if sys.argv[1:] == ["--names"]:
        print("\n".join(MODELS))
        return 0
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in sys.argv[2:] or MODELS:
        try:
            make(name, folder)
        except Exception as problem:  # the others are still worth comparing
            print(f"{name}: {type(problem).__name__}: {problem}", file=sys.stderr)
            if os.environ.get("LIVE_TRACE"):
                raise
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        import torch
        import transformers
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        from transformers.modeling_utils import AttentionInterface
    except ImportError as missing:
        print(f"live.py: {missing}", file=sys.stderr)
        sys.exit(77)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    AttentionInterface.register("probe", probe_attention)
    AttentionMaskInterface.register("probe", probe_mask)
    sys.exit(main())
