#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`attnhost report` of a run and a bench: well-formed, every figure there and drawn, and the numbers below
each figure are those of the JSON files. Prints TAP.

  report_page.py COMMAND TOP FOLDER     FOLDER has run.json and bench.json
"""
import json
import math
import os
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as xml

import report_look

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
FIGURES = ["Time to first token", "Time per output token", "Step times", "Tokens over time",
           "KV occupancy over time", "Rows computed by each backend", "Backend of each layer and phase",
           "Largest error over its bar", "Share of the nearer ceiling", "Roofline",
           "Time by the number of keys, decode", "Time by the number of keys, extend"]
command, top, folder = sys.argv[1:]
count = failures = 0


def result(name, problems):
    global count, failures
    count += 1
    failures += bool(problems)
    print(f"{'not ' if problems else ''}ok {count} - {name}")
    for problem in problems:
        print("#", problem)


def limit_time(seconds):
    """Of a processor, so that a busy machine changes nothing."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def report(*arguments, path=None, limit=resource.RLIM_INFINITY):
    env = dict(os.environ, PATH=path or os.environ["PATH"])
    return subprocess.run([command, "report", *arguments], capture_output=True, text=True, cwd=folder,
                          env=env, stdin=subprocess.DEVNULL, check=False, preexec_fn=lambda: limit_time(limit))


def value(cell):
    text = "".join(cell.itertext())
    try:
        return float(text) if text else None
    except ValueError:
        return text


def same(got, wanted):
    return len(got) == len(wanted) and all(
        len(a) == len(b) and all(x == y or isinstance(x, float) and y is not None
                                 and math.isclose(x, y, rel_tol=1e-12) for x, y in zip(a, b))
        for a, b in zip(got, wanted))


def roof(entry, matrix, read):
    """None where only products of another type are compared with what was measured."""
    if entry.get("compute_ceiling", "matrix") is None and read >= matrix:
        return None
    return min(matrix, read)


def as_of_fp8():
    """Makes bench.json's last shape one whose ceiling is not known, and its first one of a file that does not
    say what it is compared with."""
    path = os.path.join(folder, "bench.json")
    with open(path, encoding="utf-8") as file:
        bench = json.load(file)
    first, last = bench["results"][0], bench["results"][-1]
    del first["compute_ceiling"]
    last["compute_ceiling"] = None
    last["flop"] *= 1e6
    for one in last["backends"]:
        one["fraction"] = None
    with open(path, "w", encoding="utf-8") as file:
        json.dump(bench, file)


def wanted_tables(run, bench):
    """What each table has, from the JSON alone."""
    tables = {}
    for title, times, names in (("Time to first token", run["ttft_ms"], ("wall", "virtual")),
                                ("Time per output token", run["tpot_ms"], ("wall", "virtual")),
                                ("Step times", run["latency_us"], ("prefill", "decode"))):
        tables[title] = [[p, *(times[name]["percentiles"][p] for name in names)] for p in range(101)]
    series = run["series"]
    tables["Tokens over time"] = [list(row) for row in
                                  zip(series["wall_s"], series["prefill"], series["decode"])]
    tables["KV occupancy over time"] = [[at, held, run["kv"]["capacity"]] for at, held in
                                        zip(series["wall_s"], series["kv_tokens"])]
    tables["Rows computed by each backend"] = [list(row) for row in run["paths"].items()]
    bars = run["verify"]["of_bar"]
    tables["Largest error over its bar"] = [[layer, *row] for layer, row in
                                            enumerate(zip(bars["prefill"], bars["decode"]))]
    ran = [(entry, one) for entry in bench["results"] for one in entry["backends"]
           if one["outcome"] == "ran"]
    tables["Share of the nearer ceiling"] = [
        [f"{one['backend']}, {entry['text']}", one["fraction"] and 100 * one["fraction"], one["median_us"]]
        for entry, one in ran]
    read = bench["ceilings"]["read"]["bytes_per_s"]
    matrix = bench["ceilings"]["matrix"]["flop_per_s"]
    tables["Roofline"] = [[entry["flop"] / entry["bytes"], one["flop_per_s"],
                           roof(entry, matrix, read * entry["flop"] / entry["bytes"])]
                          for entry, one in ran]
    for mode in ("decode", "extend"):
        tables[f"Time by the number of keys, {mode}"] = [
            [entry["seen_keys"], *(one["median_us"] for one in entry["backends"])]
            for entry in bench["results"] if entry["shape"]["mode"] == mode and entry["shape"]["kind"] == "softmax"]
    return tables


def check_page(page, run, bench):
    figures = {figure.find(HTML + "figcaption").text: figure for figure in page.iter(HTML + "figure")}
    result("every figure is there", [] if list(figures) == FIGURES else [str(list(figures))])
    wanted = wanted_tables(run, bench)
    for title, figure in figures.items():
        problems = []
        svg = figure.find(SVG + "svg")
        drawn = 0 if svg is None else sum(len(one.get("d", "")) > 40 for one in svg.iter(SVG + "path"))
        drawn += 0 if svg is None else sum(1 for one in svg.iter(SVG + "use"))
        if drawn < 8:
            problems.append(f"nothing is drawn: {drawn}")
        rows = [[value(cell) for cell in row] for row in figure.iter(HTML + "tr")][1:]
        if title in wanted and not same(rows, wanted[title]):
            problems.append(f"rows {rows[:3]}, expected {wanted[title][:3]}")
        if not rows:
            problems.append("no rows")
        result(title, problems)
    layers = sorted((row[0], row[1]) for row in
                    [[value(cell) for cell in row] for row in figures[FIGURES[6]].iter(HTML + "tr")][1:])
    result("each layer and phase is there once",
           [] if layers == sorted((float(layer), f"{phase}: cpu_native") for layer in range(4)
                                  for phase in ("prefill", "decode")) else [str(layers)])


def check_files(text):
    """Each figure as a file: the page's drawing, with colours of its own, and no page where none is asked for."""
    done = report("run.json", "bench.json", "--svg", "figures")
    problems = [done.stderr] if done.returncode or done.stdout else []
    drawings = re.findall(r"<svg.*?</svg>\n", text, re.DOTALL)
    names = sorted(os.listdir(os.path.join(folder, "figures")))
    if names != [f"{number:02}-{re.sub('[^a-z]+', '-', title.lower())}.svg"
                 for number, title in enumerate(FIGURES, 1)]:
        problems.append(str(names))
    for name, drawing, title in zip(names, drawings, FIGURES):
        with open(os.path.join(folder, "figures", name), encoding="utf-8") as file:
            alone = file.read()
        if xml.fromstring(alone).find(SVG + "title").text != title:
            problems.append(f"{name} is not called {title}")
        bare = re.sub(r"^<\?xml.*?\?>\n|\n<title>(?!f\d).*?</style>\n", "", alone, flags=re.DOTALL)
        if bare.split() != drawing.split() or "prefers-color-scheme:dark" not in alone:
            problems.append(name)
    result("each figure as a file, light and dark", problems)


def hostile():
    """Files that no run and no bench writes: what is no name or number is left out, and a page stays small."""
    steps = {"series": {"wall_s": [1, 2], "prefill": [1, 2], "decode": [1, 2], "kv_tokens": [3, 4]},
             "kv": {"capacity": 9}}
    choice = {"layers": "0-65535", "phase": "decode", "backend": "b"}
    one = {"backend": "b", "outcome": "ran", "median_us": 3, "fraction": 0.5}
    long = 30000
    return {
        "an array of null for paths": {**steps, "paths": [None, None, {"a": 1}, 3]},
        "words for numbers": {**steps, "paths": {"a": "b", "c": 3},
                              "verify": {"of_bar": {"prefill": ["x", 1], "decode": {"0": 1}}}},
        "very many layers": {**steps, "composition": [choice] * 3000},
        "choices without a layer": {**steps, "composition": [{"phase": "decode"}] * long + [choice]},
        "very many steps": {"series": {name: list(range(long)) for name in steps["series"]}},
        "very many results": {"results": [{"shape": {"mode": "decode"}, "seen_keys": n + 1, "text": '"' * 200,
                                           "backends": [one] * 3} for n in range(4000)]},
        "results without a mode": {"results": [{}] * 4 * long + [{"text": "t", "backends": [one]}]},
    }


def check_hostile():
    for name, tree in hostile().items():
        with open(os.path.join(folder, "hostile.json"), "w", encoding="utf-8") as file:
            json.dump(tree, file)
        done = report("hostile.json", limit=20)
        problems = [] if done.returncode == 0 else [f"exit code {done.returncode}: {done.stderr}"]
        if len(done.stdout) > 16 << 20:
            problems.append(f"{len(done.stdout)} bytes")
        if not problems:
            xml.fromstring(done.stdout)
        result(name, problems)


def main():
    global count
    as_of_fp8()
    done = report("run.json", "bench.json", "--output", "report.html")
    if done.returncode:
        result("the page", [done.stderr])
    else:
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            text = file.read()
        page = xml.fromstring(text)
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            run = json.load(file)
        with open(os.path.join(folder, "bench.json"), encoding="utf-8") as file:
            bench = json.load(file)
        check_page(page, run, bench)
        result("a roof that is not known is named", [] if "fp8 products, which have no roof" in
               " ".join(text.split()) else ["no"])
        outside = re.findall(r"""(?:src|href)=["'](?!#)[^"']*""", text)
        result("the page needs no other file", outside)
        ids = re.findall(r"""\bid=["']f[0-9]+-pt[0-9]+["']""", text)
        result("ids of markers are the figure's own", [] if len(set(ids)) == len(ids) > 0 else ["twice"])
        result("dark, too", [] if "prefers-color-scheme:dark" in text else ["no"])
        seen = report_look.look(text, len(FIGURES))
        if seen is None:
            count += 1
            print(f"ok {count} - looked at in a browser # SKIP none of {', '.join(report_look.BROWSERS)}")
        else:
            result("looked at in a browser, light and dark", seen)
        check_files(text)
        result("where it comes from", [] if run["commit"] in text and run["digest"] in text else ["no"])
    for name, code, words, arguments, path in (
            ("what is no report", 2, "no report; accepted", ["other.json"], None),
            ("no such file", 2, "none.json", ["none.json"], None),
            ("no file", 2, "0 names given: accepted one and more REPORT.json", [], None),
            ("no gnuplot", 5, "apt-get install gnuplot-nox", ["run.json"], "/nowhere"),
            ("an output that is a folder", 2, "--output .: ", ["run.json", "--output", "."], None),
            ("figures in what is no folder", 2, "--svg run.json: File exists; accepted: a folder", ["run.json", "--svg", "run.json"], None)):
        with open(os.path.join(folder, "other.json"), "w", encoding="utf-8") as file:
            file.write('{"steps": 3}')
        done = report(*arguments, path=path)
        result(name, [] if done.returncode == code and words in done.stderr and not done.stdout
               else [f"exit code {done.returncode}: {done.stderr}"])
    check_hostile()
    print(f"1..{count}")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
