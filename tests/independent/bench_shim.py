# SPDX-License-Identifier: Apache-2.0
"""bench/attnhost_ctypes.py and the shims, without PyTorch: backends on arrays of ctypes, compared
with attention and with a recurrence in plain Python. The argument is the build folder."""
import ctypes
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import attnhost_ctypes  # noqa: E402
from shapes import DTYPES, Case  # noqa: E402

BUILD = Path(sys.argv[1])
PAGE, LAYERS = 4, 2
CODES = [(0x38, 1), (0x40, 2), (0x48, 4), (0xB8, -1), (0x50, 8), (0x38, 1)]  # of e4m3
SHIM = attnhost_ctypes.load_shim(BUILD, None)


def random_floats(count):
    return (ctypes.c_float * count)(*(random.gauss(0, 1) for _ in range(count)))


def open_bench(case, **arguments):
    return attnhost_ctypes.Bench(SHIM, case, LAYERS, PAGE,
                                 plugin=attnhost_ctypes.find_plugins(BUILD), threads=2, **arguments)


class Layer:
    """Tensors of one layer; kv is [keys or values][sequence][token]."""

    def __init__(self, case, bench, save_kv):
        width = case.kv_heads * case.head_dim
        pages = bench.pages()
        stride = len(pages) // case.batch
        self.case, self.width = case, width
        self.slots = [[pages[s * stride + t // PAGE] * PAGE + t % PAGE for t in range(case.tokens)]
                      for s in range(case.batch)]
        self.q = random_floats(case.batch * case.queries * case.q_heads * case.head_dim)
        self.out = (ctypes.c_float * len(self.q))(*[math.nan] * len(self.q))
        self.kv = [[[random_floats(width) for _ in range(case.tokens)] for _ in range(case.batch)]
                   for _ in "kv"]
        self.new = [(ctypes.c_float * (case.batch * case.queries * width))() for _ in "kv"]
        self.caches = [(ctypes.c_float * (bench.num_pages * PAGE * width))(
            *[math.nan] * (bench.num_pages * PAGE * width)) for _ in "kv"]
        for which in (0, 1):
            self.caches[which][:PAGE * width] = [0.0] * (PAGE * width)
            self.fill(which, save_kv)

    def fill(self, which, save_kv):
        case, width = self.case, self.width
        first_new = case.tokens - case.queries
        for s in range(case.batch):
            for t, key in enumerate(self.kv[which][s]):
                if t >= first_new:
                    row = (s * case.queries + t - first_new) * width
                    self.new[which][row:row + width] = key
                if t < first_new or not save_kv:
                    slot = self.slots[s][t] * width
                    self.caches[which][slot:slot + width] = key

    def addresses(self, with_new):
        new = [ctypes.addressof(x) if with_new else None for x in self.new]
        return [ctypes.addressof(self.q), *new, ctypes.addressof(self.out),
                *(ctypes.addressof(x) for x in self.caches)]

    def attention(self, s, t, h):
        """One row and head, and the bytes where the backend put it."""
        case, dim = self.case, self.case.head_dim
        at = ((s * case.queries + t) * case.q_heads + h) * dim
        g = h // (case.q_heads // case.kv_heads) * dim
        seen = case.tokens - case.queries + t + 1
        keys, values = ([row[g:g + dim] for row in self.kv[i][s][:seen]] for i in (0, 1))
        q = self.q[at:at + dim]
        scores = [dim ** -0.5 * sum(a * b for a, b in zip(q, key)) for key in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        right = [sum(w * value[i] for w, value in zip(weights, values)) / sum(weights)
                 for i in range(dim)]
        return right, self.out[at:at + dim]

    def check(self, save_kv):
        case = self.case
        for s in range(case.batch):
            for t in range(case.queries):
                for h in range(case.q_heads):
                    for a, b in zip(*self.attention(s, t, h)):
                        assert abs(a - b) < 1e-5, (case, s, t, h, a, b)
            for t in range(case.tokens if save_kv else 0):
                slot = self.slots[s][t] * self.width
                for which in (0, 1):
                    assert self.caches[which][slot:slot + self.width] == self.kv[which][s][t][:]


def check_case(case, save_kv):
    bench = open_bench(case, save_kv=save_kv)
    layers = [Layer(case, bench, save_kv) for _ in range(LAYERS)]
    for number, layer in enumerate(layers):
        bench.bind(number, *layer.addresses(save_kv or case.phase == "prefill"))
    if save_kv:
        bench.steps(2)
    else:
        bench.plan()
        for number in range(LAYERS):
            bench.forward(number)
    for layer in layers:
        layer.check(save_kv)
    bench.close()


def check_quantised():
    """An fp8 cache with equal keys: the output is the mean of the values, scaled."""
    case = Case("decode", "fp32", 1, 2, 1, 8, 6, "fp8_e4m3")
    bench = open_bench(case, save_kv=False, kv_scale=0.5)
    layer = Layer(case, bench, False)
    layer.caches = [(ctypes.c_uint8 * (bench.num_pages * PAGE * layer.width))() for _ in "kv"]
    for t, (code, _) in enumerate(CODES):
        slot = layer.slots[0][t] * layer.width
        layer.caches[1][slot:slot + layer.width] = [code] * layer.width
    for number in range(LAYERS):
        bench.bind(number, *layer.addresses(False))
    bench.steps(1)
    mean = 0.5 * sum(value for _, value in CODES) / len(CODES)
    assert all(abs(x - mean) < 1e-5 for x in layer.out), (mean, layer.out[:])
    bench.close()


def check_refused(text, **arguments):
    try:
        open_bench(Case("decode", "fp32", 1, 2, 2, 8, 5), **arguments)
    except attnhost_ctypes.BenchError as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"{arguments} was accepted")


def check_other_size():
    """A script and a shim that do not agree about the struct."""
    status = ctypes.c_int32()
    setup = attnhost_ctypes.Setup(ctypes.sizeof(attnhost_ctypes.Setup) - 8)
    handle = SHIM.bench_create(ctypes.byref(setup), ctypes.byref(status))
    assert status.value != 0 and b"bench_setup of" in SHIM.bench_message(handle)
    SHIM.bench_destroy(handle)


# ---- The other shims -----------------------------------------------------------------------------

F32, E4M3 = DTYPES["fp32"][0], DTYPES["fp8_e4m3"][0]
OUT, Q_NOPE, Q_PE, LATENT_CACHE, MIXED_QKV, A_LOG, STATE = 3, 9, 10, 13, 14, 18, 23  # ATTN_ROLE_*
LIGHTNING = 3


def plugin(name):
    return str(attnhost_ctypes.find_plugins(BUILD) / f"{name}.so").encode()


def attend(query, keys, scale, width):
    scores = [scale * sum(a * b for a, b in zip(query, key)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [sum(w * key[i] for w, key in zip(weights, keys)) / sum(weights) for i in range(width)]


def assert_close(got, right, what):
    assert all(abs(a - b) < 1e-5 * (1 + abs(b)) for a, b in zip(got, right)), (what, got[:], right)


def check_mla(quantised, new=1):
    """Latents are values that e4m3 has, stored as they are or by their codes and a scale; `new`
    queries of each sequence, which see up to their own."""
    seqs, tokens, heads, lora, rope, unit = 2, 11, 3, 16, 8, 0.125
    row, scale = lora + rope, (lora + rope) ** -0.5
    shim = attnhost_ctypes.load_mla_shim(BUILD)
    bench = attnhost_ctypes.MlaBench(shim, attnhost_ctypes.MlaSetup(
        device_type=attnhost_ctypes.CPU, num_new=new, dtype=F32,
        kv_dtype=E4M3 if quantised else F32, num_seqs=seqs, num_tokens=tokens,
        num_heads=heads, lora=lora, rope=rope, page_size=PAGE, num_layers=LAYERS, num_threads=2,
        sm_scale=scale, kv_scale=unit, plugin=plugin("cpu_native"), backend=b"cpu_native"))
    pages, element = bench.pages(), ctypes.c_uint8 if quantised else ctypes.c_float
    made = []
    for layer in range(LAYERS):
        drawn = [[random.choices(CODES, k=row) for _ in range(tokens)] for _ in range(seqs)]
        cache = (element * (bench.num_pages * PAGE * row))()
        for s in range(seqs):
            for t, key in enumerate(drawn[s]):
                at = (pages[s * bench.pages_of_seq + t // PAGE] * PAGE + t % PAGE) * row
                cache[at:at + row] = [code if quantised else unit * value for code, value in key]
        rows = seqs * new
        nope, pe = random_floats(rows * heads * lora), random_floats(rows * heads * rope)
        out = (ctypes.c_float * len(nope))(*[math.nan] * len(nope))
        for role, tensor, dtype, shape in (
                (Q_NOPE, nope, F32, (rows, heads, lora)), (Q_PE, pe, F32, (rows, heads, rope)),
                (OUT, out, F32, (rows, heads, lora)),
                (LATENT_CACHE, cache, E4M3 if quantised else F32, (bench.num_pages, PAGE, row))):
            bench.bind(layer, role, ctypes.addressof(tensor), dtype, shape)
        made.append((drawn, cache, nope, pe, out))
    bench.steps(1)
    for drawn, _, nope, pe, out in made:
        for i in range(seqs * new * heads):
            s, t = divmod(i // heads, new)
            keys = [[unit * value for _, value in key] for key in drawn[s][:tokens - new + t + 1]]
            query = nope[i * lora:(i + 1) * lora] + pe[i * rope:(i + 1) * rope]
            assert_close(out[i * lora:(i + 1) * lora], attend(query, keys, scale, lora),
                         (quantised, new, i))
    bench.close()


def recur(state, rows, width, heads, decay):
    """Lightning attention on rows of q, k, v; changes state[head][k][v]."""
    outputs = []
    for row in rows:
        q, k, v = ([row[i * heads * width:][h * width:(h + 1) * width] for h in range(heads)]
                   for i in range(3))
        for h in range(heads):
            for i in range(width):
                for j in range(width):
                    state[h][i][j] = math.exp(decay[h]) * state[h][i][j] + k[h][i] * v[h][j]
            outputs.append([sum(q[h][i] * state[h][i][j] for i in range(width))
                            for j in range(width)])
    return outputs


def check_linear(decode, apart=0):
    seqs, tokens, heads, width = 2, 1 if decode else 7, 2, 8
    count, decay = seqs * tokens, [-0.3, -0.05]
    shim = attnhost_ctypes.load_linear_shim(BUILD)
    bench = attnhost_ctypes.Shim(shim, attnhost_ctypes.LinearSetup(
        device_type=attnhost_ctypes.CPU, apart=apart, family=LIGHTNING, dtype=F32, state_dtype=F32,
        decode=decode, num_seqs=seqs,
        num_tokens=tokens, k_heads=heads, v_heads=heads, k_dim=width, v_dim=width,
        num_layers=LAYERS, num_threads=2, sm_scale=1, plugin=plugin("cpu_linear"), backend=b"cpu_linear"))
    rates = (ctypes.c_float * heads)(*decay)
    made = []
    for layer in range(LAYERS):
        mixed = random_floats(count * 3 * heads * width)
        pool = random_floats((2 * seqs + 1) * heads * width * width)
        out = (ctypes.c_float * (count * heads * width))(*[math.nan] * (count * heads * width))
        made.append((mixed, pool, pool[:], out))
        for role, tensor, shape in (
                (MIXED_QKV, mixed, (count, 3 * heads * width)), (A_LOG, rates, (heads,)),
                (OUT, out, (count, heads, width)), (STATE, pool, (2 * seqs + 1, heads, width, width))):
            bench.bind(layer, role, ctypes.addressof(tensor), F32, shape)
    bench.steps(1)
    for mixed, pool, before, out in made:
        for s in range(seqs):
            at = (s + 1) * heads * width * width
            state = [[[before[at + (h * width + i) * width + j] if decode else 0.0
                       for j in range(width)] for i in range(width)] for h in range(heads)]
            rows = [mixed[r * 3 * heads * width:(r + 1) * 3 * heads * width]
                    for r in range(s * tokens, (s + 1) * tokens)]
            right = [x for row in recur(state, rows, width, heads, decay) for x in row]
            first = s * tokens * heads * width
            assert_close(out[first:first + len(right)], right, (decode, s))
            written = at + apart * seqs * heads * width * width
            assert_close(pool[written:written + heads * width * width],
                         [x for h in state for i in h for x in i], "state")
            kept = slice(at, at + heads * width * width)
            assert not apart or pool[kept] == before[kept]
    bench.close()


def check_refused_by_others():
    for shim, setup in ((attnhost_ctypes.load_linear_shim(BUILD), attnhost_ctypes.LinearSetup()),
                        (attnhost_ctypes.load_mla_shim(BUILD), attnhost_ctypes.MlaSetup())):
        status = ctypes.c_int32()
        handle = shim.shim_create(ctypes.byref(setup), ctypes.byref(status))
        assert status.value != 0 and b"_setup of 0 bytes" in shim.shim_message(handle)
        shim.shim_destroy(handle)


random.seed(7)
for save in (True, False):
    check_case(Case("prefill", "fp32", 2, 4, 2, 8, 11), save)
    check_case(Case("decode", "fp32", 3, 6, 2, 8, 21), save)
    check_case(Case("chunk", "fp32", 2, 4, 2, 8, 21, new=6), save)
    check_case(Case("verify", "fp32", 3, 6, 2, 8, 21, new=4), save)
check_quantised()
check_refused("nosuch", backend="nosuch")
check_refused("nokey", options={"nokey": "1"})
check_other_size()
for flag in (0, 1):
    check_mla(flag)
    check_mla(flag, 3)
    check_linear(flag)
    check_linear(flag, 1)
check_refused_by_others()
