#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time a CPU attention backend against PyTorch's scaled_dot_product_attention.

Both run in this process, with equally many threads, in turn (A B A B ...), together with what the
processor can do at most, so that whatever slows the machine slows all of them. bench/README.md
says what is measured and how to read the table.
"""
import argparse
import ctypes
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import attnhost_ctypes
from shapes import DTYPES, Case, median, quantile

PAUSE = 0.01  # seconds between two samples: the other side's threads stop spinning and sleep
LIMITS = {"fp32": 1e-4, "bf16": 5e-2}  # largest difference of two right answers


def torch_dtype(name):
    return getattr(torch, DTYPES[name][1])


def all_cases(args):
    for phase, batches in (("prefill", (1, 4)), ("decode", (1, 8))):
        for dtype in ("fp32", "bf16"):
            for batch in batches:
                for q_heads, kv_heads in ((32, 8), (8, 8)):
                    for head_dim in (64, 128):
                        yield Case(phase, dtype, batch, q_heads, kv_heads, head_dim, args.tokens)


def load_roof(build_dir, folder):
    """cpu_roof.c, for this processor."""
    roof = attnhost_ctypes.compile_library(
        [Path(__file__).with_name("cpu_roof.c")], Path(folder) / "cpu_roof.so",
        attnhost_ctypes.header_flags(build_dir))
    roof.roof_flops.restype = ctypes.c_double
    roof.roof_bandwidth.restype = roof.roof_update.restype = ctypes.c_double
    return roof


# ---- The two sides -------------------------------------------------------------------------------


class Data:
    """Tensors of all layers, [sequences, heads, tokens, dim] as PyTorch likes them best."""

    def __init__(self, case, layers):
        dtype = torch_dtype(case.dtype)
        generator = torch.Generator().manual_seed(1)

        def make(heads, tokens):
            shape = (case.batch, heads, tokens, case.head_dim)
            return torch.randn(shape, generator=generator).to(dtype)

        self.q = [make(case.q_heads, case.queries) for _ in range(layers)]
        self.k = [make(case.kv_heads, case.tokens) for _ in range(layers)]
        self.v = [make(case.kv_heads, case.tokens) for _ in range(layers)]


class Ours:
    """A backend through attnhost.h, with a paged cache."""

    def __init__(self, shim, args, case, data):
        self.layers = len(data.q)
        self.bench = attnhost_ctypes.Bench(shim, case, self.layers, args.page_size, args.backend,
                                           plugin=args.plugin, threads=args.threads)
        where = attnhost_ctypes.slots(self.bench, "cpu")
        cached = case.tokens - case.queries  # the rest the backend has to save itself
        self.kept = []
        self.out = []
        for layer in range(self.layers):
            q, k, v = data.q[layer], data.k[layer], data.v[layer]
            rows = [attnhost_ctypes.rows(q), attnhost_ctypes.rows(k, cached),
                    attnhost_ctypes.rows(v, cached)]
            tensors = rows + [torch.empty_like(rows[0])]
            tensors += [attnhost_ctypes.paged(self.bench, x, where, cached) for x in (k, v)]
            self.kept.append(tensors)
            self.out.append(tensors[3])
            self.bench.bind(layer, *(t.data_ptr() for t in tensors))

    def run(self, steps):
        self.bench.steps(steps)

    def result(self, case, layer):
        out = self.out[layer].view(case.batch, case.queries, case.q_heads, case.head_dim)
        return out.transpose(1, 2)

    def close(self):
        self.bench.close()


class Theirs:
    """scaled_dot_product_attention over contiguous keys."""

    def __init__(self, case, data, expand):
        self.data = data
        self.options = {"is_causal": case.phase == "prefill"}
        self.k, self.v = data.k, data.v
        self.name = "SDPA"
        if case.q_heads == case.kv_heads:
            return
        if expand:
            ratio = case.q_heads // case.kv_heads
            self.k = [k.repeat_interleave(ratio, dim=1) for k in data.k]
            self.v = [v.repeat_interleave(ratio, dim=1) for v in data.v]
            self.name += ", expanded"
        else:
            self.options["enable_gqa"] = True
            self.name += ", enable_gqa"

    def run(self, steps):
        for _ in range(steps):
            for q, k, v in zip(self.data.q, self.k, self.v):
                self.out = scaled_dot_product_attention(q, k, v, **self.options)

    def result(self, layer):
        return scaled_dot_product_attention(
            self.data.q[layer], self.k[layer], self.v[layer], **self.options)


# ---- Measuring -----------------------------------------------------------------------------------


def seconds_of(side, steps):
    start = time.perf_counter()
    side.run(steps)
    taken = time.perf_counter() - start
    time.sleep(PAUSE)
    return taken / steps


def steps_for(side, sample):
    """Steps that fill a sample; warms up on the way."""
    side.run(1)
    return max(1, math.ceil(sample / min(seconds_of(side, 1) for _ in range(3))))


def choose_rival(case, data, sample):
    """PyTorch's faster way to share keys among query heads."""
    rivals = [Theirs(case, data, False)]
    if case.q_heads != case.kv_heads:
        rivals.append(Theirs(case, data, True))
        best = [math.inf, math.inf]
        for _ in range(3):
            for i, rival in enumerate(rivals):
                rival.run(1)
                best[i] = min(best[i], seconds_of(rival, 1))
        rivals = [rivals[best.index(min(best))]]
    return rivals[0], steps_for(rivals[0], sample)


def last_level_cache():
    """Bytes; 32 MiB where the kernel does not say."""
    best = 0
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        best = max(best, int(text[:-1]) * {"K": 1024, "M": 1024 ** 2}[text[-1]])
    return best or 32 << 20


def compare(case, ours, theirs):
    """Largest absolute difference over all layers, after a run of ours."""
    ours.run(1)
    worst = 0.0
    for layer in range(ours.layers):
        difference = (ours.result(case, layer).float() - theirs.result(layer).float()).abs()
        worst = max(worst, difference.max().item())
    limit = LIMITS[case.dtype]
    if not worst <= limit:  # NaN fails, too
        sys.exit(f"cpu_attention: {case}: results differ by {worst:g}: accepted {limit:g}")
    return worst


def roof_of(roofs, args, memory, bandwidth="roof_bandwidth"):
    """A function that measures the processor's roof: multiply-adds, or, if memory is given, its bandwidth."""
    if memory is None:
        return lambda: roofs.roof_flops(args.threads)
    return lambda: getattr(roofs, bandwidth)(args.threads, ctypes.c_void_p(memory.data_ptr()),
                                             ctypes.c_int64(memory.nbytes))


def measure_rounds(args, ours, our_steps, theirs, their_steps, layers, roof):
    """Of each round: seconds of a layer of ours, of theirs, and the roof."""
    rounds, start = [], time.perf_counter()
    while len(rounds) < args.rounds or time.perf_counter() - start < args.seconds:
        a = seconds_of(ours, our_steps) / layers
        highest = roof()  # of the same moment as ours
        b = seconds_of(theirs, their_steps) / layers
        rounds.append((a, b, highest))
    return rounds


def figures(rounds, ratios, work):
    """The reported figures of the rounds, for any measurement; `work` is that of a layer, for the roof."""
    return {
        "rounds": len(rounds),
        "ours_us": 1e6 * median(a for a, _, _ in rounds),
        "torch_us": 1e6 * median(b for _, b, _ in rounds),
        "ratio": median(ratios),
        "ratio_p10": quantile(ratios, .1), "ratio_p90": quantile(ratios, .9),
        "roof": median(roof for _, _, roof in rounds) / 1e9,
        "fraction": median(work / a / roof for a, _, roof in rounds),
    }


def measure(shim, roofs, args, case, memory):
    # Decode: layers enough that no layer's keys are still in the cache when it comes again.
    layers = max(2, math.ceil(memory.nbytes / case.kv_bytes)) if case.decode else 1
    data = Data(case, layers)
    theirs, their_steps = choose_rival(case, data, args.sample)
    ours = Ours(shim, args, case, data)
    difference = compare(case, ours, theirs)
    our_steps = steps_for(ours, args.sample)
    rounds = measure_rounds(args, ours, our_steps, theirs, their_steps, layers,
                            roof_of(roofs, args, memory if case.decode else None))
    ours.close()
    return summary(case, rounds, layers, difference, theirs.name)


def summary(case, rounds, layers, difference, rival):
    work = case.kv_bytes if case.decode else case.flops
    return {
        **asdict(case), "layers": layers, "rival": rival, "max_abs_diff": difference,
        **figures(rounds, [a / b for a, b, _ in rounds], work),
        "unit": "GB/s" if case.decode else "GFLOP/s",
        "rate": median(work / a for a, _, _ in rounds) / 1e9,
        "torch_rate": median(work / b for _, b, _ in rounds) / 1e9,
        "torch_fraction": median(work / b / roof for _, b, roof in rounds),
    }


# ---- Output --------------------------------------------------------------------------------------

HEAD = ("| shape | ours us | torch us | ours / torch | p10 .. p90 | ours | of roof | torch of roof "
        "| rival |\n|---|--:|--:|--:|--:|--:|--:|--:|---|")


def row(case, r):
    return (f"| {case} | {r['ours_us']:.0f} | {r['torch_us']:.0f} | {r['ratio']:.2f} | "
            f"{r['ratio_p10']:.2f} .. {r['ratio_p90']:.2f} | {r['rate']:.1f} {r['unit']} | "
            f"{r['fraction']:.0%} | {r['torch_fraction']:.0%} | {r['rival']} |")


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def add_arguments(parser, rounds, seconds):
    """Those that every script of a CPU has."""
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of each side; default: the CPUs this process may run on")
    parser.add_argument("--filter", action="append", default=[], metavar="TEXT",
                        help="only shapes whose line has this text; repeated: has all of them")
    parser.add_argument("--rounds", type=int, default=rounds,
                        help="at least; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=seconds,
                        help="that a shape is measured, at least; default: %(default)s")
    parser.add_argument("--sample", type=float, default=0.05,
                        help="seconds of one sample, at least; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write all figures; - = standard output")


def add_built_plugin(parser, name):
    """Those of a script that measures a build tree's plugin."""
    parser.add_argument("--build-dir", type=Path, required=True, help="a tree that was built")
    parser.add_argument("--plugin", type=Path,
                        help=f"default: plugins/.libs/{name}.so of the build tree")
    parser.add_argument("--backend", default=name, help="default: %(default)s")


def built_plugin(args, name):
    return args.plugin or args.build_dir.resolve() / f"plugins/.libs/{name}.so"


def run(args, cases, load_shim, measure, head, row, **facts):
    """Measure the cases that the filter lets through, print the table, write the report."""
    script, cases = Path(sys.argv[0]).stem, list(cases)
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    chosen = [c for c in cases if all(text in f"{c} " for text in args.filter)]
    if not chosen:
        sys.exit(f"{script}: no line has {' and '.join(args.filter)}; one is: {cases[0]}")
    table = sys.stderr if args.json == "-" else sys.stdout
    vectors = torch.backends.cpu.get_cpu_capability()  # ATEN_CPU_CAPABILITY sets it
    report = {"cpu": cpu_model(), "threads": args.threads, "torch": torch.__version__,
              "torch_vectors": vectors, **facts,
              "load_before": os.getloadavg()[0], "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        shim, roofs = load_shim(folder), load_roof(args.build_dir, folder)
        print(head, file=table, flush=True)
        for case in chosen:
            try:
                report["cases"].append(measure(shim, roofs, args, case))
            except attnhost_ctypes.BenchError as error:
                sys.exit(f"{script}: {case}: {error}")
            print(row(case, report["cases"][-1]), file=table, flush=True)
    report["load_after"] = os.getloadavg()[0]
    print(f"\n{report['cpu']}, {args.threads} threads each, torch {torch.__version__} ({vectors}), "
          f"load {report['load_before']:.1f} to {report['load_after']:.1f}", file=table)
    if args.json == "-":
        json.dump(report, sys.stdout, indent=1)
    elif args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path,
                        help="a tree that was built; default: the installed attnhost")
    parser.add_argument("--plugin", type=Path, help="file of the plugin; default: "
                        "plugins/.libs/cpu_native.so of the build tree, or the installed ones")
    parser.add_argument("--backend", default="cpu_native", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=2048, help="keys; default: %(default)s")
    parser.add_argument("--page-size", type=int, default=16, help="default: %(default)s")
    add_arguments(parser, rounds=11, seconds=5)
    args = parser.parse_args()
    if args.build_dir:
        args.plugin = built_plugin(args, "cpu_native")
    return args


def main():
    args = parse_arguments()
    memory = torch.ones(last_level_cache(), dtype=torch.int32)  # four times the last-level cache
    run(args, all_cases(args), lambda folder: attnhost_ctypes.load_shim(args.build_dir, folder),
        partial(measure, memory=memory), HEAD, row, backend=args.backend, page_size=args.page_size)


if __name__ == "__main__":
    main()
