# SPDX-License-Identifier: Apache-2.0
"""The chapters of docs/PYTHON.md that need PyTorch and Transformers."""
import torch

from test_docs import blocks, chapters, run_blocks

torch.set_num_threads(1)


def test_the_chapters_on_models():
    _, second = chapters()
    assert len(blocks(second)) >= 4
    run_blocks(second)
