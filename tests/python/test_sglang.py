# SPDX-License-Identifier: Apache-2.0
"""attnhost_sglang in SGLang's own unit test kit of attention backends (sglang.test.kits.attention_unittest): its pools,
batches, RadixAttention and reference, on the processor. Its kernels are stubs; attention calls none of them."""
import os
import sys
import types

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch._inductor.compile_fx
import transformers.image_utils

import smollm
import stubs
from harness import cases, refused

stubs.stub("sglang", "triton", "orjson", "IPython", "torchvision")
import attnhost
import attnhost_sglang

attnhost_sglang.register()
from attnhost_sglang import backend
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.test.kits.attention_unittest.attention_methods import dense_attention as kit

torch.set_grad_enabled(False)
PLACE = {"dtype": torch.float32, "device": "cpu"}
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


class Case:
    """What the kit asks of a test case."""

    @staticmethod
    def skipTest(reason):
        raise AssertionError(reason)


def windows():
    return (*kit.make_swa_no_prefix_input_config_cases("attnhost"), *kit.make_swa_prefix_input_config_cases("attnhost"))


def made(case, **more):
    return kit.build_dense_attention_fixture(Case, case, **{**PLACE, **more})


def outputs(fixture, given="attnhost"):
    """Of the fixture's batch, by a backend of SGLang's registry."""
    own = ATTENTION_BACKENDS[given](fixture.runner)
    return kit.run_dense_fixture_eager(kit.replace_backend(fixture, own))


def ini(text):
    os.environ["ATTNHOST_INI"] = smollm.ini(text)


@cases(*((case.name, case) for case in (*kit.make_dense_cases("attnhost"), *windows())))
def test_the_kits_cases(_, case):
    ini(smollm.SINGLE)
    for layout in ("contiguous", "shuffled_pages", "interleaved_pages"):
        fixture = made(case, loc_layout=layout)
        actual = kit.run_dense_fixture_eager(fixture)
        torch.testing.assert_close(actual, kit.expected_dense_fixture_output(fixture), **CLOSE)
        torch.testing.assert_close(actual, outputs(made(case, loc_layout=layout), "torch_native"), **CLOSE)


def batch(mode, prefixes, rows, **more):
    return kit.DenseAttentionCase(name="case", backend="attnhost", forward_mode=mode, num_heads=4, num_kv_heads=2,
                                  page_size=16, prefix_lens=prefixes, extend_lens=rows, **more)


def test_mixed_batches_go_to_both_backends_of_a_split_ini():
    ini(smollm.SPLIT)
    before = backend.rows()
    fixture = made(batch(ForwardMode.MIXED, (3, 20, 7), (18, 1, 1)))
    actual = kit.run_dense_fixture_eager(fixture)
    torch.testing.assert_close(actual, kit.expected_dense_fixture_output(fixture), **CLOSE)
    rows = backend.rows()
    assert [rows[name] - before.get(name, 0) for name in ("one", "two")] == [18, 2], rows


def drafted(fixture, topk=1):
    """As SGLang's workers leave a batch to be verified: lengths without the drafts."""
    case, current = fixture.case, fixture.forward_batch
    current.seq_lens = torch.tensor(case.prefix_lens, dtype=torch.int32)
    current.seq_lens_cpu = current.seq_lens.clone()
    current.spec_info = types.SimpleNamespace(draft_token_num=case.extend_lens[0], topk=topk)
    return fixture


def test_target_verify_of_a_chain():
    ini(smollm.SINGLE)
    case = batch(ForwardMode.TARGET_VERIFY, (15, 3), (4, 4))
    fixture = drafted(made(case))
    torch.testing.assert_close(kit.run_dense_fixture_eager(fixture), kit.expected_dense_fixture_output(fixture), **CLOSE)
    refused(NotImplementedError, ["a tree of drafts (topk 2)", "accepted topk 1"], kit.run_dense_fixture_eager,
            drafted(made(case), topk=2))


def test_draft_extend():
    ini(smollm.SINGLE)
    fixture = made(batch(ForwardMode.DRAFT_EXTEND_V2, (15, 3), (2, 4)))
    torch.testing.assert_close(kit.run_dense_fixture_eager(fixture), kit.expected_dense_fixture_output(fixture), **CLOSE)


@cases(("decode", ForwardMode.DECODE, ()), ("verify", ForwardMode.TARGET_VERIFY, (4, 4, 4)))
def test_plans_of_a_graph(_, mode, rows):
    """What a capture and a replay call, in their order, on arrays that stay."""
    ini(smollm.SINGLE)
    case = batch(mode, (14, 5, 33), rows)
    fixture = made(case)
    if rows:
        drafted(fixture)
    own, current = fixture.backend, fixture.forward_batch
    own.init_cuda_graph_state(3, 12)
    with torch.no_grad(), forward_context(ForwardContext(attn_backend=own)):
        lens = current.seq_lens.clone()
        current.seq_lens.fill_(own.get_cuda_graph_seq_len_fill_value())
        own.init_forward_metadata_out_graph(current, in_capture=True)
        own.init_forward_metadata_in_graph(current)
        kit.run_dense_forward(fixture, current, kit.dense_fixture_inputs(fixture))
        [layers] = own.layers.values()
        kept = [x.data_ptr() for x in layers.graphs[3, len(rows) + 1]._kept.values()]
        current.seq_lens.copy_(lens)
        own.init_forward_metadata_out_graph(current)
        actual = kit.run_dense_forward(fixture, current, kit.dense_fixture_inputs(fixture))
    assert [x.data_ptr() for x in layers.graphs[3, len(rows) + 1]._kept.values()] == kept
    torch.testing.assert_close(actual, kit.expected_dense_fixture_output(fixture), **CLOSE)


def test_planners_grow():
    ini(smollm.SINGLE)
    usual, backend._ROWS = backend._ROWS, 8
    try:
        fixture = made(batch(ForwardMode.EXTEND, (0, 16), (33, 5)))
        torch.testing.assert_close(kit.run_dense_fixture_eager(fixture), kit.expected_dense_fixture_output(fixture), **CLOSE)
    finally:
        backend._ROWS = usual


def test_what_is_not_served_is_refused():
    ini(smollm.SINGLE)
    own = made(batch(ForwardMode.DECODE, (3,), ())).backend
    layer = RadixAttention(4, 16, 0.25, 2, layer_id=0)
    q = k = v = torch.zeros(1, 64)
    refused(NotImplementedError, ["q_rope", "accepted q, k, v and sinks"], own._forward, q, k, v, layer, None, q_rope=q)
    refused(NotImplementedError, ["another has stored"], own._forward, q, None, None, layer, None)
    layer.attn_type = AttentionType.DECODER_BIDIRECTIONAL
    refused(NotImplementedError, ["decoder_bidirectional", "encoder_only"], own._forward, q, k, v, layer, None)


def test_deterministic_inference_is_asked_of_the_backends():
    from sglang.srt.runtime_context import get_exec
    for text in (smollm.SINGLE, smollm.VARIES):
        ini(text)
        outputs(made(batch(ForwardMode.DECODE, (3,), ())))
        fixture = made(batch(ForwardMode.DECODE, (3,), ()))
        with get_exec().deterministic.override(enable_deterministic_inference=True):
            if text == smollm.SINGLE:
                outputs(fixture)
            else:
                refused(attnhost.Unsupported, ["batch_invariant"], outputs, fixture)


def test_it_is_a_plugin_of_sglang():
    from sglang.srt.plugins import load_plugins_by_group
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, DETERMINISTIC_ATTENTION_BACKEND_CHOICES
    assert "attnhost" in DETERMINISTIC_ATTENTION_BACKEND_CHOICES
    assert "attnhost" in load_plugins_by_group("sglang.srt.plugins")
    assert "attnhost" in ATTENTION_BACKEND_CHOICES
