# SPDX-License-Identifier: Apache-2.0
"""vLLM's platform of processors takes CPU_ATTN whatever --attention-backend says, and logs that it cannot use
another. `Chosen`, which stands for CPU_ATTN, is vLLM's own backend, or ours where it was asked for."""
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Chosen":
        raise AttributeError(f"module 'attnhost_vllm.cpu' has no attribute '{name}'")
    from vllm.config import get_current_vllm_config_or_none

    from . import backend_name
    config = get_current_vllm_config_or_none()
    asked = config.attention_config.backend if config else None
    if asked is not None and asked.name == backend_name():
        from .backend import AttnhostBackend
        return AttnhostBackend
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    return CPUAttentionBackend
