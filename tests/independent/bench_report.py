#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `attnhost bench` on cpu_native and a second backend and checks all that it says.

Prints TAP. Pairs, operations and bytes are counted here by loops over queries and keys, figures are
computed again from the samples; nothing is taken from one field to check itself.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import documented_keys

TOP = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("ATTNHOST_TEST_COMMAND", "./attnhost")
PLUGINS = os.path.abspath(os.environ.get("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"))
FIXTURES = os.path.abspath(os.environ.get("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs"))
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
LOAD = ["--set", f"plugins.path={PLUGINS}", "--set", f"plugins.path={FIXTURES}/example_rows.so"]
QUICK = ["--seconds", "0.01"]

failures = 0
count = 0


def result(name, problems):
    global failures, count
    count += 1
    failures += bool(problems)
    print(f"{'not ' if problems else ''}ok {count} - {name}")
    for problem in problems:
        print("#", problem)


def bench(*arguments, folder=None, driver=None, kernels="cuda_fixture"):
    env = {k: v for k, v in os.environ.items() if k not in ("ATTNHOST_PLUGIN_PATH",
                                                            "ATTNHOST_LIBCUDA")}
    if driver:
        env.update(ATTNHOST_LIBCUDA=driver, ATTNHOST_FAKE_KERNELS=kernels,
                   LD_LIBRARY_PATH=f"{FIXTURES}:{env.get('LD_LIBRARY_PATH', '')}")
    return subprocess.run([COMMAND, "bench", *arguments], capture_output=True, text=True, cwd=folder,
                          env=env, stdin=subprocess.DEVNULL, timeout=300)


# ---- Counting ------------------------------------------------------------------------------------


def lengths(shape, s):
    """New tokens and keys of sequence s."""
    kv_len = shape["kv_len"][s % len(shape["kv_len"])]
    first_decode = 0 if shape["mode"] == "decode" else shape["batch"] - shape["decodes"]
    return (1 if s >= first_decode else shape["q_len"][s % len(shape["q_len"])]), kv_len


def sees(shape, i, j):
    return not (shape["window"] and j <= i - shape["window"]
                or shape["causal"] and j > i
                or shape["chunk"] and (j > i or j // shape["chunk"] != i // shape["chunk"]))


def linear_counts(shape):
    """Of the chunked form in chunks of 64, its taps, and states read where there is a prefix, and written."""
    kind, size, v_heads, v_dim = shape["kind"], SIZES[shape["dtype"]], shape["v_heads"], shape["head_v_dim"]
    k_heads, k_dim = shape.get("k_heads", 0), shape.get("head_k_dim", 0)
    delta, width = kind in ("gdn", "kda"), shape["conv_width"]
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    row = size * (channels + v_heads * v_dim)
    if "gates" in shape:
        decays = v_heads * (k_dim if kind == "kda" else 1)
        betas = 0 if kind == "mamba2" and shape["gates"] == "raw" else v_heads
        row += (decays + betas) * (size if shape["gates"] == "raw" else 4)
    state = v_heads * k_dim * v_dim * SIZES[shape.get("state_dtype", "f32")] + channels * max(width - 1, 0) * size
    tokens = flop = moved = 0
    for s in range(shape["batch"]):
        q_len, kv_len = lengths(shape, s)
        each = width * channels
        if kind != "short_conv":
            wide = (v_heads if kind == "kda" else k_heads) * k_dim + v_heads * v_dim
            each += min(q_len, 64) / 2 * (1 + delta) * wide + k_dim * v_dim * (2 + delta) * v_heads
        tokens += q_len
        flop += 2 * q_len * each
        moved += q_len * row + (2 if kv_len > q_len else 1) * state
    return {"tokens": tokens, "pairs": 0, "seen_keys": 0, "flop": flop, "bytes": moved}


def latent_counts(shape):
    """Each query head reads latents; expanded, new keys and values, while the latents are saved."""
    tokens = pairs = keys = old = 0
    for s in range(shape["batch"]):
        q_len, kv_len = lengths(shape, s)
        tokens, keys, old = tokens + q_len, keys + kv_len, old + kv_len - q_len
        pairs += sum(range(kv_len - q_len + 1, kv_len + 1))
    lora, rope, heads, new = shape["kv_lora_rank"], shape["rope_dim"], shape["q_heads"], SIZES[shape["new_kv_dtype"]]
    packed = lora + lora // 128 * 4 + rope * 2
    cached = packed if shape["layout"] == "latent_fp8" else (lora + rope) * SIZES[shape["kv_dtype"]]
    q, v, moved = lora + rope, lora, old * cached + tokens * cached
    if shape["form"] == "expanded":
        q, v = shape["nope_dim"] + rope, shape["v_head_dim"]
        moved += tokens * (q + v) * heads * new
    moved += tokens * (lora + rope) * new + tokens * heads * (q * SIZES[shape["dtype"]] + v * SIZES[shape["out_dtype"]])
    return {"tokens": tokens, "pairs": pairs, "seen_keys": keys, "flop": 2 * pairs * heads * (q + v), "bytes": moved}


def expected_counts(shape):
    if shape["kind"] != "softmax":
        return latent_counts(shape) if shape["kind"] == "mla" else linear_counts(shape)
    tokens = pairs = old = new = 0
    for s in range(shape["batch"]):
        q_len, kv_len = lengths(shape, s)
        prefix = kv_len - q_len
        seen = set()
        for i in range(prefix, kv_len):
            visible = [j for j in range(kv_len) if sees(shape, i, j)]
            pairs += len(visible)
            seen.update(visible)
        tokens += q_len
        old += sum(j < prefix for j in seen)
        new += sum(j >= prefix for j in seen)
    dims = shape["head_dim"] + shape["v_head_dim"]
    new_size, kv_size = SIZES[shape["new_kv_dtype"]], SIZES[shape["kv_dtype"]]
    rows = shape["head_dim"] * SIZES[shape["dtype"]] + shape["v_head_dim"] * SIZES[shape["out_dtype"]]
    moved = old * kv_size + new * (kv_size if shape["new_kv"] == "cached" else new_size)
    if shape["new_kv"] == "saved":
        moved += tokens * kv_size
    return {"tokens": tokens, "pairs": pairs, "seen_keys": old + new,
            "flop": 2 * dims * shape["q_heads"] * pairs,
            "bytes": dims * shape["kv_heads"] * moved + shape["q_heads"] * tokens * rows}


def quantile(values, p):
    ordered = sorted(values)
    return ordered[max(0, math.ceil(p * len(ordered)) - 1)]


# ---- Checks of a report --------------------------------------------------------------------------

TOP_KEYS = {"attnhost", "commit", "command", "plugins", "device", "regime", "seed", "seconds", "total_seconds", "ceilings",
            "results"}
RUN_KEYS = {"backend", "outcome", "graph", "layout", "calls", "samples_per_round", "one_call", "median_us",
            "p10_us", "p90_us", "best_us", "flop_per_s", "bytes_per_s", "fraction", "bound", "impossible", "ratio",
            "ratio_p10", "ratio_p90", "samples_us"}


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9)


def check_run(run, entry, first, ceilings):
    problems = []
    samples = run["samples_us"]
    if set(run) != RUN_KEYS:
        return [f"keys {sorted(set(run) ^ RUN_KEYS)}"]
    if len(samples) < (1 if run["one_call"] else 5) or min(samples) <= 0 or run["calls"] < 1:
        problems.append(f"{len(samples)} samples, the least {min(samples)}, {run['calls']} calls")
    median = quantile(samples, 0.5)
    memory = max(ceilings["read"]["bytes_per_s"], ceilings["copy"]["bytes_per_s"])
    floors = {"memory": entry["bytes"] / memory,
              "compute": entry["flop"] / ceilings["matrix"]["flop_per_s"]}
    block = run["samples_per_round"]
    rounds = range(min(len(samples), len(first["samples_us"])) // block)
    if run["one_call"] or first["one_call"]:
        ratios = [median / first["median_us"]]
    else:
        ratios = [quantile(samples[r * block:(r + 1) * block], 0.5)
                  / quantile(first["samples_us"][r * block:(r + 1) * block], 0.5) for r in rounds]
    expected = {"median_us": median, "p10_us": quantile(samples, 0.1),
                "p90_us": quantile(samples, 0.9), "best_us": min(samples),
                "flop_per_s": entry["flop"] / (median * 1e-6),
                "bytes_per_s": entry["bytes"] / (median * 1e-6),
                "fraction": max(floors.values()) / (median * 1e-6),
                "ratio": quantile(ratios, 0.5), "ratio_p10": quantile(ratios, 0.1),
                "ratio_p90": quantile(ratios, 0.9)}
    problems += [f"{key}: {run[key]}, expected {value}" for key, value in expected.items()
                 if not close(run[key], value)]
    if floors[run["bound"]] != max(floors.values()):
        problems.append(f"bound {run['bound']} of {floors}")
    if run["impossible"] != (run["fraction"] > 1.25):
        problems.append(f"impossible: {run['impossible']} of {run['fraction']}")
    return problems


def check_entry(entry, backends, ceilings):
    problems = [f"{key}: {entry[key]}, expected {value}"
                for key, value in expected_counts(entry["shape"]).items() if entry[key] != value]
    if entry["compute_ceiling"] != "matrix":  # on the CPU all is multiplied in fp32
        problems.append(f"compute_ceiling {entry['compute_ceiling']}")
    runs = entry["backends"]
    if [run["backend"] for run in runs] != backends:
        problems.append(f"backends {[run['backend'] for run in runs]}")
    for run in runs:
        if run["outcome"] != "ran":
            problems.append(f"{run['backend']}: {run['outcome']}: {run['why']}")
        else:
            problems += check_run(run, entry, runs[0], ceilings)
    return [f"{entry['text']}: {problem}" for problem in problems]


def check_ceilings(ceilings):
    problems = [] if ceilings["matrix_dtype"] == "f32" else [f"matrix_dtype {ceilings['matrix_dtype']}"]
    for name, amount, rate in (("copy", "bytes", "bytes_per_s"), ("read", "bytes", "bytes_per_s"),
                               ("matrix", "flop", "flop_per_s")):
        ceiling = ceilings[name]
        median = quantile(ceiling["samples_us"], 0.5)
        if len(ceiling["samples_us"]) < 5 or not close(ceiling[rate],
                                                       ceiling[amount] / (median * 1e-6)):
            problems.append(f"ceiling {name}: {ceiling[rate]}")
    return problems


def check_report(report, seed, shapes, backends):
    problems = []
    if set(report) != TOP_KEYS:
        problems.append(f"keys {sorted(set(report) ^ TOP_KEYS)}")
    problems += documented_keys.problems(report, False)
    if report["seed"] != seed or report["device"]["type"] != "cpu" or report["device"]["threads"] < 1:
        problems.append(f"seed {report['seed']}, device {report['device']}")
    if report["regime"] != {"name": "cool", "sustain_s": 0, "rest": 0, "max_sms": 0, "batch_invariant": False}:
        problems.append(f"regime {report['regime']}")
    if len(report["results"]) != shapes:
        problems.append(f"{len(report['results'])} results, expected {shapes}")
    problems += check_ceilings(report["ceilings"])
    for entry in report["results"]:
        problems += check_entry(entry, backends, report["ceilings"])
    return problems


# ---- Runs ----------------------------------------------------------------------------------------

SMALL = "q_heads=4,kv_heads=2,head_dim=16,"


def two_backends():
    seed = 2**64 - 1
    done = bench("--backend", "cpu_native,example_rows", *LOAD, *QUICK, "--seed", str(seed), "--json",
                 "-", "--shape", SMALL + "batch=3,kv_len=33+70:64,v_head_dim=24",
                 "--shape", SMALL + "mode=extend,batch=2,q_len=9,kv_len=20+31,window=0:7,causal=yes",
                 "--shape", SMALL + "mode=mixed,batch=3,decodes=1,q_len=5,kv_len=40,dtype=f32")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    problems = check_report(json.loads(done.stdout), seed, 5, ["cpu_native", "example_rows"])
    return problems + ([f"on stderr: {done.stderr}"] if done.stderr else [])


def shapes_of_one_backend():
    done = bench("--backend", "cpu_native", *LOAD, *QUICK, "--json", "-",
                 "--shape", SMALL + "mode=extend,kv_len=30,chunk=8,causal=no,kv_dtype=fp8_e4m3",
                 "--shape", SMALL + "mode=extend,q_len=4,kv_len=30,causal=no,new_kv=args",
                 "--shape", SMALL + "kv_len=30,new_kv=cached,kv_dtype=fp8_e5m2,scales=head",
                 "--shape", SMALL + "kv_len=30,layout=hnd,sinks=yes,alibi=yes,logit_cap=20")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    return check_report(json.loads(done.stdout), 1, 4, ["cpu_native"])


LATENT = "kind=mla,heads=4,kv_lora_rank=128,rope_dim=16,nope_dim=32,page_size=16,"
LINEAR = "batch=2,k_heads=2,v_heads=4,head_k_dim=16,head_v_dim=24,"


def latent_layers():
    """Decode, verification, a prompt in both forms, and latents of fp8 in both layouts."""
    done = bench("--backend", "cpu_native", *LOAD, *QUICK, "--json", "-",
                 "--shape", LATENT + "batch=2,kv_len=33+70", "--shape", LATENT + "mode=extend,q_len=3,kv_len=40",
                 "--shape", LATENT + "mode=extend,batch=2,kv_len=9+20,form=absorbed:expanded",
                 "--shape", LATENT + "kv_len=40,kv_dtype=fp8_e4m3,layout=any:latent_fp8")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr, done.stdout]
    return check_report(json.loads(done.stdout), 1, 6, ["cpu_native"])


def recurrent_layers():
    """Each family as decode, as a prompt, and going on from states; states of both types and layouts."""
    shapes = [LINEAR + f"kind={kind},{mode}" for kind in ("gdn", "kda", "mamba2", "lightning")
              for mode in ("state_dtype=f32:bf16", "mode=extend,kv_len=70,layout=vk",
                           "mode=extend,q_len=3+5,kv_len=90,layout=kv,conv_width=0")]
    shapes += ["kind=short_conv,batch=2,v_heads=4,head_v_dim=8,kv_len=9",
               "kind=short_conv,mode=mixed,batch=3,decodes=1,v_heads=4,head_v_dim=8,q_len=5,kv_len=9",
               LINEAR + "kind=gdn:mamba2,gates=computed,dtype=f32"]
    done = bench("--backend", "cpu_linear", *LOAD, *QUICK, "--json", "-",
                 *(part for shape in shapes for part in ("--shape", shape)))
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr, done.stdout]
    return check_report(json.loads(done.stdout), 1, 20, ["cpu_linear"])


def fp8_inputs():
    """Queries of fp8, new keys of fp8 or 16 bits, outputs of any type, on the CPU."""
    shapes = {
        "mode=extend,q_len=4,kv_len=30,dtype=fp8_e4m3":
            ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", "bf16", "tensor"),
        "batch=2,kv_len=30,dtype=fp8_e5m2,new_kv_dtype=bf16,kv_dtype=fp8_e4m3,out_dtype=f16,"
        "input_scales=head": ("fp8_e5m2", "bf16", "fp8_e4m3", "f16", "head"),
        "mode=mixed,batch=3,q_len=4,kv_len=30,dtype=fp8_e4m3,out_dtype=fp8_e4m3,"
        "input_scales=seq_head": ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3", "fp8_e4m3", "seq_head"),
        "mode=extend,q_len=4,kv_len=30,new_kv=args,new_kv_dtype=fp8_e4m3,kv_dtype=fp8_e4m3":
            ("bf16", "fp8_e4m3", "fp8_e4m3", "bf16", "tensor"),
    }
    done = bench("--backend", "cpu_native", *LOAD, *QUICK, "--json", "-",
                 *(part for shape in shapes for part in ("--shape", SMALL + shape)))
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    report = json.loads(done.stdout)
    problems = check_report(report, 1, len(shapes), ["cpu_native"])
    for entry, wanted in zip(report["results"], shapes.values()):
        shape = entry["shape"]
        got = tuple(shape[key] for key in ("dtype", "new_kv_dtype", "kv_dtype", "out_dtype",
                                           "input_scales"))
        if got != wanted:
            problems.append(f"{got}, expected {wanted}")
    return problems


def fp8_beside_bf16():
    """fa3_like, whose kernels the fake driver has as host functions: the device is found by what serves bf16,
    and of products of fp8 no ceiling is known; None without nvcc, where there are no kernels. Long sequences,
    of which little is seen: few copies fit into the fake device's memory, and each is slow. --sustain leaves out
    the rests, four times as long as the calls."""
    done = bench("--backend", "fa3_like", "--set", f"plugins.path={PLUGINS}/fa3_like.so",
                 "--set", "backend.fa3_like.tiles=always", *QUICK, "--sustain", "0.001", "--json", "-", "--shape",
                 "mode=extend,q_heads=1,kv_heads=1,q_len=20,kv_len=32768,window=16,"
                 "dtype=bf16:fp8_e4m3,input_scales=seq_head",
                 driver=f"{FIXTURES}/fake_fa3_kernels.so", kernels="fa3_like")
    if "as configure found no nvcc" in done.stdout:
        return None
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr, done.stdout]
    report = json.loads(done.stdout)
    problems = []
    for entry, ceiling, dtype in zip(report["results"], ("matrix", None), ("bf16", "fp8_e4m3")):
        run = entry["backends"][0]
        if run["outcome"] != "ran" or run["layout"] != "kv.nhd/1":
            problems.append(f"{run}")
        got = (entry["shape"]["dtype"], entry["shape"]["kv_dtype"], entry["compute_ceiling"])
        if got != (dtype, dtype, ceiling):
            problems.append(f"{got}")
        problems += [f"{key}: {entry[key]}, expected {value}"
                     for key, value in expected_counts(entry["shape"]).items() if entry[key] != value]
    if len(report["results"]) != 2 or report["device"]["type"] != "cuda":
        problems.append(f"{len(report['results'])} results on {report['device']}")
    if report["ceilings"]["matrix_dtype"] != "bf16":
        problems.append(f"{report['ceilings']}")
    return problems


def table_and_file(folder):
    path = os.path.join(folder, "report.json")
    done = bench("--backend", "cpu_native", "--backend", "example_rows", *LOAD, *QUICK, "--json", path,
                 "--shape", SMALL + "kv_len=64")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    problems = check_report(report, 1, 1, ["cpu_native", "example_rows"])
    text = report["results"][0]["text"]
    rows = done.stdout.partition(text + "\n")[2].splitlines()
    if [row.split()[0] for row in rows] != ["cpu_native", "example_rows"]:
        problems.append(f"rows of the table: {rows}")
    problems += [f"wider than 80 columns: {line}" for line in done.stdout.splitlines() if len(line) > 80]
    if "ceilings  copy " not in done.stdout or "of ceiling" not in done.stdout:
        problems.append(done.stdout)
    return problems


def too_slow():
    """A call that takes long is made once, and the time that is given is kept."""
    begin = time.monotonic()
    done = bench("--backend", "portable", *LOAD, "--set", "backend.portable.type=cpu_native", "--set",
                 "backend.portable.isa=generic", "--seconds", "0.1", "--json", "-", "--shape",
                 "mode=prefill,batch=1,kv_len=1024:1025:1026:1027:1028:1029:1030:1031:1032")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    report = json.loads(done.stdout)
    first, *others = [entry["backends"][0] for entry in report["results"]]
    problems = []
    if not first["one_call"] or len(first["samples_us"]) != 1 or first["calls"] != 1:
        problems.append(f"first: {first}")
    for other in others:
        if other["outcome"] != "left out" or not other["why"].startswith("0.1 s had passed; a call "):
            problems.append(f"another: {other}")
    # Eight more calls would have taken so long.
    if time.monotonic() - begin > 30 + 8 * first["median_us"] * 1e-6:
        problems.append(f"{time.monotonic() - begin} s")
    return problems


def kept_up():
    done = bench("--backend", "cpu_native", *LOAD, *QUICK, "--sustain", "0.2", "--json", "-",
                 "--set", "platform.max_sms=7", "--set", "attention.batch_invariant=yes", "--shape", SMALL + "kv_len=64")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    regime = json.loads(done.stdout)["regime"]
    expected = {"name": "kept up", "sustain_s": 0.2, "rest": 0, "max_sms": 7, "batch_invariant": True}
    return [] if regime == expected else [str(regime)]


INI = f"""
[plugins]
path = {PLUGINS}
path = {FIXTURES}/example_rows.so
[model]
num_layers = 4
num_q_heads = 4
num_kv_heads = 2
head_dim = 16
layer_types = sliding full
sliding_window = 24
dtype = f32
max_context_len = 512
[kv_cache]
page_size = 8
[attention]
prefill_attention_backend = example_rows
decode_attention_backend = cpu_native
[workload]
chunked_prefill_size = 40
max_running_requests = 6
"""


def model(folder):
    path = os.path.join(folder, "model.ini")
    with open(path, "w", encoding="utf-8") as file:
        file.write(INI)
    done = bench(path, *QUICK, "--json", "-")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    problems = []
    wanted = [("layers 0,2", "extend", 1, 24, "example_rows"), ("layers 0,2", "decode", 6, 24,
                                                                "cpu_native"),
              ("layers 1,3", "extend", 1, 0, "example_rows"), ("layers 1,3", "decode", 6, 0,
                                                               "cpu_native")]
    report = json.loads(done.stdout)
    for entry, (origin, mode, batch, window, backend) in zip(report["results"], wanted):
        shape = entry["shape"]
        got = (entry["origin"], shape["mode"], shape["batch"], shape["window"],
               entry["backends"][0]["backend"])
        if got != (origin, mode, batch, window, backend):
            problems.append(f"{got}")
        if (shape["kv_len"], shape["page_size"], shape["dtype"]) != ([40], 8, "f32"):
            problems.append(f"{shape}")
        problems += check_entry(entry, [backend], report["ceilings"])
    if len(report["results"]) != 4:
        problems.append(f"{len(report['results'])} results")
    done = bench(path, *QUICK, "--json", "-", "--backend", "cpu_native", "--shape",
                 "kv_len=50,head_dim=32")
    for entry in json.loads(done.stdout)["results"]:
        shape = entry["shape"]
        if (shape["kv_len"], shape["head_dim"], shape["q_heads"]) != ([50], 32, 4):
            problems.append(f"{shape}")
    return problems


def hybrid_model():
    """Each group of Qwen3-Next's layers on its backend; the kind is the model's."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/qwen3_next.ini")
    given = [path, "--set", f"plugins.path={PLUGINS}", *QUICK, "--shape", "batch=2,kv_len=40"]
    done = bench(*given, "--json", "-")
    if done.returncode != 0:
        return [f"exit code {done.returncode}", done.stderr]
    report = json.loads(done.stdout)
    got = [(entry["shape"]["kind"], entry["backends"][0]["backend"]) for entry in report["results"]]
    problems = [] if got == [("gdn", "cpu_linear"), ("softmax", "portable")] else [str(got)]
    for entry in report["results"]:
        problems += check_entry(entry, [entry["backends"][0]["backend"]], report["ceilings"])
    done = bench(*given, "--shape", "kind=gdn,batch=2")
    said = "kind is not that of layers 3; accepted: shapes without kind"
    if done.returncode != 2 or said not in done.stderr:
        problems += [f"exit code {done.returncode}", done.stderr]
    return problems


# ---- The device ----------------------------------------------------------------------------------

# Small batches: the fake driver's kernels are slow, and a bench rests four times as long as it works.
DRIVER = f"{FIXTURES}/fake_cuda_kernels.so"
ON_FAKE = ["--set", f"plugins.path={PLUGINS}/cpu_native.so", "--set",
           f"plugins.path={FIXTURES}/cuda_fixture.so"]
AUTO_INI = """
[model]
num_layers = 1
num_q_heads = 4
head_dim = 8
dtype = f32
max_context_len = 64
[workload]
chunked_prefill_size = 4
max_running_requests = 1
"""
NAMED = ["--set", "attention.attention_backend=cpu_native"]
SHAPE = ["--shape", "q_heads=4,kv_heads=2,head_dim=8,kv_len=20,dtype=f32"]


def automatic_device(folder):
    """Where bench runs with platform.device = auto: the device, and who ran there."""
    path = os.path.join(folder, "auto.ini")
    with open(path, "w", encoding="utf-8") as file:
        file.write(AUTO_INI)
    problems = []
    for driver, device, ran, arguments in (
            (DRIVER, "cuda", ["cuda_fixture"] * 2, [path]),
            (DRIVER, "cpu", ["cpu_native"] * 2, [path, *NAMED]),
            (DRIVER, "cpu", ["cpu_native"] * 2, [path, "--backend", "cpu_native"]),
            (DRIVER, "cuda", ["cuda_fixture"] * 2, [path, *NAMED, "--backend", "cuda_fixture"]),
            (DRIVER, "cuda", ["cuda_fixture"] * 2, ["--backend", "cuda_fixture,cuda_fixture", *SHAPE]),
            (DRIVER, "cuda", ["cuda_fixture"],
             ["--device", "cuda:0", "--backend", "cpu_native,cuda_fixture", *SHAPE]),
            (DRIVER, "cpu", ["cpu_native"],
             ["--device", "cpu", "--backend", "cuda_fixture,cpu_native", *SHAPE]),
            (DRIVER, "cpu", [], ["--device", "cpu", "--backend", "cuda_fixture", *SHAPE]),
            ("/nowhere/libcuda.so.1", "cpu", ["cpu_native"],
             ["--backend", "cuda_fixture,cpu_native", *SHAPE]),
            ("/nowhere/libcuda.so.1", "cpu", ["cpu_native"] * 2, [path]),
            ("/nowhere/libcuda.so.1", "cpu", [], ["--backend", "cuda_fixture", *SHAPE])):
        done = bench(*arguments, *ON_FAKE, *QUICK, "--json", "-", driver=driver)
        if done.returncode != (0 if ran else 4):
            problems += [f"{arguments}: exit code {done.returncode}", done.stderr]
            continue
        report = json.loads(done.stdout)
        got = (report["device"]["type"], [run["backend"] for entry in report["results"]
                                          for run in entry["backends"] if run["outcome"] == "ran"])
        if got != (device, ran):
            problems.append(f"{arguments}: {got}, expected {(device, ran)}")
        said = "attnhost bench: device: cpu (auto; cuda:0: " in done.stderr
        if said != (driver != DRIVER and "--backend" not in arguments):
            problems.append(f"{arguments}: on stderr: {done.stderr}")
    return problems


def two_devices(folder):
    """Backends that no device serves together are refused, whichever is named first."""
    path = os.path.join(folder, "two.ini")
    with open(path, "w", encoding="utf-8") as file:
        file.write(AUTO_INI)
    problems = []
    for backends in ("cpu_native,cuda_fixture", "cuda_fixture,cpu_native"):
        for measured in ([path], SHAPE, ["--shape", "head_dim=1024,kv_len=20,dtype=f32", *SHAPE]):
            done = bench(*measured, "--backend", backends, *ON_FAKE, *QUICK, "--json", "-",
                         driver=DRIVER)
            said = ("--backend: cpu_native runs on cpu and cuda_fixture on cuda:0, with no device in "
                    "common; accepted: ")
            if done.returncode != 2 or done.stdout or said not in done.stderr:
                problems += [f"{backends}: {measured}: {done.returncode}", done.stderr, done.stdout]
    return problems


# ---- Refusals ------------------------------------------------------------------------------------


def refused(code, texts, *arguments, table=False):
    """The command ends with this code and says each text on stderr (or in its table)."""
    with tempfile.TemporaryDirectory() as folder:
        done = bench(*arguments, folder=folder)
        left = os.listdir(folder)
    said = " ".join((done.stdout if table else done.stderr).split())  # wherever lines are folded
    problems = [f"lacks: {text}" for text in texts if text not in said]
    if done.returncode != code:
        problems.append(f"exit code {done.returncode}, expected {code}")
    if not table and done.stdout:
        problems.append(f"on stdout: {done.stdout}")
    if left:
        problems.append(f"left behind: {left}")
    return problems + [done.stderr, done.stdout] if problems else []


NATIVE = ["--backend", "cpu_native", *LOAD]
REFUSED = [
    ("nothing is given", ["no backend is given; accepted: CONFIG.ini, or --backend NAME"]),
    ("no shape", ["no shape is given; accepted: CONFIG.ini, or --shape"], *NATIVE),
    ("an unknown key of a shape", ["'kv_ln' is not a key, did you mean 'kv_len'?", "accepted: kind, mode"],
     *NATIVE, "--shape", "kv_ln=5"),
    ("a key of another kind", ["head_dim is not a key of kind=mla; accepted: kind, mode, batch"],
     *NATIVE, "--shape", "kind=mla,head_dim=64"),
    ("labels in e5m2", ["label_dtype = fp8_e5m2", "accepted f32, f16, bf16, or fp8_e4m3"],
     *NATIVE, "--shape", "kind=sparse,label_dtype=fp8_e5m2"),
    ("a wrong value of a shape", ["batch = 'many' is not a number in range", "accepted: 1 to 65536"],
     *NATIVE, "--shape", "batch=many"),
    ("an unknown backend", ["'cpu_nativ' is not a known backend", "did you mean cpu_native?", "accepted: "],
     "--backend", "cpu_native,cpu_nativ", *LOAD, "--shape", "kv_len=64"),
    ("an empty name of a backend", ["--backend cpu_native,: an empty name", "accepted: NAME"],
     "--backend", "cpu_native,", *LOAD, "--shape", "kv_len=64"),
    ("seconds that are none", ["--seconds 'soon': accepted a number of seconds from 0 to 3600"],
     *NATIVE, "--shape", "kv_len=64", "--seconds", "soon"),
    ("too long a load", ["--sustain '4000': accepted a number of seconds"],
     *NATIVE, "--shape", "kv_len=64", "--sustain", "4000"),
    ("an unknown device", ["platform.device = 'tpu'", "accepted: "],
     *NATIVE, "--shape", "kv_len=64", "--device", "tpu"),
    ("a simulated device", ["platform.simulate", "cannot run"],
     *NATIVE, "--shape", "kv_len=64", "--set", "platform.simulate=sm90"),
    ("no such ini", ["none.ini"], "none.ini"),
    ("JSON that cannot be written", ["--json /nowhere/x.json", "accepted: a regular file"],
     *NATIVE, "--shape", "kv_len=64", "--json", "/nowhere/x.json"),
    ("an unknown option", ["--help"], "--shapes", "kv_len=64", "--bach=2"),
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        result("two backends, shapes and figures", two_backends())
        result("all kinds of shapes", shapes_of_one_backend())
        result("latent layers", latent_layers())
        result("recurrent layers", recurrent_layers())
        result("fp8 queries, new keys and outputs", fp8_inputs())
        on_fake = fp8_beside_bf16()
        result("fp8 beside bf16 on a GPU" + (" # SKIP built without nvcc" if on_fake is None else ""),
               on_fake or [])
        result("a table and a file", table_and_file(folder))
        result("a slow backend is called once, and the time is kept", too_slow())
        result("kept up by a load", kept_up())
        result("a model's layer groups on the backends that it chooses", model(folder))
        result("a model of recurrent and full layers", hybrid_model())
        result("platform.device = auto", automatic_device(folder))
        result("backends of two devices", two_devices(folder))
    for name, texts, *arguments in REFUSED:
        result(name, refused(2, texts, *arguments))
    result("a missing device", refused(
        4, ["platform.device"], *NATIVE, "--shape", "kv_len=64", "--device", "cuda:7"))
    result("no backend serves a shape", refused(
        4, ["refused: head_dim 1024: accepted 1..512", "of ceiling"], *NATIVE, *QUICK, "--shape",
        "kv_len=32,head_dim=64:1024", table=True))
    result("fp8 queries that are not served", refused(
        4, ["refused: ", "q_dtype fp8_e4m3: accepted "], "--backend", "example_rows", *LOAD, *QUICK,
        "--shape", "kv_len=32,dtype=fp8_e4m3", table=True))
    result("a backend that refuses next to one that serves", refused(
        0, ["refused: ", "kv_dtype fp8_e4m3: accepted bf16", "of ceiling"], "--backend",
        "example_rows,cpu_native", *LOAD, *QUICK, "--shape", "kv_len=32,kv_dtype=fp8_e4m3",
        table=True))
    result("a refused plugin that is critical", refused(
        3, ["no_entry"], *NATIVE, "--set", f"plugins.path={FIXTURES}/fixture_no_entry.so", "--set",
        "plugins.critical=fixture_no_entry", "--shape", "kv_len=32"))
    help_text = bench("--help")
    result("help", [] if help_text.returncode == 0 and "kv_len" in help_text.stdout
           and "exit codes" in help_text.stdout.lower() else [help_text.stdout, help_text.stderr])
    print(f"1..{count}")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
