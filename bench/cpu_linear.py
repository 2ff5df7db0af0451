#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time a CPU backend of linear layers beside Transformers' own chunked and recurrent functions.

Both run in this process, with equally many threads, in turn (A B A B ...), together with what the
processor can do at most: multiply-adds for prefill, changing memory in place for decode. Both get
q, k, v after the convolution and gates as they are computed, so that the recurrence alone is timed.
A prefill counts the operations of the chunked form, chunks of 64; a decode counts each state as
read and written.
"""
import argparse
import ctypes
import json
import logging
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

import attnhost_ctypes
from cpu_attention import cpu_model, last_level_cache, load_roof, seconds_of, steps_for
from shapes import DTYPES, median, quantile

GDN, MAMBA2, KDA, LIGHTNING = range(4)
NAMES = {GDN: "gdn", MAMBA2: "mamba2", KDA: "kda", LIGHTNING: "lightning"}
MIXED_QKV, A, B, STATE, A_LOG, OUT = 14, 15, 16, 23, 18, 3  # ATTN_ROLE_*
CHUNK = 64
LIMIT = 2e-3  # largest difference of two right answers, relative to the largest output


class Setup(ctypes.Structure):
    """linear_setup."""

    _fields_ = [(name, ctypes.c_uint32) for name in (
        "struct_size", "family", "flags", "dtype", "state_dtype")]
    _fields_ += [(name, ctypes.c_int32) for name in (
        "decode", "num_seqs", "num_tokens", "k_heads", "v_heads", "k_dim", "v_dim", "conv_width", "vk",
        "num_layers", "num_threads")]
    _fields_ += [("sm_scale", ctypes.c_float), ("plugin", ctypes.c_char_p), ("backend", ctypes.c_char_p)]


class Case:
    def __init__(self, family, decode, batch, tokens, k_heads, v_heads, k_dim, v_dim):
        self.family, self.decode, self.batch, self.tokens = family, decode, batch, tokens
        self.k_heads, self.v_heads, self.k_dim, self.v_dim = k_heads, v_heads, k_dim, v_dim

    def __str__(self):
        return (f"{NAMES[self.family]} {'decode' if self.decode else 'prefill'} {self.batch} x {self.tokens}, "
                f"{self.k_heads}/{self.v_heads} heads of {self.k_dim}/{self.v_dim}")

    @property
    def state_bytes(self):
        return 4 * self.batch * self.v_heads * self.k_dim * self.v_dim

    @property
    def flops(self):
        """Of the chunked form: pairs below the diagonal, rows by state."""
        delta = self.family in (GDN, KDA)
        pair_heads = self.v_heads if self.family == KDA else self.k_heads
        pairs = CHUNK / 2 * self.k_dim * (2 if delta else 1) * pair_heads
        values = CHUNK / 2 * self.v_dim * (2 if delta else 1) * self.v_heads
        state = self.k_dim * self.v_dim * (3 if delta else 2) * self.v_heads
        return 2.0 * self.batch * self.tokens * (pairs + values + state)


def all_cases():
    for family, k, v, kd, vd in ((GDN, 16, 32, 128, 128), (MAMBA2, 1, 32, 128, 64),
                                 (KDA, 16, 16, 128, 128), (LIGHTNING, 16, 16, 128, 128)):
        yield Case(family, False, 1, 2048, k, v, kd, vd)
        yield Case(family, False, 4, 512, k, v, kd, vd)
        yield Case(family, True, 8, 1, k, v, kd, vd)
        yield Case(family, True, 32, 1, k, v, kd, vd)


class Data:
    """One layer's inputs as both sides read them."""

    def __init__(self, case, seed):
        make = torch.Generator().manual_seed(seed)
        rows = case.batch * case.tokens
        shape = (case.batch, case.tokens)
        self.q = torch.nn.functional.normalize(torch.randn(*shape, case.k_heads, case.k_dim, generator=make), dim=-1)
        self.k = torch.nn.functional.normalize(torch.randn(*shape, case.k_heads, case.k_dim, generator=make), dim=-1)
        self.v = torch.randn(*shape, case.v_heads, case.v_dim, generator=make)
        gate = (case.k_dim,) if case.family == KDA else ()
        self.g = -torch.rand(*shape, case.v_heads, *gate, generator=make) * 0.2
        self.beta = torch.rand(*shape, case.v_heads, generator=make)
        if case.family == LIGHTNING:
            self.g = self.g[:1, :1].expand(*shape, -1)
            self.beta = torch.ones_like(self.beta)
        flat = [self.q.flatten(2), self.k.flatten(2), self.v.flatten(2)]
        if case.family == MAMBA2:
            flat.reverse()
        self.mixed = torch.cat(flat, 2).reshape(rows, -1).contiguous()
        self.state = torch.randn(case.batch + 1, case.v_heads, case.k_dim, case.v_dim, generator=make)
        self.state[0] = 0


class Ours:
    def __init__(self, shim, args, case, data):
        scale = case.k_dim ** -0.5 if case.family in (GDN, KDA) else 1.0
        setup = Setup(family=case.family, dtype=DTYPES["fp32"][0], state_dtype=DTYPES["fp32"][0],
                      decode=case.decode, num_seqs=case.batch, num_tokens=case.tokens, k_heads=case.k_heads,
                      v_heads=case.v_heads, k_dim=case.k_dim, v_dim=case.v_dim, vk=args.vk,
                      num_layers=len(data), num_threads=args.threads, sm_scale=scale,
                      plugin=str(args.plugin).encode(), backend=args.backend.encode())
        setup.struct_size = ctypes.sizeof(Setup)
        status = ctypes.c_int32()
        self.shim, self.kept = shim, []
        self.handle = shim.linear_bench_create(ctypes.byref(setup), ctypes.byref(status))
        self.check(status.value)
        for layer, d in enumerate(data):
            rows = case.batch * case.tokens
            self.out = torch.empty(rows, case.v_heads, case.v_dim)
            state = d.state.transpose(2, 3).contiguous() if args.vk else d.state.clone()
            tensors = {MIXED_QKV: d.mixed, OUT: self.out, STATE: state}
            if case.family == LIGHTNING:
                tensors[A_LOG] = d.g[0, 0].contiguous()
            else:
                tensors[A] = d.g.reshape(rows, *d.g.shape[2:]).contiguous()
                tensors[B] = d.beta.reshape(rows, -1).contiguous()
            self.kept.append(tensors)
            for role, tensor in tensors.items():
                sizes = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
                self.check(shim.linear_bench_bind(self.handle, layer, role, tensor.data_ptr(),
                                                  DTYPES["fp32"][0], tensor.ndim, sizes))

    def check(self, status):
        if status != 0:
            sys.exit(f"cpu_linear: {self.shim.linear_bench_message(self.handle).decode()}")

    def run(self, steps):
        self.check(self.shim.linear_bench_steps(self.handle, steps))

    def close(self):
        self.shim.linear_bench_destroy(self.handle)


class Theirs:
    """Transformers' functions, which models call where no kernel package is installed."""

    def __init__(self, case, data):
        from transformers.models.kimi_linear import modeling_kimi_linear as kimi
        from transformers.models.mamba2 import modeling_mamba2 as mamba2
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen
        self.case, self.data = case, data
        self.states = [d.state[1:].clone() if case.decode else None for d in data]
        self.gdn = qwen.torch_recurrent_gated_delta_rule if case.decode else qwen.torch_chunk_gated_delta_rule
        self.kda = kimi.recurrent_kimi_delta_attention if case.decode else kimi.chunk_kimi_delta_attention
        self.scan, self.update = mamba2.mamba2_chunk_scan, mamba2.mamba2_selective_state_update

    def layer(self, d, state):
        case = self.case
        if case.family in (GDN, KDA):
            rule = self.gdn if case.family == GDN else self.kda
            return rule(d.q, d.k, d.v, d.g, d.beta, initial_state=state, output_final_state=True)
        # Mamba2 with dt = beta and A dt = g; lightning is that with dt = 1, and heads of their own.
        A = (d.g / d.beta)[0, 0]
        if not case.decode:
            return self.scan(d.v, d.beta, A, d.k, d.q, 64, return_final_states=True)
        wide = (case.batch, case.v_heads, case.v_dim)
        state = state.transpose(2, 3).contiguous()
        out = self.update(state, d.v[:, 0], d.beta[:, 0, :, None].expand(wide),
                          A[:, None, None].expand(*wide[1:], case.k_dim), d.k[:, 0], d.q[:, 0])
        return out[:, None], state

    def run(self, steps):
        for _ in range(steps):
            for d, state in zip(self.data, self.states):
                self.out = self.layer(d, state)[0]


def constant_rates(case, data):
    """Mamba2's A is a number of the head, so g has to be one times beta."""
    for d in data:
        if case.family == MAMBA2:
            d.g = d.beta * d.g[:1, :1] / d.beta[:1, :1]


def measure(shim, roofs, args, case, memory):
    layers = max(2, math.ceil(memory.nbytes / case.state_bytes)) if case.decode else 1
    data = [Data(case, layer) for layer in range(layers)]
    constant_rates(case, data)
    theirs, ours = Theirs(case, data), Ours(shim, args, case, data)
    ours.run(1)
    theirs.run(1)
    expected = theirs.out.reshape(ours.out.shape)
    worst = ((ours.out - expected).abs().max() / expected.abs().max()).item()
    if not worst <= LIMIT:
        sys.exit(f"cpu_linear: {case}: results differ by {worst:g} of the largest: accepted {LIMIT:g}")
    our_steps, their_steps = steps_for(ours, args.sample), steps_for(theirs, args.sample)
    rounds, start = [], time.perf_counter()
    while len(rounds) < args.rounds or time.perf_counter() - start < args.seconds:
        a = seconds_of(ours, our_steps) / layers
        roof = (roofs.roof_update(args.threads, ctypes.c_void_p(memory.data_ptr()),
                                  ctypes.c_int64(memory.nbytes))
                if case.decode else roofs.roof_flops(args.threads))
        b = seconds_of(theirs, their_steps) / layers
        rounds.append((a, b, roof))
    ours.close()
    work = 2 * case.state_bytes if case.decode else case.flops
    ratios = [a / b for a, b, _ in rounds]
    return {"case": str(case), "layers": layers, "rounds": len(rounds), "max_rel_diff": worst,
            "ours_us": 1e6 * median(a for a, _, _ in rounds), "torch_us": 1e6 * median(b for _, b, _ in rounds),
            "ratio": median(ratios), "ratio_p10": quantile(ratios, .1), "ratio_p90": quantile(ratios, .9),
            "unit": "GB/s" if case.decode else "GFLOP/s", "rate": median(work / a for a, _, _ in rounds) / 1e9,
            "roof": median(roof for _, _, roof in rounds) / 1e9,
            "fraction": median(work / a / roof for a, _, roof in rounds)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, required=True, help="a tree that was built")
    parser.add_argument("--plugin", type=Path, help="default: plugins/.libs/linear.so of the build tree")
    parser.add_argument("--backend", default="linear", help="default: %(default)s")
    parser.add_argument("--vk", action="store_true", help="states as state.ssm.vk/1")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of each side; default: the CPUs this process may run on")
    parser.add_argument("--filter", action="append", default=[], metavar="TEXT",
                        help="only shapes whose line has this text; repeated: has all of them")
    parser.add_argument("--rounds", type=int, default=11, help="at least; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=5, help="of a shape, at least; default: %(default)s")
    parser.add_argument("--sample", type=float, default=0.05,
                        help="seconds of one sample, at least; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    args = parser.parse_args()
    args.plugin = args.plugin or args.build_dir.resolve() / "plugins/.libs/linear.so"
    return args


def load_shim(build_dir):
    shim = ctypes.CDLL(str(build_dir.resolve() / "bench/.libs/linear_shim.so"))
    shim.linear_bench_create.restype = ctypes.c_void_p
    shim.linear_bench_message.restype = ctypes.c_char_p
    shim.linear_bench_message.argtypes = shim.linear_bench_destroy.argtypes = [ctypes.c_void_p]
    shim.linear_bench_steps.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    shim.linear_bench_bind.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_void_p,
                                       ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int64)]
    return shim


def main():
    args = parse_arguments()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    memory = torch.ones(last_level_cache(), dtype=torch.int32)  # four times the last-level cache
    report = {"cpu": cpu_model(), "threads": args.threads, "torch": torch.__version__, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        shim, roofs = load_shim(args.build_dir), load_roof(args.build_dir, folder)
        print("| shape | ours us | torch us | ours / torch | p10 .. p90 | ours | of roof |\n"
              "|---|--:|--:|--:|--:|--:|--:|", flush=True)
        for case in all_cases():
            if not all(text in str(case) for text in args.filter):
                continue
            r = measure(shim, roofs, args, case, memory)
            report["cases"].append(r)
            print(f"| {case} | {r['ours_us']:.0f} | {r['torch_us']:.0f} | {r['ratio']:.3f} | "
                  f"{r['ratio_p10']:.3f} .. {r['ratio_p90']:.3f} | {r['rate']:.1f} {r['unit']} | "
                  f"{r['fraction']:.0%} |", flush=True)
    print(f"\n{report['cpu']}, {args.threads} threads each, torch {torch.__version__}, "
          f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
