#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py: a plugin with one fault each, to be caught by the default run of `attnhost check`.

A mutant is a block of a file plugins/PLUGIN/tests/mutants/FAMILY.txt; what is wrong with it is
data, and the plugin's sources know nothing of it:

    mutant NAME
    what   one sentence: what is wrong
    rule   the rule of docs/ABI.md that it breaks; then `by` and the cases that find it: the first of
           the default run, and the first of the rule's own checks where the other is of another rule
    file   a file of plugins/PLUGIN, or plugins/common/FILE, and the .c files that are compiled of
           it where it is not one itself; without this line it is as in the block before. After a
           pair: the pairs that follow are of this file, too
    - text that stands in the file, once; several lines are several of these
    + what stands there instead

A block may have several pairs. Text that is not there exactly once is an error: a mutant that has
gone stale does not pass for one that was caught.

For each, what was changed is compiled again, hardly optimised and with the kernels of the baseline
alone, so that results are the same on every machine. Then

    attnhost check --fail-fast MUTANT.so                   fails by the first check that is named
    attnhost check --fail-fast --filter RULE.* MUTANT.so   fails too, where that is of another rule

and a mutant without a fault has to pass all of it, if the commit changes the plugin or the checks or
it is its turn (turn.sh of tests/tools). Without --update the named cases are run alone first: they
are cases of the default run, so where the first fails nothing else has to be looked at, but for the
second command. Of a check another case may fail. Each is run on one processor, so
with one thread but where a check asks for more: again the same on every machine, and two at a time do
not wait for each other.

A mutant that passes is skipped where the machine was too busy for a check that measures.

A sixth of the mutants is run, chosen by the commit, so that each commit runs another and all come
to be run, and a quarter of that where the commit changes neither the plugin nor the checks; with
ATTNHOST_TEST_ALL=1 in the environment, and with --update, all of them.

usage: mutants.py PLUGIN [--update] [--jobs N] [NAME]...   from the environment of `make check`
  --update  write the cases of each mutant into its block; a new mutant needs it
"""
import concurrent.futures
import glob
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

TOP = os.path.abspath(os.environ.get("ATTNHOST_TEST_SRCDIR", "."))
BUILD = os.path.abspath(os.environ.get("ATTNHOST_TEST_BUILDDIR", "."))
ATTNHOST = os.environ.get("ATTNHOST_TEST_COMMAND", BUILD + "/attnhost")
CC = shlex.split(os.environ.get("CC", "cc"))
COMMON = BUILD + "/plugins/common/.libs/libplugin_common.a"
COMMON_UNITS = sorted("plugins/common/" + os.path.basename(path) for path in glob.glob(TOP + "/plugins/common/*.c"))
CFLAGS = (
    "-std=gnu11 -fPIC -pthread -w -ffp-contract=off -fvisibility=hidden "
    f"-fno-semantic-interposition -I{TOP}/include -I{TOP}"
).split()
LDFLAGS = (
    "-shared -pthread -Wl,-z,defs,-z,now,-z,relro,-z,nodelete "
    f"-Wl,--version-script={TOP}/include/attn_plugin.map"
).split()
OPTIMISED = {"cpu_linear": "-Og"}  # mutants that fall in the first cases; else -O1: runs take longer
# A program of the plugin's tests that is `attnhost check` with checks of the plugin's own as well.
CHECK = {"hybrid": BUILD + "/plugins/hybrid/tests/hybrid_check"}
# Composites: with what they are checked, and by which cases, where none are named; the rest of the
# default run is about their children.
WITH = {"hybrid": ["--with", BUILD + "/plugins/.libs/cpu_native.so"]}
CASES = {"hybrid": ["COMP-*", "CAPS-05.*", "WORK-02.*promised"]}
SOUND = "nothing"  # the mutant without a fault
BUSY = "the machine is too busy to measure on"  # the reason of a case that was skipped for it
PARTS = 6  # of which a commit runs one: tests/tools/part.sh


class Plugin:
    def __init__(self, name):
        self.name = name
        self.sources = f"{TOP}/plugins/{name}"
        self.families = self.sources + "/tests/mutants"
        self.folder = f"{BUILD}/tests/mutants/built/{name}"
        self.optimised = OPTIMISED.get(name, "-O1")
        self.units = [file for file in self.files() if re.search("(?<!_avx2)(?<!_avx512)[.]c$", file)]

    def files(self):
        """Its sources, tests aside, as paths in its folder."""
        paths = glob.glob(self.sources + "/**/*.[chi]*", recursive=True)
        files = sorted(os.path.relpath(path, self.sources) for path in paths)
        return [file for file in files if not file.startswith("tests/")]


class Mutant:
    def __init__(self, plugin, name, place):
        self.plugin, self.name, self.place = plugin, name, place
        self.what, self.rule, self.cases = "", "", []
        self.file, self.units = "", []
        self.changes = []  # [old, new] lines and their file
        self.killer, self.own, self.seconds, self.wrong = "", "", 0.0, ""
        self.skipped = ""  # why nothing was found out

    def path(self, file):
        """Of a file, in the tree: one of plugins/common is called by it."""
        return file if file.startswith("plugins/") else f"plugins/{self.plugin.name}/{file}"

    def texts(self):
        """By path: the files with the fault."""
        texts = {}
        for old, new, file in self.changes:
            path, old, new = self.path(file), "\n".join(old), "\n".join(new)
            if path not in texts:
                with open(f"{TOP}/{path}", encoding="utf-8") as source:
                    texts[path] = source.read()
            if texts[path].count(old) != 1:
                times = texts[path].count(old)
                raise ValueError(f"{self.place}: {file} has {times} times: {old}")
            texts[path] = texts[path].replace(old, new)
        return texts


def read_line(mutant, line, place):
    """A line of a mutant's block."""
    key, _, value = line.partition(" ")
    if line[:2] in ("- ", "+ ") or line in ("-", "+"):
        if key == "-" and (not mutant.changes or mutant.changes[-1][1] is not None):
            mutant.changes.append([[], None, mutant.file])
        if key == "-":
            mutant.changes[-1][0].append(line[2:])
        else:
            mutant.changes[-1][1] = (mutant.changes[-1][1] or []) + [line[2:]]
    elif key == "rule":
        mutant.rule, *cases = value.split()
        mutant.cases = [case for case in cases if case != "by"]
    elif key == "file":
        before = mutant.units if mutant.changes else []
        mutant.file, *units = value.split()
        mutant.units = before + [u for u in units or [mutant.file] if u not in before]
    elif key == "what":
        mutant.what = value.strip()
    else:
        raise ValueError(f"{place}: '{line}': accepted mutant, what, rule, file, -, +")


def read_family(plugin, path):
    mutants = []
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line, place = line.rstrip("\n"), f"{os.path.basename(path)}:{number}"
        if line.startswith("mutant "):
            before = mutants[-1:]
            mutants.append(Mutant(plugin, line.split()[1], place))
            for other in before:
                mutants[-1].file, mutants[-1].units = other.file, other.units
        elif line and not line.startswith("#"):
            if not mutants:
                raise ValueError(f"{place}: a block begins with mutant NAME")
            read_line(mutants[-1], line, place)
    return mutants


def read_all(plugin):
    mutants = []
    for path in sorted(glob.glob(plugin.families + "/*.txt")):
        mutants += read_family(plugin, path)
    rules = open(TOP + "/docs/ABI.md", encoding="utf-8").read()
    for m in mutants:
        if not (m.what and m.rule and m.file and m.changes):
            raise ValueError(f"{m.place}: mutant {m.name} is not whole")
        if any(old and new is None for old, new, _ in m.changes):
            raise ValueError(f"{m.place}: text without what stands there instead")
        if not set(m.units) <= set(plugin.units) | set(COMMON_UNITS):
            raise ValueError(f"{m.place}: {m.units}: accepted {plugin.units + COMMON_UNITS}")
        m.texts()
        if f"| {m.rule} |" not in rules:
            raise ValueError(f"{m.place}: no rule {m.rule} in docs/ABI.md")
    names = [m.name for m in mutants]
    for name in names:
        if names.count(name) > 1 or name == SOUND:
            raise ValueError(f"mutant {name} is there twice")
    return mutants


processors = itertools.cycle(sorted(os.sched_getaffinity(0)))


def take_processor():
    """What the calling thread starts runs on one processor, another one for each thread."""
    os.sched_setaffinity(0, {next(processors)})


def start(command):
    """Exit code, all that is said, and seconds of the processor that it and its children took."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        said = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, said, usage.ru_utime + usage.ru_stime


def run(command):
    code, said, seconds = start(command)
    if code != 0:
        raise ValueError(f"{shlex.join(command)}: {said}")
    return seconds


def compile_unit(plugin, folder, unit):
    """Compile a unit that lies in the folder, into it."""
    flags = [plugin.optimised] + (["-ffp-contract=fast"] if unit.startswith("kernels_") else [])
    source = f"{folder}/{unit if unit in COMMON_UNITS else f'plugins/{plugin.name}/{unit}'}"
    return run(CC + [f"-I{folder}"] + CFLAGS + flags + ["-c", "-o", f"{source[:-2]}.o", source])


def link(plugin, folder, name, common=()):
    """The plugin from the folder's objects, and the sound ones for the rest. Units of plugins/common come before its
    library, which then leaves them out."""
    objects = [f"{folder}/{unit[:-2]}.o" for unit in common]
    for unit in plugin.units:
        place = f"plugins/{plugin.name}/{unit[:-2]}.o"
        own = f"{folder}/{place}"
        objects.append(own if os.path.exists(own) else f"{plugin.folder}/{SOUND}/{place}")
    return run(CC + LDFLAGS + ["-o", f"{folder}/{name}.so"] + objects + [COMMON, "-ldl", "-lm"])


def spread(plugin, name):
    """A folder with copies of all the plugin's files, which include each other from there."""
    folder = f"{plugin.folder}/{name}"
    common = [os.path.relpath(path, TOP) for path in glob.glob(TOP + "/plugins/common/*.h")]
    for file in [f"plugins/{plugin.name}/{file}" for file in plugin.files()] + common:
        os.makedirs(os.path.dirname(f"{folder}/{file}"), exist_ok=True)
        shutil.copyfile(f"{TOP}/{file}", f"{folder}/{file}")
    return folder


def build_sound(plugin, pool):
    shutil.rmtree(plugin.folder, ignore_errors=True)
    folder = spread(plugin, SOUND)
    list(pool.map(lambda unit: compile_unit(plugin, folder, unit), plugin.units))
    link(plugin, folder, SOUND)


def build(mutant):
    folder = spread(mutant.plugin, mutant.name)
    for path, text in mutant.texts().items():
        with open(f"{folder}/{path}", "w", encoding="utf-8") as file:
            file.write(text)
    for unit in mutant.units:
        mutant.seconds += compile_unit(mutant.plugin, folder, unit)
    common = [unit for unit in mutant.units if unit in COMMON_UNITS]
    mutant.seconds += link(mutant.plugin, folder, mutant.name, common)


def check(mutant, *filters):
    """The id of the case that failed first, "" = none, and everything that was said."""
    file = f"{mutant.plugin.folder}/{mutant.name}/{mutant.name}.so"
    # A machine that is busy with other things is no fault.
    command = [CHECK.get(mutant.plugin.name, ATTNHOST), "check", "--fail-fast", "--timeout", "3600", "--inactivity", "120", file]
    command += WITH.get(mutant.plugin.name, [])
    for pattern in filters or CASES.get(mutant.plugin.name, []):
        command += ["--filter", pattern]
    code, said, seconds = start(command)
    mutant.seconds += seconds
    failed = re.findall("^not ok [0-9]+ - [a-z_]+/([^ \n]+)$", said, re.M)
    if code not in (0, 1) or (code == 1) != bool(failed):
        raise ValueError(f"{shlex.join(command)} ends with {code}: {said[-2000:]}")
    return (failed[0] if failed else ""), said


def folders(plugin):
    """A commit that changes these is one to look at."""
    return [f"plugins/{plugin.name}", "host/check", "tests/mutants"]


def rule_of(case):
    return case.partition(".")[0]


def checks_of(cases):
    return [case.partition("/")[0] for case in cases]


def found(mutant):
    """The cases as its block names them."""
    return list(dict.fromkeys([mutant.killer, mutant.own]))


def falls_as_known(mutant):
    """By the first of its cases at least; judge() looks for another one of its own rule."""
    try:
        fails = [check(mutant, case)[0] for case in mutant.cases]
    except ValueError:  # there is no such case any more
        return False
    if not fails or not fails[0]:
        return False
    mutant.killer, mutant.own = fails[0], fails[-1] or fails[0]
    return True


def judge(mutant, update):
    try:
        build(mutant)
        if update or not falls_as_known(mutant):
            mutant.killer, said = check(mutant)
            mutant.own = mutant.killer
            mutant.skipped = BUSY if BUSY in said and not mutant.killer else ""
        if not mutant.killer:
            mutant.wrong = "" if mutant.skipped else "survives"
        elif rule_of(mutant.own) != mutant.rule:
            mutant.own, said = check(mutant, f"{mutant.rule}.*")
            mutant.skipped = BUSY if BUSY in said and not mutant.own else ""
            if not mutant.own and not mutant.skipped:
                mutant.wrong = f"passes the checks of {mutant.rule}"
        if not (update or mutant.wrong or mutant.skipped) and checks_of(found(mutant)) != checks_of(mutant.cases):
            mutant.wrong = f"is found by {found(mutant)}, expected {mutant.cases}: see --update"
        shutil.rmtree(f"{mutant.plugin.folder}/{mutant.name}")
    except ValueError as error:
        mutant.wrong = str(error)
    return mutant


def not_its_turn(plugin):
    """Why this commit does not run all of the suite on the mutant without a fault, or ""."""
    command = ["sh", TOP + "/tests/tools/turn.sh", f"mutants of {plugin.name}", *folders(plugin)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def judge_sound(plugin, update):
    sound = Mutant(plugin, SOUND, "")
    sound.what = "nothing is wrong with it, and it passes"
    sound.skipped = "" if update else not_its_turn(plugin)
    if sound.skipped:
        return sound
    try:
        killer, said = check(sound)
        sound.wrong = f"fails: {said[-2000:]}" if killer else ""
    except ValueError as error:
        sound.wrong = str(error)
    return sound


def write_cases(mutants):
    """Into the blocks of these mutants."""
    cases = {m.name: " ".join(found(m)) for m in mutants}
    for path in glob.glob(mutants[0].plugin.families + "/*.txt"):
        with open(path, encoding="utf-8") as file:
            blocks = re.split("(?m)^(?=mutant )", file.read())
        for i, block in enumerate(blocks):
            name = block.partition("\n")[0].removeprefix("mutant ")
            if name in cases:
                blocks[i] = re.sub("(?m)^(rule +[^ \n]+).*", f"\\1 by {cases[name]}", block)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(blocks))


# ---- The command ---------------------------------------------------------------------------------


def part_of_commit(mutants):
    command = ["sh", TOP + "/tests/tools/part.sh", str(PARTS), "the mutants",
               *folders(mutants[0].plugin)]
    lines = "".join(m.name + "\n" for m in mutants)
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=sys.stdout,
                          text=True, check=True)
    chosen = set(done.stdout.split())
    return [m for m in mutants if m.name in chosen]


def choose(mutants, names, update):
    if names:
        return [m for m in mutants if m.name in names]
    return mutants if update else part_of_commit(mutants)


def tap(number, name, wrong, skipped=""):
    skip = f" # SKIP {skipped}" if skipped else ""
    print(f"{'not ok' if wrong else 'ok'} {number} - {name}{skip}")
    for line in wrong.splitlines():
        print(f"# {line}")
    sys.stdout.flush()


def main(arguments):
    if not arguments or not os.path.isdir(Plugin(arguments[0]).families):
        raise ValueError(f"{arguments}: accepted PLUGIN [--update] [--jobs N] [NAME]...")
    plugin, arguments = Plugin(arguments[0]), arguments[1:]
    update = "--update" in arguments
    jobs = int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 2
    names = [a for i, a in enumerate(arguments) if a[0] != "-" and arguments[i - 1] != "--jobs"]
    mutants = read_all(plugin)
    for m in mutants:
        m.texts()  # none is stale, run or not
    chosen = choose(mutants, names, update)
    if len(chosen) < len(set(names)):
        raise ValueError(f"{names}: accepted names of mutants")
    begin, bad, number = time.monotonic(), 0, 0
    with concurrent.futures.ThreadPoolExecutor(jobs, initializer=take_processor) as pool:
        build_sound(plugin, pool)
        works = [] if names else [pool.submit(judge_sound, plugin, update)]
        works += [pool.submit(judge, m, update) for m in chosen]
        for number, work in enumerate(works, 1):
            m = work.result()
            found = m.killer or "no check fails"
            if update:  # a block needs its cases
                m.wrong = m.wrong or m.skipped
            tap(number, f"{m.name}: {found} ({m.seconds:.1f} s)", m.wrong, m.skipped)
            bad += bool(m.wrong)
    if update and not bad:
        write_cases(chosen)
    print(f"1..{number}\n# {len(chosen)} mutants in {time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        print(f"Bail out! {error}")
        sys.exit(1)
