# SPDX-License-Identifier: Apache-2.0
"""The engine's side of attention: pages, states, sequences that share prefixes, batches of unequal
lengths.

    engine = Engine(host, groups, dtype=torch.bfloat16)   layer groups of a model
    sequence = engine.add(tokens)                         pages of a known prefix are shared
    engine.plan([(sequence, 5), ...])                     the next 5 tokens of it
    engine.forward(layer, q=q, k=k, v=v, out=out)         for each layer
    engine.free(sequence)

On a GPU nothing here waits for it: a step's arrays go over in one copy from pinned memory. What a CUDA
graph of decode steps reads lies in a GraphStep, at addresses that stay (graphs.py captures and replays).

Needs PyTorch and nothing of Transformers. Sparse layers are those over latents.
"""
import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence as Many, Tuple

import torch

from . import _abi, _words
from ._struct import elements
from .arrays import Arrays, GraphStep, on_device
from .batch import Batch, KVGroup, state_group
from .errors import InvalidArgument, OutOfMemory, Unsupported
from .host import Host
from .pages import Pages, Sequence, Snapshots, Table

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _indptr(counts: Iterable[int]) -> List[int]:
    return [0, *itertools.accumulate(counts)]


class Engine:
    """Pools and batches for the layer groups of a model, on whatever backends the host chooses.

    `num_tokens` is the room for keys; a batch has `max_seqs` sequences and `max_tokens` rows at
    most, a sequence `max_len` tokens. Settings of the host's ini hold where nothing is given
    (kv_cache.max_total_tokens, workload.max_running_requests, workload.chunked_prefill_size).
    `caches` are those of another engine, to be used where they fit. With recurrent layers there are
    states for `max_seqs` sequences, and for kv_cache.cached_states prefixes: those with whose last page
    a step ended (border()).
    """

    def __init__(self, host: Host, groups: Many[_abi.attn_layer_group], *,
                 dtype: torch.dtype = torch.float32, device: Any = "cpu",
                 num_tokens: Optional[int] = None, max_seqs: Optional[int] = None,
                 max_tokens: Optional[int] = None, max_len: Optional[int] = None,
                 caches: Optional[Dict[int, Dict[str, torch.Tensor]]] = None,
                 name: str = "model") -> None:
        def number(given: Optional[int], key: str, default: int) -> int:
            return int(given if given is not None else host.settings.get(key, default))

        self.host = host
        self.device = torch.device(device)
        self.max_seqs = number(max_seqs, "workload.max_running_requests", 16)
        self.max_tokens = max(number(max_tokens, "workload.chunked_prefill_size", 2048),
                              self.max_seqs)
        self.num_tokens = number(num_tokens, "kv_cache.max_total_tokens", 16384)
        self.max_len = min(max_len or self.num_tokens, self.num_tokens)
        self._refuse_others(groups)
        if dtype not in DTYPE_NAMES:
            raise Unsupported(f"dtype {dtype}: accepted {_words.join(map(str, DTYPE_NAMES))}",
                              "UNSUPPORTED", "q_dtype")
        place = "cpu" if self.device.type == "cpu" else f"cuda:{self.device.index or 0}"
        self.choice = host.explain(
            list(groups), name, platform__device=place, model__dtype=DTYPE_NAMES[dtype],
            model__max_context_len=self.max_len, workload__max_running_requests=self.max_seqs,
            workload__chunked_prefill_size=self.max_tokens).require()
        problems = [problem for unit in self.choice.units for problem in unit.problems]
        self.page_size = max(problem.page_size for problem in problems)  # 0: there are no keys
        self.has_states = any(group.kind == _abi.ATTN_KIND_LINEAR for group in groups)
        kept = int(host.settings.get("kv_cache.cached_states", 32))
        self.num_states = 1 + self.max_seqs + (kept if self.page_size else 0)  # slot 0 is padding
        self.snapshots = Snapshots(range(self.max_seqs + 1, self.num_states))
        self.pages = Pages(self.pages_of(self.num_tokens) + 1, self.page_size, self.snapshots.forget)
        self.kinds = 1 + max(group.kv_group for group in groups)  # of keys: none, self, cross
        self.top_k = max(group.sparse.contents.top_k if group.sparse else 0 for group in groups)
        self.free_states = list(range(self.max_seqs, 0, -1))
        self.caches: Dict[int, Dict[str, torch.Tensor]] = {}  # of keys and values, by layer
        self._lent = caches or {}
        self._buffers: Dict[int, Dict[str, torch.Tensor]] = {}  # the same, by kv_buffer
        self.states: Dict[int, Dict[str, torch.Tensor]] = {}  # pools of recurrent layers, by layer
        self.layers: Dict[int, Tuple[Any, _abi.attn_problem]] = {}  # metadata, and what it is for
        self.expanded: Dict[int, Tuple[Any, Any]] = {}  # latent layers: backend, metadata for prefixes
        self._units = [self._open(unit) for unit in self.choice.units]
        self._forms = 0  # of indices, that any of them reads
        for backend, _ in self._units:
            self._forms |= backend.index_forms
        self._arrays = Arrays(self.device)
        self._padding = Sequence(())
        self._padding.pages.append(0)
        self._planned: List[Tuple[Sequence, int]] = []
        self._step: Optional[GraphStep] = None  # that the planned step is of
        self._steps: List[GraphStep] = []

    @staticmethod
    def _refuse_others(groups: Many[_abi.attn_layer_group]) -> None:
        for group in groups:
            if group.kind == _abi.ATTN_KIND_SPARSE and not group.mla:
                raise Unsupported("kind sparse without mla: accepted softmax, mla, linear, sparse over latents",
                                  "UNSUPPORTED", "kind")

    # ---- Set-up ------------------------------------------------------------------------------------

    def _open(self, unit: Any) -> Tuple[Any, Any]:
        backend = self.host.compose(unit)
        metadata = backend.metadata(keep=False)  # forward() does
        prefixes = None
        if any(p.mla_expanded for p in unit.problems):
            prefixes = backend.metadata(keep=False)
        for problem in unit.problems:
            group = problem.group.contents
            for layer in elements(group.layers, group.num_layers):
                self._make_pools(problem, group, layer)
                self._bind(metadata, group, layer)
                self.layers[layer.layer_id] = (metadata, problem)
                if problem.mla_expanded:
                    self.expanded[layer.layer_id] = (backend, prefixes)
        return backend, metadata

    def _make_pools(self, problem: Any, group: Any, layer: Any) -> None:
        if group.kind == _abi.ATTN_KIND_LINEAR:
            self.states[layer.layer_id] = self._state_pools(problem, group.linear.contents)
        elif problem.kv_layout:  # encoder-only: no cache
            if layer.kv_buffer not in self._buffers:
                self._buffers[layer.kv_buffer] = self._key_pools(problem, group,
                                                                 self._lent.get(layer.layer_id, {}))
            self.caches[layer.layer_id] = self._buffers[layer.kv_buffer]

    def _bind(self, metadata: Any, group: Any, layer: Any) -> None:
        if layer.layer_id in self.states:
            metadata.bind(layer.layer_id, **self.states[layer.layer_id])
        elif layer.layer_id in self.caches:
            caches = self.caches[layer.layer_id]
            metadata.bind(layer.layer_id, **caches, scales=self._scales(caches)
                          if group.kv_scale_granularity else None)

    def _key_pools(self, problem: Any, group: Any,
                   lent: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        def pool(role: str, *shape: int) -> torch.Tensor:
            dtype = DTYPES[_words.DTYPE_NAMES[problem.kv_dtype]]
            known = lent.get(role)
            fits = known is not None and known.shape == shape and known.dtype == dtype
            return known if fits else self._zeros(shape, problem.kv_dtype)

        pages, size, layout = len(self.pages.users), self.page_size, problem.kv_layout.decode()
        if layout == "mla.latent/1":
            width = group.mla.contents.kv_lora_rank + group.mla.contents.rope_dim
            has_labels = group.sparse and group.sparse.contents.label_dim
            labels = self._label_pool(group.sparse.contents, pages) if has_labels else {}
            return {"latent_cache": pool("latent_cache", pages, size, width), **labels}
        if layout not in ("kv.nhd/1", "kv.hnd/1"):
            raise Unsupported(f"kv_layout {layout}: accepted kv.nhd/1, kv.hnd/1, mla.latent/1",
                              "UNSUPPORTED", "kv_layout")
        shape = (size, group.num_kv_heads) if layout == "kv.nhd/1" else (group.num_kv_heads, size)
        return {role: pool(role, pages, *shape, width)
                for role, width in (("k_cache", group.head_dim), ("v_cache", group.v_head_dim))}

    def _label_pool(self, dims: Any, pages: int) -> Dict[str, torch.Tensor]:
        """The label pool of indexers. A page of fp8 labels has all labels, then a scale for each."""
        shape: Tuple[int, ...] = (pages, self.page_size, dims.label_dim)
        if dims.label_dtype == _abi.ATTN_FP8_E4M3:
            return {"label_cache": torch.zeros(pages, self.page_size * (dims.label_dim + 4), dtype=torch.uint8,
                                               device=self.device)}
        return {"label_cache": self._zeros(shape, dims.label_dtype)}

    def _state_pools(self, problem: Any, dims: Any) -> Dict[str, torch.Tensor]:
        """The recurrent state, and the inputs that the convolution still sees."""
        slots, pools = self.num_states, {}
        if problem.state_layout and dims.head_k_dim:
            inner = {"state.ssm.kv/1": (dims.head_k_dim, dims.head_v_dim),
                     "state.ssm.vk/1": (dims.head_v_dim, dims.head_k_dim)}[problem.state_layout.decode()]
            pools["state"] = self._zeros((slots, dims.num_v_heads, *inner), dims.state_dtype)
        if dims.conv_width:
            channels = 2 * dims.num_k_heads * dims.head_k_dim + dims.num_v_heads * dims.head_v_dim
            pools["conv_state"] = self._zeros((slots, channels, dims.conv_width - 1), dims.conv_dtype)
        return pools

    def _zeros(self, shape: Tuple[int, ...], dtype: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=DTYPES[_words.DTYPE_NAMES[dtype]], device=self.device)

    def _scales(self, caches: Dict[str, torch.Tensor]) -> Dict[str, List[float]]:
        keys = {"k_cache": "k_scale", "v_cache": "v_scale", "latent_cache": "k_scale"}
        return {role: [float(x) for x in self.host.settings[f"kv_cache.{keys[role]}"].split()]
                for role in caches if role in keys}

    def close(self) -> None:
        """Free backends and metadata; the streams must be idle."""
        for step in self._steps:
            step.close()
        for _, prefixes in self.expanded.values():
            prefixes.close()
        for backend, metadata in self._units:
            metadata.close()
            backend.close()
        self._units, self.expanded, self._steps = [], {}, []

    # ---- Sequences ---------------------------------------------------------------------------------

    def add(self, tokens: Many[int] = (), share: bool = True) -> Sequence:
        """A new sequence. Pages that hold the keys of its first tokens are shared; the last token
        is left to be computed, as its output is wanted."""
        sequence = Sequence(tokens)
        known = self._known_pages(sequence.tokens) if share and self.page_size else []
        while self.has_states and known and self.snapshots.find(known[-1][1]) is None:
            known.pop()  # a prefix is of use with its states alone
        for page, sequence.prefix in known:
            self.pages.share(page)
            sequence.pages.append(page)
        sequence.published = len(known)
        sequence.length = sequence.shared = len(known) * self.page_size
        if self.has_states and known:
            self._take_state(sequence)
            self._copy_states(self.snapshots.find(sequence.prefix), sequence.state)
        return sequence

    def _known_pages(self, tokens: List[int]) -> List[Tuple[int, int]]:
        """Those of its first tokens, each with the number of the prefix that it ends."""
        found: List[Tuple[int, int]] = []
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            before = found[-1][1] if found else 0
            page = self.pages.by_tokens.get((before, tuple(tokens[start:start + self.page_size])))
            if page is None:
                break
            found.append((page, self.pages.known[page][1]))
        return found

    def border(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` tokens of a prompt to take in a step, so that it ends where the
        states of recurrent layers can be kept for others."""
        if not self.has_states or not self.page_size:
            return count
        end = (sequence.length + count) // self.page_size * self.page_size
        return end - sequence.length if end > sequence.length else count

    def _copy_states(self, source: int, target: int) -> None:
        for pools in self.states.values():
            for pool in pools.values():
                pool[target].copy_(pool[source])

    def fill(self, length: int) -> Sequence:
        """A new sequence of so many tokens, with whatever keys its pages hold: to measure steps."""
        sequence = Sequence(())
        self._grow(sequence, length)
        sequence.length = length
        return sequence

    def free(self, sequence: Sequence) -> None:
        """Free its pages; pages that other sequences could share stay while there is space."""
        for page in reversed(sequence.pages):  # the last ones are the first to be given to others
            self.pages.drop(page)
        if sequence.state:
            self.free_states.append(sequence.state)
        for page in sequence.source_pages:
            self.pages.drop(page)
        sequence.pages, sequence.source_pages = Table(), Table()
        sequence.length = sequence.state = sequence.source_length = 0
        sequence.published = sequence.prefix = 0

    def pages_of(self, length: int) -> int:
        """Number of pages for the keys of that many tokens."""
        return -(-length // self.page_size) if self.page_size else 0

    def _take_state(self, sequence: Sequence) -> None:
        if not self.free_states:
            raise OutOfMemory(f"all {self.max_seqs} states are in use; accepted: fewer "
                              "sequences, or a larger max_seqs", "OUT_OF_DEVICE_MEMORY")
        sequence.state = self.free_states.pop()

    def _grow(self, sequence: Sequence, length: int) -> None:
        if self.has_states and not sequence.state:
            self._take_state(sequence)
        while len(sequence.pages) < self.pages_of(length):
            sequence.pages.append(self.pages.take())

    def _publish(self, sequence: Sequence) -> None:
        """Every full page whose tokens are known, and the states if they are those after a page."""
        if not self.page_size:
            return
        known = min(sequence.length, len(sequence.tokens))
        while sequence.published < known // self.page_size:
            start = sequence.published * self.page_size
            tokens = tuple(sequence.tokens[start:start + self.page_size])
            sequence.prefix = self.pages.publish(sequence.pages[sequence.published],
                                                 (sequence.prefix, tokens))
            sequence.published += 1
        if self.has_states and 0 < known == sequence.length == sequence.published * self.page_size:
            slot = self.snapshots.take(sequence.prefix)
            if slot is not None:
                self._copy_states(sequence.state, slot)

    # ---- A step ------------------------------------------------------------------------------------

    def plan(self, work: Many[Tuple[Sequence, int]], step: Optional[GraphStep] = None) -> None:
        """The next step: so many new rows of each of these sequences, in this order. With `step`, one
        row of each, padded to its size."""
        rows = sum(count for _, count in work)
        longest = max((s.length + count for s, count in work), default=0)
        for what, got, limit in (("sequences", len(work), step.size if step else self.max_seqs),
                                 ("rows", rows, len(work) if step else self.max_tokens),
                                 ("tokens of a sequence", longest, self.max_len)):
            if got > limit:
                raise InvalidArgument(f"a step of {got} {what}: accepted {limit}; prompts can be "
                                      "given in chunks", "INVALID_ARGUMENT", "batch", str(got),
                                      str(limit))
        for sequence, count in work:
            self._grow(sequence, sequence.length + count)
            sequence.source_new = 0
        self._step = step
        self._plan_units(work, [s.length for s, _ in work])
        for sequence, count in work:
            sequence.length += count
        self._planned = list(work)

    def _plan_units(self, work: Many[Tuple[Sequence, int]], prefixes: Many[int]) -> None:
        step = self._step
        self._arrays = Arrays(self.device, step.memory if step else None)
        batch = self._batch(work, prefixes)
        self._arrays.send()
        for index, (_, metadata) in enumerate(self._units):
            (step.metadata[index] if step else metadata).plan(batch)

    def bring_source(self, counts: Many[int]) -> None:
        """The planned step brings the keys that cross attention reads, so many for each sequence."""
        for (sequence, _), count in zip(self._planned, counts):
            if count > self.max_len:
                raise InvalidArgument(f"{count} tokens of an encoder: accepted {self.max_len}, the "
                                      "cache's max_len", "INVALID_ARGUMENT", "batch")
            while len(sequence.source_pages) < self.pages_of(count):
                sequence.source_pages.append(self.pages.take())
            sequence.source_length = sequence.source_new = count
        self._plan_units(self._planned, [s.length - count for s, count in self._planned])

    @property
    def planned(self) -> List[Sequence]:
        """The sequences of the last step, until it is confirmed."""
        return [sequence for sequence, _ in self._planned]

    def confirm(self) -> None:
        """All layers of the step have been called: its keys may be shared from now on."""
        for sequence, _ in self._planned:
            self._publish(sequence)
        self._planned = []

    def _pair(self, values: Any, dtype: torch.dtype = torch.int32) -> Any:
        return self._arrays.pair(values, dtype)

    def _batch(self, work: Many[Tuple[Sequence, int]], prefixes: Many[int],
               keys: Optional[Dict[str, Any]] = None, **members: Any) -> Batch:
        """`keys`: arrays of the KV group of a call that brings other keys than the step's own."""
        real = len(work)
        if self._step:
            members.update(self._place_inputs(work, prefixes))
            padding = self._step.size - real
            work = [*work, *[(self._padding, 1)] * padding]
            prefixes = [*prefixes, *[0] * padding]
        counts = [count for _, count in work]
        lens = [prefix + count for prefix, count in zip(prefixes, counts)]
        groups, more = self._key_groups(work, counts, lens, keys, real)
        if self.top_k:
            more["sparse"] = _abi.attn_sparse_batch(max_count=self.top_k)
        return Batch("decode" if all(count == 1 for count in counts) else "extend",
                     seq_lens=self._pair(lens), prefix_lens=self._pair(prefixes),
                     q_indptr=self._pair(_indptr(counts)), num_tokens=sum(counts),
                     num_real_seqs=real, num_real_tokens=sum(counts[:real]),
                     max_q_len=max(counts), kv_groups=groups,
                     max_kv_len=max(lens + [s.source_length for s, _ in work]),
                     state_groups=self._state_groups(work, prefixes), **more, **members)

    def _place_inputs(self, work: Many[Tuple[Sequence, int]], prefixes: Many[int]) -> Dict[str, Any]:
        """Inputs of a graph in addition to the batch: the tokens and their positions, a row for each sequence, as
        heads of [size, heads, 1, dim] then need no copies; and the counts without padding, as members of the
        batch."""
        step, padding = self._step, [0] * (self._step.size - len(work))
        step.ids, step.positions = (on_device(self._pair([*values, *padding], torch.int64))[:, None]
                                    for values in ([s.next_token for s, _ in work], prefixes))
        count = on_device(self._pair([len(work)])).data_ptr()
        return {"num_real_seqs_device": count, "num_real_tokens_device": count}

    def _state_groups(self, work: Many[Tuple[Sequence, int]],
                      prefixes: Many[int]) -> List[_abi.attn_state_batch]:
        if not self.has_states:
            return []
        return [state_group(self._pair([s.state for s, _ in work]),
                            has_initial=self._pair([int(prefix > 0) for prefix in prefixes]))]

    def _key_groups(self, work: Many[Tuple[Sequence, int]], counts: List[int], lens: List[int],
                    keys: Optional[Dict[str, Any]], real: int) -> Tuple[List[KVGroup], Dict[str, Any]]:
        """Where keys lie and go to, and members of the batch for it. KV group 0 is that of all self
        attention, 1 that of cross attention."""
        if not self.kinds:
            return [], {}
        members: Dict[str, Any] = {}
        if self._forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            members["req_pool_indices"] = self._pair([*range(1, real + 1), *[0] * (len(work) - real)])
        if keys is None:
            keys = self._new_keys([(s.pages, end - count, end)
                                   for (s, _), count, end in zip(work, counts, lens)])
        own = KVGroup(self.page_size, **keys, **self._index([s.pages for s, _ in work], lens))
        return [own] if self.kinds == 1 else [own, self._source_group(work)], members

    def _source_group(self, work: Many[Tuple[Sequence, int]]) -> KVGroup:
        sources = [s for s, _ in work]
        lens = [s.source_length for s in sources]
        keys = self._new_keys([(s.source_pages, 0, s.source_new) for s in sources])
        return KVGroup(self.page_size, kv_lens=self._pair(lens), **keys,
                       kv_new_indptr=self._pair(_indptr(s.source_new for s in sources)),
                       **self._index([s.source_pages for s in sources], lens))

    def _new_keys(self, parts: Many[Tuple[Table, int, int]]) -> Dict[str, Any]:
        size = self.page_size
        if all(end == start + 1 for _, start, end in parts):
            slots: Any = [pages[i // size] * size + i % size for pages, i, _ in parts]
        else:
            slots = torch.cat([pages.slots(start, end, size) for pages, start, end in parts])
        return {"out_cache_loc": self._pair(slots if len(slots) else [0], torch.int64)}

    def _index(self, tables: Many[Table], lens: Many[int]) -> Dict[str, Any]:
        """Where the keys lie, in the forms that the backends read. A graph's arrays have room for the
        longest sequences."""
        used = [self.pages_of(length) for length in lens]
        longest = self.max_len if self._step else max(1, *lens)
        widest = max(1, self.pages_of(longest))
        arrays: Dict[str, Any] = {}
        if self._forms & _abi.ATTN_INDEX_BLOCK_TABLE:
            arrays["block_table"] = self._pair(torch.stack([table.row(widest) for table in tables]))
        if self._forms & _abi.ATTN_INDEX_CSR:
            indices = [page for table, count in zip(tables, used) for page in table[:count]]
            room = len(tables) * widest if self._step else max(1, len(indices))
            arrays["kv_indptr"] = self._pair(_indptr(used))
            arrays["kv_indices"] = self._pair(indices + [0] * (room - len(indices)))
            arrays["last_page_len"] = self._pair([(n - 1) % self.page_size + 1 if n else 0 for n in lens])
        if self._forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            rows = torch.zeros(1 + len(tables), longest, dtype=torch.int32, device="cpu")
            for row, table, length in zip(rows[1:], tables, lens):
                row[:length] = table.slots(0, length, self.page_size)
            arrays["req_to_token"] = self._pair(rows)
        return arrays

    def graph_step(self, size: int) -> GraphStep:
        """Room for decode steps of up to `size` sequences, as a graph needs it. On a GPU its metadata is for graphs;
        on the CPU, which has no graphs, it is ordinary metadata."""
        metadata, layers = [], {}
        for unit, (backend, _) in zip(self.choice.units, self._units):
            largest = unit.problems[0].bounds.contents
            pages = size * max(1, self.pages_of(largest.max_kv_len)) * max(1, self.page_size)
            made = backend.metadata(
                graph=self.device.type == "cuda", keep=False, modes=1 << _abi.ATTN_MODE_DECODE,
                max_seqs=size, max_q_len=1, max_tokens=size,
                max_kv_tokens=min(pages, largest.max_kv_tokens))
            metadata.append(made)
            for problem in unit.problems:
                group = problem.group.contents
                for layer in elements(group.layers, group.num_layers):
                    self._bind(made, group, layer)
                    layers[layer.layer_id] = made
        # Some dozen arrays of a number or two for each sequence, and the indices of their keys.
        columns = 2 * self.pages_of(self.max_len) + (
            self.max_len if self._forms & _abi.ATTN_INDEX_REQ_TO_TOKEN else 0)
        step = GraphStep(self.device, size, (size + 2) * (4 * columns + 256) + 1024, metadata, layers)
        self._steps.append(step)
        return step

    def why_no_graphs(self) -> str:
        """Why decode steps cannot be graphs; "" = they can."""
        if self.device.type != "cuda":
            return f"device {self.device}: accepted cuda"
        if self.kinds > 1:
            return "cross attention: accepted models of decoders alone"
        for group in self.choice.groups:
            if group.decode_graph_level == "never":
                decode = next(phase for phase in group.phases if phase.name == "decode")
                return (f"layers {_words.join(map(str, group.layers))}: {decode.chosen} cannot be captured "
                        "in decode (graph_level never): accepted single_token or above")
        return ""

    def output(self, layer: int, rows: int, width: int) -> torch.Tensor:
        """Memory for the output of a forward of this layer."""
        problem = self.layers[layer][1]
        return torch.empty((rows, problem.group.contents.num_q_heads, width), device=self.device,
                           dtype=DTYPES[_words.DTYPE_NAMES[problem.out_dtype]])

    def choice_of(self, layer: int, rows: int) -> Dict[str, torch.Tensor]:
        """Operands for the keys that a sparse layer's indexer chooses, in its forward and in those of layers that
        share the choice."""
        top_k = self.layers[layer][1].group.contents.sparse.contents.top_k
        return {"sparse_indices": torch.empty((rows, top_k), dtype=torch.int32, device=self.device),
                "sparse_count": torch.empty(rows, dtype=torch.int32, device=self.device)}

    def forward(self, layer: int, **operands: Any) -> None:
        """A layer of the planned step. q, k, v, out are [rows, heads, dim]; k and v None where another
        layer owns the keys. Those of recurrent layers are in attn_batch.h. On a GPU they may be freed at
        once: PyTorch reuses their memory only after the current stream has come here."""
        if self._step:
            operands["capturing"] = self._step.capturing
            self._step.layers[layer].forward(layer, **operands)
            return
        self.layers[layer][0].forward(layer, **operands)
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            for tensor in operands.values():
                if isinstance(tensor, torch.Tensor):
                    tensor.record_stream(stream)

    # ---- Latent layers in the expanded form --------------------------------------------------------

    def expands(self, layer: int) -> bool:
        """Is this layer of the planned step called with keys and values per head?"""
        return layer in self.expanded and any(count > 1 for _, count in self._planned)

    def forward_expanded(self, layer: int, q: torch.Tensor, c_kv: torch.Tensor, k_pe: torch.Tensor,
                         expand: Callable[..., Tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The new rows see each other in keys and values that `expand` makes of latents; earlier keys follow, a chunk
        of every sequence at a time, merged by LSE. The result is fp32."""
        def partial(metadata: Any, latents: Any, **more: Any) -> Tuple[torch.Tensor, torch.Tensor]:
            k, v = expand(*latents)
            out = self.output(layer, q.shape[0], v.shape[2])
            lse = q.new_empty(q.shape[:2], dtype=torch.float32)
            metadata.forward(layer, q=q, k=k, v=v, out=out, lse=lse, **more)
            return out, lse

        backend, prefixes = self.expanded[layer]
        known = self.caches[layer]["latent_cache"].flatten(0, 1)
        out, lse = partial(self.layers[layer][0], (c_kv, k_pe), c_kv=c_kv, k_pe=k_pe)
        for slots, batch in self._prefix_chunks():
            prefixes.plan(batch)
            rows = known[slots].to(q.dtype).split((c_kv.shape[1], k_pe.shape[1]), 1)
            more, more_lse = partial(prefixes, rows, save_kv=False)
            sums = torch.empty_like(out), torch.empty_like(lse)
            backend.merge([out, more], [lse, more_lse], *sums, keep=False)  # made on this stream
            out, lse = sums
        return out

    def _prefix_chunks(self) -> Iterator[Tuple[torch.Tensor, Batch]]:
        """Slots of some keys of each sequence from before the planned step, and the step's batch with
        these keys alone."""
        work = self._planned
        size = max(1, self.max_tokens // max(1, len(work)))
        prefixes = [s.length - count for s, count in work]
        for first in range(0, max(prefixes, default=0), size):
            ends = [min(prefix, first + size) for prefix in prefixes]
            counts = [max(0, end - first) for end in ends]
            lens = [end if count else 0 for end, count in zip(ends, counts)]
            self._arrays = Arrays(self.device)
            slots = on_device(self._pair(torch.cat([
                s.pages.slots(first, max(first, end), self.page_size) for (s, _), end in zip(work, ends)]),
                torch.int64))
            keys = {"kv_lens": self._pair(lens), "kv_new_indptr": self._pair(_indptr(counts))}
            batch = self._batch(work, prefixes, keys, mask=_abi.attn_mask(kind=_abi.ATTN_MASK_NONE))
            self._arrays.send()
            yield slots, batch

    @property
    def rows(self) -> Dict[str, int]:
        """Query rows computed by each backend, summed over layers."""
        counts: Dict[str, int] = {}
        for backend, _ in self._units:
            for node in backend.nodes:
                counts[node.name] = counts.get(node.name, 0) + node.rows
        return {name: count for name, count in counts.items() if count}
