# SPDX-License-Identifier: Apache-2.0
"""Backends that are wrong on purpose, each in one way; wrong_backends.sh says which rule names it.

Each is rows.py but for its mistake: WRONG names the one that this process has.
"""
import ctypes
import math
import os
import time

import rows
from attnhost.backend import Backend

_kept = []


class _Wrong(rows.Rows):
    name = "wrong"


class window(_Wrong):
    """The window is one key short."""

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        for layer in layers:
            layer.window_left -= layer.window_left > 0


class stale_table(_Wrong):
    """The block table of the first batch is used for all."""

    table = None

    def plan(self, batch):
        for keys in batch.kv_groups:
            mine = type(self).table
            if mine is None or mine.shape != keys.block_table.shape:
                type(self).table = keys.block_table.copy()
            keys.block_table = type(self).table
        return super().plan(batch)


class sink(_Wrong):
    """Sinks are accepted and left out."""

    @staticmethod
    def row(q, key, value, scale, sinks):
        return rows.Rows.row(q, key, value, scale, None)


class lse_base_2(_Wrong):
    """The LSE is in base 2."""

    @staticmethod
    def row(q, key, value, scale, sinks):
        output, lse = rows.Rows.row(q, key, value, scale, sinks)
        return output, lse / math.log(2)


class unsynchronised(Backend):
    """On a GPU: the output is written on another stream, which nothing joins to the call's."""

    name = "wrong"
    devices = "cuda"
    dtypes = "bf16"
    tensors = "dlpack"
    saves_kv = True

    def forward(self, layer, out):
        fill = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
        fill.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        fill(out.data_ptr(), 0, 2, 1)  # CU_STREAM_LEGACY


class keeps_out(_Wrong):
    """The output's array is kept."""

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, sinks):
        super().forward(layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, sinks)
        _kept.append(out)


class exception(_Wrong):
    """forward raises."""

    def forward(self, layer, plan, batch, keys, q, out):
        raise ValueError("no such head")


class exits(_Wrong):
    """forward ends the process."""

    def forward(self, layer, plan, batch, keys, q, out):
        os._exit(3)


class hangs(_Wrong):
    """forward does not return."""

    def forward(self, layer, plan, batch, keys, q, out):
        while True:
            time.sleep(1)


class leaks(_Wrong):
    """Each instance leaves memory behind."""

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        _kept.append(bytearray(100000))


# Only that class is left under a name, so that it is the backend of this file.
Wrong = globals()[os.environ["WRONG"]]
for _name in [n for n, c in globals().items() if isinstance(c, type) and n != "Wrong"]:
    del globals()[_name]
