# SPDX-License-Identifier: Apache-2.0
"""attnhost: attention backends as plugins, under tensors of PyTorch, numpy and others.

    Host, Backend, Metadata     load plugins, ask them, compose them, drive them
    problem(), layer_group()    what a backend is asked
    Batch, KVGroup              what a step works on
    Planner, Step, KVTable      the same from the tables of an engine (PyTorch)
"""
from typing import TYPE_CHECKING, Any, List

from ._library import version
from .batch import Batch, KVGroup, operand, state_group
from .errors import AttnhostError, ConfigError, InvalidArgument, OutOfMemory, Unsupported
from .host import Backend, BackendType, Host, Metadata, Node, Plugin
from .problem import Device, LayerGroup, Problem, Reason, Verdict, device, layer_group, problem
from .selection import Candidate, Group, Phase, Selection, Unit

if TYPE_CHECKING:  # those of _LAZY
    from .engine import Engine, Sequence
    from .generation import generate
    from .graphs import DecodeGraphs
    from .step import KVTable, Planner, Step
    from .transformers import Cache, describe, use

__version__ = version()
__all__ = [
    "AttnhostError", "Backend", "BackendType", "Batch", "Candidate", "ConfigError", "Device",
    "Group", "Host", "InvalidArgument", "KVGroup", "LayerGroup", "Metadata", "Node", "OutOfMemory",
    "Phase", "Plugin", "Problem", "Reason", "Selection", "Unit", "Unsupported", "Verdict",
    "device", "layer_group", "operand", "problem", "state_group", "version",
    "Cache", "DecodeGraphs", "Engine", "KVTable", "Planner", "Sequence", "Step", "describe", "generate", "use",
]

# What needs PyTorch and Transformers comes when it is asked for.
_LAZY = {"Cache": "transformers", "DecodeGraphs": "graphs", "Engine": "engine", "KVTable": "step",
         "Planner": "step", "Sequence": "engine", "Step": "step", "describe": "transformers",
         "generate": "generation", "use": "transformers"}

if not TYPE_CHECKING:  # which would take any name for one of it
    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'attnhost' has no attribute '{name}'")
        from importlib import import_module
        return getattr(import_module("." + _LAZY[name], __name__), name)


def __dir__() -> List[str]:
    return sorted({*globals(), *_LAZY})
