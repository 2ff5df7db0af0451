# SPDX-License-Identifier: Apache-2.0
"""The planner of an engine that has pools, tables and a scheduler of its own: from the tables of a step to
the plans of all layer groups, and to a forward of each layer.

    planner = Planner(host, groups, dtype=torch.bfloat16, device="cuda", page_size=16,
                      max_seqs=256, max_tokens=8192, max_len=32768)
    planner.bind(layer, k_cache=k, v_cache=v)               once, [pages, page_size, kv_heads, dim]
    planner.plan(Step(lens, [KVTable(slots, block_table=pages)], q_indptr=starts,
                      num_tokens=..., max_q_len=..., max_kv_len=...))
    planner.forward(layer, q=q, k=k, v=v, out=out)          for each layer

Nothing here waits for a GPU or copies from it: what a backend reads in another form than the engine has it
(lists of pages, rows of slots, prefix lengths) is computed on the device. A backend that plans with an array
in host memory is given it where the engine has it, as a pair (host, device); else plan() says which is missing.

Needs PyTorch and nothing of Transformers.
"""
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence as Many, Tuple

import torch

from . import _abi, _words
from ._struct import elements
from .arrays import on_device
from .backend import save_rows
from .batch import Batch, KVGroup
from .engine import DTYPE_NAMES
from .errors import InvalidArgument, Unsupported
from .host import Backend, Host, Metadata
from .selection import Selection

Array = Any  # a tensor on the device, or a pair (on the host, on the device); on the CPU both are one


@dataclass
class KVTable:
    """Where the keys of a KV group lie: `out_cache_loc`, [rows of new keys] the slot that each goes to, -1 =
    none; and the pages of each sequence, `block_table` [sequences, pages], or a row of slots for each request,
    `req_to_token` [requests, tokens], with `req_pool_indices` [sequences], the row of each. Slot = page *
    page_size + offset, and any page may have keys. int32 or int64. `kv_lens` [sequences] and `kv_new_indptr`
    [sequences + 1] where the keys are not those of the step's own tokens: cross attention."""

    out_cache_loc: Array = None
    block_table: Array = None
    req_to_token: Array = None
    req_pool_indices: Array = None
    kv_lens: Array = None
    kv_new_indptr: Array = None

    def __post_init__(self) -> None:
        if (self.block_table is None) == (self.req_to_token is None):
            raise InvalidArgument("KVTable: both or none of block_table and req_to_token: accepted one of them",
                                  "INVALID_ARGUMENT", "batch")
        if self.req_to_token is not None and self.req_pool_indices is None:
            raise InvalidArgument("KVTable: req_to_token without req_pool_indices: accepted both",
                                  "INVALID_ARGUMENT", "batch")


@dataclass
class Step:
    """A step: `seq_lens` [sequences] counts the tokens of each with the new ones; its queries are rows
    `q_indptr`[s] .. `q_indptr`[s + 1], which may be absent where each has one. `tables` has one KVTable for
    each KV group. The counts are on the host, as schedulers have them; bounds may be larger than the truth.

    `num_decodes` sequences, at the end of the batch that the planner was made for, decode `decode_q_len`
    queries each. What lies beyond num_real_seqs and num_real_tokens is padding. `prompts`: are some rows those of
    prompts, which may share new keys; None = where some sequence has several."""

    seq_lens: Array
    tables: Many[KVTable]
    num_tokens: int
    max_kv_len: int
    max_q_len: int = 1
    q_indptr: Array = None
    num_decodes: int = 0
    decode_q_len: int = 1
    num_real_seqs: Optional[int] = None
    num_real_tokens: Optional[int] = None
    prompts: Optional[bool] = None
    members: Mapping[str, Any] = field(default_factory=dict)  # others of attn_batch, by their names

    @property
    def num_seqs(self) -> int:
        return int(on_device(self.seq_lens).shape[0])


# ---- Arrays in the forms that backends read ----------------------------------------------------------


def _both(function: Callable[..., Any], *arrays: Array) -> Array:
    """The function's result for these arrays on the device, and on the host if all of them are there."""
    made = function(*map(on_device, arrays))
    if not all(isinstance(array, tuple) and array[0] is not None for array in arrays):
        return made
    return function(*(array[0] for array in arrays)), made


def _as(dtype: torch.dtype, array: Array) -> Array:
    return array if array is None else _both(lambda x: x.to(dtype), array)


def _prefixes(lens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Tokens before the first query; those of padding may have fewer tokens than rows."""
    return (lens - rows.diff()[:len(lens)]).clamp_(min=0)


def _pages_of_rows(rows: torch.Tensor, requests: torch.Tensor, page_size: int, width: int) -> torch.Tensor:
    """The block table of requests with rows of slots."""
    return rows[requests.long(), :width * page_size:page_size].div(page_size, rounding_mode="floor")


def _page_counts(lens: torch.Tensor, page_size: int) -> torch.Tensor:
    return (lens + (page_size - 1)).div(page_size, rounding_mode="floor")


def _list_indptr(lens: torch.Tensor, page_size: int) -> torch.Tensor:
    starts = torch.zeros(len(lens) + 1, dtype=torch.int32, device=lens.device)
    torch.cumsum(_page_counts(lens, page_size), 0, dtype=torch.int32, out=starts[1:])
    return starts


def _list_pages(table: torch.Tensor, lens: torch.Tensor, starts: torch.Tensor, page_size: int) -> torch.Tensor:
    """The pages of all sequences one after another, in room for the whole table: only the device knows their number.
    Entries that are no page of a sequence go to the last entry, beyond all lists."""
    columns = torch.arange(table.shape[1], dtype=torch.int32, device=table.device)
    used = columns < _page_counts(lens, page_size)[:, None]
    places = torch.where(used, starts[:-1, None] + columns, table.numel()).long()
    made = torch.zeros(table.numel() + 1, dtype=torch.int32, device=table.device)
    return made.scatter_(0, places.flatten(), table.flatten())


def _last_pages(lens: torch.Tensor, page_size: int) -> torch.Tensor:
    return torch.where(lens > 0, (lens - 1).remainder(page_size) + 1, 0).to(torch.int32)


def _rows_of_pages(table: torch.Tensor, page_size: int) -> torch.Tensor:
    """Rows of slots."""
    offsets = torch.arange(page_size, dtype=torch.int32, device=table.device)
    return (table[:, :, None] * page_size + offsets).flatten(1)


def save_keys(cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, scale: float) -> None:
    """New rows into a cache [pages, page_size, ...]; fp8 values as in KV-04 of docs/ABI.md."""
    size, made = cache.shape[1], new
    if cache.dtype.itemsize == 1:
        most = torch.finfo(cache.dtype).max
        made = (new.float() / scale).clamp_(-most, most).to(cache.dtype).view(torch.uint8)
        cache = cache.view(torch.uint8)  # codes are bytes to PyTorch's indexing
    save_rows(torch, slots, size, cache, made)


# ---- Plans -------------------------------------------------------------------------------------------


class Plan:
    """Metadata of all units of a planner, and what is planned in them."""

    def __init__(self, planner: "Planner", graph: bool = False, **bounds: Any) -> None:
        self.planner = planner
        self._metadata: List[Metadata] = []
        self._layers: Dict[int, Metadata] = {}
        self._slots: List[torch.Tensor] = []  # of new keys, in each KV group
        self._saves = False
        for backend in planner.backends:
            made = backend.metadata(graph=graph, keep=False, **bounds)  # forward() keeps
            self._metadata.append(made)
            for problem in backend.problems:
                group = problem.group.contents
                for layer in elements(group.layers, group.num_layers):
                    self._layers[layer.layer_id] = made
        for layer_id, (scales, operands) in planner.bound.items():
            self.bind(layer_id, scales, operands)

    def bind(self, layer: int, scales: Any, operands: Mapping[str, torch.Tensor]) -> None:
        self._layers[layer].bind(layer, scales=scales, **operands)

    def plan(self, step: Step) -> None:
        """Plan a step in all units. Only enqueues on a GPU."""
        batch = self._batch(step)
        prompts = step.max_q_len > 1 if step.prompts is None else step.prompts
        self._saves = self.planner.saves and prompts
        for metadata in self._metadata:
            metadata.plan(batch)

    def forward(self, layer: int, **operands: Any) -> None:
        """A layer of the planned step: q, k, v, out [rows, heads, dim], k and v None where another layer owns
        the keys; further operands and flags as Metadata.forward() has them. On a GPU tensors may be freed at
        once, whichever stream they were made on."""
        if self._saves and operands.get("save_kv", True):
            operands = self._saved(layer, operands)
        self._layers[layer].forward(layer, **operands)
        if self.planner.device.type == "cuda":
            stream = torch.cuda.current_stream(self.planner.device)
            for tensor in operands.values():
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(stream)

    def _saved(self, layer: int, operands: Dict[str, Any]) -> Dict[str, Any]:
        """The operands without new keys, which are in the cache now."""
        problem, (scales, bound) = self.planner.problems[layer], self.planner.bound[layer]
        slots = self._slots[problem.group.contents.kv_group]
        for role in ("k", "v"):
            new, cache = operands.get(role), bound.get(f"{role}_cache")
            if new is not None and cache is not None:
                by_page = cache.transpose(1, 2) if problem.kv_layout == b"kv.hnd/1" else cache
                save_keys(by_page, new, slots[:len(new)], (scales or {}).get(f"{role}_cache", 1.0))
        return {**operands, "k": None, "v": None}

    def close(self) -> None:
        """Free the metadata; its streams must be idle."""
        for metadata in self._metadata:
            metadata.close()
        self._metadata, self._layers = [], {}

    # ---- A batch -------------------------------------------------------------------------------------

    def _keep(self, name: str, array: Array) -> Array:
        """The array of this name, in the form that backends get."""
        return array

    def _int32(self, name: str, array: Array) -> Array:
        return self._keep(name, _as(torch.int32, array))

    def _batch(self, step: Step) -> Batch:
        mode, members = self._mode(step)
        lens = self._int32("seq_lens", step.seq_lens)
        if mode != "decode":
            if step.q_indptr is None:
                raise InvalidArgument(f"a step of {step.num_tokens} rows and {step.num_seqs} sequences without "
                                      "q_indptr: accepted one row for each sequence", "INVALID_ARGUMENT", "batch")
            rows = self._int32("q_indptr", step.q_indptr)
            members.update(q_indptr=rows, prefix_lens=self._keep("prefix_lens", _both(_prefixes, lens, rows)))
        if self.planner.forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            rows = torch.arange(step.num_seqs, dtype=torch.int32, device=self.planner.device)
            members["req_pool_indices"] = self._keep("req_pool_indices", rows)
        self._slots = []
        groups = [self._key_group(f"{i}.", step, table, lens) for i, table in enumerate(step.tables)]
        return Batch(mode, seq_lens=lens, kv_groups=groups, num_tokens=step.num_tokens,
                     max_q_len=step.max_q_len, max_kv_len=step.max_kv_len, num_real_seqs=step.num_real_seqs,
                     num_real_tokens=step.num_real_tokens, **members, **step.members)

    def _mode(self, step: Step) -> Tuple[str, Dict[str, Any]]:
        """The mode, and the members that locate the sequences that decode."""
        if step.max_q_len <= 1 and step.num_tokens == step.num_seqs and self.planner.decodes_alone:
            return "decode", {}
        decodes, draft = step.num_decodes, step.decode_q_len > 1
        if not self.planner.mixed or not 0 < decodes < step.num_seqs or (draft and not self.planner.drafts):
            return "extend", {}
        first = 0 if self.planner.decodes == "first" else step.num_seqs - decodes
        return "mixed", {"num_decode_seqs": decodes, "first_decode_seq": first,
                         "decode_q_len": step.decode_q_len}

    def _width(self, step: Step) -> int:
        """Pages of the longest sequence."""
        return max(1, -(-step.max_kv_len // self.planner.page_size))

    def _key_group(self, prefix: str, step: Step, table: KVTable, lens: Array) -> KVGroup:
        size = self.planner.page_size
        arrays: Dict[str, Array] = {
            name: self._int32(prefix + name, array) for name, array in
            (("kv_lens", table.kv_lens), ("kv_new_indptr", table.kv_new_indptr)) if array is not None}
        arrays.update(self._index(prefix, table, arrays.get("kv_lens", lens), self._width(step), size))
        slots = table.out_cache_loc
        if slots is not None:
            slots = self._keep(prefix + "out_cache_loc", _as(torch.int64, slots))
        self._slots.append(on_device(slots))
        return KVGroup(size, out_cache_loc=slots, **arrays)

    def _index(self, prefix: str, table: KVTable, lens: Array, width: int, size: int) -> Dict[str, Array]:
        """Where the keys lie, in the forms that the backends read."""
        forms, made = self.planner.forms, {}
        if not forms:
            return made
        pages = on_device(table.block_table)
        if pages is None:
            pages = _pages_of_rows(on_device(table.req_to_token), on_device(table.req_pool_indices), size, width)
        pages = pages.to(torch.int32)
        if forms & _abi.ATTN_INDEX_BLOCK_TABLE:
            made["block_table"] = self._keep(prefix + "block_table", pages)
        pages = pages[:, :width]
        if forms & _abi.ATTN_INDEX_CSR:
            starts = _both(lambda x: _list_indptr(x, size), lens)
            listed = _list_pages(pages, on_device(lens), on_device(starts), size)
            made["kv_indptr"] = self._keep(prefix + "kv_indptr", starts)
            made["kv_indices"] = self._keep(prefix + "kv_indices", listed)
            made["last_page_len"] = self._keep(prefix + "last_page_len",
                                               _both(lambda x: _last_pages(x, size), lens))
        if forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            made["req_to_token"] = self._keep(prefix + "req_to_token", _rows_of_pages(pages, size))
        return made


class GraphPlan(Plan):
    """Steps of up to `num_seqs` sequences of `q_len` queries each, padded to as many, whose arrays lie at the
    same addresses each time: plan one, capture the forwards of all layers; plan another, replay. Made by
    Planner.graph()."""

    def __init__(self, planner: "Planner", num_seqs: int, q_len: int) -> None:
        pages = max(1, -(-planner.max_len // planner.page_size)) * planner.page_size
        super().__init__(planner, planner.device.type == "cuda", max_seqs=num_seqs, max_q_len=q_len,
                         max_tokens=num_seqs * q_len, max_kv_tokens=num_seqs * pages,
                         modes=1 << (_abi.ATTN_MODE_DECODE if q_len == 1 else _abi.ATTN_MODE_EXTEND))
        self.num_seqs, self.q_len = num_seqs, q_len
        self._kept: Dict[str, torch.Tensor] = {}

    def _keep(self, name: str, array: Array) -> Array:
        made = on_device(array)
        if name not in self._kept:
            with torch.inference_mode(False):  # else a later plan could write it in that mode alone
                self._kept[name] = torch.empty(made.shape, dtype=made.dtype, device=made.device)
        self._kept[name].copy_(made)
        kept = self._kept[name]
        return (array[0], kept) if isinstance(array, tuple) else kept

    def _width(self, step: Step) -> int:
        return max(1, -(-self.planner.max_len // self.planner.page_size))

    def _count(self, name: str, count: int) -> torch.Tensor:
        return self._keep(name, torch.full((1,), count, dtype=torch.int32, device=self.planner.device))

    def plan(self, step: Step) -> None:
        """Plan a step in which every sequence has q_len rows."""
        real = step.num_seqs if step.num_real_seqs is None else step.num_real_seqs
        if step.num_seqs > self.num_seqs or step.num_tokens != step.num_seqs * self.q_len:
            raise InvalidArgument(
                f"a step of {step.num_seqs} sequences and {step.num_tokens} rows: accepted 1 to {self.num_seqs} "
                f"sequences of {self.q_len}, as the graph has", "INVALID_ARGUMENT", "batch")
        super().plan(self._padded(step, real))

    def forward(self, layer: int, **operands: Any) -> None:
        capturing = self.planner.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        super().forward(layer, capturing=capturing, **operands)

    def _padded(self, step: Step, real: int) -> Step:
        """With padding up to the size of the graph: sequences of no more than their rows, on any page,
        which write no key."""
        size, rows = self.num_seqs, self.num_seqs * self.q_len

        def pad(array: Array, count: int, value: int, keep: int) -> Array:
            def one(x: torch.Tensor) -> torch.Tensor:
                made = x.new_full((count, *x.shape[1:]), value)
                made[:keep] = x[:keep]
                return made
            return array if array is None else _both(one, array)

        tables = []
        for table in step.tables:
            if table.kv_lens is not None or table.kv_new_indptr is not None:
                raise Unsupported("kv_lens in a graph: accepted keys of the step's own tokens", "UNSUPPORTED")
            made = replace(table, out_cache_loc=pad(table.out_cache_loc, rows, -1, real * self.q_len))
            if table.block_table is not None:
                made.block_table = self._widened(pad(table.block_table, size, 0, real))
            else:
                made.req_pool_indices = pad(table.req_pool_indices, size, 0, real)
            tables.append(made)
        starts = torch.arange(0, rows + 1, self.q_len, dtype=torch.int32, device="cpu")
        counts = {f"num_real_{what}_device": self._count(what, count).data_ptr()
                  for what, count in (("seqs", real), ("tokens", real * self.q_len))}
        return Step(pad(step.seq_lens, size, self.q_len, real), tables, num_tokens=rows,
                    max_kv_len=step.max_kv_len, max_q_len=self.q_len,
                    q_indptr=(starts, starts.to(self.planner.device, non_blocking=True)),
                    num_real_seqs=real, num_real_tokens=real * self.q_len, prompts=step.prompts,
                    members={**step.members, **counts})

    def _widened(self, table: Array) -> torch.Tensor:
        """With as many columns as the longest sequence has pages."""
        pages = on_device(table)
        width = -(-self.planner.max_len // self.planner.page_size)
        made = pages.new_zeros(len(pages), max(1, width))
        made[:, :pages.shape[1]] = pages[:, :made.shape[1]]
        return made


# ---- The planner -------------------------------------------------------------------------------------


class Planner:
    """Backends that the host chooses for layer groups of a model, and their plans.

    `groups` are those of layer_group(), each with its number of a KV group (`kv_group=`) where there are
    several. A step has `max_seqs` sequences and `max_tokens` rows at most, a sequence `max_len` keys. Sequences
    that decode stand `first` or `last` in a mixed batch (`decodes`); where a backend cannot take such
    batches as MIXED ones, or with None, they are EXTEND. `uses` are parts that batches and calls have: "lse",
    "unsaved_kv", "decode_drafts", "shared_new_kv" (either keeps an ini that splits phases from splitting mixed
    batches) ... Where no backend serves "shared_new_kv", which is asked for by engines whose requests find
    prefixes that others bring in the same step, new keys of steps with prompts are saved here before a backend
    is called. Further `settings` are keys of the ini, as Host.explain() has them. What no backend can serve is
    Unsupported, with all reasons.
    """

    def __init__(self, host: Host, groups: Many[_abi.attn_layer_group], *, dtype: torch.dtype, page_size: int,
                 max_seqs: int, max_tokens: int, max_len: int, device: Any = "cpu",
                 kv_dtype: Optional[torch.dtype] = None, decodes: Optional[str] = "first",
                 uses: Iterable[str] = (), name: str = "engine", **settings: Any) -> None:
        if decodes not in ("first", "last", None):
            raise InvalidArgument(f"decodes '{decodes}': accepted first, last, None", "INVALID_ARGUMENT")
        self.host, self.device = host, torch.device(device)
        self.page_size, self.max_len, self.decodes = page_size, max_len, decodes
        place = "cpu" if self.device.type == "cpu" else f"cuda:{self.device.index or 0}"
        asked = {"platform__device": place, "model__dtype": _dtype_name("dtype", dtype),
                 "model__max_context_len": max_len, "kv_cache__page_size": page_size,
                 "workload__max_running_requests": max_seqs, "workload__chunked_prefill_size": max_tokens,
                 **({"kv_cache__dtype": _dtype_name("kv_dtype", kv_dtype)} if kv_dtype else {}), **settings}
        self.mixed = self.drafts = self.saves = False
        self.choice = self._choose(list(groups), name, asked, _words.bits("use", uses, _words.USES))
        self.bound: Dict[int, Tuple[Any, Dict[str, torch.Tensor]]] = {}
        self.forms, self.host_arrays = 0, set()  # of indices, and of arrays that must be in host memory, too
        for backend in self.backends:
            self.forms |= backend.index_forms
            self.host_arrays |= set(backend.host_arrays)
        self.problems = {layer.layer_id: problem for backend in self.backends for problem in backend.problems
                         for layer in elements(problem.group.contents.layers,
                                               problem.group.contents.num_layers)}
        self.decodes_alone = all(problem.bounds.contents.modes & 1 << _abi.ATTN_MODE_DECODE  # encoders do not
                                 for problem in self.problems.values())
        self.eager = Plan(self)
        self._graphs: List[GraphPlan] = []

    def _choose(self, groups: List[Any], name: str, asked: Mapping[str, Any], uses: int) -> Selection:
        """The choice, composed: the first of these that is served, or none with the reasons of the last: MIXED
        batches or none, new keys that are shared or saved here."""
        drafts, shared = _abi.ATTN_USES_DECODE_DRAFTS, _abi.ATTN_USES_SHARED_NEW_KV
        order = _abi.ATTN_USES_DECODES_FIRST if self.decodes == "first" else 0
        for mixed, saves in product((True, False) if self.decodes else (False,),
                                    (False, True) if uses & shared else (False,)):
            own = (uses | order if mixed else uses & ~drafts) & ~(shared if saves else 0)
            choice = self.host.explain(groups, name, uses=own, workload__mixed=mixed, **asked)
            if choice:
                break
        units = choice.require().units
        self.mixed, self.drafts, self.saves = mixed, bool(own & drafts), saves
        self.backends: List[Backend] = [self.host.compose(unit) for unit in units]
        return choice

    def bind(self, layer: int, *, scales: Any = None, **operands: torch.Tensor) -> None:
        """Operands that a layer has in every call. Caches are [pages, page_size, kv_heads, dim], with any
        strides but the last; a backend that wants heads before tokens is given the view."""
        if layer not in self.problems:
            raise InvalidArgument(f"layer {layer}: accepted {_words.join(map(str, sorted(self.problems)))}",
                                  "INVALID_ARGUMENT")
        if self.problems[layer].kv_layout == b"kv.hnd/1":
            operands = {role: x.transpose(1, 2) if role in ("k_cache", "v_cache") else x
                        for role, x in operands.items()}
        self.bound[layer] = (scales, operands)
        for plan in (self.eager, *self._graphs):
            plan.bind(layer, scales, operands)

    def plan(self, step: Step) -> None:
        """Plan a step for all layer groups. Only enqueues on a GPU."""
        self.eager.plan(step)

    def forward(self, layer: int, **operands: Any) -> None:
        """A layer of the planned step; see Plan.forward()."""
        self.eager.forward(layer, **operands)

    def graph(self, num_seqs: int, q_len: int = 1) -> GraphPlan:
        """Plans for a graph of steps of so many sequences. Unsupported where a backend cannot be captured."""
        wanted = _abi.ATTN_GRAPH_SINGLE_TOKEN if q_len == 1 else _abi.ATTN_GRAPH_UNIFORM
        if self.device.type == "cuda" and self.graph_level < wanted:
            raise Unsupported(f"graphs of {q_len} queries for each sequence: {self.backends[0].name} has graph_level "
                              f"{_words.name(self.graph_level, _words.GRAPH_LEVELS)}: accepted "
                              f"{_words.name(wanted, _words.GRAPH_LEVELS)}", "CAPTURE_UNSUPPORTED")
        made = GraphPlan(self, num_seqs, q_len)
        self._graphs.append(made)
        return made

    @property
    def graph_level(self) -> int:
        """ATTN_GRAPH_*: which steps all decode backends can be captured in."""
        return min(_words.number("graph level", group.decode_graph_level, _words.GRAPH_LEVELS)
                   for group in self.choice.groups)

    @property
    def rows(self) -> Dict[str, int]:
        """Query rows that each backend has computed, summed over layers."""
        return count_rows(self.backends)

    def close(self) -> None:
        """Free backends and metadata; the streams must be idle."""
        for plan in (*self._graphs, self.eager):
            plan.close()
        for backend in self.backends:
            backend.close()
        self._graphs, self.backends, self.bound = [], [], {}


def count_rows(backends: Iterable[Backend]) -> Dict[str, int]:
    """Query rows that backends and their children have computed, by their names."""
    counts: Dict[str, int] = {}
    for backend in backends:
        for node in backend.nodes:
            counts[node.name] = counts.get(node.name, 0) + node.rows
    return {name: count for name, count in counts.items() if count}


def _dtype_name(what: str, dtype: torch.dtype) -> str:
    if dtype not in DTYPE_NAMES:
        raise Unsupported(f"{what} {dtype}: accepted {_words.join(map(str, DTYPE_NAMES))}", "UNSUPPORTED")
    return DTYPE_NAMES[dtype]
