#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shapes that serving has, as serving_grid.ini lists them, by our plugins and by rivals that are
installed: which are farthest from what the card could do. bench/README.md says how to read it.
"""
import argparse
import configparser
import csv
import gc
import heapq
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import attnhost_ctypes
import gpu_attention
from shapes import DTYPES, Case, FAMILIES, LinearCase, MlaCase, median

DATA = Path(__file__).resolve().parent / "serving_grid.ini"
KINDS = {"softmax": ["fa3_like"], "mla": ["flashmla_like"], "linear": ["linear_like"]}
PHASES = {"softmax": ("decode", "verify", "chunk", "prefill"), "mla": ("decode", "verify"),
          "linear": ("decode", "prefill")}
RIVALS = {"gpu_contenders": {"prefill": ("cudnn", "fa3"), "decode": ("cudnn", "fa3"),
                             "chunk": ("flash2", "fa3"), "verify": ("flash2", "fa3")},
          "gpu_mla": {"decode": ("flashmla",), "verify": ("flashmla",)}, "gpu_linear": {}}
MODULES = {"fa3": "flash_attn_interface", "flashmla": "flash_mla"}  # rivals that need a wheel
PREDICTED_LAUNCH = 2.5e-6  # seconds, for --dry-run
WORST = 20


# ---- The file ------------------------------------------------------------------------------------


@dataclass
class Row:
    """A case with a page size (0 = no pages), and whose shape it is."""

    kind: str
    case: object
    page_size: int
    models: list = field(default_factory=list)  # "Llama-3.3-70B/8" is a rank of eight

    def __str__(self):
        return f"{self.case}" + (f" p{self.page_size}" if self.page_size else "")

    @property
    def axes(self):
        """Axes that a short run has to cover: each value in as many rows as every other."""
        c = self.case
        heads = str(c).split(" H")[1].split()[0]
        return (("phase", self.kind, getattr(c, "family", ""), c.phase), ("heads", heads),
                ("dim", str(c).split(" D")[1].split()[0]), ("page", self.page_size),
                ("dtype", c.dtype, c.kv_dtype), ("size", c.phase, c.batch, c.tokens),
                ("queries", getattr(c, "new", 0)))


class Wrong(Exception):
    """What of the file is wrong, and what is accepted."""


def numbers(text, pattern, what, example):
    """The integers of a pattern's groups; None for a group that is not there."""
    found = re.fullmatch(pattern, text)
    values = [None if part is None else int(part) for part in found.groups()] if found else [0]
    if any(value is not None and value < 1 for value in values):
        raise Wrong(f"{what}: {text}: accepted numbers of 1 or more as in {example}")
    return values


def layers_of(model, text):
    """(kind, family or "", numbers) of each type of layer of a model."""
    for part in text.split(","):
        words = part.split()
        if len(words) != 3 or words[0] not in ("softmax", "mla", *FAMILIES):
            raise Wrong(f"[models] {model}: {part.strip()}: accepted: softmax, mla, "
                        f"{', '.join(FAMILIES)}, then heads and dimensions")
        what = f"[models] {model}"
        if words[0] == "softmax":
            yield ("softmax", "", numbers(words[1], r"(\d+)/(\d+)", what, "32/8")
                   + numbers(words[2], r"(\d+)", what, "128"))
        elif words[0] == "mla":
            yield ("mla", "", numbers(words[1], r"(\d+)", what, "128")
                   + numbers(words[2], r"(\d+)\+(\d+)", what, "512+64"))
        else:
            yield ("linear", words[0], numbers(words[1], r"(\d+)/(\d+)", what, "16/32")
                   + numbers(words[2], r"(\d+)x(\d+)", what, "128x128"))


def shard(kind, shape, ranks):
    """The shape of one of `ranks`; None = its heads cannot be divided."""
    if kind == "softmax":
        q_heads, kv_heads, dim = shape
        kv = max(1, kv_heads // ranks)
        whole = q_heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
        return [q_heads // ranks, kv, dim] if whole and q_heads // ranks % kv == 0 else None
    heads = shape[:1] if kind == "mla" else shape[:2]
    if any(count % ranks for count in heads):
        return None
    return [count // ranks for count in heads] + shape[len(heads):]


def case_of(kind, family, phase, dtype, shape, size):
    batch, tokens, new = size
    dtype, _, kv_dtype = dtype.partition("/")
    if kind == "softmax":
        return Case(phase, dtype, batch, *shape, tokens, kv_dtype, new=new or 0)
    if kind == "mla":
        return MlaCase(phase, dtype, batch, *shape, tokens, new or 0)
    return LinearCase(phase, family, dtype, batch, *shape, tokens)


def sizes_of(section, phase, text):
    for word in text.split():
        size = numbers(word, r"(\d+)x(\d+)(?:q(\d+))?", f"[{section}] {phase}", "1x8192 or 1x8704q512")
        if bool(size[2]) != (phase in ("verify", "chunk")) or (size[2] or 0) > size[1]:
            raise Wrong(f"[{section}] {phase}: {word}: accepted: queries, no more than keys, in "
                        "verify and chunk alone")
        yield size


def rows_of(data):
    """All rows of the file, each once, in the file's order: whole models first."""
    rows = {}
    for word in data["shards"]["ranks"].split():
        ranks, = numbers(word, r"(\d+)", "[shards] ranks", "1 2 4 8")
        for model, text in data["models"].items():
            for kind, family, whole in layers_of(model, text):
                shape = shard(kind, whole, int(ranks))
                if shape:
                    add_rows(rows, data[kind], kind, family, shape, f"{model}/{word}")
    return list(rows.values())


def add_rows(rows, section, kind, family, shape, name):
    for dtype in section["dtypes"].split():
        if any(part not in DTYPES for part in dtype.split("/")) or "/" in dtype and kind != "softmax":
            raise Wrong(f"[{kind}] dtypes: {dtype}: accepted: {', '.join(DTYPES)}; of softmax also "
                        "two with a / between them, the second that of the cache")
        for page in section.get("pages", "0").split():
            for phase in PHASES[kind]:
                for size in sizes_of(kind, phase, section[phase]):
                    case = case_of(kind, family, phase, dtype, shape, size)
                    if phase == "prefill" and (page != section.get("pages", "0").split()[0] or case.kv_dtype):
                        continue  # no key is read from a cache
                    row = Row(kind, case, int(page))
                    rows.setdefault(str(row), row).models.append(name)


def read(path):
    data = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    data.optionxform = str
    try:
        with open(path) as file:
            data.read_file(file)
        rows = rows_of(data)
        references = {name: reference_of(name, text) for name, text in data["reference"].items()}
        unknown = set(references) - {str(row.case) for row in rows}
        if unknown:
            raise Wrong(f"[reference] {sorted(unknown)[0]}: there is no such row")
    except (OSError, configparser.Error, KeyError, Wrong) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else error
        sys.exit(f"serving_grid: {path}: {text}")
    return rows, references


def reference_of(name, text):
    """(microseconds, whose)."""
    us, _, whose = text.partition(" ")
    try:
        return float(us), whose
    except ValueError:
        raise Wrong(f"[reference] {name}: {text}: accepted: microseconds and a name") from None


# ---- The order -----------------------------------------------------------------------------------


def in_order(rows):
    """One after the other the row whose values were seen least, so that a run that ends early has
    seen something of everything; of equal ones the first of the file."""
    seen, axes = {}, [row.axes for row in rows]

    def cost(index):
        return sum(seen.get(axis, 0) / (1 + seen.get(axis, 0)) for axis in axes[index])

    heap = [(0.0, index) for index in range(len(rows))]  # costs only grow: one is old, or the least
    while heap:
        old, index = heapq.heappop(heap)
        if cost(index) > old:
            heapq.heappush(heap, (cost(index), index))
            continue
        for axis in axes[index]:
            seen[axis] = seen.get(axis, 0) + 1
        yield rows[index]


# ---- The floor -----------------------------------------------------------------------------------


def floor_of(case, ceilings):
    """(seconds, their cause): a lower bound for any version; a kernel takes at least a launch."""
    floor = case.floor(ceilings["matmul"], ceilings["copy"])
    return max(floor, (ceilings["launch"], "launch"))


def measure_launch(device):
    """Seconds of a kernel that does nothing much, one after the other in a graph."""
    import torch
    x = torch.zeros(1, device=device.name)

    def step():
        for _ in range(100):
            x.add_(1)

    step()
    run = device.capture(step).replay if device.captures else step
    run()
    return median(device.microseconds(run, 500) for _ in range(10)) / 100 / 1e6


# ---- A run ---------------------------------------------------------------------------------------


def entries_of(args, row):
    """Our backends of the row's kind, and the rivals that can be had."""
    entry = gpu_attention.Entry
    page = row.page_size or 1
    entries = [entry(backend, "", backend, page) for backend in args.backends[row.kind]]
    if row.case.kv_dtype:
        return entries
    rivals = RIVALS[row.case.contenders].get(row.case.phase, ())
    return entries + [entry(name, name) for name in rivals if name in args.rivals]


def measure_row(setting, args, row, ceilings):
    """Records of all contenders; raises gpu_measure.Skipped."""
    import gpu_measure
    entries = entries_of(args, row)
    copies, calls = gpu_attention.repetition(args, row.case, ceilings, setting.device.cache_bytes)
    needed = copies * (3 * row.case.kv_bytes + row.case.q_bytes * (2 + len(entries)))
    return gpu_measure.measure(setting, row.case, entries, copies, calls, needed)


def results_of(row, records, floor, reference):
    """The table's entries for a row, a dict for each of our backends."""
    rivals = [r for r in records if r["kind"] == "rival" and "us" in r]
    best = min(rivals, key=lambda r: r["us"], default=None)
    for record in records:
        if record["kind"] == "rival":
            continue
        result = {"row": str(row), "phase": f"{getattr(row.case, 'family', '') or row.kind} {row.case.phase}",
                  "backend": record["name"], "models": " ".join(row.models),
                  "floor_us": 1e6 * floor[0], "floor_by": floor[1]}
        if best:
            result.update(rival=best["name"], rival_us=best["us"])
        if reference:
            result.update(reference_us=reference[0], reference=reference[1])
        if "error" in record:
            result["error"] = record["error"]
        else:
            result.update({key: record[key] for key in ("us", "us_p10", "us_p90", "row_error")})
            result["share"] = result["floor_us"] / record["us"]
            if best:
                result["ratio"] = record["ratio"]
        yield result


def run_rows(setting, args, rows, references, ceilings, started):
    import gpu_measure
    results, count = [], 0
    for row in in_order(rows):
        if time.perf_counter() - started > args.seconds:
            break
        count += 1
        floor = floor_of(row.case, ceilings)
        try:
            records = measure_row(setting, args, row, ceilings)
        except gpu_measure.Skipped as error:
            records = [{"name": name, "kind": "attnhost", "error": f"not measured: {error}"}
                       for name in args.backends[row.kind]]
        for result in results_of(row, records, floor, references.get(str(row.case))):
            results.append(result)
            print(line_of(result), flush=True)
        gc.collect()
    return results, count


# ---- Output --------------------------------------------------------------------------------------

COLUMNS = ("row", "phase", "backend", "us", "us_p10", "us_p90", "floor_us", "floor_by", "share",
           "rival", "rival_us", "ratio", "reference", "reference_us", "row_error", "models", "error")
HEAD = ("| row | backend | us | floor us | by | share | / rival in the run | rival (reference) | models |\n"
        "|---|---|--:|--:|---|--:|--:|--:|---|")


def cells(result):
    if "us" not in result:
        us, share, ratio = "-", "", result["error"]
    else:
        us, share = f"{result['us']:.1f}", f"{result['share']:.0%}"
        ratio = f"{result['ratio']:.2f} {result['rival']}" if "ratio" in result else ""
    reference = ""
    if "reference_us" in result:
        reference = f"{result['reference_us']:g} {result['reference']}"
    models = result["models"].split()
    return (result["row"], result["backend"], us, f"{result['floor_us']:.1f}", result["floor_by"],
            share, ratio, reference, " ".join(models[:2]) + (" ..." if len(models) > 2 else ""))


def line_of(result):
    return f"| {' | '.join(cells(result))} |"


def worst_of(results):
    """Those farthest from the ceiling; where the launch is the floor there is nothing to gain by
    a better kernel, so these are left out."""
    measured = [r for r in results if "share" in r and r["floor_by"] != "launch"]
    return sorted(measured, key=lambda r: r["share"])[:WORST]


def by_phase(results):
    """A line for each phase of each kind: rows, the median and the least share, rows that are slower than a rival of
    the run."""
    yield ("| phase | backend | rows | median share | least | slower than a rival | of |\n"
           "|---|---|--:|--:|--:|--:|--:|")
    keys = sorted({(r["phase"], r["backend"]) for r in results})
    for key in keys:
        of = [r for r in results if (r["phase"], r["backend"]) == key and "share" in r]
        ratios = [r["ratio"] for r in of if "ratio" in r]
        if of:
            yield (f"| {key[0]} | {key[1]} | {len(of)} | {median(r['share'] for r in of):.0%} | "
                   f"{min(r['share'] for r in of):.0%} | {sum(x > 1 for x in ratios)} | {len(ratios)} |")


def markdown_of(results, heading):
    failed = [r for r in results if "error" in r]
    lines = [heading, "", *by_phase(results), "", f"The worst {WORST} rows, of those whose floor is "
             "not the launch:", "", HEAD, *map(line_of, worst_of(results))]
    if failed:
        lines += ["", f"{len(failed)} rows were not measured; the first of each reason:", ""]
        reasons = {r["error"]: r for r in reversed(failed)}
        lines += [f"- {r['backend']}, {r['row']}: {text}" for text, r in reasons.items()]
    return "\n".join(lines) + "\n"


def write_csv(path, results):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for result in results:
            writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value
                             for key, value in result.items()})


# ---- The program ---------------------------------------------------------------------------------


def installed(names):
    """Rivals whose module is there."""
    from importlib.util import find_spec
    return [name for name in names if name not in MODULES or find_spec(MODULES[name])]


def dry_run(args, rows):
    ceilings = {**gpu_attention.PREDICTED, "launch": PREDICTED_LAUNCH}
    for row in in_order(rows):
        seconds, by = floor_of(row.case, ceilings)
        print(f"{row}: {row.case.flops / 1e9:.4g} GFLOP, {row.case.bytes / 1e6:.4g} MB, at least "
              f"{1e6 * seconds:.1f} us ({by}); {' '.join(row.models)}")
    print(f"{len(rows)} rows", file=sys.stderr)


def run(args, rows, references, folder):
    started = time.perf_counter()
    import gpu_measure
    setting = gpu_attention.make_setting(args, folder)
    setting.mla_shim = attnhost_ctypes.load_mla_shim(args.build_dir)
    setting.linear_shim = attnhost_ctypes.load_linear_shim(args.build_dir)
    ceilings = gpu_measure.measure_ceilings(setting.device)
    ceilings["launch"] = measure_launch(setting.device)
    print(HEAD, flush=True)
    results, count = run_rows(setting, args, rows, references, ceilings, started)
    heading = (f"{setting.device.describe()['name']}: {count} of {len(rows)} rows in "
               f"{time.perf_counter() - started:.0f} s; ceilings: "
               f"{gpu_attention.ceilings_text(ceilings)}, launch {1e6 * ceilings['launch']:.1f} us; "
               f"rivals in the run: {', '.join(args.rivals) or 'none'}")
    text = markdown_of(results, heading)
    print(f"\n{text}", end="")
    if args.csv:
        write_csv(args.csv, results)
    if args.markdown:
        Path(args.markdown).write_text(text)
    return [r for r in results if r.get("error", "").startswith("ValueError: WRONG")]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--backend", action="append", default=[], metavar="KIND=NAME[:KEY=VALUE]...",
        help="a backend for the rows of a kind, with options; repeated: several; default: "
        + ", ".join(f"{kind}={names[0]}" for kind, names in KINDS.items()))
    add("--rivals", metavar="NAMES", help="default: all that are installed, of cudnn, flash2, fa3, "
        "flashmla; none: an empty text")
    add("--filter", action="append", default=[], metavar="TEXT",
        help="only rows whose name has this text; repeated: has all of them")
    add("--seconds", type=float, default=180, help="begin no row after these; default: %(default)g")
    add("--rounds", type=int, default=9, help="default: %(default)s")
    add("--csv", metavar="FILE", help="write the whole table")
    add("--markdown", metavar="FILE", help="write what is printed at the end")
    add("--grid", type=Path, default=DATA, metavar="FILE", help="default: serving_grid.ini here")
    add("--build-dir", type=Path, help="a tree that was built; default: the staged tree that this "
        "file is in")
    add("--plugin", type=Path, help="file or folder of plugins; default: those of the tree")
    add("--device", choices=("cuda", "cpu"), default="cuda",
        help="cpu: try the script itself; the times mean nothing")
    add("--threads", type=int, default=2, help="of the host, for --device cpu; default: 2")
    add("--dry-run", action="store_true",
        help="print the rows in their order with their floors; needs neither PyTorch nor a GPU")
    return complete(parser, parser.parse_args())


def complete(parser, args):
    args.backends = {kind: [] for kind in KINDS}
    for text in args.backend:
        kind, _, backend = text.partition("=")
        try:
            attnhost_ctypes.parse_backend(backend)
            args.backends[kind].append(backend)
        except (KeyError, ValueError):
            parser.error(f"--backend: {text}: accepted: KIND=NAME or KIND=NAME:KEY=VALUE, with a "
                         f"kind of {', '.join(KINDS)}")
    for kind, names in KINDS.items():
        if not args.backends[kind] and not args.backend:
            on_cpu = ["cpu_linear" if kind == "linear" else "cpu_native"]
            args.backends[kind] = names if args.device == "cuda" else on_cpu
    known = ("cudnn", "flash2", "fa3", "flashmla")
    args.rivals = installed(known) if args.rivals is None else [r for r in args.rivals.split(",") if r]
    if set(args.rivals) - set(known):
        parser.error(f"--rivals: {', '.join(sorted(set(args.rivals) - set(known)))}: accepted: "
                     f"{', '.join(known)}")
    # What make_setting() asks for; new keys are saved, as an engine has them saved.
    args.metadata, args.save_kv, args.sustain = "graph", True, 0
    return args


def main():
    args = parse_arguments()
    rows, references = read(args.grid)
    rows = [row for row in rows if all(text in str(row) for text in args.filter)
            and args.backends[row.kind]]
    if not rows:
        sys.exit(f"serving_grid: no row has {' and '.join(args.filter)}")
    if args.dry_run:
        dry_run(args, rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(args, rows, references, folder)
    for result in wrong:
        print(f"serving_grid: {result['backend']}, {result['row']}: {result['error']}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
