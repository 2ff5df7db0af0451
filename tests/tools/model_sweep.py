#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# model_sweep.py: how many of the model types of the installed Transformers attnhost reads.
#
#   model_sweep.py ATTNHOST [--keep DIR] [--table | --missing]
#
# Each model type with a language model gives a config.json of its class's defaults, as save_pretrained() writes it,
# and `ATTNHOST explain` reads it for the CPU. --table prints a Markdown table by outcome, --missing a line for each
# type that is not read; --keep leaves the files in DIR. Needs transformers 5, but no torch: the table of model
# classes is read from its source.

import argparse
import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TASKS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
OUTCOMES = (
    ("served", "read, and served by a backend of the package on the CPU"),
    ("generic", "read by its keys alone, with a warning, and served on the CPU"),
    ("no backend", "read; no backend of the package serves a part of it"),
    ("refused", "refused, with the reason"),
    ("no file", "the class has no defaults that could be written"),
)  # fmt: skip


def model_classes():
    """{model type: class name}, the first task's class of each type."""
    root = pathlib.Path(importlib.util.find_spec("transformers").origin).parent
    tree = ast.parse((root / "models/auto/modeling_auto.py").read_text())
    tables = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
            if name.endswith("_MAPPING_NAMES") and node.value.args:
                tables[name] = node.value.args[0]
    classes = {}
    for task in TASKS:
        for pair in tables[f"MODEL_FOR_{task}_MAPPING_NAMES"].elts:
            if isinstance(pair, ast.Tuple):
                kind, value = (ast.literal_eval(element) for element in pair.elts)
                classes.setdefault(kind, value if isinstance(value, str) else value[0])
    return classes


def write_config(kind, architecture, path):
    """The default config.json of a model type; False if its class has none."""
    from transformers import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[kind]()
        config.architectures = [architecture]
        path.write_text(config.to_json_string(use_diff=True))
        return True
    except Exception as error:
        path.write_text(json.dumps({"error": str(error)[:200]}))
        return False


def explain(attnhost, path):
    """(outcome, the first line that says why)"""
    done = subprocess.run(
        [attnhost, "explain", str(path), "--set", "platform.device=cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    generic = "is not a known architecture (docs/MODELS.md): read" in done.stderr
    if done.returncode == 0:
        return ("generic" if generic else "served"), ""
    if done.returncode == 4:
        return "no backend", lines[-1] if lines else ""
    return "refused", " ".join(lines).replace(str(path), path.name)


def sweep(attnhost, folder):
    results = {}
    for kind, architecture in sorted(model_classes().items()):
        path = pathlib.Path(folder) / f"{kind}.json"
        if write_config(kind, architecture, path):
            results[kind] = (architecture, *explain(attnhost, path))
        else:
            results[kind] = (architecture, "no file", json.loads(path.read_text())["error"])
    return results


def print_table(results):
    import transformers

    read = sum(outcome in ("served", "generic", "no backend") for _, outcome, _ in results.values())
    print(f"Transformers {transformers.__version__}: {len(results)} model types, {read} read.\n")
    print("| outcome | types | which |\n|---|--:|---|")
    for outcome, text in OUTCOMES:
        kinds = [f"`{kind}`" for kind, result in results.items() if result[1] == outcome]
        print(f"| {text} | {len(kinds)} | {', '.join(kinds)} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("attnhost")
    parser.add_argument("--keep")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or scratch
        os.makedirs(folder, exist_ok=True)
        results = sweep(options.attnhost, folder)
    if options.missing:
        for kind, (architecture, outcome, why) in results.items():
            if outcome in ("refused", "no file"):
                print(f"{kind}\t{architecture}\t{outcome}\t{why}")
        return 0
    print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
