# SPDX-License-Identifier: Apache-2.0
"""Models with ALiBi (BLOOM, MPT), which call no attention interface: their forward up to attention and
after it. Slopes times the distance to a key, and slopes times the key's position, as these models add
them, are the same to a softmax."""
import math
from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn

# q, k, v as [batch, heads, rows, dim], the slopes, the scale -> [batch, rows, heads, dim]
Attend = Callable[..., torch.Tensor]


def slopes_of(heads: int, device: torch.device) -> torch.Tensor:
    """[heads], fp32: 2^(-8 i / n) of n heads, if that is a power of two; else of the next smaller one, and
    for the other heads the odd ones of twice as many (Press et al. 2022, https://arxiv.org/abs/2108.12409)."""
    whole = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def _bloom(module: Any, attend: Attend, hidden: torch.Tensor, residual: torch.Tensor, alibi: torch.Tensor,
           **_: Any) -> Tuple[torch.Tensor, None]:
    slopes = slopes_of(module.num_heads, alibi.device)
    q, k, v = module._reshape(module.query_key_value(hidden))
    out = attend(q, k, v, slopes, module.inv_norm_factor)
    return residual + module.dense(out.flatten(2)), None


def _mpt(module: Any, attend: Attend, hidden: torch.Tensor, position_bias: torch.Tensor,
         **_: Any) -> Tuple[torch.Tensor, None]:
    mixed = module.Wqkv(hidden)
    if module.clip_qkv:
        mixed = mixed.clamp(-module.clip_qkv, module.clip_qkv)
    q, k, v = mixed.unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    slopes = (position_bias[:, :, -1] - position_bias[:, :, -2]).flatten()
    return module.out_proj(attend(q, k, v, slopes, module.softmax_scale).flatten(2)), None


KINDS: Dict[str, Callable[..., Tuple[torch.Tensor, None]]] = {"BloomAttention": _bloom,
                                                              "MptAttention": _mpt}


def is_known(module: nn.Module) -> bool:
    return type(module).__name__ in KINDS
