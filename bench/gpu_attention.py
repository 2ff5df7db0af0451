#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time CUDA attention backends against PyTorch's attention, in one process, in turn (A B A B ...).

Every contender is first compared with fp64 attention on the same data. bench/README.md says what
is measured and how to read the table.
"""
import argparse
import gc
import json
import math
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import attnhost_ctypes
from shapes import Case, pause_of

RIVALS = ("cudnn", "flash2", "flex")
ROTATION = 8  # copies of the inputs fill the last-level cache this many times
MAX_COPIES = 256
SAMPLE_US = {"cool": 500, "kept up": 5000}  # a sample lasts so long, at least
CALL_US = 5  # and a call, whatever the ceilings say
HOST_LAYERS, HOST_LINE = 32, 40.0  # the host's step: layers of the graph, microseconds allowed
FLEX_DECODE_TOKENS = 4096  # each shape costs seconds of compilation: by default these in decode
PREDICTED = {"copy": 4.2e12, "matmul": 770e12}  # bytes/s, FLOP/s of an H200, for --dry-run
PREDICTED_CACHE = 60 << 20
START_S, SHAPE_S, FLEX_S = 30.0, 2.0, 5.0  # guesses for --dry-run: start, each shape, compilation


# ---- Shapes --------------------------------------------------------------------------------------


def prefill(batch, tokens, head_dim=128):
    return Case("prefill", "bf16", batch, 32, 8, head_dim, tokens)


def decode(batch, tokens, q_heads=32, kv_heads=8, kv_dtype=""):
    return Case("decode", "bf16", batch, q_heads, kv_heads, 128, tokens, kv_dtype)


def default_cases():
    yield from (prefill(8, 2048), prefill(2, 8192), prefill(1, 16384))
    for batch in (1, 8, 32, 128):
        for tokens in (1024, 4096, 16384, 65536):
            yield decode(batch, tokens)
    yield from (decode(32, 4096, 8, 1), decode(1, 16384, 8, 1))
    for batch, tokens in ((1, 16384), (32, 4096), (128, 4096)):
        yield decode(batch, tokens, kv_dtype="fp8_e4m3")
    yield from (prefill(8, 2048, 64), prefill(2, 8192, 64), prefill(1, 16384, 64))


def quick_cases():
    yield from (prefill(8, 2048), prefill(1, 16384), prefill(8, 2048, 64))
    yield from (decode(1, 16384), decode(32, 4096), decode(128, 4096), decode(32, 4096, 8, 1))
    yield decode(32, 4096, kv_dtype="fp8_e4m3")


def cpu_cases():
    """For trying the script: odd lengths, every kind of shape."""
    yield from (Case("prefill", "bf16", 2, 8, 2, 64, 97), Case("decode", "bf16", 3, 8, 2, 64, 101))
    yield Case("decode", "bf16", 2, 8, 1, 128, 130, "fp8_e4m3")


def case_of(text):
    """A shape from PHASE:BATCHxTOKENS[/SHARED][:Q_HEADS/KV_HEADS[:HEAD_DIM[:KV_DTYPE]]]."""
    phase, size, heads, head_dim, kv_dtype = (text.split(":") + ["", "", ""])[:5]
    try:
        size, _, shared = size.partition("/")
        batch, tokens = (int(part) for part in size.split("x"))
        q_heads, kv_heads = (int(part) for part in (heads or "32/8").split("/"))
        case = Case(phase, "bf16", batch, q_heads, kv_heads, int(head_dim or 128), tokens, kv_dtype,
                    int(shared or 0))
    except ValueError:
        case = None
    if (not case or phase not in ("prefill", "decode") or min(batch, tokens, kv_heads) < 1 or
            not 0 <= case.shared < tokens or case.shared and phase == "prefill"):
        sys.exit(f"gpu_attention: --shape {text}: accepted: prefill or decode, as in "
                 "decode:64x8192, decode:64x8192/8064 (of which 8064 are shared) or "
                 "prefill:2x8192:16/2:256")
    return case


def chosen_cases(args):
    made = cpu_cases() if args.device == "cpu" else quick_cases() if args.quick else default_cases()
    cases = [case_of(text) for text in args.shape] or list(made)
    found = [case for case in cases if all(text in str(case) for text in args.filter)]
    if not found:
        sys.exit(f"gpu_attention: no shape has {' and '.join(args.filter)}; one is: {cases[0]}")
    return found


@dataclass(frozen=True)
class Entry:
    """Who takes part: a backend of ours with a page size, or a rival."""

    name: str
    rival: str = ""
    backend: str = ""
    page_size: int = 0


def entries_of(args, case):
    entries = [Entry(f"{backend} p{page_size}", "", backend, page_size)
               for backend in args.backend for page_size in args.page_size]
    if case.kv_dtype:
        return entries  # PyTorch reads no fp8 cache
    flex = args.flex_everywhere or not case.decode or case.tokens == FLEX_DECODE_TOKENS
    return entries + [Entry(name, name) for name in args.rivals if name != "flex" or flex]


# ---- The plan ------------------------------------------------------------------------------------


def floor_text(case, ceilings):
    seconds, limit = case.floor(ceilings["matmul"], ceilings["copy"])
    return (f"{case.flops / 1e12:.4g} TFLOP, {case.bytes / 1e9:.4g} GB, "
            f"at least {1e6 * seconds:.1f} us ({limit})")


def repetition(args, case, ceilings, cache_bytes):
    """(copies of the inputs, calls of a sample)."""
    work = case.kv_bytes if case.decode else case.bytes
    copies = min(MAX_COPIES, max(1, math.ceil(ROTATION * cache_bytes / work)))
    call = max(CALL_US, 1e6 * case.floor(ceilings["matmul"], ceilings["copy"])[0])
    return copies, copies * math.ceil(SAMPLE_US[regime_of(args)] / (copies * call))


def memory_of(args, case, copies):
    """Bytes of all contenders' tensors, roughly."""
    entries = entries_of(args, case)
    return copies * (case.kv_bytes * (1 + len(args.page_size)) + case.q_bytes * (2 + len(entries)))


def predicted_seconds(args, case, calls):
    """Of a contender, at half of the ceilings."""
    sample = 2 * calls * case.floor(PREDICTED["matmul"], PREDICTED["copy"])[0]
    return 2 * args.sustain or args.rounds * (sample + pause_of(sample))


def dry_run(args):
    """The shapes and what they cost, by the ceilings of PREDICTED. No PyTorch, no GPU."""
    total = START_S
    print(f"ceilings assumed: {ceilings_text(PREDICTED)}")
    for case in chosen_cases(args):
        entries = entries_of(args, case)
        copies, calls = repetition(args, case, PREDICTED, PREDICTED_CACHE)
        total += SHAPE_S + FLEX_S * any(entry.rival == "flex" for entry in entries)
        total += len(entries) * predicted_seconds(args, case, calls)
        print(f"{case}: {floor_text(case, PREDICTED)}; {copies} copies, {calls} calls a sample, "
              f"{memory_of(args, case, copies) / 1e9:.1f} GB in all; "
              + ", ".join(entry.name for entry in entries))
    print(f"about {total:.0f} s, if all runs at half of the ceilings; "
          f"no shape begins after {args.seconds:g} s")


# ---- Output --------------------------------------------------------------------------------------

HEAD = ("| shape | contender | us | p10 .. p90 | rate | of ceiling | / best rival | p10 .. p90 | "
        "row error | SM MHz |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")


def table_row(case, record, ceilings):
    if "error" in record:
        return f"| {case} | {record['name']} | - | | {record['error']} | | | | | |"
    unit, scale = ("GB/s", 1e9) if case.decode else ("TFLOP/s", 1e12)
    ceiling = ceilings["copy" if case.decode else "matmul"]
    ratio, pairs = "", ""
    if "ratio" in record:
        ratio = f"{record['ratio']:.2f} {record['best_rival']}"
    if "ratio_p10" in record:
        pairs = f"{record['ratio_p10']:.2f} .. {record['ratio_p90']:.2f}"
    return (f"| {case} | {record['name']} | {record['us']:.1f} | "
            f"{record['us_p10']:.1f} .. {record['us_p90']:.1f} | "
            f"{record['rate'] / scale:.0f} {unit} | {record['rate'] / ceiling:.0%} | {ratio} | "
            f"{pairs} | {record['row_error']:.4f} | {record['state'].get('sm_mhz') or ''} |")


def ceilings_text(ceilings):
    return (f"copy {ceilings['copy'] / 1e9:.0f} GB/s, "
            f"bf16 product {ceilings['matmul'] / 1e12:.3g} TFLOP/s")


def regime_of(args):
    return "kept up" if args.sustain else "cool"


def regime_text(args):
    if args.sustain:
        return f"kept up: {args.sustain:g} s back to back each, twice; the second halves count"
    return f"cool: {args.rounds} rounds of single samples with rests between them"


def host_text(step):
    if "error" in step:
        return f"host's step of {step['backend']}: {step['error']}"
    verdict = "within" if step["step_us"] < HOST_LINE else "OVER"
    return (f"host's step of {step['backend']}, {step['layers']} layers: init_forward_metadata "
            f"{step['plan_us']:.1f} us + graph launch {step['launch_us']:.1f} us = "
            f"{step['step_us']:.1f} us (p90 {step['step_us_p90']:.1f}): {verdict} the line of "
            f"{HOST_LINE:g} us")


def print_footer(report):
    print(f"\n{report['device']['name']}, torch {report['torch']}; {report['regime']}; "
          f"{report['metadata']} metadata; {report['seconds']:.0f} s")
    print(f"ceilings before: {ceilings_text(report['ceilings'])}", end="")
    if "ceilings_after" in report:
        print(f"; after: {ceilings_text(report['ceilings_after'])}", end="")
    print()
    for step in report["host"]:
        print(host_text(step))


def note(started, text):
    print(f"[{time.perf_counter() - started:6.1f} s] {text}", file=sys.stderr, flush=True)


def write_json(path, report):
    """Atomically; after every shape, so that a run that is cut short keeps its results."""
    if path:
        fresh = Path(f"{path}.new")
        fresh.write_text(json.dumps(report, indent=1) + "\n")
        fresh.replace(path)


# ---- The run -------------------------------------------------------------------------------------


def run_case(setting, args, case, ceilings, started):
    """A shape's part of the report."""
    import gpu_measure
    copies, calls = repetition(args, case, ceilings, setting.device.cache_bytes)
    result = gpu_measure.describe(case, ceilings, copies, calls)
    if time.perf_counter() - started > args.seconds:
        result["skipped"] = f"{args.seconds:g} s are up"
        return result
    try:
        result["contenders"] = gpu_measure.measure(
            setting, case, entries_of(args, case), copies, calls, memory_of(args, case, copies))
    except gpu_measure.Skipped as error:
        result["skipped"] = str(error)
    return result


def run_cases(setting, args, report, started):
    print(HEAD, flush=True)
    for case in chosen_cases(args):
        note(started, f"{case}: {floor_text(case, report['ceilings'])}")
        result = run_case(setting, args, case, report["ceilings"], started)
        report["cases"].append(result)
        if "skipped" in result:
            note(started, f"{case}: not measured: {result['skipped']}")
        for record in result.get("contenders", []):
            print(table_row(case, record, report["ceilings"]), flush=True)
        gc.collect()
        write_json(args.json, report)


def run_host(setting, args):
    """The host's step, a record for each backend."""
    import gpu_measure
    records = []
    for backend in args.backend if setting.graph else []:
        try:
            records.append(gpu_measure.host_step(setting, decode(32, 4096), backend,
                                                 args.page_size[0], HOST_LAYERS))
        except Exception as error:  # the shapes are still worth measuring
            records.append({"backend": backend, "error": str(error)})
    return records


def make_setting(args, folder):
    import torch

    import gpu_device
    import gpu_measure
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    device = gpu_device.Cuda() if args.device == "cuda" else gpu_device.Cpu()
    return gpu_measure.Setting(
        device=device, shim=attnhost_ctypes.load_shim(args.build_dir, folder),
        mla_shim=None, linear_shim=None,  # serving_grid.py's
        plugin=args.plugin or attnhost_ctypes.find_plugins(args.build_dir), threads=args.threads,
        graph=args.metadata == "graph" and device.captures, save_kv=args.save_kv,
        rounds=args.rounds, sustain=args.sustain)


def run(args, folder):
    started = time.perf_counter()
    import gpu_measure
    import torch
    setting = make_setting(args, folder)
    device = setting.device
    report = {"device": device.describe(), "torch": torch.__version__, "regime": regime_text(args),
              "metadata": "graph" if setting.graph else "eager", "save_kv": args.save_kv,
              "arguments": sys.argv[1:], "ceilings": gpu_measure.measure_ceilings(device),
              "state": device.state(), "host": run_host(setting, args), "cases": []}
    note(started, f"{report['device']}; {ceilings_text(report['ceilings'])}")
    for step in report["host"]:
        note(started, host_text(step))
    try:
        run_cases(setting, args, report, started)
        report["ceilings_after"] = gpu_measure.measure_ceilings(device)
    except Exception as error:  # a device that is lost: keep what was measured
        traceback.print_exc()
        report["ended"] = f"{type(error).__name__}: {error}"
    report["state_after"] = device.state()
    report["seconds"] = time.perf_counter() - started
    write_json(args.json, report)
    print_footer(report)
    return report


def failures(report):
    """The cause of the run's end; and the shapes that our backends could not run, or got wrong."""
    found = [f"ended by {report['ended']}"] if "ended" in report else []
    found += [host_text(step) for step in report["host"] if "error" in step]
    return found + [f"{case['shape']}: {record['name']}: {record['error']}"
                    for case in report["cases"] for record in case.get("contenders", [])
                    if record["kind"] == "attnhost" and "error" in record]


# ---- Arguments -----------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--backend", action="append", metavar="NAME[:KEY=VALUE]...",
        help="a backend, with options; repeated: several; default: triton_like")
    add("--page-size", action="append", type=int, metavar="N",
        help="tokens of a page; repeated: several; default: 16")
    add("--rivals", metavar="NAMES", help=f"of {','.join(RIVALS)}; default: all of them, with "
        "--quick not flex")
    add("--flex-everywhere", action="store_true", help="flex in every decode, not just those of "
        f"{FLEX_DECODE_TOKENS} keys; compilation takes seconds each")
    add("--quick", action="store_true", help="a set of one minute")
    add("--filter", action="append", default=[], metavar="TEXT",
        help="only shapes whose line has this text; repeated: has all of them")
    add("--shape", action="append", default=[], metavar="SHAPE", help="instead of the default shapes: "
        "PHASE:BATCHxTOKENS[:Q_HEADS/KV_HEADS[:HEAD_DIM[:KV_DTYPE]]]; repeated: several")
    add("--rounds", type=int, default=32, help="default: %(default)s")
    add("--sustain", type=float, default=0, metavar="SECONDS", help="run each contender back to "
        "back for so long, twice, instead of single samples with rests")
    add("--metadata", choices=("graph", "eager"), default="graph",
        help="of our backends; eager ones are not captured; default: %(default)s")
    add("--save-kv", action="store_true", help="let our backends write new keys and values into "
        "the cache within the time; the rivals never do")
    add("--seconds", type=float, help="begin no shape after this many seconds; default: 200, with --quick 50")
    add("--json", metavar="FILE", help="write all samples")
    add("--build-dir", type=Path, help="a tree that was built; default: the staged tree that this "
        "file is in, else the installed attnhost")
    add("--plugin", type=Path, help="file or folder of plugins; default: those of the tree")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try the script itself on "
        "small shapes, by default with cpu_native; the times mean nothing")
    add("--threads", type=int, default=2, help="of the host, for --device cpu; default: 2")
    add("--dry-run", action="store_true",
        help="print the shapes and what they cost; needs neither PyTorch nor a GPU")
    return complete(parser, parser.parse_args())


def complete(parser, args):
    """Defaults that depend on other arguments; refuses what cannot be run."""
    rivals = RIVALS[:2] if args.quick else RIVALS
    args.rivals = rivals if args.rivals is None else [r for r in args.rivals.split(",") if r]
    unknown = set(args.rivals) - set(RIVALS)
    if unknown:
        parser.error(f"--rivals: {', '.join(sorted(unknown))}: accepted: {', '.join(RIVALS)}")
    args.backend = args.backend or ["cpu_native" if args.device == "cpu" else "triton_like"]
    args.page_size = args.page_size or [16]
    args.seconds = args.seconds or (50 if args.quick else 200)
    for backend in args.backend:
        try:
            attnhost_ctypes.parse_backend(backend)
        except ValueError as error:
            parser.error(f"--backend: {error}")
    if min(args.page_size) < 1 or args.rounds < 1:
        parser.error("--page-size, --rounds: accepted: 1 or more")
    return args


def main():
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for flex
    args = parse_arguments()
    if args.dry_run:
        dry_run(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = failures(run(args, folder))
    for text in found:
        print(f"gpu_attention: {text}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
