# SPDX-License-Identifier: Apache-2.0
"""SGLang's attention by attnhost. SGLang calls register() in each of its processes (the entry point
sglang.srt.plugins); from then on --attention-backend takes `attnhost`."""
from typing import Any


def register() -> None:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    from sglang.srt.server_args import (ATTENTION_BACKEND_CHOICES, DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
                                        add_attention_backend_choices, add_deterministic_attention_backend_choices)

    if "attnhost" not in ATTENTION_BACKENDS:
        register_attention_backend("attnhost")(_create)
    if "attnhost" not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices(["attnhost"])
    if "attnhost" not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:  # of the backends those that are; not by shared prefixes
        add_deterministic_attention_backend_choices(["attnhost"])


def _create(runner: Any) -> Any:
    from .backend import AttnhostBackend
    return AttnhostBackend(runner)
