# SPDX-License-Identifier: Apache-2.0
"""flash_attn's functions, served by whatever backends an ini names:

    from attnhost.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Arguments are those of flash_attn 2 in its order, and those of FlashAttention 3 by name. What is for speed alone
(num_splits, pack_gqa, sm_margin, deterministic, scheduler_metadata, max_num_splits, fa_version) is accepted and
has no effect; what is not served raises Unsupported with the reason. There is no backward pass. A row that sees
no key has output 0, as in flash_attn, and LSE -inf.

attnhost.flash_attn.use("serve.ini") says which backends; without it, what is installed and `auto`. For
torch.compile a call is one operator with a fake kernel. Each call plans its own batch: an engine that calls many
layers with one batch, or captures them in a graph, is served better by attnhost.Planner.

On a GPU lengths are not looked at. So in flash_attn_varlen_func a causal sequence that has more queries than keys
must not be there, though others may be longer: it is refused on the CPU, and where max_seqlen_q shows it.
"""
import logging
import math
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence as Many, Tuple, Union

import torch

from .errors import InvalidArgument, Unsupported
from .host import Host
from .problem import layer_group
from .step import KVTable, Planner, Step

_LOG = logging.getLogger("attnhost")
_FREE_PAGE = 256  # tokens, of the table of a call that has no cache
_current: List[Host] = []
_planners: Dict[Tuple, Tuple[Planner, Tuple[int, int, int]]] = {}
Number = Union[float, torch.Tensor, None]


def use(config: Any = None, **sections: Mapping[str, Any]) -> Host:
    """Backends of calls from now on: an ini, its sections, or a Host."""
    host = config if isinstance(config, Host) else Host(config, **sections)
    _close()
    _current[:] = [host]
    return host


def rows() -> Dict[str, int]:
    """Query rows that each backend has computed since use()."""
    counts: Dict[str, int] = {}
    for planner, _ in _planners.values():
        for name, count in planner.rows.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def _close() -> None:
    if any(planner.device.type == "cuda" for planner, _ in _planners.values()):
        torch.cuda.synchronize()
    for planner, _ in _planners.values():
        planner.close()
    _planners.clear()


# ---- What is accepted --------------------------------------------------------------------------------


class Layer(NamedTuple):
    """What the planner of a call is for, beside shapes and dtypes."""

    scale: float
    left: int  # window; -1 = no limit
    right: int
    cap: float
    chunk: int
    kind: str  # "own": the call's tokens among each other; "new": keys that no cache has; "cache"
    lse: bool
    k_scale: Tuple[float, ...]
    v_scale: Tuple[float, ...]


def _refuse(name: str, value: Any, accepted: str) -> None:
    raise Unsupported(f"flash_attn: {name} {value}: accepted {accepted}", "UNSUPPORTED")


@lru_cache(maxsize=None)
def _note(name: str) -> None:
    _LOG.info("flash_attn: %s has no effect: backends decide", name)


_SPEED = {"num_splits": (0, 1), "pack_gqa": (None,), "sm_margin": (0,), "deterministic": (False,),
          "scheduler_metadata": (None,), "max_num_splits": (0,), "fa_version": (None,), "ver": (None,)}
_ABSENT = {"qv": "None", "rotary_cos": "None: q and k that are rotated before", "rotary_sin": "None",
           "cache_leftpad": "None", "seqused_q": "None", "q_v": "None", "learnable_sink": "None: sinks=",
           "q_descale": "None: queries that are not fp8", "k_descale": "None: keys that are not fp8",
           "v_descale": "None: values that are not fp8"}
_OF_ROTARY = ("rotary_interleaved", "rotary_seqlens")  # of rotary_cos, which is refused


def _check(more: Mapping[str, Any], *tensors: Optional[torch.Tensor]) -> None:
    """Check the other arguments."""
    for name, value in more.items():
        if name in _SPEED:
            if not any(value is usual or value == usual for usual in _SPEED[name]):
                _note(name)
        elif name in _ABSENT:
            if value is not None:
                _refuse(name, "given", _ABSENT[name])
        elif name not in _OF_ROTARY:
            raise TypeError(f"flash_attn: no argument '{name}'")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        _refuse("requires_grad", True, "torch.no_grad(), or tensors that need no gradient: there is no backward pass")


def _layer(q: torch.Tensor, causal: bool, window: Many[int], softmax_scale: Optional[float], softcap: float,
           chunk: int, kind: str, lse: bool, dropout: float, alibi: Optional[torch.Tensor],
           k_descale: Number = None, v_descale: Number = None) -> Layer:
    if dropout:
        _refuse("dropout_p", dropout, "0")
    if softcap < 0:
        _refuse("softcap", softcap, "0 and more")
    if alibi is not None and softcap:
        _refuse("softcap with alibi_slopes", softcap, "one of them: flash_attn caps before it adds slopes, backends after")
    if alibi is not None and alibi.dim() != 1:
        _refuse("alibi_slopes", f"of {alibi.dim()} dimensions", "1, [heads]")
    if q.dtype.itemsize == 1:
        _refuse("q", q.dtype, "float32, float16, bfloat16")
    left, right = (-1 if side is None else int(side) for side in window)
    if chunk and not causal and right != 0:
        _refuse("attention_chunk without causal", chunk, "causal=True: chunks of backends are causal")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    return Layer(scale, max(left, -1), 0 if causal else max(right, -1), float(softcap), int(chunk), kind, lse,
                 _numbers("k_descale", k_descale), _numbers("v_descale", v_descale))


def _numbers(name: str, value: Number) -> Tuple[float, ...]:
    """Scales of an fp8 cache, which backends have on the host."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.dim() > 1:
            _refuse(name, f"of shape {list(value.shape)} on {value.device}",
                    "a number, or a tensor on the CPU of 1 or as many as KV heads")
        return tuple(value.float().flatten().tolist())
    return () if value is None else (float(value),)


_KINDS = ("own", "new", "cache")


def _flat(layer: Layer) -> Tuple[List[float], List[float], List[float]]:
    """As an operator takes it: numbers, scales of keys and of values."""
    return ([layer.scale, layer.left, layer.right, layer.cap, layer.chunk, _KINDS.index(layer.kind), layer.lse],
            list(layer.k_scale), list(layer.v_scale))


def _unflat(numbers: Many[float], k_scale: Many[float], v_scale: Many[float]) -> Layer:
    scale, left, right, cap, chunk, kind, lse = numbers
    return Layer(scale, int(left), int(right), cap, int(chunk), _KINDS[int(kind)], bool(lse), tuple(k_scale),
                 tuple(v_scale))


# ---- Planners ----------------------------------------------------------------------------------------


def _planner(q: torch.Tensor, kv: torch.Tensor, v: torch.Tensor, page_size: int, layer: Layer, sinks: bool,
             alibi: bool, needed: Tuple[int, int, int]) -> Planner:
    """One for such calls; it grows with `needed`: sequences, rows, keys of a sequence."""
    if not _current:
        _current.append(Host())
    heads = (q.shape[1], kv.shape[-2], q.shape[2], v.shape[-1])
    key = (_current[0], q.device, q.dtype, kv.dtype, heads, page_size, layer, sinks, alibi)
    known = _planners.get(key)
    if known and all(have >= want for have, want in zip(known[1], needed)):
        return known[0]
    room = tuple(1 << max(count - 1, least).bit_length()
                 for count, least in zip(map(max, needed, known[1] if known else needed), (7, 127, 127)))
    group = layer_group([0], num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=heads[2], v_head_dim=heads[3],
                        window_left=layer.left, window_right=layer.right, sm_scale=layer.scale,
                        logit_cap=layer.cap, attention_chunk=layer.chunk, sinks=sinks, alibi=alibi,
                        attn_type="encoder_only" if layer.kind == "own" else "decoder")
    scales = {"kv_cache__k_scale": list(layer.k_scale) or 1, "kv_cache__v_scale": list(layer.v_scale) or 1}
    made = Planner(_current[0], [group], dtype=q.dtype, kv_dtype=kv.dtype, device=q.device, page_size=page_size,
                   max_seqs=room[0], max_tokens=room[1], max_len=room[2], decodes=None, name="flash_attn",
                   uses=[name for name, used in (("lse", layer.lse), ("unsaved_kv", layer.kind == "new")) if used],
                   **(scales if kv.dtype.itemsize == 1 else {}))
    if known:
        if q.is_cuda:
            torch.cuda.synchronize(q.device)  # as its metadata may be in use; rare, by powers of two
        known[0].close()
    _planners[key] = made, room
    return made


# ---- A call ------------------------------------------------------------------------------------------


def _run(q: torch.Tensor, k: Optional[torch.Tensor], v: Optional[torch.Tensor], k_cache: Optional[torch.Tensor],
         v_cache: Optional[torch.Tensor], q_indptr: torch.Tensor, lens: torch.Tensor,
         k_indptr: Optional[torch.Tensor], table: Optional[torch.Tensor], slots: Optional[torch.Tensor],
         sinks: Optional[torch.Tensor], slopes: Optional[torch.Tensor], max_q: int, max_k: int,
         numbers: List[float], k_scale: List[float], v_scale: List[float]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Rows of q [rows, heads, dim] over k, v [rows, heads, dim], pages of caches, or both."""
    layer = _unflat(numbers, k_scale, v_scale)
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        _refuse("a stream that is captured", "", "calls outside of graphs; attnhost.Planner has graphs")
    is_cpu = q.device.type == "cpu"
    if is_cpu and len(lens):
        max_k = int(lens.max())
        if table is not None and max_k > table.shape[1] * k_cache.shape[1]:
            raise InvalidArgument(f"flash_attn: {max_k} keys of a sequence: accepted {table.shape[1] * k_cache.shape[1]}, "
                                  "the cache's room", "INVALID_ARGUMENT")
    blind = _blind_rows(layer, q_indptr, lens) if is_cpu else None
    if blind is not None:
        return _without(blind, q, k, v, k_cache, v_cache, q_indptr, lens, k_indptr, table, slots, sinks, slopes,
                        max_q, max_k, numbers, k_scale, v_scale)
    seqs, free = len(lens), layer.kind != "cache"
    page_size = _FREE_PAGE if free else k_cache.shape[1]
    planner = _planner(q, k if free else k_cache, v if free else v_cache, page_size, layer, sinks is not None,
                       slopes is not None, (seqs, max(q.shape[0], seqs), max(max_q, max_k, 1)))
    if free:
        table = q.new_zeros((seqs, max(1, -(-max_k // page_size))), dtype=torch.int32)
        k_cache, v_cache = (x.new_zeros(1, page_size, *x.shape[1:]) for x in (k, v)) if layer.kind == "new" else (0, 0)
    _bind(planner, layer, k_cache, v_cache, sinks, slopes)
    keys = lens if _is_unbounded(layer) and layer.kind != "own" and max_q > 1 else None
    planner.plan(Step(lens if keys is None else torch.maximum(lens, q_indptr.diff()),
                      [KVTable(slots, block_table=table, kv_lens=keys, kv_new_indptr=k_indptr)],
                      q_indptr=q_indptr, num_tokens=q.shape[0], max_q_len=max_q, max_kv_len=max(max_q, max_k)))
    out = q.new_empty((q.shape[0], q.shape[1], v_cache.shape[-1] if v is None else v.shape[-1]))
    lse = q.new_empty((q.shape[0] if layer.lse else 0, q.shape[1]), dtype=torch.float32)
    if out.numel():
        planner.forward(0, q=q, k=k, v=v, out=out, save_kv=k is not None and not free,
                        **({"lse": lse} if layer.lse else {}))
    return out, lse


def _bind(planner: Planner, layer: Layer, k_cache: Any, v_cache: Any, sinks: Optional[torch.Tensor],
          slopes: Optional[torch.Tensor]) -> None:
    operands = {"sinks": sinks, "alibi_slopes": slopes}
    scales = None
    if layer.kind != "own":
        operands.update(k_cache=k_cache, v_cache=v_cache)
        if k_cache.dtype.itemsize == 1:
            if not layer.k_scale or not layer.v_scale:
                _refuse("an fp8 cache without k_descale and v_descale", "", "both")
            scales = {"k_cache": layer.k_scale, "v_cache": layer.v_scale}
    given = {role: x for role, x in operands.items() if x is not None}
    if given:
        planner.bind(0, scales=scales, **given)


def _blind_rows(layer: Layer, q_indptr: torch.Tensor, lens: torch.Tensor) -> Optional[torch.Tensor]:
    """The rows that see keys, where some lie before the first key: sequences with more rows than keys."""
    counts = q_indptr.diff()
    extra = (counts - lens).clamp_(min=0)
    if not bool(extra.any()) or _is_unbounded(layer):
        return None
    if layer.right != 0:
        _refuse(f"window_size ({layer.left}, {layer.right}) of a sequence with more queries than keys", "",
                "causal=True, or no window")
    places = torch.arange(int(q_indptr[-1]), device="cpu")
    owner = torch.repeat_interleave(torch.arange(len(lens), device="cpu"), counts.long())
    return places[places - q_indptr[:-1].long()[owner] >= extra[owner]]


def _without(seeing: torch.Tensor, q: torch.Tensor, *call: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """A call of these rows alone; the others see nothing."""
    k, v, k_cache, v_cache, q_indptr, lens, k_indptr, table, slots, sinks, slopes, max_q, *rest = call
    counts = torch.minimum(q_indptr.diff(), lens)
    starts = torch.cat([q_indptr[:1], counts.cumsum(0).to(torch.int32)])
    if len(seeing) == 0:
        out = q.new_zeros((*q.shape[:2], (v if v is not None else v_cache).shape[-1]))
        return out, q.new_full(q.shape[:2], -math.inf, dtype=torch.float32)
    few, few_lse = _run(q[seeing], k, v, k_cache, v_cache, starts, lens, k_indptr, table, slots, sinks, slopes,
                        min(max_q, int(lens.max())), *rest)
    out = few.new_zeros((q.shape[0], *few.shape[1:])).index_copy_(0, seeing, few)
    if not len(few_lse):
        return out, few_lse
    return out, few_lse.new_full(q.shape[:2], -math.inf).index_copy_(0, seeing, few_lse)


def _is_unbounded(layer: Layer) -> bool:
    """Do all rows see all keys, so that positions mean nothing?"""
    return layer.left < 0 and layer.right < 0 and not layer.chunk


# An operator's schema has plain types: what a layer is goes as numbers.
@torch.library.custom_op("attnhost::flash_attn", mutates_args=("k_cache", "v_cache"))
def _operator(q: torch.Tensor, k: Optional[torch.Tensor], v: Optional[torch.Tensor],
              k_cache: Optional[torch.Tensor], v_cache: Optional[torch.Tensor], q_indptr: torch.Tensor,
              lens: torch.Tensor, k_indptr: Optional[torch.Tensor], table: Optional[torch.Tensor],
              slots: Optional[torch.Tensor], sinks: Optional[torch.Tensor], slopes: Optional[torch.Tensor],
              max_q: int, max_k: int, numbers: List[float], k_scale: List[float],
              v_scale: List[float]) -> Tuple[torch.Tensor, torch.Tensor]:
    return _run(q, k, v, k_cache, v_cache, q_indptr, lens, k_indptr, table, slots, sinks, slopes, max_q, max_k,
                numbers, k_scale, v_scale)


@_operator.register_fake
def _(q, k, v, k_cache, v_cache, q_indptr, lens, k_indptr, table, slots, sinks, slopes, max_q, max_k,  # type: ignore[no-untyped-def]
      numbers, k_scale, v_scale):
    width = (v if v is not None else v_cache).shape[-1]
    rows = q.shape[0] if numbers[-1] else 0
    return q.new_empty((*q.shape[:2], width)), q.new_empty((rows, q.shape[1]), dtype=torch.float32)


def _call(*arguments: Any, layer: Layer) -> Tuple[torch.Tensor, torch.Tensor]:
    call = _operator if torch.compiler.is_compiling() else _run
    with torch.no_grad():
        return call(*arguments, *_flat(layer))


def _packed(x: torch.Tensor) -> torch.Tensor:
    """[batch, rows, heads, dim] as [rows, heads, dim], its last dimension dense."""
    return _dense(x.reshape(-1, *x.shape[2:]))


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _starts(batch: int, rows: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, batch * rows + 1, max(rows, 1), dtype=torch.int32, device=device)[:batch + 1] if rows \
        else torch.zeros(batch + 1, dtype=torch.int32, device=device)


def _f32(x: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    return None if x is None else x.detach().float().contiguous()


def _sinks(sinks: Optional[torch.Tensor], more: Dict[str, Any]) -> Optional[torch.Tensor]:
    return _f32(more.pop("s_aux") if "s_aux" in more and sinks is None else sinks)


# ---- The functions -----------------------------------------------------------------------------------


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
                    softmax_scale: Optional[float] = None, causal: bool = False,
                    window_size: Many[int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                    return_attn_probs: bool = False, *, return_lse: bool = False,
                    sinks: Optional[torch.Tensor] = None, attention_chunk: int = 0, **more: Any) -> Any:
    """q [batch, rows, heads, dim], k and v [batch, keys, kv_heads, dim] -> [batch, rows, heads, v_dim]; with
    return_lse also the LSE [batch, heads, rows]; with return_attn_probs (out, LSE, None). The last row sees the
    last key, as in flash_attn 2.1."""
    sinks = _sinks(sinks, more)
    _check(more, q, k, v)
    batch, count, keys = q.shape[0], q.shape[1], k.shape[1]
    starts, k_starts = (_starts(batch, n, q.device) for n in (count, keys))
    out, lse = _varlen(q=_packed(q), k=_packed(k), v=_packed(v), starts=starts, k_starts=k_starts, max_q=count,
                       max_k=keys, same=count == keys, sinks=sinks, alibi=alibi_slopes, layer=_layer(
                           q, causal, window_size, softmax_scale, softcap, attention_chunk, "own",
                           return_lse or return_attn_probs, dropout_p, alibi_slopes))
    return _result(out.view(batch, count, *out.shape[1:]),
                   lse.view(batch, -1, lse.shape[1]).transpose(1, 2) if len(lse) or not count else lse,
                   return_lse, return_attn_probs)


def _varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, k_starts: torch.Tensor,
            max_q: int, max_k: int, same: bool, sinks: Any, alibi: Any, layer: Layer) -> Tuple[torch.Tensor, torch.Tensor]:
    """Without a cache: among the call's own tokens, or keys that are other rows than the queries."""
    lens = k_starts.diff()
    if same:
        return _call(q, k, v, None, None, starts, lens, None, None, None, sinks, _f32(alibi), max_q, max_k,
                     layer=layer)
    return _call(q, k, v, None, None, starts, lens, k_starts, None, None, sinks, _f32(alibi), max_q, max_k,
                 layer=layer._replace(kind="new"))


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                           cu_seqlens_k: Optional[torch.Tensor] = None, max_seqlen_q: int = 0,
                           max_seqlen_k: int = 0, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                           causal: bool = False, window_size: Many[int] = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Optional[torch.Tensor] = None, *,
                           seqused_q: Optional[torch.Tensor] = None, seqused_k: Optional[torch.Tensor] = None,
                           return_lse: bool = False, return_softmax_lse: bool = False, sinks: Optional[torch.Tensor] = None,
                           attention_chunk: int = 0, k_descale: Number = None, v_descale: Number = None,
                           out: Optional[torch.Tensor] = None, **more: Any) -> Any:
    """q [rows, heads, dim]; k and v [keys, kv_heads, dim], or with a block_table pages [pages, page_size,
    kv_heads, dim] -> [rows, heads, v_dim]; with return_lse also the LSE [heads, rows]."""
    sinks = _sinks(sinks, more)
    _check(more, q, k, v)
    want = return_lse or return_softmax_lse or return_attn_probs
    layer = _layer(q, causal, window_size, softmax_scale, softcap, attention_chunk, "own", want, dropout_p,
                   alibi_slopes, k_descale, v_descale)
    starts = cu_seqlens_q.to(torch.int32)
    _refuse_unused("seqused_q", seqused_q, starts)
    _refuse_blind(q, causal, max_seqlen_q, max_seqlen_k)
    if block_table is not None:
        if (seqused_k is None) == (cu_seqlens_k is None):
            _refuse("block_table with both or none of seqused_k and cu_seqlens_k", "", "one of them")
        lens = (cu_seqlens_k.diff() if seqused_k is None else seqused_k).to(torch.int32)
        made, lse = _call(_dense(q), None, None, k, v, starts, lens, None, block_table.to(torch.int32), None, sinks,
                          _f32(alibi_slopes), max_seqlen_q, max_seqlen_k, layer=layer._replace(kind="cache"))
    else:
        k_starts = cu_seqlens_k.to(torch.int32)
        _refuse_unused("seqused_k", seqused_k, k_starts)
        same = cu_seqlens_q is cu_seqlens_k or (
            q.device.type == "cpu" and not torch.compiler.is_compiling() and torch.equal(starts, k_starts))
        made, lse = _varlen(_dense(q), _dense(k), _dense(v), starts, k_starts, max_seqlen_q, max_seqlen_k, same,
                            sinks, alibi_slopes, layer)
    if out is not None:
        made = out.copy_(made)
    return _result(made, lse.transpose(0, 1), return_lse or return_softmax_lse, return_attn_probs)


def _refuse_unused(name: str, used: Optional[torch.Tensor], starts: torch.Tensor) -> None:
    """Refuse rows that are present but unused."""
    is_known = used is None or (starts.device.type == "cpu" and not torch.compiler.is_compiling())
    if not is_known or (used is not None and not torch.equal(used.to(torch.int32), starts.diff())):
        _refuse(name, "below the rows of a sequence, or on a GPU", "None: cu_seqlens alone")


def _refuse_blind(q: torch.Tensor, causal: bool, max_q: int, max_k: int) -> None:
    if causal and q.device.type != "cpu" and max_q > max_k:
        _refuse("causal with max_seqlen_q above max_seqlen_k", f"{max_q}, {max_k}", "no more queries than keys")


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
                            k: Optional[torch.Tensor] = None, v: Optional[torch.Tensor] = None,
                            rotary_cos: Any = None, rotary_sin: Any = None,
                            cache_seqlens: Union[int, torch.Tensor, None] = None,
                            cache_batch_idx: Optional[torch.Tensor] = None, cache_leftpad: Any = None,
                            block_table: Optional[torch.Tensor] = None, softmax_scale: Optional[float] = None,
                            causal: bool = False, window_size: Many[int] = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Optional[torch.Tensor] = None,
                            num_splits: int = 0, return_softmax_lse: bool = False, *,
                            page_table: Optional[torch.Tensor] = None, cu_seqlens_q: Optional[torch.Tensor] = None,
                            cu_seqlens_k_new: Optional[torch.Tensor] = None, max_seqlen_q: Optional[int] = None,
                            k_descale: Number = None, v_descale: Number = None, return_lse: bool = False,
                            sinks: Optional[torch.Tensor] = None, attention_chunk: int = 0,
                            out: Optional[torch.Tensor] = None, **more: Any) -> Any:
    """q [batch, rows, heads, dim], or [rows, heads, dim] with cu_seqlens_q and max_seqlen_q; caches [batch, keys,
    kv_heads, dim], or pages [pages, page_size, kv_heads, dim] with a block_table (page_table); k and v, new keys
    [batch, keys, kv_heads, dim] that are written after cache_seqlens. -> as q; with return_lse also the LSE
    [batch, heads, rows], [heads, rows] where q has no batch. Pages of new keys belong to one sequence each."""
    sinks = _sinks(sinks, more)
    _check({**more, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad,
            "num_splits": num_splits}, q, k, v)
    if (k is None) != (v is None):
        _refuse("one of k and v", "", "both or none")
    if k is not None and cu_seqlens_k_new is not None:
        _refuse("cu_seqlens_k_new with k", "", "k [batch, keys, kv_heads, dim]")
    want = return_lse or return_softmax_lse
    layer = _layer(q, causal, window_size, softmax_scale, softcap, attention_chunk, "cache", want, 0.0, alibi_slopes,
                   k_descale, v_descale)
    table = page_table if page_table is not None else block_table
    batch = len(table) if table is not None else len(cu_seqlens_q) - 1 if cu_seqlens_q is not None else q.shape[0]
    if table is None:
        k_cache, v_cache, table = _as_pages(k_cache, v_cache, cache_batch_idx, batch)
    elif cache_batch_idx is not None:
        _refuse("cache_batch_idx with a block table", "", "one of them")
    rows, starts = (q.shape[1], _starts(batch, q.shape[1], q.device)) if cu_seqlens_q is None else (
        int(max_seqlen_q or 0), cu_seqlens_q.to(torch.int32))
    if cu_seqlens_q is not None and not max_seqlen_q:
        _refuse("cu_seqlens_q without max_seqlen_q", "", "both")
    room, added = table.shape[1] * k_cache.shape[1], k.shape[1] if k is not None else 0
    known = cache_seqlens if cache_seqlens is not None else room - added
    before = torch.full((batch,), known, dtype=torch.int32, device=q.device) if isinstance(known, int) \
        else known.to(torch.int32)
    most = min(room, known + added) if isinstance(known, int) else room
    slots = _new_slots(table, before, added, k_cache.shape[1]) if k is not None else None
    k_starts = _starts(batch, added, q.device) if k is not None and (added != rows or q.dim() == 3) else None
    made, lse = _call(_packed(q) if q.dim() == 4 else _dense(q), None if k is None else _packed(k),
                      None if v is None else _packed(v), k_cache, v_cache, starts, before + added, k_starts,
                      table.to(torch.int32), slots, sinks, _f32(alibi_slopes), rows, most, layer=layer)
    if q.dim() == 4:
        made = made.view(batch, rows, *made.shape[1:])
        lse = lse.view(batch, rows, -1).transpose(1, 2) if want else lse
    else:
        lse = lse.transpose(0, 1)
    if out is not None:
        made = out.copy_(made)
    return (made, lse) if want else made


def _as_pages(k_cache: torch.Tensor, v_cache: torch.Tensor, rows: Optional[torch.Tensor],
              batch: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache of a row for each sequence as pages, and the table; not copied."""
    keys = k_cache.shape[1]
    dense = all(cache.stride(0) == keys * cache.stride(1) or len(cache) == 1 for cache in (k_cache, v_cache))
    size = math.gcd(keys, 128) if dense else keys
    size = size if size >= 16 else keys
    count = keys // size
    owners = torch.arange(batch, device=k_cache.device) if rows is None else rows
    table = owners.to(torch.int32)[:, None] * count + torch.arange(count, dtype=torch.int32, device=k_cache.device)
    pages = [cache.view(-1, size, *cache.shape[2:]) if count > 1 else cache for cache in (k_cache, v_cache)]
    return pages[0], pages[1], table


def _new_slots(table: torch.Tensor, before: torch.Tensor, added: int, page_size: int) -> torch.Tensor:
    """Slots of new keys: after the cached ones."""
    places = before[:, None].long() + torch.arange(added, device=table.device)
    pages = table.long().gather(1, places.div(page_size, rounding_mode="floor").clamp_(max=table.shape[1] - 1))
    return (pages * page_size + places % page_size).flatten()


def _result(out: torch.Tensor, lse: torch.Tensor, want_lse: bool, want_probs: bool) -> Any:
    if want_probs:
        return out, lse, None
    return (out, lse) if want_lse else out
