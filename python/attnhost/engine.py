# SPDX-License-Identifier: Apache-2.0
"""The engine's side of attention: pages, states, sequences that share prefixes, batches of unequal
lengths.

    engine = Engine(host, groups, dtype=torch.bfloat16)   layer groups of a model
    sequence = engine.add(tokens)                         pages of a known prefix are shared
    engine.plan([(sequence, 5), ...])                     the next 5 tokens of it
    engine.forward(layer, q=q, k=k, v=v, out=out)         for each layer
    engine.free(sequence)

Needs PyTorch and nothing of Transformers. Latent and sparse layers are refused.
"""
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Sequence as Many, Tuple

import torch

from . import _abi, _words
from ._struct import elements
from .batch import Batch, KVGroup, state_group
from .errors import InvalidArgument, OutOfMemory, Unsupported
from .host import Host

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
          "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Sequence:
    """A request: its tokens, the pages of its keys, the slot of its states, and how many tokens have
    been computed."""

    def __init__(self, tokens: Many[int]) -> None:
        self.tokens = list(tokens)
        self.pages: List[int] = []
        self.state = 0  # its slot; 0 = none yet
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
        self.caches: Dict[int, Tuple[torch.Tensor, ...]] = {}  # keys and values, by kv_buffer
        self.states: Dict[int, Dict[str, torch.Tensor]] = {}  # pools of recurrent layers, by layer
        self.layers: Dict[int, Tuple[Any, _abi.attn_layer_group]] = {}
        self._units = [self._open(unit) for unit in self.choice.units]
        self._planned: List[Tuple[Sequence, int]] = []

    @staticmethod
    def _refuse_others(groups: Many[_abi.attn_layer_group]) -> None:
        for group in groups:
            if group.kind not in (_abi.ATTN_KIND_SOFTMAX, _abi.ATTN_KIND_LINEAR):
                raise Unsupported(f"kind {_words.name(group.kind, _words.KINDS)}: accepted softmax, "
                                  "linear", "UNSUPPORTED", "kind")

    # ---- Set-up ------------------------------------------------------------------------------------

    def _open(self, unit: Any) -> Tuple[Any, Any]:
        backend = self.host.compose(unit)
        metadata = backend.metadata()
        for problem in unit.problems:
            group = problem.group.contents
            for layer in elements(group.layers, group.num_layers):
                self._bind(metadata, problem, group, layer)
                self.layers[layer.layer_id] = (metadata, group)
        return backend, metadata

    def _bind(self, metadata: Any, problem: Any, group: Any, layer: Any) -> None:
        if group.kind == _abi.ATTN_KIND_LINEAR:
            self.states[layer.layer_id] = self._state_pools(problem, group.linear.contents)
            metadata.bind(layer.layer_id, **self.states[layer.layer_id])
            return
        if not problem.kv_layout:
            return  # encoder-only: no cache
        if layer.kv_buffer not in self.caches:
            self.caches[layer.kv_buffer] = tuple(
                self._pool(problem.kv_layout.decode(), group.num_kv_heads, width, problem.kv_dtype)
                for width in (group.head_dim, group.v_head_dim))
        k_cache, v_cache = self.caches[layer.kv_buffer]
        metadata.bind(layer.layer_id, k_cache=k_cache, v_cache=v_cache,
                      scales=self._scales() if group.kv_scale_granularity else None)

    def _pool(self, layout: str, heads: int, width: int, dtype: int) -> torch.Tensor:
        pages = len(self.pages.users)
        shape = {"kv.nhd/1": (pages, self.page_size, heads, width),
                 "kv.hnd/1": (pages, heads, self.page_size, width)}[layout]
        return self._zeros(shape, dtype)

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

    def _scales(self) -> Dict[str, List[float]]:
        return {f"{which}_cache": [float(x) for x in
                                   self.host.settings[f"kv_cache.{which}_scale"].split()]
                for which in "kv"}

    def close(self) -> None:
        """Free backends and metadata; the streams must be idle."""
        for backend, metadata in self._units:
            metadata.close()
            backend.close()
        self._units = []

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
        sequence.pages, sequence.length, sequence.state = [], 0, 0

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
        for backend, metadata in self._units:
            metadata.plan(self._batch(work, backend.index_forms))
        for sequence, count in work:
            sequence.length += count
        self._planned = list(work)

    def confirm(self) -> None:
        """All layers of the step have been called: its keys may be shared from now on."""
        for sequence, _ in self._planned:
            self._publish(sequence)
        self._planned = []

    def _pair(self, values: Any, dtype: torch.dtype = torch.int32) -> Any:
        """An array of the batch, on the host and on the device."""
        host = torch.as_tensor(values, dtype=dtype)
        return host if self.device.type == "cpu" else (host, host.to(self.device))

    def _slots(self, sequence: Sequence, start: int, end: int) -> List[int]:
        size, pages = self.page_size, sequence.pages
        return [pages[i // size] * size + i % size for i in range(start, end)]

    def _batch(self, work: Many[Tuple[Sequence, int]], forms: int) -> Batch:
        counts = [count for _, count in work]
        prefixes = [s.length for s, _ in work]
        lens = [prefix + count for prefix, count in zip(prefixes, counts)]
        indptr = [0]
        for count in counts:
            indptr.append(indptr[-1] + count)
        groups, members = self._key_groups(work, counts, lens, forms)
        return Batch("decode" if all(count == 1 for count in counts) else "extend",
                     seq_lens=self._pair(lens), prefix_lens=self._pair(prefixes),
                     q_indptr=self._pair(indptr), num_tokens=indptr[-1], max_q_len=max(counts),
                     max_kv_len=max(lens), kv_groups=groups, state_groups=self._state_groups(work),
                     **members)

    def _state_groups(self, work: Many[Tuple[Sequence, int]]) -> List[_abi.attn_state_batch]:
        if not self.has_states:
            return []
        return [state_group(self._pair([s.state for s, _ in work]),
                            has_initial=self._pair([int(s.length > 0) for s, _ in work]))]

    def _key_groups(self, work: Many[Tuple[Sequence, int]], counts: List[int], lens: List[int],
                    forms: int) -> Tuple[List[KVGroup], Dict[str, Any]]:
        """Where keys lie and go to, the same for all KV groups; and members of the batch for it."""
        kinds = 1 + max(g.kv_group for _, g in self.layers.values())
        if not kinds:
            return [], {}
        slots = [slot for (s, _), count, end in zip(work, counts, lens)
                 for slot in self._slots(s, end - count, end)]
        arrays, members = self._index(work, lens, forms)
        group = KVGroup(self.page_size, out_cache_loc=self._pair(slots, torch.int64), **arrays)
        return [group] * kinds, members

    def _index(self, work: Many[Tuple[Sequence, int]], lens: List[int],
               forms: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Where the keys lie, in the forms that the backend reads."""
        used = [s.pages[:self.pages_of(length)] for (s, _), length in zip(work, lens)]
        arrays: Dict[str, Any] = {}
        members: Dict[str, Any] = {}
        if forms & _abi.ATTN_INDEX_BLOCK_TABLE:
            widest = max(map(len, used))
            arrays["block_table"] = self._pair([p + [0] * (widest - len(p)) for p in used])
        if forms & _abi.ATTN_INDEX_CSR:
            indptr = [0]
            for pages in used:
                indptr.append(indptr[-1] + len(pages))
            arrays["kv_indptr"] = self._pair(indptr)
            arrays["kv_indices"] = self._pair([page for pages in used for page in pages])
            arrays["last_page_len"] = self._pair([(n - 1) % self.page_size + 1 for n in lens])
        if forms & _abi.ATTN_INDEX_REQ_TO_TOKEN:
            longest = max(lens)
            rows = [[0] * longest] + [self._slots(s, 0, n) + [0] * (longest - n)
                                      for (s, _), n in zip(work, lens)]
            arrays["req_to_token"] = self._pair(rows)
            members["req_pool_indices"] = self._pair(range(1, len(work) + 1))
        return arrays, members

    def forward(self, layer: int, **operands: Any) -> None:
        """A layer of the planned step. q, k, v, out are [rows, heads, dim]; k and v None where another
        layer owns the keys. Those of recurrent layers are in attn_batch.h."""
        self.layers[layer][0].forward(layer, **operands)

    @property
    def rows(self) -> Dict[str, int]:
        """Query rows that each backend has computed, summed over layers."""
        counts: Dict[str, int] = {}
        for backend, _ in self._units:
            for node in backend.nodes:
                counts[node.name] = counts.get(node.name, 0) + node.rows
        return {name: count for name, count in counts.items() if count}
