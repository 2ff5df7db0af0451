#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of the softmax family and of number formats, by PyTorch in float64.

Run from anywhere: python3 generate.py. Writes attention.txt, merge.txt and dtypes.txt next to itself.
Each mask is built as an explicit matrix from the words of docs/ABI.md (group MEAN), one key and one
query at a time; nothing is taken from the project's C code. Where torch's own
scaled_dot_product_attention can express a case, it must agree, or the script fails.

Format: records of fields `key count value...`, from `case NAME` to `end`; numbers as C's strtod reads
them (hexadecimal floats are exact). Operands q, k, v are integers in units of 1/64, exact in fp32
and fp16.
"""
import os
import struct

import torch
import torch.nn.functional as F

from record import record

HERE = os.path.dirname(os.path.abspath(__file__))
UNIT = 64.0
LAYER, NONE, FULL, QLEN = 0, 1, 2, 3
DECODER, ENCODER_ONLY, CROSS = 0, 1, 2
torch.manual_seed(20240229)
torch.set_num_threads(1)


def number(value):
    value = float(value)
    if value == float("inf"):
        return "inf"
    if value == float("-inf"):
        return "-inf"
    if value != value:
        return "nan"
    if value == 0:
        return "-0" if str(value)[0] == "-" else "0"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 31 else value.hex()


def line(key, values):
    values = torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
    return " ".join([key, str(len(values))] + [number(value) for value in values])


def fp32(value):
    """The fp32 neighbour of a Python float, since the ABI carries these as fp32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def integers(*shape, peak=100):
    return torch.randint(-peak, peak + 1, shape).double()


# ---- Attention -----------------------------------------------------------------------------------


class Case:
    def __init__(self, name, tokens, kv_len, heads=2, kv_heads=2, dim=8, v_dim=8, **options):
        self.name = name
        self.tokens, self.kv_len, self.heads, self.kv_heads = tokens, kv_len, heads, kv_heads
        self.dim, self.v_dim = dim, v_dim
        self.type = options.pop("type", DECODER)
        self.prefix_len = options.pop("prefix_len", kv_len - tokens)
        self.sm_scale = fp32(options.pop("sm_scale", dim**-0.5))
        self.cap = options.pop("cap", 0)
        self.left = options.pop("left", -1)
        self.right = options.pop("right", 0)
        self.chunk = options.pop("chunk", 0)
        self.mask_kind = options.pop("mask_kind", LAYER)
        self.sinks = options.pop("sinks", None)
        self.omit_sink = options.pop("omit_sink", 0)
        self.slopes = options.pop("slopes", None)
        self.custom = options.pop("custom", None)  # [tokens, columns] of 0, 1
        self.positions = options.pop("positions", None)  # of the new tokens
        self.items = options.pop("items", None)  # (prefix length, token_pos from the delimiter on)
        self.kv_dtype = options.pop("kv_dtype", None)
        self.k_scale = options.pop("k_scale", None)
        self.v_scale = options.pop("v_scale", None)
        self.q = options.pop("q", integers(tokens, heads, dim))
        self.k = options.pop("k", integers(kv_len, kv_heads, dim))
        self.v = options.pop("v", integers(kv_len, kv_heads, v_dim))
        assert not options, options

    def query_position(self, t):
        return self.positions[t] if self.positions else self.prefix_len + t

    def key_position(self, j):
        if self.positions and j >= self.prefix_len:
            return self.positions[j - self.prefix_len]
        return j

    def sees(self, t, j):
        i, at = self.query_position(t), self.key_position(j)
        seen = True
        if self.mask_kind == FULL:
            seen = bool(self.custom[t][j])
        elif self.mask_kind == QLEN:
            seen = j < self.prefix_len or bool(self.custom[t][j - self.prefix_len])
        if self.type == CROSS:
            return seen
        if self.mask_kind == LAYER and self.right >= 0:
            seen = seen and at <= i + self.right
        if self.left >= 0:
            seen = seen and i - self.left <= at
        if self.chunk:
            seen = seen and at // self.chunk == i // self.chunk
            if self.mask_kind not in (FULL, QLEN):
                seen = seen and at <= i
        if self.items:
            prefix, token_pos = self.items
            if i < prefix:
                seen = seen and j <= i
            else:
                own = i - token_pos[i - prefix] < j <= i
                seen = seen and (j < prefix or own)
        return seen

    def values_read(self):
        k, v = self.k / UNIT, self.v / UNIT
        if self.kv_dtype is None:
            return k, v, None, None
        k_codes = quantise(k.float(), per_head(self.k_scale, self.kv_heads), self.kv_dtype)
        v_codes = quantise(v.float(), per_head(self.v_scale, self.kv_heads), self.kv_dtype)
        k = k_codes.double() * per_head(self.k_scale, self.kv_heads).double()
        v = v_codes.double() * per_head(self.v_scale, self.kv_heads).double()
        return k, v, k_codes, v_codes

    def solve(self):
        k, v, self.k_codes, self.v_codes = self.values_read()
        seen = torch.tensor([[self.sees(t, j) for j in range(self.kv_len)] for t in range(self.tokens)])
        seen = seen.reshape(self.tokens, self.kv_len)
        group = self.heads // self.kv_heads
        self.out = torch.zeros(self.tokens, self.heads, self.v_dim, dtype=torch.float64)
        self.lse = torch.zeros(self.tokens, self.heads, dtype=torch.float64)
        for h in range(self.heads):
            scores = self.sm_scale * (self.q[:, h] / UNIT) @ k[:, h // group].T
            if self.slopes:
                for t in range(self.tokens):
                    for j in range(self.kv_len):
                        away = abs(self.query_position(t) - self.key_position(j))
                        scores[t, j] -= self.slopes[h] * away
            if self.cap:
                scores = self.cap * torch.tanh(scores / self.cap)
            scores = torch.where(seen, scores, float("-inf"))
            if self.sinks and not self.omit_sink:
                sink = torch.full((self.tokens, 1), self.sinks[h], dtype=torch.float64)
                scores = torch.cat([scores, sink], 1)
            lse = torch.logsumexp(scores, 1)
            weights = torch.exp(scores - lse[:, None])[:, : self.kv_len]
            weights = torch.where(torch.isneginf(lse)[:, None], 0.0, weights)
            self.out[:, h] = weights @ v[:, h // group]
            self.lse[:, h] = lse
        self.witness(seen, k, v)

    def witness(self, seen, k, v):
        """torch's own attention, where it has the words for the case and no row is empty."""
        if self.cap or self.slopes or (self.sinks and not self.omit_sink) or not seen.any(1).all():
            return
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(
            (self.q / UNIT).transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1),
            attn_mask=seen, scale=self.sm_scale).transpose(0, 1)
        torch.testing.assert_close(out, self.out, rtol=1e-12, atol=1e-13)
        square = self.tokens == self.kv_len and self.right == 0 and self.left < 0 and not self.chunk
        if square and self.mask_kind == LAYER and not self.items and self.type == DECODER:
            out = F.scaled_dot_product_attention(
                (self.q / UNIT).transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1),
                is_causal=True, scale=self.sm_scale).transpose(0, 1)
            torch.testing.assert_close(out, self.out, rtol=1e-12, atol=1e-13)

    def mask_bytes(self):
        bits = [bit for row in self.custom for bit in row]
        packed = [0] * ((len(bits) + 7) // 8)
        for n, bit in enumerate(bits):
            packed[n // 8] |= int(bit) << n % 8
        return packed

    def text(self):
        self.solve()
        lines = ["case " + self.name]
        for key in ("type tokens heads kv_heads dim v_dim kv_len prefix_len sm_scale cap left right "
                    "chunk mask_kind omit_sink").split():
            lines.append(line(key, [getattr(self, key)]))
        for key in ("sinks", "slopes", "positions", "k_scale", "v_scale"):
            if getattr(self, key) is not None:
                lines.append(line(key, getattr(self, key)))
        if self.custom is not None:
            lines.append(line("mask", self.mask_bytes()))
        if self.items:
            lines.append(line("items_prefix", [self.items[0]]))
            lines.append(line("token_pos", self.items[1]))
        if self.kv_dtype is not None:
            lines.append(line("e5m2", [int(self.kv_dtype == torch.float8_e5m2)]))
            lines.append(line("k_codes", self.k_codes.view(torch.uint8)))
            lines.append(line("v_codes", self.v_codes.view(torch.uint8)))
        for key in ("q", "k", "v", "out", "lse"):
            lines.append(line(key, getattr(self, key)))
        return record(lines)


def per_head(scale, kv_heads):
    scale = torch.tensor(scale, dtype=torch.float32)
    return scale.expand(kv_heads)[None, :, None]


def random_mask(rows, columns):
    mask = torch.randint(0, 2, (rows, columns))
    mask[:, 0] |= (mask.sum(1) == 0).long()
    return mask.tolist()


def growing(name, step):
    """Scores that grow along the keys, by far more than 100 in all: online softmax at its hardest."""
    sign = torch.tensor([1, -1, 1, 1, -1, -1, 1, -1])
    q = torch.randint(20, 100, (3, 2, 8)).double() * sign
    k = integers(40, 1, 8) + torch.arange(40)[:, None, None] * sign * step
    scores = (q[0, 0] / UNIT) @ (k[:, 0] / UNIT).T
    assert scores.max() - scores.min() > 120
    return Case(name, 3, 40, heads=2, kv_heads=1, q=q, k=k, sm_scale=1.0)


def attention_cases():
    tree = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]
    slopes = [fp32(2 ** -(8 * (h + 1) / 4)) for h in range(4)]
    odd_slopes = [fp32(0.3), fp32(0.7)]
    fill = [[0] * 9 for _ in range(3)]
    fill[1] = [1, 0, 1, 0, 0, 0, 0, 0, 1]
    yield Case("causal_no_prefix", 9, 9)
    yield Case("causal_prefix", 4, 11)
    yield Case("sees_no_key_in_chunk", 2, 6, chunk=3, left=1, mask_kind=FULL,
               custom=[[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    yield Case("one_query", 1, 13)
    yield Case("one_query_no_prefix", 1, 1)
    yield Case("full", 6, 10, right=-1)
    yield Case("gqa", 5, 9, heads=6, kv_heads=2)
    yield Case("mqa", 3, 9, heads=5, kv_heads=1)
    yield Case("v_dim_smaller", 4, 7, dim=12, v_dim=5)
    yield Case("v_dim_larger", 4, 7, dim=3, v_dim=10)
    yield Case("dim_one", 4, 7, dim=1, v_dim=1, sm_scale=1.5)
    yield Case("dim_odd", 3, 6, dim=37, v_dim=19)
    yield Case("window_left_0", 5, 9, left=0)
    yield Case("window_left_3", 7, 12, left=3)
    yield Case("window_left_beyond", 4, 9, left=50)
    yield Case("window_right_2", 6, 9, right=2)
    yield Case("window_right_only_no_left", 6, 9, right=1, left=-1)
    yield Case("window_both", 7, 12, left=2, right=3)
    yield Case("chunk_4", 9, 14, chunk=4)
    yield Case("chunk_1", 3, 6, chunk=1)
    yield Case("chunk_full_layer", 8, 11, chunk=5, right=-1)
    yield Case("chunk_window", 8, 13, chunk=6, left=2)
    yield Case("cap", 5, 9, cap=1.5, sm_scale=2.0)
    yield Case("cap_30", 5, 9, cap=30.0, sm_scale=4.0)
    yield Case("alibi", 5, 9, heads=4, slopes=slopes)
    yield Case("alibi_full", 5, 9, heads=4, kv_heads=4, slopes=slopes, right=-1)
    yield Case("alibi_then_cap", 5, 9, slopes=odd_slopes, cap=2.0)
    yield Case("sinks", 5, 9, sinks=[0.75, -2.0])
    yield Case("sinks_large", 2, 5, sinks=[50.0, -60.0])
    yield Case("sinks_omitted", 5, 9, sinks=[0.75, -2.0], omit_sink=1)
    yield Case("sinks_cap_alibi_window", 6, 11, sinks=[0.5, 3.0], cap=3.0, slopes=odd_slopes, left=4)
    yield Case("mask_none", 4, 9, mask_kind=NONE)
    yield Case("mask_none_window", 4, 9, mask_kind=NONE, left=3)
    yield Case("mask_full", 5, 11, mask_kind=FULL, custom=random_mask(5, 11))
    yield Case("mask_full_window", 5, 11, mask_kind=FULL, custom=[[1] * 11] * 5, left=3)
    yield Case("mask_full_chunk", 6, 11, mask_kind=FULL, custom=[[1] * 11] * 6, chunk=4)
    yield Case("mask_full_empty_rows", 3, 9, mask_kind=FULL, custom=fill)
    yield Case("mask_full_empty_rows_sinks", 3, 9, mask_kind=FULL, custom=fill, sinks=[1.25, -0.5])
    yield Case("mask_qlen_tree", 5, 12, mask_kind=QLEN, custom=tree)
    yield Case("mask_qlen_no_prefix", 5, 5, mask_kind=QLEN, custom=tree)
    yield Case("positions_qlen", 5, 12, mask_kind=QLEN, custom=tree, positions=[7, 8, 8, 9, 9], left=4)
    yield Case("positions_alibi", 5, 12, mask_kind=QLEN, custom=tree, positions=[7, 8, 8, 9, 9],
               slopes=odd_slopes)
    yield Case("positions_chunk", 5, 12, mask_kind=FULL, custom=random_mask(5, 12),
               positions=[7, 8, 8, 9, 9], chunk=4)
    yield Case("cross", 4, 7, type=CROSS, right=-1, prefix_len=3)
    yield Case("cross_mask_full", 4, 7, type=CROSS, right=-1, prefix_len=3, mask_kind=FULL,
               custom=random_mask(4, 7))
    yield Case("encoder_only", 7, 7, type=ENCODER_ONLY, right=-1)
    yield Case("encoder_only_window", 9, 9, type=ENCODER_ONLY, left=2, right=2)
    yield Case("encoder_only_alibi", 6, 6, type=ENCODER_ONLY, right=-1, slopes=odd_slopes)
    # prefix of 4, then: delimiter, 3 tokens, delimiter, 2 tokens, delimiter
    yield Case("multi_item", 11, 11, items=(4, [0, 1, 2, 3, 0, 1, 2]))
    yield Case("multi_item_cached_prefix", 7, 11, items=(4, [0, 1, 2, 3, 0, 1, 2]))
    yield Case("multi_item_window", 8, 11, items=(4, [0, 1, 2, 3, 0, 1, 2]), left=3)
    yield growing("growing", 36)
    yield growing("shrinking", -36)
    fp8 = {"kv_dtype": torch.float8_e4m3fn, "heads": 4}
    yield Case("fp8_e4m3_per_tensor", 4, 9, k_scale=[fp32(0.013)], v_scale=[fp32(0.7)], **fp8)
    yield Case("fp8_e4m3_per_head", 4, 9, k_scale=[fp32(0.11), 0.5], v_scale=[fp32(0.003), 1.0], **fp8)
    fp8["kv_dtype"] = torch.float8_e5m2
    yield Case("fp8_e5m2_per_tensor", 4, 9, k_scale=[fp32(1e-5)], v_scale=[fp32(0.3)], **fp8)
    yield Case("fp8_e5m2_per_head", 4, 9, k_scale=[fp32(0.9), 2.0], v_scale=[fp32(0.01), 0.25], **fp8)


# ---- Merging -------------------------------------------------------------------------------------


def merge_text(name, split, kv_len, empty=()):
    """Partials over keys [0, split) and the others, and the attention over all keys, which is the
    truth: the merge rule is not used to make it."""
    q, k, v = (torch.randn(n, 6, dtype=torch.float64) for n in (1, kv_len, kv_len))

    def attend(first, last):
        if first == last:
            return torch.zeros(6, dtype=torch.float64), torch.tensor(float("-inf"))
        scores = (3 * q @ k[first:last].T)[0]
        return torch.softmax(scores, 0) @ v[first:last], torch.logsumexp(scores, 0)

    lines = ["case " + name]
    for suffix, (out, lse) in (("1", attend(0, split)), ("2", attend(split, kv_len)),
                               ("", attend(0, kv_len))):
        lines += [line("out" + suffix, out), line("lse" + suffix, lse)]
    return record(lines)


# ---- Number formats ------------------------------------------------------------------------------


def quantise(x, scale, dtype):
    """x / scale in fp32, clamped to the finite range (a cast of torch does not saturate but gives
    NaN or infinity), then torch's cast, which rounds to nearest even. clamp keeps NaN."""
    largest = torch.finfo(dtype).max
    return (x / scale).clamp(-largest, largest).to(dtype)


def codes(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def interesting(dtype):
    """fp32 numbers around each code: itself, midpoints (ties), and their fp32 neighbours."""
    values = codes(dtype).float()
    values = values[values.isfinite()].sort().values.unique()
    middle = (values[1:] + values[:-1]) / 2
    points = torch.cat([values, middle])
    up = torch.nextafter(points, torch.tensor(float("inf")))
    down = torch.nextafter(points, torch.tensor(float("-inf")))
    return torch.cat([points, up, down, extremes()])


def extremes():
    return torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, 447.9, 448.0, 463.9, 464.0, 464.1, 480.0,
                         -480.0, 500.0, -1e9, 57344.0, 61439.0, 61440.0, 65504.0, 65519.0, 65520.0,
                         1e6, 3.4e38, -3.4e38, float("inf"), -float("inf"), float("nan")])


def sixteen_bit_inputs():
    random = torch.randn(600) * 2.0 ** torch.randint(-30, 20, (600,)).float()
    bits = torch.randint(0, 1 << 15, (300,), dtype=torch.int32)
    halves = bits.to(torch.int16).view(torch.float16).float()
    halves = halves[halves.isfinite()]
    ulp = torch.nextafter(halves.half(), torch.tensor(65504.0).half()).float() - halves
    brains = (bits << 16).view(torch.float32)
    ties = (bits << 16 | 0x8000).view(torch.float32)
    return torch.cat([random, halves, halves + ulp / 2, -(halves + ulp / 2), brains, ties, extremes()])


def words(tensor):
    return tensor.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def dtypes_text():
    lines = ["case tables"]
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        lines.append(line(name, codes(dtype).double()))
    inputs = sixteen_bit_inputs()
    lines += ["end", "case sixteen", line("inputs", words(inputs))]
    lines.append(line("f16", inputs.half().view(torch.int16).to(torch.int64) & 0xFFFF))
    lines.append(line("bf16", inputs.bfloat16().view(torch.int16).to(torch.int64) & 0xFFFF))
    lines.append("end")
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        for scale in (1.0, fp32(0.1), fp32(3.7)):
            inputs = interesting(dtype) if scale == 1.0 else torch.cat(
                [torch.randn(400) * 100 * scale, extremes()])
            result = quantise(inputs, torch.tensor(scale), dtype)
            lines += ["case quantise_%s_%g" % (name, scale), line("scale", [scale]),
                      line("inputs", words(inputs)), line("codes", result.view(torch.uint8)), "end"]
    return "\n".join(lines)


def write(name, text):
    with open(os.path.join(HERE, name), "w", encoding="ascii") as file:
        file.write("# Made by generate.py with PyTorch %s; do not edit.\n" % torch.__version__)
        file.write(text + "\n")


write("attention.txt", "\n".join(case.text() for case in attention_cases()))
write("merge.txt", "\n".join(merge_text(*args) for args in (
    ("halves", 8, 16), ("uneven", 1, 30), ("first_empty", 0, 5), ("second_empty", 5, 5),
    ("both_empty", 0, 0))))
write("dtypes.txt", dtypes_text())
