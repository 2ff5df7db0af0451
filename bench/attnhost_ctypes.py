# SPDX-License-Identifier: Apache-2.0
"""libattnhost for the scripts here: a backend behind attention_shim.h, on tensors of PyTorch.

Bench alone needs no PyTorch: addresses are numbers. The functions at the end make its tensors.
"""
import ctypes
import os
import shlex
import subprocess
import sys
from pathlib import Path

from shapes import DTYPES

HERE = Path(__file__).resolve().parent
CPU, CUDA = 1, 2  # ATTN_DEVICE_*


class Setup(ctypes.Structure):
    """bench_setup."""

    _fields_ = [("struct_size", ctypes.c_uint32)]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "device_type", "decode", "num_seqs", "num_tokens", "num_q_heads", "num_kv_heads",
        "head_dim", "num_layers", "page_size", "num_threads", "graph", "save_kv")]
    _fields_ += [("dtype", ctypes.c_uint32), ("kv_dtype", ctypes.c_uint32),
                 ("sm_scale", ctypes.c_float), ("kv_scale", ctypes.c_float),
                 ("num_options", ctypes.c_uint32), ("plugin", ctypes.c_char_p),
                 ("backend", ctypes.c_char_p), ("options", ctypes.POINTER(ctypes.c_char_p))]


class Tensors(ctypes.Structure):
    """bench_tensors."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "k_cache", "v_cache")]


class BenchError(Exception):
    """What a backend says."""


# ---- The libraries -------------------------------------------------------------------------------


def pkg_config(*options):
    done = subprocess.run(("pkg-config",) + options, check=True, capture_output=True, text=True)
    return shlex.split(done.stdout)


def compile_library(source, library, flags):
    """With $CC; optimised for the processor that it runs on."""
    command = shlex.split(os.environ.get("CC", "cc"))
    command += ["-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-shared",
                "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command + flags, check=True)
    return ctypes.CDLL(str(library))


def header_flags(build_dir):
    """So that attnhost.h is found."""
    if build_dir:
        return [f"-I{HERE.parent / 'include'}"]
    return pkg_config("--cflags", "attnhost")


def find_shim(build_dir):
    """The built one: of a staged tree beside this file, else of a build tree; None = neither."""
    built = build_dir.resolve() / "bench/.libs/attention_shim.so" if build_dir else None
    if built and not built.exists():
        sys.exit(f"{built}: not built; accepted: a tree in which `make` has run")
    staged = HERE / "attention_shim.so"
    return built or (staged if staged.exists() else None)


def load_shim(build_dir, folder):
    """The built shim, else one compiled into `folder` with the installed attnhost."""
    found = find_shim(build_dir)
    if found:
        shim = ctypes.CDLL(str(found))
    else:
        flags = header_flags(None) + pkg_config("--libs", "attnhost")
        flags.append("-Wl,-rpath," + pkg_config("--variable=libdir", "attnhost")[0])
        shim = compile_library(HERE / "attention_shim.c", Path(folder) / "attention_shim.so", flags)
    handle, pointer, int32 = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("create", handle, [ctypes.POINTER(Setup), ctypes.POINTER(int32)]),
            ("destroy", None, [handle]),
            ("message", ctypes.c_char_p, [handle]),
            ("num_pages", int32, [handle]),
            ("pages", pointer, [handle, ctypes.POINTER(int32)]),
            ("index", pointer, [handle, ctypes.POINTER(ctypes.c_int64)]),
            ("place_index", None, [handle, pointer]),
            ("bind", int32, [handle, int32, ctypes.POINTER(Tensors)]),
            ("plan", int32, [handle, pointer]),
            ("forward", int32, [handle, int32, pointer, int32]),
            ("steps", int32, [handle, int32]),
            ("step_times", int32, [handle, pointer, pointer, pointer,
                                   ctypes.POINTER(ctypes.c_double)])):
        function = getattr(shim, "bench_" + name)
        function.restype, function.argtypes = result, arguments
    return shim


def find_plugins(build_dir):
    """Folder of the plugins that belong to the shim: of a build tree, of a staged tree, or None =
    the installed ones."""
    if build_dir:
        return build_dir.resolve() / "plugins/.libs"
    return HERE.parent / "plugins" if (HERE / "attention_shim.so").exists() else None


def parse_backend(text):
    """NAME[:KEY=VALUE]... as (name, {key: value})."""
    name, *pairs = text.split(":")
    if not name or not all("=" in pair for pair in pairs):
        raise ValueError(f"'{text}': accepted: NAME or NAME:KEY=VALUE:KEY=VALUE")
    return name, dict(pair.split("=", 1) for pair in pairs)


# ---- A backend -----------------------------------------------------------------------------------


class Bench:
    """A backend for a shape, with `layers` layers. Raises BenchError."""

    def __init__(self, shim, case, layers, page_size, backend="cpu_native", options=None,
                 plugin=None, device=CPU, threads=1, graph=False, save_kv=True, kv_scale=1.0):
        self.shim = shim
        self.case = case
        self.page_size = page_size
        self.layers = layers
        texts = [text.encode() for pair in (options or {}).items() for text in pair]
        if plugin and Path(plugin).is_dir():
            plugin = f"{plugin}/"
        setup = Setup(
            struct_size=ctypes.sizeof(Setup), device_type=device, decode=case.decode,
            num_seqs=case.batch, num_tokens=case.tokens, num_q_heads=case.q_heads,
            num_kv_heads=case.kv_heads, head_dim=case.head_dim, num_layers=layers,
            page_size=page_size, num_threads=threads, graph=graph, save_kv=save_kv,
            dtype=DTYPES[case.dtype][0], kv_dtype=DTYPES[case.cache_dtype][0],
            sm_scale=case.head_dim ** -0.5, kv_scale=kv_scale, num_options=len(texts) // 2,
            plugin=str(plugin).encode() if plugin else None, backend=backend.encode(),
            options=(ctypes.c_char_p * (len(texts) or 1))(*texts))
        status = ctypes.c_int32()
        self.handle = shim.bench_create(ctypes.byref(setup), ctypes.byref(status))
        if not self.handle:
            raise MemoryError
        try:
            self.check(status.value)
        except BenchError:
            self.close()
            raise

    def check(self, status):
        if status != 0:
            raise BenchError(self.shim.bench_message(self.handle).decode())

    def close(self):
        if self.handle:
            self.shim.bench_destroy(self.handle)
        self.handle = None

    @property
    def num_pages(self):
        """Of a cache, page 0 included."""
        return self.shim.bench_num_pages(self.handle)

    def pages(self):
        """Pages of all sequences, one after the other, equally many each; lives as long as this."""
        stride = ctypes.c_int32()
        address = self.shim.bench_pages(self.handle, ctypes.byref(stride))
        return (ctypes.c_int32 * (self.case.batch * stride.value)).from_address(address)

    def index(self):
        """The index arrays, as an array of bytes that lives as long as this."""
        size = ctypes.c_int64()
        address = self.shim.bench_index(self.handle, ctypes.byref(size))
        return (ctypes.c_uint8 * size.value).from_address(address)

    def place_index(self, address):
        self.shim.bench_place_index(self.handle, address)

    def bind(self, layer, q, k, v, out, k_cache, v_cache):
        """Addresses; k and v may be None."""
        assert 0 <= layer < self.layers
        tensors = Tensors(q=q, k=k, v=v, out=out, k_cache=k_cache, v_cache=v_cache)
        self.check(self.shim.bench_bind(self.handle, layer, ctypes.byref(tensors)))

    def plan(self, stream=None):
        self.check(self.shim.bench_plan(self.handle, stream))

    def forward(self, layer, stream=None, capturing=False):
        assert 0 <= layer < self.layers
        self.check(self.shim.bench_forward(self.handle, layer, stream, capturing))

    def steps(self, count):
        """On the CPU."""
        self.check(self.shim.bench_steps(self.handle, count))

    def step_times(self, launch, graph, stream):
        """Seconds of the host in planning and in launching; `launch` is cuGraphLaunch."""
        seconds = (ctypes.c_double * 2)()
        self.check(self.shim.bench_step_times(self.handle, launch, graph, stream, seconds))
        return tuple(seconds)


# ---- Tensors of PyTorch --------------------------------------------------------------------------


def rows(x, first=0):
    """[sequences, heads, tokens, dim] from token `first` on, as rows [tokens, heads, dim]."""
    return x[:, :, first:].transpose(1, 2).flatten(0, 1).contiguous()


def slots(bench, device):
    """Slot of each token, [sequences, tokens]."""
    import torch
    pages = torch.frombuffer(bench.pages(), dtype=torch.int32).to(device, torch.int64)
    pages = pages.view(bench.case.batch, -1)
    offsets = torch.arange(bench.page_size, device=device)
    return (pages[:, :, None] * bench.page_size + offsets).flatten(1)[:, :bench.case.tokens]


def paged(bench, x, where, cached):
    """A cache with the first `cached` tokens of x [sequences, heads, tokens, dim] at the slots
    `where`; nothing but zeros elsewhere."""
    import torch
    heads, dim = x.shape[1], x.shape[3]
    bits = x.view(torch.uint8) if x.itemsize == 1 else x  # fp8 has no indexed assignment
    cache = bits.new_zeros(bench.num_pages * bench.page_size, heads, dim)
    for seq in range(x.shape[0]):
        cache[where[seq][:cached]] = bits[seq, :, :cached].transpose(0, 1)
    return cache.view(x.dtype)
