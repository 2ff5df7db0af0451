# SPDX-License-Identifier: Apache-2.0
"""nano-vllm has no registry of attention: its model runner prepares a batch and its layers call flash_attn. Here the
runner plans the batch as a step of an attnhost.Planner, once for all layers, and layers are forwards of it.

Before there is a cache, nano-vllm measures how much memory a prefill takes; that batch goes to flash_attn.
"""
import os
from collections import Counter
from itertools import accumulate
from typing import Any, Dict, List, Optional

import torch
from attnhost import Host, KVTable, Planner, Step, layer_group
from attnhost.step import Plan
from nanovllm.engine import model_runner
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.sequence import Sequence
from nanovllm.layers.attention import Attention

_planner: Optional[Planner] = None  # of the runner: a process has one
_past: "Counter[str]" = Counter()  # rows of runners that have gone
_plan: Optional[Plan] = None  # of the batch that the model runs on
_flash_attn = Attention.forward


def rows() -> Dict[str, int]:
    """Query rows that each backend has computed in this process, summed over layers."""
    return dict(_past + Counter(_planner.rows if _planner else {}))


# ---- Layers ------------------------------------------------------------------------------------------


def forward(self: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if _plan is None:
        return _flash_attn(self, q, k, v)
    out = torch.empty_like(q)
    _plan.forward(self.layer, q=q, k=k, v=v, out=out)
    return out


# ---- The runner --------------------------------------------------------------------------------------


def allocate_kv_cache(self: ModelRunner, _own: Any = ModelRunner.allocate_kv_cache) -> None:
    """And a planner that has these caches."""
    global _planner
    _own(self)
    config, layers = self.config, [x for x in self.model.modules() if isinstance(x, Attention)]
    first = layers[0]
    group = layer_group(range(len(layers)), num_q_heads=first.num_heads, num_kv_heads=first.num_kv_heads,
                        head_dim=first.head_dim, sm_scale=first.scale)
    self.planner = _planner = Planner(Host(os.environ.get("ATTNHOST_INI") or None), [group], dtype=self.kv_cache.dtype,
                                      device=self.kv_cache.device, page_size=self.block_size, max_seqs=config.max_num_seqs,
                                      max_tokens=config.max_num_batched_tokens, max_len=config.max_model_len,
                                      name=config.hf_config.model_type,
                                      uses=["shared_new_kv"])  # its prompts find blocks of the same batch
    self.decode_plans: Dict[int, Plan] = {}
    for number, layer in enumerate(layers):
        layer.layer = number
        self.planner.bind(number, k_cache=layer.k_cache, v_cache=layer.v_cache)


def prepare_prefill(self: ModelRunner, seqs: List[Sequence], _own: Any = ModelRunner.prepare_prefill) -> Any:
    made = _own(self, seqs)
    if seqs[0].block_table:
        counts = [seq.num_scheduled_tokens for seq in seqs]
        _begin(self, seqs, [seq.num_cached_tokens + count for seq, count in zip(seqs, counts)], counts)
    return made


def prepare_decode(self: ModelRunner, seqs: List[Sequence], _own: Any = ModelRunner.prepare_decode) -> Any:
    made = _own(self, seqs)
    _begin(self, seqs, [len(seq) for seq in seqs], None)
    return made


def _begin(runner: ModelRunner, seqs: List[Sequence], lens: List[int], counts: Optional[List[int]]) -> None:
    """Plan the batch that is in nano-vllm's context: a graph's if it is replayed on one."""
    context, size = model_runner.get_context(), len(seqs)
    pages = context.block_tables if context.block_tables is not None else runner.prepare_block_tables(seqs)
    step = Step(_array(lens), [KVTable(context.slot_mapping, block_table=pages)], max_kv_len=max(lens),
                num_tokens=sum(counts) if counts else size)
    if counts:
        step.max_q_len = max(counts)
        step.q_indptr = _array([0, *accumulate(counts)])
    captured = [n for n in runner.decode_plans if n >= size] if not counts else []
    _use(runner.decode_plans[min(captured)] if captured else runner.planner.eager, step)


def _use(plan: Plan, step: Step) -> None:
    global _plan
    plan.plan(step)
    _plan = plan


def _array(values: List[int]) -> Any:
    """On the host and on the device."""
    host = torch.tensor(values, dtype=torch.int32, device="cpu", pin_memory=True)
    return host, host.cuda(non_blocking=True)


# ---- CUDA graphs -------------------------------------------------------------------------------------


def capture_cudagraph(self: ModelRunner, _own: Any = ModelRunner.capture_cudagraph) -> None:
    """nano-vllm sets its context to static arrays of a batch size, then captures: here the size is planned."""
    own = model_runner.set_context

    def set_context(is_prefill: bool, **arrays: torch.Tensor) -> None:
        own(is_prefill, **arrays)
        pages, size = arrays["block_tables"], len(arrays["block_tables"])
        self.decode_plans[size] = self.planner.graph(size)
        _use(self.decode_plans[size], Step(_array([1] * size), [KVTable(
            torch.full_like(arrays["slot_mapping"], -1), block_table=pages)], num_tokens=size, max_kv_len=1))

    model_runner.set_context = set_context
    try:
        _own(self)
    finally:
        model_runner.set_context = own


def exit_(self: ModelRunner, _own: Any = ModelRunner.exit) -> None:
    global _plan, _planner
    _past.update(self.planner.rows)
    _own(self)  # waits
    self.planner.close()
    _plan = _planner = None


Attention.forward = forward
for _name, _function in (("allocate_kv_cache", allocate_kv_cache), ("prepare_prefill", prepare_prefill),
                         ("prepare_decode", prepare_decode), ("capture_cudagraph", capture_cudagraph), ("exit", exit_)):
    setattr(ModelRunner, _name, _function)
