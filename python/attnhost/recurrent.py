# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of Transformers' models: gated delta net, Mamba2, KDA, lightning attention, short
convolution.

Transformers has an interface for attention and none for these, so each kind of module is here twice:
what it is (the members of its layer group), and its forward with the middle left out. The middle, from
the convolution to the output of the recurrence, is a backend's; projections before it, norms and gates
after it are called as the module's own forward calls them.
"""
from typing import Any, Callable, Dict, Mapping, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from . import _abi, _words
from .engine import DTYPE_NAMES

Run = Callable[..., torch.Tensor]  # operands by their roles -> [batch, tokens, v_heads, head_v_dim]
Forward = Callable[[Any, torch.Tensor, Run], Any]  # module, hidden states, what is in the middle
Facts = Callable[[Any], Mapping[str, Any]]  # members of attn_linear_dims, and sm_scale

KINDS: Dict[str, Tuple[Facts, Forward]] = {}  # by the name of the module's class


def _kind(facts: Facts, *classes: str) -> Callable[[Forward], Forward]:
    def register(forward: Forward) -> Forward:
        KINDS.update({name: (facts, forward) for name in classes})
        return forward
    return register


def members(module: nn.Module, dtype: torch.dtype) -> Dict[str, Any]:
    """Of the attn_layer_group of a recurrent module."""
    facts = dict(KINDS[type(module).__name__][0](module))
    scale = facts.pop("sm_scale", 1.0)
    if facts.get("conv_width"):
        facts["conv_dtype"] = _words.DTYPES[DTYPE_NAMES[dtype]]
    dims = _abi.attn_linear_dims(state_dtype=_abi.ATTN_F32, **facts)
    return dict(kind="linear", num_q_heads=dims.num_v_heads, num_kv_heads=dims.num_k_heads,
                head_dim=dims.head_k_dim, v_head_dim=dims.head_v_dim, sm_scale=scale, linear=dims)


def _convolution(conv: nn.Conv1d) -> Dict[str, Any]:
    """Operands."""
    found = {"conv_weight": conv.weight.squeeze(1)}
    if conv.bias is not None:
        found["conv_bias"] = conv.bias
    return found


# ---- Gated delta net -------------------------------------------------------------------------------


def _delta_facts(module: Any) -> Mapping[str, Any]:
    flags = _abi.ATTN_LINEAR_QK_L2NORM
    if not getattr(module, "allow_neg_eigval", False):
        flags |= _abi.ATTN_LINEAR_RAW_GATES
    return dict(family=_abi.ATTN_LINEAR_GDN, flags=flags, num_k_heads=module.num_k_heads,
                num_v_heads=module.num_v_heads, head_k_dim=module.head_k_dim,
                head_v_dim=module.head_v_dim, conv_width=module.conv_kernel_size, chunk=64,
                sm_scale=module.head_k_dim ** -0.5)


def _gates(module: Any) -> Dict[str, torch.Tensor]:
    return {"A_log": module.A_log.float().reshape(-1), "dt_bias": module.dt_bias.float()}


@_kind(_delta_facts, "Qwen3NextGatedDeltaNet")
def _qwen3_next(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    q, k, v, z, b, a = module.fix_query_key_value_ordering(module.in_proj_qkvz(hidden),
                                                           module.in_proj_ba(hidden))
    out = run(mixed_qkv=torch.cat([x.flatten(2) for x in (q, k, v)], -1), a=a, b=b,
              **_gates(module), **_convolution(module.conv1d))
    return module.out_proj(module.norm(out.flatten(0, 2), z.flatten(0, 2)).view(*z.shape[:2], -1))


@_kind(_delta_facts, "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")
def _qwen3_5(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    out = run(mixed_qkv=module.in_proj_qkv(hidden), a=module.in_proj_a(hidden),
              b=module.in_proj_b(hidden), **_gates(module), **_convolution(module.conv1d))
    z = module.in_proj_z(hidden).reshape(-1, module.head_v_dim)
    return module.out_proj(module.norm(out.flatten(0, 2), z).view(*hidden.shape[:2], -1))


@_kind(_delta_facts, "OlmoHybridGatedDeltaNet")
def _olmo_hybrid(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    mixed = torch.cat([p(hidden) for p in (module.q_proj, module.k_proj, module.v_proj)], -1)
    a, b, gates = module.a_proj(hidden), module.b_proj(hidden), _gates(module)
    if module.allow_neg_eigval:  # beta to 2: the gates are given computed
        a = -gates["A_log"].exp() * F.softplus(a.float() + gates["dt_bias"])
        b, gates = b.sigmoid().float() * 2, {}
    out = run(mixed_qkv=mixed, a=a, b=b, **gates, **_convolution(module.conv1d))
    gate = module.g_proj(hidden).reshape(-1, module.head_v_dim)
    return module.o_proj(module.o_norm(out.flatten(0, 2), gate).view(*hidden.shape[:2], -1))


# ---- Mamba2 ----------------------------------------------------------------------------------------


def _mamba2_facts(module: Any) -> Mapping[str, Any]:
    low, high = module.time_step_limit
    return dict(family=_abi.ATTN_LINEAR_MAMBA2, flags=_abi.ATTN_LINEAR_RAW_GATES,
                num_k_heads=module.n_groups, num_v_heads=module.num_heads,
                num_groups=module.n_groups, head_k_dim=module.ssm_state_size,
                head_v_dim=module.head_dim, conv_width=module.conv1d.kernel_size[0],
                chunk=module.chunk_size, dt_min=low, dt_max=0 if high == float("inf") else high)


def _mamba2_middle(module: Any, projected: torch.Tensor, run: Run) -> Tuple[torch.Tensor, torch.Tensor]:
    """The output of the recurrence, and the gate of the following norm."""
    gate, mixed, dt = projected.split([module.intermediate_size, module.conv_dim, module.num_heads], -1)
    out = run(mixed_qkv=mixed, a=dt, D=module.D.float(), **_gates(module),
              **_convolution(module.conv1d))
    return out.flatten(2), gate


@_kind(_mamba2_facts, "Mamba2Mixer", "BambaMixer", "GraniteMoeHybridMambaLayer",
       "NemotronHMamba2Mixer", "Zamba2MambaMixer")
def _mamba2(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    out, gate = _mamba2_middle(module, module.in_proj(hidden), run)
    return module.out_proj(module.norm(out, gate).to(hidden.dtype))


@_kind(_mamba2_facts, "FalconH1Mixer")
def _falcon_h1(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    projected = module.in_proj(hidden * module.ssm_in_multiplier) * module.mup_vector
    out, gate = _mamba2_middle(module, projected, run)
    out = module.norm(out, gate) if module.mamba_rms_norm else out * F.silu(gate)
    return module.out_proj(out.to(hidden.dtype))


# ---- Kimi delta attention --------------------------------------------------------------------------


def _kda_facts(module: Any) -> Mapping[str, Any]:
    return dict(family=_abi.ATTN_LINEAR_KDA,
                flags=_abi.ATTN_LINEAR_QK_L2NORM | _abi.ATTN_LINEAR_RAW_GATES,
                num_k_heads=module.num_heads, num_v_heads=module.num_heads,
                head_k_dim=module.head_dim, head_v_dim=module.head_dim,
                conv_width=module.conv_kernel_size, chunk=64, sm_scale=module.head_dim ** -0.5)


@_kind(_kda_facts, "KimiLinearDeltaAttention")
def _kimi_linear(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    mixed = torch.cat([p(hidden) for p in (module.q_proj, module.k_proj, module.v_proj)], -1)
    shape = (*hidden.shape[:2], module.num_heads, module.head_dim)
    forget = module.forget_gate
    gates = _gates(forget)
    gates["dt_bias"] = gates["dt_bias"].view(shape[2:])
    out = run(mixed_qkv=mixed, a=forget.f_b_proj(forget.f_a_proj(hidden)).view(shape),
              b=module.b_proj(hidden), **gates, **_convolution(module.conv1d))
    gate = module.g_b_proj(module.g_a_proj(hidden)).view(shape)
    return module.o_proj(module.o_norm(out, gate).flatten(2))


# ---- Lightning attention ---------------------------------------------------------------------------


def _lightning_facts(module: Any) -> Mapping[str, Any]:
    return dict(family=_abi.ATTN_LINEAR_LIGHTNING, num_k_heads=module.num_attention_heads,
                num_v_heads=module.num_attention_heads, head_k_dim=module.head_dim,
                head_v_dim=module.head_dim, chunk=module.block_size)


@_kind(_lightning_facts, "MiniMaxLightningAttention")
def _minimax(module: Any, hidden: torch.Tensor, run: Run) -> Tuple[torch.Tensor, None]:
    mixed = module.act_fn(module.qkv_proj(hidden))
    mixed = mixed.unflatten(-1, (module.num_attention_heads, 3, module.head_dim)).transpose(2, 3)
    out = run(mixed_qkv=mixed.flatten(2), A_log=-module.slope_rate.float().flatten())
    return module.out_proj(F.sigmoid(module.output_gate(hidden)) * module.norm(out.flatten(2))), None


# ---- Short convolution -----------------------------------------------------------------------------


def _short_facts(module: Any) -> Mapping[str, Any]:
    heads = module.config.num_attention_heads
    return dict(family=_abi.ATTN_LINEAR_SHORT_CONV, flags=_abi.ATTN_LINEAR_CONV_IDENTITY,
                num_v_heads=heads, head_v_dim=module.conv.in_channels // heads,
                conv_width=module.conv_kernel_size)


@_kind(_short_facts, "Lfm2ShortConv", "Lfm2MoeShortConv")
def _lfm2(module: Any, hidden: torch.Tensor, run: Run) -> torch.Tensor:
    before, after, mixed = module.in_proj(hidden).chunk(3, -1)
    return module.out_proj(after * run(mixed_qkv=before * mixed, **_convolution(module.conv)).flatten(2))
