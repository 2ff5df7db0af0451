# SPDX-License-Identifier: Apache-2.0
"""Host, Backend, Metadata and Batch on numpy arrays; bad input; lifetimes."""
import ast
import copy
import ctypes
import gc
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref

import attnhost
import numpy as np
from attnhost import _abi, _call, ini
from attnhost._library import check
from attnhost.errors import AttnhostError, ConfigError, InvalidArgument, Unsupported
from attnhost.stream import Borrowed

from harness import FIXTURES, SOURCE, Skip, cases, refused

PAGE, HEADS, KV_HEADS, DIM = 16, 4, 2, 32
LENS = (5, 9)


def model(name):
    return os.path.join(SOURCE, "tests/models", name + ".json")


def naive(q, k, v):
    """Causal attention of one sequence in fp64; the queries are its last tokens."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = np.einsum("thd,jhd->htj", q, k) / q.shape[-1] ** 0.5
    seen = np.arange(len(k))[None] <= np.arange(len(k) - len(q), len(k))[:, None]
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("htj,jhd->thd", weights / weights.sum(-1, keepdims=True), v)


def int32(values):
    return np.array(values, np.int32)


class Step:
    """Two sequences of one layer, a page each, prefilled as one batch."""

    def __init__(self, dtype=np.float32, threads=0):
        self.host = attnhost.Host(threads=threads)
        group = attnhost.layer_group([0], num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
        problem = attnhost.problem(group, page_size=PAGE, max_seqs=4, max_tokens=64,
                                   max_kv_len=PAGE)
        self.backend = self.host.compose("cpu_native", [problem])
        self.metadata = self.backend.metadata()
        self.k_cache, self.v_cache = (np.zeros((4, PAGE, KV_HEADS, DIM), np.float32)
                                      for _ in range(2))
        self.metadata.bind(0, k_cache=self.k_cache, v_cache=self.v_cache)
        random = np.random.default_rng(7)
        tokens = sum(LENS)
        self.q = random.normal(size=(tokens, HEADS, DIM)).astype(dtype)
        self.k, self.v = (random.normal(size=(tokens, KV_HEADS, DIM)).astype(dtype)
                          for _ in range(2))
        self.out = np.full_like(self.q, np.nan)

    def batch(self, **changes):
        slots = np.concatenate([PAGE * (s + 1) + np.arange(n) for s, n in enumerate(LENS)])
        group = attnhost.KVGroup(PAGE, out_cache_loc=slots.astype(np.int64),
                                 block_table=int32([[1], [2]]))
        given = dict(seq_lens=int32(LENS), prefix_lens=int32([0, 0]),
                     q_indptr=int32([0, LENS[0], sum(LENS)]), num_tokens=sum(LENS),
                     max_q_len=max(LENS), max_kv_len=max(LENS), kv_groups=[group])
        return attnhost.Batch("extend", **{**given, **changes})

    def forward(self, **changes):
        given = dict(q=self.q, k=self.k, v=self.v, out=self.out)
        self.metadata.forward(0, **{**given, **changes})


# ---- What it computes ------------------------------------------------------------------------------


def test_a_batch_of_two_sequences():
    step = Step()
    step.metadata.plan(step.batch())
    step.forward()
    first = slice(0, LENS[0])
    second = slice(LENS[0], sum(LENS))
    for rows in (first, second):
        expected = naive(step.q[rows], step.k[rows], step.v[rows])
        assert np.abs(step.out[rows] - expected).max() < 1e-5
    assert (step.k_cache[2, :LENS[1]] == step.k[second]).all(), "keys are written where asked"


def test_strided_views_are_not_copied():
    step = Step()
    step.metadata.plan(step.batch())
    wide = np.concatenate([step.q, step.k, step.v], axis=1)  # heads of one fused projection
    step.forward(q=wide[:, :HEADS], k=wide[:, HEADS:HEADS + KV_HEADS], v=wide[:, HEADS + KV_HEADS:])
    rows = slice(0, LENS[0])
    assert np.abs(step.out[rows] - naive(step.q[rows], step.k[rows], step.v[rows])).max() < 1e-5


def test_partial_results_are_merged():
    step = Step()
    step.metadata.plan(step.batch())
    lse = np.zeros((sum(LENS), HEADS), np.float32)
    step.forward(lse=lse)
    merged = np.zeros_like(step.out)
    step.backend.merge([step.out, step.out], [lse, lse], merged)
    assert np.abs(merged - step.out).max() < 1e-6


def test_arrays_of_jax():
    try:
        import jax
    except ImportError:
        raise Skip("jax is not installed") from None
    step = Step()
    q, k, v = (jax.numpy.asarray(x) for x in (step.q, step.k, step.v))
    step.metadata.plan(step.batch())
    step.forward(q=q, k=k, v=v)
    rows = slice(0, LENS[0])
    assert np.abs(step.out[rows] - naive(step.q[rows], step.k[rows], step.v[rows])).max() < 1e-5


def test_a_layer_that_is_not_there():
    step = Step()
    refused(InvalidArgument, ["layer 7", "accepted 0"], step.metadata.bind, 7, k_cache=step.k_cache)


def test_what_is_closed_lets_go_of_caches_and_batches():
    class Cache(np.ndarray):
        """Of which there may be weak references."""

    step = Step()
    cache = np.zeros_like(step.k_cache).view(Cache)
    step.metadata.bind(0, k_cache=cache)
    batch = step.batch()
    step.metadata.plan(batch)
    gone = [weakref.ref(cache), weakref.ref(batch)]
    del cache, batch
    gc.collect()
    assert all(one() is not None for one in gone), "they are in use"
    step.metadata.close()
    gc.collect()
    assert all(one() is None for one in gone)


def test_arrays_that_never_change_are_not_written():
    """As JAX's, whose capsules do not say so."""
    step = Step()
    step.metadata.plan(step.batch())

    class Array:
        def __dlpack__(self, **_):
            return step.out.__dlpack__()

    step.forward(out=Array())
    Array.__module__ = "jaxlib._jax"
    refused(InvalidArgument, ["out", "read-only"], step.forward, out=Array())


# ---- Type hints ------------------------------------------------------------------------------------


def parsed(name):
    with open(os.path.join(os.path.dirname(attnhost.__file__), name), encoding="utf-8") as file:
        return ast.parse(file.read())


def test_names_that_come_late_are_known_to_type_checkers():
    """As imported where TYPE_CHECKING is set, from the modules of which __getattr__() takes them."""
    block = next(node for node in parsed("__init__.py").body if isinstance(node, ast.If)
                 and getattr(node.test, "id", "") == "TYPE_CHECKING")
    lazy = {name.name: node.module for node in block.body for name in node.names}
    assert lazy == attnhost._LAZY and set(lazy) <= set(attnhost.__all__) & set(dir(attnhost))


def test_the_extension_has_a_stub():
    assert os.path.exists(os.path.join(os.path.dirname(attnhost.__file__), "py.typed"))
    caller, view = [node for node in parsed("_call.pyi").body if hasattr(node, "name")]
    assert {node.name for node in caller.body} == {
        name for name, value in vars(_call.Caller).items() if callable(value) and name[:2] != "__"}
    assert view.name == "view" and hasattr(_call, "view")


# ---- Questions -------------------------------------------------------------------------------------


def test_query_gives_all_reasons():
    group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=1024)
    verdict = attnhost.Host().query("cpu_native", attnhost.problem(group, dtype="bf16"))
    assert not verdict
    assert [reason.field for reason in verdict.reasons] == ["head_dim", "v_head_dim"]
    assert (verdict.reasons[0].got, verdict.reasons[0].accepted) == ("1024", "1..512")


@cases(("llama",), ("gemma3",), ("gpt_oss",), ("qwen3_next",))
def test_explain(name):
    chosen = attnhost.Host().explain(model(name), name=name, platform__device="cpu")
    assert chosen and chosen.require() is chosen
    assert {phase.chosen for group in chosen.groups for phase in group.phases} <= {
        "cpu_native", "cpu_linear", "hybrid_linear"}
    assert name in str(chosen) and "prefill: cpu_" in str(chosen)
    refusals = [reason for group in chosen.groups for phase in group.phases
                for candidate in phase.candidates for reason in candidate.reasons]
    assert all(reason.code and reason.text for reason in refusals)


def test_explain_of_what_batches_have():
    """What settings do not say: parts of batches and calls, and modes, which go to the backend of prompts."""
    group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=32)
    host = attnhost.Host({"attention": {"attention_backend": "cpu_native"}})
    asked = {"uses": ("lse", "shared_new_kv"), "modes": "target_verify", "platform__device": "cpu"}
    [unit] = host.explain([group], **asked).require().units
    bounds = unit.problems[0].bounds.contents
    assert bounds.uses == attnhost._abi.ATTN_USES_LSE | attnhost._abi.ATTN_USES_SHARED_NEW_KV
    assert bounds.modes & 1 << attnhost._abi.ATTN_MODE_TARGET_VERIFY
    unknown = host.explain([group], uses=1 << 20, platform__device="cpu")
    assert not unknown and "uses" in str(unknown)


def test_explain_of_layer_groups():
    groups = [attnhost.layer_group(layers, num_q_heads=8, num_kv_heads=2, head_dim=64,
                                   window_left=window, kv_group=i)
              for i, (layers, window) in enumerate((((0, 2), 127), ((1, 3), -1)))]
    chosen = attnhost.Host().explain(groups, platform__device="cpu", kv_cache__page_size=16)
    assert [group.layers for group in chosen.groups] == [(0, 2), (1, 3)]
    assert chosen.units[0].problems[0].page_size == 16


def test_what_nobody_serves():
    host = attnhost.Host({"attention": {"attention_backend": "fa3_like"}})
    chosen = host.explain(model("llama"), platform__device="cpu")
    assert not chosen
    error = refused(Unsupported, ["fa3_like", "device"], chosen.require)
    assert error.status == "UNSUPPORTED" and error.reasons


# ---- Configuration ---------------------------------------------------------------------------------


def test_an_ini_is_read():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "serve.ini")
        with open(path, "w", encoding="utf-8") as file:
            file.write("[attention]\nattention_backend = mine ; the one below\n"
                       "[kv_cache]\npage_size = 48\n"
                       "[backend.mine]\ntype = cpu_native\nkv_split_tokens = 256\n")
        host = attnhost.Host(path)
        chosen = host.explain(model("llama"), platform__device="cpu")
    assert chosen.units[0].backend == "mine"
    assert chosen.units[0].problems[0].page_size == 48


def test_an_ini_of_an_editor_that_marks_its_files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "serve.ini")
        with open(path, "wb") as file:
            file.write(b"\xef\xbb\xbf[kv_cache]\npage_size = 48 ; \xe9 of Latin-1\n")
        host = attnhost.Host(path)
    assert host.settings == {"kv_cache.page_size": "48"}


@cases(("plain",), (" spaces ",), ("a ; b",), ('"quoted" \\',), ("a;b",))
def test_values_of_an_ini(value):
    assert ini.read(ini.write({"model": {"name": value}})) == {"model.name": value}
    assert ini.read("[model]\nname = word ; what it is\n") == {"model.name": "word"}


def test_a_pinned_plugin_is_that_file_alone():
    with attnhost.Host() as host:
        file = next(plugin.file for plugin in host.plugins if plugin.name == "cpu_native")
        refused(InvalidArgument, ["already"], lambda: host.pin(file, "0" * 64))
    with attnhost.Host(installed=False) as host:
        refused(InvalidArgument, ["64 hexadecimal digits"], lambda: host.pin(file, "0" * 63))
        host.pin(file, "0" * 64)
        refused(attnhost.ConfigError, ["SHA-256"], lambda: host.load(file))
        assert not host.backends


def test_a_misspelt_key_of_an_ini():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "serve.ini")
        with open(path, "w", encoding="utf-8") as file:
            file.write("[attention]\nattention_backnd = cpu_native\n")
        error = refused(ConfigError, ["serve.ini:2", "attention_backnd", "attention_backend"],
                        attnhost.Host, path)
    assert error.status == "CONFIG_ERROR" and isinstance(error, ValueError)


@cases(({"attention": {"attention_backend": "cpu_nativ"}}, ["cpu_nativ", "cpu_native"]),
       ({"kv_cache": {"page_size": "many"}}, ["page_size", "many"]),
       ({"kv_cach": {"page_size": 16}}, ["kv_cach"]))
def test_wrong_settings(sections, words):
    def ask():
        attnhost.Host(sections).explain(model("llama"), platform__device="cpu").require()
    refused(AttnhostError, words, ask)


def test_a_setting_that_does_not_exist():
    refused(TypeError, ["kv_cache_page"], attnhost.Host().explain, model("llama"), kv_cache_page=1)


def test_options_and_composites():
    host = attnhost.Host()
    host.define("both", "hybrid_phase", prefill="cpu_native", decode="cpu_native")
    group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=32)
    problem = attnhost.problem(group, max_seqs=2, max_tokens=16, max_kv_len=32)
    assert host.query("both", problem)
    with host.compose("both", [problem]) as backend:
        assert [node.type for node in backend.nodes][0] == "hybrid_phase"
        assert {(node.depth, node.type) for node in backend.nodes[1:]} == {(1, "cpu_native")}


# ---- Bad input -------------------------------------------------------------------------------------


class OnDevice:
    """A tensor that says it lies on a GPU."""

    def __init__(self, array, device_type=2):
        self.array, self.device_type = array, device_type

    def __dlpack_device__(self):
        return (self.device_type, 0)

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = get(capsule, b"dltensor")
        ctypes.c_int32.from_address(address + 8).value = self.device_type
        return capsule


def bad_operands():
    step = Step()
    q = step.q
    read_only = np.zeros_like(q)
    read_only.flags.writeable = False
    return [
        ("dtype", dict(q=q.astype(np.float64)), ["q", "f64", "f32"]),
        ("shape", dict(q=q[:, :, :16].copy()), ["q", "16", "32"]),
        ("rows", dict(q=q[:3].copy()), ["q", "3"]),
        ("rank", dict(k=step.k[0]), ["k"]),
        ("stride", dict(q=np.ascontiguousarray(q.transpose(0, 2, 1)).transpose(0, 2, 1)),
         ["q", "stride", "1"]),
        ("negative stride", dict(q=q[::-1]), ["q", "stride"]),
        ("device", dict(q=OnDevice(q)), ["q", "device"]),
        ("no tensor", dict(q=[1, 2, 3]), ["q", "list", "__dlpack__"]),
        ("missing", dict(q=None), ["q"]),
        ("read-only", dict(out=read_only), ["out", "read-only"]),
        ("keyword", dict(qq=q), ["qq"]),
        ("sinks", dict(sinks=np.zeros(HEADS, np.float32)), ["sinks"]),
    ]


@cases(*((i,) for i in range(12)))
def test_bad_operand(index):
    name, changes, words = bad_operands()[index]
    step = Step()
    step.metadata.plan(step.batch())
    error = refused((ValueError, TypeError), words, step.forward, **changes)
    assert name and (not isinstance(error, AttnhostError) or error.status == "INVALID_ARGUMENT")
    step.forward()  # and it still works
    assert np.isfinite(step.out).all()


@cases(("int64 lengths", dict(seq_lens=np.array(LENS)), ["seq_lens", "i64", "i32"]),
       ("strided lengths", dict(seq_lens=int32([5, 0, 9, 0])[::2]), ["seq_lens", "stride"]),
       ("no pages", dict(kv_groups=[]), ["kv_groups"]),
       ("lengths that contradict", dict(prefix_lens=int32([1, 0])), ["seq_lens"]),
       ("too many tokens", dict(num_tokens=65, kv_groups=[attnhost.KVGroup(
           PAGE, out_cache_loc=np.zeros(65, np.int64), block_table=int32([[1], [2]]))]),
        ["num_tokens", "65", "64"]),
       ("few prefixes", dict(prefix_lens=int32([0])), ["prefix_lens: 1", "accepted 2"]),
       ("few borders", dict(q_indptr=int32([0, 5])), ["q_indptr: 2", "accepted 3"]),
       ("a list of prefixes", dict(prefix_lens=[0, 0]), ["prefix_lens", "list"]),
       ("few slots", dict(kv_groups=[attnhost.KVGroup(
           PAGE, out_cache_loc=np.zeros(13, np.int64), block_table=int32([[1], [2]]))]),
        ["out_cache_loc: 13", "accepted 14"]),
       ("few tables", dict(kv_groups=[attnhost.KVGroup(
           PAGE, out_cache_loc=np.zeros(14, np.int64), block_table=int32([[1]]))]),
        ["block_table: 1", "accepted 2"]),
       ("few indices", dict(kv_groups=[attnhost.KVGroup(
           1, out_cache_loc=np.zeros(14, np.int64), kv_indptr=int32([0, 5, 14]),
           kv_indices=np.zeros(13, np.int32))]), ["kv_indices: 13", "accepted 14"]),
       ("few new slots", dict(kv_groups=[attnhost.KVGroup(
           PAGE, out_cache_loc=np.zeros(9, np.int64), kv_new_indptr=int32([0, 5, 10]),
           block_table=int32([[1], [2]]))]), ["out_cache_loc: 9", "accepted 10"]),
       ("few states", dict(state_groups=[attnhost.state_group(int32([1]))]), ["state group: 1", "accepted 2"]))
def test_bad_batch(_name, changes, words):
    step = Step()
    error = refused((AttnhostError, TypeError), words, lambda: step.metadata.plan(step.batch(**changes)))
    assert isinstance(error, TypeError) or error.status == "INVALID_ARGUMENT"
    assert "entries" not in str(error) or error.got in words[0] and error.accepted.endswith("and more")


def test_a_table_has_two_dimensions():
    error = refused(InvalidArgument, ["block_table", "1 dimensions"], attnhost.KVGroup, PAGE,
                    block_table=int32([1, 2]))
    assert (error.field, error.accepted) == ("batch", "2, [sequences, entries]")


def test_a_mode_that_does_not_exist():
    refused(ValueError, ["extent", "extend"], attnhost.Batch, "extent", seq_lens=int32([]),
            kv_groups=[], max_q_len=0, max_kv_len=0, num_tokens=0)


def test_forward_without_a_batch():
    error = refused(AttnhostError, ["forward"], Step().forward)
    assert error.status == "BAD_STATE"


def test_an_unknown_layer():
    step = Step()
    step.metadata.plan(step.batch())
    refused(AttnhostError, ["7"], step.metadata.forward, 7, q=step.q, out=step.out)
    refused(ValueError, [str(2**32)], step.metadata.forward, 2**32, q=step.q, out=step.out)


@cases(("plan",), ("forward",), ("merge",))
def test_a_stream_that_is_none(call):
    step = Step()
    step.metadata.plan(step.batch())
    calls = {"plan": lambda: step.metadata.plan(step.batch(), stream="x"),
             "forward": lambda: step.forward(stream="x"),
             "merge": lambda: step.backend.merge([], [], step.out, stream="x")}
    refused(TypeError, ["stream", "'x'", "integer"], calls[call])


def test_results_are_not_merged_into_read_only_memory():
    step = Step()
    lse = np.zeros((sum(LENS), HEADS), np.float32)
    step.out.flags.writeable = False
    refused(InvalidArgument, ["merge", "out", "read-only"], step.backend.merge, [step.q] * 2, [lse] * 2,
            step.out)
    made = np.zeros_like(step.q)
    fixed = lse.copy()
    fixed.flags.writeable = False
    refused(InvalidArgument, ["merge", "lse", "read-only"], step.backend.merge, [step.q] * 2, [lse] * 2,
            made, fixed)
    assert not made.any() and np.isnan(step.out).all()


@cases((dict(num_q_heads="8"), ["num_q_heads", "'8'"]), (dict(head_dim=32.0), ["head_dim", "32.0"]),
       (dict(head_dim=2**32 + 32), ["head_dim", str(2**32 + 32)]))
def test_members_of_other_types(changes, words):
    given = {**dict(num_q_heads=8, num_kv_heads=2, head_dim=32), **changes}
    refused((TypeError, ValueError), words, lambda: attnhost.layer_group([0], **given))


@cases((0,), (-32,))
def test_heads_that_are_no_heads(head_dim):
    group = attnhost.layer_group([0], num_q_heads=8, num_kv_heads=2, head_dim=head_dim)
    verdict = attnhost.Host().query("cpu_native", attnhost.problem(group))
    assert not verdict and f"head_dim {head_dim}: accepted" in str(verdict)


def test_a_section_that_is_a_word():
    refused(TypeError, ["[attention]", "'cpu_native'", "dict"], attnhost.Host, attention="cpu_native")


def test_a_plugin_that_is_refused_is_told():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "broken.so")
        with open(path, "w", encoding="utf-8") as file:
            file.write("no library")
        with Messages() as log:
            attnhost.Host(plugins={"path": path})
    assert any("broken.so" in line for line in log.lines), log.lines


class Messages(logging.Handler):
    """What the logger attnhost says in a `with` block."""

    def __enter__(self):
        self.lines = []
        logging.getLogger("attnhost").addHandler(self)
        return self

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __exit__(self, *_):
        logging.getLogger("attnhost").removeHandler(self)


def test_a_device_that_is_not_there():
    refused(ValueError, ["gpu"], attnhost.device, "gpu")
    refused(AttnhostError, [], attnhost.device, "vulkan:0")


def test_no_member_by_a_misspelt_name():
    refused(TypeError, ["page_sizes", "page_size"], _abi.attn_problem, page_sizes=1)


# ---- Lifetimes -------------------------------------------------------------------------------------


def test_what_is_closed_says_so():
    step = Step()
    refused(InvalidArgument, ["1 metadata"], step.backend.close)
    refused(InvalidArgument, ["1 backends"], step.host.close)
    step.metadata.close()
    group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=32)
    for call in (step.forward, lambda: step.metadata.bind(0, k_cache=step.k_cache),
                 lambda: step.metadata.plan(step.batch())):
        assert refused(InvalidArgument, ["closed"], call).status == "BAD_STATE"
    step.backend.close()
    lse = np.zeros((sum(LENS), HEADS), np.float32)
    backend, host = step.backend, step.host
    for call in (lambda: backend.nodes, lambda: backend.index_forms, lambda: backend.host_arrays,
                 backend.metadata, lambda: backend.merge([step.q], [lse], step.out)):
        assert refused(InvalidArgument, ["closed"], call).status == "BAD_STATE"
    host.close()
    host.close()
    problem = attnhost.problem(group, max_seqs=2, max_tokens=16, max_kv_len=16)
    for call in (lambda: host.query("cpu_native", problem), lambda: host.backends, lambda: host.plugins,
                 lambda: host.explain([group]), lambda: host.define("a", "cpu_native"),
                 lambda: host.load("x.so"), lambda: host.pin("x.so", "0" * 64),
                 lambda: host.compose("cpu_native", [problem])):
        assert refused(InvalidArgument, ["closed"], call).status == "BAD_STATE"


class Waiting:
    """An array whose reader waits in __dlpack__() until it is let go, or does what the test sets."""

    def __init__(self, array, act=None):
        self.array, self.act = array, act
        self.read, self.let_go = threading.Event(), threading.Event()

    def __dlpack__(self, **options):
        self.read.set()
        if self.act:
            self.act()
        else:
            self.let_go.wait(20)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_metadata_are_for_one_call_at_a_time():
    """What another thread would free or change under a forward is refused, and the forward ends well."""
    step = Step()
    step.metadata.plan(step.batch())
    waiting, failed = Waiting(step.q), []

    def run():
        try:
            step.metadata.forward(0, q=waiting, k=step.k, v=step.v, out=step.out)
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert waiting.read.wait(20)
    for call in (step.metadata.close, step.forward, lambda: step.metadata.plan(step.batch()),
                 lambda: step.metadata.bind(0, k_cache=step.k_cache)):
        assert refused(InvalidArgument, ["in use"], call).status == "BAD_STATE"
    refused(InvalidArgument, ["1 metadata"], step.backend.close)
    waiting.let_go.set()
    thread.join()
    assert not failed
    out = step.out.copy()
    step.out[:] = 0
    step.forward()
    assert np.array_equal(step.out, out)
    step.metadata.close()


def test_an_operand_does_not_close_what_reads_it():
    step = Step()
    step.metadata.plan(step.batch())
    for act in (step.metadata.close, step.forward):
        refused(InvalidArgument, ["in use"], step.metadata.forward, 0, q=Waiting(step.q, act), k=step.k,
                v=step.v, out=step.out)
    step.forward()


def test_handles_are_for_one_thread_at_a_time():
    """A thread reads an ini that comes through a pipe while others ask and close."""
    host = attnhost.Host()
    folder = tempfile.mkdtemp()
    pipe = os.path.join(folder, "serve.ini")
    os.mkfifo(pipe)
    thread = threading.Thread(target=check, args=("attnhost_configure_file", host._host, pipe.encode()))
    thread.start()
    with open(pipe, "w", encoding="utf-8") as file:  # waits for who reads
        for call in (lambda: host.plugins, host.close, lambda: host.define("a", "cpu_native")):
            assert refused(InvalidArgument, ["another thread"], call).status == "BAD_STATE"
        file.write("[backend.mine]\ntype = cpu_native\n")
    thread.join()
    shutil.rmtree(folder)
    group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=32)
    assert host.query("mine", attnhost.problem(group, max_seqs=2, max_tokens=16, max_kv_len=16))
    host.close()


def test_there_is_one_of_each():
    """A copy would free what another still uses."""
    step = Step()
    for thing in (step.host, step.backend, step.metadata):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            refused(TypeError, [type(thing).__name__], copied, thing)


def test_answers_outlive_their_selection():
    host = attnhost.Host()
    settings = dict(platform__device="cpu", workload__max_running_requests=2, kv_cache__page_size=PAGE)
    unit = host.explain(model("llama"), **settings).units[0]
    problem = host.explain(model("llama"), **settings).units[0].problems[0]
    group = host.explain(model("llama"), **settings).groups[0].struct
    gc.collect()
    taken = [attnhost.Host().explain(model("gpt_oss"), **settings) for _ in range(8)]  # what was freed
    kept = host.explain(model("llama"), **settings)
    assert repr(facts(problem)) == repr(facts(kept.units[0].problems[0]))
    assert (group.num_layers, group.head_dim) == (kept.groups[0].struct.num_layers,
                                                  kept.groups[0].struct.head_dim)
    assert group.layers[1].layer_id == 1 and taken
    with host.compose(unit) as backend:
        assert backend.name == "cpu_native"


def facts(problem):
    group, bounds = problem.group.contents, problem.bounds.contents
    return (problem.page_size, problem.kv_layout, group.num_q_heads, group.head_dim, group.layers[0].layer_id,
            bounds.max_seqs, bounds.max_tokens, bounds.max_kv_len, problem.device.contents.type)


def test_a_child_process_does_not_wait_for_threads():
    """Threads of the parent's hosts are not there in a child, which frees these hosts, too."""
    code = ("import os, sys\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from test_binding import Step\n"
            "step = Step(threads=2)\n"
            "step.metadata.plan(step.batch())\n"
            "step.forward()\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    for thing in (step.metadata, step.backend, step.host):\n"
            "        thing.close()\n"
            "    os._exit(7)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n")
    done = subprocess.Popen([sys.executable, "-c", code, os.path.dirname(os.path.abspath(__file__))],
                            stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert done.communicate(timeout=20)[0] == "7\n"
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)
        done.communicate()
        raise


class Array(np.ndarray):
    """An array that can be watched."""


def test_the_cpu_keeps_no_operand_but_the_bound_ones():
    step = Step()
    step.metadata.plan(step.batch())
    q = step.q.view(Array)
    watched = weakref.ref(q)
    step.forward(q=q)
    del q
    gc.collect()
    assert watched() is None
    cache = step.k_cache.copy().view(Array)
    watched = weakref.ref(cache)
    step.metadata.bind(0, k_cache=cache)
    del cache
    gc.collect()
    assert watched() is not None, "a cache is bound"
    step.metadata.bind(0, k_cache=step.k_cache)
    gc.collect()
    assert watched() is None, "another one is"


def test_operands_of_a_device_are_kept():
    step = Step()
    step.metadata.plan(step.batch())
    step.metadata._open(step.metadata._metadata.value, True)  # as if forwards were not done
    q = step.q.view(Array)
    watched = weakref.ref(q)
    step.forward(q=q)
    del q
    gc.collect()
    assert watched() is not None
    step.metadata._take_borrowed()
    gc.collect()
    assert watched() is None


def test_a_cache_that_is_bound_no_more_is_kept_for_the_stream():
    step = Step()
    step.metadata._open(step.metadata._metadata.value, True)  # as if forwards were not done
    cache = step.k_cache.copy().view(Array)
    watched = weakref.ref(cache)
    step.metadata.bind(0, k_cache=cache)
    del cache
    step.metadata.bind(0, k_cache=step.k_cache)
    gc.collect()
    assert watched() is not None
    step.metadata._take_borrowed()
    gc.collect()
    assert watched() is None


class Released(list):
    """In place of a Borrowed: what it is given, and the stream."""

    def release(self, objects, stream):
        self.append(([id(thing) for thing in objects if thing is not None], stream))


def test_operands_of_a_merge_are_kept():
    step, lse = Step(), np.zeros((sum(LENS), HEADS), np.float32)
    step.backend._borrowed = Released()  # as if it were on a GPU
    merged = np.zeros_like(step.q)
    step.backend.merge([step.q, step.q], [lse, lse], merged, stream=5)
    step.backend.merge([step.q, step.q], [lse, lse], merged, keep=False)
    assert step.backend._borrowed == [([id(x) for x in (step.q, step.q, lse, lse, merged)], 5)]


def test_what_a_stream_still_reads_is_kept():
    path = os.path.join(FIXTURES, "libcuda.so.1")
    if not os.path.exists(path):
        raise Skip("the fake driver is not built")
    fake = ctypes.CDLL(os.path.join(FIXTURES, "fake_cuda.so"))
    driver = ctypes.CDLL(path)  # found as libcuda.so.1 from now on
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    fake.fake_cuda_reset()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    fake.fake_cuda_hold(stream, 1)
    borrowed = Borrowed(_abi.ATTN_DEVICE_CUDA)
    tensor = np.zeros(3).view(Array)
    watched = weakref.ref(tensor)
    borrowed.release([tensor], stream.value)
    del tensor
    borrowed.release([], stream.value)
    gc.collect()
    assert watched() is not None and borrowed.count == 1, "the stream has not come there"
    fake.fake_cuda_hold(stream, 0)
    assert driver.cuStreamSynchronize(stream) == 0
    borrowed.release([], stream.value)
    gc.collect()
    assert watched() is None and borrowed.count == 0
