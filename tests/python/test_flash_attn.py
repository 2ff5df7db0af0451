# SPDX-License-Identifier: Apache-2.0
"""flash_attn's interface (attnhost.flash_attn) against attention in fp64, over lengths, dimensions and heads
like those of flash-attention's own forward tests."""
import itertools

import torch
from attnhost import InvalidArgument, Unsupported, flash_attn
from attnhost.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

from harness import cases, refused

flash_attn.use(attention={"attention_backend": "cpu_native"})
LENGTHS = ((1, 1), (1, 147), (113, 203), (128, 217), (113, 211), (108, 256), (64, 64), (256, 128))
HEADS = {"mha": (4, 4), "gqa": (6, 2), "mqa": (6, 1)}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def reference(q, k, v, causal=False, window=(-1, -1), cap=0.0, sinks=None, slopes=None, scale=None):
    """Of one sequence [rows, heads, dim]: output and LSE [rows, heads], in fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    at = torch.arange(len(q))[:, None] + len(k) - len(q)
    key = torch.arange(len(k))[None]
    left, right = window[0], 0 if causal else window[1]
    seen = ((key >= at - left) | torch.tensor(left < 0)) & ((key <= at + right) | torch.tensor(right < 0))
    scores = torch.einsum("thd,jhd->htj", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    scores = cap * (scores / cap).tanh() if cap else scores
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (at - key).abs()
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(q), 1)], 2)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    weights = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("htj,jhd->thd", weights, v), scores.logsumexp(-1).T


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def close(made, expected, dtype):
    finite = expected.isfinite()
    assert torch.equal(made.double().isfinite(), finite)
    worst = (made.double()[finite] - expected[finite]).abs().max() if finite.any() else 0
    assert worst < TOLERANCE[dtype], float(worst)


def check(out, lse, q, k, v, **rules):
    """A batch: q, k, v lists of [rows, heads, dim]; out [rows, heads, dim] of all, LSE [heads, rows]."""
    first = 0
    for one_q, one_k, one_v in zip(q, k, v):
        expected, expected_lse = reference(one_q, one_k, one_v, **rules)
        rows = slice(first, first + len(one_q))
        close(out[rows], expected, out.dtype)
        close(lse.T[rows], expected_lse, out.dtype if out.dtype != torch.float32 else torch.float32)
        first += len(one_q)


# ---- The grid ------------------------------------------------------------------------------------------


RULES = ({}, {"causal": True}, {"window": (17, 9)}, {"causal": True, "window": (31, 0)}, {"causal": True, "cap": 15.0})


@cases(*[(rows, keys, kind) for (rows, keys), kind in zip(LENGTHS, itertools.cycle(HEADS))])
def test_a_batch(rows, keys, kind):
    torch.manual_seed(rows)
    heads, kv_heads = HEADS[kind]
    for rules, dim, dtype in zip(RULES, (64, 32, 59, 128, 96), (torch.float32, torch.bfloat16) * 3):
        if rows > keys and "window" in rules and not rules.get("causal"):
            continue  # refused, as tested below
        q, k, v = draw(2, rows, heads, dim, dtype=dtype), *(draw(2, keys, kv_heads, dim, dtype=dtype) for _ in "kv")
        out, lse = flash_attn_func(q, k, v, causal=rules.get("causal", False), softcap=rules.get("cap", 0.0),
                                   window_size=rules.get("window", (-1, -1)), return_lse=True)
        assert out.shape == q.shape and lse.shape == (2, heads, rows)
        check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, k, v, **rules)


@cases(*[(kind, same) for kind in HEADS for same in (True, False)])
def test_sequences_of_any_lengths(kind, same):
    torch.manual_seed(3)
    heads, kv_heads = HEADS[kind]
    counts = [5, 1, 77, 30]
    lens = counts if same else [9, 3, 77, 130]
    for rules in RULES:
        q, k, v = [[draw(n, h, 64) for n in numbers] for h, numbers in
                   ((heads, counts), (kv_heads, lens), (kv_heads, lens))]
        starts, k_starts = (torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in (counts, lens))
        out, lse = flash_attn_varlen_func(
            torch.cat(q), torch.cat(k), torch.cat(v), starts, k_starts, max(counts), max(lens),
            causal=rules.get("causal", False), window_size=rules.get("window", (-1, -1)),
            softcap=rules.get("cap", 0.0), return_lse=True)
        check(out, lse, q, k, v, **rules)


@cases((1, 16), (4, 16), (3, 48))
def test_pages_of_a_cache(rows, page_size):
    """flash_attn_varlen_func and flash_attn_with_kvcache over a block table, one without new keys."""
    torch.manual_seed(rows)
    lens = torch.tensor([rows, 20, 61], dtype=torch.int32)
    table = torch.randperm(15).view(3, 5).to(torch.int32)
    caches = [draw(15, page_size, 2, 64) for _ in "kv"]
    k, v = ([cache[pages.long()].flatten(0, 1)[:n] for pages, n in zip(table, lens.tolist())] for cache in caches)
    q = draw(3, rows, 6, 64)
    out, lse = flash_attn_with_kvcache(q, *caches, cache_seqlens=lens, block_table=table, causal=True,
                                       return_softmax_lse=True)
    check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, k, v, causal=True)
    starts = torch.arange(0, 3 * rows + 1, rows, dtype=torch.int32)
    same = flash_attn_varlen_func(q.flatten(0, 1), *caches, starts, None, rows, 61, causal=True, block_table=table,
                                  seqused_k=lens)
    assert torch.equal(same, out.flatten(0, 1))
    packed = flash_attn_with_kvcache(q.flatten(0, 1), *caches, cache_seqlens=lens, page_table=table, causal=True,
                                     cu_seqlens_q=starts, cu_seqlens_k_new=starts, max_seqlen_q=rows, num_splits=3)
    assert torch.equal(packed, same)


@cases((1, 1, False), (5, 5, True), (4, 9, False), (2, 3, True))
def test_new_keys_are_appended(rows, added, paged):
    torch.manual_seed(added)
    before, room = torch.tensor([0, 17, 40], dtype=torch.int32), 64
    order = torch.tensor([2, 0, 3])
    caches = [draw(4, room, 2, 64) for _ in "kv"]
    k, v = (draw(3, added, 2, 64) for _ in "kv")
    q = draw(3, min(rows, added), 4, 64)
    seen = [[torch.cat([cache[place, :n], new[i]]) for i, (place, n) in enumerate(zip(order, before))]
            for cache, new in zip(caches, (k, v))]
    view = [cache.view(16, 16, 2, 64) for cache in caches] if paged else caches
    where = {"block_table": order[:, None] * 4 + torch.arange(4)} if paged else {"cache_batch_idx": order}
    out, lse = flash_attn_with_kvcache(q, *view, k, v, cache_seqlens=before, causal=True, return_lse=True, **where)
    check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, *seen, causal=True)
    for cache, whole in zip(caches, seen):
        for place, keys in zip(order, whole):
            assert torch.equal(cache[place, :len(keys)], keys), "they are written"


def test_sinks_slopes_scale_and_wide_values():
    torch.manual_seed(0)
    q, k, v = draw(2, 40, 4, 64), draw(2, 40, 2, 64), draw(2, 40, 2, 96)
    sinks, slopes = draw(4), torch.rand(4)
    out, lse = flash_attn_func(q, k, v, causal=True, sinks=sinks, softmax_scale=0.3, return_lse=True)
    check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, k, v, causal=True, sinks=sinks, scale=0.3)
    out, lse, none = flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_attn_probs=True)
    assert none is None
    check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, k, v, causal=True, slopes=slopes)


def test_an_fp8_cache_with_its_scales():
    torch.manual_seed(1)
    whole = [draw(3, 32, 2, 64) for _ in "kv"]
    caches = [(x / scale).to(torch.float8_e4m3fn) for x, scale in zip(whole, (0.5, 0.25))]
    q, lens = draw(3, 1, 4, 64), torch.tensor([32, 7, 20], dtype=torch.int32)
    out, lse = flash_attn_with_kvcache(q, *caches, cache_seqlens=lens, k_descale=0.5,
                                       v_descale=torch.tensor(0.25), return_lse=True)
    k, v = ([cache[i, :n].float() * scale for i, n in enumerate(lens)] for cache, scale in zip(caches, (0.5, 0.25)))
    check(out.flatten(0, 1), lse.transpose(0, 1).flatten(1), q, k, v)
    refused(Unsupported, ["k_descale and v_descale", "both"], flash_attn_with_kvcache, q, *caches)


def test_rows_that_see_no_key():
    q, k, v = draw(1, 5, 2, 32), draw(1, 2, 2, 32), draw(1, 2, 2, 32)
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert (out[0, :3] == 0).all() and (lse[0, :, :3] == -float("inf")).all()
    check(out[0], lse[0], q, k, v, causal=True)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    assert not flash_attn_varlen_func(q[0, :3], k[0, :0], v[0, :0], starts, torch.zeros(2, dtype=torch.int32), 3, 0,
                                      causal=True).any()


def test_columns_of_a_fused_projection_are_not_copied():
    torch.manual_seed(2)
    wide = draw(1, 9, 8, 64)
    q, k, v = wide[:, :, :4], wide[:, :, 4:6], wide[:, :, 6:]
    out, lse = flash_attn_func(q, k, v, return_lse=True)
    check(out[0], lse[0], q, k, v)


# ---- torch.compile -------------------------------------------------------------------------------------


def test_a_compiled_function_stays_whole():
    """One graph, and caches that are written in it."""
    caches = [torch.zeros(2, 32, 2, 64) for _ in "kv"]
    mirror = [x.clone() for x in caches]

    def step(q, k, v, k_cache, v_cache, lens):
        return flash_attn_with_kvcache(q + 1, k_cache, v_cache, k, v, cache_seqlens=lens, causal=True) * 2

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for n in (0, 1, 2):
        torch.manual_seed(n)
        given = (draw(2, 1, 4, 64), draw(2, 1, 2, 64), draw(2, 1, 2, 64))
        lens = torch.tensor([n, n + 3], dtype=torch.int32)
        assert torch.equal(compiled(*given, *caches, lens), step(*given, *mirror, lens))
    assert all(torch.equal(one, other) for one, other in zip(caches, mirror))


# ---- Refusals ------------------------------------------------------------------------------------------


@cases(("dropout_p 0.1", dict(dropout_p=0.1)),
       ("softcap with alibi_slopes", dict(softcap=5.0, alibi_slopes=torch.ones(2))),
       ("alibi_slopes of 2 dim", dict(alibi_slopes=torch.ones(1, 2))), ("qv given", dict(qv=torch.ones(1))),
       ("q_descale given", dict(q_descale=torch.ones(1))), ("k_descale given", dict(k_descale=torch.ones(1))),
       ("attention_chunk without causal 3", dict(attention_chunk=3)))
def test_what_is_not_served(words, given):
    q = draw(1, 4, 2, 32)
    refused(Unsupported, [words, "accepted"], flash_attn_func, q, q, q, **given)


def test_what_flash_attention_3_passes_and_does_not_use():
    q, starts = draw(1, 4, 2, 32), torch.tensor([0, 1, 4], dtype=torch.int32)
    plain = flash_attn_func(q, q, q, causal=True)
    assert torch.equal(flash_attn_func(q, q, q, causal=True, k_descale=None, v_descale=None, qv=None), plain)
    assert torch.equal(flash_attn_with_kvcache(q, q.clone(), q.clone(), causal=True, rotary_seqlens=starts), plain)
    call = (flash_attn_varlen_func, q[0], q[0], q[0], starts, starts.clone(), 3, 3)
    used = torch.tensor([1, 3], dtype=torch.int32)
    assert torch.equal(call[0](*call[1:], seqused_q=used, seqused_k=used), call[0](*call[1:]))
    for name in ("seqused_q", "seqused_k"):
        refused(Unsupported, [name, "below the rows", "cu_seqlens alone"], *call, **{name: used - 1})


def test_other_refusals():
    q, cache = draw(1, 4, 2, 32), draw(1, 8, 2, 32)
    refused(TypeError, ["window_sise"], flash_attn_func, q, q, q, window_sise=3)
    refused(Unsupported, ["requires_grad", "no backward"], flash_attn_func, q.clone().requires_grad_(), q, q)
    refused(Unsupported, ["(3, 2)", "more queries than keys"], flash_attn_func, q, q[:, :2], q[:, :2],
            window_size=(3, 2))
    for dtype in (torch.int8, torch.float8_e4m3fn):
        refused(Unsupported, [str(dtype), "bfloat16"], flash_attn_func, *(q.to(dtype),) * 3)
    refused(Unsupported, ["head_dim 1024", "1..512"], flash_attn_func, *(draw(1, 4, 2, 1024),) * 3)
    refused(InvalidArgument, ["11 keys", "accepted 8"], flash_attn_with_kvcache, q, cache, cache, q, q,
            cache_seqlens=7)
    refused(Unsupported, ["rotary_cos"], flash_attn_with_kvcache, q, cache, cache, rotary_cos=torch.ones(1))
    refused(Unsupported, ["one of k and v"], flash_attn_with_kvcache, q, cache, cache, q)
