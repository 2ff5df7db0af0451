# SPDX-License-Identifier: Apache-2.0
"""Checks and times the forward kernels of fa3_like, as cubins, against PyTorch's cuDNN attention.

A cubin NAME.cubin has the kernel NAME. Of codes (e4m3) are those with "codes" in their names; beside
them is codes.cubin, whose fa3_turn_values prepares their values, which is not timed.

    kernel_race.py check NAME.cubin ...   each kernel in a process of its own, against float64 attention
    kernel_race.py time NAME.cubin ...    those that pass a check, interleaved with cuDNN; a table
    kernel_race.py forms NAME.cubin ...   pages and ragged batches beside contiguous, even ones
    kernel_race.py same NAME.cubin ...    launches of the same, 1000 of each shape, compared bit for bit
    kernel_race.py small NAME.cubin       a few small shapes once, for compute-sanitizer
    kernel_race.py trace NAME.cubin ...   cycles between places of the loop, of cubins with -DFA3_TRACE

Kernels are loaded by the driver into PyTorch's context, so nothing but the kernels themselves is at
work. A figure of the table is TFLOP/s by CUDA events of single calls, each queued after a short
waiting kernel (no launch time counts), with pauses (cool), or of calls back to back for a while (kept
up, at the card's power limit), and its ratio to cuDNN in the same run. FLOPs are 4 B H S S D, half of
it for causal.
"""
import argparse
import ctypes
import math
import os
import struct
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

UNBOUNDED = 1 << 29
L2_SECTION = 32 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {code} {text.value}")


# ---- Kernels -------------------------------------------------------------------------------------


class Kernel:
    """A cubin: its kernel, named as the file, and its shape."""

    def __init__(self, path):
        self.name = os.path.basename(path)[: -len(".cubin")]
        with open(path, "rb") as f:
            self.image = f.read()
        module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), self.image)
        self.module = ctypes.c_void_p(module.value)
        self.function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(self.function), module, self.name.encode())
        where, size = ctypes.c_uint64(), ctypes.c_size_t()
        call("cuModuleGetGlobal_v2", ctypes.byref(where), ctypes.byref(size), module, (self.name + "_shape").encode())
        shape = (ctypes.c_int32 * 8)()
        call("cuMemcpyDtoH_v2", shape, where, ctypes.c_size_t(32))
        self.queries, self.keys, self.dim, self.dim_v, self.threads, self.shared, half, self.chunks = shape
        self.codes = "codes" in self.name
        self.out_dtype = torch.float16 if half else torch.bfloat16
        self.dtype = torch.float8_e4m3fn if self.codes else self.out_dtype
        call("cuFuncSetAttribute", self.function, 8, self.shared)  # maximal dynamic shared memory

        self.schedule = self.beside(path, "fa3_schedule_tiles", "fa3_schedule_tiles")
        self.turn = self.beside(path, "codes", "fa3_turn_values") if self.codes else None

    def beside(self, path, file, kernel):
        """A kernel of a cubin in the same folder; None where there is no such file."""
        path = os.path.join(os.path.dirname(path), file + ".cubin")
        if not os.path.exists(path):
            return None
        with open(path, "rb") as f:
            image = f.read()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), image)
        call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return function

    def make_tiles(self, params):
        launch(self.schedule, params, (1, 1, 1), 1024)

    def launch(self, params, blocks):
        launch(self.function, params, (blocks, 1, 1), self.threads, self.shared)


def launch(function, params, grid, threads, shared=0):
    buffer = ctypes.create_string_buffer(params, len(params))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, stream, arguments, None)


def tensor_map(x, order, box_rows):
    """x with its dimensions in `order`: dim, row, head, outer; a box is 128 bytes of box_rows rows."""
    dims = (ctypes.c_uint64 * 4)(*[x.shape[i] for i in order])
    strides = (ctypes.c_uint64 * 3)(*[x.stride(i) * x.element_size() for i in order[1:]])
    box = (ctypes.c_uint32 * 4)(128 // x.element_size(), box_rows, 1, 1)
    ones = (ctypes.c_uint32 * 4)(1, 1, 1, 1)
    out = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(out) + 63) // 64 * 64
    kind = {torch.float8_e4m3fn: 0, torch.float16: 6, torch.bfloat16: 9}[x.dtype]
    call("cuTensorMapEncodeTiled", ctypes.c_void_p(at), kind, 4, ctypes.c_void_p(x.data_ptr()), dims, strides, box, ones, 0, 3, 2, 0)
    return ctypes.string_at(at, 128)


class Call:
    """One launch: q, k, v as [batch, length, heads, dim], or ragged with batch 1; k and v may be pages."""

    def __init__(self, kernel, q, k, v, causal, q_lens=None, k_lens=None, table=None, hnd=False, left=UNBOUNDED, right=None, cap=0.0, sinks=None, ragged_keys=False, blocks=None, chunk=0):
        self.kernel, self.q, self.k, self.v = kernel, q, k, v
        device = q.device
        heads, kv_heads = q.shape[2], k.shape[1] if hnd else k.shape[2]
        self.out = torch.full(q.shape[:3] + (kernel.dim_v,), math.nan, device=device, dtype=kernel.out_dtype)
        ragged = q_lens is not None
        batch = len(q_lens) if ragged else q.shape[0]
        tokens = q.shape[1]
        self.lse = torch.full((heads, tokens) if ragged else (batch, heads, tokens), math.nan, device=device)
        self.counter = torch.zeros(2, dtype=torch.int32, device=device)
        ints = lambda x: torch.tensor(x, dtype=torch.int32, device=device)
        starts = lambda x: ints([0] + list(torch.tensor(x).cumsum(0)))
        self.q_starts = starts(q_lens) if ragged else None
        self.k_starts = starts(k_lens) if ragged_keys else None
        self.k_lens = ints(k_lens) if k_lens is not None and not ragged_keys else None
        self.table, self.sinks = table, sinks
        most = max(q_lens) if ragged else tokens
        q_tiles = -(-most // kernel.queries)
        self.tiles = self.tile_count = None
        if ragged:
            lens = k_lens if k_lens is not None else [k.shape[1]] * batch
            entries = [(b, t) for b in range(batch) for t in range(-(-q_lens[b] // kernel.queries))]
            keys = lambda e: min(lens[e[0]], lens[e[0]] - q_lens[e[0]] + (e[1] + 1) * kernel.queries) if causal else lens[e[0]]
            entries.sort(key=lambda e: -keys(e))
            self.tiles, self.tile_count = ints(entries or [(0, 0)]), ints([len(entries)])
            count = len(entries) * heads
        else:
            count = batch * heads * q_tiles
        if right is None:
            right = 0 if causal else UNBOUNDED
        pointer = lambda x: 0 if x is None else x.data_ptr()
        if ragged and kernel.schedule:  # the same list, made on the device
            self.tiles.fill_(-1)
            self.tile_count.fill_(-1)
            longest = max(k_lens) if k_lens is not None else k.shape[1]
            kernel.make_tiles(struct.pack("=5Q7i", *[pointer(x) for x in (self.q_starts, self.k_starts, self.k_lens, self.tiles, self.tile_count)], batch, longest, kernel.queries, left, right, chunk, len(self.tiles)))
        page = (k.shape[2] if hnd else k.shape[1]) if table is not None else UNBOUNDED
        box_rows = math.gcd(page, kernel.keys) if table is not None else kernel.keys
        pair_bytes = (kernel.dim + kernel.dim_v) * q.element_size() * (k.shape[1] if table is None else most)
        group = heads // kv_heads
        section = max(1, L2_SECTION // pair_bytes) * group
        kv_order = (3, 2, 1, 0) if hnd else (3, 1, 2, 0)
        scale, log2e = 1.0 / math.sqrt(kernel.dim), 1.4426950408889634
        self.params = b"".join(
            [
                tensor_map(q, (3, 1, 2, 0), 64),
                tensor_map(k, kv_order, box_rows),
                tensor_map(v, kv_order, box_rows),
                tensor_map(self.out, (3, 1, 2, 0), 64),
                struct.pack(
                    "=10Q7q",
                    *[pointer(x) for x in (self.out, self.lse, self.q_starts, self.k_starts, self.k_lens, table, self.tiles, self.tile_count, self.counter, sinks)],
                    self.out.stride(1), self.out.stride(2), self.out.stride(0),
                    1, self.lse.stride(-2), 0 if ragged else self.lse.stride(0), 0 if table is None else table.stride(0),
                ),
                struct.pack(
                    "=11i2fi",
                    batch, heads, group, most, k.shape[1], page, box_rows, q_tiles, section, left, right,
                    cap * log2e if cap else scale * log2e, scale / cap if cap else 0.0, chunk,
                ),
            ]
        )  # fmt: skip
        if kernel.codes:
            self.params += self.turn_values(max(k_lens) if k_lens is not None else k.shape[1], page, hnd)
        self.blocks = blocks or max(1, min(count, torch.cuda.get_device_properties(device).multi_processor_count))

    def turn_values(self, longest, page, hnd):
        """Values as the kernel of codes wants them, and what its parameters end with."""
        v, pointer = self.v, lambda x: 0 if x is None else x.data_ptr()
        heads, tiles = v.shape[1] if hnd else v.shape[2], -(-longest // 128)
        batch = len(self.q_starts) - 1 if self.q_starts is not None else v.shape[0]
        self.turned = torch.zeros(batch * tiles * heads * 16384, dtype=torch.uint8, device=v.device)
        token, head = (v.stride(2), v.stride(1)) if hnd else (v.stride(1), v.stride(2))
        starts = [pointer(x) for x in (self.turned, None, self.k_starts, self.k_lens, self.table)]
        launch(
            self.kernel.turn,
            struct.pack("=6Q4q4iQ", v.data_ptr(), *starts, token, head, v.stride(0), 0 if self.table is None else self.table.stride(0), tiles, longest, page, 0, 0),
            (tiles, heads, batch), 128,
        )  # fmt: skip
        return struct.pack("=" + 3 * "Qii" + "QQii56x", *[0] * 9, self.turned.data_ptr(), 0, tiles, 0)

    def __call__(self):
        self.kernel.launch(self.params, self.blocks)


# ---- Truth ---------------------------------------------------------------------------------------


def truth(q, k, v, left, right, cap=0.0, sinks=None, chunk=0):
    """One sequence, [length, heads, dim], in float64: output and LSE."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    s = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    if cap:
        s = cap * torch.tanh(s / cap)
    position = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device=q.device)[None, :]
    s = s.masked_fill((key > position + right) | (key < position - left), -math.inf)
    if chunk:
        s = s.masked_fill(key // chunk != position // chunk, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(-1, s.shape[1], 1)], 2)
    lse = torch.logsumexp(s, 2)
    p = torch.exp(s - lse[..., None]).nan_to_num(0.0)[..., : k.shape[1]]
    return (p @ v).transpose(0, 1), lse


class Verdict:
    def __init__(self):
        self.failed = 0

    def of(self, what, out, lse, want, want_lse, dtype):
        """Relative error of all, of the worst row, and of the LSE; NaN never passes. The probabilities of
        codes have 4 bits, and tensor cores keep some 13 bits of a score of codes, here of 100 and more."""
        out = out.double()
        error = ((out - want).norm() / want.norm().clamp(min=1e-30)).item()
        rows = ((out - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-2)).max().item()
        empty = torch.isneginf(want_lse)
        same = bool((torch.isneginf(lse) == empty).all()) and not bool(lse.isnan().any())
        off = (lse.double() - want_lse)[~empty].abs().max().item() if bool((~empty).any()) else 0.0
        bound = {torch.float16: 0.0008, torch.bfloat16: 0.004, torch.float8_e4m3fn: 0.04}[dtype]
        good = error < bound and rows < 4 * bound and off < (3e-2 if dtype == torch.float8_e4m3fn else 2e-3) and same
        self.failed += not good
        if not good or os.environ.get("VERBOSE"):
            print(f"  {'ok  ' if good else 'FAIL'} {what}: error {error:.5f} row {rows:.5f} lse {off:.2e}", flush=True)


def differs(what, run, times):
    """Whether one of `times` launches gives other bits than the first; outputs are poisoned before each."""
    run()
    first, first_lse = run.out.clone(), run.lse.clone()
    for i in range(times):
        run.out.fill_(math.nan)
        run.lse.fill_(math.nan)
        run()
        if not torch.equal(run.out, first) or not torch.equal(run.lse, first_lse):
            print(f"  FAIL {what or run.kernel.name}: launch {i + 1} differs from the first", flush=True)
            return True
    return False


def same(kernel, times):
    """Shapes that take each way through the kernel: masks, windows, pages, many tiles, few."""
    torch.manual_seed(0)
    new = lambda *shape: torch.randn(*shape, device="cuda").to(kernel.dtype)
    operands = lambda B, Sq, Sk, H, Hk: (new(B, Sq, H, kernel.dim), new(B, Sk, Hk, kernel.dim), new(B, Sk, Hk, kernel.dim_v))
    q, k, v = operands(6, 700, 1024, 32, 8)
    lens = [1, 77, 512, 0, 130, 300]
    pages = {}
    for page in (16, 64):
        torch.manual_seed(page)
        pk, table = paged(k, page)
        torch.manual_seed(page)
        pages[page] = pk, paged(v, page)[0], table
    ragged_q = new(1, sum(lens), 32, kernel.dim)
    shapes = {
        "causal 4096": Call(kernel, *operands(1, 4096, 4096, 16, 4), True),
        "full 1000": Call(kernel, *operands(3, 1000, 1000, 16, 4), False),
        "prefix, window, cap": Call(kernel, q, k, v, True, left=300, cap=5.0),
        "sinks": Call(kernel, q, k, v, True, sinks=torch.randn(32, device="cuda")),
        "pages of 16": Call(kernel, ragged_q, *pages[16][:2], True, q_lens=lens, k_lens=[300, 77, 700, 5, 131, 1024], table=pages[16][2]),
        "chunks": Call(kernel, q, k, v, True, chunk=200 if kernel.chunks else 0),
        "pages of 64, window": Call(kernel, ragged_q, *pages[64][:2], True, q_lens=lens, k_lens=[300, 77, 700, 5, 131, 1024], table=pages[64][2], left=100),
    }
    failed = sum(differs(f"{kernel.name} {what}", run, times) for what, run in shapes.items())
    print(f"{kernel.name}: {len(shapes)} shapes, {times} launches each, {failed} differ", flush=True)
    return failed


def check(kernel, quick=False):
    torch.manual_seed(int(time.time()))
    verdict = Verdict()
    D, Dv = kernel.dim, kernel.dim_v
    new = lambda *shape: torch.randn(*shape, device="cuda").to(kernel.dtype)

    def even(what, B, Sq, Sk, H, Hk, causal, grow=False, **more):
        q, k, v = new(B, Sq, H, D), new(B, Sk, Hk, D), new(B, Sk, Hk, Dv)
        if grow:  # the maximum grows from the last key to the first
            k = (k.float() * torch.linspace(12, 0.1, Sk, device="cuda")[None, :, None, None]).to(k.dtype)
        run = Call(kernel, q, k, v, causal, **more)
        run()
        torch.cuda.synchronize()
        left, right = more.get("left", UNBOUNDED), more.get("right", 0 if causal else UNBOUNDED)
        for b in range(B):
            want, want_lse = truth(q[b], k[b], v[b], left, right, more.get("cap", 0.0), more.get("sinks"), more.get("chunk", 0))
            verdict.of(f"{what} [{b}]", run.out[b], run.lse[b], want, want_lse, kernel.dtype)
        if int(run.counter.abs().sum()):
            verdict.failed += 1
            print("  FAIL the counter is not back at zero")

    def ragged(what, q_lens, k_lens, H, Hk, causal, page=0, hnd=False, **more):
        q = new(1, sum(q_lens), H, D)
        ks, vs = [new(n, Hk, D) for n in k_lens], [new(n, Hk, Dv) for n in k_lens]
        if page:
            most = max(-(-n // page) for n in k_lens)
            pages = sum(-(-n // page) for n in k_lens)
            shape = (lambda d: (pages + 3, Hk, page, d)) if hnd else (lambda d: (pages + 3, page, Hk, d))
            k, v = (torch.full(shape(d), math.nan, device="cuda", dtype=kernel.out_dtype).to(kernel.dtype) for d in (D, Dv))
            order = torch.randperm(pages + 3)[:pages].tolist()
            table = torch.full((len(k_lens), most + 2), 1 << 28, dtype=torch.int32)
            for b, n in enumerate(k_lens):
                for i in range(-(-n // page)):
                    table[b, i] = at = order.pop()
                    rows = min(page, n - i * page)
                    for pool, own in ((k, ks[b]), (v, vs[b])):
                        one = pool[at].transpose(0, 1) if hnd else pool[at]
                        one[:rows] = own[i * page : i * page + rows]
            more["table"] = table.cuda()
        else:
            # other sequences' values may be anything
            k, v = torch.cat(ks)[None], torch.cat(vs)[None]
            more["ragged_keys"] = True
        run = Call(kernel, q, k, v, causal, q_lens=q_lens, k_lens=k_lens, hnd=hnd, **more)
        run()
        torch.cuda.synchronize()
        left, right = more.get("left", UNBOUNDED), more.get("right", 0 if causal else UNBOUNDED)
        at = 0
        for b, n in enumerate(q_lens):
            if n:
                want, want_lse = truth(q[0, at : at + n], ks[b], vs[b], left, right, more.get("cap", 0.0), more.get("sinks"), more.get("chunk", 0))
                verdict.of(f"{what} [{b}]", run.out[0, at : at + n], run.lse[:, at : at + n], want, want_lse, kernel.dtype)
            at += n

    even("causal 256", 1, 256, 256, 2, 1, True)
    even("full 256", 1, 256, 256, 2, 1, False)
    if quick:
        ragged("pages of 16", [33, 1], [77, 40], 2, 1, True, page=16)
        return verdict.failed
    for S in (1, 33, 128, 512, 1000, 2049):
        even(f"causal {S}", 2, S, S, 4, 2, True)
        even(f"full {S}", 2, S, S, 4, 2, False)
    even("prefix", 2, 100, 777, 8, 2, True)
    even("more queries than keys", 2, 500, 130, 4, 4, True)
    even("growing maximum", 1, 900, 900, 4, 2, True, grow=True)
    even("growing maximum, full", 1, 900, 900, 4, 2, False, grow=True)
    even("many tiles", 4, 1100, 1100, 32, 8, True)
    even("window", 2, 700, 900, 4, 2, True, left=200)
    even("window both sides", 2, 700, 700, 4, 2, False, left=130, right=65)
    even("cap", 2, 300, 300, 4, 2, True, cap=5.0)
    even("sinks", 2, 300, 300, 4, 2, True, sinks=torch.randn(4, device="cuda"))
    lens_q, lens_k = [1, 77, 512, 0, 130, 300], [300, 77, 700, 5, 131, 1029]
    ragged("ragged causal", lens_q, lens_k, 8, 2, True)
    ragged("ragged full", lens_q, lens_k, 8, 2, False)
    for page in (8, 16, 64, 256):
        for hnd in (False, True):
            ragged(f"pages of {page}{' hnd' if hnd else ''}", lens_q, lens_k, 8, 2, True, page=page, hnd=hnd)
    ragged("pages of 16, window, sinks", lens_q, lens_k, 8, 2, True, page=16, left=100, sinks=torch.randn(8, device="cuda"))
    if kernel.chunks:
        even("chunks", 2, 700, 900, 4, 2, True, chunk=100)
        even("chunks and a window", 1, 900, 900, 4, 2, True, chunk=320, left=150)
        even("chunks, growing maximum", 1, 900, 900, 4, 2, True, chunk=257, grow=True)
        ragged("pages of 16, chunks", lens_q, lens_k, 8, 2, True, page=16, chunk=64)
    verdict.failed += differs("", Call(kernel, new(2, 1500, 8, D), new(2, 1500, 2, D), new(2, 1500, 2, Dv), True), 200)
    return verdict.failed


# ---- Time ----------------------------------------------------------------------------------------

CASES = {  # D: heads, KV heads
    64: (32, 8),
    96: (32, 8),
    128: (32, 8),
    192: (16, 4),
    256: (16, 2),
}


def single(run):
    """Milliseconds of one call, queued after a kernel that waits."""
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2000000)  # about 1 ms
    a.record()
    run()
    b.record()
    b.synchronize()
    return a.elapsed_time(b)


def cool(runs, rounds, pause):
    times = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            times[name].append(single(run))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def kept_up(run, seconds):
    one = single(run)
    count = max(8, int(seconds * 1e3 / one))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for i in range(count):
        run()
        events[i + 1].record()
    events[-1].synchronize()
    times = sorted(events[i].elapsed_time(events[i + 1]) for i in range(count // 2, count))
    return times[len(times) // 2]


def row(title, flops, times, other="cudnn"):
    base = times.get(other)
    cells = "".join(f" {name} {flops / ms / 1e9:.0f}" + (f" ({base / ms:.3f})" if base and name != other else "") + " |" for name, ms in times.items())
    print(f"| {title} |{cells}", flush=True)


def race(kernels, args):
    for dim, dim_v in sorted({(k.dim, k.dim_v) for k in kernels}):
        for causal in (True, False):
            if args.causal and causal != (args.causal == "yes"):
                continue
            for S in args.lengths:
                B = max(1, args.tokens // S)
                H, Hk = CASES[dim]
                mine = [k for k in kernels if (k.dim, k.dim_v) == (dim, dim_v)]
                operands = [torch.randn(B, S, h, d, device="cuda").to(mine[0].out_dtype) for h, d in ((H, dim), (Hk, dim), (Hk, dim_v))]
                # cuDNN's own layout, as the rivals were measured: [batch, head, token, dim]
                own = [x.transpose(1, 2).contiguous() for x in operands]

                def cudnn():
                    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                        return F.scaled_dot_product_attention(*own, is_causal=causal, enable_gqa=True)

                flops = 2 * B * H * S * S * (dim + dim_v) * (0.5 if causal else 1.0)
                runs = {}
                if not args.alone:
                    try:
                        cudnn()
                        runs["cudnn"] = cudnn
                    except RuntimeError as error:
                        print(f"cudnn: {str(error).splitlines()[0]}")
                for kernel in mine:
                    runs[kernel.name] = Call(kernel, *(x.to(kernel.dtype) for x in operands), causal)
                title = f"D {dim}{'' if dim == dim_v else f',{dim_v}'} {H}/{Hk} {'causal' if causal else 'full'} S {S}"
                row(title, flops, cool(runs, args.rounds, args.pause))
                if args.kept:
                    row(title + ", kept up", flops, {name: kept_up(run, args.kept) for name, run in runs.items()})


def paged(k, page):
    """The same keys or values, a batch, in pages of random places; and the table."""
    B, S, heads, dim = k.shape
    each = -(-S // page)
    where = torch.randperm(B * each, device="cuda")
    numbers = k.view(torch.uint8 if k.element_size() == 1 else torch.int16)  # no index_put of e4m3
    pool = torch.empty(B * each, page, heads, dim, device="cuda", dtype=numbers.dtype)
    pool[where] = F.pad(numbers, (0, 0, 0, 0, 0, each * page - S)).view(B * each, page, heads, dim)
    return pool.view(k.dtype), where.view(B, each).to(torch.int32)


def forms(kernels, args):
    """Pages and ragged batches beside the same work contiguous and even."""
    for kernel in kernels:
        H, Hk = CASES[kernel.dim]
        new = lambda *shape: torch.randn(*shape, device="cuda").to(kernel.dtype)
        for S in args.lengths:
            B = max(1, args.tokens // S)
            q, k, v = new(B, S, H, kernel.dim), new(B, S, Hk, kernel.dim), new(B, S, Hk, kernel.dim_v)
            runs = {"contiguous": Call(kernel, q, k, v, True)}
            if args.in_order:
                runs["listed"] = Call(kernel, *(x.view(1, B * S, *x.shape[2:]) for x in (q, k, v)), True, q_lens=[S] * B, k_lens=[S] * B, ragged_keys=True)
                runs |= {f"pages of {page}, in order": Call(kernel, q.view(1, B * S, H, kernel.dim), *(x.view(-1, page, Hk, x.shape[-1]) for x in (k, v)), True, q_lens=[S] * B, k_lens=[S] * B, table=torch.arange(B * S // page, dtype=torch.int32, device="cuda").view(B, -1)) for page in (64, 16)}
            for page in (64, 16):
                torch.manual_seed(1)
                pk, table = paged(k, page)
                torch.manual_seed(1)
                pv, _ = paged(v, page)
                runs[f"pages of {page}"] = Call(kernel, q.view(1, B * S, H, kernel.dim), pk, pv, True, q_lens=[S] * B, k_lens=[S] * B, table=table)
            flops = B * H * S * S * (kernel.dim + kernel.dim_v)
            row(f"{kernel.name} causal S {S}", flops, cool(runs, args.rounds, args.pause), "contiguous")
        if args.lens:
            with open(args.lens) as f:
                lens = [int(x) for x in f.read().split()]
            total = sum(lens)
            flops = sum(H * n * n * (kernel.dim + kernel.dim_v) for n in lens)
            q, k, v = new(1, total, H, kernel.dim), new(1, total, Hk, kernel.dim), new(1, total, Hk, kernel.dim_v)
            ragged = Call(kernel, q, k, v, True, q_lens=lens, k_lens=lens, ragged_keys=True)
            S = round(sum(n * n for n in lens) / total)  # an even batch of about as many tokens and FLOPs
            B = max(1, round(total / S))
            even = Call(kernel, new(B, S, H, kernel.dim), new(B, S, Hk, kernel.dim), new(B, S, Hk, kernel.dim_v), True)
            scale = flops / (B * H * S * S * (kernel.dim + kernel.dim_v))
            times = cool({"even": even, "ragged": ragged}, args.rounds, args.pause)
            times["even"] *= scale
            row(f"{kernel.name} causal, {len(lens)} sequences of {min(lens)} to {max(lens)}; even: {B} of {S}", flops, times, "even")


def trace(path, kv_heads):
    """One tile a block over many keys: for each warpgroup of block 0 the median cycles from place to place."""
    kernel = Kernel(path)
    rounds, places = 48, 8
    heads = torch.cuda.get_device_properties(0).multi_processor_count
    q, k, v = (torch.randn(1, n, h, d, device="cuda").to(kernel.dtype) for n, h, d in ((kernel.queries, heads, kernel.dim), (rounds * kernel.keys, kv_heads, kernel.dim), (rounds * kernel.keys, kv_heads, kernel.dim_v)))
    run = Call(kernel, q, k, v, False)
    run()
    torch.cuda.synchronize()
    where, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuModuleGetGlobal_v2", ctypes.byref(where), ctypes.byref(size), kernel.module, b"fa3_trace")
    marks = (ctypes.c_uint32 * (4 * rounds * places))()
    call("cuMemcpyDtoH_v2", marks, where, ctypes.c_size_t(4 * len(marks)))
    at = lambda group, turn, place: marks[(group * rounds + turn) * places + place]
    middle = lambda x: sorted(x)[len(x) // 2]
    print(f"{kernel.name}: {kernel.queries} x {kernel.keys}")
    for group in range(kernel.queries // 64):
        used = [i for i in range(places) if at(group, 20, i)]
        whole = middle([(at(group, t + 1, 0) - at(group, t, 0)) % 2**32 for t in range(8, 40)])
        steps = [f"{i}->{j}: {middle([(at(group, t, j) - at(group, t, i)) % 2**32 for t in range(8, 40)])}" for i, j in zip(used, used[1:])]
        lag = middle([(at(group, t, 0) - at(0, t, 0) + 2**31) % 2**32 - 2**31 for t in range(8, 40)])
        print(f"  warpgroup {group}: {whole} a tile; lag {lag}; {', '.join(steps)}", flush=True)


def passes(path, seconds):
    """The checks of one kernel in a process of its own, so that one that hangs or faults ends alone."""
    try:
        code = subprocess.run([sys.executable, __file__, "check-one", path], timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        code = "timeout"
    print(f"{os.path.basename(path)}: {'passes' if code == 0 else f'FAILS ({code})'}", flush=True)
    return code == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "check-one", "same", "small", "trace", "time", "forms"))
    parser.add_argument("cubins", nargs="+")
    parser.add_argument("--lengths", type=lambda x: [int(i) for i in x.split(",")], default=[512, 1024, 2048, 8192, 16384])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--causal", choices=("yes", "no"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--kept", type=float, default=0.0, help="seconds of the kept-up figure; 0: none")
    parser.add_argument("--lens", help="forms: a file with the lengths of a ragged batch")
    parser.add_argument("--in-order", action="store_true", help="forms: pages in the order of their keys, and contiguous keys by a list of tiles, too")
    parser.add_argument("--times", type=int, default=1000, help="same: launches of each shape")
    parser.add_argument("--alone", action="store_true", help="without cuDNN")
    parser.add_argument("--kv-heads", type=int, default=33, help="of the trace's 132 heads")
    parser.add_argument("--timeout", type=float, default=60)
    args = parser.parse_args()
    if args.what == "check":
        sys.exit(0 if all([passes(path, args.timeout) for path in args.cubins]) else 1)
    torch.zeros(1, device="cuda")
    if args.what in ("check-one", "small"):
        sys.exit(1 if sum(check(Kernel(path), args.what == "small") for path in args.cubins) else 0)
    if args.what == "same":
        sys.exit(1 if sum(same(Kernel(path), args.times) for path in args.cubins) else 0)
    if args.what == "trace":
        for path in args.cubins:
            trace(path, args.kv_heads)
        return
    if args.what == "forms":
        forms([Kernel(path) for path in args.cubins], args)
        return
    race([Kernel(path) for path in args.cubins], args)


if __name__ == "__main__":
    main()
