#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the memory of `attnhost run` flat once it has begun?

    python3 bench/run_memory.py --attnhost build/attnhost [--requests 1000000]

A trace of that many small requests is served by a tiny model, a hundredth of its rows verified. The
resident memory of the process is sampled; what is reported is how it stands when a tenth, a quarter,
a half, three quarters and nearly all of the run's time have passed. Exit code 1: it grew by more
than --most KiB after the first tenth.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

INI = """[platform]
device = cpu
[model]
num_layers = 1
num_q_heads = 1
num_kv_heads = 1
head_dim = 16
dtype = bf16
max_context_len = 64
[attention]
attention_backend = cpu_native
[kv_cache]
page_size = 16
max_total_tokens = 65536
[workload]
trace = trace.jsonl
num_threads = 1
max_running_requests = 1024
chunked_prefill_size = 8192
[verify]
rate = 0.01
"""

# Every fourth request shares a prefix of one block with others of its number modulo 1000.
LINE = '{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [%d]}\n'


def write_trace(path, requests):
    with open(path, "w", encoding="ascii") as trace:
        for r in range(requests):
            block = r % 1000 if r % 4 == 0 else 1000 + r
            trace.write(LINE % (r, 4 + r % 7, 1 + r % 3, block))


def resident_kib(pid):
    """VmRSS, or None when the process has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None


def sample(process, every_s):
    """(seconds since the start, KiB) until the process ends."""
    samples, start = [], time.monotonic()
    while process.poll() is None:
        kib = resident_kib(process.pid)
        if kib:
            samples.append((time.monotonic() - start, kib))
        time.sleep(every_s)
    return samples


def serve(attnhost, folder):
    """The samples of the run alone: without the reading of the trace before it."""
    command = [os.path.abspath(attnhost), "run", "run.ini", "--json", "run.json"]
    with open(os.path.join(folder, "said"), "wb") as said:
        with subprocess.Popen(command, cwd=folder, stdout=said, stderr=said) as process:
            samples = sample(process, 0.05)
    if process.returncode != 0:
        with open(os.path.join(folder, "said"), encoding="utf-8") as said:
            sys.exit(f"run_memory.py: attnhost ended with {process.returncode}:\n{said.read()}")
    with open(os.path.join(folder, "run.json"), encoding="utf-8") as text:
        report = json.load(text)
    began = samples[-1][0] - report["wall_s"]
    return report, [(at - began, kib) for at, kib in samples if at >= began]


def at_share(samples, share):
    end = samples[-1][0]
    return next(kib for at, kib in samples if at >= share * end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--attnhost", default="attnhost", help="the command")
    parser.add_argument("--requests", type=int, default=1000000)
    parser.add_argument("--most", type=int, default=2048, help="KiB that it may grow by")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_trace(os.path.join(folder, "trace.jsonl"), options.requests)
        with open(os.path.join(folder, "run.ini"), "w", encoding="ascii") as ini:
            ini.write(INI)
        report, samples = serve(options.attnhost, folder)
    shares = [0.1, 0.25, 0.5, 0.75, 0.95]
    kib = [at_share(samples, share) for share in shares]
    print(f"{report['requests']} requests in {report['steps']} steps, {report['wall_s']:.1f} s, "
          f"{report['verify']['rows_checked']} rows verified")
    for share, value in zip(shares, kib):
        print(f"{share:5.0%} of the time: {value / 1024:8.2f} MiB")
    growth = max(kib) - kib[0]
    print(f"growth after the first tenth: {growth} KiB, "
          f"{growth * 1024 / options.requests:.2f} bytes a request")
    return 1 if growth > options.most else 0


if __name__ == "__main__":
    sys.exit(main())
