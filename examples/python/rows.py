# SPDX-License-Identifier: Apache-2.0
"""Attention row by row in numpy: slow, and whole. The one to copy (docs/PYTHON_BACKENDS.md).

    attnhost check rows.py
"""
from attnhost.backend import Backend, need

np = need("numpy", "numpy")


class Rows(Backend):
    name = "numpy_rows"
    doc = "a row at a time in numpy: plain, to be read and copied"
    tensors = "numpy"
    dtypes = "f32"
    flags = "sinks"
    mask_kinds = "layer, none"
    uses = "lse, shared_prefix, unsaved_kv, decodes_first, decode_drafts"
    cost_hint = 100

    def plan(self, batch):
        """For each KV group (sequence, first row, end of its rows, position of the first, keys, new ones, their
        row)."""
        rows, prefixes = batch.indptr(), batch.prefixes()
        plan = [[] for _ in batch.kv_groups]
        for sequences, keys in zip(plan, batch.kv_groups):
            if keys is not None:
                lens, new = keys.lens(), keys.new_indptr()
                sequences += [(s, rows[s], rows[s + 1], prefixes[s], lens[s], new[s + 1] - new[s], new[s])
                              for s in range(batch.num_seqs)]
        return plan

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, sinks):
        sequences = plan[layer.kv_group]
        first = sequences[0][1] if sequences else 0
        out[first:first + batch.num_tokens] = 0  # also rows of no sequence
        if lse is not None:
            lse[first:first + batch.num_tokens] = -np.inf
        group = layer.num_q_heads // layer.num_kv_heads
        right = layer.window_right if batch.mask_kind == "layer" else -1
        for s, first, end, position, count, *new in sequences:
            key, value = self.gather(keys, s, count, k_cache, k, *new), self.gather(keys, s, count, v_cache, v, *new)
            for row in range(first, end):
                i = position + row - first
                low = max(0, i - layer.window_left) if layer.window_left >= 0 else 0
                high = min(count, i + right + 1) if right >= 0 else count
                seen = slice(low, max(low, high))
                result = self.row(q[row].reshape(-1, group, layer.head_dim), key[seen], value[seen], layer.sm_scale,
                                  sinks)
                out[row] = result[0]
                if lse is not None:
                    lse[row] = result[1]

    @staticmethod
    def gather(keys, s, count, cache, given, num_new, row):
        """All keys of sequence s, [keys, kv heads, dim]. The new ones are read where they are given: not all of
        them need have a slot."""
        pages = keys.block_table[s, :(count + keys.page_size - 1) // keys.page_size]
        cached = cache[pages].reshape(-1, *cache.shape[2:])
        if given is None:
            return cached[:count]
        return np.concatenate([cached[:count - num_new], given[row:row + num_new]])

    @staticmethod
    def row(q, key, value, scale, sinks):
        """[kv heads, group, dim], [keys, kv heads, dim]: the output [heads, dim] and the LSE [heads]."""
        scores = scale * np.einsum("hgd,nhd->hgn", q, key)
        if sinks is not None:  # a key that has a score and no value
            scores = np.concatenate([scores, sinks.reshape(*q.shape[:2], 1)], 2)
        top = scores.max(2, initial=-np.inf)
        top = np.where(np.isinf(top), 0, top)
        weights = np.exp(scores - top[..., None])
        total, of_keys = weights.sum(2), weights[..., :len(key)]
        sums = np.einsum("hgn,nhd->hgd", of_keys, value)
        rows = sums / np.where(total == 0, 1, total)[..., None]
        rows[(of_keys == 0).all(2)] = 0  # even where a value is NaN
        with np.errstate(divide="ignore"):
            return rows.reshape(-1, value.shape[2]), (top + np.log(total)).reshape(-1)
