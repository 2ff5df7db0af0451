#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sweep.py [--table] [TYPE...]: every causal model of the installed Transformers, tiny and with random weights, by
attnhost.generate beside its own eager attention without a cache.

A line for each: equal; refused, with the reason; differs, or failed: faults, and the exit code is 1; not made, where
no small model of its configuration's defaults runs eagerly. --table prints the table of docs/PYTHON.md instead. Each
model has a process of its own.
"""
import copy
import multiprocessing
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 120
PROCESSES = multiprocessing.get_context("fork")
PROMPTS = [[5, 17, 60, 3, 9, 44, 21, 33, 8, 71, 12], [90, 2, 35]]
NEW = 5
# By every name that a configuration has for it.
SMALL = {
    "vocab_size": 97, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "n_inner": 96, "intermediate_size": 96,
    "ffn_hidden_size": 96, "ffn_dim": 96, "d_ff": 96, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "shared_intermediate_size": 96,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "n_layers": 2, "decoder_layers": 2, "encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "rotary_dim": 8,
    "max_position_embeddings": 256, "n_positions": 256, "max_seq_len": 256, "sliding_window": 8, "num_experts": 4,
    "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 24, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    "embedding_size": 64, "word_embed_proj_dim": 64, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97,
    "num_kv_shared_layers": 1, "state_size": 8, "mamba_d_state": 8, "use_mamba_kernels": False, "layer_types": None,
}
LATENT = {"num_key_value_heads": 4}
USUAL = object()  # the class's default
CHANGES = ({}, {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, {"head_dim": USUAL}, {"layer_types": USUAL},
           {"num_hidden_layers": USUAL, "num_layers": USUAL, "n_group": USUAL, "topk_group": USUAL})  # tried in turn


def types():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small(kind, change):
    """A configuration of its class's defaults, made small where they have the name."""
    from transformers import CONFIG_MAPPING
    made = CONFIG_MAPPING[kind]
    usual = made()
    usual = getattr(usual, "text_config", None) or usual
    there = set(usual.to_dict())
    values = {name: value for name, value in {**SMALL, **change}.items()
              if value is not USUAL and name in there and not (value is not None and getattr(usual, name, 0) is None)}
    if "kv_lora_rank" in values:
        values.update(LATENT, head_dim=values["qk_rope_head_dim"])
    return type(usual)(**values)


def one(kind):
    """(outcome, why)"""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    sys.path.insert(0, HERE)
    from models import peak
    import attnhost
    import attnhost.transformers
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(20)
    for change in CHANGES:
        try:
            config = small(kind, change)
            eager = peak(AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager"))
            with torch.no_grad():
                wanted = [own(eager, prompt) for prompt in PROMPTS]
            break
        except Exception as error:  # pylint: disable=broad-except
            why = said(error)
    else:
        return "not made", why
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attnhost.transformers.NAME)
        model.load_state_dict(eager.state_dict())
        made = attnhost.generate(model.eval(), PROMPTS, max_new_tokens=NEW)
    except attnhost.Unsupported as error:
        return "refused", said(error)
    except Exception as error:  # pylint: disable=broad-except
        by_transformers = isinstance(error, KeyError) and error.args == (attnhost.transformers.NAME,) or \
            isinstance(error, ValueError) and "does not support" in str(error)
        return ("refused" if by_transformers else "failed"), said(error)
    made = [list(tokens)[-NEW:] for tokens in made]
    return ("equal", "") if made == wanted else ("differs", f"{made} for {wanted}")


def own(model, prompt):
    """Its greedy tokens, each by all of the text."""
    import torch
    tokens = list(prompt)
    for _ in range(NEW):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):]


def said(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def apart(kind):
    """In a process of its own: neither a crash nor what a model leaves reaches the next."""
    reader, writer = PROCESSES.Pipe(duplex=False)
    child = PROCESSES.Process(target=lambda: writer.send(one(kind)))
    child.start()
    writer.close()
    try:
        if not reader.poll(SECONDS):
            return "not made", f"more than {SECONDS} s"
        return reader.recv()
    except EOFError:
        child.join()
        return "failed", f"exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()


def main(arguments):
    import attnhost.transformers  # once, before processes are made
    table = "--table" in arguments
    results = {}
    for kind in [kind for kind in arguments if kind != "--table"] or types():
        results[kind] = apart(kind)
        if not table:
            print(f"{results[kind][0]:9} {kind:24} {results[kind][1]}", flush=True)
    if table:
        print("| outcome | models | which |\n|---|--:|---|")
        for outcome in dict.fromkeys(("equal", "refused", "not made", *(outcome for outcome, _ in results.values()))):
            kinds = [kind for kind, result in results.items() if result[0] == outcome]
            print(f"| {outcome} | {len(kinds)} | {', '.join(f'`{kind}`' for kind in kinds)} |")
    return any(outcome in ("differs", "failed") for outcome, _ in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
