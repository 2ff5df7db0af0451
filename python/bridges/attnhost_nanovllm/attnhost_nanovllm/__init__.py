# SPDX-License-Identifier: Apache-2.0
"""nano-vllm's attention by attnhost: imported before an LLM is made, it takes the place of flash_attn in it.

    import attnhost_nanovllm
    from nanovllm import LLM
    llm = LLM(model)                                        backends by the ini in ATTNHOST_INI
"""
import importlib.util
import sys

import attnhost.flash_attn

if "flash_attn" not in sys.modules and importlib.util.find_spec("flash_attn") is None:
    sys.modules["flash_attn"] = attnhost.flash_attn  # nano-vllm imports it, and its warm-up calls it

from .backend import rows  # noqa: E402, F401  installs
