#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of sparse latent attention, by Transformers' DeepSeek V3.2 attention in float64.

Run from anywhere: python3 generate_sparse.py. Writes sparse.txt next to itself. The module runs whole, with
its indexer, both caches, its expansion and its softmax; projections in front select what each case draws,
norms and output projection are identities, and cos and sin are multiples of 1/64, so that every operand of
the ABI is exact in fp32. Its logits and its choice are taken where the indexer makes them. Labels in e4m3
are rounded where the indexer reads its cache, by max(1e-4, amax) / 448 for each. Nothing is taken from this
project's C code.

Format as in generate.py; operands are integers in units of 1/4096, `weights` as they are. `logits` are the
indexer's, -inf of keys that a query does not see; `chosen` has its keys, a row of top_k for each query, -1
where there are fewer; `latent` is the output before W_UV, `out` the module's.
"""
import os

import torch
import transformers
from transformers import DeepseekV32Config, DynamicCache
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek

from generate_mla import exact, fp32, integers, line, quantise, rotate, softmax64
from record import record

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(20251201)


class Case:
    def __init__(self, name, tokens, kv_len, top_k, heads=2, lora=12, rope=4, nope=6, v_dim=5, index_heads=4,
                 label=8, peak=100, codes=False):
        self.name, self.tokens, self.kv_len, self.top_k, self.heads = name, tokens, kv_len, top_k, heads
        self.lora, self.rope, self.nope, self.v_dim = lora, rope, nope, v_dim
        self.index_heads, self.label, self.codes = index_heads, label, codes
        self.sm_scale = fp32((nope + rope) ** -0.5)
        q_size, i_size = heads * (nope + rope), index_heads * label
        self.sizes = [q_size, i_size, lora + rope, label, index_heads]
        hidden = sum(self.sizes)
        self.w_uk = integers(heads, nope, lora, peak=60)
        self.w_uv = integers(heads, v_dim, lora, peak=60)
        self.states = integers(1, kv_len, hidden, peak=peak)
        self.cos, self.sin = (integers(1, kv_len, rope // 2, peak=64).repeat(1, 1, 2) for _ in "cs")
        self.module = self.attention_module(hidden)

    def attention_module(self, hidden):
        config = DeepseekV32Config(hidden_size=hidden, num_attention_heads=self.heads, q_lora_rank=hidden,
                                   num_key_value_heads=self.heads, kv_lora_rank=self.lora,
                                   qk_rope_head_dim=self.rope, qk_nope_head_dim=self.nope,
                                   v_head_dim=self.v_dim, index_topk=self.top_k,
                                   index_head_dim=self.label, index_n_heads=self.index_heads,
                                   num_hidden_layers=1, attn_implementation="eager")
        module = deepseek.DeepseekV32Attention(config, layer_idx=0).double().eval()
        eye, parts = torch.eye(hidden), []
        for size in self.sizes:
            parts.append(eye[sum(map(len, parts)):sum(map(len, parts)) + size])
        identity = torch.nn.Identity()
        module.q_a_proj = module.q_a_layernorm = module.kv_a_layernorm = module.o_proj = identity
        module.q_b_proj.weight.data, module.kv_a_proj_with_mqa.weight.data = parts[0], parts[2]
        module.kv_b_proj.weight.data = torch.cat([self.w_uk, self.w_uv], 1).reshape(-1, self.lora)
        module.scaling = self.sm_scale
        indexer = module.indexer
        indexer.wq_b.weight.data, indexer.wk.weight.data = parts[1], parts[3]
        indexer.weights_proj.weight.data, indexer.k_norm = parts[4], identity
        indexer.softmax_scale = 1.0
        return module

    def authors(self):
        """The prefix through the module into its caches, then the new tokens."""
        self.labels, self.latents, self.logits, self.chosen = [], [], None, None
        cache = DynamicCache(config=self.module.config)
        update, update_indexer, topk = cache.update, cache.update_indexer, torch.Tensor.topk

        def keep_latents(latent, rot, layer, **options):
            self.latents.append((latent[0, 0], rot[0, 0]))
            return update(latent, rot, layer, **options)

        def keep_labels(label, layer):
            self.labels.append(label[0])
            read = update_indexer(label, layer)
            return as_codes(read)[1] if self.codes else read

        def keep_choice(scores, *options, **more):
            self.logits = scores[0]
            found = topk(scores, *options, **more)
            self.chosen = found.indices[0]
            return found

        cache.update, cache.update_indexer = keep_latents, keep_labels
        torch.Tensor.topk = keep_choice
        prefix = self.kv_len - self.tokens
        for first, end in ((0, prefix), (prefix, self.kv_len)):
            if first == end:
                continue
            mask = torch.full((end - first, end), -torch.inf).triu(first + 1)
            out, _ = self.module(self.states[:, first:end], (self.cos[:, first:end], self.sin[:, first:end]),
                                 mask[None, None], cache)
        torch.Tensor.topk = topk
        return out.reshape(self.tokens, self.heads, self.v_dim)

    def operands(self):
        prefix = self.kv_len - self.tokens
        q, index_q, _, _, weights = self.states[0, prefix:].split(self.sizes, -1)
        cos, sin = self.cos[0, prefix:], self.sin[0, prefix:]
        q = q.reshape(self.tokens, self.heads, -1)
        index_q = index_q.reshape(self.tokens, self.index_heads, -1)
        index_q = torch.cat([rotate(index_q[..., :self.rope], cos, sin, False), index_q[..., self.rope:]], -1)
        return {"q_nope": torch.einsum("thn,hnl->thl", q[..., :self.nope], self.w_uk),
                "q_pe": rotate(q[..., self.nope:], cos, sin, True), "index_q": index_q}, weights

    def text(self):
        out = self.authors()
        operands, weights = self.operands()
        operands["c_kv"], operands["k_pe"] = (torch.cat([part[n] for part in self.latents]) for n in (0, 1))
        operands["index_k"] = torch.cat(self.labels)
        weights = weights * self.index_heads ** -0.5  # exact: they are 4 or 16
        # From the words of the header.
        read = as_codes(operands["index_k"])[1] if self.codes else operands["index_k"]
        own = torch.einsum("thj,th->tj", torch.einsum("thd,jd->thj", operands["index_q"], read).relu(), weights)
        prefix = self.kv_len - self.tokens
        key = torch.cat([operands["c_kv"], operands["k_pe"]], -1)
        latents, lses, chosen = [], [], torch.full((self.tokens, self.top_k), -1)
        for t in range(self.tokens):
            seen = prefix + t + 1
            own[t, seen:] = -torch.inf
            best = self.chosen[t][self.chosen[t] < seen]
            assert len(best) == min(self.top_k, seen)
            ranked = own[t, :seen].sort(descending=True).values
            assert seen <= self.top_k or ranked[self.top_k - 1] > ranked[self.top_k], "a tie"
            chosen[t, :len(best)] = best
            query = torch.cat([operands["q_nope"][t], operands["q_pe"][t]], -1)
            scores = self.sm_scale * query @ key[best].T
            latents.append(scores.softmax(-1) @ key[best, :self.lora])
            lses.append(scores.logsumexp(-1))
        finite = own > -torch.inf
        assert (own[finite] - self.logits[finite]).abs().max() < 1e-11 and (self.logits[~finite] < -1e30).all()
        latent = torch.stack(latents)
        assert (torch.einsum("thl,hvl->thv", latent, self.w_uv) - out).abs().max() < 1e-12
        lines = ["case " + self.name]
        for name in "heads lora rope nope v_dim tokens kv_len top_k index_heads label codes sm_scale".split():
            lines.append(line(name, [getattr(self, name)]))
        lines += [exact(name, value) for name, value in operands.items()]
        lines += [line("weights", weights), line("logits", own), line("chosen", chosen), line("latent", latent),
                  exact("w_uv", self.w_uv), line("out", out), line("lse", torch.stack(lses))]
        if self.codes:
            codes, _, scales = as_codes(operands["index_k"])
            lines += [line("label_codes", codes), line("label_scales", scales)]
        return record(lines)


def as_codes(label):
    """Codes of e4m3, what they stand for, and the scale of each label."""
    scale = label.to(torch.float32).abs().amax(-1, keepdim=True).clamp(min=1e-4) / torch.tensor(448, dtype=torch.float32)
    codes = quantise(label, scale)
    return codes.view(torch.uint8), codes.double() * scale.double(), scale


deepseek.nn.functional.softmax = softmax64
torch.Tensor.float = torch.Tensor.double
CASES = (
    Case("prefill", 9, 9, 4),
    Case("all_keys", 3, 5, 8),
    Case("decode", 1, 23, 6),
    Case("verify", 4, 20, 5, label=6),
    Case("one_key", 2, 12, 1, index_heads=16),
    Case("dims_of_v32", 1, 6, 3, heads=1, lora=512, rope=64, nope=2, v_dim=2, index_heads=4, label=128),
    Case("codes", 3, 17, 6, label=16, peak=400, codes=True),
)

with open(os.path.join(HERE, "sparse.txt"), "w", encoding="ascii") as file:
    file.write("# Made by generate_sparse.py with PyTorch %s, Transformers %s; do not edit.\n" %
               (torch.__version__, transformers.__version__))
    file.write("\n".join(case.text() for case in CASES) + "\n")
