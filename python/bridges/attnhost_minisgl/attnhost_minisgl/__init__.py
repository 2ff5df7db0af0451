# SPDX-License-Identifier: Apache-2.0
"""mini-sglang's attention by attnhost: imported, it registers the attention backend `attnhost`.

    import attnhost_minisgl
    from minisgl.llm import LLM
    llm = LLM(model, attention_backend="attnhost")          backends by the ini in ATTNHOST_INI
"""
from minisgl.attention import SUPPORTED_ATTENTION_BACKENDS


@SUPPORTED_ATTENTION_BACKENDS.register("attnhost")
def create_attnhost_backend(config):  # type: ignore[no-untyped-def]
    from .backend import AttnhostBackend
    return AttnhostBackend(config)
