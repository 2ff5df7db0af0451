# SPDX-License-Identifier: Apache-2.0
"""How fast a model's attention and its steps are under each ini.

    python -m attnhost.bench MODEL INI... [--batch 1,8] [--context 512,2048] [--prompt 256,8x1024]
                             [--chunk 8192] [--dtype bfloat16] [--device cpu] [--layers 4] [--seconds 20]
                             [--own sdpa,flex_attention] [--json FILE] [--plot FILE.svg]

MODEL is a config.json, its folder, or what from_pretrained() takes; weights are random. An INI is a file, or
settings "section.key=value,...", with NAME: before it for the table. Beside them run Transformers' own: sdpa,
and flash_attention_2 and flex_attention (compiled) where they are there.

A decode is a step of one token for each of `batch` sequences of `context` tokens, a prefill one of a prompt
(or of BATCHxTOKENS); with --chunk, the prompts follow each other, each in steps of so many tokens. Keys are
random numbers; where the layers allow it, all contenders read the same ones, attnhost's in pages, the others
one after another. On a GPU, decodes are replayed from CUDA graphs.

Contenders take turns; times are medians. `step` is the whole model. `attention` is what its layers ask of
their backends, planning and the saving of new keys included, by itself; `ratio` compares steps with the first
contender's.
"""
import argparse
import gc
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import transformers
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import Cache as TransformersCache, CacheLayerMixin

from . import transformers as attn
from ._library import version
from .errors import AttnhostError
from .graphs import DecodeGraphs, capture
from .host import Host

Case = Tuple[str, int, int]  # "decode" or "prefill", sequences, tokens before the step (or of the prompt)
Run = Callable[[], Any]


def read_ini(text: str) -> Tuple[str, Host]:
    """A file, or settings "section.key=value" with commas between them; its name."""
    name, colon, rest = text.partition(":")
    if not colon or "=" in name or os.path.exists(text):
        name, rest = os.path.basename(text), text
    if "=" not in rest:
        return name, Host(rest)
    sections: Dict[str, Dict[str, str]] = {}
    for item in rest.split(","):
        key, _, value = item.partition("=")
        section, _, key = key.rpartition(".")
        sections.setdefault(section, {})[key] = value
    return name, Host(sections)


# ---- Contenders ------------------------------------------------------------------------------------


class Contender:
    """The model under one ini, or with attention of Transformers' own."""

    name = ""
    run_step: Run  # for the case that is prepared
    run_attention: Run

    def __init__(self, model: torch.nn.Module, options: Any) -> None:
        self.model, self.options = model, options
        self.ids = torch.Generator().manual_seed(1)
        self.argument = attn.cache_argument(model)

    def prepare(self, case: Case, keys: Dict[int, Dict[str, torch.Tensor]]) -> None:
        """`keys`: those of all contenders, by layer; the first one makes them."""
        raise NotImplementedError

    def enter(self) -> None:
        """Its turn begins."""
        raise NotImplementedError

    def forget(self) -> None:
        """Free the case's memory."""
        if self.options.device.startswith("cuda"):
            torch.cuda.synchronize()
        for name in ("cache", "run_step", "run_attention", "calls", "sequences"):
            vars(self).pop(name, None)

    def tokens(self, *shape: int) -> torch.Tensor:
        vocabulary = self.model.config.get_text_config().vocab_size
        return torch.randint(0, vocabulary, shape, generator=self.ids).to(self.options.device)

    def graphed(self, run: Run, what: str) -> Run:
        return capture(run, what)[0] if self.options.device.startswith("cuda") else run


class Ours(Contender):
    def __init__(self, model: torch.nn.Module, options: Any, name: str, host: Host) -> None:
        super().__init__(model, options)
        self.name, self.host = name, host

    def enter(self) -> None:
        self.model.set_attn_implementation(attn.NAME)
        attn.use(self.host)

    def forget(self) -> None:
        cache = vars(self).get("cache")
        super().forget()
        if cache is not None:
            cache.engine.close()

    def prepare(self, case: Case, keys: Dict[int, Dict[str, torch.Tensor]]) -> None:
        phase, batch, length = case
        self.enter()
        room, rows = length + 1, self.options.chunk or batch * length
        self.cache = attn.Cache(self.model, num_tokens=batch * (room + 63) // 64 * 64 + 64 * batch,
                                max_seqs=batch, max_len=room, max_tokens=rows
                                if phase == "prefill" else max(512, batch), caches=keys or None)
        random.Random(0).shuffle(self.cache.engine.pages.free)  # as after some time
        if not keys:
            keys.update(self.cache.engine.caches)
            for pool in (pool for pools in keys.values() for pool in pools.values()):
                pool.normal_() if pool.is_floating_point() else pool.zero_()
        (self._prepare_prompt if phase == "prefill" else self._prepare_decode)(batch, length)

    def _call(self, ids: torch.Tensor, positions: torch.Tensor, work: List[Tuple[Any, int]]) -> Any:
        self.cache.begin(work)
        placed = {"position_ids": positions} if attn.takes_positions(self.model) else {}
        return self.model(input_ids=ids, use_cache=True, **{self.argument: self.cache}, **placed,
                          logits_to_keep=0 if len(work) == ids.shape[1] else 1)

    def _record(self, run: Run) -> None:
        """The calls of layers in a step, or in some; operands of the first one are those of all like it."""
        cache = self.cache
        first: Dict[Tuple, Dict[str, torch.Tensor]] = {}
        self.calls: List[Tuple[attn.Key, Dict[str, torch.Tensor]]] = []

        def recorded(key: attn.Key, is_new: bool, operands: Dict[str, torch.Tensor], mask: Any) -> Any:
            problem = cache.engine.layers[cache.place(key)][1]
            like = (id(problem), next(iter(operands.values())).shape)
            if like not in first:
                first[like] = {role: x.clone() for role, x in operands.items()}
            self.calls.append((key, first[like]))
            return type(cache).run(cache, key, is_new, operands, mask)

        cache.run = recorded  # type: ignore[method-assign]
        run()
        del cache.run

    def _layers(self, part: slice = slice(None)) -> None:
        self.cache.expect()
        for key, operands in self.calls[part]:
            self.cache.run(key, True, dict(operands), None)

    def _prepare_prompt(self, batch: int, length: int) -> None:
        engine, ids = self.cache.engine, self.tokens(batch, length)
        positions = torch.arange(length, device=ids.device).expand(ids.shape)
        parts = parts_of(self.options, batch, length)

        def each(then: Callable[[int, List[Tuple[Any, int]]], Any]) -> None:
            sequences = [engine.add() for _ in range(batch)]
            for number, (rows, columns) in enumerate(parts):
                then(number, [(sequence, columns.stop - columns.start) for sequence in sequences[rows]])
            for sequence in sequences:
                engine.free(sequence)

        def step() -> None:
            each(lambda number, work: self._call(*(x[parts[number]].reshape(1, -1) for x in (ids, positions)),
                                                 work))

        def attention() -> None:
            def part(number: int, work: List[Tuple[Any, int]]) -> None:
                count = len(self.calls) // len(parts)
                self.cache.begin(work)
                self._layers(slice(number * count, (number + 1) * count))
            each(part)
        self._record(step)
        self.run_step, self.run_attention = step, attention

    def _prepare_decode(self, batch: int, length: int) -> None:
        engine = self.cache.engine
        sequences = [engine.fill(length) for _ in range(batch)]
        ids, positions = self.tokens(1, batch), torch.full((1, batch), length, device=self.options.device)

        def planned(then: Run) -> Run:
            def run() -> None:
                then()
                for sequence in sequences:
                    sequence.length = length  # each step is the same
            return run

        work = [(sequence, 1) for sequence in sequences]
        self._record(planned(lambda: self._call(ids, positions, work)))
        if engine.why_no_graphs():
            self.run_step = planned(lambda: self._call(ids, positions, work))
            self.run_attention = planned(lambda: (self.cache.begin(work), self._layers()))
            return
        graphs = DecodeGraphs(self.model, self.cache)
        graphs.sizes = [batch]
        self.run_step = planned(lambda: graphs.step(sequences))
        step = engine.graph_step(batch)
        planned(lambda: self.cache.begin(work, step))()
        replay = capture(lambda: step.captured(self._layers), "attention")[0]
        self.run_attention = planned(lambda: (self.cache.begin(work, step), replay()))


class _PoolLayer(CacheLayerMixin):
    """Keys of some sequences where they lie, one after another."""

    is_sliding = False

    def __init__(self, pools: Dict[str, torch.Tensor], rows: slice, room: int, length: int) -> None:
        super().__init__()
        self.is_initialized, self.length = True, length
        self.pools = [pools[role].flatten(0, 1)[rows.start * room:rows.stop * room].unflatten(
            0, (rows.stop - rows.start, room)).transpose(1, 2) for role in ("k_cache", "v_cache")]
        self.new: Tuple[torch.Tensor, ...] = ()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> Tuple[torch.Tensor, ...]:
        self.new, end = (key_states, value_states), self.length + key_states.shape[2]
        for pool, new in zip(self.pools, self.new):
            pool[:, :, self.length:end].copy_(new)
        return tuple(pool[:, :, :end] for pool in self.pools)

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_cache_shape(self) -> int:
        return -1

    get_max_length = get_max_cache_shape


def _is_plain(keys: Dict[int, Dict[str, torch.Tensor]], groups: Any) -> bool:
    """Can Transformers' own code read these keys, and needs all of them?"""
    return all(group.kv_layout == "kv.nhd/1" and group.struct.window_left < 0
               and not group.struct.attention_chunk for group in groups) and bool(keys)


class Theirs(Contender):
    calls: Optional[List[Tuple]] = None  # while they are recorded

    def __init__(self, model: torch.nn.Module, options: Any, own: str) -> None:
        super().__init__(model, options)
        self.name, self._function = own, AttentionInterface()[own]
        self.implementation = f"attnhost_bench_{own}"
        AttentionInterface.register(self.implementation, self._attend)
        attn.AttentionMaskInterface.register(self.implementation, self._mask(attn.AttentionMaskInterface()[own]))
        self.plain = True
        self.masks: Dict[Tuple, Any] = {}  # of the case that is prepared
        torch._dynamo.config.recompile_limit = 64  # one for each case

    def _mask(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Made once for all steps of a case. sdpa's decodes need none, as the keys are those that there
        are; while it is captured, Transformers would make one, and sdpa be slower by far."""
        def mask(*args: Any, q_length: int = 0, kv_length: int = 0, batch_size: int = 0,
                 **more: Any) -> Any:
            key = (batch_size, q_length, kv_length)
            if self.plain and q_length == 1 and self.name != "flex_attention":
                return None
            if key in self.masks:
                return self.masks[key]
            made = make(*args, q_length=q_length, kv_length=kv_length, batch_size=batch_size, **more)
            if self.plain:
                self.masks[key] = made
            return made
        return mask

    def _attend(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                value: torch.Tensor, mask: Any, **more: Any) -> Any:
        if self.calls is not None:
            layer = self.cache.layers[module.layer_idx] if self.plain else None
            like = next((call for call in self.calls if call[1].shape == query.shape), None)
            same, new = (like[1], like[6]) if like else (query, layer.new if layer else ())
            self.calls.append((module, same, key, value, mask, more, new, layer,
                               key.shape[2] - query.shape[2]))
        return self._function(module, query, key, value, mask, **more)

    def enter(self) -> None:
        self.model.set_attn_implementation(self.implementation)

    def prepare(self, case: Case, keys: Dict[int, Dict[str, torch.Tensor]]) -> None:
        phase, batch, length = case
        self.enter()
        self.plain, self.masks = self.options.plain, {}
        decodes = phase == "decode"
        parts = [(slice(0, batch), slice(length, length + 1))] if decodes else parts_of(
            self.options, batch, length)
        caches = {rows.start: self._pool_cache(keys, rows, length) for rows, _ in parts} if self.plain else {}
        ids = self.tokens(batch, 1 if decodes else length)
        positions = torch.arange(length + 1, device=ids.device).expand(batch, -1)
        if not self.plain and decodes:
            self._begin()
            for first in range(0, length, 512):
                self._call(self.tokens(batch, min(512, length - first)), None)

        def step() -> Any:
            for rows, columns in parts:
                if self.plain:
                    self.cache = caches[rows.start]
                    for layer in self.cache.layers:
                        layer.length = columns.start
                elif columns.start == 0:
                    self._begin()
                logits = self._call(ids[rows] if decodes else ids[rows, columns], positions[rows, columns])
            return logits

        self.calls = []
        step()
        calls, self.calls = self.calls, None
        self.run_step, self.run_attention = step, lambda: self._layers(calls)
        if decodes and self.plain:
            self.run_step = self.graphed(step, "a decode")
            self.run_attention = self.graphed(self.run_attention, "attention")

    def _pool_cache(self, keys: Dict[int, Dict[str, torch.Tensor]], rows: slice, length: int) -> Any:
        count = self.model.config.get_text_config().num_hidden_layers
        return TransformersCache([_PoolLayer(keys[place], rows, length + 1, 0) for place in range(count)])

    def _begin(self) -> None:
        self.cache = DynamicCache(config=self.model.config)

    def _call(self, ids: torch.Tensor, positions: Optional[torch.Tensor]) -> Any:
        placed = {} if positions is None or not attn.takes_positions(self.model) else {"position_ids": positions}
        return self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self.argument: self.cache},
                          **placed).logits

    def _layers(self, calls: List[Tuple]) -> None:
        for module, query, key, value, mask, more, new, layer, length in calls:
            if new:
                layer.length = length
                layer.update(*new)
            self._function(module, query, key, value, mask, **more)


def parts_of(options: Any, batch: int, length: int) -> List[Tuple[slice, slice]]:
    """The steps of a prefill: sequences and tokens of each."""
    if not options.chunk:
        return [(slice(0, batch), slice(0, length))]
    return [(slice(row, row + 1), slice(first, min(first + options.chunk, length)))
            for row in range(batch) for first in range(0, length, options.chunk)]


def brief(error: Exception) -> str:
    """The first line of the message, and the last one, which in a compiler's message has the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))


def contenders(options: Any) -> List[Contender]:
    config = AutoConfig.from_pretrained(options.model)
    if options.layers:
        config.get_text_config().num_hidden_layers = options.layers
    options.layers = config.get_text_config().num_hidden_layers
    torch.manual_seed(0)
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype),
                                                 attn_implementation=attn.NAME).eval()
    made: List[Contender] = [Ours(model, options, *read_ini(text)) for text in options.ini]
    for name in options.own:
        try:
            model.set_attn_implementation(name)  # refuses what is not there
            made.append(Theirs(model, options, name))
        except (ImportError, ValueError) as error:
            print(f"without {name}: {brief(error)}", file=sys.stderr)
    return made


# ---- Times -----------------------------------------------------------------------------------------


def seconds(run: Run, count: int, device: str, queued: bool) -> float:
    """Of one call, of `count` in a row. On a GPU by its own clock; `queued`: it is busy until the host has enqueued
    them, so that the host's time does not count."""
    if not device.startswith("cuda"):
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) / count
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if queued:
        torch.cuda._sleep(40_000_000)  # 20 ms
    else:
        run()  # the GPU is at work when the host begins with the first that counts
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


@torch.no_grad()
def measure(made: List[Contender], case: Case, options: Any) -> List[Dict[str, Any]]:
    """A row for each contender that can; they take turns."""
    able: List[Contender] = []
    keys: Dict[int, Dict[str, torch.Tensor]] = {}
    counts: Dict[str, int] = {}
    for contender in made:
        try:
            contender.prepare(case, keys if not able or options.plain else {})
            if isinstance(contender, Ours) and not able:
                options.plain = _is_plain(keys, contender.cache.engine.choice.groups)
            once = seconds(contender.run_step, 1, options.device, False)
            counts[contender.name] = max(1, min(20, int(0.05 / max(once, 1e-6))))
            able.append(contender)
        except (RuntimeError, ValueError, NotImplementedError, AttributeError, AttnhostError) as error:
            print(f"{case[0]} {case[1]} x {case[2]}: without {contender.name}: "
                  f"{brief(error)}", file=sys.stderr, flush=True)
            contender.forget()
    found: Dict[str, List[Tuple[float, float]]] = {contender.name: [] for contender in able}
    end, rounds = time.perf_counter() + options.seconds_each, 0
    while rounds < 3 or (time.perf_counter() < end and rounds < 50):
        rounds += 1
        able = able[1:] + able[:1]  # each comes first in turn
        for contender in able:
            contender.enter()
            count = counts[contender.name]
            found[contender.name].append((seconds(contender.run_step, count, options.device, False),
                                          seconds(contender.run_attention, min(count, 4), options.device, True)))
    rows = [row_of(case, name, times, next(iter(found.values())), options)
            for name, times in found.items()]
    for contender in able:
        contender.forget()
    keys.clear()
    gc.collect()
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return rows


def row_of(case: Case, name: str, times: List[Tuple[float, float]], first: List[Tuple[float, float]],
           options: Any) -> Dict[str, Any]:
    step, attention = (statistics.median(column) for column in zip(*times))
    tokens = case[1] * (case[2] if case[0] == "prefill" else 1)
    return {"phase": case[0], "batch": case[1], "context": case[2], "name": name,
            "layers": options.layers, "attention_us": attention * 1e6, "step_us": step * 1e6,
            "attention_us_of_a_layer": attention * 1e6 / options.layers, "calls": len(times),
            "attention_tokens_per_s": tokens / attention, "step_tokens_per_s": tokens / step,
            "ratio": statistics.median(mine[0] / other[0] for mine, other in zip(times, first))}


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
    value = {(row["phase"], row["batch"], row["context"], row["name"]): f"{row['attention_tokens_per_s']:.6g}"
             for row in rows}
    lines = ["set terminal svg size 900,400", f"set output {json.dumps(path)}",
             "set style data histogram", "set style fill solid 0.8 border -1", "set logscale y",
             'set ylabel "tokens/s of attention"', "set grid y", "set key outside top", "$data << EOD"]
    for case in cases:
        label = f"{case[0]} {case[1]} x {case[2]}"
        lines.append(" ".join([json.dumps(label)] + [value.get((*case, name), "NaN") for name in names]))
    bars = [f"$data using {column}:xtic(1) title {json.dumps(name)} noenhanced"
            for column, name in enumerate(names, 2)]
    lines += ["EOD", "plot " + ", ".join(bars)]
    subprocess.run(["gnuplot"], input="\n".join(lines) + "\n", text=True, check=True)


def about(options: Any) -> Dict[str, Any]:
    """The environment on which the numbers depend."""
    cuda = options.device.startswith("cuda")
    return {"device": torch.cuda.get_device_name(options.device) if cuda else "cpu",
            "attnhost": version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "cuda": torch.version.cuda, "command": sys.argv, "layers": options.layers,
            "dtype": options.dtype}


# ---- The command -----------------------------------------------------------------------------------


def parse(arguments: Optional[List[str]]) -> Any:
    def numbers(text: str) -> List[int]:
        return [int(item) for item in text.split(",") if item]

    def prompts(text: str) -> List[Tuple[int, int]]:
        return [(int(batch or 1), int(length)) for batch, _, length in
                (item.rpartition("x") for item in text.split(",") if item)]

    parser = argparse.ArgumentParser(prog="python -m attnhost.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("ini", nargs="+")
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--context", type=numbers, default=[512, 2048])
    parser.add_argument("--most", type=int, default=0, help="leave out decodes over more keys, in all")
    parser.add_argument("--prompt", type=prompts, default=[(1, 256)])
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a step of a prefill; 0: all")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=0, help="as many layers alone")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all of it")
    parser.add_argument("--own", help="of Transformers' own attention, which")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.svg", help="needs gnuplot")
    options = parser.parse_args(arguments)
    if options.plot and not shutil.which("gnuplot"):
        parser.error("--plot: gnuplot is missing here (Debian: gnuplot-nox)")
    if options.own is None:
        own = ["sdpa"] + (["flash_attention_2"] if importlib.util.find_spec("flash_attn") else [])
        options.own = own + (["flex_attention"] if options.device.startswith("cuda") else [])
    else:
        options.own = [name for name in options.own.split(",") if name]
    return options


def main(arguments: Optional[List[str]] = None) -> List[Dict[str, Any]]:
    options = parse(arguments)
    cases: List[Case] = [("prefill", batch, length) for batch, length in options.prompt]
    cases += [("decode", batch, length) for batch in options.batch for length in options.context
              if not options.most or batch * length <= options.most]
    options.seconds_each, options.plain = options.seconds / max(1, len(cases)), False
    made, rows = contenders(options), []
    width = max(len(contender.name) for contender in made)
    print(head(width))
    for case in cases:
        for row in measure(made, case, options):
            rows.append(row)
            print(show(row, width), flush=True)
        if options.json:  # after each case: what there is stays
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**about(options), "rows": rows}, file, indent=1)
    if options.plot:
        plot(rows, options.plot)
    return rows


if __name__ == "__main__":
    main()
