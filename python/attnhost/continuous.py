# SPDX-License-Identifier: Apache-2.0
"""Transformers' own continuous batching, model.generate_batch(), on attnhost's backends:

    from attnhost.continuous import use_paged
    use_paged("serve.ini")
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="paged|eager")
    model.generate_batch(prompts)

Transformers (5.23, 5.24) takes names of its own there, and none that is registered: so attnhost registers its function
under one of them. Pages are Transformers'; it hands on the keys of each sequence, the new ones included, one sequence
after another, and each call is planned by itself. attnhost.generate() has pages of attnhost's, planned once a step.
"""
from typing import Any, Mapping, Optional, Tuple

import torch
from transformers import AttentionInterface

from . import flash_attn
from .errors import Unsupported
from .host import Host
from .transformers import use

NAME = "paged|eager"


def use_paged(config: Any = None, **sections: Mapping[str, Any]) -> Host:
    """Backends of "paged|eager" from now on, in all models of this process: an ini, its sections, or a Host."""
    host = flash_attn.use(use(config, **sections))
    AttentionInterface.register(NAME, attention)
    return host


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None, dropout: float = 0.0,
              **call: Any) -> Tuple[torch.Tensor, None]:
    """Rows of several sequences: query [1, heads, rows, dim], key and value [1, kv_heads, keys, dim]. The mask is not
    read, as lengths and the window are equivalent."""
    if isinstance(call.get("cu_seq_lens_k"), dict) and call.get("cache") is not None:  # left to us by 5.23
        key, value = call["cache"].update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=call)
    starts, key_starts = call.get("cu_seq_lens_q"), call.get("cu_seq_lens_k")
    if starts is None or key_starts is None or query.shape[0] != 1:
        raise Unsupported(f"attn_implementation=\"{NAME}\" outside of generate_batch(): accepted \"attnhost\"",
                          "UNSUPPORTED")
    if call.get("block_table") is not None:
        raise Unsupported("a block table of Transformers: accepted max_blocks_per_request=0", "UNSUPPORTED")
    window = call["sliding_window"] if "sliding_window" in call else getattr(module, "sliding_window", None)
    out = flash_attn.flash_attn_varlen_func(
        *(x[0].transpose(0, 1) for x in (query, key, value)), starts, key_starts, int(call["max_length_q"]),
        int(call["max_length_k"]), dropout, scaling, causal=True, window_size=(int(window) - 1 if window else -1, 0),
        softcap=call.get("softcap") or 0.0, sinks=call.get("s_aux"))
    return out[None], None
