# SPDX-License-Identifier: Apache-2.0
"""Which backend serves which layers in which phase, and why no other: attnhost_select() in Python."""
import ctypes
from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

from . import _abi, _words
from ._library import call, text
from ._struct import elements
from .errors import Unsupported
from .problem import Reason, Verdict, read_verdict

_STATES = {_abi.ATTNHOST_CAN_SERVE: "can serve", _abi.ATTNHOST_CANNOT_SERVE: "cannot serve",
           _abi.ATTNHOST_EXCLUDED: "excluded", _abi.ATTNHOST_ABSENT: "absent"}


@dataclass(frozen=True)
class Candidate:
    """A backend considered for a phase."""

    name: str
    state: str  # "can serve", "cannot serve", "excluded", "absent"
    reasons: Tuple[Reason, ...]
    verdict: Optional[Verdict]
    what: str
    aliases: str


@dataclass(frozen=True)
class Phase:
    """The backend for "prefill" or "decode" of a group."""

    name: str
    wanted: str  # "auto", or the name that was asked for
    why: str
    chosen: Optional[str]
    candidates: Tuple[Candidate, ...]


@dataclass(frozen=True)
class Group:
    """Equal layers, and their backends."""

    layers: Tuple[int, ...]
    what: str  # "softmax decoder, 32 query heads, ..."
    kv_layout: Optional[str]
    state_layout: Optional[str]
    decode_graph_level: str
    phases: Tuple[Phase, ...]
    struct: _abi.attn_layer_group = field(repr=False)


@dataclass(frozen=True)
class Unit:
    """What is composed: a backend for some of the groups (Host.compose())."""

    backend: str
    type: str
    groups: Tuple[int, ...]
    struct: _abi.attnhost_unit = field(repr=False)

    @property
    def problems(self) -> List[_abi.attn_problem]:
        """The argument of compose(): one problem for each of its `groups`, in order."""
        made = elements(self.struct.problems, self.struct.num_problems)
        for problem in made:
            problem.kept = self.struct.kept
        return made


class _Memory:
    """What attnhost_select() has made, for as long as something points into it."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer

    def __del__(self) -> None:
        call("attnhost_selection_destroy", self.pointer)


class Selection:
    """The answer of Host.explain(). True iff all layers are served; str() is for people."""

    def __init__(self, pointer: Any) -> None:
        info, owner = pointer.contents, _Memory(pointer)
        self.status = info.status
        self.message = text(info.message)
        self.device = info.device
        self.device_name = text(info.device_name)
        self.model = text(info.model)
        self.architecture = text(info.architecture)
        self.dtype = _words.DTYPE_NAMES.get(info.dtype, str(info.dtype))
        self.max_context_len = info.max_context_len
        self.num_layers = info.num_layers
        self.notes = text(info.notes)
        self.groups = tuple(_group(group, owner) for group in elements(info.groups, info.num_groups))
        self.units = tuple(_unit(unit, owner) for unit in elements(info.units, info.num_units))

    def __bool__(self) -> bool:
        return self.status == _abi.ATTN_OK

    def require(self) -> "Selection":
        """Return the selection, or raise Unsupported with all reasons."""
        if self:
            return self
        error = Unsupported(f"{self.message}\n{self}", "UNSUPPORTED")
        error.reasons = tuple(reason for group in self.groups for phase in group.phases
                              if phase.chosen is None
                              for candidate in phase.candidates for reason in candidate.reasons)
        raise error

    def __str__(self) -> str:
        lines = [f"{self.model} ({self.architecture}) on {self.device_name}, {self.dtype}"]
        for group in self.groups:
            ids = ", ".join(map(str, group.layers))
            lines.append(f"  layers {ids}: {group.what}")
            for phase in group.phases:
                lines.append(f"    {phase.name}: {phase.chosen or 'none'} ({phase.why})")
                for candidate in phase.candidates:
                    if candidate.name == phase.chosen or not candidate.reasons:
                        continue
                    lines.append(f"      not {candidate.name}: "
                                 + "; ".join(map(str, candidate.reasons)))
        return "\n".join(lines + ([self.notes.rstrip()] if self.notes else []))


def _reason(info: _abi.attnhost_reason) -> Reason:
    return Reason(text(info.code_name), text(info.field), text(info.got), text(info.accepted),
                  text(info.with_field), text(info.child), text(info.rule), text(info.text))


def _candidate(info: _abi.attnhost_candidate) -> Candidate:
    verdict = read_verdict(info.verdict.contents, ()) if info.verdict else None
    return Candidate(text(info.name), _STATES.get(info.state, str(info.state)),
                     tuple(map(_reason, elements(info.reasons, info.num_reasons))), verdict,
                     text(info.what), text(info.aliases))


def _phase(info: _abi.attnhost_phase) -> Phase:
    candidates = tuple(map(_candidate, elements(info.candidates, info.num_candidates)))
    chosen = candidates[info.chosen].name if info.chosen >= 0 else None
    return Phase(text(info.name), text(info.wanted), text(info.why), chosen, candidates)


def _group(info: _abi.attnhost_group, owner: _Memory) -> Group:
    struct = info.group.contents
    struct.kept = owner
    layers = tuple(layer.layer_id for layer in elements(struct.layers, struct.num_layers))
    return Group(layers, text(info.what), text(info.kv_layout) or None,
                 text(info.state_layout) or None,
                 _words.name(info.decode_graph_level, _words.GRAPH_LEVELS),
                 tuple(map(_phase, elements(info.phases, info.num_phases))), struct)


def _unit(info: _abi.attnhost_unit, owner: _Memory) -> Unit:
    info.kept = owner
    groups = ctypes.cast(info.groups, ctypes.POINTER(ctypes.c_uint32))
    return Unit(text(info.backend), text(info.type), tuple(groups[:info.num_problems]), info)
