# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention over paged keys: a call for each run of sequences that are alike.

    attnhost check sdpa.py
    attnhost check --device cuda:0 sdpa.py
"""
from attnhost.backend import Backend, Option, need

torch = need("torch", "torch")


class Sdpa(Backend):
    name = "sdpa"
    doc = "PyTorch's scaled_dot_product_attention, a run of like sequences at a time: plain, for comparison"
    devices = "cpu, cuda"
    layouts = "kv.nhd/1, kv.hnd/1"
    mask_kinds = "layer, none"
    uses = "shared_prefix, unsaved_kv, omit_sink, decodes_first, decode_drafts"
    host_arrays = "seq_lens, prefix_lens, q_indptr, kv_lens, kv_new_indptr"
    cost_hint = 8
    traits = "first_call_slow"  # cuDNN chooses a plan for each shape
    options = [Option("kernel", "enum", "math", "which of PyTorch's kernels, where it can serve the call; the others give "
                      "NaN where the first keys of a row have scores of -inf", choices=("math", "efficient", "cudnn"))]

    def plan(self, batch):
        """For each KV group runs of sequences that are alike: (the first, how many, its first row; rows, position of
        the first query, keys, new keys of each; row of the first new key)."""
        rows, prefixes = batch.indptr(), batch.prefixes()
        made = {"first row": rows[0]}
        for group, keys in enumerate(batch.kv_groups):
            if keys is not None:
                new, lens, runs = keys.new_indptr(), keys.lens(), []
                for s in range(batch.num_seqs):
                    like = rows[s + 1] - rows[s], prefixes[s], lens[s], new[s + 1] - new[s]
                    if runs and runs[-1][3:7] == like:
                        runs[-1] = runs[-1][0], runs[-1][1] + 1, *runs[-1][2:]
                    else:
                        runs.append((s, 1, rows[s], *like, new[s]))
                made[group] = [run for run in runs if run[3]]
        return made

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out):
        out[plan["first row"]:plan["first row"] + batch.num_tokens] = 0  # also rows that see no key
        group = layer.num_q_heads // layer.num_kv_heads
        for rows, n, key, value, i, j, seen in self.pieces(layer, plan, batch, keys, k, v, k_cache, v_cache):
            if self.options_given["kernel"] == "efficient":  # it knows no groups of heads
                key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
            triangle = seen is None and len(i) > 1 and len(i) == len(j) and self.right(layer, batch) == 0
            with self.kernel():
                result = torch.nn.functional.scaled_dot_product_attention(
                    q[rows].unflatten(0, (n, -1)).transpose(1, 2), key, self.weigh(value), seen, is_causal=triangle,
                    scale=layer.sm_scale, enable_gqa=True).transpose(1, 2)
            if self.options_given["kernel"] == "math":  # a row without weights is 0, even where a value is NaN
                result = result[..., :-1].masked_fill(result[..., -1:] == 0, 0)
            out[rows] = (result if seen is None else result.masked_fill(~seen.any(1)[:, None, None], 0)).flatten(0, 1)

    def weigh(self, value):
        """With a value of 1 after the others, which becomes the sum of a row's weights."""
        return torch.nn.functional.pad(value, (0, 1), value=1) if self.options_given["kernel"] == "math" else value

    def kernel(self):
        known = torch.nn.attention.SDPBackend
        chosen = {"math": known.MATH, "efficient": known.EFFICIENT_ATTENTION, "cudnn": known.CUDNN_ATTENTION}
        kernels = [chosen[self.options_given["kernel"]], known.MATH]
        return torch.nn.attention.sdpa_kernel(kernels, set_priority=True)

    @staticmethod
    def right(layer, batch):
        return layer.window_right if batch.mask_kind == "layer" else -1

    def pieces(self, layer, plan, batch, keys, k, v, k_cache, v_cache):
        """Of each run of sequences that see a key its rows, how many they are, keys and values as [sequences, heads,
        keys, dim], positions of queries [rows, 1] and keys [keys], and which query sees which key; None where that is
        all, or all up to its own position."""
        if layer.is_hnd:
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        left, right = layer.window_left, self.right(layer, batch)
        for s, n, first, count_q, position, count, num_new, row in plan[layer.kv_group]:
            start = max(0, position - left) if left >= 0 else 0
            stop = min(count, position + count_q + right) if right >= 0 else count
            if start >= stop:
                continue
            i = torch.arange(position, position + count_q, device=k_cache.device)[:, None]
            j = torch.arange(start, stop, device=k_cache.device)
            where = keys, s, n, start, stop, count - num_new, row, num_new
            yield (slice(first, first + n * count_q), n, self.gather(k_cache, k, *where),
                   self.gather(v_cache, v, *where), i, j, self.mask(i, j, position, left, right))

    def mask(self, i, j, position, left, right):
        plain = len(i) == 1 or left < 0 and (right < 0 or right == position == 0 and len(i) == len(j))
        return None if plain else self.seen(i, j, left, right)

    @staticmethod
    def seen(i, j, left, right):
        seen = torch.ones(len(i), len(j), dtype=torch.bool, device=j.device)
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
        return seen

    @staticmethod
    def gather(cache, given, keys, s, n, start, stop, first_new, row, num_new):
        """Keys start .. stop - 1 of sequences s .. s + n - 1: [n, heads, keys, dim]. The new ones are read where they
        are given, as not all of them need be saved; the rest of a page is undefined."""
        size, cached = keys.page_size, stop if given is None else min(stop, first_new)
        parts = []
        if start < cached:
            pages = keys.block_table[s:s + n, start // size:(cached + size - 1) // size].long()
            parts.append(cache[pages].flatten(1, 2)[:, start % size:start % size + cached - start])
        if cached < stop:
            begin = max(start, first_new)
            new = given[row:row + n * num_new].unflatten(0, (n, num_new))
            parts.append(new[:, begin - first_new:stop - first_new])
        return torch.cat(parts, 1).transpose(1, 2)
