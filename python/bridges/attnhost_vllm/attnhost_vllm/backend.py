# SPDX-License-Identifier: Apache-2.0
"""The backend that vLLM's registry names: what it can do is what the host says, and a step of a KV cache group
is a step of an attnhost.Planner.

vLLM makes a builder for each KV cache group, with all layers of it; the builder makes a planner, whose layer
groups are the layers that are alike. The block table, the slots and the lengths are vLLM's own tensors. With its
prefix cache a request may find blocks that another one fills in the same step.
"""
import logging
import os
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple

import attnhost
import torch
from attnhost import KVTable, Planner, Step
from attnhost.step import Plan
from vllm import envs
from vllm.config import VllmConfig, get_current_vllm_config, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata,
                                       AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata, MultipleOf)

from . import backend_name

_LOG = logging.getLogger("vllm.attnhost")
_FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_PLAIN = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_GRAPHS = {"never": AttentionCGSupport.NEVER, "single_token": AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE,
           "uniform": AttentionCGSupport.UNIFORM_BATCH, "always": AttentionCGSupport.UNIFORM_BATCH}


_planners: "weakref.WeakSet[Planner]" = weakref.WeakSet()


def rows() -> Dict[str, int]:
    """Query rows that each backend has computed in this process, summed over layers."""
    return attnhost.step.count_rows(backend for planner in _planners for backend in planner.backends)


# ---- The host ----------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def _host(ini: Optional[str]) -> attnhost.Host:
    return attnhost.Host(ini)


def host_of(config: VllmConfig) -> attnhost.Host:
    """The process's host: of the ini in additional_config["attnhost"]["ini"] or ATTNHOST_INI; without one,
    what is installed and `auto`."""
    extra = config.additional_config
    given = extra.get("attnhost", {}) if isinstance(extra, dict) else {}
    unknown = sorted(set(given) - {"ini"})
    if unknown:
        raise ValueError(f"additional_config.attnhost.{unknown[0]}: accepted: ini")
    return _host(given.get("ini") or os.environ.get("ATTNHOST_INI") or None)


def _kv_dtype(name: Optional[str], dtype: torch.dtype) -> torch.dtype:
    return _FP8.get(name) or _PLAIN.get(name) or dtype


def _settings(host: attnhost.Host, kv_dtype: torch.dtype) -> Dict[str, Any]:
    """Settings of a choice in addition to the ini: vLLM's batch invariant mode, and scales; each layer is bound with
    those of its checkpoint."""
    made: Dict[str, Any] = {"attention__batch_invariant": True} if envs.VLLM_BATCH_INVARIANT else {}
    if kv_dtype.itemsize == 1:
        made.update({f"kv_cache__{x}_scale": host.settings.get(f"kv_cache.{x}_scale", "1") for x in "kv"})
    return made


def _explain(config: VllmConfig, group: Any, dtype: torch.dtype, kv_dtype: torch.dtype,
             page_size: int) -> attnhost.Selection:
    """The backends that would serve such layers here."""
    from vllm.platforms import current_platform
    host = host_of(config)
    names = attnhost.engine.DTYPE_NAMES
    place = "cpu" if current_platform.is_cpu() else f"cuda:{torch.cuda.current_device()}"
    return host.explain([group], "vLLM's layers", platform__device=place, model__dtype=names[dtype],
                        kv_cache__dtype=names[kv_dtype], kv_cache__page_size=page_size,
                        model__max_context_len=config.model_config.max_model_len,
                        workload__max_running_requests=config.scheduler_config.max_num_seqs,
                        workload__chunked_prefill_size=config.scheduler_config.max_num_batched_tokens,
                        **_settings(host, kv_dtype))


def _heads(config: VllmConfig) -> Tuple[int, int]:
    parallel = config.parallel_config
    return (config.model_config.get_num_attention_heads(parallel), config.model_config.get_num_kv_heads(parallel))


# ---- The backend -------------------------------------------------------------------------------------


class AttnhostBackend(AttentionBackend):
    """What vLLM asks of a backend. What it refuses it refuses with the values and what would be accepted."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = [*_PLAIN, *_FP8]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return backend_name()

    @staticmethod
    def get_impl_cls() -> type:
        return AttnhostImpl

    @staticmethod
    def get_builder_cls() -> type:
        return AttnhostBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> List[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """The ini's page size, if it has one."""
        return int(host_of(get_current_vllm_config()).settings.get("kv_cache.page_size", default_block_size))

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True  # of the backends those that are; supports_combination() says which

    @classmethod
    def asked_group(cls, config: VllmConfig, head_size: int, sinks: bool = False) -> Any:
        """A layer of these dimensions, as far as they are known before the model's are."""
        heads, kv_heads = _heads(config)
        return attnhost.layer_group([0], num_q_heads=heads, num_kv_heads=kv_heads, head_dim=head_size, sinks=sinks)

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str],
                             block_size: Optional[int], use_mla: bool, has_sink: bool, *_: Any,
                             **__: Any) -> Optional[str]:
        """The host's answer for layers of these dimensions. Soft caps, windows and ALiBi are unknown here; they are
        queried with the model's layers."""
        if use_mla != cls.is_mla() or dtype not in attnhost.engine.DTYPE_NAMES:
            return None  # refused elsewhere
        config = get_current_vllm_config()
        group = cls.asked_group(config, head_size, has_sink)
        page_size = block_size or cls.get_preferred_block_size(config.cache_config.block_size or 16)
        choice = _explain(config, group, dtype, _kv_dtype(kv_cache_dtype, dtype), page_size)
        return None if choice else f"attnhost: {choice}"


@dataclass
class AttnhostMetadata(AttentionMetadata):
    """A step of a KV cache group, planned."""

    plan: Plan
    num_actual_tokens: int
    layers: Dict[str, int]  # numbers of layers by their names
    planner: Planner


class AttnhostBuilder(AttentionMetadataBuilder[AttnhostMetadata]):
    """A planner for the layers of a KV cache group."""

    reorder_batch_threshold = 1  # sequences that decode stand first
    backend, layer_type = AttnhostBackend, Attention

    def __init__(self, kv_cache_spec: Any, layer_names: List[str], vllm_config: VllmConfig,
                 device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        config, host = vllm_config, host_of(vllm_config)
        found = get_layers_from_vllm_config(config, self.layer_type, layer_names)
        self.layers = {name: number for number, name in enumerate(found)}
        self.encodes = any(layer.impl.attn_type == AttentionType.ENCODER_ONLY for layer in found.values())
        first = next(iter(found.values()))
        dtype = getattr(first, "dtype", config.model_config.dtype)
        kv_dtype = _kv_dtype(first.kv_cache_dtype, dtype)
        shares = (config.cache_config.enable_prefix_caching and not self.encodes
                  and self.backend.forward_includes_kv_cache_update)
        self.planner = Planner(
            host, _groups(found, self.layers), dtype=dtype, kv_dtype=kv_dtype, device=device,
            page_size=kv_cache_spec.block_size, max_seqs=config.scheduler_config.max_num_seqs,
            max_tokens=config.scheduler_config.max_num_batched_tokens, max_len=config.model_config.max_model_len,
            name=config.model_config.model, **_settings(host, kv_dtype),
            uses=["shared_new_kv"] if shares else [])
        _planners.add(self.planner)
        self._graphs: Dict[Tuple[int, int], Plan] = {}
        _LOG.info("attnhost serves %d layers:\n%s", len(found), self.planner.choice)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: Any) -> AttentionCGSupport:
        if not hasattr(kv_cache_spec, "head_size") or vllm_config.device_config.device_type != "cuda":
            return AttentionCGSupport.NEVER
        group = cls.backend.asked_group(vllm_config, kv_cache_spec.head_size)
        dtype = vllm_config.model_config.dtype
        kv_dtype = _kv_dtype(vllm_config.cache_config.cache_dtype, dtype)
        choice = _explain(vllm_config, group, dtype, kv_dtype, kv_cache_spec.block_size)
        return _GRAPHS[choice.groups[0].decode_graph_level] if choice else AttentionCGSupport.NEVER

    @staticmethod
    def use_cascade_attention(*_: Any, **__: Any) -> bool:
        return False  # shared prefixes are a hint of the batch, which needs no LSE of vLLM's

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> AttnhostMetadata:
        common = common_attn_metadata
        if not self.encodes and common.causal is not True:
            raise NotImplementedError("attnhost: decoder layers that are not causal: accepted causal ones")
        plan = self._graphs.get((common.num_reqs, common.max_query_len)) if self._is_uniform(common) else None
        plan = plan or self.planner.eager
        plan.plan(self._step(common))
        return self.metadata(plan, common)

    def metadata(self, plan: Plan, common: CommonAttentionMetadata) -> AttnhostMetadata:
        return AttnhostMetadata(plan, common.num_actual_tokens, self.layers, self.planner)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> AttnhostMetadata:
        common = common_attn_metadata
        key = (common.num_reqs, common.max_query_len)
        if key not in self._graphs:
            self._graphs[key] = self.planner.graph(*key)
        return self.build(0, common)

    @staticmethod
    def _is_uniform(common: CommonAttentionMetadata) -> bool:
        return common.num_actual_tokens == common.num_reqs * common.max_query_len

    def _step(self, common: CommonAttentionMetadata) -> Step:
        counts = common.query_start_loc_cpu.diff()
        lens, upper = common.seq_lens, common.seq_lens_cpu_upper_bound
        is_cpu = lens.device.type == "cpu"
        real = int((upper > 0).sum()) if upper is not None else common.num_reqs  # vLLM pads at the end
        tokens = min(int(common.query_start_loc_cpu[real]), common.num_actual_tokens)
        decodes = int((counts[:real] > 1).to(torch.int8).argmax()) if bool((counts[:real] > 1).any()) else real
        return Step(
            lens if is_cpu or upper is None else (upper, lens),
            [KVTable(common.slot_mapping[:common.num_actual_tokens], block_table=common.block_table_tensor)],
            q_indptr=common.query_start_loc if is_cpu else (common.query_start_loc_cpu, common.query_start_loc),
            num_tokens=common.num_actual_tokens, max_q_len=common.max_query_len, max_kv_len=common.max_seq_len,
            num_decodes=decodes, num_real_seqs=real, num_real_tokens=tokens,
            prompts=None if common.is_prefilling is None else bool(common.is_prefilling.any()))


def layer_group(latent: Tuple[int, ...] = (), **members: Any) -> Any:
    """Of a layer; `latent` layers have a rank, and heads' elements with and without positions."""
    if latent:
        members["mla"] = attnhost._abi.attn_mla_dims(**dict(zip(("kv_lora_rank", "rope_dim", "nope_dim"), latent)))
    return attnhost.layer_group([0], **members)


def _groups(layers: Dict[str, Any], numbers: Dict[str, int]) -> List[Any]:
    """Layer groups: layers that are alike. A layer that shares another's keys has its KV buffer."""
    alike: Dict[Tuple, List[Any]] = {}
    for name, layer in layers.items():
        impl = layer.impl
        owner = impl.kv_sharing_target_layer_name
        flags = attnhost._abi.ATTN_LAYER_KV_READ_ONLY if owner else 0
        made = attnhost._abi.attn_layer(layer_id=numbers[name], flags=flags,
                                        kv_buffer=numbers.get(owner, numbers[name]))
        alike.setdefault(tuple(impl.members().items()), []).append(made)
    groups = []
    for members, found in alike.items():
        group = layer_group(**dict(members))
        groups.append(type(group)(**{**{name: getattr(group, name) for name, _ in group._fields_
                                        if name not in ("struct_size", "layers", "num_layers")},
                                     "layers": found, "num_layers": len(found)}))
    return groups


class BoundCaches:
    """The cache that a layer has in each planner. vLLM makes planners and caches to measure what graphs take, frees them
    and makes others, which may lie at the same addresses."""

    def __init__(self) -> None:
        self._caches: "weakref.WeakKeyDictionary[Planner, int]" = weakref.WeakKeyDictionary()

    def note(self, planner: Planner, kv_cache: Optional[torch.Tensor]) -> bool:
        """Is it another than the planner has?"""
        address = kv_cache.data_ptr() if kv_cache is not None else 0
        if self._caches.get(planner) == address:
            return False
        self._caches[planner] = address
        return True


class AttnhostImpl(AttentionImpl[AttnhostMetadata]):
    """A layer."""

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: Optional[int] = None,
                 alibi_slopes: Optional[List[float]] = None, sliding_window: Optional[int] = None,
                 kv_cache_dtype: str = "auto", logits_soft_cap: Optional[float] = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: Optional[str] = None,
                 sinks: Optional[torch.Tensor] = None, **unknown: Any) -> None:
        if unknown:
            raise NotImplementedError(f"attnhost: layers with {', '.join(sorted(unknown))}: accepted without")
        if attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            raise NotImplementedError(f"attnhost: {attn_type} layers: accepted decoder, encoder_only")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_size, self.scale, self.kv_cache_dtype = head_size, float(scale), kv_cache_dtype
        self.sliding_window, self.logits_soft_cap = sliding_window, logits_soft_cap or 0.0
        self.attn_type, self.kv_sharing_target_layer_name = attn_type, kv_sharing_target_layer_name
        self.alibi_slopes, self.sinks = alibi_slopes, sinks
        self._bound = BoundCaches()

    def members(self) -> Dict[str, Any]:
        """Of its layer group."""
        left = -1 if self.sliding_window is None else self.sliding_window - 1
        encodes = self.attn_type == AttentionType.ENCODER_ONLY
        return {"num_q_heads": self.num_heads, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_size,
                "sm_scale": self.scale, "logit_cap": self.logits_soft_cap, "window_left": left,
                "window_right": left if encodes else 0, "attn_type": "encoder_only" if encodes else "decoder",
                "sinks": self.sinks is not None, "alibi": self.alibi_slopes is not None}

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                kv_cache: torch.Tensor, attn_metadata: Optional[AttnhostMetadata], output: torch.Tensor,
                output_scale: Optional[torch.Tensor] = None,
                output_block_scale: Optional[torch.Tensor] = None) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attnhost: an output that is quantised: accepted none")
        if attn_metadata is None:  # the run that measures memory
            return output.zero_()
        number, rows = attn_metadata.layers[layer.layer_name], attn_metadata.num_actual_tokens
        encodes = self.attn_type == AttentionType.ENCODER_ONLY
        self._bind(layer, number, None if encodes else kv_cache, attn_metadata.planner)
        own = key is not None and self.kv_sharing_target_layer_name is None
        attn_metadata.plan.forward(number, q=query[:rows], k=key[:rows] if own else None,
                                   v=value[:rows] if own else None, out=output[:rows],
                                   save_kv=own and not encodes)
        return output

    def _bind(self, layer: Any, number: int, kv_cache: Optional[torch.Tensor], planner: Planner) -> None:
        """Operands that the layer has in every call; bound once, although vLLM passes the cache each time."""
        if not self._bound.note(planner, kv_cache):
            return
        operands, scales = {}, None
        if kv_cache is not None:
            if kv_cache.dtype == torch.uint8:
                kv_cache = kv_cache.view(_FP8[self.kv_cache_dtype])
                scales = {"k_cache": layer._k_scale_float, "v_cache": layer._v_scale_float}
            # [blocks, heads, tokens of a block, K and V of a head], in whatever order they lie
            k, v = kv_cache.split(self.head_size, -1)
            operands = {"k_cache": k.transpose(1, 2), "v_cache": v.transpose(1, 2)}
        device = planner.device
        if self.sinks is not None:
            operands["sinks"] = self.sinks.detach().to(device, torch.float32).contiguous()
        if self.alibi_slopes is not None:
            operands["alibi_slopes"] = torch.as_tensor(self.alibi_slopes, dtype=torch.float32, device=device)
        if operands:
            planner.bind(number, scales=scales, **operands)
