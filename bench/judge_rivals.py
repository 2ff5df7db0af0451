#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judge PyTorch's attention by attnhost's pass rule: every row of what it computes.

For each seed batches of many shapes are drawn: causal and full, 1 to 2000 keys, several head
dimensions and ratios of heads, bf16 and fp16, scores from flat to peaked. Each rival (cuDNN,
FlashAttention-2) computes them by scaled_dot_product_attention with that kernel forced; the judge
(judge_shim.c, which is host/reference) gets q, k, v and each rival's output. A rule that right
arithmetic of the field fails now and then is no rule: the exit code is 1 if any row failed, if a
rival took no batch, or if the rows that were asked for were not reached.

Needs PyTorch and the built judge_shim (of a build tree, or next to this file in a staged tree).
bench/README.md says how to run it and what the table means.
"""
import argparse
import ctypes
import json
import math
import random
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import attnhost_ctypes
from shapes import DTYPES

RIVALS = {"cuda": ("cudnn", "flash2"), "cpu": ("flash2", "math")}
KERNELS = {"cudnn": "CUDNN_ATTENTION", "flash2": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION",
           "math": "MATH"}  # of SDPBackend
HEAD_DIMS = (64, 128, 64, 128, 64, 128, 96, 192, 256)
RATIOS = (1, 4, 8)
SPREADS = ("plain", "plain", "growing", "large", "needles", "needles")
MOST_KEYS, FEW_QUERIES = 2000, 64
MOST_ELEMENTS = 1 << 22  # of the keys of a batch
# What PyTorch says where the kernel that is forced does not take a shape.
REFUSALS = ("no available kernel", "no viable backend", "no valid engine", "no valid execution",
            "cudnn frontend error", "cudnn_status_not_supported")
GIVE_UP = 20  # batches that a rival does not take, if it took none
GROWTH, NEEDLE_SCORE, NEEDLE_VALUE, NEEDLE_KEYS = 130.0, 7.5, 4.0, 24  # as the suite's cases


# ---- The judge -----------------------------------------------------------------------------------


class Batch(ctypes.Structure):
    """judge_batch of judge_shim.h."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint32)]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "num_seqs", "num_q_heads", "num_kv_heads", "num_queries", "num_keys", "head_dim", "causal",
        "num_outputs")]
    _fields_ += [("sm_scale", ctypes.c_float), ("q", ctypes.c_void_p), ("k", ctypes.c_void_p),
                 ("v", ctypes.c_void_p), ("outputs", ctypes.c_void_p * 8)]


class Verdict(ctypes.Structure):
    """judge_verdict of judge_shim.h."""

    _fields_ = [("rows", ctypes.c_int64), ("failed", ctypes.c_int64), ("worst", ctypes.c_double)]
    _fields_ += [(name, ctypes.c_int32) for name in ("seq", "head", "query", "dimension")]
    _fields_ += [("error", ctypes.c_double), ("bar", ctypes.c_double)]


class Judge:
    """judge_shim.c on so many threads."""

    def __init__(self, build_dir, threads):
        found = attnhost_ctypes.find_shim(build_dir, "judge_shim")
        if not found:
            sys.exit("judge_rivals: judge_shim.so is not built: --build-dir names a tree in which "
                     "`make` has run, or run this in a staged tree")
        self.shim = shim = ctypes.CDLL(str(found))
        shim.judge_create.restype, shim.judge_create.argtypes = ctypes.c_void_p, [ctypes.c_uint32]
        shim.judge_rows.argtypes = [ctypes.c_void_p, ctypes.POINTER(Batch), ctypes.POINTER(Verdict)]
        shim.judge_message.restype = ctypes.c_char_p
        shim.judge_message.argtypes = [ctypes.c_void_p]
        shim.judge_false_alarm.restype = ctypes.c_double
        self.false_alarm = shim.judge_false_alarm()
        self.handle = shim.judge_create(threads)
        if not self.handle:
            raise MemoryError

    def rows(self, shape, q, k, v, outputs):
        """A verdict on each output; tensors are dense and lie in host memory."""
        count = len(outputs)
        batch = Batch(
            struct_size=ctypes.sizeof(Batch), dtype=DTYPES[shape.dtype][0], num_seqs=shape.batch,
            num_q_heads=shape.q_heads, num_kv_heads=shape.kv_heads, num_queries=shape.queries,
            num_keys=shape.keys, head_dim=shape.head_dim, causal=shape.causal, num_outputs=count,
            sm_scale=shape.sm_scale, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr())
        for n, out in enumerate(outputs):
            batch.outputs[n] = out.data_ptr()
        verdicts = (Verdict * count)()
        if self.shim.judge_rows(self.handle, ctypes.byref(batch), verdicts) != 0:
            raise RuntimeError(self.shim.judge_message(self.handle).decode())
        return list(verdicts)


# ---- Shapes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A batch; causal ones have as many keys as queries."""

    dtype: str
    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    queries: int
    keys: int
    causal: bool
    spread: str

    @property
    def rows(self):
        return self.batch * self.q_heads * self.queries

    @property
    def sm_scale(self):
        return ctypes.c_float(self.head_dim ** -0.5).value

    def __str__(self):
        return (f"{self.dtype} B{self.batch} H{self.q_heads}/{self.kv_heads} D{self.head_dim} "
                f"Q{self.queries} N{self.keys} {'causal' if self.causal else 'full'} {self.spread}")


def draw_length(rng, most):
    """Evenly spread over the logarithms."""
    return min(most, int((most + 1) ** rng.random()))


def draw_shape(rng, batch_rows):
    """About so many rows; as many sequences as that takes."""
    causal = rng.random() < 0.5
    keys = draw_length(rng, MOST_KEYS)
    queries = keys if causal else draw_length(rng, FEW_QUERIES)
    kv_heads, ratio, head_dim = rng.choice((1, 2)), rng.choice(RATIOS), rng.choice(HEAD_DIMS)
    batch = min(batch_rows // (kv_heads * ratio * queries),
                MOST_ELEMENTS // (kv_heads * keys * head_dim), 256)
    return Shape(rng.choice(("bf16", "fp16")), max(1, batch), kv_heads * ratio, kv_heads, head_dim,
                 queries, keys, causal, rng.choice(SPREADS))


# ---- Data ----------------------------------------------------------------------------------------


class Draw:
    """Tensors [sequences, heads, tokens, dim] of a shape, in fp32, on the CPU: the same everywhere.
    What is said of scores holds after the factor sm_scale."""

    def __init__(self, shape, rng):
        import torch
        self.torch, self.shape, self.rng = torch, shape, rng
        self.generator = torch.Generator().manual_seed(rng.getrandbits(62))

    def unit(self, *sizes):
        """Evenly spread from -1 to 1."""
        return 2 * self.torch.rand(sizes, generator=self.generator) - 1

    def some(self, share, *sizes):
        return self.torch.rand(sizes, generator=self.generator) < share

    def queries(self, peaks):
        """Each row with a peak of its own."""
        s = self.shape
        which = self.torch.randint(len(peaks), (s.batch, s.q_heads, s.queries, 1),
                                   generator=self.generator)
        return (self.torch.tensor(peaks)[which]
                * self.unit(s.batch, s.q_heads, s.queries, s.head_dim))

    def kv(self):
        s = self.shape
        return self.unit(s.batch, s.kv_heads, s.keys, s.head_dim)

    def values(self):
        """Now and then of one sign, as sums that do not cancel."""
        return self.kv() + (self.rng.uniform(-1, 1) if self.rng.random() < 0.25 else 0)

    def plain(self):
        return self.queries((0.05, 1.0, 3.0, 6.0)), self.kv(), self.values()

    def growing(self):
        """Scores that grow along the keys by more than 100: each block has a new maximum."""
        s = self.shape
        along = self.torch.arange(s.keys, dtype=self.torch.float32)[None, None, :, None]
        length = GROWTH * along / s.keys / (s.sm_scale * s.head_dim)
        q = self.torch.ones(s.batch, s.q_heads, s.queries, s.head_dim)
        return q, length + 0.01 * self.kv(), self.values()

    def large(self):
        """Scores so peaked that one key is nearly all, large values, and an element far larger."""
        v = self.values() * 2.0 ** self.rng.randint(-4, 4)
        v[..., self.rng.randrange(self.shape.head_dim)] *= 64
        return self.queries((8.0, 20.0, 60.0)), 2 * self.kv(), v

    def needles(self):
        """Half of the rows point at some keys, which are all alike, with large values in few
        elements; all other keys lean against them."""
        s, torch = self.shape, self.torch
        q, noise, v = self.queries((1.0, 1.0, 3.0, 6.0)), 0.7 * self.kv(), self.values()
        direction = self.unit(s.batch, s.kv_heads, 1, s.head_dim).sign()
        is_needle = self.some(min(1.0, NEEDLE_KEYS / s.keys), s.batch, s.kv_heads, s.keys, 1)
        k = torch.where(is_needle, direction, noise - 0.5 * direction)
        points = self.some(0.5, s.batch, s.q_heads, s.queries, 1)
        length = NEEDLE_SCORE / (s.sm_scale * s.head_dim)
        ahead = length * direction.repeat_interleave(s.q_heads // s.kv_heads, 1)
        kind = torch.arange(s.keys)[:, None] // 2 % 8 == torch.arange(s.head_dim)[None, :] % 8
        sign = 1 - 2 * (torch.arange(s.keys)[:, None] % 2)
        needle = 0.1 * v + NEEDLE_VALUE * sign * kind
        return torch.where(points, ahead, q), k, torch.where(is_needle, needle, v)

    def tensors(self):
        """q, k, v in the shape's dtype."""
        dtype = getattr(self.torch, DTYPES[self.shape.dtype][1])
        made = getattr(self, self.shape.spread)()
        return [x.to(dtype).contiguous() for x in made]


# ---- Rivals --------------------------------------------------------------------------------------


@dataclass
class Record:
    """What came of a rival."""

    name: str
    batches: int = 0
    rows: int = 0
    failed: int = 0
    worst: float = 0.0
    worst_at: str = ""
    failures: list = field(default_factory=list)
    refused: dict = field(default_factory=dict)  # batches by head dimension; asdict spoils a Counter
    reason: str = ""  # of the first

    def add(self, shape, seed, verdict):
        place = (f"seed {seed}, {shape}: sequence {verdict.seq}, head {verdict.head}, query "
                 f"{verdict.query}, dimension {verdict.dimension}: error {verdict.error:.4g}, bar "
                 f"{verdict.bar:.4g}")
        self.batches += 1
        self.rows += verdict.rows
        self.failed += verdict.failed
        if verdict.failed:
            self.failures.append(f"{verdict.failed} of {verdict.rows} rows; the worst: {place}")
        if verdict.worst > self.worst:
            self.worst, self.worst_at = verdict.worst, place


class Refused(Exception):
    """A kernel does not take a shape; why."""


def attend(name, shape, tensors):
    """The rival's output in host memory; Refused if it does not take the shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    q, k, v = tensors
    try:
        with warnings.catch_warnings(), sdpa_kernel([getattr(SDPBackend, KERNELS[name])]):
            warnings.simplefilter("ignore")  # why a kernel does not take a shape, one by one
            out = scaled_dot_product_attention(
                q, k, v, is_causal=shape.causal, scale=shape.sm_scale,
                enable_gqa=shape.q_heads != shape.kv_heads)
    except RuntimeError as error:
        if any(text in str(error).lower() for text in REFUSALS):
            raise Refused(str(error).splitlines()[0]) from error
        raise
    return out.to("cpu", copy=False).contiguous()


def judge_batch(judge, args, records, seed, shape, rng):
    """One shape, all rivals that take it."""
    tensors = Draw(shape, rng).tensors()
    there = [x.to(args.device) for x in tensors]
    took, outputs = [], []
    for record in records:
        try:
            outputs.append(attend(record.name, shape, there))
            took.append(record)
        except Refused as why:
            record.refused[shape.head_dim] = record.refused.get(shape.head_dim, 0) + 1
            record.reason = record.reason or f"{shape}: {why}"
    if took:
        for record, verdict in zip(took, judge.rows(shape, *tensors, outputs)):
            record.add(shape, seed, verdict)


# ---- The run -------------------------------------------------------------------------------------


def takes_nothing(record):
    return record.rows == 0 and sum(record.refused.values()) >= GIVE_UP


def run_seed(judge, args, records, seed, rows, ends):
    """Until each rival has so many rows of the seed, one takes nothing, or the time is up."""
    rng = random.Random(seed)
    before = [record.rows for record in records]
    while min(r.rows - b for r, b in zip(records, before)) < rows:
        if time.perf_counter() > ends or any(map(takes_nothing, records)):
            return
        judge_batch(judge, args, records, seed, draw_shape(rng, args.batch_rows), rng)


def run(args):
    import torch
    torch.set_grad_enabled(False)
    started = time.perf_counter()
    judge = Judge(args.build_dir, args.threads)
    records = [Record(name) for name in args.rivals]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for seed in seeds:
        run_seed(judge, args, records, seed, math.ceil(args.rows / args.seeds),
                 started + args.seconds)
        print(f"[{time.perf_counter() - started:6.1f} s] seed {seed}: " + ", ".join(
            f"{r.name} {r.rows} rows, {r.failed} failed" for r in records),
            file=sys.stderr, flush=True)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    return {"device": device, "torch": torch.__version__, "seeds": list(seeds),
            "false_alarm": judge.false_alarm, "seconds": time.perf_counter() - started,
            "rivals": [asdict(record) for record in records]}


def chance_text(record, false_alarm):
    """The bound that the number of rows implies if none failed."""
    return (f"{record['name']}: by the model right arithmetic fails a row with a chance below "
            f"{false_alarm:g}, so any of these {record['rows']} with one below "
            f"{false_alarm * record['rows']:.2g}; that none did says, with 95 % confidence, that "
            f"fewer than {3 / record['rows']:.2g} of its rows do")


def print_report(report):
    print("| rival | batches | rows | failed | worst, bars | does not take (head_dim: batches) |")
    print("|---|--:|--:|--:|--:|---|")
    for record in report["rivals"]:
        refused = ", ".join(f"{dim}: {n}" for dim, n in sorted(record["refused"].items()))
        print(f"| {record['name']} | {record['batches']} | {record['rows']} | {record['failed']} | "
              f"{record['worst']:.3f} | {refused} |")
    print(f"\n{report['device']}, torch {report['torch']}; seeds {report['seeds']}; "
          f"{report['seconds']:.0f} s")
    for record in report["rivals"]:
        if record["refused"]:
            print(f"{record['name']}, the first it does not take: {record['reason']}")
        if record["worst_at"]:
            print(f"{record['name']}, worst: {record['worst_at']}")
        if record["rows"] and not record["failed"]:
            print(chance_text(record, report["false_alarm"]))


def shortcomings(report, rows):
    for record in report["rivals"]:
        for text in record["failures"]:
            yield f"{record['name']}: {text}"
        if record["rows"] < rows:
            yield (f"{record['name']}: {record['rows']} rows were judged, {rows} were asked for: "
                   "it does not take the shapes, or --seconds were up")


# ---- Arguments -----------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda",
        help="cpu: try the script itself, on PyTorch's CPU kernels")
    add("--rivals", metavar="NAMES", help=f"of {','.join(KERNELS)}; default: "
        f"{','.join(RIVALS['cuda'])}, on the CPU {','.join(RIVALS['cpu'])}")
    add("--rows", type=int, default=1000000, metavar="N",
        help="of each rival, at least, over all seeds; default: %(default)s")
    add("--seeds", type=int, default=5, metavar="N", help="how many; default: %(default)s")
    add("--first-seed", type=int, default=0, metavar="N", help="default: %(default)s")
    add("--batch-rows", type=int, default=4096, metavar="N",
        help="of a batch, about; default: %(default)s")
    add("--seconds", type=float, default=300,
        help="begin no batch after so many; default: %(default)s")
    add("--threads", type=int, default=0, help="of the judge; default: all processors")
    add("--build-dir", type=Path, help="a tree that was built; default: the staged tree that this "
        "file is in")
    add("--json", metavar="FILE", help="write the report")
    args = parser.parse_args()
    args.rivals = (args.rivals or ",".join(RIVALS[args.device])).split(",")
    unknown = [name for name in args.rivals if name not in KERNELS]
    if unknown:
        parser.error(f"--rivals: {', '.join(unknown)}: accepted: {', '.join(KERNELS)}")
    if min(args.rows, args.seeds, args.batch_rows) < 1 or args.threads < 0:
        parser.error("--rows, --seeds, --batch-rows: accepted: 1 or more; --threads: 0 or more")
    return args


def main():
    args = parse_arguments()
    report = run(args)
    print_report(report)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    found = list(shortcomings(report, args.rows))
    for text in found:
        print(f"judge_rivals: {text}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
