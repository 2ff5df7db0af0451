#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run of an example must report, from its ini, its model and its trace alone.

  example_counts.py INI REPORT [SECTION.KEY=VALUE]...

The settings are those that the run was given beside the ini. Prints what differs from the report;
exit code 0 if nothing does. What follows from the trace whatever the scheduling is looked at in any
run: rows, drafts, images and encoders, layers and bytes of pools. With max_running_requests = 1, hits,
the rows that are checked and what pools hold as well. Shares no code with the host (trace_model.py).
"""
import configparser
import json
import pathlib
import sys

import trace_model

DEFAULTS = {"kv_cache.prefix_cache": "yes", "kv_cache.hybrid_swa_memory": "no",
            "workload.length_scale": "1", "workload.max_requests": "0", "workload.seed": "1",
            "speculative.draft_tokens": "0", "speculative.topk": "1",
            "speculative.acceptance": "0.7", "speculative.seed": "1"}
BYTES = 2  # of an element of bf16


def read_settings(ini, sets):
    parser = configparser.ConfigParser(inline_comment_prefixes=(";",))
    parser.read(ini)
    keys = dict(DEFAULTS)
    for section in parser.sections():
        keys.update({f"{section}.{key}": value for key, value in parser[section].items()})
    keys.update(text.split("=", 1) for text in sets)
    return keys


class Model:
    """Layers of each kind, and what a token takes in the cache of one of them."""

    def __init__(self, ini, keys):
        self.decoders = self.crossing = self.encoders = self.windows = self.encoded = 0
        self.window = self.chunk = 0  # that layers see: 0 = no such limit
        if "model.config" in keys:
            path = pathlib.Path(ini).parent / keys["model.config"]
            self.read_config(json.loads(path.read_text()))
        else:
            self.read_keys(keys)

    def read_keys(self, keys):
        layers, heads = int(keys["model.num_layers"]), int(keys["model.num_q_heads"])
        types = keys.get("model.layer_types", "full").split()
        types = [types[layer % len(types)] for layer in range(layers)]
        if keys.get("model.attn_type") == "encoder_only":
            self.encoders = layers
        else:
            self.decoders = layers
            self.windows = types.count("sliding") + types.count("chunked")
            self.window = int(keys.get("model.sliding_window", "0"))
            self.chunk = int(keys.get("model.attention_chunk", "0"))
        self.token = 2 * int(keys.get("model.num_kv_heads", heads)) * int(
            keys["model.head_dim"]) * BYTES

    def read_config(self, config):
        if config["model_type"] == "whisper":
            self.decoders = self.crossing = config["decoder_layers"]
            self.encoders, self.encoded = config["encoder_layers"], config["max_source_positions"]
            self.token = 2 * config["d_model"] * BYTES
            return
        text, vision = config["text_config"], config["vision_config"]
        self.decoders, self.encoders = text["num_hidden_layers"], vision["num_hidden_layers"]
        self.windows, self.window = self.decoders - self.decoders // 6, text["sliding_window"]
        self.encoded = (vision["image_size"] // vision["patch_size"])**2 + 1
        self.token = 2 * text["num_key_value_heads"] * text["head_dim"] * BYTES

    def first_seen(self, position):
        """Of a layer with a window or chunks, the one that sees more where there are both."""
        of_chunk = position - position % self.chunk if self.chunk else position
        return max(0, min(position - self.window + 1 if self.window else position, of_chunk))


class Expected:
    """Numbers of a report by their names, and what differs."""

    def __init__(self, report):
        self.report, self.wrong = report, []

    def equal(self, name, got, expected):
        if got != expected:
            self.wrong.append(f"{name}: {got}, from the trace {expected}")


def check_tokens(expected, model, requests, shares, alone):
    tokens = expected.report["tokens"]
    hits = sum(hit for hit, _, _ in requests) if shares else 0
    expected.equal("requests", expected.report["requests"], len(requests))
    expected.equal("prefill + prefix_hit - recomputed",
                   tokens["prefill"] + tokens["prefix_hit"] - tokens["recomputed"],
                   sum(length for _, length, _ in requests))
    expected.equal("decode", tokens["decode"], sum(max(0, n - 1) for _, _, n in requests))
    if alone or not shares:
        expected.equal("prefix_hit", tokens["prefix_hit"], hits)
    if model.encoded:
        expected.equal("encoded", tokens["encoded"], model.encoded * len(requests))


def check_rows(expected, model, keys, requests):
    """Rows of all backends: of each layer; with drafts those of the draft model's one, too."""
    tokens, tall = expected.report["tokens"], int(keys["speculative.draft_tokens"])
    rows = (model.decoders + model.crossing) * (tokens["prefill"] + tokens["decode"])
    rows += model.encoders * (tokens["encoded"] if model.encoded else tokens["prefill"])
    if tall:
        drafts = expected.report["speculative"]
        drafted = trace_model.count_drafts(
            requests, tall, int(keys["speculative.topk"]), float(keys["speculative.acceptance"]),
            int(keys["speculative.seed"]))
        for key, value in drafted.items():
            expected.equal(key, drafts[key], value)
        rows = model.decoders * (tokens["prefill"] + drafted["verifications"] * tall)
        rows += tokens["prefill"] + drafted["draft_extend"]
        verified = model.decoders * drafted["verifications"] * tall
        check_routes(expected, keys,
                     {"phase=verify": verified, "phase=draft": drafted["draft_extend"]})
    expected.equal("rows of all paths", sum(expected.report["paths"].values()), rows)


def check_routes(expected, keys, rows):
    """Rows of the backends that routes name for these conditions."""
    for key, value in keys.items():
        condition, _, backend = (part.strip() for part in value.partition("->"))
        if key.startswith("attention.route.") and condition in rows:
            expected.equal(f"rows of {backend}", expected.report["paths"][backend], rows[condition])


def check_checked(expected, model, keys, requests):
    """Rows that are compared with the oracle, of models that are decoders or encoders alone: the
    sample of those that are computed, of a verification the drafts that are turned down as well."""
    layers, tall = model.decoders + model.encoders, int(keys["speculative.draft_tokens"])
    seed, rate = int(keys["workload.seed"]), float(keys["verify.rate"])
    checked = trace_model.count_sampled(requests, seed, rate, layers)
    if tall:
        checked += trace_model.count_sampled_drafts(
            requests, tall, int(keys["speculative.topk"]), float(keys["speculative.acceptance"]),
            int(keys["speculative.seed"]), seed, rate, layers)
    expected.equal("rows_checked", expected.report["verify"]["rows_checked"], checked)
    if rate == 1:
        expected.equal("rows_checked, all of them", checked, sum(expected.report["paths"].values()))


def check_pools(expected, model, keys, requests, alone):
    page = int(keys.get("kv_cache.page_size", "1"))
    pools = {pool["holds"]: pool for pool in expected.report["kv"].get("pools", [])}
    apart = model.windows if keys["kv_cache.hybrid_swa_memory"] == "yes" else 0
    drafted = 1 if int(keys["speculative.draft_tokens"]) else 0
    layers = {"all": model.decoders - apart + drafted, "window": apart, "encoder": model.crossing}
    layers = {name: count for name, count in layers.items() if count}
    expected.equal("pools", {name: pool["layers"] for name, pool in pools.items()}, layers)
    for name, count in layers.items():
        expected.equal(f"bytes of {name}", pools[name]["bytes_per_token"], count * model.token)
        expected.equal(f"leaked of {name}", pools[name]["leaked"], 0)
    if model.crossing:
        each = -(-model.encoded // page) * page
        room = int(keys["kv_cache.max_encoder_tokens"]) // each
        expected.equal("encoders at once", pools["encoder"]["peak"] / each, 1 if alone else room)
    if alone and apart:
        most = trace_model.count_windows(requests, page, int(keys["workload.chunked_prefill_size"]),
                                         model.first_seen)
        expected.equal("held", [pools[name]["held"] for name in ("all", "window")], most)


def main():
    ini, report, sets = sys.argv[1], sys.argv[2], sys.argv[3:]
    keys = read_settings(ini, sets)
    model = Model(ini, keys)
    rows = trace_model.read_trace(pathlib.Path(ini).parent / keys["workload.trace"], "auto")
    rows = rows[:int(keys["workload.max_requests"]) or None]
    shares = keys["kv_cache.prefix_cache"] == "yes" and model.decoders and not model.crossing
    requests = trace_model.place_requests(rows, float(keys["workload.length_scale"]),
                                          int(keys.get("kv_cache.page_size", "1")))
    requests = [(hit if shares else 0, length, n if model.decoders else 0)
                for hit, length, n in requests]
    alone = keys["workload.max_running_requests"] == "1"
    expected = Expected(json.loads(pathlib.Path(report).read_text()))
    check_tokens(expected, model, requests, shares, alone)
    check_rows(expected, model, keys, requests)
    if alone and not model.encoded:
        check_checked(expected, model, keys, requests)
    if model.decoders:
        check_pools(expected, model, keys, requests, alone)
    print("\n".join(expected.wrong))
    return 1 if expected.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
