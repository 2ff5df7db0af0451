# SPDX-License-Identifier: Apache-2.0
"""mini-sglang ($ATTNHOST_MINISGL, a checkout) with real weights: its engine and scheduler with the attention backend
`attnhost`, beside one of PyTorch's SDPA."""
import os
import sys

sys.path.insert(0, os.path.join(os.environ["ATTNHOST_MINISGL"], "python"))

import torch

import cuda_on_cpu
import smollm
from cuda_on_cpu import attend, on_cpu
from harness import cases

cuda_on_cpu.flashinfer()
import minisgl.core
import minisgl.distributed.info
import minisgl.kernel
from minisgl.attention import BaseAttnBackend, BaseAttnMetadata, SUPPORTED_ATTENTION_BACKENDS
from minisgl.core import SamplingParams
from minisgl.engine.graph import GraphRunner
from minisgl.llm import LLM
import attnhost_minisgl
from attnhost_minisgl import backend

MEMORY = 1 << 30
_made = {}


def fast_compare_key(x, y):
    """How many tokens are the same: mini-sglang compiles it."""
    size = min(len(x), len(y))
    differ = (x[:size] != y[:size]).nonzero()
    return int(differ[0]) if len(differ) else size


def indexing(weights, indices, *, output=None, vocab_range=None):
    return torch.nn.functional.embedding(indices, weights)


minisgl.kernel.fast_compare_key = fast_compare_key
minisgl.kernel.indexing = indexing


class Metadata(BaseAttnMetadata):
    def __init__(self, batch):
        self.counts = [request.extend_len for request in batch.reqs]
        self.keys = [(request.table_idx, request.device_len) for request in batch.reqs]

    def get_last_indices(self, bs):
        return torch.tensor(self.counts).cumsum(0)[:bs] - 1


@SUPPORTED_ATTENTION_BACKENDS.register("sdpa")
class Sdpa(BaseAttnBackend):
    """To compare with."""

    def __init__(self, config):
        self.context, self.scale = minisgl.core.get_global_ctx(), config.head_dim ** -0.5

    def prepare_metadata(self, batch):
        batch.attn_metadata = Metadata(batch)

    def forward(self, q, k, v, layer_id, batch):
        caches = [cache(layer_id).flatten(0, 1) for cache in (self.context.kv_cache.k_cache, self.context.kv_cache.v_cache)]
        for new, cache in zip((k, v), caches):
            cache[batch.out_loc.long()] = new.reshape(-1, *cache.shape[1:])
        out, metadata, first = torch.empty_like(q), batch.attn_metadata, 0
        for count, (row, keys) in zip(metadata.counts, metadata.keys):
            slots = self.context.page_table[row, :keys].long()
            out[first:first + count] = attend(q[first:first + count], *(cache[slots] for cache in caches), self.scale)
            first += count
        return out

    init_capture_graph = prepare_for_capture = prepare_for_replay = None


class Graph:
    """In place of a CUDA graph: what was captured is computed again, over the same static arrays."""

    def pool(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def capture(self, max_seq_len, vocab_size, model, _own=GraphRunner._capture_graphs):
    captured, prepare = {}, self.attn_backend.prepare_for_capture

    def prepared(batch):
        prepare(batch)
        captured[batch.size] = batch

    self.attn_backend.prepare_for_capture = prepared
    own = torch.cuda.CUDAGraph, torch.cuda.graph
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, lambda graph, **_: graph
    try:
        _own(self, max_seq_len, vocab_size, model)
    finally:
        torch.cuda.CUDAGraph, torch.cuda.graph = own

    def replay(graph):
        context, [size] = minisgl.core.get_global_ctx(), [n for n, made in self.graph_map.items() if made is graph]
        now, context._batch = context._batch, captured[size]
        self.buffer.logits[:size] = model.forward()
        context._batch = now

    Graph.replay = replay


GraphRunner._capture_graphs = capture


def text(name, **given):
    """Tokens of all prompts: chunks of 64, shared prefixes, the scheduler one batch ahead."""
    minisgl.core._GLOBAL_CTX = minisgl.distributed.info._TP_INFO = None
    with on_cpu(memory=MEMORY):
        llm = LLM(smollm.weights(), dtype=torch.float32, attention_backend=name, max_running_req=4,
                  max_extend_tokens=64, max_seq_len_override=256, memory_ratio=0.2, **given)
        made = llm.generate(smollm.PROMPTS, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True))
        return [one["token_ids"] for one in made]


def own():
    if "own" not in _made:
        _made["own"] = text("sdpa", cuda_graph_max_bs=0)
    return _made["own"]


@cases(("one backend, pages of a token, no graphs", smollm.SINGLE, 1, 0, ["cpu_native"]),
       ("prefill and decode by two, pages of 16, graphs", smollm.SPLIT, 16, 4, ["one", "two"]))
def test_the_text_of_attention_by_pytorch(_, ini, page_size, graphs, computed):
    os.environ["ATTNHOST_INI"] = smollm.ini(ini)
    backend._PREFILL_TOKENS = 32  # a planner that must grow
    made = text("attnhost", page_size=page_size, cuda_graph_max_bs=graphs)
    rows = backend.rows()
    assert made == own()
    assert sorted(name for name in rows if name in ("cpu_native", "one", "two")) == computed, rows


def test_its_server_starts_with_the_backend():
    from minisgl.attention import validate_attn_backend
    assert validate_attn_backend("attnhost") == "attnhost"
