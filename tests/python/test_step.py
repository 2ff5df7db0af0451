# SPDX-License-Identifier: Apache-2.0
"""The planner for engines (attnhost.step): an engine's tables in either form, batches that are mixed, padded
and replayed, several KV groups, against attention in fp64 written here."""
from types import SimpleNamespace

import attnhost
import torch
from attnhost import InvalidArgument, KVTable, Planner, Step, Unsupported

from harness import SOURCE, cases, refused

HEADS, KV_HEADS, DIM, PAGES = 4, 2, 32, 40
PAIR = {"attention": {"prefill_attention_backend": "one", "decode_attention_backend": "two"},
        "backend.one": {"type": "cpu_native"}, "backend.two": {"type": "cpu_native"}}
SINGLE = {"attention": {"attention_backend": "cpu_native"}}
IN_PYTHON = {"plugins": {"path": f"{SOURCE}/examples/python/rows.py"}, "attention": {"attention_backend": "numpy_rows"}}


class Toy:
    """An engine: pools of some layers in KV groups, and sequences with pages of each group."""

    def __init__(self, page_size=16, windows=(-1, 5), sections=SINGLE, **given):
        self.size, self.windows = page_size, windows
        groups = [attnhost.layer_group([i], num_q_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM,
                                       window_left=window, kv_group=i) for i, window in enumerate(windows)]
        self.planner = Planner(attnhost.Host(sections), groups, page_size=page_size, **{
            **dict(dtype=torch.float32, max_seqs=8, max_tokens=64, max_len=96), **given})
        self.random = torch.Generator().manual_seed(1)
        self.caches = [[torch.zeros(PAGES, page_size, KV_HEADS, DIM) for _ in "kv"] for _ in windows]
        for i, (k, v) in enumerate(self.caches):
            self.planner.bind(i, k_cache=k, v_cache=v)
        self.free = [list(range(1, PAGES)) for _ in windows]
        self.pages, self.keys = {}, {}
        self.default = "cpu"  # device of tensors that name none

    def draw(self, *shape):
        return torch.randn(shape, generator=self.random)

    def tables(self, work, by_rows, width):
        """Of each group; `width` columns of a wider table, or rows of a pool of requests."""
        made = []
        for group in range(len(self.windows)):
            slots, block_table = [], torch.full((len(work), 12), -1, dtype=torch.int32)
            for row, (name, count) in enumerate(work):
                pages = self.pages.setdefault((group, name), [])
                length = self.keys[name][group][0].shape[0] if name in self.keys else 0
                while len(pages) * self.size < length + count:
                    pages.append(self.free[group].pop())
                slots += [pages[i // self.size] * self.size + i % self.size for i in range(length, length + count)]
                block_table[row, :len(pages)] = torch.tensor(pages)
            slots = torch.tensor(slots, dtype=torch.int32)
            if by_rows:
                rows = torch.full((len(work) + 3, 12 * self.size), 7, dtype=torch.int32)
                rows[1:len(work) + 1] = (block_table[:, :, None] * self.size + torch.arange(self.size)).flatten(1)
                made.append(KVTable(slots, req_to_token=rows,
                                    req_pool_indices=torch.arange(1, len(work) + 1)))
            else:
                made.append(KVTable(slots.long(), block_table=block_table[:, :width]))
        return made

    def step(self, work, by_rows=False, plan=None, width=12, **members):
        """`work`: names of sequences with their numbers of rows. Runs all layers and checks every row."""
        tables = self.tables(work, by_rows, width)
        counts = [count for _, count in work]
        lens = [(self.keys[name][0][0].shape[0] if name in self.keys else 0) + count for name, count in work]
        starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
        plan = plan or self.planner
        made = Step(torch.tensor(lens, dtype=torch.int32), tables, q_indptr=starts, num_tokens=sum(counts),
                    max_q_len=max(counts), max_kv_len=max(lens), **members)
        with torch.device(self.default):
            plan.plan(made)
        for group, window in enumerate(self.windows):
            rows = getattr(plan, "num_seqs", 0) or sum(counts)
            q, k, v = (self.draw(rows, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
            out = torch.full_like(q, float("nan"))
            plan.forward(group, q=q, k=k, v=v, out=out)
            assert out.isfinite().all()
            for (name, count), first in zip(work, starts.tolist()):
                known = self.keys.setdefault(name, {}).setdefault(group, [torch.zeros(0, KV_HEADS, DIM)] * 2)
                part = slice(first, first + count)
                known[:] = [torch.cat([old, new[part]]) for old, new in zip(known, (k, v))]
                expected = attention(q[part], *known, window)
                assert (out[part] - expected).abs().max() < 1e-5, (name, group)


def attention(q, k, v, window):
    """Causal attention of the last rows of a sequence, in fp64."""
    q, k, v = q.double(), *(x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    distance = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    seen = (distance >= 0) & ((distance <= window) | torch.tensor(window < 0))
    scores = torch.einsum("thd,jhd->htj", q, k) * DIM ** -0.5
    return torch.einsum("htj,jhd->thd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v).float()


# ---- What it computes ----------------------------------------------------------------------------------


@cases((4, False), (16, False), (16, True), (48, True))
def test_prefill_chunks_and_decodes_of_two_kv_groups(page_size, by_rows):
    toy = Toy(page_size)
    toy.step([("a", 7), ("b", 20)], by_rows)
    toy.step([("a", 1), ("b", 9), ("c", 30)], by_rows, num_decodes=1)
    toy.step([("a", 1), ("b", 1), ("c", 1)], by_rows)


def test_mixed_batches_are_split_by_rows():
    """Each backend of a pair computes its rows: those that decode stand first."""
    toy = Toy(sections=PAIR)
    assert toy.planner.mixed
    toy.step([("a", 7), ("b", 5)])
    toy.step([("a", 1), ("b", 1), ("c", 30)], num_decodes=2)
    assert toy.planner.rows["one"] == 2 * (12 + 30) and toy.planner.rows["two"] == 2 * 2


def test_decodes_may_stand_last():
    toy = Toy(sections=PAIR, decodes="last")
    toy.step([("a", 7)])
    toy.step([("c", 30), ("a", 1)], num_decodes=1)
    assert toy.planner.rows["two"] == 2


def test_drafts_of_decodes():
    toy = Toy(uses=("decode_drafts",))
    toy.step([("a", 7), ("b", 5)])
    toy.step([("a", 3), ("b", 3), ("c", 20)], num_decodes=2, decode_q_len=3)
    batch = toy.planner.eager._metadata[0]._batch.struct
    assert toy.planner.drafts and (batch.num_decode_seqs, batch.decode_q_len) == (2, 3)
    plain = Toy()
    plain.step([("a", 7)])
    plain.step([("a", 3), ("c", 20)], num_decodes=1, decode_q_len=3)
    assert plain.planner.eager._metadata[0]._batch.struct.num_decode_seqs == 0, "as rows of prompts"


def test_without_mixed_batches_all_rows_are_prefill():
    toy = Toy(sections=PAIR, decodes=None)
    toy.step([("a", 7)])
    toy.step([("a", 1), ("c", 30)], num_decodes=1)
    assert "two" not in toy.planner.rows


def test_heads_before_tokens():
    toy = Toy(sections={**SINGLE, "kv_cache": {"layout": "hnd"}})
    assert all(problem.kv_layout == b"kv.hnd/1" for problem in toy.planner.problems.values())
    toy.step([("a", 40), ("b", 3)])
    toy.step([("a", 1), ("b", 1)])


def test_part_of_a_wider_table_is_not_copied():
    toy = Toy()
    toy.step([("a", 7), ("b", 20)], width=3)
    wide = torch.zeros(3, 8, dtype=torch.int32)
    group = attnhost.KVGroup(16, block_table=wide[:, :3])
    assert group.struct.block_table_stride == 8 and group.struct.block_table.device == wide.data_ptr()


def test_tensors_that_are_not_what_their_memory_says():
    toy = Toy()
    toy.step([("a", 3)])
    q, k, out = toy.draw(3, HEADS, DIM), toy.draw(3, KV_HEADS, DIM), torch.empty(3, HEADS, DIM)
    refused(InvalidArgument, ["q", "negative view", "resolve_neg()"], toy.planner.forward, 0,
            q=torch._neg_view(q), k=k, v=k, out=out)
    q.requires_grad_()
    refused(InvalidArgument, ["q", "gradients", "detach()"], toy.planner.forward, 0, q=q, k=k, v=k, out=out)
    with torch.no_grad():
        toy.planner.forward(0, q=q, k=k, v=k, out=out)


# ---- Keys that another sequence of the step brings ------------------------------------------------------


@cases(("which backends read", SINGLE, False), ("which backends read", PAIR, False),
       ("which the planner saves first", IN_PYTHON, True))
def test_prefixes_of_the_same_step(_, sections, saves):
    """Sequence a brings 20 tokens; the first page of b is its first one, whichever of them stands first."""
    for order in ("ab", "ba"):
        toy = Toy(windows=(-1,), sections=sections, uses=("shared_new_kv",))
        assert toy.planner.saves == saves
        rows, lens, pages = {"a": 20, "b": 3}, {"a": 20, "b": 19}, {"a": [0, 2], "b": [0, 3]}
        slots = {"a": [*range(16), *range(32, 36)], "b": [48, -1, 50]}
        starts = torch.tensor([0, rows[order[0]], 23], dtype=torch.int32)
        toy.planner.plan(Step(
            torch.tensor([lens[name] for name in order], dtype=torch.int32),
            [KVTable(torch.tensor(sum((slots[name] for name in order), [])),
                     block_table=torch.tensor([pages[name] for name in order]))],
            q_indptr=starts, num_tokens=23, max_q_len=20, max_kv_len=20))
        q, k, v = (toy.draw(23, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        out = torch.full_like(q, float("nan"))
        toy.planner.forward(0, q=q, k=k, v=v, out=out)
        part = {name: slice(first, first + rows[name]) for name, first in zip(order, starts.tolist())}
        a, b = part["a"], part["b"]
        assert (out[a] - attention(q[a], k[a], v[a], -1)).abs().max() < 1e-5
        if not saves:  # keys without a slot are in no cache
            keys, values = (torch.cat([x[a][:16], x[b]]) for x in (k, v))
            assert (out[b] - attention(q[b], keys, values, -1)).abs().max() < 1e-5
        cache = toy.caches[0][0].flatten(0, 1)
        assert torch.equal(cache[48:51:2], k[b][::2]) and not cache[49].any() and torch.equal(cache[:16], k[a][:16])


def test_steps_whose_keys_the_planner_saves():
    """A prompt may have one row, and several rows may be drafts."""
    toy = Toy(windows=(-1,), sections=IN_PYTHON, uses=("shared_new_kv",))
    for rows, prompts, saves in ((5, None, True), (1, None, False), (1, True, True), (2, False, False)):
        toy.step([("a", rows)], prompts=prompts)
        assert toy.planner.eager._saves == saves


def test_codes_that_the_planner_saves():
    from attnhost import step
    cache = torch.zeros(2, 4, 1, 3, dtype=torch.float8_e4m3fn)
    step.save_keys(cache, torch.tensor([[[1.0, 2.0, 1e4]], [[8.0, 8.0, 8.0]]]), torch.tensor([5, -1]), 2.0)
    assert cache.float()[1, 1, 0].tolist() == [0.5, 1.0, 448.0] and int((cache.float() != 0).sum()) == 3


# ---- Graphs --------------------------------------------------------------------------------------------


@cases((False,), (True,))
def test_a_plan_for_a_graph_keeps_its_addresses(by_rows):
    toy = Toy(sections=PAIR)
    graph = toy.planner.graph(4)
    toy.step([("a", 7), ("b", 20), ("c", 2)], by_rows)
    toy.step([("a", 1), ("b", 1)], by_rows, graph)
    batch = graph._metadata[0]._batch.struct
    places = {name: getattr(batch.kv_groups[0], name).device for name in ("block_table", "out_cache_loc")}
    assert places["block_table"] and batch.num_seqs == 4 and batch.num_real_seqs == 2
    toy.step([("c", 1), ("a", 1), ("b", 1)], by_rows, graph)
    batch = graph._metadata[0]._batch.struct
    assert places == {name: getattr(batch.kv_groups[0], name).device for name in places}
    assert batch.num_real_seqs == 3 and batch.seq_lens.device == graph._kept["seq_lens"].data_ptr()


@cases((False,), (True,))
def test_engines_that_set_a_default_device(by_rows):
    """Arrays of the host stay there."""
    toy = Toy(sections=PAIR)
    graph = toy.planner.graph(4)
    toy.default = "meta"
    toy.step([("a", 7), ("b", 20), ("c", 2)], by_rows)
    toy.step([("a", 1), ("b", 1)], by_rows, graph)


def test_a_graph_that_is_made_in_inference_mode():
    """As engines capture: later steps are planned outside of it."""
    toy = Toy(sections=PAIR)
    graph = toy.planner.graph(4)
    toy.step([("a", 7), ("b", 20), ("c", 2)])
    with torch.inference_mode():
        toy.step([("a", 1), ("b", 1)], False, graph)
    toy.step([("c", 1), ("a", 1), ("b", 1)], False, graph)


def test_a_graph_takes_no_more_than_it_has_room_for():
    toy = Toy()
    graph = toy.planner.graph(1)
    toy.step([("a", 3), ("b", 3)])
    refused(InvalidArgument, ["2 sequences", "1 to 1"], toy.step, [("a", 1), ("b", 1)], False, graph)


# ---- Forms of indices ----------------------------------------------------------------------------------


def test_lists_of_pages_and_rows_of_slots():
    """What backends get that read no block table; a table's rest is not looked at."""
    from attnhost import step
    table = torch.tensor([[5, 6, -1], [9, -1, -1], [3, 4, 8]], dtype=torch.int32)
    lens = torch.tensor([17, 0, 48], dtype=torch.int32)
    starts = step._list_indptr(lens, 16)
    assert starts.tolist() == [0, 2, 2, 5]
    assert step._list_pages(table, lens, starts, 16)[:5].tolist() == [5, 6, 3, 4, 8]
    assert step._last_pages(lens, 16).tolist() == [1, 0, 16]
    rows = step._rows_of_pages(table, 2)
    assert rows[0].tolist() == [10, 11, 12, 13, -2, -1] and rows[2].tolist() == [6, 7, 8, 9, 16, 17]


def test_saved_rows_of_a_backend_in_python():
    """On a GPU a row that goes nowhere writes nothing of its own, so that the order of writes does not matter."""
    from attnhost import backend
    batch = SimpleNamespace(num_seqs=2, q_indptr=torch.tensor([0, 2, 4]), _host={"q_indptr": None}, mode="extend", graph=False)
    k, v = torch.rand(5, 2, 8), torch.rand(5, 2, 4)
    for slots, saved in (([-1, 5, -1, 9, 7], {5: 1, 9: 3}), ([-1, -1, -1, -1, 7], {}),
                         ([4, 0, 1, 2, 3], {4: 0, 0: 1, 1: 2, 2: 3})):
        keys = backend.Keys((4, batch.q_indptr, None, None, None, torch.tensor(slots), *[None] * 5), batch)
        for is_hnd in (False, True):
            operands = [None] * 14
            caches = [torch.full((3, 4, 2, dim), torch.nan) for dim in (8, 4)]
            operands[1:3], operands[5:7] = (k, v), [c.swapaxes(1, 2) if is_hnd else c for c in caches]
            backend._save(keys, is_hnd, operands)
            for rows, cache in zip((k, v), caches):
                expected = torch.full_like(cache, torch.nan)
                for slot, row in saved.items():
                    expected[slot // 4, slot % 4] = rows[row]
                assert torch.equal(cache.nan_to_num(-1), expected.nan_to_num(-1)), (slots, is_hnd)


def test_slots_of_a_backend_in_python_in_a_graph():
    """A forward before the capture may not have found them for it."""
    from attnhost import backend
    slots = torch.tensor([3, 4])
    for graph, seen in ((False, [3, 4]), (True, [7, 8])):
        slots.copy_(torch.tensor([3, 4]))
        batch = SimpleNamespace(num_seqs=2, q_indptr=torch.tensor([0, 1, 2]), _host={"q_indptr": None}, mode="decode",
                                graph=graph)
        keys = backend.Keys((4, batch.q_indptr, None, None, None, slots, *[None] * 5), batch)
        keys._slots_of(2)
        slots.add_(4)
        assert keys._slots_of(2)[0].tolist() == seen


# ---- Refusals ------------------------------------------------------------------------------------------


def test_what_it_refuses():
    toy = Toy()
    lens, table = torch.tensor([3], dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    refused(InvalidArgument, ["accepted one of them"], KVTable, torch.arange(3))
    refused(InvalidArgument, ["req_pool_indices"], KVTable, torch.arange(3), req_to_token=table)
    pages = [KVTable(torch.arange(3), block_table=table)] * 2
    refused(InvalidArgument, ["without q_indptr"], toy.planner.plan,
            Step(lens, pages, num_tokens=3, max_q_len=3, max_kv_len=3))
    refused(InvalidArgument, ["layer 7", "0, 1"], toy.planner.bind, 7, k_cache=toy.caches[0][0])
    error = refused(Unsupported, ["head_dim 1024", "1..512"], Planner, attnhost.Host(SINGLE),
                    [attnhost.layer_group([0], num_q_heads=4, num_kv_heads=4, head_dim=1024)],
                    dtype=torch.float32, page_size=16, max_seqs=4, max_tokens=4, max_len=64)
    assert error.reasons
    refused(Unsupported, ["dtype torch.int8"], Toy, dtype=torch.int8)
    refused(InvalidArgument, ["decodes 'middle'"], Toy, decodes="middle")


def test_it_is_closed_in_order():
    toy = Toy()
    toy.planner.graph(2)
    toy.planner.close()
    toy.planner.host.close()
