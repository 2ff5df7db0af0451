# SPDX-License-Identifier: Apache-2.0
"""Backends that do nothing, for python_cost.c: the overhead of a call.

    torch_nothing, numpy_nothing   all operands of a decode as tensors; the class saves keys itself
    torch_saves                    attnhost.backend saves the new keys and values
"""
import importlib.util

from attnhost.backend import Backend


class _Nothing(Backend):
    dtypes = "f32"
    saves_kv = True

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out):
        pass


class NumpyNothing(_Nothing):
    name = "numpy_nothing"
    tensors = "numpy"


if importlib.util.find_spec("torch"):
    class TorchNothing(_Nothing):
        name = "torch_nothing"
        tensors = "torch"

    class TorchSaves(_Nothing):
        name = "torch_saves"
        tensors = "torch"
        saves_kv = False
