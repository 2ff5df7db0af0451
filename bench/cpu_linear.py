#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time a CPU backend of linear layers against Transformers' own chunked and recurrent functions.

Both run in this process, with equally many threads, in turn (A B A B ...), together with what the
processor can do at most: multiply-adds for prefill, changing memory in place for decode. Both get
q, k, v after the convolution and gates as they are computed, so that the recurrence alone is timed.
A prefill counts the operations of the chunked form, chunks of 64; a decode counts each state as
read and written.
"""
import argparse
import logging
import math
import sys
from functools import partial

import torch

import attnhost_ctypes
from cpu_attention import (add_arguments, add_built_plugin, built_plugin, figures,
                           last_level_cache, measure_rounds, roof_of, run, steps_for)
from shapes import DTYPES, linear_flops, median

GDN, MAMBA2, KDA, LIGHTNING = range(4)
NAMES = {GDN: "gdn", MAMBA2: "mamba2", KDA: "kda", LIGHTNING: "lightning"}
MIXED_QKV, A, B, STATE, A_LOG, OUT = 14, 15, 16, 23, 18, 3  # ATTN_ROLE_*
LIMIT = 2e-3  # largest difference of two right answers, relative to the largest output


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
        """Of the chunked form."""
        return linear_flops(self.batch * self.tokens, self.family in (GDN, KDA), self.family == KDA,
                            self.k_heads, self.v_heads, self.k_dim, self.v_dim)


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
        scale, fp32 = case.k_dim ** -0.5 if case.family in (GDN, KDA) else 1.0, DTYPES["fp32"][0]
        self.kept = []
        self.shim = attnhost_ctypes.Shim(shim, attnhost_ctypes.LinearSetup(
            device_type=attnhost_ctypes.CPU, family=case.family, dtype=fp32, state_dtype=fp32, decode=case.decode,
            num_seqs=case.batch, num_tokens=case.tokens, k_heads=case.k_heads, v_heads=case.v_heads,
            k_dim=case.k_dim, v_dim=case.v_dim, vk=args.vk, num_layers=len(data),
            num_threads=args.threads, sm_scale=scale, plugin=str(args.plugin).encode(),
            backend=args.backend.encode()))
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
                self.shim.bind(layer, role, tensor.data_ptr(), fp32, tensor.shape)

    def run(self, steps):
        self.shim.steps(steps)

    def close(self):
        self.shim.close()


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
    rounds = measure_rounds(args, ours, our_steps, theirs, their_steps, layers,
                            roof_of(roofs, args, memory if case.decode else None, "roof_update"))
    ours.close()
    work = 2 * case.state_bytes if case.decode else case.flops
    return {"case": str(case), "layers": layers, "max_rel_diff": worst,
            **figures(rounds, [a / b for a, b, _ in rounds], work),
            "unit": "GB/s" if case.decode else "GFLOP/s",
            "rate": median(work / a for a, _, _ in rounds) / 1e9}


HEAD = ("| shape | ours us | torch us | ours / torch | p10 .. p90 | ours | of roof |\n"
        "|---|--:|--:|--:|--:|--:|--:|")


def row(case, r):
    return (f"| {case} | {r['ours_us']:.0f} | {r['torch_us']:.0f} | {r['ratio']:.3f} | "
            f"{r['ratio_p10']:.3f} .. {r['ratio_p90']:.3f} | {r['rate']:.1f} {r['unit']} | "
            f"{r['fraction']:.0%} |")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_built_plugin(parser, "cpu_linear")
    parser.add_argument("--vk", action="store_true", help="states as state.ssm.vk/1")
    add_arguments(parser, rounds=11, seconds=5)
    args = parser.parse_args()
    args.plugin = built_plugin(args, "cpu_linear")
    return args


def main():
    args = parse_arguments()
    logging.disable(logging.WARNING)
    memory = torch.ones(last_level_cache(), dtype=torch.int32)  # four times the last-level cache
    run(args, all_cases(), lambda _: attnhost_ctypes.load_linear_shim(args.build_dir),
        partial(measure, memory=memory), HEAD, row)


if __name__ == "__main__":
    main()
