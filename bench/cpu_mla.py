#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time a CPU backend's absorbed decode of latent attention against PyTorch: matmul, softmax, matmul.

Both run in this process, with equally many threads, in turn (A B A B ...), together with what the
processor can do at most: fused multiply-adds of fp32 in registers. PyTorch has the latents of each
sequence in one piece, and is taken in its fastest way: the products in the queries' dtype, or all
of it in fp32; fp8 latents it has to convert first. bench/README.md says how to read the table.
"""
import argparse
import math
import sys

import torch

import attnhost_ctypes
from cpu_attention import (add_arguments, add_built_plugin, built_plugin, figures, measure_rounds,
                           roof_of, run, seconds_of, steps_for)
from shapes import DTYPES, median

OUT, Q_NOPE, Q_PE, LATENT_CACHE = 3, 9, 10, 13  # ATTN_ROLE_*
U8 = 1 | 8 << 8 | 1 << 16  # ATTN_U8
LORA, ROPE, SCALED = 512, 64, 128
PACKED = LORA + LORA // SCALED * 4 + ROPE * 2  # bytes of a row of mla.latent_fp8/1
SCALE = 192 ** -0.5
KV_SCALE = 0.03125
LIMITS = {"fp32": 1e-4, "bf16": 5e-2}  # largest difference of two right answers
CACHES = ("fp32", "bf16", "fp8", "packed")


class Case:
    """A decode: one query for each of `batch` sequences of `tokens` keys."""

    def __init__(self, cache, heads, batch, tokens):
        self.cache, self.heads, self.batch, self.tokens = cache, heads, batch, tokens
        self.dtype = "fp32" if cache == "fp32" else "bf16"
        self.torch_dtype = getattr(torch, DTYPES[self.dtype][1])

    def __str__(self):
        return f"{self.cache} H{self.heads} B{self.batch} N{self.tokens}"

    @property
    def flops(self):
        return 2 * self.batch * self.heads * self.tokens * (2 * LORA + ROPE)

    @property
    def row_bytes(self):
        return {"fp32": 4 * (LORA + ROPE), "bf16": 2 * (LORA + ROPE), "fp8": LORA + ROPE,
                "packed": PACKED}[self.cache]

    @property
    def kv_bytes(self):
        return self.batch * self.tokens * self.row_bytes


def all_cases():
    for cache in CACHES:
        for heads in (16, 128):
            for batch, tokens in ((1, 1024), (1, 4096), (1, 16384), (4, 4096), (16, 1024), (16, 4096)):
                yield Case(cache, heads, batch, tokens)


# ---- Data ----------------------------------------------------------------------------------------


def pack(latents):
    """Rows of mla.latent_fp8/1."""
    c_kv, k_pe = latents.float().split((LORA, ROPE), dim=-1)
    groups = c_kv.unflatten(-1, (LORA // SCALED, SCALED))
    scales = (groups.double().abs().amax(-1, keepdim=True) / 448).log2().ceil().clamp(min=-126).exp2().float()
    codes = (groups / scales).to(torch.float8_e4m3fn).flatten(-2)
    parts = (codes, scales.squeeze(-1), k_pe.bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


class Data:
    """Queries and a cache [batch, tokens, row], in the dtype in which it is stored."""

    def __init__(self, case, generator):
        shape = (case.batch, case.heads, LORA + ROPE)
        self.q = torch.randn(shape, generator=generator).to(case.torch_dtype)
        latents = torch.randn((case.batch, case.tokens, LORA + ROPE), generator=generator)
        if case.cache == "packed":
            self.cache = pack(latents)
        elif case.cache == "fp8":
            self.cache = (latents / KV_SCALE).to(torch.float8_e4m3fn)
        else:
            self.cache = latents.to(case.torch_dtype)


# ---- The two sides -------------------------------------------------------------------------------


class Ours:
    def __init__(self, shim, args, case, data):
        packed = case.cache == "packed"
        kv_dtype = "fp8_e4m3" if case.cache in ("fp8", "packed") else case.dtype
        code, cache_code = DTYPES[case.dtype][0], DTYPES[kv_dtype][0]
        self.kept, self.out = [], []
        self.shim = attnhost_ctypes.MlaBench(shim, attnhost_ctypes.MlaSetup(
            device_type=attnhost_ctypes.CPU, num_new=1, dtype=code, kv_dtype=cache_code, packed=packed, num_seqs=case.batch,
            num_tokens=case.tokens, num_heads=case.heads, lora=LORA, rope=ROPE,
            page_size=args.page_size, num_layers=len(data), num_threads=args.threads,
            sm_scale=SCALE, kv_scale=KV_SCALE, plugin=str(args.plugin).encode(),
            backend=args.backend.encode(), options=attnhost_ctypes.words(args.option),
            num_options=len(args.option)))
        for layer, d in enumerate(data):
            cache = self.paged(args.page_size, case, d.cache)
            out = torch.empty(case.batch, case.heads, LORA, dtype=case.torch_dtype)
            nope, pe = (part.contiguous() for part in d.q.split((LORA, ROPE), dim=-1))
            self.out.append(out)
            for role, tensor, dtype in ((Q_NOPE, nope, code), (Q_PE, pe, code), (OUT, out, code),
                                        (LATENT_CACHE, cache, U8 if packed else cache_code)):
                self.kept.append(tensor)
                self.shim.bind(layer, role, tensor.data_ptr(), dtype, tensor.shape)

    def paged(self, page_size, case, cache):
        numbers = torch.frombuffer(self.shim.pages(), dtype=torch.int32).long()
        numbers = numbers.view(case.batch, -1)
        bits = cache.view(torch.uint8)  # fp8 has no indexed assignment
        made = bits.new_zeros(self.shim.num_pages, page_size, bits.shape[-1])
        for s in range(case.batch):
            padding = numbers.shape[1] * page_size - case.tokens
            rows = torch.nn.functional.pad(bits[s], (0, 0, 0, padding))
            made[numbers[s]] = rows.view(-1, page_size, rows.shape[-1])
        return made.view(cache.dtype)

    def run(self, steps):
        self.shim.steps(steps)

    def close(self):
        self.shim.close()


class Theirs:
    """The products in `dtype`, probabilities too, as a model's eager code does."""

    def __init__(self, case, data, dtype):
        self.case, self.data, self.dtype = case, data, dtype
        self.name = "" if dtype == case.torch_dtype else "in fp32"

    def latents(self, cache):
        if self.case.cache == "fp8":
            return cache.to(self.dtype) * KV_SCALE
        if self.case.cache != "packed":
            return cache.to(self.dtype)
        codes, scales, k_pe = cache.split((LORA, LORA // SCALED * 4, ROPE * 2), dim=-1)
        codes = codes.view(torch.float8_e4m3fn).to(self.dtype)
        c_kv = codes.unflatten(-1, (LORA // SCALED, SCALED))
        c_kv = c_kv * scales.contiguous().view(torch.float32).unsqueeze(-1).to(self.dtype)
        k_pe = k_pe.contiguous().view(torch.bfloat16).to(self.dtype)
        return torch.cat((c_kv.flatten(-2), k_pe), -1)

    def layer(self, d):
        latents = self.latents(d.cache)
        scores = torch.matmul(d.q.to(self.dtype), latents.transpose(1, 2)) * SCALE
        return torch.matmul(torch.softmax(scores, -1), latents[..., :LORA])

    def run(self, steps):
        for _ in range(steps):
            for d in self.data:
                self.out = self.layer(d)


def choose_rival(case, data, sample):
    rivals = [Theirs(case, data, case.torch_dtype)]
    if case.torch_dtype != torch.float32:
        rivals.append(Theirs(case, data, torch.float32))
    best = [math.inf] * len(rivals)
    for _ in range(3):
        for i, rival in enumerate(rivals):
            rival.run(1)
            best[i] = min(best[i], seconds_of(rival, 1))
    rival = rivals[best.index(min(best))]
    return rival, steps_for(rival, sample)


# ---- Measuring -----------------------------------------------------------------------------------


def measure(shim, roofs, args, case):
    # Layers enough that no layer's latents are still in the cache when it comes again.
    layers = max(1, min(32, math.ceil(args.memory * 2 ** 20 / case.kv_bytes)))
    generator = torch.Generator().manual_seed(1)
    data = [Data(case, generator) for _ in range(layers)]
    theirs, their_steps = choose_rival(case, data, args.sample)
    ours = Ours(shim, args, case, data)
    ours.run(1)
    exact = Theirs(case, data, torch.float32)
    worst = max((ours.out[i].float() - exact.layer(d)).abs().max().item()
                for i, d in enumerate(data))
    if not worst <= LIMITS[case.dtype]:  # NaN fails, too
        sys.exit(f"cpu_mla: {case}: results differ by {worst:g}: accepted {LIMITS[case.dtype]:g}")
    our_steps = steps_for(ours, args.sample)
    rounds = measure_rounds(args, ours, our_steps, theirs, their_steps, layers,
                            roof_of(roofs, args, None))
    ours.close()
    return {"case": str(case), "layers": layers, "max_abs_diff": worst, "rival": theirs.name,
            **figures(rounds, [b / a for a, b, _ in rounds], case.flops),
            "gflops": median(case.flops / a for a, _, _ in rounds) / 1e9,
            "gbytes": median(case.kv_bytes / a for a, _, _ in rounds) / 1e9,
            "torch_fraction": median(case.flops / b / roof for _, b, roof in rounds)}


HEAD = ("| shape | ours us | torch us | torch / ours | p10 .. p90 | GFLOP/s | of FMA peak | GB/s "
        "| torch of peak | rival |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")


def row(case, r):
    return (f"| {case} | {r['ours_us']:.0f} | {r['torch_us']:.0f} | {r['ratio']:.2f} | "
            f"{r['ratio_p10']:.2f} .. {r['ratio_p90']:.2f} | {r['gflops']:.0f} | "
            f"{r['fraction']:.0%} | {r['gbytes']:.1f} | {r['torch_fraction']:.0%} | {r['rival']} |")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_built_plugin(parser, "cpu_native")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                        help="of the backend; may be given several times")
    parser.add_argument("--page-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--memory", type=int, default=64, metavar="MIB",
                        help="of latents that a step goes through, at least, in 32 layers at most; "
                        "default: %(default)s")
    add_arguments(parser, rounds=7, seconds=3)
    args = parser.parse_args()
    for option in args.option:
        if "=" not in option:
            parser.error(f"--option {option}: accepted KEY=VALUE")
    args.plugin = built_plugin(args, "cpu_native")
    return args


def main():
    args = parse_arguments()
    run(args, all_cases(), lambda _: attnhost_ctypes.load_mla_shim(args.build_dir), measure, HEAD,
        row, page_size=args.page_size)


if __name__ == "__main__":
    main()
