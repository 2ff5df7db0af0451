# SPDX-License-Identifier: Apache-2.0
"""Latent attention, absorbed, for gpu_measure.py: what gpu_contenders.py is for softmax attention."""
import torch

import attnhost_ctypes
from gpu_contenders import Ours, sample_of, torch_dtype
from shapes import DTYPES

NOPE = 128  # of the heads that queries were absorbed from
OUT, Q_NOPE, Q_PE, LATENT_CACHE = 3, 9, 10, 13  # ATTN_ROLE_*


def scale_of(case):
    return (NOPE + case.rope) ** -0.5


class Data:
    """Copies of the inputs: queries [sequences, queries, heads, lora + rope], latents [sequences,
    tokens, lora + rope]."""

    def __init__(self, case, copies, device):
        generator = torch.Generator(device.name).manual_seed(1)
        self.case, self.copies = case, copies

        def make(*shape):
            return torch.randn((case.batch, *shape, case.lora + case.rope), generator=generator,
                               dtype=torch_dtype(case.dtype), device=device.name)

        self.q = [make(case.queries, case.heads) for _ in range(copies)]
        self.latents = [make(case.tokens) for _ in range(copies)]


def reference(case, data, copy, seq):
    """In fp64: [queries, heads, lora]."""
    q, latents = data.q[copy][seq].double(), data.latents[copy][seq].double()
    scores = torch.einsum("qhd,td->qht", q, latents) * scale_of(case)
    last = torch.arange(case.queries, device=q.device) + case.tokens - case.queries
    hidden = torch.arange(case.tokens, device=q.device) > last[:, None]
    scores.masked_fill_(hidden[:, None], float("-inf"))
    return torch.softmax(scores, -1) @ latents[:, :case.lora]


def compare(case, data, contender):
    """As that of gpu_contenders.py."""
    worst_row, worst = 0.0, 0.0
    for copy in sorted({0, data.copies - 1}):
        out = contender.out[copy]
        if not bool(torch.isfinite(out).all()):
            return float("nan"), float("nan")
        for seq in sample_of(case.batch, 8):
            right = reference(case, data, copy, seq)
            error = out[seq].double() - right
            worst_row = max(worst_row, (error.norm(dim=-1) / right.norm(dim=-1)).max().item())
            worst = max(worst, error.abs().max().item())
    return worst_row, worst


class Attnhost(Ours):
    """Over a paged cache of latents."""

    def open(self, setting, case, page_size, layers, name, options):
        texts = [f"{key}={value}" for key, value in options.items()]
        code = DTYPES[case.dtype][0]
        return attnhost_ctypes.MlaBench(setting.mla_shim, attnhost_ctypes.MlaSetup(
            device_type=self.device.type, graph=setting.graph, dtype=code, kv_dtype=code,
            num_seqs=case.batch, num_tokens=case.tokens, num_new=case.queries,
            num_heads=case.heads, lora=case.lora, rope=case.rope, page_size=page_size,
            num_layers=layers, num_threads=setting.threads, sm_scale=scale_of(case),
            plugin=attnhost_ctypes.plugin_text(setting.plugin, name),
            backend=name.encode(), options=attnhost_ctypes.words(texts), num_options=len(texts)))

    def bind(self, setting, case, data, layers):
        code = DTYPES[case.dtype][0]
        rows = case.batch * case.queries
        for copy in range(data.copies):
            q = data.q[copy].view(rows, case.heads, -1)
            out = torch.full_like(q[..., :case.lora].contiguous(), float("nan"))
            self.kept.append({Q_NOPE: q[..., :case.lora].contiguous(),
                              Q_PE: q[..., case.lora:].contiguous(), OUT: out,
                              LATENT_CACHE: self.paged(data.latents[copy])})
            self.out.append(out.view(case.batch, case.queries, case.heads, case.lora))
        for layer in range(layers):
            for role, tensor in self.kept[layer % data.copies].items():
                self.bench.bind(layer, role, tensor.data_ptr(), code, tensor.shape)

    def paged(self, latents):
        seqs, tokens, width = latents.shape
        pages = torch.frombuffer(self.bench.pages(), dtype=torch.int32).long().view(seqs, -1)
        each, page_size = pages.shape[1], self.bench.page_size
        made = latents.new_zeros(self.bench.num_pages, page_size, width)
        padded = torch.nn.functional.pad(latents, (0, 0, 0, each * page_size - tokens))
        made[pages.flatten().to(latents.device)] = padded.view(seqs * each, page_size, width)
        return made


class FlashMla:
    """FlashMLA's dense decode, if its wheel is installed; pages of 64."""

    PAGE = 64

    def __init__(self, case, data):
        import flash_mla
        self.module, self.case, self.data = flash_mla, case, data
        device = data.q[0].device
        each = -(-case.tokens // self.PAGE)
        self.table = torch.arange(case.batch * each, dtype=torch.int32, device=device)
        self.table = self.table.view(case.batch, each)
        self.lens = torch.full((case.batch,), case.tokens, dtype=torch.int32, device=device)
        padding = (0, 0, 0, each * self.PAGE - case.tokens)
        self.caches = [torch.nn.functional.pad(x, padding).view(-1, self.PAGE, 1, x.shape[-1])
                       for x in data.latents]
        self.plans = flash_mla.get_mla_metadata(self.lens, case.queries * case.heads, 1)
        self.out = [None] * data.copies

    def plan(self):
        pass

    def call(self, copy):
        self.out[copy], _ = self.module.flash_mla_with_kvcache(
            self.data.q[copy], self.caches[copy], self.table, self.lens, self.case.lora, *self.plans,
            softmax_scale=scale_of(self.case), causal=True)

    def close(self):
        pass


RIVALS = {"flashmla": FlashMla}
