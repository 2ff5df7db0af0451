#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reports of one run of `attnhost check` in four formats: each is valid, and they say the same.

  check_reports.py TAP JUNIT JSON MARKDOWN     prints "CODE COUNT ..." of the results

JUnit has no norm. What is asked for here satisfies both schemas in use, that of Ant's reports
(windyroad/JUnit-Schema) and that of Jenkins' xUnit plugin: elements, their order, attributes,
types.
JSON is the lossless one, so the others are compared with it.
"""
import json
import re
import sys
import xml.etree.ElementTree as xml

CODES = ("PASS", "FAIL", "CRASH", "TIMEOUT", "SKIP", "WARN", "WAIVED", "DEVICE_LOST")
ELEMENTS = {"PASS": None, "WARN": None, "FAIL": "failure", "CRASH": "error", "TIMEOUT": "error",
            "DEVICE_LOST": "error", "SKIP": "skipped", "WAIVED": "skipped"}
SECONDS = re.compile(r"[0-9]+\.[0-9]{6}")
TAP_LINE = re.compile(r"(ok|not ok) ([0-9]+) - (\S+)(?: # (SKIP|TODO) (.+))?")


def expect(good, *what):
    if not good:
        sys.exit(" ".join(str(item) for item in what))


# ---- JSON ----------------------------------------------------------------------------------------


def read_json(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    results = report["results"]
    for result in results:
        expect(result["code"] in CODES, "code", result)
        expect(result["id"].startswith(f"{result['backend']}/{result['rule']}.{result['check']}"),
               "id", result)
        expect(result["reason"] or result["code"] == "PASS", "no reason", result)
        expect(("waived" in result) == (result["code"] == "WAIVED"), "waived", result)
    expect(len({result["id"] for result in results}) == len(results), "an id is there twice")
    counts = {code: sum(result["code"] == code for result in results) for code in CODES}
    expect(report["counts"] == counts, report["counts"], counts)
    return report


# ---- JUnit ---------------------------------------------------------------------------------------


def read_properties(element, report):
    properties = {}
    for one in element:
        expect(one.tag == "property" and set(one.attrib) == {"name", "value"}, one.attrib)
        expect(one.attrib["name"] not in properties and one.attrib["value"], one.attrib)
        properties[one.attrib["name"]] = one.attrib["value"]
    expect(properties["seed"] == str(report["run"]["seed"]), properties)
    expect(properties["plugin.sha256"] == report["plugin"]["sha256"], properties)


def read_case(case, result):
    expect(set(case.attrib) == {"name", "classname", "time"}, case.attrib)
    expect(f"{result['backend']}/{case.attrib['name']}" == result["id"], case.attrib, result["id"])
    expect(case.attrib["classname"] == f"{result['backend']}.{result['rule']}", case.attrib)
    expect(SECONDS.fullmatch(case.attrib["time"]), case.attrib)
    wanted = ELEMENTS[result["code"]]
    expect([child.tag for child in case] == ([wanted] if wanted else []), result["id"], wanted)
    for child in case:
        expect(set(child.attrib) == {"message"} | ({"type"} if wanted != "skipped" else set()),
               child.attrib)
        expect(child.attrib["message"] == result["reason"], child.attrib, result["reason"])
        if wanted != "skipped":
            expect(child.attrib["type"] == result["code"], child.attrib)
            expect(result["sentence"] in child.text, child.text)
            expect(("where: " in child.text) == ("trail" in result), child.text)
    return wanted


def read_suite(suite, number, report):
    expect(suite.tag == "testsuite" and set(suite.attrib) == {
        "id", "package", "name", "timestamp", "hostname", "time", "tests", "failures", "errors",
        "skipped"}, suite.tag, suite.attrib)
    expect(suite.attrib["id"] == str(number), suite.attrib)
    expect(suite.attrib["package"] == report["plugin"]["name"], suite.attrib)
    stamp = re.compile(r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}")
    expect(stamp.fullmatch(suite.attrib["timestamp"]), suite.attrib)
    expect(suite.attrib["hostname"] and SECONDS.fullmatch(suite.attrib["time"]), suite.attrib)
    results = [result for result in report["results"] if result["backend"] == suite.attrib["name"]]
    cases = suite.findall("testcase")
    expect([child.tag for child in suite] ==
           ["properties"] + ["testcase"] * len(results) + ["system-out", "system-err"], "elements")
    read_properties(suite[0], report)
    count = {"failure": 0, "error": 0, "skipped": 0, None: 0}
    for case, result in zip(cases, results):
        count[read_case(case, result)] += 1
    for name, number_of in (("tests", len(results)), ("failures", count["failure"]),
                            ("errors", count["error"]), ("skipped", count["skipped"])):
        expect(suite.attrib[name] == str(number_of), name, suite.attrib, number_of)
    warned = sum(result["code"] == "WARN" for result in results)
    expect((suite.find("system-out").text or "").count("\n") >= warned, "warnings are not reported")
    return len(results)


def read_junit(path, report):
    root = xml.parse(path).getroot()
    expect(root.tag == "testsuites" and not root.attrib, root.tag, root.attrib)
    count = sum(read_suite(suite, number, report) for number, suite in enumerate(root))
    expect(count == len(report["results"]), count, "cases are in suites")


# ---- TAP and Markdown ----------------------------------------------------------------------------


def read_tap(path, report):
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    expect(lines[0] == "TAP version 13", lines[0])
    expect(lines[-1] == f"1..{len(report['results'])}", lines[-1])
    cases = [line for line in lines[1:-1] if not line.startswith("#")]
    expect(len(cases) == len(report["results"]), len(cases), "lines")
    for number, (line, result) in enumerate(zip(cases, report["results"]), 1):
        match = TAP_LINE.fullmatch(line)
        expect(match, "not a line of TAP:", line)
        code = result["code"]
        good = code in ("PASS", "WARN", "SKIP")
        expect(match[1] == ("ok" if good else "not ok") and int(match[2]) == number, line)
        expect(match[3] == result["id"], line, result["id"])
        expect(match[4] == {"SKIP": "SKIP", "WAIVED": "TODO"}.get(code), line, code)
        expect(match[5] is None or match[5] == result["reason"].replace("\n", " "), line)


def read_markdown(path, report):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    rows = re.findall(r"^\| ([A-Z_]+) \| ([0-9]+) \|$", text, re.M)
    counts = {name: int(count) for name, count in rows}
    expect(counts == {code: count for code, count in report["counts"].items() if count}, counts)


def main(tap, junit, json_file, markdown):
    report = read_json(json_file)
    read_tap(tap, report)
    read_junit(junit, report)
    read_markdown(markdown, report)
    print(" ".join(f"{code} {count}" for code, count in report["counts"].items() if count))


if __name__ == "__main__":
    main(*sys.argv[1:])
