# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers (5 and newer) on attnhost's backends.

    attnhost.use("serve.ini")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attnhost")
    attnhost.generate(model, prompts)                         packed, continuous batching
    model.generate(ids, past_key_values=attnhost.Cache(model))    Transformers' own loop

Keys and values lie in pages of this cache, recurrent states in its slots; a model's own code computes
everything but attention, and everything but the recurrence of its recurrent layers (recurrent.py).
"""
import inspect
import types
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence as Many, Tuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache as TransformersCache, CacheLayerMixin

from . import _abi, latent, recurrent
from .engine import Engine, Sequence
from .errors import InvalidArgument, Unsupported
from .host import Host
from .problem import layer_group

NAME = "attnhost"
Key = Tuple[str, int]  # ("attention" or "recurrent", the model's number of the layer)

_host: Optional[Host] = None
_recorded: Optional[List["Layer"]] = None  # while describe() looks
_awaiting: Optional[Tuple["_Steps", int, int]] = None  # a cache, a layer, its new keys: update() to attention()


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
    """A layer as it calls its backend."""

    key: Key
    members: Mapping[str, Any]  # of its layer group


def _window(module: Any, sliding_window: Any) -> int:
    """window_left: a sliding_window counts the query itself."""
    if sliding_window is None:
        sliding_window = getattr(module, "sliding_window", None)
    return int(sliding_window) - 1 if sliding_window else -1


def _chunk(module: Any, index: int) -> int:
    """Keys of a chunk, where the config says that the layer attends within chunks."""
    kinds = getattr(module.config, "layer_types", None) or []
    if index < len(kinds) and kinds[index] == "chunked_attention":
        return int(module.config.attention_chunk_size)
    return 0


def _see(module: Any, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
         scaling: Optional[float], call: Mapping[str, Any]) -> Layer:
    if call.get("position_bias") is not None:
        raise Unsupported(f"layer {index}: a position bias that is added to the scores: "
                          "accepted none", "UNSUPPORTED")
    if _is_latent(module):
        return Layer(("attention", index), latent.members(module, query.shape[1], scaling))
    causal = call.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return Layer(("attention", index), dict(
        kv_group=0, num_q_heads=query.shape[1], num_kv_heads=key.shape[1], head_dim=query.shape[3],
        v_head_dim=value.shape[3], sm_scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
        window_left=_window(module, call.get("sliding_window")), window_right=0 if causal else -1,
        attention_chunk=_chunk(module, index), logit_cap=float(call.get("softcap") or 0),
        sinks=call.get("s_aux") is not None))


def cache_argument(model: torch.nn.Module) -> Optional[str]:
    """What the model's forward calls its cache."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("past_key_values", "cache_params") if name in names), None)


def _look(model: torch.nn.Module) -> List[Layer]:
    """The layers of a model in the order in which they are called: what they ask of their backends
    in a step of two tokens, in which these answer zeros."""
    global _recorded  # pylint: disable=global-statement
    if model.config._attn_implementation != NAME:
        raise InvalidArgument(
            f"the model's attention is '{model.config._attn_implementation}': accepted "
            f"attn_implementation=\"{NAME}\"", "INVALID_ARGUMENT")
    _take_over(model)
    _recorded = []
    try:
        ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
        argument = cache_argument(model)
        with torch.no_grad():
            model(input_ids=ids, **({argument: _make(_Steps, model)} if argument else {}))
        seen = _recorded
    finally:
        _recorded = None
    if not seen:
        raise Unsupported(f"{type(model).__name__}: no layer calls attention through the interface, "
                          f"nor is a {' or '.join(recurrent.KINDS)}", "UNSUPPORTED")
    if len({layer.key for layer in seen}) < len(seen):
        raise Unsupported(f"{type(model).__name__}: a layer calls attention twice (cross "
                          "attention): accepted once", "UNSUPPORTED")
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


# ---- Recurrent and latent layers -------------------------------------------------------------------


def _take_over(model: torch.nn.Module) -> None:
    """From now on the model's recurrent layers ask for a cache of ours before they go their way, and
    latent ones before they expand what they keep."""
    for module in model.modules():
        if type(module).__name__ in recurrent.KINDS:
            module.forward = types.MethodType(_recurrent_forward, module)
        elif latent.is_latent(module):
            module.expand_kv = types.MethodType(_keep_latents, module)


def _is_latent(module: torch.nn.Module) -> bool:
    return "expand_kv" in vars(module)


def _keep_latents(module: torch.nn.Module, kv_nope: torch.Tensor,
                  k_rot: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """In place of the module's own expand_kv: attention() gets the latents."""
    return (kv_nope, k_rot) if _awaiting else type(module).expand_kv(module, kv_nope, k_rot)


def _recurrent_forward(module: torch.nn.Module, hidden_states: torch.Tensor, *args: Any,
                       **call: Any) -> Any:
    """In place of the module's own forward."""
    cache = call.get("cache_params", call.get("past_key_values"))
    if not isinstance(cache, _Steps):
        return type(module).forward(module, hidden_states, *args, **call)
    _, forward = recurrent.KINDS[type(module).__name__]
    batch, new = hidden_states.shape[:2]
    members = recurrent.members(module, hidden_states.dtype)
    if _recorded is not None:
        _recorded.append(Layer(("recurrent", module.layer_idx), members))
        dims = members["linear"]
        return forward(module, hidden_states, lambda **_: hidden_states.new_zeros(
            batch, new, dims.num_v_heads, dims.head_v_dim))
    _refuse_training(hidden_states)
    mask = call.get("attention_mask")
    return forward(module, hidden_states,
                   lambda **operands: cache.recur(module.layer_idx, batch, new, mask, operands))


def _refuse_training(tensor: torch.Tensor) -> None:
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise Unsupported("gradients: accepted torch.no_grad(), as these backends only infer",
                          "UNSUPPORTED")


# ---- The cache -------------------------------------------------------------------------------------


class _CacheLayer(CacheLayerMixin):
    """A layer of a cache, as Transformers wants to see it: it hands the new keys on."""

    is_sliding = False

    def __init__(self, cache: "_Steps", index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        global _awaiting  # pylint: disable=global-statement
        _awaiting = (self.cache, self.index, key_states.shape[2])
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


class _Steps(TransformersCache):
    """What Transformers sees of a cache of ours; by itself, one that is empty and stays so."""

    def __init__(self, model: torch.nn.Module) -> None:
        config = model.config.get_text_config()
        count = config.num_hidden_layers
        TransformersCache.__init__(self, [_CacheLayer(self, index) for index in range(count)])
        self.columns = 0  # of the batch, padding included

    def __len__(self) -> int:
        return len(self.layers)

    def clear(self) -> None:
        """Forget all sequences."""

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return self.columns > 0


def _make(kind: type, model: torch.nn.Module) -> Any:
    """An empty object of the class `kind`, and of that which the model insists on."""
    own = getattr(inspect.getmodule(type(model)), "MiniMaxCache", None)
    made = object.__new__(type(kind.__name__, (kind, own), {}) if own else kind)
    made.linear_cache = []
    if kind is _Steps:
        made.__init__(model)
    return made


class Cache(_Steps):
    """Keys, values and states of a model's sequences, for past_key_values of a model on attnhost.

    Backends are chosen, asked and made here: what none can serve is an exception before the first
    token. A batch may be padded on either side (attention_mask); padding takes no page. For the
    sizes see Engine.
    """

    def __new__(cls, model: torch.nn.Module, **_: Any) -> "Cache":
        return _make(cls, model)

    def __init__(self, model: torch.nn.Module, **sizes: Any) -> None:
        super().__init__(model)
        layers = _look(model)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if longest and not sizes.get("max_len"):
            room = sizes.get("num_tokens") or host().settings.get("kv_cache.max_total_tokens", 16384)
            sizes["max_len"] = min(longest, int(room))
        self.engine = Engine(host(), _groups(layers), dtype=model.dtype, device=model.device,
                             name=type(model).__name__, **sizes)
        self.sequences: List[Sequence] = []
        self._ids = {layer.key: place for place, layer in enumerate(layers)}
        self._rows: Optional[torch.Tensor] = None  # of q that are no padding; None = all
        self._planned = False
        self._called: set = set()  # layers of this step

    def clear(self) -> None:
        for sequence in self.sequences:
            self.engine.free(sequence)
        self.sequences, self.columns, self._planned, self._called = [], 0, False, set()

    # ---- A step ------------------------------------------------------------------------------------

    def begin(self, work: Many[Tuple[Sequence, int]]) -> None:
        """The next call of the model has one row of input_ids: these sequences one after another."""
        self.engine.plan(work)
        self._rows, self._planned, self._called = None, True, set()

    def _enter(self, key: Key, batch: int, new: int, mask: Optional[torch.Tensor]) -> int:
        """A layer is called with so many rows; its id. The first one of a step plans it."""
        if key in self._called:
            self._called, self._planned = set(), False
        if not self._planned:
            self._plan_padded(batch, new, mask)
        if not self._called and self.sequences:
            self.columns += new
        self._called.add(key)
        return self._ids[key]

    def _plan_padded(self, batch: int, new: int, mask: Optional[torch.Tensor]) -> None:
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
        batch, _, new, _ = query.shape
        place = self._enter(("attention", layer), batch, new, mask)
        q, k, v = (self._real(x.transpose(1, 2)) for x in (query, key, value))
        operands = {} if sinks is None else {"sinks": sinks.detach().float().contiguous()}
        out = self.engine.output(place, q.shape[0], value.shape[3])
        return self._forward(place, batch, new, out, q=q, k=k, v=v, **operands)

    def attend_latents(self, layer: int, module: torch.nn.Module, query: torch.Tensor,
                       c_kv: torch.Tensor, k_pe: torch.Tensor,
                       mask: Optional[torch.Tensor]) -> torch.Tensor:
        """As attend(), of keys and values that are [batch, 1, rows, width] for all heads."""
        batch, _, new, _ = query.shape
        place = self._enter(("attention", layer), batch, new, mask)
        q = self._real(query.transpose(1, 2))
        c_kv, k_pe = (self._real(x.squeeze(1)) for x in (c_kv, k_pe))
        if self.engine.expands(place):
            out = self.engine.forward_expanded(place, q, c_kv, k_pe, latent.expander(module))
        else:
            q_nope, q_pe, after = latent.absorb(module, q)
            out = self.engine.output(place, *q_nope.shape[::2])
            if out.shape[0]:
                self.engine.forward(place, q_nope=q_nope, q_pe=q_pe, c_kv=c_kv, k_pe=k_pe, out=out)
            out = after(out.to(q.dtype))
        return self._spread(out.to(q.dtype), batch, new)

    def recur(self, layer: int, batch: int, new: int, mask: Optional[torch.Tensor],
              operands: Dict[str, torch.Tensor]) -> torch.Tensor:
        """Operands of the rows are [batch, rows, ...]; the result is [batch, rows, heads, dim]."""
        place = self._enter(("recurrent", layer), batch, new, mask)
        for role in {"mixed_qkv", "a", "b"} & set(operands):
            operands[role] = self._real(operands[role])
        width = self.engine.layers[place][1].group.contents.v_head_dim
        out = self.engine.output(place, operands["mixed_qkv"].shape[0], width)
        return self._forward(place, batch, new, out, **operands)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        """[batch, rows, ...] without padding, the rows one after another; a view where it can be."""
        flat = tensor.detach().flatten(0, 1)
        return flat if self._rows is None else flat.index_select(0, self._rows)

    def _forward(self, place: int, batch: int, new: int, out: torch.Tensor,
                 **operands: torch.Tensor) -> torch.Tensor:
        if out.shape[0]:
            self.engine.forward(place, out=out, **operands)
        return self._spread(out, batch, new)

    def _spread(self, out: torch.Tensor, batch: int, new: int) -> torch.Tensor:
        """[rows, ...] as [batch, rows, ...], with zeros for padding."""
        if self._rows is not None:
            out = out.new_zeros(batch * new, *out.shape[1:]).index_copy_(0, self._rows, out)
        return out.view(batch, new, *out.shape[1:])


# ---- The interface ---------------------------------------------------------------------------------


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None,
              dropout: float = 0.0, s_aux: Optional[torch.Tensor] = None,
              **call: Any) -> Tuple[torch.Tensor, None]:
    """Transformers' attention function of the name "attnhost"."""
    global _awaiting  # pylint: disable=global-statement
    cache, layer, count = _awaiting or (None, getattr(module, "layer_idx", None), key.shape[2])
    _awaiting = None
    if _recorded is not None:
        seen = _see(module, layer, query, key, value, scaling, {**call, "s_aux": s_aux})
        _recorded.append(seen)
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1],
                               seen.members["v_head_dim"]), None
    if not isinstance(cache, Cache) or count != key.shape[2]:
        raise InvalidArgument(
            f"layer {layer}: keys that do not come from an attnhost.Cache; accepted: "
            "attnhost.generate(model, prompts), or past_key_values=attnhost.Cache(model)",
            "INVALID_ARGUMENT")
    if dropout:
        raise Unsupported(f"dropout {dropout}: accepted 0, in model.eval()", "UNSUPPORTED")
    _refuse_training(query)
    if attention_mask is not None and attention_mask.dim() != 2:
        raise Unsupported(f"a mask of {attention_mask.dim()} dimensions: accepted 2, [sequences, "
                          "tokens], which says what is padding", "UNSUPPORTED")
    if _is_latent(module):
        return cache.attend_latents(layer, module, query, key, value, attention_mask), None
    return cache.attend(layer, query, key, value, attention_mask, s_aux), None


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
