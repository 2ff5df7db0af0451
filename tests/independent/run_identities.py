#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs attnhost on traces and compares its report with counts made from the trace files alone.

Prints TAP. Without arguments on small traces; with TRACE FORMAT SCALE REQUESTS on that trace, with
the figures of each run. What is expected comes from trace_model.py, which shares no code with the
host; nothing is taken from one field of a report to check itself.
"""
import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import documented_keys
import trace_model

TOP = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("ATTNHOST_TEST_COMMAND", "./attnhost")
PLUGINS = os.environ.get("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs")
LAYERS = 3
LONGEST = 1 << 16

CONFIG = f"""
[plugins]
path = {os.path.abspath(PLUGINS)}
[model]
num_layers = {LAYERS}
num_q_heads = 4
num_kv_heads = 2
head_dim = 32
layer_types = sliding full
sliding_window = 64
dtype = bf16
max_context_len = {LONGEST}
[attention]
attention_backend = cpu_native
[backend.second]
type = cpu_native
[workload]
chunked_prefill_size = 256
"""

# Every key of the report, and what it is.
COUNT, NUMBER, TEXT = (int,), (int, float), (str,)
TIMES = {"count": COUNT, "p50": NUMBER, "p90": NUMBER, "p99": NUMBER, "percentiles": [NUMBER]}
REPORT = {
    "attnhost": TEXT,
    "commit": TEXT,
    "command": TEXT,
    "plugins": [dict.fromkeys(("file", "name", "version", "sha256"), TEXT)],
    "device": {**dict.fromkeys(("name", "type", "driver"), TEXT),
               **dict.fromkeys(("id", "sm", "num_sms", "driver_version", "cpu_isa", "memory_bytes",
                                "l2_bytes", "threads"), COUNT)},
    "requests": COUNT,
    "steps": COUNT,
    "tokens": dict.fromkeys(("prefill", "decode", "prefix_hit", "recomputed"), COUNT),
    "prefix": dict.fromkeys(("shared_rows", "saved_keys", "keys"), COUNT),
    "wall_s": NUMBER,
    "virtual_s": NUMBER,
    "tokens_per_s": dict.fromkeys(("virtual", "wall"),
                                  dict.fromkeys(("prefill", "decode"), NUMBER)),
    "ttft_ms": dict.fromkeys(("virtual", "wall"), TIMES),
    "tpot_ms": dict.fromkeys(("virtual", "wall"), TIMES),
    "composition": [{"layers": TEXT, "phase": TEXT, "backend": TEXT}],
    "paths": collections.defaultdict(lambda: COUNT),
    "verify": {"rows_checked": COUNT, "rows_failed": COUNT, "detectable_share": (float, type(None)), "max_abs_err": NUMBER,
               "max_rel_err": NUMBER,
               "of_bar": dict.fromkeys(("prefill", "decode"), [(int, float, type(None))])},
    "kv": {**dict.fromkeys(("capacity", "peak", "leaked"), COUNT),
           "pools": [{"holds": TEXT, **dict.fromkeys(("layers", "bytes_per_token", "capacity",
                                                      "peak", "held", "leaked"), COUNT)}]},
    "latency_us": dict.fromkeys(("prefill", "decode"), TIMES),
    "digest": TEXT,
    "seed": COUNT,
    "series": {"steps_per_bin": COUNT, **dict.fromkeys(("virtual_s", "wall_s"), [NUMBER]),
               **dict.fromkeys(("prefill", "decode", "kv_tokens", "running"), [COUNT])},
}

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


class Tap:
    """Results in TAP. A test is ok iff it has found nothing wrong."""

    def __init__(self):
        self.count = self.failed = 0
        self.wrong = []

    @contextlib.contextmanager
    def test(self, name):
        self.wrong = []
        try:
            yield
        except Exception as error:  # whatever happens in one test, the others are run
            self.wrong.append(f"{type(error).__name__}: {error}")
        self.count += 1
        self.failed += bool(self.wrong)
        print(f"{'not ok' if self.wrong else 'ok'} {self.count} - {name}")
        for text in self.wrong:
            for line in text.splitlines():
                print(f"# {line}")
        sys.stdout.flush()

    def equal(self, what, got, expected):
        if got != expected:
            self.wrong.append(f"{what}: got {got}, expected {expected}")

    def true(self, what, holds):
        if not holds:
            self.wrong.append(f"not so: {what}")

    def end(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


class Trace:
    """A trace file, and what the independent script finds in it."""

    def __init__(self, path, form, scale, max_requests=0):
        self.path, self.form, self.scale, self.max_requests = str(path), form, scale, max_requests
        rows = trace_model.read_trace(self.path, form)
        self.rows = rows[:max_requests] if max_requests else rows

    def place(self, page_size, prefix_cache=True):
        requests = trace_model.place_requests(self.rows, self.scale, page_size)
        return requests if prefix_cache else [(0, length, n) for _, length, n in requests]

    def count(self, page_size):
        requests = self.place(page_size)
        return {
            "requests": len(requests),
            "input": sum(length for _, length, _ in requests),
            "decode": sum(max(0, n - 1) for _, _, n in requests),
            "with a token": sum(n > 0 for _, _, n in requests),
            "with two": sum(n > 1 for _, _, n in requests),
            "hit": sum(hit for hit, _, _ in requests),
            "longest": max(length + max(0, n - 1) for _, length, n in requests),
        }

    def can_lose(self, page_size):
        """Is there a hit beyond the prefix that all requests share? Only such a one can be lost
        when requests run one at a time: the shared prefix is always in use."""
        block = trace_model.scaled(trace_model.BLOCK, self.scale)
        ids = [row[4] for row in self.rows]
        shared = 0
        while all(len(one) > shared and one[shared] == ids[0][shared] for one in ids):
            shared += 1
        return any(hit > shared * block for hit, _, _ in self.place(page_size))

    def sampled(self, page_size, prefix_cache, seed, rate):
        return trace_model.count_sampled(self.place(page_size, prefix_cache), seed, rate, LAYERS)


class Runner:
    """Runs of one command with one configuration in a folder that nothing is to be left in."""

    def __init__(self, folder):
        self.config = os.path.join(folder, "run.ini")
        self.work = os.path.join(folder, "work")
        os.mkdir(self.work)
        pathlib.Path(self.config).write_text(CONFIG)

    def run(self, trace, **sets):
        """The report of a run; a key section__name is section.name."""
        return json.loads(self.start(trace, "-", sets))

    def start(self, trace, report, sets, config=None):
        """What the command writes to stdout; the report goes to this file."""
        arguments = [os.path.abspath(COMMAND), "run", config or self.config, "--quiet", "--json", report,
                     "--trace", os.path.abspath(trace.path),
                     "--max-requests", str(trace.max_requests)]
        fixed = {"workload__format": trace.form, "workload__length_scale": repr(trace.scale)}
        for key, value in {**fixed, **sets}.items():
            arguments += ["--set", f"{key.replace('__', '.')}={value}"]
        self.arguments = arguments[1:]
        done = subprocess.run(arguments, cwd=self.work, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}\nended with {done.returncode}: "
                               f"{done.stderr}{done.stdout}")
        return done.stdout


def check_times(tap, report, expected):
    """Times of requests and of steps, and the run over time, against each other and the counts."""
    tokens, series, bars = report["tokens"], report["series"], report["verify"].get("of_bar")
    steps = {phase: report["latency_us"][phase] for phase in ("prefill", "decode")}
    tap.equal("steps with a time", sum(one["count"] for one in steps.values()), report["steps"])
    for clock in ("virtual", "wall"):
        first, further = report["ttft_ms"][clock], report["tpot_ms"][clock]
        tap.equal("requests with a TTFT", first["count"], expected["with a token"])
        tap.equal("requests with a TPOT", further["count"], expected["with two"])
        total = report[clock + "_s"]
        for name, one, most in [("ttft", first, 1e3 * total), ("tpot", further, 1e3 * total)]:
            grid = one["percentiles"]
            tap.true(f"{name}, {clock}: percentiles of the run, in order",
                     grid == sorted(grid) and (not grid or 0 < grid[0] and grid[-1] <= most * 1.001))
            tap.equal(f"{name}, {clock}: p50, p90, p99", [one["p50"], one["p90"], one["p99"]],
                      [grid[50], grid[90], grid[99]] if grid else [0, 0, 0])
        ends = series[clock + "_s"]
        tap.true(f"{clock}: time goes on to its end", ends == sorted(ends)
                 and (abs(ends[-1] - total) < 1e-6 * total or clock == "wall" and ends[-1] <= total))
        for kind in ("prefill", "decode"):
            rate = report["tokens_per_s"][clock][kind]
            tap.true(f"{kind} tokens/s, {clock}", abs(rate * total - tokens[kind]) <= 1e-9 * tokens[kind])
    tap.true("virtual time is within the wall clock's", report["virtual_s"] <= report["wall_s"])
    tap.equal("rows of the series", [sum(series[kind]) for kind in ("prefill", "decode")],
              [tokens["prefill"], tokens["decode"]])
    tap.equal("bins", {len(column) for key, column in series.items() if key != "steps_per_bin"},
              {-(-report["steps"] // series["steps_per_bin"])})
    tap.true("256 bins at most", len(series["running"]) <= 256)
    tap.true("KV of the series is within the peak",
             report["kv"]["peak"] >= max(series["kv_tokens"]) > 0.5 * report["kv"]["peak"])
    tap.true("rows checked are within their bars",
             bars is None or all(0 <= one <= 1 for phase in bars.values() for one in phase if one is not None))
    tap.true("a bar is there where rows were checked", not bars or report["verify"]["rows_checked"] == 0
             or any(one is not None for phase in bars.values() for one in phase))


def check_provenance(tap, report, arguments):
    """Files and their sums as they are here, and a command line that a shell reads back."""
    for plugin in report["plugins"]:
        content = pathlib.Path(plugin["file"]).read_bytes()
        tap.equal(plugin["name"], plugin["sha256"], hashlib.sha256(content).hexdigest())
    tap.true("the backend's plugin is there",
             "cpu_native" in {plugin["name"] for plugin in report["plugins"]})
    tap.equal("command", shlex.split(report["command"])[1:], arguments)
    version = subprocess.run([os.path.abspath(COMMAND), "-V"], capture_output=True, text=True).stdout
    tap.true("version", version.startswith(f"attnhost {report['attnhost']},"))
    tap.true("commit", re.fullmatch("unknown|[0-9a-f]{40}(-dirty)?", report["commit"]))
    tap.true("device", report["device"]["type"] == "cpu" and report["device"]["threads"] >= 1)


def check_identities(tap, report, expected, rate=None):
    """What holds for every run that ends well."""
    tokens = report["tokens"]
    tap.equal("requests", report["requests"], expected["requests"])
    tap.equal("prefill + prefix_hit - recomputed",
              tokens["prefill"] + tokens["prefix_hit"] - tokens["recomputed"], expected["input"])
    tap.equal("decode", tokens["decode"], expected["decode"])
    tap.equal("rows of all paths", sum(report["paths"].values()),
              LAYERS * (tokens["prefill"] + tokens["decode"]))
    tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
    tap.equal("leaked", report["kv"]["leaked"], 0)
    tap.true("peak <= capacity", 0 < report["kv"]["peak"] <= report["kv"]["capacity"])
    check_times(tap, report, expected)
    if rate == 1:
        # A row that was hit is computed after all where its request is retracted and its page is gone by then.
        least = LAYERS * (expected["input"] - tokens["prefix_hit"] + expected["decode"])
        most = least + LAYERS * min(tokens["prefix_hit"], tokens["recomputed"])
        tap.true(f"rows_checked at rate 1: {report['verify']['rows_checked']}, accepted {least} to {most}",
                 least <= report["verify"]["rows_checked"] <= most)


def check_shape(tap, where, value, shape):
    """Exactly the keys of the shape, with values of its types."""
    if isinstance(shape, tuple):
        tap.true(f"{where} is {shape[-1].__name__}",
                 isinstance(value, shape) and not isinstance(value, bool))
    elif isinstance(shape, list):
        tap.true(f"{where} is a list with items", isinstance(value, list) and value)
        for item in value:
            check_shape(tap, f"{where}[]", item, shape[0])
    elif isinstance(shape, collections.defaultdict):
        tap.true(f"{where} has keys", isinstance(value, dict) and value)
        for key in value:
            check_shape(tap, f"{where}.{key}", value[key], shape[key])
    else:
        tap.equal(f"keys of {where}", sorted(value), sorted(shape))
        for key in sorted(set(value) & set(shape)):
            check_shape(tap, f"{where}.{key}", value[key], shape[key])


def tell(name, report):
    tokens, kv = report["tokens"], report["kv"]
    print(f"# {name}: {report['requests']} requests in {report['steps']} steps, "
          f"{report['wall_s']:.2f} s; prefill {tokens['prefill']} decode {tokens['decode']} "
          f"prefix_hit {tokens['prefix_hit']} recomputed {tokens['recomputed']}; "
          f"rows checked {report['verify']['rows_checked']} "
          f"failed {report['verify']['rows_failed']}; "
          f"kv capacity {kv['capacity']} peak {kv['peak']} leaked {kv['leaked']}")


# ---- Tests of one trace --------------------------------------------------------------------------


def one_at_a_time(tap, runner, trace, page_size, seed, rate, shares):
    """No eviction and no neighbours: the hits follow from the file alone. Returns the report."""
    report = {}
    with tap.test(f"{trace.form}, page size {page_size}: one request at a time"):
        expected = trace.count(page_size)
        report = runner.run(trace, workload__max_running_requests=1,
                            kv_cache__page_size=page_size, workload__seed=seed, verify__rate=rate)
        check_identities(tap, report, expected, rate)
        tap.equal("prefix_hit", report["tokens"]["prefix_hit"], expected["hit"])
        tap.equal("some prefix is shared", expected["hit"] > 0, shares)
        tap.equal("recomputed", report["tokens"]["recomputed"], 0)
        tap.equal("rows_checked", report["verify"]["rows_checked"],
                  trace.sampled(page_size, True, seed, rate))
        tap.equal("seed", report["seed"], seed)
    return report


def with_eviction(tap, runner, trace, page_size, seed, rate, roomy):
    """A pool that holds little more than the longest request: cached prefixes are lost."""
    report = {}
    with tap.test(f"{trace.form}, page size {page_size}: eviction costs what it takes away"):
        expected = trace.count(page_size)
        pages = -(-expected["longest"] // page_size) + 1
        report = runner.run(trace, workload__max_running_requests=1,
                            kv_cache__page_size=page_size, workload__seed=seed, verify__rate=rate,
                            kv_cache__max_total_tokens=pages * page_size)
        check_identities(tap, report, expected, rate)
        lost = expected["hit"] - report["tokens"]["prefix_hit"]
        tap.equal(f"prefix_hit falls (by {lost})", lost > 0, trace.can_lose(page_size))
        tap.true(f"no more is hit than without eviction (lost {lost})", lost >= 0)
        tap.equal("prefill rises by", report["tokens"]["prefill"] - roomy["tokens"]["prefill"],
                  lost)
        tap.equal("recomputed", report["tokens"]["recomputed"], 0)
        tap.equal("capacity", report["kv"]["capacity"], pages * page_size)
    return report


def together(tap, runner, trace, page_size, seed, rate, name, prefix_cache=False, **sets):
    """Many requests at once. Without a prefix cache the computed rows follow from the file."""
    report = {}
    with tap.test(f"{trace.form}, page size {page_size}: {name}"):
        report = runner.run(trace, workload__max_running_requests=16,
                            kv_cache__page_size=page_size, workload__seed=seed, verify__rate=rate,
                            kv_cache__prefix_cache="yes" if prefix_cache else "no", **sets)
        check_identities(tap, report, trace.count(page_size), rate)
        if not prefix_cache:
            tap.equal("prefix_hit", report["tokens"]["prefix_hit"], 0)
            tap.equal("rows_checked", report["verify"]["rows_checked"],
                      trace.sampled(page_size, False, seed, rate))
    return report


def at_once(tap, runner, trace, page_size):
    """All requests decode from the same step on: what they share follows from the file."""
    with tap.test(f"{trace.form}, page size {page_size}: shared prefixes of all at once"):
        requests = trace.count(page_size)["requests"]
        report = runner.run(trace, workload__max_running_requests=requests,
                            kv_cache__page_size=page_size, verify__rate=0.02)
        check_identities(tap, report, trace.count(page_size))
        expected = trace_model.count_shared(trace.rows, trace.scale, page_size)
        tap.true("some is shared", expected["saved_keys"] > 0)
        tap.equal("prefix", report["prefix"], expected)


def retraction(tap, runner, trace, page_size, rate, prefix_cache):
    """Outputs outgrow the pool: requests are thrown out and prefilled again."""
    cached = "with" if prefix_cache else "without"
    with tap.test(f"retraction {cached} a prefix cache, page size {page_size}"):
        expected = trace.count(page_size)
        pages = -(-expected["longest"] // page_size) + 2
        report = runner.run(trace, workload__max_running_requests=16,
                            kv_cache__page_size=page_size, verify__rate=rate, workload__seed=5,
                            kv_cache__prefix_cache="yes" if prefix_cache else "no",
                            kv_cache__max_total_tokens=pages * page_size)
        check_identities(tap, report, expected, rate)
        tap.true("something is recomputed", report["tokens"]["recomputed"] > 0)
        if not prefix_cache:
            tap.equal("rows_checked", report["verify"]["rows_checked"],
                      trace.sampled(page_size, False, 5, rate))


# ---- Small traces --------------------------------------------------------------------------------


def write_azure(path):
    """Rows out of order, several at one moment, with and without a fraction of a second."""
    lines = [AZURE_HEADER]
    for row in range(40):
        second, micro = (row * 7 // 3) % 50, (row * 123457) % 10**6
        fraction = "" if row % 5 == 0 else f".{micro:06d}7"
        lines.append(f"2023-11-16 18:1{row % 3}:{second:02d}{fraction},"
                     f"{(row * 397) % 1900 + 1},{(row * 61) % 240}")
    pathlib.Path(path).write_text("\r\n".join(lines) + "\r\n")


def write_growing(path):
    """Short prompts with long outputs, half of them with one prefix."""
    rows = []
    for row in range(14):
        ids = [7 if row % 2 else 100 + row] + ([1000 + row] if row % 3 else [])
        rows.append(json.dumps({"timestamp": row, "input_length": 512 * len(ids) - 100 * (row % 2),
                                "output_length": 900 + 37 * row, "hash_ids": ids}))
    pathlib.Path(path).write_text("\n".join(rows) + "\n")


def check_digests(tap, runner, trace):
    sets = {"workload__max_running_requests": 16, "kv_cache__page_size": 16, "verify__rate": 0.3,
            "workload__mixed": "yes"}
    with tap.test("the digest is the same with 1, 2 and 7 threads, and in a second run"):
        digests = [runner.run(trace, workload__num_threads=threads, **sets)["digest"]
                   for threads in (1, 2, 7, 2)]
        tap.true(f"one SHA-256: {digests}",
                 len(set(digests)) == 1 and len(digests[0]) == 64)
    with tap.test("another seed gives another digest"):
        other = runner.run(trace, workload__seed=2, **sets)["digest"]
        tap.true("they differ", other != digests[0])


def check_composite(tap, runner, trace):
    sets = {"workload__max_running_requests": 8, "kv_cache__page_size": 16, "verify__rate": 0.5}
    expected = trace.count(16)
    with tap.test("prefill and decode by two backends, joined by hybrid_phase"):
        alone = runner.run(trace, **sets)
        joined = runner.run(trace, attention__prefill_attention_backend="cpu_native",
                            attention__decode_attention_backend="second", **sets)
        check_identities(tap, joined, expected)
        tap.equal("tokens", joined["tokens"], alone["tokens"])
        tap.equal("digest", joined["digest"], alone["digest"])
        tap.equal("rows_checked", joined["verify"]["rows_checked"],
                  alone["verify"]["rows_checked"])
        tap.equal("composition", {(row["phase"], row["backend"]) for row in joined["composition"]},
                  {("prefill", "cpu_native"), ("decode", "second")})
        rows = {phase: sum(count for name, count in joined["paths"].items() if name.endswith(last))
                for phase, last in (("prefill", "cpu_native"), ("decode", "second"))}
        for phase in rows:
            tap.equal(f"rows of {phase}", rows[phase], LAYERS * joined["tokens"][phase])


def write_long(path, requests, output):
    """Prompts of one token with long outputs: nearly all is decode."""
    rows = [AZURE_HEADER]
    rows += [f"2023-11-16 18:10:{row % 60:02d},1,{output}" for row in range(requests)]
    pathlib.Path(path).write_text("\n".join(rows) + "\n")


def drafts(tap, runner, trace, name, **sets):
    """Counts of speculative decoding from the trace file, with the rows of the draft model's one
    layer: those of prompts, and those that stayed of requests that went on. Of the rows that were
    computed, rejected drafts among them, the sample is checked; at rate 1 that is all."""
    keys = {"draft_tokens": 4, "topk": 1, "acceptance": 0.7, "seed": 1}
    keys.update({key[len("speculative__"):]: value for key, value in sets.items()
                 if key.startswith("speculative__")})
    with tap.test(f"drafts, {name}"):
        requests = trace.place(4, False)
        expected = trace_model.count_drafts(requests, keys["draft_tokens"], keys["topk"],
                                            keys["acceptance"], keys["seed"])
        report = runner.run(trace, workload__max_running_requests=16,
                            **{"kv_cache__page_size": 4, "kv_cache__prefix_cache": "no", "speculative__draft_tokens": 4,
                               **sets})
        tokens, drafts = report["tokens"], report["speculative"]
        for key, value in expected.items():
            tap.equal(key, drafts[key], value)
        tap.equal("decode", tokens["decode"], sum(max(0, n - 1) for _, _, n in requests))
        tap.equal("rows of all paths", sum(report["paths"].values()),
                  LAYERS * (tokens["prefill"] + expected["verifications"] * keys["draft_tokens"]) +
                  tokens["prefill"] + expected["draft_extend"])
        tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
        rate = sets["verify__rate"]
        checked = report["verify"]["rows_checked"]
        tap.equal("rows_checked", checked, trace_model.count_sampled(requests, 1, rate, LAYERS) +
                  trace_model.count_sampled_drafts(
                      requests, keys["draft_tokens"], keys["topk"], keys["acceptance"], keys["seed"],
                      1, rate, LAYERS))
        if rate == 1 and tokens["recomputed"] == 0:
            tap.equal("rows_checked at rate 1", checked, sum(report["paths"].values()))
        tap.equal("leaked", report["kv"]["leaked"], 0)
    return report


def check_drafts(tap, runner, folder, trace):
    chain = drafts(tap, runner, trace, "a chain", verify__rate=0.2)
    tree = {"speculative__draft_tokens": 8, "speculative__topk": 3, "speculative__acceptance": 0.4,
            "speculative__seed": 2**63 + 5}
    drafts(tap, runner, trace, "a tree", verify__rate=0.2, **tree)
    for name, topk, acceptance in (("a chain", 1, 0.7), ("a tree", 3, 0.6),
                                   ("a tree, nothing is accepted", 2, 0)):
        drafts(tap, runner, trace, f"{name}, every row", verify__rate=1, speculative__draft_tokens=7,
               speculative__topk=topk, speculative__acceptance=acceptance)
    retracted = drafts(tap, runner, trace, "requests thrown out", verify__rate=0.2,
                       kv_cache__max_total_tokens=400)
    with tap.test("drafts: what is generated does not depend on what is drafted"):
        tap.true("something is recomputed", retracted["tokens"]["recomputed"] > 0)
        same = {"kv_cache__prefix_cache": "no", "kv_cache__page_size": 4, "verify__rate": 0.2}
        others = [runner.run(trace, speculative__draft_tokens=tokens,
                             speculative__acceptance=rate, **same)
                  for tokens, rate in ((2, 0.1), (9, 0.9))]
        digests = {run["speculative"]["digest"] for run in [chain, retracted, *others]}
        tap.equal("digests", len(digests), 1)
        tap.equal("the digest of all rows",
                  runner.run(trace, **same)["digest"], others[0]["digest"])
    path = os.path.join(folder, "long.csv")
    write_long(path, 64, 250)
    for tokens, topk, rate in ((4, 1, 0.7), (7, 3, 0.5)):
        long = drafts(tap, runner, Trace(path, "azure", 1.0), f"long outputs, rate {rate}",
                      verify__rate=0, speculative__draft_tokens=tokens, speculative__topk=topk,
                      speculative__acceptance=rate, model__num_layers=LAYERS)
        with tap.test(f"drafts: {tokens} tokens, rate {rate}: accepted as often as is expected"):
            accepted = long["speculative"]["tokens_per_verification"]
            expected = trace_model.expected_tokens(-(-(tokens - 1) // topk), rate)
            tap.true(f"{accepted:.4f} is within 2 % of {expected:.4f}",
                     abs(accepted / expected - 1) < 0.02)


def check_encoder(tap, runner, trace):
    """Prompts alone, each in one step: as many steps as it takes to put them, in order, into steps
    of so many tokens and requests."""
    requests = trace.place(4, False)
    chunk, most = max(length for _, length, _ in requests) + 50, 4
    steps = room = seats = 0
    for _, length, _ in requests:
        if length > room or seats == 0:
            steps, room, seats = steps + 1, chunk, most
        room, seats = room - length, seats - 1
    with tap.test("an encoder: prompts, whole, and nothing else"):
        report = runner.run(trace, model__attn_type="encoder_only", verify__rate=0.05,
                            workload__chunked_prefill_size=chunk,
                            workload__max_running_requests=most)
        tokens = sum(length for _, length, _ in requests)
        tap.equal("tokens", report["tokens"],
                  {"prefill": tokens, "decode": 0, "prefix_hit": 0, "recomputed": 0})
        tap.equal("requests", report["requests"], len(requests))
        tap.equal("steps", report["steps"], steps)
        tap.equal("rows", sum(report["paths"].values()), LAYERS * tokens)
        tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
        tap.equal("rows_checked", report["verify"]["rows_checked"], trace_model.count_sampled(
            [(0, length, 0) for _, length, _ in requests], 1, 0.05, LAYERS))
        tap.equal("kv", report["kv"], {"capacity": 0, "peak": 0, "leaked": 0, "pools": []})
    with tap.test("an encoder does not depend on how prompts are put together"):
        alone = runner.run(trace, model__attn_type="encoder_only", verify__rate=0.05,
                           workload__chunked_prefill_size=chunk,
                           workload__max_running_requests=1)
        tap.equal("steps", alone["steps"], len(requests))
        tap.equal("digest", alone["digest"], report["digest"])


def pools_of(report):
    return {pool["holds"]: pool for pool in report["kv"]["pools"]}


def held(report):
    return [pool["held"] for pool in report["kv"]["pools"]]


# Layers of the three, and what their queries see first: a window of 64, as all runs have it, and
# chunks of 48 next to it.
WINDOWS = (
    ("a window", {}, 2, lambda i: max(0, i - 63)),
    ("a window and chunks", {"model__layer_types": "sliding chunked full",
                             "model__attention_chunk": 48}, 2,
     lambda i: max(0, min(i - 63, i // 48 * 48))),
    ("chunks", {"model__layer_types": "full chunked full", "model__attention_chunk": 48,
                "model__sliding_window": ""}, 1, lambda i: i // 48 * 48),
)


def windows(tap, runner, trace, page_size, name, sets, layers, first_seen):
    """One request at a time in roomy pools: what is held follows from the file, in either pool."""
    same = {"workload__max_running_requests": 1, "kv_cache__page_size": page_size,
            "kv_cache__hybrid_swa_memory": "yes", "kv_cache__swa_full_tokens_ratio": 1,
            "workload__chunked_prefill_size": 32, "verify__rate": 0.05, **sets}
    for prefix_cache in (False, True):
        cached = "with" if prefix_cache else "without"
        with tap.test(f"pools, {name}, page size {page_size}, {cached} a prefix cache"):
            requests = trace.place(page_size, prefix_cache)
            report = runner.run(trace, kv_cache__prefix_cache="yes" if prefix_cache else "no",
                                **same)
            check_identities(tap, report, trace.count(page_size))
            tap.equal("prefix_hit", report["tokens"]["prefix_hit"],
                      sum(hit for hit, _, _ in requests))
            most = trace_model.count_windows(requests, page_size, 32, first_seen)
            tap.equal("held", held(report), most)
            tap.true("the window's pool holds less", most[1] < most[0])
            tap.equal("layers", pools_of(report)["window"]["layers"], layers)
            if not prefix_cache:
                tap.equal("peak", [pool["peak"] for pool in report["kv"]["pools"]], most)


def check_windows(tap, runner, trace, growing):
    for name, sets, layers, first_seen in WINDOWS:
        for page_size in (16, 3) if layers == 2 and not sets else (4,):
            windows(tap, runner, trace, page_size, name, sets, layers, first_seen)
    both = {"kv_cache__hybrid_swa_memory": "yes", "kv_cache__page_size": 4, "verify__rate": 0.2}
    with tap.test("pools: outputs are those of one pool, in mixed batches too"):
        for more in ({}, {"workload__mixed": "yes"}):
            one, two = (runner.run(trace, **{**both, **more, "kv_cache__hybrid_swa_memory": key})
                        for key in ("no", "yes"))
            tap.equal("pools", (list(pools_of(one)), list(pools_of(two))),
                      (["all"], ["all", "window"]))
            tap.equal("tokens", two["tokens"], one["tokens"])
            tap.equal("digest", two["digest"], one["digest"])
    with tap.test("pools: where that of windows is small, less is hit and as much more computed"):
        roomy, small = (runner.run(trace, workload__max_running_requests=1,
                                   kv_cache__max_total_tokens=40000,
                                   kv_cache__swa_full_tokens_ratio=ratio, **both)
                        for ratio in (1, 0.003))
        check_identities(tap, small, trace.count(4))
        lost = roomy["tokens"]["prefix_hit"] - small["tokens"]["prefix_hit"]
        tap.true(f"some hits are lost, not all: {lost}", 0 < lost < roomy["tokens"]["prefix_hit"])
        tap.equal("prefill rises by", small["tokens"]["prefill"] - roomy["tokens"]["prefill"], lost)
        tap.equal("capacity", pools_of(small)["window"]["capacity"], 120)
    longest = growing.count(4)["longest"]
    for name, more in (("all positions", {"kv_cache__max_total_tokens": longest // 4 * 4 + 8}),
                       ("windows", {"kv_cache__max_total_tokens": 20000,
                                    "kv_cache__swa_full_tokens_ratio": 0.01,
                                   "model__sliding_window": 128})):
        with tap.test(f"pools: requests are thrown out where the pool of {name} is full"):
            report = runner.run(growing, workload__max_running_requests=16,
                                **{**both, **more})
            check_identities(tap, report, growing.count(4))
            tap.true("something is recomputed", report["tokens"]["recomputed"] > 0)
    for name, more in (("a chain", {}), ("a tree", {"speculative__topk": 3})):
        drafts(tap, runner, growing, f"{name} in two pools", **both, **more)


def check_multimodal(tap, runner, trace):
    """The example: an image of 8 x 8 patches and a class token before each prompt, two layers over it,
    a backend of their own; the text model's six layers as they are without."""
    ini = str(TOP / "examples/multimodal.ini")
    config = json.loads((TOP / "examples/models/gemma3_vl.json").read_text())
    vision, text = config["vision_config"], config["text_config"]
    image = (vision["image_size"] // vision["patch_size"])**2 + 1
    layers, towers = text["num_hidden_layers"], vision["num_hidden_layers"]
    sets = {"verify__rate": 1, "plugins__path": os.path.abspath(PLUGINS)}
    with tap.test("images are encoded before prompts"):
        expected = trace.count(16)
        report = json.loads(runner.start(trace, "-", {
            **sets, "workload__max_running_requests": 1}, ini))
        tokens, paths = report["tokens"], report["paths"]
        tap.equal("tokens", tokens, {
            "prefill": expected["input"] - expected["hit"], "decode": expected["decode"],
            "prefix_hit": expected["hit"], "recomputed": 0,
            "encoded": image * expected["requests"]})
        rows = layers * (tokens["prefill"] + tokens["decode"])
        tap.equal("paths", paths,
                  {"cpu_native": rows, "tower": towers * image * expected["requests"]})
        tap.equal("rows_checked", report["verify"]["rows_checked"], sum(paths.values()))
        tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
        tap.equal("leaked", report["kv"]["leaked"], 0)
    for name, more in (("mixed batches", {"workload__mixed": "yes"}),
                       
                       ("requests thrown out", {"kv_cache__max_total_tokens": 1024,
                                                "kv_cache__hybrid_swa_memory": "no"})):
        with tap.test(f"images and {name}"):
            report = json.loads(runner.start(trace, "-", {
                **sets, "verify__rate": 0.2, "kv_cache__prefix_cache": "no", **more}, ini))
            tokens = report["tokens"]
            tap.equal("prefill - recomputed", tokens["prefill"] - tokens["recomputed"],
                      trace.count(16)["input"])
            tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
            tap.equal("leaked", report["kv"]["leaked"], 0)
            tap.true("each has an image", tokens["encoded"] >= image * trace.count(16)["requests"])
            tap.equal("whole images", tokens["encoded"] % image, 0)
            tap.equal("rows of the tower", report["paths"]["tower"], towers * tokens["encoded"])


    with tap.test("images and drafts are refused by name"):
        said = ""
        try:
            runner.start(trace, "-", {**sets, "speculative__draft_tokens": 4}, ini)
        except RuntimeError as error:
            said = str(error)
        tap.true("the message: " + said, "ended with 2" in said and
                 "speculative.draft_tokens: 4: accepted 0, as layers 6-7 are encoder_only" in said)


def whole_pages(tokens, page_size):
    return -(-tokens // page_size) * page_size


def check_cross(tap, runner, trace):
    """The example: an encoder of two layers before each request, three layers of a decoder that read
    its keys, which lie in a pool of their own."""
    ini = str(TOP / "examples/cross.ini")
    config = json.loads((TOP / "examples/models/whisper.json").read_text())
    frames, heads = config["max_source_positions"], config["decoder_attention_heads"]
    decoders, encoders = config["decoder_layers"], config["encoder_layers"]
    token = decoders * 2 * heads * (config["d_model"] // heads) * 2
    sets = {"plugins__path": os.path.abspath(PLUGINS), "workload__chunked_prefill_size": 256}
    expected = trace.count(16)
    requests = expected["requests"]

    def check(report, together, room, page_size):
        """`together` requests run at once at most, in a pool that has room for `room`."""
        tokens, pools = report["tokens"], report["kv"]["pools"]
        rows = tokens["prefill"] + tokens["decode"]
        tap.equal("prefill - recomputed", tokens["prefill"] - tokens["recomputed"], expected["input"])
        tap.equal("decode", tokens["decode"], expected["decode"])
        tap.equal("prefix_hit", tokens["prefix_hit"], 0)
        tap.equal("whole encoders", tokens["encoded"] % frames, 0)
        tap.equal("paths", report["paths"],
                  {"cpu_native": 2 * decoders * rows, "ears": encoders * tokens["encoded"]})
        tap.equal("rows_failed", report["verify"]["rows_failed"], 0)
        tap.equal("pools", [pool["holds"] for pool in pools], ["all", "encoder"])
        each, pool = whole_pages(frames, page_size), pools[1]
        tap.equal("encoders' pool", pool,
                  {"holds": "encoder", "layers": decoders, "bytes_per_token": token,
                   "capacity": room * each, "peak": together * each, "held": together * each,
                   "leaked": 0})
        tap.equal("leaked", report["kv"]["leaked"], 0)

    for name, together, room, page_size, more in (
            ("one request at a time", 1, 1, 16,
             {"workload__max_running_requests": 1, "verify__rate": 1,
              "kv_cache__max_encoder_tokens": whole_pages(frames, 16)}),
            ("the pool says how many run", 3, 3, 16,
             {"kv_cache__max_encoder_tokens": 3 * whole_pages(frames, 16) + 15}),
            ("as many as run together", 4, 4, 3,
             {"workload__max_running_requests": 4, "kv_cache__max_encoder_tokens": 4 * 102})):
        with tap.test(f"cross attention: {name}"):
            report = json.loads(runner.start(trace, "-", {
                **sets, "verify__rate": 0.1, "kv_cache__page_size": page_size, **more}, ini))
            check(report, together, room, page_size)
            tap.equal("recomputed", report["tokens"]["recomputed"], 0)
            tap.equal("encoded", report["tokens"]["encoded"], frames * requests)
            if more.get("verify__rate") == 1:
                tap.equal("rows_checked", report["verify"]["rows_checked"],
                          sum(report["paths"].values()))
    with tap.test("cross attention: what is generated does not depend on who runs beside it"):
        one, all_of_them = (json.loads(runner.start(trace, "-", {
            **sets, "verify__rate": 0.1, "workload__max_running_requests": count,
            "workload__mixed": mixed}, ini)) for count, mixed in ((1, "no"), (16, "yes")))
        tap.equal("digest", one["digest"], all_of_them["digest"])
    for key, value, part in (("speculative__draft_tokens", 4, "speculative.draft_tokens: 4: accepted "
                              "0, as layers 1-5/2 are cross layers"),
                             ("kv_cache__max_encoder_tokens", 111, "kv_cache.max_encoder_tokens: 111 "
                              "tokens: accepted 112..")):
        with tap.test(f"cross attention and {key} are refused by name"):
            said = ""
            try:
                runner.start(trace, "-", {**sets, key: value}, ini)
            except RuntimeError as error:
                said = str(error)
            tap.true("the message: " + said, "ended with 2" in said and part in said)


def check_report(tap, runner, folder, trace):
    with tap.test("--json - writes the documented keys and nothing else"):
        piped = runner.run(trace)
        check_shape(tap, "report", piped, REPORT)
    with tap.test("docs/RUN.md explains every key"):
        tap.equal("keys", documented_keys.problems(piped, True, ("paths",)), [])
    with tap.test("where the figures come from"):
        check_provenance(tap, piped, runner.arguments)
    with tap.test("docs/RUN.md explains every key of speculative decoding"):
        drafted = runner.run(trace, speculative__draft_tokens=3)
        tap.equal("keys", documented_keys.problems(drafted, True, ("paths",), ("speculative",)), [])
        broken = {**drafted, "speculative": {"drafted": 0, "unheard_of": 0}}
        tap.equal("what is wrong of others", len(documented_keys.problems(
            broken, True, ("paths",), ("speculative",))), len(drafted["speculative"]))
    with tap.test("--json FILE replaces what stood there; the text goes to stdout"):
        path = os.path.join(folder, "report.json")
        pathlib.Path(path).write_text("old " * 4000)
        text = runner.start(trace, path, {})
        written = json.loads(pathlib.Path(path).read_text())
        tap.equal("tokens", written["tokens"], piped["tokens"])
        tap.equal("digest", written["digest"], piped["digest"])
        tap.true("stdout has the digest", piped["digest"] in text)
    with tap.test("docs/RUN.md explains every line"):
        tap.equal("lines", documented_keys.line_problems(text), [])
    with tap.test("nothing was left in the working directory"):
        tap.equal("files", os.listdir(runner.work), [])


def check_pages(tap, runner, mooncake, azure, page_size, seed, rate):
    roomy = one_at_a_time(tap, runner, mooncake, page_size, seed, rate, True)
    with_eviction(tap, runner, mooncake, page_size, seed, rate, roomy)
    one_at_a_time(tap, runner, azure, page_size, seed, rate, False)


def check_short(tap, runner, trace):
    one_at_a_time(tap, runner, trace, 4, 9, 1, True)
    together(tap, runner, trace, 4, 9, 1, "every row is verified")


def part_of(cases):
    """What of them a commit runs under the sanitizers, where each takes five times as long."""
    command = ["sh", TOP / "tests/tools/part.sh", "12", "the runs under the sanitizers"]
    lines = "".join(f"{i}\n" for i in range(len(cases)))
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=sys.stdout, text=True,
                          check=True)
    return [cases[int(i)] for i in done.stdout.split()]


def check_small(tap, folder):
    runner = Runner(folder)
    azure_file, growing_file = os.path.join(folder, "azure.csv"), os.path.join(folder, "grow.jsonl")
    write_azure(azure_file)
    write_growing(growing_file)
    mini = TOP / "examples/traces/mini_mooncake.jsonl"
    mooncake, azure = Trace(mini, "mooncake", 0.1), Trace(azure_file, "azure", 0.25)
    short, growing = Trace(mini, "mooncake", 0.05, 12), Trace(growing_file, "mooncake", 0.1)
    with tap.test("the small trace has hits that can be lost"):
        tap.true("can_lose", mooncake.can_lose(16))
    cases = []

    def add(function, *arguments, **keywords):
        cases.append(functools.partial(function, tap, runner, *arguments, **keywords))

    for page_size, seed, rate in ((16, 1, 0.05), (1, 2**63 + 11, 0.1), (3, 12345, 0.02)):
        add(check_pages, mooncake, azure, page_size, seed, rate)
    for trace in (mooncake, azure):
        add(together, trace, 16, 3, 0.05, "many together")
        add(together, trace, 3, 4, 0.1, "many in mixed batches", workload__mixed="yes")
        add(together, trace, 5, 6, 0.05, "whole prompts", workload__chunked_prefill_size=-1)
        add(together, trace, 16, 3, 0.02, "many with a prefix cache", prefix_cache=True,
            workload__mixed="yes")
    add(check_short, short)
    for page_size in (16, 1):
        add(at_once, Trace(mini, "mooncake", 0.15, 30), page_size)
    for page_size in (16, 1):
        add(retraction, growing, page_size, 0.2, True)
        add(retraction, growing, page_size, 0.2, False)
    add(retraction, growing, 3, 1, True)
    add(retraction, growing, 3, 1, False)  # no hits: rows checked are known exactly
    for check in (check_digests, check_composite, check_encoder, check_multimodal,
                  check_cross):
        add(check, short)
    add(check_drafts, folder, growing)
    add(check_windows, short, growing)
    add(check_report, folder, short)
    for case in part_of(cases) if os.environ.get("ATTNHOST_TEST_SLOW") == "1" else cases:
        case()


# ---- Another trace, by hand ----------------------------------------------------------------------


def check_by_hand(tap, folder, path, form, scale, max_requests):
    runner, trace = Runner(folder), Trace(path, form, float(scale), int(max_requests))
    rate = float(os.environ.get("VERIFY_RATE", "0.001"))
    for page_size in (16, 1):
        expected = trace.count(page_size)
        print(f"# from the file, page size {page_size}: {expected}")
        shares = expected["hit"] > 0
        report = one_at_a_time(tap, runner, trace, page_size, 1, rate, shares)
        tell("one at a time", report)
        if shares:
            tell("eviction", with_eviction(tap, runner, trace, page_size, 1, rate, report))
        tell("together", together(tap, runner, trace, page_size, 1, rate, "many together"))
        tell("together, prefix cache",
             together(tap, runner, trace, page_size, 1, rate, "many with a prefix cache",
                      prefix_cache=True, workload__mixed="yes"))


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) == 1:
            check_small(tap, folder)
        elif len(sys.argv) == 5:
            check_by_hand(tap, folder, *sys.argv[1:])
        else:
            sys.exit("usage: run_identities.sh [TRACE mooncake|azure SCALE REQUESTS]")
    sys.exit(tap.end())


if __name__ == "__main__":
    main()
