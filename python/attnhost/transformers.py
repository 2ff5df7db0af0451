# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers (5 and newer) on attnhost's backends.

    attnhost.use("serve.ini")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attnhost")
    attnhost.generate(model, prompts)                         packed, continuous batching
    model.generate(ids, past_key_values=attnhost.Cache(model))    Transformers' own loop; cache= since 5.24

Keys and values lie in pages of this cache, recurrent states in its slots; a model's own code computes
everything but attention, and everything but the recurrence of its recurrent layers (recurrent.py).
"""
import contextlib
import functools
import inspect
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence as Many, Tuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache as TransformersCache, CacheLayerMixin, EncoderDecoderCache
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from . import _abi, _words, alibi, latent, ops, recurrent
from .encoder import encoder
from .engine import DTYPE_NAMES, Engine, GraphStep, Sequence
from .errors import AttnhostError, InvalidArgument, Unsupported
from .host import Host
from .problem import layer_group

NAME = "attnhost"
# What a model calls its cache: since Transformers 5.24, before, and where it is recurrent.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
Key = Tuple[str, int]  # ("self", "cross", "recurrent" or "encoder", the model's number of the layer)

_host: Optional[Host] = None


class _Thread(threading.local):
    """What a call of a model leaves for the next one, of its thread."""

    recorded: Optional[List["Layer"]] = None  # while describe() looks
    without_cache: Optional[str] = None  # the model that describe() could give no cache, its class
    awaiting: Optional["_Awaited"] = None  # from a cache's layer to attention()
    indexed: Optional[Dict[str, torch.Tensor]] = None  # from a layer's indexer to attention()
    sized: Optional["_Steps"] = None  # the cache that was asked for the size of a mask


_now = _Thread()


def use(config: Any = None, **sections: Mapping[str, Any]) -> Host:
    """Set the backends of models from now on: an ini, its sections, or a Host; without arguments the installed ones,
    chosen by `auto`. Call it before a model is created, as it registers "attnhost" with Transformers."""
    global _host  # pylint: disable=global-statement
    _host = config if isinstance(config, Host) else Host(config, **sections)
    return _host


def host() -> Host:
    """The host of the last use(); without one, all installed backends, chosen by `auto`."""
    return _host or use()


# ---- What a model is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Awaited:
    """A layer's keys are in a cache of ours; its attention comes next."""

    cache: "_Steps"
    key: Key
    count: int  # of keys
    is_new: bool = True  # they come with this call


@dataclass(frozen=True)
class Layer:
    """A layer as it calls its backend."""

    key: Key
    members: Mapping[str, Any]  # of its layer group


def _window(module: Any, call: Mapping[str, Any], causal: bool) -> Tuple[int, int]:
    """window_left and window_right. A sliding_window counts the query itself; where both sides are
    seen, the config's is the distance. A layer that says None has none, whatever its module knows."""
    window = call["sliding_window"] if "sliding_window" in call else getattr(module, "sliding_window", None)
    if causal:
        return int(window) - 1 if window else -1, 0
    window = module.config.sliding_window if window else -1
    return window, window


def _is_causal(module: Any, call: Mapping[str, Any]) -> bool:
    given = call.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _chunk(module: Any, index: int) -> int:
    """Keys of a chunk, where the config says that the layer attends within chunks."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None) or []
    if index < len(kinds) and kinds[index] == "chunked_attention":
        return int(module.config.attention_chunk_size)
    return 0


def _members(module: Any, kind: Key, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             scaling: Optional[float], call: Mapping[str, Any]) -> Dict[str, Any]:
    """Of the layer group of a call of attention."""
    if call.get("position_bias") is not None:
        raise Unsupported(f"layer {kind[1]}: a position bias that is added to the scores: "
                          "accepted none", "UNSUPPORTED")
    if _is_latent(module):
        return latent.members(module, query.shape[1], scaling,
                              _words.number("dtype", DTYPE_NAMES.get(query.dtype, "f32"), _words.DTYPES))
    if call.get("indices") is not None:
        raise Unsupported(f"layer {kind[1]}: keys that an unknown indexer has chosen: accepted "
                          f"{_words.join(latent.INDEXERS)}", "UNSUPPORTED")
    causal = _is_causal(module, call)
    left, right = (-1, -1) if kind[0] == "cross" else _window(module, call, causal)
    return dict(
        attn_type={"cross": "cross", "encoder": "encoder_only"}.get(kind[0], "decoder"),
        kv_group={"cross": 1, "encoder": -1}.get(kind[0], 0),
        num_q_heads=query.shape[1], num_kv_heads=key.shape[1], head_dim=query.shape[3],
        v_head_dim=value.shape[3], sm_scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
        window_left=left, window_right=right,
        attention_chunk=_chunk(module, kind[1]) if kind[0] == "self" else 0,
        logit_cap=float(call.get("softcap") or 0), sinks=call.get("s_aux") is not None,
        alibi=call.get("slopes") is not None)


def itself(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside of the result of torch.compile()."""
    return getattr(model, "_orig_mod", model)


def cache_argument(model: torch.nn.Module) -> Optional[str]:
    """The name of the cache among the arguments of the model's forward."""
    names = inspect.signature(itself(model).forward).parameters
    return next((name for name in CACHE_NAMES if name in names), None)


def _cache_in(call: Mapping[str, Any], *more: str) -> Any:
    """The cache argument of a module's call, under any name."""
    return next((call[name] for name in (*more, *CACHE_NAMES) if call.get(name) is not None), None)


def takes_positions(model: torch.nn.Module) -> bool:
    """Not so where all layers are recurrent, and of some old decoders (refuse_unplaced())."""
    return "position_ids" in inspect.signature(itself(model).forward).parameters


def keeps_some_logits(model: torch.nn.Module) -> bool:
    """Can it be asked for the logits of some rows alone?"""
    return "logits_to_keep" in inspect.signature(itself(model).forward).parameters


def _refuse_own_classes(model: torch.nn.Module) -> None:
    """Some modules of Transformers choose their attention from a dict of their own: it ends in a KeyError if a
    model is made with another."""
    for name, classes in vars(sys.modules[type(itself(model)).__module__]).items():
        if name.endswith("ATTENTION_CLASSES") and isinstance(classes, dict) and NAME not in classes:
            raise Unsupported(f"{type(itself(model)).__name__}: Transformers takes its attention from {name}: accepted "
                              f"{_words.join(classes)}, and so no backend of others", "UNSUPPORTED")


def _look(model: torch.nn.Module) -> List[Layer]:
    """The layers of a model in the order in which they are called, an encoder's last: what they ask of
    their backends in a step of two tokens, in which these answer zeros."""
    if model.config._attn_implementation != NAME:
        _refuse_own_classes(model)
        raise InvalidArgument(
            f"the model's attention is '{model.config._attn_implementation}': accepted "
            f"attn_implementation=\"{NAME}\"", "INVALID_ARGUMENT")
    _take_over(model)
    _now.recorded = []
    try:
        inputs = {"input_ids": torch.zeros(1, 2, dtype=torch.long, device=model.device)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"]
        if model.main_input_name == "input_features":  # sound
            del inputs["input_ids"]
            inputs["input_features"] = torch.zeros(
                1, model.config.num_mel_bins, 2 * model.config.max_source_positions,
                dtype=model.dtype, device=model.device)
        argument = cache_argument(model)
        _now.without_cache = None if argument else type(model).__name__
        try:
            with torch.no_grad():
                model(**inputs, **({argument: _make(_Steps, model)} if argument else {}))
        except AttnhostError:
            raise
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise Unsupported(f"{type(model).__name__}: its own code fails with a cache of attnhost: {error}",
                              "UNSUPPORTED") from error
        seen = sorted(_now.recorded, key=lambda layer: layer.key[0] == "encoder")
    finally:
        _now.recorded = _now.without_cache = None
    if not seen:
        raise Unsupported(f"{type(model).__name__}: no layer calls attention through the interface, "
                          f"nor is a {' or '.join([*recurrent.KINDS, *alibi.KINDS])}", "UNSUPPORTED")
    places = [layer.key for layer in seen if layer.key[0] != "encoder"]
    if len(set(places)) < len(places):
        raise Unsupported(f"{type(model).__name__}: a layer calls attention twice: accepted once",
                          "UNSUPPORTED")
    return seen


def _groups(layers: Many[Layer]) -> List[_abi.attn_layer_group]:
    """Equal layers together; a layer's id is its place."""
    kinds: Dict[str, Tuple[Mapping[str, Any], List[int]]] = {}
    for place, layer in enumerate(layers):
        kinds.setdefault(repr(layer.members), (layer.members, []))[1].append(place)
    return [layer_group(places, **members) for members, places in kinds.values()]


def describe(model: torch.nn.Module) -> List[_abi.attn_layer_group]:
    """The layer groups of a live model, whatever its architecture. Layers are numbered as they are
    called; blocks without attention and recurrence do not count."""
    return _groups(_look(model))


# ---- Layers that the interface does not reach ------------------------------------------------------


def _take_over(model: torch.nn.Module) -> None:
    """From now on the model's recurrent layers ask for a cache of ours before they go their way, and
    latent ones before they expand what they keep."""
    for module in model.modules():
        if type(module).__name__ in recurrent.KINDS:
            module.forward = functools.partial(_recurrent_forward, module)
        elif alibi.is_known(module):
            module.forward = functools.partial(_alibi_forward, module)
        elif latent.is_latent(module):
            module.expand_kv = functools.partial(_keep_latents, module)
            if latent.has_indexer(module):
                module.indexer.forward = functools.partial(_keep_indexed, module.indexer)


def _is_latent(module: torch.nn.Module) -> bool:
    return "expand_kv" in vars(module)


def _keep_latents(module: torch.nn.Module, kv_nope: torch.Tensor,
                  k_rot: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """In place of the module's own expand_kv: attention() gets the latents."""
    return (kv_nope, k_rot) if _now.awaiting else type(module).expand_kv(module, kv_nope, k_rot)


def _keep_indexed(indexer: torch.nn.Module, hidden_states: torch.Tensor, *args: Any,
                  **call: Any) -> torch.Tensor:
    """Replaces the indexer's own forward: attention() gets its operands, and its result is not used."""
    if not _now.awaiting:
        return type(indexer).forward(indexer, hidden_states, *args, **call)
    _now.indexed = latent.index_operands(indexer, hidden_states, *args[:2])
    return torch.zeros((*hidden_states.shape[:2], 1), dtype=torch.int32, device=hidden_states.device)


def _recurrent_forward(module: torch.nn.Module, hidden_states: torch.Tensor, *args: Any,
                       **call: Any) -> Any:
    """In place of the module's own forward."""
    cache = _cache_in(call)
    if not isinstance(cache, _Steps):
        return type(module).forward(module, hidden_states, *args, **call)
    facts, forward = recurrent.KINDS[type(module).__name__]
    heads, width = (facts(module)[name] for name in ("num_v_heads", "head_v_dim"))
    if _now.recorded is not None:
        _now.recorded.append(Layer(("recurrent", module.layer_idx),
                                   recurrent.members(module, hidden_states.dtype)))
        return forward(module, hidden_states, lambda **_: hidden_states.new_zeros(
            *hidden_states.shape[:2], heads, width))
    _refuse_training(hidden_states)
    return forward(module, hidden_states, lambda **operands: ops.run(
        cache, ("recurrent", module.layer_idx), True, operands, call.get("attention_mask"), heads,
        width))


def _alibi_forward(module: torch.nn.Module, hidden_states: torch.Tensor, *args: Any, **call: Any) -> Any:
    """In place of the module's own forward."""
    cache = _cache_in(call, "layer_past")
    if not isinstance(cache, _Steps):
        return type(module).forward(module, hidden_states, *args, **call)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slopes: torch.Tensor,
               scale: float) -> torch.Tensor:
        cache.update(key, value, module.layer_idx)
        return attention(module, query, key, value, call.get("attention_mask"), scale, slopes=slopes,
                         is_causal=True)[0]
    return alibi.KINDS[type(module).__name__](module, attend, hidden_states, *args, **call)


def _refuse_training(tensor: torch.Tensor) -> None:
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise Unsupported("gradients: accepted torch.no_grad(), as these backends only infer",
                          "UNSUPPORTED")


# ---- The cache -------------------------------------------------------------------------------------


class _CacheLayer(CacheLayerMixin):
    """A layer of a cache, as Transformers wants to see it: it hands the new keys on."""

    is_sliding = False
    kind = "self"

    def __init__(self, cache: "_Steps", index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        self._await(key_states.shape[2], True)
        return key_states, value_states

    def _await(self, count: int, is_new: bool) -> None:
        _now.awaiting = _Awaited(self.cache, (self.kind, self.index), count, is_new)

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        _now.sized = self.cache
        return self.cache.columns + query_length, 0

    def get_seq_length(self) -> Any:
        """The offset that models add to 0, 1, 2 ... for positions; a packed step has no single offset."""
        return self.cache.columns if self.cache.offsets is None else self.cache.offsets

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.cache.clear()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise Unsupported("beam search: accepted greedy search and sampling", "UNSUPPORTED")

    def crop(self, tokens_to_remove: int) -> None:
        raise Unsupported("crop: accepted caches that only grow", "UNSUPPORTED")


class _SourceLayer(_CacheLayer):
    """The same of cross attention, whose keys come once and are asked for by name later."""

    kind = "cross"

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        self._keys, self._values = (x.new_empty(1).expand(x.shape) for x in (key_states, value_states))
        return super().update(key_states, value_states)

    @property
    def keys(self) -> Any:
        """A placeholder with the shape of the keys, which are in pages."""
        kept = getattr(self, "_keys", None)
        if kept is not None:
            self._await(kept.shape[2], False)
        return kept

    @keys.setter
    def keys(self, value: Any) -> None:
        self._keys = value

    @property
    def values(self) -> Any:
        return getattr(self, "_values", None)

    @values.setter
    def values(self, value: Any) -> None:
        self._values = value


class _Steps(TransformersCache):
    """What Transformers sees of a cache of ours; by itself, one that is empty and stays so."""

    def __init__(self, model: torch.nn.Module) -> None:
        config = model.config.get_text_config()
        count = max(config.num_hidden_layers, getattr(config, "decoder_layers", 0))
        TransformersCache.__init__(self, [_CacheLayer(self, index) for index in range(count)])
        self.columns = 0  # of the batch, padding included
        self.offsets: Optional[torch.Tensor] = None  # of a packed step: of each row, its position less its place
        if isinstance(self, EncoderDecoderCache):
            self.self_attention_cache = TransformersCache(self.layers)
            self.cross_attention_cache = TransformersCache(
                [_SourceLayer(self, index) for index in range(count)])
            self.is_updated: Dict[int, bool] = {}  # by layer: the keys of cross attention are there

    def __len__(self) -> int:
        return len(self.layers)

    def clear(self) -> None:
        """Forget all sequences."""

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return self.columns > 0


def _make(kind: type, model: torch.nn.Module) -> Any:
    """An empty object of the class `kind`, and of that which the model insists on."""
    own = getattr(inspect.getmodule(type(model)), "MiniMaxCache", None)
    if model.config.is_encoder_decoder:
        own = EncoderDecoderCache
    made = object.__new__(type(kind.__name__, (kind, own), {}) if own else kind)
    made.linear_cache = []
    if kind is _Steps:
        made.__init__(model)
    return made


class Cache(_Steps):
    """Keys, values and states of a model's sequences, for the cache of a model on attnhost (its
    argument past_key_values before Transformers 5.24).

    Backends are chosen, asked and made here: what none can serve is an exception before the first
    token. A batch may be padded on either side (attention_mask); padding takes no page. For the
    sizes see Engine.
    """

    def __new__(cls, model: torch.nn.Module, **_: Any) -> "Cache":
        return _make(cls, itself(model))

    def __init__(self, model: torch.nn.Module, **sizes: Any) -> None:
        model = itself(model)
        super().__init__(model)
        layers = [layer for layer in _look(model) if layer.key[0] != "encoder"]
        if not layers:
            raise Unsupported(f"{type(model).__name__}: an encoder has nothing to keep: accepted to "
                              "call it without a cache", "UNSUPPORTED")
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if longest and not sizes.get("max_len"):
            room = sizes.get("num_tokens") or host().settings.get("kv_cache.max_total_tokens", 16384)
            sizes["max_len"] = min(longest, int(room))
        self.engine = Engine(host(), _groups(layers), dtype=model.dtype, device=model.device,
                             name=type(model).__name__, **sizes)
        self.model = weakref.ref(model)  # whose sequences these are
        self.number = ops.number_of(self)  # for graphs
        self.sequences: List[Sequence] = []
        self.graphs: Any = None  # of decode steps, when generate() has made them
        self._ids = {layer.key: place for place, layer in enumerate(layers)}
        self._rows: Optional[torch.Tensor] = None  # of q that are no padding; None = all
        self._planned = False
        self._called: set = set()  # layers of this step
        self._shares = any(latent.is_sparse(module) and not latent.has_indexer(module) for module in model.modules())
        self._chosen: Dict[str, torch.Tensor] = {}  # by the last indexer of this step, for layers after it

    def clear(self) -> None:
        """Forget the sequences of model.generate() and of calls of the model, which gives back their
        pages and states; the next call begins anew, with a batch of any size. The keys of full pages of
        attnhost.generate() stay known, to be shared. Sequences of cache.engine.add() are the caller's."""
        for sequence in self.sequences:
            self.engine.free(sequence)
        self.sequences, self.columns, self._planned, self._called = [], 0, False, set()
        if isinstance(self, EncoderDecoderCache):
            self.is_updated = {}

    # ---- A step ------------------------------------------------------------------------------------

    def begin(self, work: Many[Tuple[Sequence, int]], step: Optional[GraphStep] = None) -> None:
        """The next call of the model has one row of input_ids: these sequences one after another, for a
        graph's `step` and padding after them."""
        self._refuse_torn([sequence for sequence, _ in work])
        self.engine.plan(work, step)
        self.expect()

    def expect(self) -> None:
        """The next call of the model is of what begin() has planned."""
        self._rows, self._planned, self._called = None, True, set()

    @contextlib.contextmanager
    def packed(self, positions: torch.Tensor) -> Iterator[None]:
        """A call of the model whose rows have these positions, also to code that asks the cache for its length."""
        self.offsets = (positions - torch.arange(positions.shape[-1], device=positions.device)).squeeze(0)
        try:
            yield
        finally:
            self.offsets = None

    def refuse_unplaced(self) -> None:
        """Steps of several sequences in one row: of models that can be given positions, or need none."""
        model = self.model()
        if model.config.is_encoder_decoder:
            raise Unsupported(f"{type(model).__name__}: an encoder and a decoder: accepted model.generate()",
                              "UNSUPPORTED")
        places = any(kind == "self" for kind, _ in self._ids) and not any(map(alibi.is_known, model.modules()))
        if places and not takes_positions(model):
            raise Unsupported(f"{type(model).__name__} takes no position_ids and counts by its cache: accepted "
                              "model.generate(), or models that take positions", "UNSUPPORTED")

    def _enter(self, key: Key, batch: int, new: int, mask: Optional[torch.Tensor]) -> int:
        """A layer is called with so many rows; its id. The first one of a step plans it."""
        if key in self._called:
            self._refuse_torn(self.sequences)
            self._called, self._planned = set(), False
        if not self._planned:
            self._plan_padded(batch, new, mask)
        if not self._called and self.sequences:
            self.columns += new
        self._called.add(key)
        return self._ids[key]

    def _refuse_torn(self, sequences: Many[Sequence]) -> None:
        """Layers of the last step were not called, by an exception: they lack the keys of its tokens."""
        if not 0 < len(self._called) < len(self._ids):
            return
        if any(sequence is last for sequence in sequences for last in self.engine.planned):
            raise InvalidArgument(f"the last step ended after {len(self._called)} of {len(self._ids)} layers; "
                                  "accepted: Cache.clear(), or other sequences", "BAD_STATE")

    def place(self, key: Key) -> int:
        """The engine's id of this layer."""
        return self._ids[key]

    def _plan_padded(self, batch: int, new: int, mask: Optional[torch.Tensor]) -> None:
        if not self.sequences:
            self.sequences = [self.engine.add(share=False) for _ in range(batch)]
        if len(self.sequences) != batch:
            raise InvalidArgument(f"a batch of {batch} sequences: accepted {len(self.sequences)}, "
                                  "as before; Cache.clear() begins anew", "INVALID_ARGUMENT")
        counts, self._rows = _real_rows(mask, batch, new)
        self.engine.plan(list(zip(self.sequences, counts)))
        self._planned = True

    @torch.no_grad()
    def run(self, key: Key, is_new: bool, operands: Dict[str, torch.Tensor],
            mask: Optional[torch.Tensor]) -> torch.Tensor:
        """A layer, as ops.run() has it."""
        first = next(iter(operands.values()))
        batch, new = first.shape[:2]
        place = self._enter(key, batch, new, None if key[0] == "cross" else mask)
        if key[0] == "cross":
            more = {role: operands.pop(role) for role in ("k", "v")}
            operands.update(self._source(more, mask) if is_new else {})
        rows = {role: self._picked(operands, role) for role in operands}
        if "kv_b" in rows:
            out = self._attend_latents(place, **rows)
        else:
            width = self.engine.layers[place][1].group.contents.v_head_dim
            out = self.engine.output(place, _pick(first, self._rows).shape[0], width)
            if out.shape[0]:
                self.engine.forward(place, out=out, **rows)
        return _spread(out.to(first.dtype).contiguous(), self._rows, batch, new)

    def _picked(self, operands: Mapping[str, torch.Tensor], role: str) -> torch.Tensor:
        """Without padding, if it has rows; what cross attention brings has none any more."""
        has_rows = role in _ROWS and not (role in ("k", "v") and operands[role].dim() == 3)
        return _pick(operands[role], self._rows) if has_rows else operands[role]

    def _source(self, keys: Mapping[str, torch.Tensor],
                mask: Optional[torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Set the input of cross attention, without padding."""
        counts, rows = _real_rows(mask, *keys["k"].shape[:2])
        if [s.source_new for s in self.sequences] != counts:
            self.engine.bring_source(counts)
        return {role: _pick(x, rows) for role, x in keys.items()}

    def _attend_latents(self, place: int, q: torch.Tensor, c_kv: torch.Tensor, k_pe: torch.Tensor,
                        kv_b: torch.Tensor, **index: torch.Tensor) -> torch.Tensor:
        dims = self.engine.layers[place][1].group.contents.mla.contents
        if self.engine.expands(place):
            return self.engine.forward_expanded(place, q, c_kv, k_pe,
                                                latent.expander(dims, kv_b, q.shape[1]))
        q_nope, q_pe, after = latent.absorb(dims, kv_b, q)
        out = self.engine.output(place, *q_nope.shape[::2])
        if self._shares and index:
            self._chosen = self.engine.choice_of(place, q.shape[0])
        if self._shares:
            index.update(self._chosen)
        if out.shape[0]:
            self.engine.forward(place, q_nope=q_nope, q_pe=q_pe, c_kv=c_kv, k_pe=k_pe, out=out, **index)
        return after(out.to(q.dtype))


_ROWS = {"q", "k", "v", "c_kv", "k_pe", "index_q", "index_k", "index_weights", "mixed_qkv", "a",
         "b"}  # operands that have a row for each token


def _real_rows(mask: Optional[torch.Tensor], batch: int,
               new: int) -> Tuple[List[int], Optional[torch.Tensor]]:
    """How many of a batch's last columns are no padding, and which; None = all."""
    if mask is None:
        return [new] * batch, None
    real = mask[:, -new:].to(torch.bool)
    return real.sum(1).tolist(), real.reshape(-1).nonzero().squeeze(1)


def _pick(tensor: torch.Tensor, rows: Optional[torch.Tensor]) -> torch.Tensor:
    """[batch, rows, ...] without padding, the rows one after another; a view where it can be."""
    flat = tensor.detach().flatten(0, 1)
    return flat if rows is None else flat.index_select(0, rows)


def _spread(out: torch.Tensor, rows: Optional[torch.Tensor], batch: int, new: int) -> torch.Tensor:
    """[rows, ...] as [batch, rows, ...], with zeros for padding."""
    if rows is not None:
        out = out.new_zeros(batch * new, *out.shape[1:]).index_copy_(0, rows, out)
    return out.view(batch, new, *out.shape[1:])


# ---- The interface ---------------------------------------------------------------------------------


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None,
              dropout: float = 0.0, s_aux: Optional[torch.Tensor] = None,
              **call: Any) -> Tuple[torch.Tensor, None]:
    """Transformers' attention function of the name "attnhost"."""
    awaited, _now.awaiting = _now.awaiting, None
    indexed, _now.indexed = _now.indexed, None
    call = {**call, "s_aux": s_aux}
    if attention_mask is not None and _is_latent(module) and latent.is_sparse(module):
        # Of padding_mask(), as indexers want it.
        attention_mask = attention_mask[:, 0, 0] if attention_mask.shape[-1] else None
    kind = awaited.key if awaited else ("encoder", getattr(module, "layer_idx", None) or 0)
    if kind[0] == "self" and not _is_causal(module, call):
        kind = ("encoder", kind[1])
    if _now.recorded is None:
        _check_call(module, query, key, awaited, attention_mask, dropout, call)
    if awaited is None or _now.recorded is not None:
        members = _members(module, kind, query, key, value, scaling, call)
        if awaited is None and members["window_right"] == 0:
            _refuse_causal(kind)
    if _now.recorded is not None:
        _now.recorded.append(Layer(kind, members))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1],
                               members["v_head_dim"]), None
    operands = {role: call[name].detach().float().contiguous() for role, name in
                (("sinks", "s_aux"), ("alibi_slopes", "slopes")) if call.get(name) is not None}
    if awaited is None:
        return _encode(members, query, key, value, attention_mask, operands), None
    if _is_latent(module):
        operands = {"q": query.transpose(1, 2), "c_kv": key.squeeze(1), "k_pe": value.squeeze(1),
                    "kv_b": module.kv_b_proj.weight, **(indexed or {})}
        width = module.v_head_dim
    else:
        operands = {"q": query.transpose(1, 2), "k": key.transpose(1, 2), "v": value.transpose(1, 2),
                    **operands}
        width = value.shape[3]
    return ops.run(awaited.cache, awaited.key, awaited.is_new, operands, attention_mask,
                   query.shape[1], width), None


def _check_call(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                awaited: Optional[_Awaited], mask: Optional[torch.Tensor], dropout: float,
                call: Mapping[str, Any]) -> None:
    kept = awaited is not None and isinstance(awaited.cache, Cache) and awaited.count == key.shape[2]
    if not kept and (awaited is not None or query.shape[2] != key.shape[2]):
        _refuse_causal(("self", getattr(module, "layer_idx", None)))
    if dropout:
        raise Unsupported(f"dropout {dropout}: accepted 0, in model.eval()", "UNSUPPORTED")
    _refuse_training(query)
    if mask is not None and mask.dim() != 2:
        raise Unsupported(f"a mask of {mask.dim()} dimensions: accepted 2, [sequences, "
                          "tokens], which says what is padding", "UNSUPPORTED")


def _refuse_causal(kind: Key) -> None:
    if _now.without_cache:
        raise Unsupported(f"{_now.without_cache}.forward: no argument for a cache: accepted "
                          f"{', '.join(CACHE_NAMES[:-1])} or {CACHE_NAMES[-1]}", "UNSUPPORTED")
    if _now.recorded is not None:
        raise Unsupported(f"layer {kind[1]}: attention whose keys are another layer's, or were used before: "
                          "accepted layers that bring their own, once", "UNSUPPORTED")
    raise InvalidArgument(
        f"layer {kind[1]}: keys that do not come from an attnhost.Cache; accepted: "
        "attnhost.generate(model, prompts), or cache=attnhost.Cache(model), which Transformers before "
        "5.24 call past_key_values",
        "INVALID_ARGUMENT")


def _encode(members: Mapping[str, Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            mask: Optional[torch.Tensor], operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Attention among the rows of the call: there is no cache."""
    batch, _, new, _ = query.shape
    counts, rows = _real_rows(mask, batch, new)
    layers = encoder(host(), members, query.dtype, query.device)
    out = layers.attend(counts, *(_pick(x.transpose(1, 2), rows) for x in (query, key, value)), **operands)
    return _spread(out, rows, batch, new)


def padding_mask(*_: Any, attention_mask: Optional[torch.Tensor] = None, kv_length: int = 0,
                 batch_size: int = 1, config: Any = None, device: Any = None,
                 allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: Optional[bool] = None,
                 **__: Any) -> Optional[torch.Tensor]:
    """The mask that Transformers passes to attention(): which columns are padding. The rest of it (causal, windows,
    chunks) is in the layer groups. Transformers says of a mask that is more, of tokens of an image that see each
    other or of packed sequences, that it may not be skipped; the second word is there for masks that are not causal,
    for which the first says nothing. Called where a step of a model begins."""
    _now.awaiting, cache, _now.sized = None, _now.sized, None
    indexes = getattr(config, "model_type", "") in _INDEXING
    may_skip = allow_is_causal_skip if allow_is_bidirectional_skip is None else allow_is_bidirectional_skip
    if not may_skip and not indexes:
        raise Unsupported(f"{getattr(config, 'model_type', 'model')}: a mask of the model's own: accepted causal "
                          "or bidirectional ones, windows, chunks, and padding", "UNSUPPORTED")
    if cache is None:
        _refuse_own_code(config)
    if getattr(config, "model_type", "") == "mpt" and attention_mask is None:
        return torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)  # it wants a mask
    real = attention_mask[:, -kv_length:] if attention_mask is not None else None
    if indexes:  # it wants a mask, for its indexers
        none = torch.empty(batch_size, 0, dtype=torch.bool, device=device)
        return (none if real is None or real.all() else real)[:, None, None]
    if torch.compiler.is_compiling() or getattr(config, "model_type", "") == "mpt":
        return real
    return None if real is None or real.all() else real


_INDEXING = {"deepseek_v32", "glm_moe_dsa"}  # models that say of a causal mask that it may not be skipped


def _refuse_own_code(config: Any) -> None:
    """Refuse models that do not call the interface: they would take our mask for theirs, and see future tokens."""
    try:
        cls = MODEL_MAPPING[type(config)]
    except KeyError:
        return
    if not (cls._supports_attention_backend or cls._supports_sdpa):
        raise Unsupported(f"{cls.__name__} has attention of its own: accepted models that call "
                          "Transformers' attention interface; those with recurrent layers, BLOOM and "
                          "MPT with an attnhost.Cache", "UNSUPPORTED")


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)
