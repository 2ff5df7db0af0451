# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers (5 and newer) on attnhost's backends.

    attnhost.use("serve.ini")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attnhost")
    attnhost.generate(model, prompts)                         packed, continuous batching
    model.generate(ids, past_key_values=attnhost.Cache(model))    Transformers' own loop

Keys and values lie in pages of this cache; a model's own code computes everything but attention.
"""
import itertools
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence as Many, Tuple, Union

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache as TransformersCache, CacheLayerMixin

from . import _abi
from .engine import Engine, Sequence
from .errors import InvalidArgument, Unsupported
from .host import Host
from .problem import layer_group

NAME = "attnhost"
_host: Optional[Host] = None
_recorded: Optional[List["Layer"]] = None  # while describe() looks
_awaiting: Optional[Tuple["Cache", int, int]] = None  # a cache, a layer, its new keys: update() to attention()


def use(config: Any = None, **sections: Mapping[str, Any]) -> Host:
    """What serves models from now on: an ini, its sections, or a Host."""
    global _host  # pylint: disable=global-statement
    _host = config if isinstance(config, Host) else Host(config, **sections)
    return _host


def host() -> Host:
    """The one of the last use(); without one, all that is installed, chosen by `auto`."""
    return _host or use()


# ---- What a model is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """An attention layer as it calls attention."""

    layer: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    sm_scale: float
    window_left: int
    window_right: int
    attention_chunk: int
    logit_cap: float
    sinks: bool


def _window(module: Any, sliding_window: Any) -> int:
    """window_left: a sliding_window counts the query itself."""
    if sliding_window is None:
        sliding_window = getattr(module, "sliding_window", None)
    return int(sliding_window) - 1 if sliding_window else -1


def _chunk(module: Any) -> int:
    """Keys of a chunk, where the config says that the layer attends within chunks."""
    config, index = module.config, module.layer_idx
    kinds = getattr(config, "layer_types", None) or []
    if index < len(kinds) and kinds[index] == "chunked_attention":
        return int(config.attention_chunk_size)
    return 0


def _see(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
         scaling: Optional[float], call: Mapping[str, Any]) -> Layer:
    if call.get("position_bias") is not None:
        raise Unsupported(f"layer {module.layer_idx}: a position bias that is added to the scores: "
                          "accepted none", "UNSUPPORTED")
    causal = call.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return Layer(module.layer_idx, query.shape[1], key.shape[1], query.shape[3], value.shape[3],
                 float(query.shape[3] ** -0.5 if scaling is None else scaling),
                 _window(module, call.get("sliding_window")), 0 if causal else -1, _chunk(module),
                 float(call.get("softcap") or 0), call.get("s_aux") is not None)


def describe(model: torch.nn.Module) -> List[_abi.attn_layer_group]:
    """The layer groups of a live model, whatever its architecture: what its layers ask of
    attention in a step of two tokens, in which attention answers zeros."""
    global _recorded  # pylint: disable=global-statement
    _recorded = []
    try:
        ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)
        seen = sorted(_recorded, key=lambda layer: layer.layer)
    finally:
        _recorded = None
    if not seen:
        raise Unsupported(f"{type(model).__name__}: no layer calls attention through the interface; "
                          'accepted: a model made with attn_implementation="attnhost"',
                          "UNSUPPORTED")
    if len({layer.layer for layer in seen}) < len(seen):
        raise Unsupported(f"{type(model).__name__}: a layer calls attention twice (cross "
                          "attention): accepted once", "UNSUPPORTED")
    kinds: Dict[Tuple, List[int]] = {}
    for layer in seen:
        kinds.setdefault(tuple(vars(layer).items())[1:], []).append(layer.layer)
    return [layer_group(layers, kv_group=0, **dict(kind)) for kind, layers in kinds.items()]


# ---- The cache -------------------------------------------------------------------------------------


class _CacheLayer(CacheLayerMixin):
    """A layer of Cache, as Transformers wants to see it: it hands the new keys on."""

    is_sliding = False

    def __init__(self, cache: "Cache", index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        self.cache.expect(self.index, key_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        return self.cache.columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.columns

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.cache.clear()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise Unsupported("beam search: accepted greedy search and sampling", "UNSUPPORTED")

    def crop(self, tokens_to_remove: int) -> None:
        raise Unsupported("crop: accepted caches that only grow", "UNSUPPORTED")


class Cache(TransformersCache):
    """Keys and values in pages, for past_key_values of a model on attnhost.

    Backends are chosen, asked and made here: what none can serve is an exception before the first
    token. A batch may be padded on either side (attention_mask); padding takes no page. For the
    sizes see Engine.
    """

    def __init__(self, model: torch.nn.Module, **sizes: Any) -> None:
        if model.config._attn_implementation != NAME:
            raise InvalidArgument(
                f"the model's attention is '{model.config._attn_implementation}': accepted "
                f"attn_implementation=\"{NAME}\"", "INVALID_ARGUMENT")
        groups = describe(model)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if longest and not sizes.get("max_len"):
            room = sizes.get("num_tokens") or host().settings.get("kv_cache.max_total_tokens", 16384)
            sizes["max_len"] = min(longest, int(room))
        self.engine = Engine(host(), groups, dtype=model.dtype, device=model.device,
                             name=type(model).__name__, **sizes)
        count = 1 + max(self.engine.layers)
        super().__init__(layers=[_CacheLayer(self, index) for index in range(count)])
        self.columns = 0  # of the batch, padding included
        self.sequences: List[Sequence] = []
        self._rows: Optional[torch.Tensor] = None  # of q that are no padding; None = all
        self._planned = False
        self._called: set = set()  # layers of this step

    def clear(self) -> None:
        """Forget all sequences."""
        for sequence in self.sequences:
            self.engine.free(sequence)
        self.sequences, self.columns, self._planned, self._called = [], 0, False, set()

    # ---- A step ------------------------------------------------------------------------------------

    def begin(self, work: Many[Tuple[Sequence, int]]) -> None:
        """The next call of the model has one row of input_ids: these sequences one after another."""
        self.engine.plan(work)
        self._rows, self._planned, self._called = None, True, set()

    def expect(self, layer: int, key: torch.Tensor) -> None:
        """A layer's new keys are here, or what they are made of; its attention comes next."""
        global _awaiting  # pylint: disable=global-statement
        if layer in self._called:
            self._called, self._planned = set(), False
        _awaiting = (self, layer, key.shape[2])

    def _plan_padded(self, query: torch.Tensor, mask: Optional[torch.Tensor]) -> None:
        batch, _, new, _ = query.shape
        if not self.sequences:
            self.sequences = [self.engine.add(share=False) for _ in range(batch)]
        if len(self.sequences) != batch:
            raise InvalidArgument(f"a batch of {batch} sequences: accepted {len(self.sequences)}, "
                                  "as before; Cache.clear() begins anew", "INVALID_ARGUMENT")
        if mask is None:
            counts, self._rows = [new] * batch, None
        else:
            real = mask[:, -new:].to(torch.bool)
            counts = real.sum(1).tolist()
            self._rows = real.reshape(-1).nonzero().squeeze(1)
        self.engine.plan(list(zip(self.sequences, counts)))
        self._planned = True

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               mask: Optional[torch.Tensor], sinks: Optional[torch.Tensor]) -> torch.Tensor:
        """[batch, heads, rows, dim] each; the result is [batch, rows, heads, v_dim]."""
        if not self._planned:
            self._plan_padded(query, mask)
        if not self._called and self.sequences:
            self.columns += query.shape[2]
        self._called.add(layer)
        batch, heads, new, _ = query.shape
        q, k, v = (self._flat(x) for x in (query, key, value))
        out = q.new_empty(q.shape[0], heads, value.shape[3])
        operands = {} if sinks is None else {"sinks": sinks.detach().float().contiguous()}
        if q.shape[0]:
            self.engine.forward(layer, q.detach(), k.detach(), v.detach(), out, **operands)
        if self._rows is not None:
            out = out.new_zeros(batch * new, *out.shape[1:]).index_copy_(0, self._rows, out)
        return out.view(batch, new, heads, -1)

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """[rows, heads, dim] without padding; a view where it can be."""
        flat = tensor.transpose(1, 2).flatten(0, 1)
        return flat if self._rows is None else flat.index_select(0, self._rows)


# ---- The interface ---------------------------------------------------------------------------------


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None,
              dropout: float = 0.0, s_aux: Optional[torch.Tensor] = None,
              **call: Any) -> Tuple[torch.Tensor, None]:
    """Transformers' attention function of the name "attnhost"."""
    global _awaiting  # pylint: disable=global-statement
    if _recorded is not None:
        _recorded.append(_see(module, query, key, value, scaling, {**call, "s_aux": s_aux}))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None
    cache, awaited = (_awaiting[0], _awaiting[1:]) if _awaiting else (None, None)
    _awaiting = None
    if awaited != (module.layer_idx, key.shape[2]):
        raise InvalidArgument(
            f"layer {module.layer_idx}: keys that do not come from an attnhost.Cache; accepted: "
            "attnhost.generate(model, prompts), or past_key_values=attnhost.Cache(model)",
            "INVALID_ARGUMENT")
    if dropout:
        raise Unsupported(f"dropout {dropout}: accepted 0, in model.eval()", "UNSUPPORTED")
    if torch.is_grad_enabled() and query.requires_grad:
        raise Unsupported("gradients: accepted torch.no_grad(), as these backends only infer",
                          "UNSUPPORTED")
    if attention_mask is not None and attention_mask.dim() != 2:
        raise Unsupported(f"a mask of {attention_mask.dim()} dimensions: accepted 2, [sequences, "
                          "tokens], which says what is padding", "UNSUPPORTED")
    return cache.attend(module.layer_idx, query, key, value, attention_mask, s_aux), None


def padding_mask(*_: Any, attention_mask: Optional[torch.Tensor] = None, kv_length: int = 0,
                 **__: Any) -> Optional[torch.Tensor]:
    """What Transformers hands to attention() as the mask: which columns are padding. The rest of
    it (causal, windows, chunks) is in the layer groups. Called where a step of a model begins."""
    global _awaiting  # pylint: disable=global-statement
    _awaiting = None
    if attention_mask is None or attention_mask[:, -kv_length:].all():
        return None
    return attention_mask[:, -kv_length:]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)


# ---- Generation ------------------------------------------------------------------------------------


class _Request:
    def __init__(self, index: int, prompt: Many[int], room: int) -> None:
        self.index, self.prompt, self.room = index, list(prompt), room
        self.sequence: Optional[Sequence] = None
        self.made: List[int] = []

    @property
    def left(self) -> int:
        """Tokens that are known and have no keys yet."""
        return len(self.sequence.tokens) - self.sequence.length


def _schedule(running: List[_Request], budget: int) -> List[Tuple[_Request, int]]:
    """Rows of the next step within the budget: first those that decode, then prompts, the shortest
    first, in chunks."""
    work = []
    for request in sorted(running, key=lambda r: r.left):
        count = min(request.left, budget)
        if count:
            work.append((request, count))
            budget -= count
    return work


@torch.no_grad()
def generate(model: torch.nn.Module, prompts: Many[Many[int]], max_new_tokens: int = 20, *,
             eos_token_id: Union[int, Many[int], None] = None, cache: Optional[Cache] = None,
             **sizes: Any) -> List[List[int]]:
    """The greedy continuation of each prompt, a list of token ids.

    Continuous batching: prompts start as soon as there is room, in chunks of the engine's
    max_tokens; their rows are packed with those that decode; equal prefixes are computed once.
    `cache` can be given to keep prefixes from call to call.
    """
    cache = cache or Cache(model, **sizes)
    if cache.sequences:
        raise InvalidArgument("this cache is in use by model.generate(); accepted: another one, or "
                              "Cache.clear() before", "BAD_STATE")
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    engine = cache.engine
    waiting = [_Request(i, prompt, max_new_tokens) for i, prompt in enumerate(prompts)]
    for request in waiting:
        needed = len(request.prompt) + max_new_tokens - 1
        if not request.prompt or needed > engine.max_len:
            raise InvalidArgument(
                f"prompt {request.index}: {len(request.prompt)} tokens, {max_new_tokens} to be "
                f"made: accepted 1 to {engine.max_len} together", "INVALID_ARGUMENT")
    results: List[List[int]] = [[] for _ in prompts]
    running: List[_Request] = []
    promised = 0  # pages that those running may come to need
    try:
        while waiting or running:
            while waiting and len(running) < engine.max_seqs:
                pages = -(-(len(waiting[0].prompt) + max_new_tokens) // engine.page_size)
                if running and promised + pages > len(engine.pages.users) - 1:
                    break
                promised += pages
                request = waiting.pop(0)
                request.sequence = engine.add(request.prompt)
                running.append(request)
            for request in _step(model, cache, _schedule(running, engine.max_tokens), ends):
                promised -= -(-(len(request.prompt) + max_new_tokens) // engine.page_size)
                results[request.index] = request.made
                engine.free(request.sequence)
                running.remove(request)
    finally:
        for request in running:
            engine.free(request.sequence)
    return results


def _step(model: torch.nn.Module, cache: Cache, work: List[Tuple[_Request, int]],
          ends: set) -> List[_Request]:
    """One call of the model. Returns the requests that are finished."""
    device = cache.engine.device
    tokens, positions = [], []
    for request, count in work:
        start = request.sequence.length
        tokens += request.sequence.tokens[start:start + count]
        positions += range(start, start + count)
    cache.begin([(request.sequence, count) for request, count in work])
    logits = model(input_ids=torch.tensor([tokens], device=device),
                   position_ids=torch.tensor([positions], device=device), past_key_values=cache,
                   use_cache=True).logits[0]
    cache.engine.confirm()
    last = torch.tensor([end - 1 for end in itertools.accumulate(count for _, count in work)],
                        device=logits.device)
    chosen = logits[last].argmax(-1).tolist()
    finished = []
    for (request, _), token in zip(work, chosen):
        if request.left:
            continue  # in the middle of its prompt
        request.made.append(token)
        request.sequence.tokens.append(token)
        if len(request.made) == request.room or token in ends:
            finished.append(request)
    return finished
