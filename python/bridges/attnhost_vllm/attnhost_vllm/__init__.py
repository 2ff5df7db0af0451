# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention by attnhost. vLLM calls register() in each of its processes (the entry point
vllm.general_plugins); from then on --attention-backend takes the name."""

from typing import Any

from .chosen import CPU

PATH = "attnhost_vllm.chosen.Backend"


def backend_name() -> str:
    """The name for --attention-backend: ATTNHOST; CUSTOM if vLLM has no registry for external names (before 0.32)."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    return "ATTNHOST" if hasattr(AttentionBackendEnum, "register") else "CUSTOM"


def _member() -> Any:
    """Resolves the name in another process of vLLM, which reads its settings before it calls register()."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    register()
    return AttentionBackendEnum[backend_name()]


def register() -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name = backend_name()
    if name not in AttentionBackendEnum.__members__:
        AttentionBackendEnum.register(name, PATH).__reduce_ex__ = lambda _protocol: (_member, ())
    register_backend(AttentionBackendEnum[name], PATH)
    if current_platform.is_cpu():  # which takes its own, whatever it is asked for
        for own in CPU:
            if own in AttentionBackendEnum.__members__:
                register_backend(AttentionBackendEnum[own], f"attnhost_vllm.chosen.{own}")
