#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of linear layers, by the authors' own code: Transformers' models, FLA's naive files and
Mamba's references.

Run from anywhere: python3 generate_linear.py FLA MAMBA, FLA the installed folder of flash-linear-attention
(`python3 -c 'import importlib.util as u; print(u.find_spec("fla").submodule_search_locations[0])'`), MAMBA
the folder mamba_ssm of Mamba's repository; of their files functions are read without importing the
packages, which want a GPU. Writes linear.txt next to itself. FLA and Transformers compute in fp32 whatever
they are given; here "float32" means float64 to them, so that all of it is float64. Nothing is taken from
this project's C code.

Format as in generate.py. Operands are integers in units of 1/64, exact in fp32, fp16 and bf16.
Sequences follow each other; a state is [sequences, heads, K, V], a convolution's [sequences, channels,
width - 1].
"""
import ast
import os
import re
import sys

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.lfm2 import modeling_lfm2 as lfm2
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.minimax import modeling_minimax as minimax
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from record import record

HERE = os.path.dirname(os.path.abspath(__file__))
FLA, MAMBA = sys.argv[1:]
UNIT = 64.0
GDN, MAMBA2, KDA, LIGHTNING, SHORT_CONV = range(5)
L2NORM, RAW, IDENTITY = 1, 2, 4
torch.manual_seed(20251026)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double


def functions_of(folder, path, *names):
    """Functions of a file by name, without what else it imports."""
    with open(os.path.join(folder, path)) as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in tree.body:
        node.decorator_list = []
    scope = {"torch": torch, "F": F, "rearrange": rearrange, "repeat": repeat}
    exec(compile(tree, path, "exec"), scope)
    return [scope[name] for name in names]


fla_delta, = functions_of(FLA, "ops/gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
fla_kda, = functions_of(FLA, "ops/kda/naive.py", "naive_recurrent_kda")
fla_gate, fla_bound_gate = functions_of(FLA, "ops/kda/gate.py", "naive_kda_gate", "naive_kda_lowerbound_gate")
fla_gla, = functions_of(FLA, "ops/simple_gla/naive.py", "naive_recurrent_simple_gla")
ssd_minimal = functions_of(MAMBA, "modules/ssd_minimal.py", "segsum", "ssd_minimal_discrete")[1]
ssm_update, = functions_of(MAMBA, "ops/triton/selective_state_update.py", "selective_state_update_ref")


def number(value):
    value = float(value)
    return str(int(value)) if value == int(value) and abs(value) < 1 << 31 else "%.17g" % value


def line(key, values):
    values = torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
    return " ".join([key, str(len(values))] + [number(value) for value in values])


def integers(*shape, peak=100):
    return torch.randint(-peak, peak + 1, shape).double() / UNIT


class Case:
    def __init__(self, name, family, solve, flags=0, k_heads=2, v_heads=2, k_dim=4, v_dim=4, width=0,
                 lens=(5, 0, 1, 67), initial=(1, 1, 1, 0), peak=100, bias=False, z=False, skip=0,
                 dt_min=0.0, dt_max=0.0, lower_bound=0.0, sm_scale=None):
        self.name, self.family, self.solve, self.flags = name, family, solve, flags
        self.k_heads, self.v_heads, self.k_dim, self.v_dim = k_heads, v_heads, k_dim, v_dim
        self.width, self.lens, self.initial = width, lens, initial
        self.dt_min, self.dt_max, self.lower_bound = dt_min, dt_max, lower_bound
        self.sm_scale = sm_scale if sm_scale is not None else 1.0
        rows, keys, values = sum(lens), k_heads * k_dim, v_heads * v_dim
        self.channels = 2 * keys + values
        self.mixed = integers(rows, self.channels, peak=peak)
        self.state = integers(len(lens), v_heads, k_dim, v_dim)
        self.operands = {}
        if width:
            self.conv_state = integers(len(lens), self.channels, width - 1, peak=peak)
            self.operands["conv_weight"] = integers(self.channels, width, peak=48)
            if bias:
                self.operands["conv_bias"] = integers(self.channels, peak=30)
        if z:
            self.operands["z"] = integers(rows, v_heads, v_dim)
        if skip:
            self.operands["D"] = integers(*([v_heads, v_dim][:skip]))
        raw, gate = flags & RAW, [rows, v_heads] + ([k_dim] if family == KDA else [])
        if family == LIGHTNING:
            self.operands["A_log"] = -integers(v_heads, peak=30).abs() - 1 / UNIT
        elif family != SHORT_CONV:
            self.operands["a"] = integers(*gate) if raw else -integers(*gate, peak=60).abs()
            if raw:
                self.operands["A_log"] = integers(v_heads, peak=64)
                self.operands["dt_bias"] = integers(*gate[1:], peak=64)
            if not raw or family != MAMBA2:
                self.operands["b"] = integers(rows, v_heads) if raw else integers(rows, v_heads, peak=64).abs()

    def row(self, key, rows):
        return self.operands[key][rows] if key in self.operands else None

    def convolved(self, s, rows):
        """[rows, channels] after the convolution, by Qwen3-Next's or LFM2's code."""
        if not self.width:
            return self.mixed[rows]
        before = self.conv_state[s] if self.initial[s] else torch.zeros_like(self.conv_state[s])
        inputs = torch.cat([before, self.mixed[rows].T], 1)[None]
        code, activation = (lfm2, None) if self.flags & IDENTITY else (qwen, "silu")
        out = code.causal_conv1d_fn(inputs, self.operands["conv_weight"],
                                    self.operands.get("conv_bias"), activation=activation)
        self.final_conv[s] = inputs[0, :, inputs.shape[2] - self.width + 1:]
        return out[0, :, self.width - 1:].T

    def split(self, channels):
        """q, k, v as [1, rows, heads, dim]."""
        keys, values = self.k_heads * self.k_dim, self.v_heads * self.v_dim
        if self.family == MAMBA2:
            v, k, q = torch.split(channels, [values, keys, keys], 1)
        else:
            q, k, v = torch.split(channels, [keys, keys, values], 1)
        shape = (1, -1, self.k_heads, self.k_dim)
        return q.reshape(shape), k.reshape(shape), v.reshape(1, -1, self.v_heads, self.v_dim)

    def run(self):
        rows, first = sum(self.lens), 0
        self.out = torch.zeros(rows, self.v_heads, self.v_dim)
        self.final_state = torch.where(torch.tensor(self.initial)[:, None, None, None] > 0, self.state, 0.0)
        if self.width:
            self.final_conv = torch.where(torch.tensor(self.initial)[:, None, None] > 0, self.conv_state, 0.0)
        for s, count in enumerate(self.lens):
            at = slice(first, first + count)
            first += count
            if count == 0:  # nothing to compute: the state is what it was
                continue
            channels = self.convolved(s, at)
            if self.family == SHORT_CONV:
                self.out[at] = channels.reshape(-1, self.v_heads, self.v_dim)
                continue
            state = self.state[s][None] if self.initial[s] else None
            out, final = self.solve(self, at, *self.split(channels), state)
            self.out[at] = out[0]
            self.final_state[s] = final[0]
        if "z" in self.operands and self.solve not in (mamba2_steps, ssm_steps):
            self.out = self.out * F.silu(self.operands["z"])

    def text(self):
        self.run()
        lines = ["case " + self.name]
        for key in ("family flags k_heads v_heads k_dim v_dim width sm_scale dt_min dt_max "
                    "lower_bound lens initial").split():
            lines.append(line(key, getattr(self, key)))
        lines.append(line("mixed", self.mixed * UNIT))
        for key, value in self.operands.items():
            lines.append(line(key, value * UNIT))
        if self.width:
            lines.append(line("conv_state", self.conv_state * UNIT))
            lines.append(line("final_conv", self.final_conv * UNIT))
        if self.family != SHORT_CONV:
            lines.append(line("state", self.state * UNIT))
            lines.append(line("final_state", self.final_state))
        lines.append(line("out", self.out))
        return record(lines)


# ---- Gates as the models' modules compute them ---------------------------------------------------


def delta_gates(case, rows):
    a, b = case.operands["a"][rows][None], case.operands["b"][rows][None]
    if not case.flags & RAW:
        return a, b
    # Qwen3NextGatedDeltaNet.forward
    g = -case.operands["A_log"].float().exp() * F.softplus(a.float() + case.operands["dt_bias"])
    return g, b.sigmoid()


def kimi_gates(case, rows):
    a, b = case.operands["a"][rows][None], case.operands["b"][rows][None]
    if not case.flags & RAW:
        return a, b
    # KimiLinearForgetGate.forward and KimiLinearDeltaAttention.forward
    gate = kimi.KimiLinearForgetGate.__new__(kimi.KimiLinearForgetGate)
    torch.nn.Module.__init__(gate)
    gate.head_dim = case.k_dim
    gate.f_a_proj = gate.f_b_proj = torch.nn.Identity()
    gate.dt_bias = case.operands["dt_bias"].reshape(-1)
    gate.A_log = case.operands["A_log"].reshape(1, 1, -1, 1)
    return gate(a.reshape(1, a.shape[1], -1)), torch.sigmoid(b)


# ---- The recurrences -----------------------------------------------------------------------------


def qwen_chunks(case, rows, q, k, v, state):
    g, beta = delta_gates(case, rows)
    return qwen.torch_chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True,
                                             use_qk_l2norm_in_kernel=bool(case.flags & L2NORM))


def qwen_steps(case, rows, q, k, v, state):
    g, beta = delta_gates(case, rows)
    return qwen.torch_recurrent_gated_delta_rule(q, k, v, g, beta, initial_state=state,
                                                 output_final_state=True,
                                                 use_qk_l2norm_in_kernel=bool(case.flags & L2NORM))


def fla_delta_steps(case, rows, q, k, v, state):
    g, beta = delta_gates(case, rows)
    return fla_delta(q, k, v, beta, g, case.sm_scale, state, True)


def kimi_chunks(case, rows, q, k, v, state):
    g, beta = kimi_gates(case, rows)
    return kimi.chunk_kimi_delta_attention(q, k, v, g, beta, initial_state=state, output_final_state=True,
                                           use_qk_l2norm_in_kernel=bool(case.flags & L2NORM))


def fla_kda_steps(case, rows, q, k, v, state):
    a, b = case.operands["a"][rows][None], case.operands["b"][rows][None]
    if case.flags & RAW:
        log, bias = case.operands["A_log"], case.operands["dt_bias"].reshape(-1)
        a = (fla_bound_gate(a, log, bias, case.lower_bound, torch.float64) if case.lower_bound
             else fla_gate(a, log, bias, torch.float64))
        b = torch.sigmoid(b)
    return fla_kda(q, k, v, a, b, case.sm_scale, state, True)


def mamba2_chunks(case, rows, q, k, v, state):
    initial = state.transpose(2, 3) if state is not None else None
    limit = (case.dt_min, case.dt_max if case.dt_max else float("inf"))
    out, final = mamba2.mamba2_chunk_scan(
        v, case.operands["a"][rows][None], -torch.exp(case.operands["A_log"]), k, q, 16,
        D=case.operands.get("D"), dt_bias=case.operands["dt_bias"], initial_states=initial,
        dt_softplus=True, dt_limit=limit, return_final_states=True)
    return out, final.transpose(2, 3)


def mamba2_steps(case, rows, q, k, v, state):
    heads, dim, size = case.v_heads, case.v_dim, case.k_dim
    state = (state.transpose(2, 3).contiguous() if state is not None
             else torch.zeros(1, heads, dim, size))
    out = torch.zeros_like(v)
    wide = lambda x: x[:, None].expand(heads, dim)
    skip = case.operands.get("D")
    for t, row in enumerate(range(rows.start, rows.stop)):
        A = -torch.exp(case.operands["A_log"])[:, None, None].expand(heads, dim, size)
        out[:, t] = mamba2.mamba2_selective_state_update(
            state, v[:, t], wide(case.operands["a"][row])[None], A, k[:, t], q[:, t],
            D=skip if skip is None or skip.ndim == 2 else wide(skip),
            dt_bias=wide(case.operands["dt_bias"]), dt_softplus=True,
            z=case.operands["z"][row][None] if "z" in case.operands else None)
    return out, state.transpose(2, 3)


def ssd_blocks(case, rows, q, k, v, state):
    """Gates as the paper's Listing 1 takes them: the log decay, and dt in the values."""
    a, dt, count = case.operands["a"][rows][None], case.operands["b"][rows][None], rows.stop - rows.start
    wide = lambda x: x.repeat_interleave(case.v_heads // case.k_heads, 2)
    out, final = ssd_minimal(v * dt[..., None], a, wide(k), wide(q), 7 if count % 7 == 0 else count,
                             initial_states=state.transpose(2, 3)[:, None] if state is not None else None)
    return out, final.transpose(2, 3)


def ssm_steps(case, rows, q, k, v, state):
    """Computed gates of a constant A: a = A dt."""
    heads, dim, size = case.v_heads, case.v_dim, case.k_dim
    state = (state.transpose(2, 3).contiguous() if state is not None
             else torch.zeros(1, heads, dim, size))
    out = torch.zeros_like(v)
    for t, row in enumerate(range(rows.start, rows.stop)):
        dt = case.operands["b"][row][:, None].expand(heads, dim)[None]
        out[:, t] = ssm_update(state, v[:, t], dt, case.A[:, None, None].expand(heads, dim, size), k[:, t],
                               q[:, t], D=case.operands["D"], z=case.operands["z"][row][None])
    return out, state.transpose(2, 3)


def constant_decay(case):
    """Replace drawn gates by a = A dt, still integers in units of 1/64: dt of 1/8, A of 1/8."""
    case.A = -torch.randint(1, 12, (case.v_heads,)).double() / 8
    case.operands["b"] = torch.randint(0, 9, case.operands["b"].shape).double() / 8
    case.operands["a"] = case.operands["b"] * case.A
    return case


class MiniMaxCache:
    """What MiniMaxLightningAttention.forward asks a cache for."""

    def __init__(self, state):
        self.state = state

    def get_linear_cache(self, layer):
        return self.state

    def set_linear_cache(self, layer, state):
        self.state = state


def minimax_layer(case, rows, q, k, v, state):
    """The module itself, its projections, norm and gate replaced by what does nothing."""
    cls = minimax.MiniMaxLightningAttention
    layer = cls.__new__(cls)
    torch.nn.Module.__init__(layer)
    layer.layer_idx, layer.head_dim, layer.num_attention_heads = 0, case.k_dim, case.v_heads
    layer.block_size = 16
    layer.act_fn = layer.qkv_proj = layer.norm = layer.out_proj = torch.nn.Identity()
    layer.output_gate = lambda x: torch.full((), float("inf"))
    layer.slope_rate = -case.operands["A_log"][:, None, None]
    layer.query_decay, layer.key_decay, layer.diagonal_decay = layer.decay_factors(layer.slope_rate)
    cache = MiniMaxCache(state)
    out = layer(torch.cat([q, k, v], 3).flatten(2), None, None, cache)[0]
    return out.reshape(v.shape), cache.state


def fla_gla_steps(case, rows, q, k, v, state):
    g = case.operands["A_log"].expand(1, q.shape[1], -1)
    return fla_gla(q, k, v, g, case.sm_scale, state)


def cases():
    raw = L2NORM | RAW
    yield Case("gdn_qwen_chunks", GDN, qwen_chunks, raw, v_heads=4, width=4, sm_scale=0.5)
    yield Case("gdn_qwen_steps", GDN, qwen_steps, raw, k_heads=1, v_heads=3, k_dim=16, v_dim=5, width=2,
               bias=True, z=True, lens=(3, 1, 0, 9), sm_scale=0.25)
    yield Case("gdn_computed_gates", GDN, qwen_chunks, 0, peak=40, lens=(70, 1), initial=(1, 0), sm_scale=0.5)
    yield Case("gdn_computed_l2norm", GDN, qwen_steps, L2NORM, k_heads=3, v_heads=3, v_dim=3,
               lens=(2, 11), initial=(0, 1), sm_scale=0.5)
    yield Case("mamba2_chunks", MAMBA2, mamba2_chunks, RAW, v_heads=4, k_dim=5, v_dim=3, width=4, bias=True,
               skip=1, z=True)
    yield Case("mamba2_limits", MAMBA2, mamba2_chunks, RAW, k_heads=1, v_heads=3, k_dim=7, v_dim=2, width=4,
               dt_min=0.125, dt_max=1.5, lens=(33, 1), initial=(0, 1))
    yield Case("mamba2_steps", MAMBA2, mamba2_steps, RAW, v_heads=2, k_dim=3, v_dim=4, width=3, skip=2, z=True,
               lens=(1, 0, 13), initial=(0, 0, 1))
    yield Case("kda_kimi_chunks", KDA, kimi_chunks, raw, width=4, sm_scale=0.5)
    yield Case("kda_fla_lower_bound", KDA, fla_kda_steps, RAW, v_heads=4, k_dim=3, v_dim=5, width=4, peak=40,
               lower_bound=-5.0, sm_scale=0.375, lens=(1, 0, 21), initial=(1, 0, 1))
    yield Case("kda_fla_softplus", KDA, fla_kda_steps, RAW, k_dim=3, v_dim=2, peak=40, sm_scale=0.75,
               lens=(9, 1), initial=(1, 0))
    yield Case("kda_fla_computed", KDA, fla_kda_steps, 0, k_dim=5, v_dim=3, peak=40, sm_scale=0.25,
               lens=(9, 4), initial=(0, 1))
    yield Case("lightning_minimax", LIGHTNING, minimax_layer, 0, k_heads=3, v_heads=3,
               lens=(37, 1, 0, 6), initial=(0, 1, 1, 1))
    yield Case("lightning_fla", LIGHTNING, fla_gla_steps, 0, k_heads=2, v_heads=2, k_dim=5, v_dim=3,
               sm_scale=0.375, lens=(1, 12), initial=(1, 1))
    yield Case("short_conv_lfm2", SHORT_CONV, None, IDENTITY, k_heads=0, v_heads=1, k_dim=0, v_dim=6,
               width=3, lens=(1, 0, 7), initial=(1, 1, 0))
    yield Case("short_conv_silu", SHORT_CONV, None, 0, k_heads=0, v_heads=2, k_dim=0, v_dim=3,
               width=4, bias=True, z=True, lens=(2, 5), initial=(1, 0))
    yield Case("gdn_fla_steps", GDN, fla_delta_steps, RAW, k_heads=3, v_heads=3, k_dim=5, v_dim=7, peak=40,
               sm_scale=0.375, lens=(1, 0, 11, 2), initial=(1, 1, 0, 1))
    yield Case("gdn_fla_computed", GDN, fla_delta_steps, 0, k_heads=2, v_heads=2, k_dim=3, v_dim=2, peak=40,
               sm_scale=0.75, lens=(9, 4), initial=(0, 1))
    yield Case("mamba2_ssd_computed", MAMBA2, ssd_blocks, 0, k_heads=2, v_heads=6, k_dim=5, v_dim=3, width=4,
               bias=True, lens=(35, 1, 0, 13), initial=(1, 0, 1, 0))
    yield constant_decay(Case("mamba2_ssm_computed", MAMBA2, ssm_steps, 0, k_heads=3, v_heads=3, k_dim=7,
                              v_dim=2, width=3, skip=2, z=True, lens=(1, 0, 1, 11), initial=(1, 1, 0, 1)))


if __name__ == "__main__":
    import transformers

    with open(os.path.join(FLA, "__init__.py")) as file:
        fla_version = re.search(r"__version__ = .(.*).$", file.read(), re.M).group(1)
    with open(os.path.join(HERE, "linear.txt"), "w") as file:
        file.write("# Made by generate_linear.py with PyTorch %s, Transformers %s, FLA %s; do not edit.\n"
                   % (torch.__version__, transformers.__version__, fla_version))
        for case in cases():
            file.write(case.text() + "\n")
