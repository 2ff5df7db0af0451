# SPDX-License-Identifier: Apache-2.0
"""Backends that are wrong on purpose, each in one way; wrong_backends.sh says which rule names it.

Each is sdpa.py but for its mistake: WRONG names the one that this process has.
"""
import importlib.util
import os
import threading
import time

import torch

_spec = importlib.util.spec_from_file_location("sdpa_example", os.environ["ATTNHOST_SDPA"])
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_kept = []


class _Wrong(_module.Sdpa):
    name = "wrong"

    def forward(self, layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks):
        super().forward(layer, plan, batch, keys, q, k, v, k_cache, v_cache, out)


class window(_Wrong):
    """The window is one key short."""

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        for layer in layers:
            layer.window_left -= layer.window_left > 0


class stale_table(_Wrong):
    """The block table of the first batch is used for all."""

    table = None

    def forward(self, layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks):
        mine = type(self)
        table = keys.block_table
        if mine.table is None or mine.table.shape != table.shape:
            mine.table = table.clone()
        keys.block_table = mine.table
        super().forward(layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks)


class sink(_Wrong):
    """Sinks are accepted and left out."""

    flags = "sinks"


class lse_base_2(_Wrong):
    """The LSE, here of rows that see one key of score 0, is in base 2."""

    uses = "lse, " + _module.Sdpa.uses

    def forward(self, layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks):
        super().forward(layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks)
        if lse is not None:
            lse.fill_(1 / 0.6931471805599453)


class unsynchronised(_Wrong):
    """Another thread writes the output, after the call."""

    def forward(self, layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks):
        made = torch.empty_like(out)
        super().forward(layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, made, lse, sinks)
        view = out[:]

        def late():
            time.sleep(0.005)
            view.copy_(made)
        threading.Thread(target=late).start()


class keeps_out(_Wrong):
    """The output's tensor is kept."""

    def forward(self, layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks):
        super().forward(layer, plan, batch, keys, flags, q, k, v, k_cache, v_cache, out, lse, sinks)
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
            pass


class leaks(_Wrong):
    """Each instance leaves memory behind."""

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        _kept.append(bytearray(100000))


# Only that class is left under a name, so that it is the backend of this file.
Wrong = globals()[os.environ["WRONG"]]
for _name in [n for n, c in globals().items() if isinstance(c, type) and n != "Wrong"]:
    del globals()[_name]
