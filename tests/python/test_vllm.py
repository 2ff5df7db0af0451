# SPDX-License-Identifier: Apache-2.0
"""vLLM on the CPU with real weights, its attention by attnhost: the text of its own backend, token by token."""
import gc
import os
import pickle
import subprocess
import sys
import tempfile
from functools import lru_cache

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")

import attnhost_vllm
import torch
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import smollm
from harness import Skip, cases, refused
from smollm import SINGLE, SPLIT

NAME = attnhost_vllm.backend_name()
_made = {}


def settings(ini=None, **given):
    """Of an engine: prompts in chunks of 64 beside rows that decode, and shared prefixes."""
    made = {**dict(model=smollm.weights(), dtype="float32", max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64,
                   enforce_eager=True, enable_prefix_caching=True, disable_log_stats=True), **given}
    if ini:
        made.update(attention_backend=NAME, additional_config={"attnhost": {"ini": smollm.ini(ini)}})
    return made


def text(**given):
    """The tokens, and the rows that each backend of attnhost has computed."""
    from attnhost_vllm import backend
    llm = LLM(**settings(**given))
    try:
        made = llm.generate(smollm.PROMPTS, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
        return [output.outputs[0].token_ids for output in made], backend.rows()
    finally:
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def own():
    """What vLLM's own backend makes."""
    if "own" not in _made:
        _made["own"], rows = text()
        assert not rows, "it is vLLM's own"
    return _made["own"]


def test_a_process_of_vllm_reads_the_name_before_it_knows_it():
    """vLLM's engine is another process unless it is asked otherwise, as here: its settings come by pickle."""
    attnhost_vllm.register()
    if NAME == "CUSTOM":
        raise Skip("this release has the name itself")
    settings_of = pickle.dumps(AttentionBackendEnum[NAME])
    read = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).get_path())"
    done = subprocess.run([sys.executable, "-c", read, settings_of.hex()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)
    assert done.stdout.split()[-1:] == ["attnhost_vllm.chosen.Backend"], done.stderr[-500:]


@cases(("in chunks by one backend", SINGLE, 16, 64, ["cpu_native"]),
       ("prompts with one prefix in a step by two", SPLIT, 48, 512, ["one", "two"]))
def test_the_text_of_vllms_own_backend(_, ini, block_size, tokens, computed):
    """Of two prompts with one prefix in a step the second finds blocks that the first fills in that step."""
    from attnhost_vllm import backend
    backend._host.cache_clear()
    made, rows = text(ini=ini, block_size=block_size, max_num_batched_tokens=tokens)
    assert made == own()
    assert sorted(name for name in rows if name in ("cpu_native", "one", "two")) == computed, rows


@lru_cache(maxsize=None)
def latent_model():
    """DeepSeek V2 with two layers and random weights; latents of 512 + 64, which vLLM's own backend has alone."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
    torch.manual_seed(1)
    config = DeepseekV2Config(
        vocab_size=500, hidden_size=128, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=64,
        qk_rope_head_dim=64, v_head_dim=32, first_k_dense_replace=2, n_routed_experts=2, n_shared_experts=1,
        num_experts_per_tok=1, topk_group=1, n_group=1, max_position_embeddings=512, initializer_range=0.2)
    folder = tempfile.mkdtemp()
    DeepseekV2ForCausalLM(config).float().save_pretrained(folder)
    return folder


def latent_tokens(**given):
    from attnhost_vllm import backend
    llm = LLM(latent_model(), dtype="float32", max_model_len=256, max_num_seqs=4, enforce_eager=True,
              skip_tokenizer_init=True, disable_log_stats=True, **given)
    try:
        prompts = [{"prompt_token_ids": [(7 * n + 3 * i * i) % 500 for i in range(count)]}
                   for n, count in enumerate((5, 70, 16, 1, 33))]
        made = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, detokenize=False), use_tqdm=False)
        return [output.outputs[0].token_ids for output in made], backend.rows()
    finally:
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def test_latent_layers():
    from attnhost_vllm import backend
    expected, rows = latent_tokens(attention_backend="CPU_MLA")
    assert not rows
    for ini, computed in ((SINGLE, ["cpu_native"]), (SPLIT, ["one", "two"])):
        backend._host.cache_clear()
        made, rows = latent_tokens(attention_backend=NAME, additional_config={"attnhost": {"ini": smollm.ini(ini)}})
        assert made == expected
        assert sorted(name for name in rows if name in ("cpu_native", "one", "two")) == computed, rows


def test_it_is_registered_by_its_entry_point():
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    assert NAME in AttentionBackendEnum.__members__
    assert AttentionBackendEnum[NAME].get_class().get_name() == NAME


def test_what_no_backend_serves_is_refused_with_values():
    from attnhost_vllm import backend
    backend._host.cache_clear()
    config = EngineArgs(**settings(ini=SINGLE)).create_engine_config()
    ask = dict(head_size=64, dtype=torch.float32, kv_cache_dtype="auto", block_size=16, use_mla=False,
               has_sink=False, use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False,
               device_capability=None, attn_type="decoder")
    with set_current_vllm_config(config):
        answer = backend.AttnhostBackend.validate_configuration
        assert answer(**ask) == []
        assert answer(**{**ask, "has_sink": True, "has_sliding_window": True}) == []
        [reason] = answer(**{**ask, "head_size": 1024})
        assert "head_dim 1024: accepted 1..512" in reason
        assert answer(**{**ask, "use_mla": True}) == ["MLA not supported"]
        refused(NotImplementedError, ["encoder_decoder", "decoder, encoder_only"], backend.AttnhostImpl, 4, 64,
                1.0, attn_type="encoder_decoder")
        refused(NotImplementedError, ["chunk_lookback"], backend.AttnhostImpl, 4, 64, 1.0, chunk_lookback=3)


def test_latent_layers_are_asked_about_too():
    from attnhost_vllm import backend, mla
    backend._host.cache_clear()
    config = EngineArgs(model=latent_model(), skip_tokenizer_init=True, attention_backend=NAME,
                        additional_config={"attnhost": {"ini": smollm.ini(SINGLE)}}).create_engine_config()
    ask = dict(head_size=576, dtype=torch.float32, kv_cache_dtype="auto", block_size=16, use_mla=True, has_sink=False,
               use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=None,
               attn_type="decoder")
    with set_current_vllm_config(config):
        assert AttentionBackendEnum[NAME].get_class() is mla.AttnhostMlaBackend
        answer = mla.AttnhostMlaBackend.validate_configuration
        assert answer(**ask) == []
        assert answer(**{**ask, "use_sparse": True}) == ["sparse not supported"]
        assert answer(**{**ask, "use_mla": False}) == ["non-MLA not supported"]
        config.model_config.hf_text_config.kv_lora_rank = 1024
        [reason] = answer(**ask)
        assert "mla.kv_lora_rank 1024: accepted 1..512" in reason, reason
    own = dict(num_heads=4, head_size=576, scale=1.0, num_kv_heads=1, kv_lora_rank=512, qk_nope_head_dim=64,
               qk_rope_head_dim=64, v_head_dim=32)
    refused(NotImplementedError, ["latent layers with sliding_window", "accepted without"],
            mla.AttnhostMlaImpl, sliding_window=7, **own)


def test_batch_invariance_is_asked_of_the_backends():
    from attnhost_vllm import backend
    noted = EngineArgs(**settings(ini=SINGLE)).create_engine_config()
    varies = EngineArgs(**settings(ini=smollm.VARIES)).create_engine_config()
    group = backend.attnhost.layer_group([0], num_q_heads=9, num_kv_heads=3, head_dim=64)
    answers = {}
    for mode in ("0", "1"):
        os.environ["VLLM_BATCH_INVARIANT"] = mode
        backend._host.cache_clear()
        answers[mode] = [backend._explain(config, group, torch.float32, torch.float32, 16) for config in (noted, varies)]
    os.environ["VLLM_BATCH_INVARIANT"] = "0"
    assert backend.AttnhostBackend.supports_batch_invariance()
    assert [bool(answer) for answer in answers["0"]] == [True, True]
    assert [bool(answer) for answer in answers["1"]] == [True, False]
    assert "batch_invariant" in str(answers["1"][1])


def test_a_planner_at_the_address_of_one_that_was_freed_is_bound_too():
    """vLLM makes planners to measure what graphs take, frees them and makes others."""
    from attnhost_vllm import backend

    class Planner:
        device = torch.device("cpu")

        def bind(self, number, *, scales, k_cache, v_cache):
            bound.append((number, k_cache.shape, v_cache.data_ptr() - k_cache.data_ptr()))

    bound, cache = [], torch.zeros(3, 2, 16, 128)  # K and V of 64 elements lie side by side
    layer = backend.AttnhostImpl(4, 64, 1.0, num_kv_heads=2)
    addresses = set()
    for count in range(1, 4):
        planner = Planner()
        for _ in range(2):
            layer._bind(None, 5, cache, planner)
        assert bound == [(5, (3, 16, 2, 64), 256)] * count
        addresses.add(id(planner))
        del planner
    assert len(addresses) < 3, "no address was taken twice: this has shown nothing"
    planner, other = Planner(), torch.zeros_like(cache)
    for given in (cache, other, cache, cache):
        layer._bind(None, 5, given, planner)
    assert len(bound) == 3 + 3


def test_additional_config_is_checked():
    from attnhost_vllm import backend
    config = EngineArgs(**{**settings(ini=SINGLE), "additional_config": {"attnhost": {"inn": "x"}}})
    refused(ValueError, ["additional_config.attnhost.inn", "accepted: ini"], backend.host_of,
            config.create_engine_config())
