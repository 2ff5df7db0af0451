# SPDX-License-Identifier: Apache-2.0
"""Backends written in Python: a class that attnhost loads, checks, measures and runs like a plugin in C.

    class Mine(Backend):
        name, doc      as an ini and a report call it
        devices ...    what it takes: words and ranges, from which questions are answered
        supports()     reasons of its own against a problem (optional)
        plan()         looks at a batch once, before its first layer (optional)
        forward()      computes one layer

`attnhost check mine.py`, `plugins.path = mine.py` or `plugins.path = package.module:Mine`.

This file needs nothing but Python's own library: python.so (plugins/python) carries it along, and
calls what begins with an underscore. Tensors are PyTorch's where PyTorch is installed, else numpy's.
"""
import contextlib
import ctypes
import difflib
import gc
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

_PROTOCOL = 1  # of python.so
_OK_MODES = "extend, decode, mixed, idle"
_STATUS = {"INVALID_ARGUMENT": 1, "UNSUPPORTED": 2, "BAD_STATE": 4, "OUT_OF_HOST_MEMORY": 5,
           "OUT_OF_DEVICE_MEMORY": 6, "CAPTURE_UNSUPPORTED": 8, "CONFIG_ERROR": 9,
           "DEPENDENCY_MISSING": 10, "DEVICE_LOST": 12, "TIMEOUT": 13, "INTERNAL": 14}
_SAVE_KV, _OMIT_SINK, _CAPTURING = 1, 2, 4  # ATTN_FORWARD_*
# Operands by role (ATTN_ROLE_*), as forward() names them.
_ROLES = {"q": 0, "k": 1, "v": 2, "out": 3, "lse": 4, "k_cache": 5, "v_cache": 6, "sinks": 7,
          "alibi_slopes": 8, "q_nope": 9, "q_pe": 10, "c_kv": 11, "k_pe": 12, "latent_cache": 13}
_OUT, _LSE = _ROLES["out"], _ROLES["lse"]


# ---- What authors use -------------------------------------------------------------------------------


class Error(Exception):
    """A failure with a status of attnhost's: Error("UNSUPPORTED", "only one layer group")."""

    def __init__(self, status: str, text: str, field: str = "") -> None:
        super().__init__(text)
        if status not in _STATUS:
            raise ValueError(f"status {status!r}: accepted {', '.join(_STATUS)}")
        self.status, self.field = _STATUS[status], field


def need(module: str, package: str) -> Any:
    """Import an installed module. Where it is missing the backend is refused, and the text says how to install it:
    need("flashinfer", "flashinfer-python"). A file next to the caller's may have the same name."""
    folder = os.path.dirname(os.path.abspath(sys._getframe(1).f_globals.get("__file__", "")))
    spec = None
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of the package that it is in
        pass
    if spec is None or os.path.dirname(os.path.abspath(spec.origin or "")) == folder:
        raise Error("DEPENDENCY_MISSING", f"no module {module}: pip install {package}")
    return importlib.import_module(module)


class Reason(NamedTuple):
    """Why supports() refuses: `field` as `attnhost inspect` names it ("head_dim"), the value it has, the
    values it may have ("64, 128"), and the field that it conflicts with, if it is a combination."""

    field: str
    got: Any
    accepted: str
    with_field: str = ""


class Option(NamedTuple):
    """An option of an ini: type is bool, int, float, string, enum, size or path. Without a default
    it is required. `min` and `max` bound numbers; `choices` are the words of an enum."""

    key: str
    type: str
    default: Any = None
    doc: str = ""
    min: float = 1.0
    max: float = 0.0  # below min: no range
    choices: Optional[Sequence[str]] = None
    unit: Optional[str] = None
    repeated: bool = False


class Layer:
    """A layer of the model: numbers as in attn_layer_group."""

    _numbers = ("id", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "window_left",
                "window_right", "attention_chunk", "kv_group", "page_size", "kind", "attn_type",
                "flags", "is_hnd", "kv_lora_rank", "rope_dim", "nope_dim", "sm_scale", "logit_cap",
                "dtype")
    id: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window_left: int
    window_right: int
    attention_chunk: int
    kv_group: int
    page_size: int
    is_hnd: bool
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    sm_scale: float
    logit_cap: float
    dtype: str

    def __init__(self, values: Sequence[Any]) -> None:
        self.__dict__.update(zip(self._numbers, values))
        self.has_sinks, self.has_alibi = bool(values[12] & 1), bool(values[12] & 2)
        self.is_latent, self.is_hnd = values[10] == 1, bool(values[13])


class Problem:
    """The argument of supports(): a layer group on a device, within bounds (0 = not known yet)."""

    _names = ("sm", "num_q_heads", "num_kv_heads", "gqa_ratio", "head_dim", "v_head_dim", "page_size",
              "window_left", "window_right", "kv_lora_rank", "rope_dim", "nope_dim", "max_seqs",
              "max_tokens", "max_q_len", "max_kv_len", "num_layers", "device", "dtype", "kind",
              "kv_layout", "flags", "attention_chunk", "logit_cap")

    def __init__(self, values: Sequence[Any]) -> None:
        self.__dict__.update(zip(self._names, values))
        self.has_sinks, self.has_alibi = bool(self.flags & 1), bool(self.flags & 2)

    flags: int


class Keys:
    """Places of the keys of one KV group; arrays as in attn_kv_batch, on the device."""

    def __init__(self, values: Sequence[Any], batch: "Batch") -> None:
        (self.page_size, self.kv_lens, self._lens_host, self.kv_new_indptr, self._new_host,
         self._slots, self.block_table, self.req_to_token, self.kv_indptr, self.kv_indices,
         self.last_page_len) = values
        # Not the batch: a cycle would keep views of the caller's memory until it is collected.
        self._num_seqs, self._q_indptr = batch.num_seqs, batch.q_indptr
        self._q_host, self._decodes = batch._host["q_indptr"], batch.mode == "decode"
        self._where: Optional[Dict[int, Any]] = None if batch.graph else {}  # a replay finds them anew
        if self.kv_lens is None:
            self.kv_lens, self._lens_host = batch.seq_lens, batch._host["seq_lens"]

    def lens(self) -> List[int]:
        """Keys of each sequence, new ones included. On a GPU: host_arrays = "seq_lens, kv_lens"."""
        return _list(self.kv_lens, self._lens_host, "kv_lens")

    def new_indptr(self) -> List[int]:
        """Rows of k and v of each sequence: [S + 1]."""
        if self.kv_new_indptr is None:
            return _indptr(self._q_indptr, self._q_host, self._num_seqs, self._decodes)
        return _list(self.kv_new_indptr, self._new_host, "kv_new_indptr")

    def slots(self, rows: int) -> Any:
        """(pages, offsets) of the new rows, from row 0 of k on: for at most `rows` of them, fewer where k has rows of
        no sequence at its end. Rows without a slot get slot 0: write its current contents there."""
        slot = self._slots_of(rows)[0].clip(min=0)
        return slot // self.page_size, slot % self.page_size

    def copies(self, cache: Any, new: Any, max_kv_len: int) -> Any:
        """The keys of each sequence in their order, out of their pages: [S, n, heads, dim], of latents [S, n, dim],
        0 after a sequence's end; n is max_kv_len, up to whole pages. `cache`: [pages, page_size, ...]. `new`: the rows
        of k that forward() was given, for not all of them need have a slot; None = all keys are in the cache.
        PyTorch alone."""
        import torch
        width = max(1, (max_kv_len + self.page_size - 1) // self.page_size)
        # Past a sequence's end there may be anything, in the table too.
        pages = self.block_table[:self._num_seqs, :width].clamp(0, len(cache) - 1)
        # One more than there are sequences, for new rows of no sequence.
        made = cache.new_zeros(len(pages) + 1, width * self.page_size, *cache.shape[2:])
        torch.index_select(cache, 0, pages.flatten().long(), out=made[:-1].unflatten(1, (width, -1)).flatten(0, 1))
        ends = self.kv_lens[:len(pages), None]
        after = torch.arange(made.shape[1], device=made.device) >= ends
        made[:-1].masked_fill_(after.view(*after.shape, *[1] * (made.dim() - 2)), 0)
        if new is not None and len(pages):
            indptr = self._q_indptr if self.kv_new_indptr is None else self.kv_new_indptr
            if indptr is None:  # a row a sequence
                indptr = torch.arange(len(pages) + 1, device=made.device)
            row = torch.arange(len(new), device=made.device)
            inside = (row >= indptr[0]) & (row < indptr[len(pages)])
            owner = torch.searchsorted(indptr[1:len(pages) + 1].contiguous(), row, right=True).clamp(max=len(pages) - 1)
            at = ends[owner, 0] - indptr[owner + 1] + row
            made[torch.where(inside, owner, len(pages)), torch.where(inside, at, 0)] = new
        return made[:-1]

    def _slots_of(self, rows: int) -> Any:
        """(slots of the new rows, -1 for those that go nowhere; the library of the array)."""
        if self._where is None:
            return self._find(rows)
        if rows not in self._where:
            self._where[rows] = self._find(rows)
        return self._where[rows]

    def _find(self, rows: int) -> Any:
        slots, indptr = self._slots, self.kv_new_indptr
        indptr = self._q_indptr if indptr is None else indptr
        rows = min(rows, slots.shape[0], self._num_seqs if indptr is None else rows)
        if _is_torch(slots):
            import torch as library
            row = library.arange(rows, device=slots.device)
        else:
            import numpy as library  # type: ignore[no-redef]
            row = library.arange(rows)
        if indptr is None:
            return slots[:rows], library
        # Of rows outside of indptr[0] .. indptr[-1] nothing is read: there may be no slots.
        inside = (row >= indptr[0]) & (row < indptr[-1])
        return library.where(inside, slots[library.where(inside, row, indptr[0])], -1), library


def _is_torch(array: Any) -> bool:
    return type(array).__module__ == "torch"


class Batch:
    """The input of a step; members as in attn_batch. Arrays are on the device."""

    _numbers = ("num_seqs", "num_tokens", "num_real_seqs", "num_real_tokens", "num_decode_seqs",
                "first_decode_seq", "decode_q_len", "max_q_len", "max_kv_len", "stream", "mode")
    num_seqs: int
    num_tokens: int
    num_real_seqs: int
    num_real_tokens: int
    max_q_len: int
    max_kv_len: int
    stream: int
    mode: str

    def __init__(self, values: Sequence[Any], graph: bool) -> None:
        self.__dict__.update(zip(self._numbers, values))
        self.graph = graph  # planned for a capture and its replays
        (self.seq_lens, seq_lens, self.prefix_lens, prefix_lens, self.q_indptr, indptr,
         self.positions, self.req_pool_indices, groups, mask) = values[11:]
        self._host = {"seq_lens": seq_lens, "prefix_lens": prefix_lens, "q_indptr": indptr}
        self.mask_kind, self.mask_bits, self.mask_indptr = mask
        self.kv_groups = tuple(Keys(g, self) if g is not None else None for g in groups)

    def lens(self) -> List[int]:
        """Tokens of each sequence. On a GPU: host_arrays = "seq_lens"."""
        return _list(self.seq_lens, self._host["seq_lens"], "seq_lens")

    def prefixes(self) -> List[int]:
        """Tokens before the first query of each sequence. On a GPU: host_arrays = "prefix_lens"."""
        if self.mode == "decode":
            return [n - 1 for n in self.lens()]
        return _list(self.prefix_lens, self._host["prefix_lens"], "prefix_lens")

    def indptr(self) -> List[int]:
        """Query rows of each sequence: [S + 1]. On a GPU: host_arrays = "q_indptr"."""
        return _indptr(self.q_indptr, self._host.get("q_indptr"), self.num_seqs, self.mode == "decode")

    def keys(self, layer: Layer) -> Keys:
        """The keys of the layer's KV group."""
        return self.kv_groups[layer.kv_group]

    def _forget(self) -> None:
        """The host's arrays are the caller's again."""
        self._host = dict.fromkeys(self._host, _GONE)
        for keys in self.kv_groups:
            if keys is not None:
                keys._lens_host = keys._new_host = keys._q_host = _GONE


_GONE = object()  # in the place of an array of the host, once the batch is planned


def _list(array: Any, host: Any, name: str) -> List[int]:
    if host is _GONE:
        raise Error("BAD_STATE", f"{name} as a list: accepted in plan() alone, whose result forward() has as `plan`")
    if host is None and array is not None and _is_on_host(array):
        host = array
    if host is None:
        raise Error("INVALID_ARGUMENT", f"{name} is on the device alone; declare host_arrays = \"{name}\"")
    return host if isinstance(host, list) else host.tolist()


def _indptr(array: Any, host: Any, num_seqs: int, decodes: bool) -> List[int]:
    if decodes:
        return list(range(num_seqs + 1))
    return _list(array, host, "q_indptr") if num_seqs else [0]


def _is_on_host(array: Any) -> bool:
    return not getattr(array, "is_cuda", False)


class Backend:
    """A backend. What is declared here is its query: words in the ABI's spelling, separated by
    commas; numbers as texts ("64, 128", "16..256/16"), ranges or sets.

    Keys and values are one tensor each, in pages, with the layout's order of dimensions and any
    outer strides. New ones are in the cache before forward() is called, unless `saves_kv`.
    """

    name: str = ""
    doc: str = "a backend written in Python"
    devices: str = "cpu"
    dtypes: str = "f32, bf16, f16"  # of q, the cache and the output, which have the same one
    layouts: str = "kv.nhd/1"
    kinds: str = "softmax"
    attn_types: str = "decoder"
    flags: str = ""  # of sinks, alibi, logit_cap, attention_chunk
    layer_flags: str = "kv_read_only"
    modes: str = _OK_MODES
    mask_kinds: str = "layer"
    uses: str = ""  # lse, shared_prefix ... (ATTN_USES_MAP)
    traits: str = ""
    index_forms: str = "block_table"
    host_arrays: str = ""  # needed by plan() on a GPU
    graph_level: str = "never"
    accepts: Dict[str, Any] = {}  # {"head_dim": "64, 128", "page_size": range(16, 129, 16)}
    options: Sequence[Option] = ()
    cost_hint: float = 0.0
    saves_kv: bool = False  # True: forward() writes k and v to keys.slots() itself
    tensors: str = ""  # torch, numpy or dlpack (with saves_kv); "" = torch where it is installed

    def __init__(self, layers: Sequence[Layer], options: Dict[str, Any], device: str) -> None:
        """For a model's layers; device is "cpu" or "cuda:0"."""
        self.layers, self.options_given, self.device = layers, options, device

    @classmethod
    def supports(cls, problem: Problem, options: Dict[str, Any]) -> Iterable[Reason]:
        """Reasons against a problem beside those of the declaration. One on a field that the declaration
        refuses already, or that conflicts with such a field, is left out. It is called with problems that the
        declaration refuses, too, so that a no names all that has to change."""
        return ()

    def prepare(self) -> None:
        """Compile, tune, warm up: before the first step."""

    def plan(self, batch: Batch) -> Any:
        """Plan a batch, once. forward() receives the result as `plan`; None = the batch."""

    def forward(self, layer: Layer, plan: Any, **operands: Any) -> None:
        """Compute one layer into `out`. Name the parameters that are wanted: layer, plan, batch, keys,
        flags, q, k, v, out, lse, k_cache, v_cache, sinks ...; an operand that is absent is None.
        Tensors are the caller's: keep none of them."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def close(self) -> None:
        """Called when the instance is freed."""


# ---- Failures ---------------------------------------------------------------------------------------

# Errors after which a context is of no more use, as PyTorch and Triton pass on cudaGetErrorString.
_LOST = re.compile(r"(CUDA error|Triton Error \[CUDA\]): (an illegal memory access|unspecified launch failure|an illegal instruction|"
                   r"misaligned address|device-side assert|uncorrectable|hardware stack error|invalid program counter|"
                   r"operation not supported on global/shared|the launch timed out|unknown error)")


def _place(error: BaseException) -> str:
    """The place: the last line of the traceback outside of this file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    if not frames:
        return ""
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, {frames[-1].name})"


def _is_ours(file: str) -> bool:
    return file.replace(os.sep, "/").endswith("attnhost/backend.py") or file.startswith("<frozen")


def _describe(error: BaseException) -> Tuple[int, str, str]:
    """(status, field, text)"""
    text = " ".join(str(error).split())
    if isinstance(error, Error):
        return error.status, error.field, text + _place(error)
    if isinstance(error, ImportError):
        status = _STATUS["DEPENDENCY_MISSING"]
    elif type(error).__name__ in ("OutOfMemoryError", "OutOfResources"):
        status = _STATUS["OUT_OF_DEVICE_MEMORY"]
    elif isinstance(error, RuntimeError) and _LOST.search(text):
        status = _STATUS["DEVICE_LOST"]
    elif isinstance(error, MemoryError):
        status = _STATUS["OUT_OF_HOST_MEMORY"]
    else:
        status = _STATUS["INTERNAL"]
    if isinstance(error, SystemExit):
        text = f"exit({text}) called"
    return status, "", f"{type(error).__name__}: {text}{_place(error)}"


def _guarded(function: Any) -> Any:
    """Functions that python.so calls never raise: they return a failure."""
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:  # pylint: disable=broad-except
            return _describe(error)
    return call


# ---- Sources ----------------------------------------------------------------------------------------


def _import_file(path: str) -> Any:
    """Import a file under a unique name, as two files may have the same name."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name, folder = f"attnhost_source_{abs(hash(path)):x}_{stem}", os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _classes_of(module: Any) -> Iterator[type]:
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, Backend) and cls.__module__ == module.__name__:
            if cls.name and not cls.__name__.startswith("_"):
                yield cls


def _load(source: str) -> List[type]:
    if source.endswith(".py"):
        classes = list(_classes_of(_import_file(source)))
        if not classes:
            raise Error("CONFIG_ERROR", "no class with a name is a Backend of attnhost.backend here")
        return classes
    module, _, path = source.partition(":")
    found: Any = importlib.import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise Error("CONFIG_ERROR", f"{source} is no Backend of attnhost.backend")
    return [found]


def _is_our_process() -> bool:
    """The command's, not one of Python that uses attnhost."""
    return "attnhost.host" not in sys.modules


@_guarded
def _open(source: str, protocol: int) -> Any:
    if protocol != _PROTOCOL:
        raise Error("DEPENDENCY_MISSING", f"attnhost of this Python speaks {_PROTOCOL} with python.so; "
                    f"accepted {protocol}: install the package of the same release")
    for stream in (sys.stdout, sys.stderr):  # which nothing flushes at the end of a process of C
        if _is_our_process() and hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    kinds = tuple(map(_Kind, _load(source)))
    if _is_our_process():
        gc.freeze()  # what was imported is no garbage: a collection in a step need not look at it
    return (kinds,)


# ---- What python.so calls ---------------------------------------------------------------------------


_RANGE = re.compile(r"-?\d+(\.\.-?\d+(/[1-9]\d*)?)?")


def _range_text(field: str, given: Any, accepts: Dict[str, Any]) -> str:
    """A range as the ABI writes it, or the name of a field that has the same value."""
    if isinstance(given, range) and given:
        given = f"{min(given)}..{max(given)}/{abs(given.step)}"
    text = given if isinstance(given, str) else ", ".join(map(str, given if hasattr(given, "__iter__") else [given]))
    items = text.replace(",", " ").split()
    if text in _Kind.fields and text != field and accepts.get(text) not in _Kind.fields:
        return text
    if not items or not all(map(_RANGE.fullmatch, items)):
        raise Error("CONFIG_ERROR", f"accepts[{field!r}] = {given!r}: accepted numbers and ranges, as \"64, 128\" or "
                    "\"16..256/16\", or the name of another field, which has numbers")
    return ", ".join(items)


def _check_attributes(cls: Any) -> None:
    """Refuse declarations that would be ignored: those of another type, or with a name that is almost one of ours."""
    declared = Backend.__annotations__
    for name in declared:
        value, otherwise = getattr(cls, name), getattr(Backend, name)
        if isinstance(otherwise, (str, bool)) and not isinstance(value, type(otherwise)):
            accepted = "True or False" if isinstance(otherwise, bool) else "a text, in which commas separate names"
            raise Error("CONFIG_ERROR", f"class {cls.name}: {name} = {value!r}: accepted {accepted}")
    own = {name for c in cls.__mro__ if c not in Backend.__mro__ for name, value in vars(c).items()
           if not callable(value) and not isinstance(value, (classmethod, staticmethod, property))}
    for name in own - set(declared):
        for near in difflib.get_close_matches(name, declared, 1, 0.85):
            raise Error("CONFIG_ERROR", f"class {cls.name}: {name}: did you mean {near}? Accepted for an attribute "
                        "of your own: a name that differs more")


def _default_text(option: Option) -> Optional[str]:
    if option.default is None:
        return None
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    return str(option.default)


class _Kind:
    """A class as python.so sees it."""

    fields = ("device.sm", "num_q_heads", "num_kv_heads", "num_q_heads/num_kv_heads", "head_dim",
              "v_head_dim", "page_size", "window_left", "window_right", "mla.kv_lora_rank",
              "mla.rope_dim", "mla.nope_dim", "max_seqs", "max_tokens", "max_q_len", "max_kv_len",
              "num_layers")

    def __init__(self, cls: type) -> None:
        self.cls: Any = cls
        _check_attributes(cls)
        parameters = inspect.signature(cls.forward).parameters  # type: ignore[attr-defined]
        self.wants = list(parameters)[1:]
        known = {"layer", "plan", "batch", "keys", "flags", *_ROLES}
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.VAR_POSITIONAL:
                raise Error("CONFIG_ERROR", f"{cls.__name__}.forward(*{name}): name the operands")
        for name in self.wants:
            if name not in known:
                raise Error("CONFIG_ERROR", f"{cls.__name__}.forward({name}): accepted "
                            f"{', '.join(sorted(known))}")

    def declaration(self) -> Tuple[Any, ...]:
        cls = self.cls
        for field in cls.accepts:
            if field not in self.fields:
                raise Error("CONFIG_ERROR", f"accepts[{field!r}]: accepted {', '.join(self.fields)}")
        if cls.tensors not in ("", "torch", "numpy", "dlpack"):
            raise Error("CONFIG_ERROR", f"tensors {cls.tensors!r}: accepted torch, numpy, dlpack")
        if cls.tensors == "dlpack" and not cls.saves_kv:
            raise Error("CONFIG_ERROR", "tensors 'dlpack' without saves_kv: accepted saves_kv = True, as nothing "
                        "here computes with such tensors")
        ranges = tuple((field, _range_text(field, given, cls.accepts)) for field, given in cls.accepts.items())
        options = tuple((o.key, o.type, _default_text(o), float(o.min), float(o.max),
                         tuple(map(str, o.choices)) if o.choices else None, o.unit, o.doc or o.key, o.repeated)
                        for o in cls.options)
        asks = getattr(cls.supports, "__func__", cls.supports) is not Backend.supports.__func__
        return (cls.name, cls.doc, cls.devices, cls.dtypes, cls.layouts, cls.kinds, cls.attn_types,
                cls.flags, cls.layer_flags, cls.modes, cls.mask_kinds, cls.uses, cls.traits,
                cls.index_forms, cls.host_arrays, cls.graph_level, float(cls.cost_hint), asks, ranges,
                options, bool(cls.saves_kv))

    def values(self, given: Sequence[Tuple[str, Any]]) -> Dict[str, Any]:
        """Options by key; defaults for those not given."""
        made: Dict[str, Any] = {o.key: [] if o.repeated else o.default for o in self.cls.options}
        lists = {o.key for o in self.cls.options if o.repeated}
        for key, value in given:
            if key in lists:
                made[key].append(value)
            else:
                made[key] = value
        return made

    def supports(self, problem: Sequence[Any], options: Sequence[Tuple[str, Any]]) -> Any:
        try:
            reasons = tuple(self.cls.supports(Problem(problem), self.values(options)))
            if not all(isinstance(r, Reason) for r in reasons):
                raise TypeError(f"supports() gives {reasons!r}: accepted Reason(field, got, accepted)")
            return (tuple((r.field, r.with_field, str(r.got), str(r.accepted)) for r in reasons),)
        except BaseException as error:  # pylint: disable=broad-except
            return _describe(error)

    @_guarded
    def collect(self) -> None:
        """After a metadata or an instance is freed, free the cycles that it left. In a process of Python, its own
        collector does that."""
        if _is_our_process():
            gc.collect()

    def create(self, layers: Sequence[Any], options: Sequence[Tuple[str, Any]], device: str,
               ordinal: int, workers: int) -> Any:
        try:
            return _create(self, tuple(map(Layer, layers)), self.values(options),
                           device if device == "cpu" else f"{device}:{ordinal}", workers)
        except BaseException as error:  # pylint: disable=broad-except
            return _describe(error)


def _create(kind: _Kind, layers: Tuple[Layer, ...], options: Dict[str, Any], device: str,
            workers: int) -> Any:
    convert = _converter(kind.cls.tensors, workers)
    instance = _Instance(kind, kind.cls(layers, options, device), layers, device)
    return instance, convert, int(convert.__module__ == "numpy"), None


def _converter(tensors: str, workers: int) -> Any:
    """From a DLPack capsule to a tensor, without a copy; or numpy.ndarray, of which python.so makes arrays."""
    if tensors in ("", "torch"):
        try:
            import torch
            if _is_our_process():  # as many threads as the host has
                torch.set_num_threads(workers)
            return torch._C._from_dlpack
        except ImportError:
            if tensors:
                raise
    if tensors == "dlpack":
        return _View
    import numpy
    return numpy.ndarray


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_pointer_of = ctypes.PYFUNCTYPE(ctypes.POINTER(_DLTensor), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class _View:
    """A capsule as libraries take it. numpy reads it through the array interface: what it makes of a capsule
    without a version cannot be written."""

    def __init__(self, capsule: Any) -> None:
        self.capsule, tensor = capsule, _pointer_of(capsule, b"dltensor").contents
        self.device = tuple(tensor.device)
        self.shape = tuple(tensor.shape[:tensor.ndim])
        self._number = "iuf"[tensor.code] if tensor.code < 3 else "", tensor.bits // 8
        self._address, self._strides = (tensor.data or 0) + tensor.byte_offset, tensor.strides[:tensor.ndim]

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    @property
    def is_cuda(self) -> bool:
        return self.device[0] != 1

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        kind, size = self._number
        if not kind:
            raise Error("UNSUPPORTED", "numpy has no bf16: accepted dtypes = \"f32, f16\", or PyTorch")
        return {"version": 3, "shape": self.shape, "typestr": f"<{kind}{size}", "data": (self._address, False),
                "strides": tuple(stride * size for stride in self._strides)}

    def data_ptr(self) -> int:
        return self._address

    def tolist(self) -> List[int]:
        """Of a list of int32, as plans read them."""
        return list((ctypes.c_int32 * self.shape[0]).from_address(self._address)) if self.shape[0] else []


class _Instance:
    """An object of the class."""

    def __init__(self, kind: _Kind, backend: Backend, layers: Tuple[Layer, ...], device: str) -> None:
        self.kind, self.backend, self.layers, self.device = kind, backend, layers, device

    @_guarded
    def prepare(self) -> None:
        self.backend.prepare()  # what it returns, if anything, is not an answer

    @_guarded
    def close(self) -> None:
        self.backend.close()

    def metadata(self, graph: int) -> "_Metadata":
        return _Metadata(self, bool(graph))


class _Metadata:
    """A plan and its forwards. forward() is the only call for each layer: it is kept short."""

    def __init__(self, instance: _Instance, graph: bool) -> None:
        self.backend, self.layers, self.graph = instance.backend, instance.layers, graph
        self.call, self.wants = instance.backend.forward, instance.kind.wants
        self.saves = not instance.backend.saves_kv and instance.device != "cpu"  # there python.so does
        self.on_stream = _streams(instance.device) if instance.device != "cpu" else None
        self.captured = _captures(instance.device) if graph else None
        self.batch: Any = None
        self.plans: Any = None

    def plan(self, *values: Any) -> Any:
        try:
            self.batch = batch = Batch(values, self.graph)
            with _no_grad(), self._stream(batch.stream):
                plan = self.backend.plan(batch)
            self.plans = [self._arguments(layer, batch if plan is None else plan) for layer in self.layers]
            batch._forget()
            return None
        except BaseException as error:  # pylint: disable=broad-except
            return _describe(error)

    def _stream(self, stream: int) -> Any:
        return self.on_stream(stream) if self.on_stream else _NOTHING

    def _arguments(self, layer: Layer, plan: Any) -> Any:
        """(fixed arguments, [(place, role)], place of the flags) of the layer's calls."""
        keys = self.batch.keys(layer) if 0 <= layer.kv_group < len(self.batch.kv_groups) else None
        fixed = {"layer": layer, "plan": plan, "batch": self.batch, "keys": keys}
        row = [fixed.get(name) for name in self.wants]
        roles = [(i, _ROLES[n]) for i, n in enumerate(self.wants) if n in _ROLES]
        flags = self.wants.index("flags") if "flags" in self.wants else -1
        return row, roles, flags, keys

    def forward(self, index: int, flags: int, stream: int, operands: Sequence[Any]) -> Any:
        try:
            if self.on_stream:
                with self.on_stream(stream), self.captured() if flags & _CAPTURING else _NOTHING:
                    return self._forward(index, flags, operands)
            return self._forward(index, flags, operands)
        except BaseException as error:  # pylint: disable=broad-except
            return _describe(error)

    def _forward(self, index: int, flags: int, operands: Sequence[Any]) -> Any:
        fixed, roles, place, keys = self.plans[index]
        out, lse = operands[_OUT], operands[_LSE]
        held = sys.getrefcount(out), sys.getrefcount(lse)
        row = fixed.copy()
        for i, role in roles:
            row[i] = operands[role]
        if place >= 0:
            row[place] = flags
        if self.saves and flags & _SAVE_KV and keys is not None:
            _save(keys, self.layers[index].is_hnd, operands)
        self.call(*row)
        del row
        if sys.getrefcount(out) > held[0] or (lse is not None and sys.getrefcount(lse) > held[1]):
            raise Error("INTERNAL", f"forward of layer {self.layers[index].id} keeps a reference to out or "
                        "lse: they are the caller's memory, which may be gone or another's after the call")
        return None


def _save(keys: Keys, is_hnd: bool, operands: Sequence[Any]) -> None:
    """New keys and values, to their slots, on a GPU."""
    k, v = operands[_ROLES["k"]], operands[_ROLES["v"]]
    if k is not None:
        for cache, rows in ((operands[_ROLES["k_cache"]], k), (operands[_ROLES["v_cache"]], v)):
            _save_rows(keys, cache.swapaxes(1, 2) if is_hnd else cache, rows)
        return
    c_kv, k_pe, cache = (operands[_ROLES[n]] for n in ("c_kv", "k_pe", "latent_cache"))
    if c_kv is not None:
        _save_rows(keys, cache[..., :c_kv.shape[1]], c_kv)
        _save_rows(keys, cache[..., c_kv.shape[1]:], k_pe)


def _save_rows(keys: Keys, cache: Any, rows: Any) -> None:
    slot, torch = keys._slots_of(rows.shape[0])
    if len(slot):
        save_rows(torch, slot, keys.page_size, cache, rows)


def save_rows(torch: Any, slot: Any, page_size: int, cache: Any, rows: Any) -> None:
    """Rows to their slots, -1 = none. A row without a slot repeats the write of the first row with one, so that the
    order of writes to a slot does not matter; if no row has a slot, the current contents are written."""
    saved = slot >= 0
    row = torch.where(saved, torch.arange(len(slot), device=slot.device), saved.int().argmax())
    slot = slot[row].clip(min=0)
    at = slot // page_size, slot % page_size
    cache[at] = torch.where(saved.any(), rows[row], cache[at])


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


_NOTHING = _Nothing()


def _no_grad() -> Any:
    return sys.modules["torch"].no_grad() if "torch" in sys.modules else _NOTHING


def _streams(device: str) -> Any:
    """stream -> a context in which it is PyTorch's current one, if PyTorch is present."""
    if "torch" not in sys.modules:
        return lambda stream: _NOTHING
    import torch
    made: Dict[int, Any] = {}

    def enter(stream: int) -> Any:
        if torch.cuda.current_stream(device).cuda_stream == stream:
            return _NOTHING
        if stream not in made:
            made[stream] = torch.cuda.ExternalStream(stream, device=device)
        return torch.cuda.stream(made[stream])
    return enter


def _captures(device: str) -> Any:
    """-> the context of a captured forward. PyTorch's allocations in it belong to the graph as long as this object
    exists, as a replay writes them again; a kernel that was not called before may be loaded."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch = sys.modules.get("torch")
    pool = torch.cuda.MemPool() if torch else None

    @contextlib.contextmanager
    def captured() -> Iterator[None]:
        mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            with torch.cuda.use_mem_pool(pool, device) if torch else _NOTHING:
                yield
        finally:
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    return captured
