#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of latent attention, by Transformers' DeepSeek V3 attention in float64.

Run from anywhere: python3 generate_mla.py. Writes mla.txt next to itself. The module runs whole, with
its rotation, its latent cache, its expansion (kv_b_proj = W_UK and W_UV) and its softmax; projections
in front select what each case draws, norm and output projection are identities, and cos and sin are
multiples of 1/64, so that every operand of the ABI is exact in fp32. The absorbed form is written here
from the words of docs/ABI.md and must agree with the module after W_UV, or the script fails. Nothing is
taken from this project's C code.

Format as in generate.py. q_nope is absorbed; `out` is the module's, `latent` the absorbed form's. Operands
are integers in units of 1/4096; `bytes` are the rows of a quantised cache.
"""
import os
import struct

import torch
import transformers
from transformers import DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from record import record

HERE = os.path.dirname(os.path.abspath(__file__))
UNIT = 64.0
PRODUCT = UNIT * UNIT  # units of what two numbers drawn give
SCALED = 128  # elements that share a scale in mla.latent_fp8/1
fp32_type = torch.float32
torch.manual_seed(20250120)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


def number(value):
    value = float(value)
    if abs(value) == float("inf"):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < 1 << 31 else value.hex()


def line(key, values):
    values = torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
    return " ".join([key, str(len(values))] + [number(value) for value in values])


def exact(key, value):
    value = value * PRODUCT
    assert (value == value.round()).all() and value.abs().max() < 1 << 24, key
    return line(key, value)


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def integers(*shape, peak=100):
    return torch.randint(-peak, peak + 1, shape).double() / UNIT


def attention_module(case):
    """The authors' module, whose softmax is in float64 here."""
    config = DeepseekV3Config(hidden_size=case.hidden, num_attention_heads=case.heads, q_lora_rank=None,
                              num_key_value_heads=case.heads, kv_lora_rank=case.lora,
                              qk_rope_head_dim=case.rope, qk_nope_head_dim=case.nope,
                              v_head_dim=case.v_dim, attn_implementation="eager",
                              rope_interleave=case.interleave)
    module = deepseek.DeepseekV3Attention(config, layer_idx=0).double().eval()
    q_size = case.heads * (case.nope + case.rope)
    eye = torch.eye(case.hidden)
    module.q_proj.weight.data = eye[:q_size]
    module.kv_a_proj_with_mqa.weight.data = eye[q_size:]
    module.kv_a_layernorm = module.o_proj = torch.nn.Identity()
    module.kv_b_proj.weight.data = torch.cat([case.w_uk, case.w_uv], 1).reshape(-1, case.lora)
    module.scaling = case.sm_scale
    return module


def softmax64(scores, dim, dtype):
    assert dtype is fp32_type
    return torch.softmax(scores, dim)


class Case:
    def __init__(self, name, tokens, kv_len, heads=3, lora=12, rope=4, nope=6, v_dim=5, peak=100,
                 sm_scale=None, interleave=True, storage=None):
        self.name, self.tokens, self.kv_len, self.heads = name, tokens, kv_len, heads
        self.lora, self.rope, self.nope, self.v_dim = lora, rope, nope, v_dim
        self.interleave, self.storage = interleave, storage
        self.sm_scale = fp32(sm_scale or (nope + rope) ** -0.5)
        q_size = heads * (nope + rope)
        self.hidden = q_size + lora + rope
        self.w_uk = integers(heads, nope, lora, peak=60)
        self.w_uv = integers(heads, v_dim, lora, peak=60)
        self.states = integers(1, kv_len, self.hidden, peak=peak)
        if storage == "packed":  # a latent of zeros has a scale, too
            self.states[0, -1, q_size:q_size + SCALED] = 0
        self.cos, self.sin = (integers(1, kv_len, rope // 2, peak=64).repeat(1, 1, 2) for _ in "cs")
        self.module = attention_module(self)

    def authors(self):
        """The prefix through the module into its cache, then the new tokens."""
        self.stored_in = []
        cache, prefix = DynamicCache(), self.kv_len - self.tokens
        update = cache.update

        def keep(latent, rot, layer, **options):
            self.stored_in.append((latent[0, 0], rot[0, 0]))
            return update(*self.as_stored(latent, rot), layer, **options)

        cache.update = keep
        for first, end in ((0, prefix), (prefix, self.kv_len)):
            if first == end:
                continue
            mask = torch.full((end - first, end), -torch.inf).triu(first + 1)
            out, weights = self.module(self.states[:, first:end],
                                       (self.cos[:, first:end], self.sin[:, first:end]), mask[None, None],
                                       cache)
        return out.reshape(self.tokens, self.heads, self.v_dim), weights[0].transpose(0, 1)

    def as_stored(self, latent, rot):
        """What is read of a quantised cache, and its codes."""
        if self.storage == "fp8":
            scale = torch.tensor(fp32(0.013))
            self.codes = quantise(torch.cat([latent, rot], -1), scale)
            read = self.codes.double() * scale
            self.scale = scale
            return read[..., :self.lora], read[..., self.lora:]
        if self.storage == "packed":
            groups = latent.to(fp32_type).reshape(-1, SCALED)
            scale = (groups.double().abs().amax(-1, keepdim=True) / 448).log2().ceil().clamp(min=-126).exp2()
            scale = scale.to(fp32_type)
            codes = quantise(groups, scale)
            self.scale = scale
            return (codes.double() * scale.double()).reshape(latent.shape), rot.to(torch.bfloat16).double()
        return latent, rot

    def absorbed(self, latent, rot):
        """From the words of docs/ABI.md: queries, scores, the latent output, LSE."""
        prefix = self.kv_len - self.tokens
        q = self.states[0, prefix:, :self.heads * (self.nope + self.rope)]
        q = q.reshape(self.tokens, self.heads, -1)
        q_nope = torch.einsum("thn,hnl->thl", q[..., :self.nope], self.w_uk)
        q_pe = rotate(q[..., self.nope:], self.cos[0, prefix:], self.sin[0, prefix:], self.interleave)
        key = torch.cat([latent, rot], -1)
        scores = self.sm_scale * torch.einsum("thd,jd->thj", torch.cat([q_nope, q_pe], -1), key)
        for t in range(self.tokens):
            for j in range(self.kv_len):
                if j > prefix + t:
                    scores[t, :, j] = -torch.inf
        weights = scores.softmax(-1)
        q_full = torch.cat([q[..., :self.nope], q_pe], -1)
        return q_nope, q_pe, q_full, weights, weights @ key[:, :self.lora], scores.logsumexp(-1)

    def text(self):
        out, weights = self.authors()
        c_kv, k_pe = (torch.cat([part[n] for part in self.stored_in]) for n in (0, 1))
        q_nope, q_pe, q, own_weights, latent, lse = self.absorbed(*self.as_stored(c_kv, k_pe))
        assert (weights - own_weights).abs().max() < 1e-13
        assert (torch.einsum("thl,hvl->thv", latent, self.w_uv) - out).abs().max() < 1e-12
        read, rot = self.as_stored(c_kv, k_pe)
        k = torch.cat([torch.einsum("jl,hnl->jhn", read, self.w_uk),
                       rot[:, None].expand(-1, self.heads, -1)], -1)
        v = torch.einsum("jl,hvl->jhv", read, self.w_uv)
        lines = ["case " + self.name]
        for key in "heads lora rope nope v_dim tokens kv_len sm_scale".split():
            lines.append(line(key, [getattr(self, key)]))
        operands = {"q_nope": q_nope, "q_pe": q_pe, "c_kv": c_kv, "k_pe": k_pe}
        if not self.storage:
            operands.update(q=q, k=k, v=v)
        lines += [exact(key, value) for key, value in operands.items()]
        lines += [exact("w_uv", self.w_uv), line("out", out), line("latent", latent), line("lse", lse)]
        if self.storage:
            lines += [line(self.storage, [1]), line("scale", self.scale)]
            lines.append(line("bytes", self.bytes(c_kv, k_pe)))
        return record(lines)

    def bytes(self, c_kv, k_pe):
        """The cache's rows."""
        self.as_stored(c_kv, k_pe)
        if self.storage == "fp8":
            return self.codes.view(torch.uint8)
        codes = quantise(c_kv.to(fp32_type).reshape(-1, SCALED), self.scale).view(torch.uint8)
        scales = self.scale.reshape(self.kv_len, -1).view(torch.uint8)
        rot = k_pe.to(torch.bfloat16).contiguous().view(torch.uint8)
        return torch.cat([codes.reshape(self.kv_len, -1), scales, rot], -1)


def rotate(x, cos, sin, interleave):
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleave else (x[..., :half], x[..., half:])
    cos, sin = cos[:, None, :half], sin[:, None, :half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def quantise(x, scale):
    """e4m3 with saturation, of x in fp32 divided in fp32."""
    return (x.to(fp32_type) / scale.to(fp32_type)).clamp(-448, 448).to(torch.float8_e4m3fn)


deepseek.nn.functional.softmax = softmax64


def cases():
    return (
        Case("prefill", 7, 7),
        Case("prefill_halves", 5, 5, interleave=False),
        Case("decode", 1, 19),
        Case("decode_first", 1, 1),
        Case("verify", 4, 15, heads=2),
        Case("extend", 6, 21, heads=5, lora=9, rope=2, nope=3, v_dim=7),
        Case("peaked", 3, 11, peak=800),
        Case("yarn", 2, 9, sm_scale=0.1352337788608801),
        Case("dims_of_v3", 1, 3, heads=1, lora=512, rope=64, nope=2, v_dim=2),
        Case("fp8", 3, 10, storage="fp8"),
        Case("packed", 2, 7, heads=2, lora=256, rope=6, nope=2, v_dim=2, peak=400, storage="packed"),
        Case("packed_of_v3", 1, 2, heads=1, lora=512, rope=64, nope=2, v_dim=2, storage="packed"),
    )


if __name__ == "__main__":
    with open(os.path.join(HERE, "mla.txt"), "w", encoding="ascii") as file:
        file.write("# Made by generate_mla.py with PyTorch %s, Transformers %s; do not edit.\n" %
                   (torch.__version__, transformers.__version__))
        file.write("\n".join(case.text() for case in cases()) + "\n")
