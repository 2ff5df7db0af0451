# SPDX-License-Identifier: Apache-2.0
"""Engines that are written for CUDA alone, run on the processor: what they ask of the device answers for it, and
the kernels that are no attention are their formulas. Scheduler, tables, caches and models stay the engine's.

    with on_cpu(memory=1 << 28): ...        tensors of "cuda" are on the CPU; streams and events do nothing
"""
import contextlib
import functools
import sys
import types

import torch
import torch._dynamo  # looks at what is replaced here, and for Triton
from torch.overrides import TorchFunctionMode


class _Factories(TorchFunctionMode):
    """Devices named cuda are the processor, memory is never pinned."""

    def __torch_function__(self, function, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(function, "__name__", "") in ("cuda", "pin_memory"):
            return args[0]
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*map(_place, args), **{name: _place(value) for name, value in kwargs.items()})


def _place(value):
    is_cuda = isinstance(value, torch.device) and value.type == "cuda" or \
        isinstance(value, str) and value.startswith("cuda")
    return torch.device("cpu") if is_cuda else value


class _Stream:
    """A stream or an event: work is done in order."""

    def __init__(self, *_, **__):
        pass

    def _nothing(self, *_):
        pass

    wait_stream = record = synchronize = _nothing


class _Current:
    """torch.cuda.stream(), entered as often as one likes."""

    def __init__(self, current, stream):
        self.current, self.stream = current, stream

    def __enter__(self):
        self.current.append(self.stream)

    def __exit__(self, *_):
        self.current.pop()


@contextlib.contextmanager
def on_cpu(memory):
    """`memory`: bytes that the device says to have, all of them free."""
    import safetensors
    import torch.distributed as dist
    current = [_Stream()]
    made, opened, default = dist.init_process_group, safetensors.safe_open, torch.set_default_device

    def init_process_group(_backend=None, *_, rank=0, world_size=1, **__):
        made("gloo", store=dist.HashStore(), rank=rank, world_size=world_size)

    replaced = [
        (torch.cuda, name, value) for name, value in dict(
            set_device=_nothing, synchronize=_nothing, empty_cache=_nothing, reset_peak_memory_stats=_nothing,
            is_initialized=lambda: False, mem_get_info=lambda *_: (memory, memory),
            memory_stats=lambda *_: {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0},
            Stream=_Stream, Event=_Stream, stream=lambda stream: _Current(current, stream), current_stream=lambda *_: current[-1],
            set_stream=lambda stream: current.__setitem__(-1, stream)).items()]
    replaced += [(torch.cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext()),
                 (dist, "init_process_group", init_process_group),
                 (torch, "set_default_device", lambda device: default(_place(device))),
                 (safetensors, "safe_open", lambda path, framework="pt", device="cpu": opened(path, framework))]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        with _Factories():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        if dist.is_initialized():
            dist.destroy_process_group()


def _nothing(*_, **__):
    return None


def module(name, **members):
    """A module of this name with these members, in place of one that needs CUDA."""
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(members)
    return made


# ---- Attention by PyTorch, to compare with ------------------------------------------------------------


def attend(q, k, v, scale):
    """The last rows of a sequence: q [rows, heads, dim], k and v [keys, kv_heads, dim]; causal."""
    share, rows, keys = q.shape[1] // k.shape[1], len(q), len(k)
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    operands = (x.transpose(0, 1) for x in (q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)))
    return torch.nn.functional.scaled_dot_product_attention(*operands, attn_mask=seen, scale=scale).transpose(0, 1)


# ---- FlashInfer's kernels that are no attention, for mini-sglang ---------------------------------------


def rmsnorm(x, weight, eps, out=None):
    made = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    return made if out is None else out.copy_(made)


def fused_add_rmsnorm(x, residual, weight, eps):
    residual.add_(x)
    x.copy_(rmsnorm(residual, weight, eps))


def silu_and_mul(x, out=None):
    gate, up = x.chunk(2, -1)
    made = torch.nn.functional.silu(gate) * up
    return made if out is None else out.copy_(made)


def apply_rope_with_cos_sin_cache_inplace(positions, query, key, head_size, cos_sin_cache):
    cos, sin = cos_sin_cache[positions.long()][:, None].chunk(2, -1)
    for x in (query, key):
        heads = x.view(len(x), -1, head_size)
        low, high = heads.chunk(2, -1)
        heads.copy_(torch.cat([low * cos - high * sin, high * cos + low * sin], -1))


flashinfer = functools.partial(module, "flashinfer", rmsnorm=rmsnorm, fused_add_rmsnorm=fused_add_rmsnorm,
                               silu_and_mul=silu_and_mul,
                               apply_rope_with_cos_sin_cache_inplace=apply_rope_with_cos_sin_cache_inplace)
