# SPDX-License-Identifier: Apache-2.0
"""Who is measured by gpu_attention.py, on which data, and what the right result is.

A contender has plan(), to be called before calls are enqueued or replayed; call(copy), which
enqueues one layer on a copy of the inputs; and out[copy], what came of it: [sequences, heads,
queries, dim].

What a module of contenders has: Data of a case, compare() of what came of it, Attnhost, RIVALS.
"""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import attnhost_ctypes
from shapes import DTYPES

LONG = 1 << 16  # keys
KV_SCALE = 2.0 ** -6  # of quantised caches: 448 / 64 = 7, beyond what normal numbers reach


def torch_dtype(name):
    return getattr(torch, DTYPES[name][1])


class Data:
    """Copies of the inputs, [sequences, heads, tokens, dim]; k and v as they are stored."""

    def __init__(self, case, copies, device):
        generator = torch.Generator(device.name).manual_seed(1)
        self.case = case
        self.copies = copies
        self.quantised = case.cache_dtype != case.dtype
        self.pages = {}

        def make(heads, tokens):
            return torch.randn((case.batch, heads, tokens, case.head_dim), generator=generator,
                               dtype=torch_dtype(case.dtype), device=device.name)

        self.q = [make(case.q_heads, case.queries) for _ in range(copies)]
        self.k = [self.store(make(case.kv_heads, case.tokens)) for _ in range(copies)]
        self.v = [self.store(make(case.kv_heads, case.tokens)) for _ in range(copies)]

    def store(self, x):
        x[:, :, :self.case.shared] = x[:1, :, :self.case.shared]
        if not self.quantised:
            return x
        dtype = torch_dtype(self.case.cache_dtype)
        limit = torch.finfo(dtype).max
        return (x.float() / KV_SCALE).clamp(-limit, limit).to(dtype)

    def load(self, x):
        """What is stored, as numbers of the queries' type; exact, the scale being a power of 2."""
        return x.to(torch_dtype(self.case.dtype)) * KV_SCALE if self.quantised else x

    def paged(self, bench, cached):
        """(keys, values) of all copies in pages, the first `cached` tokens of each sequence; made
        once for a page size."""
        key = (bench.page_size, cached)
        if key not in self.pages:
            where = attnhost_ctypes.slots(bench, self.q[0].device)
            self.pages[key] = [[attnhost_ctypes.paged(bench, x, where, cached) for x in stored]
                               for stored in (self.k, self.v)]
        return self.pages[key]


# ---- What is right -------------------------------------------------------------------------------


def sample_of(count, most):
    """Indices spread over 0 .. count - 1, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def reference(case, data, copy, seqs, queries):
    """Attention of some sequences' queries in fp64, as plainly as it can be written:
    [sequences, heads, queries, dim]."""
    group = case.q_heads // case.kv_heads
    outputs = []
    for seq in seqs:
        k, v = (data.load(x[copy][seq]).double() for x in (data.k, data.v))
        q = data.q[copy][seq][:, queries].double()
        q = q.reshape(case.kv_heads, group * len(queries), case.head_dim)
        scores = q @ k.transpose(1, 2) * case.head_dim ** -0.5
        if not case.decode:
            last = torch.tensor(queries, device=k.device).repeat(group) + case.tokens - case.queries
            hidden = torch.arange(case.tokens, device=k.device) > last[:, None]
            scores.masked_fill_(hidden, float("-inf"))
        out = torch.softmax(scores, -1) @ v
        outputs.append(out.view(case.q_heads, len(queries), case.head_dim))
    return torch.stack(outputs)


def compare(case, data, contender):
    """(largest relative error of a row, largest absolute error) of sampled rows in the first and
    the last copy; NaN if anything is not finite."""
    seqs, queries = sample_of(case.batch, 8), sample_of(case.queries, 48)
    if case.tokens > LONG:  # fp64 scores of all these would not fit
        seqs, queries = seqs[-1:], queries[::4] + queries[-1:]
    worst_row, worst = 0.0, 0.0
    for copy in sorted({0, data.copies - 1}):
        right = reference(case, data, copy, seqs, queries)
        out = contender.out[copy]
        if not bool(torch.isfinite(out).all()):
            return float("nan"), float("nan")
        error = out[seqs][:, :, queries].double() - right
        worst_row = max(worst_row, (error.norm(dim=-1) / right.norm(dim=-1)).max().item())
        worst = max(worst, error.abs().max().item())
    return worst_row, worst


# ---- Contenders ----------------------------------------------------------------------------------


class Ours:
    """A backend through attnhost.h; `layers` layers, over the copies in turn."""

    def __init__(self, setting, case, data, backend, page_size, layers):
        name, options = attnhost_ctypes.parse_backend(backend)
        self.device = setting.device
        self.bench = self.open(setting, case, page_size, layers, name, options)
        try:
            if self.device.type == attnhost_ctypes.CUDA:
                index = torch.frombuffer(self.bench.index(), dtype=torch.uint8)
                self.index = index.to(self.device.name)
                self.bench.place_index(self.index.data_ptr())
            self.kept, self.out = [], []
            self.bind(setting, case, data, layers)
            self.plan()
        except BaseException:
            self.bench.close()
            raise

    def plan(self):
        self.bench.plan(self.device.stream)

    def call(self, layer):
        self.bench.forward(layer, self.device.stream, self.device.is_capturing())

    def close(self):
        self.device.synchronize()
        self.bench.close()


class Attnhost(Ours):
    """Softmax attention over a paged cache."""

    def open(self, setting, case, page_size, layers, name, options):
        return attnhost_ctypes.Bench(
            setting.shim, case, layers, page_size, name, options, setting.plugin,
            self.device.type, setting.threads, setting.graph, setting.save_kv, KV_SCALE)

    def bind(self, setting, case, data, layers):
        bench, save_kv = self.bench, setting.save_kv
        prefix = case.tokens - case.queries
        caches = data.paged(bench, prefix if save_kv else case.tokens)
        for copy in range(data.copies):
            tensors = [attnhost_ctypes.rows(data.q[copy])]
            if save_kv or case.phase == "prefill":
                tensors += [attnhost_ctypes.rows(data.load(x[copy]), prefix)
                            for x in (data.k, data.v)]
            else:
                tensors += [None, None]  # the cache has them all
            tensors += [torch.full_like(tensors[0], float("nan"))]
            tensors += [caches[0][copy], caches[1][copy]]
            shape = (case.batch, case.queries, case.q_heads, case.head_dim)
            self.kept.append(tensors)
            self.out.append(tensors[3].view(shape).transpose(1, 2))
        for layer in range(layers):
            bench.bind(layer, *(None if t is None else t.data_ptr()
                                for t in self.kept[layer % data.copies]))


class Rival:
    """PyTorch over contiguous keys and values."""

    def __init__(self, case, data):
        self.case = case
        self.data = data
        self.grouped = case.q_heads != case.kv_heads
        self.out = [None] * data.copies

    def plan(self):
        pass

    def inputs(self, copy):
        return self.data.q[copy], self.data.k[copy], self.data.v[copy]

    def close(self):
        pass


class Sdpa(Rival):
    """scaled_dot_product_attention with one of its kernels."""

    def __init__(self, case, data, kernel):
        super().__init__(case, data)
        self.kernel = kernel

        self.mask = None
        if case.phase in ("chunk", "verify"):  # is_causal would begin with the first key
            self.mask = causal_lower_right(case.queries, case.tokens)

    def call(self, copy):
        with sdpa_kernel([self.kernel]):
            self.out[copy] = scaled_dot_product_attention(
                *self.inputs(copy), attn_mask=self.mask, is_causal=self.case.phase == "prefill",
                enable_gqa=self.grouped)


class Flash3(Rival):
    """FlashAttention-3, if its wheel is installed: keys contiguous as it likes them best."""

    def __init__(self, case, data):
        super().__init__(case, data)
        import flash_attn_interface
        self.module = flash_attn_interface
        self.given = [[x.transpose(1, 2).contiguous() for x in self.inputs(copy)]
                      for copy in range(data.copies)]
        self.lens = torch.full((case.batch,), case.tokens, dtype=torch.int32,
                               device=data.q[0].device)

    def call(self, copy):
        q, k, v = self.given[copy]
        if self.case.phase == "prefill":
            out = self.module.flash_attn_func(q, k, v, causal=True)
        else:
            out = self.module.flash_attn_with_kvcache(q, k, v, cache_seqlens=self.lens, causal=True)
        self.out[copy] = (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


class Flex(Rival):
    """flex_attention, compiled for the shape; causal by a block mask."""

    def __init__(self, case, data):
        super().__init__(case, data)
        torch._dynamo.reset()  # so that the number of shapes never ends compilation
        self.attention = torch.compile(flex_attention, dynamic=False)
        self.mask = None
        if not case.decode:
            self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.tokens,
                                          case.tokens, device=data.q[0].device)

    def call(self, copy):
        self.out[copy] = self.attention(*self.inputs(copy), block_mask=self.mask,
                                        enable_gqa=self.grouped)


RIVALS = {
    "cudnn": lambda case, data: Sdpa(case, data, SDPBackend.CUDNN_ATTENTION),
    "flash2": lambda case, data: Sdpa(case, data, SDPBackend.FLASH_ATTENTION),
    "flex": Flex,
    "fa3": Flash3,
}
