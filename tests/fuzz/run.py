#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzz parsers with libFuzzer, one after the other, one process at a time.

A parser is done when it has had --seconds of processor time and the last --quiet of them brought
no new edge. Ends with 1 at the first finding, whose input stays in --found.

With --update the corpora become the fewest inputs that reach every edge reached; inputs that are
named regression-* stay.
"""
import argparse
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

COVERAGE = re.compile(r"^#\d+\t.*\bcov: (\d+)")
EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)")
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=512"]


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Edges and executions, as the fuzzer's stderr tells them."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        self.first = self.edges = self.executions = 0
        self.grown_at = 0.0  # processor time
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stderr:
            self.log.write(line)
            coverage, executions = COVERAGE.match(line), EXECUTIONS.match(line)
            if coverage and int(coverage.group(1)) > self.edges:
                self.edges = int(coverage.group(1))
                self.first = self.first or self.edges
                self.grown_at = cpu_seconds(self.process.pid)
            if executions:
                self.executions = int(executions.group(1))


def fuzz(name, options):
    """True if nothing was found."""
    found = os.path.join(options.found, name)
    corpus = os.path.join(options.corpora, name)
    os.makedirs(found, exist_ok=True)
    os.makedirs(corpus, exist_ok=True)
    command = [program(name, options), "-max_len=%d" % options.max_len, "-print_final_stats=1",
               "-artifact_prefix=%s/%s-" % (options.found, name)] + LIMITS + [found, corpus]
    cpu = 0.0
    with open(os.path.join(options.found, name + ".log"), "w") as log:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
        watch = Watch(process, log)
        while process.poll() is None:
            time.sleep(1)
            try:
                cpu = cpu_seconds(process.pid)
            except (OSError, IndexError):
                break
            if cpu >= options.seconds and cpu - watch.grown_at >= options.quiet:
                process.send_signal(signal.SIGINT)
                break
        status = process.wait()
        watch.thread.join()
    artifacts = glob.glob(os.path.join(glob.escape(options.found), name + "-*"))
    print("%s: %.1f processor minutes, %d executions, %d edges (%d at the start), the last new one "
          "%.1f minutes before the end, %d findings"
          % (name, cpu / 60, watch.executions, watch.edges, watch.first,
             (cpu - watch.grown_at) / 60, len(artifacts)), flush=True)
    for artifact in artifacts:
        print("  " + artifact, flush=True)
    if not watch.edges or (status and not artifacts and status != 72):  # 72: interrupted
        sys.exit("%s ended with %d; see %s.log" % (name, status, found))
    return not artifacts


def update(name, options):
    found, corpus = os.path.join(options.found, name), os.path.join(options.corpora, name)
    merged = os.path.join(options.found, name + ".merged")
    shutil.rmtree(merged, ignore_errors=True)
    os.makedirs(merged)
    # What libFuzzer merges into stays, so that no other input is kept for an edge of these.
    for entry in os.listdir(corpus):
        if entry.startswith("regression-"):
            shutil.copy(os.path.join(corpus, entry), merged)
    # Edges alone, not how often each is passed: a corpus for replay, not for the fuzzer.
    subprocess.run([program(name, options), "-merge=1", "-use_counters=0"] + LIMITS +
                   [merged, found, corpus], check=True, stderr=subprocess.DEVNULL)
    shutil.rmtree(corpus)
    shutil.copytree(merged, corpus)
    sizes = [os.path.getsize(os.path.join(corpus, entry)) for entry in os.listdir(corpus)]
    print("%s: %d inputs, %d bytes" % (name, len(sizes), sum(sizes)), flush=True)


def program(name, options):
    return os.path.abspath(os.path.join(options.programs, "fuzz_" + name))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parsers", nargs="+")
    parser.add_argument("--programs", required=True, help="folder of fuzz_NAME")
    parser.add_argument("--corpora", required=True)
    parser.add_argument("--found", default="fuzz-found", help="folder of what is found")
    parser.add_argument("--seconds", type=float, default=600, help="processor time for each")
    parser.add_argument("--quiet", type=float, default=120, help="of them without a new edge")
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--update", action="store_true", help="write the corpora")
    options = parser.parse_args()
    options.quiet = min(options.quiet, options.seconds)
    os.makedirs(options.found, exist_ok=True)
    good = True
    for name in options.parsers:
        good = fuzz(name, options) and good
        if options.update:
            update(name, options)
    sys.exit(not good)


if __name__ == "__main__":
    main()
