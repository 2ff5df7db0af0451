# SPDX-License-Identifier: Apache-2.0
"""libattnhost for the scripts here: a backend through a shim (shim.h), on tensors of PyTorch.

Shim and Bench need no PyTorch: addresses are numbers. The functions at the end make its tensors.
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
CAPTURING = 1 << 2  # ATTN_FORWARD_CAPTURING
MODES = {"prefill": 0, "chunk": 0, "decode": 1, "verify": 4}  # ATTN_MODE_* by Case.phase


class Setup(ctypes.Structure):
    """bench_setup."""

    _fields_ = [("struct_size", ctypes.c_uint32)]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "device_type", "mode", "num_seqs", "num_tokens", "num_new", "num_shared", "num_q_heads",
        "num_kv_heads", "head_dim", "num_layers", "page_size", "num_threads", "graph",
        "save_kv")]
    _fields_ += [("dtype", ctypes.c_uint32), ("kv_dtype", ctypes.c_uint32),
                 ("sm_scale", ctypes.c_float), ("kv_scale", ctypes.c_float),
                 ("num_options", ctypes.c_uint32), ("plugin", ctypes.c_char_p),
                 ("backend", ctypes.c_char_p), ("options", ctypes.POINTER(ctypes.c_char_p))]


class Tensors(ctypes.Structure):
    """bench_tensors."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "k_cache", "v_cache")]


class LinearSetup(ctypes.Structure):
    """linear_setup of linear_shim.c."""

    _fields_ = [(name, ctypes.c_uint32) for name in (
        "struct_size", "family", "flags", "dtype", "state_dtype")]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "device_type", "graph", "apart", "decode", "num_seqs", "num_tokens", "k_heads", "v_heads", "k_dim", "v_dim", "conv_width",
        "vk", "num_layers", "num_threads")]
    _fields_ += [("sm_scale", ctypes.c_float), ("plugin", ctypes.c_char_p),
                 ("backend", ctypes.c_char_p), ("options", ctypes.POINTER(ctypes.c_char_p)),
                 ("num_options", ctypes.c_uint32)]


class MlaSetup(ctypes.Structure):
    """mla_setup of mla_shim.c."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("struct_size", "dtype", "kv_dtype")]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "packed", "device_type", "graph", "num_seqs", "num_tokens", "num_new", "num_heads", "lora", "rope", "page_size", "num_layers",
        "num_threads")]
    _fields_ += [("sm_scale", ctypes.c_float), ("kv_scale", ctypes.c_float),
                 ("plugin", ctypes.c_char_p), ("backend", ctypes.c_char_p),
                 ("options", ctypes.POINTER(ctypes.c_char_p)), ("num_options", ctypes.c_uint32)]


def words(options):
    """KEY=VALUE texts as pairs of strings."""
    parts = [part.encode() for option in options for part in option.split("=", 1)]
    return (ctypes.c_char_p * max(1, len(parts)))(*parts)


class BenchError(Exception):
    """What a backend says."""


# ---- The libraries -------------------------------------------------------------------------------


def pkg_config(*options):
    done = subprocess.run(("pkg-config",) + options, check=True, capture_output=True, text=True)
    return shlex.split(done.stdout)


def compile_library(sources, library, flags):
    """With $CC; optimised for the processor that it runs on."""
    command = shlex.split(os.environ.get("CC", "cc"))
    command += ["-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-shared",
                "-fPIC", "-o", str(library), *map(str, sources)]
    subprocess.run(command + flags, check=True)
    return ctypes.CDLL(str(library))


def header_flags(build_dir):
    """So that attnhost.h is found."""
    if build_dir:
        return [f"-I{HERE.parent / 'include'}"]
    return pkg_config("--cflags", "attnhost")


def find_shim(build_dir, name="attention_shim"):
    """The built one: of a staged tree next to this file, else of a build tree; None = neither."""
    built = build_dir.resolve() / f"bench/.libs/{name}.so" if build_dir else None
    if built and not built.exists():
        sys.exit(f"{built}: not built; accepted: a tree in which `make` has run")
    staged = HERE / f"{name}.so"
    return built or (staged if staged.exists() else None)


def declare(library, prefix, setup, functions):
    """Declare the functions that Shim calls, and more functions as (name, result, arguments)."""
    handle, int32 = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("create", handle, [ctypes.POINTER(setup), ctypes.POINTER(int32)]),
            ("destroy", None, [handle]),
            ("message", ctypes.c_char_p, [handle]),
            ("steps", int32, [handle, int32]), *functions):
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments


def load_shim(build_dir, folder):
    """The built attention_shim, else one compiled into `folder` with the installed attnhost."""
    found = find_shim(build_dir)
    if found:
        shim = ctypes.CDLL(str(found))
    else:
        flags = header_flags(None) + pkg_config("--libs", "attnhost")
        flags.append("-Wl,-rpath," + pkg_config("--variable=libdir", "attnhost")[0])
        shim = compile_library((HERE / "attention_shim.c", HERE / "shim.c"),
                               Path(folder) / "attention_shim.so", flags)
    handle, pointer, int32 = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
    declare(shim, "bench_", Setup, (
        ("num_pages", int32, [handle]),
        ("pages", pointer, [handle, ctypes.POINTER(int32)]),
        ("index", pointer, [handle, ctypes.POINTER(ctypes.c_int64)]),
        ("place_index", None, [handle, pointer]),
        ("bind", int32, [handle, int32, ctypes.POINTER(Tensors)]),
        ("plan", int32, [handle, pointer]),
        ("forward", int32, [handle, int32, pointer, int32]),
        ("step_times", int32, [handle, pointer, pointer, pointer,
                               ctypes.POINTER(ctypes.c_double)])))
    return shim


def load_plain_shim(build_dir, name, setup):
    """The built linear_shim or mla_shim, whose functions are those of shim.h."""
    shim = ctypes.CDLL(str(find_shim(build_dir, name)))
    handle, pointer, int32, uint32 = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32
    declare(shim, "shim_", setup, (
        ("bind", int32, [handle, int32, uint32, pointer, uint32, uint32,
                         ctypes.POINTER(ctypes.c_int64)]),
        ("index", pointer, [handle, ctypes.POINTER(ctypes.c_int64)]),
        ("place_index", None, [handle, pointer]),
        ("plan", int32, [handle, pointer]),
        ("forward", int32, [handle, int32, uint32, pointer])))
    return shim


def load_linear_shim(build_dir):
    return load_plain_shim(build_dir, "linear_shim", LinearSetup)


def load_mla_shim(build_dir):
    shim = load_plain_shim(build_dir, "mla_shim", MlaSetup)
    shim.shim_pages.restype, shim.shim_pages.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return shim


def find_plugins(build_dir):
    """Folder of the plugins that belong to the shim: of a build tree, of a staged tree, or None =
    the installed ones."""
    if build_dir:
        return build_dir.resolve() / "plugins/.libs"
    return HERE.parent / "plugins" if (HERE / "attention_shim.so").exists() else None


def plugin_text(plugins, name):
    """The file that a shim opens: the given file, or the file in a folder that has the type's name, if it exists."""
    if plugins and Path(plugins).is_dir():
        file = Path(plugins) / f"{name}.so"
        plugins = file if file.exists() else f"{plugins}/"
    return str(plugins).encode() if plugins else None


def parse_backend(text):
    """NAME[:KEY=VALUE]... as (name, {key: value})."""
    name, *pairs = text.split(":")
    if not name or not all("=" in pair for pair in pairs):
        raise ValueError(f"'{text}': accepted: NAME or NAME:KEY=VALUE:KEY=VALUE")
    return name, dict(pair.split("=", 1) for pair in pairs)


# ---- A backend -----------------------------------------------------------------------------------


class Shim:
    """A backend for the setup of a shim. Raises BenchError."""

    prefix = "shim_"  # of the shim's functions

    def __init__(self, shim, setup):
        self.shim = shim
        setup.struct_size = ctypes.sizeof(setup)
        status = ctypes.c_int32()
        self.handle = self.function("create")(ctypes.byref(setup), ctypes.byref(status))
        if not self.handle:
            raise MemoryError
        try:
            self.check(status.value)
        except BenchError:
            self.close()
            raise

    def function(self, name):
        return getattr(self.shim, self.prefix + name)

    def check(self, status):
        if status != 0:
            raise BenchError(self.function("message")(self.handle).decode())

    def close(self):
        if self.handle:
            self.function("destroy")(self.handle)
        self.handle = None

    def bind(self, layer, role, address, dtype, shape):
        """A tensor, which has to live as long as this; `dtype` is the ABI's code."""
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        self.check(self.function("bind")(self.handle, layer, role, address, dtype, len(shape),
                                         sizes))

    def steps(self, count):
        """On the CPU."""
        self.check(self.function("steps")(self.handle, count))

    def index(self):
        """The index arrays, as an array of bytes that lives as long as this."""
        size = ctypes.c_int64()
        address = self.function("index")(self.handle, ctypes.byref(size))
        return (ctypes.c_uint8 * size.value).from_address(address)

    def place_index(self, address):
        self.function("place_index")(self.handle, address)

    def plan(self, stream=None):
        self.check(self.function("plan")(self.handle, stream))

    def forward(self, layer, stream=None, capturing=False):
        """One layer."""
        self.check(self.function("forward")(self.handle, layer, CAPTURING if capturing else 0, stream))


class MlaBench(Shim):
    """A backend through mla_shim.c."""

    def __init__(self, shim, setup):
        super().__init__(shim, setup)
        self.page_size = setup.page_size
        self.pages_of_seq = -(-setup.num_tokens // setup.page_size)
        self.num_pages = setup.num_seqs * self.pages_of_seq + 1  # page 0 is padding

    def pages(self):
        """As those of Bench."""
        count = self.num_pages - 1
        return (ctypes.c_int32 * count).from_address(self.shim.shim_pages(self.handle))


class Bench(Shim):
    """A backend through attention_shim.h for a shape, with `layers` layers. Raises BenchError."""

    prefix = "bench_"

    def __init__(self, shim, case, layers, page_size, backend="cpu_native", options=None,
                 plugin=None, device=CPU, threads=1, graph=False, save_kv=True, kv_scale=1.0):
        self.case = case
        self.page_size = page_size
        self.layers = layers
        texts = [text.encode() for pair in (options or {}).items() for text in pair]
        setup = Setup(
            device_type=device, mode=MODES[case.phase], num_seqs=case.batch,
            num_tokens=case.tokens, num_new=case.queries,
            num_shared=case.shared, num_q_heads=case.q_heads,
            num_kv_heads=case.kv_heads, head_dim=case.head_dim, num_layers=layers,
            page_size=page_size, num_threads=threads, graph=graph, save_kv=save_kv,
            dtype=DTYPES[case.dtype][0], kv_dtype=DTYPES[case.cache_dtype][0],
            sm_scale=case.head_dim ** -0.5, kv_scale=kv_scale, num_options=len(texts) // 2,
            plugin=plugin_text(plugin, backend), backend=backend.encode(),
            options=(ctypes.c_char_p * (len(texts) or 1))(*texts))
        super().__init__(shim, setup)

    @property
    def num_pages(self):
        """Of a cache, page 0 included."""
        return self.shim.bench_num_pages(self.handle)

    def pages(self):
        """Pages of all sequences, one after the other, equally many each; lives as long as this."""
        stride = ctypes.c_int32()
        address = self.shim.bench_pages(self.handle, ctypes.byref(stride))
        return (ctypes.c_int32 * (self.case.batch * stride.value)).from_address(address)

    def bind(self, layer, q, k, v, out, k_cache, v_cache):
        """Addresses; k and v may be None."""
        assert 0 <= layer < self.layers
        tensors = Tensors(q=q, k=k, v=v, out=out, k_cache=k_cache, v_cache=v_cache)
        self.check(self.shim.bench_bind(self.handle, layer, ctypes.byref(tensors)))

    def forward(self, layer, stream=None, capturing=False):
        assert 0 <= layer < self.layers
        self.check(self.shim.bench_forward(self.handle, layer, stream, capturing))

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
