# SPDX-License-Identifier: Apache-2.0
"""The backend of SGLang's registry: a ForwardBatch is a step of an attnhost.Planner.

A backend of SGLang meets its layers when they call it. So layers that are alike (heads, window, soft cap, sinks,
scale) have a planner from their first call on, and each plans a batch when its first layer asks: before a graph is
captured, as SGLang runs a batch first. Slots, rows and lengths are SGLang's own tensors.
"""
import logging
import os
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from attnhost import Host, KVTable, Planner, Step, layer_group
from attnhost.step import Plan, count_rows
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_exec

_LOG = logging.getLogger("sglang.attnhost")
_ROWS = 8192  # of a batch, at first: planners grow
_planners: "weakref.WeakSet[Planner]" = weakref.WeakSet()


def rows() -> Dict[str, int]:
    """Query rows that each backend has computed in this process, summed over layers."""
    return count_rows(backend for planner in _planners for backend in planner.backends)


def _refuse(what: str, accepted: str) -> None:
    raise NotImplementedError(f"attnhost: {what}: accepted {accepted}")


class Kind(NamedTuple):
    """What layers that are alike have in common; the members of their layer group."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    sm_scale: float
    logit_cap: float
    window_left: int
    window_right: int
    attention_chunk: int
    attn_type: str
    sinks: bool


@dataclass
class Metadata:
    """A batch, as a step, and its plans by kinds of layers; `graph`: sequences and rows of each, where its plans
    are those of a CUDA graph."""

    step: Step
    graph: Optional[Tuple[int, int]] = None
    plans: Dict[Kind, Plan] = field(default_factory=dict)


class Layers:
    """The planners of layers that are alike."""

    def __init__(self, owner: "AttnhostBackend", kind: Kind) -> None:
        self.owner, self.kind, self.room = owner, kind, _ROWS
        self.bound: Dict[int, Tuple[Any, Dict[str, torch.Tensor]]] = {}
        self.planner = self.prefills = self._planner()
        self.graphs: Dict[Tuple[int, int], Plan] = {}
        _LOG.info("attnhost serves layers of %d heads of %d:\n%s", kind.num_q_heads, kind.head_dim, self.planner.choice)

    def _planner(self) -> Planner:
        """For batches of `room` rows."""
        owner, pool = self.owner, self.owner.pool
        layers = range(pool.start_layer, pool.start_layer + pool.layer_num)
        made = Planner(owner.host, [layer_group(layers, **self.kind._asdict())], dtype=owner.dtype,
                       kv_dtype=pool.dtype, device=owner.device, page_size=owner.page_size,
                       max_seqs=len(owner.table), max_tokens=self.room, max_len=owner.table.shape[1],
                       decodes="last", name=owner.name, **owner.settings)
        for layer, (scales, operands) in self.bound.items():
            made.bind(layer, scales=scales, **operands)
        _planners.add(made)
        return made

    def bind(self, layer: RadixAttention, sinks: Optional[torch.Tensor]) -> None:
        """Operands that the layer has in every call; bound once."""
        if layer.layer_id in self.bound:
            return
        operands, scales, pool = {}, None, self.owner.pool
        if self.kind.attn_type == "decoder":
            operands = {"k_cache": self.owner.pages(pool.get_key_buffer(layer.layer_id)),
                        "v_cache": self.owner.pages(pool.get_value_buffer(layer.layer_id))}
            if pool.dtype.itemsize == 1:
                scales = {"k_cache": layer.k_scale_float or 1.0, "v_cache": layer.v_scale_float or 1.0}
        if sinks is not None:
            operands["sinks"] = sinks.detach().float().contiguous()
        self.bound[layer.layer_id] = scales, operands
        if operands:
            for planner in {self.planner, self.prefills}:
                planner.bind(layer.layer_id, scales=scales, **operands)

    def plan(self, metadata: Metadata) -> Plan:
        """The plan of this batch, made if it is not there yet."""
        if self.kind in metadata.plans:
            return metadata.plans[self.kind]
        step = metadata.step
        if metadata.graph:
            if metadata.graph not in self.graphs:
                self.graphs[metadata.graph] = self.planner.graph(*metadata.graph)
            made = self.graphs[metadata.graph]
        else:
            if step.num_tokens > self.room:
                self.room = 1 << (step.num_tokens - 1).bit_length()
                self.prefills = self._planner()
            made = self.prefills.eager
        made.plan(step)
        metadata.plans[self.kind] = made
        return made


class AttnhostBackend(AttentionBackend):
    """Extend, decode, mixed batches, verification and extension of linear drafts."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        pool = runner.token_to_kv_pool
        if runner.use_mla_backend or not isinstance(pool, MHATokenToKVPool):
            _refuse(f"a cache of {type(pool).__name__}", "MHATokenToKVPool (for windows: --disable-hybrid-swa-memory)")
        self.host = Host(os.environ.get("ATTNHOST_INI") or None)
        self.pool, self.table = pool, runner.req_to_token_pool.req_to_token
        self.device, self.dtype, self.page_size = torch.device(runner.device), runner.dtype, runner.page_size
        self.chunk = getattr(runner, "attention_chunk_size", None) or 0
        self.name = runner.model_config.hf_config.architectures[0]
        ini = self.host.settings
        self.settings: Dict[str, Any] = {} if pool.dtype.itemsize > 1 else {
            f"kv_cache__{x}_scale": ini.get(f"kv_cache.{x}_scale", "1") for x in "kv"}
        if get_exec().deterministic.enable_deterministic_inference:
            self.settings["attention__batch_invariant"] = True
        self.layers: Dict[Kind, Layers] = {}

    def pages(self, buffer: torch.Tensor) -> torch.Tensor:
        """Slots of tokens as pages."""
        whole = len(buffer) // self.page_size * self.page_size
        return buffer[:whole].unflatten(0, (-1, self.page_size))

    # ---- A batch -------------------------------------------------------------------------------------

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        idle = forward_batch.forward_mode.is_idle()
        self.forward_metadata = None if idle else Metadata(self._step(forward_batch))

    def _step(self, batch: ForwardBatch) -> Step:
        """Lengths count the new tokens; SGLang's do, but for drafts to be verified."""
        if batch.encoder_lens is not None:
            _refuse("an encoder's keys", "decoders and encoders alone")
        mode, count = batch.forward_mode, batch.batch_size
        lens, known = batch.seq_lens[:count], batch.seq_lens_cpu
        known = None if known is None else known[:count]
        if mode.is_decode() or mode.is_target_verify():
            each = 1 if mode.is_decode() else batch.spec_info.draft_token_num
            if each > 1:
                if batch.spec_info.topk > 1:
                    _refuse(f"a tree of drafts (topk {batch.spec_info.topk})", "topk 1")
                lens, known = lens + each, None if known is None else known + each
            return self._with(batch, lens, known, torch.arange(0, count * each + 1, each, device="cpu"), each)
        counts = batch.extend_seq_lens_cpu
        starts = torch.tensor([0, *counts], device="cpu").cumsum(0)
        made = self._with(batch, lens, known, starts, max(counts))
        if mode.is_mixed():  # those that decode stand last
            made.num_decodes = next((i for i, n in enumerate(reversed(counts)) if n != 1), len(counts))
        return made

    def _with(self, batch: ForwardBatch, lens: torch.Tensor, known: Optional[torch.Tensor], starts: torch.Tensor,
              most: int) -> Step:
        """`known`, `starts`: on the host."""
        starts, total = starts.to(torch.int32), int(starts[-1])
        longest = self.table.shape[1] if known is None else int(known.max())
        table = KVTable(batch.out_cache_loc[:total], req_to_token=self.table,
                        req_pool_indices=batch.req_pool_indices[:batch.batch_size])
        if self.device.type == "cpu":
            return Step(lens, [table], total, longest, most, starts, batch.batch_size if most == 1 else 0)
        return Step(lens if known is None else (known.to(torch.int32), lens), [table], total, longest, most,
                    (starts, starts.to(self.device, non_blocking=True)), batch.batch_size if most == 1 else 0)

    # ---- CUDA graphs ---------------------------------------------------------------------------------

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Plans of graphs are made by sizes, as they are captured."""

    def init_forward_metadata_out_graph(self, forward_batch: ForwardBatch, in_capture: bool = False) -> None:
        """Every sequence has as many rows; padding reads row 0 of the table and writes slot 0."""
        step = self._uniform(forward_batch)
        made = Metadata(step, (forward_batch.batch_size, step.max_q_len))
        self.forward_metadata = made
        for layers in self.layers.values():
            if made.graph in layers.graphs:
                layers.plan(made)

    def _uniform(self, batch: ForwardBatch) -> Step:
        if batch.forward_mode.is_decode() or batch.forward_mode.is_target_verify():
            return self._step(batch)
        count = batch.batch_size
        each = len(batch.out_cache_loc) // count
        known = None if batch.seq_lens_cpu is None else batch.seq_lens_cpu[:count]
        starts = torch.arange(0, count * each + 1, each, device="cpu")
        return self._with(batch, batch.seq_lens[:count], known, starts, each)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    # ---- A layer -------------------------------------------------------------------------------------

    def _forward(self, q: torch.Tensor, k: Optional[torch.Tensor], v: Optional[torch.Tensor], layer: RadixAttention,
                 forward_batch: ForwardBatch, save_kv_cache: bool = True, sinks: Optional[torch.Tensor] = None,
                 **more: Any) -> torch.Tensor:
        given = sorted(name for name, value in more.items() if value is not None)
        if given:
            _refuse(f"a layer with {', '.join(given)}", "q, k, v and sinks")
        kind = self._kind(layer, sinks)
        encodes = kind.attn_type == "encoder_only"
        if k is None or not (save_kv_cache or encodes):
            _refuse("a layer that reads keys which another has stored", "layers with keys of their own")
        if kind not in self.layers:
            self.layers[kind] = Layers(self, kind)
        layers, metadata = self.layers[kind], self.forward_metadata
        layers.bind(layer, sinks)
        plan, total = layers.plan(metadata), metadata.step.num_tokens
        out = q.new_empty(len(q), kind.num_q_heads, kind.v_head_dim)
        plan.forward(layer.layer_id, q=q.view(-1, kind.num_q_heads, kind.head_dim)[:total],
                     k=k.view(-1, kind.num_kv_heads, kind.head_dim)[:total],
                     v=v.view(-1, kind.num_kv_heads, kind.v_head_dim)[:total], out=out[:total],
                     save_kv=not encodes)
        return out.flatten(1)

    forward_decode = forward_extend = _forward

    def _kind(self, layer: RadixAttention, sinks: Optional[torch.Tensor]) -> Kind:
        if layer.is_cross_attention or layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            _refuse("cross attention" if layer.is_cross_attention else f"{layer.attn_type.value} layers",
                    "decoder, encoder_only")
        if layer.logit_cap and layer.logit_capping_method != "tanh":
            _refuse(f"logit_capping_method {layer.logit_capping_method}", "tanh")
        encodes = layer.attn_type == AttentionType.ENCODER_ONLY
        left = layer.sliding_window_size
        return Kind(layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, layer.v_head_dim, float(layer.scaling),
                    float(layer.logit_cap or 0), left, left if encodes else 0, self.chunk if layer.use_irope else 0,
                    "encoder_only" if encodes else "decoder", sinks is not None)
