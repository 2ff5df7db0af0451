# SPDX-License-Identifier: Apache-2.0
"""Recurrences for gpu_measure.py: what gpu_contenders.py is for softmax attention. Gates are computed
and there is no convolution, as kernels of others are measured."""
import torch

import attnhost_ctypes
from gpu_contenders import Ours, torch_dtype
from shapes import DTYPES, FAMILIES

MIXED_QKV, A, B, STATE, A_LOG, OUT = 14, 15, 16, 23, 18, 3  # ATTN_ROLE_*
QK_L2NORM = 1 << 0  # ATTN_LINEAR_QK_L2NORM
CHECKED = 300  # tokens of each sequence that are compared: several chunks, and the border of one


class Data:
    """Copies of the inputs, and fp32 states [slots, v_heads, k_dim, v_dim] that a decode begins
    with."""

    def __init__(self, case, copies, device):
        self.case, self.copies = case, copies
        generator = torch.Generator(device.name).manual_seed(1)

        def make(*shape, dtype=torch.float32):
            return torch.randn(shape, generator=generator, dtype=dtype, device=device.name)

        gates = (case.v_heads, case.k_dim) if case.family == "kda" else (case.v_heads,)
        slots = (2 * case.batch + 1, case.v_heads, case.k_dim, case.v_dim)
        self.mixed = [make(case.rows, case.channels, dtype=torch_dtype(case.dtype))
                      for _ in range(copies)]
        self.decay = [-0.2 * torch.sigmoid(make(case.rows, *gates)) for _ in range(copies)]
        self.beta = [torch.sigmoid(make(case.rows, case.v_heads)) for _ in range(copies)]
        self.rates = -0.2 * torch.sigmoid(make(case.v_heads))  # lightning
        self.state = [make(*slots) if case.decode else torch.zeros(slots, device=device.name)
                      for _ in range(copies)]

    def parts(self, copy):
        """q, k [batch, tokens, v_heads, k_dim] and v, in fp64; Mamba2's row is x, B, C."""
        case, keys = self.case, self.case.k_heads * self.case.k_dim
        rows = self.mixed[copy].view(case.batch, case.tokens, -1)[:, :CHECKED].double()
        values = case.channels - 2 * keys
        q, k, v = rows.split((keys, keys, values), -1)
        if case.family == "mamba2":
            v, k, q = rows.split((values, keys, keys), -1)
        shape = (case.batch, -1, case.k_heads, case.k_dim)
        q, k = (x.reshape(shape).repeat_interleave(case.v_heads // case.k_heads, 2)
                for x in (q, k))
        if case.delta:
            q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        return q * scale_of(case), k, v.reshape(case.batch, -1, case.v_heads, case.v_dim)

    def gates(self, copy):
        """Log decays [batch, tokens, v_heads, k_dim or 1] and betas [..., 1]."""
        case = self.case
        shape = (case.batch, case.tokens, case.v_heads, -1)
        if case.family == "lightning":
            rates = self.rates.double().view(1, 1, -1, 1)
            return rates.expand(shape[0], case.tokens, -1, 1), torch.ones_like(rates)
        return self.decay[copy].double().view(shape), self.beta[copy].double().view(shape)


def scale_of(case):
    return case.k_dim ** -0.5 if case.delta else 1.0


def reference(case, data, copy):
    """The recurrence, token by token, in fp64: [batch, tokens, v_heads, v_dim]."""
    q, k, v = data.parts(copy)
    decay, beta = data.gates(copy)
    state = data.state[copy][1:case.batch + 1].double()
    outputs = []
    for t in range(q.shape[1]):
        state = state * decay[:, t].exp().unsqueeze(-1)
        value = v[:, t]
        if case.delta:
            value = value - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        value = value * beta[:, t if beta.shape[1] > 1 else 0]
        state = state + k[:, t].unsqueeze(-1) * value.unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, 1)


def compare(case, data, contender):
    """As that of gpu_contenders.py; a row's error in units of it, or of the head's mean row where
    that is longer: short rows are sums that cancel."""
    worst_row, worst = 0.0, 0.0
    for copy in sorted({0, data.copies - 1}):
        right = reference(case, data, copy)
        out = contender.out[copy]
        if not bool(torch.isfinite(out).all()):
            return float("nan"), float("nan")
        error = out[:, :right.shape[1]].double() - right
        length = right.norm(dim=-1)
        length = torch.maximum(length, length.mean((0, 1), keepdim=True))
        worst_row = max(worst_row, (error.norm(dim=-1) / length).max().item())
        worst = max(worst, error.abs().max().item())
    return worst_row, worst


class Attnhost(Ours):
    def open(self, setting, case, page_size, layers, name, options):
        texts = [f"{key}={value}" for key, value in options.items()]
        return attnhost_ctypes.Shim(setting.linear_shim, attnhost_ctypes.LinearSetup(
            device_type=self.device.type, graph=setting.graph, apart=case.decode,
            family=FAMILIES[case.family], flags=QK_L2NORM if case.delta else 0,
            dtype=DTYPES[case.dtype][0], state_dtype=DTYPES["fp32"][0], decode=case.decode,
            num_seqs=case.batch, num_tokens=case.tokens, k_heads=case.k_heads,
            v_heads=case.v_heads, k_dim=case.k_dim, v_dim=case.v_dim, num_layers=layers,
            num_threads=setting.threads, sm_scale=scale_of(case),
            plugin=attnhost_ctypes.plugin_text(setting.plugin, name),
            backend=name.encode(), options=attnhost_ctypes.words(texts), num_options=len(texts)))

    def bind(self, setting, case, data, layers):
        fp32, own = DTYPES["fp32"][0], DTYPES[case.dtype][0]
        for copy in range(data.copies):
            out = torch.full((case.rows, case.v_heads, case.v_dim), float("nan"),
                             dtype=data.mixed[copy].dtype, device=data.mixed[copy].device)
            tensors = {MIXED_QKV: (data.mixed[copy], own), OUT: (out, own),
                       STATE: (data.state[copy].clone(), fp32)}
            if case.family == "lightning":
                tensors[A_LOG] = (data.rates, fp32)
            else:
                tensors |= {A: (data.decay[copy], fp32), B: (data.beta[copy], fp32)}
            self.kept.append(tensors)
            self.out.append(out.view(case.batch, case.tokens, case.v_heads, case.v_dim))
        for layer in range(layers):
            for role, (tensor, code) in self.kept[layer % data.copies].items():
                self.bench.bind(layer, role, tensor.data_ptr(), code, tensor.shape)


RIVALS = {}  # figures of others stand in serving_grid.ini
