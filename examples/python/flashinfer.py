# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's BatchPrefillWithPagedKVCacheWrapper, planned on the host once a step, for every mode.

    attnhost check --device cuda:0 flashinfer.py
"""
from itertools import accumulate
from math import log

from attnhost.backend import Backend, Error, Option, need

flashinfer = need("flashinfer", "flashinfer-python")
import torch  # noqa: E402  the package above needs it


def unlike(layer):
    """Layers that differ in none of these share a wrapper."""
    return (layer.kv_group, layer.num_q_heads, layer.num_kv_heads, layer.head_dim, layer.window_left,
            layer.window_right, layer.logit_cap, layer.sm_scale, layer.is_hnd, layer.dtype)


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
        self.wrappers = {}
        workspace = torch.empty(options["workspace"] << 20, dtype=torch.uint8, device=device)
        for layer in layers:
            if unlike(layer) not in self.wrappers:
                self.wrappers[unlike(layer)] = layer, flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                    workspace, "HND" if layer.is_hnd else "NHD", backend=options["kernel"])

    def plan(self, batch):
        """The first row of a sequence and the end of the last."""
        rows = batch.indptr()
        indptr = torch.tensor([row - rows[0] for row in rows], dtype=torch.int32)
        for layer, wrapper in self.wrappers.values():
            keys = batch.keys(layer)
            if rows[-1] == rows[0] or keys is None:
                continue
            lens, size = keys.lens(), keys.page_size
            pages = list(accumulate(((n + size - 1) // size for n in lens), initial=0))
            dtype = torch.float16 if layer.dtype == "f16" else torch.bfloat16
            wrapper.plan(
                indptr, torch.tensor(pages, dtype=torch.int32), keys.kv_indices[:pages[-1]],
                torch.tensor([(n - 1) % size + 1 if n else 0 for n in lens], dtype=torch.int32),
                layer.num_q_heads, layer.num_kv_heads, layer.head_dim, size, causal=layer.window_right == 0,
                sm_scale=layer.sm_scale, window_left=layer.window_left, logits_soft_cap=layer.logit_cap,
                q_data_type=dtype, kv_data_type=dtype)
        return rows[0], rows[-1]

    def forward(self, layer, plan, batch, q, k_cache, v_cache, out, lse):
        first, end = plan
        padding = slice(end, first + batch.num_tokens)  # rows of no sequence
        out[padding] = 0
        if lse is not None:
            lse[padding] = float("-inf")
        if end == first:
            return
        if k_cache.stride() != v_cache.stride():
            raise Error("UNSUPPORTED", f"strides of k_cache {k_cache.stride()}: accepted those of v_cache, "
                        f"{v_cache.stride()}")
        wrapper = self.wrappers[unlike(layer)][1]
        if lse is None:
            wrapper.run(q[first:end], (k_cache, v_cache), out=out[first:end])
            return
        _, base_2 = wrapper.run(q[first:end], (k_cache, v_cache), out=out[first:end], return_lse=True)
        lse[first:end] = base_2 * log(2)
