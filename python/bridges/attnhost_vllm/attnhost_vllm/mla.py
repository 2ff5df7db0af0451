# SPDX-License-Identifier: Apache-2.0
"""Latent layers (DeepSeek V2 and V3, Kimi K2, GLM-4 MoE Lite ...). vLLM's MLAAttention saves new latents, multiplies
queries by W_UK and outputs by W_UV; all rows of a step, those of prompts too, come here in the absorbed form, and
a backend reads the cache alone.
"""
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import torch
from attnhost.step import Plan, save_keys
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata, MLAAttentionImpl

from .backend import _FP8, AttnhostBackend, AttnhostBuilder, AttnhostMetadata, BoundCaches, _heads, layer_group


class AttnhostMlaBackend(AttnhostBackend):
    """What vLLM asks of a backend of latent layers."""

    forward_includes_kv_cache_update = False

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @staticmethod
    def get_impl_cls() -> type:
        return AttnhostMlaImpl

    @staticmethod
    def get_builder_cls() -> type:
        return AttnhostMlaBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sink(cls) -> bool:
        return False  # vLLM gives latent layers none

    @classmethod
    def asked_group(cls, config: VllmConfig, head_size: int, sinks: bool = False) -> Any:
        model = config.model_config.hf_text_config
        return layer_group(**members_of(_heads(config)[0], 1.0, model.kv_lora_rank, model.qk_rope_head_dim,
                                        model.qk_nope_head_dim, model.v_head_dim))


def members_of(heads: int, scale: float, rank: int, rope: int, nope: int, v_head_dim: int) -> Dict[str, Any]:
    """Of a layer group."""
    return {"kind": "mla", "num_q_heads": heads, "num_kv_heads": heads, "head_dim": nope + rope,
            "v_head_dim": v_head_dim, "sm_scale": scale, "latent": (rank, rope, nope)}


@dataclass
class AttnhostMlaMetadata(AttnhostMetadata):
    """A step, all of whose rows vLLM takes for those of sequences that decode: it calls forward_mqa() for these."""

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0
    prefill: None = None
    decode: Any = True  # there is one


class AttnhostMlaBuilder(AttnhostBuilder):
    """A planner for the latent layers of a KV cache group."""

    backend, layer_type = AttnhostMlaBackend, MLAAttention

    def metadata(self, plan: Plan, common: CommonAttentionMetadata) -> AttnhostMlaMetadata:
        return AttnhostMlaMetadata(plan, common.num_actual_tokens, self.layers, self.planner, common.num_reqs,
                                   common.num_actual_tokens)


class AttnhostMlaImpl(MLAAttentionImpl[AttnhostMlaMetadata]):
    """A layer."""

    kv_sharing_target_layer_name, attn_type = None, AttentionType.DECODER

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
                 alibi_slopes: Any = None, sliding_window: Optional[int] = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: Optional[float] = None, attn_type: str = AttentionType.DECODER,
                 kv_sharing_target_layer_name: Optional[str] = None, *, kv_lora_rank: int, qk_nope_head_dim: int,
                 qk_rope_head_dim: int, v_head_dim: int, **dimensions: Any) -> None:
        given = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap,
                 "kv_sharing_target_layer_name": kv_sharing_target_layer_name, "indexer": dimensions.get("indexer")}
        unknown = [name for name, value in given.items() if value]
        if unknown:
            raise NotImplementedError(f"attnhost: latent layers with {', '.join(unknown)}: accepted without")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.kv_cache_dtype, self.rank = kv_cache_dtype, kv_lora_rank
        self._members = members_of(num_heads, self.scale, kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim)
        self._bound = BoundCaches()

    def members(self) -> Dict[str, Any]:
        return self._members

    def do_kv_cache_update(self, kv_c_normed: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor, kv_cache_dtype: str, k_scale: torch.Tensor) -> None:
        if kv_cache.device.type != "cpu":
            super().do_kv_cache_update(kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale)
        elif kv_cache.numel():  # vLLM has no operator for it there
            cache = self._cache(kv_cache)
            slots = slot_mapping.flatten()[:len(kv_c_normed)]
            for part, rows in ((cache[..., :self.rank], kv_c_normed), (cache[..., self.rank:], k_pe.squeeze(1))):
                save_keys(part, rows[:len(slots)], slots, float(k_scale))

    def _cache(self, kv_cache: torch.Tensor) -> torch.Tensor:
        return kv_cache.view(_FP8[self.kv_cache_dtype]) if kv_cache.dtype == torch.uint8 else kv_cache

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: AttnhostMlaMetadata,
                    layer: Any) -> Tuple[torch.Tensor, None]:
        q_nope, q_pe = q if isinstance(q, tuple) else q.split([self.rank, self.head_size - self.rank], -1)
        number = attn_metadata.layers[layer.layer_name]
        self._bind(layer, number, kv_c_and_k_pe_cache, attn_metadata)
        out = torch.empty_like(q_nope, memory_format=torch.contiguous_format)
        attn_metadata.plan.forward(number, q_nope=q_nope, q_pe=q_pe, out=out, save_kv=False)
        return out, None

    def _bind(self, layer: Any, number: int, kv_cache: torch.Tensor, metadata: AttnhostMlaMetadata) -> None:
        if not self._bound.note(metadata.planner, kv_cache):
            return
        cache = self._cache(kv_cache)
        scales = {"latent_cache": layer._k_scale_float} if cache.dtype.itemsize == 1 else None
        metadata.planner.bind(number, scales=scales, latent_cache=cache)
