# SPDX-License-Identifier: Apache-2.0
"""nano-vllm ($ATTNHOST_NANOVLLM, a checkout) with real weights: its flash_attn is attnhost.flash_attn, or the bridge plans
its batches, beside PyTorch's SDPA."""
import atexit
import contextlib
import os
import sys
from collections import Counter
from functools import lru_cache

os.environ["TORCHDYNAMO_DISABLE"] = "1"
sys.path.insert(0, os.environ["ATTNHOST_NANOVLLM"])

import torch

import attnhost.flash_attn
import smollm
from cuda_on_cpu import attend, module, on_cpu  # before Triton's place is taken
from harness import cases

module("triton", jit=lambda function: function, language=module("triton.language", constexpr=int))
sys.modules["flash_attn"] = attnhost.flash_attn  # what docs/ENGINES.md says to do
from nanovllm import LLM, SamplingParams
from nanovllm.engine import model_runner
from nanovllm.layers import attention

SHARED = " ".join(map(str, range(130)))  # more than a block of 256 tokens
PROMPTS = [*smollm.PROMPTS, SHARED + " and then", SHARED + ", so"]
BLOCK = 2 * 30 * 256 * 3 * 64 * 4  # bytes of a block of SmolLM2's cache
_made = {}


def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    """nano-vllm's Triton kernel."""
    there = slot_mapping >= 0
    for x, cache in ((key, k_cache), (value, v_cache)):
        cache.view(-1, *x.shape[1:])[slot_mapping[there].long()] = x[there]


class Sdpa:
    """flash_attn's two functions as nano-vllm calls them, by PyTorch."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale,
                               causal, block_table):
        out = torch.empty_like(q)
        for s, keys in enumerate(cu_seqlens_k.diff().tolist()):
            first, last = cu_seqlens_q[s:s + 2].tolist()
            where = slice(cu_seqlens_k[s], cu_seqlens_k[s + 1])
            own = [x[where] if block_table is None else _pages(x, block_table[s], keys) for x in (k, v)]
            out[first:last] = attend(q[first:last], *own, softmax_scale)
        return out

    @staticmethod
    def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal):
        return torch.stack([attend(q[s], *(_pages(x, block_table[s], keys) for x in (k_cache, v_cache)), softmax_scale)
                            for s, keys in enumerate(cache_seqlens.tolist())])


def _pages(cache, pages, keys):
    return cache[pages[pages >= 0].long()].flatten(0, 1)[:keys]


def text(functions, blocks, **given):
    """Tokens of all prompts: chunks, shared blocks, and, where blocks are few, sequences computed twice."""
    attention.store_kvcache = store_kvcache
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        setattr(attention, name, getattr(functions, name))
    torch.manual_seed(0)
    with on_cpu(memory=blocks * BLOCK), torch.inference_mode():  # as .float() copies no fp32
        llm = LLM(smollm.weights_as_qwen3(), max_model_len=512, max_num_batched_tokens=512, max_num_seqs=8,
                  gpu_memory_utilization=1.0, **{"enforce_eager": True, **given})
        made = llm.generate(PROMPTS, SamplingParams(temperature=1e-6, max_tokens=32), use_tqdm=False)
        atexit.unregister(llm.exit)
        llm.exit()
        return [one["token_ids"] for one in made]


def own():
    if "own" not in _made:
        _made["own"] = text(Sdpa, 16)
    return _made["own"]


@cases(("one backend", smollm.SINGLE, 16, ["cpu_native"]), ("prefill and decode by two", smollm.SPLIT, 7, ["one", "two"]))
def test_the_text_of_attention_by_pytorch(_, ini, blocks, computed):
    attnhost.flash_attn.use(smollm.ini(ini))
    made = text(attnhost.flash_attn, blocks)
    rows = attnhost.flash_attn.rows()
    assert made == own()
    assert sorted(name for name in rows if name in ("cpu_native", "one", "two")) == computed, rows


# ---- The bridge: from here on batches are planned ------------------------------------------------------


class Graph:
    """In place of a CUDA graph: what was captured is computed again, over the same static arrays."""

    pool = staticmethod(lambda: None)
    replay = None


def capture(runner, _own=model_runner.ModelRunner.capture_cudagraph):
    """nano-vllm's own, with graphs of this kind."""
    captured, contexts, model = [], [], runner.model

    def graph(made, _pool):
        captured.append(made)
        contexts.append(model_runner.get_context())
        return contextlib.nullcontext()

    def replay(made):
        context = contexts[captured.index(made)]
        size, arrays = len(context.block_tables), runner.graph_vars
        arrays["outputs"][:size] = model(arrays["input_ids"][:size], arrays["positions"][:size])

    Graph.replay = replay
    own = torch.cuda.CUDAGraph, torch.cuda.graph
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, graph
    try:
        _own(runner)
    finally:
        torch.cuda.CUDAGraph, torch.cuda.graph = own


@lru_cache(maxsize=None)
def bridged():
    model_runner.ModelRunner.capture_cudagraph = capture
    import attnhost_nanovllm
    return attnhost_nanovllm


@cases(("one backend", smollm.SINGLE, 16, True, ["cpu_native"]),
       ("prefill and decode by two, graphs", smollm.SPLIT, 7, False, ["one", "two"]))
def test_the_text_of_the_bridge(_, ini, blocks, eager, computed):
    expected = own()
    os.environ["ATTNHOST_INI"] = smollm.ini(ini)
    bridge = bridged()
    before = Counter(bridge.rows())
    made = text(attnhost.flash_attn, blocks, enforce_eager=eager)
    rows = Counter(bridge.rows()) - before
    assert made == expected
    assert sorted(name for name in rows if name in ("cpu_native", "one", "two")) == computed, rows
