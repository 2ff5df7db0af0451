# SPDX-License-Identifier: Apache-2.0
"""Host, Backend and Metadata: attnhost.h in Python."""
import ctypes
import json
import logging
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _abi, _call, _words, ini
from ._library import Handle, call, check, destroy, text
from ._struct import elements, make_array
from .batch import Batch, operand
from .errors import InvalidArgument
from .problem import Problem, Verdict, read_verdict
from .selection import Selection, Unit
from .stream import Borrowed, stream_number

_LOG = logging.getLogger("attnhost")
_LOG_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
_LEVELS = {_abi.ATTN_LOG_ERROR: logging.ERROR, _abi.ATTN_LOG_WARNING: logging.WARNING,
           _abi.ATTN_LOG_INFO: logging.INFO}
_HERE = os.path.dirname(os.path.abspath(__file__))


@_LOG_TYPE
def _log(_context: Any, level: int, message: bytes) -> None:
    _LOG.log(_LEVELS.get(level, logging.DEBUG), "%s", text(message))


@dataclass(frozen=True)
class Plugin:
    """A plugin file on record, usable or refused."""

    name: str
    file: str
    version: str
    vendor: str
    doc: str
    usable: bool
    reason: str  # why it was refused


@dataclass(frozen=True)
class BackendType:
    """A backend of a usable plugin."""

    name: str
    doc: str
    plugin: str
    layouts: Tuple[str, ...]
    options: Tuple[str, ...]
    composite: bool


@dataclass(frozen=True)
class Node:
    """A node of a composition: a backend, followed by its children."""

    depth: int
    name: str
    type: str
    rows: int  # query rows that its forwards have computed, summed over layers


class Host:
    """A set of plugins, a pool of threads, and the backends that are defined.

    `config` is the path of an ini, or its sections as a dict:

        Host("serve.ini")
        Host({"attention": {"attention_backend": "cpu_native"}, "kv_cache": {"page_size": 16}})
        Host(attention={"attention_backend": "auto"})

    Its [plugins] are loaded and its [backend.NAME] and routes defined; what selection reads of it
    ([platform], [attention], [kv_cache], [workload], [cuda_graph]) holds for explain(). The
    installed plugins are loaded too, unless `installed` is False. Messages of the library go to
    the logger "attnhost".

    One thread at a time may use a host, and its backends with their metadata each.
    """

    def __init__(self, config: Union[str, os.PathLike, Mapping, None] = None, *,
                 threads: int = 0, installed: bool = True, **sections: Mapping[str, Any]) -> None:
        self._host: Optional[Handle] = None
        self._process = os.getpid()
        self._living: Set[int] = set()  # ids of backends
        self.settings: Dict[str, str] = {}
        made = Handle()
        params = _abi.attnhost_params(num_threads=threads, log_level=_abi.ATTN_LOG_WARNING)
        params.log = ctypes.cast(_log, ctypes.c_void_p)
        check("attnhost_create", ctypes.byref(params), ctypes.byref(made))
        self._host = made
        if config is not None and not isinstance(config, Mapping):
            self._configure_file(os.fspath(config))
        else:
            sections = {**(config or {}), **sections}
        if sections:
            self._configure(ini.write(sections))
        if installed:
            self._load_installed()
        for plugin in self.plugins:
            if not plugin.usable:
                _LOG.warning("%s", plugin.reason)

    # ---- Life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the host; close its backends first."""
        if self._host is None:
            return
        if self._living:
            raise InvalidArgument(f"close: {len(self._living)} backends of this host are open; "
                                  "accepted: none", "BAD_STATE")
        if self._process == os.getpid():  # its threads are not those of a child, which would wait for them
            destroy("attnhost_destroy", self._host)
        self._host = None

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_host", None) is not None and not self._living:
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Host is neither copied nor pickled")

    # ---- Plugins -----------------------------------------------------------------------------------

    def load(self, path: Union[str, os.PathLike]) -> None:
        """Load a plugin's file, or each *.so of a folder."""
        path = os.fspath(path)
        what = "directory" if os.path.isdir(path) else "plugin"
        check(f"attnhost_load_{what}", self._host, os.path.join(".", path).encode())

    def pin(self, path: Union[str, os.PathLike], sha256: str) -> None:
        """Load the plugin at `path` only if its content has this SHA-256 (64 hexadecimal digits), from now on."""
        check("attnhost_pin_plugin", self._host, os.path.join(".", os.fspath(path)).encode(), sha256.encode())

    def _load_installed(self) -> None:
        bundled = os.path.join(_HERE, "plugins")
        if os.path.isdir(bundled):  # of a wheel that brings them along
            check("attnhost_load_directory", self._host, bundled.encode())
        else:
            check("attnhost_load_installed", self._host)

    def _configure_file(self, path: str) -> None:
        check("attnhost_configure_file", self._host, path.encode())
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            self.settings.update(ini.read(file.read()))
        if "attention.rules" in self.settings:
            self.settings["attention.rules"] = os.path.join(
                os.path.dirname(os.path.abspath(path)), self.settings["attention.rules"])

    def _configure(self, source: str) -> None:
        data = source.encode()
        check("attnhost_configure_text", self._host, data, len(data), b"attnhost.Host", None)
        self.settings.update(ini.read(source))

    @property
    def plugins(self) -> List[Plugin]:
        """Plugins on record, in load order."""
        made = []
        for index in range(call("attnhost_num_plugins", self._host)):
            info = _abi.attnhost_plugin_info()
            check("attnhost_plugin", self._host, index, ctypes.byref(info))
            made.append(Plugin(text(info.name), text(info.file), text(info.version),
                               text(info.vendor), text(info.doc), info.status == _abi.ATTN_OK,
                               text(info.reason)))
        return made

    @property
    def backends(self) -> List[BackendType]:
        """Backend types of the usable plugins."""
        made, plugins = [], self.plugins
        for index in range(call("attnhost_num_types", self._host)):
            info = _abi.attnhost_type_info()
            check("attnhost_type", self._host, index, ctypes.byref(info))
            kind = info.type.contents
            layouts = ctypes.cast(kind.layouts, ctypes.POINTER(ctypes.c_char_p))
            options = _options(kind)
            made.append(BackendType(text(kind.name), text(kind.doc), plugins[info.plugin].name,
                                    tuple(text(layouts[i]) for i in range(kind.num_layouts)),
                                    options, bool(kind.flags & _abi.ATTN_BACKEND_COMPOSITE)))
        return made

    def define(self, name: str, type: Optional[str] = None, **options: Any) -> str:
        """The same as a section [backend.NAME]: `name` stands for a type with these options. A list gives an option
        several times. Returns the name."""
        pairs: List[str] = []
        for key, value in options.items():
            for item in value if isinstance(value, (list, tuple)) else [value]:
                pairs += [key, ini.word(item)]
        check("attnhost_define_backend", self._host, name.encode(),
              type.encode() if type else None, make_array(ctypes.c_char_p, pairs),
              len(pairs) // 2)
        return name

    # ---- Questions ---------------------------------------------------------------------------------

    def query(self, name: str, problem: Problem) -> Verdict:
        """Can the backend run the problem? A refusal has all reasons."""
        room = 8
        while True:
            reasons = (_abi.attn_reason * room)()
            for reason in reasons:
                reason.struct_size = ctypes.sizeof(reason)
            verdict = _abi.attn_verdict(reasons_capacity=room)
            verdict.reasons = ctypes.cast(reasons, ctypes.POINTER(_abi.attn_reason))
            check("attnhost_query", self._host, name.encode(), ctypes.byref(problem),
                  ctypes.byref(verdict))
            if verdict.supported or verdict.num_reasons <= room:
                return read_verdict(verdict, reasons[:verdict.num_reasons])
            room = verdict.num_reasons

    def explain(self, model: Any, name: str = "model", *, uses: Any = 0, modes: Any = 0,
                **settings: Any) -> Selection:
        """Which backend serves which layers in which phase, and why no other.

        `model` is a Transformers model or its config, a dict, the path or the text of a
        config.json, or a list of layer groups. `uses` and `modes` are of batches beyond what the
        settings say, as problem() takes them; the backend of prompts serves these modes.
        `settings` are keys of the ini, with two underscores for the dot: explain(config,
        kv_cache__page_size=64). They go before the host's own.
        """
        if isinstance(model, (list, tuple)):
            source: Dict[str, Any] = {"groups": list(model), "num_groups": len(model)}
        else:
            config = config_text(model).encode()
            source = {"config": config, "config_length": len(config)}
        asked = _abi.attnhost_model(name=name, uses=_words.bits("use", uses, _words.USES),
                                    modes=_words.bits("mode", modes, _words.MODES), **source)
        given = ini.settings({**self.settings, **{key.replace("__", ".", 1): ini.word(value)
                                                  for key, value in settings.items()}})
        unknown = [key for key in settings if not ini.settings({key.replace("__", ".", 1): ""})]
        if unknown:
            raise TypeError(f"explain() has no setting '{unknown[0]}'; accepted: SECTION__KEY of "
                            f"{_words.join(ini.SECTIONS)}, model__dtype, model__max_context_len")
        made = ctypes.POINTER(_abi.attnhost_selection)()
        check("attnhost_select", self._host, ctypes.byref(asked),
              make_array(ctypes.c_char_p, given), len(given), ctypes.byref(made))
        return Selection(made)

    # ---- Backends ----------------------------------------------------------------------------------

    def compose(self, name: Union[str, Unit],
                problems: Optional[Sequence[Problem]] = None) -> "Backend":
        """Make a backend, with its children, for the layer groups of a model: a unit of a
        selection, or a name with a problem for each group."""
        if isinstance(name, Unit):
            problems, name = name.problems, name.backend
        if not problems:
            raise InvalidArgument("compose: problems: none; accepted: one for each layer group",
                                  "INVALID_ARGUMENT")
        return Backend(self, name, problems)


def _options(kind: _abi.attn_backend_type) -> Tuple[str, ...]:
    return tuple(text(option.key) for option in elements(kind.options, kind.num_options))


def config_text(model: Any) -> str:
    """The text of a config.json, from a Transformers model or its config, a dict, a path or a text."""
    if hasattr(model, "config"):
        model = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    elif hasattr(model, "to_dict"):
        model = model.to_dict()
    if isinstance(model, Mapping):
        return json.dumps(model, default=str)
    source = os.fspath(model)
    if source.lstrip().startswith("{"):
        return source
    if os.path.isdir(source):
        source = os.path.join(source, "config.json")
    with open(source, encoding="utf-8") as file:
        return file.read()


class Backend:
    """A backend with its children, made for the layer groups of a model (Host.compose())."""

    def __init__(self, host: Host, name: str, problems: Sequence[Problem]) -> None:
        self._backend: Optional[Handle] = None
        self._living: Set[int] = set()  # ids of metadata
        self.host = host
        self.name = name
        self.problems = list(problems)
        self._borrowed = _borrowed(self.problems[0])  # of merge()
        made = Handle()
        array = make_array(_abi.attn_problem, self.problems)
        host._living.add(id(self))  # before it lives: another thread may be about to close the host
        try:
            check("attnhost_compose", host._host, name.encode(), array, len(array),
                  ctypes.byref(made))
            self._backend = made
            check("attnhost_backend_prepare", made, None, None)
        except BaseException:
            self.close()
            host._living.discard(id(self))
            raise

    @property
    def index_forms(self) -> int:
        """Forms of KV indices that a batch must carry: a mask of ATTN_INDEX_*."""
        return call("attnhost_backend_index_forms", self._backend)

    @property
    def host_arrays(self) -> Tuple[str, ...]:
        """Arrays of a batch that must be in host memory too."""
        return _words.names(call("attnhost_backend_host_arrays", self._backend),
                            _words.HOST_ARRAYS)

    @property
    def nodes(self) -> List[Node]:
        """The backend and its children; a node comes before its children."""
        made = []
        for index in range(call("attnhost_backend_num_nodes", self._backend)):
            info = _abi.attnhost_node_info()
            check("attnhost_backend_node", self._backend, index, ctypes.byref(info))
            made.append(Node(info.depth, text(info.name), text(info.type), info.rows))
        return made

    def metadata(self, *, graph: bool = False, keep: bool = True, **bounds: Any) -> "Metadata":
        """Metadata for batches within the problems' bounds, or those given instead; `graph`: to be captured and
        replayed. Without `keep`, the caller keeps objects alive that a stream may still read."""
        return Metadata(self, graph, bounds, keep)

    def merge(self, outs: Sequence[Any], lses: Sequence[Any], out: Any, lse: Any = None,
              stream: Any = None, *, keep: bool = True) -> None:
        """Merge partial results over disjoint keys, `outs` [rows, heads, v_head_dim] with `lses`
        [rows, heads] in f32, into `out` and `lse` of the same shapes. Only enqueues on a GPU, and keeps
        the tensors alive until the stream has passed; without `keep` that is the caller's to do.
        InvalidArgument names the tensor that does not fit."""
        views = [[operand(tensor, f"{what}[{i}]") for i, tensor in enumerate(tensors)]
                 for what, tensors in (("outs", outs), ("lses", lses))]
        pointers = [make_array(ctypes.POINTER(_abi.attn_tensor), made) for made in views]
        results = {name: operand(x, name) for name, x in (("out", out), ("lse", lse)) if x is not None}
        for name, made in results.items():
            if made.flags & _abi.ATTN_TENSOR_READ_ONLY:
                raise InvalidArgument(f"merge: {name} is read-only; accepted: memory that may be written",
                                      "INVALID_ARGUMENT", "operand")
        number = stream_number(stream, out)
        check("attnhost_merge", self._backend, pointers[0], pointers[1], len(views[0]),
              ctypes.byref(results["out"]), ctypes.byref(results["lse"]) if lse is not None else None,
              number)
        if keep and self._borrowed is not None:
            self._borrowed.release([*outs, *lses, out, lse], number)

    def close(self) -> None:
        """Free the backend; close its metadata first, and its streams must be idle."""
        if self._backend is None:
            return
        if self._living:
            raise InvalidArgument(f"close: {len(self._living)} metadata of this backend are open; "
                                  "accepted: none", "BAD_STATE")
        destroy("attnhost_backend_destroy", self._backend)
        self._backend = None
        self.host._living.discard(id(self))

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_backend", None) is not None and not self._living:
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Backend is neither copied nor pickled")


def _borrowed(problem: Problem) -> Optional[Borrowed]:
    """Objects that streams of the problem's device may still read; None if calls return after their work."""
    kind = problem.device.contents.type
    return Borrowed(kind) if kind != _abi.ATTN_DEVICE_CPU else None


class Metadata(_call.Caller):
    """The plan of a batch; many may exist at once.

        metadata.bind(layer, k_cache=k, v_cache=v)       once
        metadata.plan(batch)                             once for each batch
        metadata.forward(layer, q=q, k=k, v=v, out=out)  once for each layer

    On a GPU, what forward() and plan() were given stays alive until the stream has passed it.
    """

    def __init__(self, backend: Backend, graph: bool, bounds: Mapping[str, Any],
                 keep: bool = True) -> None:
        self._metadata: Optional[Handle] = None
        self.backend = backend
        self._scales: List[Any] = []
        self._layers = {layer.layer_id for problem in backend.problems for layer in elements(
            problem.group.contents.layers, problem.group.contents.num_layers)}
        problem = backend.problems[0]
        given = problem.bounds.contents
        largest = _abi.attn_bounds.from_buffer_copy(given)
        for name, value in bounds.items():
            if not hasattr(largest, name):
                raise TypeError(f"metadata() has no bound '{name}'")
            setattr(largest, name, value)
        made = Handle()
        backend._living.add(id(self))  # before it lives, as in Backend
        try:
            check("attnhost_metadata_create", backend._backend,
                  _abi.ATTN_METADATA_GRAPH if graph else _abi.ATTN_METADATA_EAGER,
                  ctypes.byref(largest), None, ctypes.byref(made))
        except BaseException:
            backend._living.discard(id(self))
            raise
        self._metadata = made
        self._borrowed = _borrowed(problem) if keep else None
        self._batch: Optional[Batch] = None
        self._open(made.value, self._borrowed is not None)

    def bind(self, layer: int, *, scales: Optional[Mapping[str, Any]] = None,
             **operands: Any) -> None:
        """Operands that a layer has in every call: caches, sinks, slopes, states, weights.

        `scales` are those of a quantised cache by the operand's name: a number, or one for each KV
        head.
        """
        values = dict(scales or {})
        if layer not in self._layers:
            raise InvalidArgument(f"bind: layer {layer}: accepted {_words.join(map(str, sorted(self._layers)))}",
                                  "INVALID_ARGUMENT")
        for role, tensor in operands.items():
            scale = values.pop(role, None)
            self._bind(layer, role, tensor, self._keep_scale(scale) if scale is not None else 0)
        if values:
            raise TypeError(f"bind: scales of '{next(iter(values))}', which is not bound; "
                            f"accepted: {_words.join(operands)}")

    def _keep_scale(self, scale: Union[float, Iterable[float]]) -> int:
        numbers = [float(scale)] if isinstance(scale, (int, float)) else list(map(float, scale))
        array = (ctypes.c_float * len(numbers))(*numbers)
        kind = _abi.ATTN_SCALE_PER_TENSOR if len(numbers) == 1 else _abi.ATTN_SCALE_PER_HEAD
        struct = _abi.attn_scale(granularity=kind, count=len(numbers),
                                 host=ctypes.addressof(array))
        self._scales.append((struct, array))
        return ctypes.addressof(struct)

    def plan(self, batch: Batch, stream: Any = None) -> None:
        """Plan a batch for all layers. Never waits."""
        self._begin("plan")
        try:
            number = stream_number(stream, batch.example)
            if self._borrowed is not None:
                self._borrowed.release(self._take_borrowed() + [self._batch], number)
            self._batch = batch
            check("attnhost_init_forward_metadata", self._metadata, ctypes.byref(batch.struct), number)
        finally:
            self._end()

    def close(self) -> None:
        """Free the metadata; its stream must be idle."""
        if self._metadata is None:
            return
        self._begin("close")
        try:
            destroy("attnhost_metadata_destroy", self._metadata)
            self._metadata = self._batch = None
            self._scales = []
            self._open(0, False)
        finally:
            self._end()
        self.backend._living.discard(id(self))

    def __enter__(self) -> "Metadata":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_metadata", None) is not None:
            self.close()
