#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate.py [SECTION.KEY=VALUE...]: text from a small Llama with random weights, its attention on
whatever the settings name. A token is a byte; what comes out is nonsense, and the same with every
backend.

    python3 generate.py attention.attention_backend=cpu_native
    python3 generate.py attention.attention_backend=example_rows plugins.path=plugin/example.so
"""
import sys

import attnhost
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

PROMPTS = ("The quick brown fox", "The quick brown dog", "attn")


def sections(settings):
    """{"kv_cache": {"page_size": "16"}} of "kv_cache.page_size=16"."""
    made = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        section, _, key = name.rpartition(".")
        made.setdefault(section, {})[key] = value
    return made


def main():
    attnhost.use(sections(sys.argv[1:]))
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256,
                         num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=512)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attnhost").eval()
    cache = attnhost.Cache(model)
    tails = attnhost.generate(model, [prompt.encode() for prompt in PROMPTS], 24, cache=cache)
    for prompt, tail in zip(PROMPTS, tails):
        print(prompt, bytes(tail))
    print(cache.engine.rows, file=sys.stderr)


if __name__ == "__main__":
    main()
