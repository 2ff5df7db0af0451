# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention over paged keys, one sequence after the other.

    attnhost check sdpa.py
    attnhost check --device cuda:0 sdpa.py
"""
from attnhost.backend import Backend, Option, need

torch = need("torch", "torch")


class Sdpa(Backend):
    name = "sdpa"
    doc = "PyTorch's scaled_dot_product_attention, a sequence at a time: plain, for comparison"
    devices = "cpu, cuda"
    layouts = "kv.nhd/1, kv.hnd/1"
    mask_kinds = "layer, none"
    uses = "shared_prefix, unsaved_kv, omit_sink, decodes_first, decode_drafts"
    host_arrays = "seq_lens, prefix_lens, q_indptr, kv_lens, kv_new_indptr"
    cost_hint = 8
    options = [Option("kernel", "enum", "math", "which of PyTorch's kernels, where it can serve the call; the others give "
                      "NaN where the first keys of a row have scores of -inf", choices=("math", "efficient", "cudnn"))]

    def plan(self, batch):
        """For each KV group (sequence, first row, end, position of the first, keys, new keys, their row)."""
        rows, prefixes = batch.indptr(), batch.prefixes()
        made = {"first row": rows[0]}
        for group, keys in enumerate(batch.kv_groups):
            if keys is not None:
                new, lens = keys.new_indptr(), keys.lens()
                made[group] = [(s, rows[s], rows[s + 1], prefixes[s], lens[s], new[s + 1] - new[s], new[s])
                               for s in range(batch.num_seqs) if rows[s + 1] > rows[s]]
        return made

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out):
        out[plan["first row"]:plan["first row"] + batch.num_tokens] = 0  # also rows that see no key
        group = layer.num_q_heads // layer.num_kv_heads
        for rows, key, value, i, j, seen in self.pieces(layer, plan, batch, keys, k, v, k_cache, v_cache):
            with self.kernel():
                result = torch.nn.functional.scaled_dot_product_attention(
                    q[rows].transpose(0, 1)[None], key.repeat_interleave(group, 1),
                    value.repeat_interleave(group, 1), attn_mask=seen, scale=layer.sm_scale)
            out[rows] = result[0].transpose(0, 1).masked_fill(~seen.any(1)[:, None, None], 0)

    def kernel(self):
        known = torch.nn.attention.SDPBackend
        chosen = {"math": known.MATH, "efficient": known.EFFICIENT_ATTENTION, "cudnn": known.CUDNN_ATTENTION}
        kernels = [chosen[self.options_given["kernel"]], known.MATH]
        return torch.nn.attention.sdpa_kernel(kernels, set_priority=True)

    def pieces(self, layer, plan, batch, keys, k, v, k_cache, v_cache):
        """Of each sequence that sees a key its rows, keys and values as [1, heads, keys, dim], positions of
        queries [rows, 1] and keys [keys], and which query sees which key."""
        if layer.is_hnd:
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        left = layer.window_left
        right = layer.window_right if batch.mask_kind == "layer" else -1
        for s, first, end, position, count, num_new, row in plan[layer.kv_group]:
            start = max(0, position - left) if left >= 0 else 0
            stop = min(count, position + end - first + right) if right >= 0 else count
            if start >= stop:
                continue
            i = torch.arange(position, position + end - first, device=k_cache.device)[:, None]
            j = torch.arange(start, stop, device=k_cache.device)
            seen = torch.ones(end - first, stop - start, dtype=torch.bool, device=k_cache.device)
            if left >= 0:
                seen &= j >= i - left
            if right >= 0:
                seen &= j <= i + right
            where = keys, s, start, stop, count - num_new, row
            yield slice(first, end), self.gather(k_cache, k, *where), self.gather(v_cache, v, *where), i, j, seen

    @staticmethod
    def gather(cache, given, keys, s, start, stop, first_new, row):
        """Keys start .. stop - 1 of sequence s: [1, heads, keys, dim]. The new ones are read where they are
        given, for not all of them need be saved; what else lies in a page may be anything."""
        size, cached = keys.page_size, stop if given is None else min(stop, first_new)
        parts = []
        if start < cached:
            pages = keys.block_table[s, start // size:(cached + size - 1) // size].long()
            parts.append(cache[pages].flatten(0, 1)[start % size:start % size + cached - start])
        if cached < stop:
            begin = max(start, first_new)
            parts.append(given[row + begin - first_new:row + stop - first_new])
        return torch.cat(parts).transpose(0, 1)[None]
