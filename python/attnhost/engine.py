# SPDX-License-Identifier: Apache-2.0
"""The engine's side of attention: pages, states, sequences that share prefixes, batches of unequal
lengths.

    engine = Engine(host, groups, dtype=torch.bfloat16)   layer groups of a model
    sequence = engine.add(tokens)                         pages of a known prefix are shared
    engine.plan([(sequence, 5), ...])                     the next 5 tokens of it
    engine.forward(layer, q=q, k=k, v=v, out=out)         for each layer
    engine.free(sequence)

Needs PyTorch and nothing of Transformers. Sparse layers are refused.
"""
import itertools
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence as Many, Tuple

import torch

from . import _abi, _words
from ._struct import elements
from .batch import Batch, KVGroup, state_group
from .errors import InvalidArgument, OutOfMemory, Unsupported
from .host import Host

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _indptr(counts: Iterable[int]) -> List[int]:
    return [0, *itertools.accumulate(counts)]


class Sequence:
    """A request: its tokens, the pages of its keys, the slot of its states, and how many tokens have
    been computed."""

    def __init__(self, tokens: Many[int]) -> None:
        self.tokens = list(tokens)
        self.pages: List[int] = []
        self.state = 0  # its slot; 0 = none yet
        self.source_pages: List[int] = []  # of the keys that its cross attention reads
        self.source_length = 0
        self.source_new = 0  # of these, those that the planned step brings
        self.length = 0
        self.shared = 0  # of these, tokens whose keys another sequence had computed


class Pages:
    """Pages with counts of their users. Full pages are known by their tokens and all before them;
    one that nobody uses any more is kept until its room is needed. Page 0 is padding."""

    def __init__(self, count: int, page_size: int) -> None:
        self.page_size = page_size
        self.free = list(range(count - 1, 0, -1))
        self.users = [0] * count
        self.by_prefix: Dict[Tuple, int] = {}
        self.prefix_of: Dict[int, Tuple] = {}
        self.unused: "OrderedDict[int, None]" = OrderedDict()  # known pages without users, oldest first

    @property
    def available(self) -> int:
        return len(self.free) + len(self.unused)

    def take(self) -> int:
        if not self.available:
            raise OutOfMemory(f"the pool has no page of {self.page_size} tokens left; accepted: "
                              "fewer or shorter sequences, or a larger num_tokens",
                              "OUT_OF_DEVICE_MEMORY")
        if not self.free:
            page, _ = self.unused.popitem(last=False)
            del self.by_prefix[self.prefix_of.pop(page)]
        else:
            page = self.free.pop()
        self.users[page] = 1
        return page

    def share(self, page: int) -> None:
        self.users[page] += 1
        self.unused.pop(page, None)

    def drop(self, page: int) -> None:
        self.users[page] -= 1
        if self.users[page]:
            return
        if page in self.prefix_of:
            self.unused[page] = None
        else:
            self.free.append(page)

    def publish(self, page: int, prefix: Tuple) -> Tuple:
        """Its keys are computed: others may share it. The first one with this prefix stays."""
        if prefix not in self.by_prefix and page not in self.prefix_of:
            self.by_prefix[prefix] = page
            self.prefix_of[page] = prefix
        return prefix


class Engine:
    """Pools and batches for the layer groups of a model, on whatever backends the host chooses.

    `num_tokens` is the room for keys; a batch has `max_seqs` sequences and `max_tokens` rows at
    most, a sequence `max_len` tokens. Settings of the host's ini hold where nothing is given
    (kv_cache.max_total_tokens, workload.max_running_requests, workload.chunked_prefill_size).
    With recurrent layers there are states for `max_seqs` sequences, and prefixes are not shared.
    """

    def __init__(self, host: Host, groups: Many[_abi.attn_layer_group], *,
                 dtype: torch.dtype = torch.float32, device: Any = "cpu",
                 num_tokens: Optional[int] = None, max_seqs: Optional[int] = None,
                 max_tokens: Optional[int] = None, max_len: Optional[int] = None,
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
        place = "cpu" if self.device.type == "cpu" else f"cuda:{self.device.index or 0}"
        self.choice = host.explain(
            list(groups), name, platform__device=place, model__dtype=DTYPE_NAMES[dtype],
            model__max_context_len=self.max_len, workload__max_running_requests=self.max_seqs,
            workload__chunked_prefill_size=self.max_tokens).require()
        problems = [problem for unit in self.choice.units for problem in unit.problems]
        self.page_size = max(problem.page_size for problem in problems)  # 0: there are no keys
        self.pages = Pages(self.pages_of(self.num_tokens) + 1, self.page_size)
        self.has_states = any(group.kind == _abi.ATTN_KIND_LINEAR for group in groups)
        self.free_states = list(range(self.max_seqs, 0, -1))  # slot 0 is padding
        self.caches: Dict[int, Dict[str, torch.Tensor]] = {}  # of keys and values, by layer
        self._buffers: Dict[int, Dict[str, torch.Tensor]] = {}  # the same, by kv_buffer
        self.states: Dict[int, Dict[str, torch.Tensor]] = {}  # pools of recurrent layers, by layer
        self.layers: Dict[int, Tuple[Any, _abi.attn_problem]] = {}  # metadata, and what it is for
        self.expanded: Dict[int, Tuple[Any, Any]] = {}  # latent layers: backend, metadata for prefixes
        self._units = [self._open(unit) for unit in self.choice.units]
        self._planned: List[Tuple[Sequence, int]] = []

    @staticmethod
    def _refuse_others(groups: Many[_abi.attn_layer_group]) -> None:
        for group in groups:
            if group.kind == _abi.ATTN_KIND_SPARSE:
                raise Unsupported("kind sparse: accepted softmax, mla, linear", "UNSUPPORTED", "kind")

    # ---- Set-up ------------------------------------------------------------------------------------

    def _open(self, unit: Any) -> Tuple[Any, Any]:
        backend = self.host.compose(unit)
        metadata = backend.metadata()
        prefixes = backend.metadata() if any(p.mla_expanded for p in unit.problems) else None
        for problem in unit.problems:
            group = problem.group.contents
            for layer in elements(group.layers, group.num_layers):
                self._bind(metadata, problem, group, layer)
                self.layers[layer.layer_id] = (metadata, problem)
                if problem.mla_expanded:
                    self.expanded[layer.layer_id] = (backend, prefixes)
        return backend, metadata

    def _bind(self, metadata: Any, problem: Any, group: Any, layer: Any) -> None:
        if group.kind == _abi.ATTN_KIND_LINEAR:
            self.states[layer.layer_id] = self._state_pools(problem, group.linear.contents)
            metadata.bind(layer.layer_id, **self.states[layer.layer_id])
            return
        if not problem.kv_layout:
            return  # encoder-only: no cache
        if layer.kv_buffer not in self._buffers:
            self._buffers[layer.kv_buffer] = self._key_pools(problem, group)
        caches = self.caches[layer.layer_id] = self._buffers[layer.kv_buffer]
        metadata.bind(layer.layer_id, **caches, scales=self._scales(caches)
                      if group.kv_scale_granularity else None)

    def _key_pools(self, problem: Any, group: Any) -> Dict[str, torch.Tensor]:
        pages, size, layout = len(self.pages.users), self.page_size, problem.kv_layout.decode()
        if layout == "mla.latent/1":
            width = group.mla.contents.kv_lora_rank + group.mla.contents.rope_dim
            return {"latent_cache": self._zeros((pages, size, width), problem.kv_dtype)}
        if layout not in ("kv.nhd/1", "kv.hnd/1"):
            raise Unsupported(f"kv_layout {layout}: accepted kv.nhd/1, kv.hnd/1, mla.latent/1",
                              "UNSUPPORTED", "kv_layout")
        shape = (size, group.num_kv_heads) if layout == "kv.nhd/1" else (group.num_kv_heads, size)
        return {role: self._zeros((pages, *shape, width), problem.kv_dtype)
                for role, width in (("k_cache", group.head_dim), ("v_cache", group.v_head_dim))}

    def _state_pools(self, problem: Any, dims: Any) -> Dict[str, torch.Tensor]:
        """The recurrent state, and the inputs that the convolution still sees."""
        slots, pools = self.max_seqs + 1, {}
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
                for role in caches}

    def close(self) -> None:
        """Free backends and metadata; the streams must be idle."""
        for _, prefixes in self.expanded.values():
            prefixes.close()
        for backend, metadata in self._units:
            metadata.close()
            backend.close()
        self._units, self.expanded = [], {}

    # ---- Sequences ---------------------------------------------------------------------------------

    def add(self, tokens: Many[int] = (), share: bool = True) -> Sequence:
        """A new sequence. Pages that hold the keys of its first tokens are shared; the last token
        is left to be computed, as somebody wants its output."""
        sequence, prefix = Sequence(tokens), ()
        share = share and not self.has_states and self.page_size > 0
        while share and sequence.length + self.page_size < len(sequence.tokens):
            end = sequence.length + self.page_size
            prefix = (prefix, tuple(sequence.tokens[sequence.length:end]))
            page = self.pages.by_prefix.get(prefix)
            if page is None:
                break
            self.pages.share(page)
            sequence.pages.append(page)
            sequence.length = end
        sequence.shared = sequence.length
        return sequence

    def free(self, sequence: Sequence) -> None:
        """Its pages go back; those that others could share are kept while there is room."""
        for page in sequence.pages:
            self.pages.drop(page)
        if sequence.state:
            self.free_states.append(sequence.state)
        for page in sequence.source_pages:
            self.pages.drop(page)
        sequence.pages, sequence.length, sequence.state = [], 0, 0
        sequence.source_pages, sequence.source_length = [], 0

    def pages_of(self, length: int) -> int:
        """How many pages the keys of so many tokens take."""
        return -(-length // self.page_size) if self.page_size else 0

    def _grow(self, sequence: Sequence, length: int) -> None:
        if self.has_states and not sequence.state:
            if not self.free_states:
                raise OutOfMemory(f"all {self.max_seqs} states are in use; accepted: fewer "
                                  "sequences, or a larger max_seqs", "OUT_OF_DEVICE_MEMORY")
            sequence.state = self.free_states.pop()
        while len(sequence.pages) < self.pages_of(length):
            sequence.pages.append(self.pages.take())

    def _publish(self, sequence: Sequence) -> None:
        """Every full page whose tokens are known."""
        if self.has_states or not self.page_size:
            return
        prefix: Tuple = ()
        known = min(sequence.length, len(sequence.tokens))
        for index in range(known // self.page_size):
            start = index * self.page_size
            prefix = (prefix, tuple(sequence.tokens[start:start + self.page_size]))
            self.pages.publish(sequence.pages[index], prefix)

    # ---- A step ------------------------------------------------------------------------------------

    def plan(self, work: Many[Tuple[Sequence, int]]) -> None:
        """The next step: so many new rows of each of these sequences, in this order."""
        rows = sum(count for _, count in work)
        longest = max((s.length + count for s, count in work), default=0)
        for what, got, limit in (("sequences", len(work), self.max_seqs),
                                 ("rows", rows, self.max_tokens),
                                 ("tokens of a sequence", longest, self.max_len)):
            if got > limit:
                raise InvalidArgument(f"a step of {got} {what}: accepted {limit}; prompts can be "
                                      "given in chunks", "INVALID_ARGUMENT", "batch", str(got),
                                      str(limit))
        for sequence, count in work:
            self._grow(sequence, sequence.length + count)
            sequence.source_new = 0
        self._plan_units(work, [s.length for s, _ in work])
        for sequence, count in work:
            sequence.length += count
        self._planned = list(work)

    def _plan_units(self, work: Many[Tuple[Sequence, int]], prefixes: Many[int]) -> None:
        for backend, metadata in self._units:
            metadata.plan(self._batch(work, backend.index_forms, prefixes))

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

    def confirm(self) -> None:
        """All layers of the step have been called: its keys may be shared from now on."""
        for sequence, _ in self._planned:
            self._publish(sequence)
        self._planned = []

    def _pair(self, values: Any, dtype: torch.dtype = torch.int32) -> Any:
        """An array of the batch, on the host and on the device."""
        host = torch.as_tensor(values, dtype=dtype)
        return host if self.device.type == "cpu" else (host, host.to(self.device))

    def _slots(self, pages: Many[int], start: int, end: int) -> List[int]:
        size = self.page_size
        return [pages[i // size] * size + i % size for i in range(start, end)]

    def _batch(self, work: Many[Tuple[Sequence, int]], forms: int, prefixes: Many[int],
               keys: Optional[Dict[str, Any]] = None, **members: Any) -> Batch:
        """`keys`: arrays of the KV group of a call that brings other keys than the step's own."""
        counts = [count for _, count in work]
        lens = [prefix + count for prefix, count in zip(prefixes, counts)]
        groups, more = self._key_groups(work, counts, lens, forms, keys)
        return Batch("decode" if all(count == 1 for count in counts) else "extend",
                     seq_lens=self._pair(lens), prefix_lens=self._pair(prefixes),
                     q_indptr=self._pair(_indptr(counts)), num_tokens=sum(counts),
                     max_q_len=max(counts), kv_groups=groups,
                     max_kv_len=max(lens + [s.source_length for s, _ in work]),
                     state_groups=self._state_groups(work, prefixes), **more, **members)

    def _state_groups(self, work: Many[Tuple[Sequence, int]],
                      prefixes: Many[int]) -> List[_abi.attn_state_batch]:
        if not self.has_states:
            return []
        return [state_group(self._pair([s.state for s, _ in work]),
                            has_initial=self._pair([int(prefix > 0) for prefix in prefixes]))]

    def _key_groups(self, work: Many[Tuple[Sequence, int]], counts: List[int], lens: List[int],
                    forms: int, keys: Optional[Dict[str, Any]]) -> Tuple[List[KVGroup], Dict[str, Any]]:
        """Where keys lie and go to, and members of the batch for it. KV group 0 is that of all self
        attention, 1 that of cross attention."""
        kinds = 1 + max(p.group.contents.kv_group for _, p in self.layers.values())
        if not kinds:
            return [], {}
        members: Dict[str, Any] = {}
        if forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            members["req_pool_indices"] = self._pair(range(1, len(work) + 1))
        if keys is None:
            keys = self._new_keys([(s.pages, end - count, end)
                                   for (s, _), count, end in zip(work, counts, lens)])
        own = KVGroup(self.page_size, **keys, **self._index([s.pages for s, _ in work], lens, forms))
        return [own] if kinds == 1 else [own, self._source_group(work, forms)], members

    def _source_group(self, work: Many[Tuple[Sequence, int]], forms: int) -> KVGroup:
        sources = [s for s, _ in work]
        lens = [s.source_length for s in sources]
        keys = self._new_keys([(s.source_pages, 0, s.source_new) for s in sources])
        return KVGroup(self.page_size, kv_lens=self._pair(lens), **keys,
                       kv_new_indptr=self._pair(_indptr(s.source_new for s in sources)),
                       **self._index([s.source_pages for s in sources], lens, forms))

    def _new_keys(self, parts: Many[Tuple[List[int], int, int]]) -> Dict[str, Any]:
        slots = [slot for pages, start, end in parts for slot in self._slots(pages, start, end)]
        return {"out_cache_loc": self._pair(slots or [0], torch.int64)}

    def _index(self, tables: Many[List[int]], lens: Many[int], forms: int) -> Dict[str, Any]:
        """Where the keys lie, in the forms that the backend reads."""
        used = [pages[:self.pages_of(length)] for pages, length in zip(tables, lens)]
        arrays: Dict[str, Any] = {}
        if forms & _abi.ATTN_INDEX_BLOCK_TABLE:
            widest = max(1, *map(len, used))
            arrays["block_table"] = self._pair([p + [0] * (widest - len(p)) for p in used])
        if forms & _abi.ATTN_INDEX_CSR:
            arrays["kv_indptr"] = self._pair(_indptr(map(len, used)))
            arrays["kv_indices"] = self._pair([page for pages in used for page in pages] or [0])
            arrays["last_page_len"] = self._pair([(n - 1) % self.page_size + 1 if n else 0 for n in lens])
        if forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            longest = max(1, *lens)
            rows = [[0] * longest] + [self._slots(pages, 0, n) + [0] * (longest - n)
                                      for pages, n in zip(tables, lens)]
            arrays["req_to_token"] = self._pair(rows)
        return arrays

    def output(self, layer: int, rows: int, width: int) -> torch.Tensor:
        """Room for what a forward of this layer writes."""
        problem = self.layers[layer][1]
        return torch.empty((rows, problem.group.contents.num_q_heads, width), device=self.device,
                           dtype=DTYPES[_words.DTYPE_NAMES[problem.out_dtype]])

    def forward(self, layer: int, **operands: Any) -> None:
        """A layer of the planned step. q, k, v, out are [rows, heads, dim]; k and v None where another
        layer owns the keys. Those of recurrent layers are in attn_batch.h."""
        self.layers[layer][0].forward(layer, **operands)

    # ---- Latent layers in the expanded form --------------------------------------------------------

    def expands(self, layer: int) -> bool:
        """Is this layer of the planned step called with keys and values of each head?"""
        return layer in self.expanded and any(count > 1 for _, count in self._planned)

    def forward_expanded(self, layer: int, q: torch.Tensor, c_kv: torch.Tensor, k_pe: torch.Tensor,
                         expand: Callable[..., Tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The new rows see each other in keys and values that `expand` makes of latents; what lies
        before them follows, a chunk of every sequence at a time, merged by LSE. The result is fp32."""
        def partial(metadata: Any, latents: Any, **more: Any) -> Tuple[torch.Tensor, torch.Tensor]:
            k, v = expand(*latents)
            out = self.output(layer, q.shape[0], v.shape[2])
            lse = q.new_empty(q.shape[:2], dtype=torch.float32)
            metadata.forward(layer, q=q, k=k, v=v, out=out, lse=lse, **more)
            return out, lse

        backend, prefixes = self.expanded[layer]
        known = self.caches[layer]["latent_cache"].flatten(0, 1)
        out, lse = partial(self.layers[layer][0], (c_kv, k_pe), c_kv=c_kv, k_pe=k_pe)
        for slots, batch in self._prefix_chunks(backend.index_forms):
            prefixes.plan(batch)
            rows = known[slots].to(q.dtype).split((c_kv.shape[1], k_pe.shape[1]), 1)
            more, more_lse = partial(prefixes, rows, save_kv=False)
            sums = torch.empty_like(out), torch.empty_like(lse)
            backend.merge([out, more], [lse, more_lse], *sums)
            out, lse = sums
        return out

    def _prefix_chunks(self, forms: int) -> Iterator[Tuple[torch.Tensor, Batch]]:
        """Slots of some keys of each sequence from before the planned step, and the step's batch with
        these keys alone."""
        work = self._planned
        size = max(1, self.max_tokens // max(1, len(work)))
        prefixes = [s.length - count for s, count in work]
        for first in range(0, max(prefixes, default=0), size):
            ends = [min(prefix, first + size) for prefix in prefixes]
            counts = [max(0, end - first) for end in ends]
            slots = [slot for (s, _), end in zip(work, ends) for slot in self._slots(s.pages, first, end)]
            lens = [end if count else 0 for end, count in zip(ends, counts)]
            keys = {"kv_lens": self._pair(lens), "kv_new_indptr": self._pair(_indptr(counts))}
            yield (torch.tensor(slots, device=self.device),
                   self._batch(work, forms, prefixes, keys, mask=_abi.attn_mask(kind=_abi.ATTN_MASK_NONE)))

    @property
    def rows(self) -> Dict[str, int]:
        """Query rows that each backend has computed, summed over layers."""
        counts: Dict[str, int] = {}
        for backend, _ in self._units:
            for node in backend.nodes:
                counts[node.name] = counts.get(node.name, 0) + node.rows
        return {name: count for name, count in counts.items() if count}
