# SPDX-License-Identifier: Apache-2.0
"""Latent attention of Transformers' models (DeepSeek V2, V3 and V3.2, Kimi Linear, GLM-4 MoE Lite ...).

A module gives its cache the latents, c_kv and k_pe, and makes keys and values of them in expand_kv().
Here it hands them to a backend as they are: absorbed, where W_UK goes into the queries and W_UV comes
after the output, or expanded (attention.mla_prefill). Where a module has an indexer (DeepSeek V3.2), a backend
chooses the keys by the operands of the indexer, and always has the absorbed form. Layers after it may attend to
the same choice (GLM-5.1).
"""
import inspect
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from . import _abi


# Indexers by their class, and the function of the class's module that rotates their queries and keys.
INDEXERS = {"DeepseekV32Indexer": "apply_rotary_pos_emb",
            "GlmMoeDsaIndexer": "apply_rotary_pos_emb_interleave"}


def is_latent(module: torch.nn.Module) -> bool:
    return (all(hasattr(module, name) for name in ("expand_kv", "kv_b_proj", "kv_lora_rank"))
            and module.kv_b_proj.bias is None and (not hasattr(module, "indexer") or is_sparse(module)))


def has_indexer(module: torch.nn.Module) -> bool:
    return type(getattr(module, "indexer", None)).__name__ in INDEXERS


def is_sparse(module: torch.nn.Module) -> bool:
    """With an indexer of its own, or with the choice of an earlier layer."""
    return has_indexer(module) or bool(getattr(module, "skip_topk", False))


def members(module: Any, heads: int, scaling: Optional[float], dtype: int) -> Dict[str, Any]:
    """Of its attn_layer_group; labels and the indexer's queries are of `dtype`."""
    width, more = module.qk_nope_head_dim + module.qk_rope_head_dim, {}
    if is_sparse(module):
        own = module.indexer and dict(label_dim=module.indexer.head_dim, label_dtype=dtype,
                                      index_heads=module.indexer.n_heads, index_dtype=dtype)
        more = {"sparse": _abi.attn_sparse_dims(index_kind=_abi.ATTN_SPARSE_TOKEN, block_size=1,
                                                top_k=module.config.index_topk, **(own or {}))}
    return dict(kind="sparse" if more else "mla", kv_group=0, num_q_heads=heads, num_kv_heads=heads, head_dim=width,
                v_head_dim=module.v_head_dim,
                sm_scale=float(width ** -0.5 if scaling is None else scaling),
                mla=_abi.attn_mla_dims(kv_lora_rank=module.kv_lora_rank,
                                       rope_dim=module.qk_rope_head_dim,
                                       nope_dim=module.qk_nope_head_dim), **more)


def index_operands(indexer: Any, hidden_states: torch.Tensor, q_resid: torch.Tensor,
                   position_embeddings: Tuple[torch.Tensor, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Operands of an indexer's own forward, [batch, rows, ...]; its factors are in the weights."""
    rotate = getattr(inspect.getmodule(type(indexer)), INDEXERS[type(indexer).__name__])
    parts = (indexer.qk_rope_head_dim, indexer.head_dim - indexer.qk_rope_head_dim)
    q_rot, q_pass = indexer.wq_b(q_resid).unflatten(-1, (indexer.n_heads, indexer.head_dim)).split(parts, -1)
    k_rot, k_pass = indexer.k_norm(indexer.wk(hidden_states)).unsqueeze(2).split(parts, -1)
    q_rot, k_rot = rotate(q_rot, k_rot, *position_embeddings, unsqueeze_dim=2)
    weights = indexer.weights_proj(hidden_states.to(indexer.weights_proj.weight.dtype)).float()
    return {"index_q": torch.cat((q_rot, q_pass), -1), "index_k": torch.cat((k_rot, k_pass), -1).squeeze(2),
            "index_weights": weights * (indexer.n_heads ** -0.5 * indexer.softmax_scale)}


def absorb(dims: Any, weight: torch.Tensor, q: torch.Tensor) -> Tuple[
        torch.Tensor, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """q_nope and q_pe of [rows, heads, dim], and the function that turns the output into the heads' values; `weight`
    is kv_b_proj's."""
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
