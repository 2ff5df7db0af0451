# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's BatchPrefillWithPagedKVCacheWrapper, planned on the host once a step, for every mode.

    attnhost check --device cuda:0 flashinfer.py
"""
from itertools import accumulate
from math import frexp
from operator import attrgetter

from attnhost.backend import Backend, Option, need

flashinfer = need("flashinfer", "flashinfer-python")
import torch  # noqa: E402  the package above needs it

# Layers that differ in none of these share a wrapper.
unlike = attrgetter("kv_group", "num_q_heads", "num_kv_heads", "head_dim", "window_left", "window_right", "logit_cap",
                    "sm_scale", "is_hnd")


def scale_of(layer):
    """FlashInfer's scale, and a factor of queries: it accepts scales above 0, and scores below -50000 are absent."""
    part = abs(frexp(layer.sm_scale)[0]) or 1.0  # the factor is a power of two, or 0
    return (layer.sm_scale, 1) if 2 ** -8 < layer.sm_scale < 2 ** 8 else (part, layer.sm_scale / part)


class Plan:
    """Wrappers of a step. They go back to their pool with it, and are free when the device has done its work."""

    def __init__(self, pool, first, end):
        self.pool, self.first, self.end = pool, first, end
        self.wrappers, self.event = {}, torch.cuda.Event()

    def __del__(self):
        self.pool += [(key, wrapper, self.event) for key, wrapper in self.wrappers.items()]


class FlashInfer(Backend):
    name = "flashinfer"
    doc = "FlashInfer, BatchPrefillWithPagedKVCacheWrapper"
    devices = "cuda"
    dtypes = "bf16"  # f16 has no room for the factor below
    traits = "first_call_slow"  # compiled for each kind of layer
    layouts = "kv.nhd/1, kv.hnd/1"
    flags = "logit_cap"
    uses = "shared_prefix, omit_sink, decodes_first, decode_drafts"  # no LSE: fa2's is of rounded probabilities
    host_arrays = "seq_lens, kv_lens, prefix_lens, q_indptr"
    accepts = {"device.sm": "80..121", "head_dim": "64, 128, 256", "v_head_dim": "head_dim", "window_right": "-1, 0"}
    options = [Option("workspace", "int", 128, "memory of partial results", 16, 4096, unit="MiB"),
               Option("kernel", "enum", "auto", "which of FlashInfer's kernels; auto: fa3 on Hopper",
                      choices=("auto", "fa2", "fa3"))]
    in_place = False  # flashinfer_in_place.py

    def __init__(self, layers, options, device):
        super().__init__(layers, options, device)
        self.kinds = {unlike(layer): layer for layer in layers}
        self.workspace = torch.empty(options["workspace"] << 20, dtype=torch.uint8, device=device)
        self.pool = []

    def take(self, key, layer):
        """A wrapper that no plan uses: its host data, and their copy on the device, belong to one plan."""
        for n, (kind, wrapper, event) in enumerate(self.pool):
            if kind == key and event.query():
                del self.pool[n]
                return wrapper
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace, "HND" if layer.is_hnd and self.in_place else "NHD", backend=self.options_given["kernel"])

    def plan(self, batch):
        rows = batch.indptr()
        made = Plan(self.pool, rows[0], rows[-1])
        for key, layer in self.kinds.items():
            if rows[-1] == rows[0] or not (keys := batch.keys(layer)):
                continue
            counts, owners, starts, lens = zip(*self.runs(batch, layer, rows, keys))
            size = keys.page_size if self.in_place else 1  # a copied key is a page of its own
            begins = list(accumulate((-(-n // size) for n in lens), initial=0))
            about = torch.tensor([begins[:-1], owners, starts, begins[1:]], pin_memory=True)  # else the next line waits
            about = about.to(self.device, non_blocking=True)
            begin, owner, start, _ = about.repeat_interleave(about[3] - about[0], 1, output_size=begins[-1])
            at = start + torch.arange(begins[-1], device=self.device) - begin
            wrapper = made.wrappers[key] = self.take(key, layer)
            wrapper.plan(
                torch.tensor([0, *accumulate(counts)], dtype=torch.int32), torch.tensor(begins, dtype=torch.int32),
                (keys.block_table[owner, at] if self.in_place else at).int(),
                torch.tensor([(n - 1) % size + 1 if n else 0 for n in lens], dtype=torch.int32),
                layer.num_q_heads, layer.num_kv_heads, layer.head_dim, size, causal=layer.window_right == 0,
                sm_scale=scale_of(layer)[0], window_left=layer.window_left, logits_soft_cap=layer.logit_cap,
                q_data_type=torch.bfloat16, disable_split_kv=not self.in_place)  # parts are put together by their LSE
        made.event.record()
        return made

    def runs(self, batch, layer, rows, keys):
        """(rows, sequence, the first key, how many): FlashInfer lets the last row see the last key, so where a KV group
        has fewer keys than the sequence has tokens each row is a run of its own."""
        each = max(1, -(-batch.max_kv_len // keys.page_size)) * keys.page_size  # of a sequence in Keys.copies()
        for s, (prefix, n) in enumerate(zip(batch.prefixes(), keys.lens())):
            end = prefix + rows[s + 1] - rows[s]
            if self.in_place or n == end:
                yield end - prefix, s, 0 if self.in_place else s * each, n
            for i in () if self.in_place or n == end else range(prefix, end):
                stop = min(n, i + 1) if layer.window_right == 0 else n
                start = min(stop, max(0, i - layer.window_left)) if layer.window_left >= 0 else 0
                yield 1, s, s * each + start, stop - start

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out):
        first, end = plan.first, plan.end
        out[end:first + batch.num_tokens] = 0  # rows of no sequence
        if end == first:
            return
        if not self.in_place:
            k_cache, v_cache = (keys.copies(cache.swapaxes(1, 2) if layer.is_hnd else cache, new, batch.max_kv_len)
                                .flatten(0, 1)[:, None] for cache, new in ((k_cache, k), (v_cache, v)))
        elif k_cache.stride() != v_cache.stride():  # FlashInfer takes the same of both: all of them is copied
            k_cache, v_cache = k_cache.contiguous(), v_cache.contiguous()
        queries = q[first:end] if scale_of(layer)[1] == 1 else q[first:end] * scale_of(layer)[1]
        place = out[first:end] if out.is_contiguous() else None  # FlashInfer writes rows one after another
        made = plan.wrappers[unlike(layer)].run(queries, (k_cache, v_cache), out=place)
        if place is None:
            out[first:end] = made
        plan.event.record()
