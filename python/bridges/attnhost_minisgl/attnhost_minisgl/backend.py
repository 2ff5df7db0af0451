# SPDX-License-Identifier: Apache-2.0
"""The backend of mini-sglang's registry: a batch of it is a step of an attnhost.Planner.

The scheduler prepares the next batch on a stream of its own while the engine still computes the last one. So
what it prepares is the step alone; it is planned on the engine's stream: by the first layer, or before a replay.
"""
import os
import weakref
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Dict, List, Optional

import torch
from attnhost import Host, KVTable, Planner, Step, layer_group
from attnhost.step import Plan, count_rows
from minisgl.attention import BaseAttnBackend, BaseAttnMetadata
from minisgl.core import Batch, get_global_ctx
from minisgl.distributed import get_tp_info
from minisgl.models import ModelConfig
from minisgl.utils import div_even

_PREFILL_TOKENS = 8192  # at first: mini-sglang's default, as a backend does not see its setting
_planners: "weakref.WeakSet[Planner]" = weakref.WeakSet()


def rows() -> Dict[str, int]:
    """Query rows that each backend has computed in this process, summed over layers."""
    return count_rows(backend for planner in _planners for backend in planner.backends)


@dataclass
class AttnhostMetadata(BaseAttnMetadata):
    """A batch, as a step; `plan` once it is planned."""

    step: Step
    plan: Optional[Plan] = None

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return self.step.q_indptr[1][1:1 + bs] - 1


class AttnhostBackend(BaseAttnBackend):
    """All layers are alike: mini-sglang has no windows, sinks or soft caps."""

    def __init__(self, config: ModelConfig) -> None:
        context, ranks = get_global_ctx(), get_tp_info().size
        self.cache, self.table, self.page_size = context.kv_cache, context.page_table, context.page_size
        self.shape = (-1, div_even(config.num_kv_heads, ranks, allow_replicate=True), config.head_dim)
        self.group = layer_group(range(config.num_layers), num_q_heads=div_even(config.num_qo_heads, ranks),
                                 num_kv_heads=self.shape[1], head_dim=config.head_dim)
        self.host, self.name = Host(os.environ.get("ATTNHOST_INI") or None), config.model_type
        self.room = _PREFILL_TOKENS
        self.planner = self.prefills = self._planner()
        self.graphs: Dict[int, Plan] = {}

    def _planner(self) -> Planner:
        """For batches of `room` tokens."""
        made = Planner(self.host, [self.group], dtype=self.cache.dtype, device=self.cache.device,
                       page_size=self.page_size, max_seqs=len(self.table), max_tokens=self.room,
                       max_len=self.table.shape[1], name=self.name)
        for layer in range(self.cache.num_layers):
            made.bind(layer, k_cache=self.cache.k_cache(layer), v_cache=self.cache.v_cache(layer))
        _planners.add(made)
        return made

    def _eager(self, step: Step) -> Plan:
        if step.num_tokens > self.room:
            self.room = 1 << (step.num_tokens - 1).bit_length()
            self.prefills = self._planner()
        return self.prefills.eager

    # ---- A batch -------------------------------------------------------------------------------------

    def prepare_metadata(self, batch: Batch) -> None:
        batch.attn_metadata = AttnhostMetadata(self._step(batch))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer_id: int,
                batch: Batch) -> torch.Tensor:
        metadata = batch.attn_metadata
        if metadata.plan is None:
            metadata.plan = self._eager(metadata.step)
            metadata.plan.plan(metadata.step)
        out = torch.empty_like(q)
        metadata.plan.forward(layer_id, q=q, k=k.view(self.shape), v=v.view(self.shape), out=out)
        return out

    def _step(self, batch: Batch) -> Step:
        """Padding, sequences of the engine's dummy request, stands at the end."""
        requests, real = batch.padded_reqs, len(batch.reqs)
        counts = [request.extend_len for request in requests]
        lens = [request.device_len for request in requests]
        rows = self._array([request.table_idx for request in requests])
        starts = self._array([0, *accumulate(counts)])
        table = KVTable(getattr(batch, "out_loc", None), req_to_token=self.table, req_pool_indices=rows[1])
        return Step(self._array(lens), [table], q_indptr=starts, num_tokens=sum(counts), max_q_len=max(counts),
                    max_kv_len=max(lens), num_real_seqs=real, num_real_tokens=sum(counts[:real]))

    def _array(self, values: List[int]) -> Any:
        """On the host and on the device."""
        device = self.cache.device
        host = torch.tensor(values, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
        return host, host.to(device, non_blocking=True)

    # ---- CUDA graphs ---------------------------------------------------------------------------------

    def init_capture_graph(self, max_seq_len: int, bs_list: List[int]) -> None:
        self.graphs = {size: self.planner.graph(size) for size in bs_list}

    def prepare_for_capture(self, batch: Batch) -> None:
        """Before the graph's buffers are known: the step writes where the dummy request does."""
        batch.out_loc = self.table[batch.padded_reqs[0].table_idx, :1].expand(batch.padded_size)
        self.prepare_metadata(batch)
        self.prepare_for_replay(batch)

    def prepare_for_replay(self, batch: Batch) -> None:
        metadata = batch.attn_metadata
        metadata.plan = self.graphs[batch.padded_size]
        metadata.plan.plan(metadata.step)
