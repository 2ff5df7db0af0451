#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make mutation`: do the unit tests notice when the host's code is wrong?

Each mutant (mutate.py) is compiled, linked with the unit tests of its file and run. It is
  killed      if a test fails, crashes or does not end; by the tests as they are, or else with the
              address sanitizer, under which CI runs the same tests
  equivalent  if an optimising compiler makes the same code of it as of the original
  survived    otherwise
  invalid     if it does not compile
A full run writes the report: the table between the marks. Each survivor needs a line `KEY | REASON` in
survivors.txt, and each line there a survivor; the share of killed ones must be at least --least.
Mutants are the same each time; --sample takes some of them, by --seed, and writes no report. --list
judges none: it looks whether the lines of survivors.txt name mutants that there are.
"""
import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mutate  # noqa: E402

# The unit tests of each file, quick ones first: a program of tests/, one of its cases or all, and
# whether the sanitizers look at it too, which takes long.
MEMORY_RUNS_OUT = [("schedule/check_scheduler_memory", "", False)]
SLOTS = [("cache/check_slots", "", True)] + MEMORY_RUNS_OUT
CACHE = [("cache/check_radix_cache", "core", True), ("cache/check_radix_cache", "random", False),
         ("cache/check_radix_cache", "limits", False)] + MEMORY_RUNS_OUT
SCHEDULER = [("schedule/check_scheduler", "core", True),
             ("schedule/check_scheduler", "windows", True),
             ("schedule/check_scheduler", "images", True),
             ("schedule/check_scheduler", "cross", True),
             ("schedule/check_scheduler", "hits", False),
             ("schedule/check_scheduler", "states", True),
             ("schedule/check_scheduler", "limits", True),
             ("schedule/check_scheduler", "drafts", False),
             ("schedule/check_scheduler_flight", "core", True),
             ("schedule/check_scheduler_flight", "losses", False),
             ("schedule/check_scheduler_flight", "drops", False),
             ("schedule/check_scheduler", "random", False),
             ("schedule/check_scheduler_flight", "random", False)] + MEMORY_RUNS_OUT
TESTS = {
    "cache/slots.c": SLOTS,
    "cache/request_table.c": SLOTS,
    "cache/radix_cache.c": CACHE + SCHEDULER[4:5],
    "cache/radix_window.c": CACHE + SCHEDULER[1:2] + SCHEDULER[11:13],
    "schedule/drafts.c": SCHEDULER[7:8],
    "schedule/encoder.c": SCHEDULER,
    "schedule/scheduler.c": SCHEDULER,
    "schedule/plan.c": SCHEDULER,
    "schedule/flight.c": SCHEDULER,
    "schedule/neighbours.c": SCHEDULER,
    "schedule/window.c": SCHEDULER,
}
NEEDED = list(TESTS) + ["base/error.c", "base/text.c"]  # of host/, to link these tests
OBJECTS = {  # of tests/host/, in addition to that of the same name
    "schedule/check_scheduler": ["schedule/scheduler_fixture"],
    "schedule/check_scheduler_flight": ["schedule/scheduler_fixture"],
    "schedule/check_scheduler_memory": ["schedule/scheduler_fixture"],
}
PLAIN = []
SANITIZED = ["-fsanitize=address"]
MEMORY = 4 << 30
WALL_SECONDS = 120  # a test that waits instead of computing

KILLED, KILLED_SANITIZED, EQUIVALENT, SURVIVED, INVALID = (
    "killed", "killed under ASan", "equivalent", "survived", "invalid")
KINDS = (KILLED, KILLED_SANITIZED, EQUIVALENT, SURVIVED, INVALID)


class Bench:
    """Compiles and runs one mutant at a time. The mutated file is a shared library of its own, so
    that a test is linked once."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.limits = {}  # processor seconds of each test
        self.originals = {}  # optimised code of each file
        self.linked = set()

    def command(self, *command):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def compile(self, source, flags, out):
        flags = self.options.cflags.split() + flags
        return self.command(*self.options.cc.split(), "-std=gnu11", "-w", "-pthread",
                            "-ffp-contract=off", *flags, source, "-o", out)

    def write(self, file, text):
        path = os.path.join(self.folder, os.path.basename(file))
        with open(path, "w") as written:
            written.write(text)
        return path

    def make_library(self, file, text, flags):
        return self.compile(self.write(file, text), ["-O0", "-fPIC", "-shared"] + flags,
                            os.path.join(self.folder, "mutant.so"))

    def program(self, name, file, flags):
        """The test, which opens the library instead of having `file` in it."""
        out = os.path.join(self.folder, "%s-%s-%d" % (
            *map(os.path.basename, (name, file)), len(flags)))
        if out in self.linked:
            return out
        objects = []
        for other in NEEDED:
            made = os.path.join(self.folder, "%s-%d.o" % (
                os.path.basename(other), len(flags)))
            if not os.path.exists(made):
                source = os.path.join(self.options.source, "host", other)
                if not self.compile(source, ["-c", "-O0", "-fPIC"] + flags, made):
                    sys.exit("cannot compile " + source)
            objects += [made] if other != file else []
        tests = [os.path.join(self.options.build, "tests/host", test + ".o")
                 for test in [name] + OBJECTS.get(name, [])]
        command = self.options.cc.split() + ["-pthread", "-rdynamic"]
        command += ["-Wl,-rpath," + self.folder] + flags + tests + objects
        command += [os.path.join(self.folder, "mutant.so")]
        if not self.command(*command, *self.options.libs.split(), "-o", out):
            sys.exit("cannot link " + " ".join(command))
        self.linked.add(out)
        return out

    def run(self, program, case, seconds, flags):
        """(passed, processor seconds). Without a process for each test, which costs much here."""
        environment = dict(os.environ, CK_FORK="no", ASAN_OPTIONS="hard_rss_limit_mb=4096")
        environment.pop("CK_RUN_CASE", None)
        if case:
            environment["CK_RUN_CASE"] = case

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if not flags:
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            passed = subprocess.run([program], env=environment, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL, preexec_fn=limit, cwd=self.folder,
                                    timeout=WALL_SECONDS).returncode == 0
        except subprocess.TimeoutExpired:
            passed = False
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def test(self, file, text, flags, baseline=False):
        """The name of the test that fails; "" if none does; None if it does not compile."""
        if not self.make_library(file, text, flags):
            return None
        for name, case, sanitized in TESTS[file]:
            if flags and not sanitized:
                continue
            key = (name, case, len(flags))
            if baseline and key in self.limits:
                continue
            program = self.program(name, file, flags)
            passed, seconds = self.run(program, case, self.limits.get(key, 300), flags)
            if baseline:
                self.limits[key] = int(3 * seconds) + 2
            if not passed:
                return name + (" (%s)" % case if case else "")
        return ""

    def code(self, file, text):
        """What an optimising compiler makes of it, without places in the file."""
        out = os.path.join(self.folder, "code.o")
        if not self.compile(self.write(file, text), ["-c", "-O2", "-g0"], out):
            return None
        self.command("objcopy", "--strip-all", out)
        with open(out, "rb") as code:
            return code.read()

    def baseline(self, file, text):
        for flags in (PLAIN, SANITIZED):
            failed = self.test(file, text, flags, baseline=True)
            if failed != "":
                sys.exit("%s as it is: %s" % (file, failed or "does not compile"))
        self.originals[file] = self.code(file, text)

    def judge(self, mutant, text):
        changed = mutant.apply(text)
        failed = self.test(mutant.file, changed, PLAIN)
        if failed is None:
            return INVALID, ""
        if failed:
            return KILLED, failed
        if self.code(mutant.file, changed) == self.originals[mutant.file]:
            return EQUIVALENT, ""
        failed = self.test(mutant.file, changed, SANITIZED)
        return (KILLED_SANITIZED, failed) if failed else (SURVIVED, "")


# ---- Report ----------------------------------------------------------------------------------------


def read_reasons(path):
    reasons = {}
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.startswith("#"):
                key, _, reason = line.strip().rpartition(" | ")
                if not key or not reason or key in reasons:
                    sys.exit("%s:%d: accepted lines KEY | REASON, each key once" % (path, number))
                reasons[key] = reason
    return reasons


def share(counts):
    judged = counts[KILLED] + counts[KILLED_SANITIZED] + counts[SURVIVED]
    return 100.0 * (counts[KILLED] + counts[KILLED_SANITIZED]) / judged if judged else 100.0


def count(results, file=None):
    chosen = [result for mutant, result, _ in results if file in (None, mutant.file)]
    return {kind: chosen.count(kind) for kind in KINDS}


def row(name, counts):
    return "| %s | %d | %d | %d | %d | %.1f %% | %d | %d |\n" % (
        name, sum(counts.values()) - counts[INVALID], counts[KILLED], counts[KILLED_SANITIZED],
        counts[SURVIVED], share(counts), counts[EQUIVALENT], counts[INVALID])


def table(results):
    text = ("| file | mutants | killed | killed under ASan | survived | share killed | equivalent "
            "| do not compile |\n|---|---|---|---|---|---|---|---|\n")
    for file in TESTS:
        if any(mutant.file == file for mutant, _, _ in results):
            text += row("`%s`" % file, count(results, file))
    return text + row("all", count(results))


def report(path, results):
    """Put the table between its marks; the rest stays."""
    begin, end = "<!-- table -->\n", "<!-- /table -->\n"
    with open(path) as file:
        text = file.read()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        sys.exit("%s: accepted one line %s and after it one line %s" % (
            path, begin.strip(), end.strip()))
    before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    with open(path, "w") as file:
        file.write(before + "\n" + table(results) + "\n" + after)


def stale(mutants, files, reasons):
    """Lines of survivors.txt about these files that name no mutant."""
    keys = {mutant.key for mutant in mutants}
    return [key for key in reasons if key not in keys and key.split(" | ")[0] in files]


def list_survivors(mutants, reasons):
    """Returns whether all lines of survivors.txt are mutants."""
    wrong = stale(mutants, TESTS, reasons)
    wrong += [key for key in reasons if key.split(" | ")[0] not in TESTS]
    for key in wrong:
        print("mutation: survivors.txt names no mutant: " + key, file=sys.stderr)
    return not wrong


def complain(results, reasons, least):
    survivors = [mutant.key for mutant, result, _ in results if result == SURVIVED]
    wrong = ["survivor without a reason: " + key for key in survivors if key not in reasons]
    wrong += ["reason for what is no survivor: " + key for key in reasons if key not in survivors]
    killed = share(count(results))
    if killed < least:
        wrong.append("%.1f %% are killed; accepted: at least %g %%" % (killed, least))
    for line in wrong:
        print("mutation: " + line, file=sys.stderr)
    return not wrong


# ---- The whole -------------------------------------------------------------------------------------


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def read_earlier(path, sources):
    """What an earlier run found out, of files that are the same; survivors are judged again."""
    if not path or not os.path.exists(path):
        return {}
    with open(path) as file:
        earlier = json.load(file)
    return {key: (result, by) for key, result, by, source in earlier
            if result != SURVIVED and source == digest(sources.get(key.split(" | ")[0], ""))}


def write_results(path, results, sources):
    with open(path, "w") as file:
        json.dump([[mutant.key, result, by, digest(sources[mutant.file])]
                   for mutant, result, by in results], file, indent=0)


def judge_all(options, sources, mutants, folder):
    bench = Bench(options, folder)
    earlier = read_earlier(options.resume, sources)
    results, began = [], time.time()
    for mutant in mutants:
        if mutant.key in earlier:
            results.append((mutant, *earlier[mutant.key]))
            continue
        if mutant.file not in bench.originals:
            bench.baseline(mutant.file, sources[mutant.file])
        result, by = bench.judge(mutant, sources[mutant.file])
        results.append((mutant, result, by))
        print("%4d/%d %5.0f s %-8s %s%s" % (len(results), len(mutants), time.time() - began,
                                           result, mutant.key, "  <- " + by if by else ""),
              flush=True)
    return results


def choose(options, mutants):
    if not options.sample:
        return mutants
    chosen = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return [mutant for mutant in mutants if mutant in chosen]


def read_options(here):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", default=os.path.dirname(os.path.dirname(here)))
    parser.add_argument("--build", default=".", help="folder with tests built")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cflags", default="", help="where headers are")
    parser.add_argument("--libs", default="", help="of the tests")
    parser.add_argument("--files", nargs="+", default=list(TESTS), help="of host/")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", help="write what became of each, as JSON")
    parser.add_argument("--resume", help="--results of an earlier run with fewer tests: who was\n"
                        "killed then is not judged again where the file is the same")
    parser.add_argument("--report", help="the report, to be written after a full run")
    parser.add_argument("--list", action="store_true",
                        help="judge nothing; compare survivors.txt with the mutants")
    parser.add_argument("--least", type=float, default=80, help="per cent to be killed")
    options = parser.parse_args()
    options.cflags += " -I%s/include -I%s" % (options.source, options.source)
    return options


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    options = read_options(here)
    sources, mutants = {}, []
    for file in options.files:
        with open(os.path.join(options.source, "host", file)) as source:
            sources[file] = source.read()
        mutants += mutate.mutants(file, sources[file])
    reasons = read_reasons(os.path.join(here, "survivors.txt"))
    if options.list:
        sys.exit(not list_survivors(mutants, reasons))
    for key in stale(mutants, options.files, reasons):
        sys.exit("survivors.txt names no mutant: " + key)
    with tempfile.TemporaryDirectory() as folder:
        results = judge_all(options, sources, choose(options, mutants), folder)
    print(table(results))
    if options.results:
        write_results(options.results, results, sources)
    if len(results) < len(mutants) or set(options.files) != set(TESTS):
        sys.exit(0)
    if options.report:
        report(options.report, results)
    sys.exit(not complain(results, reasons, options.least))


if __name__ == "__main__":
    main()
