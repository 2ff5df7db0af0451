# SPDX-License-Identifier: Apache-2.0
"""flex.py through torch.compile, for races: half a minute for each kind of batch, once. It is not for `check`, which has
too many kinds.

    attnhost bench --device cuda:0 --backend flex_compiled --set plugins.path=flex_compiled.py ...
"""
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes
from flex import Flex, torch


class FlexCompiled(Flex):
    name = "flex_compiled"
    doc = "PyTorch's flex_attention through torch.compile"
    accepts = {"head_dim": "16..256", "v_head_dim": "16..256"}

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.call = torch.compile(Flex.call, dynamic=False)
