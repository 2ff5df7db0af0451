# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's BatchPrefillWithPagedKVCacheWrapper, planned on the host once a step, for every mode.

    attnhost check --device cuda:0 flashinfer.py
"""
from itertools import accumulate
from math import log

from attnhost.backend import Backend, Option, need

flashinfer = need("flashinfer", "flashinfer-python")
import torch  # noqa: E402  the package above needs it


def unlike(layer):
    """Layers that differ in none of these share a wrapper."""
    return (layer.kv_group, layer.num_q_heads, layer.num_kv_heads, layer.head_dim, layer.window_left,
            layer.window_right, layer.logit_cap, layer.sm_scale, layer.is_hnd, layer.dtype)


class Plan:
    """Wrappers of a step. They go back to their pool with it, and are free when the device has done what was enqueued."""

    def __init__(self, pool, first, end):
        self.pool, self.first, self.end = pool, first, end
        self.wrappers, self.event = {}, torch.cuda.Event()

    def __del__(self):
        self.pool += [(key, wrapper, self.event) for key, wrapper in self.wrappers.items()]


class FlashInfer(Backend):
    name = "flashinfer"
    doc = "FlashInfer, BatchPrefillWithPagedKVCacheWrapper"
    devices = "cuda"
    dtypes = "f16, bf16"
    notes = "first_call_slow"  # compiled for each kind of layer
    layouts = "kv.nhd/1, kv.hnd/1"
    flags = "logit_cap"
    uses = "lse, shared_prefix, omit_sink, decodes_first, decode_drafts"
    index_forms = "csr"
    host_arrays = "seq_lens, kv_lens, q_indptr"
    accepts = {"device.sm": "80..121", "head_dim": "64, 128, 256", "v_head_dim": "head_dim",
               "window_right": "-1, 0"}
    options = [Option("workspace", "int", 128, "memory of partial results", 16, 4096, unit="MiB"),
               Option("kernel", "enum", "auto", "which of FlashInfer's kernels; auto: fa3 on Hopper",
                      choices=("auto", "fa2", "fa3"))]

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.kinds = {unlike(layer): layer for layer in layers}
        self.workspace = torch.empty(options["workspace"] << 20, dtype=torch.uint8, device=device)
        self.pool = []

    def take(self, key, layer):
        """A wrapper that no plan has: what it copies to the device, and that copy, are the one plan's."""
        for n, (kind, wrapper, event) in enumerate(self.pool):
            if kind == key and event.query():
                del self.pool[n]
                return wrapper
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace, "HND" if layer.is_hnd else "NHD", backend=self.options_given["kernel"])

    def plan(self, batch):
        rows = batch.indptr()
        made = Plan(self.pool, rows[0], rows[-1])
        indptr = torch.tensor([row - rows[0] for row in rows], dtype=torch.int32)
        for key, layer in self.kinds.items():
            keys = batch.keys(layer)
            if rows[-1] == rows[0] or keys is None:
                continue
            wrapper = made.wrappers[key] = self.take(key, layer)
            lens, size = keys.lens(), keys.page_size
            pages = list(accumulate(((n + size - 1) // size for n in lens), initial=0))
            entries = torch.arange(pages[-1], device=keys.kv_indices.device)
            listed = keys.kv_indices[keys.kv_indptr[0] + entries]  # which need not begin at 0
            dtype = torch.float16 if layer.dtype == "f16" else torch.bfloat16
            wrapper.plan(
                indptr, torch.tensor(pages, dtype=torch.int32), listed,
                torch.tensor([(n - 1) % size + 1 if n else 0 for n in lens], dtype=torch.int32),
                layer.num_q_heads, layer.num_kv_heads, layer.head_dim, size, causal=layer.window_right == 0,
                sm_scale=layer.sm_scale, window_left=layer.window_left, logits_soft_cap=layer.logit_cap,
                q_data_type=dtype, kv_data_type=dtype)
        made.event.record()
        return made

    def forward(self, layer, plan, batch, q, k_cache, v_cache, out, lse):
        first, end = plan.first, plan.end
        padding = slice(end, first + batch.num_tokens)  # rows of no sequence
        out[padding] = 0
        if lse is not None:
            lse[padding] = float("-inf")
        if end == first:
            return
        if k_cache.stride() != v_cache.stride():  # FlashInfer takes the same of both: all of them is copied
            k_cache, v_cache = k_cache.contiguous(), v_cache.contiguous()
        own = out.is_contiguous()  # FlashInfer writes rows one after another
        made = plan.wrappers[unlike(layer)].run(q[first:end], (k_cache, v_cache), out=out[first:end] if own else None,
                                                return_lse=True)
        if not own:
            out[first:end] = made[0]
        if lse is not None:
            lse[first:end] = made[1] * log(2)
        plan.event.record()
