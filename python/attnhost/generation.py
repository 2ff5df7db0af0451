# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: many prompts of unequal lengths through a model of Transformers."""
import itertools
import logging
from typing import Any, List, Optional, Sequence as Many, Tuple, Union

import torch

from .engine import Engine, Sequence
from .errors import InvalidArgument, Unsupported
from .graphs import DecodeGraphs
from .transformers import Cache, cache_argument, itself, keeps_some_logits, takes_positions

_LOG = logging.getLogger("attnhost")


class _Request:
    def __init__(self, index: int, prompt: Many[int], room: int) -> None:
        self.index, self.prompt, self.room = index, [int(token) for token in prompt], room
        self.sequence: Optional[Sequence] = None
        self.made: List[int] = []

    @property
    def left(self) -> int:
        """Tokens that are known and have no keys yet."""
        return len(self.sequence.tokens) - self.sequence.length


def _schedule(engine: Engine, running: List[_Request]) -> List[Tuple[_Request, int]]:
    """Rows of the next step, as many as the engine takes: first those that decode, then prompts, the
    shortest first, in chunks."""
    work, budget = [], engine.max_tokens
    for request in sorted(running, key=lambda r: r.left):
        count = engine.border(request.sequence, min(request.left, budget)) if budget else 0
        if count:
            work.append((request, count))
            budget -= count
    return work


@torch.no_grad()
def generate(model: torch.nn.Module, prompts: Many[Many[int]], max_new_tokens: int = 20, *,
             eos_token_id: Union[int, Many[int], None] = None, cache: Optional[Cache] = None,
             graphs: Optional[bool] = None, **sizes: Any) -> List[List[int]]:
    """The greedy continuation of each prompt, a list of token ids.

    Continuous batching: prompts start as soon as there is room, in chunks of the engine's
    max_tokens; their rows are packed with those that decode; equal prefixes are computed once.
    `cache` can be given to keep prefixes from call to call.

    On a GPU, steps in which all sequences decode are replayed from CUDA graphs (graphs.py). `graphs` says
    that they must be, or must not; by default they are where backends and model can be captured, unless
    the ini says cuda_graph.enable = no.
    """
    if max_new_tokens < 1:
        raise InvalidArgument(f"max_new_tokens {max_new_tokens}: accepted 1 and more", "INVALID_ARGUMENT")
    if cache is None:
        cache = Cache(model, **sizes)
    elif not isinstance(cache, Cache) or cache.model() is not itself(model):
        raise InvalidArgument(f"cache: a {type(cache).__name__} of another kind or model: accepted "
                              "attnhost.Cache(model) of this one", "INVALID_ARGUMENT")
    if cache.sequences:
        raise InvalidArgument("this cache is in use by model.generate(); accepted: another one, or "
                              "Cache.clear() before", "BAD_STATE")
    cache.refuse_unplaced()
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    engine = cache.engine
    _prepare_graphs(model, cache, graphs)
    waiting = [_Request(i, prompt, max_new_tokens) for i, prompt in enumerate(prompts)]
    for request in waiting:
        needed = len(request.prompt) + max_new_tokens - 1
        if not request.prompt or needed > engine.max_len:
            raise InvalidArgument(
                f"prompt {request.index}: {len(request.prompt)} tokens, {max_new_tokens} to be "
                f"made: accepted 1 to {engine.max_len} together", "INVALID_ARGUMENT")
    results: List[List[int]] = [[] for _ in prompts]
    running: List[_Request] = []
    promised = 0  # pages that running sequences may still need
    try:
        while waiting or running:
            while waiting and len(running) < engine.max_seqs:
                pages = engine.pages_of(len(waiting[0].prompt) + max_new_tokens)
                if running and promised + pages > len(engine.pages.users) - 1:
                    break
                promised += pages
                request = waiting.pop(0)
                request.sequence = engine.add(request.prompt)
                running.append(request)
            work = _schedule(engine, running)
            for request in _take(work, _compute(model, cache, work, graphs), ends):
                promised -= engine.pages_of(len(request.prompt) + max_new_tokens)
                results[request.index] = request.made
                engine.free(request.sequence)
                running.remove(request)
    finally:
        for request in running:
            engine.free(request.sequence)
    return results


def _prepare_graphs(model: torch.nn.Module, cache: Cache, wanted: Optional[bool]) -> None:
    if wanted is None:
        enabled = cache.engine.host.settings.get("cuda_graph.enable", "yes").lower()
        wanted = enabled not in ("no", "false", "off", "0") and not cache.engine.why_no_graphs()
    if not wanted:
        cache.graphs = None
    elif cache.graphs is None or cache.graphs.model is not model:
        cache.graphs = DecodeGraphs(model, cache)


Work = List[Tuple[_Request, int]]


def _compute(model: torch.nn.Module, cache: Cache, work: Work, graphs: Optional[bool]) -> torch.Tensor:
    """A step. Returns the logits of the last row of each."""
    if cache.graphs and all(r.left == 1 for r, _ in work) and cache.graphs.covers(len(work)):
        try:
            return cache.graphs.step([request.sequence for request, _ in work])
        except Unsupported as error:
            if graphs:
                raise
            _LOG.warning("without graphs: %s", error)
            cache.graphs = None
    return _call(model, cache, work)


def _call(model: torch.nn.Module, cache: Cache, work: Work) -> torch.Tensor:
    """A call of the model. Returns the logits of the last row of each."""
    device = cache.engine.device
    tokens, positions = [], []
    for request, count in work:
        start = request.sequence.length
        tokens += request.sequence.tokens[start:start + count]
        positions += range(start, start + count)
    last = torch.tensor([end - 1 for end in itertools.accumulate(count for _, count in work)], device=device)
    placed = torch.tensor([positions], device=device)
    more = {"position_ids": placed} if takes_positions(model) else {}
    if len(last) < len(tokens) and keeps_some_logits(model):
        more["logits_to_keep"] = last
    cache.begin([(request.sequence, count) for request, count in work])
    with cache.packed(placed):
        try:
            logits = model(input_ids=torch.tensor([tokens], device=device), use_cache=True,
                           **{cache_argument(model): cache}, **more).logits[0]
        except TypeError as error:  # it takes the cache's length for a number
            raise Unsupported(f"{type(model).__name__}: its own code fails with several sequences in a row: {error}: "
                              "accepted model.generate()", "UNSUPPORTED") from error
    cache.engine.confirm()
    return logits if "logits_to_keep" in more else logits[last]


def _take(work: Work, logits: torch.Tensor, ends: set) -> List[_Request]:
    """The greatest logits are the next tokens. Returns the requests that are finished."""
    finished = []
    for (request, _), token in zip(work, logits.argmax(-1).tolist()):
        if request.left:
            continue  # in the middle of its prompt
        request.made.append(token)
        request.sequence.tokens.append(token)
        if len(request.made) == request.room or token in ends:
            finished.append(request)
    return finished
