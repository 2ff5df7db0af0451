# SPDX-License-Identifier: Apache-2.0
"""Transformers' own continuous batching on a backend, held to its own generate()."""
import torch
from attnhost import flash_attn
from attnhost.continuous import attention, use_paged
from attnhost.errors import Unsupported
from transformers import GenerationConfig

from harness import Skip, cases, refused
from models import make

try:
    from transformers import ContinuousBatchingConfig
except ImportError:
    ContinuousBatchingConfig = None

PROMPTS = (5, 1, 40, 17)  # tokens
torch.set_num_threads(1)  # tiny models: threads would wait for each other


@cases(("llama",), ("gemma2",))  # windows and a cap
@torch.no_grad()
def test_tokens_of_generate(name):
    if not ContinuousBatchingConfig:
        raise Skip("this Transformers has no continuous batching with a config")
    use_paged(attention={"attention_backend": "cpu_native"})
    draw = torch.Generator().manual_seed(3)
    prompts = [torch.randint(1, 97, (count,), generator=draw).tolist() for count in PROMPTS]
    model, own = make(name, "paged|eager"), make(name, "eager")
    batching = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=24, auto_switch_to_flash=False)
    made = model.generate_batch(prompts, continuous_batching_config=batching, generation_config=GenerationConfig(
        max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0))
    made = {tuple(one.prompt_ids): one.generated_tokens for one in made.values()}
    for prompt in prompts:
        expected = own.generate(torch.tensor([prompt]), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        assert made[tuple(prompt)] == expected[0, len(prompt):].tolist(), prompt
    layers = model.config.num_hidden_layers
    assert flash_attn.rows() == {"cpu_native": layers * (sum(PROMPTS) + 5 * len(PROMPTS))}, flash_attn.rows()


def test_calls_of_others():
    rows = torch.zeros(1, 2, 3, 16)
    refused(Unsupported, ["generate_batch", '"attnhost"'], attention, torch.nn.Module(), rows, rows, rows, None)
