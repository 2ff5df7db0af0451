# SPDX-License-Identifier: Apache-2.0
"""Classes that are resolved at their first use. `Backend` is the backend of the model at hand: of latent layers, or
of all others. vLLM's platform of processors takes CPU_ATTN, CPU_MLA or AMX_MLA whatever --attention-backend says, and
logs that it cannot use another: these names stand for vLLM's own backend, or for ours if it was requested."""
from typing import Any

CPU = ("CPU_ATTN", "CPU_MLA", "AMX_MLA")


def __getattr__(name: str) -> Any:
    if name not in ("Backend", *CPU):
        raise AttributeError(f"module 'attnhost_vllm.chosen' has no attribute '{name}'")
    from vllm.config import get_current_vllm_config_or_none
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from . import backend_name
    config = get_current_vllm_config_or_none()
    asked = config.attention_config.backend if config else None
    if name in CPU and (asked is None or asked.name != backend_name()):
        return resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    model = config.model_config if config else None
    if name in CPU[1:] or (name == "Backend" and model is not None and model.use_mla):
        from .mla import AttnhostMlaBackend
        return AttnhostMlaBackend
    from .backend import AttnhostBackend
    return AttnhostBackend
