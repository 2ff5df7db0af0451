# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a model's attention under each ini.

    python -m attnhost.bench MODEL INI... [--batch 1,8] [--context 512,2048] [--prompt 256]
                             [--dtype bfloat16] [--device cpu] [--layers 4] [--seconds 20] [--plot FILE.svg]

MODEL is a config.json, its folder, or what from_pretrained() takes; weights are random. An INI is a file, or
settings "section.key=value,...". Beside them run Transformers' own: sdpa, and flash_attention_2 and
flex_attention where they are there.

A decode is a step of one token for each of `batch` sequences of `context` tokens, a prefill one of `prompt`
tokens. Contenders take turns, call by call, each on keys of its own; times are medians. `attention` is what
is spent in attention and recurrences, `step` the whole model; `ratio` compares steps with the first
contender's.
"""
import argparse
import copy
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, DynamicCache

from . import transformers as attn
from .host import Host

Case = Tuple[str, int, int]  # "decode" or "prefill", sequences, tokens before the step (or of the prompt)


def read_ini(text: str) -> Host:
    """A file, or settings "section.key=value" with commas between them."""
    if "=" not in text:
        return Host(text)
    sections: Dict[str, Dict[str, str]] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return Host(sections)


class Clock:
    """Seconds, on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda, self.spent = device.type == "cuda", 0.0

    def now(self) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its time is added to `spent`."""
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = self.now()
            result = function(*arguments, **keywords)
            self.spent += self.now() - start
            return result
        return timed


class Contender:
    """A model under one ini, or with attention of Transformers' own."""

    def __init__(self, name: str, config: Any, weights: Optional[dict], options: Any,
                 host: Optional[Host], own: str = "") -> None:
        self.name, self.host, self.own, self.options = name, host, own, options
        self.clock = Clock(torch.device(options.device))
        self.model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=getattr(torch, options.dtype),
            attn_implementation=own or attn.NAME).to(options.device).eval()
        if weights is not None:
            self.model.load_state_dict(weights)
        if own:
            interface = AttentionInterface()
            watched = f"attnhost_bench_{own}"
            AttentionInterface.register(watched, self.clock.watch(interface[own]))
            attn.AttentionMaskInterface.register(watched, attn.AttentionMaskInterface()[own])
            self.model.set_attn_implementation(watched)
        self.ids = torch.Generator().manual_seed(1)

    def _tokens(self, *shape: int) -> torch.Tensor:
        made = torch.randint(0, self.model.config.get_text_config().vocab_size, shape, generator=self.ids)
        return made.to(self.options.device)

    def prepare(self, case: Case) -> None:
        """A cache as the step finds it."""
        phase, batch, length = case
        longest = length + (256 if phase == "decode" else 1)
        self.cache = DynamicCache(config=self.model.config) if self.own else self._own_cache(batch, longest)
        for start in range(0, length if phase == "decode" else 0, 512):
            self._call(self._tokens(batch, min(512, length - start)))
        self.batch, self.new = batch, 1 if phase == "decode" else length

    def _own_cache(self, batch: int, longest: int) -> attn.Cache:
        attn.use(self.host)
        cache = attn.Cache(self.model, num_tokens=batch * (longest + 256), max_seqs=max(batch, 1),
                           max_len=longest, max_tokens=batch * max(512, longest))
        cache.run = self.clock.watch(cache.run)  # type: ignore[method-assign]
        return cache

    def _call(self, ids: torch.Tensor) -> None:
        self.model(input_ids=ids, use_cache=True, logits_to_keep=1,
                   **{attn.cache_argument(self.model): self.cache})

    def step(self, case: Case) -> Tuple[float, float]:
        """Seconds of the step, and of attention in it."""
        if case[0] == "prefill":
            self.prepare(case)
        ids = self._tokens(self.batch, self.new)
        self.clock.spent = 0.0
        start = self.clock.now()
        self._call(ids)
        return self.clock.now() - start, self.clock.spent


def contenders(options: Any) -> List[Contender]:
    config = AutoConfig.from_pretrained(options.model)
    if options.layers:
        config.get_text_config().num_hidden_layers = options.layers
    torch.manual_seed(0)
    made = [Contender(os.path.basename(text), config, None, options, read_ini(text)) for text in options.ini]
    own = ["sdpa"] + (["flash_attention_2"] if importlib.util.find_spec("flash_attn") else [])
    own += ["flex_attention"] if options.device.startswith("cuda") else []
    for name in own:
        try:
            made.append(Contender(name, config, made[0].model.state_dict(), options, None, name))
        except (ImportError, ValueError) as error:
            print(f"without {name}: {str(error).splitlines()[0]}", file=sys.stderr)
    for contender in made[1:]:
        contender.model.load_state_dict(made[0].model.state_dict())
    return made


@torch.no_grad()
def measure(made: List[Contender], case: Case, seconds: float) -> List[Dict[str, Any]]:
    """A row for each contender; the calls of all are interleaved."""
    found: List[List[Tuple[float, float]]] = [[] for _ in made]
    for contender in made:
        contender.prepare(case)
        contender.step(case)  # warms up
    end = time.perf_counter() + seconds
    while len(found[0]) < 3 or (time.perf_counter() < end and len(found[0]) < 200):
        for times, contender in zip(found, made):
            times.append(contender.step(case))
    rows = []
    for times, contender in zip(found, made):
        step, attention = (statistics.median(column) for column in zip(*times))
        ratio = statistics.median(mine[0] / first[0] for mine, first in zip(times, found[0]))
        tokens = case[1] * (case[2] if case[0] == "prefill" else 1)
        rows.append({"phase": case[0], "batch": case[1], "context": case[2], "name": contender.name,
                     "attention_us": attention * 1e6, "step_us": step * 1e6, "calls": len(times),
                     "attention_tokens_per_s": tokens / attention if attention else 0.0,
                     "step_tokens_per_s": tokens / step, "ratio": ratio})
    return rows


def head(width: int) -> str:
    return (f"{'phase':8}{'batch':>6}{'context':>9}  {'':{width}}{'attention us':>14}{'step us':>12}"
            f"{'attn tokens/s':>15}{'tokens/s':>12}{'ratio':>8}")


def show(row: Dict[str, Any], width: int) -> str:
    return (f"{row['phase']:8}{row['batch']:6}{row['context']:9}  {row['name']:{width}}"
            f"{row['attention_us']:14.1f}{row['step_us']:12.1f}{row['attention_tokens_per_s']:15.0f}"
            f"{row['step_tokens_per_s']:12.0f}{row['ratio']:8.2f}")


def plot(rows: List[Dict[str, Any]], path: str) -> None:
    """Tokens per second of attention as bars, by gnuplot."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    cases = list(dict.fromkeys((row["phase"], row["batch"], row["context"]) for row in rows))
    value = {(row["phase"], row["batch"], row["context"], row["name"]): row["attention_tokens_per_s"]
             for row in rows}
    lines = ["set terminal svg size 900,400", f"set output {json.dumps(path)}",
             "set style data histogram", "set style fill solid 0.8 border -1", "set logscale y",
             'set ylabel "tokens/s of attention"', "set grid y", "set key outside top", "$data << EOD"]
    for case in cases:
        label = f"{case[0]} {case[1]} x {case[2]}"
        lines.append(" ".join([json.dumps(label)] + [f"{value[(*case, name)]:.6g}" for name in names]))
    bars = [f"$data using {column}:xtic(1) title {json.dumps(name)} noenhanced"
            for column, name in enumerate(names, 2)]
    lines += ["EOD", "plot " + ", ".join(bars)]
    subprocess.run(["gnuplot"], input="\n".join(lines) + "\n", text=True, check=True)


def parse(arguments: Optional[List[str]]) -> Any:
    def numbers(text: str) -> List[int]:
        return [int(item) for item in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m attnhost.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("ini", nargs="+")
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--context", type=numbers, default=[512, 2048])
    parser.add_argument("--prompt", type=numbers, default=[256])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=0, help="as many layers alone")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all of it")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.svg", help="needs gnuplot")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> List[Dict[str, Any]]:
    options = parse(arguments)
    cases: List[Case] = [("prefill", 1, length) for length in options.prompt]
    cases += [("decode", batch, length) for batch in options.batch for length in options.context]
    made, rows = contenders(options), []
    width = max(len(contender.name) for contender in made)
    print(head(width))
    for case in cases:
        for row in measure(made, case, options.seconds / len(cases)):
            rows.append(row)
            print(show(row, width), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if options.plot:
        plot(rows, options.plot)
    return rows


if __name__ == "__main__":
    main()
