# SPDX-License-Identifier: Apache-2.0
"""Latent attention of Transformers' models (DeepSeek V2 and V3, Kimi Linear, GLM-4 MoE Lite ...).

A module gives its cache the latents, c_kv and k_pe, and makes keys and values of them in expand_kv().
Here it hands them to a backend as they are: absorbed, where W_UK goes into the queries and W_UV comes
after the output, or expanded (attention.mla_prefill).
"""
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from . import _abi


def is_latent(module: torch.nn.Module) -> bool:
    """Those with an indexer choose their keys, and are another kind."""
    return (all(hasattr(module, name) for name in ("expand_kv", "kv_b_proj", "kv_lora_rank"))
            and module.kv_b_proj.bias is None and not hasattr(module, "indexer"))


def members(module: Any, heads: int, scaling: Optional[float]) -> Dict[str, Any]:
    """Of its attn_layer_group."""
    width = module.qk_nope_head_dim + module.qk_rope_head_dim
    return dict(kind="mla", kv_group=0, num_q_heads=heads, num_kv_heads=heads, head_dim=width,
                v_head_dim=module.v_head_dim,
                sm_scale=float(width ** -0.5 if scaling is None else scaling),
                mla=_abi.attn_mla_dims(kv_lora_rank=module.kv_lora_rank,
                                       rope_dim=module.qk_rope_head_dim,
                                       nope_dim=module.qk_nope_head_dim))


def absorb(dims: Any, weight: torch.Tensor, q: torch.Tensor) -> Tuple[
        torch.Tensor, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """q_nope and q_pe of [rows, heads, dim], and what makes the heads' values of the output; `weight` is
    kv_b_proj's."""
    up = weight.unflatten(0, (q.shape[1], -1))
    w_uk, w_uv = up[:, :dims.nope_dim], up[:, dims.nope_dim:]
    q_nope, q_pe = q.split((dims.nope_dim, dims.rope_dim), -1)
    return (torch.einsum("thd,hdr->thr", q_nope, w_uk).contiguous(), q_pe,
            lambda out: torch.einsum("thr,hvr->thv", out, w_uv))


def expander(dims: Any, weight: torch.Tensor,
             heads: int) -> Callable[..., Tuple[torch.Tensor, torch.Tensor]]:
    """c_kv and k_pe, [rows, width] each -> k and v, [rows, heads, dim]."""
    def expand(c_kv: torch.Tensor, k_pe: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        made = (c_kv @ weight.T).unflatten(1, (heads, -1))
        k_pe = k_pe[:, None].expand(-1, heads, -1)
        return torch.cat((made[..., :dims.nope_dim], k_pe), -1), made[..., dims.nope_dim:]
    return expand
