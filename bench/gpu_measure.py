# SPDX-License-Identifier: Apache-2.0
"""How gpu_attention.py measures: contenders opened and compared, samples taken in turn, ceilings,
and what the host spends on a step."""
import importlib
import random
import time
from dataclasses import asdict, dataclass

import torch

import gpu_contenders
from shapes import median, pause_of, spread

LIMIT = 0.02  # relative error of a row: 16-bit kernels stay below 0.01; 16 wrong keys of 4096
#               make 0.06


class Skipped(Exception):
    """A shape that cannot be measured, and why."""


@dataclass
class Setting:
    """What holds for all shapes of a run."""

    device: object
    shim: object  # of softmax attention
    mla_shim: object
    linear_shim: object
    plugin: object
    threads: int
    graph: bool  # GRAPH metadata, and ours are captured
    save_kv: bool
    rounds: int
    sustain: float  # seconds; 0 = single samples with rests


def measure_ceilings(device):
    """Bytes/s of a copy, read and written; FLOP/s of a bf16 product of square matrices."""

    def seconds(run):
        run()
        return median(device.microseconds(run, 50) for _ in range(10)) / 1e6

    def numbers(*shape):
        return torch.randn(shape, device=device.name, dtype=torch.bfloat16)

    a = numbers(device.copy_bytes // 2)
    b = torch.empty_like(a)
    copy = 2 * device.copy_bytes / seconds(lambda: b.copy_(a))
    n = device.matmul_size
    a, b = numbers(n, n), numbers(n, n)
    return {"copy": copy, "matmul": 2 * n ** 3 / seconds(lambda: a @ b)}


# ---- Contenders ----------------------------------------------------------------------------------


class Runner:
    """A contender and a sample's worth of its calls, as a graph where there are graphs."""

    def __init__(self, device, record, contender, data, calls, captured):
        self.record, self.contender, self.calls = record, contender, calls
        self.device = device
        self.samples = []
        self.state = {}

        def step():
            for call in range(calls):
                contender.call(call % data.copies)

        for copy in range(data.copies):  # warmed up: compiled, loaded
            contender.call(copy)
        device.synchronize()
        self.graph = device.capture(step) if captured else None
        self.run = self.graph.replay if captured else step
        self.wait = 200 + calls * (1 if captured else 20)  # until all is enqueued
        self.run()
        device.synchronize()

    def check(self, case, data):
        """Errors of the outputs of the very run that is timed, poisoned before it."""
        for out in self.contender.out:
            out.fill_(float("nan"))
        self.contender.plan()
        self.run()
        self.device.synchronize()
        return contenders_of(case).compare(case, data, self.contender)

    def sample(self):
        """Microseconds of a call; planning is not in it."""
        self.contender.plan()
        return self.device.microseconds(self.run, self.wait) / self.calls

    def close(self):
        self.run = self.graph = None
        self.contender.close()


def contenders_of(case):
    """The module that knows such shapes: gpu_contenders.py says what is in one."""
    return importlib.import_module(case.contenders)


def open_contender(setting, case, data, entry):
    module = contenders_of(case)
    if entry.rival:
        return module.RIVALS[entry.rival](case, data)
    return module.Attnhost(setting, case, data, entry.backend, entry.page_size, data.copies)


def open_runner(setting, case, data, entry, calls, record):
    """A Runner whose results are right. Raises its errors, and ValueError for wrong results."""
    captured = setting.device.captures and (setting.graph or bool(entry.rival))
    contender = open_contender(setting, case, data, entry)
    try:
        runner = Runner(setting.device, record, contender, data, calls, captured)
        row_error, max_error = runner.check(case, data)
        if not row_error <= LIMIT:  # NaN is not
            raise ValueError(f"WRONG: relative error of a row {row_error:.3g}, accepted {LIMIT:g}")
    except BaseException:
        contender.close()
        raise
    record.update(row_error=row_error, max_error=max_error)
    return runner


def open_all(setting, case, data, entries, calls):
    """(Runners, a record for each contender)."""
    runners, records = [], []
    for entry in entries:
        record = {"name": entry.name, "kind": "rival" if entry.rival else "attnhost"}
        records.append(record)
        begin = time.perf_counter()
        try:
            runners.append(open_runner(setting, case, data, entry, calls, record))
        except Exception as error:  # one that cannot run must not end the run of the others
            record["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            setting.device.synchronize()
        record["open_s"] = time.perf_counter() - begin
    return runners, records


# ---- Samples -------------------------------------------------------------------------------------


def take_turns(setting, runners):
    """Rounds with a sample of each contender, in a changing order."""
    order = random.Random(1)
    for _ in range(setting.rounds):
        for runner in order.sample(runners, len(runners)):
            runner.samples.append(runner.sample())
            time.sleep(pause_of(1e-6 * runner.samples[-1] * runner.calls))
    for runner in runners:
        runner.state = setting.device.state()


def keep_up(setting, runners):
    """Each contender twice, back to back for setting.sustain seconds; the second half of each counts."""
    for _ in range(2):
        for runner in runners:
            begin, now = time.perf_counter(), 0.0
            while now < setting.sustain:
                sample = runner.sample()
                now = time.perf_counter() - begin
                if now >= setting.sustain / 2:
                    runner.samples.append(sample)
            runner.state = setting.device.state()


def summarise(setting, case, runners):
    """Rates, and ours over the best rival: pair by pair of a round where there are rounds."""
    rivals = [runner for runner in runners if runner.record["kind"] == "rival"]
    best = min(rivals, key=lambda runner: median(runner.samples), default=None)
    for runner in runners:
        middle, low, high = spread(runner.samples)
        work = case.kv_bytes if case.decode else case.flops
        runner.record.update(us=middle, us_p10=low, us_p90=high, rate=1e6 * work / middle,
                             state=runner.state, samples=runner.samples)
        if not best or runner.record["kind"] == "rival":
            continue
        runner.record.update(best_rival=best.record["name"], ratio=middle / median(best.samples))
        if not setting.sustain:
            pairs = spread(a / b for a, b in zip(runner.samples, best.samples))
            runner.record.update(zip(("ratio", "ratio_p10", "ratio_p90"), pairs))


def measure(setting, case, entries, copies, calls, needed):
    """Records of all contenders of a shape. Raises Skipped if it does not fit."""
    device = setting.device
    device.release_memory()
    if needed > 0.85 * device.free_bytes():
        raise Skipped(f"{needed / 1e9:.0f} GB needed, {device.free_bytes() / 1e9:.0f} GB free")
    try:
        data = contenders_of(case).Data(case, copies, device)
    except torch.OutOfMemoryError as error:
        raise Skipped(str(error).splitlines()[0]) from error
    device.synchronize()
    runners, records = open_all(setting, case, data, entries, calls)
    (keep_up if setting.sustain else take_turns)(setting, runners)
    summarise(setting, case, runners)
    for runner in runners:
        runner.close()
    return records


def describe(case, ceilings, copies, calls):
    """A shape as it goes into the JSON file."""
    seconds, limit = case.floor(ceilings["matmul"], ceilings["copy"])
    return {**asdict(case), "shape": str(case), "flops": case.flops, "bytes": case.bytes,
            "floor_us": 1e6 * seconds, "floor_by": limit, "copies": copies, "calls": calls}


# ---- The host's step -----------------------------------------------------------------------------


def host_step(setting, case, backend, page_size, layers, samples=200):
    """Microseconds of the host in planning and in launching a captured decode step."""
    device = setting.device
    data = gpu_contenders.Data(case, 1, device)
    contender = gpu_contenders.Attnhost(setting, case, data, backend, page_size, layers)
    try:
        for layer in range(layers):
            contender.call(layer)
        graph = device.capture(lambda: [contender.call(layer) for layer in range(layers)])
        launch, times = device.graph_launch(), []
        for _ in range(samples + 20):
            device.synchronize()
            times.append(contender.bench.step_times(launch, graph.raw_cuda_graph_exec(),
                                                    device.stream))
        device.synchronize()
    finally:
        contender.close()
    plan, start = ([1e6 * t[i] for t in times[20:]] for i in (0, 1))
    both = [a + b for a, b in zip(plan, start)]
    return {"backend": backend, "layers": layers, "shape": str(case), "plan_us": median(plan),
            "launch_us": median(start), "step_us": median(both), "step_us_p90": spread(both)[2],
            "samples": both}
