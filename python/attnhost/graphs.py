# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a model as CUDA graphs: all of it, attention and the rest, is one launch.

    graphs = DecodeGraphs(model, cache)
    logits = graphs.step(sequences)             the next token of each of them

There is a graph for each of some sizes of a batch (cuda_graph.bs of the ini), captured when it is first
needed; a smaller batch is padded. Before each replay the step is planned anew: lengths, pages and tokens
go to where the graph reads them, in one copy. Nothing waits for the GPU; the results are on it.
"""
import gc
from typing import Any, Callable, Dict, List, Sequence as Many, Tuple

import torch

from .engine import Sequence
from .errors import Unsupported
from .transformers import Cache, cache_argument, takes_positions

SIZES = "1 2 4 8-64/8"  # the default of cuda_graph.bs


def read_sizes(text: str) -> List[int]:
    """Of cuda_graph.bs: "1 2 4 8-64/8" ends with 8, 16, 24 ... 64."""
    sizes = set()
    for item in text.split():
        ends, _, stride = item.partition("/")
        first, _, last = ends.partition("-")
        sizes.update(range(int(first), int(last or first) + 1, int(stride or 1)))
    return sorted(sizes)


class DecodeGraphs:
    """The graphs of a model and a cache."""

    def __init__(self, model: torch.nn.Module, cache: Cache) -> None:
        reason = cache.engine.why_no_graphs()
        if reason:
            raise Unsupported(f"graphs of {type(model).__name__}: {reason}", "UNSUPPORTED")
        self.model, self.cache = model, cache
        most = cache.engine.max_seqs
        wanted = read_sizes(cache.engine.host.settings.get("cuda_graph.bs", SIZES))
        self.sizes = sorted({min(size, most) for size in wanted})
        self._graphs: Dict[int, "DecodeGraph"] = {}
        self._pool: Any = None  # of memory, which all graphs share

    def covers(self, count: int) -> bool:
        """Is there a graph for so many sequences?"""
        return 0 < count <= self.sizes[-1]

    def step(self, sequences: Many[Sequence]) -> torch.Tensor:
        """The logits of the next token of each, [sequences, vocabulary], until the next step."""
        size = next(size for size in self.sizes if size >= len(sequences))
        if size not in self._graphs:
            self._graphs[size] = DecodeGraph(self.model, self.cache, size, self._record)
        return self._graphs[size].step(sequences)

    def _record(self, run: Callable[[], torch.Tensor], size: int) -> Tuple[Callable[[], None], torch.Tensor]:
        """The function that replays it, and the tensor of its result."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        return capture(run, f"{size} decodes of {type(self.model).__name__}", self._pool)


def capture(run: Callable[[], Any], what: str, pool: Any = None) -> Tuple[Callable[[], None], Any]:
    """A graph of the work of `run`: the function that replays it, and its result. `run` is called twice before: first
    for the allocations of a first call, then to check that it waits for nothing."""
    mode, current = torch.cuda.get_sync_debug_mode(), torch.cuda.current_stream()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            run()
            torch.cuda.set_sync_debug_mode("error")
            run()
            torch.cuda.set_sync_debug_mode(mode)
        current.wait_stream(side)
        gc.collect()  # nothing may be freed by the driver while it captures
        with torch.cuda.graph(graph, pool=pool):
            result = run()
    except RuntimeError as error:
        raise Unsupported(f"a graph of {what}: {str(error).splitlines()[0]}; accepted: a model that waits "
                          "for nothing in a step, or cuda_graph.enable = no", "CAPTURE_UNSUPPORTED") from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return graph.replay, result


class DecodeGraph:
    """A graph of `size` sequences. `record` captures a function and returns what replays it."""

    def __init__(self, model: torch.nn.Module, cache: Cache, size: int,
                 record: Callable[..., Tuple[Callable[[], None], torch.Tensor]]) -> None:
        self.model, self.cache = model, cache
        self._argument, self._placed = cache_argument(model), takes_positions(model)
        self._step = cache.engine.graph_step(size)
        with torch.no_grad():
            self.cache.begin([], self._step)  # nothing but padding
            self._replay, self._logits = record(self._run, size)

    def _run(self) -> torch.Tensor:
        self.cache.expect()
        placed = {"position_ids": self._step.positions} if self._placed else {}
        with self.cache.packed(self._step.positions):
            return self._step.captured(lambda: self.model(
                input_ids=self._step.ids, use_cache=True, **{self._argument: self.cache}, **placed).logits[:, 0])

    def step(self, sequences: Many[Sequence]) -> torch.Tensor:
        """As DecodeGraphs.step()."""
        self.cache.begin([(sequence, 1) for sequence in sequences], self._step)
        self._replay()
        self.cache.engine.confirm()
        return self._logits[:len(sequences)]
