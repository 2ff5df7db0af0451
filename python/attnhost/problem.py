# SPDX-License-Identifier: Apache-2.0
"""Problems put to a backend, and its verdicts: attn_problem.h in Python.

The structs are those of the header, by their names there; the functions here fill them with what
most models want.
"""
import ctypes
from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Tuple, Union

from . import _abi, _words
from ._library import check, text

Device = _abi.attn_device
LayerGroup = _abi.attn_layer_group
Problem = _abi.attn_problem
Device.__doc__ = "A device, of device(): its type, number, and what the driver says of it (attn_problem.h)."
LayerGroup.__doc__ = """Layers that ask the same of a backend, of layer_group() or describe(): their
ids, heads, dimensions, window, scale ... (attn_problem.h), by their names in C."""
Problem.__doc__ = """What a backend is asked, of problem(): a layer group on a device, with dtypes, page
size, layout and bounds (attn_problem.h)."""


def device(name: Union[str, Device] = "cpu") -> Device:
    """A device of this machine: "cpu", "cuda:0"."""
    if isinstance(name, Device):
        return name
    kind, _, index = str(name).partition(":")
    made = Device()
    check("attnhost_device_init", ctypes.byref(made),
          _words.number("device", kind, _words.DEVICES), int(index or 0))
    return made


def layer_group(layers: Iterable[int], *, num_q_heads: int, num_kv_heads: int, head_dim: int,
                kind: Union[str, int] = "softmax", attn_type: Union[str, int] = "decoder",
                v_head_dim: int = 0, window_left: int = -1, window_right: int = 0,
                sm_scale: Union[float, None] = None, sinks: bool = False, alibi: bool = False,
                **members: Any) -> LayerGroup:
    """Equal layers of a model. `layers` are their ids, each with a KV buffer of the same number.

    `window_left` is the number of earlier keys that a query sees (a model's sliding_window - 1),
    -1 = all. Any other member of attn_layer_group can be given by its name.
    """
    made = [_abi.attn_layer(layer_id=layer, kv_buffer=layer) for layer in layers]
    kind = _words.number("kind", kind, _words.KINDS)
    recurrent = kind == _abi.ATTN_KIND_LINEAR
    if sm_scale is None:  # a head_dim that is none is refused by its name
        sm_scale = head_dim ** -0.5 if isinstance(head_dim, int) and head_dim > 0 else 0.0
    flags = (_abi.ATTN_GROUP_HAS_SINKS if sinks else 0) | (_abi.ATTN_GROUP_HAS_ALIBI if alibi else 0)
    return LayerGroup(
        kind=kind, kv_group=members.pop("kv_group", -1 if recurrent else 0),
        state_group=members.pop("state_group", 0 if recurrent else -1),
        attn_type=_words.number("attn_type", attn_type, _words.TYPES),
        flags=members.pop("flags", 0) | flags, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads,
        head_dim=head_dim, v_head_dim=v_head_dim or head_dim, window_left=window_left,
        window_right=window_right, sm_scale=sm_scale, num_layers=len(made), layers=made, **members)


def problem(group: LayerGroup, *, device: Union[str, Device] = "cpu",
            dtype: Union[str, int] = "f32", kv_dtype: Union[str, int, None] = None,
            new_kv_dtype: Union[str, int, None] = None,
            out_dtype: Union[str, int, None] = None, page_size: int = 16,
            kv_layout: Union[str, None] = "kv.nhd/1", modes: Any = ("extend", "decode"),
            masks: Any = ("layer",), uses: Any = (), max_seqs: int = 0, max_tokens: int = 0,
            max_kv_len: int = 0, graph_level: Union[str, int] = "never",
            features: Sequence[str] = (), **members: Any) -> Problem:
    """A layer group on a device. Bounds of 0 are not known yet: enough for a question, too little
    for Host.compose()."""
    find = _words.DTYPES
    q_dtype = _words.number("dtype", dtype, find)
    bounds = _abi.attn_bounds(
        modes=_words.bits("mode", modes, _words.MODES),
        mask_kinds=_words.bits("mask", masks, _words.MASKS),
        uses=_words.bits("use", uses, _words.USES), max_seqs=max_seqs, max_tokens=max_tokens,
        max_q_len=members.pop("max_q_len", max_tokens), max_kv_len=max_kv_len,
        max_sms=members.pop("max_sms", 0),
        max_kv_tokens=max_seqs * -(-max_kv_len // max(page_size, 1)) * max(page_size, 1))
    on = device if isinstance(device, Device) else globals()["device"](device)
    return Problem(
        graph_level=_words.number("graph_level", graph_level, _words.GRAPH_LEVELS), device=on,
        group=group, bounds=bounds, kv_layout=kv_layout, q_dtype=q_dtype,
        new_kv_dtype=_words.number("new_kv_dtype", new_kv_dtype, find) if new_kv_dtype else 0,
        kv_dtype=q_dtype if kv_dtype is None else _words.number("kv_dtype", kv_dtype, find),
        out_dtype=q_dtype if out_dtype is None else _words.number("out_dtype", out_dtype, find),
        page_size=page_size, tp_size=members.pop("tp_size", 1), num_features=len(features),
        features=list(features), required_traits=_words.bits("trait", members.pop("required_traits", ()), _words.TRAITS),
        **members)


# ---- Answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reason:
    """One reason of a refusal."""

    code: str  # "HEAD_DIM"
    field: str  # "head_dim"
    got: str  # "192"
    accepted: str  # "64, 128"
    with_field: str = ""  # of a COMBINATION: what it conflicts with
    child: str = ""  # of CHILD_REJECTED: whose reason it is
    rule: str = ""  # of RULE: the rule of selection.ini
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return self.text
        what = f"{self.field} with {self.with_field}" if self.with_field else self.field
        who = f"{self.child}: " if self.child else ""
        return f"{who}{what} {self.got}: accepted {self.accepted}"


@dataclass(frozen=True)
class Verdict:
    """A backend's answer. True iff it accepts the problem."""

    supported: bool
    reasons: Tuple[Reason, ...] = ()
    graph_level: str = "never"  # up to which batches can be captured
    traits: tuple = ()  # "deterministic", ...
    host_arrays: tuple = ()  # arrays of a batch that must be in host memory, too
    cost_hint: float = 0.0
    device_bytes: int = 0
    pinned_bytes: int = 0
    host_bytes: int = 0

    def __bool__(self) -> bool:
        return self.supported

    def __str__(self) -> str:
        return "supported" if self.supported else "; ".join(map(str, self.reasons))


def read_reason(reason: _abi.attn_reason) -> Reason:
    return Reason(code=_words.name(reason.code, _words.REASONS).upper(),
                  field=_words.name(reason.field, _words.FIELDS), got=text(reason.got),
                  accepted=text(reason.accepted), child=text(reason.child),
                  with_field=_words.name(reason.with_field, _words.FIELDS)
                  if reason.with_field else "")


def read_verdict(verdict: _abi.attn_verdict, reasons: Iterable[_abi.attn_reason]) -> Verdict:
    if not verdict.supported:
        return Verdict(False, tuple(map(read_reason, reasons)))
    return Verdict(True, (), _words.name(verdict.graph_level, _words.GRAPH_LEVELS),
                   _words.names(verdict.traits, _words.TRAITS),
                   _words.names(verdict.host_arrays, _words.HOST_ARRAYS), verdict.cost_hint,
                   verdict.device_bytes, verdict.pinned_bytes, verdict.host_bytes)
