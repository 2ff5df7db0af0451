# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers on CUDA backends, run by hand on a machine with a GPU of sm_90:

    python tests/python/run.py 0 test_gpu

Logits of prompts in chunks, packed, and of decodes from graphs. The bound: the model's own eager code in
16 bits is some way off the same weights in fp32; attention of a backend rounds at the same places (its
inputs, its probabilities, its output), in another order, and the rest is the same code, so the largest
error of any logit may be twice that of the eager code, and the root of the mean square 1.25 times.
"""
import copy
import functools
import gc
import itertools
import os
import weakref

import attnhost
import numpy as np
import torch
import transformers
from attnhost.errors import InvalidArgument, Unsupported
from attnhost.graphs import DecodeGraphs
from transformers import AutoModelForCausalLM

import models
from harness import Skip, cases, refused

PROMPTS = (70, 300, 9)  # tokens of the three sequences
CHUNK, DECODES = 64, 16
SIZE = dict(vocab_size=512, hidden_size=256, intermediate_size=512, num_attention_heads=8,
            num_hidden_layers=4, max_position_embeddings=1024)
MIXED = ["sliding_attention", "full_attention"] * 2
# What is special; head dimensions are those of real models.
MODELS = {
    "llama": dict(head_dim=128),
    "qwen2": dict(head_dim=128),
    "qwen3": dict(head_dim=64),
    "mistral": dict(head_dim=128, sliding_window=40),
    "gemma2": dict(head_dim=256, sliding_window=40, layer_types=MIXED),
    "gemma3": dict(head_dim=256, sliding_window=40, layer_types=MIXED),
    "gpt_oss": dict(head_dim=64, sliding_window=40, layer_types=MIXED, num_experts_per_tok=4),
    "mixtral": dict(head_dim=128, sliding_window=40, num_experts_per_tok=4),
    "olmo2": dict(head_dim=128),
    "phi3": dict(head_dim=96),
    "cohere2": dict(head_dim=128, sliding_window=40, layer_types=MIXED),
    "glm4": dict(head_dim=128),
}
# Latent ones, in the sizes of real models, by the backend that serves them.
LATENT = dict(kv_lora_rank=512, qk_rope_head_dim=64, head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=96,
              num_key_value_heads=8)
INDEXED = {**LATENT, "index_topk": 64, "index_n_heads": 16, "index_head_dim": 128}
LATENTS = {"deepseek_v2": {**LATENT, "q_lora_rank": None}, "deepseek_v3": LATENT, "deepseek_v32": INDEXED,
           "glm_moe_dsa": {**INDEXED, "indexer_types": ["full", "shared"] * 2}}
MODELS_OF = {**MODELS, **LATENTS}
OTHERS = {"glm4": ("Glm4Config", {})}
FAST = {"prefill_attention_backend": "fa3_like", "decode_attention_backend": "flashinfer_like"}
BACKENDS = {"triton_like": {"attention_backend": "triton_like"},
            "flashinfer_like": {"attention_backend": "flashinfer_like"}, "fa3_like": FAST}
SERVED = [*itertools.product(MODELS, BACKENDS, ("bf16", "f16"), (16, 64)),
          *itertools.product(("deepseek_v2", "deepseek_v3"), ("flashmla_like",), ("bf16",), (16, 64)),
          *itertools.product(("deepseek_v32", "glm_moe_dsa"), ("dsa_like",), ("bf16",), (16, 64))]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
PLUGINS = os.environ.get("ATTNHOST_TEST_PLUGINS", "")  # a folder; else those that are installed


def use(backend="flashinfer_like", page_size=16, **sections):
    if not torch.cuda.is_available():
        raise Skip("no CUDA device here")
    attention = BACKENDS.get(backend, {"attention_backend": backend})
    host = attnhost.Host({"attention": attention, "kv_cache": {"page_size": page_size}, **sections},
                         installed=not PLUGINS)
    if PLUGINS:
        host.load(PLUGINS)
    return attnhost.use(host)


def tokens(count, seed):
    return torch.randint(1, 97, (count,), generator=torch.Generator().manual_seed(seed))


def sequences():
    return [tokens(count + DECODES, seed).cuda() for seed, count in enumerate(PROMPTS)]


@functools.lru_cache(maxsize=2)
def eager(name, dtype):
    """With peaked attention, as models.weights(); its parameters are of this type."""
    kind, special = {**models.MODELS, **OTHERS}[name]
    values = {**models.SIZE, **special, **SIZE, **MODELS_OF[name]}
    torch.manual_seed(20)
    config = getattr(transformers, kind)(**values)
    if name in ("gpt_oss", "mixtral", *LATENTS):
        config._experts_implementation = "batched_mm"  # another one waits for the GPU
    made = models.peak(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    return made.to(dtype).cuda()


@functools.lru_cache(maxsize=2)
def make(name, dtype):
    origin = eager(name, dtype)
    made = AutoModelForCausalLM.from_config(copy.deepcopy(origin.config), attn_implementation="attnhost")
    made.load_state_dict(origin.state_dict())
    return made.to(dtype).cuda().eval()


@torch.no_grad()
def logits_at_once(model, whole):
    return [model(input_ids=s[None], use_cache=False).logits[0].float() for s in whole]


@functools.lru_cache(maxsize=2)
def expected(name, dtype):
    """The logits in fp32, and those of the eager code in this type."""
    rounded = eager(name, dtype)
    return (logits_at_once(copy.deepcopy(rounded).float(), sequences()),
            logits_at_once(rounded, sequences()))


@torch.no_grad()
def logits_in_steps(model, cache, whole):
    """Chunks of the prompts, packed; then decodes from graphs."""
    engine, graphs = cache.engine, DecodeGraphs(model, cache)
    made = [engine.add(s.tolist(), share=False) for s in whole]
    found = [[] for _ in whole]
    while work := [(i, min(CHUNK, count - s.length)) for i, (s, count) in enumerate(zip(made, PROMPTS))
                   if s.length < count]:
        starts = [made[i].length for i, _ in work]
        cache.begin([(made[i], count) for i, count in work])
        ids = torch.cat([whole[i][start:start + count] for (i, count), start in zip(work, starts)])
        positions = torch.cat([torch.arange(start, start + count) for (_, count), start in zip(work, starts)])
        rows = model(input_ids=ids[None], position_ids=positions[None].cuda(), past_key_values=cache,
                     use_cache=True).logits[0]
        for (i, _), part in zip(work, rows.split([count for _, count in work])):
            found[i].append(part.float())
    torch.cuda.set_sync_debug_mode(0)
    for number in range(DECODES):
        if number == 1:
            torch.cuda.set_sync_debug_mode("error")  # captured by now: nothing waits
        try:
            rows = graphs.step(made).float()
        finally:
            torch.cuda.set_sync_debug_mode(0)
        for i, row in enumerate(rows):
            found[i].append(row[None])
    return [torch.cat(parts) for parts in found]


def errors(found, right):
    """The largest, and the root of the mean square."""
    off = torch.cat([(a - b).flatten() for a, b in zip(found, right)])
    return off.abs().max().item(), off.square().mean().sqrt().item()


@cases(*SERVED)
def test_logits(name, backend, dtype, page_size):
    use(backend, page_size)
    right, own = expected(name, DTYPES[dtype])
    model = make(name, DTYPES[dtype])
    cache = attnhost.Cache(model, num_tokens=2048, max_seqs=4, max_tokens=512)
    largest, mean = errors(logits_in_steps(model, cache, sequences()), right)
    own_largest, own_mean = errors(own, right)
    print(f"# {name} {backend} {dtype} {page_size}: largest error {largest:.4f}, eager {own_largest:.4f}; "
          f"root mean square {mean:.5f}, eager {own_mean:.5f}")
    assert largest < 2 * own_largest and mean < 1.25 * own_mean
    chosen = {phase.name: phase.chosen for group in cache.engine.choice.groups for phase in group.phases}
    wanted = BACKENDS.get(backend, {"attention_backend": backend})
    assert chosen == {phase: wanted.get(f"{phase}_attention_backend", wanted.get("attention_backend"))
                      for phase in ("prefill", "decode")}


@cases(*itertools.product(MODELS, BACKENDS))
def test_greedy_tokens(name, backend):
    """32 tokens, from graphs, in fp16, whose rounding leaves more to say than that of bf16: those of fp32
    wherever its first choice is clear of the second."""
    use(backend)
    model, prompts = make(name, torch.float16), [s[:count].tolist() for s, count in zip(sequences(), PROMPTS)]
    made = attnhost.generate(model, prompts, 32, num_tokens=2048, max_seqs=4, max_tokens=200, graphs=True)
    right, own = expected(name, torch.float16)
    bound, compared = 2 * errors(own, right)[0], 0
    whole = [torch.tensor(prompt + tail).cuda() for prompt, tail in zip(prompts, made)]
    reference = copy.deepcopy(eager(name, torch.float16)).float()
    for prompt, tail, logits in zip(prompts, made, logits_at_once(reference, whole)):
        steps = logits[len(prompt) - 1:-1]
        best = steps.topk(2)
        clear = best.values[:, 0] - best.values[:, 1] > 2 * bound
        assert (best.indices[:, 0] == torch.tensor(tail).cuda())[clear].all()
        compared += int(clear.sum())
        short = best.values[:, 0] - steps.gather(1, torch.tensor(tail).cuda()[:, None])[:, 0]
        assert short.max() < 2 * bound, "and never one that is far behind"
    assert compared >= 16
    print(f"# {name} {backend}: {compared} of {3 * 32} tokens were clear")


# ---- Streams and lifetimes ---------------------------------------------------------------------------


class Step:
    """A layer of an EXTEND batch of one sequence, by hand."""

    def __init__(self, count=64):
        self.host = use()
        group = attnhost.layer_group([0], num_q_heads=4, num_kv_heads=4, head_dim=64)
        asked = attnhost.problem(group, device="cuda:0", dtype="bf16", page_size=16, max_seqs=1,
                                 max_tokens=count, max_kv_len=count)
        self.backend = self.host.compose("flashinfer_like", [asked])
        self.metadata = self.backend.metadata()
        pages = count // 16
        self.pool = {role: torch.zeros(pages + 1, 16, 4, 64, device="cuda", dtype=torch.bfloat16)
                     for role in ("k_cache", "v_cache")}
        self.metadata.bind(0, **self.pool)

        def array(*values, dtype=np.int32):
            host = torch.from_numpy(np.array(values, dtype))
            return host, host.cuda()

        self.batch = attnhost.Batch(
            "extend", seq_lens=array(count), prefix_lens=array(0), q_indptr=array(0, count),
            num_tokens=count, max_q_len=count, max_kv_len=count, kv_groups=[attnhost.KVGroup(
                16, out_cache_loc=array(*range(16, 16 + count), dtype=np.int64),
                block_table=array(list(range(1, pages + 1))))])
        self.q, self.k, self.v = (torch.randn(count, 4, 64, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(3))
        q, k, v = (x.transpose(0, 1)[None].float() for x in (self.q, self.k, self.v))
        self.right = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True)[0].transpose(0, 1)
        self.metadata.plan(self.batch)  # what a first launch loads is loaded now
        self.metadata.forward(0, q=self.q, k=self.k, v=self.v, out=torch.empty_like(self.q))
        torch.cuda.synchronize()

    def is_right(self, out):
        return (out.float() - self.right).abs().max() < 0.05


def twice(run):
    """Once so that all kernels are loaded, which may wait for the GPU; then with a side stream that is
    busy for half a second."""
    for cycles in (1, 1_000_000_000):
        torch.cuda.synchronize()
        run(torch.cuda.Stream(), cycles)


def test_the_current_stream_is_used():
    """What it waits for comes before, what it is given later comes after."""
    step = Step()

    def run(side, cycles):
        out, late = torch.zeros_like(step.q), torch.zeros_like(step.q)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            late.copy_(step.q)
            step.metadata.plan(step.batch)
            step.metadata.forward(0, q=late, k=step.k, v=step.v, out=out)
            out.mul_(2)
        early = out.abs().max().item()
        waited = side.query()
        side.synchronize()
        assert step.is_right(out / 2)
        assert cycles == 1 or (not waited and early == 0), "no other stream has waited"

    twice(run)


def test_a_tensor_that_a_stream_still_reads_is_kept():
    """Freed at once, its memory is wanted by others at once."""
    step = Step()

    def run(side, cycles):
        out, q, k = torch.zeros_like(step.q), step.q.clone(), step.k.clone()
        watched = weakref.ref(q)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            step.metadata.plan(step.batch)
            step.metadata.forward(0, q=q, k=k, v=step.v, out=out)
        del q, k
        spoilt = [torch.full_like(step.q, 77) for _ in range(64)]  # on the stream that had made q
        assert cycles == 1 or not side.query(), "it has not read them yet"
        assert watched() is not None and len(spoilt) == 64
        side.synchronize()
        assert step.is_right(out)
        step.metadata.plan(step.batch)  # puts an event behind it
        torch.cuda.synchronize()
        step.metadata.plan(step.batch)
        gc.collect()
        assert watched() is None, "and let go when it has"

    twice(run)


def test_a_layer_of_the_engine_frees_its_operands():
    """The same without anybody who keeps them: PyTorch waits with their memory."""
    host, group = use(), attnhost.layer_group([0], num_q_heads=4, num_kv_heads=4, head_dim=64)
    engine = attnhost.Engine(host, [group], dtype=torch.bfloat16, device="cuda", num_tokens=256, max_seqs=1,
                             max_tokens=64)
    given = [torch.randn(64, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    right = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None].float() for x in given), is_causal=True)[0].transpose(0, 1)

    def run(side, cycles):
        q, k, v = (x.clone() for x in given)
        out, sequence = torch.zeros_like(q), engine.add()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            engine.plan([(sequence, 64)])
            engine.forward(0, q=q, k=k, v=v, out=out)
            assert cycles == 1 or not side.query()
        del q, k, v
        spoilt = [torch.full_like(given[0], 77) for _ in range(64)]
        assert len(spoilt) == 64
        side.synchronize()
        assert (out.float() - right).abs().max() < 0.05
        engine.free(sequence)

    twice(run)


# ---- What cannot be ----------------------------------------------------------------------------------


def test_tensors_of_another_place_or_type():
    step = Step()
    step.metadata.plan(step.batch)
    given = dict(q=step.q, k=step.k, v=step.v, out=torch.empty_like(step.q))
    for change, words in ((dict(q=step.q.cpu()), ["q", "device type cpu"]), (dict(k=step.k.half()), ["k", "f16", "bf16"]),
                          (dict(v=step.v[:, :, ::2]), ["v"]), (dict(out=given["out"][:9]), ["out"])):
        refused(InvalidArgument, words, step.metadata.forward, 0, **{**given, **change})
    step.metadata.forward(0, **given)
    assert step.is_right(given["out"])


def test_layers_that_no_backend_of_a_gpu_serves():
    """Recurrent ones, before the first token."""
    use("auto")
    kind, special = models.RECURRENT["qwen3_next"]
    config = getattr(transformers, kind)(**{**models.SIZE, **special})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attnhost").cuda().eval()
    error = refused(Unsupported, ["layers 0"], attnhost.Cache, model, num_tokens=256)
    assert error.reasons


def test_a_model_that_cannot_be_captured():
    """It says so where graphs are asked for; else it runs without."""
    use()
    model, prompt = make("llama", torch.bfloat16), tokens(20, 1).tolist()
    sizes = dict(num_tokens=512, max_seqs=2, max_tokens=64)
    right = attnhost.generate(model, [prompt], 6, graphs=False, **sizes)
    norm, calls = model.model.norm, []

    def waits(hidden):
        calls.append(hidden.sum().item())
        return type(norm).forward(norm, hidden)

    norm.forward = waits
    try:
        refused(Unsupported, ["graph of 1 decodes", "LlamaForCausalLM", "cuda_graph.enable"],
                attnhost.generate, model, [prompt], 6, graphs=True, **sizes)
        assert attnhost.generate(model, [prompt], 6, **sizes) == right and calls
    finally:
        del norm.forward
    assert attnhost.generate(model, [prompt], 6, graphs=True, **sizes) == right


def test_an_ini_without_graphs():
    use(cuda_graph={"enable": False})
    model = make("llama", torch.bfloat16)
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=2, max_tokens=64)
    attnhost.generate(model, [[1, 2, 3]], 4, cache=cache)
    assert cache.graphs is None
