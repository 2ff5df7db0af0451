#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run must report, computed from the trace file alone.

Shares no code with the host; written from the definitions. For a run with max_running_requests = 1
(each request ends before the next one starts) and a KV pool so large that nothing is evicted:

  requests       requests taken
  input_tokens   sum of the scaled input lengths = prefill + prefix_hit - recomputed of any run
  decode_tokens  sum of max(0, output - 1): the first output token comes from prefill
  prefix_hit     tokens found in the prefix cache
  rows           computed rows of one layer: input_tokens - prefix_hit + decode_tokens
  rows_sampled   (with --sample) rows of all layers that the sample function takes

The rows of a request with scaled lengths L, n and hit h, in each layer: prefill at positions
[h, L), decode at positions [L, L + n - 1) (none for n = 0 and n = 1).
"""
import argparse
import csv
import datetime
import json
import math
import sys

BLOCK = 512
WORD = 2**64 - 1


def read_mooncake(path):
    rows = []
    with open(path, encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            row = json.loads(text)
            arrival = math.floor(row["timestamp"] * 1000)
            rows.append((arrival, line, row["input_length"], row["output_length"],
                         row["hash_ids"]))
    return rows


def read_azure(path):
    rows = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            seconds, _, fraction = row["TIMESTAMP"].partition(".")
            moment = datetime.datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S")
            since = moment - datetime.datetime(1970, 1, 1)
            micros = int((fraction + "000000")[:6])
            arrival = (since.days * 86400 + since.seconds) * 10**6 + micros
            rows.append((arrival, line, int(row["ContextTokens"]), int(row["GeneratedTokens"]), []))
    return rows


def read_trace(path, form):
    if form == "auto":
        with open(path, encoding="utf-8-sig") as file:
            form = "mooncake" if file.read(65536).lstrip().startswith("{") else "azure"
    rows = read_mooncake(path) if form == "mooncake" else read_azure(path)
    return sorted(rows, key=lambda row: row[:2])


def scaled(length, scale):
    return max(1, math.floor(length * scale)) if length else 0


class SeenPrefixes:
    """Every run of whole blocks from block 0 that a request so far had, as a tree of hash ids."""

    def __init__(self):
        self.root = {}

    def longest(self, ids):
        node, length = self.root, 0
        while length < len(ids) and ids[length] in node:
            node = node[ids[length]]
            length += 1
        return length

    def add(self, ids):
        node = self.root
        for hash_id in ids:
            node = node.setdefault(hash_id, {})


def place_requests(rows, scale, page_size):
    """(hit, L, n) of each request, in order of arrival."""
    block = scaled(BLOCK, scale)
    seen, requests = SeenPrefixes(), []
    for _, _, length, output, ids in rows:
        length, output = scaled(length, scale), scaled(output, scale)
        whole = ids[:length // block]
        reusable = min(seen.longest(whole) * block, length - 1)
        requests.append((reusable // page_size * page_size, length, output))
        seen.add(whole)
    return requests


def save_keys(requests, depth, end, base, levels):
    """(keys, requests) of the best choice of runs among requests with the same first `depth` blocks:
    the keys of each but one, beyond the `base` that are read once already, and those in runs.
    end(blocks) is where their whole pages end."""
    if levels == 0 or len(requests) < 2:
        return 0, 0
    below = {}
    for whole in requests:
        if len(whole) > depth:
            below.setdefault(whole[depth], []).append(whole)
    within = [save_keys(of, depth + 1, end, base, levels) for of in below.values()]
    apart = tuple(map(sum, zip((0, 0), *within)))
    keys = end(depth)
    if keys - base < 64:
        return apart
    inner = sum(save_keys(of, depth + 1, end, keys, levels - 1)[0] for of in below.values())
    return max((inner + (len(requests) - 1) * (keys - base), len(requests)), apart)


def count_shared(rows, scale, page_size):
    """The hints of shared prefixes that backends get if all requests decode from the same step on, each
    as long as it has rows: those that share keys, keys saved, keys of all rows."""
    block, shared, saved, keys = scaled(BLOCK, scale), 0, 0, 0
    lengths = [(scaled(length, scale), scaled(output, scale), ids)
               for _, _, length, output, ids in rows]
    for step in range(1, max(output for _, output, _ in lengths)):
        decoding = [(length, ids) for length, output, ids in lengths if output > step]
        keys += sum(length + step for length, _ in decoding)
        found = save_keys([ids[:length // block] for length, ids in decoding], 0,
                         lambda blocks: blocks * block // page_size * page_size, 0, 2)
        saved, shared = saved + found[0], shared + found[1]
    return {"shared_rows": shared, "saved_keys": saved, "keys": keys}


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & WORD
    return x ^ x >> 31


def absorb(state, word):
    return mix((state + 0x9E3779B97F4A7C15 & WORD) ^ (word & WORD))


class Sample:
    """Which rows are verified, of a seed and a rate."""

    def __init__(self, seed, rate):
        self.threshold = math.floor(min(max(rate, 0.0), 1.0) * 2**53)
        self.seeded = absorb(int.from_bytes(b"attnhost", "big"), seed)

    def count(self, number, position, layers):
        of_position = absorb(absorb(self.seeded, number), position)
        return sum(absorb(of_position, layer) >> 11 < self.threshold for layer in layers)


def count_sampled(requests, seed, rate, layers):
    sample = Sample(seed, rate)
    return sum(sample.count(request, position, range(layers))
               for request, (hit, length, output) in enumerate(requests)
               for position in range(hit, length + max(0, output - 1)))


def steps_of(hit, length, output, chunk):
    """(position, rows) of the steps of a request that runs alone: its prompt in chunks, then decode
    rows."""
    while hit < length:
        rows = min(chunk, length - hit)
        yield hit, rows
        hit += rows
    for position in range(length, length + max(0, output - 1)):
        yield position, 1


def count_windows(requests, page_size, chunk, first_seen):
    """The most tokens that requests hold, one at a time, in the pool of all positions and in that of
    windows: at each step the pages up to its last row, and there only those from the page on that
    has the first position its first row sees."""
    most = [0, 0]
    for hit, length, output in requests:
        for position, rows in steps_of(hit, length, output, chunk):
            end = -(-(position + rows) // page_size)
            for pool, first in enumerate((0, first_seen(position) // page_size)):
                most[pool] = max(most[pool], (end - first) * page_size)
    return most


def stream(state, index):
    return mix(state + (index + 1) * 0x9E3779B97F4A7C15 & WORD)


def verifications_of(requests, tokens, topk, rate, seed):
    """(request, root, right, end) of each verification, whatever the batching: it starts at the last
    token, at position `root`, looks at the drafts behind it in order of depth up to the first that is
    wrong, which makes `right` of them, and commits one row more, unless the request ends before: at
    `end`."""
    depth = -(-(tokens - 1) // topk)
    threshold = math.floor(rate * 2**53)
    seeded = absorb(int.from_bytes(b"drafted ", "big"), seed)
    for request, (_, length, output) in enumerate(requests):
        of_request = absorb(seeded, request)
        root, end = length, length + max(0, output - 1)
        while root < end:
            right = 0
            while right < depth and root + right + 1 < end and stream(
                    absorb(of_request, root + right + 1), 0) >> 11 < threshold:
                right += 1
            yield request, root, right, end
            root += right + 1


def count_drafts(requests, tokens, topk, rate, seed):
    """Counts of speculative decoding."""
    verifications = accepted = draft_extend = 0
    for _, root, right, end in verifications_of(requests, tokens, topk, rate, seed):
        verifications += 1
        accepted += right
        draft_extend += right + 1 if root + right + 1 < end else 0
    drafted = verifications * (tokens - 1)
    return {"verifications": verifications, "drafted": drafted, "accepted": accepted,
            "wasted": drafted - accepted, "draft_extend": draft_extend}


def count_sampled_drafts(requests, tokens, topk, rate, draft_seed, seed, sampled, layers):
    """Verified rows that a run has with drafts beside those without, `layers` being the target's: the
    drafts that are turned down, and the rows of the draft model's layer. A request's row r of a
    verification stands at the root's position plus 1 + (r - 1) // topk. The first guess at each depth,
    which stays if it is right, is drawn among the rows there; a row that does not stay is sampled as
    one of the request numbered request + requests * (1 + r)."""
    sample, count = Sample(seed, sampled), 0
    seeded = absorb(int.from_bytes(b"drafted ", "big"), draft_seed)
    for request, root, right, end in verifications_of(requests, tokens, topk, rate, draft_seed):
        for first in range(1, tokens, topk):
            depth, width = 1 + (first - 1) // topk, min(topk, tokens - first)
            drawn = stream(absorb(absorb(seeded, request), root + depth), 1) & 0xFFFFFFFF
            guess = first + (drawn * width >> 32)
            for row in range(first, first + width):
                if depth > right or row != guess:
                    count += sample.count(request + len(requests) * (1 + row), root + depth,
                                          range(layers))
        if root + right + 1 < end:
            count += sum(sample.count(request, position, [layers])
                         for position in range(root, root + right + 1))
    for request, (hit, length, _) in enumerate(requests):
        count += sum(sample.count(request, position, [layers]) for position in range(hit, length))
    return count


def expected_tokens(depth, rate):
    """Tokens of a verification of a request that goes on for ever: 1 + p + p^2 + ... + p^depth."""
    return sum(rate**d for d in range(depth + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--format", choices=("auto", "mooncake", "azure"), default="auto")
    parser.add_argument("--length-scale", type=float, default=1.0)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--max-requests", type=int, default=0, help="0 = all")
    parser.add_argument("--no-prefix-cache", action="store_true", help="count no hits")
    parser.add_argument("--sample", nargs=3, metavar=("SEED", "RATE", "LAYERS"))
    options = parser.parse_args()
    rows = read_trace(options.trace, options.format)
    if options.max_requests:
        rows = rows[:options.max_requests]
    requests = place_requests(rows, options.length_scale, options.page_size)
    if options.no_prefix_cache:
        requests = [(0, length, output) for _, length, output in requests]
    result = {
        "requests": len(requests),
        "input_tokens": sum(length for _, length, _ in requests),
        "decode_tokens": sum(max(0, output - 1) for _, _, output in requests),
        "prefix_hit": sum(hit for hit, _, _ in requests),
    }
    result["rows"] = result["input_tokens"] - result["prefix_hit"] + result["decode_tokens"]
    if options.sample:
        seed, rate, layers = options.sample
        result["rows_sampled"] = count_sampled(requests, int(seed), float(rate), int(layers))
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
