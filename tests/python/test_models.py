# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers on a backend, held to their own eager code."""
import contextlib
import copy
import functools
import io
import itertools
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from unittest import mock

import attnhost
import torch
import transformers
from attnhost import bench
from attnhost.errors import AttnhostError, InvalidArgument, Unsupported
from attnhost.graphs import DecodeGraph, read_sizes
from attnhost.pages import Snapshots
from attnhost.transformers import cache_argument, describe
from transformers import AutoModelForCausalLM

from harness import SOURCE, cases, refused
from models import (ALIBI, ALL, MODELS, PAIR, RECURRENT, config, make, make_encoder, make_of_images,
                    weights)

PROMPTS = (21, 34, 9)  # tokens of the three sequences
CHUNK, DECODES = 11, 16


def tokens(count, seed):
    return torch.randint(1, 97, (count,), generator=torch.Generator().manual_seed(seed))


torch.set_num_threads(1)  # tiny models: threads would wait for each other


def use(page_size=16, backend="cpu_native", **attention):
    return attnhost.use(attnhost.Host({"attention": {"attention_backend": backend, **attention},
                                       "kv_cache": {"page_size": page_size}}, threads=1))


def padded(sequences):
    """[sequences, tokens] with padding on the left, and its mask."""
    width = max(map(len, sequences))
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, width - len(sequence):] = sequence
        mask[row, width - len(sequence):] = 1
    return ids, mask


@torch.no_grad()
def logits_in_steps(model, cache, sequences):
    """Chunks of the prompts, then a token at a time; the logits of each sequence's tokens."""
    ids, mask = padded(sequences)
    width = ids.shape[1]
    borders = list(range(0, width - DECODES, CHUNK)) + list(range(width - DECODES, width + 1))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = [model(input_ids=ids[:, a:b], attention_mask=mask[:, :b], position_ids=positions[:, a:b],
                   use_cache=True, **{cache_argument(model): cache}).logits
             for a, b in itertools.pairwise(borders)]
    logits = torch.cat(found, 1).float()
    return [logits[row, width - len(s):] for row, s in enumerate(sequences)]


@torch.no_grad()
def logits_at_once(model, sequences):
    return [model(input_ids=s[None], use_cache=False).logits[0].float() for s in sequences]


def distance(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other))


def sequences_of(name):
    return [tokens(count + DECODES, seed) for seed, count in enumerate(PROMPTS)]


# Pages of each size under keys; one size where what is new is the states.
PAGES = (1, 16, 48)
PLACES = [*itertools.product(MODELS, PAGES), *((name, 16) for name in (*RECURRENT, *ALIBI))]


@functools.lru_cache(maxsize=2)
def expected_in_fp32(name):
    return logits_at_once(weights(name), sequences_of(name))


@cases(*PLACES)
def test_logits_in_fp32(name, page_size):
    use(page_size)
    sequences, expected = sequences_of(name), expected_in_fp32(name)
    model = make(name, "attnhost")
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4)
    assert distance(logits_in_steps(model, cache, sequences), expected) < 2e-5 * max(
        1, max(x.abs().max().item() for x in expected))
    rows = sum(cache.engine.rows.values())
    assert rows == len(cache.engine.layers) * sum(map(len, sequences)), "attnhost did it all"


@functools.lru_cache(maxsize=2)
def expected_of_bf16(name):
    """Of weights in bf16: the logits in fp32, and how far from them those in bf16 are."""
    sequences, rounded = sequences_of(name), make(name, "eager", torch.bfloat16)
    expected = logits_at_once(copy.deepcopy(rounded).float(), sequences)
    return expected, distance(logits_at_once(rounded, sequences), expected)


@cases(*PLACES)
def test_logits_in_bf16(name, page_size):
    """No further from fp32 than the model's own code in bf16, by much."""
    use(page_size)
    sequences, (expected, own) = sequences_of(name), expected_of_bf16(name)
    model = make(name, "attnhost", torch.bfloat16)
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4)
    assert distance(logits_in_steps(model, cache, sequences), expected) < 2 * own


@cases(*((name,) for name in ALL))
def test_greedy_tokens(name):
    """64 tokens are those of the greatest logits of the model's own code, up to ties."""
    use(16)
    prompts = [tokens(count, seed).tolist() for seed, count in enumerate(PROMPTS)]
    made = attnhost.generate(make(name, "attnhost"), prompts, 64, num_tokens=512, max_seqs=4,
                             max_tokens=24)
    assert [len(tail) for tail in made] == [64] * 3
    whole = [torch.tensor(prompt + tail) for prompt, tail in zip(prompts, made)]
    for prompt, tail, logits in zip(prompts, made, logits_at_once(weights(name), whole)):
        steps = logits[len(prompt) - 1:-1]
        short = steps.max(1).values - steps.gather(1, torch.tensor(tail)[:, None])[:, 0]
        assert short.max() < 1e-4, f"token {int(short.argmax())} is not the greatest"


@cases(("BartForCausalLM",), ("MBartForCausalLM",), ("PegasusForCausalLM",), ("MarianForCausalLM",))
def test_decoders_that_count_by_their_cache(name):
    """Rows of several sequences in one step would have wrong positions, and are refused; their own loop works."""
    use(16)
    kind = getattr(transformers, name)
    given = dict(is_decoder=True, is_encoder_decoder=False, max_position_embeddings=64, **PAIR)
    torch.manual_seed(0)
    own = kind._from_config(kind.config_class(**given), attn_implementation="eager").eval()
    model = kind._from_config(kind.config_class(**given), attn_implementation="attnhost").eval()
    model.load_state_dict(own.state_dict())
    refused(Unsupported, [name, "position_ids", "model.generate()"], attnhost.generate, model, [[5, 6, 7]], 4)
    ids, loop = torch.tensor([[5, 6, 7, 8]]), dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4)
    assert torch.equal(model.generate(ids, **{cache_argument(model): cache}, **loop), own.generate(ids, **loop))


def test_logits_of_the_last_rows_alone():
    """No caller reads a prompt's other logits, and they are the most work of a large vocabulary."""
    use(16)
    model, shapes = make("llama", "attnhost"), []
    model.lm_head.register_forward_hook(lambda module, given, made: shapes.append(tuple(made.shape)))
    attnhost.generate(model, [list(range(1, 30)), [3, 4]], 3, num_tokens=512, max_seqs=4)
    assert shapes and all(shape[1] <= 2 for shape in shapes), shapes


@cases((torch.float32,), (torch.bfloat16,))
def test_latent_attention_expanded(dtype):
    """Prompts with keys and values of each head; what lies before a chunk, in chunks of its own."""
    use(16, mla_prefill="expanded")
    sequences, eager = sequences_of("deepseek_v3"), make("deepseek_v3", "eager", dtype)
    expected = logits_at_once(copy.deepcopy(eager).float(), sequences)
    own = distance(logits_at_once(eager, sequences), expected)
    model = make("deepseek_v3", "attnhost", dtype)
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4, max_tokens=36)
    assert distance(logits_in_steps(model, cache, sequences), expected) < max(2 * own, 1e-4)
    assert cache.engine.rows["cpu_native"] > 2 * sum(map(len, sequences)), "rows of prefixes as well"


def test_a_wrong_window_would_be_noticed():
    use()
    sequences = sequences_of("mistral")
    expected = logits_at_once(weights("mistral"), sequences)
    model = make("mistral", "attnhost")
    for layer in model.model.layers:
        layer.self_attn.config.sliding_window = 9
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4)
    assert distance(logits_in_steps(model, cache, sequences), expected) > 1e-2


@torch.no_grad()
def test_a_compiled_graph_stays_whole():
    """A recurrent layer and one of attention: a graph for prompts, one for single rows."""
    use()
    prompt, model = tokens(15, 1), make("lfm2", "attnhost")
    cache = attnhost.Cache(model, num_tokens=64, max_seqs=1)
    sequence, found = cache.engine.add(prompt.tolist()), []
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for start, end in ((0, 13), (13, 14), (14, 15)):
        cache.begin([(sequence, end - start)])
        found.append(compiled(input_ids=prompt[None, start:end], past_key_values=cache, use_cache=True,
                              position_ids=torch.arange(start, end)[None]).logits[0])
    expected = logits_at_once(weights("lfm2"), [prompt])[0]
    assert (torch.cat(found) - expected).abs().max() < 1e-4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert sum(cache.engine.rows.values()) == 2 * 15
    torch.compiler.reset()


def test_the_operator_of_graphs():
    """Its fake kernel says what it does."""
    use()
    cache = attnhost.Cache(make("llama", "attnhost"), num_tokens=64)
    cache.begin([(cache.engine.add([1, 2, 3]), 3)])
    q, k = torch.randn(1, 3, 4, 16), torch.randn(1, 3, 2, 16)
    arguments = ([q, k, k], "q,k,v", None, cache.number, "self", 0, True, 4, 16)
    torch.library.opcheck(torch.ops.attnhost.layer, arguments,
                          test_utils=("test_schema", "test_faketensor"))


# ---- The two ways to know a model ------------------------------------------------------------------


def facts(group):
    names = ("kind", "attn_type", "flags", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim",
             "window_left", "window_right", "attention_chunk", "sm_scale", "logit_cap")
    layers = tuple(sorted(group.layers[i].layer_id for i in range(group.num_layers)))
    dims = [repr(more.contents) for more in (group.linear, group.mla) if more]
    return layers, tuple(getattr(group, name) for name in names), dims


@cases(*((name,) for name in ALL if name != "mpt"))
def test_a_live_model_is_what_its_config_says(name):
    held_to_its_config(make(name, "attnhost"), name)


@cases(("bert",), ("modernbert",))
def test_a_live_encoder_is_what_its_config_says(name):
    held_to_its_config(make_encoder(name)[1], name)


def held_to_its_config(model, name):
    host = use()
    explained = host.explain(model, name, platform__device="cpu")
    assert sorted(facts(group.struct) for group in explained.groups) == sorted(map(facts, describe(model)))


@cases(("llama",), ("qwen3_next",), ("deepseek_v3",), ("bloom",))
def test_a_model_is_saved_and_loaded(name):
    """Also after a cache has taken its layers over."""
    use()
    model, prompt = make(name, "attnhost"), tokens(20, 1).tolist()
    expected = attnhost.generate(model, [prompt], 8, num_tokens=64)
    assert attnhost.generate(pickle.loads(pickle.dumps(model)), [prompt], 8, num_tokens=64) == expected
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="attnhost").eval()
    assert attnhost.generate(loaded, [prompt], 8, num_tokens=64) == expected


# ---- Encoders --------------------------------------------------------------------------------------


def padded_right():
    return [x.flip(1) for x in padded([tokens(count, seed) for seed, count in enumerate(PROMPTS)])]


@cases(("bert",), ("modernbert",))
def test_an_encoder_needs_no_cache(name):
    use()
    eager, model = make_encoder(name)
    ids, mask = padded_right()
    with torch.no_grad():
        for rows in (1, 3):  # another batch is planned anew
            expected, found = (m(input_ids=ids[:rows], attention_mask=mask[:rows]).last_hidden_state
                               for m in (eager, model))
            assert ((found - expected) * mask[:rows, :, None]).abs().max() < 2e-5


@cases(("bart",), ("whisper",))
def test_cross_attention(name):
    """The encoder's keys come once; decoder tokens in chunks, then one at a time."""
    use()
    eager, model = make_encoder(name)
    ids, mask = padded_right()
    source = dict(input_ids=ids, attention_mask=mask)
    if name == "whisper":
        source = dict(input_features=torch.randn(3, 8, 40, generator=torch.Generator().manual_seed(1)))
    target = torch.stack([tokens(23, seed) for seed in range(3)])
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4)
    with torch.no_grad():
        expected = eager(**source, decoder_input_ids=target).logits
        found = [model(**source, decoder_input_ids=target[:, a:b], past_key_values=cache).logits
                 for a, b in itertools.pairwise((0, 10, 20, 21, 22, 23))]
    assert (torch.cat(found, 1) - expected).abs().max() < 2e-5 * expected.abs().max()
    cache.clear()
    pages = cache.engine.pages
    assert pages.available == len(pages.users) - 1, "no page is lost"
    settings = dict(max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert (model.generate(**source, past_key_values=cache, **settings)
            == eager.generate(**source, **settings)).all()


# ---- Generation ------------------------------------------------------------------------------------


@cases(("gemma2",), ("qwen3_next",), ("mamba2",))
def test_transformers_own_loop(name):
    use(16)
    ids, mask = padded([tokens(count, seed) for seed, count in enumerate(PROMPTS)])
    settings = dict(attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
    expected = weights(name).generate(ids, **settings)
    model = make(name, "attnhost")
    settings[cache_argument(model)] = attnhost.Cache(model, num_tokens=512)
    assert (model.generate(ids, **settings) == expected).all()


def test_shared_prefixes_are_computed_once():
    use(16)
    model = make("llama", "attnhost")
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=2)
    start = tokens(40, 1).tolist()
    prompts = [start + tokens(5, seed).tolist() for seed in (2, 3, 4)]
    alone = [attnhost.generate(model, [prompt], 8, num_tokens=512)[0] for prompt in prompts]
    before = cache.engine.rows.get("cpu_native", 0)
    assert attnhost.generate(model, prompts, 8, cache=cache) == alone
    computed = (cache.engine.rows["cpu_native"] - before) // 4
    whole = sum(len(prompt) + 7 for prompt in prompts)
    assert computed == whole - 32, "the third starts after the first two, with two pages of 16"
    pages = cache.engine.pages
    assert pages.available == len(pages.users) - 1, "no page is lost"
    again = attnhost.generate(model, prompts[:1], 8, cache=cache)
    assert again == alone[:1]


@cases(("qwen3_next",), ("lfm2",))
def test_prefixes_with_states_are_computed_once(name):
    """States are kept where a step ends with a page; the copy is the sequence's own."""
    use(16)
    model = make(name, "attnhost")
    start = tokens(40, 1).tolist()
    prompts = [start + tokens(5, seed).tolist() for seed in (2, 3, 4)]
    alone = [attnhost.generate(model, [prompt], 8, num_tokens=512)[0] for prompt in prompts]
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=2)
    assert [attnhost.generate(model, [prompt], 8, cache=cache)[0] for prompt in prompts] == alone
    whole = sum(len(prompt) + 7 for prompt in prompts)
    assert sum(cache.engine.rows.values()) == len(cache.engine.layers) * (whole - 2 * 32)
    again = attnhost.generate(model, [prompts[0] + alone[0][:4] + [1]], 8, cache=cache)
    assert cache.engine.rows["cpu_native"] == whole - 2 * 32 + 2 + 7, "48 tokens were known"
    assert again == attnhost.generate(model, [prompts[0] + alone[0][:4] + [1]], 8, num_tokens=512)
    attention = {"attention_backend": "cpu_native"}
    attnhost.use(attention=attention, kv_cache={"page_size": 16, "cached_states": 0})
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=2)
    for prompt in prompts[:2]:
        attnhost.generate(model, [prompt], 2, cache=cache)
    assert cache.engine.rows["cpu_native"] == 2 * 46, "none are kept, so nothing is shared"


def test_the_oldest_states_make_room():
    kept = Snapshots([7, 8])
    assert (kept.take(1), kept.take(2), kept.take(1)) == (8, 7, None)
    assert kept.find(1) == 8 and kept.take(3) == 7, "2 was used longest ago"
    kept.forget(1)
    assert kept.find(1) is None and kept.find(2) is None and kept.take(4) == 8
    assert Snapshots([]).take(1) is None


def test_prompts_that_are_tensors_share_prefixes():
    use(16)
    model = make("llama", "attnhost")
    cache = attnhost.Cache(model, num_tokens=256, max_seqs=1)
    prompts = torch.stack([tokens(40, 1)] * 2)
    one, other = attnhost.generate(model, prompts, 2, cache=cache)
    assert one == other and sum(cache.engine.rows.values()) == 4 * (41 + 41 - 32)


def test_a_compiled_model_generates():
    use(16)
    model, prompts = make("llama", "attnhost"), [tokens(20, 1).tolist()]
    expected = attnhost.generate(model, prompts, 4, num_tokens=64)
    compiled = torch.compile(model, backend="eager")
    assert attnhost.generate(compiled, prompts, 4, num_tokens=64) == expected
    assert attnhost.generate(compiled, prompts, 4, cache=attnhost.Cache(model, num_tokens=64)) == expected
    torch.compiler.reset()


def test_models_in_threads_of_their_own():
    """A host and a model each: what one leaves for its next layer is not the other's. The threads take
    turns where this is left, between a cache's layer and attention."""
    use(16)
    prompts = [tokens(20, seed).tolist() for seed in range(2)]
    made = [make(name, "attnhost") for name in ("llama", "qwen2")]
    expected = [attnhost.generate(model, [prompt], 8, num_tokens=64) for model, prompt in zip(made, prompts)]
    caches = []
    for model in made:
        use(16)
        caches.append(attnhost.Cache(model, num_tokens=64))
    update, barrier = attnhost.transformers._CacheLayer.update, threading.Barrier(2)

    def wait(*arguments, **named):
        found = update(*arguments, **named)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(5)
        return found

    found = [None, None]

    def work(index):
        try:
            found[index] = attnhost.generate(made[index], [prompts[index]], 8, cache=caches[index])
        finally:
            barrier.abort()  # the other one goes on alone

    with mock.patch.object(attnhost.transformers._CacheLayer, "update", wait):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == expected


def test_more_prompts_than_room():
    use(16)
    model = make("llama", "attnhost")
    prompts = [tokens(20 + seed, seed).tolist() for seed in range(9)]
    alone = [attnhost.generate(model, [prompt], 6, num_tokens=512)[0] for prompt in prompts]
    assert attnhost.generate(model, prompts, 6, num_tokens=96, max_seqs=8, max_tokens=16) == alone


# ---- The bench -------------------------------------------------------------------------------------


def test_the_bench():
    """Two inis beside sdpa on the same weights and steps."""
    backend = "attention.attention_backend=cpu_native"
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        config("qwen3").save_pretrained(folder)
        picture = ["--plot", folder + "/plot.svg"] if shutil.which("gnuplot") else []
        rows = bench.main([folder, backend, backend + ",kv_cache.page_size=48", "--dtype=float32",
                           "--batch=2", "--context=20", "--prompt=9", "--layers=2", "--seconds=0", *picture])
        assert not picture or "kv_cache.page_size" in pathlib.Path(folder, "plot.svg").read_text("utf-8")
    assert [(row["phase"], row["batch"], row["context"]) for row in rows] == \
        [("prefill", 1, 9)] * 3 + [("decode", 2, 20)] * 3
    assert rows[2]["name"] == rows[5]["name"] == "sdpa" and rows[0]["ratio"] == rows[3]["ratio"] == 1
    for row in rows:
        assert 0 < row["attention_us"] < row["step_us"] and row["calls"] >= 3, row
    assert len(printed.getvalue().splitlines()) == 1 + len(rows)


def test_the_bench_without_what_it_needs():
    """An ini that cannot serve is left out with its reason; a plot without gnuplot is refused at once."""
    good, bad = "attention.attention_backend=cpu_native", "attention.attention_backend=fa3_like"
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), \
            contextlib.redirect_stderr(io.StringIO()) as errors:
        config("qwen3").save_pretrained(folder)
        asked = [folder, good, bad, "--dtype=float32", "--own=", "--batch=1", "--context=9", "--prompt=9",
                 "--layers=1", "--seconds=0"]
        rows = bench.main(asked)
        with mock.patch("shutil.which", return_value=None):
            refused(SystemExit, ["2"], bench.main, [*asked, "--plot", folder + "/plot.svg"])
    assert {row["name"] for row in rows} == {good}
    assert "fa3_like" in errors.getvalue() and "gnuplot" in errors.getvalue()


@torch.no_grad()
def test_prompts_of_the_bench_in_chunks():
    """One after another, in steps of four tokens: the logits of each step's last token are those of
    sdpa, the very last ones those of whole prompts."""
    with tempfile.TemporaryDirectory() as folder:
        config("qwen3").save_pretrained(folder)
        options = bench.parse([folder, "attention.attention_backend=cpu_native", "--dtype=float32", "--own=sdpa"])
        made = bench.contenders(options)
    options.plain, found, logits = True, {}, []
    hook = made[0].model.register_forward_hook(lambda *call: logits.append(call[-1].logits[0, -1]))
    for options.chunk, steps in ((0, 1), (4, 6)):
        keys = {}
        for contender in made:
            contender.ids.manual_seed(1)
            contender.prepare(("prefill", 2, 9), keys)
            contender.enter()
            logits = []
            contender.run_step()
            contender.run_attention()
            assert len(logits) == steps
            found[contender.name, steps] = torch.stack(logits)
    hook.remove()
    ours, other = (contender.name for contender in made)
    assert distance(found[ours, 6], found[other, 6]) < 2e-5
    assert distance(found[ours, 6][-1:], found[ours, 1]) < 2e-5


# ---- Bad input -------------------------------------------------------------------------------------


def test_a_model_without_a_cache_of_ours():
    use()
    with torch.no_grad():
        refused(InvalidArgument, ["layer 0", "attnhost.Cache"], make("llama", "attnhost"),
                tokens(4, 0)[None])


def test_a_model_whose_attention_is_another():
    use()
    refused(InvalidArgument, ["eager", "attnhost"], attnhost.Cache, weights("llama"))


def test_a_backend_that_cannot():
    use(backend="fa3_like")
    error = refused(Unsupported, ["fa3_like"], attnhost.Cache, make("llama", "attnhost"))
    assert error.reasons, "and says why, before the first token"


def test_a_model_that_nobody_serves():
    attnhost.use()
    large = config("llama")
    large.head_dim = 1024
    made = AutoModelForCausalLM.from_config(large, attn_implementation="attnhost").eval()
    error = refused(Unsupported, ["head_dim 1024"], attnhost.Cache, made)
    assert any(reason.field == "head_dim" for reason in error.reasons)


@torch.no_grad()
def test_models_whose_attention_cannot_be_said():
    """A relative bias, and code of their own, which would take our mask for theirs."""
    use()
    t5, ids = make_encoder("t5")[1], tokens(4, 0)[None]
    refused(Unsupported, ["position bias"], attnhost.Cache, t5)
    refused(Unsupported, ["position bias"], t5, ids, decoder_input_ids=ids)
    refused(Unsupported, ["BloomModel", "attnhost.Cache"], make("bloom", "attnhost"), ids)
    refused(Unsupported, ["BertModel", "without a cache"], attnhost.Cache, make_encoder("bert")[1])


@cases(("jamba", "JambaForCausalLM"), ("mamba", "MambaForCausalLM: its own code"))
def test_a_model_that_is_not_served(name, words):
    use()
    made = AutoModelForCausalLM.from_config(config(name), attn_implementation="attnhost").eval()
    refused(Unsupported, [words], attnhost.Cache, made)


def test_a_dtype_that_nobody_has():
    use()
    refused(Unsupported, ["float64", "float32"], attnhost.Cache, make("llama", "attnhost").double())


@cases((False,), (True,))
@torch.no_grad()
def test_a_mask_of_the_model_is_not_ignored(compiles):
    """Text is served; with an image, whose tokens see each other, it is refused."""
    use()
    eager, model = make_of_images("eager"), make_of_images("attnhost")
    ids = torch.tensor([[1, 2, 91, 90, 90, 90, 90, 92, 5, 6]])
    kinds = (ids == 90).long()
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    text = ids.clamp(max=80)
    found = model(input_ids=text, past_key_values=attnhost.Cache(model, num_tokens=64)).logits
    assert (found - eager(input_ids=text).logits).abs().max() < 1e-4
    call = torch.compile(model, backend="eager") if compiles else model
    refused(Exception, ["mask of the model's own"], call, input_ids=ids, pixel_values=pixels,
            token_type_ids=kinds, past_key_values=attnhost.Cache(model, num_tokens=64))
    torch.compiler.reset()


@cases((0,), (-1,))
def test_no_tokens_to_make(count):
    use()
    refused(InvalidArgument, ["max_new_tokens", str(count), "1"], attnhost.generate,
            make("llama", "attnhost"), [[1]], count, num_tokens=64)


def test_a_cache_of_another_model():
    use()
    model = make("llama", "attnhost")
    for cache in (attnhost.Cache(make("qwen2", "attnhost"), num_tokens=64), transformers.DynamicCache()):
        refused(InvalidArgument, ["cache", type(cache).__name__], attnhost.generate, model, [[1]], 2,
                cache=cache)


@torch.no_grad()
def test_a_step_that_was_torn():
    """By an exception between two layers: the first has keys of its tokens, the others have none."""
    use()
    model, ids = make("llama", "attnhost"), tokens(9, 1)[None]
    expected = model(ids, past_key_values=attnhost.Cache(model, num_tokens=64)).logits
    cache = attnhost.Cache(model, num_tokens=64)
    sequence = cache.engine.add(ids[0].tolist())
    cache.begin([(sequence, 9)])
    for more in ({}, dict(position_ids=torch.arange(9)[None])):
        with mock.patch.object(model.model.layers[2], "forward", side_effect=KeyboardInterrupt):
            refused(KeyboardInterrupt, [], model, ids, past_key_values=cache, **more)
        if not more:
            refused(InvalidArgument, ["2 of 4 layers", "clear"], cache.begin, [(sequence, 0)])
            cache.engine.free(sequence)
        else:
            refused(InvalidArgument, ["2 of 4 layers", "clear"], model, ids, past_key_values=cache)
        cache.clear()
    assert torch.equal(model(ids, past_key_values=cache).logits, expected)


def test_gradients():
    use()
    model = make("llama", "attnhost")
    cache = attnhost.Cache(model, num_tokens=64)
    refused(Unsupported, ["no_grad"], model, tokens(4, 0)[None], past_key_values=cache)


def test_prompts_that_do_not_fit():
    use()
    model = make("llama", "attnhost")
    refused(InvalidArgument, ["prompt 1", "64"], attnhost.generate, model, [[1], [1] * 80], 4,
            num_tokens=64)
    refused(InvalidArgument, ["prompt 0"], attnhost.generate, model, [[]], 4, num_tokens=64)


def test_states_that_are_all_in_use():
    use()
    engine = attnhost.Cache(make("lfm2", "attnhost"), num_tokens=64, max_seqs=2).engine
    sequences = [engine.add([1, 2, 3]) for _ in range(3)]
    engine.plan([(sequence, 3) for sequence in sequences[:2]])
    refused(AttnhostError, ["all 2 states", "max_seqs"], engine.plan, [(sequences[2], 3)])
    engine.free(sequences[0])
    engine.plan([(sequences[2], 3)])


def test_a_state_begins_as_zero():
    """A slot that another sequence has left."""
    use()
    model = make("minimax", "attnhost")
    caches = [attnhost.Cache(model, num_tokens=64, max_seqs=1) for _ in range(2)]
    for value in caches[1].engine.states.values():
        value["state"].fill_(100)
    one, other = (logits_in_steps(model, cache, [tokens(20, 1)])[0] for cache in caches)
    assert torch.equal(one, other)


def test_a_pool_that_is_full():
    use()
    model = make("llama", "attnhost")
    cache = attnhost.Cache(model, num_tokens=64, max_seqs=4)
    with torch.no_grad():
        refused(AttnhostError, ["page", "num_tokens"], model,
                torch.ones(4, 40, dtype=torch.long), past_key_values=cache)


def test_another_batch_in_the_same_cache():
    use()
    model = make("llama", "attnhost")
    cache = attnhost.Cache(model, num_tokens=256)
    with torch.no_grad():
        model(torch.ones(2, 3, dtype=torch.long), past_key_values=cache)
        refused(InvalidArgument, ["3 sequences", "2"], model, torch.ones(3, 1, dtype=torch.long),
                past_key_values=cache)
        cache.clear()
        model(torch.ones(3, 1, dtype=torch.long), past_key_values=cache)


# ---- Graphs ----------------------------------------------------------------------------------------


def called_again(run, _size):
    """In place of a capture: the same call, to the same memory."""
    result = run().clone()
    return lambda: result.copy_(run()), result


def in_graph_steps(graph, cache, sequences):
    """Prompts in one step, then decodes; the logits of these."""
    made = [cache.engine.add(s.tolist(), share=False) for s in sequences]
    cache.begin([(sequence, count) for sequence, count in zip(made, PROMPTS)])
    graph.model(input_ids=torch.cat([s[:n] for s, n in zip(sequences, PROMPTS)])[None], use_cache=True,
                position_ids=torch.cat([torch.arange(n) for n in PROMPTS])[None],
                **{cache_argument(graph.model): cache})
    return torch.stack([graph.step(made).clone() for _ in range(DECODES)], 1)


@cases(*itertools.product(("llama", "gemma2", "qwen3_next"), (1, 16)))
@torch.no_grad()
def test_steps_as_graphs_make_them(name, page_size):
    """Padded, with all that a graph reads where it was: what was there before is not seen."""
    use(page_size)
    sequences, model = sequences_of(name), make(name, "attnhost")
    cache = attnhost.Cache(model, num_tokens=512, max_seqs=4, max_len=64)
    graph = DecodeGraph(model, cache, 4, called_again)
    step = graph._step
    place = step.ids.data_ptr()
    step.memory.fill_(85)
    found = in_graph_steps(graph, cache, sequences)
    expected = [logits[-DECODES:] for logits in expected_in_fp32(name)]
    assert distance(found, expected) < 2e-5 * max(1, max(x.abs().max().item() for x in expected))
    assert step.ids.data_ptr() == place == step.memory.data_ptr()
    refused(InvalidArgument, ["5 sequences", "4"], cache.begin,
            [(cache.engine.add([1], share=False), 1) for _ in range(5)], step)


def test_sizes_of_graphs():
    assert read_sizes("1 2 4 8-64/8") == [1, 2, 4, *range(8, 65, 8)]
    assert read_sizes("3-5 1") == [1, 3, 4, 5]


def test_graphs_on_the_cpu():
    use()
    refused(Unsupported, ["device cpu", "cuda"], attnhost.generate, make("llama", "attnhost"), [[1, 2]], 2,
            graphs=True, num_tokens=64)


@cases(("Falcon", "FALCON", dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=1)),
       ("GPTNeo", "GPT_NEO", dict(hidden_size=64, num_heads=4, num_layers=1, attention_types=[[["global"], 1]])))
def test_models_that_have_a_dict_of_attention_classes(name, prefix, special):
    use()
    config = getattr(transformers, f"{name}Config")(vocab_size=97, **special)
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    refused(Unsupported, [f"{prefix}_ATTENTION_CLASSES", "eager", f"{name}ForCausalLM"], attnhost.generate, made,
            [[5, 6, 7]], 4)


def test_a_sample_of_the_sweep():
    wanted = {"llama": "equal", "gemma2": "equal", "gpt2": "equal", "mamba": "refused", "opt": "refused",
              "falcon": "refused", "gemma3n_text": "refused"}
    done = subprocess.run([sys.executable, "-W", "ignore", os.path.join(SOURCE, "tests/python/sweep.py"), *wanted],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line.split(None, 2) for line in done.stdout.splitlines()]
    assert {kind: outcome for outcome, kind, *_ in lines} == wanted, done.stdout + done.stderr[-500:]
    assert done.returncode == 0
    [said] = [why for _, kind, *why in lines if kind == "opt"]
    assert "several sequences in a row" in said[0], said
